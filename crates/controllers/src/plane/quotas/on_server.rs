//! FederatedResourceQuotas on a server: what is observed and written, and how failures are repaired.

use std::sync::Arc;

use api::features::{FEDERATED_QUOTA_ENFORCEMENT, Features};
use api::policy::FederatedResourceQuota;
use api::work::{ResourceBinding, Work};
use http::Method;
use kube::api::{DeleteParams, ListParams};
use runtime::{Key, Outcome};
use serde_json::{Value, json};

use super::{enforcement, status, sync};
use crate::Settings;
use crate::fixtures::merged;
use crate::world::{World, drain};

async fn enforcing() -> World {
    let features = Features::default().with(FEDERATED_QUOTA_ENFORCEMENT, true);
    World::with(Settings { features, ..Settings::default() }).await
}

async fn quota(world: &World, spec: Value) -> Arc<FederatedResourceQuota> {
    let object = json!({ "metadata": { "name": "q", "namespace": world.namespace }, "spec": spec });
    world.put(&world.environment.mirrors.quotas, object).await
}

fn limits() -> Value {
    json!({ "overall": { "cpu": "10" } })
}

async fn works(world: &World, cluster: &str) -> Vec<Work> {
    let space = api::names::execution_space(cluster);
    world.api::<Work>(&space).list(&ListParams::default()).await.expect("a list").items
}

#[tokio::test]
async fn clusters_get_their_shares_and_lose_what_is_not_assigned_any_more() {
    let world = World::new().await;
    let (m1, m2) = (world.cluster("m1", json!({})).await, world.cluster("m2", json!({})).await);
    let (controller, queue) = sync::subscribed(&world.plane);
    let share = |cluster: &str, cpu: &str| json!({ "clusterName": cluster, "hard": { "cpu": cpu } });
    let assigned = |shares: Vec<Value>| merged(limits(), json!({ "staticAssignments": shares }));
    let made = quota(&world, assigned(vec![share(&m1, "1"), share(&m2, "2"), share("nowhere", "3")])).await;
    let key = Key::of(made.as_ref());
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(
        world.event("SyncWorkSucceed").await,
        format!("Sync works for FederatedResourceQuota({key}) succeed.")
    );
    let work = works(&world, &m2).await.remove(0);
    assert_eq!(work.spec.workload.manifests[0]["spec"], json!({ "hard": { "cpu": "2" } }));
    world.writes();
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0], "a second look writes nothing");

    // A Work that vanished comes back; a share that changed changes the Work.
    let mirrors = &world.environment.mirrors;
    let gone = works(&world, &m1).await.remove(0);
    let released = world.patch(&gone, json!({ "metadata": { "finalizers": null } })).await;
    world
        .api::<Work>(released.metadata.namespace.as_deref().unwrap_or(""))
        .delete(released.metadata.name.as_deref().unwrap_or(""), &DeleteParams::default())
        .await
        .expect("it goes");
    mirrors.works.remove(&Key::of(&gone), 0);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    let spec = assigned(vec![share(&m1, "5")]);
    mirrors.quotas.note(world.patch(made.as_ref(), json!({ "spec": spec })).await);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    world.refuse(Method::POST, "/works", 403, "Forbidden");
    let refused = Outcome::Failed { error: "refused: Forbidden".to_owned(), conflict: false };
    assert_eq!(world.once(controller.as_ref(), &key).await, refused);
    assert_eq!(world.event("SyncWorkFailed").await, "refused: Forbidden");
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    let work = works(&world, &m1).await.remove(0);
    assert_eq!(work.spec.workload.manifests[0]["spec"], json!({ "hard": { "cpu": "5" } }));
    let going = works(&world, &m2).await.remove(0);
    assert!(going.metadata.deletion_timestamp.is_some(), "it waits for the member to be cleaned up");

    // The quota is deleted while no controller runs.
    world
        .api::<FederatedResourceQuota>(&key.namespace)
        .delete(&key.name, &DeleteParams::default())
        .await
        .expect("deleted");
    mirrors.quotas.remove(&key, 0);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert!(works(&world, &m1).await[0].metadata.deletion_timestamp.is_some());
    world.supervisor.stop().await;
}

#[tokio::test]
async fn a_quota_that_is_only_missing_from_the_copy_keeps_its_works() {
    let world = World::new().await;
    let m1 = world.cluster("m1", json!({})).await;
    let (controller, _) = sync::subscribed(&world.plane);
    let spec =
        merged(limits(), json!({ "staticAssignments": [{ "clusterName": m1, "hard": { "cpu": "1" } }] }));
    let key = Key::of(quota(&world, spec).await.as_ref());
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    world.environment.mirrors.quotas.remove(&key, 0);
    world.writes();
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0]);
    world.supervisor.stop().await;
}

#[tokio::test]
async fn what_clusters_report_reaches_the_status() {
    let world = World::new().await;
    let m1 = world.cluster("m1", json!({})).await;
    let (sync, _) = sync::subscribed(&world.plane);
    let (controller, queue) = status::subscribed(&world.plane);
    let spec =
        merged(limits(), json!({ "staticAssignments": [{ "clusterName": m1, "hard": { "cpu": "1" } }] }));
    let made = quota(&world, spec).await;
    let key = Key::of(made.as_ref());
    assert_eq!(world.once(sync.as_ref(), &key).await, Outcome::Done);
    assert_eq!(drain(&queue), std::slice::from_ref(&key), "the quota is new; that its Work is, says nothing");
    let mirrors = &world.environment.mirrors;
    let work = mirrors.works.find(&Key::of(&works(&world, &m1).await[0])).expect("known");
    let reported = json!({ "status": {
        "conditions": [{
            "type": "Applied", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
        "manifestStatuses": [{
            "identifier": { "ordinal": 0, "version": "v1", "kind": "ResourceQuota", "resource": "resourcequotas", "name": "q" },
            "status": { "hard": { "cpu": "1" }, "used": { "cpu": "250m" } },
        }],
    } });
    let written = world.environment.writer.patch_status(work.as_ref(), reported).await.expect("accepted");
    mirrors.works.note(written);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    world.writes();
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    let now = world.stored(made.as_ref()).await.expect("stored").status;
    assert_eq!(
        serde_json::to_value(now).expect("a tree"),
        json!({
            "overall": { "cpu": "10" }, "overallUsed": { "cpu": "250m" },
            "aggregatedStatus": [{ "clusterName": m1, "hard": { "cpu": "1" }, "used": { "cpu": "250m" } }],
        })
    );
    assert_eq!(world.writes(), ["PATCH */federatedresourcequotas/q/status"]);
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0], "a second look writes nothing");
    world.supervisor.stop().await;
}

#[tokio::test]
async fn whoever_changes_a_quota_is_told_even_if_nothing_is_written() {
    let world = enforcing().await;
    let (sync, _) = sync::subscribed(&world.plane);
    let (status, _) = status::subscribed(&world.plane);
    let key = Key::of(quota(&world, limits()).await.as_ref());
    world.writes();
    assert_eq!(world.once(sync.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.once(status.as_ref(), &key).await, Outcome::Done);
    world.event("SyncWorkSucceed").await;
    world.event("AggregateStatusSucceed").await;
    assert_eq!(world.writes(), [""; 0]);
    world.supervisor.stop().await;
}

fn using(cpu: &str) -> Value {
    json!({ "spec": {
        "clusters": [{ "name": "m1", "replicas": 2 }],
        "replicaRequirements": { "resourceRequest": { "cpu": cpu } },
    } })
}

async fn used(world: &World, quota: &FederatedResourceQuota) -> Value {
    let stored = world.stored(quota).await.expect("stored");
    serde_json::to_value(stored.status.overall_used).expect("a tree")
}

#[tokio::test]
async fn a_new_quota_is_counted_at_once_and_written_once() {
    let world = enforcing().await;
    let (controller, queue) = enforcement::subscribed(&world.plane);
    world.binding(using("1500m")).await;
    let made = quota(&world, limits()).await;
    let key = Key::of(made.as_ref());
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    world.writes();
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(used(&world, &made).await, json!({ "cpu": "3" }));
    assert_eq!(world.writes(), ["PATCH */federatedresourcequotas/q/status"]);
    assert_eq!(
        world.event("CollectOverallStatusSucceed").await,
        format!("Collect status of FederatedResourceQuota({key}) succeed.")
    );
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0], "a second look writes nothing");
    world.supervisor.stop().await;
}

#[tokio::test]
async fn a_charge_that_stayed_goes_when_it_has_lasted() {
    let world = enforcing().await;
    let (controller, queue) = enforcement::subscribed(&world.plane);
    let made = quota(&world, limits()).await;
    let key = Key::of(made.as_ref());
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    drain(&queue);
    // A server that is not ours charges first, and then its binding is not stored.
    let mirrors = &world.environment.mirrors;
    let charged = json!({ "status": { "overallUsed": { "cpu": "4" } } });
    let written = world.environment.writer.patch_status(made.as_ref(), charged).await.expect("accepted");
    mirrors.quotas.note(written);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    world.writes();
    let first = world.once(controller.as_ref(), &key).await;
    let Outcome::After(pause) = first else { panic!("{first:?}") };
    assert_eq!(world.writes(), [""; 0], "the binding may be on its way");
    tokio::time::sleep(pause).await;
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(used(&world, &made).await, json!({}));
    world.supervisor.stop().await;
}

#[tokio::test]
async fn a_copy_that_is_behind_changes_nothing() {
    let world = enforcing().await;
    let (controller, queue) = enforcement::subscribed(&world.plane);
    let made = quota(&world, limits()).await;
    let key = Key::of(made.as_ref());
    let bound = world.binding(using("1")).await;
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    drain(&queue);
    // The mirror no longer has the binding.
    world.environment.mirrors.bindings.remove(&Key::of(bound.as_ref()), 0);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    let Outcome::After(pause) = world.once(controller.as_ref(), &key).await else { panic!("it waits") };
    tokio::time::sleep(pause).await;
    world.writes();
    assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0]);
    assert_eq!(used(&world, &made).await, json!({ "cpu": "2" }));
    world.supervisor.stop().await;
}

#[tokio::test]
async fn which_bindings_bring_a_quota_up() {
    let world = enforcing().await;
    let (_, queue) = enforcement::subscribed(&world.plane);
    let made = quota(&world, limits()).await;
    let key = Key::of(made.as_ref());
    drain(&queue);
    let mirrors = &world.environment.mirrors;
    let bound = world.binding(json!({})).await;
    assert_eq!(drain(&queue), [], "it uses nothing yet");
    let scheduled = world.patch(bound.as_ref(), using("1")).await;
    mirrors.bindings.note(scheduled);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    let labelled = world.patch(bound.as_ref(), json!({ "metadata": { "labels": { "a": "b" } } })).await;
    mirrors.bindings.note(labelled);
    assert_eq!(drain(&queue), [], "it uses what it used");
    mirrors.bindings.remove(&Key::of(bound.as_ref()), 0);
    assert_eq!(drain(&queue), std::slice::from_ref(&key));
    let other = world.own("other");
    world.namespace(&other).await;
    let elsewhere = merged(
        using("1"),
        json!({ "metadata": { "name": "b", "namespace": other }, "spec": { "resource": {
            "apiVersion": "v1", "kind": "ConfigMap", "namespace": other, "name": "web" } } }),
    );
    world.put::<ResourceBinding>(&mirrors.bindings, elsewhere).await;
    assert_eq!(drain(&queue), [], "another namespace");
    world.supervisor.stop().await;
}
