//! Brings every namespace to every cluster, so that what is propagated finds a place.
//!
//! Watches: Namespaces, Clusters that appear, ClusterOverridePolicies that select namespaces.
//! Writes: one Work per namespace and cluster, owned by the Namespace: when it goes, they go.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cluster::Cluster;
use api::labels::SKIP_AUTO_PROPAGATION;
use api::labels::annotations::APPLIED_CLUSTER_OVERRIDES;
use apimachinery::gvk::Gvk;
use futures::future::join_all;
use propagation::overrides::record;
use propagation::render::DesiredWork;
use propagation::{Object, Reference as _};
use serde_json::Value;

use super::templates::TemplateKey;
use super::write::Error;
use super::{Plane, Start};
use crate::queue::Queue;

/// Upstream has one worker; each looks after all clusters of a namespace at once, so that few are enough.
const WORKERS: usize = 2;

fn namespace_kind() -> Gvk {
    Gvk::new("", "v1", "Namespace")
}

pub(super) fn wire(plane: &Arc<Plane>) -> Start {
    let queue = Queue::new("namespace-sync-controller");

    let pushed = Arc::clone(&queue);
    plane.templates.subscribe(move |change| {
        if let Some(object) = &change.new
            && object.kind() == "Namespace"
            && object.api_version() == "v1"
        {
            pushed.push(object.name().to_owned());
        }
    });

    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.clusters.subscribe(move |change| {
        if change.old.is_none() {
            push_all(&of, &pushed);
        }
    });

    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.cluster_override_policies.subscribe(move |change| {
        let policies = [&change.old, &change.new].into_iter().flatten();
        for selector in policies.flat_map(|policy| &policy.spec.resource_selectors) {
            match (selector.api_version.as_str(), selector.kind.as_str(), selector.name.as_str()) {
                ("v1", "Namespace", "") => push_all(&of, &pushed),
                ("v1", "Namespace", name) => pushed.push(name.to_owned()),
                _ => {}
            }
        }
    });

    // A Work of ours that was deleted while the namespace and the cluster are still there comes back.
    let pushed = Arc::clone(&queue);
    plane.works.mirror.subscribe(move |change| {
        if let (Some(old), None) = (&change.old, &change.new) {
            let owners = old.metadata.owner_references.iter().flatten();
            for owner in owners.filter(|owner| owner.kind == "Namespace" && owner.api_version == "v1") {
                pushed.push(owner.name.clone());
            }
        }
    });

    let plane = Arc::clone(plane);
    Box::new(move |tasks, stop| {
        queue.spawn(WORKERS, tasks, stop, move |name: String| {
            let plane = Arc::clone(&plane);
            async move { reconcile(&plane, name).await }
        });
    })
}

fn push_all(plane: &Plane, queue: &Queue<String>) {
    for namespace in plane.templates.all(&namespace_kind()) {
        queue.push(namespace.name().to_owned());
    }
}

async fn reconcile(plane: &Plane, name: String) -> Result<(), Error> {
    if name == "default" || plane.templates.skip().skips_namespace(&name) {
        return Ok(());
    }
    let key = TemplateKey { kind: namespace_kind(), namespace: String::new(), name };
    let Some(namespace) = plane.templates.get(&key) else { return Ok(()) };
    let kept_back =
        namespace.label(SKIP_AUTO_PROPAGATION).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if namespace.is_deleting() || kept_back {
        return Ok(());
    }
    let clusters = plane.clusters.all();
    let present = clusters.iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
    let results = join_all(present.map(|cluster| ensure_work(plane, &namespace, cluster))).await;
    let errors: Vec<String> = results.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::Several(errors)) }
}

async fn ensure_work(plane: &Plane, namespace: &Value, cluster: &Cluster) -> Result<(), Error> {
    let name = cluster.metadata.name.as_deref().unwrap_or("");
    let work = desired(plane, namespace, name, cluster)?;
    plane.works.ensure(&plane.client, &work).await?;
    Ok(())
}

fn desired(plane: &Plane, namespace: &Value, name: &str, cluster: &Cluster) -> Result<DesiredWork, Error> {
    let mut manifest = namespace.clone();
    let applied = plane
        .overrides
        .read()
        .apply(&mut manifest, cluster)
        .map_err(|failure| propagation::Error::Override { cluster: name.to_owned(), failure })?;
    let mut annotations = BTreeMap::new();
    if let Some(record) = record(&applied.cluster) {
        annotations.insert(APPLIED_CLUSTER_OVERRIDES.to_owned(), record);
    }
    let work = DesiredWork::new(name, manifest, BTreeMap::new(), annotations)?;
    Ok(work.owned_by(namespace.controller_reference()))
}
