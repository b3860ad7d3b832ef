//! FederatedHPAs on a server: which requests, events and writes they make. The only members are in pull mode,
//! and are the server itself.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod as PodObject;
use serde_json::{Value, json};

use super::decide::FIRST_WAIT;
use super::*;
use crate::fixtures::merged;
use crate::world::World;

struct Test {
    world: World,
    controller: Arc<Controller>,
    queue: Arc<Queue<Key>>,
    key: Key,
}

impl Test {
    async fn new(spec: Value) -> Self {
        let world = World::new().await;
        let (controller, queue) = subscribed(&world.members(&[]));
        let base = json!({
            "metadata": { "name": "h", "namespace": world.namespace },
            "spec": { "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" }, "maxReplicas": 5 },
        });
        world.put(&world.environment.mirrors.federated_hpas, merged(base, json!({ "spec": spec }))).await;
        let key = Key::new(world.namespace.clone(), "h");
        world.writes();
        Self { world, controller, queue, key }
    }

    async fn once(&self) -> Vec<String> {
        let outcome = self.world.once(self.controller.as_ref(), &self.key).await;
        assert!(matches!(outcome, Outcome::After(_)), "{outcome:?}");
        self.world.writes()
    }

    fn reason(&self) -> String {
        let scaler = self.world.environment.mirrors.federated_hpas.find(&self.key).expect("it is known");
        let able = scaler.status.conditions.iter().find(|it| it.type_ == "AbleToScale").expect("a condition");
        format!("{}: {}", able.reason, able.message)
    }

    async fn deployment(&self, labels: Value) -> Deployment {
        self.world.create(merged(self.workload(labels), json!({ "spec": { "replicas": 3 } }))).await
    }

    fn workload(&self, labels: Value) -> Value {
        json!({
            "metadata": { "name": "web", "namespace": self.world.namespace, "labels": labels },
            "spec": { "selector": { "matchLabels": { "app": "web" } }, "template": {
                "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
            } },
        })
    }

    /// Binds the workload to these clusters, under the policy `id`.
    async fn bind(&self, kind: &str, clusters: &[&str]) -> ResourceBinding {
        let clusters: Vec<Value> = clusters.iter().map(|name| json!({ "name": name })).collect();
        let bound = json!({
            "metadata": { "name": api::names::binding(kind, "web"), "labels": claimed() },
            "spec": { "clusters": clusters, "resource": {
                "apiVersion": "apps/v1", "kind": kind, "namespace": self.world.namespace, "name": "web",
            } },
        });
        self.world.binding(bound).await.as_ref().clone()
    }

    async fn target(&self) -> Result<Target, Fault> {
        let seen = self.controller.observe(&self.key).await.expect("the server answers");
        seen.expect("it is there").target
    }
}

fn claimed() -> Value {
    json!({ PROPAGATION_POLICY_PERMANENT_ID: "id" })
}

#[tokio::test]
async fn what_is_missing_is_told_once() {
    let test = Test::new(json!({})).await;
    assert_eq!(test.queue.waiting(), std::slice::from_ref(&test.key));
    let status = ["PATCH */federatedhpas/h/status"];
    let cannot = "the HPA controller was unable to";
    assert_eq!(test.once().await, status);
    let expected = format!(
        "FailedGetScaleTargetRef: {cannot} get the target reference object: deployments.apps \"web\" not found"
    );
    assert_eq!(test.reason(), expected);
    assert_eq!(test.once().await, Vec::<String>::new(), "a second look writes nothing");
    let created = test.deployment(json!({ "app": "web" })).await;
    test.once().await;
    let binding = format!("FailedGetBinding: {cannot} get the binding by scaleTargetRef:");
    assert_eq!(test.reason(), format!("{binding} no label of policy permanent-id found"));
    let mut placed = test.bind("Deployment", &[]).await;
    test.once().await;
    assert_eq!(
        test.reason(),
        format!("{binding} no label of policy permanent-id found"),
        "whatever was bound"
    );
    test.world
        .patch(&created, json!({ "metadata": { "labels": { PROPAGATION_POLICY_PERMANENT_ID: "other" } } }))
        .await;
    test.once().await;
    assert_eq!(test.reason(), format!("{binding} no binding matches the target resource"));
    test.world.patch(&created, json!({ "metadata": { "labels": claimed() } })).await;
    test.once().await;
    let clusters = format!("FailedGetTargetClusters: {cannot} get the target clusters from binding:");
    assert_eq!(test.reason(), format!("{clusters} binding has no schedulable clusters"));
    placed.spec.clusters =
        vec![api::work::TargetCluster { name: "nowhere".to_owned(), ..Default::default() }];
    placed.metadata.resource_version = Some("999999".to_owned());
    test.world.environment.mirrors.bindings.note(placed.clone());
    test.once().await;
    assert_eq!(test.reason(), format!("{clusters} clusters.cluster.karmada.io \"nowhere\" not found"));
    let cluster = test.world.cluster("m1", json!({})).await;
    placed.spec.clusters[0].name = cluster;
    placed.metadata.resource_version = Some("9999999".to_owned());
    test.world.environment.mirrors.bindings.note(placed);
    test.once().await;
    assert!(test.reason().starts_with("FailedGetScale: the HPA controller was unable to get the target's current scale: failed to get replicas in any of clusters"), "{}", test.reason());
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn finding_25_a_target_whose_name_is_more_than_a_name_is_not_asked_for() {
    for name in ["web?watch=true", "web#", "web/scale", "../deployments", "web%2fscale"] {
        let test = Test::new(json!({ "scaleTargetRef": { "name": name } })).await;
        let outcome = test.world.once(test.controller.as_ref(), &test.key).await;
        assert!(matches!(outcome, Outcome::After(_)), "{outcome:?}");
        let expected = format!(
            "FailedGetScaleTargetRef: the HPA controller was unable to get the target reference object: nothing can be called {name:?}"
        );
        assert_eq!(test.reason(), expected);
        let reads = test.world.reads();
        assert!(!reads.iter().any(|path| path.contains("deployments")), "{name}: {reads:?}");
        test.world.supervisor.stop().await;
    }
}

#[tokio::test]
async fn what_cannot_be_scaled_is_told_after_what_is_missing() {
    let daemons = json!({ "scaleTargetRef": { "kind": "DaemonSet" } });
    let test = Test::new(daemons).await;
    test.world.create::<DaemonSet>(test.workload(claimed())).await;
    test.once().await;
    assert!(test.reason().starts_with("FailedGetBinding: "), "{}", test.reason());
    let cluster = test.world.cluster("m1", json!({ "spec": { "syncMode": "Pull" } })).await;
    test.bind("DaemonSet", &[&cluster]).await;
    test.once().await;
    let nowhere = "failed to get replicas in any of clusters";
    assert!(
        test.reason().starts_with("FailedGetScale: ") && test.reason().contains(nowhere),
        "{}",
        test.reason()
    );
    let odd = Test::new(json!({ "scaleTargetRef": { "apiVersion": "a/b/c" } })).await;
    odd.once().await;
    let expected = "FailedGetScale: the HPA controller was unable to get the target's current scale: unexpected GroupVersion string: a/b/c";
    assert_eq!(odd.reason(), expected);
    test.world.supervisor.stop().await;
    odd.world.supervisor.stop().await;
}

#[tokio::test]
async fn a_cluster_in_pull_mode_counts_until_it_leaves() {
    let test = Test::new(json!({})).await;
    test.deployment(claimed()).await;
    let cluster = test.world.cluster("m1", json!({ "spec": { "syncMode": "Pull" } })).await;
    test.bind("Deployment", &[&cluster]).await;
    let pod = json!({
        "metadata": { "name": "web-1", "namespace": test.world.namespace, "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    test.world.create::<PodObject>(pod).await;
    let target = test.target().await.expect("it is found");
    let pods: Vec<&str> = target.pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!((target.replicas, target.wanted, pods), (3, 3, vec![format!("{cluster}/web-1").as_str()]));
    let member = test.controller.member(&cluster).expect("it is reached");
    test.world.environment.mirrors.clusters.remove(&Key::new("", cluster.as_str()), 0);
    assert!(member.stopped().is_cancelled() && test.controller.member(&cluster).is_none());
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn replicas_are_written_through_the_scale_unless_it_was_written_meanwhile() {
    let test = Test::new(json!({})).await;
    let created = test.deployment(claimed()).await;
    let cluster = test.world.cluster("m1", json!({ "spec": { "syncMode": "Pull" } })).await;
    test.bind("Deployment", &[&cluster]).await;
    let scaler = test.world.environment.mirrors.federated_hpas.find(&test.key).expect("it is known");
    let mut target = test.target().await.expect("it is found");
    test.world.writes();
    test.controller.rescale(&test.key, &scaler, &target.template, 5).await.expect("it is written");
    assert_eq!(test.world.writes(), ["PUT */deployments/web/scale"]);
    let stored = test.world.stored(&created).await.and_then(|it| it.spec?.replicas);
    assert_eq!(stored, Some(5));
    target.replicas = 9;
    let settings = crate::autoscaling::Settings::default();
    let view = View { scaler, target: Ok(target), history: None, settings };
    let plan = decide::decide(&view, Timestamp::now());
    assert_eq!(plan.rescale.as_ref().map(|(replicas, _)| *replicas), Some(5), "there are too many");
    let outcome = test.controller.apply(&test.key, view, plan).await.expect("it is told");
    assert_eq!(outcome, Outcome::After(FIRST_WAIT), "it is tried again soon");
    assert!(test.reason().starts_with("FailedUpdateScale"), "{}", test.reason());
    assert!(
        test.world.event(events::FAILED_RESCALE).await.starts_with("New size: 5; reason: Current number")
    );
    let stored = test.world.stored(&created).await.and_then(|it| it.spec?.replicas);
    assert_eq!(stored, Some(5), "what others wrote stays");
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn a_scale_without_replicas_is_given_none() {
    let test = Test::new(json!({})).await;
    let created = test.deployment(claimed()).await;
    let cluster = test.world.cluster("m1", json!({ "spec": { "syncMode": "Pull" } })).await;
    test.bind("Deployment", &[&cluster]).await;
    let scaler = test.world.environment.mirrors.federated_hpas.find(&test.key).expect("it is known");
    let mut target = test.target().await.expect("it is found");
    (target.replicas, target.template.wanted) = (0, None);
    let settings = crate::autoscaling::Settings::default();
    let period = settings.sync_period;
    let view = View { scaler, target: Ok(target), history: None, settings };
    let plan = decide::decide(&view, Timestamp::now());
    test.world.writes();
    assert_eq!(
        test.controller.apply(&test.key, view, plan).await.expect("it is told"),
        Outcome::After(period)
    );
    assert_eq!(test.world.writes(), ["PATCH */federatedhpas/h/status"]);
    assert!(test.world.event(events::SUCCESSFUL_RESCALE).await.starts_with("New size: 1; reason: "));
    let stored = test.world.stored(&created).await.and_then(|it| it.spec?.replicas);
    assert_eq!(stored, Some(3));
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn a_failure_is_waited_for_longer_each_time_until_a_success() {
    let test = Test::new(json!({ "minReplicas": 4 })).await;
    let next = || async { test.world.once(test.controller.as_ref(), &test.key).await };
    let seconds = |seconds: u64| Outcome::After(std::time::Duration::from_secs(seconds));
    for expected in [1, 2, 4, 8, 15, 15] {
        assert_eq!(next().await, seconds(expected), "its target is missing");
    }
    test.deployment(claimed()).await;
    let cluster = test.world.cluster("m1", json!({ "spec": { "syncMode": "Pull" } })).await;
    let bound = test.bind("Deployment", &[&cluster]).await;
    assert_eq!(next().await, seconds(15), "it is scaled, and looked at again after the period");
    test.world.environment.mirrors.bindings.remove(&Key::of(&bound), 0);
    assert_eq!(next().await, seconds(1), "what failed before that does not count");
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn one_that_is_gone_is_forgotten() {
    let test = Test::new(json!({})).await;
    test.once().await;
    assert!(test.controller.memory.lock().contains_key(&test.key));
    test.world.environment.mirrors.federated_hpas.remove(&test.key, 0);
    assert_eq!(test.world.once(test.controller.as_ref(), &test.key).await, Outcome::Done);
    assert!(test.controller.memory.lock().is_empty());
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn a_workload_without_a_selector_is_in_nobodys_way() {
    let test = Test::new(json!({})).await;
    let pods = [Arc::new(Record { labels: json!({ "app": "web" }), pod: Pod::default() })];
    let other = Key::new(test.world.namespace.clone(), "other");
    assert!(test.controller.scalers(&other, "", &[]).is_empty());
    let found = test.controller.scalers(&test.key, "app=web", &pods);
    assert_eq!(found, [("h".to_owned(), test.world.namespace.clone())]);
    assert_eq!(test.controller.scalers(&other, "app", &pods).len(), 2, "this one selects them, too");
    test.world.supervisor.stop().await;
}
