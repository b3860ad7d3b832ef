//! What is noted on policies when removals are held, on a server.

use api::policy::{ClusterPropagationPolicy, PropagationPolicy};
use api::work::ResourceBinding;
use http::Method;

use super::*;
use crate::Settings;
use crate::fixtures::{at, merged};
use crate::world::World;

/// A world in which two templates and a tenth of all copies are too much.
async fn world() -> World {
    World::with(Settings { removals: Limits { templates: 1, percent: 10 }, ..Settings::default() }).await
}

fn policy(world: &World, name: &str, otherwise: Value) -> Value {
    let base = json!({
        "metadata": { "name": name, "namespace": world.namespace },
        "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap" }], "placement": {} },
    });
    merged(base, otherwise)
}

fn cluster_policy(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap" }], "placement": {} },
    })
}

/// What makes a binding one of a policy in the test's namespace.
fn bound_by(world: &World, policy: &str) -> Value {
    json!({ "metadata": { "annotations": {
        PROPAGATION_POLICY_NAME: policy, PROPAGATION_POLICY_NAMESPACE: world.namespace,
    } } })
}

/// A binding of its own identity that was placed in one cluster and has copies in these.
async fn placed(
    world: &World,
    name: &str,
    policy: &str,
    chosen: &str,
    copies: &[&String],
) -> Arc<ResourceBinding> {
    let id = world.own(name);
    let otherwise = json!({
        "metadata": { "name": name, "labels": { "resourcebinding.karmada.io/permanent-id": id } },
        "spec": { "placement": {}, "clusters": [{ "name": chosen }] },
    });
    let binding = world.binding(merged(otherwise, bound_by(world, policy))).await;
    for cluster in copies {
        let marks = json!({ "metadata": {
            "name": name,
            "labels": { "resourcebinding.karmada.io/permanent-id": id },
            "annotations": { "resourcebinding.karmada.io/name": name },
        } });
        world.work(cluster, marks).await;
    }
    binding
}

async fn note_of(world: &World, policy: &PropagationPolicy) -> Option<String> {
    let stored = world.stored(policy).await.expect("it exists");
    stored.metadata.annotations.and_then(|notes| notes.get(REMOVALS_HELD).cloned())
}

#[tokio::test]
async fn what_a_policy_would_remove_is_counted_from_what_there_is() {
    let world = world().await;
    let mirrors = &world.environment.mirrors;
    let (m1, m2) = (world.cluster("m1", json!({})).await, world.cluster("m2", json!({})).await);
    world.put(&mirrors.policies, policy(&world, "p", json!({}))).await;
    let first = placed(&world, "a", "p", &m1, &[&m1, &m2]).await;
    placed(&world, "b", "p", &m1, &[&m1, &m2]).await;
    placed(&world, "c", "gone", &m1, &[&m1]).await;
    let request = world.plane.removal_request(first.as_ref());
    assert_eq!(request.template, format!("{}/a", world.namespace));
    assert_eq!(request.policy, Some(Key::new(&world.namespace, "p")));
    assert_eq!(request.states, [(Key::new(&world.namespace, "p"), State::Free)].into());
    let survey = request.survey.expect("there are enough Works to count");
    assert_eq!(survey.copies, 5);
    let lost = survey.at_stake(&Key::new(&world.namespace, "p"));
    assert_eq!((lost.templates, lost.copies, lost.clusters), (2, 2, [m2.clone()].into()));
    assert_eq!(survey.losses.len(), 1, "the policy that is gone removes nothing");

    // What goes already is not counted once more.
    let key = Key::new(&world.namespace, "b");
    let mut going = (*mirrors.bindings.find(&key).expect("known")).clone();
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    going.metadata.resource_version = Some("999999999".to_owned());
    mirrors.bindings.note(going);
    world.plane.removals.changes.fetch_add(1, Ordering::Relaxed);
    assert_eq!(world.plane.survey().copies, 3);
    world.supervisor.stop().await;
}

#[tokio::test]
async fn a_survey_is_believed_until_something_changes() {
    let world = world().await;
    let m1 = world.cluster("m1", json!({})).await;
    let (before, again) = (world.plane.survey(), world.plane.survey());
    assert!(Arc::ptr_eq(&before, &again));
    placed(&world, "a", "p", &m1, &[&m1]).await;
    assert_eq!(world.plane.survey().copies, 0, "bindings and Works change all the time");
    world.plane.removals.changes.fetch_add(1, Ordering::Relaxed);
    assert_eq!(world.plane.survey().copies, 1);
    world.supervisor.stop().await;
}

#[tokio::test]
async fn what_is_held_is_noted_once_on_each_policy() {
    let world = world().await;
    let mirrors = &world.environment.mirrors;
    let p = world.put(&mirrors.policies, policy(&world, "p", json!({}))).await;
    let c: Arc<ClusterPropagationPolicy> =
        world.put(&mirrors.cluster_policies, cluster_policy(&world.own("c"))).await;
    let binding = world.binding(bound_by(&world, "p")).await;
    let at_stake = AtStake { templates: 2, copies: 3, clusters: ["m1".to_owned()].into() };
    let policies = vec![
        (Key::of(p.as_ref()), at_stake.clone()),
        (Key::of(c.as_ref()), at_stake.clone()),
        (Key::new(&world.namespace, "gone"), at_stake),
    ];
    let hold = || Permit::Hold { policies: policies.clone(), unowned: false };
    world.writes();
    world.plane.note_removals(binding.as_ref(), hold(), at(5)).await.expect("noted");
    assert_eq!(world.writes(), ["PATCH */propagationpolicies/p", "PATCH clusterpropagationpolicies/*-c"]);
    let note = note_of(&world, &p).await.expect("a note");
    assert!(note.contains("3 copies of 2 templates would be removed from 1 clusters (m1)"), "{note}");
    assert!(note.contains(&format!("propagationpolicy p -n {}", world.namespace)), "{note}");
    assert!(world.event("RemovalsHeld").await.contains("are held"));

    world.writes();
    world.plane.note_removals(binding.as_ref(), hold(), at(6)).await.expect("noted already");
    assert_eq!(world.writes(), [""; 0], "the first note stays");
    assert_eq!(note_of(&world, &p).await, Some(note));
    world.supervisor.stop().await;
}

#[tokio::test]
async fn a_binding_without_a_policy_says_itself_that_it_is_held() {
    let world = world().await;
    let binding = world.binding(json!({})).await;
    let hold = Permit::Hold { policies: Vec::new(), unowned: true };
    world.plane.note_removals(binding.as_ref(), hold, at(5)).await.expect("told");
    assert!(world.event("RemovalsHeld").await.contains("there is no policy on which to agree"));
    world.supervisor.stop().await;
}

#[tokio::test]
async fn what_goes_counts_and_what_was_agreed_to_does_not() {
    let world = world().await;
    let binding = world.binding(bound_by(&world, "p")).await;
    let recent = || world.plane.removal_request(binding.as_ref()).recent;
    let now = Timestamp::now();
    for permit in [Permit::Agreed, Permit::Held] {
        world.plane.note_removals(binding.as_ref(), permit, now).await.expect("nothing to do");
    }
    assert!(recent().is_empty());
    world.plane.note_removals(binding.as_ref(), Permit::Within(2), now).await.expect("counted");
    assert_eq!(recent(), [(format!("{}/web-configmap", world.namespace), 2)].into());
    world.supervisor.stop().await;
}

#[tokio::test]
async fn a_note_comes_off_when_nothing_waits_any_more() {
    let world = world().await;
    let mirrors = &world.environment.mirrors;
    let note = |id: &str| json!({ "metadata": { "annotations": { REMOVALS_HELD: format!("{id} 2026-01-01T00:00:00Z: held") } } });
    let held = world.put(&mirrors.policies, policy(&world, "held", note("a"))).await;
    let free = world.put(&mirrors.policies, policy(&world, "free", json!({}))).await;
    let controller = Controller { plane: world.plane.clone() };
    world.writes();
    assert_eq!(world.once(&controller, &Key::of(free.as_ref())).await, Outcome::Done);
    assert_eq!(world.once(&controller, &Key::new(&world.namespace, "unknown")).await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0]);

    // A copy of a binding of its policy still waits.
    let (m1, m2) = (world.cluster("m1", json!({})).await, world.cluster("m2", json!({})).await);
    let binding = placed(&world, "a", "held", &m1, &[&m2]).await;
    world.plane.removals.changes.fetch_add(1, Ordering::Relaxed);
    world.writes();
    assert_eq!(world.once(&controller, &Key::of(held.as_ref())).await, Outcome::After(LOOK));
    assert_eq!(world.writes(), [""; 0]);

    // It was carried out.
    mirrors.bindings.remove(&Key::of(binding.as_ref()), 0);
    world.plane.removals.changes.fetch_add(1, Ordering::Relaxed);
    world.refuse(Method::PATCH, "/propagationpolicies/held", 500, "InternalError");
    let failed = world.once(&controller, &Key::of(held.as_ref())).await;
    assert!(matches!(failed, Outcome::Failed { conflict: false, .. }), "{failed:?}");
    world.writes();
    assert_eq!(world.once(&controller, &Key::of(held.as_ref())).await, Outcome::Done);
    assert_eq!(world.writes(), ["PATCH */propagationpolicies/held"]);
    assert_eq!(note_of(&world, &held).await, None);
    assert_eq!(world.once(&controller, &Key::of(held.as_ref())).await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0], "the mirror knows that it is off");
    world.supervisor.stop().await;
}

#[tokio::test]
async fn a_policy_that_vanished_meanwhile_needs_no_note_taken_off() {
    let world = world().await;
    let note = json!({ "metadata": { "annotations": { REMOVALS_HELD: "a 2026-01-01T00:00:00Z: held" } } });
    let held = world.put(&world.environment.mirrors.policies, policy(&world, "held", note)).await;
    let api = world.api::<PropagationPolicy>(&world.namespace);
    api.delete("held", &kube::api::DeleteParams::default()).await.expect("deleted");
    let controller = Controller { plane: world.plane.clone() };
    assert_eq!(world.once(&controller, &Key::of(held.as_ref())).await, Outcome::Done);
    world.supervisor.stop().await;
}

#[test]
fn a_binding_says_which_policy_is_behind_it() {
    let named = |annotations: Value| {
        let binding = crate::fixtures::binding(json!({ "metadata": { "annotations": annotations } }));
        policy_of(&binding.metadata)
    };
    let cases = [
        (json!({}), None),
        (json!({ PROPAGATION_POLICY_NAME: "p" }), None),
        (
            json!({ PROPAGATION_POLICY_NAME: "p", PROPAGATION_POLICY_NAMESPACE: "default" }),
            Some(Key::new("default", "p")),
        ),
        (json!({ CLUSTER_PROPAGATION_POLICY_NAME: "c" }), Some(Key::new("", "c"))),
    ];
    for (annotations, expected) in cases {
        assert_eq!(named(annotations.clone()), expected, "{annotations}");
    }
}

#[test]
fn finding_25_a_binding_names_no_policy_of_another_namespace() {
    let notes = json!({ PROPAGATION_POLICY_NAME: "p", PROPAGATION_POLICY_NAMESPACE: "bank" });
    let binding = crate::fixtures::binding(json!({ "metadata": { "annotations": notes } }));
    assert_eq!(binding.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(policy_of(&binding.metadata), None);
}
