//! Fixed names that are neither labels nor conditions: taints, namespaces, paths, well-known values.

/// Taint of a cluster whose Ready condition is False or missing.
pub const TAINT_NOT_READY: &str = "cluster.karmada.io/not-ready";
/// Taint of a cluster whose Ready condition is Unknown.
pub const TAINT_UNREACHABLE: &str = "cluster.karmada.io/unreachable";
/// Taint of a cluster that somebody has cordoned.
pub const TAINT_UNSCHEDULABLE: &str = "cluster.karmada.io/unschedulable";

/// Taint effect: new workloads stay away.
pub const EFFECT_NO_SCHEDULE: &str = "NoSchedule";
/// Taint effect: running workloads leave.
pub const EFFECT_NO_EXECUTE: &str = "NoExecute";
/// Taint effect that Kubernetes knows for nodes; clusters reject it.
pub const EFFECT_PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// The namespace of the system's own components.
pub const NAMESPACE_SYSTEM: &str = "karmada-system";
/// The namespace of the Secrets and Leases of member clusters.
pub const NAMESPACE_CLUSTER: &str = "karmada-cluster";
/// Kubernetes' default namespace, which is never propagated by itself.
pub const NAMESPACE_DEFAULT: &str = "default";
/// The namespace whose UID serves as the ID of a member cluster.
pub const NAMESPACE_KUBE_SYSTEM: &str = "kube-system";
/// What `--skipped-propagating-namespaces` contains unless told otherwise; matched against the whole name.
pub const SKIPPED_NAMESPACES_DEFAULT: &str = "kube-.*";
/// Name of the ConfigMap in kube-system that is never propagated.
pub const EXTENSION_APISERVER_AUTHENTICATION: &str = "extension-apiserver-authentication";

/// API groups whose objects policies never propagate.
pub const SKIPPED_API_GROUPS: &[&str] = &[
    "cluster.karmada.io",
    "policy.karmada.io",
    "work.karmada.io",
    "config.karmada.io",
    "networking.karmada.io",
    "autoscaling.karmada.io",
    "remedy.karmada.io",
    "apps.karmada.io",
    "events.k8s.io",
];

/// API versions whose objects policies never propagate, besides core/v1 Events.
pub const SKIPPED_API_VERSIONS: &[&str] = &["coordination.k8s.io/v1"];

/// The scheduler that policies get unless they name another.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// The category that most kinds belong to, as in `kubectl get karmada-io`.
pub const CATEGORY: &str = "karmada-io";

/// Key of a member cluster's Secret: the bearer token.
pub const SECRET_TOKEN: &str = "token";
/// Key of a member cluster's Secret: the CA certificates.
pub const SECRET_CA_BUNDLE: &str = "caBundle";

/// Reason of an eviction: the cluster has a taint that the workload does not tolerate.
pub const EVICTION_TAINT_UNTOLERATED: &str = "TaintUntolerated";
/// Reason of an eviction: the workload is unhealthy.
pub const EVICTION_APPLICATION_FAILURE: &str = "ApplicationFailure";
/// Producer of an eviction: the taint manager.
pub const EVICTION_PRODUCER_TAINT_MANAGER: &str = "TaintManager";
/// Producer of an eviction: application failover of a ResourceBinding.
pub const EVICTION_PRODUCER_BINDING_FAILOVER: &str = "resource-binding-application-failover-controller";
/// Producer of an eviction: application failover of a ClusterResourceBinding.
pub const EVICTION_PRODUCER_CLUSTER_BINDING_FAILOVER: &str =
    "cluster-resource-binding-application-failover-controller";

/// The reason by which the scheduler recognises a refusal for lack of quota.
pub const REASON_QUOTA_EXCEEDED: &str = "QuotaExceeded";

/// The signer of agents' certificates.
pub const AGENT_CSR_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// The organization of agents' certificates.
pub const AGENT_GROUP: &str = "system:karmada:agents";
/// What the common name of an agent's certificate starts with; the cluster's name follows.
pub const AGENT_USER_PREFIX: &str = "system:karmada:agent:";
/// The reason given when an agent's certificate request is approved by itself.
pub const CSR_AUTO_APPROVED: &str = "AutoApproved";

/// The path of the clusters resource.
pub const PATH_CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
/// The name in `clusters/{name}/proxy` that means every cluster.
pub const PROXY_ALL_CLUSTERS: &str = "*";
/// The path under which cached objects are searched.
pub const PATH_SEARCH_CACHE: &str = "/apis/search.karmada.io/v1alpha1/search/cache";
/// The path of the resource proxy.
pub const PATH_PROXYING: &str = "/apis/search.karmada.io/v1alpha1/proxying";
/// The path of the conversion webhook.
pub const PATH_CONVERT: &str = "/convert";

/// The longest name of a cluster, so that the execution namespace stays within 63 characters with room to spare.
pub const CLUSTER_NAME_MAX_LENGTH: usize = 48;

/// Returns whether a namespace belongs to the system and is closed to propagation.
pub fn is_reserved_namespace(name: &str) -> bool {
    name == NAMESPACE_SYSTEM
        || name == NAMESPACE_CLUSTER
        || name.starts_with(crate::names::EXECUTION_SPACE_PREFIX)
}

/// Returns the path of a cluster's proxy, to which the native path of a request is appended.
pub fn cluster_proxy_path(cluster: &str) -> String {
    format!("{PATH_CLUSTERS}/{cluster}/proxy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_own_namespaces_are_reserved_and_users_are_not() {
        for name in ["karmada-system", "karmada-cluster", "karmada-es-member1"] {
            assert!(is_reserved_namespace(name), "{name}");
        }
        for name in ["default", "kube-system", "karmada", "karmada-systems"] {
            assert!(!is_reserved_namespace(name), "{name}");
        }
    }
}
