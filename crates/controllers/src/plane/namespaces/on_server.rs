//! Namespaces on their way to clusters, on a server.

use api::policy::ClusterOverridePolicy;
use api::work::Work;
use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use runtime::Key;
use serde_json::json;

use super::*;
use crate::world::World;

struct Test {
    world: World,
    controller: Arc<Controller>,
    queue: Arc<Queue<String>>,
    name: String,
}

impl Test {
    /// A namespace that the templates know.
    async fn new() -> Self {
        let world = World::new().await;
        let (controller, queue) = subscribed(&world.plane);
        let name = world.own("shop");
        world.namespace(&name).await;
        let test = Self { world, controller, queue, name };
        test.see().await;
        test
    }

    async fn see(&self) -> Value {
        self.world.know(self.world.api::<Namespace>("").get(&self.name).await.expect("it exists"))
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.name).await
    }

    async fn works(&self, cluster: &str) -> Vec<Work> {
        let api = self.world.api::<Work>(&api::names::execution_space(cluster));
        api.list(&ListParams::default()).await.expect("the server answers").items
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

#[tokio::test]
async fn every_cluster_gets_every_namespace_once() {
    let test = Test::new().await;
    let (m1, m2) = (test.world.cluster("m1", json!({})).await, test.world.cluster("m2", json!({})).await);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    let mut writes = test.world.writes();
    writes.sort();
    assert_eq!(writes, ["POST karmada-es-*-m1/works", "POST karmada-es-*-m2/works"]);
    for cluster in [&m1, &m2] {
        let work = test.works(cluster).await.remove(0);
        assert_eq!(work.spec.workload.manifests[0]["metadata"]["name"], test.name);
        assert_eq!(work.metadata.owner_references.unwrap_or_default()[0].name, test.name);
    }
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert_eq!(test.world.once(test.controller.as_ref(), &"unknown".to_owned()).await, Outcome::Done);
    test.end().await;
}

#[tokio::test]
async fn a_panic_is_told_on_the_namespace() {
    let test = Test::new().await;
    let told = test.world.panicked(&test.queue, test.name.clone()).await;
    assert_eq!(told, "namespace-sync-controller panicked and tries again later: by accident");
    test.end().await;
}

#[tokio::test]
async fn one_cluster_that_refuses_holds_up_no_other() {
    let test = Test::new().await;
    let (m1, m2) = (test.world.cluster("m1", json!({})).await, test.world.cluster("m2", json!({})).await);
    test.world.refuse(Method::POST, &format!("karmada-es-{m1}/works"), 403, "Forbidden");
    let outcome = test.once().await;
    assert_eq!(outcome, Outcome::Failed { error: "refused: Forbidden".to_owned(), conflict: false });
    assert_eq!((test.works(&m1).await.len(), test.works(&m2).await.len()), (0, 1));
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.works(&m1).await.len(), 1);
    test.end().await;
}

#[tokio::test]
async fn an_override_that_fails_is_told_of_and_one_that_applies_as_well() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let mirror = &test.world.environment.mirrors.cluster_override_policies;
    let with = |overriders: Value| {
        json!({
            "metadata": { "name": test.world.own("o") },
            "spec": {
                "resourceSelectors": [{ "apiVersion": "v1", "kind": "Namespace", "name": test.name }],
                "overrideRules": [{ "overriders": overriders }],
            },
        })
    };
    let fails = json!({ "plaintext": [{ "path": "/spec/absent/k", "operator": "replace", "value": "a" }] });
    let applies = json!({ "labelsOverrider": [{ "operator": "add", "value": { "team": "a" } }] });
    let policy: Arc<ClusterOverridePolicy> = test.world.put(mirror, with(fails)).await;
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert!(test.world.event("ApplyOverridePolicyFailed").await.contains(&m1));
    mirror.note(test.world.patch(policy.as_ref(), with(applies)).await);
    assert_eq!(test.once().await, Outcome::Done);
    let work = test.works(&m1).await.remove(0);
    assert_eq!(work.spec.workload.manifests[0]["metadata"]["labels"]["team"], "a");
    assert!(test.world.event("ApplyOverridePolicySucceed").await.contains(&m1));
    test.end().await;
}

#[tokio::test]
async fn who_brings_a_namespace_up() {
    let test = Test::new().await;
    let drain = || {
        let stop = tokio_util::sync::CancellationToken::new();
        let mut taken = Vec::new();
        while let Some(Some(turn)) =
            futures::FutureExt::now_or_never(runtime::Turns::next(test.queue.as_ref(), &stop))
        {
            taken.push(<Queue<String> as runtime::Turns>::key(&turn));
            runtime::Turns::done(test.queue.as_ref(), turn, Outcome::Done);
        }
        taken
    };
    let mirrors = &test.world.environment.mirrors;
    assert_eq!(drain(), std::slice::from_ref(&test.name), "it is new");
    test.world.template("web", json!({})).await;
    assert_eq!(drain(), [""; 0], "other kinds do not count");
    let m1 = test.world.cluster("m1", json!({})).await;
    assert_eq!(drain(), std::slice::from_ref(&test.name), "a cluster that comes gets all");
    let cluster = mirrors.clusters.get("", &m1).expect("known");
    mirrors.clusters.note(test.world.patch(cluster.as_ref(), json!({ "spec": { "region": "eu" } })).await);
    assert_eq!(drain(), [""; 0]);
    let selecting = |kind: &str, name: &str| json!({ "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": kind, "name": name }] } });
    let base = json!({ "metadata": { "name": test.world.own("o") }, "spec": { "overrideRules": [] } });
    let policy: Arc<ClusterOverridePolicy> = test
        .world
        .put(&mirrors.cluster_override_policies, crate::fixtures::merged(base, selecting("ConfigMap", "")))
        .await;
    assert_eq!(drain(), [""; 0], "it overrides something else");
    mirrors
        .cluster_override_policies
        .note(test.world.patch(policy.as_ref(), selecting("Namespace", "one")).await);
    assert_eq!(drain(), ["one"]);
    mirrors
        .cluster_override_policies
        .note(test.world.patch(policy.as_ref(), selecting("Namespace", "")).await);
    assert_eq!(drain(), ["one".to_owned(), test.name.clone()], "what it said, and what it says");
    assert_eq!(test.once().await, Outcome::Done);
    let work = test.works(&m1).await.remove(0);
    mirrors.works.remove(&Key::of(&work), 0);
    assert_eq!(drain(), std::slice::from_ref(&test.name), "a Work that vanished comes back");
    test.end().await;
}
