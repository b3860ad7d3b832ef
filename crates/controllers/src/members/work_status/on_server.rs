//! How the status of objects gets into their Work, on a server that is control plane and member at once.

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DeleteParams;

use super::*;
use crate::fixtures::merged;
use crate::world::World;

struct Test {
    world: World,
    controller: Controller,
    cluster: String,
}

const STATUS: &str = "PATCH karmada-es-*-m1/works/web-1/status";

impl Test {
    async fn new() -> Self {
        let world = World::agent().await;
        let cluster = world.cluster("m1", json!({})).await;
        let shared = world.members(&["workStatus"]);
        shared.members.adopt(&cluster, shared.client());
        drop(wire(&shared));
        Self { controller: Controller(shared), world, cluster }
    }

    /// Creates the object of a Work in the member, as the execution controller would have.
    async fn object(&self, work: &Work) -> ConfigMap {
        self.world
            .create(json!({
                "metadata": {
                    "name": "web", "namespace": self.world.namespace, "labels": { "karmada.io/managed": "true" },
                    "annotations": {
                        "work.karmada.io/namespace": work.metadata.namespace, "work.karmada.io/name": work.metadata.name,
                    },
                },
            }))
            .await
    }

    /// Reconciles until the mirror of the member's objects has caught up and something is written.
    async fn until_written(&self, work: &Work) {
        let written = async {
            loop {
                self.once(work).await;
                if self.world.writes().contains(&STATUS.to_owned()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), written).await.expect("its state is written");
    }

    async fn once(&self, work: &Work) -> Outcome {
        self.world.once(&self.controller, &Key::of(work)).await
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

#[tokio::test]
async fn the_state_of_an_object_is_written_once_and_stays_when_it_vanishes() {
    let test = Test::new().await;
    let work = test.world.work(&test.cluster, json!({})).await;
    test.world.writes();
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "there is nothing to tell");
    let object = test.object(&work).await;
    test.until_written(&work).await;
    let stored = test.world.stored(work.as_ref()).await.expect("it exists");
    let identifier = &stored.status.manifest_statuses[0].identifier;
    assert_eq!((identifier.kind.as_str(), identifier.name.as_str()), ("ConfigMap", "web"));
    assert!(test.world.event("ReflectStatusSucceed").await.contains("ConfigMap"));
    let outcome = test.once(&work).await;
    assert!(matches!(outcome, Outcome::After(_)), "the last write was a moment ago: {outcome:?}");
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);

    let api = test.world.api::<ConfigMap>(&test.world.namespace);
    api.delete("web", &DeleteParams::default()).await.expect("deleted");
    drop(object);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn what_is_refused_is_tried_again_and_a_work_that_is_gone_is_not() {
    let test = Test::new().await;
    let work = test.world.work(&test.cluster, json!({})).await;
    test.object(&work).await;
    test.world.refuse(Method::PATCH, "/works/web-1/status", 500, "InternalError");
    test.until_written(&work).await;
    assert!(test.world.stored(work.as_ref()).await.expect("it exists").status.manifest_statuses.is_empty());
    let api = test.world.api::<Work>(&names::execution_space(&test.cluster));
    test.world.patch(work.as_ref(), json!({ "metadata": { "finalizers": null } })).await;
    api.delete("web-1", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(test.once(&work).await, Outcome::Done, "it is gone");
    test.end().await;
}

#[tokio::test]
async fn objects_of_others_are_not_reported() {
    let test = Test::new().await;
    let work = test.world.work(&test.cluster, json!({})).await;
    let other = test.world.work(&test.cluster, json!({ "metadata": { "name": "web-2" } })).await;
    test.object(&work).await;
    test.until_written(&work).await;
    assert_eq!(test.once(&other).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "the object says that it belongs to another Work");
    for key in [Key::new("default", "a"), Key::new("karmada-es-nowhere", "a"), Key::new("a", "b")] {
        assert_eq!(test.world.once(&test.controller, &key).await, Outcome::Done);
    }
    test.world.environment.members.remove(&test.cluster);
    assert_eq!(test.once(&work).await, Outcome::Done, "a new connection takes it up");
    test.end().await;
}

#[tokio::test]
async fn what_came_between_a_look_and_its_write_is_looked_at_again() {
    let test = Test::new().await;
    let work = test.world.work(&test.cluster, json!({})).await;
    test.object(&work).await;
    test.until_written(&work).await;
    let (shared, key) = (&test.controller.0, Key::of(work.as_ref()));
    let member = shared.members.get(&test.cluster).expect("it is connected");
    let seen = revisions(shared, &member, &work).await;
    assert!(seen.len() == 1 && seen[0] > 0, "{seen:?}");
    for (revisions, again) in [(seen.clone(), false), (vec![seen[0] - 1], true)] {
        let stop = tokio_util::sync::CancellationToken::new();
        while let Some(turn) =
            futures::FutureExt::now_or_never(runtime::Turns::next(shared.reports.as_ref(), &stop))
        {
            runtime::Turns::done(shared.reports.as_ref(), turn.expect("a turn"), Outcome::Done);
        }
        written(shared, &member, &key, &work, &News { reports: Vec::new(), revisions }).await;
        assert_eq!(shared.reports.waiting().contains(&key), again);
    }
    test.end().await;
}

#[tokio::test]
async fn which_works_come_up() {
    let test = Test::new().await;
    let applied = json!({ "status": { "conditions": [{
        "type": "Applied", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } });
    let queue = &test.controller.0.reports;
    let waiting = |name: &str| queue.waiting().iter().any(|key| key.name == name);
    test.world.work(&test.cluster, json!({})).await;
    assert!(!waiting("web-1"), "it is not applied yet");
    test.world.work(&test.cluster, merged(json!({ "metadata": { "name": "web-2" } }), applied)).await;
    assert!(waiting("web-2"));
    test.end().await;
}
