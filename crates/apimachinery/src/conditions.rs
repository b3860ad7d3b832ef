//! Conditions in the status of an object, on JSON trees.
//!
//! What everybody does with them: find one by its type, ask whether it is true, set it so that `lastTransitionTime` tells
//! since when its status is what it is. Kinds whose conditions follow rules of their own (Deployments move what changes to
//! the end) have these rules where they are written.

use serde_json::{Value, json};

/// Returns a condition without a time: [`set`] adds it.
pub fn condition(kind: &str, status: &str, reason: &str, message: impl Into<String>) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message.into()})
}

/// Returns the conditions of an object.
pub fn all(object: &Value) -> &[Value] {
    object.pointer("/status/conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Returns the condition of a type.
pub fn find<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    all(object).iter().find(|condition| condition["type"] == kind)
}

/// Says whether an object has a condition whose status is `True`.
pub fn is_true(object: &Value, kind: &str) -> bool {
    find(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Sets a condition in a `status`, in its place or at the end; `now` is when its status became what it is, unless it was that
/// before.
///
/// Returns whether anything changed.
pub fn set(status: &mut Value, new: Value, now: &str) -> bool {
    let Value::Object(mut new) = new else { return false };
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    new.insert("lastTransitionTime".to_owned(), now.into());
    let Some(list) = status["conditions"].as_array_mut() else { return false };
    let Some(old) = list.iter_mut().find(|old| old.get("type") == new.get("type")) else {
        list.push(Value::Object(new));
        return true;
    };
    if old.get("status") == new.get("status") {
        let since = old.get("lastTransitionTime").cloned().unwrap_or_default();
        new.insert("lastTransitionTime".to_owned(), since);
    }
    let new = Value::Object(new);
    let changed = *old != new;
    *old = new;
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_moves_with_the_status_only() {
        let mut object = json!({});
        assert!(set(&mut object["status"], condition("Ready", "False", "Starting", "a moment"), "1"));
        assert!(!set(&mut object["status"], condition("Ready", "False", "Starting", "a moment"), "2"));
        assert!(set(&mut object["status"], condition("Other", "True", "Fine", ""), "3"));
        assert!(set(&mut object["status"], condition("Ready", "False", "Waiting", "for others"), "4"));
        assert_eq!(find(&object, "Ready").unwrap()["lastTransitionTime"], "1");
        assert!(!is_true(&object, "Ready"));
        assert!(set(&mut object["status"], condition("Ready", "True", "Started", ""), "5"));
        assert_eq!(find(&object, "Ready").unwrap()["lastTransitionTime"], "5");
        assert!(is_true(&object, "Ready"));
        let order: Vec<_> = all(&object).iter().map(|each| each["type"].as_str().unwrap()).collect();
        assert_eq!(order, ["Ready", "Other"], "a condition keeps its place");
    }

    #[test]
    fn what_is_not_there_is_not_true() {
        for object in [json!({}), json!({"status": null}), json!({"status": {"conditions": null}})] {
            assert_eq!(find(&object, "Ready"), None);
            assert!(!is_true(&object, "Ready"));
        }
    }
}
