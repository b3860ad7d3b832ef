//! The cluster controller on a server: what a cluster that joins gets, and how one leaves.

use http::Method;
use kube::api::DeleteParams;
use runtime::Outcome;
use serde_json::{Value, json};

use super::*;
use crate::world::World;

struct Test {
    world: World,
    controller: Controller,
    name: String,
}

impl Test {
    async fn new() -> Self {
        let world = World::new().await;
        let shared = world.members(&[]);
        let name = world.own("m1");
        Self { controller: Controller(shared), world, name }
    }

    /// Creates a Cluster; its execution namespace is left to the controller.
    async fn join(&self, otherwise: Value) -> Arc<Cluster> {
        let base = json!({ "metadata": { "name": self.name }, "spec": { "syncMode": "Push" } });
        let mirror = &self.world.environment.mirrors.clusters;
        self.world.put(mirror, crate::fixtures::merged(base, otherwise)).await
    }

    async fn once(&self) -> Outcome {
        self.world.once(&self.controller, &self.name).await
    }

    async fn stored(&self) -> Option<Cluster> {
        self.world.api::<Cluster>("").get_opt(&self.name).await.expect("the server answers")
    }

    async fn space(&self) -> Option<Namespace> {
        let name = api::names::execution_space(&self.name);
        self.world.api::<Namespace>("").get_opt(&name).await.expect("the server answers")
    }

    /// Deletes the cluster on the server and updates the mirror.
    async fn tell_to_leave(&self) {
        let api = self.world.api::<Cluster>("");
        api.delete(&self.name, &DeleteParams::default()).await.expect("told to leave");
        self.world.environment.mirrors.clusters.note(self.stored().await.expect("it is held"));
    }

    /// Waits until the execution namespace is gone.
    async fn space_is_gone(&self) {
        let gone = async {
            while self.space().await.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the namespace goes");
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

fn ready() -> Value {
    json!({ "status": { "conditions": [{
        "type": "Ready", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } })
}

#[tokio::test]
async fn a_cluster_that_joins_gets_its_namespace_finalizer_and_taint_once() {
    let test = Test::new().await;
    test.join(json!({})).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["POST /api/v1/namespaces", "PATCH clusters/*-m1"]);
    let stored = test.stored().await.expect("it exists");
    assert!(is_held(&stored));
    let taints: Vec<&str> = stored.spec.taints.iter().map(|taint| taint.key.as_str()).collect();
    assert_eq!(taints, [TAINT_NOT_READY]);
    assert!(test.world.event("CreateExecutionSpaceSucceed").await.contains(&test.name));
    assert!(test.world.event("TaintClusterSucceed").await.contains(TAINT_NOT_READY));
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_namespace_that_exists_already_is_fine_and_one_that_is_refused_is_told() {
    let test = Test::new().await;
    test.join(ready()).await;
    test.world.refuse(Method::POST, "/namespaces", 403, "Forbidden");
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert_eq!(test.world.event("CreateExecutionSpaceFailed").await, "refused: Forbidden");
    assert!(!is_held(&test.stored().await.expect("it exists")), "nothing else is done before");
    test.world.namespace(&api::names::execution_space(&test.name)).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert!(is_held(&test.stored().await.expect("it exists")));
    test.end().await;
}

#[tokio::test]
async fn a_cluster_that_somebody_changed_meanwhile_is_looked_at_again() {
    let test = Test::new().await;
    let cluster = test.join(ready()).await;
    let changed = test.world.patch(cluster.as_ref(), json!({ "spec": { "region": "eu" } })).await;
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    test.world.environment.mirrors.clusters.note(changed);
    assert_eq!(test.once().await, Outcome::Done);
    let stored = test.stored().await.expect("it exists");
    assert_eq!((stored.spec.region.as_str(), is_held(&stored)), ("eu", true));
    test.end().await;
}

#[tokio::test]
async fn a_cluster_leaves_after_its_namespace_and_its_bindings() {
    let test = Test::new().await;
    test.join(ready()).await;
    assert_eq!(test.once().await, Outcome::Done);
    let policy = json!({ "labels": { "propagationpolicy.karmada.io/permanent-id": "p" } });
    let bound = json!({ "metadata": policy, "spec": { "clusters": [{ "name": test.name }] } });
    let binding = test.world.binding(bound).await;
    test.tell_to_leave().await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::After(NAMESPACE_WAIT));
    assert_eq!(test.world.writes(), ["DELETE karmada-es-*-m1"]);
    assert!(test.world.event("RemoveExecutionSpaceSucceed").await.contains(&test.name));
    test.space_is_gone().await;
    assert_eq!(test.once().await, Outcome::After(BINDING_WAIT), "a binding names it");
    assert!(test.stored().await.is_some());
    test.world.patch(binding.as_ref(), json!({ "spec": { "clusters": null } })).await;
    let named: ClusterResourceBinding = test
        .world
        .create(json!({
            "metadata": {
                "name": test.world.own("role"),
                "labels": { "clusterpropagationpolicy.karmada.io/permanent-id": "p" },
            },
            "spec": {
                "resource": { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "r" },
                "clusters": [{ "name": test.name }],
            },
        }))
        .await;
    assert_eq!(test.once().await, Outcome::After(BINDING_WAIT), "a binding of the other kind names it");
    test.world.patch(&named, json!({ "spec": { "clusters": null } })).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.stored().await.is_none());
    assert_eq!(test.once().await, Outcome::Done, "the mirror still has it, and letting it go again is fine");
    test.world.environment.mirrors.clusters.remove(&Key::new("", &test.name), 0);
    assert_eq!(test.once().await, Outcome::Done);
    test.end().await;
}

#[tokio::test]
async fn a_cluster_leaves_bindings_whose_policies_are_gone() {
    let test = Test::new().await;
    test.join(ready()).await;
    assert_eq!(test.once().await, Outcome::Done);
    let bound = json!({ "spec": { "clusters": [{ "name": test.name }, { "name": "stays" }] } });
    let binding = test.world.binding(bound).await;
    test.tell_to_leave().await;
    assert_eq!(test.once().await, Outcome::After(NAMESPACE_WAIT));
    test.space_is_gone().await;
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.stored().await.is_none());
    let api = test.world.api::<ResourceBinding>(&test.world.namespace);
    let left = api.get(binding.metadata.name.as_deref().expect("a name")).await.expect("the binding stays");
    let names: Vec<&str> = left.spec.clusters.iter().map(|target| target.name.as_str()).collect();
    assert_eq!(names, ["stays"]);
    test.end().await;
}

#[tokio::test]
async fn a_cluster_leaves_bindings_whose_scheduling_is_suspended() {
    let test = Test::new().await;
    test.join(ready()).await;
    assert_eq!(test.once().await, Outcome::Done);
    let suspended = json!({
        "metadata": { "labels": { "propagationpolicy.karmada.io/permanent-id": "p" } },
        "spec": {
            "placement": {}, "suspension": { "scheduling": true },
            "clusters": [{ "name": test.name }, { "name": "stays" }],
        },
    });
    let binding = test.world.binding(suspended).await;
    test.tell_to_leave().await;
    assert_eq!(test.once().await, Outcome::After(NAMESPACE_WAIT));
    test.space_is_gone().await;
    assert_eq!(test.once().await, Outcome::Done, "nobody else takes it out");
    assert!(test.stored().await.is_none());
    let left = test.world.stored(binding.as_ref()).await.expect("the binding stays");
    let names: Vec<&str> = left.spec.clusters.iter().map(|target| target.name.as_str()).collect();
    assert_eq!(names, ["stays"]);
    test.end().await;
}

#[tokio::test]
async fn a_namespace_that_cannot_be_deleted_is_told() {
    let test = Test::new().await;
    test.join(ready()).await;
    assert_eq!(test.once().await, Outcome::Done);
    test.tell_to_leave().await;
    test.world.refuse(Method::DELETE, &format!("karmada-es-{}", test.name), 500, "InternalError");
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert_eq!(test.world.event("RemoveExecutionSpaceFailed").await, "refused: InternalError");
    assert!(test.stored().await.is_some());
    test.end().await;
}

#[tokio::test]
async fn a_namespace_that_was_made_again_meanwhile_is_not_deleted_in_place_of_the_old_one() {
    let test = Test::new().await;
    test.join(ready()).await;
    assert_eq!(test.once().await, Outcome::Done);
    test.tell_to_leave().await;
    let view = test.controller.observe(&test.name).await.expect("the server answers").expect("a cluster");
    let plan = decide(&view, Timestamp::now());
    assert_eq!(plan.space, Some(SpaceStep::Delete));
    // Between the look and the write, somebody deletes the namespace and makes another one.
    let spaces = test.world.api::<Namespace>("");
    let name = api::names::execution_space(&test.name);
    spaces.delete(&name, &DeleteParams::default()).await.expect("deleted");
    test.space_is_gone().await;
    test.world.namespace(&name).await;
    test.world.writes();
    let outcome = test.controller.apply(&test.name, view, plan).await.expect("the next look is at the other");
    assert_eq!(outcome, Outcome::After(NAMESPACE_WAIT));
    assert_eq!(test.world.writes(), ["DELETE karmada-es-*-m1"]);
    let space = test.space().await.expect("it is still there");
    assert!(space.metadata.deletion_timestamp.is_none(), "and stays");
    // The next look sees it, and deletes that very one.
    assert_eq!(test.once().await, Outcome::After(NAMESPACE_WAIT));
    test.space_is_gone().await;
    test.end().await;
}

#[tokio::test]
async fn works_of_a_dead_agent_are_let_go() {
    let test = Test::new().await;
    test.join(json!({ "spec": { "syncMode": "Pull" } })).await;
    assert_eq!(test.once().await, Outcome::Done);
    let work = test.world.work(&test.name, json!({})).await;
    test.tell_to_leave().await;
    assert_eq!(test.once().await, Outcome::After(NAMESPACE_WAIT));
    let let_go = test.world.stored(work.as_ref()).await;
    let finalizers = let_go.and_then(|work| work.metadata.finalizers).unwrap_or_default();
    assert!(finalizers.is_empty(), "{finalizers:?}");
    test.space_is_gone().await;
    test.end().await;
}
