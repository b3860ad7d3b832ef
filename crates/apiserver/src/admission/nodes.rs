//! A new Node takes no pods until a controller has seen that it is ready.

use serde_json::{Value, json};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Adds the taint of a Node that is not ready yet.
pub fn taint_new(node: &mut Value) {
    if !node["spec"].is_object() {
        node["spec"] = json!({});
    }
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    if !taints.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule") {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
    node["spec"]["taints"] = taints.into();
}
