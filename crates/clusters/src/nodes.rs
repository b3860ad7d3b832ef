//! The nodes of a member, and the proof that the member works: a Deployment that becomes available.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{error::Error, options::NodeOptions, wait::until};

/// How long a step of a cluster's start may take. A member needs about four seconds on an idle machine; a busy one with
/// two cores can take a minute, and giving up early helps nobody.
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(300);

const PROBE: &str = "clusters-probe";

/// Creates the nodes; kwok makes them Ready.
pub(crate) async fn create(client: &Client, options: &NodeOptions) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    for (index, name) in options.names.iter().enumerate() {
        let node: Node =
            serde_json::from_value(object(options, index, name)).expect("a Node by construction");
        until(&format!("node {name} to be created"), START_DEADLINE, async || {
            match nodes.create(&PostParams::default(), &node).await {
                Ok(_) => Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
    }
    Ok(())
}

/// Waits until every node is Ready and a Deployment becomes available, and removes that Deployment again.
///
/// `image` is what the Deployment's pod runs.
pub(crate) async fn prove(client: &Client, options: &NodeOptions, image: &str) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    until("all nodes to be Ready", START_DEADLINE, async || {
        let list = nodes.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let ready = list.iter().filter(|node| is_ready(node)).count();
        if ready == options.names.len() { Ok(()) } else { Err(format!("{ready} of {}", options.names.len())) }
    })
    .await?;
    if options.names.is_empty() {
        return Ok(()); // no place for a pod
    }
    // Without its ServiceAccount the first pod would be refused, and the retry of the controller takes seconds.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    until("the default ServiceAccount", START_DEADLINE, async || {
        accounts.get("default").await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await?;
    probe(client, image).await
}

async fn probe(client: &Client, image: &str) -> Result<(), Error> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let probe: Deployment = serde_json::from_value(json!({
        "metadata": {"name": PROBE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": PROBE}},
            "template": {
                "metadata": {"labels": {"app": PROBE}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "probe", "image": image}]},
            },
        },
    }))
    .expect("a Deployment by construction");
    until("the probe Deployment to be created", START_DEADLINE, async || {
        match deployments.create(&PostParams::default(), &probe).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    until("the probe Deployment to be available", START_DEADLINE, async || {
        let seen = deployments.get(PROBE).await.map_err(|error| error.to_string())?;
        let available = seen.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0);
        if available == 1 { Ok(()) } else { Err(format!("status {:?}", seen.status)) }
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let _ = deployments.delete(PROBE, &DeleteParams::background()).await;
    until("the probe to be gone", START_DEADLINE, async || {
        let left = pods.list(&ListParams::default().labels(&format!("app={PROBE}"))).await;
        match left.map_err(|error| error.to_string())?.items.len() {
            0 => Ok(()),
            count => Err(format!("{count} pods")),
        }
    })
    .await
}

fn object(options: &NodeOptions, index: usize, name: &str) -> Value {
    let resources = json!({
        "cpu": options.cpu,
        "memory": options.memory,
        "ephemeral-storage": "256Gi",
        "pods": options.pods.to_string(),
    });
    // Zones a, b, c in turn: enough for every spread a test may ask for.
    let zone = format!("{}-{}", options.region, ["a", "b", "c"][index % 3]);
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "topology.kubernetes.io/region": options.region,
                "topology.kubernetes.io/zone": zone,
            },
        },
        "status": {"allocatable": resources, "capacity": resources},
    })
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let tainted =
        node.spec.as_ref().is_some_and(|spec| spec.taints.as_ref().is_some_and(|taints| !taints.is_empty()));
    // The node controller taints a new node until it has seen it Ready; a pod would wait for that.
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") && !tainted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ClusterOptions;

    #[test]
    fn nodes_are_spread_over_zones() {
        let options = ClusterOptions::member("m").nodes;
        let zone = |index: usize| {
            object(&options, index, "n")["metadata"]["labels"]["topology.kubernetes.io/zone"]
                .as_str()
                .map(String::from)
        };
        assert_eq!(zone(0), Some("region-1-a".to_string()));
        assert_eq!(zone(3), zone(0));
        assert_ne!(zone(1), zone(0));
    }

    #[test]
    fn a_tainted_node_does_not_count_as_ready() {
        let mut node: Node = serde_json::from_value(json!({
            "metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}
        }))
        .expect("a node");
        assert!(is_ready(&node));
        node.spec = serde_json::from_value(json!({"taints": [{"key": "x", "effect": "NoSchedule"}]}))
            .expect("a spec");
        assert!(!is_ready(&node));
    }
}
