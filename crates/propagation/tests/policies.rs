//! Which policy manages a template: tables of priorities, scopes, claims and preemption.

use std::sync::Arc;

use api::policy::{ClusterPropagationPolicy, PropagationPolicy};
use propagation::claim::{Claim, Holder, release, release_metadata};
use propagation::policies::{Choice, Policy, PolicyIndex, Preemption, choose, preemption};
use serde_json::{Value, json};

fn template() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": "shop", "name": "web", "labels": {"app": "web"}},
    })
}

fn by_name() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"})
}

fn by_label() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "labelSelector": {"matchLabels": {"app": "web"}}})
}

fn all() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment"})
}

fn policy(name: &str, priority: Option<i32>, selectors: &[Value]) -> PropagationPolicy {
    policy_in("shop", name, priority, selectors)
}

fn policy_in(namespace: &str, name: &str, priority: Option<i32>, selectors: &[Value]) -> PropagationPolicy {
    serde_json::from_value(json!({
        "metadata": {
            "namespace": namespace, "name": name,
            "labels": {"propagationpolicy.karmada.io/permanent-id": format!("id-{name}")},
        },
        "spec": {"resourceSelectors": selectors, "priority": priority},
    }))
    .expect("a policy")
}

fn cluster_policy(name: &str, priority: Option<i32>, selectors: &[Value]) -> ClusterPropagationPolicy {
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {"clusterpropagationpolicy.karmada.io/permanent-id": format!("id-{name}")},
        },
        "spec": {"resourceSelectors": selectors, "priority": priority},
    }))
    .expect("a policy")
}

fn index<P: Policy>(policies: impl IntoIterator<Item = P>) -> PolicyIndex<P> {
    let mut index = PolicyIndex::default();
    for policy in policies {
        index.insert(Arc::new(policy));
    }
    index
}

fn best(policies: impl IntoIterator<Item = PropagationPolicy>) -> Option<String> {
    index(policies).best(&template()).map(|policy| policy.name().to_owned())
}

#[test]
fn the_larger_explicit_priority_wins_whatever_the_match() {
    assert_eq!(best([policy("a", None, &[by_name()]), policy("b", Some(1), &[all()])]).as_deref(), Some("b"));
    assert_eq!(
        best([policy("a", Some(-1), &[by_name()]), policy("b", None, &[all()])]).as_deref(),
        Some("b")
    );
}

#[test]
fn among_equals_the_more_specific_match_wins() {
    let policies =
        [policy("a", None, &[all()]), policy("b", None, &[by_label()]), policy("c", None, &[by_name()])];
    assert_eq!(best(policies.clone()).as_deref(), Some("c"));
    assert_eq!(best(policies[..2].to_vec()).as_deref(), Some("b"));
    let mixed = [policy("a", None, &[by_label()]), policy("z", None, &[all(), by_name()])];
    assert_eq!(best(mixed).as_deref(), Some("z"));
}

#[test]
fn the_smaller_name_breaks_the_tie() {
    assert_eq!(
        best([policy("b", None, &[by_name()]), policy("a", None, &[by_name()])]).as_deref(),
        Some("a")
    );
}

#[test]
fn policies_that_are_being_deleted_or_live_elsewhere_match_nothing() {
    let mut deleting = policy("a", None, &[by_name()]);
    deleting.metadata = serde_json::from_value(json!({
        "name": "a", "namespace": "shop", "deletionTimestamp": "2026-01-01T00:00:00Z",
    }))
    .expect("metadata");
    assert_eq!(best([deleting, policy_in("other", "b", None, &[by_name()])]), None);
}

#[test]
fn a_namespaced_policy_beats_any_cluster_policy() {
    let cluster = index([cluster_policy("c", Some(100), &[by_name()])]);
    let chosen = choose(&index([policy("a", Some(-5), &[all()])]), &cluster, &template());
    assert!(matches!(chosen, Some(Choice::Policy(policy)) if policy.name() == "a"));
    let chosen = choose(&PolicyIndex::default(), &cluster, &template());
    assert!(matches!(chosen, Some(Choice::ClusterPolicy(policy)) if policy.name() == "c"));
    let mut cluster_scoped = template();
    cluster_scoped["metadata"].as_object_mut().expect("a map").remove("namespace");
    let none = choose(&index([policy("a", None, &[all()])]), &PolicyIndex::default(), &cluster_scoped);
    assert!(none.is_none());
}

#[test]
fn an_updated_policy_replaces_the_old_one_in_the_index() {
    let mut index = index([policy("a", None, &[by_name()])]);
    index.insert(Arc::new(policy("a", None, &[json!({"apiVersion": "v1", "kind": "Secret"})])));
    assert!(index.best(&template()).is_none());
    assert!(index.remove("shop", "a").is_some());
    assert!(index.remove("shop", "a").is_none());
}

#[test]
fn claiming_marks_the_template_once() {
    let mut object = template();
    let claim = Claim::of(&policy("p", None, &[])).expect("the policy has an id");
    assert!(claim.mark(&mut object));
    assert_eq!(object["metadata"]["labels"]["propagationpolicy.karmada.io/permanent-id"], "id-p");
    assert_eq!(object["metadata"]["annotations"]["propagationpolicy.karmada.io/namespace"], "shop");
    assert_eq!(object["metadata"]["annotations"]["propagationpolicy.karmada.io/name"], "p");
    assert_eq!(Claim::read(&object), Some(claim.clone()));
    assert!(!claim.mark(&mut object), "a second claim changes nothing");
}

#[test]
fn a_policy_takes_a_cluster_policys_marks_off_but_not_the_other_way_round() {
    let cluster_claim = Claim::of(&cluster_policy("c", None, &[])).expect("the policy has an id");
    let claim = Claim::of(&policy("p", None, &[])).expect("the policy has an id");
    let mut object = template();
    cluster_claim.mark(&mut object);
    assert_eq!(Claim::read(&object), Some(cluster_claim.clone()));
    assert!(claim.mark(&mut object));
    assert!(object["metadata"]["labels"]["clusterpropagationpolicy.karmada.io/permanent-id"].is_null());
    assert!(object["metadata"]["annotations"]["clusterpropagationpolicy.karmada.io/name"].is_null());
    cluster_claim.mark(&mut object);
    assert_eq!(Claim::read(&object), Some(claim), "the policy's claim counts first");
}

#[test]
fn a_policy_without_permanent_id_cannot_claim() {
    let mut nameless = policy("p", None, &[]);
    nameless.metadata.labels = None;
    assert_eq!(
        Claim::of(&nameless).map_err(|error| error.to_string()),
        Err("policy shop/p has no permanent id yet".into())
    );
}

#[test]
fn a_claim_is_released_only_by_its_own_id() {
    let claim = Claim::of(&policy("p", None, &[])).expect("the policy has an id");
    let older = Claim { id: "older".into(), ..claim.clone() };
    let mut object = template();
    claim.mark(&mut object);
    assert!(!release(&mut object, &older));
    assert_eq!(Claim::read(&object), Some(claim.clone()));
    assert!(release(&mut object, &claim));
    assert_eq!(object, template(), "nothing of the claim is left");

    let mut metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        labels: Some(claim.labels()),
        annotations: Some(claim.annotations()),
        ..Default::default()
    };
    assert_eq!(Claim::read_metadata(&metadata), Some(claim.clone()));
    assert!(!release_metadata(&mut metadata, &older));
    assert!(release_metadata(&mut metadata, &claim));
    assert_eq!(Claim::read_metadata(&metadata), None);
}

#[test]
fn preemption_follows_kind_and_priority() {
    let always = |mut policy: PropagationPolicy| {
        policy.spec.preemption = Some(api::policy::PreemptionBehavior::Always);
        policy
    };
    let other =
        Claim { holder: Holder::Policy { namespace: "shop".into(), name: "q".into() }, id: "id-q".into() };
    let by_cluster = Claim { holder: Holder::ClusterPolicy { name: "c".into() }, id: "id-c".into() };
    let five = always(policy("p", Some(5), &[by_name()]));
    let own = Claim::of(&five).expect("the policy has an id");
    for (claim, holder, expected) in [
        (Some(&other), Some(4), Preemption::Take),
        (Some(&other), Some(5), Preemption::Outranked),
        (Some(&other), None, Preemption::HolderGone),
        (Some(&by_cluster), Some(100), Preemption::Take),
        (Some(&own), Some(5), Preemption::Own),
        (None, None, Preemption::Unclaimed),
    ] {
        assert_eq!(preemption(&five, claim, holder), expected, "{claim:?} {holder:?}");
    }
    assert_eq!(preemption(&policy("p", Some(5), &[]), Some(&other), Some(1)), Preemption::NotAsked);

    let mut cluster = cluster_policy("p", Some(5), &[by_name()]);
    cluster.spec.preemption = Some(api::policy::PreemptionBehavior::Always);
    assert_eq!(preemption(&cluster, Some(&other), Some(1)), Preemption::Outranked);
    assert_eq!(preemption(&cluster, Some(&by_cluster), Some(1)), Preemption::Take);
    assert_eq!(preemption(&cluster, Some(&by_cluster), Some(5)), Preemption::Outranked);
}

#[test]
fn a_lowered_priority_encourages_those_strictly_between() {
    let always = |name: &str, priority| {
        let mut policy = policy(name, Some(priority), &[by_name()]);
        policy.spec.preemption = Some(api::policy::PreemptionBehavior::Always);
        policy
    };
    let index = index([
        always("four", 4),
        always("five", 5),
        always("nine", 9),
        always("ten", 10),
        policy("never", Some(6), &[by_name()]),
    ]);
    let names: Vec<&str> = index.encouraged("shop", 10, 4).into_iter().map(|policy| policy.name()).collect();
    assert_eq!(names, ["nine", "five"]);
    assert!(index.encouraged("other", 10, 4).is_empty());
}
