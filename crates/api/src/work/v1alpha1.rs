//! ResourceBinding and ClusterResourceBinding, v1alpha1: served for old clients, never stored.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

use crate::policy::ResourceList;
use crate::wire::{kind, record};

kind! {
    /// Binds a namespaced resource to the clusters it goes to. Outdated, use v1alpha2.
    pub struct ResourceBinding in "work.karmada.io" / "v1alpha1" as "resourcebindings", Namespaced {
        /// The resource and where it was placed.
        "spec" required spec: ResourceBindingSpec;
        /// How far applying has come.
        "status" always status: ResourceBindingStatus;
    }
}

kind! {
    /// Binds a cluster-scoped resource to the clusters it goes to. Outdated, use v1alpha2.
    pub struct ClusterResourceBinding in "work.karmada.io" / "v1alpha1" as "clusterresourcebindings", Cluster {
        /// The resource and where it was placed.
        "spec" required spec: ResourceBindingSpec;
        /// How far applying has come.
        "status" always status: ResourceBindingStatus;
    }
}

record! {
    /// A resource and where it was placed.
    pub struct ResourceBindingSpec {
        /// The resource that is bound.
        "resource" required resource: ObjectReference;
        /// The clusters that the scheduler has chosen.
        "clusters" optional clusters: Vec<TargetCluster>;
    }
}

record! {
    /// The resource that a binding is about.
    pub struct ObjectReference {
        /// The API version of the resource.
        "apiVersion" required api_version: String;
        /// The kind of the resource.
        "kind" required kind: String;
        /// The namespace of the resource; empty for cluster-scoped ones.
        "namespace" optional namespace: String;
        /// The name of the resource.
        "name" required name: String;
        /// The version of the resource that was last taken over.
        "resourceVersion" optional resource_version: String;
        /// The resources that one replica asks for.
        // An option, unlike in newer types: the conversion distinguishes an empty map from none.
        "resourcePerReplicas" optional resource_per_replicas: Option<ResourceList>;
        /// The number of replicas that the resource asks for.
        "replicas" optional replicas: i32;
    }
}

record! {
    /// A cluster that was chosen.
    #[derive(Eq)]
    pub struct TargetCluster {
        /// The name of the cluster.
        "name" required name: String;
        /// The number of replicas it gets.
        "replicas" optional replicas: i32;
    }
}

record! {
    /// How far applying a resource has come.
    pub struct ResourceBindingStatus {
        /// The state of the binding.
        "conditions" optional conditions: Vec<Condition>;
        /// The state of the resource in each cluster.
        "aggregatedStatus" optional aggregated_status: Vec<AggregatedStatusItem>;
    }
}

record! {
    /// The state of a resource in one cluster.
    pub struct AggregatedStatusItem {
        /// The name of the cluster.
        "clusterName" required cluster_name: String;
        /// The status of the object there, as far as it is collected.
        "status" optional status: Option<Value> { free_object() };
        /// Whether the object was applied.
        "applied" optional applied: bool;
        /// Why it could not be applied.
        "appliedMessage" optional applied_message: String;
    }
}
