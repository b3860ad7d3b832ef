//! Decides about a template and its binding. Pure.

use std::sync::Arc;

use api::labels::{BINDING_MANAGED_BY, RESOURCE_TEMPLATE_CLAIMED_BY};
use api::policy::PropagationSpec;
use propagation::activation::specification_changed;
use propagation::binding::{self, Change};
use propagation::claim::{self, Claim};
use propagation::policies::{Choice, Policy};
use propagation::{Binding, Object};
use runtime::Guard;
use runtime::writer::tree_difference;
use serde_json::Value;

use crate::plane::mirrored;
use crate::plane::templates::TemplateKey;

/// What is known of a template that waits in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Touch {
    /// A user may have changed it, or no policy claims it; lazy policies wait for that.
    pub(super) by_user: bool,
    /// A change of it was seen, so the binding needs its new version.
    pub(super) fresh: bool,
}

impl Touch {
    /// Returns what a change of a template means; nothing if no relevant field changed.
    pub(super) fn of(old: Option<&Value>, new: Option<&Value>, initial: bool) -> Option<Self> {
        match (old, new) {
            (Some(old), Some(new)) if !specification_changed(old, new) => None,
            (Some(old), Some(new)) => {
                // An unclaimed template counts as touched, whoever changed it: a policy that takes over a
                // template that another one has released binds it at once, even if it is lazy. Upstream does
                // the same.
                let unclaimed = Claim::read(new).is_none();
                Some(Self { by_user: unclaimed || !mirrored::changed_by_karmada(old, new), fresh: true })
            }
            _ => Some(Self { by_user: true, fresh: !initial }),
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.by_user |= other.by_user;
        self.fresh |= other.fresh;
    }
}

/// What is known of a template.
pub(super) struct View {
    pub(super) template: Option<Arc<Value>>,
    pub(super) touch: Touch,
    /// The policy that claims it.
    pub(super) held: Option<Held>,
    /// Which policy it would get if none claimed it.
    pub(super) choice: Option<Choice>,
    /// The override policies that its policy waits for and that do not exist.
    pub(super) missing: Vec<String>,
}

impl View {
    /// Returns the policy that it has, or would get.
    pub(super) fn policy(&self) -> Option<&Choice> {
        match &self.held {
            Some(held) => held.policy.as_ref(),
            None => self.choice.as_ref(),
        }
    }
}

/// A claim on a template, and the policy behind it.
pub(super) struct Held {
    pub(super) claim: Claim,
    /// `None`: the policy does not exist any more.
    pub(super) policy: Option<Choice>,
}

/// What to do with a template.
#[derive(Debug)]
pub(crate) enum Plan {
    /// It is gone: forget it.
    Forget,
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// No policy selects it; it waits for one.
    Wait,
    /// Its policy is gone: remove the claim.
    Release(Claim),
    /// Its policy no longer selects it, and releases it itself.
    AskPolicy(Choice),
    /// Its policy waits for these override policies.
    Block(Vec<String>),
    /// This policy claims it.
    Apply {
        policy: Choice,
        /// Update its binding. A lazy policy waits until a user touches the template.
        bind: bool,
    },
}

pub(super) fn decide(view: &View) -> Plan {
    let Some(template) = &view.template else { return Plan::Forget };
    // A template that is being deleted gets no new binding; its old one is deleted with it.
    if template.is_deleting() {
        return Plan::Nothing("it goes");
    }
    if is_anothers(template) {
        return Plan::Nothing("another controller claims it");
    }
    let Some(held) = &view.held else {
        return view.choice.as_ref().map_or(Plan::Wait, |policy| claim_for(view, policy));
    };
    let Some(policy) = held.policy.clone() else { return Plan::Release(held.claim.clone()) };
    let (going, selects) = match &policy {
        Choice::Policy(policy) => (policy.is_deleting(), policy.selects(template)),
        Choice::ClusterPolicy(policy) => (policy.is_deleting(), policy.selects(template)),
    };
    match (going, selects) {
        // A policy that is being deleted removes its claims first, which enqueues the template again.
        (true, _) => Plan::Nothing("its policy goes"),
        (false, true) => claim_for(view, &policy),
        // A policy that no longer selects the template releases it itself: only the binding says whether the
        // policy once claimed this template, or the same object under another API group.
        (false, false) if view.touch.fresh => Plan::Nothing("its policy no longer selects it"),
        (false, false) => Plan::AskPolicy(policy),
    }
}

/// Whether a controller other than the detector has claimed a template, as that of MultiClusterServices does.
pub(super) fn is_anothers(template: &Value) -> bool {
    template.label(RESOURCE_TEMPLATE_CLAIMED_BY).is_some_and(|holder| !holder.is_empty())
}

/// Whether there is a controller that claims templates of this kind: that of MultiClusterServices, that of MultiClusterIngresses.
pub(super) fn may_be_anothers(key: &TemplateKey) -> bool {
    let kind = (key.kind.group.as_str(), key.kind.kind.as_str());
    [("", "Service"), ("networking.k8s.io", "Ingress")].contains(&kind)
}

/// Whether a controller other than the detector has written a binding.
pub(super) fn is_managed<B: Binding>(binding: &B) -> bool {
    let mark = binding.metadata().labels.as_ref().and_then(|labels| labels.get(BINDING_MANAGED_BY));
    mark.is_some_and(|manager| !manager.is_empty())
}

/// What happens to a template that a policy is to have.
fn claim_for(view: &View, policy: &Choice) -> Plan {
    if !view.missing.is_empty() {
        return Plan::Block(view.missing.clone());
    }
    let lazy = match policy {
        Choice::Policy(policy) => policy.is_lazy(),
        Choice::ClusterPolicy(policy) => policy.is_lazy(),
    };
    Plan::Apply { policy: policy.clone(), bind: view.touch.by_user || !lazy }
}

/// How a policy's claim gets onto a template.
#[derive(Debug, PartialEq)]
pub(super) enum Mark {
    /// Another controller has claimed it.
    Anothers,
    /// It carries the claim already.
    Carries,
    /// This patch puts it on.
    Patch(Value),
}

/// Decides how a template is claimed.
pub(super) fn mark(template: &Value, claim: &Claim) -> Mark {
    if is_anothers(template) {
        return Mark::Anothers;
    }
    let mut marked = template.clone();
    if !claim.mark(&mut marked) {
        return Mark::Carries;
    }
    tree_difference(template, &marked, Guard::Fields).map_or(Mark::Carries, Mark::Patch)
}

/// Returns the patch that takes a claim off a template; nothing if the template does not carry it.
pub(super) fn unmark(template: &Value, claim: &Claim) -> Option<Value> {
    let mut released = template.clone();
    claim::release(&mut released, claim).then_some(())?;
    tree_difference(template, &released, Guard::Version)
}

/// Returns a binding without a claim; nothing if the binding does not carry it.
pub(super) fn unmark_binding<B: Binding>(binding: &B, claim: &Claim) -> Option<B> {
    let mut released = binding.clone();
    claim::release_metadata(released.metadata_mut(), claim).then_some(released)
}

/// Returns how the update of a template's binding is guarded: another controller that claims the template may be
/// writing the binding at this very moment, and whoever comes second looks again.
pub(super) fn guard(key: &TemplateKey) -> Guard {
    if may_be_anothers(key) { Guard::Version } else { Guard::Fields }
}

/// What to do with the binding of a template.
#[derive(Debug, PartialEq)]
pub(super) enum Bind<B> {
    Create,
    Update(Box<B>),
    /// `seen`: the recorded changes of the template are no longer needed.
    Nothing {
        seen: bool,
    },
    /// The old one is being deleted.
    Wait,
}

/// Decides about a binding. `bound` is the template as it was bound right after it was claimed: the watch
/// shows it again, perhaps with a status that was written meanwhile, and that does not matter to the binding.
pub(super) fn bind<B: Binding>(
    existing: Option<&B>,
    desired: &B,
    policy: &PropagationSpec,
    claim: &Claim,
    touch: Touch,
    (bound, template): (Option<&Value>, &Value),
) -> propagation::Result<Bind<B>> {
    let Some(existing) = existing else { return Ok(Bind::Create) };
    let mut wanted = existing.clone();
    Ok(match binding::update(&mut wanted, desired, policy, claim)? {
        Change::None => Bind::Nothing { seen: true },
        Change::VersionOnly if !touch.fresh => Bind::Nothing { seen: false },
        Change::VersionOnly if bound.is_some_and(|bound| !specification_changed(bound, template)) => {
            Bind::Nothing { seen: true }
        }
        _ if existing.metadata().deletion_timestamp.is_some() => Bind::Wait,
        _ => Bind::Update(Box::new(wanted)),
    })
}

#[cfg(test)]
mod tests {
    use api::policy::{ClusterPropagationPolicy, PropagationPolicy};
    use api::work::ResourceBinding;
    use propagation::claim::Holder;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{deleting, merged, read};

    fn template(otherwise: Value) -> Value {
        let base = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "k": "v" },
            "metadata": { "name": "web", "namespace": "default", "uid": "t", "resourceVersion": "7" },
        });
        merged(base, otherwise)
    }

    fn policy(otherwise: Value) -> Arc<PropagationPolicy> {
        let base = json!({
            "metadata": { "name": "p", "namespace": "default", "labels": { "propagationpolicy.karmada.io/permanent-id": "id" } },
            "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "web" }], "placement": {} },
        });
        Arc::new(read(merged(base, otherwise)))
    }

    fn cluster_policy(otherwise: Value) -> Arc<ClusterPropagationPolicy> {
        let base = json!({
            "metadata": { "name": "c", "labels": { "clusterpropagationpolicy.karmada.io/permanent-id": "cid" } },
            "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap" }], "placement": {} },
        });
        Arc::new(read(merged(base, otherwise)))
    }

    fn claim() -> Claim {
        let holder = Holder::Policy { namespace: "default".to_owned(), name: "p".to_owned() };
        Claim { holder, id: "id".to_owned() }
    }

    fn words(plan: &Plan) -> String {
        let name = |choice: &Choice| match choice {
            Choice::Policy(policy) => policy.name().to_owned(),
            Choice::ClusterPolicy(policy) => policy.name().to_owned(),
        };
        match plan {
            Plan::Forget => "forget".to_owned(),
            Plan::Nothing(why) => format!("nothing: {why}"),
            Plan::Wait => "wait".to_owned(),
            Plan::Release(claim) => format!("release {}", claim.id),
            Plan::AskPolicy(choice) => format!("ask {}", name(choice)),
            Plan::Block(missing) => format!("wait for {}", missing.join(", ")),
            Plan::Apply { policy, bind: true } => format!("apply {}", name(policy)),
            Plan::Apply { policy, bind: false } => format!("claim for {}", name(policy)),
        }
    }

    #[test]
    fn what_becomes_of_a_template() {
        let (fresh, stale) = (Touch { by_user: true, fresh: true }, Touch { by_user: true, fresh: false });
        let some = |otherwise: Value| Some(Arc::new(template(otherwise)));
        let held = |policy: Option<Choice>| Some(Held { claim: claim(), policy });
        let by = |otherwise: Value| Some(Choice::Policy(policy(otherwise)));
        let by_cluster = |otherwise: Value| Some(Choice::ClusterPolicy(cluster_policy(otherwise)));
        let elsewhere =
            || json!({ "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "Secret" }] } });
        let claimed = json!({ "metadata": { "labels": { RESOURCE_TEMPLATE_CLAIMED_BY: "x" } } });
        let unclaimed = json!({ "metadata": { "labels": { RESOURCE_TEMPLATE_CLAIMED_BY: "" } } });
        let cases = [
            ("it is gone", None, fresh, None, None, "forget"),
            ("it is gone, though claimed", None, fresh, held(by(json!({}))), None, "forget"),
            ("nobody selects it", some(json!({})), fresh, None, None, "wait"),
            ("a policy selects it", some(json!({})), fresh, None, by(json!({})), "apply p"),
            ("a cluster policy selects it", some(json!({})), fresh, None, by_cluster(json!({})), "apply c"),
            ("it goes", some(deleting()), fresh, None, by(json!({})), "nothing: it goes"),
            (
                "it goes, though claimed",
                some(deleting()),
                fresh,
                held(by(json!({}))),
                None,
                "nothing: it goes",
            ),
            (
                "another controller's",
                some(claimed),
                fresh,
                None,
                by(json!({})),
                "nothing: another controller claims it",
            ),
            ("an empty mark is none", some(unclaimed), fresh, None, by(json!({})), "apply p"),
            (
                "its policy keeps it",
                some(json!({})),
                fresh,
                held(by(json!({}))),
                by_cluster(json!({})),
                "apply p",
            ),
            (
                "its cluster policy keeps it",
                some(json!({})),
                fresh,
                held(by_cluster(json!({}))),
                by(json!({})),
                "apply c",
            ),
            ("its policy is gone", some(json!({})), fresh, held(None), by_cluster(json!({})), "release id"),
            (
                "its policy goes",
                some(json!({})),
                fresh,
                held(by(deleting())),
                None,
                "nothing: its policy goes",
            ),
            ("its policy left it", some(json!({})), stale, held(by(elsewhere())), None, "ask p"),
            (
                "its cluster policy left it",
                some(json!({})),
                stale,
                held(by_cluster(elsewhere())),
                None,
                "ask c",
            ),
            (
                "it left its policy",
                some(json!({})),
                fresh,
                held(by(elsewhere())),
                None,
                "nothing: its policy no longer selects it",
            ),
        ];
        for (name, template, touch, held, choice, expected) in cases {
            let plan = decide(&View { template, touch, held, choice, missing: Vec::new() });
            assert_eq!(words(&plan), expected, "{name}");
        }
    }

    #[test]
    fn what_a_policy_waits_for() {
        let lazy = || json!({ "spec": { "activationPreference": "Lazy" } });
        let (by_user, by_us) = (Touch { by_user: true, fresh: true }, Touch { by_user: false, fresh: true });
        let by = |otherwise: Value| Some(Choice::Policy(policy(otherwise)));
        let by_cluster = |otherwise: Value| Some(Choice::ClusterPolicy(cluster_policy(otherwise)));
        let missing = || vec!["o1".to_owned(), "o2".to_owned()];
        let cases = [
            ("nothing", by(json!({})), by_us, vec![], "apply p"),
            ("a lazy policy: for a user", by(lazy()), by_us, vec![], "claim for p"),
            ("a lazy policy, and a user came", by(lazy()), by_user, vec![], "apply p"),
            ("a lazy cluster policy: for a user", by_cluster(lazy()), by_us, vec![], "claim for c"),
            ("a lazy cluster policy, and a user came", by_cluster(lazy()), by_user, vec![], "apply c"),
            ("override policies", by(json!({})), by_user, missing(), "wait for o1, o2"),
            ("override policies before a user", by(lazy()), by_us, missing(), "wait for o1, o2"),
        ];
        for (name, choice, touch, missing, expected) in cases {
            let template = Some(Arc::new(template(json!({}))));
            let chosen = View { template, touch, held: None, choice: choice.clone(), missing };
            assert_eq!(words(&decide(&chosen)), expected, "{name}");
            assert!(chosen.policy().is_some(), "{name}");
            let held = View { held: Some(Held { claim: claim(), policy: choice }), choice: None, ..chosen };
            assert_eq!(words(&decide(&held)), expected, "{name}, claimed already");
            assert!(held.policy().is_some(), "{name}");
        }
        let left = View {
            template: Some(Arc::new(template(json!({})))),
            touch: by_user,
            held: Some(Held { claim: claim(), policy: None }),
            choice: by(json!({})),
            missing: missing(),
        };
        assert_eq!(words(&decide(&left)), "release id", "a policy that is gone waits for nothing");
        assert!(left.policy().is_none());
    }

    #[test]
    fn what_a_change_means() {
        let claimed = || {
            json!({ "metadata": {
            "labels": { "propagationpolicy.karmada.io/permanent-id": "id" },
            "annotations": { "propagationpolicy.karmada.io/name": "p", "propagationpolicy.karmada.io/namespace": "default" },
        } })
        };
        let changed = || json!({ "data": { "k": "w" } });
        let other = json!({ "metadata": {
            "labels": { "propagationpolicy.karmada.io/permanent-id": "other" },
            "annotations": { "propagationpolicy.karmada.io/name": "q" },
        } });
        let taken_over = || merged(claimed(), other.clone());
        let touch = |by_user, fresh| Some(Touch { by_user, fresh });
        let cases = [
            ("found by the first list", None, Some(json!({})), true, touch(true, false)),
            ("it is new", None, Some(json!({})), false, touch(true, true)),
            ("it is gone", Some(json!({})), None, false, touch(true, true)),
            ("its status changed", Some(json!({})), Some(json!({ "status": { "a": 1 } })), false, None),
            (
                "its version alone",
                Some(json!({})),
                Some(json!({ "metadata": { "resourceVersion": "8" } })),
                false,
                None,
            ),
            ("a user changed it", Some(json!({})), Some(changed()), false, touch(true, true)),
            ("a policy claimed it", Some(json!({})), Some(claimed()), false, touch(false, true)),
            ("both", Some(json!({})), Some(merged(claimed(), changed())), false, touch(true, true)),
            ("a policy released it", Some(claimed()), Some(json!({})), false, touch(true, true)),
            ("another policy took it over", Some(claimed()), Some(taken_over()), false, touch(false, true)),
        ];
        for (name, old, new, initial, expected) in cases {
            let (old, new): (Option<Value>, Option<Value>) = (old.map(template), new.map(template));
            assert_eq!(Touch::of(old.as_ref(), new.as_ref(), initial), expected, "{name}");
        }
        let mut both = Touch::default();
        both.add(Touch { by_user: true, fresh: false });
        both.add(Touch { by_user: false, fresh: true });
        assert_eq!(both, Touch { by_user: true, fresh: true });
    }

    fn desired(otherwise: Value) -> ResourceBinding {
        let base = json!({
            "metadata": { "name": "web-configmap", "namespace": "default" },
            "spec": { "placement": {}, "resource": {
                "apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "web", "uid": "t", "resourceVersion": "7",
            } },
        });
        read(merged(base, otherwise))
    }

    #[test]
    fn what_becomes_of_a_binding() {
        let (fresh, stale) = (Touch { by_user: true, fresh: true }, Touch { by_user: true, fresh: false });
        let newer = || json!({ "spec": { "resource": { "resourceVersion": "8" } } });
        let more = || json!({ "spec": { "replicas": 3 } });
        let (same, other) = (Some(template(json!({}))), Some(template(json!({ "data": { "k": "w" } }))));
        let cases = [
            ("there is none", None, json!({}), fresh, None, "create"),
            ("it is as wanted", Some(json!({})), json!({}), fresh, None, "nothing, seen"),
            ("it says something else", Some(json!({})), more(), fresh, None, "update"),
            ("also when nobody saw the template change", Some(json!({})), more(), stale, None, "update"),
            ("only the version moved, and it was seen", Some(json!({})), newer(), fresh, None, "update"),
            ("only the version moved, after a restart", Some(json!({})), newer(), stale, None, "nothing"),
            (
                "only the version moved, by our own claim",
                Some(json!({})),
                newer(),
                fresh,
                same.clone(),
                "nothing, seen",
            ),
            ("claimed, and then changed by a user", Some(json!({})), newer(), fresh, other, "update"),
            ("our own claim, after a restart", Some(json!({})), newer(), stale, same, "nothing"),
            ("the old one goes", Some(deleting()), more(), fresh, None, "wait"),
            ("the old one goes, as wanted", Some(deleting()), json!({}), fresh, None, "nothing, seen"),
        ];
        let policy = policy(json!({}));
        for (name, existing, wanted, touch, bound, expected) in cases {
            let existing: Option<ResourceBinding> = existing.map(desired);
            let memory = (bound.as_ref(), &template(json!({})));
            let plan = bind(existing.as_ref(), &desired(wanted), &policy.spec, &claim(), touch, memory);
            let words = match plan.expect("a decision") {
                Bind::Create => "create",
                Bind::Update(_) => "update",
                Bind::Nothing { seen: true } => "nothing, seen",
                Bind::Nothing { seen: false } => "nothing",
                Bind::Wait => "wait",
            };
            assert_eq!(words, expected, "{name}");
        }
    }

    /// The template as the claim leaves it.
    fn claimed(otherwise: Value) -> Value {
        let mut claimed = template(json!({}));
        assert!(claim().mark(&mut claimed));
        merged(claimed, otherwise)
    }

    #[test]
    fn how_a_template_is_claimed() {
        let other = |by: &str| json!({ "metadata": { "labels": { RESOURCE_TEMPLATE_CLAIMED_BY: by } } });
        let taken =
            json!({ "metadata": { "labels": { "propagationpolicy.karmada.io/permanent-id": "other" } } });
        let cases = [
            ("nobody has", template(json!({})), "patch"),
            ("this policy has", claimed(json!({})), "carries"),
            ("another policy has: it is taken over", claimed(taken), "patch"),
            ("another controller has", template(other("x")), "another's"),
            ("another controller has, and this policy", claimed(other("x")), "another's"),
            ("nobody has: an empty mark is none", template(other("")), "patch"),
        ];
        for (name, template, expected) in cases {
            let words = match mark(&template, &claim()) {
                Mark::Anothers => "another's",
                Mark::Carries => "carries",
                Mark::Patch(patch) => {
                    assert_eq!(
                        patch["metadata"].get("resourceVersion"),
                        None,
                        "{name}: whatever else changes"
                    );
                    let marked = merged(template, patch);
                    assert_eq!(Claim::read(&marked), Some(claim()), "{name}");
                    assert_eq!(mark(&marked, &claim()), Mark::Carries, "{name}: once is enough");
                    "patch"
                }
            };
            assert_eq!(words, expected, "{name}");
        }
    }

    #[test]
    fn how_a_claim_is_taken_off() {
        let other = Claim { id: "other".to_owned(), ..claim() };
        let cases = [
            ("it carries it", claimed(json!({})), claim(), true),
            ("it carries none", template(json!({})), claim(), false),
            ("it carries another one", claimed(json!({})), other, false),
        ];
        for (name, template, claim, expected) in cases {
            let patch = unmark(&template, &claim);
            assert_eq!(patch.is_some(), expected, "{name}");
            let metadata = template["metadata"].clone();
            let binding = desired(
                json!({ "metadata": { "labels": metadata["labels"], "annotations": metadata["annotations"] } }),
            );
            let released = unmark_binding(&binding, &claim);
            assert_eq!(released.is_some(), expected, "{name}, its binding");
            let (Some(patch), Some(released)) = (patch, released) else { continue };
            assert_eq!(patch["metadata"]["resourceVersion"], "7", "{name}: of what was read");
            let bare = merged(template, patch);
            assert_eq!((Claim::read(&bare), unmark(&bare, &claim)), (None, None), "{name}: once is enough");
            assert!(unmark_binding(&released, &claim).is_none(), "{name}: once is enough");
        }
    }

    #[test]
    fn what_two_controllers_may_write_is_guarded_by_its_version() {
        for (api_version, kind, expected) in [
            ("v1", "Service", Guard::Version),
            ("networking.k8s.io/v1", "Ingress", Guard::Version),
            ("v1", "ConfigMap", Guard::Fields),
            ("apps/v1", "Deployment", Guard::Fields),
            ("example.io/v1", "Service", Guard::Fields),
        ] {
            let template = template(json!({ "apiVersion": api_version, "kind": kind }));
            assert_eq!(guard(&TemplateKey::of(&template)), expected, "{api_version} {kind}");
        }
    }

    #[test]
    fn the_binding_of_an_earlier_object_of_the_same_name_is_waited_for() {
        let owned = desired(json!({ "metadata": { "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": "old", "controller": true,
        }] } }));
        let plan = bind(
            Some(&owned),
            &desired(json!({})),
            &policy(json!({})).spec,
            &claim(),
            Touch::default(),
            (None, &Value::Null),
        );
        assert!(matches!(plan, Err(propagation::Error::ForeignOwner { .. })), "{plan:?}");
    }
}
