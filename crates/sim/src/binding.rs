//! `pods/binding`: a scheduler sets the node of a pod.

use std::sync::Arc;

use apimachinery::field::{self, Path};
use apimachinery::gvk::GroupResource;
use apimachinery::status::Status;
use apiserver::Server;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use crate::executor::Executor;
use crate::kinds::Kind;
use crate::objects::{Object, list, text};
use crate::view::Objects;

/// Sets the node of a pod to the one in a Binding.
pub(crate) async fn bind(
    server: &Arc<Server>,
    namespace: &str,
    name: &str,
    binding: &Value,
    dry: bool,
) -> Result<(), Status> {
    let node = node(name, binding)?.to_owned();
    let wanted = text(binding, "/metadata/uid").to_owned();
    let executor = Executor::new(server);
    let Some(pod) = executor.get(Kind::Pod, namespace, name) else {
        return Err(Status::not_found(&GroupResource::new("", "pods"), name));
    };
    if dry {
        return obstacle(&pod, name, &wanted).map_or(Ok(()), Err);
    }
    let labels =
        executor.get(Kind::Node, "", &node).map(|node| workloads::nodes::Node::read(&node).topology());
    // The obstacle at the last attempt; the closure may run several times.
    let refused = Mutex::new(None);
    let labels = labels.unwrap_or_default();
    let bound = |pod: &Value| {
        let why = obstacle(pod, name, &wanted);
        let free = why.is_none();
        *refused.lock() = why;
        free.then(|| crate::executor::bound(pod, &node, &labels, Timestamp::now()))
    };
    executor.write_binding(namespace, name, bound).await?;
    refused.into_inner().map_or(Ok(()), Err)
}

fn node<'a>(name: &str, binding: &'a Value) -> Result<&'a str, Status> {
    let target = Path::new("target");
    let mut errors = Vec::new();
    let kind = text(binding, "/target/kind");
    if !matches!(kind, "" | "Node") {
        errors.push(field::Error::not_supported(&target.child("kind"), kind, &["Node", "<empty>"]));
    }
    let node = text(binding, "/target/name");
    if node.is_empty() {
        errors.push(field::Error::required(&target.child("name"), ""));
    }
    if errors.is_empty() { Ok(node) } else { Err(Status::invalid("", "Binding", name, &errors)) }
}

/// Returns why a pod cannot be bound to any node.
fn obstacle(pod: &Value, name: &str, uid: &str) -> Option<Status> {
    let conflict = |why: String| Some(Status::conflict(&GroupResource::new("", "pods/binding"), name, &why));
    if !uid.is_empty() && uid != pod.uid() {
        return conflict(format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            pod.uid()
        ));
    }
    if pod.is_deleting() {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    match text(pod, "/spec/nodeName") {
        "" if list(pod, "/spec/schedulingGates").is_empty() => None,
        "" => conflict(format!("pod {name} has non-empty .spec.schedulingGates")),
        node => conflict(format!("pod {name} is already assigned to node {node:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_is_bound_once() {
        let free = json!({"metadata": {"uid": "u"}, "spec": {}});
        assert_eq!(obstacle(&free, "p", ""), None);
        let taken = json!({"metadata": {"uid": "u"}, "spec": {"nodeName": "n1"}});
        let why = obstacle(&taken, "p", "u").expect("refused").message;
        assert_eq!(
            why,
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\""
        );
    }

    #[test]
    fn a_binding_names_a_node() {
        let ok = json!({"target": {"kind": "Node", "name": "n1"}});
        assert_eq!(node("p", &ok).ok(), Some("n1"));
        assert!(node("p", &json!({"target": {"kind": "Pod", "name": "x"}})).is_err());
        assert!(node("p", &json!({})).is_err());
    }
}
