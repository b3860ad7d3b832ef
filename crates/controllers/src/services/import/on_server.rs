//! Derived Services on a server: what is written, what others change, and what is left when a ServiceImport goes.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::merged;
use crate::world::{World, drain, orders};

struct Test {
    world: World,
    controller: Arc<Controller>,
    queue: Arc<Queue<Key>>,
    key: Key,
}

impl Test {
    async fn new() -> Self {
        let world = World::new().await;
        world.plane.templates.learn("", "v1", "Service", true);
        let (controller, queue) = subscribed(&world.plane);
        let key = Key::new(world.namespace.clone(), "web");
        Self { world, controller, queue, key }
    }

    /// Creates a ServiceImport that the controller has not heard of.
    async fn import(&self, otherwise: Value) -> ServiceImport {
        let base = json!({
            "metadata": { "name": "web", "namespace": self.world.namespace },
            "spec": { "type": "ClusterSetIP", "ports": [{ "name": "http", "port": 80 }] },
        });
        self.world.create(merged(base, otherwise)).await
    }

    /// Shows the controller the ServiceImport and the Service as they are now.
    async fn hear(&self) {
        let mirror = &self.world.environment.mirrors.service_imports;
        self.world.catch_up(mirror, &self.world.namespace).await;
        self.hear_of_service().await;
    }

    async fn hear_of_service(&self) {
        let named = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "derived-web", "namespace": self.world.namespace },
        });
        // Only what is forgotten counts as somebody else's change.
        let service = self.service().await;
        service.iter().for_each(|service| drop(self.world.know(service.clone())));
        self.world.plane.templates.forget(&named);
        service.into_iter().for_each(|service| drop(self.world.know(service)));
    }

    async fn service(&self) -> Option<Service> {
        self.world.api::<Service>(&self.world.namespace).get_opt("derived-web").await.expect("an answer")
    }

    /// Somebody creates the Service, or changes it.
    async fn somebody_meddles(&self) {
        let meddled = json!({
            "metadata": { "labels": { "by": "others" } },
            "spec": { "type": "LoadBalancer", "selector": { "app": "web" } },
        });
        match self.service().await {
            Some(service) => drop(self.world.patch(&service, meddled).await),
            None => {
                let base = json!({
                    "metadata": { "name": "derived-web", "namespace": self.world.namespace },
                    "spec": { "ports": [{ "name": "theirs", "port": 9 }] },
                });
                drop(self.world.create::<Service>(merged(base, meddled)).await);
            }
        }
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.key).await
    }

    /// Reconciles what is due. Afterwards there is nothing left to write.
    async fn settle(&self) {
        for key in drain(&self.queue) {
            assert_eq!(self.world.once(self.controller.as_ref(), &key).await, Outcome::Done);
        }
        self.world.writes();
        assert_eq!(self.once().await, Outcome::Done);
        assert_eq!(self.world.writes(), [""; 0], "a second look writes nothing");
    }

    /// The Service is gone: by the controller, or by the server, which collects what has no owner.
    async fn until_gone(&self) {
        let gone = async {
            while self.service().await.is_some() {
                self.once().await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the Service goes");
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

/// Type, selector and ports of a Service.
fn said(service: &Service) -> (String, bool, Vec<i32>) {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default().iter().map(|port| port.port).collect();
    (spec.type_.unwrap_or_default(), spec.selector.is_some(), ports)
}

#[tokio::test]
async fn a_service_is_derived_once_with_the_addresses_of_its_import() {
    let test = Test::new().await;
    let import = test.import(json!({ "spec": { "ips": ["10.0.0.1"] } })).await;
    test.hear().await;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&test.key), "it is new");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["POST */services", "PATCH */services/derived-web/status"]);
    let service = test.service().await.expect("it is derived");
    assert_eq!(said(&service), (CLUSTER_IP.to_owned(), false, vec![80]));
    assert_eq!(owner(&service).map(|owner| owner.uid.clone()), import.metadata.uid);
    let ips = load_balancer(&service).unwrap_or_default();
    assert_eq!(ips.iter().filter_map(|ip| ip.ip.as_deref()).collect::<Vec<_>>(), ["10.0.0.1"]);
    assert!(test.world.event(reasons::SYNC_DERIVED_SERVICE_SUCCEED).await.contains("web"));
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "a second look writes nothing");

    test.world
        .patch(&import, json!({ "spec": { "ips": ["10.0.0.2"], "ports": [{ "name": "http", "port": 81 }] } }))
        .await;
    test.hear().await;
    test.settle().await;
    let service = test.service().await.expect("it is there");
    assert_eq!(said(&service).2, [81]);
    let ips = load_balancer(&service).unwrap_or_default();
    assert_eq!(ips.iter().filter_map(|ip| ip.ip.as_deref()).collect::<Vec<_>>(), ["10.0.0.2"]);
    test.end().await;
}

#[tokio::test]
async fn any_order_of_events_ends_in_the_same_state() {
    for order in orders(3) {
        let test = Test::new().await;
        let import = test.import(json!({})).await;
        let mut is_known = false;
        for event in &order {
            match event {
                0 => is_known = true,
                1 => test.somebody_meddles().await,
                _ => {
                    let ports = json!({ "spec": { "ports": [{ "name": "http", "port": 81 }] } });
                    test.world.patch(&import, ports).await;
                }
            }
            if is_known {
                test.hear().await;
            }
            test.settle().await;
        }
        let service = test.service().await.expect("it is derived");
        assert_eq!(said(&service), (CLUSTER_IP.to_owned(), false, vec![81]), "{order:?}");
        assert_eq!(owner(&service).map(|owner| owner.uid.clone()), import.metadata.uid, "{order:?}");
        let labels = service.metadata.labels.unwrap_or_default();
        assert_eq!(labels.get("by").map(String::as_str), Some("others"), "labels of others stay: {order:?}");
        test.end().await;
    }
}

#[tokio::test]
async fn nothing_is_left_in_whatever_order_things_go() {
    for order in orders(3) {
        let test = Test::new().await;
        test.import(json!({})).await;
        test.hear().await;
        test.settle().await;
        for event in &order {
            match event {
                0 => {
                    let api = test.world.api::<ServiceImport>(&test.world.namespace);
                    api.delete("web", &DeleteParams::default()).await.expect("it goes");
                }
                1 if test.service().await.is_some() => {
                    let api = test.world.api::<Service>(&test.world.namespace);
                    // The server may be faster.
                    let _ = api.delete("derived-web", &DeleteParams::default()).await;
                }
                1 => {}
                // Whoever changes it does not make it anew.
                _ => {
                    if let Some(service) = test.service().await {
                        let api = test.world.api::<Service>(&test.world.namespace);
                        let patch =
                            kube::api::Patch::Merge(json!({ "spec": { "selector": { "app": "web" } } }));
                        let name = service.metadata.name.unwrap_or_default();
                        let _ = api.patch(&name, &kube::api::PatchParams::default(), &patch).await;
                    }
                }
            }
            test.hear().await;
            for key in drain(&test.queue) {
                test.world.once(test.controller.as_ref(), &key).await;
            }
        }
        test.until_gone().await;
        assert_eq!(test.once().await, Outcome::Done, "{order:?}");
        assert!(test.service().await.is_none(), "it does not come back: {order:?}");
        test.end().await;
    }
}

#[tokio::test]
async fn a_service_of_somebody_else_is_left_alone() {
    let test = Test::new().await;
    let owner: ConfigMap =
        test.world.create(json!({ "metadata": { "name": "app", "namespace": test.world.namespace } })).await;
    let reference = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "app", "uid": owner.metadata.uid, "controller": true,
    });
    let theirs: Service = test
        .world
        .create(json!({
            "metadata": { "name": "derived-web", "namespace": test.world.namespace, "ownerReferences": [reference] },
            "spec": { "ports": [{ "name": "theirs", "port": 9 }] },
        }))
        .await;
    test.import(json!({})).await;
    test.hear().await;
    let why = "service derived-web exists and belongs to ConfigMap app".to_owned();
    assert_eq!(test.once().await, Outcome::Failed { error: why.clone(), conflict: false });
    assert_eq!(test.world.event(reasons::SYNC_DERIVED_SERVICE_FAILED).await, why);
    let api = test.world.api::<ServiceImport>(&test.world.namespace);
    api.delete("web", &DeleteParams::default()).await.expect("it goes");
    test.hear().await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert_eq!(test.service().await.and_then(|service| service.metadata.uid), theirs.metadata.uid);
    test.end().await;
}

#[tokio::test]
async fn what_the_server_refuses_is_told_and_tried_again() {
    let test = Test::new().await;
    test.import(json!({})).await;
    test.hear().await;
    test.world.refuse(Method::POST, "/services", 500, "InternalError");
    let refused = Outcome::Failed { error: "refused: InternalError".to_owned(), conflict: false };
    assert_eq!(test.once().await, refused);
    assert_eq!(test.world.event(reasons::SYNC_DERIVED_SERVICE_FAILED).await, "refused: InternalError");
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.service().await.is_some());
    test.end().await;
}
