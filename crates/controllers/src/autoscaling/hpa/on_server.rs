//! FederatedHPAs on a server that has no members: what is asked, told and written.

use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

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
        let created = self.world.create::<Deployment>(json!({
            "metadata": { "name": "web", "namespace": self.world.namespace, "labels": labels },
            "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "web" } }, "template": {
                "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
            } },
        }));
        created.await
    }
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
    let label = json!({ "metadata": { "labels": { PROPAGATION_POLICY_PERMANENT_ID: "id" } } });
    test.world.patch(&created, label).await;
    test.once().await;
    assert_eq!(test.reason(), format!("{binding} no binding matches the target resource"));
    let resource = |clusters: Value| {
        json!({ "metadata": { "name": "web-deployment" }, "spec": { "clusters": clusters, "resource": {
            "apiVersion": "apps/v1", "kind": "Deployment", "namespace": test.world.namespace, "name": "web",
        } } })
    };
    let bound = test.world.binding(resource(json!([]))).await;
    test.once().await;
    let clusters = format!("FailedGetTargetClusters: {cannot} get the target clusters from binding:");
    assert_eq!(test.reason(), format!("{clusters} binding has no schedulable clusters"));
    let mut placed = bound.as_ref().clone();
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
async fn replicas_are_written_through_the_scale_and_a_refusal_is_told() {
    let test = Test::new(json!({})).await;
    let created = test.deployment(json!({})).await;
    let scaler = test.world.environment.mirrors.federated_hpas.find(&test.key).expect("it is known");
    test.world.writes();
    test.controller.rescale(&test.key, &scaler, 5).await.expect("it is written");
    assert_eq!(test.world.writes(), ["PUT */deployments/web/scale"]);
    let stored = test.world.stored(&created).await.and_then(|it| it.spec?.replicas);
    assert_eq!(stored, Some(5));
    test.world.refuse(Method::PUT, "/scale", 403, "Forbidden");
    let target = Target { replicas: 9, wanted: 9, running: 9, ..Target::default() };
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
