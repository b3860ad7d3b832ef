//! Answers of webhooks for admission, for conversion and of interpreters: others' servers write the input.

use std::sync::LazyLock;

use api::config::{ResourceInterpreterContext, ResourceInterpreterWebhookConfiguration};
use apimachinery::gvk::Gvk;
use apimachinery::json;
use apiserver::{admission, conversion};
use interpreter::webhook::{Hook, Hooks};
use interpreter::{Answer, Operation, Question};
use serde_json::{Value, json};

use super::shallow;

/// What is told of an interpreter's answer ends up in conditions and events.
const TOLD_MAX: usize = 2_048;

fn widget() -> Value {
    json!({"apiVersion": "example.io/v1", "kind": "Widget",
        "metadata": {"name": "w", "namespace": "shop", "uid": "1", "resourceVersion": "7", "generation": 2,
            "labels": {"a": "b"}, "finalizers": ["example.io/f"]},
        "spec": {"replicas": 2, "list": [1, "two", null, {}]}})
}

pub(super) fn read(input: &[u8]) -> String {
    let mut told = String::new();
    for code in [200, 500] {
        for mutating in [true, false] {
            let answered = admission::webhooks::answered(code, input, "u", mutating, &widget());
            told.push_str(&match answered {
                Ok(object) => {
                    shallow(&object);
                    assert!(mutating || object == widget(), "a validating webhook changed the object");
                    assert_eq!(code, 200, "a failure let a write pass");
                    assert!(says(input, "/response/allowed", &json!(true)), "it did not say so");
                    assert!(says(input, "/response/uid", &json!("u")), "it answered another question");
                    "passed ".to_owned()
                }
                Err(error) => start(&error),
            });
        }
    }
    let converted = conversion::answered(200, input, "u", &widget(), "example.io/v2");
    told.push_str(&match converted {
        Ok(object) => {
            shallow(&object);
            assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("example.io/v2"), &json!("Widget")));
            // Labels and annotations are the webhook's, nothing else of the metadata is.
            let kept = |object: &Value| {
                let mut metadata = object["metadata"].as_object().cloned().unwrap_or_default();
                metadata.retain(|field, _| field != "labels" && field != "annotations");
                metadata
            };
            assert_eq!(kept(&object), kept(&widget()));
            "converted ".to_owned()
        }
        Err(error) => start(&error),
    });
    told + &interpreted(input)
}

fn interpreted(input: &[u8]) -> String {
    static HOOK: LazyLock<Hooks> = LazyLock::new(|| {
        let rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "kinds": ["*"]});
        let configuration: ResourceInterpreterWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": "c"},
            "webhooks": [{"name": "h", "clientConfig": {"url": "https://localhost/x"}, "rules": [rule],
                "interpreterContextVersions": ["v1alpha1"]}],
        }))
        .expect("a configuration");
        Hooks::new([&configuration])
    });
    let hook: &Hook = HOOK
        .find(&Gvk::new("example.io", "v1", "Widget"), Operation::InterpretHealth)
        .expect("it is for everything");
    let Ok(document) = json::read(input) else { return "not JSON".to_owned() };
    let context = serde_json::from_value::<ResourceInterpreterContext>(document.value);
    let context = match context {
        Ok(context) => context,
        Err(error) => {
            let told = hook.failed(&error.to_string()).to_string();
            assert!(told.chars().count() <= TOLD_MAX, "{} bytes", told.len());
            return "not a context".to_owned();
        }
    };
    let object = widget();
    let questions = [
        Question::Replicas { object: object.clone() },
        Question::Components { object: object.clone() },
        Question::Revise { object: object.clone(), replicas: 7 },
        Question::Retain { desired: object.clone(), observed: object.clone() },
        Question::Status { object: object.clone() },
        Question::Health { object: object.clone() },
        Question::Dependencies { object },
    ];
    let mut told = String::new();
    for question in questions {
        match hook.answer("u", question, context.clone()) {
            Ok(answer) => {
                if let Answer::Object(made) | Answer::Status(Some(made)) = &answer {
                    shallow(made);
                }
                told.push('1');
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.chars().count() <= TOLD_MAX, "{} bytes", error.len());
                told.push('0');
            }
        }
    }
    told
}

fn says(input: &[u8], path: &str, wanted: &Value) -> bool {
    json::read(input).is_ok_and(|document| document.value.pointer(path) == Some(wanted))
}

fn start(text: &str) -> String {
    text.chars().take(60).chain([' ']).collect()
}
