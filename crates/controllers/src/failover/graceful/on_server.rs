//! The end of evictions, on a server.

use http::Method;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{cluster, merged};
use crate::world::{World, drain};
use crate::{Settings, failover};

const WRITTEN: &str = "PATCH */resourcebindings/web-configmap";

/// A controller of one kind of bindings, and a binding that leaves m1.
struct Test<B> {
    world: World,
    controller: Arc<Controller<B>>,
    key: Key,
}

impl Test<ResourceBinding> {
    async fn new(otherwise: Value) -> Self {
        Self::with(Settings::default(), otherwise).await
    }

    async fn with(settings: Settings, otherwise: Value) -> Self {
        let world = World::with(settings).await;
        let controller = Controller::new(&world.plane);
        let binding = world.binding(merged(leaving(&[task("m1")]), otherwise)).await;
        Self { key: Key::of(binding.as_ref()), world, controller }
    }
}

impl<B: StoredBinding> Test<B> {
    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.key).await
    }

    fn known(&self) -> Arc<B> {
        self.controller.mirror.find(&self.key).expect("the mirror knows it")
    }

    /// Changes the binding, and the mirror takes the change in.
    async fn change(&self, patch: Value) {
        self.controller.mirror.note(self.world.patch(self.known().as_ref(), patch).await);
    }

    /// Changes the status of the binding, and the mirror takes the change in.
    async fn report(&self, status: Value) {
        self.controller.mirror.note(self.world.patch_status(self.known().as_ref(), status).await);
    }

    /// The clusters that the binding still leaves, as the server has it.
    async fn leaves(&self) -> Vec<String> {
        let stored = self.world.stored(self.known().as_ref()).await.expect("it exists");
        stored.spec().graceful_eviction_tasks.iter().map(|task| task.from_cluster.clone()).collect()
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

/// A task that has just begun.
fn task(cluster: &str) -> Value {
    let now = Timestamp::from_second(Timestamp::now().as_second()).expect("a time").to_string();
    json!({ "fromCluster": cluster, "reason": "R", "producer": "P", "creationTimestamp": now })
}

/// A binding with these tasks that is placed in m2, which does not report yet.
fn leaving(tasks: &[Value]) -> Value {
    json!({
        "spec": { "gracefulEvictionTasks": tasks, "clusters": [{ "name": "m2" }] },
        "status": { "schedulerObservedGeneration": 1 },
    })
}

fn healthy() -> Value {
    json!({ "aggregatedStatus": [{ "clusterName": "m2", "health": "Healthy" }] })
}

#[track_caller]
fn waits_for_its_time(outcome: Outcome) {
    let Outcome::After(wait) = outcome else { panic!("it waits: {outcome:?}") };
    let (least, most) = (Duration::from_secs(540), Duration::from_millis(600_001));
    assert!(wait > least && wait <= most, "{wait:?}");
}

#[tokio::test]
async fn an_eviction_ends_when_the_replacement_is_healthy() {
    let test = Test::new(json!({})).await;
    test.world.writes();
    waits_for_its_time(test.once().await);
    assert_eq!(test.world.writes(), [""; 0], "m2 does not report yet");
    test.report(json!({ "aggregatedStatus": [{ "clusterName": "m2", "health": "Unhealthy" }] })).await;
    waits_for_its_time(test.once().await);
    assert_eq!(test.leaves().await, ["m1"]);

    test.report(healthy()).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [WRITTEN]);
    assert_eq!(test.leaves().await, [""; 0]);
    let stored = test.world.stored(test.known().as_ref()).await.expect("it exists");
    assert_eq!(stored.spec.clusters.len(), 1, "the placement is the scheduler's");
    let told = test.world.event("EvictWorkloadFromClusterSucceed").await;
    assert_eq!(told, "Evict from cluster m1 succeed: its replacement is healthy.");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert!(test.controller.ages.lock().0.is_empty(), "a task that is over is forgotten");
    test.end().await;
}

#[tokio::test]
async fn a_replacement_that_does_not_come_is_not_waited_for_for_ever() {
    // All tasks of this process may take no time at all.
    let failover = failover::Settings { graceful_timeout: Duration::ZERO, ..failover::Settings::default() };
    let patient = merged(task("m3"), json!({ "gracePeriodSeconds": 3600 }));
    let tasks = leaving(&[task("m1"), patient]);
    let test = Test::with(Settings { failover, ..Settings::default() }, tasks).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::After(Duration::from_millis(1)), "not at the first sight");
    assert_eq!(test.world.writes(), [""; 0]);
    tokio::time::sleep(Duration::from_millis(2)).await;
    let Outcome::After(wait) = test.once().await else { panic!("m3 has more time") };
    assert!(wait > Duration::from_secs(3000), "{wait:?}");
    assert_eq!(test.world.writes(), [WRITTEN]);
    assert_eq!(test.leaves().await, ["m3"]);
    let told = test.world.event("EvictWorkloadFromClusterSucceed").await;
    assert_eq!(told, "Evict from cluster m1 succeed: its replacement did not become healthy in time.");
    test.end().await;
}

#[tokio::test]
async fn a_task_without_a_time_gets_one() {
    let undated = merged(task("m1"), json!({ "creationTimestamp": null }));
    let test = Test::new(leaving(&[undated])).await;
    test.report(healthy()).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done, "our own write brings us back");
    assert_eq!(test.world.writes(), [WRITTEN]);
    let stored = test.world.stored(test.known().as_ref()).await.expect("it exists");
    assert!(stored.spec.graceful_eviction_tasks[0].creation_timestamp.is_some());
    assert_eq!(test.known().spec.graceful_eviction_tasks, stored.spec.graceful_eviction_tasks);
    waits_for_its_time(test.once().await);
    assert_eq!(test.world.writes(), [""; 0], "the scheduler has not seen the binding as it is now");
    let generation = stored.metadata.generation.expect("a generation");
    test.report(json!({ "schedulerObservedGeneration": generation })).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.leaves().await, [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn what_a_user_decides_counts() {
    let asked = merged(task("m1"), json!({ "suppressDeletion": true }));
    let test = Test::new(leaving(&[asked])).await;
    test.report(healthy()).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done, "it waits for the user, however healthy the replacement is");
    assert_eq!(test.world.writes(), [""; 0]);
    let confirmed = merged(task("m1"), json!({ "suppressDeletion": false }));
    test.change(json!({ "spec": { "gracefulEvictionTasks": [confirmed] } })).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [WRITTEN]);
    assert_eq!(test.leaves().await, [""; 0]);
    let told = test.world.event("EvictWorkloadFromClusterSucceed").await;
    assert_eq!(told, "Evict from cluster m1 succeed: its removal was confirmed.");
    test.end().await;
}

#[tokio::test]
async fn a_task_that_another_controller_adds_meanwhile_is_kept() {
    let test = Test::new(json!({})).await;
    test.report(healthy()).await;
    // The binding also leaves m3, of which the mirror has not heard yet.
    let both = json!({ "spec": { "gracefulEvictionTasks": [task("m1"), task("m3")] } });
    let changed = test.world.patch(test.known().as_ref(), both).await;
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    assert_eq!(test.leaves().await, ["m1", "m3"]);
    let generation = changed.metadata.generation;
    test.controller.mirror.note(changed);
    test.report(json!({ "schedulerObservedGeneration": generation })).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.leaves().await, [""; 0], "m2 replaces both");
    test.world.event("EvictWorkloadFromClusterSucceed").await;
    assert!(!test.world.was_told("EvictWorkloadFromClusterFailed"), "a conflict is not for users");
    test.end().await;
}

#[tokio::test]
async fn a_write_that_is_refused_is_told_and_made_again() {
    let test = Test::new(json!({})).await;
    test.report(healthy()).await;
    test.world.refuse(Method::PATCH, "/resourcebindings/web-configmap", 403, "Forbidden");
    let refused = Outcome::Failed { error: "refused: Forbidden".to_owned(), conflict: false };
    assert_eq!(test.once().await, refused);
    let told = test.world.event("EvictWorkloadFromClusterFailed").await;
    assert_eq!(told, "Evict from cluster m1 failed: refused: Forbidden.");
    assert!(!test.world.was_told("EvictWorkloadFromClusterSucceed"));
    assert_eq!(test.leaves().await, ["m1"]);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.leaves().await, [""; 0]);
    test.world.event("EvictWorkloadFromClusterSucceed").await;
    test.end().await;
}

#[tokio::test]
async fn workloads_without_a_namespace_leave_in_the_same_way() {
    let world = World::new().await;
    let controller = Controller::<ClusterResourceBinding>::new(&world.plane);
    let base = json!({
        "metadata": { "name": world.own("reader-clusterrole") },
        "spec": { "resource": {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": world.own("reader"),
        } },
    });
    let object = merged(merged(base, leaving(&[task("m1")])), json!({ "status": healthy() }));
    let binding = world.put(&world.environment.mirrors.cluster_bindings, object).await;
    let test = Test { key: Key::of(binding.as_ref()), world, controller };
    assert_eq!(drain(&test.controller.queue), std::slice::from_ref(&test.key));
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["PATCH clusterresourcebindings/*-reader-clusterrole"]);
    assert_eq!(test.leaves().await, [""; 0]);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    drain(&test.controller.queue);
    let told = test.world.panicked(&test.controller.queue, test.key.clone()).await;
    let expected =
        "cluster-resource-binding-graceful-eviction-controller panicked and tries again later: by accident";
    assert_eq!(told, expected);
    test.end().await;
}

#[tokio::test]
async fn an_outage_holds_the_end_and_its_own_end_brings_the_binding_back() {
    let test = Test::new(json!({})).await;
    let mut version = 0;
    let mut report = |ready: &str| {
        for name in ["m1", "m2", "m3"] {
            version += 1;
            let cluster = Arc::new(cluster(name, ready, json!({})));
            test.world.environment.mirrors.clusters.put(&Key::new("", name), &version.to_string(), cluster);
        }
    };
    report("Unknown");
    test.report(healthy()).await;
    drain(&test.controller.queue);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done, "nothing is due until the outage is over");
    assert_eq!(test.world.writes(), [""; 0], "what m2 reported may be long outdated");
    report("True");
    assert_eq!(drain(&test.controller.queue), std::slice::from_ref(&test.key));
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [WRITTEN]);
    assert_eq!(test.leaves().await, [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_is_deleted_or_unknown_is_left_alone() {
    let test = Test::new(json!({ "metadata": { "finalizers": ["example.io/held"] } })).await;
    test.report(healthy()).await;
    test.controller.mirror.note(test.world.let_go(test.known().as_ref()).await);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    let unknown = Key::new(test.world.namespace.clone(), "unknown");
    assert_eq!(test.world.once(test.controller.as_ref(), &unknown).await, Outcome::Done);
    test.end().await;
}

#[tokio::test]
async fn what_brings_a_binding_up() {
    let test = Test::new(json!({ "spec": { "gracefulEvictionTasks": null } })).await;
    let taken = || drain(&test.controller.queue);
    assert!(taken().is_empty(), "it leaves no cluster");
    test.report(healthy()).await;
    assert!(taken().is_empty());
    test.change(json!({ "spec": { "gracefulEvictionTasks": [task("m1")] } })).await;
    assert_eq!(taken(), std::slice::from_ref(&test.key), "it leaves one");
    waits_for_its_time(test.once().await);
    assert_eq!(test.controller.ages.lock().0.len(), 1);
    test.report(json!({ "aggregatedStatus": null })).await;
    assert_eq!(taken(), std::slice::from_ref(&test.key), "any report counts meanwhile");
    test.change(json!({ "spec": { "gracefulEvictionTasks": null } })).await;
    assert_eq!(taken(), std::slice::from_ref(&test.key), "its tasks are gone");
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.controller.ages.lock().0.is_empty(), "they are forgotten");

    test.change(json!({ "spec": { "gracefulEvictionTasks": [task("m1")] } })).await;
    waits_for_its_time(test.once().await);
    drain(&test.controller.queue);
    test.controller.mirror.remove(&test.key, 0);
    assert_eq!(taken(), std::slice::from_ref(&test.key), "it is gone itself");
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.controller.ages.lock().0.is_empty());
    test.end().await;
}
