//! Answers to AdmissionReview and ConversionReview: JSON in, JSON out.

use std::sync::Arc;

use admission::{Act, Denial, HOOKS, Home, Hook, Means, Operation, Request, Settings, Wants};
use api::features;
use api::work::conversion;
use apimachinery::pointer;
use apimachinery::status::Status;
use base64::Engine as _;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

use super::clients::Clients;
use super::password::is_same;
use crate::environment::{Environment, Writer};

/// Where bindings are converted.
pub(super) const CONVERT: &str = "/convert";

/// The path of a request, apart from what a caller shows at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Path<'a> {
    pub(super) served: &'a str,
    password: &'a str,
}

impl<'a> Path<'a> {
    /// All rules have paths of one part.
    pub(super) fn of(given: &'a str) -> Self {
        match given.rsplit_once('/') {
            Some((served, password)) if !served.is_empty() => Self { served, password },
            _ => Self { served: given, password: "" },
        }
    }
}

/// Answers reviews.
#[derive(Debug)]
pub(super) struct Reviewer {
    settings: Settings,
    environment: Arc<Environment>,
    callers: Callers,
}

/// Who is told what others may read.
#[derive(Debug)]
pub(super) enum Callers {
    /// Those with one of these certificates; nobody else gets any review.
    Certified(Clients),
    /// Those who show this at the end of the path.
    Password(String),
}

/// Where a request leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Admitted {
    /// Whether the caller is an API server.
    pub(super) known: bool,
}

impl Reviewer {
    /// Refuses settings with which a review writes, unless callers have certificates.
    pub(super) fn new(
        settings: Settings,
        environment: Arc<Environment>,
        callers: Callers,
    ) -> anyhow::Result<Self> {
        let gate = features::FEDERATED_QUOTA_ENFORCEMENT;
        if matches!(callers, Callers::Password(_)) && settings.features.enabled(gate) {
            anyhow::bail!(
                "--feature-gates {}=true makes reviews write to quotas, so it must be known who asks for one; name the \
                 authority of the API server's client certificate with --client-ca-file",
                gate.name
            );
        }
        Ok(Self { settings, environment, callers })
    }

    /// Returns whether TLS must ask callers for certificates.
    pub(super) fn asks_certificates(&self) -> bool {
        matches!(self.callers, Callers::Certified(_))
    }

    /// Returns whether a caller with these certificates gets an answer at a path; `None` if not. Conversions are open to all:
    /// kube-apiserver presents no certificate for them, and they neither write nor ask for anything.
    pub(super) fn admit(&self, path: &Path<'_>, chain: &[CertificateDer<'_>]) -> Option<Admitted> {
        let (known, open) = match &self.callers {
            Callers::Certified(clients) => (clients.know(chain), path.served == CONVERT),
            Callers::Password(password) => {
                let asks = HOOKS.iter().any(|hook| hook.path == path.served && hook.asks_control_plane());
                (is_same(password, path.password), !asks)
            }
        };
        (known || open).then_some(Admitted { known })
    }

    /// Answers a review that was sent to `path`; `None` if nothing is served there.
    pub(super) async fn answer(&self, path: &str, body: &[u8]) -> Option<Value> {
        if path == CONVERT {
            return Some(convert(body));
        }
        let hook = HOOKS.iter().find(|hook| hook.path == path)?;
        let review: Value = match serde_json::from_slice(body) {
            Ok(review) => review,
            Err(error) => return Some(response("", Err(Denial::unreadable(error.to_string())))),
        };
        let request = review.get("request").unwrap_or(&Value::Null);
        let uid = pointer::text(request, "/uid");
        let verdict = self.judge(hook, request).await.map_err(|denial| as_of(hook, request, denial));
        Some(response(uid, verdict))
    }

    /// Returns the changes that the rule makes to an object that it accepts.
    async fn judge(&self, hook: &Hook, review: &Value) -> Result<Accepted, Denial> {
        let text = |field: &str| pointer::text(review, field);
        let operation = match text("/operation") {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            "DELETE" => Operation::Delete,
            other => {
                return Err(Denial::unreadable(format!("operation {other:?} is not known")));
            }
        };
        let (group, version, kind) = (text("/kind/group"), text("/kind/version"), text("/kind/kind"));
        let old = review.get("oldObject").filter(|old| old.is_object());
        let request = Request { operation, group, version, kind, namespace: text("/namespace"), old };
        if !hook.sees(operation, group, kind) {
            return Ok(Accepted::default());
        }
        let object = review.get("object").unwrap_or(&Value::Null);
        if operation != Operation::Delete && !object.is_object() {
            return Err(Denial::unreadable("there is no content to decode"));
        }
        match hook.act {
            Act::Mutate(act) => {
                let mut changed = object.clone();
                let mut fresh_id = || uuid::Uuid::new_v4().to_string();
                let mut means = Means {
                    settings: &self.settings,
                    now: jiff::Timestamp::now(),
                    fresh_id: &mut fresh_id,
                    warnings: Vec::new(),
                };
                act(&request, &mut changed, &mut means)?;
                let patch = json_patch::diff(object, &changed);
                let patch =
                    serde_json::to_value(&patch).map_err(|error| Denial::internal(error.to_string()))?;
                let patch = patch.as_array().is_some_and(|steps| !steps.is_empty()).then_some(patch);
                Ok(Accepted { patch, warnings: means.warnings })
            }
            Act::Validate(_) => {
                let dry_run = pointer::flag(review, "/dryRun");
                let writer = writer(review.get("userInfo").unwrap_or(&Value::Null));
                let environment = &self.environment;
                environment.validate(hook, &request, object, &self.settings, &writer).await?;
                if hook.wants == Wants::Quotas && admission::asks_quotas(&request, object, &self.settings) {
                    environment.charge(&request, object, dry_run).await?;
                }
                Ok(Accepted::default())
            }
        }
    }
}

/// The changes that a rule makes to an object that it accepts.
#[derive(Debug, Default)]
struct Accepted {
    patch: Option<Value>,
    warnings: Vec<String>,
}

/// Reads the user from the review, as authenticated by the API server.
fn writer(user: &Value) -> Writer {
    let text = |field: &str| pointer::text(user, field).to_owned();
    let list = |value: &Value| -> Vec<String> {
        pointer::list(value, "").iter().filter_map(|item| Some(item.as_str()?.to_owned())).collect()
    };
    let extra = user.get("extra").and_then(Value::as_object).into_iter().flatten();
    Writer {
        name: text("/username"),
        uid: text("/uid"),
        groups: user.get("groups").map(list).unwrap_or_default(),
        extra: extra.map(|(key, values)| (key.clone(), list(values))).collect(),
    }
}

/// Formats the refusal of a rule that Karmada compiles into an API server as that server would.
fn as_of(hook: &Hook, request: &Value, denial: Denial) -> Denial {
    if hook.home != Home::ApiServer || denial.causes.is_empty() {
        return denial;
    }
    let name = pointer::text(request, "/name");
    let message = Status::invalid(hook.group, hook.kind, name, &denial.causes).message;
    Denial { message, ..denial }
}

fn response(uid: &str, verdict: Result<Accepted, Denial>) -> Value {
    let answer = match verdict {
        Ok(Accepted { patch, warnings }) => {
            let mut answer = json!({ "uid": uid, "allowed": true });
            match patch {
                None => pointer::set(&mut answer, "status", json!({ "metadata": {}, "code": 200 })),
                Some(patch) => {
                    let patch = encode_base64(patch.to_string().as_bytes());
                    pointer::set(&mut answer, "patch", patch.into());
                    pointer::set(&mut answer, "patchType", "JSONPatch".into());
                }
            }
            if !warnings.is_empty() {
                pointer::set(&mut answer, "warnings", warnings.into());
            }
            answer
        }
        Err(denial) => {
            let mut status = json!({ "metadata": {}, "code": denial.code, "message": denial.message });
            if let Some(reason) = denial.reason {
                pointer::set(&mut status, "reason", reason.into());
            }
            json!({ "uid": uid, "allowed": false, "status": status })
        }
    };
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer })
}

fn encode_base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn convert(body: &[u8]) -> Value {
    let review: Value = serde_json::from_slice(body).unwrap_or_default();
    let wanted = pointer::text(&review, "/request/desiredAPIVersion");
    let converted: Result<Vec<Value>, String> = pointer::list(&review, "/request/objects")
        .iter()
        .map(|object| {
            if object.get("apiVersion").is_some_and(|version| version == wanted) {
                return Err(format!("conversion is not allowed between same type {wanted}"));
            }
            conversion::convert(object, wanted).map_err(|error| chain(&error))
        })
        .collect();
    let (objects, result) = match converted {
        Ok(objects) => (objects, json!({ "metadata": {}, "status": "Success" })),
        Err(message) => (Vec::new(), json!({ "metadata": {}, "status": "Failure", "message": message })),
    };
    let answer =
        json!({ "uid": review.pointer("/request/uid"), "convertedObjects": objects, "result": result });
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": answer })
}

/// Returns the messages of an error and of its causes.
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
        let callers = Callers::Password("secret".to_owned());
        Reviewer::new(Settings::default(), Arc::default(), callers).expect("nothing is written")
    }

    #[test]
    fn finding_17_strangers_learn_nothing_of_others_rights() {
        let reviewer = reviewer();
        let admit = |path: &str| reviewer.admit(&Path::of(path), &[]).map(|admitted| admitted.known);
        for hook in &HOOKS {
            let (plain, asks) = (hook.path, hook.asks_control_plane());
            assert_eq!(admit(plain), (!asks).then_some(false), "{plain}");
            assert_eq!(admit(&format!("{plain}/guessed")), (!asks).then_some(false), "{plain}");
            assert_eq!(admit(&format!("{plain}/secret")), Some(true), "{plain}");
        }
        assert_eq!(admit(CONVERT), Some(false));
        for path in
            ["/secret", "/validate-cluster/", "/validate-cluster/x/secret", "/validate-cluster//secret"]
        {
            let served = Path::of(path).served;
            let hook = HOOKS.iter().find(|hook| hook.path == served);
            assert!(hook.is_none() || admit(path).is_none(), "{path}");
        }
    }

    #[test]
    fn finding_17_quotas_are_not_charged_for_callers_that_nobody_knows() {
        let gates = features::Features::default().with(features::FEDERATED_QUOTA_ENFORCEMENT, true);
        let settings = Settings { features: gates, ..Settings::default() };
        let error = Reviewer::new(settings, Arc::default(), Callers::Password(String::new()))
            .expect_err("refused")
            .to_string();
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
