//! The clusters a binding stands for, and the objects it may stand for.

use std::collections::BTreeSet;

use api::work::{Binding, ResourceBindingSpec, TargetCluster};

use crate::eviction::purges_directly;
use crate::{Error, Result};

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
        .filter(|task| !purges_directly(task))
        .map(|task| task.from_cluster.as_str());
    scheduled.chain(required.map(|target| target.name.as_str())).chain(evicted).collect()
}

/// Returns the clusters whose copy must be gone before a new one is created elsewhere.
pub fn directly_purged_clusters(spec: &ResourceBindingSpec) -> BTreeSet<&str> {
    spec.graceful_eviction_tasks
        .iter()
        .filter(|task| purges_directly(task))
        .map(|task| task.from_cluster.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use api::work::{BindingSnapshot, ClusterResourceBinding, ResourceBinding};

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
