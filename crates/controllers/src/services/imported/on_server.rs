//! Imported slices on a server: what is copied into the control plane, and what is left when something goes.

use std::collections::BTreeSet;

use api::labels::RESOURCE_BINDING_PERMANENT_ID;
use api::labels::annotations::{RESOURCE_BINDING_NAME, RESOURCE_BINDING_NAMESPACE};
use http::Method;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::super::works::{Ensure, collected};
use super::*;
use crate::plane::works::identified;
use crate::world::{World, drain, orders};

struct Test {
    world: World,
    controller: Arc<Controller>,
    queue: Arc<Queue<Key>>,
    cluster: String,
    key: Key,
}

impl Test {
    /// A cluster that the controller has not heard of.
    async fn before_cluster() -> Self {
        let world = World::new().await;
        let cluster = world.cluster("m1", json!({})).await;
        world.environment.mirrors.clusters.remove(&Key::new("", cluster.as_str()), 0);
        let (controller, queue) = subscribed(&world.plane);
        let space = names::execution_space(&cluster);
        let key = Key::new(space, names::work("EndpointSlice", "a", &world.namespace));
        Self { world, controller, queue, cluster, key }
    }

    async fn new() -> Self {
        let test = Self::before_cluster().await;
        test.joins().await;
        test
    }

    async fn joins(&self) {
        let cluster = self.world.api::<Cluster>("").get(&self.cluster).await.expect("it exists");
        self.world.environment.mirrors.clusters.note(cluster);
    }

    async fn reports(&self, ready: &str) {
        let mirror = &self.world.environment.mirrors.clusters;
        let cluster = mirror.get("", &self.cluster).expect("it is known");
        let status = json!({ "conditions": [{
            "type": "Ready", "status": ready, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] });
        mirror.note(self.world.patch_status(cluster.as_ref(), status).await);
    }

    fn manifest(&self, address: &str) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "a", "namespace": self.world.namespace },
            "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        })
    }

    /// A slice is collected for a ServiceExport.
    async fn slice(&self) -> Arc<Work> {
        let service = Key::new(self.world.namespace.clone(), "web");
        let tokens = BTreeSet::from([Token::ServiceExport]);
        let wanted = collected(&self.cluster, &self.manifest("10.0.0.1"), &service, &tokens).expect("a Work");
        let Ensure::Create(work) = wanted.ensure(None) else { panic!("it is made") };
        let mut work = json!(identified(*work));
        work.as_object_mut().expect("an object").remove("status");
        self.world.put(&self.world.environment.mirrors.works, work).await
    }

    async fn slice_goes(&self) {
        let mirror = &self.world.environment.mirrors.works;
        if let Some(work) = mirror.find(&self.key) {
            mirror.note(self.world.let_go(work.as_ref()).await);
        }
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.key).await
    }

    async fn settle(&self) {
        let mirrors = &self.world.environment.mirrors;
        let hear = async || {
            self.world.catch_up(&mirrors.works, &self.key.namespace).await;
            self.world.catch_up(&mirrors.imported_slices, &self.world.namespace).await;
        };
        self.world.settle(self.controller.as_ref(), &self.queue, hear).await;
    }

    /// Returns the addresses in the control plane.
    async fn imported(&self) -> Vec<String> {
        let slices = self.world.all::<EndpointSlice>(&self.world.namespace).await;
        let endpoints = slices.into_iter().filter_map(|slice| slice.endpoints).flatten();
        endpoints.flat_map(|endpoint| endpoint.addresses).collect()
    }

    async fn somebody_deletes_it(&self) {
        let name = names::imported_endpoint_slice(&self.cluster, "a");
        let api = self.world.api::<EndpointSlice>(&self.world.namespace);
        // It may be gone already.
        let _ = api.delete(&name, &DeleteParams::default()).await;
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

#[tokio::test]
async fn a_slice_is_copied_once_and_follows_its_work() {
    let test = Test::new().await;
    let work = test.slice().await;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&test.key));
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["POST */endpointslices"]);
    assert_eq!(test.imported().await, ["10.0.0.1"]);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "a second look writes nothing");
    let moved = json!({ "spec": { "workload": { "manifests": [test.manifest("10.0.0.9")] } } });
    test.world.environment.mirrors.works.note(test.world.patch(work.as_ref(), moved).await);
    test.settle().await;
    assert_eq!(test.imported().await, ["10.0.0.9"]);
    test.somebody_deletes_it().await;
    test.settle().await;
    assert_eq!(test.imported().await, ["10.0.0.9"], "it comes back");
    test.end().await;
}

#[tokio::test]
async fn a_slice_goes_while_its_cluster_is_lost() {
    let test = Test::new().await;
    test.slice().await;
    test.settle().await;
    for lost in ["False", "Unknown"] {
        test.reports(lost).await;
        test.settle().await;
        assert_eq!(test.imported().await, [""; 0], "{lost}");
        test.reports("True").await;
        test.settle().await;
        assert_eq!(test.imported().await, ["10.0.0.1"], "{lost}");
    }
    test.end().await;
}

#[tokio::test]
async fn any_order_of_events_ends_in_the_same_state() {
    for order in orders(3) {
        let test = Test::before_cluster().await;
        for event in &order {
            match event {
                0 => drop(test.slice().await),
                1 => test.joins().await,
                _ => test.somebody_deletes_it().await,
            }
            test.settle().await;
        }
        assert_eq!(test.imported().await, ["10.0.0.1"], "{order:?}");
        test.world.writes();
        assert_eq!(test.once().await, Outcome::Done);
        assert_eq!(test.world.writes(), [""; 0], "{order:?}");
        test.end().await;
    }
}

#[tokio::test]
async fn nothing_is_left_in_whatever_order_things_go() {
    for order in orders(3) {
        let test = Test::new().await;
        let work = test.slice().await;
        test.settle().await;
        for event in &order {
            match event {
                0 => test.slice_goes().await,
                1 => test.reports("Unknown").await,
                _ => test.somebody_deletes_it().await,
            }
            test.settle().await;
        }
        assert_eq!(test.imported().await, [""; 0], "{order:?}");
        assert!(test.world.stored(work.as_ref()).await.is_none(), "its finalizer is gone: {order:?}");
        test.end().await;
    }
}

#[tokio::test]
async fn a_work_is_held_as_long_as_its_slice_is_there() {
    let test = Test::new().await;
    let work = test.slice().await;
    test.settle().await;
    test.slice_goes().await;
    let path = format!("/endpointslices/{}", names::imported_endpoint_slice(&test.cluster, "a"));
    test.world.refuse(Method::DELETE, &path, 500, "InternalError");
    let refused = Outcome::Failed { error: "refused: InternalError".to_owned(), conflict: false };
    assert_eq!(test.once().await, refused);
    assert!(test.world.stored(work.as_ref()).await.is_some());
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.imported().await, [""; 0]);
    assert!(test.world.stored(work.as_ref()).await.is_none());
    test.end().await;
}

#[tokio::test]
async fn a_panic_is_told_of_the_work() {
    let test = Test::new().await;
    test.slice().await;
    drain(&test.queue);
    let told = test.world.panicked(&test.queue, test.key.clone()).await;
    assert_eq!(told, format!("{COMPONENT} panicked and tries again later: by accident"));
    test.end().await;
}

#[tokio::test]
async fn finding_25_a_member_offers_no_endpoints_of_a_service_that_is_exported_elsewhere() {
    let test = Test::new().await;
    let (world, mirrors) = (&test.world, &test.world.environment.mirrors);
    test.slice().await;
    test.settle().await;
    assert_eq!(test.imported().await, ["10.0.0.1"], "nobody else says from where it is exported");
    let (name, namespace, id) = ("web-serviceexport", world.namespace.as_str(), world.own("export"));
    let export = json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceExport",
        "metadata": { "name": "web", "namespace": namespace },
    });
    let resource = json!({
        "apiVersion": export["apiVersion"], "kind": export["kind"], "name": "web", "namespace": namespace,
    });
    let binding = json!({
        "metadata": {
            "name": name, "namespace": namespace, "labels": { RESOURCE_BINDING_PERMANENT_ID: id },
        },
        "spec": { "resource": resource },
    });
    world.put(&mirrors.bindings, binding).await;
    test.settle().await;
    assert_eq!(test.imported().await, [""; 0], "its owners say that it is not exported from here");
    let work = json!({
        "metadata": {
            "name": "export", "namespace": test.key.namespace, "labels": { RESOURCE_BINDING_PERMANENT_ID: id },
            "annotations": { RESOURCE_BINDING_NAME: name, RESOURCE_BINDING_NAMESPACE: namespace },
        },
        "spec": { "workload": { "manifests": [export] } },
    });
    world.put(&mirrors.works, work).await;
    test.settle().await;
    assert_eq!(test.imported().await, ["10.0.0.1"], "now they say that it is");
    test.end().await;
}
