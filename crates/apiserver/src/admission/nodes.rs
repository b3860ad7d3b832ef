//! A new Node takes no pods until a controller has seen that it is ready.

use apimachinery::pointer;
use serde_json::{Value, json};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Adds the taint of a Node that is not ready yet.
pub fn taint_new(node: &mut Value) {
    let mut taints = pointer::list(node, "/spec/taints").to_vec();
    if !taints.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule") {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
    pointer::set(pointer::object_at(node, "spec"), "taints", taints.into());
}
