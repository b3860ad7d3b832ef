//! Scripts of customizations: anybody who may write a ResourceInterpreterCustomization writes the input.

use std::sync::{Arc, LazyLock};

use api::config::ResourceInterpreterCustomization;
use apimachinery::json;
use interpreter::{AtOnce, Customizations, Interpreter, Limit, at_once, lua};
use serde_json::{Value, json};

use super::shallow;

/// Errors end up in events: what a script says is cut.
const MESSAGE_MAX: usize = 4096;

fn interpreter(rules: &Value) -> Interpreter {
    let customization: ResourceInterpreterCustomization = serde_json::from_value(json!({
        "metadata": {"name": "c"},
        "spec": {"target": {"apiVersion": "example.io/v1", "kind": "Widget"}, "customizations": rules},
    }))
    .expect("a customization");
    let layer = Customizations::new(Arc::new(jiff::Timestamp::now))
        .with_limit(Limit { steps: Some(50_000), bytes: Some(4 << 20) });
    layer.load([&customization]);
    Interpreter::with_layers([Arc::new(AtOnce(layer)) as _])
}

fn widget(status: Value) -> Value {
    json!({"apiVersion": "example.io/v1", "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"replicas": 2, "list": [1, "two", null, {}], "empty": {}}, "status": status})
}

/// Compiles a script and runs it: as itself, and as the body of a function that is asked for a status.
pub(super) fn run(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    let mut outcome = String::new();
    for script in [text.to_string(), format!("function ReflectStatus(o)\n{text}\nend")] {
        if let Some(fault) = lua::fault(&script) {
            assert!(fault.len() <= MESSAGE_MAX + script.len(), "{} bytes", fault.len());
            outcome.push_str(fault.split("near").next().unwrap_or_default());
            continue;
        }
        let taught = interpreter(&json!({"statusReflection": {"luaScript": script}}));
        let answer = at_once(taught.reflect_status(&widget(json!({"a": 1})))).expect("nothing waits");
        outcome.push_str(&match answer {
            Ok(status) => {
                status.iter().for_each(shallow);
                "fine".to_owned()
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.len() <= MESSAGE_MAX, "{} bytes", error.len());
                error.chars().filter(|each| !each.is_ascii_digit()).take(60).collect()
            }
        });
    }
    outcome
}

/// Sends a value through Lua and back.
pub(super) fn convert(input: &[u8]) -> String {
    static SAME: LazyLock<Interpreter> = LazyLock::new(|| {
        interpreter(&json!({
            "statusReflection": {"luaScript": "function ReflectStatus(o) return o.status end"},
            "retention": {"luaScript": "function Retain(d, o) return d end"},
        }))
    });
    let Ok(document) = json::read(input) else { return "not JSON".to_owned() };
    let reflect =
        |status: &Value| at_once(SAME.reflect_status(&widget(status.clone()))).expect("nothing waits");
    let once = match reflect(&document.value) {
        Ok(Some(once)) => once,
        Ok(None) => return "nothing".to_owned(),
        Err(error) => return error.to_string().chars().take(80).collect(),
    };
    shallow(&once);
    // What has been through Lua is what Lua can say: it stays the same. Only what is empty may turn from a list into a map, and
    // vanish.
    match reflect(&once) {
        Ok(Some(twice)) if !has_empty(&once) => assert_eq!(twice, once),
        Ok(Some(twice)) => shallow(&twice),
        other => assert!(has_empty(&once), "{once} became {other:?}"),
    }
    let object = widget(document.value);
    if let Ok(retained) = at_once(SAME.retain(object.clone(), &object)).expect("nothing waits") {
        shallow(&retained);
        let again = at_once(SAME.retain(retained.clone(), &retained)).expect("nothing waits");
        let again = again.expect("what was retained can be retained");
        assert!(
            again["status"] == retained["status"] || has_empty(&retained["status"]),
            "{retained} became {again}"
        );
    }
    "fine".to_owned()
}

/// Says whether a list or a map without content is in a value.
fn has_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty() || items.iter().any(has_empty),
        Value::Object(fields) => fields.is_empty() || fields.values().any(has_empty),
        _ => false,
    }
}
