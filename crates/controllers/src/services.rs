//! Services across clusters: endpoints are collected from the members that provide them and sent to those
//! that consume them.
//!
//! ```text
//!   member m1                 control plane                                     member m2
//!   EndpointSlice ──► Work (collected, never carried out) ──► EndpointSlice ──► EndpointSlice
//!                     in karmada-es-m1                         or Work in karmada-es-m2
//! ```
//!
//! Two flavours share the collected Work: a ServiceExport in a member, and a MultiClusterService in the control plane. Each has
//! its own labels and its own finalizer on it, and its own token in `endpointslice.karmada.io/managed-by`.
//!
//! Code map: `works` renders these Works · `index` finds them by Service · `told` tells users of attempts ·
//! `collection` writes the collected ones (`serviceExport`, `endpointsliceCollect`; part of the member side, so that an agent
//! runs them too) · `imported` copies them into the control plane (`endpointSlice`), `import` derives a Service from a
//! ServiceImport (`serviceImport`) · `multi_cluster` brings the Service of a MultiClusterService to its
//! clusters (`multiclusterservice`), `dispatch` its endpoints to the consumers (`endpointsliceDispatch`) ·
//! `ingress` lets traffic from outside enter in some clusters and reach all (`multiClusterIngress`).

pub(crate) mod collection;
pub(crate) mod dispatch;
pub(crate) mod import;
pub(crate) mod imported;
mod index;
pub(crate) mod ingress;
pub(crate) mod multi_cluster;
mod told;
mod works;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::cluster::{APIEnablementStatus, Cluster};
use api::networking::{ClusterSelector, ExposureType, MultiClusterService};
use k8s_openapi::api::core::v1::Namespace;
use runtime::{Change, Key, Mirror};

pub(crate) use index::{Index, ServiceKey};

/// The label that says to which Service an EndpointSlice belongs.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const SLICE_API: &str = "discovery.k8s.io/v1";
const SLICE: &str = "EndpointSlice";

/// Returns whether a member is known not to serve EndpointSlices.
fn lacks_slices(cluster: &Cluster) -> bool {
    cluster.status.api_enablement(SLICE_API, SLICE) == APIEnablementStatus::Disabled
}

/// Returns whether this controller handles a MultiClusterService.
fn is_cross_cluster(service: &MultiClusterService) -> bool {
    service.spec.types.contains(&ExposureType::CrossCluster)
}

/// Returns the clusters that a list of a MultiClusterService selects: an empty list selects all.
fn meant(listed: &[ClusterSelector], clusters: &[Arc<Cluster>]) -> BTreeSet<String> {
    if listed.is_empty() {
        return clusters.iter().filter_map(|cluster| cluster.metadata.name.clone()).collect();
    }
    listed.iter().map(|cluster| cluster.name.clone()).collect()
}

/// Returns the clusters that can get Works, because their execution namespace exists. When a cluster joins,
/// its namespace appears a moment after the Cluster and enqueues the objects that wait for it.
fn with_space(namespaces: &Mirror<Namespace>) -> BTreeSet<String> {
    let spaces = namespaces.all().into_iter().filter(|space| is_usable(space));
    spaces
        .filter_map(|space| {
            let name = space.metadata.name.as_deref()?;
            api::names::cluster_of_execution_space(name).map(str::to_owned)
        })
        .collect()
}

fn is_usable(space: &Namespace) -> bool {
    space.metadata.deletion_timestamp.is_none()
}

/// Returns the cluster whose execution namespace was created or is being deleted.
fn cluster_of_changed_space<'a>(change: &Change<'a, Namespace>) -> Option<&'a str> {
    let usable = |space: &Option<Arc<Namespace>>| space.as_deref().is_some_and(is_usable);
    let changed = usable(&change.old) != usable(&change.new);
    api::names::cluster_of_execution_space(&change.key.name).filter(|_| changed)
}

/// Returns the MultiClusterServices that a cluster provides for or consumes.
fn concerned(services: &Mirror<MultiClusterService>, cluster: &str) -> Vec<Key> {
    let names = |list: &[ClusterSelector]| list.is_empty() || list.iter().any(|one| one.name == cluster);
    let all = services.all().into_iter();
    let concerned = all
        .filter(|service| names(&service.spec.provider_clusters) || names(&service.spec.consumer_clusters));
    concerned.map(|service| Key::of(service.as_ref())).collect()
}

/// The most events about one MultiClusterService at a time. Its lists may name any number of clusters, each
/// with its own event.
const MOST_WARNINGS: usize = 20;

/// A reason and a message, about one cluster.
type Warning = (&'static str, String);

/// Keeps a readable number of warnings, and says how many were left out.
fn bound(warnings: &mut Vec<Warning>) {
    let more = warnings.len().saturating_sub(MOST_WARNINGS);
    if more > 0 {
        warnings.truncate(MOST_WARNINGS);
        let message = format!("{more} more clusters of the MultiClusterService cannot be served");
        warnings.push((api::events::CLUSTER_NOT_FOUND, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_can_be_given_works_while_its_execution_namespace_is_there() {
        use crate::fixtures::{deleting, merged, read};
        let space = |name: &str, otherwise: serde_json::Value| -> Arc<Namespace> {
            Arc::new(read(merged(serde_json::json!({ "metadata": { "name": name } }), otherwise)))
        };
        let there = || Some(space("karmada-es-m1", serde_json::json!({})));
        let going = || Some(space("karmada-es-m1", deleting()));
        for (old, new, expected) in [
            (None, there(), Some("m1")),
            (there(), there(), None),
            (there(), going(), Some("m1")),
            (going(), None, None),
        ] {
            let change = Change { key: &Key::new("", "karmada-es-m1"), old, new, ours: true, initial: false };
            assert_eq!(cluster_of_changed_space(&change), expected, "{change:?}");
        }
        let mirror = Mirror::default();
        for space in [
            going(),
            Some(space("karmada-es-m2", serde_json::json!({}))),
            Some(space("x", serde_json::json!({}))),
        ] {
            let space = space.expect("a namespace");
            mirror.put(&Key::of(space.as_ref()), "7", space);
        }
        assert_eq!(with_space(&mirror), BTreeSet::from(["m2".to_owned()]));
    }

    #[test]
    fn which_services_a_cluster_concerns() {
        let services = Mirror::default();
        for (name, providers, consumers) in [
            ("all-to-m1", vec![], vec!["m1"]),
            ("m1-to-all", vec!["m1"], vec![]),
            ("m1-to-m2", vec!["m1"], vec!["m2"]),
            ("m2-to-m3", vec!["m2"], vec!["m3"]),
        ] {
            let list = |names: Vec<&str>| -> serde_json::Value {
                names.into_iter().map(|name| serde_json::json!({ "name": name })).collect()
            };
            let service: MultiClusterService = crate::fixtures::read(serde_json::json!({
                "metadata": { "name": name, "namespace": "shop" },
                "spec": {
                    "types": ["CrossCluster"], "providerClusters": list(providers),
                    "consumerClusters": list(consumers),
                },
            }));
            services.put(&Key::of(&service), "7", Arc::new(service));
        }
        let found = |cluster: &str| -> BTreeSet<String> {
            concerned(&services, cluster).into_iter().map(|key| key.name).collect()
        };
        assert_eq!(found("m1"), ["all-to-m1", "m1-to-all", "m1-to-m2"].map(str::to_owned).into());
        assert_eq!(found("m3"), ["all-to-m1", "m1-to-all", "m2-to-m3"].map(str::to_owned).into());
        assert_eq!(found("m9"), ["all-to-m1", "m1-to-all"].map(str::to_owned).into());
    }

    #[test]
    fn a_list_of_any_length_makes_a_bounded_number_of_events() {
        let warnings = |count: usize| -> Vec<Warning> {
            (0..count).map(|number| ("ClusterNotFound", format!("cluster {number}"))).collect()
        };
        let mut few = warnings(MOST_WARNINGS);
        bound(&mut few);
        assert_eq!(few, warnings(MOST_WARNINGS));
        let mut many = warnings(30_000);
        bound(&mut many);
        assert_eq!(many.len(), MOST_WARNINGS + 1);
        assert_eq!(many[MOST_WARNINGS].1, "29980 more clusters of the MultiClusterService cannot be served");
    }
}
