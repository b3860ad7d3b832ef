//! Records which policy manages a template: labels and annotations on the template and on its binding.
//!
//! The permanent id identifies a policy through its whole life (a label, hence indexable); name and namespace
//! are annotations, because a policy's name may be longer than a label value can be.

use std::collections::BTreeMap;

use api::labels::annotations::{
    CLUSTER_PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAMESPACE,
};
use api::labels::{CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, PROPAGATION_POLICY_PERMANENT_ID};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::policies::Policy;
use crate::{Error, Object, Result};

/// A policy's hold on a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub holder: Holder,
    /// The policy's permanent id.
    pub id: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    Policy { namespace: String, name: String },
    ClusterPolicy { name: String },
}

impl Claim {
    /// Returns the claim that `policy` makes. A policy gets its permanent id from admission; without one it
    /// cannot claim.
    pub fn of<P: Policy>(policy: &P) -> Result<Self> {
        let (namespace, name) = (policy.namespace().to_owned(), policy.name().to_owned());
        let key = if P::NAMESPACED {
            PROPAGATION_POLICY_PERMANENT_ID
        } else {
            CLUSTER_PROPAGATION_POLICY_PERMANENT_ID
        };
        let id = policy.metadata().labels.as_ref().and_then(|labels| labels.get(key));
        let Some(id) = id.filter(|id| !id.is_empty()).cloned() else {
            return Err(Error::NoPermanentId { policy: api::names::namespaced_key(&namespace, &name) });
        };
        let holder =
            if P::NAMESPACED { Holder::Policy { namespace, name } } else { Holder::ClusterPolicy { name } };
        Ok(Self { holder, id })
    }

    /// Returns who claimed the template. All marks of a claim must be there; a PropagationPolicy's counts first.
    pub fn read(template: &Value) -> Option<Self> {
        Self::find(|key| template.label(key), |key| template.annotation(key))
    }

    /// As [`Claim::read`], for a binding.
    pub fn read_metadata(metadata: &ObjectMeta) -> Option<Self> {
        let label = |key: &str| metadata.labels.as_ref()?.get(key).map(String::as_str);
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).map(String::as_str);
        Self::find(label, annotation)
    }

    fn find<'a>(
        label: impl Fn(&str) -> Option<&'a str>,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Self> {
        let label = |key: &str| label(key).filter(|value| !value.is_empty());
        let policy = || {
            Some(Self {
                id: label(PROPAGATION_POLICY_PERMANENT_ID)?.to_owned(),
                holder: Holder::Policy {
                    namespace: annotation(PROPAGATION_POLICY_NAMESPACE)?.to_owned(),
                    name: annotation(PROPAGATION_POLICY_NAME)?.to_owned(),
                },
            })
        };
        let cluster_policy = || {
            Some(Self {
                id: label(CLUSTER_PROPAGATION_POLICY_PERMANENT_ID)?.to_owned(),
                holder: Holder::ClusterPolicy {
                    name: annotation(CLUSTER_PROPAGATION_POLICY_NAME)?.to_owned(),
                },
            })
        };
        policy().or_else(cluster_policy)
    }

    /// Returns the labels of the claim.
    pub fn labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(self.holder.id_label().to_owned(), self.id.clone())])
    }

    /// Returns the annotations of the claim.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        match &self.holder {
            Holder::Policy { namespace, name } => BTreeMap::from([
                (PROPAGATION_POLICY_NAMESPACE.to_owned(), namespace.clone()),
                (PROPAGATION_POLICY_NAME.to_owned(), name.clone()),
            ]),
            Holder::ClusterPolicy { name } => {
                BTreeMap::from([(CLUSTER_PROPAGATION_POLICY_NAME.to_owned(), name.clone())])
            }
        }
    }

    /// Marks the template; returns whether it changed. A PropagationPolicy takes a ClusterPropagationPolicy's
    /// marks off, not the other way round.
    pub fn mark(&self, template: &mut Value) -> bool {
        let mut changed = false;
        if matches!(self.holder, Holder::Policy { .. }) {
            changed |= template.remove_label(CLUSTER_PROPAGATION_POLICY_PERMANENT_ID);
            changed |= template.remove_annotation(CLUSTER_PROPAGATION_POLICY_NAME);
        }
        if template.label(self.holder.id_label()) == Some(&self.id) {
            return changed;
        }
        for (key, value) in self.labels() {
            template.set_label(&key, &value);
        }
        for (key, value) in self.annotations() {
            template.set_annotation(&key, &value);
        }
        true
    }
}

impl Holder {
    fn id_label(&self) -> &'static str {
        match self {
            Self::Policy { .. } => PROPAGATION_POLICY_PERMANENT_ID,
            Self::ClusterPolicy { .. } => CLUSTER_PROPAGATION_POLICY_PERMANENT_ID,
        }
    }

    fn annotation_keys(&self) -> &'static [&'static str] {
        match self {
            Self::Policy { .. } => &[PROPAGATION_POLICY_NAMESPACE, PROPAGATION_POLICY_NAME],
            Self::ClusterPolicy { .. } => &[CLUSTER_PROPAGATION_POLICY_NAME],
        }
    }
}

/// Takes a claim's marks off a template; returns whether it changed.
///
/// Only if the template still carries this very id: a policy that was deleted and recreated quickly must not
/// lose its new claim to the cleaning up after its predecessor.
pub fn release(template: &mut Value, claim: &Claim) -> bool {
    if template.label(claim.holder.id_label()) != Some(&claim.id) {
        return false;
    }
    template.remove_label(claim.holder.id_label());
    for key in claim.holder.annotation_keys() {
        template.remove_annotation(key);
    }
    true
}

/// As [`release`], for a binding.
pub fn release_metadata(metadata: &mut ObjectMeta, claim: &Claim) -> bool {
    let label = claim.holder.id_label();
    if metadata.labels.as_ref().and_then(|labels| labels.get(label)) != Some(&claim.id) {
        return false;
    }
    if let Some(labels) = &mut metadata.labels {
        labels.remove(label);
    }
    for key in claim.holder.annotation_keys() {
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(*key);
        }
    }
    true
}

/// Takes a ClusterPropagationPolicy's marks off a binding that a PropagationPolicy now manages.
pub(crate) fn strip_cluster_policy(metadata: &mut ObjectMeta) -> bool {
    let mut changed = false;
    if let Some(labels) = &mut metadata.labels {
        changed |= labels.remove(CLUSTER_PROPAGATION_POLICY_PERMANENT_ID).is_some();
    }
    if let Some(annotations) = &mut metadata.annotations {
        changed |= annotations.remove(CLUSTER_PROPAGATION_POLICY_NAME).is_some();
    }
    changed
}
