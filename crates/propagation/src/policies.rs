//! Which policy manages a template, and when another one may take it over.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use api::policy::{
    ActivationPreference, ClusterPropagationPolicy, PreemptionBehavior, PropagationPolicy, PropagationSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::Object;
use crate::claim::{Claim, Holder};
use crate::index::SelectorIndex;
use crate::selector::ImplicitPriority;

/// What PropagationPolicy and ClusterPropagationPolicy have in common.
pub trait Policy: Send + Sync + 'static {
    /// Whether the policy reaches objects of its own namespace only.
    const NAMESPACED: bool;

    fn metadata(&self) -> &ObjectMeta;
    fn spec(&self) -> &PropagationSpec;

    fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or("")
    }

    fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or("")
    }

    /// Returns the explicit priority; unset is 0.
    fn priority(&self) -> i32 {
        self.spec().priority.unwrap_or(0)
    }

    fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }

    /// Returns whether the policy waits for the user to touch the template before it takes effect.
    fn is_lazy(&self) -> bool {
        self.spec().activation_preference == Some(ActivationPreference::Lazy)
    }

    fn preempts_always(&self) -> bool {
        self.spec().preemption == Some(PreemptionBehavior::Always)
    }

    /// Returns whether the policy's selectors still pick the template it once claimed.
    fn selects(&self, template: &Value) -> bool {
        (!Self::NAMESPACED || self.namespace() == template.namespace())
            && crate::selector::matches_any(&self.spec().resource_selectors, template).is_some()
    }
}

impl Policy for PropagationPolicy {
    const NAMESPACED: bool = true;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn spec(&self) -> &PropagationSpec {
        &self.spec
    }
}

impl Policy for ClusterPropagationPolicy {
    const NAMESPACED: bool = false;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn spec(&self) -> &PropagationSpec {
        &self.spec
    }
}

/// Less is better: the larger explicit priority wins, then the more specific match, then the smaller name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    explicit: Reverse<i32>,
    implicit: Reverse<ImplicitPriority>,
    name: &'a str,
}

/// Namespace and name; the namespace of a cluster policy is empty.
type Key = (String, String);

/// The policies of one kind, findable by the objects they select.
#[derive(Debug, Clone)]
pub struct PolicyIndex<P> {
    policies: BTreeMap<Key, Arc<P>>,
    selectors: SelectorIndex<Key>,
}

impl<P> Default for PolicyIndex<P> {
    fn default() -> Self {
        Self { policies: BTreeMap::new(), selectors: SelectorIndex::default() }
    }
}

impl<P: Policy> PolicyIndex<P> {
    /// Adds or replaces a policy.
    pub fn insert(&mut self, policy: Arc<P>) {
        let key = (policy.namespace().to_owned(), policy.name().to_owned());
        self.selectors.insert(key.clone(), &policy.spec().resource_selectors);
        self.policies.insert(key, policy);
    }

    pub fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<P>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.selectors.remove(&key);
        self.policies.remove(&key)
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<P>> {
        self.policies.get(&(namespace.to_owned(), name.to_owned()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<P>> {
        self.policies.values()
    }

    /// Returns the policies that select the template, best first; those being deleted select nothing.
    pub fn matching(&self, template: &Value) -> Vec<&Arc<P>> {
        let mut ranked: Vec<(Rank<'_>, &Arc<P>)> = self
            .selectors
            .matching(template)
            .into_iter()
            .filter_map(|(key, implicit)| {
                let policy = self.policies.get(key)?;
                let reaches = !P::NAMESPACED || policy.namespace() == template.namespace();
                if policy.is_deleting() || !reaches {
                    return None;
                }
                let rank = Rank {
                    explicit: Reverse(policy.priority()),
                    implicit: Reverse(implicit),
                    name: policy.name(),
                };
                Some((rank, policy))
            })
            .collect();
        ranked.sort_by(|(left, _), (right, _)| left.cmp(right));
        ranked.into_iter().map(|(_, policy)| policy).collect()
    }

    /// Returns the policy that wins the template.
    pub fn best(&self, template: &Value) -> Option<&Arc<P>> {
        self.matching(template).into_iter().next()
    }

    /// Returns the policies that may preempt once the priority of another one in `namespace` fell from `old` to
    /// `new`: those that preempt always and lie strictly between, highest priority first.
    pub fn encouraged(&self, namespace: &str, old: i32, new: i32) -> Vec<&Arc<P>> {
        let mut policies: Vec<&Arc<P>> = self
            .policies
            .values()
            .filter(|policy| !P::NAMESPACED || policy.namespace() == namespace)
            .filter(|policy| policy.preempts_always() && new < policy.priority() && policy.priority() < old)
            .collect();
        policies.sort_by_key(|policy| Reverse(policy.priority()));
        policies
    }
}

/// The policy chosen for a template.
#[derive(Debug, Clone)]
pub enum Choice {
    Policy(Arc<PropagationPolicy>),
    ClusterPolicy(Arc<ClusterPropagationPolicy>),
}

/// Returns the policy for an unclaimed template: a PropagationPolicy of its namespace beats any
/// ClusterPropagationPolicy, whatever their priorities.
pub fn choose(
    policies: &PolicyIndex<PropagationPolicy>,
    cluster_policies: &PolicyIndex<ClusterPropagationPolicy>,
    template: &Value,
) -> Option<Choice> {
    if !template.namespace().is_empty()
        && let Some(policy) = policies.best(template)
    {
        return Some(Choice::Policy(Arc::clone(policy)));
    }
    cluster_policies.best(template).map(|policy| Choice::ClusterPolicy(Arc::clone(policy)))
}

/// Whether a preempting policy takes a template over, and why (not).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    Take,
    /// The policy does not preempt at all.
    NotAsked,
    /// No policy has claimed the template; ordinary matching will find it.
    Unclaimed,
    /// The policy holds the template already.
    Own,
    /// The holder's priority is not lower, or it stands above.
    Outranked,
    /// The holder is gone; the template is released first.
    HolderGone,
}

/// Decides whether `policy` takes over a template it names, given who holds it and, if a policy of the same kind
/// holds it, that policy's priority (`None` when it no longer exists).
///
/// A PropagationPolicy takes from a ClusterPropagationPolicy unconditionally and from another PropagationPolicy
/// of strictly lower priority; a ClusterPropagationPolicy only from its like.
pub fn preemption<P: Policy>(policy: &P, claim: Option<&Claim>, holder_priority: Option<i32>) -> Preemption {
    if !policy.preempts_always() {
        return Preemption::NotAsked;
    }
    let Some(claim) = claim else { return Preemption::Unclaimed };
    let same_kind = matches!(claim.holder, Holder::Policy { .. }) == P::NAMESPACED;
    if !same_kind {
        return if P::NAMESPACED { Preemption::Take } else { Preemption::Outranked };
    }
    if Claim::of(policy).is_ok_and(|own| own.id == claim.id) {
        return Preemption::Own;
    }
    match holder_priority {
        None => Preemption::HolderGone,
        Some(priority) if priority < policy.priority() => Preemption::Take,
        Some(_) => Preemption::Outranked,
    }
}
