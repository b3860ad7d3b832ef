//! Members as Karmada's own suite expects them, which is used to clusters made by kind: one node called after its cluster, a few objects
//! in `kube-system`, and an image that never runs.

use serde_json::{Value, json};

use crate::options::{ClusterOptions, Flavour};

/// What kwok does with pods: as its own stages do, but pods with the image `fake/nginx:1.19.0` never get ready, as if it could
/// not be pulled.
const STAGES: &str = include_str!("kind/stages.yaml");

impl ClusterOptions {
    /// Makes the member look like one of kind's. Its node is smaller than usual, because some specs fill it; but in the models of
    /// clusters it counts as one with 8 CPUs and 64Gi, also with a few pods on it, since the largest workload of the suite needs 7.
    pub fn like_kind(self) -> Self {
        let node = format!("{}-control-plane", self.name);
        let mut member = self.node_names([node.clone()]).node_capacity("9", "65Gi", 500);
        if member.flavour == Flavour::Member {
            member = member.kwok_config(STAGES);
        }
        member.objects = objects(&node);
        member
    }
}

/// Returns what specs look up by name. Nothing of it does any work.
fn objects(node: &str) -> Vec<Value> {
    let metadata = |name: &str| json!({"name": name, "namespace": "kube-system"});
    let spec = |node: Option<&str>| {
        let container = json!({"name": "pause", "image": "registry.k8s.io/pause:3.10"});
        let mut spec = json!({"containers": [container], "terminationGracePeriodSeconds": 0});
        if let Some(node) = node {
            spec["nodeName"] = json!(node);
        }
        spec
    };
    let workload = |kind: &str, name: &str| {
        json!({
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": metadata(name),
            "spec": {
                "selector": {"matchLabels": {"k8s-app": name}},
                "template": {"metadata": {"labels": {"k8s-app": name}}, "spec": spec(None)},
            },
        })
    };
    vec![
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(&format!("etcd-{node}")), "spec": spec(Some(node))}),
        workload("Deployment", "coredns"),
        workload("DaemonSet", "kube-proxy"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_kind_gives() {
        let member = ClusterOptions::member("member1").like_kind();
        assert_eq!(member.nodes.names, ["member1-control-plane"]);
        assert_eq!(member.objects[0]["metadata"]["name"], "etcd-member1-control-plane");
        assert!(member.kwok_config.is_some());
        assert_eq!(ClusterOptions::pods("member1").like_kind().kwok_config, None, "there is no kwok");
    }

    #[test]
    fn the_stages_hold_the_image_back_that_never_runs() {
        assert!(STAGES.contains("fake/nginx:1.19.0"));
        // A single stage for pods switches all of kwok's own off.
        for stage in ["pod-ready", "pod-complete", "pod-delete"] {
            assert!(STAGES.contains(&format!("name: {stage}\n")), "{stage}");
        }
    }
}
