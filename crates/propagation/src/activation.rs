//! Which changes of a template matter, and which of them were made by us.
//!
//! A lazy policy takes effect only when the user touches the template. Claiming a template changes it too, so the
//! two have to be told apart.

use api::labels::SKIP_AUTO_PROPAGATION;
use serde_json::{Map, Value};

/// Returns whether anything changed besides status, managed fields and resource version.
pub fn specification_changed(old: &Value, new: &Value) -> bool {
    essence(old) != essence(new)
}

/// Returns whether the change from `old` to `new` consists of our own marks alone: labels and annotations whose
/// key contains `.karmada.io`. The label by which users keep a namespace to themselves is theirs, not ours.
pub fn changed_by_karmada(old: &Value, new: &Value) -> bool {
    let unmarked = |object: &Value| {
        let mut object = essence(object);
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.remove("generation");
            for section in ["labels", "annotations"] {
                let Some(Value::Object(entries)) = metadata.get_mut(section) else { continue };
                entries.retain(|key, _| {
                    !key.contains(".karmada.io") || (section == "labels" && key == SKIP_AUTO_PROPAGATION)
                });
                // A map that held nothing but our marks does not differ from no map.
                if entries.is_empty() {
                    metadata.remove(section);
                }
            }
        }
        object
    };
    unmarked(old) == unmarked(new)
}

/// Returns the relevant part of a template: everything but its status and the fields that the server
/// maintains.
pub fn essence(object: &Value) -> Map<String, Value> {
    let mut object = object.as_object().cloned().unwrap_or_default();
    object.remove("status");
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(more: Value) -> Value {
        let mut template = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
        json_patch(&mut template, more);
        template
    }

    fn json_patch(target: &mut Value, more: Value) {
        match (target, more) {
            (Value::Object(target), Value::Object(more)) => {
                for (key, value) in more {
                    json_patch(target.entry(key).or_insert(Value::Null), value);
                }
            }
            (target, more) => *target = more,
        }
    }

    #[test]
    fn status_and_bookkeeping_do_not_count_as_a_change() {
        let noise = json!({"status": {"x": 1}, "metadata": {"resourceVersion": "7", "managedFields": [{}]}});
        assert!(!specification_changed(&template(json!({})), &template(noise)));
        assert!(specification_changed(&template(json!({})), &template(json!({"data": {"k": "w"}}))));
        assert!(specification_changed(
            &template(json!({})),
            &template(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))
        ));
    }

    #[test]
    fn our_marks_are_ours_and_everything_else_is_the_users() {
        let marks = json!({"metadata": {
            "generation": 2,
            "labels": {"propagationpolicy.karmada.io/permanent-id": "u"},
            "annotations": {"propagationpolicy.karmada.io/name": "p"},
        }});
        assert!(changed_by_karmada(&template(json!({})), &template(marks)));
        for users in [
            json!({"data": {"k": "w"}}),
            json!({"metadata": {"labels": {"app": "x"}}}),
            json!({"metadata": {"labels": {"namespace.karmada.io/skip-auto-propagation": "true"}}}),
        ] {
            assert!(!changed_by_karmada(&template(json!({})), &template(users)));
        }
    }
}
