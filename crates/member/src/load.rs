//! The capacity of a member's nodes and the requests of its pods, kept by two watches, in a few bytes per object.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use runtime::Mirror;
use runtime::room::Budget;

/// The relevant part of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeRecord {
    pub ready: bool,
    pub allocatable: BTreeMap<String, Quantity>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
}

/// The relevant part of a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodRecord {
    /// The node of the pod; empty while it waits.
    pub node: String,
    /// Succeeded or failed: it needs no resources any more.
    pub finished: bool,
    pub containers: Vec<BTreeMap<String, Quantity>>,
    pub init_containers: Vec<BTreeMap<String, Quantity>>,
    pub overhead: BTreeMap<String, Quantity>,
}

/// Nodes and pods of one member.
#[derive(Debug, Default)]
pub struct Load {
    pub nodes: Mirror<NodeRecord>,
    pub pods: Mirror<PodRecord>,
}

impl Load {
    /// Returns an empty instance that keeps no more than the budget allows.
    pub(crate) fn within(cluster: &str, budget: &Arc<Budget>) -> Self {
        Self {
            nodes: Mirror::default().within(cluster, budget.clone()),
            pods: Mirror::default().within(cluster, budget.clone()),
        }
    }

    /// Follows nodes and pods until it is stopped.
    pub async fn follow(&self, client: Client, stop: CancellationToken) {
        tokio::join!(
            self.nodes.follow(
                Api::<Node>::all(client.clone()),
                watcher::Config::default(),
                stop.clone(),
                NodeRecord::from,
            ),
            self.pods.follow(
                Api::<Pod>::all(client),
                watcher::Config::default(),
                stop.clone(),
                PodRecord::from,
            ),
        );
    }

    /// Waits until both are complete; returns whether that happened in time.
    pub async fn wait(&self, at_most: Duration) -> bool {
        let (nodes, pods) = tokio::join!(self.nodes.wait(at_most), self.pods.wait(at_most));
        nodes && pods
    }
}

impl From<Node> for NodeRecord {
    fn from(node: Node) -> Self {
        let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
        Self {
            labels: node.metadata.labels.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or(false),
            ready: status
                .conditions
                .unwrap_or_default()
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            allocatable: status.allocatable.unwrap_or_default(),
        }
    }
}

impl From<Pod> for PodRecord {
    fn from(pod: Pod) -> Self {
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        let spec = pod.spec.unwrap_or_default();
        Self {
            node: spec.node_name.unwrap_or_default(),
            finished: phase == "Succeeded" || phase == "Failed",
            containers: spec.containers.into_iter().map(requests).collect(),
            init_containers: spec.init_containers.unwrap_or_default().into_iter().map(requests).collect(),
            overhead: spec.overhead.unwrap_or_default(),
        }
    }
}

fn requests(container: Container) -> BTreeMap<String, Quantity> {
    container.resources.and_then(|resources| resources.requests).unwrap_or_default()
}
