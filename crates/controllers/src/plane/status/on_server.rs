//! Reports on their way back, on a server: to the binding, to the template, and no more often than needed.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use propagation::Object;
use runtime::Key;
use serde_json::{Value, json};

use super::decide::GATHER;
use super::*;
use crate::fixtures::{merged, read};
use crate::world::World;

struct Test {
    world: World,
    controller: Arc<Controller<ResourceBinding>>,
    cluster: String,
}

impl Test {
    async fn new() -> Self {
        let world = World::new().await;
        let cluster = world.cluster("m1", json!({})).await;
        let (controller, _) = subscribed(&world.plane);
        Self { world, controller, cluster }
    }

    /// Creates a Deployment with its binding and a Work that reports these replicas.
    async fn reported(&self, replicas: i32) -> (Arc<ResourceBinding>, Arc<Work>, Deployment) {
        let template = self.world.create::<Deployment>(json!({
            "metadata": { "name": "web", "namespace": self.world.namespace },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
                "template": { "metadata": { "labels": { "app": "web" } }, "spec": {
                    "containers": [{ "name": "c", "image": "i" }],
                } },
            },
        }));
        let template = template.await;
        let known = self.world.know(template.clone());
        let binding = self.world.binding(json!({
            "spec": { "clusters": [{ "name": self.cluster, "replicas": replicas }], "resource": {
                "apiVersion": "apps/v1", "kind": "Deployment", "uid": known.uid(),
            } },
        }));
        let (binding, work) =
            (binding.await, self.world.work(&self.cluster, report(&self.world, replicas)).await);
        (binding, work, template)
    }

    async fn once(&self, binding: &ResourceBinding) -> Outcome {
        self.world.once(self.controller.as_ref(), &Key::of(binding)).await
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

/// What a Work says whose Deployment has so many replicas.
fn report(world: &World, replicas: i32) -> Value {
    json!({
        "spec": { "workload": { "manifests": [{
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "namespace": world.namespace },
        }] } },
        "status": {
            "conditions": [{
                "type": "Applied", "status": "True", "reason": "AppliedSuccessful", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
            "manifestStatuses": [{
                "identifier": {
                    "ordinal": 0, "group": "apps", "version": "v1", "kind": "Deployment",
                    "resource": "deployments", "namespace": world.namespace, "name": "web",
                },
                "status": { "replicas": replicas, "readyReplicas": replicas }, "health": "Healthy",
            }],
        },
    })
}

const BINDING: &str = "PATCH */resourcebindings/web-configmap/status";
const TEMPLATE: &str = "PATCH */deployments/web/status";

#[tokio::test]
async fn a_report_reaches_the_binding_and_the_template_once() {
    let test = Test::new().await;
    let (binding, _, template) = test.reported(2).await;
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [BINDING, TEMPLATE]);
    let stored = test.world.stored(binding.as_ref()).await.expect("it exists");
    let item = &stored.status.aggregated_status[0];
    assert_eq!((item.cluster_name.as_str(), item.applied), (test.cluster.as_str(), true));
    let status = test.world.stored(&template).await.and_then(|template| template.status).expect("a status");
    assert_eq!((status.replicas, status.ready_replicas), (Some(2), Some(2)));
    assert!(!test.world.event("AggregateStatusSucceed").await.is_empty());
    // The next look waits a moment, and then finds nothing to do.
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::After(_)), "{outcome:?}");
    test.world.know(test.world.stored(&template).await.expect("it exists"));
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn somebody_elses_status_is_kept_when_they_were_faster() {
    let test = Test::new().await;
    let (binding, ..) = test.reported(1).await;
    let api = test.world.api::<ResourceBinding>(&test.world.namespace);
    let theirs = json!({ "status": { "schedulerObservedGeneration": 7 } });
    let patch = kube::api::Patch::Merge(theirs);
    api.patch_status("web-configmap", &kube::api::PatchParams::default(), &patch).await.expect("written");
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [BINDING, BINDING, TEMPLATE]);
    let stored = test.world.stored(binding.as_ref()).await.expect("it exists");
    assert_eq!((stored.status.scheduler_observed_generation, stored.status.aggregated_status.len()), (7, 1));
    test.end().await;
}

#[tokio::test]
async fn what_is_refused_is_told_and_tried_again() {
    let test = Test::new().await;
    let (binding, ..) = test.reported(1).await;
    test.world.refuse(Method::PATCH, "/resourcebindings/web-configmap/status", 500, "InternalError");
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert_eq!(test.world.event("AggregateStatusFailed").await, "refused: InternalError");
    test.world.refuse(Method::PATCH, "/deployments/web/status", 409, "Conflict");
    let outcome = test.once(&binding).await;
    assert!(
        matches!(outcome, Outcome::Failed { conflict: true, .. }),
        "the binding is written, the template not"
    );
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [TEMPLATE]);
    test.end().await;
}

#[tokio::test]
async fn a_template_that_is_gone_or_another_one_gets_no_status() {
    let test = Test::new().await;
    let (binding, _, template) = test.reported(1).await;
    let api = test.world.api::<Deployment>(&test.world.namespace);
    api.delete("web", &kube::api::DeleteParams::default()).await.expect("deleted");
    test.world.plane.templates.forget(&serde_json::to_value(&template).expect("a tree"));
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [BINDING]);
    let mut other = serde_json::to_value(&template).expect("a tree");
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        other["metadata"].as_object_mut().expect("metadata").remove(field);
    }
    test.world.know(test.world.create::<Deployment>(other).await);
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "it is another one of the same name");
    test.end().await;
}

#[tokio::test]
async fn clusters_that_are_about_to_report_are_waited_for_a_moment() {
    let test = Test::new().await;
    let (binding, ..) = test.reported(1).await;
    let m2 = test.world.cluster("m2", json!({})).await;
    let silent = merged(report(&test.world, 1), json!({ "status": null }));
    let mut silent = silent;
    silent.as_object_mut().expect("an object").remove("status");
    let work = test.world.work(&m2, silent).await;
    test.world.writes();
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::After(left) if left <= GATHER), "{outcome:?}");
    assert_eq!(test.world.writes(), [""; 0]);
    tokio::time::sleep(GATHER).await;
    assert_eq!(test.once(&binding).await, Outcome::Done, "not for longer");
    assert_eq!(test.world.writes().len(), 2);
    assert!(test.controller.since.lock().is_empty());
    // One that is gone in the middle leaves nothing behind.
    test.controller.since.lock().insert(Key::of(binding.as_ref()), Instant::now());
    test.world.environment.mirrors.bindings.remove(&Key::of(binding.as_ref()), 0);
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert!(test.controller.since.lock().is_empty());
    drop(work);
    test.end().await;
}

#[tokio::test]
async fn which_works_bring_their_binding_up() {
    let test = Test::new().await;
    let key = Key::new(&test.world.namespace, "web-configmap");
    let mirror = &test.world.environment.mirrors.works;
    let work = test.world.work(&test.cluster, json!({})).await;
    assert!(test.controller.queue.waiting().is_empty(), "a new Work has nothing to report");
    let mut told: Work = read(serde_json::to_value(work.as_ref()).expect("a tree"));
    told.status = read::<Work>(report(&test.world, 1)).status;
    told.metadata.resource_version = Some("999999998".to_owned());
    mirror.note(told.clone());
    assert_eq!(test.controller.queue.waiting(), std::slice::from_ref(&key));
    let (cluster_wide, _) = (subscribed(&test.world.plane).1, ());
    told.metadata.resource_version = Some("999999999".to_owned());
    let annotations = told.metadata.annotations.get_or_insert_default();
    annotations.clear();
    annotations.insert("clusterresourcebinding.karmada.io/name".to_owned(), "c".to_owned());
    told.status = work.status.clone();
    mirror.note(told);
    assert_eq!(cluster_wide.queue.waiting(), [Key::new("", "c")]);
    test.end().await;
}
