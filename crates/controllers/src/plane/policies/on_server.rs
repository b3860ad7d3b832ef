//! The policies' side on a server: what a policy releases, takes over and enqueues when it changes.

use http::Method;
use serde_json::json;

use super::*;
use crate::fixtures::{merged, read};
use crate::plane::detector::on_server::Test;
use k8s_openapi::api::core::v1::ConfigMap;
use runtime::Outcome;

struct Sides {
    test: Test,
    policies: Arc<Policies<PropagationPolicy>>,
}

impl Sides {
    async fn new() -> Self {
        let test = Test::new().await;
        let policies = Policies::new(&test.detector);
        Self { test, policies }
    }

    async fn once(&self, policy: &PropagationPolicy) -> Outcome {
        self.test.world.once(self.policies.as_ref(), &Key::of(policy)).await
    }

    /// Changes a policy on the server and in the mirror.
    async fn change(&self, policy: &PropagationPolicy, patch: Value) {
        let changed = self.test.world.patch(policy, patch).await;
        self.test.world.environment.mirrors.policies.note(changed);
    }

    /// Creates a template and has the policy of the namespace claim and bind it.
    async fn bound(&self, name: &str) {
        self.test.world.template(name, json!({})).await;
        assert_eq!(self.test.once(name).await, Outcome::Done);
        self.test.see(name).await;
    }
}

fn only(name: &str) -> Value {
    json!({ "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": name }] } })
}

#[tokio::test]
async fn a_policy_without_an_identity_gets_one() {
    let sides = Sides::new().await;
    let policy = sides.test.policy("p", json!({ "metadata": { "labels": null } })).await;
    sides.test.world.writes();
    assert_eq!(sides.once(&policy).await, Outcome::Done);
    assert_eq!(sides.test.world.writes(), ["PATCH */propagationpolicies/p"]);
    let stored = sides.test.world.stored(policy.as_ref()).await.expect("it exists");
    assert!(Claim::of(&stored).is_ok());
    assert_eq!(stored.metadata.finalizers.as_deref(), Some(&[finalizers::PROPAGATION_POLICY.to_owned()][..]));
    sides.test.world.environment.mirrors.policies.note(stored);
    assert!(sides.test.detector.policies.waiting().contains(&Key::of(policy.as_ref())), "it is queued again");
    assert_eq!(sides.once(&policy).await, Outcome::Done);
    assert_eq!(sides.test.world.writes(), [""; 0]);
    sides.test.end().await;
}

#[tokio::test]
async fn what_a_policy_no_longer_selects_is_released_and_the_rest_is_looked_at() {
    let sides = Sides::new().await;
    let policy = sides.test.policy("p", json!({})).await;
    sides.bound("a").await;
    sides.bound("b").await;
    sides.change(&policy, only("a")).await;
    sides.test.world.writes();
    assert_eq!(sides.once(&policy).await, Outcome::Done);
    let writes = sides.test.world.writes();
    assert_eq!(writes, ["PATCH */configmaps/b", "PATCH */resourcebindings/b-configmap"]);
    assert!(sides.test.detector.templates.waiting().contains(&sides.test.key("a")));
    let released = sides.test.stored_binding("b").await.expect("it stays");
    assert_eq!(sides.test.claimed_by(&released.metadata), None);
    let kept = sides.test.stored_binding("a").await.expect("it stays");
    assert!(sides.test.claimed_by(&kept.metadata).is_some());
    sides.test.end().await;
}

#[tokio::test]
async fn a_release_that_is_refused_is_tried_again_whole() {
    let sides = Sides::new().await;
    let policy = sides.test.policy("p", json!({})).await;
    sides.bound("a").await;
    sides.change(&policy, only("else")).await;
    sides.test.world.refuse(Method::PATCH, "/configmaps/a", 500, "InternalError");
    let outcome = sides.once(&policy).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    let binding = sides.test.stored_binding("a").await.expect("it stays");
    assert!(sides.test.claimed_by(&binding.metadata).is_some(), "the template first");
    assert!(Claim::read(&sides.test.see("a").await).is_some());
    assert_eq!(sides.once(&policy).await, Outcome::Done);
    assert!(Claim::read(&sides.test.see("a").await).is_none());
    let binding = sides.test.stored_binding("a").await.expect("it stays");
    assert_eq!(sides.test.claimed_by(&binding.metadata), None);
    sides.test.end().await;
}

#[tokio::test]
async fn a_policy_that_goes_lets_everything_go_and_then_itself() {
    let sides = Sides::new().await;
    let held = json!({ "metadata": { "finalizers": [finalizers::PROPAGATION_POLICY] } });
    let policy = sides.test.policy("p", held).await;
    sides.bound("a").await;
    let api = sides.test.world.api::<PropagationPolicy>(&sides.test.world.namespace);
    api.delete("p", &kube::api::DeleteParams::default()).await.expect("told to go");
    let going = sides.test.world.stored(policy.as_ref()).await.expect("held");
    sides.test.world.environment.mirrors.policies.note(going);
    sides.test.world.writes();
    assert_eq!(sides.once(&policy).await, Outcome::Done);
    let writes = sides.test.world.writes();
    assert_eq!(writes.last().map(String::as_str), Some("PATCH */propagationpolicies/p"));
    assert!(sides.test.world.stored(policy.as_ref()).await.is_none(), "{writes:?}");
    assert!(Claim::read(&sides.test.see("a").await).is_none());
    assert!(sides.test.stored_binding("a").await.is_some(), "what runs keeps running");
    sides.test.world.environment.mirrors.policies.remove(&Key::of(policy.as_ref()), 0);
    assert_eq!(sides.once(&policy).await, Outcome::Done, "it is gone");
    sides.test.end().await;
}

#[tokio::test]
async fn a_policy_that_comes_takes_up_what_waits_for_it() {
    let sides = Sides::new().await;
    for name in ["a", "b"] {
        sides.test.world.template(name, json!({})).await;
        sides.test.once(name).await;
    }
    let policy = sides.test.policy("p", only("b")).await;
    assert_eq!(sides.test.detector.policies.waiting(), [Key::of(policy.as_ref())]);
    let view = sides.policies.observe(&Key::of(policy.as_ref())).await.expect("observed").expect("a view");
    assert_eq!(Policies::decide(&view, Timestamp::now()).steps, [Step::Look(sides.test.key("b"))]);
    sides.test.end().await;
}

#[tokio::test]
async fn a_policy_takes_templates_over_from_one_that_ranks_lower() {
    let sides = Sides::new().await;
    sides.test.policy("low", only("a")).await;
    sides.bound("a").await;
    let takes = json!({ "spec": { "priority": 5, "preemption": "Always" } });
    let high = sides.test.policy("high", merged(only("a"), takes)).await;
    sides.test.world.writes();
    // The feature decides whether it may.
    let gated = sides.test.world.environment.features.enabled(POLICY_PREEMPTION);
    assert_eq!(sides.once(&high).await, Outcome::Done);
    let writes = sides.test.world.writes();
    if gated {
        assert_eq!(writes, ["PATCH */configmaps/a"]);
        assert!(sides.test.world.event("PreemptPolicySucceed").await.starts_with("Preempted by policy"));
        let taken: ConfigMap = read(sides.test.see("a").await);
        assert_eq!(sides.test.claimed_by(&taken.metadata), Some(sides.test.world.own("high")));
    } else {
        assert_eq!(writes, [""; 0]);
    }
    sides.test.end().await;
}

#[tokio::test]
async fn which_changes_of_a_policy_count() {
    let sides = Sides::new().await;
    let (policy, queue) = (sides.test.policy("p", json!({})).await, &sides.test.detector.policies);
    let drain = || {
        let stop = tokio_util::sync::CancellationToken::new();
        let mut taken = Vec::new();
        while let Some(Some(turn)) =
            futures::FutureExt::now_or_never(runtime::Turns::next(queue.as_ref(), &stop))
        {
            taken.push(<Queue<Key> as runtime::Turns>::key(&turn).name);
            runtime::Turns::done(queue.as_ref(), turn, Outcome::Done);
        }
        taken
    };
    assert_eq!(drain(), ["p"], "it is new");
    sides.change(&policy, json!({ "metadata": { "annotations": { "a": "b" } } })).await;
    assert_eq!(drain(), [""; 0], "nothing that counts");
    sides.change(&policy, only("a")).await;
    assert_eq!(drain(), ["p"], "its spec");
    sides.change(&policy, json!({ "metadata": { "labels": null } })).await;
    assert_eq!(drain(), ["p"], "it lost its identity");
    sides.test.world.environment.mirrors.policies.remove(&Key::of(policy.as_ref()), 0);
    assert_eq!(drain(), [""; 0], "gone: its finalizer saw to the rest");
    sides.test.end().await;
}
