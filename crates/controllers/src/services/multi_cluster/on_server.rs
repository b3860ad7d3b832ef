//! MultiClusterServices on a server: whose the Service is, and who is told when that changes.

use api::events as reasons;
use api::labels::{BINDING_MANAGED_BY, MULTI_CLUSTER_SERVICE_PERMANENT_ID};
use api::work::Work;
use http::Method;
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::api::DeleteParams;

use super::*;
use crate::fixtures::merged;
use crate::world::{World, drain};

/// A MultiClusterService of one cluster, which is provider and consumer, and its Service.
struct Test {
    world: World,
    controller: Arc<Controller>,
    key: Key,
    service: Service,
    /// The cluster's execution namespace.
    space: String,
}

impl Test {
    async fn new() -> Self {
        let world = World::new().await;
        world.plane.templates.learn("", "v1", "Service", true);
        let (controller, _) = subscribed(&world.plane);
        let mirrors = &world.environment.mirrors;
        let cluster = world.cluster("m1", json!({})).await;
        let space = names::execution_space(&cluster);
        let namespace = world.api::<Namespace>("").get(&space).await;
        mirrors.namespaces.note(namespace.expect("its execution namespace"));
        let named = json!({ "name": "web", "namespace": world.namespace });
        let service: Service =
            world.create(json!({ "metadata": named, "spec": { "ports": [{ "port": 80 }] } })).await;
        world.know(service.clone());
        let multi = json!({
            "metadata": merged(named, json!({ "labels": { MULTI_CLUSTER_SERVICE_PERMANENT_ID: world.own("id") } })),
            "spec": {
                "types": ["CrossCluster"],
                "providerClusters": [{ "name": cluster }], "consumerClusters": [{ "name": cluster }],
            },
        });
        world.put::<MultiClusterService>(&mirrors.multi_cluster_services, multi).await;
        let key = Key::new(world.namespace.clone(), "web");
        world.writes();
        Self { world, controller, key, service, space }
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.key).await
    }
}

#[tokio::test]
async fn a_service_belongs_to_its_multi_cluster_service_as_long_as_that_is_there() {
    let world = World::new().await;
    world.plane.templates.learn("", "v1", "Service", true);
    let (controller, queue) = subscribed(&world.plane);
    let mirrors = &world.environment.mirrors;
    let key = Key::new(world.namespace.clone(), "web");
    let named = json!({ "name": "web", "namespace": world.namespace });
    let service: Service =
        world.create(json!({ "metadata": named, "spec": { "ports": [{ "port": 80 }] } })).await;
    world.know(service.clone());
    let multi: Arc<MultiClusterService> = world
        .put(
            &mirrors.multi_cluster_services,
            json!({
                "metadata": {
                    "name": "web", "namespace": world.namespace,
                    "labels": { MULTI_CLUSTER_SERVICE_PERMANENT_ID: world.own("id") },
                },
                "spec": {
                    "types": ["CrossCluster"],
                    "providerClusters": [{ "name": "m1" }], "consumerClusters": [{ "name": "m2" }],
                },
            }),
        )
        .await;
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    let bound = || {
        let binding = mirrors.bindings.get(&world.namespace, "web-service").expect("it is bound");
        let placement = binding.spec.placement.clone().unwrap_or_default();
        (placement.cluster_affinity.unwrap_or_default().cluster_names.join("+"), binding)
    };
    assert_eq!(bound().0, "m1+m2");
    let claimed = world.stored(&service).await.expect("the Service");
    world.know(claimed.clone());
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);

    // A policy that had not heard of it writes the binding, from the same process.
    drain(&queue);
    let elsewhere = json!({ "spec": { "placement": { "clusterAffinity": { "clusterNames": ["m9"] } } } });
    mirrors.bindings.note(world.patch(bound().1.as_ref(), elsewhere).await);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(bound().0, "m1+m2");

    // Somebody takes its finalizer off by force.
    drain(&queue);
    let multi = world.patch(multi.as_ref(), json!({ "metadata": { "finalizers": null } })).await;
    let api = world.api::<MultiClusterService>(&world.namespace);
    api.delete("web", &DeleteParams::default()).await.expect("it goes");
    mirrors.multi_cluster_services.remove(&Key::of(&multi), 0);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    // Or while nobody looks.
    world.plane.templates.forget(&world.know(claimed.clone()));
    world.know(claimed);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    world.writes();
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.writes(), ["PATCH */services/web", "PATCH */resourcebindings/web-service"]);
    let free = world.stored(&service).await.expect("the Service");
    let labels = free.metadata.labels.clone().unwrap_or_default();
    assert!(!labels.contains_key(RESOURCE_TEMPLATE_CLAIMED_BY), "policies may have it: {labels:?}");
    let (clusters, binding) = bound();
    let labels = binding.metadata.labels.clone().unwrap_or_default();
    assert!(!labels.contains_key(BINDING_MANAGED_BY), "{labels:?}");
    assert_eq!(clusters, "m1+m2", "it stays where it is");
    world.know(free);
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0]);
    world.supervisor.stop().await;
}

#[tokio::test]
async fn a_write_that_failed_is_tried_again_although_the_service_is_missing() {
    let world = World::new().await;
    world.plane.templates.learn("", "v1", "Service", true);
    let (controller, _) = subscribed(&world.plane);
    let mirrors = &world.environment.mirrors;
    let cluster = world.cluster("m1", json!({})).await;
    let space = world.api::<Namespace>("").get(&names::execution_space(&cluster)).await;
    mirrors.namespaces.note(space.expect("its execution namespace"));
    let multi = json!({
        "metadata": { "name": "web", "namespace": world.namespace },
        "spec": {
            "types": ["CrossCluster"],
            "providerClusters": [{ "name": cluster }], "consumerClusters": [{ "name": cluster }],
        },
    });
    let multi: Arc<MultiClusterService> = world.put(&mirrors.multi_cluster_services, multi).await;
    let key = Key::of(multi.as_ref());
    world.refuse(Method::POST, "/works", 500, "InternalError");
    let outcome = world.once(controller.as_ref(), &key).await;
    let told = |error: &str| error.contains("refused") && error.contains("services \"web\" not found");
    assert!(matches!(&outcome, Outcome::Failed { error, .. } if told(error)), "{outcome:?}");
    // The Service alone is waited for: its own event comes.
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    world.supervisor.stop().await;
}

#[tokio::test]
async fn a_service_that_could_not_be_claimed_is_not_bound() {
    let test = Test::new().await;
    test.world.refuse(Method::PATCH, "/services/web", 500, "InternalError");
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    let (hold, ask) = ("PATCH */multiclusterservices/web", "POST karmada-es-*-m1/works");
    let status = "PATCH */multiclusterservices/web/status";
    assert_eq!(test.world.writes(), [hold, "PATCH */services/web", ask, status], "a policy may have it");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["PATCH */services/web", "POST */resourcebindings", status]);
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn one_that_goes_is_held_until_everything_of_it_is_gone() {
    let test = Test::new().await;
    assert_eq!(test.once().await, Outcome::Done);
    test.world.know(test.world.stored(&test.service).await.expect("the Service"));
    let mirror = &test.world.environment.mirrors.multi_cluster_services;
    let multi = mirror.find(&test.key).expect("it is known");
    mirror.note(test.world.let_go(multi.as_ref()).await);
    let request = test.world.all::<Work>(&test.space).await.remove(0);
    let path = format!("/works/{}", request.metadata.name.clone().unwrap_or_default());
    test.world.refuse(Method::DELETE, &path, 500, "InternalError");
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    let held = test.world.stored(multi.as_ref()).await.and_then(|multi| multi.metadata.finalizers);
    assert_eq!(held.as_deref(), Some(&[finalizers::MULTI_CLUSTER_SERVICE.to_owned()][..]));
    assert_eq!(test.world.event(reasons::SYNC_SERVICE_FAILED).await, "refused: InternalError");
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.world.stored(multi.as_ref()).await.is_none(), "it is gone");
    assert_eq!(test.world.all::<Work>(&test.space).await.len(), 0, "nothing is left");
    test.world.supervisor.stop().await;
}
