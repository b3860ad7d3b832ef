//! Aggregates what clusters report about their shares of a FederatedResourceQuota.
//!
//! Watches: FederatedResourceQuotas, the status of their Works.
//! Writes: `status.aggregatedStatus` of FederatedResourceQuotas; unless quotas are enforced on bindings, also
//! `status.overall` and `status.overallUsed`, which is the sum over the clusters then.

use std::collections::BTreeMap;
use std::sync::Arc;

use admission::usage;
use api::events::{AGGREGATE_STATUS_FAILED, AGGREGATE_STATUS_SUCCEED};
use api::features::FEDERATED_QUOTA_ENFORCEMENT;
use api::policy::{ClusterQuotaStatus, FederatedResourceQuota, FederatedResourceQuotaStatus, ResourceList};
use api::work::Work;
use jiff::Timestamp;
use runtime::events::about;
use runtime::{Change, Error, Guard, Key, Outcome, Queue, Reconcile, controller};
use serde::Deserialize;

use super::sync::share;
use super::{Awaited, named, quota_of};
use crate::plane::{Plane, Start};

const COMPONENT: &str = "federated-resource-quota-status-controller";
const WORKERS: usize = 2;

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

pub(super) fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    plane.tell_panics(&queue, COMPONENT, &plane.mirrors.quotas);
    let enforced = plane.features.enabled(FEDERATED_QUOTA_ENFORCEMENT);

    let awaited: Arc<Awaited> = Arc::default();
    let (pushed, awaiting) = (queue.clone(), awaited.clone());
    plane.mirrors.quotas.subscribe(move |change| {
        if is_news(change, enforced) {
            if !change.initial && limits_otherwise(change) {
                awaiting.lock().insert(change.key.clone());
            }
            pushed.push(change.key.clone());
        }
    });

    let pushed = queue.clone();
    plane.mirrors.works.subscribe(move |change| {
        let reported = match (&change.old, &change.new) {
            (Some(old), Some(new)) => old.status != new.status,
            // The first list may show reports that came while no controller ran.
            (None, Some(_)) => change.initial,
            _ => true,
        };
        if reported
            && let Some(key) = change.new.as_ref().or(change.old.as_ref()).and_then(|work| quota_of(work))
        {
            pushed.push(key);
        }
    });

    (Arc::new(Controller { plane: plane.clone(), awaited, enforced }), queue)
}

/// Changes of the status by others are corrected. Charges of bindings are left to the enforcement.
fn is_news(change: &Change<'_, FederatedResourceQuota>, enforced: bool) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            let sums = |quota: &FederatedResourceQuota| {
                (!enforced).then(|| (quota.status.overall.clone(), quota.status.overall_used.clone()))
            };
            limits_otherwise(change)
                || old.status.aggregated_status != new.status.aggregated_status
                || sums(old) != sums(new)
        }
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

fn limits_otherwise(change: &Change<'_, FederatedResourceQuota>) -> bool {
    let limits =
        |quota: &Option<Arc<FederatedResourceQuota>>| quota.as_ref().map(|quota| quota.spec.overall.clone());
    limits(&change.old) != limits(&change.new)
}

pub(super) struct Controller {
    plane: Arc<Plane>,
    awaited: Arc<Awaited>,
    /// Bindings are charged: the enforcement writes the sums.
    enforced: bool,
}

/// A quota and its Works.
pub(super) struct View {
    quota: Arc<FederatedResourceQuota>,
    works: Vec<Arc<Work>>,
    enforced: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// The status says it already.
    Nothing,
    Write(FederatedResourceQuotaStatus),
    /// A report cannot be read.
    Tell(String),
}

/// The part of a ResourceQuota's status that is reported.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reported {
    hard: ResourceList,
    used: ResourceList,
}

fn decide(view: &View) -> Plan {
    let mut clusters = Vec::new();
    for (cluster, work) in reporters(view).into_iter().filter(|(_, work)| work.status.is_applied()) {
        let Some(status) = work.status.manifest_statuses.first().and_then(|first| first.status.as_ref())
        else {
            continue;
        };
        match Reported::deserialize(status) {
            Ok(Reported { hard, used }) => {
                clusters.push(ClusterQuotaStatus { cluster_name: cluster.to_owned(), hard, used });
            }
            Err(error) => return Plan::Tell(format!("cannot read what cluster {cluster} reports: {error}")),
        }
    }
    let mut status = view.quota.status.clone();
    if !view.enforced {
        status.overall.clone_from(&view.quota.spec.overall);
        status.overall_used = usage::sum(clusters.iter().map(|cluster| &cluster.used));
    }
    status.aggregated_status = clusters;
    if status == view.quota.status { Plan::Nothing } else { Plan::Write(status) }
}

/// Returns the Work that reports for each cluster.
///
/// An agent writes Works of its own cluster, with any label. They count where the quota assigns something to the cluster, one for each,
/// so that no cluster has a say in the quotas of those who do not use it.
fn reporters(view: &View) -> BTreeMap<&str, &Work> {
    let Key { namespace, name } = Key::of(view.quota.as_ref());
    let ours = api::names::work("ResourceQuota", &name, &namespace);
    let mut found: BTreeMap<&str, &Work> = BTreeMap::new();
    for work in &view.works {
        let space = work.metadata.namespace.as_deref().unwrap_or("");
        let Some(cluster) = api::names::cluster_of_execution_space(space) else { continue };
        if share(&view.quota, cluster).is_none() {
            continue;
        }
        if work.metadata.name.as_ref() == Some(&ours) || !found.contains_key(cluster) {
            found.insert(cluster, work.as_ref());
        }
    }
    found
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let found = self.plane.mirrors.quotas.find(key);
        let Some(quota) = found.filter(|quota| quota.metadata.deletion_timestamp.is_none()) else {
            self.awaited.lock().remove(key);
            return Ok(None);
        };
        Ok(Some(View { quota, works: self.plane.works.of_quota(key), enforced: self.enforced }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let (plane, quota) = (&self.plane, view.quota.as_ref());
        let awaited = self.awaited.lock().remove(key);
        let result = match plan {
            Plan::Nothing if !awaited => return Ok(Outcome::Done),
            Plan::Nothing => Ok(None),
            Plan::Tell(why) => {
                plane.events.warning(COMPONENT, &about(quota), AGGREGATE_STATUS_FAILED, why);
                return Ok(Outcome::Done);
            }
            Plan::Write(status) => {
                let mut wanted = quota.clone();
                wanted.status = status;
                // While bindings are charged, the version changes all the time, and only the list of clusters is ours.
                let guard = if self.enforced { Guard::Fields } else { Guard::Version };
                plane.writer.update_status(quota, &wanted, guard).await
            }
        };
        match result {
            Ok(written) => {
                written.into_iter().for_each(|written| plane.mirrors.quotas.note(written));
                let message = format!("Collect status of {} succeed.", named(key));
                plane.events.normal(COMPONENT, &about(quota), AGGREGATE_STATUS_SUCCEED, message);
                Ok(Outcome::Done)
            }
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => {
                if !error.is_conflict() {
                    let message = error.to_string();
                    plane.events.warning(COMPONENT, &about(quota), AGGREGATE_STATUS_FAILED, message);
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use propagation::status::condition;

    use super::*;
    use crate::fixtures::{at, merged, read, work};

    fn quota(otherwise: Value) -> Arc<FederatedResourceQuota> {
        let base = json!({
            "metadata": { "namespace": "shop", "name": "q", "uid": "q" }, "spec": {
                "overall": { "cpu": "10" },
                "staticAssignments": [
                    { "clusterName": "m1", "hard": { "cpu": "5" } }, { "clusterName": "m2", "hard": { "cpu": "5" } },
                ],
            },
        });
        Arc::new(read(merged(base, otherwise)))
    }

    /// The Work of a cluster that reports this.
    fn reporting(cluster: &str, applied: &str, status: Value) -> Arc<Work> {
        let identifier = json!({ "ordinal": 0, "version": "v1", "kind": "ResourceQuota", "resource": "resourcequotas", "name": "q" });
        let condition = json!({
            "type": "Applied", "status": applied, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let manifests = json!([{ "identifier": identifier, "status": status }]);
        work(cluster, json!({ "status": { "conditions": [condition], "manifestStatuses": manifests } }))
    }

    fn also_dispatching(work: Arc<Work>) -> Arc<Work> {
        let mut work = Arc::unwrap_or_clone(work);
        let dispatching = condition("Dispatching", "True", "r", "", at(0));
        work.status.conditions.insert(0, dispatching);
        Arc::new(work)
    }

    fn used(cpu: &str) -> Value {
        json!({ "hard": { "cpu": "5" }, "used": { "cpu": cpu } })
    }

    fn cluster(name: &str, cpu: &str) -> Value {
        merged(json!({ "clusterName": name }), used(cpu))
    }

    #[test]
    fn what_clusters_report_is_in_the_status() {
        let both = || vec![reporting("m2", "True", used("500m")), reporting("m1", "True", used("2"))];
        let clusters = json!([cluster("m1", "2"), cluster("m2", "500m")]);
        let summed = json!({ "overall": { "cpu": "10" }, "overallUsed": { "cpu": "2500m" }, "aggregatedStatus": clusters });
        let charged = json!({ "overall": { "cpu": "10" }, "overallUsed": { "cpu": "7" } });
        let with = |status: &Value| quota(json!({ "status": status }));
        let cases = [
            ("it is summed up", quota(json!({})), both(), false, Some(summed.clone())),
            ("it says so", with(&summed), both(), false, None),
            (
                "bindings are charged",
                with(&charged),
                both(),
                true,
                Some(merged(charged.clone(), json!({ "aggregatedStatus": clusters }))),
            ),
            (
                "the limits changed",
                quota(json!({ "spec": { "overall": { "cpu": "20" } }, "status": summed })),
                both(),
                false,
                Some(merged(summed.clone(), json!({ "overall": { "cpu": "20" } }))),
            ),
            (
                "not applied, nothing reported",
                quota(json!({})),
                vec![reporting("m1", "False", used("2")), work("m2", json!({}))],
                false,
                Some(json!({ "overall": { "cpu": "10" } })),
            ),
            (
                "not applied, though something else is true",
                quota(json!({})),
                vec![also_dispatching(reporting("m1", "False", used("2")))],
                false,
                Some(json!({ "overall": { "cpu": "10" } })),
            ),
            (
                "the last cluster went",
                with(&summed),
                vec![],
                false,
                Some(json!({ "overall": { "cpu": "10" } })),
            ),
        ];
        for (name, quota, works, enforced, expected) in cases {
            let expected = expected.map_or(Plan::Nothing, |status| Plan::Write(read(status)));
            assert_eq!(decide(&View { quota, works, enforced }), expected, "{name}");
        }
        let odd = vec![reporting("m1", "True", json!({ "hard": 1 }))];
        let plan = decide(&View { quota: quota(json!({})), works: odd, enforced: false });
        assert!(
            matches!(&plan, Plan::Tell(why) if why.starts_with("cannot read what cluster m1 reports")),
            "{plan:?}"
        );
    }

    #[test]
    fn finding_25_an_agent_reports_on_no_quota_that_does_not_concern_its_cluster() {
        let named = |name: &str, work: Arc<Work>| {
            let mut work = Arc::unwrap_or_clone(work);
            work.metadata.name = Some(name.to_owned());
            Arc::new(work)
        };
        let ours = api::names::work("ResourceQuota", "q", "shop");
        let works = vec![
            named("a", reporting("m1", "True", used("50"))),
            named(&ours, reporting("m1", "True", used("2"))),
            named("z", reporting("m1", "True", used("50"))),
            named(&ours, reporting("m3", "True", used("100"))),
            named("odd", reporting("m3", "True", json!({ "hard": 1 }))),
        ];
        let expected = json!({
            "overall": { "cpu": "10" }, "overallUsed": { "cpu": "2" }, "aggregatedStatus": [cluster("m1", "2")],
        });
        let plan = decide(&View { quota: quota(json!({})), works, enforced: false });
        assert_eq!(plan, Plan::Write(read(expected)));
    }

    #[test]
    fn which_changes_count() {
        let key = Key::new("shop", "q");
        let charged = json!({ "status": { "overallUsed": { "cpu": "1" } } });
        let reported = json!({ "status": { "aggregatedStatus": [{ "clusterName": "m1" }] } });
        let limits = json!({ "spec": { "overall": { "cpu": "20" } } });
        let none = || Some(json!({}));
        let cases = [
            ("it is new", None, none(), true, true),
            ("it limits otherwise", none(), Some(limits), true, true),
            ("a binding was charged", none(), Some(charged.clone()), true, false),
            ("somebody else wrote the sum", none(), Some(charged), false, true),
            ("somebody else wrote the list", none(), Some(reported), true, true),
            (
                "nothing that counts",
                none(),
                Some(json!({ "metadata": { "labels": { "a": "b" } } })),
                false,
                false,
            ),
            ("it is gone", none(), None, true, false),
        ];
        for (name, old, new, enforced, expected) in cases {
            let change =
                Change { key: &key, old: old.map(quota), new: new.map(quota), ours: false, initial: false };
            assert_eq!(is_news(&change, enforced), expected, "{name}");
        }
    }
}
