//! Conversion webhooks of CustomResourceDefinitions: what is sent, what is returned, and how the result is checked.
//!
//! A webhook may change labels, annotations and everything outside of the metadata; the rest of the metadata is restored. Errors
//! are in kube-apiserver's words.

use std::time::Duration;

use apimachinery::object::Object;
use serde_json::{Map, Value, json};

use crate::admission::webhooks::{Client, post};
use crate::outbound::reply::Limits;
use crate::server::Server;

const TIMEOUT: Duration = Duration::from_secs(30);

/// The webhook of a definition.
#[derive(Debug)]
pub struct Converter {
    client: Result<Client, String>,
    /// `v1` or `v1beta1`, the first listed one that we support.
    review_version: Option<&'static str>,
}

impl Converter {
    /// Reads `spec.conversion`; `None` if versions differ by name only.
    pub fn read(conversion: &Value) -> Option<Self> {
        if conversion["strategy"] != "Webhook" {
            return None;
        }
        let webhook = &conversion["webhook"];
        let versions = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        Some(Self {
            client: Client::read(&webhook["clientConfig"]),
            review_version: versions.filter_map(Value::as_str).find_map(|version| match version {
                "v1" => Some("v1"),
                "v1beta1" => Some("v1beta1"),
                _ => None,
            }),
        })
    }

    /// Returns the objects, in the same order, in the requested version.
    pub(crate) async fn convert(
        &self,
        server: &Server,
        mut objects: Vec<Value>,
        api_version: &str,
    ) -> Result<Vec<Value>, String> {
        let asked: Vec<&mut Value> =
            objects.iter_mut().filter(|object| object["apiVersion"] != api_version).collect();
        let Some(first) = asked.first() else { return Ok(objects) };
        let kind = described(first);
        let version = self.review_version.ok_or("no supported conversion review versions")?;
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let uid = uuid::Uuid::new_v4().to_string();
        let sent: Vec<Value> = asked.iter().map(|object| without_revision(object)).collect();
        let document = json!({
            "kind": "ConversionReview",
            "apiVersion": format!("apiextensions.k8s.io/{version}"),
            "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": sent},
            "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
        })
        .to_string();
        let path = format!("{}?timeout={}s", client.path, TIMEOUT.as_secs());
        let limits = Limits::like(&document);
        let failed = |why| format!("conversion webhook for {kind} failed: {why}");
        let mut answer = post(server, client, &path, document, limits, TIMEOUT).await.map_err(failed)?;
        let answer = returned(&mut answer.value, version, &uid).map_err(failed)?;
        if answer.len() != asked.len() {
            return Err(format!(
                "conversion webhook for {kind} returned {} objects, expected {}",
                answer.len(),
                asked.len()
            ));
        }
        for (object, converted) in asked.into_iter().zip(answer) {
            *object = checked(&kind, object, converted, api_version)?;
        }
        Ok(objects)
    }
}

/// Returns what a webhook's answer makes of an object, in the wanted version. No server is asked: this is for whoever tries answers that
/// nobody would give.
///
/// # Errors
/// If the answer is not one to this question.
pub fn answered(
    code: u16,
    body: &[u8],
    uid: &str,
    object: &Value,
    api_version: &str,
) -> Result<Value, String> {
    let mut answer = crate::outbound::reply::document(code, body).map_err(|error| error.0)?;
    let mut objects = returned(&mut answer, "v1", uid)?;
    match (objects.pop(), objects.is_empty()) {
        (Some(converted), true) => checked(&described(object), object, converted, api_version),
        _ => Err("not as many objects come back as were sent".to_owned()),
    }
}

/// Returns an object's version and kind as Go prints them.
fn described(object: &Value) -> String {
    let text = |field: &str| object[field].as_str().unwrap_or("");
    format!("{}, Kind={}", text("apiVersion"), text("kind"))
}

/// Stored objects have no revision in them, and webhooks see stored objects.
fn without_revision(object: &Value) -> Value {
    let mut object = object.clone();
    object.metadata_mut().remove("resourceVersion");
    object
}

/// Takes the objects out of an answer.
fn returned(answer: &mut Value, version: &str, uid: &str) -> Result<Vec<Value>, String> {
    let response = answer.get("response").filter(|response| response.is_object());
    if version == "v1" {
        let wanted = "apiextensions.k8s.io/v1, Kind=ConversionReview";
        let got = described(answer);
        if got != wanted {
            return Err(format!("expected webhook response of {wanted}, got {got}"));
        }
    }
    let response = response.ok_or("no response provided")?;
    if version == "v1" {
        let got = response["uid"].as_str().unwrap_or("");
        if got != uid {
            return Err(format!("expected response.uid={uid:?}, got {got:?}"));
        }
    }
    let result = &response["result"];
    let status = result["status"].as_str().unwrap_or("");
    if status != "Success" {
        return Err(match result["message"].as_str().unwrap_or("") {
            "" => format!("response.result.status was '{status}', not 'Success'"),
            message => message.to_owned(),
        });
    }
    let objects = answer.pointer_mut("/response/convertedObjects").map(Value::take);
    Ok(match objects {
        Some(Value::Array(objects)) => objects,
        _ => Vec::new(),
    })
}

/// Returns a converted object with the metadata that it must keep.
fn checked(kind: &str, original: &Value, converted: Value, api_version: &str) -> Result<Value, String> {
    apimachinery::depth::check(&converted)
        .map_err(|error| format!("conversion webhook for {kind} returned invalid object: {error}"))?;
    let text = |object: &Value, field: &str| object[field].as_str().unwrap_or("").to_owned();
    if text(&converted, "kind").is_empty() {
        return Err(format!("Object 'Kind' is missing in '{converted}'"));
    }
    let got = text(&converted, "apiVersion");
    if got != api_version {
        return Err(format!(
            "conversion webhook for {kind} returned invalid object at index 0: invalid groupVersion (expected {api_version}, received {got})"
        ));
    }
    let (wanted, got) = (text(original, "kind"), text(&converted, "kind"));
    if got != wanted {
        return Err(format!(
            "conversion webhook for {kind} returned invalid object at index 0: invalid kind (expected {wanted}, received {got})"
        ));
    }
    for (field, name) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (wanted, got) = (original.meta(field), converted.meta(field));
        if wanted != got {
            return Err(format!(
                "conversion webhook for {kind} returned invalid object: must have the same {name}: {wanted} != {got}"
            ));
        }
    }
    restored(original, converted)
        .map_err(|why| format!("conversion webhook for {kind} returned invalid metadata: {why}"))
}

/// Restores the metadata of the original, except labels and annotations.
fn restored(original: &Value, mut converted: Value) -> Result<Value, String> {
    let Some(given) = converted.get("metadata").cloned() else {
        return Err("missing metadata in converted object".to_owned());
    };
    let Value::Object(given) = given else {
        return Err(format!("invalid metadata of type {} in converted object", go_type(&given)));
    };
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match given.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
            }
            Some(Value::Object(pairs)) => {
                if let Some((key, value)) = pairs.iter().find(|(_, value)| !value.is_string()) {
                    return Err(format!(
                        "metadata.{field}[{key}] must be a string, but is {} in converted object",
                        go_type(value)
                    ));
                }
                metadata.insert(field.to_owned(), Value::Object(pairs.clone()));
            }
            Some(other) => {
                return Err(format!(
                    "invalid metadata.{field} of type {} in converted object",
                    go_type(other)
                ));
            }
        }
    }
    let fields: &mut Map<String, Value> =
        converted.as_object_mut().expect("something with metadata is an object");
    fields.insert("metadata".to_owned(), Value::Object(metadata));
    Ok(converted)
}

/// Returns what Go calls the type of a decoded value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "g/v1, Kind=A";

    fn original() -> Value {
        json!({"apiVersion": "g/v1", "kind": "A", "spec": {"old": 1},
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "labels": {"x": "y"}}})
    }

    fn check(converted: Value) -> Result<Value, String> {
        checked(KIND, &original(), converted, "g/v2")
    }

    #[test]
    fn only_labels_and_annotations_of_the_metadata_can_be_converted() {
        let converted = json!({"apiVersion": "g/v2", "kind": "A", "spec": {"new": 1},
            "metadata": {"name": "a", "uid": "u", "generation": 9, "annotations": {"n": "w"}}});
        assert_eq!(
            check(converted).unwrap(),
            json!({"apiVersion": "g/v2", "kind": "A", "spec": {"new": 1},
                "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "annotations": {"n": "w"}}})
        );
    }

    #[test]
    fn an_object_that_became_another_one_is_refused() {
        let renamed = json!({"apiVersion": "g/v2", "kind": "A", "metadata": {"name": "b", "uid": "u"}});
        assert_eq!(
            check(renamed).unwrap_err(),
            "conversion webhook for g/v1, Kind=A returned invalid object: must have the same name: a != b"
        );
        let unchanged = check(original()).unwrap_err();
        assert!(unchanged.ends_with("invalid groupVersion (expected g/v2, received g/v1)"), "{unchanged}");
        let labelled = json!({"apiVersion": "g/v2", "kind": "A", "metadata": {"name": "a", "uid": "u", "labels": {"a": 1}}});
        assert!(
            check(labelled)
                .unwrap_err()
                .ends_with("metadata.labels[a] must be a string, but is int64 in converted object")
        );
    }

    #[test]
    fn an_answer_must_be_for_the_question_and_successful() {
        let answer = |uid: &str, result: Value| {
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
                "response": {"uid": uid, "result": result, "convertedObjects": []}})
        };
        let success = json!({"status": "Success"});
        assert_eq!(returned(&mut answer("1", success.clone()), "v1", "1"), Ok(Vec::new()));
        assert_eq!(
            returned(&mut answer("2", success), "v1", "1").unwrap_err(),
            "expected response.uid=\"1\", got \"2\""
        );
        assert_eq!(
            returned(&mut answer("1", json!({"status": "Failure"})), "v1", "1").unwrap_err(),
            "response.result.status was 'Failure', not 'Success'"
        );
        assert_eq!(
            returned(&mut json!({"apiVersion": "v1", "kind": "Pod"}), "v1", "1").unwrap_err(),
            "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got v1, Kind=Pod"
        );
    }
}
