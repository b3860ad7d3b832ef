//! Lists that Go prints even when there is nothing in them. An empty one is stored like an absent one, but who sends it owns it.

use apimachinery::gvk::Gvk;
use serde_json::Value;

/// Returns where a kind has such lists, as JSON pointers.
fn printed(gvk: &Gvk) -> &'static [&'static str] {
    match (&*gvk.group, &*gvk.kind) {
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => &["/rules"],
        ("discovery.k8s.io", "EndpointSlice") => &["/endpoints", "/ports"],
        ("", "LimitRange") => &["/spec/limits"],
        ("storage.k8s.io", "CSINode") => &["/spec/drivers"],
        _ => &[],
    }
}

/// Returns which of them a client has sent empty.
pub fn empty_lists(gvk: &Gvk, value: &Value) -> Vec<&'static str> {
    let is_empty =
        |pointer: &&&str| value.pointer(pointer).and_then(Value::as_array).is_some_and(Vec::is_empty);
    printed(gvk).iter().filter(is_empty).copied().collect()
}

/// Puts empty lists back into an object that has its canonical form, so that their owner is seen.
pub fn show_empty(value: &mut Value, lists: &[&str]) {
    for pointer in lists {
        if let Some(list) = value.pointer_mut(pointer) {
            *list = Value::Array(Vec::new());
        }
    }
}

/// Gives an object its canonical form again.
pub fn hide_empty(gvk: &Gvk, value: &mut Value) {
    for pointer in empty_lists(gvk, value) {
        if let Some(list) = value.pointer_mut(pointer) {
            *list = Value::Null;
        }
    }
}
