//! Work: every manifest is cleaned and stamped, so that a Work never carries what its member must not be told.
//!
//! The controllers render Works with the same functions; a Work of theirs passes unchanged.

use serde_json::Value;

use api::labels::WORK_PERMANENT_ID;
use api::work::WorkSpec;

use crate::request::{Denial, label, set_label, set_spec, spec};

pub(crate) fn mutate(object: &mut Value, fresh_id: &mut dyn FnMut() -> String) -> Result<(), Denial> {
    let mut work: WorkSpec = spec(object)?;
    if label(object, WORK_PERMANENT_ID).unwrap_or_default().is_empty() {
        set_label(object, WORK_PERMANENT_ID, fresh_id());
    }
    let id = label(object, WORK_PERMANENT_ID);
    for manifest in &mut work.workload.manifests {
        if let Some(found) = not_an_object(manifest) {
            return Err(Denial::internal(format!(
                "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            )));
        }
        if manifest.get("kind").and_then(Value::as_str).unwrap_or_default().is_empty() {
            let shown = apimachinery::json::write(manifest);
            return Err(Denial::internal(format!("Object 'Kind' is missing in '{shown}'")));
        }
        interpreter::prune(manifest).map_err(|error| Denial::internal(error.to_string()))?;
        propagation::render::stamp(manifest, id);
    }
    set_spec(object, &work);
    Ok(())
}

/// Returns what stands where an object should, in Go's words.
fn not_an_object(value: &Value) -> Option<&'static str> {
    match value {
        Value::Object(_) | Value::Null => None,
        Value::Array(_) => Some("array"),
        Value::String(_) => Some("string"),
        Value::Number(_) => Some("number"),
        Value::Bool(_) => Some("bool"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn work(manifests: Value) -> Value {
        json!({ "metadata": { "name": "w", "namespace": "karmada-es-m1" },
            "spec": { "workload": { "manifests": manifests } } })
    }

    #[test]
    fn manifests_are_cleaned_and_stamped_once() {
        let mut object = work(json!([{
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "s", "uid": "x", "labels": { "app": "web" } },
            "spec": { "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"] }, "status": {},
        }]));
        mutate(&mut object, &mut || "id".to_owned()).unwrap();
        assert_eq!(object["metadata"]["labels"][WORK_PERMANENT_ID], "id");
        let manifest = &object["spec"]["workload"]["manifests"][0];
        assert_eq!(
            manifest["metadata"],
            json!({
                "name": "s",
                "labels": { "app": "web", WORK_PERMANENT_ID: "id" },
                "annotations": {
                    "resourcetemplate.karmada.io/managed-annotations":
                        "resourcetemplate.karmada.io/managed-annotations,resourcetemplate.karmada.io/managed-labels",
                    "resourcetemplate.karmada.io/managed-labels": "app,work.karmada.io/permanent-id",
                },
            })
        );
        assert_eq!(manifest["spec"], json!({}));
        assert!(manifest.get("status").is_none());
        let before = object.clone();
        mutate(&mut object, &mut || panic!("it has one")).unwrap();
        assert_eq!(object, before);
    }

    #[test]
    fn what_is_no_object_cannot_be_stamped() {
        let mut object = work(json!([{ "apiVersion": "v1" }]));
        let denial = mutate(&mut object, &mut || "id".to_owned()).unwrap_err();
        assert_eq!(denial.code, 500);
        assert_eq!(denial.message, "Object 'Kind' is missing in '{\"apiVersion\":\"v1\"}'");
    }
}
