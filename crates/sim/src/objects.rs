//! Reads and builds objects as JSON values: common functions of all controllers.

pub(crate) use apimachinery::conditions::{find as condition, is_true};
pub(crate) use apimachinery::object::Object;
pub(crate) use apimachinery::pointer::{flag, list, number, text};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
pub(crate) use workloads::nodes::is_finished;

/// Returns a label, empty if absent.
pub(crate) fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object.label(key).unwrap_or("")
}

/// Returns an annotation, empty if absent.
pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object.annotation(key).unwrap_or("")
}

pub(crate) fn created(object: &Value) -> &str {
    object.meta("creationTimestamp")
}

/// Returns the reference that makes `owner` the controller of an object.
pub(crate) fn controlled_by(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner.name(),
        "uid": owner.uid(),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

pub(crate) fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    text(object, pointer).parse().ok()
}

/// Prints a moment as Kubernetes does, to the second.
pub(crate) fn stamp(moment: Timestamp) -> String {
    let whole = Timestamp::from_second(moment.as_second()).unwrap_or(moment);
    whole.to_string()
}

/// Prints a moment to the microsecond.
pub(crate) fn micro_stamp(moment: Timestamp) -> String {
    format!("{moment:.6}")
}

/// Returns the moment this many seconds after (or, if negative, before) another one, or the last (first) possible one.
pub(crate) fn after(moment: Timestamp, seconds: i64) -> Timestamp {
    let limit = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    moment.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(limit)
}

pub(crate) fn phase(pod: &Value) -> &str {
    text(pod, "/status/phase")
}

/// Returns whether a pod counts as active: neither finished nor being deleted.
pub(crate) fn is_active(pod: &Value) -> bool {
    !is_finished(pod) && !pod.is_deleting()
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    is_true(pod, "Ready")
}

/// Returns when a ready pod becomes available, `min_ready` seconds after it became ready; `None` if it is not ready.
pub(crate) fn available_at(pod: &Value, min_ready: i64) -> Option<Timestamp> {
    if !is_ready(pod) {
        return None;
    }
    let since = condition(pod, "Ready").and_then(|ready| time(ready, "/lastTransitionTime"));
    Some(after(since.unwrap_or(Timestamp::MIN), min_ready.max(0)))
}

/// An integer or a percentage of a total, rounded as in Kubernetes.
pub(crate) fn int_or_percent(value: Option<&Value>, whole: i64, up: bool) -> Option<i64> {
    match value? {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            let product = percent * whole;
            Some(if up { (product + 99).div_euclid(100) } else { product.div_euclid(100) })
        }
        _ => None,
    }
}

/// Returns the map at a key, which is created if missing.
pub(crate) fn map_at<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let slot = &mut object[key];
    if !slot.is_object() {
        *slot = json!({});
    }
    slot.as_object_mut().expect("just made an object")
}

/// Returns the pod for a template, owned by `owner`.
pub(crate) fn pod_from(owner: &Value, template: &Value) -> Value {
    let mut metadata = json!({"ownerReferences": [controlled_by(owner)], "namespace": owner.namespace()});
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template.pointer(&format!("/metadata/{field}")) {
            metadata[field] = value.clone();
        }
    }
    metadata["generateName"] = json!(format!("{}-", owner.name()));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

/// Sets a condition as Deployments do: unchanged if status and reason are the same; otherwise moved to the end.
pub(crate) fn set_condition(conditions: &mut Vec<Value>, mut new: Value) {
    let old = conditions.iter().find(|condition| condition["type"] == new["type"]);
    if let Some(old) = old {
        if old["status"] == new["status"] && old["reason"] == new["reason"] {
            return;
        }
        if old["status"] == new["status"] {
            new["lastTransitionTime"] = old["lastTransitionTime"].clone();
        }
    }
    conditions.retain(|condition| condition["type"] != new["type"]);
    conditions.push(new);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_seconds_is_too_large() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(after(now, i64::MAX), Timestamp::MAX);
        assert_eq!(after(now, i64::MIN), Timestamp::MIN, "a deadline of all time lies in the past");
    }

    #[test]
    fn percentages_round_as_asked() {
        let quarter = json!("25%");
        assert_eq!(int_or_percent(Some(&quarter), 10, true), Some(3));
        assert_eq!(int_or_percent(Some(&quarter), 10, false), Some(2));
        assert_eq!(int_or_percent(Some(&json!(4)), 10, false), Some(4));
        assert_eq!(int_or_percent(None, 10, false), None);
    }

    #[test]
    fn times_are_printed_to_the_second() {
        let moment: Timestamp = "2026-01-02T03:04:05.678Z".parse().expect("a time");
        assert_eq!(stamp(moment), "2026-01-02T03:04:05Z");
        assert_eq!(micro_stamp(moment), "2026-01-02T03:04:05.678000Z");
    }
}
