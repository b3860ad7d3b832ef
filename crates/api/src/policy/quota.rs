//! FederatedResourceQuota: how much a namespace may use, over all clusters together and in each.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::wire::{kind, record};

kind! {
    /// Limits what a namespace may use over all clusters together.
    pub struct FederatedResourceQuota in "policy.karmada.io" / "v1alpha1"
        as "federatedresourcequotas", Namespaced
    {
        /// The limits.
        "spec" required spec: FederatedResourceQuotaSpec;
        /// The limits in force and what is used of them.
        "status" always status: FederatedResourceQuotaStatus;
    }
}

/// Amounts by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

record! {
    /// The limits of a namespace.
    pub struct FederatedResourceQuotaSpec {
        /// What the namespace may use over all clusters together.
        "overall" required overall: ResourceList;
        /// ResourceQuotas that are created in single clusters. They have no influence on scheduling.
        "staticAssignments" optional static_assignments: Vec<StaticClusterAssignment>;
    }
}

record! {
    /// The limits of the namespace in one cluster.
    pub struct StaticClusterAssignment {
        /// The name of the cluster.
        "clusterName" required cluster_name: String;
        /// The hard limits of the ResourceQuota there.
        "hard" required hard: ResourceList;
    }
}

record! {
    /// The limits in force and what is used of them.
    pub struct FederatedResourceQuotaStatus {
        /// The overall limits in force.
        "overall" optional overall: ResourceList;
        /// What is used over all clusters together.
        "overallUsed" optional overall_used: ResourceList;
        /// Limits and usage by cluster.
        "aggregatedStatus" optional aggregated_status: Vec<ClusterQuotaStatus>;
    }
}

record! {
    /// Limits and usage in one cluster.
    pub struct ClusterQuotaStatus {
        /// The name of the cluster.
        "clusterName" required cluster_name: String;
        /// The hard limits of the ResourceQuota there.
        "hard" optional hard: ResourceList;
        /// What is used of them.
        "used" optional used: ResourceList;
    }
}
