//! Dispatching on a server: which consumers get the slices, and what is left when something goes.

use std::collections::BTreeSet;

use api::cluster::Cluster;
use api::events as reasons;
use api::labels::WORK_PERMANENT_ID;
use api::labels::annotations::PROVISION_CLUSTER;
use api::labels::finalizers::{EXECUTION, MCS_ENDPOINT_SLICE_DISPATCH};
use api::names::{execution_space, work as name_of_work};
use api::networking::MultiClusterService;
use api::work::Work;
use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::DeleteParams;
use propagation::Object;
use serde_json::{Value, json};

use super::super::works::{Ensure, annotation, collected};
use super::decide::DONE;
use super::*;
use crate::world::{World, orders};

const CLUSTERS: [&str; 3] = ["m1", "m2", "m3"];

struct Test {
    world: World,
    controller: Arc<Controller>,
    queue: Arc<Queue<Key>>,
    key: Key,
}

impl Test {
    async fn new() -> Self {
        let test = Self::before_clusters().await;
        for name in CLUSTERS {
            test.joins(name).await;
        }
        test.settle().await;
        test
    }

    /// A world of clusters that the controller has not heard of.
    async fn before_clusters() -> Self {
        let world = World::new().await;
        for name in CLUSTERS {
            let name = world.cluster(name, json!({})).await;
            world.environment.mirrors.clusters.remove(&Key::new("", name), 0);
        }
        let (controller, queue) = subscribed(&world.plane);
        let key = Key::new(world.namespace.clone(), "web");
        Self { world, controller, queue, key }
    }

    fn space(&self, cluster: &str) -> String {
        execution_space(&self.world.own(cluster))
    }

    /// Shows the controller a cluster and its namespace.
    async fn joins(&self, name: &str) {
        let mirrors = &self.world.environment.mirrors;
        let cluster = self.world.api::<Cluster>("").get(&self.world.own(name)).await;
        mirrors.clusters.note(cluster.expect("it exists"));
        let space = self.world.api::<Namespace>("").get(&self.space(name)).await;
        mirrors.namespaces.note(space.expect("it exists"));
    }

    /// A cluster reports that it is ready, or is reported to be away.
    async fn reports(&self, name: &str, ready: &str) {
        let mirror = &self.world.environment.mirrors.clusters;
        let cluster = mirror.get("", &self.world.own(name)).expect("it is known");
        let status = json!({ "conditions": [{
            "type": "Ready", "status": ready, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] });
        mirror.note(self.world.patch_status(cluster.as_ref(), status).await);
    }

    fn spec(&self, providers: &[&str], consumers: &[&str]) -> Value {
        let list = |names: &[&str]| -> Value {
            names.iter().map(|name| json!({ "name": self.world.own(name) })).collect()
        };
        json!({ "spec": {
            "types": ["CrossCluster"], "providerClusters": list(providers), "consumerClusters": list(consumers),
        } })
    }

    async fn multi(&self, providers: &[&str], consumers: &[&str]) -> Arc<MultiClusterService> {
        let mut multi = self.spec(providers, consumers);
        multi["metadata"] = json!({ "name": "web", "namespace": self.world.namespace });
        self.world.put(&self.world.environment.mirrors.multi_cluster_services, multi).await
    }

    async fn multi_is_edited(&self, providers: &[&str], consumers: &[&str]) {
        let mirror = &self.world.environment.mirrors.multi_cluster_services;
        let multi = mirror.find(&self.key).expect("it is known");
        mirror.note(self.world.patch(multi.as_ref(), self.spec(providers, consumers)).await);
    }

    async fn multi_goes(&self) {
        let api = self.world.api::<MultiClusterService>(&self.world.namespace);
        api.delete("web", &DeleteParams::default()).await.expect("it goes");
        self.world.environment.mirrors.multi_cluster_services.remove(&self.key, 0);
    }

    /// A slice `a` of a cluster is collected.
    async fn slice(&self, cluster: &str) -> Arc<Work> {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "a", "namespace": self.world.namespace },
            "endpoints": [{ "addresses": ["10.0.0.1"] }], "ports": [{ "name": "http", "port": 80 }],
        });
        let tokens = BTreeSet::from([Token::MultiClusterService]);
        let wanted = collected(&self.world.own(cluster), &slice, &self.key, &tokens).expect("a Work");
        let Ensure::Create(work) = wanted.ensure(None) else { panic!("it is made") };
        let mut work = json!(identified(*work));
        work.as_object_mut().expect("an object").remove("status");
        self.world.put(&self.world.environment.mirrors.works, work).await
    }

    /// A collected slice is not collected any more.
    async fn slice_goes(&self, cluster: &str) {
        let mirror = &self.world.environment.mirrors.works;
        let key = Key::new(self.space(cluster), name_of_work("EndpointSlice", "a", &self.world.namespace));
        if let Some(work) = mirror.find(&key) {
            mirror.note(self.world.let_go(work.as_ref()).await);
        }
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.key).await
    }

    /// Does what the execution controllers do with Works that go.
    async fn members_let_go(&self) {
        for name in CLUSTERS {
            for work in self.world.all::<Work>(&self.space(name)).await {
                let mut held = work.metadata.finalizers.clone().unwrap_or_default();
                if work.metadata.deletion_timestamp.is_some() && held.iter().any(|held| held == EXECUTION) {
                    held.retain(|held| held != EXECUTION);
                    self.world.patch(&work, json!({ "metadata": { "finalizers": held } })).await;
                }
            }
            self.world.catch_up(&self.world.environment.mirrors.works, &self.space(name)).await;
        }
    }

    async fn settle(&self) {
        let hear = async || self.members_let_go().await;
        self.world.settle(self.controller.as_ref(), &self.queue, hear).await;
    }

    /// Returns which slice is where.
    async fn brought(&self) -> Vec<String> {
        let mut found = Vec::new();
        for name in CLUSTERS {
            for work in self.world.all::<Work>(&self.space(name)).await {
                if !annotation(&work, PROVISION_CLUSTER).is_empty() {
                    let slice = work.spec.workload.manifests[0].name();
                    found.push(format!("{} in {name}", slice.replace(&self.world.own(""), "")));
                }
            }
        }
        found
    }

    fn condition(&self) -> Option<(String, String)> {
        let multi = self.world.environment.mirrors.multi_cluster_services.find(&self.key)?;
        let condition = multi.status.conditions.first()?;
        Some((condition.status.clone(), condition.message.clone()))
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

const STATUS: &str = "PATCH */multiclusterservices/web/status";

#[tokio::test]
async fn each_consumer_gets_the_slice_once() {
    let test = Test::new().await;
    test.multi(&["m1"], &["m2", "m3"]).await;
    test.slice("m1").await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    let mut writes = test.world.writes();
    writes.sort();
    assert_eq!(writes, [STATUS, "POST karmada-es-*-m2/works", "POST karmada-es-*-m3/works"]);
    assert_eq!(test.brought().await, ["m1-a in m2", "m1-a in m3"]);
    assert_eq!(test.condition(), Some(("True".to_owned(), DONE.to_owned())));
    assert_eq!(test.world.event(reasons::DISPATCH_ENDPOINT_SLICE_SUCCEED).await, DONE);
    let ids: BTreeSet<String> = [test.space("m2"), test.space("m3")]
        .iter()
        .flat_map(|space| test.world.environment.mirrors.works.keys(|key| key.namespace == *space))
        .filter_map(|key| test.world.environment.mirrors.works.find(&key))
        .filter_map(|work| {
            let manifest = work.spec.workload.manifests[0].label(WORK_PERMANENT_ID)?.to_owned();
            let id = work.metadata.labels.as_ref()?.get(WORK_PERMANENT_ID)?.clone();
            (id == manifest).then_some(id)
        })
        .collect();
    assert_eq!(ids.len(), 2, "each has an identity of its own: {ids:?}");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "a second look writes nothing");
    test.end().await;
}

#[tokio::test]
async fn slices_follow_providers_and_consumers() {
    let test = Test::new().await;
    test.multi(&["m1"], &["m2"]).await;
    for provider in ["m1", "m3"] {
        test.slice(provider).await;
    }
    // Providers and consumers as they are edited; then: what is where.
    for (providers, consumers, expected) in [
        (&["m1"][..], &["m2"][..], &["m1-a in m2"][..]),
        (&["m1"], &["m3"], &["m1-a in m3"]),
        (&["m1", "m3"], &["m2", "m3"], &["m1-a in m2", "m3-a in m2", "m1-a in m3"]),
        (&["m3"], &["m3"], &[]),
        (&[], &[], &["m3-a in m1", "m1-a in m2", "m3-a in m2", "m1-a in m3"]),
        (&["m1"], &["m2"], &["m1-a in m2"]),
    ] {
        test.multi_is_edited(providers, consumers).await;
        test.settle().await;
        let found: BTreeSet<String> = test.brought().await.into_iter().collect();
        let expected: BTreeSet<String> = expected.iter().map(|one| (*one).to_owned()).collect();
        assert_eq!(found, expected, "from {providers:?} to {consumers:?}");
    }
    test.end().await;
}

#[tokio::test]
async fn slices_of_a_cluster_that_is_lost_go_and_come_back_with_it() {
    let test = Test::new().await;
    test.multi(&["m1"], &["m2"]).await;
    test.slice("m1").await;
    test.settle().await;
    assert_eq!(test.brought().await, ["m1-a in m2"]);
    for lost in ["False", "Unknown"] {
        test.reports("m1", lost).await;
        test.settle().await;
        assert_eq!(test.brought().await, [""; 0], "its endpoints are of no use: {lost}");
        test.reports("m1", "True").await;
        test.settle().await;
        assert_eq!(test.brought().await, ["m1-a in m2"], "{lost}");
    }
    test.reports("m2", "False").await;
    test.settle().await;
    assert_eq!(test.brought().await, ["m1-a in m2"], "a consumer that is away keeps what it has");
    assert!(test.world.event(reasons::SYNC_SERVICE_FAILED).await.contains("is not ready"));
    test.end().await;
}

#[tokio::test]
async fn any_order_of_events_ends_in_the_same_state() {
    for order in orders(5) {
        let test = Test::before_clusters().await;
        for event in &order {
            match event {
                0 => drop(test.multi(&["m1"], &["m2", "m3"]).await),
                1 => drop(test.slice("m1").await),
                cluster => test.joins(CLUSTERS[cluster - 2]).await,
            }
            test.settle().await;
        }
        assert_eq!(test.brought().await, ["m1-a in m2", "m1-a in m3"], "{order:?}");
        assert_eq!(test.condition().map(|(status, _)| status).as_deref(), Some("True"), "{order:?}");
        test.world.writes();
        test.once().await;
        assert_eq!(test.world.writes(), [""; 0], "{order:?}");
        test.end().await;
    }
}

#[tokio::test]
async fn nothing_is_left_in_whatever_order_things_go() {
    for order in orders(3) {
        let test = Test::new().await;
        test.multi(&["m1"], &["m2", "m3"]).await;
        test.slice("m1").await;
        test.settle().await;
        for event in &order {
            match event {
                0 => test.multi_goes().await,
                1 => test.slice_goes("m1").await,
                _ => test.reports("m1", "Unknown").await,
            }
            test.settle().await;
        }
        for name in CLUSTERS {
            let left = test.world.all::<Work>(&test.space(name)).await;
            assert_eq!(left.len(), 0, "{order:?}: {left:?}");
        }
        test.end().await;
    }
}

#[tokio::test]
async fn a_slice_is_held_as_long_as_a_consumer_has_it() {
    let test = Test::new().await;
    test.multi(&["m1"], &["m2"]).await;
    let collected = test.slice("m1").await;
    assert_eq!(test.once().await, Outcome::Done);
    test.slice_goes("m1").await;
    let brought = test.world.all::<Work>(&test.space("m2")).await.remove(0);
    let path = format!("/works/{}", brought.metadata.name.unwrap_or_default());
    test.world.refuse(Method::DELETE, &path, 500, "InternalError");
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert_eq!(test.condition(), Some(("False".to_owned(), "refused: InternalError".to_owned())));
    let finalizers = test.world.stored(collected.as_ref()).await.and_then(|work| work.metadata.finalizers);
    assert_eq!(finalizers.as_deref(), Some(&[MCS_ENDPOINT_SLICE_DISPATCH.to_owned()][..]));
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.world.stored(collected.as_ref()).await.is_none());
    assert_eq!(test.condition(), Some(("True".to_owned(), DONE.to_owned())));
    test.end().await;
}

#[tokio::test]
async fn a_consumer_that_somebody_else_writes_is_tried_again_and_nobody_is_told() {
    let test = Test::new().await;
    test.multi(&["m1"], &["m2"]).await;
    test.slice("m1").await;
    test.world.refuse(Method::POST, "/works", 409, "Conflict");
    test.world.writes();
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    assert_eq!(test.world.writes(), ["POST karmada-es-*-m2/works"]);
    assert_eq!(test.condition(), None);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["POST karmada-es-*-m2/works", STATUS]);
    assert_eq!(test.condition(), Some(("True".to_owned(), DONE.to_owned())));
    assert_eq!(test.world.event(reasons::DISPATCH_ENDPOINT_SLICE_SUCCEED).await, DONE);
    assert!(!test.world.was_told(reasons::DISPATCH_ENDPOINT_SLICE_FAILED));
    test.end().await;
}

#[tokio::test]
async fn what_cannot_be_dispatched_is_told_although_the_rest_was() {
    let test = Test::new().await;
    test.multi(&["m1"], &["m2"]).await;
    test.slice("m1").await;
    let view = test.controller.observe(&test.key).await.expect("the mirrors").expect("it is there");
    let mut plan = decide::decide(&view);
    plan.errors.push("a slice nests too deeply".to_owned());
    let error = test.controller.apply(&test.key, view, plan).await.expect_err("it is tried again");
    assert!(!error.is_conflict(), "{error:?}");
    assert_eq!(test.brought().await, ["m1-a in m2"]);
    let told = "a slice nests too deeply";
    assert_eq!(test.condition(), Some(("False".to_owned(), told.to_owned())));
    assert_eq!(test.world.event(reasons::DISPATCH_ENDPOINT_SLICE_FAILED).await, told);
    test.end().await;
}
