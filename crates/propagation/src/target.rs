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

use crate::{Error, Result};

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

/// Checks that a binding refers to an object it may refer to.
///
/// A namespace's binding stands for an object of that namespace; the editors of one namespace must not send what is in
/// another one to members. A cluster-scoped object comes along only as something that a bound object depends on.
pub fn check_scope<B: Binding>(binding: &B) -> Result<()> {
    let (metadata, spec) = (binding.metadata(), binding.spec());
    let namespace = metadata.namespace.as_deref().unwrap_or("");
    let resource = &spec.resource;
    let is_dependency = resource.namespace.is_empty() && !spec.required_by.is_empty();
    if !B::NAMESPACED || resource.namespace == namespace || is_dependency {
        return Ok(());
    }
    let name = metadata.name.as_deref().unwrap_or("");
    let object = api::names::namespaced_key(&resource.namespace, &resource.name);
    Err(Error::OutOfScope {
        binding: api::names::namespaced_key(namespace, name),
        object: format!("{} {object}", resource.kind),
    })
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

#[cfg(test)]
mod tests {
    use api::work::BindingSnapshot;

    use super::*;

    #[test]
    fn a_binding_of_a_namespace_refers_to_objects_of_that_namespace() {
        let check = |namespace: &str, required: bool| {
            let mut binding = ResourceBinding::default();
            binding.metadata.namespace = Some("shop".to_owned());
            binding.metadata.name = Some("b".to_owned());
            binding.spec.resource.kind = "Secret".to_owned();
            binding.spec.resource.namespace = namespace.to_owned();
            binding.spec.resource.name = "s".to_owned();
            binding.spec.required_by = vec![BindingSnapshot::default(); usize::from(required)];
            check_scope(&binding).map_err(|error| error.to_string())
        };
        assert_eq!(check("shop", false), Ok(()));
        assert_eq!(
            check("bank", false).unwrap_err(),
            "binding shop/b refers to Secret bank/s, which is not in its namespace, and is not carried out"
        );
        assert!(check("bank", true).is_err(), "a dependency is in the same namespace, too");
        assert!(check("", false).is_err());
        assert_eq!(check("", true), Ok(()), "cluster-scoped dependencies come along");
        let mut cluster_wide = ClusterResourceBinding::default();
        cluster_wide.spec.resource.namespace = "bank".to_owned();
        assert!(check_scope(&cluster_wide).is_ok(), "its writers are held to what they may read");
    }
}
