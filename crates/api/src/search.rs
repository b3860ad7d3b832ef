//! `search.karmada.io/v1alpha1`: which resources of which clusters are kept in a cache that can be searched.
//!
//! Upstream serves this group from an aggregated API server; the connect-only resources `search` and `proxying` of
//! the same group have no objects and no types.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::cluster::LocalSecretReference;
use crate::policy::ClusterAffinity;
use crate::wire::{kind, record};

/// The API group of this module.
pub const GROUP: &str = "search.karmada.io";

kind! {
    /// Says which resources of which clusters are cached for searching.
    pub struct ResourceRegistry in "search.karmada.io" / "v1alpha1" as "resourceregistries", Cluster {
        /// Which resources of which clusters.
        "spec" always spec: ResourceRegistrySpec;
        /// The state of the cache.
        "status" always status: ResourceRegistryStatus;
    }
}

record! {
    /// Which resources of which clusters are cached.
    pub struct ResourceRegistrySpec {
        /// The clusters to cache from.
        "targetCluster" required target_cluster: ClusterAffinity;
        /// The types to cache.
        "resourceSelectors" required resource_selectors: Vec<ResourceSelector>;
        /// Where the cache is kept; absent means in memory.
        "backendStore" optional backend_store: Option<BackendStoreConfig>;
    }
}

record! {
    /// A type of resource.
    #[derive(Eq)]
    pub struct ResourceSelector {
        /// The API version of the resources.
        "apiVersion" required api_version: String;
        /// The kind of the resources.
        "kind" required kind: String;
        /// The namespace of the resources; empty means all.
        "namespace" optional namespace: String;
    }
}

record! {
    /// Where the cache is kept.
    #[derive(Eq)]
    pub struct BackendStoreConfig {
        /// In OpenSearch.
        "openSearch" optional open_search: Option<OpenSearchConfig>;
    }
}

record! {
    /// How OpenSearch is reached.
    #[derive(Eq)]
    pub struct OpenSearchConfig {
        /// URLs of its nodes.
        "addresses" required addresses: Vec<String>;
        /// The Secret with the credentials, under the keys userName and password.
        "secretRef" required secret_ref: LocalSecretReference;
    }
}

record! {
    /// The state of the cache.
    pub struct ResourceRegistryStatus {
        /// Conditions of the cache.
        "conditions" optional conditions: Vec<Condition>;
    }
}
