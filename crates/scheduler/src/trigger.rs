//! Whether a binding needs a decision, and why.
//!
//! In: a binding, the placement that was last scheduled, the fleet. Out: what to do next, with its reason.
//!
//! A divided workload that is fully placed is left alone by changes of clusters; a duplicated one, or a resource without
//! replicas, is recomputed whenever it is looked at.

use std::sync::Arc;

use api::cluster::Cluster;
use api::policy::{ClusterAffinityTerm, Placement, ReplicaSchedulingType};
use api::work::{ClusterResourceBinding, ResourceBinding, ResourceBindingSpec, ResourceBindingStatus};
use api::{constants, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::affinity::cluster_matches;
use crate::decision::is_reschedule_required;
use crate::fleet::Fleet;
use crate::gates::Gates;

/// A binding of either scope.
#[derive(Debug, Clone, Copy)]
pub struct Binding<'a> {
    pub scope: Scope,
    pub metadata: &'a ObjectMeta,
    pub spec: &'a ResourceBindingSpec,
    pub status: &'a ResourceBindingStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A ResourceBinding.
    Namespaced,
    /// A ClusterResourceBinding.
    Cluster,
}

impl<'a> From<&'a ResourceBinding> for Binding<'a> {
    fn from(binding: &'a ResourceBinding) -> Self {
        let ResourceBinding { metadata, spec, status, .. } = binding;
        Self { scope: Scope::Namespaced, metadata, spec, status }
    }
}

impl<'a> From<&'a ClusterResourceBinding> for Binding<'a> {
    fn from(binding: &'a ClusterResourceBinding) -> Self {
        let ClusterResourceBinding { metadata, spec, status, .. } = binding;
        Self { scope: Scope::Cluster, metadata, spec, status }
    }
}

impl Binding<'_> {
    /// Returns `namespace/name`, or the name alone for cluster scope: the key in the queue and in messages.
    pub fn key(&self) -> String {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        match self.scope {
            Scope::Namespaced => format!("{}/{name}", self.metadata.namespace.as_deref().unwrap_or_default()),
            Scope::Cluster => name.to_owned(),
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self.scope {
            Scope::Namespaced => "ResourceBinding",
            Scope::Cluster => "ClusterResourceBinding",
        }
    }

    /// Returns the kind as upstream spells it inside some messages.
    fn lower_kind(&self) -> &'static str {
        match self.scope {
            Scope::Namespaced => "resourceBinding",
            Scope::Cluster => "clusterResourceBinding",
        }
    }
}

/// What to do with a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It is being deleted: nothing but a warning event with this text.
    Deleting(String),
    /// It has no placement: an error with this text, to be retried.
    NoPlacement(String),
    /// It needs a decision.
    Schedule(Trigger),
    /// It does not, but its generation has not been noted yet.
    NoteGeneration(i64),
    /// Nothing at all.
    Nothing,
}

/// Why a binding needs a decision; the first that applies counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Trigger {
    /// The placement differs from the one that was last scheduled.
    PlacementChanged,
    /// The assigned replicas do not add up to what the resource asks for.
    ReplicasChanged,
    /// Somebody asked for a fresh schedule.
    RescheduleRequested,
    /// Resources without replicas and duplicated workloads are recomputed every time.
    Recomputed,
    /// A cluster of the result is being deleted.
    TargetDeleting,
}

impl Trigger {
    /// Returns the value of the metric label `schedule_type`.
    pub fn schedule_type(self) -> &'static str {
        if self == Self::ReplicasChanged { "ScaleSchedule" } else { "ReconcileSchedule" }
    }
}

/// Decides what to do with a binding.
pub fn next(binding: Binding<'_>, fleet: &Fleet, gates: Gates) -> Next {
    let Binding { metadata, spec, status, .. } = binding;
    if metadata.deletion_timestamp.is_some() {
        return Next::Deleting(format!("skip schedule deleting {}: {}", binding.lower_kind(), binding.key()));
    }
    let Some(placement) = &spec.placement else {
        return Next::NoPlacement(format!(
            "failed to get placement from {}({})",
            binding.lower_kind(),
            binding.key()
        ));
    };
    let annotations = metadata.annotations.as_ref();
    let applied = annotations.and_then(|all| all.get(labels::annotations::APPLIED_PLACEMENT));
    let applied = applied.map_or("", String::as_str);
    let trigger = if placement_changed(placement, applied, &status.scheduler_observed_affinity_name) {
        Some(Trigger::PlacementChanged)
    } else if replicas_changed(spec, gates) {
        Some(Trigger::ReplicasChanged)
    } else if is_reschedule_required(spec, status) {
        Some(Trigger::RescheduleRequested)
    } else if !spec.is_workload() || is_duplicated(placement) {
        Some(Trigger::Recomputed)
    } else if spec.clusters.iter().any(|target| fleet.get(&target.name).is_some_and(|member| member.deleting))
    {
        Some(Trigger::TargetDeleting)
    } else {
        None
    };
    if let Some(trigger) = trigger {
        return Next::Schedule(trigger);
    }
    let generation = metadata.generation.unwrap_or(0);
    if generation == status.scheduler_observed_generation {
        Next::Nothing
    } else {
        Next::NoteGeneration(generation)
    }
}

fn is_duplicated(placement: &Placement) -> bool {
    let strategy = placement.replica_scheduling.as_ref();
    strategy
        .is_none_or(|strategy| strategy.replica_scheduling_type == Some(ReplicaSchedulingType::Duplicated))
}

/// Tells whether a placement differs, in what matters, from the one that was last scheduled (`applied`, as JSON).
///
/// Editing or reordering affinity terms that are not in use changes nothing. Text that is not JSON counts as unchanged:
/// somebody else wrote it, and scheduling in a loop would not mend it.
pub fn placement_changed(placement: &Placement, applied: &str, observed_affinity: &str) -> bool {
    if applied.is_empty() {
        return true;
    }
    let Ok(applied) = serde_json::from_str::<Placement>(applied) else { return false };
    if *placement == applied {
        return false;
    }
    if placement.cluster_affinity != applied.cluster_affinity
        || placement.cluster_tolerations != applied.cluster_tolerations
        || placement.spread_constraints != applied.spread_constraints
        || placement.replica_scheduling != applied.replica_scheduling
    {
        return true;
    }
    if observed_affinity.is_empty() {
        return true;
    }
    let term = |placement: &Placement| -> Option<ClusterAffinityTerm> {
        placement.cluster_affinities.iter().find(|term| term.affinity_name == observed_affinity).cloned()
    };
    match (term(placement), term(&applied)) {
        (Some(now), Some(before)) => now != before,
        _ => true,
    }
}

/// Tells whether the assigned replicas do not add up to what the resource asks for.
pub fn replicas_changed(spec: &ResourceBindingSpec, gates: Gates) -> bool {
    let strategy = spec.placement.as_ref().and_then(|placement| placement.replica_scheduling.as_ref());
    let Some(strategy) = strategy else { return false };
    if gates.components && !spec.components.is_empty() && spec.clusters.is_empty() {
        return true;
    }
    match strategy.replica_scheduling_type {
        Some(ReplicaSchedulingType::Duplicated) => {
            spec.clusters.iter().any(|target| target.replicas != spec.replicas)
        }
        Some(ReplicaSchedulingType::Divided) => {
            spec.clusters.iter().map(|target| i64::from(target.replicas)).sum::<i64>()
                != i64::from(spec.replicas)
        }
        _ => false,
    }
}

/// Tells whether a scheduler of this name is in charge of a binding and may look at it.
pub fn is_in_charge(scheduler_name: &str, spec: &ResourceBindingSpec) -> bool {
    let wanted =
        if spec.scheduler_name.is_empty() { constants::DEFAULT_SCHEDULER } else { &spec.scheduler_name };
    wanted == scheduler_name && !is_suspended(spec)
}

/// Tells whether schedulers are kept away from a binding.
pub fn is_suspended(spec: &ResourceBindingSpec) -> bool {
    spec.suspension.as_ref().and_then(|suspension| suspension.scheduling).unwrap_or(false)
}

/// Tells whether events of a binding reach the queue: a scheduler in charge, and a policy or another binding behind it.
pub fn is_watched(scheduler_name: &str, binding: Binding<'_>) -> bool {
    is_in_charge(scheduler_name, binding.spec) && is_backed(binding.metadata)
}

/// Tells whether a policy or another binding is behind a binding.
pub fn is_backed(metadata: &ObjectMeta) -> bool {
    let owned = [
        labels::PROPAGATION_POLICY_PERMANENT_ID,
        labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID,
        labels::BINDING_MANAGED_BY,
    ];
    let has = |label: &str| {
        let labels = metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(label)).is_some_and(|value| !value.is_empty())
    };
    owned.into_iter().any(has)
}

/// A cluster that changed, to be held against bindings.
#[derive(Debug, Clone)]
pub struct ChangedCluster {
    /// The cluster as it was, if that can matter, and as it is.
    versions: Vec<Arc<Cluster>>,
}

impl ChangedCluster {
    /// Returns none when the change concerns no binding: only labels, the spec and the start of deletion do.
    pub fn new(old: &Arc<Cluster>, new: &Arc<Cluster>) -> Option<Self> {
        let deleting = |cluster: &Cluster| cluster.metadata.deletion_timestamp.is_some();
        if !deleting(old) && deleting(new) {
            return Some(Self { versions: vec![Arc::clone(new)] });
        }
        let same = |old: &Cluster, new: &Cluster| {
            let labels = |cluster: &Cluster| cluster.metadata.labels.clone().unwrap_or_default();
            labels(old) == labels(new) && old.metadata.generation == new.metadata.generation
        };
        // The old version catches bindings whose affinity the cluster has just stopped matching.
        (!same(old, new)).then(|| Self { versions: vec![Arc::clone(old), Arc::clone(new)] })
    }

    /// Takes a change as one that may matter whatever it is, for bindings that wait for a cluster to change.
    pub fn of_any_kind(old: Option<&Arc<Cluster>>, new: &Arc<Cluster>) -> Self {
        Self { versions: old.into_iter().chain([new]).map(Arc::clone).collect() }
    }

    /// Tells whether a binding has to be looked at again because of this cluster.
    pub fn concerns(&self, scheduler_name: &str, binding: Binding<'_>) -> bool {
        let Some(placement) = &binding.spec.placement else { return false };
        if !is_in_charge(scheduler_name, binding.spec) {
            return false;
        }
        let affinity = if placement.cluster_affinities.is_empty() {
            placement.cluster_affinity.as_ref()
        } else {
            if binding.status.scheduler_observed_generation != binding.metadata.generation.unwrap_or(0) {
                return true;
            }
            let observed = &binding.status.scheduler_observed_affinity_name;
            let terms = &placement.cluster_affinities;
            // Overflow affinities are not consulted, as upstream.
            let term = terms.iter().find(|term| term.affinity_name == *observed).unwrap_or(&terms[0]);
            Some(&term.affinity)
        };
        let Some(affinity) = affinity else { return true };
        self.versions.iter().any(|cluster| cluster_matches(cluster, affinity))
    }
}
