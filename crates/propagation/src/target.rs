//! The clusters a binding stands for, and what ResourceBinding and ClusterResourceBinding have in common.

use std::collections::BTreeSet;

use api::labels::annotations::{
    CLUSTER_RESOURCE_BINDING_NAME, RESOURCE_BINDING_NAME, RESOURCE_BINDING_NAMESPACE,
};
use api::labels::{CLUSTER_RESOURCE_BINDING_PERMANENT_ID, RESOURCE_BINDING_PERMANENT_ID, finalizers};
use api::policy::PurgeMode;
use api::work::{
    ClusterResourceBinding, ResourceBinding, ResourceBindingSpec, ResourceBindingStatus, TargetCluster,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// A ResourceBinding or a ClusterResourceBinding.
pub trait Binding: Default + Clone + PartialEq + Send + Sync + 'static {
    const NAMESPACED: bool;
    /// The label that identifies the binding on itself, its Works and the member objects.
    const PERMANENT_ID: &'static str;
    const FINALIZER: &'static str;

    fn metadata(&self) -> &ObjectMeta;
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
    fn spec(&self) -> &ResourceBindingSpec;
    fn spec_mut(&mut self) -> &mut ResourceBindingSpec;
    fn status(&self) -> &ResourceBindingStatus;
    fn status_mut(&mut self) -> &mut ResourceBindingStatus;

    fn permanent_id(&self) -> &str {
        let labels = self.metadata().labels.as_ref();
        labels.and_then(|labels| labels.get(Self::PERMANENT_ID)).map_or("", String::as_str)
    }

    /// Returns the annotations by which Works and member objects refer back to the binding.
    fn back_references(&self) -> Vec<(&'static str, String)> {
        let name = self.metadata().name.clone().unwrap_or_default();
        if Self::NAMESPACED {
            let namespace = self.metadata().namespace.clone().unwrap_or_default();
            vec![(RESOURCE_BINDING_NAMESPACE, namespace), (RESOURCE_BINDING_NAME, name)]
        } else {
            vec![(CLUSTER_RESOURCE_BINDING_NAME, name)]
        }
    }
}

macro_rules! binding {
    ($kind:ty, $namespaced:literal, $id:expr, $finalizer:expr) => {
        impl Binding for $kind {
            const NAMESPACED: bool = $namespaced;
            const PERMANENT_ID: &'static str = $id;
            const FINALIZER: &'static str = $finalizer;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
            fn spec(&self) -> &ResourceBindingSpec {
                &self.spec
            }
            fn spec_mut(&mut self) -> &mut ResourceBindingSpec {
                &mut self.spec
            }
            fn status(&self) -> &ResourceBindingStatus {
                &self.status
            }
            fn status_mut(&mut self) -> &mut ResourceBindingStatus {
                &mut self.status
            }
        }
    };
}

binding!(ResourceBinding, true, RESOURCE_BINDING_PERMANENT_ID, finalizers::BINDING);
binding!(
    ClusterResourceBinding,
    false,
    CLUSTER_RESOURCE_BINDING_PERMANENT_ID,
    finalizers::CLUSTER_RESOURCE_BINDING
);

/// Returns the clusters that get a Work: the scheduled ones, then those of bindings that require this one.
pub fn target_clusters(spec: &ResourceBindingSpec) -> Vec<TargetCluster> {
    let mut targets = spec.clusters.clone();
    let mut names: BTreeSet<String> = targets.iter().map(|target| target.name.clone()).collect();
    for target in spec.required_by.iter().flat_map(|referrer| &referrer.clusters) {
        if names.insert(target.name.clone()) {
            targets.push(target.clone());
        }
    }
    targets
}

/// Returns the clusters in which a Work of this binding may exist. A cluster that is being evicted gracefully
/// keeps its Work until the eviction ends; one that is purged directly does not.
pub fn expected_clusters(spec: &ResourceBindingSpec) -> BTreeSet<&str> {
    let scheduled = spec.clusters.iter().map(|target| target.name.as_str());
    let required = spec.required_by.iter().flat_map(|referrer| &referrer.clusters);
    let evicted = spec
        .graceful_eviction_tasks
        .iter()
        .filter(|task| task.purge_mode != Some(PurgeMode::Directly))
        .map(|task| task.from_cluster.as_str());
    scheduled.chain(required.map(|target| target.name.as_str())).chain(evicted).collect()
}

/// Returns the clusters whose copy must be gone before a new one is created elsewhere.
pub fn directly_purged_clusters(spec: &ResourceBindingSpec) -> BTreeSet<&str> {
    spec.graceful_eviction_tasks
        .iter()
        .filter(|task| task.purge_mode == Some(PurgeMode::Directly))
        .map(|task| task.from_cluster.as_str())
        .collect()
}
