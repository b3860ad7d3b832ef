//! Actions that clusters call for, on a server.

use http::Method;
use kube::api::DeleteParams;
use runtime::Key;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::merged;
use crate::world::{World, drain};

const WRITTEN: &str = "PATCH clusters/*-m1/status";

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

    /// A remedy that asks for traffic control while a cluster is not ready.
    async fn remedy(&self, name: &str, otherwise: Value) -> Arc<Remedy> {
        let unready = json!({ "conditionType": "Ready", "operator": "Equal", "conditionStatus": "False" });
        let base = json!({
            "metadata": { "name": self.world.own(name) },
            "spec": {
                "decisionMatches": [{ "clusterConditionMatch": unready }], "actions": ["TrafficControl"],
            },
        });
        self.world.put(&self.world.environment.mirrors.remedies, merged(base, otherwise)).await
    }

    fn known(&self) -> Arc<Cluster> {
        self.world.environment.mirrors.clusters.get("", &self.name).expect("the mirror knows it")
    }

    fn note(&self, cluster: Cluster) {
        self.world.environment.mirrors.clusters.note(cluster);
    }

    /// The cluster reports another status of its Ready condition.
    async fn report(&self, ready: &str) {
        self.note(self.world.patch_status(self.known().as_ref(), conditions(ready)).await);
    }

    async fn stored(&self) -> Cluster {
        self.world.stored(self.known().as_ref()).await.expect("it exists")
    }

    async fn actions(&self) -> Vec<String> {
        self.stored().await.status.remedy_actions
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
async fn a_cluster_gets_its_actions_once_and_loses_them_when_it_recovers() {
    let test = Test::new("False", json!({})).await;
    test.remedy("one", json!({})).await;
    test.remedy("two", json!({ "spec": { "actions": ["Alarm", "TrafficControl"] } })).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [WRITTEN]);
    assert_eq!(test.actions().await, ["Alarm", "TrafficControl"]);
    assert_eq!(test.known().status.remedy_actions, ["Alarm", "TrafficControl"], "the mirror knows our write");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);

    test.report("True").await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [WRITTEN]);
    let stored = test.stored().await;
    assert_eq!(stored.status.remedy_actions, [""; 0]);
    assert_eq!(stored.status.conditions.len(), 1, "the conditions are not ours");
    assert_eq!(stored.status.api_enablements.len(), 2, "nor is the rest of the status");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_remedy_that_is_deleted_takes_its_actions_along() {
    let test = Test::new("False", json!({})).await;
    let remedy = test.remedy("one", json!({})).await;
    test.remedy("two", json!({ "spec": { "actions": ["Alarm"] } })).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.actions().await, ["Alarm", "TrafficControl"]);
    test.world.environment.mirrors.remedies.remove(&Key::of(remedy.as_ref()), 0);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.actions().await, ["Alarm"], "what the other one asks for stays");
    test.end().await;
}

#[tokio::test]
async fn a_report_that_comes_meanwhile_is_kept() {
    let test = Test::new("False", json!({})).await;
    test.remedy("one", json!({})).await;
    // The status has several writers: this one was faster, and the mirror does not know it yet.
    let version = json!({ "kubernetesVersion": "v1.30.0" });
    test.world.patch_status(test.known().as_ref(), version).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done, "the conflict is settled at once");
    assert_eq!(test.world.writes(), [WRITTEN, WRITTEN]);
    let stored = test.stored().await;
    assert_eq!(stored.status.kubernetes_version, "v1.30.0");
    assert_eq!(stored.status.remedy_actions, ["TrafficControl"]);
    assert_eq!(test.known().status.kubernetes_version, "v1.30.0", "the mirror has both");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_write_that_is_refused_is_made_again() {
    let test = Test::new("False", json!({})).await;
    test.remedy("one", json!({})).await;
    test.world.refuse(Method::PATCH, &format!("/clusters/{}/status", test.name), 500, "InternalError");
    let refused = Outcome::Failed { error: "refused: InternalError".to_owned(), conflict: false };
    assert_eq!(test.once().await, refused);
    assert_eq!(test.known().status.remedy_actions, [""; 0]);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.actions().await, ["TrafficControl"]);
    test.end().await;
}

#[tokio::test]
async fn a_cluster_that_joined_again_does_not_get_the_actions_of_the_old_one() {
    let test = Test::new("False", json!({})).await;
    test.remedy("one", json!({})).await;
    let clusters = test.world.api::<Cluster>("");
    clusters.delete(&test.name, &DeleteParams::default()).await.expect("it leaves");
    let gone = test.once().await;
    assert!(matches!(gone, Outcome::Failed { conflict: false, .. }), "the mirror still has it: {gone:?}");
    let joined = json!({ "metadata": { "name": test.name }, "spec": { "syncMode": "Push" }, "status": conditions("True") });
    let joined: Cluster = test.world.create(joined).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.actions().await, [""; 0]);
    test.note(joined);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn clusters_that_leave_or_are_unknown_are_left_alone() {
    let test = Test::new("False", json!({ "metadata": { "finalizers": ["example.io/held"] } })).await;
    test.remedy("one", json!({})).await;
    test.note(test.world.let_go(test.known().as_ref()).await);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    let unknown = test.world.own("unknown");
    assert_eq!(test.world.once(test.controller.as_ref(), &unknown).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn what_brings_a_cluster_up() {
    let test = Test::new("False", json!({})).await;
    let remedies = &test.world.environment.mirrors.remedies;
    let (m1, m2) = (test.name.clone(), test.world.cluster("m2", json!({})).await);
    assert_eq!(drain(&test.queue), [m1.clone(), m2.clone()], "they are new");
    let on = |cluster: &str| json!({ "spec": { "clusterAffinity": { "clusterNames": [cluster] } } });
    let remedy = test.remedy("one", on(&m1)).await;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&m1), "a new remedy");
    remedies.note(test.world.patch(remedy.as_ref(), on(&m2)).await);
    assert_eq!(drain(&test.queue), [m1.clone(), m2.clone()], "those that it was about, and those that it is");
    remedies.remove(&Key::of(remedy.as_ref()), 0);
    assert_eq!(drain(&test.queue), std::slice::from_ref(&m2), "it is gone");

    test.note(test.world.patch(test.known().as_ref(), json!({ "spec": { "region": "eu" } })).await);
    assert_eq!(drain(&test.queue), [""; 0], "neither conditions nor actions");
    test.report("Unknown").await;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&m1));
    let theirs = json!({ "remedyActions": ["Alarm"] });
    test.note(test.world.patch_status(test.known().as_ref(), theirs).await);
    assert_eq!(drain(&test.queue), std::slice::from_ref(&m1), "somebody else wrote its actions");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.actions().await, [""; 0], "no remedy asks for them");
    test.end().await;
}

#[tokio::test]
async fn a_panic_is_told_on_the_cluster() {
    let test = Test::new("True", json!({})).await;
    drain(&test.queue);
    let told = test.world.panicked(&test.queue, test.name.clone()).await;
    assert_eq!(told, "remedy-controller panicked and tries again later: by accident");
    test.end().await;
}
