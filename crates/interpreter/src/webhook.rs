//! The protocol of interpreter webhooks, without the network: which hook is asked, what it is sent, what its answer means.
//!
//! Of all hooks that match, the one with the smallest id answers, alone; its failure ends the operation. Texts are upstream's.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use std::sync::Arc;

use api::config::{
    GroupVersionKind, INTERPRETER_CONTEXT_VERSION, InterpreterOperation, ResourceInterpreterContext,
    ResourceInterpreterRequest, ResourceInterpreterResponse, ResourceInterpreterWebhook,
    ResourceInterpreterWebhookConfiguration, RuleWithOperations,
};
use apimachinery::gvk::Gvk;
use apimachinery::pointer;
use serde_json::Value;

use crate::{Answer, Error, Operation, Question, Replicas, Result, verify_dependencies};

/// How many characters of what a hook says are told: it ends up in conditions and events, and hooks may answer with megabytes. What is
/// wrong with an answer may quote it, so that counts, too.
const MESSAGE_LIMIT: usize = 1 << 10;

/// One webhook of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Hook {
    /// `<configuration>/<hook>`, by which upstream orders and names them.
    pub id: String,
    pub webhook: ResourceInterpreterWebhook,
}

/// All webhooks, in the order in which they are considered.
#[derive(Debug, Default)]
pub struct Hooks(Vec<Arc<Hook>>);

impl Hooks {
    pub fn new<'a>(
        configurations: impl IntoIterator<Item = &'a ResourceInterpreterWebhookConfiguration>,
    ) -> Self {
        let mut hooks: Vec<Arc<Hook>> = Vec::new();
        for configuration in configurations {
            let name = configuration.metadata.name.as_deref().unwrap_or_default();
            hooks.extend(configuration.webhooks.iter().map(|webhook| {
                Arc::new(Hook { id: format!("{name}/{}", webhook.name), webhook: webhook.clone() })
            }));
        }
        hooks.sort_by(|left, right| left.id.cmp(&right.id));
        Self(hooks)
    }

    /// Returns the hook that answers for a kind.
    pub fn find(&self, kind: &Gvk, operation: Operation) -> Option<&Arc<Hook>> {
        self.0.iter().find(|hook| hook.webhook.rules.iter().any(|rule| matches(rule, kind, operation)))
    }
}

/// Returns whether a rule means an operation on a kind.
pub fn matches(rule: &RuleWithOperations, kind: &Gvk, operation: Operation) -> bool {
    let one = |listed: &[String], wanted: &str| listed.iter().any(|each| each == "*" || each == wanted);
    let wanted = operation.as_str();
    rule.operations.iter().any(|each| each.as_str() == "*" || each.as_str() == wanted)
        && one(&rule.rule.api_groups, &kind.group)
        && one(&rule.rule.api_versions, &kind.version)
        && one(&rule.rule.kinds, &kind.kind)
}

impl Hook {
    /// Returns what the hook is sent; `uid` tells this question from all others.
    pub fn request(&self, uid: &str, question: &Question) -> Result<ResourceInterpreterContext> {
        if !self.webhook.interpreter_context_versions.iter().any(|it| it == INTERPRETER_CONTEXT_VERSION) {
            return Err(self.failed(
                "could not create ResourceInterpreterContext objects: webhook does not accept known \
                 ResourceInterpreterContext versions (v1alpha1)",
            ));
        }
        let (object, kind) = (question.object(), question.kind());
        let replicas = if let Question::Revise { replicas, .. } = question { *replicas } else { 0 };
        let request = ResourceInterpreterRequest {
            uid: uid.to_owned(),
            kind: GroupVersionKind { group: kind.group, version: kind.version, kind: kind.kind },
            name: pointer::owned(object, "/metadata/name"),
            namespace: pointer::owned(object, "/metadata/namespace"),
            operation: InterpreterOperation::from(question.operation().as_str()),
            object: Some(object.clone()),
            observed_object: match question {
                Question::Retain { observed, .. } => Some(observed.clone()),
                _ => None,
            },
            desired_replicas: Some(i32::try_from(replicas).unwrap_or(i32::MAX)),
            aggregated_status: match question {
                Question::Aggregate { items, .. } => items.clone(),
                _ => Vec::new(),
            },
        };
        Ok(ResourceInterpreterContext {
            api_version: format!("{}/{INTERPRETER_CONTEXT_VERSION}", api::config::GROUP),
            kind: "ResourceInterpreterContext".to_owned(),
            request: Some(request),
            response: None,
        })
    }

    /// Returns what the answer of the hook means.
    pub fn answer(
        &self,
        uid: &str,
        question: Question,
        context: ResourceInterpreterContext,
    ) -> Result<Answer> {
        let invalid = |why: String| self.failed(&format!("received invalid webhook response: {why}"));
        let Some(response) = context.response else {
            return Err(invalid("webhook response was absent".to_owned()));
        };
        if response.uid != uid {
            return Err(invalid(format!("expected response.uid {uid:?}, got {:?}", response.uid)));
        }
        if !response.successful {
            let Some(status) = response.status else {
                let why = "webhook require response.status when response.successful is false";
                return Err(invalid(why.to_owned()));
            };
            let (code, message) = (status.code, status.message);
            return Err(self.failed(&format!("webhook call failed, get status code: {code}, msg: {message}")));
        }
        let absent = |what: &str| invalid(format!("webhook returned {what}"));
        match question {
            Question::Replicas { .. } => {
                let count = response.replicas.ok_or_else(|| absent("nil response.replicas"))?;
                Ok(Answer::Replicas(Replicas { count, requirements: response.replica_requirements }))
            }
            Question::Components { .. } => Ok(Answer::Components(response.components)),
            Question::Revise { object, .. }
            | Question::Retain { desired: object, .. }
            | Question::Aggregate { object, .. } => {
                let patch = patch(&response).map_err(invalid)?;
                patch.map_or(Ok(Answer::Object(object.clone())), |patch| {
                    // Not wrapped in the hook's name, as upstream: the answer was valid, it only does not fit.
                    let patched = apimachinery::patch::json::apply(&object, &patch);
                    patched.map(Answer::Object).map_err(|error| Error::Layer(short(&error.to_string())))
                })
            }
            Question::Status { .. } => {
                let status = response.raw_status.ok_or_else(|| absent("nill response.rawStatus"))?;
                Ok(Answer::Status(Some(status)))
            }
            Question::Health { .. } => {
                response.healthy.map(Answer::Health).ok_or_else(|| absent("nil response.healthy"))
            }
            Question::Dependencies { .. } => {
                verify_dependencies(&response.dependencies).map_err(|error| invalid(error.to_string()))?;
                Ok(Answer::Dependencies(response.dependencies))
            }
        }
    }

    /// Returns the error about a call of this hook.
    pub fn failed(&self, reason: &str) -> Error {
        let reason = short(reason);
        Error::Layer(format!("Internal error occurred: failed calling webhook {:?}: {reason}", self.id))
    }
}

fn short(text: &str) -> String {
    text.chars().take(MESSAGE_LIMIT).collect()
}

/// Returns the patch of an answer, if there is one.
fn patch(response: &ResourceInterpreterResponse) -> std::result::Result<Option<Value>, String> {
    let bytes = response.patch.as_ref().map(|patch| patch.0.as_slice()).unwrap_or_default();
    match (&response.patch_type, bytes.is_empty()) {
        (None, true) => return Ok(None),
        (None, false) => return Err("webhook returned nil response.patchType".to_owned()),
        (Some(_), true) => return Err("webhook returned empty response.patch".to_owned()),
        (Some(kind), false) if kind != "JSONPatch" => {
            return Err(format!("webhook returned invalid response.patchType of {kind:?}"));
        }
        (Some(_), false) => {}
    }
    apimachinery::json::read(bytes).map(|read| Some(read.value)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use api::work::AggregatedStatusItem;
    use serde_json::json;

    use super::*;

    fn configuration(name: &str, hooks: Value) -> ResourceInterpreterWebhookConfiguration {
        serde_json::from_value(json!({ "metadata": { "name": name }, "webhooks": hooks })).expect("valid")
    }

    fn hook(name: &str, rule: Value) -> Value {
        json!({ "name": name, "clientConfig": { "url": "https://localhost/x" }, "rules": [rule],
            "interpreterContextVersions": ["v1alpha1"] })
    }

    fn rule(operation: &str, group: &str, version: &str, kind: &str) -> Value {
        json!({ "operations": [operation], "apiGroups": [group], "apiVersions": [version], "kinds": [kind] })
    }

    fn workload() -> Value {
        json!({ "apiVersion": "workload.example.io/v1alpha1", "kind": "Workload",
            "metadata": { "name": "web", "namespace": "default" }, "spec": { "replicas": 2 } })
    }

    fn one() -> Arc<Hook> {
        let all = hook("a.example.com", rule("*", "*", "*", "*"));
        let hooks = Hooks::new([&configuration("c", json!([all]))]);
        hooks.find(&Gvk::new("", "v1", "Pod"), Operation::Retain).expect("it matches").clone()
    }

    #[test]
    fn the_smallest_id_of_those_that_match_answers() {
        let all = || rule("*", "*", "*", "*");
        let exact = || rule("Retain", "apps", "v1", "Deployment");
        let hooks = Hooks::new([
            &configuration("z", json!([hook("a", all())])),
            &configuration("b", json!([hook("z", all()), hook("c", exact())])),
        ]);
        let found = |kind: &Gvk, operation| hooks.find(kind, operation).map(|hook| hook.id.as_str());
        assert_eq!(found(&Gvk::new("apps", "v1", "Deployment"), Operation::Retain), Some("b/c"));
        assert_eq!(found(&Gvk::new("apps", "v1", "Deployment"), Operation::InterpretHealth), Some("b/z"));
        assert_eq!(found(&Gvk::new("apps", "v1beta1", "Deployment"), Operation::Retain), Some("b/z"));
        assert_eq!(Hooks::default().find(&Gvk::new("", "v1", "Pod"), Operation::Retain), None);
    }

    #[test]
    fn every_part_of_a_rule_has_to_match() {
        let kind = Gvk::new("apps", "v1", "Deployment");
        for (each, expected) in [
            (rule("Retain", "apps", "v1", "Deployment"), true),
            (rule("*", "apps", "v1", "Deployment"), true),
            (rule("InterpretHealth", "apps", "v1", "Deployment"), false),
            (rule("Retain", "", "v1", "Deployment"), false),
            (rule("Retain", "apps", "v2", "Deployment"), false),
            (rule("Retain", "apps", "v1", "deployment"), false),
            (rule("Retain", "*", "*", "*"), true),
        ] {
            let rule: RuleWithOperations = serde_json::from_value(each.clone()).expect("valid");
            assert_eq!(matches(&rule, &kind, Operation::Retain), expected, "{each}");
        }
    }

    #[test]
    fn a_question_carries_what_belongs_to_it() {
        let request = |question: Question| {
            serde_json::to_value(one().request("u", &question).expect("a request")).expect("plain data")
        };
        let revise = request(Question::Revise { object: workload(), replicas: 7 });
        assert_eq!(revise["apiVersion"], "config.karmada.io/v1alpha1");
        assert_eq!(revise["kind"], "ResourceInterpreterContext");
        assert_eq!(
            revise["request"],
            json!({ "uid": "u", "name": "web", "namespace": "default", "operation": "ReviseReplica", "replicas": 7,
                "kind": { "group": "workload.example.io", "version": "v1alpha1", "kind": "Workload" },
                "object": workload() })
        );
        let retain = request(Question::Retain { desired: workload(), observed: json!({ "kind": "O" }) });
        assert_eq!(retain["request"]["observedObject"], json!({ "kind": "O" }));
        assert_eq!(retain["request"]["replicas"], 0);
        let items = vec![AggregatedStatusItem { cluster_name: "m1".to_owned(), ..Default::default() }];
        let aggregate = Question::Aggregate { object: workload(), items, now: jiff::Timestamp::UNIX_EPOCH };
        assert_eq!(request(aggregate)["request"]["aggregatedStatus"][0]["clusterName"], "m1");

        let deaf = Hook { webhook: ResourceInterpreterWebhook::default(), ..(*one()).clone() };
        let error = deaf.request("u", &Question::Health { object: workload() }).map_err(|it| it.to_string());
        assert_eq!(
            error,
            Err("Internal error occurred: failed calling webhook \"c/a.example.com\": could not create \
                 ResourceInterpreterContext objects: webhook does not accept known ResourceInterpreterContext \
                 versions (v1alpha1)"
                .to_owned())
        );
    }

    #[test]
    fn finding_25_a_long_message_of_a_hook_is_shortened() {
        let response = json!({
            "uid": "u", "successful": false, "status": { "code": 500, "message": "é".repeat(8 << 20) },
        });
        let context = serde_json::from_value(json!({ "response": response })).expect("a context");
        let error =
            one().answer("u", Question::Health { object: workload() }, context).expect_err("it failed");
        let text = error.to_string();
        assert!(text.contains("get status code: 500, msg: éé"), "{text:.200}");
        assert!(text.chars().count() < 2 * MESSAGE_LIMIT, "{}", text.len());
    }

    #[test]
    fn finding_16_whatever_a_hook_answers_what_is_told_of_it_is_short() {
        let long = "x".repeat(4 << 20);
        let patch = json!([{"op": "remove", "path": format!("/{long}")}]).to_string().into_bytes();
        let patch = serde_json::to_value(k8s_openapi::ByteString(patch)).expect("text");
        for response in [
            json!({ "uid": long, "successful": true }),
            json!({ "uid": "u", "successful": true, "patchType": long, "patch": patch }),
            json!({ "uid": "u", "successful": true, "patchType": "JSONPatch", "patch": patch }),
        ] {
            let context = serde_json::from_value(json!({ "response": response })).expect("a context");
            let question = Question::Revise { object: workload(), replicas: 7 };
            let text = one().answer("u", question, context).expect_err("it is wrong").to_string();
            assert!(text.chars().count() < 2 * MESSAGE_LIMIT, "{text:.200}: {} bytes", text.len());
        }
    }

    #[test]
    fn answers_mean_what_upstream_says() {
        let (object, observed) = (workload(), json!({}));
        // [{"op":"replace","path":"/spec/replicas","value":7}]
        let patch = "W3sib3AiOiJyZXBsYWNlIiwicGF0aCI6Ii9zcGVjL3JlcGxpY2FzIiwidmFsdWUiOjd9XQ==";
        let revise = || Question::Revise { object: object.clone(), replicas: 7 };
        let retain = || Question::Retain { desired: object.clone(), observed: observed.clone() };
        let replicas = || Question::Replicas { object: object.clone() };
        let status = || Question::Status { object: object.clone() };
        let health = || Question::Health { object: object.clone() };
        let needs = || Question::Dependencies { object: object.clone() };
        let components = || Question::Components { object: object.clone() };
        let mut revised = object.clone();
        revised["spec"]["replicas"] = 7.into();
        let invalid = |why: &str| Err(format!("received invalid webhook response: {why}"));
        let cases = [
            (
                replicas(),
                json!({ "replicas": 3 }),
                Ok(Answer::Replicas(Replicas { count: 3, requirements: None })),
            ),
            (replicas(), json!({}), invalid("webhook returned nil response.replicas")),
            (components(), json!({}), Ok(Answer::Components(Vec::new()))),
            (revise(), json!({ "patch": patch, "patchType": "JSONPatch" }), Ok(Answer::Object(revised))),
            (retain(), json!({}), Ok(Answer::Object(object.clone()))),
            (revise(), json!({ "patch": patch }), invalid("webhook returned nil response.patchType")),
            (revise(), json!({ "patchType": "JSONPatch" }), invalid("webhook returned empty response.patch")),
            (
                revise(),
                json!({ "patch": patch, "patchType": "Merge" }),
                invalid("webhook returned invalid response.patchType of \"Merge\""),
            ),
            (status(), json!({ "rawStatus": { "a": 1 } }), Ok(Answer::Status(Some(json!({ "a": 1 }))))),
            (status(), json!({}), invalid("webhook returned nill response.rawStatus")),
            (health(), json!({ "healthy": false }), Ok(Answer::Health(false))),
            (health(), json!({}), invalid("webhook returned nil response.healthy")),
            (needs(), json!({}), Ok(Answer::Dependencies(Vec::new()))),
            (
                needs(),
                json!({ "dependencies": [{ "apiVersion": "v1", "kind": "Secret" }] }),
                invalid("dependency can not leave name and labelSelector all empty"),
            ),
            (health(), json!({ "uid": "x" }), invalid("expected response.uid \"u\", got \"x\"")),
            (
                health(),
                json!({ "successful": false }),
                invalid("webhook require response.status when response.successful is false"),
            ),
            (
                health(),
                json!({ "successful": false, "status": { "code": 404, "message": "no" } }),
                Err("webhook call failed, get status code: 404, msg: no".to_owned()),
            ),
        ];
        for (question, said, expected) in cases {
            let mut response = json!({ "uid": "u", "successful": true });
            for (key, value) in said.as_object().expect("an object") {
                response[key] = value.clone();
            }
            let context = serde_json::from_value(json!({ "response": response })).expect("valid");
            let answer = one().answer("u", question, context).map_err(|error| error.to_string());
            let expected = expected.map_err(|why| {
                format!("Internal error occurred: failed calling webhook \"c/a.example.com\": {why}")
            });
            assert_eq!(answer, expected, "{said}");
        }
        let nothing = ResourceInterpreterContext::default();
        let error = one().answer("u", health(), nothing).map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.ends_with("webhook response was absent")));
    }
}
