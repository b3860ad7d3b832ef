//! Brings the state of managed objects back into their Work.
//!
//! Watches: managed objects in the members (their marks name the Work), Works that have been applied.
//! Writes:  Work.status.manifestStatuses.
//!
//! The answer to our own write is reported by the execution controller, along with its conditions.
//!
//! `work-status-controller`, `workStatus` in `--controllers`. An object that has vanished leaves its last state in
//! place, as upstream.

use std::sync::Arc;

use api::conditions::work as conditions;
use api::labels::annotations::{WORK_NAME, WORK_NAMESPACE};
use api::work::{ManifestStatus, ResourceHealth, Work};
use api::{events, names};
use member::Member;
use propagation::{Object, status};
use runtime::Key;
use serde_json::{Value, json};

use runtime::{Outcome, UNLIMITED};

use super::{Shared, Start, work_of};

const COMPONENT: &str = "work-status-controller";

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    let of = shared.clone();
    shared.mirrors.works.subscribe(move |change| {
        let Some(new) = change.new.as_deref() else { return };
        // The execution controller that has applied it has reported its state along with that.
        let reported = change.ours && of.enabled.execution;
        if !reported && is_applied(new) && !change.old.as_deref().is_some_and(is_applied) {
            of.reports.push(change.key.clone());
        }
    });
    // The members must not keep alive what keeps them alive.
    let weak = Arc::downgrade(shared);
    shared.members.observe(Arc::new(move |change| {
        let Some(of) = weak.upgrade() else { return };
        let reported = change.ours && of.enabled.execution;
        if !reported
            && change.new.is_some()
            && let Some(work) = work_of(change)
        {
            of.reports.push(work);
        }
    }));
    let of = shared.clone();
    Box::new(move || {
        let (supervisor, queue) = (of.supervisor.clone(), of.reports.clone());
        queue.spawn(UNLIMITED, &supervisor, move |key: Key| {
            let of = of.clone();
            async move { reconcile(&of, &key).await }
        });
    })
}

fn is_applied(work: &Work) -> bool {
    work.status
        .conditions
        .iter()
        .any(|condition| condition.type_ == conditions::APPLIED && condition.status == "True")
}

async fn reconcile(shared: &Arc<Shared>, key: &Key) -> Outcome {
    if let Some(left) = shared.throttle.wait(key) {
        return Outcome::After(left);
    }
    let Some(work) = shared.mirrors.works.find(key) else { return Outcome::Done };
    let Some(cluster) = names::cluster_of_execution_space(&key.namespace) else { return Outcome::Done };
    if work.metadata.deletion_timestamp.is_some() || shared.my_cluster(cluster).is_none() {
        return Outcome::Done;
    }
    // A new connection takes up all Works of its cluster.
    let Some(member) = shared.members.get(cluster) else { return Outcome::Done };
    let observed = observe(shared, &member, key, &work).await;
    let Some(reports) = reports(shared, &work, &observed) else { return Outcome::Retry };
    if reports == work.status.manifest_statuses {
        return Outcome::Done;
    }
    let patch = json!({ "status": { "manifestStatuses": reports } });
    match shared.writer.patch_status(work.as_ref(), patch).await {
        Ok(answer) => {
            say(shared, &work, &reports);
            shared.mirrors.works.note(answer);
            shared.throttle.wrote(key);
            Outcome::Done
        }
        Err(error) if error.is_not_found() => Outcome::Done,
        Err(error) if error.is_conflict() => Outcome::Retry,
        Err(error) => {
            tracing::warn!(controller = COMPONENT, object = %key, %error, "cannot write the status");
            Outcome::Retry
        }
    }
}

/// The state of a Work's objects that is not in the Work yet.
pub(super) struct News {
    pub(super) reports: Vec<ManifestStatus>,
    /// How new what we know of each object was.
    revisions: Vec<u64>,
}

/// Returns the state of a Work's objects if it is not in the Work yet. What cannot be interpreted is left to
/// [`reconcile`], which tries again.
pub(super) async fn news(shared: &Shared, member: &Member, key: &Key, work: &Work) -> Option<News> {
    let revisions = revisions(shared, member, work).await;
    let observed = observe(shared, member, key, work).await;
    match reports(shared, work, &observed) {
        Some(reports) => (reports != work.status.manifest_statuses).then_some(News { reports, revisions }),
        None => {
            shared.reports.push(key.clone());
            None
        }
    }
}

/// Called when news has been written: something newer may have come between the look and the write.
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
        // A copy that is still being filled reports each of its objects when it has it.
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
fn reports(shared: &Shared, work: &Work, observed: &[Option<Arc<Value>>]) -> Option<Vec<ManifestStatus>> {
    let mut reports = Vec::new();
    for (ordinal, object) in observed.iter().enumerate() {
        let Some(object) = object else {
            let known = |status: &&ManifestStatus| usize::try_from(status.identifier.ordinal) == Ok(ordinal);
            reports.extend(work.status.manifest_statuses.iter().find(known).cloned());
            continue;
        };
        match status::report(work, object, &shared.interpreter) {
            Ok(report) => {
                if let Some(error) = report.health_error {
                    let message =
                        format!("Interpret health of object({}) failed, err: {error}.", path(object));
                    shared.events.say(COMPONENT, work, events::INTERPRET_HEALTH_FAILED, message);
                }
                reports.push(report.status);
            }
            Err(error) => {
                let message = format!("Reflect status for object({}) failed, err: {error}.", path(object));
                shared.events.say(COMPONENT, work, events::REFLECT_STATUS_FAILED, message);
                return None;
            }
        }
    }
    Some(reports)
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
