//! What is written of a member's health, on a server that is control plane and member at once.

use api::features::Features;
use http::Method;
use runtime::Key;
use serde_json::{Value, json};

use super::*;
use crate::Settings;
use crate::fixtures::{at, merged};
use crate::world::World;

struct Test {
    world: World,
    controller: Controller,
    name: String,
}

impl Test {
    async fn new(otherwise: Value) -> Self {
        Self::with(Settings::default(), otherwise).await
    }

    async fn with(settings: Settings, otherwise: Value) -> Self {
        let world = World::agent_with(settings).await;
        let shared = world.members(&["clusterStatus"]);
        let name = world.cluster("m1", otherwise).await;
        let controller =
            Controller { shared, memories: Mutex::default(), began: Instant::now(), heartbeat: None };
        Self { world, controller, name }
    }

    async fn once(&self) -> Outcome {
        self.world.once(&self.controller, &self.name).await
    }

    async fn stored(&self) -> Cluster {
        self.world.api::<Cluster>("").get(&self.name).await.expect("it exists")
    }
}

fn held() -> Value {
    json!({ "metadata": { "finalizers": [finalizers::CLUSTER] } })
}

const STATUS: &str = "PATCH clusters/*-m1/status";

#[tokio::test]
async fn a_cluster_that_nobody_looks_after_is_not_looked_at() {
    let test = Test::new(json!({})).await;
    let period = test.controller.shared.timing.status_period;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::After(period), "it has no finalizer yet");
    assert_eq!(test.world.writes(), [""; 0]);
    assert_eq!(test.world.once(&test.controller, &"unknown".to_owned()).await, Outcome::Done);
    let other = test.world.cluster("m2", held()).await;
    assert_eq!(test.world.once(&test.controller, &other).await, Outcome::Done, "another process's");
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn what_a_member_tells_is_written_once_whoever_else_writes() {
    let test = Test::new(held()).await;
    let period = test.controller.shared.timing.status_period;
    // Another writer was faster with its own condition.
    let theirs = json!({ "status": { "conditions": [
        { "type": "Theirs", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
    ] } });
    let patch = kube::api::Patch::Merge(theirs);
    let api = test.world.api::<Cluster>("");
    api.patch_status(&test.name, &kube::api::PatchParams::default(), &patch).await.expect("written");
    test.world.writes();
    assert_eq!(test.once().await, Outcome::After(period));
    assert_eq!(test.world.writes(), [STATUS, STATUS]);
    let stored = test.stored().await;
    let kinds: Vec<&str> =
        stored.status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert!(
        ["Theirs", "Ready", "CompleteAPIEnablements"].iter().all(|kind| kinds.contains(kind)),
        "{kinds:?}"
    );
    assert!(!stored.status.kubernetes_version.is_empty() && !stored.status.api_enablements.is_empty());
    let settled = async {
        // Nodes and pods become known a moment later than the rest.
        loop {
            test.world.writes();
            assert_eq!(test.once().await, Outcome::After(period));
            if test.world.writes().is_empty() {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), settled)
        .await
        .expect("a look that finds nothing new writes nothing");
    test.world.supervisor.stop().await;
}

/// `--enable-cluster-resource-modeling` and the gate CustomizedClusterResourceModeling.
#[tokio::test]
async fn nodes_and_pods_are_followed_and_classes_counted_only_if_wanted() {
    let class = json!({ "grade": 0, "ranges": [{ "name": "cpu", "min": "0", "max": "1" }] });
    let cluster = merged(held(), json!({ "spec": { "resourceModels": [class] } }));
    let gate = |on| Features::default().with(features::CUSTOMIZED_CLUSTER_RESOURCE_MODELING, on);
    for (resource_modeling, features, expected) in
        [(true, gate(true), Some(1)), (true, gate(false), Some(0)), (false, gate(true), None)]
    {
        let settings = Settings { resource_modeling, features, ..Settings::default() };
        let test = Test::with(settings, cluster.clone()).await;
        let classes = async || {
            test.once().await;
            let status = test.stored().await.status;
            assert_eq!(status.node_summary.is_some(), status.resource_summary.is_some());
            status.resource_summary.map(|summary| summary.allocatable_modelings.len())
        };
        let told = async { while expected.is_some() && classes().await.is_none() {} };
        tokio::time::timeout(Duration::from_secs(60), told).await.expect("nodes and pods are known at last");
        assert_eq!(classes().await, expected, "{resource_modeling}");
        let asked =
            test.world.reads().iter().any(|path| matches!(path.as_str(), "/api/v1/nodes" | "/api/v1/pods"));
        assert_eq!(asked, resource_modeling, "whether nodes and pods are asked for");
        test.world.supervisor.stop().await;
    }
}

#[tokio::test]
async fn a_status_that_cannot_be_written_is_written_soon() {
    let test = Test::new(held()).await;
    test.world.refuse(Method::PATCH, &format!("/clusters/{}/status", test.name), 500, "InternalError");
    assert_eq!(test.once().await, Outcome::After(Duration::from_secs(1)));
    let api = test.world.api::<Cluster>("");
    test.world.patch(&test.stored().await, json!({ "metadata": { "finalizers": null } })).await;
    api.delete(&test.name, &kube::api::DeleteParams::default()).await.expect("deleted");
    assert_eq!(test.once().await, Outcome::Done, "it is gone");
    test.world.supervisor.stop().await;
}

#[test]
fn what_follows_from_a_look() {
    let view = |seen: Option<Seen>, was_offline: bool| View {
        cluster: Arc::new(crate::fixtures::cluster("m1", "False", json!({}))),
        started: Instant::now(),
        at: Duration::ZERO,
        memory: Memory { was_offline, ..Memory::default() },
        thresholds: Thresholds { success: Duration::ZERO, failure: Duration::ZERO },
        seen,
        member: None,
        details: None,
    };
    assert!(matches!(decide(&view(None, false), at(1)), Plan::Nothing(_)));
    let cases = [
        (Health::Healthy, true, ("True", true, true, false)),
        (Health::Healthy, false, ("True", true, false, false)),
        (Health::Unhealthy, true, ("False", false, false, false)),
        (Health::Offline, false, ("False", false, false, true)),
    ];
    for (health, was_offline, expected) in cases {
        let plan = decide(&view(Some(Seen::Health(health)), was_offline), at(1));
        let Plan::Write { memory, judgement } = plan else { panic!("{plan:?}") };
        let found = (judgement.ready.status.as_str(), judgement.collect, judgement.back, memory.was_offline);
        assert_eq!(found, expected, "{health:?} after {was_offline}");
    }
}

#[tokio::test]
async fn which_clusters_come_up() {
    let test = Test::new(held()).await;
    drop(wire(&test.controller.shared));
    let queue = &test.controller.shared.looks;
    let drain = || {
        let stop = tokio_util::sync::CancellationToken::new();
        let mut count = 0;
        while let Some(Some(turn)) =
            futures::FutureExt::now_or_never(runtime::Turns::next(queue.as_ref(), &stop))
        {
            runtime::Turns::done(queue.as_ref(), turn, Outcome::Done);
            count += 1;
        }
        count
    };
    let mirror = &test.world.environment.mirrors.clusters;
    mirror.note(test.world.patch(&test.stored().await, json!({ "spec": { "region": "eu" } })).await);
    assert_eq!(drain(), 1, "it says something else");
    mirror.note(
        test.world.patch(&test.stored().await, json!({ "metadata": { "labels": { "a": "b" } } })).await,
    );
    assert_eq!(drain(), 0);
    test.world.cluster("m2", held()).await;
    assert_eq!(drain(), 0, "another process's");
    mirror.remove(&Key::new("", &test.name), 0);
    assert_eq!(drain(), 0);
    test.world.supervisor.stop().await;
}
