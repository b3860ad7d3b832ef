//! Answers to AdmissionReview and ConversionReview: JSON in, JSON out.

use std::sync::Arc;

use admission::{Act, Denial, HOOKS, Home, Hook, Means, Operation, Request, Settings};
use api::features;
use api::work::conversion;
use apimachinery::status::Status;
use base64::Engine as _;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

use super::clients::Clients;
use crate::environment::{Environment, Writer};

/// Judges reviews.
#[derive(Debug)]
pub(super) struct Reviewer {
    settings: Settings,
    environment: Arc<Environment>,
    /// The callers that may ask; anybody may if there is nothing that a review could write.
    clients: Option<Clients>,
}

impl Reviewer {
    /// Refuses settings under which a review writes, unless it is known who asks.
    pub(super) fn new(
        settings: Settings,
        environment: Arc<Environment>,
        clients: Option<Clients>,
    ) -> anyhow::Result<Self> {
        let gate = features::FEDERATED_QUOTA_ENFORCEMENT;
        if clients.is_none() && settings.features.enabled(gate) {
            anyhow::bail!(
                "--feature-gates {}=true makes reviews write to quotas, so it must be known who asks for one; name the \
                 authority of the API server's client certificate with --client-ca-file",
                gate.name
            );
        }
        Ok(Self { settings, environment, clients })
    }

    /// Says whether TLS has to ask callers for certificates.
    pub(super) fn asks_certificates(&self) -> bool {
        self.clients.is_some()
    }

    /// Says whether a caller with these certificates is answered at a path. Conversions are for anybody: kube-apiserver
    /// shows no certificate for them, and they write nothing.
    pub(super) fn answers(&self, path: &str, chain: &[CertificateDer<'_>]) -> bool {
        path == "/convert" || self.clients.as_ref().is_none_or(|clients| clients.know(chain))
    }

    /// Answers a review that was sent to `path`; none if nothing is served there.
    pub(super) async fn answer(&self, path: &str, body: &[u8]) -> Option<Value> {
        if path == "/convert" {
            return Some(convert(body));
        }
        let hook = HOOKS.iter().find(|hook| hook.path == path)?;
        let review: Value = match serde_json::from_slice(body) {
            Ok(review) => review,
            Err(error) => return Some(response("", Err(Denial::unreadable(error.to_string())))),
        };
        let request = &review["request"];
        let uid = request["uid"].as_str().unwrap_or_default();
        let verdict = self.judge(hook, request).await.map_err(|denial| as_of(hook, request, denial));
        Some(response(uid, verdict))
    }

    /// Returns the patch that the rule wants, if any.
    async fn judge(&self, hook: &Hook, review: &Value) -> Result<Option<Value>, Denial> {
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        let operation = match review["operation"].as_str() {
            Some("CREATE") => Operation::Create,
            Some("UPDATE") => Operation::Update,
            Some("DELETE") => Operation::Delete,
            other => {
                let other = other.unwrap_or_default();
                return Err(Denial::unreadable(format!("operation {other:?} is not known")));
            }
        };
        let (group, version, kind) =
            (text(&review["kind"]["group"]), text(&review["kind"]["version"]), text(&review["kind"]["kind"]));
        let namespace = text(&review["namespace"]);
        let old = Some(&review["oldObject"]).filter(|old| old.is_object());
        let request =
            Request { operation, group: &group, version: &version, kind: &kind, namespace: &namespace, old };
        if !hook.sees(operation, &group, &kind) {
            return Ok(None);
        }
        let object = &review["object"];
        if operation != Operation::Delete && !object.is_object() {
            return Err(Denial::unreadable("there is no content to decode"));
        }
        match hook.act {
            Act::Mutate(act) => {
                let mut changed = object.clone();
                let mut fresh_id = || uuid::Uuid::new_v4().to_string();
                let mut means =
                    Means { settings: &self.settings, now: jiff::Timestamp::now(), fresh_id: &mut fresh_id };
                act(&request, &mut changed, &mut means)?;
                let patch = json_patch::diff(object, &changed);
                let patch =
                    serde_json::to_value(&patch).map_err(|error| Denial::internal(error.to_string()))?;
                Ok(patch.as_array().is_some_and(|steps| !steps.is_empty()).then_some(patch))
            }
            Act::Validate(_) => {
                let dry_run = review["dryRun"].as_bool().unwrap_or_default();
                let writer = writer(&review["userInfo"]);
                let environment = &self.environment;
                environment.validate(hook, &request, object, &self.settings, &writer, dry_run).await?;
                Ok(None)
            }
        }
    }
}

/// Reads who writes, as the API server has found out.
fn writer(user: &Value) -> Writer {
    let text = |name: &str| user[name].as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|item| Some(item.as_str()?.to_owned())).collect()
    };
    let extra = user["extra"].as_object().into_iter().flatten();
    Writer {
        name: text("username"),
        uid: text("uid"),
        groups: list(&user["groups"]),
        extra: extra.map(|(key, values)| (key.clone(), list(values))).collect(),
    }
}

/// Words the refusal of a rule that Karmada compiles into an API server as that server would.
fn as_of(hook: &Hook, request: &Value, denial: Denial) -> Denial {
    if hook.home != Home::ApiServer || denial.causes.is_empty() {
        return denial;
    }
    let name = request["name"].as_str().unwrap_or_default();
    let message = Status::invalid(hook.group, hook.kind, name, &denial.causes).message;
    Denial { message, ..denial }
}

fn response(uid: &str, verdict: Result<Option<Value>, Denial>) -> Value {
    let mut answer = json!({ "uid": uid, "allowed": verdict.is_ok() });
    match verdict {
        Ok(None) => answer["status"] = json!({ "metadata": {}, "code": 200 }),
        Ok(Some(patch)) => {
            answer["patch"] = encode_base64(patch.to_string().as_bytes()).into();
            answer["patchType"] = "JSONPatch".into();
        }
        Err(denial) => {
            let mut status = json!({ "metadata": {}, "code": denial.code, "message": denial.message });
            if let Some(reason) = denial.reason {
                status["reason"] = reason.into();
            }
            answer["status"] = status;
        }
    }
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer })
}

pub(super) fn encode_base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn convert(body: &[u8]) -> Value {
    let review: Value = serde_json::from_slice(body).unwrap_or_default();
    let request = &review["request"];
    let wanted = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().map(Vec::as_slice).unwrap_or_default();
    let converted: Result<Vec<Value>, String> = objects
        .iter()
        .map(|object| {
            if object["apiVersion"] == wanted {
                return Err(format!("conversion is not allowed between same type {wanted}"));
            }
            conversion::convert(object, wanted).map_err(|error| chain(&error))
        })
        .collect();
    let mut answer = json!({ "uid": request["uid"] });
    match converted {
        Ok(objects) => {
            answer["convertedObjects"] = objects.into();
            answer["result"] = json!({ "metadata": {}, "status": "Success" });
        }
        Err(message) => {
            answer["convertedObjects"] = json!([]);
            answer["result"] = json!({ "metadata": {}, "status": "Failure", "message": message });
        }
    }
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": answer })
}

/// Returns the words of an error and of what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reviewer() -> Reviewer {
        Reviewer::new(Settings::default(), Arc::default(), None).expect("nothing is written")
    }

    #[test]
    fn quotas_are_not_charged_for_callers_that_nobody_knows() {
        let gates = features::Features::default().with(features::FEDERATED_QUOTA_ENFORCEMENT, true);
        let settings = Settings { features: gates, ..Settings::default() };
        let error = Reviewer::new(settings, Arc::default(), None).expect_err("refused").to_string();
        assert!(error.contains("--client-ca-file"), "{error}");
    }

    async fn ask(path: &str, operation: &str, kind: &str, object: Value) -> Value {
        let review = json!({ "request": {
            "uid": "u", "operation": operation, "namespace": "ns", "object": object,
            "kind": { "group": "policy.karmada.io", "version": "v1alpha1", "kind": kind },
        } });
        let answer = reviewer().answer(path, review.to_string().as_bytes()).await.unwrap();
        assert_eq!(answer["response"]["uid"], "u");
        answer["response"].clone()
    }

    #[tokio::test]
    async fn a_change_is_a_patch_that_leads_to_the_changed_object() {
        let object = json!({ "metadata": { "name": "o" },
            "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "Pod" }] } });
        let answer = ask("/mutate-overridepolicy", "CREATE", "OverridePolicy", object.clone()).await;
        assert_eq!(answer["allowed"], true);
        let patch =
            base64::engine::general_purpose::STANDARD.decode(answer["patch"].as_str().unwrap()).unwrap();
        let mut changed = object;
        let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        json_patch::patch(&mut changed, &patch).unwrap();
        assert_eq!(changed["spec"]["resourceSelectors"][0]["namespace"], "ns");
        assert_eq!(changed["spec"]["overriders"], json!({}));
    }

    #[tokio::test]
    async fn a_refusal_has_code_reason_and_words() {
        let object = json!({ "metadata": { "name": "t" },
            "spec": { "taints": [{ "key": "a", "effect": "NoExecute" }] } });
        let answer = ask("/validate-clustertaintpolicy", "CREATE", "ClusterTaintPolicy", object).await;
        assert_eq!(answer["allowed"], false);
        assert_eq!(
            (&answer["status"]["code"], &answer["status"]["reason"]),
            (&json!(403), &json!("Forbidden"))
        );
    }

    #[tokio::test]
    async fn unknown_paths_are_not_answered_and_nonsense_is_refused() {
        assert!(reviewer().answer("/elsewhere", b"{}").await.is_none());
        let answer = reviewer().answer("/mutate-work", b"nonsense").await.unwrap();
        assert_eq!(answer["response"]["status"]["code"], 400);
    }

    #[tokio::test]
    async fn bindings_are_converted_in_both_directions() {
        let old = json!({ "apiVersion": "work.karmada.io/v1alpha1", "kind": "ResourceBinding",
            "metadata": { "name": "b" },
            "spec": { "resource": { "apiVersion": "v1", "kind": "Pod", "name": "p", "replicas": 2 } } });
        let review = json!({ "request": {
            "uid": "c", "desiredAPIVersion": "work.karmada.io/v1alpha2", "objects": [old],
        } });
        let answer = reviewer().answer("/convert", review.to_string().as_bytes()).await.unwrap();
        assert_eq!(answer["response"]["result"]["status"], "Success");
        assert_eq!(answer["response"]["convertedObjects"][0]["spec"]["replicas"], 2);
    }
}
