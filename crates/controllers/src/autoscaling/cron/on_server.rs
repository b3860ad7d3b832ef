//! Scaling by schedule, on a server: which writes and events it makes.

use api::autoscaling::FederatedHPA;
use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::merged;
use crate::world::World;

struct Test {
    world: World,
    controller: Arc<Controller>,
    key: Key,
}

impl Test {
    /// A rule for a target that is due.
    async fn new(target: Value, rule: Value) -> Self {
        let world = World::new().await;
        let (controller, _) = subscribed(&world.plane);
        let rule = merged(json!({ "name": "r", "schedule": "* * * * *" }), rule);
        let scaler = json!({
            "metadata": { "name": "c", "namespace": world.namespace },
            "spec": { "scaleTargetRef": target, "rules": [rule] },
        });
        world.put(&world.environment.mirrors.cron_federated_hpas, scaler).await;
        let key = Key::new(world.namespace.clone(), "c");
        let test = Self { world, controller, key };
        assert!(matches!(test.once().await, Outcome::After(_)));
        test
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.key).await
    }

    /// Makes the rule due, and reconciles.
    async fn act(&self) -> Vec<String> {
        self.world.writes();
        if let Some(known) = self.controller.known.lock().get_mut(&self.key) {
            known.jobs.values_mut().for_each(|job| job.next = Timestamp::UNIX_EPOCH);
        }
        assert!(matches!(self.once().await, Outcome::After(_)));
        self.world.writes()
    }

    fn history(&self) -> ExecutionHistory {
        let scaler = self.world.environment.mirrors.cron_federated_hpas.find(&self.key).expect("it is known");
        scaler.status.execution_histories[0].clone()
    }

    async fn deployment(&self, replicas: i32) -> Deployment {
        self.world
            .create(json!({
                "metadata": { "name": "web", "namespace": self.world.namespace },
                "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "web" } }, "template": {
                    "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
                } },
            }))
            .await
    }
}

fn deployment() -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" })
}

#[tokio::test]
async fn a_workload_is_scaled_once_and_it_is_noted() {
    let test = Test::new(deployment(), json!({ "targetReplicas": 4 })).await;
    assert!(test.history().next_execution_time.is_some());
    let created = test.deployment(0).await;
    let scale = "PUT */deployments/web/scale";
    let status = "PATCH */cronfederatedhpas/c/status";
    assert_eq!(test.act().await, [scale, status], "from zero, too");
    let replicas = test.world.stored(&created).await.and_then(|it| it.spec?.replicas);
    assert_eq!((replicas, test.history().successful_executions.len()), (Some(4), 1));
    assert_eq!(test.act().await, [status], "it is right already");
    assert_eq!(test.history().successful_executions.len(), 2);
    test.once().await;
    assert_eq!(test.world.writes(), Vec::<String>::new(), "a second look writes nothing");
    test.world.refuse(Method::PUT, "/scale", 409, "Conflict");
    test.world.patch(&created, json!({ "spec": { "replicas": 1 } })).await;
    assert_eq!(test.act().await, [scale, scale, status], "somebody was faster");
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn what_fails_is_told_and_noted() {
    let test = Test::new(deployment(), json!({ "targetReplicas": 4 })).await;
    assert_eq!(test.act().await, ["PATCH */cronfederatedhpas/c/status"]);
    let told = "deployments.apps \"web\" not found";
    assert_eq!(test.world.event(SCALE_FAILED).await, told);
    assert_eq!(test.history().failed_executions[0].message, told);
    let odd = Test::new(
        json!({ "apiVersion": "apps/v1", "kind": "Nothing", "name": "web" }),
        json!({ "targetReplicas": 4 }),
    );
    let odd = odd.await;
    odd.act().await;
    assert!(odd.history().failed_executions[0].message.contains("Nothing"));
    test.world.supervisor.stop().await;
    odd.world.supervisor.stop().await;
}

#[tokio::test]
async fn the_limits_of_an_autoscaler_are_moved() {
    let target =
        json!({ "apiVersion": "autoscaling.karmada.io/v1alpha1", "kind": "FederatedHPA", "name": "h" });
    let test = Test::new(target, json!({ "targetMinReplicas": 2, "targetMaxReplicas": 100 })).await;
    let created: FederatedHPA = test
        .world
        .create(json!({
            "metadata": { "name": "h", "namespace": test.world.namespace },
            "spec": { "scaleTargetRef": deployment(), "minReplicas": 1, "maxReplicas": 1 },
        }))
        .await;
    let status = "PATCH */cronfederatedhpas/c/status";
    assert_eq!(test.act().await, ["PATCH */federatedhpas/h", status]);
    let stored = test.world.stored(&created).await.expect("it is there");
    assert_eq!((stored.spec.min_replicas, stored.spec.max_replicas), (Some(2), 100));
    assert_eq!(test.act().await, [status], "it is right already");
    let last = test.history().successful_executions[0].clone();
    assert_eq!((last.applied_min_replicas, last.applied_max_replicas), (Some(2), Some(100)));
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn one_that_is_gone_is_forgotten() {
    let test = Test::new(deployment(), json!({ "targetReplicas": 4 })).await;
    assert!(test.controller.known.lock().contains_key(&test.key));
    test.world.environment.mirrors.cron_federated_hpas.remove(&test.key, 0);
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.controller.known.lock().is_empty());
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn finding_25_an_autoscaler_whose_name_is_a_path_is_not_asked_for() {
    let target = json!({
        "apiVersion": "autoscaling.karmada.io/v1alpha1", "kind": "FederatedHPA", "name": "?watch=true",
    });
    let test = Test::new(target, json!({ "targetMaxReplicas": 100 })).await;
    // It would be a watch of all of them, for hours.
    let acted = tokio::time::timeout(Duration::from_secs(30), test.act()).await;
    assert_eq!(acted.expect("an end"), ["PATCH */cronfederatedhpas/c/status"]);
    assert_eq!(test.history().failed_executions[0].message, "no object is called \"?watch=true\"");
    test.world.supervisor.stop().await;
}
