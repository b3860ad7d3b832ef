//! Taints by policy, on a server.

use http::Method;
use runtime::Key;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::merged;
use crate::world::{World, drain};

struct Test {
    world: World,
    controller: Arc<Controller>,
    queue: Arc<Queue<String>>,
    /// Cluster `m1`.
    name: String,
}

impl Test {
    /// A cluster whose Ready condition has this status.
    async fn new(ready: &str, otherwise: Value) -> Self {
        let world = World::new().await;
        let (controller, queue) = subscribed(&world.plane);
        let name = world.cluster("m1", merged(json!({ "status": conditions(ready) }), otherwise)).await;
        Self { world, controller, queue, name }
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.name).await
    }

    /// A policy that taints with `dead=v:NoExecute` on Ready=False and takes it off on Ready=True.
    async fn policy(&self, otherwise: Value) -> Arc<ClusterTaintPolicy> {
        let on =
            |status: &str| json!([{ "conditionType": "Ready", "operator": "In", "statusValues": [status] }]);
        let base = json!({
            "metadata": { "name": self.world.own("p") },
            "spec": {
                "addOnConditions": on("False"), "removeOnConditions": on("True"),
                "taints": [{ "key": "dead", "effect": "NoExecute", "value": "v" }],
            },
        });
        self.world.put(&self.world.environment.mirrors.taint_policies, merged(base, otherwise)).await
    }

    fn known(&self) -> Arc<Cluster> {
        self.world.environment.mirrors.clusters.get("", &self.name).expect("the mirror knows it")
    }

    /// The cluster reports another status of its Ready condition.
    async fn report(&self, ready: &str) {
        let reported = self.world.patch_status(self.known().as_ref(), conditions(ready)).await;
        self.world.environment.mirrors.clusters.note(reported);
    }

    async fn taints(&self) -> Vec<String> {
        let stored = self.world.stored(self.known().as_ref()).await.expect("it exists");
        stored.spec.taints.iter().map(propagation::eviction::print).collect()
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

fn conditions(ready: &str) -> Value {
    json!({ "conditions": [{
        "type": "Ready", "status": ready, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] })
}

#[tokio::test]
async fn a_cluster_is_tainted_once_and_loses_the_taint_when_it_recovers() {
    let test = Test::new("False", json!({})).await;
    test.policy(json!({})).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["PATCH clusters/*-m1"]);
    assert_eq!(test.taints().await, ["dead=v:NoExecute"]);
    let told = test.world.event("TaintClusterSucceed").await;
    assert!(told.contains("{Key:dead,Value:v,Effect:NoExecute}"), "{told}");
    let added = test.known().spec.taints[0].time_added.clone();
    assert!(added.is_some(), "tolerations that end count from then on");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "it has the taint");

    test.report("Unknown").await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "neither condition holds");
    assert_eq!(test.known().spec.taints[0].time_added, added, "it does not begin to count anew");

    test.report("True").await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["PATCH clusters/*-m1"]);
    assert_eq!(test.taints().await, [""; 0]);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn taints_of_others_stay() {
    let taint = |key: &str, effect: &str| json!({ "key": key, "effect": effect, "value": "theirs" });
    let theirs = [taint("mine", "NoSchedule"), taint("dead", "NoSchedule")];
    let test = Test::new("False", json!({ "spec": { "taints": theirs } })).await;
    test.policy(json!({})).await;
    assert_eq!(test.once().await, Outcome::Done);
    let others = ["mine=theirs:NoSchedule", "dead=theirs:NoSchedule"];
    assert_eq!(test.taints().await, [others[0], others[1], "dead=v:NoExecute"]);
    test.report("True").await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.taints().await, others, "one with another effect is another taint");
    test.end().await;

    // One that somebody has set by hand is not overwritten.
    let test = Test::new("False", json!({ "spec": { "taints": [taint("dead", "NoExecute")] } })).await;
    test.policy(json!({})).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert_eq!(test.taints().await, ["dead=theirs:NoExecute"]);
    test.end().await;
}

#[tokio::test]
async fn a_policy_that_is_deleted_leaves_its_taints() {
    let test = Test::new("False", json!({})).await;
    let policy = test.policy(json!({})).await;
    assert_eq!(test.once().await, Outcome::Done);
    drain(&test.queue);
    test.world.environment.mirrors.taint_policies.remove(&Key::of(policy.as_ref()), 0);
    assert_eq!(drain(&test.queue), [""; 0]);
    test.world.writes();
    test.report("True").await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "as upstream");
    assert_eq!(test.taints().await, ["dead=v:NoExecute"]);
    test.end().await;
}

#[tokio::test]
async fn a_cluster_that_somebody_changed_meanwhile_is_looked_at_again() {
    let test = Test::new("False", json!({})).await;
    test.policy(json!({})).await;
    // The administrator takes it out of use, of which the mirror has not heard yet.
    let theirs = json!({ "spec": { "taints": [{ "key": "mine", "effect": "NoSchedule" }] } });
    let changed = test.world.patch(test.known().as_ref(), theirs).await;
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    assert_eq!(test.taints().await, ["mine:NoSchedule"]);
    test.world.environment.mirrors.clusters.note(changed);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.taints().await, ["mine:NoSchedule", "dead=v:NoExecute"]);
    test.world.event("TaintClusterSucceed").await;
    assert!(!test.world.was_told("TaintClusterFailed"), "a conflict is not for users");
    test.end().await;
}

#[tokio::test]
async fn a_write_that_is_refused_is_told_and_made_again() {
    let test = Test::new("False", json!({})).await;
    test.policy(json!({})).await;
    test.world.refuse(Method::PATCH, &format!("/clusters/{}", test.name), 403, "Forbidden");
    let refused = Outcome::Failed { error: "refused: Forbidden".to_owned(), conflict: false };
    assert_eq!(test.once().await, refused);
    assert_eq!(test.world.event("TaintClusterFailed").await, "refused: Forbidden");
    assert!(!test.world.was_told("TaintClusterSucceed"));
    assert_eq!(test.taints().await, [""; 0]);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.taints().await, ["dead=v:NoExecute"]);
    test.end().await;
}

#[tokio::test]
async fn clusters_that_leave_or_are_unknown_are_left_alone() {
    let test = Test::new("False", json!({ "metadata": { "finalizers": ["example.io/held"] } })).await;
    test.policy(json!({})).await;
    let leaving = test.world.let_go(test.known().as_ref()).await;
    test.world.environment.mirrors.clusters.note(leaving);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    let unknown = test.world.own("unknown");
    assert_eq!(test.world.once(test.controller.as_ref(), &unknown).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert_eq!(test.taints().await, [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn what_brings_a_cluster_up() {
    let test = Test::new("True", json!({})).await;
    let mirrors = &test.world.environment.mirrors;
    let (m1, m2) = (test.name.clone(), test.world.cluster("m2", json!({})).await);
    assert_eq!(drain(&test.queue), [m1.clone(), m2.clone()], "they are new");
    let on = |cluster: &str| json!({ "spec": { "targetClusters": { "clusterNames": [cluster] } } });
    let policy = test.policy(on(&m1)).await;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&m1), "a new policy");
    let labelled = test.world.patch(policy.as_ref(), json!({ "metadata": { "labels": { "a": "b" } } })).await;
    mirrors.taint_policies.note(labelled);
    assert_eq!(drain(&test.queue), [""; 0], "it says the same");
    mirrors.taint_policies.note(test.world.patch(policy.as_ref(), on(&m2)).await);
    assert_eq!(drain(&test.queue), std::slice::from_ref(&m2), "those that it is about now");
    mirrors
        .clusters
        .note(test.world.patch(test.known().as_ref(), json!({ "spec": { "region": "eu" } })).await);
    assert_eq!(drain(&test.queue), [""; 0], "its conditions are as before");
    test.report("False").await;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&m1));
    mirrors.clusters.remove(&Key::new("", &m1), 0);
    assert_eq!(drain(&test.queue), [""; 0], "nothing is left to be tainted");
    test.end().await;
}

#[tokio::test]
async fn a_panic_is_told_on_the_cluster() {
    let test = Test::new("True", json!({})).await;
    drain(&test.queue);
    let told = test.world.panicked(&test.queue, test.name.clone()).await;
    assert_eq!(told, "cluster-taint-policy-controller panicked and tries again later: by accident");
    test.end().await;
}
