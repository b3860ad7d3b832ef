//! The descheduler on a server that is control plane and member at once: which replicas it takes away, and what is told of it.

use http::Method;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::merged;
use crate::world::World;

const BINDING: &str = "PATCH */resourcebindings/web-deployment";

struct Test {
    world: World,
    controller: Controller,
    key: Key,
}

impl Test {
    /// A Deployment with three replicas in a member, of which two find no node.
    async fn new() -> Self {
        let world = World::new().await;
        let cluster = world.cluster("m1", json!({})).await;
        let shared = world.members(&[]);
        shared.members.adopt(&cluster, shared.client());
        let test = Self {
            controller: Controller::new(&shared),
            key: Key::new(world.namespace.clone(), "web-deployment"),
            world,
        };
        let deployment: Deployment = test.world.create(test.workload("web", json!({}))).await;
        let owned = owner("Deployment", &deployment.metadata);
        let set: ReplicaSet = test.world.create(test.workload("web-1", owned)).await;
        for name in ["a", "b"] {
            let waiting = json!({
                "metadata": { "name": name, "namespace": test.world.namespace, "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
                "status": { "phase": "Pending", "conditions": [{
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }] },
            });
            test.world.create::<Pod>(merged(waiting, owner("ReplicaSet", &set.metadata))).await;
        }
        let bound = json!({
            "metadata": { "name": "web-deployment" },
            "spec": {
                "replicas": 3, "clusters": [{ "name": cluster, "replicas": 3 }],
                "resource": {
                    "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": deployment.metadata.uid,
                },
            },
            "status": { "aggregatedStatus": [{ "clusterName": cluster, "status": { "readyReplicas": 1 } }] },
        });
        test.world.binding(bound).await;
        test.world.writes();
        test
    }

    fn workload(&self, name: &str, otherwise: Value) -> Value {
        let base = json!({
            "metadata": { "name": name, "namespace": self.world.namespace, "labels": { "app": "web" } },
            "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "web" } }, "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            } },
        });
        merged(base, otherwise)
    }

    async fn once(&self) -> Outcome {
        self.world.once(&self.controller, &self.key).await
    }

    fn binding(&self) -> Arc<ResourceBinding> {
        self.world.environment.mirrors.bindings.find(&self.key).expect("it is known")
    }

    /// Returns how many replicas the server has for the member.
    async fn replicas(&self) -> Vec<i32> {
        let stored = self.world.stored(self.binding().as_ref()).await.expect("it exists");
        stored.spec.clusters.iter().map(|target| target.replicas).collect()
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

/// The metadata of an object that belongs to this one.
fn owner(kind: &str, metadata: &ObjectMeta) -> Value {
    json!({ "metadata": { "ownerReferences": [{
        "apiVersion": "apps/v1", "kind": kind, "name": metadata.name, "uid": metadata.uid, "controller": true,
    }] } })
}

#[tokio::test]
async fn replicas_that_find_no_node_leave_once() {
    let test = Test::new().await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [BINDING]);
    assert_eq!(test.replicas().await, [1], "the one that is ready stays");
    let told = test.world.event(DESCHEDULE_BINDING_SUCCEED).await;
    assert!(told.ends_with("2 total descheduled replica(s)"), "{told}");
    let both = ["ResourceBinding", "Deployment"];
    assert_eq!(test.world.told_of(DESCHEDULE_BINDING_SUCCEED, 2).await, both);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "a second look writes nothing");
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_somebody_else_has_written_is_left_until_the_next_look() {
    let test = Test::new().await;
    let moved = json!({ "spec": { "replicas": 4 } });
    let newer = test.world.patch(test.binding().as_ref(), moved).await;
    assert_eq!(test.once().await, Outcome::Done, "the next look is due after the interval");
    assert_eq!(test.world.writes(), [BINDING], "it was refused");
    assert_eq!(test.replicas().await, [3]);
    test.world.environment.mirrors.bindings.note(newer);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.replicas().await, [1]);
    test.world.event(DESCHEDULE_BINDING_SUCCEED).await;
    assert!(!test.world.was_told(DESCHEDULE_BINDING_FAILED), "that is not a failure");
    test.end().await;
}

#[tokio::test]
async fn a_write_that_is_refused_is_told_of_the_binding_and_its_template() {
    let test = Test::new().await;
    test.world.refuse(Method::PATCH, "/resourcebindings/web-deployment", 500, "InternalError");
    let refused = Outcome::Failed { error: "refused: InternalError".to_owned(), conflict: false };
    assert_eq!(test.once().await, refused);
    assert_eq!(test.world.event(DESCHEDULE_BINDING_FAILED).await, "refused: InternalError");
    let both = ["ResourceBinding", "Deployment"];
    assert_eq!(test.world.told_of(DESCHEDULE_BINDING_FAILED, 2).await, both);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.replicas().await, [1]);
    test.end().await;
}

#[tokio::test]
async fn what_goes_or_is_gone_keeps_its_replicas() {
    let test = Test::new().await;
    let held = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    let held = test.world.patch(test.binding().as_ref(), held).await;
    let going = test.world.let_go(&held).await;
    test.world.environment.mirrors.bindings.note(going);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    test.world.environment.mirrors.bindings.remove(&test.key, 0);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert!(!test.world.reads().iter().any(|path| path.contains("deployments")), "nobody is asked");
    test.end().await;
}

#[tokio::test]
async fn a_member_that_does_not_answer_keeps_its_replicas() {
    let test = Test::new().await;
    test.world.refuse(Method::GET, "/deployments/web", 500, "InternalError");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert_eq!(test.replicas().await, [3]);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.replicas().await, [1], "it is asked again");
    test.end().await;
}
