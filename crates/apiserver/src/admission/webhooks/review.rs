//! The `AdmissionReview` that is sent to a webhook and the one that it returns.

use apimachinery::gvk::Gvk;
use apimachinery::pointer;
use base64::Engine;
use serde_json::{Value, json};

use super::Occasion;
use super::matching::{Match, Resource, Seen};

/// Returns the `request` of a review; policies see the same one.
pub(crate) fn request(occasion: &Occasion<'_>, found: &Match, uid: &str) -> Value {
    let kind = |gvk: &Gvk| json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind});
    let resource = |resource: &Resource| json!({"group": resource.group, "version": resource.version, "resource": resource.resource});
    let mut user = occasion.context.user.to_value();
    if occasion.context.user.name.is_empty() {
        user = json!({});
    }
    let mut request = json!({
        "uid": uid,
        "kind": kind(&found.gvk),
        "resource": resource(&found.resource),
        "requestKind": kind(occasion.gvk),
        "requestResource": resource(&Resource::of(occasion.kind)),
        "operation": occasion.operation.name(),
        "userInfo": user,
        "dryRun": occasion.dry_run,
        "options": occasion.options,
    });
    for (field, value) in [
        ("subResource", occasion.subresource),
        ("requestSubResource", occasion.subresource),
        ("name", occasion.name),
        ("namespace", request_namespace(occasion)),
    ] {
        if !value.is_empty() {
            pointer::set(&mut request, field, json!(value));
        }
    }
    request
}

/// Returns the namespace of a write; for a Namespace, its own name.
pub(crate) fn request_namespace<'a>(occasion: &Occasion<'a>) -> &'a str {
    let is_namespace = occasion.kind.is_namespace();
    if is_namespace { occasion.name } else { occasion.namespace }
}

/// Returns the document to send.
pub(super) fn document(occasion: &Occasion<'_>, seen: &Seen<'_>, uid: &str, version: &str) -> Value {
    let mut request = request(occasion, &seen.found, uid);
    pointer::set(&mut request, "object", seen.object.as_deref().cloned().unwrap_or(Value::Null));
    pointer::set(&mut request, "oldObject", seen.old.as_deref().cloned().unwrap_or(Value::Null));
    json!({
        "kind": "AdmissionReview",
        "apiVersion": format!("admission.k8s.io/{version}"),
        "request": request,
    })
}

/// The answer of a webhook.
#[derive(Debug, Default)]
pub(super) struct Response {
    pub(super) allowed: bool,
    pub(super) patch: Option<Vec<u8>>,
    /// The `status`, unchanged.
    pub(super) result: Value,
    pub(super) warnings: Vec<String>,
    pub(super) annotations: Vec<(String, String)>,
}

/// Checks that an answer can be an `AdmissionReview` at all.
pub(super) fn check_kind(answer: &Value) -> Result<(), String> {
    let text = |field: &str| answer[field].as_str().unwrap_or("");
    match (text("apiVersion"), text("kind")) {
        ("admission.k8s.io/v1" | "admission.k8s.io/v1beta1", "AdmissionReview") | ("", _) => Ok(()),
        (_, "") => Err(format!("Object 'Kind' is missing in '{answer}'")),
        (version, kind) => Err(format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:110\""
        )),
    }
}

/// Reads and checks an answer.
pub(super) fn read(review: &Value, version: &str, uid: &str, mutating: bool) -> Result<Response, String> {
    let response = &review["response"];
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let patch = match response["patch"].as_str() {
        None | Some("") => None,
        Some(text) => Some(
            base64::engine::general_purpose::STANDARD
                .decode(text)
                .map_err(|error| format!("illegal base64 data: {error}"))?,
        ),
    };
    let patch_type = response.get("patchType").filter(|value| !value.is_null());
    if version == "v1" {
        let got = response["uid"].as_str().unwrap_or("");
        if got != uid {
            return Err(format!("expected response.uid={uid:?}, got {got:?}"));
        }
        let gvk = Gvk::from_api_version(
            review["apiVersion"].as_str().unwrap_or(""),
            review["kind"].as_str().unwrap_or(""),
        );
        if (gvk.group.as_str(), gvk.version.as_str(), gvk.kind.as_str())
            != ("admission.k8s.io", "v1", "AdmissionReview")
        {
            return Err(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {}/{}, Kind={}",
                gvk.group, gvk.version, gvk.kind
            ));
        }
        match (mutating, &patch, patch_type) {
            (true, Some(_), None) => {
                return Err("webhook returned response.patch but not response.patchType".to_owned());
            }
            (true, None, Some(_)) => {
                return Err("webhook returned response.patchType but not response.patch".to_owned());
            }
            (true, Some(_), Some(kind)) if kind == "" => {
                return Err("webhook returned invalid response.patchType of \"\"".to_owned());
            }
            (true, Some(_), Some(kind)) if kind != "JSONPatch" => {
                return Err(format!("unsupported patch type {kind}"));
            }
            (false, Some(_), _) => return Err("validating webhook may not return response.patch".to_owned()),
            (false, _, Some(_)) => {
                return Err("validating webhook may not return response.patchType".to_owned());
            }
            _ => {}
        }
    }
    Ok(Response {
        allowed: response["allowed"] == true,
        patch: patch.filter(|_| mutating),
        result: response["status"].clone(),
        warnings: response["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        annotations: response["auditAnnotations"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
    })
}

/// Reads the patch of an answer: a list of operations.
pub(super) fn operations(patch: &[u8]) -> Result<Value, String> {
    let undecodable = "received undecodable patch in webhook response";
    let operations =
        apimachinery::json::read_value(patch).map_err(|error| format!("{undecodable}: {error}"))?;
    if !operations.is_array() {
        return Err(format!(
            "{undecodable}: json: cannot unmarshal object into Go value of type jsonpatch.Patch"
        ));
    }
    Ok(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(response: Value, mutating: bool) -> Result<bool, String> {
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        read(&review, "v1", "u", mutating).map(|response| response.allowed)
    }

    #[test]
    fn an_answer_has_to_be_about_the_question() {
        assert_eq!(check(json!({"uid": "u", "allowed": true}), false), Ok(true));
        let wrong = check(json!({"uid": "x", "allowed": true}), false);
        assert_eq!(wrong, Err("expected response.uid=\"u\", got \"x\"".to_owned()));
        assert_eq!(check(Value::Null, false), Err("webhook response was absent".to_owned()));
    }

    #[test]
    fn only_mutating_webhooks_may_patch() {
        let patch = json!({"uid": "u", "allowed": true, "patch": "W10=", "patchType": "JSONPatch"});
        assert_eq!(check(patch.clone(), true), Ok(true));
        assert_eq!(check(patch, false), Err("validating webhook may not return response.patch".to_owned()));
        let untyped = json!({"uid": "u", "allowed": true, "patch": "W10="});
        assert!(check(untyped, true).unwrap_err().contains("but not response.patchType"));
    }

    #[test]
    fn the_old_version_is_not_checked() {
        let review = json!({"response": {"allowed": true, "patch": "W10="}});
        let response = read(&review, "v1beta1", "u", true).unwrap();
        assert_eq!(response.patch.as_deref(), Some(&b"[]"[..]));
    }
}
