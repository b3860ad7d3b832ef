//! MultiClusterIngresses on a server: their Ingress, its binding, and what others have a say in.

use std::time::Duration;

use api::work::Work;
use http::Method;
use kube::api::DeleteParams;

use super::super::works::{Ensure, Token, collected};
use super::*;
use crate::fixtures::{cluster, merged, read};
use crate::plane::works::identified;
use crate::world::{World, drain, orders};

/// A MultiClusterIngress that enters in m1 and m2, with two back ends.
fn multi(world: &World, otherwise: Value) -> Value {
    let path = |path: &str, service: &str| json!({ "path": path, "pathType": "Prefix", "backend": { "service": { "name": service, "port": { "number": 80 } } } });
    let base = json!({
        "metadata": { "name": "shop", "namespace": world.namespace, "annotations": { ENTRY_CLUSTERS: "m2, m1" } },
        "spec": { "rules": [{
            "host": "shop.example.com", "http": { "paths": [path("/", "web"), path("/api", "api")] },
        }] },
    });
    merged(base, otherwise)
}

struct Test {
    world: World,
    controller: Arc<Controller>,
    queue: Arc<Queue<Key>>,
    key: Key,
}

impl Test {
    async fn new() -> Self {
        let world = World::new().await;
        world.plane.templates.learn("networking.k8s.io", "v1", "Ingress", true);
        let (controller, queue) = subscribed(&world.plane);
        let key = Key::new(world.namespace.clone(), "shop");
        Self { world, controller, queue, key }
    }

    async fn made(&self, otherwise: Value) -> Arc<MultiClusterIngress> {
        let mirror = &self.world.environment.mirrors.multi_cluster_ingresses;
        self.world.put(mirror, multi(&self.world, otherwise)).await
    }

    /// Changes the annotation that names the entry clusters; without a text it goes.
    async fn enters(&self, clusters: Option<&str>) {
        let mirror = &self.world.environment.mirrors.multi_cluster_ingresses;
        let multi = mirror.find(&self.key).expect("it is known");
        let annotated = json!({ "metadata": { "annotations": { ENTRY_CLUSTERS: clusters } } });
        mirror.note(self.world.patch(multi.as_ref(), annotated).await);
    }

    /// Shows the controller the Ingress and its binding as they are now; finalizers of a binding that is deleted are removed.
    async fn hear(&self) {
        if let Some(ingress) = self.ingress().await {
            self.world.know(ingress);
        }
        for binding in self.world.all::<ResourceBinding>(&self.world.namespace).await {
            if binding.metadata.deletion_timestamp.is_some() {
                self.world.patch(&binding, json!({ "metadata": { "finalizers": null } })).await;
            }
        }
        self.world.catch_up(&self.world.environment.mirrors.bindings, &self.world.namespace).await;
    }

    async fn ingress(&self) -> Option<Ingress> {
        self.world.api::<Ingress>(&self.world.namespace).get_opt("shop").await.expect("an answer")
    }

    async fn binding(&self) -> Option<ResourceBinding> {
        let api = self.world.api::<ResourceBinding>(&self.world.namespace);
        api.get_opt("shop-ingress").await.expect("an answer")
    }

    /// Returns the clusters that the Ingress is bound to.
    async fn bound(&self) -> Option<String> {
        let placement = self.binding().await?.spec.placement?;
        Some(placement.cluster_affinity?.cluster_names.join("+"))
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.key).await
    }

    async fn settle(&self) {
        self.world.settle(self.controller.as_ref(), &self.queue, async || self.hear().await).await;
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

/// The Services behind an Ingress.
fn services(ingress: &Ingress) -> Vec<String> {
    let mut names = Vec::new();
    each_backend(&mut json!(ingress.spec), &mut |service| {
        names.extend(service["name"].as_str().map(str::to_owned));
    });
    names
}

#[tokio::test]
async fn the_ingress_and_its_binding_are_written_once() {
    let test = Test::new().await;
    let multi = test.made(json!({ "metadata": { "labels": { "team": "a" } } })).await;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&test.key), "it is new");
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["POST */ingresses"], "its binding needs its uid");
    test.hear().await;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&test.key), "it is there");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["POST */resourcebindings"]);
    let ingress = test.ingress().await.expect("it is made");
    assert_eq!(services(&ingress), ["web", "api"]);
    let owners = ingress.metadata.owner_references.clone().unwrap_or_default();
    assert_eq!(owners.first().map(|owner| owner.uid.clone()), multi.metadata.uid);
    let binding = test.binding().await.expect("it is bound");
    assert_eq!(test.bound().await.as_deref(), Some("m1+m2"));
    assert_eq!(Some(binding.spec.resource.uid), ingress.metadata.uid);
    assert!(binding.metadata.labels.unwrap_or_default().contains_key(RESOURCE_BINDING_PERMANENT_ID));
    assert!(!test.world.event(SYNCED).await.is_empty());
    test.settle().await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "a second look writes nothing");
    test.end().await;
}

#[tokio::test]
async fn the_binding_follows_the_entries() {
    let test = Test::new().await;
    test.made(json!({})).await;
    test.settle().await;
    assert_eq!(test.bound().await.as_deref(), Some("m1+m2"));
    // The annotation as it is edited; then: where the Ingress is bound to, and whether policies may have it.
    for (entries, expected, is_free) in [
        (Some("m1"), Some("m1"), false),
        (Some("m3,m1"), Some("m1+m3"), false),
        (Some(","), None, false),
        (Some("m2"), Some("m2"), false),
        (None, None, true),
        (Some("m1"), Some("m1"), false),
    ] {
        test.enters(entries).await;
        test.settle().await;
        assert_eq!(test.bound().await.as_deref(), expected, "{entries:?}");
        let labels = test.ingress().await.and_then(|ingress| ingress.metadata.labels).unwrap_or_default();
        assert_eq!(!labels.contains_key(RESOURCE_TEMPLATE_CLAIMED_BY), is_free, "{entries:?}: {labels:?}");
    }
    test.end().await;
}

#[tokio::test]
async fn any_order_of_events_ends_in_the_same_state() {
    for order in orders(4) {
        let test = Test::new().await;
        let (world, mirrors) = (&test.world, &test.world.environment.mirrors);
        let cluster = world.cluster("m1", json!({})).await;
        mirrors.clusters.remove(&Key::new("", cluster.as_str()), 0);
        for event in &order {
            match event {
                0 => drop(test.made(json!({})).await),
                1 => {
                    let import = json!({
                        "metadata": { "name": "web", "namespace": world.namespace },
                        "spec": { "type": "ClusterSetIP", "ports": [{ "name": "http", "port": 80 }] },
                    });
                    world.put::<ServiceImport>(&mirrors.service_imports, import).await;
                }
                2 => {
                    let slice = json!({
                        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                        "metadata": { "name": "a", "namespace": world.namespace }, "endpoints": [],
                    });
                    let service = Key::new(world.namespace.clone(), "web");
                    let wanted = collected(&cluster, &slice, &service, &[Token::ServiceExport].into());
                    let Ensure::Create(work) = wanted.expect("a Work").ensure(None) else {
                        panic!("it is made")
                    };
                    let mut work = json!(identified(*work));
                    work.as_object_mut().expect("an object").remove("status");
                    world.put::<Work>(&mirrors.works, work).await;
                }
                _ => mirrors.clusters.note(world.api("").get(&cluster).await.expect("it exists")),
            }
            test.settle().await;
        }
        let ingress = test.ingress().await.expect("it is made");
        assert_eq!(services(&ingress), ["derived-web", "api"], "{order:?}");
        assert_eq!(test.bound().await.as_deref(), Some("m1+m2"), "{order:?}");
        let multi = mirrors.multi_cluster_ingresses.find(&test.key).expect("it is known");
        let located = json!([{ "name": "web", "clusters": [cluster] }]);
        assert_eq!(json!(multi.status)["serviceLocations"], located, "{order:?}");
        world.writes();
        assert_eq!(test.once().await, Outcome::Done);
        assert_eq!(world.writes(), [""; 0], "{order:?}");
        test.end().await;
    }
}

#[tokio::test]
async fn nothing_is_left_of_one_that_goes() {
    // With and without the annotation, and with a binding that others hold for a while.
    for entries in [Some("m1"), Some(","), None] {
        let test = Test::new().await;
        test.made(json!({})).await;
        test.settle().await;
        test.enters(entries).await;
        if entries.is_some() {
            test.settle().await;
        }
        let api = test.world.api::<MultiClusterIngress>(&test.world.namespace);
        api.delete("shop", &DeleteParams::default()).await.expect("it goes");
        test.world.environment.mirrors.multi_cluster_ingresses.remove(&test.key, 0);
        assert_eq!(drain(&test.queue), std::slice::from_ref(&test.key));
        // What nobody owns any more is collected by the server, at its own pace.
        let gone = async {
            while test.ingress().await.is_some() || test.binding().await.is_some() {
                test.once().await;
                test.hear().await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.expect("all of it goes");
        test.world.writes();
        assert_eq!(test.once().await, Outcome::Done);
        assert_eq!(test.world.writes(), [""; 0], "{entries:?}");
        test.end().await;
    }
}

#[tokio::test]
async fn an_ingress_of_somebody_else_is_left_alone() {
    let test = Test::new().await;
    let rules = json!({ "rules": [{ "host": "theirs.example.com" }] });
    let theirs: Ingress = test
        .world
        .create(json!({ "metadata": { "name": "shop", "namespace": test.world.namespace }, "spec": rules }))
        .await;
    test.made(json!({})).await;
    let outcome = test.once().await;
    assert!(
        matches!(&outcome, Outcome::Failed { error, .. } if error.contains("does not belong")),
        "{outcome:?}"
    );
    assert!(test.world.event(NOT_SYNCED).await.contains("does not belong"));
    assert_eq!(test.world.writes(), [""; 0]);
    test.world.environment.mirrors.multi_cluster_ingresses.remove(&test.key, 0);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.ingress().await.and_then(|ingress| ingress.metadata.uid), theirs.metadata.uid);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn what_the_server_refuses_is_told_and_tried_again() {
    let test = Test::new().await;
    test.made(json!({})).await;
    test.world.refuse(Method::POST, "/ingresses", 500, "InternalError");
    let refused = Outcome::Failed { error: "refused: InternalError".to_owned(), conflict: false };
    assert_eq!(test.once().await, refused);
    assert_eq!(test.world.event(NOT_SYNCED).await, "refused: InternalError");
    test.settle().await;
    assert_eq!(test.once().await, Outcome::Done);
    test.settle().await;
    let binding = test.binding().await.expect("it is bound");
    assert_eq!(binding.metadata.finalizers.as_deref(), Some(&[finalizers::BINDING.to_owned()][..]));
    test.end().await;
}

#[tokio::test]
async fn a_headless_import_has_no_derived_service_and_lost_clusters_are_noticed() {
    let world = World::new().await;
    let (controller, queue) = subscribed(&world.plane);
    let mirrors = &world.environment.mirrors;
    let made = multi(&world, json!({}));
    let multi: Arc<MultiClusterIngress> = world.put(&mirrors.multi_cluster_ingresses, made).await;
    let key = Key::of(multi.as_ref());
    let import = |kind: &str, version: &str| -> ServiceImport {
        read(json!({
            "metadata": { "name": "web", "namespace": world.namespace, "resourceVersion": version },
            "spec": { "type": kind, "ports": [{ "name": "http", "port": 80 }] },
        }))
    };
    drain(&queue);
    mirrors.service_imports.note(import("Headless", "1"));
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    let view = controller.observe(&key).await.expect("it is seen").expect("a view");
    assert!(view.imported.is_empty(), "{:?}", view.imported);
    mirrors.service_imports.note(import("Headless", "2"));
    assert!(drain(&queue).is_empty(), "nothing that matters has changed");
    mirrors.service_imports.note(import("ClusterSetIP", "3"));
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    let view = controller.observe(&key).await.expect("it is seen").expect("a view");
    assert_eq!(view.imported, BTreeSet::from(["web".to_owned()]));

    let look = |ready: &str, version: &str| {
        let otherwise = json!({ "metadata": { "resourceVersion": version } });
        mirrors.clusters.note(cluster(&world.own("m1"), ready, otherwise));
        drain(&queue)
    };
    assert_eq!(look("True", "1"), std::slice::from_ref(&key));
    assert!(look("True", "2").is_empty(), "nothing that matters has changed");
    assert_eq!(look("Unknown", "3"), std::slice::from_ref(&key));

    // What is wrong is told once.
    let told = || vec!["a".to_owned()];
    assert_eq!(controller.news(&key, told()), told());
    assert_eq!(controller.news(&key, told()), [""; 0]);
    assert_eq!(controller.news(&key, Vec::new()), [""; 0]);
    assert_eq!(controller.news(&key, told()), told());
    world.supervisor.stop().await;
}

#[tokio::test]
async fn what_is_gone_leaves_the_status_and_what_a_policy_wrote_leaves_the_binding() {
    let world = World::new().await;
    let (controller, _) = subscribed(&world.plane);
    let mirrors = &world.environment.mirrors;
    let otherwise = json!({
        "status": {
            "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] },
            "serviceLocations": [{ "name": "web", "clusters": ["m3"] }], "trafficBlockClusters": ["m9"],
        },
    });
    let made = multi(&world, otherwise);
    let multi: Arc<MultiClusterIngress> = world.put(&mirrors.multi_cluster_ingresses, made).await;
    let key = Key::of(multi.as_ref());
    // The Ingress comes first, and then what needs it.
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    let status = json!(world.stored(multi.as_ref()).await.expect("it is there").status);
    assert_eq!(status, json!({ "loadBalancer": {}, "trafficBlockClusters": ["m9"] }));
    world.writes();
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0], "a second look writes nothing");

    // A policy that had not heard of it writes the binding, from the same process.
    let bound = || {
        let binding = mirrors.bindings.get(&world.namespace, "shop-ingress").expect("it is bound");
        let placement = binding.spec.placement.clone().unwrap_or_default();
        (placement.cluster_affinity.unwrap_or_default().cluster_names.join("+"), binding)
    };
    let elsewhere = json!({ "spec": { "placement": { "clusterAffinity": { "clusterNames": ["m9"] } } } });
    let (_, binding) = bound();
    let (controller, queue) = subscribed(&world.plane);
    mirrors.bindings.note(world.patch(binding.as_ref(), elsewhere).await);
    assert_eq!(queue.waiting(), std::slice::from_ref(&key));
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(bound().0, "m1+m2");
    world.supervisor.stop().await;
}
