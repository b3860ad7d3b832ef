//! How a resource differs from cluster to cluster.
//!
//! Cluster-wide policies come first, then those of the object's namespace; within each stage the least specific
//! first and, among equals, by name. What comes later wins. Inside one rule the order is fixed: images, commands,
//! arguments, labels, annotations, embedded documents, plain patches.
//!
//! Which policies a stage has is settled before it changes anything; the second stage sees the labels that the
//! first one made.
//!
//! No rule may change what an object is: see `identity`. How much work all of them may be together: see `budget`.

mod budget;
mod containers;
mod document;
mod field;
mod identity;
mod image;
mod metadata;
mod patch;
mod yaml;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cluster::Cluster;
use api::policy::{ClusterOverridePolicy, OverridePolicy, OverrideSpec, Overriders};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use placement::affinity::cluster_matches;
use serde_json::Value;

use crate::Object;
use crate::index::SelectorIndex;
use crate::selector::ImplicitPriority;
use budget::Budget;
use identity::Identity;

pub use budget::{MAX_BYTES, MAX_ENTRIES, MAX_RULES, entries};

/// Why an overrider could not be applied. The texts are those that users know from Karmada.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Patch(String),
    #[error("unsupported operation")]
    UnsupportedOperator,
    #[error("failed to parse image value({image}), error: {reason}")]
    Image { image: String, reason: String },
    #[error("failed to obtain imageValue with predicate path({path}), error: {reason}")]
    Predicate { path: String, reason: String },
    #[error("imagePath should be start with / character")]
    ImagePath,
    #[error("Get object's value by overrider's path({path}) is not string")]
    NotText { path: String },
    #[error("failed to get value by overrider's path({path}): {reason}")]
    FieldPath { path: String, reason: String },
    #[error("the value at {path} is not readable: {reason}")]
    Embedded { path: String, reason: String },
    #[error("{rule} changes {field}, which is part of the object's identity and cannot be overridden")]
    Identity { rule: String, field: String },
    #[error(
        "{rule} changes {field}, which grants rights and cannot be overridden by an OverridePolicy: use a \
         ClusterOverridePolicy"
    )]
    Rights { rule: String, field: String },
    #[error(
        "more than {MAX_RULES} rules of override policies apply to the object in this cluster: join rules, or select fewer objects"
    )]
    TooManyRules,
    #[error(
        "override policies have more than {MAX_ENTRIES} overriders for the object in this cluster: join overriders, or select \
         fewer objects"
    )]
    TooManyEntries,
    #[error(
        "override policies would read and print more than {MAX_BYTES} bytes for the object in this cluster: patch its large fields in \
         fewer rules"
    )]
    TooMuchWork,
}

/// What is told instead of a value of a Secret.
const HIDDEN: &str = "<not shown: the object is a Secret>";

impl Error {
    /// Returns the error without what it tells of the object's values: errors become events, which more users may read than Secrets.
    fn without_values(self) -> Self {
        match self {
            Self::Image { reason, .. } => Self::Image { image: HIDDEN.to_owned(), reason },
            Self::Embedded { path, .. } => Self::Embedded { path, reason: HIDDEN.to_owned() },
            other => other,
        }
    }
}

/// An override policy of either scope.
pub trait Policy: Send + Sync + 'static {
    fn metadata(&self) -> &ObjectMeta;
    fn spec(&self) -> &OverrideSpec;
}

impl Policy for OverridePolicy {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn spec(&self) -> &OverrideSpec {
        &self.spec
    }
}

impl Policy for ClusterOverridePolicy {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn spec(&self) -> &OverrideSpec {
        &self.spec
    }
}

/// All override policies, findable by the objects they select.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    cluster: Stage<ClusterOverridePolicy>,
    /// By namespace: a policy reaches its own namespace only.
    namespaced: BTreeMap<String, Stage<OverridePolicy>>,
}

/// One application of a policy's rule to an object, worth an event and a record on the Work.
#[derive(Debug, Clone, PartialEq)]
pub struct Contribution {
    /// Empty for a cluster-wide policy.
    pub namespace: String,
    pub policy: String,
    pub overriders: Overriders,
}

impl Contribution {
    /// Returns the words in which events name the policy: `override policy(shop/a)`, `cluster override policy(b)`.
    pub fn describe(&self) -> String {
        describe(&self.namespace, &self.policy)
    }
}

fn describe(namespace: &str, policy: &str) -> String {
    if namespace.is_empty() {
        format!("cluster override policy({policy})")
    } else {
        format!("override policy({namespace}/{policy})")
    }
}

/// What was applied, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Applied {
    pub cluster: Vec<Contribution>,
    pub namespaced: Vec<Contribution>,
}

/// A rule that failed; what came before it was applied, nothing after it will be.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub applied: Applied,
    pub namespace: String,
    pub policy: String,
    pub error: Error,
}

impl Failure {
    /// As [`Contribution::describe`].
    pub fn describe(&self) -> String {
        describe(&self.namespace, &self.policy)
    }
}

impl Overrides {
    pub fn insert_cluster(&mut self, policy: Arc<ClusterOverridePolicy>) {
        self.cluster.insert(policy);
    }

    pub fn remove_cluster(&mut self, name: &str) {
        self.cluster.remove(name);
    }

    pub fn insert(&mut self, policy: Arc<OverridePolicy>) {
        let namespace = policy.metadata.namespace.clone().unwrap_or_default();
        self.namespaced.entry(namespace).or_default().insert(policy);
    }

    pub fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(stage) = self.namespaced.get_mut(namespace) {
            stage.remove(name);
            if stage.policies.is_empty() {
                self.namespaced.remove(namespace);
            }
        }
    }

    /// Returns whether a policy of this name exists, for `spec.dependentOverrides` (empty namespace: cluster-wide).
    pub fn contains(&self, namespace: &str, name: &str) -> bool {
        if namespace.is_empty() {
            self.cluster.policies.contains_key(name)
        } else {
            self.namespaced.get(namespace).is_some_and(|stage| stage.policies.contains_key(name))
        }
    }

    /// Applies everything that concerns the object in this cluster, in place.
    ///
    /// On failure the object is half done; the caller drops it.
    pub fn apply(&self, object: &mut Value, cluster: &Cluster) -> Result<Applied, Box<Failure>> {
        let mut applied = Applied::default();
        let mut budget = Budget::default();
        let result = self.cluster.apply(object, cluster, "", &mut applied.cluster, &mut budget);
        fail(result, &applied)?;
        let namespace = object.namespace().to_owned();
        if let Some(stage) = self.namespaced.get(&namespace).filter(|_| !namespace.is_empty()) {
            let result = stage.apply(object, cluster, &namespace, &mut applied.namespaced, &mut budget);
            fail(result, &applied)?;
        }
        Ok(applied)
    }
}

fn fail(result: Result<(), Box<(Contribution, Error)>>, applied: &Applied) -> Result<(), Box<Failure>> {
    result.map_err(|failed| {
        let (contribution, error) = *failed;
        Box::new(Failure {
            applied: applied.clone(),
            namespace: contribution.namespace,
            policy: contribution.policy,
            error,
        })
    })
}

/// The policies of one scope, by name.
#[derive(Debug, Clone)]
struct Stage<P> {
    policies: BTreeMap<String, Arc<P>>,
    selectors: SelectorIndex<String>,
}

impl<P> Default for Stage<P> {
    fn default() -> Self {
        Self { policies: BTreeMap::new(), selectors: SelectorIndex::default() }
    }
}

impl<P: Policy> Stage<P> {
    fn insert(&mut self, policy: Arc<P>) {
        let name = policy.metadata().name.clone().unwrap_or_default();
        self.selectors.insert(name.clone(), &policy.spec().resource_selectors);
        self.policies.insert(name, policy);
    }

    fn remove(&mut self, name: &str) {
        self.selectors.remove(&name.to_owned());
        self.policies.remove(name);
    }

    /// Returns the policies that select the object in the order of application.
    fn selected(&self, object: &Value) -> Vec<(&str, &P)> {
        let unrestricted = self.selectors.unrestricted().map(|name| (name, ImplicitPriority::MatchAll));
        let mut found: Vec<(ImplicitPriority, &String)> = self
            .selectors
            .matching(object)
            .into_iter()
            .chain(unrestricted)
            .map(|(name, priority)| (priority, name))
            .collect();
        found.sort();
        found
            .into_iter()
            .filter_map(|(_, name)| Some((name.as_str(), self.policies.get(name)?.as_ref())))
            .collect()
    }

    fn apply(
        &self,
        object: &mut Value,
        cluster: &Cluster,
        namespace: &str,
        applied: &mut Vec<Contribution>,
        budget: &mut Budget,
    ) -> Result<(), Box<(Contribution, Error)>> {
        // Every rule leaves the identity as it was, so that it is noted once.
        let identity = Identity::of(object, !namespace.is_empty());
        for (name, policy) in self.selected(object) {
            for (rule, overriders) in rules_for(policy.spec(), cluster) {
                let contribution = Contribution {
                    namespace: namespace.to_owned(),
                    policy: name.to_owned(),
                    overriders: overriders.clone(),
                };
                let changed = budget
                    .rule(overriders)
                    .and_then(|()| apply_within(object, overriders, budget))
                    .and_then(|()| identity.check(object, rule, budget));
                if let Err(error) = changed {
                    return Err(Box::new((contribution, error)));
                }
                applied.push(contribution);
            }
        }
        Ok(())
    }
}

/// Returns the overriders of the rules that target the cluster, each with its place in the policy; the deprecated single
/// form counts as one rule.
fn rules_for<'a>(spec: &'a OverrideSpec, cluster: &Cluster) -> Vec<(String, &'a Overriders)> {
    if spec.override_rules.is_empty() {
        let targeted = spec.target_cluster.as_ref().is_none_or(|affinity| cluster_matches(cluster, affinity));
        return if targeted { vec![("spec.overriders".to_owned(), &spec.overriders)] } else { Vec::new() };
    }
    spec.override_rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| {
            rule.target_cluster.as_ref().is_none_or(|affinity| cluster_matches(cluster, affinity))
        })
        .map(|(index, rule)| (format!("spec.overrideRules[{index}]"), &rule.overriders))
        .collect()
}

/// Applies one rule's overriders to the object, in their fixed order.
pub fn apply_overriders(object: &mut Value, overriders: &Overriders) -> Result<(), Error> {
    let mut budget = Budget::default();
    budget.rule(overriders)?;
    apply_within(object, overriders, &mut budget)
}

fn apply_within(object: &mut Value, overriders: &Overriders, budget: &mut Budget) -> Result<(), Error> {
    let is_secret = object.kind() == "Secret";
    let changed = apply_in_order(object, overriders, budget);
    changed.map_err(|error| if is_secret { error.without_values() } else { error })
}

fn apply_in_order(object: &mut Value, overriders: &Overriders, budget: &mut Budget) -> Result<(), Error> {
    image::apply(object, &overriders.image_overrider, budget)?;
    containers::apply(object, "command", &overriders.command_overrider, budget)?;
    containers::apply(object, "args", &overriders.args_overrider, budget)?;
    metadata::apply(object, "labels", &overriders.labels_overrider)?;
    metadata::apply(object, "annotations", &overriders.annotations_overrider)?;
    field::apply(object, &overriders.field_overrider, budget)?;
    if overriders.plaintext.is_empty() {
        return Ok(());
    }
    budget.pass(object)?;
    let plaintext: Vec<patch::Operation<'_>> = overriders
        .plaintext
        .iter()
        .map(|entry| patch::Operation {
            operator: &entry.operator,
            path: &entry.path,
            value: entry.value.as_ref(),
        })
        .collect();
    patch::apply(object, &plaintext, &mut budget.patches)
}

/// Returns the record of applied policies that a Work carries, `None` when there were none.
pub fn record(contributions: &[Contribution]) -> Option<String> {
    if contributions.is_empty() {
        return None;
    }
    let mut items: Vec<&Contribution> = contributions.iter().collect();
    items.sort_by(|left, right| left.policy.cmp(&right.policy));
    let items: Vec<String> = items
        .into_iter()
        .map(|item| {
            let name = document::quote(&item.policy);
            format!("{{\"policyName\":{name},\"overriders\":{}}}", api::go_json(&item.overriders))
        })
        .collect();
    Some(format!("[{}]", items.join(",")))
}

/// The path below which a kind has its containers. The kind's name alone decides, whatever its group.
fn pod_spec_path(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some("/spec"),
        "ReplicaSet" | "Deployment" | "DaemonSet" | "StatefulSet" | "Job" => Some("/spec/template/spec"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
