//! Ends evictions: the old copy goes once its replacement is healthy, or when it has been waited for long enough.
//!
//! Watches: both kinds of bindings that have eviction tasks (any change: health is part of their status).
//! Writes:  `spec.gracefulEvictionTasks` of bindings. When a task is gone, the binding controller deletes the Work.
//!
//! A replacement counts as healthy when the scheduler has placed the binding as it is now and every chosen cluster reports
//! health. Two things are more careful than upstream: a binding without any cluster has no replacement, and a cluster that was
//! healthy before it got more replicas has to have them ready, for [`CATCH_UP`] at the most.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use api::work::{
    ClusterResourceBinding, GracefulEvictionTask, ResourceBinding, ResourceHealth, TargetCluster,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use propagation::Binding;
use runtime::{Error, Guard, Key, Outcome, Reconcile};

use super::tell_end;
use crate::plane::both::{self, Bindings};
use crate::plane::{Plane, StoredBinding};
use crate::table::Start;

const WORKERS: usize = 5;
/// How long a report of health may be older than the replicas that a cluster got. An override that lowers the replicas
/// of a cluster makes the two differ forever.
const CATCH_UP: SignedDuration = SignedDuration::from_secs(30);

struct Controller<B> {
    bindings: Bindings<B>,
}

impl<B> Deref for Controller<B> {
    type Target = Bindings<B>;

    fn deref(&self) -> &Bindings<B> {
        &self.bindings
    }
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let namespaced = Controller::<ResourceBinding>::new(plane);
    let cluster = Controller::<ClusterResourceBinding>::new(plane);
    Box::new(move || both::run(&namespaced, &cluster, WORKERS))
}

impl<B: StoredBinding> Controller<B> {
    fn new(plane: &Arc<Plane>) -> Arc<Self> {
        let bindings = Bindings::<B>::new(plane, component::<B>(), component::<B>());
        let is_leaving = |binding: &Arc<B>| !binding.spec().graceful_eviction_tasks.is_empty();
        bindings.push_on(move |change| change.new.as_ref().is_some_and(is_leaving));
        Arc::new(Self { bindings })
    }
}

fn component<B: Binding>() -> &'static str {
    if B::NAMESPACED {
        "resource-binding-graceful-eviction-controller"
    } else {
        "cluster-resource-binding-graceful-eviction-controller"
    }
}

/// A binding with tasks, and how long a task may take if it does not say so itself.
pub(crate) struct View<B> {
    binding: Arc<B>,
    timeout: Duration,
}

/// What becomes of the tasks.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// The tasks as they should be, if that is not as they are.
    tasks: Option<Vec<GracefulEvictionTask>>,
    /// Clusters that have been left, and why that is over.
    ended: Vec<(String, &'static str)>,
    /// Look again after this time.
    again: Option<Duration>,
}

/// What becomes of one task.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// It begins to count.
    Stamp,
    /// It stays, until somebody decides or for this much longer.
    Keep(Option<SignedDuration>),
    End(&'static str),
}

fn decide<B: Binding>(view: &View<B>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if view.binding.metadata().deletion_timestamp.is_some() {
        return plan;
    }
    let before = &view.binding.spec().graceful_eviction_tasks;
    let mut after = Vec::new();
    let mut again: Option<SignedDuration> = None;
    for task in before {
        match judge(view, task, now) {
            Next::Stamp => {
                let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
                after.push(GracefulEvictionTask { creation_timestamp: Some(Time(second)), ..task.clone() });
            }
            Next::Keep(left) => {
                after.push(task.clone());
                again = again.into_iter().chain(left).min();
            }
            Next::End(why) => plan.ended.push((task.from_cluster.clone(), why)),
        }
    }
    plan.again = again.map(SignedDuration::unsigned_abs);
    plan.tasks = (after != *before).then_some(after);
    plan
}

fn judge<B: Binding>(view: &View<B>, task: &GracefulEvictionTask, now: Timestamp) -> Next {
    let Some(created) = &task.creation_timestamp else { return Next::Stamp };
    match task.suppress_deletion {
        Some(true) => return Next::Keep(None),
        Some(false) => return Next::End("its removal was confirmed"),
        None => {}
    }
    let age = now.duration_since(created.0);
    let patience = match task.grace_period_seconds {
        Some(seconds) => SignedDuration::from_secs(seconds.into()),
        None => SignedDuration::try_from(view.timeout).unwrap_or(SignedDuration::MAX),
    };
    let left = patience.saturating_sub(age);
    if left.is_negative() {
        return Next::End("its replacement did not become healthy in time");
    }
    match replaced(view.binding.as_ref(), age) {
        Replaced::Yes => Next::End("its replacement is healthy"),
        Replaced::No => Next::Keep(Some(left.saturating_add(SignedDuration::from_millis(1)))),
        Replaced::After(wait) => {
            Next::Keep(Some(wait.min(left.saturating_add(SignedDuration::from_millis(1)))))
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Replaced {
    Yes,
    No,
    /// Yes after this time, if nothing else is reported until then.
    After(SignedDuration),
}

fn replaced<B: Binding>(binding: &B, age: SignedDuration) -> Replaced {
    let (spec, status) = (binding.spec(), binding.status());
    let placed = Some(status.scheduler_observed_generation) == binding.metadata().generation;
    if !placed || spec.clusters.is_empty() {
        return Replaced::No;
    }
    let report = |target: &TargetCluster| {
        status.aggregated_status.iter().find(|item| item.cluster_name == target.name)
    };
    let healthy = |target: &TargetCluster| {
        report(target).is_some_and(|item| item.health == Some(ResourceHealth::Healthy))
    };
    if !spec.clusters.iter().all(healthy) {
        return Replaced::No;
    }
    let caught_up = |target: &TargetCluster| {
        let ready = report(target).and_then(|item| item.status.as_ref()?.get("readyReplicas")?.as_i64());
        ready.is_none_or(|ready| ready >= i64::from(target.replicas))
    };
    let wait = CATCH_UP.saturating_sub(age);
    if spec.clusters.iter().all(caught_up) || !wait.is_positive() {
        Replaced::Yes
    } else {
        Replaced::After(wait)
    }
}

impl<B: StoredBinding> Reconcile for Controller<B> {
    type Key = Key;
    type View = View<B>;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View<B>>, Error> {
        let timeout = self.plane.failover.graceful_timeout;
        Ok(self.mirror.find(key).map(|binding| View { binding, timeout }))
    }

    fn decide(view: &View<B>, now: Timestamp) -> Plan {
        decide(view, now)
    }

    async fn apply(&self, _: &Key, view: View<B>, plan: Plan) -> Result<Outcome, Error> {
        let binding = view.binding.as_ref();
        if let Some(tasks) = plan.tasks {
            let mut left = binding.clone();
            left.spec_mut().graceful_eviction_tasks = tasks;
            let written =
                self.plane.writer.update_mirrored(&self.mirror, binding, &left, Guard::Version).await;
            for (cluster, why) in &plan.ended {
                let result = written.as_ref().map(|_| *why);
                tell_end(&self.plane.events, component::<B>(), binding, cluster, result);
            }
            written?;
        }
        Ok(plan.again.map_or(Outcome::Done, Outcome::After))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, at, deleting, merged};

    const CREATED: &str = "1970-01-01T00:16:40Z";
    const START: i64 = 1000;

    fn task(otherwise: Value) -> Value {
        let base =
            json!({ "fromCluster": "m1", "reason": "R", "producer": "P", "creationTimestamp": CREATED });
        merged(base, otherwise)
    }

    /// A binding that leaves m1, placed in m2, which reports this.
    fn view(task: Value, item: Value, otherwise: Value) -> View<ResourceBinding> {
        let base = json!({
            "spec": { "gracefulEvictionTasks": [task], "clusters": [{ "name": "m2", "replicas": 4 }] },
            "status": { "schedulerObservedGeneration": 1, "aggregatedStatus": [item] },
        });
        let binding = Arc::new(fixtures::binding(merged(base, otherwise)));
        View { binding, timeout: Duration::from_secs(600) }
    }

    fn m2(health: &str, ready: Option<i64>) -> Value {
        json!({ "clusterName": "m2", "health": health, "status": { "readyReplicas": ready } })
    }

    fn none() -> Value {
        json!({})
    }

    #[test]
    fn when_an_eviction_ends() {
        let healthy = || m2("Healthy", Some(4));
        let unhealthy = || m2("Unhealthy", Some(1));
        let ended = |why: &'static str| (true, Some(why), None);
        let kept = |millis: u64| (false, None, Some(Duration::from_millis(millis)));
        let stays = (false, None, None);
        let moved = json!({ "metadata": { "generation": 2 } });
        let nowhere = json!({ "spec": { "clusters": [] } });
        let two = json!({ "spec": { "clusters": [{ "name": "m2" }, { "name": "m3" }] } });
        let (replaced, late) =
            ("its replacement is healthy", "its replacement did not become healthy in time");
        let suppressed = |suppress: bool| task(json!({ "suppressDeletion": suppress }));
        let short = || task(json!({ "gracePeriodSeconds": 60 }));
        let cases = [
            ("the replacement is healthy", view(task(none()), healthy(), none()), 1, ended(replaced)),
            ("it is not", view(task(none()), unhealthy(), none()), 1, kept(599_001)),
            ("nor after the time", view(task(none()), unhealthy(), none()), 601, ended(late)),
            ("at the very time it stays", view(task(none()), unhealthy(), none()), 600, kept(1)),
            ("the task has a time of its own", view(short(), unhealthy(), none()), 61, ended(late)),
            ("and it is not over", view(short(), unhealthy(), none()), 59, kept(1_001)),
            ("not placed as it is now", view(task(none()), healthy(), moved), 1, kept(599_001)),
            ("no cluster fits", view(task(none()), healthy(), nowhere), 1, kept(599_001)),
            ("one of two reports", view(task(none()), healthy(), two), 1, kept(599_001)),
            (
                "more replicas than ready",
                view(task(none()), m2("Healthy", Some(2)), none()),
                10,
                kept(20_000),
            ),
            ("for too long", view(task(none()), m2("Healthy", Some(2)), none()), 30, ended(replaced)),
            ("a kind without replicas", view(task(none()), m2("Healthy", None), none()), 1, ended(replaced)),
            ("kept until somebody decides", view(suppressed(true), healthy(), none()), 9999, stays),
            (
                "confirmed",
                view(suppressed(false), unhealthy(), none()),
                1,
                ended("its removal was confirmed"),
            ),
            ("the binding goes", view(task(none()), healthy(), deleting()), 1, stays),
        ];
        for (name, view, after, expected) in cases {
            let plan = decide(&view, at(START + after));
            let why = plan.ended.first().map(|(_, why)| *why);
            assert_eq!((plan.tasks.is_some(), why, plan.again), expected, "{name}");
            assert!(plan.tasks.is_none_or(|tasks| tasks.is_empty()), "{name}");
        }
    }

    #[test]
    fn a_new_task_begins_to_count_even_if_the_replacement_is_healthy() {
        let fresh = task(json!({ "creationTimestamp": null }));
        let plan = decide(&view(fresh, m2("Healthy", Some(4)), none()), at(START));
        let tasks = plan.tasks.expect("a change");
        assert_eq!(tasks[0].creation_timestamp, Some(Time(at(START))));
        assert_eq!((plan.ended.len(), plan.again), (0, None), "our own write brings us back");
    }

    #[test]
    fn what_is_right_is_not_written() {
        let same = decide(&view(task(none()), m2("Unhealthy", None), none()), at(START));
        assert_eq!(same.tasks, None);
    }
}
