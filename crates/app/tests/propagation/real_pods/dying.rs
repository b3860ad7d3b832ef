//! A client of a Service whose pods are real, while their cluster dies and comes back: how many of its requests fail, for each way of
//! leaving the cluster.
//!
//! The client knows the Service in every cluster, as one behind a load balancer does: it asks where it was answered last, then
//! elsewhere. A request has failed if no cluster answered it.
//!
//! Left gracefully, the workload starts elsewhere while its cluster is dead, and nobody notices the return. Left directly, it must not run
//! twice: it starts elsewhere when its cluster is back and the old copy is gone.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::api::DynamicObject;
use serde_json::json;
use testkit::{Kind, eventually, until, until_gone};

use super::Stage;
use crate::failover::{ALL, QUICK, bindings, deployments, placed, policies, taint_the_lost};
use crate::plane::ControlPlane;
use crate::world::World;

/// How long a cluster may take to answer.
const PATIENCE: Duration = Duration::from_millis(700);
/// How long the client rests between two requests.
const REST: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Default)]
struct Tally {
    asked: usize,
    failed: usize,
    /// The longest time in which all failed.
    longest: Duration,
    failing_since: Option<Instant>,
    /// How many were answered since the last failure.
    good: usize,
}

/// A client that asks again and again.
struct Client {
    tally: Arc<Mutex<Tally>>,
    task: tokio::task::JoinHandle<()>,
}

impl Client {
    fn start(clusters: Vec<kube::Client>, namespace: &str, service: &str) -> Self {
        let path = format!("/api/v1/namespaces/{namespace}/services/{service}:80/proxy/");
        let tally = Arc::new(Mutex::new(Tally::default()));
        let shared = tally.clone();
        let task = tokio::spawn(async move {
            let mut last = 0;
            loop {
                let began = Instant::now();
                let mut answered = None;
                for turn in 0..clusters.len() {
                    let place = (last + turn) % clusters.len();
                    let request = http::Request::get(&path).body(Vec::new()).expect("a request");
                    let asked = tokio::time::timeout(PATIENCE, clusters[place].request_text(request)).await;
                    if matches!(asked, Ok(Ok(text)) if text.contains("this is")) {
                        answered = Some(place);
                        break;
                    }
                }
                {
                    let mut tally = shared.lock().expect("no panic");
                    tally.asked += 1;
                    if let Some(place) = answered {
                        last = place;
                        tally.good += 1;
                        tally.failing_since = None;
                    } else {
                        tally.failed += 1;
                        tally.good = 0;
                        let since = *tally.failing_since.get_or_insert(began);
                        tally.longest = tally.longest.max(since.elapsed());
                    }
                }
                tokio::time::sleep(REST).await;
            }
        });
        Self { tally, task }
    }

    fn tally(&self) -> Tally {
        self.tally.lock().expect("no panic").clone()
    }

    /// Waits until so many requests in a row were answered.
    async fn until_answered(&self, count: usize) {
        eventually("the client is answered", async || {
            let tally = self.tally();
            if tally.good >= count { Ok(()) } else { Err(format!("{tally:?}")) }
        })
        .await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Puts a Service everywhere, and its pods into one cluster.
async fn offer(world: &World, name: &str, purge_mode: &str) {
    let labels = json!({"app": name});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": 2, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "terminationGracePeriodSeconds": 0, "containers": [{"name": "web", "image": "nginx:1.19.0",
                "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1}}]}}}});
    let services = Kind::namespaced("", "v1", "Service", "services");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": labels, "ports": [{"port": 80}]}});
    let one = json!([{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]);
    let policy = |kind: &str, version: &str, spec: serde_json::Value| {
        let mut policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": format!("{name}-{}", kind.to_lowercase())},
            "spec": {"resourceSelectors": [{"apiVersion": version, "kind": kind, "name": name}], "placement": {}}});
        apimachinery::patch::merge::apply(&mut policy, json!({"spec": spec}));
        policy
    };
    let tolerations = json!([{"key": "cluster.karmada.io/not-ready", "operator": "Exists"}]);
    let everywhere = json!({"placement": {"clusterTolerations": tolerations}});
    let somewhere =
        json!({"placement": {"spreadConstraints": one}, "failover": {"cluster": {"purgeMode": purge_mode}}});
    world.create(&policies(), policy("Service", "v1", everywhere)).await;
    world.create(&policies(), policy("Deployment", "apps/v1", somewhere)).await;
    world.create(&services, service).await;
    world.create(&deployments(), deployment).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; `cargo xtask pods` runs it"]
async fn a_client_is_answered_again_soon_after_a_cluster_has_died() {
    let Some(stage) = Stage::with(2, || ControlPlane::with(ALL, &QUICK)).await else { return };
    let world = &stage.world;
    taint_the_lost(world).await;
    for purge_mode in ["Gracefully", "Directly"] {
        let name = purge_mode.to_lowercase();
        offer(world, &name, purge_mode).await;
        let victim = world.until_placed(&name).await;
        let cluster = stage.fleet.clusters().nth(victim).expect("the member");
        let clients = world.members.iter().map(|member| member.client.clone()).collect();
        let client = Client::start(clients, &world.namespace, &name);
        client.until_answered(20).await;
        let before = client.tally();
        assert_eq!(before.failed, 0, "while all is well: {before:?}");

        let died = Instant::now();
        cluster.cut_off().await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let left = world.members[victim].name.clone();
        let elsewhere =
            |found: Option<&DynamicObject>| matches!(placed(found).as_slice(), [there] if *there != left);
        let binding = api::names::binding("Deployment", &name);
        until(&world.in_plane(&bindings()), &binding, "it is placed elsewhere", elsewhere).await;
        // What is left directly never runs twice: nothing is started elsewhere before the old copy is known to be gone.
        let waits = purge_mode == "Directly";
        if !waits {
            world.until_placed(&name).await;
            client.until_answered(20).await;
        }
        let (away, took) = (client.tally(), died.elapsed());

        cluster.heal().await.unwrap_or_else(|error| panic!("{}", error.chain()));
        world.until_tainted(victim, false).await;
        let second = world.until_placed(&name).await;
        assert_ne!(second, victim, "it does not go back");
        until_gone(&world.in_member(victim, &deployments()), &name, "the old copy goes").await;
        client.until_answered(50).await;
        let after = client.tally();
        println!(
            "{purge_mode}: dead for {:.1} s: {} of {} requests failed; on its return {} of {} failed; the longest gap was {:.1} s",
            took.as_secs_f32(),
            away.failed,
            away.asked - before.asked,
            after.failed - away.failed,
            after.asked - away.asked,
            after.longest.as_secs_f32(),
        );
        if !waits {
            assert_eq!(after.failed, away.failed, "nobody is disturbed when it comes back");
        }
    }
    stage.end().await;
}
