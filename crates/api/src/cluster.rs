//! `cluster.karmada.io/v1alpha1`: the member clusters.
//!
//! Upstream serves this group from an aggregated API server, so its "schema" is Go's published OpenAPI and the
//! checks are compiled in; [`crate::crd`] describes it in CRD form so that one server can serve everything.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::conditions;
use crate::policy::ResourceList;
use crate::wire::{choice, kind, record};

/// The API group of this module.
pub const GROUP: &str = "cluster.karmada.io";

kind! {
    /// A member cluster.
    pub struct Cluster in "cluster.karmada.io" / "v1alpha1" as "clusters", Cluster {
        /// How the cluster is reached and what is known about it.
        "spec" required spec: ClusterSpec;
        /// What was last seen of the cluster.
        "status" always status: ClusterStatus;
    }
}

choice! {
    /// Whether the control plane or an agent applies Works to a member cluster.
    pub enum ClusterSyncMode {
        /// The control plane does, over the cluster's API.
        Push = "Push",
        /// An agent in the cluster does.
        Pull = "Pull",
    }
}

record! {
    /// How a member cluster is reached and what is known about it.
    pub struct ClusterSpec {
        /// A unique ID of the cluster. Join and agent write the UID of its kube-system namespace.
        "id" optional id: String;
        /// Whether the control plane (Push) or an agent in the cluster (Pull) applies Works to it.
        "syncMode" required sync_mode: ClusterSyncMode;
        /// The URL of the cluster's API server.
        "apiEndpoint" optional api_endpoint: String;
        /// The Secret with the credentials for the cluster, under the keys token and caBundle.
        "secretRef" optional secret_ref: Option<LocalSecretReference>;
        /// The Secret with the credentials for acting on behalf of users, under the key token.
        "impersonatorSecretRef" optional impersonator_secret_ref: Option<LocalSecretReference>;
        /// Skips the check of the API server's certificate.
        "insecureSkipTLSVerification" optional insecure_skip_tls_verification: bool;
        /// The URL of a proxy through which the cluster is reached; http, https or socks5.
        "proxyURL" optional proxy_url: String;
        /// Headers for the proxy; a comma separates several values of one header.
        "proxyHeader" optional proxy_header: BTreeMap<String, String>;
        /// The provider that runs the cluster.
        "provider" optional provider: String;
        /// The region the cluster is in.
        "region" optional region: String;
        /// Deprecated, use zones: the zone the cluster is in. Moved to zones on every write.
        "zone" optional zone: String;
        /// The zones over which the cluster stretches.
        "zones" optional zones: Vec<String>;
        /// Taints that keep workloads away unless they tolerate them.
        "taints" optional taints: Vec<Taint>;
        /// Classes of node sizes by which the free capacity of the cluster is counted.
        "resourceModels" optional resource_models: Vec<ResourceModel>;
    }
}

record! {
    /// A Secret in the control plane.
    #[derive(Eq)]
    pub struct LocalSecretReference {
        /// The namespace of the Secret.
        "namespace" required namespace: String;
        /// The name of the Secret.
        "name" required name: String;
    }
}

record! {
    /// One class of node sizes.
    pub struct ResourceModel {
        /// The index of the class; larger nodes have a higher grade.
        "grade" required grade: u32;
        /// The range of each resource for nodes of this class.
        "ranges" required ranges: Vec<ResourceModelRange>;
    }
}

record! {
    /// The range of one resource in a class of node sizes.
    pub struct ResourceModelRange {
        /// The name of the resource, such as cpu, memory, storage or ephemeral-storage.
        "name" required name: String;
        /// The lower bound, which belongs to the range.
        "min" required min: Quantity;
        /// The upper bound, which does not belong to the range.
        "max" required max: Quantity;
    }
}

record! {
    /// What was last seen of a member cluster.
    pub struct ClusterStatus {
        /// The Kubernetes version of the cluster.
        "kubernetesVersion" optional kubernetes_version: String;
        /// The APIs that the cluster serves.
        "apiEnablements" optional api_enablements: Vec<APIEnablement>;
        /// The state of the cluster, first of all whether it is Ready.
        "conditions" optional conditions: Vec<Condition>;
        /// How many nodes there are.
        "nodeSummary" optional node_summary: Option<NodeSummary>;
        /// How much the nodes can hold and hold already.
        "resourceSummary" optional resource_summary: Option<ResourceSummary>;
        /// What Remedy objects ask to be done about this cluster, sorted.
        "remedyActions" optional remedy_actions: Vec<String>;
    }
}

record! {
    /// The resources of one API version.
    #[derive(Eq)]
    pub struct APIEnablement {
        /// The group and version, such as apps/v1.
        "groupVersion" required group_version: String;
        /// The resources that the cluster serves in it.
        "resources" optional resources: Vec<APIResource>;
    }
}

record! {
    /// A resource that a cluster serves.
    #[derive(Eq)]
    pub struct APIResource {
        /// The plural name.
        "name" required name: String;
        /// The kind.
        "kind" required kind: String;
    }
}

record! {
    /// How many nodes a cluster has.
    #[derive(Eq)]
    pub struct NodeSummary {
        /// All nodes.
        "totalNum" optional total_num: i32;
        /// The nodes that are ready.
        "readyNum" optional ready_num: i32;
    }
}

record! {
    /// What the nodes of a cluster can hold and hold already.
    pub struct ResourceSummary {
        /// What the nodes offer to pods, in total.
        "allocatable" optional allocatable: ResourceList;
        /// What pods ask for that wait for a node.
        "allocating" optional allocating: ResourceList;
        /// What pods ask for that have a node.
        "allocated" optional allocated: ResourceList;
        /// How many nodes there are of each class in spec.resourceModels, by what is still free on them.
        "allocatableModelings" optional allocatable_modelings: Vec<AllocatableModeling>;
    }
}

record! {
    /// The number of nodes of one class.
    #[derive(Eq)]
    pub struct AllocatableModeling {
        /// The index of the class.
        "grade" required grade: u32;
        /// The number of nodes.
        "count" required count: i64 { format("int32") };
    }
}

record! {
    /// The options of a request to `clusters/proxy`, taken from the URL.
    #[derive(Eq)]
    pub struct ClusterProxyOptions {
        /// The part of the URL after `proxy`.
        "path" optional path: String;
    }
}

/// Whether a cluster serves a kind, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum APIEnablementStatus {
    /// It does.
    Enabled,
    /// It does not.
    Disabled,
    /// The list of its APIs is incomplete and does not name the kind.
    Unknown,
}

impl ClusterStatus {
    /// Returns whether the cluster serves a kind.
    pub fn api_enablement(&self, group_version: &str, kind: &str) -> APIEnablementStatus {
        let listed = self
            .api_enablements
            .iter()
            .filter(|enablement| enablement.group_version == group_version)
            .any(|enablement| enablement.resources.iter().any(|resource| resource.kind == kind));
        if listed {
            APIEnablementStatus::Enabled
        } else if self
            .condition(conditions::cluster::COMPLETE_API_ENABLEMENTS)
            .is_some_and(|c| c.status == "True")
        {
            APIEnablementStatus::Disabled
        } else {
            APIEnablementStatus::Unknown
        }
    }

    /// Returns the condition of this type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// Returns whether the cluster is known to be ready.
    pub fn is_ready(&self) -> bool {
        self.condition(conditions::cluster::READY).is_some_and(|ready| ready.status == "True")
    }
}

/// The largest number that a quantity of nodes can have; the upper bound of the last class.
pub const MODEL_UNBOUNDED: &str = "9223372036854775807";

/// Returns the classes of node sizes that a cluster gets when it brings none.
pub fn default_resource_models() -> Vec<ResourceModel> {
    const CPU: [&str; 10] = ["0", "1", "2", "4", "8", "16", "32", "64", "128", MODEL_UNBOUNDED];
    const MEMORY: [&str; 10] =
        ["0", "4Gi", "16Gi", "32Gi", "64Gi", "128Gi", "256Gi", "512Gi", "1Ti", MODEL_UNBOUNDED];
    let range = |name: &str, bounds: &[&str]| ResourceModelRange {
        name: name.to_owned(),
        min: Quantity(bounds[0].to_owned()),
        max: Quantity(bounds[1].to_owned()),
    };
    (0u32..)
        .zip(CPU.windows(2).zip(MEMORY.windows(2)))
        .map(|(grade, (cpu, memory))| ResourceModel {
            grade,
            ranges: vec![range("cpu", cpu), range("memory", memory)],
        })
        .collect()
}

/// Returns the cells of a cluster's row in `kubectl get clusters`, the wide ones included: name, version, mode, ready,
/// age, zones, region, provider, API endpoint, proxy URL.
///
/// Upstream computes them and does not leave it to JSON paths: what is missing shows as `<none>`, zones are joined by
/// commas, and a cluster without Ready condition is `Unknown`. The age is for the caller to print, who has a clock.
pub fn table_cells(cluster: &Cluster, age: &str) -> [String; 10] {
    let or_none = |text: String| if text.is_empty() { "<none>".to_owned() } else { text };
    let ready = cluster.status.condition(conditions::cluster::READY).map_or("Unknown", |c| c.status.as_str());
    let spec = &cluster.spec;
    [
        cluster.metadata.name.clone().unwrap_or_default(),
        cluster.status.kubernetes_version.clone(),
        spec.sync_mode.to_string(),
        ready.to_owned(),
        age.to_owned(),
        or_none(spec.zones.join(",")),
        or_none(spec.region.clone()),
        or_none(spec.provider.clone()),
        spec.api_endpoint.clone(),
        or_none(spec.proxy_url.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(value: serde_json::Value) -> Cluster {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_unlisted_kind_is_disabled_only_if_the_list_is_complete() {
        let mut status = ClusterStatus {
            api_enablements: vec![APIEnablement {
                group_version: "apps/v1".into(),
                resources: vec![APIResource { name: "deployments".into(), kind: "Deployment".into() }],
            }],
            ..ClusterStatus::default()
        };
        assert_eq!(status.api_enablement("apps/v1", "Deployment"), APIEnablementStatus::Enabled);
        assert_eq!(status.api_enablement("apps/v1", "DaemonSet"), APIEnablementStatus::Unknown);
        status.conditions = serde_json::from_value(json!([{
            "type": "CompleteAPIEnablements", "status": "True", "reason": "Complete", "message": "",
            "lastTransitionTime": "2024-01-01T00:00:00Z",
        }]))
        .unwrap();
        assert_eq!(status.api_enablement("apps/v1", "DaemonSet"), APIEnablementStatus::Disabled);
    }

    #[test]
    fn a_cluster_is_ready_only_if_it_says_so() {
        let ready = |kind: &str, status: &str| {
            let conditions = json!([{
                "type": kind, "status": status, "reason": "r", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z",
            }]);
            ClusterStatus {
                conditions: serde_json::from_value(conditions).unwrap(),
                ..ClusterStatus::default()
            }
            .is_ready()
        };
        assert!(ready("Ready", "True"));
        assert!(!ready("Ready", "False") && !ready("Ready", "Unknown"));
        assert!(!ready("CompleteAPIEnablements", "True"));
        assert!(!ClusterStatus::default().is_ready());
    }

    #[test]
    fn the_default_classes_join_without_gaps_and_end_unbounded() {
        let models = default_resource_models();
        assert_eq!(models.len(), 9);
        for (lower, upper) in models.iter().zip(&models[1..]) {
            assert_eq!(lower.grade + 1, upper.grade);
            for (left, right) in lower.ranges.iter().zip(&upper.ranges) {
                assert_eq!((&left.name, &left.max), (&right.name, &right.min));
            }
        }
        assert_eq!(models[7].ranges[1].max.0, "1Ti");
        assert!(models[8].ranges.iter().all(|range| range.max.0 == MODEL_UNBOUNDED));
        assert!(models[0].ranges.iter().all(|range| range.min.0 == "0"));
    }

    #[test]
    fn a_row_says_none_for_what_is_missing() {
        let bare = cluster(json!({ "metadata": { "name": "m1" }, "spec": { "syncMode": "Push" } }));
        let none = "<none>";
        assert_eq!(table_cells(&bare, "5m"), ["m1", "", "Push", "Unknown", "5m", none, none, none, "", none]);
        let full = cluster(json!({
            "metadata": { "name": "m2" },
            "spec": {
                "syncMode": "Pull", "zones": ["a", "b"], "region": "r", "provider": "p",
                "apiEndpoint": "https://m2", "proxyURL": "http://proxy",
            },
            "status": {
                "kubernetesVersion": "v1.36.3",
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "ClusterReady", "message": "",
                    "lastTransitionTime": "2024-01-01T00:00:00Z",
                }],
            },
        }));
        assert_eq!(
            table_cells(&full, "2d"),
            ["m2", "v1.36.3", "Pull", "True", "2d", "a,b", "r", "p", "https://m2", "http://proxy"]
        );
    }
}
