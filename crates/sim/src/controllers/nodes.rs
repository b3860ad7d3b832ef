//! Nodes: how they look, how they report, and what happens when one is lost.
//!
//! Kubelet and node lifecycle controller in one: a lost node is noticed immediately instead of after 50 seconds; everything after
//! that takes as long as upstream.

use jiff::Timestamp;
use serde_json::{Value, json};
use workloads::nodes::tolerates;

use crate::kinds::Kind;
use crate::objects::{Object, after, condition, flag, is_ready, list, map_at, stamp, text, time};
use crate::options::NodeOptions;
use crate::plan::{Component, Step};
use crate::view::View;

/// Returns a new node.
pub(crate) fn object(options: &NodeOptions) -> Value {
    let mut labels = json!({
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": options.name,
    });
    for (key, value) in &options.labels {
        labels[key] = json!(value);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": options.name, "labels": labels,
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
        "spec": {},
        "status": {"capacity": amounts(options), "allocatable": amounts(options)},
    })
}

fn amounts(options: &NodeOptions) -> Value {
    json!({"cpu": options.cpu, "memory": options.memory, "pods": options.pods.to_string(),
        "ephemeral-storage": "256Gi"})
}

/// The kubelet's conditions: type, and status, reason and message of a healthy node.
const WELL: [(&str, &str, &str, &str); 5] = [
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("NetworkUnavailable", "False", "RouteCreated", "RouteController created a route"),
];

/// Decides about a node and, if it is lost, about the pods on it.
pub(crate) fn decide(view: &View<'_>, node: &Value, addresses: &[String], pods: &[Value]) -> Vec<Step> {
    let lost = view.troubles.nodes.contains(node.name());
    let mut steps = Vec::new();
    let status = status(node, lost, addresses, view.now);
    if status != node["status"] {
        steps.push(Step::Status {
            kind: Kind::Node,
            namespace: String::new(),
            name: node.name().to_owned(),
            uid: node.uid().to_owned(),
            status,
            annotations: None,
            by: if lost { Component::ControllerManager } else { Component::Kubelet },
        });
    }
    let taints = taints(node, lost, view.now);
    if taints != list(node, "/spec/taints") {
        let mut new = node.clone();
        let spec = map_at(&mut new, "spec");
        if taints.is_empty() {
            spec.remove("taints");
        } else {
            spec.insert("taints".to_owned(), taints.clone().into());
        }
        steps.push(Step::Update { kind: Kind::Node, object: new });
    }
    if lost {
        for pod in pods {
            if is_ready(pod) {
                steps.push(unready(pod, view.now));
            }
        }
    }
    steps.extend(evictions(view, &taints, pods));
    steps
}

fn status(node: &Value, lost: bool, addresses: &[String], now: Timestamp) -> Value {
    let mut status = node["status"].clone();
    // Other components also write conditions of the node, such as problem detectors.
    let mut conditions = list(node, "/status/conditions").to_vec();
    for (kind, well, reason, message) in WELL {
        let vanished = lost && kind != "NetworkUnavailable";
        let (value, reason, message) = if vanished {
            ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
        } else {
            (well, reason, message)
        };
        let old = condition(node, kind).filter(|old| old["status"] == value);
        let since = old.map_or_else(|| json!(stamp(now)), |old| old["lastTransitionTime"].clone());
        let beat = old.map_or_else(|| json!(stamp(now)), |old| old["lastHeartbeatTime"].clone());
        let new = json!({"type": kind, "status": value, "reason": reason, "message": message,
            "lastHeartbeatTime": beat, "lastTransitionTime": since});
        match conditions.iter_mut().find(|present| present["type"] == kind) {
            Some(present) => *present = new,
            None => conditions.push(new),
        }
    }
    status["conditions"] = conditions.into();
    status["addresses"] =
        addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    status["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": 0}});
    status["phase"] = json!("Running");
    let version = concat!("karmada-sim-", env!("CARGO_PKG_VERSION"));
    let kubelet = format!("v{}", apiserver::KUBERNETES_VERSION.trim_start_matches('v'));
    status["nodeInfo"] = json!({"architecture": "amd64", "bootID": "", "containerRuntimeVersion": version,
        "kernelVersion": version, "kubeProxyVersion": kubelet, "kubeletVersion": kubelet, "machineID": "",
        "operatingSystem": "linux", "osImage": "", "systemUUID": ""});
    status
}

/// Returns the taints that a node should have: its own, and those of its current state.
fn taints(node: &Value, lost: bool, now: Timestamp) -> Vec<Value> {
    const OURS: [&str; 3] = [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/unschedulable",
    ];
    let present = list(node, "/spec/taints");
    let mut wanted: Vec<Value> =
        present.iter().filter(|taint| !OURS.iter().any(|key| taint["key"] == *key)).cloned().collect();
    let mut add = |key: &str, effect: &str| {
        let old = present.iter().find(|taint| taint["key"] == key && taint["effect"] == effect);
        wanted.push(
            old.cloned().unwrap_or_else(|| json!({"key": key, "effect": effect, "timeAdded": stamp(now)})),
        );
    };
    if flag(node, "/spec/unschedulable") {
        add("node.kubernetes.io/unschedulable", "NoSchedule");
    }
    if lost {
        add("node.kubernetes.io/unreachable", "NoSchedule");
        add("node.kubernetes.io/unreachable", "NoExecute");
    }
    wanted
}

/// The node lifecycle controller's action on a pod of a lost node.
fn unready(pod: &Value, now: Timestamp) -> Step {
    let mut status = pod["status"].clone();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if condition["type"] == "Ready" {
            condition["status"] = json!("False");
            condition["lastTransitionTime"] = json!(stamp(now));
        }
    }
    let mut step = Step::status(Kind::Pod, pod, status);
    if let Step::Status { by, .. } = &mut step {
        *by = Component::ControllerManager;
    }
    step
}

/// Deletes pods whose toleration of a `NoExecute` taint has expired.
fn evictions(view: &View<'_>, taints: &[Value], pods: &[Value]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut next: Option<Timestamp> = None;
    for taint in taints.iter().filter(|taint| taint["effect"] == "NoExecute") {
        let since = time(taint, "/timeAdded").unwrap_or(view.now);
        for pod in pods.iter().filter(|pod| !pod.is_deleting()) {
            let due = match tolerates(pod, taint) {
                None => since,
                Some(toleration) => match toleration["tolerationSeconds"].as_i64() {
                    Some(seconds) => after(since, seconds),
                    None => continue,
                },
            };
            if due <= view.now {
                steps.push(Step::event(
                    pod,
                    "taint-eviction-controller",
                    "TaintManagerEviction",
                    format!("Marking for deletion Pod {}/{}", text(pod, "/metadata/namespace"), pod.name()),
                ));
                steps.push(Step::delete(Kind::Pod, pod));
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
    }
    steps.extend(next.map(|next| Step::again_at(next, view.now)));
    steps
}

/// Returns the step that renews a node's lease, or creates it.
pub(crate) fn lease(view: &View<'_>, node: &Value) -> Option<Step> {
    if view.troubles.nodes.contains(node.name()) {
        return None;
    }
    let spec = json!({"holderIdentity": node.name(), "leaseDurationSeconds": 120,
        "renewTime": crate::objects::micro_stamp(view.now)});
    Some(match view.get(Kind::Lease, "kube-node-lease", node.name()) {
        Some(mut lease) => {
            lease["spec"] = spec;
            Step::Update { kind: Kind::Lease, object: lease }
        }
        None => Step::Create {
            kind: Kind::Lease,
            object: json!({"metadata": {"name": node.name(), "namespace": "kube-node-lease",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node.name(),
                    "uid": node.uid()}]}, "spec": spec}),
            tell: None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trouble::{Trouble, Troubles};
    use crate::view::fake::with_view;

    #[test]
    fn a_new_node_becomes_ready_and_loses_its_taint() {
        let mut node = object(&NodeOptions::new("n"));
        node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
        let steps = with_view(vec![], |view| decide(view, &node, &["10.0.0.1".to_owned()], &[]));
        assert_eq!(steps.len(), 2);
        let Step::Status { status, .. } = &steps[0] else { panic!("{steps:?}") };
        node["status"] = status.clone();
        let Step::Update { object, .. } = &steps[1] else { panic!("{steps:?}") };
        node["spec"] = object["spec"].clone();
        assert_eq!(with_view(vec![], |view| decide(view, &node, &["10.0.0.1".to_owned()], &[])), []);
    }

    #[test]
    fn conditions_that_others_write_stay() {
        let mut node = object(&NodeOptions::new("n"));
        let other = json!({"type": "NamesResolve", "status": "False"});
        node["status"]["conditions"] = json!([other]);
        let steps = with_view(vec![], |view| decide(view, &node, &["10.0.0.1".to_owned()], &[]));
        let [Step::Status { status, .. }] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(status["conditions"][0], other);
        assert_eq!(status["conditions"].as_array().map(Vec::len), Some(1 + WELL.len()));
        node["status"] = status.clone();
        assert_eq!(with_view(vec![], |view| decide(view, &node, &["10.0.0.1".to_owned()], &[])), []);
    }

    #[test]
    fn pods_leave_a_lost_node_when_their_patience_ends() {
        let mut node = object(&NodeOptions::new("n"));
        node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute",
            "timeAdded": "2026-01-01T00:08:00Z"}]);
        let pod = |seconds: i64| {
            json!({"metadata": {"name": "p", "uid": "1"}, "spec": {"tolerations": [
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": seconds}]}})
        };
        let mut troubles = Troubles::default();
        troubles.add(&Trouble::Node("n".to_owned()));
        let decided = |seconds: i64| {
            with_view(vec![], |view| {
                let view = View { troubles: &troubles, ..*view };
                decide(&view, &node, &["10.0.0.1".to_owned()], &[pod(seconds)])
            })
        };
        assert!(decided(60).iter().any(|step| matches!(step, Step::Delete { .. })));
        assert!(!decided(300).iter().any(|step| matches!(step, Step::Delete { .. })));
        assert!(decided(300).iter().any(|step| matches!(step, Step::Again(_))));
    }
}
