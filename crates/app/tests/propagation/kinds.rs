//! Every kind goes all the way: propagated, overridden, reported, changed, moved, deleted.

use std::sync::Arc;

use futures::future::join_all;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use testkit::{Kind, at, condition, eventually, until, until_gone};

use crate::cases::{self, Case};
use crate::members::{Members, have_kubernetes, on_real_and_simulated_members};
use crate::plane::ControlPlane;

use crate::world::World;

on_real_and_simulated_members! {
    every_kind_goes_all_the_way_on_our_server(Shared, 3);
    every_kind_goes_all_the_way_on_kube_apiserver(Shared, 3);
}

async fn every_kind_goes_all_the_way_on_our_server(members: Members) {
    every_kind(World::new("ours", ControlPlane::ours(), &members.places()).await).await;
}

async fn every_kind_goes_all_the_way_on_kube_apiserver(members: Members) {
    if !have_kubernetes() {
        return;
    }
    every_kind(World::new("stock", ControlPlane::kubernetes().await, &members.places()).await).await;
}

async fn every_kind(world: World) {
    // The custom resource needs its kind, in the control plane and in all members.
    let definition = Kind::definition();
    let widgets = cases::custom_definition(&world.tag, "Widget");
    let name = widgets["metadata"]["name"].as_str().expect("a name").to_owned();
    world.create(&definition, widgets).await;
    propagate(&world, &definition, &name, &[0, 1, 2]).await;
    for case in cases::all(&world.tag) {
        eventually(format!("{} is served", case.kind.resource.kind), async || {
            let first = ListParams::default().limit(1);
            world.in_plane(&case.kind).list(&first).await.map_err(|error| error.to_string())
        })
        .await;
    }
    let world = Arc::new(world);
    let runs = cases::all(&world.tag).into_iter().map(|case| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { all_the_way(&world, &case).await })
    });
    let failures = join_all(runs).await.into_iter().filter(Result::is_err).count();
    assert_eq!(failures, 0, "kinds failed, see above");
    world.in_plane(&definition).delete(&name, &DeleteParams::default()).await.expect("deleted");
    for index in 0..3 {
        until_gone(&world.in_member(index, &definition), &name, "the definition leaves the members").await;
    }
    let namespaces = Kind::cluster("", "v1", "Namespace", "namespaces");
    world.in_plane(&namespaces).delete(&world.namespace, &DeleteParams::default()).await.expect("deleted");
    for index in 0..3 {
        let gone = "the namespace leaves the members";
        until_gone(&world.in_member(index, &namespaces), &world.namespace, gone).await;
    }
    world.leave().await;
}

fn policy_kind(kind: &Kind) -> Kind {
    if kind.namespaced {
        Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies")
    } else {
        let plural = "clusterpropagationpolicies";
        Kind::cluster("policy.karmada.io", "v1alpha1", "ClusterPropagationPolicy", plural)
    }
}

fn override_kind(kind: &Kind) -> Kind {
    if kind.namespaced {
        Kind::namespaced("policy.karmada.io", "v1alpha1", "OverridePolicy", "overridepolicies")
    } else {
        Kind::cluster("policy.karmada.io", "v1alpha1", "ClusterOverridePolicy", "clusteroverridepolicies")
    }
}

fn binding_kind(kind: &Kind) -> Kind {
    if kind.namespaced {
        Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings")
    } else {
        Kind::cluster("work.karmada.io", "v1alpha2", "ClusterResourceBinding", "clusterresourcebindings")
    }
}

/// The names of policies are those of their objects with the kind, which may be alike only together.
fn policy_name(kind: &Kind, name: &str) -> String {
    format!("{}-{name}", kind.resource.plural)
}

fn placement(world: &World, members: &[usize]) -> Value {
    let names: Vec<&str> = members.iter().map(|index| world.members[*index].name.as_str()).collect();
    json!({"clusterAffinity": {"clusterNames": names}})
}

fn selectors(kind: &Kind, name: &str) -> Value {
    json!([{"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, "name": name}])
}

async fn propagate(world: &World, kind: &Kind, name: &str, members: &[usize]) {
    let policies = policy_kind(kind);
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": policies.resource.kind,
        "metadata": {"name": policy_name(kind, name)},
        "spec": {"resourceSelectors": selectors(kind, name), "placement": placement(world, members)}});
    world.create(&policies, policy).await;
}

async fn all_the_way(world: &World, case: &Case) {
    let kind = &case.kind;
    let name = case.template["metadata"]["name"].as_str().expect("a name");
    let what = |step: &str| format!("{} {step}", kind.resource.kind);
    let templates = world.in_plane(kind);

    // It comes to the first two members, with a mark of its own in the second.
    world.create(kind, case.template.clone()).await;
    let rule = json!({"targetCluster": {"clusterNames": [world.members[1].name]},
        "overriders": {"labelsOverrider": [{"operator": "add", "value": {"where": "second"}}]}});
    let overrides = override_kind(kind);
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": overrides.resource.kind,
        "metadata": {"name": policy_name(kind, name)},
        "spec": {"resourceSelectors": selectors(kind, name), "overrideRules": [rule]}});
    world.create(&overrides, policy).await;
    propagate(world, kind, name, &[0, 1]).await;
    for index in [0, 1] {
        until(&world.in_member(index, kind), name, &what("reaches the member"), |found| {
            let labels = found.and_then(|found| found.metadata.labels.as_ref());
            let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
            found.is_some()
                && label("karmada.io/managed") == Some("true")
                && label("where") == (index == 1).then_some("second")
        })
        .await;
    }
    placed(world, kind, name, &[0, 1]).await;

    // Its state comes back.
    if let Some(status) = &case.reported {
        for index in [0, 1] {
            let patch = json!({ "status": status });
            let members = world.in_member(index, kind);
            let patched = members.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            patched.unwrap_or_else(|error| panic!("{}: {error}", what("takes a status")));
        }
    }
    if let Some((path, value)) = &case.status {
        until(&templates, name, &what("shows the members' state"), |found| {
            at(found, path).as_ref() == Some(value)
        })
        .await;
    }

    // A change reaches both.
    world.patch(kind, name, &case.change).await;
    let (path, value) = &case.changed;
    for index in [0, 1] {
        until(&world.in_member(index, kind), name, &what("is changed in the member"), |found| {
            at(found, path).as_ref() == Some(value)
        })
        .await;
    }

    // It moves when the policy says so.
    let moved = json!({"spec": {"placement": placement(world, &[1, 2])}});
    world.patch(&policy_kind(kind), &policy_name(kind, name), &moved).await;
    until(&world.in_member(2, kind), name, &what("reaches the third member"), |found| {
        at(found, path).as_ref() == Some(value)
    })
    .await;
    until_gone(&world.in_member(0, kind), name, &what("leaves the first member")).await;
    placed(world, kind, name, &[1, 2]).await;
    let kept = world.in_member(1, kind).get(name).await;
    assert_eq!(at(kept.as_ref().ok(), path).as_ref(), Some(value), "{}", what("stays in the second member"));

    // It goes, and nothing stays.
    let binding = binding_name(kind, name);
    let works = works_of(world, kind, &binding).await;
    assert_eq!(works.len(), 2, "{}: {works:?}", what("has one Work per cluster"));
    // As kubectl asks for it: a Job that is deleted without a word leaves behind what it owns, also its binding.
    templates.delete(name, &DeleteParams::background()).await.expect("the template is deleted");
    for index in [1, 2] {
        until_gone(&world.in_member(index, kind), name, &what("leaves the members")).await;
    }
    until_gone(&templates, name, &what("leaves the control plane")).await;
    until_gone(&world.in_plane(&binding_kind(kind)), &binding, &what("leaves no binding")).await;
    for (space, work_name) in works {
        let api: Api<DynamicObject> =
            Api::namespaced_with(world.plane.clone(), &space, &Kind::work().resource);
        until_gone(&api, &work_name, &what("leaves no Work")).await;
    }
    for policies in [policy_kind(kind), override_kind(kind)] {
        let api = world.in_plane(&policies);
        api.delete(&policy_name(kind, name), &DeleteParams::default()).await.expect("a policy is deleted");
        until_gone(&api, &policy_name(kind, name), &what("leaves no policy")).await;
    }
}

/// Waits until the binding says that exactly these members have it.
async fn placed(world: &World, kind: &Kind, name: &str, members: &[usize]) {
    let wanted: Vec<&str> = members.iter().map(|index| world.members[*index].name.as_str()).collect();
    let api = world.in_plane(&binding_kind(kind));
    until(&api, &binding_name(kind, name), "the binding reports every cluster", |found| {
        let names = |list: &Value, field: &str| -> Vec<String> {
            let items = list.as_array().into_iter().flatten();
            let mut names: Vec<String> =
                items.filter_map(|item| item[field].as_str().map(str::to_owned)).collect();
            names.sort();
            names
        };
        let Some(binding) = found else { return false };
        let reports = &binding.data["status"]["aggregatedStatus"];
        let applied = reports.as_array().into_iter().flatten().all(|report| report["applied"] == true);
        names(&binding.data["spec"]["clusters"], "name") == wanted
            && names(reports, "clusterName") == wanted
            && applied
            && condition(found, "Scheduled") == Some("True")
            && condition(found, "FullyApplied") == Some("True")
    })
    .await;
}

fn binding_name(kind: &Kind, name: &str) -> String {
    api::names::binding(&kind.resource.kind, name)
}

async fn works_of(world: &World, kind: &Kind, binding: &str) -> Vec<(String, String)> {
    let key = if kind.namespaced { "resourcebinding" } else { "clusterresourcebinding" };
    let annotation = format!("{key}.karmada.io/name");
    let api: Api<DynamicObject> = Api::all_with(world.plane.clone(), &Kind::work().resource);
    let all = api.list(&ListParams::default()).await.expect("the Works");
    let mine = all.items.into_iter().filter(|work| {
        work.metadata.deletion_timestamp.is_none()
            && work.metadata.annotations.as_ref().and_then(|notes| notes.get(&annotation)).map(String::as_str)
                == Some(binding)
    });
    mine.map(|work| (work.metadata.namespace.unwrap_or_default(), work.metadata.name.unwrap_or_default()))
        .collect()
}
