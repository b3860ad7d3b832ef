//! Counts what the bindings of a namespace use of its FederatedResourceQuotas, so that admission can refuse what is too much.
//!
//! Watches: FederatedResourceQuotas, ResourceBindings (when their usage changes); all quotas every
//! `--federated-resource-quota-sync-period`.
//! Writes: `status.overall` and `status.overallUsed` of FederatedResourceQuotas.
//!
//! Our server charges a binding in the same commit that stores or removes it, so only a quota that is new or
//! has other limits needs a correction. Behind any other server a charge and its binding are two writes: one
//! may be missing, or not visible yet. So a difference is checked again a moment later, and then on the
//! server, not in the mirrors.
//!
//! A count never overwrites a charge: the quota is read first, then the bindings, and the write is refused if the quota has changed
//! since. On our server the bindings cannot have changed then, either.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use admission::usage;
use api::events::{COLLECT_OVERALL_STATUS_FAILED, COLLECT_OVERALL_STATUS_SUCCEED};
use api::policy::{FederatedResourceQuota, ResourceList};
use api::work::{ResourceBinding, ResourceBindingSpec};
use jiff::Timestamp;
use kube::api::ListParams;
use parking_lot::Mutex;
use runtime::events::about;
use runtime::{Change, Error, Guard, Key, Outcome, Queue, Reconcile, controller};

use super::named;
use crate::plane::{Plane, Start};

const COMPONENT: &str = "federated-resource-quota-enforcement-controller";
const WORKERS: usize = 2;
/// How long a difference has to last before it counts: within this time a charged binding is stored, and the
/// mirrors show both.
const SETTLE: Duration = Duration::from_millis(300);

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || {
        controller.plane.supervisor.keep("quotas/recount", {
            let (controller, pushed) = (controller.clone(), queue.clone());
            move || recount(controller.clone(), pushed.clone())
        });
        controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor);
    })
}

pub(super) fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    plane.tell_panics(&queue, COMPONENT, &plane.mirrors.quotas);

    let pushed = queue.clone();
    plane.mirrors.quotas.subscribe(move |change| {
        if is_news(change) {
            pushed.push(change.key.clone());
        }
    });

    plane.mirrors.bindings.subscribe({
        let (pushed, plane) = (queue.clone(), plane.clone());
        move |change| {
            let spec =
                |binding: &Option<Arc<ResourceBinding>>| binding.as_ref().map(|binding| binding.spec.clone());
            // The first list is compared all at once, when the quotas are known.
            if change.initial || plane.mirrors.quotas.is_empty() {
                return;
            }
            if usage::differs(spec(&change.old).as_ref(), spec(&change.new).as_ref()) {
                let namespace = &change.key.namespace;
                plane
                    .mirrors
                    .quotas
                    .keys(|key| key.namespace == *namespace)
                    .into_iter()
                    .for_each(|key| pushed.push(key));
            }
        }
    });

    (Arc::new(Controller { plane: plane.clone(), due: Mutex::default(), differs: Mutex::default() }), queue)
}

/// Has all quotas counted afresh from time to time.
async fn recount(controller: Arc<Controller>, queue: Arc<Queue<Key>>) {
    let plane = &controller.plane;
    loop {
        tokio::select! {
            () = plane.supervisor.token().cancelled() => return,
            () = tokio::time::sleep(plane.timing.quota_sync_period) => {}
        }
        let all = plane.mirrors.quotas.keys(|_| true);
        controller.due.lock().extend(all.iter().cloned());
        all.into_iter().for_each(|key| queue.push(key));
    }
}

fn is_news(change: &Change<'_, FederatedResourceQuota>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            old.spec.overall != new.spec.overall
                || old.status.overall != new.status.overall
                || old.status.overall_used != new.status.overall_used
        }
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

pub(super) struct Controller {
    plane: Arc<Plane>,
    /// Quotas that have to be counted on the server, whatever the mirrors say.
    due: Mutex<BTreeSet<Key>>,
    /// Since when the mirrors disagree.
    differs: Mutex<BTreeMap<Key, Instant>>,
}

/// A quota and the bindings of its namespace.
pub(super) enum View {
    /// The mirrors disagree; for how long is not known here.
    Unsettled,
    /// As the server has them.
    Seen { quota: Box<FederatedResourceQuota>, bindings: Vec<ResourceBindingSpec> },
}

#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// The status says it already.
    Nothing,
    /// Check again a moment later.
    Wait,
    Write(Box<FederatedResourceQuota>),
}

/// What the copies of a quota and its bindings call for.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// The status says what they say.
    Nothing,
    /// They differ, maybe only because one of them is behind.
    Wait,
    /// The server is asked.
    Ask,
}

/// Decides whether the server is asked. `used` is what the copies of the bindings use, `due` says that it is asked whatever they say, and
/// `differing_for` since when they have differed from the status, if they did before.
fn look(
    quota: &FederatedResourceQuota,
    used: &ResourceList,
    due: bool,
    differing_for: Option<Duration>,
) -> Look {
    // A quota whose limits differ from its status is not in force yet, so it is counted without waiting.
    if due || !usage::same(&quota.status.overall, &quota.spec.overall) {
        return Look::Ask;
    }
    if is_right(quota, used) {
        return Look::Nothing;
    }
    match differing_for {
        Some(lasted) if lasted >= SETTLE => Look::Ask,
        _ => Look::Wait,
    }
}

fn decide(view: &View) -> Plan {
    let View::Seen { quota, bindings } = view else { return Plan::Wait };
    let used = usage::used(&quota.spec.overall, bindings);
    if is_right(quota, &used) {
        return Plan::Nothing;
    }
    let mut wanted = quota.clone();
    wanted.status.overall.clone_from(&quota.spec.overall);
    wanted.status.overall_used = used;
    Plan::Write(wanted)
}

fn is_right(quota: &FederatedResourceQuota, used: &ResourceList) -> bool {
    usage::same(&quota.status.overall, &quota.spec.overall) && usage::same(&quota.status.overall_used, used)
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let plane = &self.plane;
        let due = self.due.lock().remove(key);
        let Some(quota) = plane.mirrors.quotas.find(key) else {
            self.differs.lock().remove(key);
            return Ok(None);
        };
        if quota.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        match self.compare(key, &quota, due) {
            Look::Nothing => return Ok(None),
            Look::Wait => return Ok(Some(View::Unsettled)),
            Look::Ask => {}
        }
        // In this order: a charge that comes between the two changes the quota, and the write is refused.
        let quotas = plane.writer.api::<FederatedResourceQuota>(&key.namespace);
        let Some(quota) = quotas.get_opt(&key.name).await? else { return Ok(None) };
        let bindings =
            plane.writer.api::<ResourceBinding>(&key.namespace).list(&ListParams::default()).await?;
        let bindings = bindings.items.into_iter().map(|binding| binding.spec).collect();
        Ok(Some(View::Seen { quota: Box::new(quota), bindings }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let View::Seen { quota, .. } = view else { return Ok(Outcome::After(SETTLE)) };
        let Plan::Write(wanted) = plan else { return Ok(Outcome::Done) };
        let plane = &self.plane;
        match plane.writer.update_status(quota.as_ref(), wanted.as_ref(), Guard::Version).await {
            Ok(written) => {
                written.into_iter().for_each(|written| plane.mirrors.quotas.note(written));
                let message = format!("Collect status of {} succeed.", named(key));
                plane.events.normal(
                    COMPONENT,
                    &about(quota.as_ref()),
                    COLLECT_OVERALL_STATUS_SUCCEED,
                    message,
                );
                Ok(Outcome::Done)
            }
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => {
                if !error.is_conflict() {
                    let message = error.to_string();
                    plane.events.warning(
                        COMPONENT,
                        &about(quota.as_ref()),
                        COLLECT_OVERALL_STATUS_FAILED,
                        message,
                    );
                }
                Err(error)
            }
        }
    }

    /// Writes made meanwhile are read from the server anyway.
    async fn refresh(&self, key: &Key) -> Result<bool, Error> {
        self.due.lock().insert(key.clone());
        Ok(true)
    }
}

impl Controller {
    /// Compares the status with the mirrors, and remembers since when they disagree.
    fn compare(&self, key: &Key, quota: &FederatedResourceQuota, due: bool) -> Look {
        let bindings = self.copies(&key.namespace);
        let used = usage::used(&quota.spec.overall, bindings.iter().map(|binding| &binding.spec));
        let mut differs = self.differs.lock();
        let look = look(quota, &used, due, differs.get(key).map(Instant::elapsed));
        if look == Look::Wait {
            differs.entry(key.clone()).or_insert_with(Instant::now);
        } else {
            differs.remove(key);
        }
        look
    }

    fn copies(&self, namespace: &str) -> Vec<Arc<ResourceBinding>> {
        let bindings = &self.plane.mirrors.bindings;
        let keys = bindings.keys(|key| key.namespace == namespace);
        keys.iter().filter_map(|key| bindings.find(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{binding, merged, read};

    fn quota(otherwise: Value) -> FederatedResourceQuota {
        let base = json!({
            "metadata": { "namespace": "shop", "name": "q", "uid": "q" },
            "spec": { "overall": { "cpu": "10", "memory": "1Gi" } },
        });
        read(merged(base, otherwise))
    }

    /// What a binding with so many replicas in one cluster says.
    fn using(replicas: i64, cpu: &str) -> ResourceBindingSpec {
        let spec = json!({
            "clusters": [{ "name": "m1", "replicas": replicas }],
            "replicaRequirements": { "resourceRequest": { "cpu": cpu, "nvidia.com/gpu": "1" } },
        });
        binding(json!({ "spec": spec })).spec
    }

    fn components() -> ResourceBindingSpec {
        let needs = |memory: &str| json!({ "resourceRequest": { "cpu": "1", "memory": memory } });
        let components = json!([
            { "name": "jobmanager", "replicas": 1, "replicaRequirements": needs("100m") },
            { "name": "taskmanager", "replicas": 2, "replicaRequirements": needs("50m") },
        ]);
        let clusters = json!([{ "name": "m1" }, { "name": "m2" }]);
        binding(json!({ "spec": { "clusters": clusters, "components": components } })).spec
    }

    #[test]
    fn the_status_tells_what_exists() {
        let status = |used: Value| json!({ "status": { "overall": { "cpu": "10", "memory": "1Gi" }, "overallUsed": used } });
        let written = |used: Value| Some(quota(status(used)));
        let cases = [
            ("a new quota", json!({}), vec![using(2, "500m"), using(1, "2")], written(json!({ "cpu": "3" }))),
            ("nothing exists", json!({}), vec![], written(json!({}))),
            ("it says so", status(json!({ "cpu": "1" })), vec![using(2, "500m")], None),
            ("it says so in other words", status(json!({ "cpu": "1000m" })), vec![using(2, "500m")], None),
            (
                "a charge that stayed",
                status(json!({ "cpu": "4" })),
                vec![using(1, "1")],
                written(json!({ "cpu": "1" })),
            ),
            (
                "a charge that is missing",
                status(json!({})),
                vec![using(1, "1")],
                written(json!({ "cpu": "1" })),
            ),
            (
                "every cluster runs all components",
                json!({}),
                vec![components()],
                written(json!({ "cpu": "6", "memory": "400m" })),
            ),
            ("not scheduled", status(json!({})), vec![using(0, "1")], None),
        ];
        for (name, otherwise, bindings, expected) in cases {
            let view = View::Seen { quota: Box::new(quota(otherwise)), bindings };
            let expected = expected.map_or(Plan::Nothing, |quota| Plan::Write(Box::new(quota)));
            assert_eq!(decide(&view), expected, "{name}");
        }
        assert_eq!(decide(&View::Unsettled), Plan::Wait);
    }

    #[test]
    fn when_the_server_is_asked() {
        let status = |cpu: &str, used: &str| json!({ "status": { "overall": { "cpu": cpu, "memory": "1Gi" }, "overallUsed": { "cpu": used } } });
        let (new, right, differs) = (|| json!({}), || status("10", "1"), || status("10", "4"));
        let millis = |millis: u64| Some(Duration::from_millis(millis));
        // What the status says where the bindings use one cpu; whether it is due; for how long it has differed.
        let cases = [
            ("a new quota", new(), false, None, Look::Ask),
            ("a new quota whose copy differed", new(), false, millis(10), Look::Ask),
            ("other limits", status("9", "1"), false, None, Look::Ask),
            ("it says so", right(), false, None, Look::Nothing),
            ("it says so by now", right(), false, millis(299), Look::Nothing),
            ("it says so, and it is due", right(), true, None, Look::Ask),
            ("it differs, and did not before", differs(), false, None, Look::Wait),
            ("it has just begun to differ", differs(), false, millis(0), Look::Wait),
            ("it has not differed for long enough", differs(), false, millis(299), Look::Wait),
            ("it has differed for long enough", differs(), false, millis(300), Look::Ask),
            ("it differs, and it is due", differs(), true, None, Look::Ask),
        ];
        for (name, otherwise, due, differing_for, expected) in cases {
            let quota = quota(otherwise);
            let used = usage::used(&quota.spec.overall, &[using(2, "500m")]);
            assert_eq!(look(&quota, &used, due, differing_for), expected, "{name}");
        }
    }

    #[test]
    fn which_changes_count() {
        let key = Key::new("shop", "q");
        let none = || Some(json!({}));
        let cases = [
            ("it is new", None, none(), true),
            ("it limits otherwise", none(), Some(json!({ "spec": { "overall": { "cpu": "20" } } })), true),
            ("its usage changed", none(), Some(json!({ "status": { "overallUsed": { "cpu": "1" } } })), true),
            (
                "a cluster reported",
                none(),
                Some(json!({ "status": { "aggregatedStatus": [{ "clusterName": "m1" }] } })),
                false,
            ),
            ("it is gone", none(), None, false),
        ];
        for (name, old, new, expected) in cases {
            let read = |otherwise: Value| Arc::new(quota(otherwise));
            let change =
                Change { key: &key, old: old.map(read), new: new.map(read), ours: false, initial: false };
            assert_eq!(is_news(&change), expected, "{name}");
        }
    }
}
