//! Collecting on a server that is control plane and member at once: which slices are collected for whom, and what is left.

use std::time::Duration;

use api::labels::annotations::PROVISION_CLUSTER;
use api::labels::{
    MULTI_CLUSTER_SERVICE_NAME, MULTI_CLUSTER_SERVICE_NAMESPACE, WORK_PERMANENT_ID, finalizers,
};
use api::multicluster::ServiceExport;
use api::names::execution_space;
use api::work::Work;
use http::Method;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::DeleteParams;
use runtime::Key;
use serde_json::{Value, json};

use super::super::works::{annotation, manifest, tokens};
use super::*;
use crate::fixtures::merged;
use crate::world::{World, drain, orders};

const BOTH: [&str; 2] = ["serviceExport", "endpointsliceCollect"];

struct Test {
    world: World,
    controller: Controller,
    cluster: String,
    key: ServiceKey,
}

impl Test {
    async fn new() -> Self {
        Self::with(&BOTH).await
    }

    /// A world in which these controllers run.
    async fn with(chosen: &[&str]) -> Self {
        let world = World::agent().await;
        let cluster = world.cluster("m1", json!({})).await;
        let shared = world.members(chosen);
        shared.members.adopt(&cluster, shared.client());
        drop((wire_exports(&shared), wire_multi_cluster(&shared)));
        let service = Key::new(world.namespace.clone(), "web");
        let key = ServiceKey { cluster: cluster.clone(), service };
        Self { controller: Controller(shared), world, cluster, key }
    }

    fn space(&self) -> String {
        execution_space(&self.cluster)
    }

    async fn slice(&self, name: &str, address: &str) -> EndpointSlice {
        let slice = json!({
            "metadata": {
                "name": name, "namespace": self.world.namespace, "labels": { SERVICE_NAME: "web" },
            },
            "addressType": "IPv4", "endpoints": [{ "addresses": [address] }],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        });
        self.world.create(slice).await
    }

    /// Creates a Work that stays in the control plane, and adds it to the mirror.
    async fn work(&self, name: &str, otherwise: Value) -> Arc<Work> {
        let base = json!({ "metadata": { "name": name, "namespace": self.space() }, "spec": { "suspendDispatching": true } });
        self.world.put(&self.world.environment.mirrors.works, merged(base, otherwise)).await
    }

    /// The Service is exported: by a ServiceExport in the member, and the Work that brought it there.
    async fn is_exported(&self) -> Arc<Work> {
        let export = json!({
            "apiVersion": EXPORT_API, "kind": EXPORT, "metadata": { "name": "web", "namespace": self.world.namespace },
        });
        self.world.create::<ServiceExport>(export.clone()).await;
        self.work("export", json!({ "spec": { "workload": { "manifests": [export] } } })).await
    }

    async fn is_exported_no_more(&self) {
        let api = self.world.api::<ServiceExport>(&self.world.namespace);
        api.delete("web", &DeleteParams::default()).await.expect("it goes");
    }

    /// A MultiClusterService asks for the endpoints.
    async fn is_requested(&self) -> Arc<Work> {
        let manifest = json!({
            "apiVersion": "networking.karmada.io/v1alpha1", "kind": "MultiClusterService",
            "metadata": { "name": "web", "namespace": self.world.namespace },
        });
        let labels = json!({
            MULTI_CLUSTER_SERVICE_NAMESPACE: self.world.namespace, MULTI_CLUSTER_SERVICE_NAME: "web",
        });
        let request = json!({
            "metadata": { "labels": labels }, "spec": { "workload": { "manifests": [manifest] } },
        });
        self.work("request", request).await
    }

    async fn is_requested_no_more(&self) {
        let api = self.world.api::<Work>(&self.space());
        api.delete("request", &DeleteParams::default()).await.expect("it goes");
        self.world.environment.mirrors.works.remove(&Key::new(self.space(), "request"), 0);
    }

    async fn once(&self) -> Outcome {
        self.world.once(&self.controller, &self.key).await
    }

    /// Returns which slices are collected: names, addresses and for whom. Works that go are not.
    async fn collected(&self) -> Vec<String> {
        let mut found = Vec::new();
        for work in self.world.all::<Work>(&self.space()).await {
            assert_eq!(annotation(&work, PROVISION_CLUSTER), "", "nothing is dispatched here");
            let Some(slice) = manifest(&work, SLICE).filter(|_| work.metadata.deletion_timestamp.is_none())
            else {
                continue;
            };
            assert_eq!(work.spec.suspend_dispatching, Some(true), "it is never carried out");
            let address = slice.pointer("/endpoints/0/addresses/0").and_then(Value::as_str).unwrap_or("");
            found.push(format!("{} {address} {:?}", slice.name(), tokens(&work)));
        }
        found.sort();
        found
    }

    /// The controllers that bring collected slices further let go of those that go.
    async fn others_let_go(&self) {
        for work in self.world.all::<Work>(&self.space()).await {
            if work.metadata.deletion_timestamp.is_some() {
                self.world.patch(&work, json!({ "metadata": { "finalizers": null } })).await;
            }
        }
        self.world.catch_up(&self.world.environment.mirrors.works, &self.space()).await;
    }

    /// Reconciles until this is collected: the member's changes arrive a moment after they were made.
    async fn until(&self, expected: &[&str]) {
        let mut found = Vec::new();
        let reached = async {
            loop {
                self.once().await;
                self.others_let_go().await;
                found = self.collected().await;
                if found == expected {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(60), reached).await.is_err() {
            panic!("collected are {found:?} and not {expected:?}");
        }
        self.world.writes();
        assert_eq!(self.once().await, Outcome::Done);
        assert_eq!(self.world.writes(), [""; 0], "a second look writes nothing");
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

const FOR_EXPORT: &str = "{ServiceExport}";
const FOR_MULTI: &str = "{MultiClusterService}";
const FOR_BOTH: &str = "{MultiClusterService, ServiceExport}";

#[tokio::test]
async fn slices_are_collected_once_for_those_who_want_them() {
    let test = Test::new().await;
    test.slice("a", "10.0.0.1").await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "nobody wants it");
    test.is_requested().await;
    assert_eq!(test.controller.0.collection.queue.waiting(), std::slice::from_ref(&test.key));
    test.until(&[&format!("a 10.0.0.1 {FOR_MULTI}")]).await;
    let work = test.world.all::<Work>(&test.space()).await;
    let work = work.iter().find(|work| manifest(work, SLICE).is_some()).expect("it is collected");
    let id =
        work.metadata.labels.as_ref().and_then(|labels| labels.get(WORK_PERMANENT_ID)).expect("an identity");
    assert_eq!(work.spec.workload.manifests[0].label(WORK_PERMANENT_ID), Some(id.as_str()));
    let held = [finalizers::MCS_ENDPOINT_SLICE_DISPATCH.to_owned()];
    assert_eq!(work.metadata.finalizers.as_deref(), Some(&held[..]));

    test.slice("b", "10.0.0.2").await;
    test.until(&[&format!("a 10.0.0.1 {FOR_MULTI}"), &format!("b 10.0.0.2 {FOR_MULTI}")]).await;
    test.is_exported().await;
    test.until(&[&format!("a 10.0.0.1 {FOR_BOTH}"), &format!("b 10.0.0.2 {FOR_BOTH}")]).await;
    test.end().await;
}

#[tokio::test]
async fn what_changes_in_the_member_is_followed() {
    let test = Test::new().await;
    test.is_requested().await;
    let slice = test.slice("a", "10.0.0.1").await;
    test.until(&[&format!("a 10.0.0.1 {FOR_MULTI}")]).await;
    drain(&test.controller.0.collection.queue);
    let moved = json!({ "endpoints": [{ "addresses": ["10.0.0.9"] }] });
    test.world.patch(&slice, moved).await;
    let told = async {
        while drain(&test.controller.0.collection.queue).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("the change brings the Service up");
    test.until(&[&format!("a 10.0.0.9 {FOR_MULTI}")]).await;
    // It belongs to another Service by now.
    test.world.patch(&slice, json!({ "metadata": { "labels": { SERVICE_NAME: "api" } } })).await;
    test.until(&[]).await;
    test.world.patch(&slice, json!({ "metadata": { "labels": { SERVICE_NAME: "web" } } })).await;
    test.until(&[&format!("a 10.0.0.9 {FOR_MULTI}")]).await;
    test.end().await;
}

#[tokio::test]
async fn slices_that_were_brought_here_are_not_collected() {
    let test = Test::new().await;
    test.is_requested().await;
    let brought = test.slice("m2-a", "10.0.0.5").await;
    let label = api::labels::ENDPOINT_SLICE_MANAGED_BY;
    let marked =
        json!({ "metadata": { "labels": { label: api::labels::ENDPOINT_SLICE_DISPATCH_CONTROLLER } } });
    test.world.patch(&brought, marked).await;
    test.slice("a", "10.0.0.1").await;
    test.until(&[&format!("a 10.0.0.1 {FOR_MULTI}")]).await;
    test.end().await;
}

#[tokio::test]
async fn any_order_of_events_ends_in_the_same_state() {
    for order in orders(4) {
        let test = Test::new().await;
        for event in &order {
            match event {
                0 => drop(test.slice("a", "10.0.0.1").await),
                1 => drop(test.is_exported().await),
                2 => drop(test.is_requested().await),
                _ => drop(test.slice("b", "10.0.0.2").await),
            }
            test.once().await;
        }
        test.until(&[&format!("a 10.0.0.1 {FOR_BOTH}"), &format!("b 10.0.0.2 {FOR_BOTH}")]).await;
        test.end().await;
    }
}

#[tokio::test]
async fn nothing_is_left_in_whatever_order_things_go() {
    for order in orders(3) {
        let test = Test::new().await;
        let (_, _, slice) =
            (test.is_exported().await, test.is_requested().await, test.slice("a", "10.0.0.1").await);
        test.until(&[&format!("a 10.0.0.1 {FOR_BOTH}")]).await;
        let (mut exported, mut requested, mut there) = (true, true, true);
        for event in &order {
            match event {
                0 => {
                    test.is_exported_no_more().await;
                    exported = false;
                }
                1 => {
                    test.is_requested_no_more().await;
                    requested = false;
                }
                _ => {
                    let api = test.world.api::<EndpointSlice>(&test.world.namespace);
                    let name = slice.metadata.name.as_deref().unwrap_or("");
                    api.delete(name, &DeleteParams::default()).await.expect("it goes");
                    there = false;
                }
            }
            let whom = match (exported, requested) {
                (true, true) => FOR_BOTH,
                (true, false) => FOR_EXPORT,
                (false, _) => FOR_MULTI,
            };
            let left = format!("a 10.0.0.1 {whom}");
            let expected: &[&str] = if there && (exported || requested) { &[&left] } else { &[] };
            test.until(expected).await;
        }
        test.end().await;
    }
}

#[tokio::test]
async fn slices_of_a_cluster_that_is_lost_or_leaves_are_left_as_they_are() {
    let test = Test::new().await;
    test.is_requested().await;
    let slice = test.slice("a", "10.0.0.1").await;
    let (whole, moved) = (format!("a 10.0.0.1 {FOR_MULTI}"), format!("a 10.0.0.9 {FOR_MULTI}"));
    test.until(&[&whole]).await;
    let mirror = &test.world.environment.mirrors.clusters;
    let cluster = mirror.get("", &test.cluster).expect("it is known");
    let ready = |status: &str| {
        json!({ "conditions": [{
            "type": "Ready", "status": status, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] })
    };
    // It is lost: nobody can say what it has.
    mirror.note(test.world.patch_status(cluster.as_ref(), ready("Unknown")).await);
    test.world.patch(&slice, json!({ "endpoints": [{ "addresses": ["10.0.0.9"] }] })).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.collected().await, std::slice::from_ref(&whole));
    // It is back.
    let cluster = mirror.get("", &test.cluster).expect("it is known");
    mirror.note(test.world.patch_status(cluster.as_ref(), ready("True")).await);
    test.until(&[&moved]).await;

    // It leaves: its namespace goes with all that is in it, and nothing is collected any more.
    let held = json!({ "metadata": { "finalizers": [finalizers::CLUSTER] } });
    let cluster = test.world.patch(mirror.get("", &test.cluster).expect("it is known").as_ref(), held).await;
    mirror.note(test.world.let_go(&cluster).await);
    test.slice("b", "10.0.0.2").await;
    test.is_requested_no_more().await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert_eq!(test.collected().await, [moved]);
    let gone = mirror.get("", &test.cluster).expect("it is known");
    test.world.patch(gone.as_ref(), json!({ "metadata": { "finalizers": null } })).await;
    mirror.remove(&Key::new("", test.cluster.as_str()), 0);
    assert_eq!(test.once().await, Outcome::Done, "it is nobody's by now");
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_member_that_is_away_keeps_what_nobody_wants_only_until_that_is_known() {
    let test = Test::new().await;
    test.is_requested().await;
    test.slice("a", "10.0.0.1").await;
    test.until(&[&format!("a 10.0.0.1 {FOR_MULTI}")]).await;
    test.world.environment.members.remove(&test.cluster);
    test.is_requested_no_more().await;
    test.until(&[]).await;
    test.end().await;
}

#[tokio::test]
async fn a_controller_that_does_not_run_leaves_its_part_as_it_is() {
    let test = Test::new().await;
    test.is_requested().await;
    test.is_exported().await;
    test.slice("a", "10.0.0.1").await;
    test.until(&[&format!("a 10.0.0.1 {FOR_BOTH}")]).await;
    // As after a start without the gate.
    let shared = test.world.members(&["serviceExport"]);
    let only = Controller(shared);
    test.is_requested_no_more().await;
    test.is_exported_no_more().await;
    let left = format!("a 10.0.0.1 {FOR_MULTI}");
    let released = async {
        while test.collected().await != [left.as_str()] {
            test.world.once(&only, &test.key).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), released).await.expect("the export's part goes");
    test.world.writes();
    assert_eq!(test.world.once(&only, &test.key).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn what_the_server_refuses_is_tried_again() {
    let test = Test::new().await;
    test.slice("a", "10.0.0.1").await;
    test.is_requested().await;
    test.world.refuse(Method::POST, "/works", 500, "InternalError");
    let refused = Outcome::Failed { error: "refused: InternalError".to_owned(), conflict: false };
    let seen = async {
        // The member's slices are known a moment later.
        while test.once().await != refused {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), seen).await.expect("it is refused");
    assert_eq!(test.collected().await, [""; 0]);
    test.until(&[&format!("a 10.0.0.1 {FOR_MULTI}")]).await;
    test.end().await;
}
