//! What happens when members fail and policies err: nobody else is delayed, and nothing that is wanted is lost.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use testkit::{Kind, assert_kept, at, condition, until, until_gone};

use crate::members::{Members, on_real_and_simulated_members};
use crate::plane::ControlPlane;

use crate::world::World;

on_real_and_simulated_members! {
    a_dead_member_delays_nobody_and_catches_up(Exclusive, 3);
    a_policy_that_wants_no_cluster_takes_its_objects_away(Shared, 2);
    templates_and_policies_deleted_in_any_order_leave_nothing_and_drift_is_repaired(Shared, 2);
}

fn config_maps() -> Kind {
    Kind::namespaced("", "v1", "ConfigMap", "configmaps")
}

fn policies() -> Kind {
    Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies")
}

fn bindings() -> Kind {
    Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings")
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value}})
}

/// Returns a policy that sends ConfigMaps of the names to all members.
fn policy(name: &str, maps: &[&str], placement: Value) -> Value {
    let selectors: Vec<Value> =
        maps.iter().map(|name| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name})).collect();
    json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": selectors, "placement": placement}})
}

fn value(found: Option<&DynamicObject>) -> Option<String> {
    at(found, "/data/a")?.as_str().map(str::to_owned)
}

async fn has(world: &World, member: usize, name: &str, wanted: &str, what: &str) {
    until(&world.in_member(member, &config_maps()), name, what, |found| {
        value(found).as_deref() == Some(wanted)
    })
    .await;
}

async fn a_dead_member_delays_nobody_and_catches_up(members: Members) {
    let mut world = World::new("trouble", ControlPlane::ours(), &members.places()).await;
    let all = ["kept", "changed", "new", "gone"];
    for name in ["kept", "changed", "gone"] {
        world.create(&config_maps(), config_map(name, "1")).await;
    }
    world.create(&policies(), policy("all", &all, json!({}))).await;
    for member in 0..3 {
        for name in ["kept", "changed", "gone"] {
            has(&world, member, name, "1", "it arrives").await;
        }
    }
    let mut before = Vec::new();
    for member in 0..3 {
        before.push(world.until_inventory(member, &config_maps(), &["kept", "changed", "gone"]).await);
    }
    let removed = |key: &str| key.ends_with("/gone");

    // One member is cut off: the others get what is new, at once.
    members.cut_off(2).await;
    world.patch(&config_maps(), "changed", &json!({"data": {"a": "2"}})).await;
    world.create(&config_maps(), config_map("new", "1")).await;
    let templates = world.in_plane(&config_maps());
    templates.delete("gone", &DeleteParams::background()).await.expect("deleted");
    for member in 0..2 {
        has(&world, member, "changed", "2", "a change passes the dead member by").await;
        has(&world, member, "new", "1", "a new object passes the dead member by").await;
        until_gone(&world.in_member(member, &config_maps()), "gone", "so does a deletion").await;
    }
    // The control plane is restarted in the middle of it, and sees one member as missing from the start.
    world.control.kill();
    world.control.start();
    world.patch(&config_maps(), "changed", &json!({"data": {"a": "3"}})).await;
    for (member, before) in before.iter().enumerate().take(2) {
        has(&world, member, "changed", "3", "the restarted control plane goes on").await;
        let now = world.until_inventory(member, &config_maps(), &["kept", "changed", "new"]).await;
        assert_kept(before, &now, removed, "after a restart beside a dead member");
    }

    // It comes back and is brought up to date; nothing was deleted that is wanted.
    members.heal(2).await;
    has(&world, 2, "changed", "3", "the member catches up with a change").await;
    has(&world, 2, "new", "1", "the member catches up with what is new").await;
    until_gone(&world.in_member(2, &config_maps()), "gone", "the member catches up with a deletion").await;
    has(&world, 2, "kept", "1", "what was there is there").await;
    let now = world.until_inventory(2, &config_maps(), &["kept", "changed", "new"]).await;
    assert_kept(&before[2], &now, removed, "after the member's return");
    world.leave().await;
}

async fn a_policy_that_wants_no_cluster_takes_its_objects_away(members: Members) {
    let world = World::new("nowhere", ControlPlane::ours(), &members.places()).await;
    world.create(&config_maps(), config_map("wanted", "1")).await;
    world.create(&policies(), policy("wanted", &["wanted"], json!({}))).await;
    for member in 0..2 {
        has(&world, member, "wanted", "1", "it arrives").await;
    }
    // A policy that wants another cluster, which does not exist, wants none of these.
    let nowhere = json!({"spec": {"placement": {"clusterAffinity": {"clusterNames": ["no-such-cluster"]}}}});
    world.patch(&policies(), "wanted", &nowhere).await;
    until(&world.in_plane(&bindings()), "wanted-configmap", "the binding says that nothing fits", |found| {
        condition(found, "Scheduled") == Some("False")
    })
    .await;
    for member in 0..2 {
        until_gone(&world.in_member(member, &config_maps()), "wanted", "it leaves the members").await;
    }

    // It comes back where it is wanted again, and nowhere else.
    let second =
        json!({"spec": {"placement": {"clusterAffinity": {"clusterNames": [world.members[0].name]}}}});
    world.patch(&policies(), "wanted", &second).await;
    has(&world, 0, "wanted", "1", "it comes back").await;
    world.until_inventory(1, &config_maps(), &[]).await;
    world.leave().await;
}

async fn templates_and_policies_deleted_in_any_order_leave_nothing_and_drift_is_repaired(members: Members) {
    let world = World::new("order", ControlPlane::ours(), &members.places()).await;
    let names = ["template-first", "policy-first", "together"];
    for name in names {
        world.create(&config_maps(), config_map(name, "1")).await;
        world.create(&policies(), policy(name, &[name], json!({}))).await;
    }
    let there = world.in_member(0, &config_maps());
    for name in names {
        for member in 0..2 {
            has(&world, member, name, "1", "it arrives").await;
        }
        let drift = Patch::Merge(json!({"data": {"a": "drift"}}));
        there.patch(name, &PatchParams::default(), &drift).await.expect("changed in the member");
        has(&world, 0, name, "1", "a change in the member is undone").await;
        there.delete(name, &DeleteParams::default()).await.expect("deleted in the member");
        has(&world, 0, name, "1", "a deletion in the member is undone").await;
    }

    let (templates, rules) = (world.in_plane(&config_maps()), world.in_plane(&policies()));
    let now = DeleteParams::background();
    templates.delete("template-first", &now).await.expect("deleted");
    until_gone(&templates, "template-first", "the template goes").await;
    rules.delete("template-first", &now).await.expect("deleted");

    rules.delete("policy-first", &now).await.expect("deleted");
    until_gone(&rules, "policy-first", "the policy goes").await;
    // What runs keeps running without its policy.
    has(&world, 0, "policy-first", "1", "it stays without its policy").await;
    templates.delete("policy-first", &now).await.expect("deleted");

    let (one, other) = tokio::join!(templates.delete("together", &now), rules.delete("together", &now));
    one.expect("deleted");
    other.expect("deleted");

    for name in names {
        for member in 0..2 {
            until_gone(&world.in_member(member, &config_maps()), name, "it leaves the members").await;
        }
        until_gone(&rules, name, "the policy goes").await;
        let binding = api::names::binding("ConfigMap", name);
        until_gone(&world.in_plane(&bindings()), &binding, "the binding goes").await;
    }
    world.leave().await;
}
