//! What `kubectl get` shows: the columns of each native kind and how their cells are rendered.
//!
//! In: an object in Go shape and the time it is. Out: one cell per column, wide columns included; the client
//! decides by priority which to show. Columns, order and wording of the cells are kube-apiserver 1.36's, since
//! scripts cut them apart; the descriptions are ours.

mod age;
mod cluster;
mod columns;
mod networking;
mod pod;
mod storage;
mod workloads;

use apimachinery::gvk::Gvk;
use apimachinery::selector::label::Selector;
use jiff::Timestamp;
use serde_json::Value;

use crate::validation::node::Node;

pub use age::{age, duration};
pub use columns::{Column, columns, scale_columns};

/// Returns the cells of one object's row, in the order of [`columns`].
pub fn cells(gvk: &Gvk, object: &Value, now: Timestamp) -> Vec<Value> {
    let row = Row { root: Node::from(object), now };
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Pod") => pod::pod(row),
        ("", "PodTemplate") => workloads::pod_template(row),
        ("", "ReplicationController") => workloads::replication_controller(row),
        ("apps", "Deployment") => workloads::deployment(row),
        ("apps", "ReplicaSet") => workloads::replica_set(row),
        ("apps", "StatefulSet") => workloads::stateful_set(row),
        ("apps", "DaemonSet") => workloads::daemon_set(row),
        ("apps", "ControllerRevision") => workloads::controller_revision(row),
        ("batch", "Job") => workloads::job(row),
        ("batch", "CronJob") => workloads::cron_job(row),
        ("autoscaling", "HorizontalPodAutoscaler") => workloads::autoscaler(&gvk.version, row),
        ("autoscaling", "Scale") => workloads::scale(row),
        ("policy", "PodDisruptionBudget") => workloads::disruption_budget(row),
        ("", "Service") => networking::service(row),
        ("", "Endpoints") => networking::endpoints(row),
        ("discovery.k8s.io", "EndpointSlice") => networking::endpoint_slice(row),
        ("networking.k8s.io", "Ingress") => networking::ingress(row),
        ("networking.k8s.io", "IngressClass") => networking::ingress_class(row),
        ("networking.k8s.io", "NetworkPolicy") => networking::network_policy(row),
        ("networking.k8s.io", "ServiceCIDR") => networking::service_cidr(row),
        ("networking.k8s.io", "IPAddress") => networking::ip_address(row),
        ("", "PersistentVolume") => storage::persistent_volume(row),
        ("", "PersistentVolumeClaim") => storage::persistent_volume_claim(row),
        ("storage.k8s.io", "StorageClass") => storage::storage_class(row),
        ("storage.k8s.io", "CSIDriver") => storage::csi_driver(row),
        ("storage.k8s.io", "CSINode") => storage::csi_node(row),
        ("storage.k8s.io", "VolumeAttachment") => storage::volume_attachment(row),
        ("storage.k8s.io", "VolumeAttributesClass") => storage::volume_attributes_class(row),
        ("resource.k8s.io", "ResourceClaim") => storage::resource_claim(row),
        ("resource.k8s.io", "ResourceSlice") => storage::resource_slice(row),
        ("resource.k8s.io", "DeviceClass" | "ResourceClaimTemplate") | ("", "ServiceAccount") => {
            vec![row.name(), row.age()]
        }
        _ => cluster::cells(gvk, row),
    }
}

/// One object and the time at which it is looked at.
#[derive(Clone, Copy)]
struct Row<'a> {
    root: Node<'a>,
    now: Timestamp,
}

impl<'a> Row<'a> {
    fn name(self) -> Value {
        self.meta("name").text().into()
    }

    fn meta(self, field: &str) -> Node<'a> {
        self.root.at("metadata").at(field)
    }

    fn spec(self, field: &str) -> Node<'a> {
        self.root.at("spec").at(field)
    }

    fn status(self, field: &str) -> Node<'a> {
        self.root.at("status").at(field)
    }

    fn age(self) -> Value {
        self.since(self.meta("creationTimestamp")).into()
    }

    /// Returns how long ago a time was; an absent one is `<unknown>`.
    fn since(self, time: Node<'_>) -> String {
        age(time.text(), self.now)
    }

    fn is_deleted(self) -> bool {
        self.meta("deletionTimestamp").exists()
    }
}

/// Returns the text, or a stand-in where it is empty.
fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// Returns names and images of containers, each joined by commas.
fn containers(list: Node<'_>) -> [Value; 2] {
    let join = |field: &str| -> Value {
        list.items().map(|container| container.at(field).text()).collect::<Vec<_>>().join(",").into()
    };
    [join("name"), join("image")]
}

/// Prints a map of labels: `a=1,b=2`, `<none>` where there are none.
fn labels(map: Node<'_>) -> Value {
    let pairs: Vec<String> = map.entries().map(|(key, value)| format!("{key}={}", value.text())).collect();
    or(&pairs.join(","), "<none>").into()
}

/// Prints a label selector object; an empty or missing one is `<none>`.
fn selector(node: Node<'_>) -> Value {
    match Selector::from_object(node.0) {
        Ok(selector) => or(&selector.to_string(), "<none>").into(),
        Err(_) => "<error>".into(),
    }
}

/// Prints at most `max` elements and how many were left out. `count` is the number of all.
fn shortened(shown: &[String], count: usize, max: usize, separator: &str) -> String {
    let joined = shown.join(separator);
    if count > max { format!("{joined} + {} more...", count - max) } else { joined }
}
