//! Reports the status of managed objects in their Work.
//!
//! Watches: managed objects in the members (their annotations name the Work), Works that have been applied.
//! Writes:  Work.status.manifestStatuses.
//!
//! The answer to our own write is reported by the execution controller, along with its conditions.
//!
//! `work-status-controller`, `workStatus` in `--controllers`. An object that has vanished leaves its last state in
//! place, as upstream.

#[cfg(test)]
mod on_server;

use std::sync::Arc;
use std::time::Duration;

use api::labels::annotations::{WORK_NAME, WORK_NAMESPACE};
use api::work::{ManifestStatus, ResourceHealth, Work, WorkStatus};
use api::{events, names};
use interpreter::Operation;
use jiff::Timestamp;
use member::Member;
use propagation::{Object, status};
use runtime::Key;
use serde_json::{Value, json};

use runtime::{Outcome, Reconcile, UNLIMITED, controller};

use super::{Shared, Start, work_of};

const COMPONENT: &str = "work-status-controller";

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    shared.tell_panics(&shared.reports, COMPONENT, &shared.mirrors.works);
    shared.mirrors.works.subscribe({
        let shared = shared.clone();
        move |change| {
            let Some(new) = change.new.as_deref() else { return };
            // The execution controller has reported its status when it applied it.
            let reported = change.ours && shared.enabled.execution;
            let applied = |work: &Work| work.status.is_applied();
            if !reported && applied(new) && !change.old.as_deref().is_some_and(applied) {
                shared.reports.push(change.key.clone());
            }
        }
    });
    // A weak reference: the members must not keep their own owner alive.
    let weak = Arc::downgrade(shared);
    shared.members.observe(Arc::new(move |change| {
        let Some(shared) = weak.upgrade() else { return };
        let reported = change.ours && shared.enabled.execution;
        if !reported
            && change.new.is_some()
            && let Some(work) = work_of(change)
        {
            shared.reports.push(work);
        }
    }));
    shared.on_lessons(&[Operation::InterpretStatus, Operation::InterpretHealth], |shared| &shared.reports);
    Box::new({
        let shared = shared.clone();
        move || {
            controller::run(
                &Arc::new(Controller(shared.clone())),
                &shared.reports,
                UNLIMITED,
                &shared.supervisor,
            );
        }
    })
}

/// What is known of a Work and the state of its objects.
pub(crate) struct View {
    work: Arc<Work>,
    /// How long to wait after the last write.
    pause: Option<Duration>,
    /// The state of each object as it is now; `None` if one cannot be interpreted.
    reports: Option<Vec<ManifestStatus>>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    Nothing(&'static str),
    /// The last write was a moment ago.
    Wait(Duration),
    /// Something cannot be interpreted; an event has been sent.
    Retry,
    Write(Vec<ManifestStatus>),
}

fn decide(view: &View) -> Plan {
    if view.work.metadata.deletion_timestamp.is_some() {
        return Plan::Nothing("the Work is being deleted");
    }
    if let Some(pause) = view.pause {
        return Plan::Wait(pause);
    }
    match &view.reports {
        None => Plan::Retry,
        Some(reports) if *reports == view.work.status.manifest_statuses => Plan::Nothing("nothing is new"),
        Some(reports) => Plan::Write(reports.clone()),
    }
}

struct Controller(Arc<Shared>);

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, runtime::Error> {
        let shared = &self.0;
        let Some(work) = shared.mirrors.works.find(key) else { return Ok(None) };
        let Some(name) = names::cluster_of_execution_space(&key.namespace) else { return Ok(None) };
        if shared.my_cluster(name).is_none() {
            return Ok(None);
        }
        // A new connection enqueues all Works of its cluster.
        let Some(member) = shared.members.get(name) else { return Ok(None) };
        let pause = shared.throttle.wait(key);
        // The objects are not read if the Work has to wait or is being deleted.
        let reports = match pause.is_none() && work.metadata.deletion_timestamp.is_none() {
            true => reports(shared, &work, &observe(shared, &member, key, &work).await).await,
            false => None,
        };
        Ok(Some(View { work, pause, reports }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, runtime::Error> {
        let shared = &self.0;
        let reports = match plan {
            Plan::Nothing(_) => return Ok(Outcome::Done),
            Plan::Wait(left) => return Ok(Outcome::After(left)),
            Plan::Retry => return Ok(Outcome::Retry),
            Plan::Write(reports) => reports,
        };
        let _alone = shared.status_locks.of(key).await;
        if newer_status(shared, key, &view.work).is_some() {
            // A status was reported meanwhile, perhaps the same, perhaps a newer one: reconcile again.
            return Ok(Outcome::After(Duration::ZERO));
        }
        let patch = json!({ "status": { "manifestStatuses": reports } });
        match shared.writer.patch_status(view.work.as_ref(), patch).await {
            Ok(answer) => {
                say(shared, &view.work, &reports);
                shared.mirrors.works.note(answer);
                shared.throttle.wrote(key);
                Ok(Outcome::Done)
            }
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => Err(error),
        }
    }
}

/// Returns the status of a Work if it was written after the Work was read. The caller holds the lock of the
/// status.
pub(super) fn newer_status(shared: &Shared, key: &Key, work: &Work) -> Option<WorkStatus> {
    let seen = work.metadata.resource_version.as_deref().unwrap_or("");
    if shared.mirrors.works.revision(&key.namespace, &key.name).to_string() == seen {
        return None;
    }
    let now = shared.mirrors.works.find(key)?;
    (now.status != work.status).then(|| now.status.clone())
}

/// The status of a Work's objects that is not in the Work yet.
pub(super) struct News {
    pub(super) reports: Vec<ManifestStatus>,
    /// The revision of each object that we know.
    revisions: Vec<u64>,
}

/// Returns the state of a Work's objects if it is not in the Work yet. What cannot be interpreted is left to
/// the controller, which tries again.
pub(super) async fn news(shared: &Shared, member: &Member, key: &Key, work: &Work) -> Option<News> {
    let revisions = revisions(shared, member, work).await;
    let observed = observe(shared, member, key, work).await;
    match reports(shared, work, &observed).await {
        Some(reports) => (reports != work.status.manifest_statuses).then_some(News { reports, revisions }),
        None => {
            shared.reports.push(key.clone());
            None
        }
    }
}

/// Called when a status has been written: a newer one may have arrived between the read and the write.
pub(super) async fn written(shared: &Shared, member: &Member, key: &Key, work: &Work, news: &News) {
    say(shared, work, &news.reports);
    shared.throttle.wrote(key);
    if revisions(shared, member, work).await != news.revisions {
        shared.reports.push(key.clone());
    }
}

async fn revisions(shared: &Shared, member: &Member, work: &Work) -> Vec<u64> {
    let mut revisions = Vec::new();
    for manifest in &work.spec.workload.manifests {
        let kind =
            shared.kinds.resolve(shared.client(), member, manifest.api_version(), manifest.kind()).await;
        revisions.push(
            kind.map_or(0, |kind| member.managed(&kind).revision(manifest.namespace(), manifest.name())),
        );
    }
    revisions
}

/// Returns the objects of a Work that exist in the member and belong to it, by the index of their manifest.
async fn observe(shared: &Shared, member: &Member, key: &Key, work: &Work) -> Vec<Option<Arc<Value>>> {
    let mut observed = Vec::new();
    for manifest in &work.spec.workload.manifests {
        let kind =
            shared.kinds.resolve(shared.client(), member, manifest.api_version(), manifest.kind()).await;
        // A mirror that is still incomplete reports each of its objects when it gets it.
        let object = kind.ok().and_then(|kind| {
            let copy = member.managed(&kind);
            copy.get(manifest.namespace(), manifest.name())
        });
        observed.push(object.filter(|object| {
            object.annotation(WORK_NAMESPACE) == Some(&key.namespace)
                && object.annotation(WORK_NAME) == Some(&key.name)
        }));
    }
    observed
}

/// Returns the state of each manifest, or `None` if one cannot be interpreted.
async fn reports(
    shared: &Shared,
    work: &Work,
    observed: &[Option<Arc<Value>>],
) -> Option<Vec<ManifestStatus>> {
    let mut interpreted = Vec::new();
    for object in observed {
        let Some(object) = object else {
            interpreted.push(None);
            continue;
        };
        match status::report(work, object, &shared.interpreter).await {
            Ok(report) => {
                if let Some(error) = report.health_error {
                    let message =
                        format!("Interpret health of object({}) failed, err: {error}.", path(object));
                    shared.events.say(COMPONENT, work, events::INTERPRET_HEALTH_FAILED, message);
                }
                interpreted.push(Some(report.status));
            }
            Err(error) => {
                let message = format!("Reflect status for object({}) failed, err: {error}.", path(object));
                shared.events.say(COMPONENT, work, events::REFLECT_STATUS_FAILED, message);
                return None;
            }
        }
    }
    Some(merged(work, interpreted))
}

/// Returns the statuses for the Work: the current ones, and the last known ones of objects that cannot be
/// seen.
fn merged(work: &Work, now: Vec<Option<ManifestStatus>>) -> Vec<ManifestStatus> {
    let known = |ordinal: usize| {
        let mut known = work.status.manifest_statuses.iter();
        known.find(|status| usize::try_from(status.identifier.ordinal) == Ok(ordinal)).cloned()
    };
    now.into_iter().enumerate().filter_map(|(ordinal, status)| status.or_else(|| known(ordinal))).collect()
}

fn say(shared: &Shared, work: &Work, reports: &[ManifestStatus]) {
    for report in reports {
        let id = &report.identifier;
        let path = format!("{}/{}/{}", id.kind, id.namespace, id.name);
        let message = format!("Reflect status for object({path}) succeed.");
        shared.events.say(COMPONENT, work, events::REFLECT_STATUS_SUCCEED, message);
        let health = match &report.health {
            Some(ResourceHealth::Healthy) => "healthy",
            Some(ResourceHealth::Unhealthy) => "unhealthy",
            _ => continue,
        };
        let message = format!("Interpret health of object({path}) as {health}.");
        shared.events.say(COMPONENT, work, events::INTERPRET_HEALTH_SUCCEED, message);
    }
}

fn path(object: &Value) -> String {
    format!("{}/{}/{}", object.kind(), object.namespace(), object.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{deleting, merged as with, read, work};
    use crate::world::World;

    fn status(ordinal: i32, replicas: i64) -> ManifestStatus {
        read(json!({
            "identifier": { "ordinal": ordinal, "version": "v1", "kind": "K", "resource": "", "name": "web" },
            "status": { "replicas": replicas },
        }))
    }

    fn said(statuses: &[ManifestStatus]) -> Value {
        json!({ "status": { "manifestStatuses": statuses } })
    }

    #[test]
    fn when_the_state_of_objects_is_written() {
        let (one, two) = (vec![status(0, 1)], vec![status(0, 2)]);
        let pause = Duration::from_millis(50);
        let cases = [
            ("first news", json!({}), None, Some(one.clone()), Plan::Write(one.clone())),
            ("news", said(&one), None, Some(two.clone()), Plan::Write(two.clone())),
            ("no news", said(&one), None, Some(one.clone()), Plan::Nothing("nothing is new")),
            ("nothing to report", json!({}), None, Some(vec![]), Plan::Nothing("nothing is new")),
            ("the last write was a moment ago", said(&one), Some(pause), None, Plan::Wait(pause)),
            ("it cannot be interpreted", said(&one), None, None, Plan::Retry),
            (
                "the Work is being deleted",
                with(said(&one), deleting()),
                None,
                Some(two),
                Plan::Nothing("the Work is being deleted"),
            ),
        ];
        for (name, otherwise, pause, reports, expected) in cases {
            assert_eq!(decide(&View { work: work("m1", otherwise), pause, reports }), expected, "{name}");
        }
    }

    /// The execution controller reports as well.
    #[tokio::test]
    async fn what_was_reported_between_the_look_and_the_write_is_looked_at_again() {
        let world = World::agent().await;
        let cluster = world.cluster("m1", json!({})).await;
        let shared = world.members(&["execution", "workStatus"]);
        let seen = world.work(&cluster, json!({})).await;
        let (key, reports) = (Key::of(seen.as_ref()), vec![status(0, 2)]);
        let view = || View { work: seen.clone(), pause: None, reports: Some(reports.clone()) };
        let controller = Controller(shared);
        world.writes();
        let other = controller.0.status_locks.of(&key).await;
        let waiting = controller.apply(&key, view(), decide(&view()));
        let report = async {
            let answer = controller.0.writer.patch_status(seen.as_ref(), said(&[status(0, 2)])).await;
            controller.0.mirrors.works.note(answer.expect("the other one reports"));
            drop(other);
        };
        let (outcome, ()) = futures::join!(waiting, report);
        assert_eq!(outcome.expect("no error"), Outcome::After(Duration::ZERO));
        assert_eq!(world.writes().len(), 1, "of two that have the same to say, one does");
        world.supervisor.stop().await;
    }

    #[test]
    fn what_has_vanished_leaves_its_last_state() {
        let work = work("m1", said(&[status(0, 1), status(1, 1)]));
        let cases = [
            (vec![None, None], vec![status(0, 1), status(1, 1)]),
            (vec![Some(status(0, 2)), None], vec![status(0, 2), status(1, 1)]),
            (vec![None, Some(status(1, 2))], vec![status(0, 1), status(1, 2)]),
            // A third manifest that was never seen has no state.
            (vec![None, None, None], vec![status(0, 1), status(1, 1)]),
            (vec![None, None, Some(status(2, 5))], vec![status(0, 1), status(1, 1), status(2, 5)]),
        ];
        for (now, expected) in cases {
            assert_eq!(merged(&work, now), expected);
        }
    }
}
