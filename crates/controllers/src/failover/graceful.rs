//! Ends evictions: the old copy is removed once its replacement is healthy, or after a timeout.
//!
//! Watches: both kinds of bindings that have eviction tasks (any change: health is part of their status), Clusters (how many are
//!          lost).
//! Writes:  `spec.gracefulEvictionTasks` of bindings. When a task is gone, the binding controller deletes the Work.
//!
//! A replacement counts as healthy when the scheduler has placed the binding as it is now and every chosen cluster reports
//! health. Four things are more careful than upstream: a binding without any cluster has no replacement, a cluster that was healthy
//! before it got more replicas has to have them ready, for [`CATCH_UP`] at the most, how long a task waits is counted with a clock
//! that does not jump, from when this process saw the task first, and while [too many clusters are lost](super::halt) no eviction
//! ends: the replacement may not have been made at all. Time counts anew afterwards. Nor does a start end one at once that ran out
//! while nobody was there: for [`CATCH_UP`] the replacement may be placed and report.

#[cfg(test)]
mod on_server;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use api::work::{
    ClusterResourceBinding, GracefulEvictionTask, ResourceBinding, ResourceHealth, TargetCluster,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use propagation::Binding;
use propagation::status::whole_seconds;
use runtime::{Error, Guard, Key, Outcome, Reconcile};
use tokio::time::Instant;

use super::halt::Standing;
use super::{start, tell_end};
use crate::plane::both::Bindings;
use crate::plane::{Plane, StoredBinding};
use crate::table::Start;

const WORKERS: usize = 5;
/// How long a health report may lag behind the replicas that a cluster got. There is a limit because an
/// override that lowers the replicas of a cluster makes the two differ for ever.
const CATCH_UP: SignedDuration = SignedDuration::from_secs(30);

struct Controller<B> {
    bindings: Bindings<B>,
    ages: Mutex<Ages>,
}

/// How old the tasks are that this process has seen.
#[derive(Debug, Default)]
struct Ages(HashMap<Key, Vec<Sighting>>);

/// When a task was first seen.
#[derive(Debug)]
struct Sighting {
    cluster: String,
    created: Timestamp,
    /// How old it was then, by the system's clock.
    age: SignedDuration,
    at: Instant,
}

impl Ages {
    /// Returns how old each task of a binding is, and forgets those that it does not have any more. What the clock on the wall does
    /// after the first sight does not count, and neither does an outage or what was before it. At the first sight a task has
    /// [`CATCH_UP`] left.
    fn of(
        &mut self,
        key: &Key,
        tasks: &[GracefulEvictionTask],
        timeout: Duration,
        now: (Timestamp, Instant),
        standing: Standing,
    ) -> Vec<SignedDuration> {
        let mut known = self.0.remove(key).unwrap_or_default();
        let mut kept = Vec::new();
        let mut ages = Vec::new();
        for task in tasks {
            let Some(created) = task.creation_timestamp.as_ref().map(|created| created.0) else {
                ages.push(SignedDuration::ZERO);
                continue;
            };
            let same = |seen: &Sighting| seen.cluster == task.from_cluster && seen.created == created;
            let mut seen = match known.iter().position(same) {
                Some(place) => known.swap_remove(place),
                None => Sighting {
                    cluster: task.from_cluster.clone(),
                    created,
                    age: now
                        .0
                        .duration_since(created)
                        .min(patience(task, timeout).saturating_sub(CATCH_UP))
                        .max(SignedDuration::ZERO),
                    at: now.1,
                },
            };
            let anew = standing.resumed.filter(|resumed| *resumed > seen.at);
            if let Some(from) = if standing.halted { Some(now.1) } else { anew } {
                (seen.age, seen.at) = (SignedDuration::ZERO, from);
            }
            let since = now.1.saturating_duration_since(seen.at);
            ages.push(
                seen.age.saturating_add(SignedDuration::try_from(since).unwrap_or(SignedDuration::MAX)),
            );
            kept.push(seen);
        }
        if !kept.is_empty() {
            self.0.insert(key.clone(), kept);
        }
        ages
    }
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
    start(namespaced, cluster, WORKERS)
}

impl<B: StoredBinding> Controller<B> {
    fn new(plane: &Arc<Plane>) -> Arc<Self> {
        let bindings = Bindings::<B>::new(plane, component::<B>(), component::<B>());
        let is_leaving = |binding: &Arc<B>| !binding.spec().graceful_eviction_tasks.is_empty();
        // A binding without tasks is reconciled once more, and forgotten.
        bindings.push_on(move |change| {
            change.new.as_ref().is_some_and(is_leaving) || change.old.as_ref().is_some_and(is_leaving)
        });
        bindings.push_on_halt(|binding| !binding.spec().graceful_eviction_tasks.is_empty());
        Arc::new(Self { bindings, ages: Mutex::default() })
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
    /// How old each task is.
    ages: Vec<SignedDuration>,
    timeout: Duration,
    /// Too many clusters are lost.
    halted: bool,
}

/// What to do with the tasks.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// The tasks as they should be, if they differ.
    tasks: Option<Vec<GracefulEvictionTask>>,
    /// Clusters whose eviction has ended, and why.
    ended: Vec<(String, &'static str)>,
    /// Look again after this time.
    again: Option<Duration>,
}

/// What to do with one task.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Its time starts now.
    Stamp,
    /// It stays, until a user decides or for this much longer.
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
    for (task, age) in before.iter().zip(&view.ages) {
        match judge(view, task, *age) {
            Next::Stamp => {
                let second = Time(whole_seconds(now));
                after.push(GracefulEvictionTask { creation_timestamp: Some(second), ..task.clone() });
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

fn judge<B: Binding>(view: &View<B>, task: &GracefulEvictionTask, age: SignedDuration) -> Next {
    if task.creation_timestamp.is_none() {
        return Next::Stamp;
    }
    match task.suppress_deletion {
        Some(true) => return Next::Keep(None),
        Some(false) => return Next::End("its removal was confirmed"),
        None => {}
    }
    // The end of the outage enqueues the binding again.
    if view.halted {
        return Next::Keep(None);
    }
    let left = patience(task, view.timeout).saturating_sub(age);
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

/// Returns how long a task may take.
fn patience(task: &GracefulEvictionTask, timeout: Duration) -> SignedDuration {
    match task.grace_period_seconds {
        Some(seconds) => SignedDuration::from_secs(seconds.into()),
        None => SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX),
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
        let (timeout, standing) = (self.plane.failover.graceful_timeout, self.plane.halt().standing());
        let found = self.mirror.find(key);
        let tasks =
            found.as_ref().map_or(&[][..], |binding| binding.spec().graceful_eviction_tasks.as_slice());
        let ages = self.ages.lock().of(key, tasks, timeout, (Timestamp::now(), Instant::now()), standing);
        Ok(found.map(|binding| View { binding, ages, timeout, halted: standing.halted }))
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
    use crate::fixtures::{self, at, deleting, half_past, merged};

    const CREATED: &str = "1970-01-01T00:16:40Z";
    const START: i64 = 1000;
    const TIMEOUT: Duration = Duration::from_secs(600);

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
        View { binding, ages: vec![SignedDuration::ZERO], timeout: TIMEOUT, halted: false }
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
            (
                "its own time is over before the replicas are ready",
                view(task(json!({ "gracePeriodSeconds": 5 })), m2("Healthy", Some(2)), none()),
                1,
                kept(4_001),
            ),
            (
                "the cluster that it leaves is healthy",
                view(task(none()), json!({ "clusterName": "m1", "health": "Healthy" }), none()),
                1,
                kept(599_001),
            ),
            (
                "health is not known",
                view(task(none()), json!({ "clusterName": "m2", "status": { "readyReplicas": 4 } }), none()),
                1,
                kept(599_001),
            ),
            (
                "more are ready than needed",
                view(task(none()), m2("Healthy", Some(9)), none()),
                1,
                ended(replaced),
            ),
        ];
        for (name, mut view, after, expected) in cases {
            view.ages = vec![SignedDuration::from_secs(after)];
            let plan = decide(&view, at(START + after));
            let why = plan.ended.first().map(|(_, why)| *why);
            assert_eq!((plan.tasks.is_some(), why, plan.again), expected, "{name}");
            assert!(plan.tasks.is_none_or(|tasks| tasks.is_empty()), "{name}");
        }
    }

    #[test]
    fn a_clock_that_jumps_makes_no_task_older() {
        let tasks =
            |tasks: Value| -> Vec<GracefulEvictionTask> { serde_json::from_value(tasks).expect("tasks") };
        let one = tasks(json!([task(none())]));
        let (key, start, mut ages) = (Key::new("ns", "web"), Instant::now(), Ages::default());
        let mut age = |wall: i64, seconds: u64, tasks: &[GracefulEvictionTask]| {
            let now = (at(wall), start + Duration::from_secs(seconds));
            let ages = ages.of(&key, tasks, TIMEOUT, now, Standing::default());
            ages.into_iter().map(|age| age.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(age(START + 20, 0, &one), [20], "it was there before this process");
        assert_eq!(age(START + 25, 5, &one), [25]);
        assert_eq!(age(START + 99_999, 6, &one), [26], "the clock jumps ahead");
        assert_eq!(age(START - 99_999, 7, &one), [27], "and back");
        let two = tasks(json!([
            task(none()),
            task(json!({ "fromCluster": "m3" })),
            task(json!({ "creationTimestamp": null }))
        ]));
        assert_eq!(age(START + 8, 8, &two), [28, 8, 0]);
        let anew = tasks(json!([task(json!({ "creationTimestamp": "1970-01-01T00:16:47Z" }))]));
        assert_eq!(age(START + 8, 8, &anew), [1], "it leaves the cluster once more");
        assert_eq!(age(START - 8, 8, &[]), [0; 0], "all are over");
        assert_eq!(age(START - 8, 9, &one), [0], "a task from the future");
        assert_eq!(age(START - 8, 12, &one), [3]);
    }

    #[test]
    fn what_ran_out_while_nobody_was_there_is_not_over_at_once() {
        let tasks = json!([
            task(none()),
            task(json!({ "fromCluster": "m3", "gracePeriodSeconds": 10 })),
            task(json!({ "fromCluster": "m4", "gracePeriodSeconds": 99_999 })),
        ]);
        let tasks: Vec<GracefulEvictionTask> = serde_json::from_value(tasks).expect("tasks");
        let (key, start, mut ages) = (Key::new("ns", "web"), Instant::now(), Ages::default());
        let mut age = |seconds: u64| {
            let now = (at(START + 5000), start + Duration::from_secs(seconds));
            let ages = ages.of(&key, &tasks, TIMEOUT, now, Standing::default());
            ages.into_iter().map(|age| age.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(age(0), [570, 0, 5000]);
        assert_eq!(age(31), [601, 31, 5031], "now it is");
    }

    #[test]
    fn an_outage_makes_no_task_older_and_ends_none() {
        let tasks: Vec<GracefulEvictionTask> = serde_json::from_value(json!([task(none())])).expect("tasks");
        let (key, start, mut ages) = (Key::new("ns", "web"), Instant::now(), Ages::default());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut age = |seconds: u64, halted: bool, resumed: Option<u64>| {
            let standing = Standing { halted, resumed: resumed.map(after) };
            ages.of(&key, &tasks, TIMEOUT, (at(START + 400), after(seconds)), standing)[0].as_secs()
        };
        assert_eq!(age(0, false, None), 400);
        assert_eq!(age(100, false, None), 500);
        assert_eq!(age(700, true, None), 0, "what was before an outage proves nothing");
        assert_eq!(age(900, true, None), 0);
        assert_eq!(age(1300, false, Some(1200)), 100, "it counts from the end of the outage");
        assert_eq!(age(1310, false, Some(1200)), 110);
        let (mut ages, late) = (Ages::default(), Standing { halted: false, resumed: Some(start) });
        let first = ages.of(&key, &tasks, TIMEOUT, (at(START + 400), after(10)), late);
        assert_eq!(first, [SignedDuration::from_secs(400)], "an outage before the first sight is over");

        let held = |task: Value, item: Value| {
            let mut view = View { halted: true, ..view(task, item, none()) };
            view.ages = vec![SignedDuration::from_secs(9999)];
            let plan = decide(&view, at(START + 9999));
            (plan.ended.len(), plan.again)
        };
        assert_eq!(held(task(none()), m2("Unhealthy", Some(1))), (0, None), "after any time");
        assert_eq!(held(task(none()), m2("Healthy", Some(4))), (0, None), "that may be long outdated");
        let confirmed = task(json!({ "suppressDeletion": false }));
        assert_eq!(held(confirmed, m2("Unhealthy", Some(1))), (1, None), "somebody has decided");
    }

    #[test]
    fn a_new_task_begins_to_count_even_if_the_replacement_is_healthy() {
        let fresh = task(json!({ "creationTimestamp": null }));
        let plan = decide(&view(fresh, m2("Healthy", Some(4)), none()), half_past(START));
        let tasks = plan.tasks.expect("a change");
        assert_eq!(tasks[0].creation_timestamp, Some(Time(at(START))), "in whole seconds");
        assert_eq!((plan.ended.len(), plan.again), (0, None), "our own write brings us back");
    }

    #[test]
    fn each_task_of_a_binding_is_judged_for_itself() {
        let tasks = json!({ "spec": { "gracefulEvictionTasks": [
            task(json!({ "gracePeriodSeconds": 10 })),
            task(json!({ "fromCluster": "m3", "gracePeriodSeconds": 90 })),
            task(json!({ "fromCluster": "m4", "creationTimestamp": null })),
            task(json!({ "fromCluster": "m5", "suppressDeletion": true })),
            task(json!({ "fromCluster": "m6", "gracePeriodSeconds": 40 })),
            task(json!({ "fromCluster": "m7", "suppressDeletion": false })),
        ] } });
        let mut view = view(task(none()), m2("Unhealthy", None), tasks);
        view.ages = [20, 20, 0, 20, 20, 20].map(SignedDuration::from_secs).to_vec();
        let plan = decide(&view, at(START + 20));
        let ended: Vec<(&str, &str)> =
            plan.ended.iter().map(|(cluster, why)| (cluster.as_str(), *why)).collect();
        let late = "its replacement did not become healthy in time";
        assert_eq!(ended, [("m1", late), ("m7", "its removal was confirmed")]);
        let left = plan.tasks.expect("a change");
        let names: Vec<&str> = left.iter().map(|task| task.from_cluster.as_str()).collect();
        assert_eq!(names, ["m3", "m4", "m5", "m6"], "in their order");
        assert_eq!(left[1].creation_timestamp, Some(Time(at(START + 20))));
        assert_eq!(plan.again, Some(Duration::from_millis(20_001)), "the one whose time is over first");
    }

    #[test]
    fn what_is_right_is_not_written() {
        let same = decide(&view(task(none()), m2("Unhealthy", None), none()), at(START));
        assert_eq!(same.tasks, None);
    }
}
