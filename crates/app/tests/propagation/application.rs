//! One application the whole way: divided, overridden, repaired after changes in the member, moved and removed.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testkit::{Kind, until};

use crate::members::{Members, on_real_and_simulated_members};
use crate::plane::ControlPlane;

use crate::world::World;

on_real_and_simulated_members! {
    an_application_is_divided_overridden_repaired_moved_and_removed(Shared, 2);
}

fn replicas(deployment: Option<&Deployment>) -> Option<i32> {
    deployment?.spec.as_ref()?.replicas
}

fn ready(deployment: Option<&Deployment>) -> i32 {
    deployment.and_then(|d| d.status.as_ref()?.ready_replicas).unwrap_or(0)
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

async fn an_application_is_divided_overridden_repaired_moved_and_removed(members: Members) {
    let world = World::new("app", ControlPlane::ours(), &members.places()).await;
    let (plane, namespace) = (world.plane.clone(), world.namespace.clone());
    let names = [world.members[0].name.as_str(), world.members[1].name.as_str()];

    let templates: Api<Deployment> = Api::namespaced(plane.clone(), &namespace);
    let template: Deployment = serde_json::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}}))
    .expect("a Deployment");
    templates.create(&PostParams::default(), &template).await.expect("a template");
    let policy_kind =
        Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    let policies = world.in_plane(&policy_kind);
    let selectors = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}]);
    let weight =
        |name: &str, weight: i64| json!({"targetCluster": {"clusterNames": [name]}, "weight": weight});
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": "web"}, "spec": {"resourceSelectors": selectors, "placement": {
            "replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
                "weightPreference": {"staticWeightList": [weight(names[0], 3), weight(names[1], 1)]}}}}});
    policies.create(&PostParams::default(), &object(policy)).await.expect("a policy");
    let override_kind =
        Kind::namespaced("policy.karmada.io", "v1alpha1", "OverridePolicy", "overridepolicies");
    let overrides = world.in_plane(&override_kind);
    let rule = json!({"targetCluster": {"clusterNames": [names[1]]},
        "overriders": {"labelsOverrider": [{"operator": "add", "value": {"where": "two"}}]}});
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy",
        "metadata": {"name": "web"}, "spec": {"resourceSelectors": selectors, "overrideRules": [rule]}});
    overrides.create(&PostParams::default(), &object(policy)).await.expect("an override");

    let one: Api<Deployment> = Api::namespaced(world.members[0].client.clone(), &namespace);
    let two: Api<Deployment> = Api::namespaced(world.members[1].client.clone(), &namespace);
    until(&one, "web", "three of four replicas in the first member", |d| {
        replicas(d) == Some(3) && ready(d) == 3
    })
    .await;
    until(&two, "web", "one replica and a label of its own in the second", |d| {
        let label = d.and_then(|d| d.metadata.labels.as_ref()?.get("where").cloned());
        replicas(d) == Some(1) && ready(d) == 1 && label.as_deref() == Some("two")
    })
    .await;
    until(&templates, "web", "the status of both on the template", |d| ready(d) == 4).await;

    let scaled = Patch::Merge(json!({"spec": {"replicas": 8}}));
    templates.patch("web", &PatchParams::default(), &scaled).await.expect("scaled");
    until(&one, "web", "six replicas after scaling", |d| replicas(d) == Some(6)).await;
    until(&two, "web", "two replicas after scaling", |d| replicas(d) == Some(2)).await;

    let drift = Patch::Merge(json!({"spec": {"replicas": 1}}));
    one.patch("web", &PatchParams::default(), &drift).await.expect("changed in the member");
    until(&one, "web", "the change in the member undone", |d| replicas(d) == Some(6)).await;
    one.delete("web", &DeleteParams::default()).await.expect("deleted in the member");
    until(&one, "web", "the deletion in the member undone", |d| replicas(d) == Some(6) && ready(d) == 6)
        .await;

    let moved =
        Patch::Merge(json!({"spec": {"placement": {"clusterAffinity": {"clusterNames": [names[1]]}}}}));
    policies.patch("web", &PatchParams::default(), &moved).await.expect("moved");
    until(&two, "web", "all replicas in the second member", |d| replicas(d) == Some(8) && ready(d) == 8)
        .await;
    until(&one, "web", "nothing left in the first member", |d| d.is_none()).await;

    let work_kind = Kind::work().resource;
    let works: Api<DynamicObject> = Api::all_with(plane.clone(), &work_kind);
    let all = works.list(&ListParams::default()).await.expect("the Works");
    templates.delete("web", &DeleteParams::default()).await.expect("the template is deleted");
    until(&two, "web", "nothing left in the second member", |d| d.is_none()).await;
    for work in all.items.iter().filter(|w| w.metadata.name.as_deref().is_some_and(|n| n.starts_with("web-")))
    {
        let space = work.metadata.namespace.as_deref().expect("a Work has a namespace");
        let here: Api<DynamicObject> = Api::namespaced_with(plane.clone(), space, &work_kind);
        until(&here, work.metadata.name.as_deref().expect("a name"), "no Work is left", |w| w.is_none())
            .await;
    }
    world.leave().await;
}
