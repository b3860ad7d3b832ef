//! The scheduler around its decisions, on a server: what is written, what is tried again, who is woken.

use http::Method;
use runtime::Turns;
use scheduler::queue::Item;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::Settings as Crate;
use crate::fixtures::merged;
use crate::world::World;

struct Test {
    world: World,
    controller: Arc<Controller>,
}

impl Test {
    async fn new() -> Self {
        Self::with(Crate::default()).await
    }

    async fn with(settings: Crate) -> Self {
        let world = World::with(settings).await;
        let controller = subscribed(&world.plane);
        Self { world, controller }
    }

    /// Creates a binding that is placed where it is wanted.
    async fn binding(&self, otherwise: Value) -> Arc<ResourceBinding> {
        let base = json!({
            "metadata": { "labels": { "propagationpolicy.karmada.io/permanent-id": "p" } }, "spec": { "placement": {} },
        });
        self.world.binding(merged(base, otherwise)).await
    }

    async fn once(&self, binding: &ResourceBinding) -> Outcome {
        self.world.once(self.controller.as_ref(), &Key::of(binding)).await
    }

    /// Takes everything out of the queue; returns the keys in order.
    fn queued(&self) -> Vec<String> {
        let mut keys = Vec::new();
        let mut turns = self.controller.turns.lock();
        while let Some(item) = turns.queue.pop() {
            keys.push(item.key.replace(&self.world.namespace, "*"));
            turns.queue.done(item, scheduler::outcome::Retry::Never, Timestamp::now());
        }
        keys
    }

    async fn stored(&self, binding: &ResourceBinding) -> ResourceBinding {
        self.world.stored(binding).await.expect("it exists")
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

fn clusters(binding: &ResourceBinding) -> Vec<&str> {
    binding.spec.clusters.iter().map(|target| target.name.as_str()).collect()
}

fn scheduled(binding: &ResourceBinding) -> (&str, &str) {
    let condition = binding.status.conditions.iter().find(|condition| condition.type_ == "Scheduled");
    condition.map_or(("", ""), |condition| (condition.status.as_str(), condition.reason.as_str()))
}

fn only(clusters: &[&str]) -> Value {
    json!({ "spec": { "placement": { "clusterAffinity": { "clusterNames": clusters } } } })
}

const SPEC: &str = "PATCH */resourcebindings/web-configmap";
const STATUS: &str = "PATCH */resourcebindings/web-configmap/status";

#[tokio::test]
async fn a_result_is_written_once_with_its_condition_and_event() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let binding = test.binding(json!({})).await;
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [SPEC, STATUS]);
    let stored = test.stored(&binding).await;
    assert_eq!(clusters(&stored), [m1.as_str()]);
    assert_eq!(scheduled(&stored), ("True", "Success"));
    assert_eq!(Some(stored.status.scheduler_observed_generation), stored.metadata.generation);
    assert!(test.world.event("ScheduleBindingSucceed").await.contains(&m1));
    let told = test.controller.settings.diagnoses.explain(&test.world.namespace, "web-configmap");
    assert_eq!(told.expect("a decision").reason, "Success");

    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "it is as wanted");
    test.end().await;
}

#[tokio::test]
async fn no_cluster_that_fits_is_said_and_clears_the_result() {
    let test = Test::new().await;
    test.world.cluster("m1", json!({})).await;
    let elsewhere = merged(only(&["nowhere"]), json!({ "spec": { "clusters": [{ "name": "m9" }] } }));
    let binding = test.binding(elsewhere).await;
    assert_eq!(test.once(&binding).await, Outcome::Done, "a cluster that comes wakes it");
    let stored = test.stored(&binding).await;
    assert!(clusters(&stored).is_empty());
    assert_eq!(scheduled(&stored), ("False", "NoClusterFit"));
    assert_eq!(stored.status.scheduler_observed_generation, 0);
    assert!(test.world.event("ScheduleBindingFailed").await.contains("0/1 clusters are available"));
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "the same failure is not news");
    test.end().await;
}

#[tokio::test]
async fn who_was_faster_is_asked_and_the_decision_made_anew() {
    let test = Test::new().await;
    let (m1, m2) = (test.world.cluster("m1", json!({})).await, test.world.cluster("m2", json!({})).await);
    let binding = test.binding(only(&[&m1])).await;
    // The mirror does not know yet that the placement is another one.
    test.world.patch(binding.as_ref(), only(&[&m2])).await;
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [SPEC, SPEC, STATUS]);
    assert_eq!(clusters(&test.stored(&binding).await), [m2.as_str()]);
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_vanished_is_left_alone() {
    let test = Test::new().await;
    test.world.cluster("m1", json!({})).await;
    let binding = test.binding(json!({})).await;
    let api = test.world.api::<ResourceBinding>(&test.world.namespace);
    api.delete("web-configmap", &kube::api::DeleteParams::default()).await.expect("deleted");
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    test.world.environment.mirrors.bindings.remove(&Key::of(binding.as_ref()), 0);
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert!(test.queued().is_empty());
    test.end().await;
}

#[tokio::test]
async fn what_the_api_refuses_is_said_in_the_condition_and_tried_again() {
    let test = Test::new().await;
    test.world.cluster("m1", json!({})).await;
    let binding = test.binding(json!({})).await;
    test.world.refuse(Method::PATCH, "/resourcebindings/web-configmap", 403, "QuotaExceeded");
    assert_eq!(test.once(&binding).await, Outcome::Retry);
    let stored = test.stored(&binding).await;
    assert_eq!(scheduled(&stored), ("False", "QuotaExceeded"));
    assert!(clusters(&stored).is_empty());
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(scheduled(&test.stored(&binding).await), ("True", "Success"));
    test.end().await;
}

#[tokio::test]
async fn a_condition_that_cannot_be_written_is_written_later() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let binding = test.binding(json!({})).await;
    test.world.refuse(Method::PATCH, "/resourcebindings/web-configmap/status", 500, "InternalError");
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert_eq!(clusters(&test.stored(&binding).await), [m1.as_str()]);
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [STATUS]);
    assert_eq!(scheduled(&test.stored(&binding).await), ("True", "Success"));
    test.end().await;
}

#[tokio::test]
async fn what_needs_no_decision() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let bare = test.world.binding(json!({})).await;
    test.world.writes();
    assert_eq!(test.once(&bare).await, Outcome::Retry, "it has no placement");
    assert_eq!(test.world.writes(), [""; 0]);

    // A divided workload that is placed as it should be, and whose generation was not noted.
    let divided = json!({ "replicaScheduling": { "replicaSchedulingType": "Divided" } });
    let placement: api::policy::Placement = crate::fixtures::read(divided.clone());
    let placed = test.world.binding(json!({
        "metadata": { "name": "web-deployment", "annotations": {
            "policy.karmada.io/applied-placement": api::go_json(&placement),
        } },
        "spec": { "placement": divided, "replicas": 2, "clusters": [{ "name": m1, "replicas": 2 }] },
    }));
    let placed = placed.await;
    test.world.writes();
    assert_eq!(test.once(&placed).await, Outcome::Done);
    assert_eq!(test.world.writes(), ["PATCH */resourcebindings/web-deployment/status"]);
    let stored = test.stored(&placed).await;
    assert_eq!(Some(stored.status.scheduler_observed_generation), stored.metadata.generation);
    assert_eq!(test.once(&placed).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert_eq!(test.world.once(test.controller.as_ref(), &Key::new("", "unknown")).await, Outcome::Done);
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_goes_is_told_of_and_not_placed() {
    let test = Test::new().await;
    test.world.cluster("m1", json!({})).await;
    let binding = test.binding(json!({ "metadata": { "finalizers": ["example.io/held"] } })).await;
    let api = test.world.api::<ResourceBinding>(&test.world.namespace);
    api.delete("web-configmap", &kube::api::DeleteParams::default()).await.expect("told to go");
    test.world.environment.mirrors.bindings.note(test.stored(&binding).await);
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert!(
        test.world.event("ScheduleBindingFailed").await.starts_with("skip schedule deleting resourceBinding")
    );
    assert!(clusters(&test.stored(&binding).await).is_empty());
    test.end().await;
}

#[tokio::test]
async fn cluster_wide_bindings_are_placed_as_well() {
    let test = Test::new().await;
    let (m1, name) = (test.world.cluster("m1", json!({})).await, test.world.own("role"));
    let binding: Arc<ClusterResourceBinding> = test
        .world
        .put(
            &test.world.environment.mirrors.cluster_bindings,
            json!({ "metadata": { "name": name, "labels": {
                "clusterpropagationpolicy.karmada.io/permanent-id": "c",
            } }, "spec": { "placement": {}, "resource": {
                "apiVersion": "v1", "kind": "ConfigMap", "name": "role",
            } } }),
        )
        .await;
    assert_eq!(test.queued(), ["*-role"]);
    let key = Key::of(binding.as_ref());
    // Somebody was faster here, too.
    test.world.patch(binding.as_ref(), json!({ "metadata": { "labels": { "touched": "yes" } } })).await;
    assert_eq!(test.world.once(test.controller.as_ref(), &key).await, Outcome::Done);
    let stored = test.world.stored(binding.as_ref()).await.expect("it exists");
    assert_eq!(stored.spec.clusters[0].name, m1);
    test.end().await;
}

#[tokio::test]
async fn which_changes_of_a_binding_bring_it_up() {
    let test = Test::new().await;
    let mirror = &test.world.environment.mirrors.bindings;
    let binding = test.binding(json!({})).await;
    assert_eq!(test.queued(), ["*/web-configmap"], "it is new");
    let labelled =
        test.world.patch(binding.as_ref(), json!({ "metadata": { "labels": { "a": "b" } } })).await;
    mirror.note(labelled);
    assert_eq!(test.queued(), [""; 0], "its generation did not move");
    mirror.note(test.world.patch(binding.as_ref(), only(&["m9"])).await);
    assert_eq!(test.queued(), ["*/web-configmap"], "its placement changed");
    let other = json!({ "metadata": { "name": "other" }, "spec": { "schedulerName": "somebody-else" } });
    test.binding(other).await;
    assert_eq!(test.queued(), [""; 0], "another scheduler's");
    test.world.binding(json!({ "metadata": { "name": "attached" } })).await;
    assert_eq!(test.queued(), [""; 0], "one without a policy behind it");

    // One that goes away is forgotten, wherever it is.
    mirror.note(test.world.patch(binding.as_ref(), only(&["m8"])).await);
    mirror.remove(&Key::of(binding.as_ref()), 0);
    assert_eq!(test.queued(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_cluster_wakes_those_it_may_help() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let soon = test.world.own("m2");
    let waiting = test.binding(only(&[&soon])).await;
    let placed = test.world.binding(merged(only(&[&m1]), json!({ "metadata": { "name": "placed" } }))).await;
    for binding in [&waiting, &placed] {
        assert_eq!(test.once(binding).await, Outcome::Done);
    }
    test.queued();

    // A heartbeat is not news.
    let cluster = test.world.environment.mirrors.clusters.get("", &m1).expect("known");
    let touched =
        test.world.patch(cluster.as_ref(), json!({ "metadata": { "annotations": { "a": "b" } } })).await;
    test.world.environment.mirrors.clusters.note(touched);
    assert_eq!(test.queued(), [""; 0]);

    // The cluster that was waited for.
    test.world.cluster("m2", json!({})).await;
    assert_eq!(test.queued(), ["*/web-configmap"]);
    assert_eq!(test.once(&waiting).await, Outcome::Done);
    assert_eq!(clusters(&test.stored(&waiting).await), [soon.as_str()]);
    test.queued();

    // A cluster that is gone is not chosen any more.
    test.world.environment.mirrors.clusters.remove(&Key::new("", &soon), 0);
    assert_eq!(test.once(&waiting).await, Outcome::Done);
    assert_eq!(scheduled(&test.stored(&waiting).await), ("False", "NoClusterFit"));
    test.end().await;
}

#[tokio::test]
async fn a_cluster_wakes_nobody_who_is_suspended_or_has_lost_the_policy() {
    let test = Test::new().await;
    test.world.cluster("m1", json!({})).await;
    let soon = test.world.own("m2");
    let terms = json!([{ "affinityName": "first", "clusterNames": [soon] }]);
    let ordered = |name: &str| json!({ "metadata": { "name": name }, "spec": { "placement": { "clusterAffinities": terms.clone() } } });
    let mirror = &test.world.environment.mirrors.bindings;
    let changes = [
        ("watched", json!({})),
        ("suspended", json!({ "spec": { "suspension": { "scheduling": true } } })),
        ("left", json!({ "metadata": { "labels": { "propagationpolicy.karmada.io/permanent-id": null } } })),
    ];
    for (name, change) in changes {
        let binding = test.binding(ordered(name)).await;
        assert_eq!(test.once(&binding).await, Outcome::Done, "{name}");
        assert_eq!(scheduled(&test.stored(&binding).await), ("False", "NoClusterFit"), "{name}");
        mirror.note(test.world.patch(binding.as_ref(), change).await);
    }
    test.queued();
    test.world.cluster("m2", json!({})).await;
    assert_eq!(test.queued(), ["*/watched"]);
    test.end().await;
}

#[tokio::test]
async fn a_cluster_that_changes_during_an_attempt_is_not_missed() {
    let test = Test::new().await;
    let soon = test.world.own("m2");
    let binding = test.binding(only(&[&soon])).await;
    test.queued();
    let key = Key::of(binding.as_ref());
    let view = test.controller.observe(&key).await.expect("observed").expect("a view");
    let plan = Controller::decide(&view, Timestamp::now());
    test.world.cluster("m2", json!({})).await;
    test.queued();
    assert_eq!(test.controller.apply(&key, view, plan).await.expect("applied"), Outcome::Done);
    assert_eq!(test.queued(), ["*/web-configmap"], "it is queued again");
    test.end().await;
}

#[tokio::test]
async fn a_turn_that_failed_comes_back_and_a_panic_is_told() {
    let test = Test::new().await;
    let binding = test.binding(json!({})).await;
    let stop = CancellationToken::new();
    let take = || async { test.controller.next(&stop).await.expect("a turn") };
    let pending = || test.controller.turns.lock().queue.pending();
    let item: Item = take().await;
    assert_eq!(Controller::key(&item), Key::of(binding.as_ref()));
    test.controller.done(item, Outcome::Panicked("on purpose".to_owned()));
    assert_eq!(pending(), (0, 1, 0), "in back-off");
    let told = test.world.event("ReconcilePanicked").await;
    assert_eq!(told, "default-scheduler panicked and tries again later: on purpose");

    let again = take().await;
    assert_eq!(again.attempts, 2);
    test.controller.done(again, Outcome::After(std::time::Duration::from_secs(1)));
    assert_eq!(pending(), (0, 0, 1), "it waits for room");
    test.controller.turns.lock().queue.push("a/b", 0, Timestamp::now());
    let other = take().await;
    test.controller.done(other, Outcome::Done);
    assert_eq!(pending(), (0, 0, 1));
    stop.cancel();
    assert!(test.controller.next(&stop).await.is_none(), "it stops");
    test.end().await;
}

#[tokio::test]
async fn a_clock_that_was_set_back_delays_nobody() {
    let test = Test::new().await;
    // The clock on the wall was ahead when the scheduler began.
    let ahead = Timestamp::now() + jiff::SignedDuration::from_hours(24);
    test.controller.turns.lock().clock.began = ahead;
    test.binding(json!({})).await;
    let stop = CancellationToken::new();
    let item: Item = test.controller.next(&stop).await.expect("a turn");
    assert!(item.since >= ahead, "events are counted with the same clock");
    test.controller.done(item, Outcome::Retry);
    let patience = std::time::Duration::from_secs(60);
    let again = tokio::time::timeout(patience, test.controller.next(&stop)).await.expect("within a minute");
    assert_eq!(again.expect("a turn").attempts, 2);
    test.end().await;
}

#[tokio::test]
async fn priorities_and_turns_depend_on_features() {
    let features = |text: &str| Crate {
        features: api::features::Features::parse(text).expect("known gates"),
        ..Crate::default()
    };
    let urgent =
        json!({ "metadata": { "name": "urgent" }, "spec": { "schedulePriority": { "priority": 7 } } });
    let plain = Test::with(features("PriorityBasedScheduling=false")).await;
    assert_eq!(plain.controller.at_once(), AT_ONCE);
    let binding = plain.binding(urgent.clone()).await;
    assert_eq!(plain.controller.priority(binding.as_ref()), 0);
    plain.end().await;
    let gated = Test::with(features("WorkloadAffinity=true")).await;
    gated.binding(json!({})).await;
    let binding = gated.binding(urgent).await;
    assert_eq!(gated.controller.priority(binding.as_ref()), 7);
    assert_eq!(gated.controller.at_once(), 1, "decisions depend on each other");
    assert_eq!(gated.queued(), ["*/urgent", "*/web-configmap"]);
    gated.end().await;
}
