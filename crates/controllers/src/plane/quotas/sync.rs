//! Creates the shares that a FederatedResourceQuota assigns to clusters, as ResourceQuotas in those clusters.
//!
//! Watches: FederatedResourceQuotas (created, deleted, or with changed assignments), Clusters that appear,
//! Works of quotas (present at the start, or deleted).
//! Writes: one Work per assigned cluster that exists, under the labels of the quota; deletes those of other
//! clusters.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cluster::Cluster;
use api::events::{SYNC_WORK_FAILED, SYNC_WORK_SUCCEED};
use api::labels::{FEDERATED_RESOURCE_QUOTA_NAME, FEDERATED_RESOURCE_QUOTA_NAMESPACE};
use api::policy::{FederatedResourceQuota, ResourceList};
use api::work::Work;
use futures::future::join_all;
use jiff::Timestamp;
use propagation::render::DesiredWork;
use runtime::events::about;
use runtime::{Change, Error, Key, Outcome, Queue, Reconcile, controller};
use serde_json::json;

use super::{Awaited, named, quota_of};
use crate::plane::{Plane, Start};

const COMPONENT: &str = "federated-resource-quota-sync-controller";
const WORKERS: usize = 2;

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

pub(super) fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    plane.tell_panics(&queue, COMPONENT, &plane.mirrors.quotas);

    let awaited: Arc<Awaited> = Arc::default();
    let (pushed, awaiting) = (queue.clone(), awaited.clone());
    plane.mirrors.quotas.subscribe(move |change| {
        if is_news(change) {
            if change.new.is_some() && !change.initial {
                awaiting.lock().insert(change.key.clone());
            }
            pushed.push(change.key.clone());
        }
    });

    plane.mirrors.clusters.subscribe({
        let (pushed, plane) = (queue.clone(), plane.clone());
        move |change| {
            if change.old.is_some() || change.new.is_none() {
                return;
            }
            for (key, quota) in plane.mirrors.quotas.entries() {
                if share(&quota, &change.key.name).is_some() {
                    pushed.push(key);
                }
            }
        }
    });

    // Works that exist at the start may belong to a quota that was deleted while no controller ran.
    let pushed = queue.clone();
    plane.mirrors.works.subscribe(move |change| {
        let work = if change.initial { &change.new } else { &change.old };
        if let Some(work) = work
            && (change.initial || change.new.is_none())
            && let Some(key) = quota_of(work)
        {
            pushed.push(key);
        }
    });

    (Arc::new(Controller { plane: plane.clone(), awaited }), queue)
}

fn is_news(change: &Change<'_, FederatedResourceQuota>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.spec.static_assignments != new.spec.static_assignments,
        _ => true,
    }
}

/// Returns what a quota assigns to a cluster; if there are several assignments, the first counts.
pub(super) fn share<'a>(quota: &'a FederatedResourceQuota, cluster: &str) -> Option<&'a ResourceList> {
    let mut assignments = quota.spec.static_assignments.iter();
    assignments.find(|assignment| assignment.cluster_name == cluster).map(|assignment| &assignment.hard)
}

pub(super) struct Controller {
    plane: Arc<Plane>,
    awaited: Arc<Awaited>,
}

/// A quota, the existing clusters, and its Works.
pub(super) struct View {
    /// Nothing if it is gone.
    quota: Option<Arc<FederatedResourceQuota>>,
    clusters: Vec<Arc<Cluster>>,
    works: Vec<Arc<Work>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The clusters whose Works are to be as assigned.
    bring: Vec<String>,
    /// The Works that are not wanted any more.
    remove: Vec<Key>,
}

fn decide(view: &View) -> Plan {
    let quota = view.quota.as_deref().filter(|quota| quota.metadata.deletion_timestamp.is_none());
    let assigned = |cluster: &str| quota.is_some_and(|quota| share(quota, cluster).is_some());
    let is_wanted = |work: &Work| {
        let namespace = work.metadata.namespace.as_deref().unwrap_or("");
        api::names::cluster_of_execution_space(namespace).is_some_and(assigned)
    };
    let unwanted = view.works.iter().filter(|work| {
        // A Work that is already being deleted need not be deleted again.
        !is_wanted(work) && work.metadata.deletion_timestamp.is_none()
    });
    let present = view.clusters.iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
    let names = present.filter_map(|cluster| cluster.metadata.name.clone());
    Plan {
        bring: names.filter(|name| assigned(name)).collect(),
        remove: unwanted.map(|work| Key::of(work.as_ref())).collect(),
    }
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let plane = &self.plane;
        let works = plane.works.of_quota(key);
        let quota = match plane.mirrors.quotas.find(key) {
            Some(quota) => Some(quota),
            None if works.is_empty() => {
                self.awaited.lock().remove(key);
                return Ok(None);
            }
            // A quota that is not in the mirror may still exist, and the deletion below cannot be undone.
            None => {
                let quotas = plane.writer.api::<FederatedResourceQuota>(&key.namespace);
                quotas.get_opt(&key.name).await?.map(Arc::new)
            }
        };
        Ok(Some(View { quota, clusters: plane.mirrors.clusters.all(), works }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let plane = &self.plane;
        let unwanted = view.works.iter().filter(|work| plan.remove.contains(&Key::of(work.as_ref())));
        let removed = join_all(unwanted.map(|work| plane.writer.delete(work.as_ref()))).await;
        let mut errors: Vec<Error> = removed.into_iter().filter_map(Result::err).collect();
        let mut told = self.awaited.lock().remove(key) || !plan.remove.is_empty();
        if let Some(quota) = &view.quota {
            let shares = plan.bring.iter().filter_map(|name| share(quota, name).map(|hard| (name, hard)));
            let written = join_all(shares.map(|(name, hard)| self.bring(key, name, hard))).await;
            for result in written {
                match result {
                    Ok(written) => told |= written,
                    Err(error) => errors.push(error),
                }
            }
            match Error::join(errors) {
                Ok(()) if told => {
                    let message = format!("Sync works for {} succeed.", named(key));
                    plane.events.normal(COMPONENT, &about(quota.as_ref()), SYNC_WORK_SUCCEED, message);
                }
                Ok(()) => {}
                Err(error) => {
                    if !error.is_conflict() {
                        let message = error.to_string();
                        plane.events.warning(COMPONENT, &about(quota.as_ref()), SYNC_WORK_FAILED, message);
                    }
                    return Err(error);
                }
            }
        } else {
            Error::join(errors)?;
        }
        Ok(Outcome::Done)
    }
}

impl Controller {
    /// Makes the Work of a cluster be as assigned; returns whether anything had to be written.
    async fn bring(&self, key: &Key, cluster: &str, hard: &ResourceList) -> Result<bool, Error> {
        let work = desired(key, cluster, hard).map_err(Error::decision)?;
        self.plane.works.ensure(&self.plane.writer, &work).await
    }
}

/// Returns the Work that brings a share to its cluster.
fn desired(key: &Key, cluster: &str, hard: &ResourceList) -> propagation::Result<DesiredWork> {
    let manifest = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": { "namespace": key.namespace, "name": key.name },
        "spec": { "hard": hard },
    });
    let labels = BTreeMap::from([
        (FEDERATED_RESOURCE_QUOTA_NAMESPACE.to_owned(), key.namespace.clone()),
        (FEDERATED_RESOURCE_QUOTA_NAME.to_owned(), key.name.clone()),
    ]);
    DesiredWork::new(cluster, manifest, labels, BTreeMap::new())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::fixtures::{cluster, deleting, merged, read, work};

    fn quota(otherwise: Value) -> Arc<FederatedResourceQuota> {
        let base = json!({
            "metadata": { "namespace": "shop", "name": "q", "uid": "q" },
            "spec": { "overall": { "cpu": "10" }, "staticAssignments": [
                { "clusterName": "m1", "hard": { "cpu": "1" } },
                { "clusterName": "m3", "hard": { "cpu": "3" } },
                { "clusterName": "elsewhere", "hard": { "cpu": "1" } },
            ] },
        });
        Arc::new(read(merged(base, otherwise)))
    }

    #[test]
    fn which_works_a_quota_has() {
        let clusters = || -> Vec<Arc<Cluster>> {
            let leaving = cluster("m3", "True", deleting());
            [cluster("m1", "True", json!({})), cluster("m2", "True", json!({})), leaving].map(Arc::new).into()
        };
        let works = |names: &[&str]| names.iter().map(|name| work(name, json!({}))).collect::<Vec<_>>();
        let plan = |bring: &[&str], remove: &[&str]| Plan {
            bring: bring.iter().map(|name| (*name).to_owned()).collect(),
            remove: remove.iter().map(|name| Key::new(format!("karmada-es-{name}"), "web-1")).collect(),
        };
        let cases = [
            ("new", Some(quota(json!({}))), works(&[]), plan(&["m1"], &[])),
            ("as it was", Some(quota(json!({}))), works(&["m1", "m3"]), plan(&["m1"], &[])),
            ("no longer assigned", Some(quota(json!({}))), works(&["m1", "m2"]), plan(&["m1"], &["m2"])),
            (
                "nothing is assigned",
                Some(quota(json!({ "spec": { "staticAssignments": null } }))),
                works(&["m1"]),
                plan(&[], &["m1"]),
            ),
            ("it is gone", None, works(&["m1", "m2"]), plan(&[], &["m1", "m2"])),
            ("it goes", Some(quota(deleting())), works(&["m1"]), plan(&[], &["m1"])),
            ("what goes already", None, vec![work("m1", deleting())], plan(&[], &[])),
        ];
        for (name, quota, works, expected) in cases {
            let view = View { quota, clusters: clusters(), works };
            assert_eq!(decide(&view), expected, "{name}");
        }
    }

    #[test]
    fn which_changes_count() {
        let key = Key::new("shop", "q");
        let otherwise = || json!({ "spec": { "staticAssignments": [] } });
        let cases = [
            ("it is new", None, Some(json!({})), true),
            ("it assigns otherwise", Some(json!({})), Some(otherwise()), true),
            (
                "its usage changed",
                Some(json!({})),
                Some(json!({ "status": { "overallUsed": { "cpu": "1" } } })),
                false,
            ),
            ("it is gone", Some(json!({})), None, true),
        ];
        for (name, old, new, expected) in cases {
            let change =
                Change { key: &key, old: old.map(quota), new: new.map(quota), ours: false, initial: false };
            assert_eq!(is_news(&change), expected, "{name}");
        }
    }

    #[test]
    fn the_work_carries_a_resource_quota_and_says_whose_it_is() {
        let hard = read::<ResourceList>(json!({ "cpu": "1" }));
        let work = desired(&Key::new("shop", "q"), "m1", &hard).expect("a Work").create();
        assert_eq!(work.metadata.name, Some(api::names::work("ResourceQuota", "q", "shop")));
        assert_eq!(work.metadata.namespace.as_deref(), Some("karmada-es-m1"));
        assert_eq!(quota_of(&work), Some(Key::new("shop", "q")));
        let manifest = &work.spec.workload.manifests[0];
        assert_eq!(
            (&manifest["kind"], &manifest["spec"]),
            (&json!("ResourceQuota"), &json!({ "hard": { "cpu": "1" } }))
        );
    }
}
