//! Builds the binding of a template and brings an existing one up to date.
//!
//! The detector owns only part of a binding: the scheduler's clusters, eviction tasks, referrers and the
//! external scheduling suspension stay as they are.

use api::features::{self, Features};
use api::policy::{PriorityClassSource, PropagationSpec};
use api::work::{ResourceBindingSpec, SchedulePriority, Suspension, WorkloadAffinityGroups};
use interpreter::{Interpreter, Operation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::claim::{Claim, Holder, strip_cluster_policy};
use crate::object::merge;
use crate::{Binding, Error, Object, Reference as _, Result};

/// What a binding is built from.
pub struct Inputs<'a> {
    pub template: &'a Value,
    pub policy: &'a PropagationSpec,
    pub claim: &'a Claim,
    pub interpreter: &'a Interpreter,
    pub features: &'a Features,
    /// The value of the PriorityClass that the policy names, if it names one and it exists.
    pub priority_class: Option<i32>,
}

/// How an existing binding differs from the desired one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    /// Only the recorded resource version of the template moved.
    ///
    /// Someone who has just started and sees every template for the first time can skip the write: the Works
    /// are rendered from the live template anyway. Someone who saw the template change must write, since the
    /// new version is what wakes up the others.
    VersionOnly,
    Content,
}

/// Returns the binding that the template should have.
///
/// `B` is ResourceBinding for namespaced templates and ClusterResourceBinding for the others.
pub async fn build<B: Binding>(inputs: &Inputs<'_>) -> Result<B> {
    let Inputs { template, policy, claim, .. } = inputs;
    let mut binding = B::default();
    *binding.metadata_mut() = ObjectMeta {
        name: Some(api::names::binding(template.kind(), template.name())),
        namespace: B::NAMESPACED.then(|| template.namespace().to_owned()),
        owner_references: Some(vec![template.controller_reference()]),
        finalizers: Some(vec![B::FINALIZER.to_owned()]),
        labels: Some(claim.labels()),
        annotations: Some(claim.annotations()),
        ..ObjectMeta::default()
    };
    let mut spec = ResourceBindingSpec {
        resource: template.reference(),
        propagate_deps: policy.propagate_deps,
        scheduler_name: policy.scheduler_name.clone(),
        placement: Some(policy.placement.clone()),
        failover: policy.failover.clone(),
        conflict_resolution: policy.conflict_resolution.clone(),
        preserve_resources_on_deletion: policy.preserve_resources_on_deletion,
        suspension: merge_suspension(None, policy),
        ..ResourceBindingSpec::default()
    };
    interpret_replicas(inputs, &mut spec).await?;
    if B::NAMESPACED {
        spec.workload_affinity_groups = affinity_groups(inputs);
        spec.schedule_priority = schedule_priority(inputs)?;
    }
    *binding.spec_mut() = spec;
    Ok(binding)
}

/// Brings `existing` in line with `desired`, touching only what the detector owns.
///
/// Errors: the existing binding belongs to an earlier object of the same name; it has to be garbage collected
/// first.
pub fn update<B: Binding>(
    existing: &mut B,
    desired: &B,
    policy: &PropagationSpec,
    claim: &Claim,
) -> Result<Change> {
    let owner =
        existing.metadata().owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    if let Some(owner) = owner
        && owner.uid != desired.spec().resource.uid
    {
        return Err(Error::ForeignOwner { binding: key(existing.metadata()), owner: owner.uid.clone() });
    }
    let before = existing.clone();

    let metadata = existing.metadata_mut();
    merge(&mut metadata.annotations, desired.metadata().annotations.as_ref().unwrap_or(&Default::default()));
    merge(&mut metadata.labels, desired.metadata().labels.as_ref().unwrap_or(&Default::default()));
    for finalizer in desired.metadata().finalizers.iter().flatten() {
        let finalizers = metadata.finalizers.get_or_insert_default();
        if !finalizers.contains(finalizer) {
            finalizers.push(finalizer.clone());
        }
    }
    metadata.owner_references = desired.metadata().owner_references.clone();
    if matches!(claim.holder, Holder::Policy { .. }) {
        strip_cluster_policy(metadata);
    }

    let wanted = desired.spec();
    let spec = existing.spec_mut();
    spec.resource = wanted.resource.clone();
    spec.replica_requirements = wanted.replica_requirements.clone();
    spec.replicas = wanted.replicas;
    spec.components = wanted.components.clone();
    spec.scheduler_name = wanted.scheduler_name.clone();
    spec.placement = wanted.placement.clone();
    spec.failover = wanted.failover.clone();
    spec.conflict_resolution = wanted.conflict_resolution.clone();
    spec.preserve_resources_on_deletion = wanted.preserve_resources_on_deletion;
    spec.suspension = merge_suspension(spec.suspension.take(), policy);
    if B::NAMESPACED {
        spec.propagate_deps = wanted.propagate_deps;
        spec.schedule_priority = wanted.schedule_priority.clone();
        spec.workload_affinity_groups = wanted.workload_affinity_groups.clone();
    }

    Ok(compare(&before, existing))
}

fn compare<B: Binding>(before: &B, after: &B) -> Change {
    if before == after {
        return Change::None;
    }
    let mut leveled = before.clone();
    leveled.spec_mut().resource.resource_version = after.spec().resource.resource_version.clone();
    if leveled == *after { Change::VersionOnly } else { Change::Content }
}

/// Returns the suspension of a binding: dispatching as the policy says, scheduling as it was. The latter belongs
/// to external queueing systems.
fn merge_suspension(existing: Option<Suspension>, policy: &PropagationSpec) -> Option<Suspension> {
    let scheduling = existing.and_then(|suspension| suspension.scheduling);
    match &policy.suspension {
        Some(suspension) => Some(Suspension { policy: suspension.clone(), scheduling }),
        None => {
            scheduling.map(|scheduling| Suspension { scheduling: Some(scheduling), ..Suspension::default() })
        }
    }
}

/// Returns what the interpreter is asked about a template: its components, its replicas, or nothing.
pub fn interpreted(inputs: &Inputs<'_>) -> Option<Operation> {
    let supports = |operation| inputs.interpreter.supports(&inputs.template.gvk(), operation);
    let asks_components = inputs.features.enabled(features::MULTIPLE_POD_TEMPLATES_SCHEDULING);
    if asks_components && supports(Operation::InterpretComponent) {
        return Some(Operation::InterpretComponent);
    }
    supports(Operation::InterpretReplica).then_some(Operation::InterpretReplica)
}

async fn interpret_replicas(inputs: &Inputs<'_>, spec: &mut ResourceBindingSpec) -> Result<()> {
    let Inputs { template, interpreter, features, .. } = inputs;
    let failed = |source| Error::Interpret { object: template.describe(), source };
    match interpreted(inputs) {
        None => return Ok(()),
        Some(Operation::InterpretComponent) => {
            spec.components = interpreter.get_components(template).await.map_err(failed)?;
            return Ok(());
        }
        Some(_) => {}
    }
    let replicas = interpreter.get_replicas(template).await.map_err(failed)?;
    spec.replicas = replicas.count;
    spec.replica_requirements = replicas.requirements;
    if features.enabled(features::RESOURCE_QUOTA_ESTIMATE)
        && let Some(requirements) = &mut spec.replica_requirements
        && requirements.namespace.is_empty()
    {
        requirements.namespace = template.namespace().to_owned();
    }
    Ok(())
}

/// Workloads with the same value of a label form a group; the group is named `<key>=<value>`.
fn affinity_groups(inputs: &Inputs<'_>) -> Option<WorkloadAffinityGroups> {
    if !inputs.features.enabled(features::WORKLOAD_AFFINITY) {
        return None;
    }
    let rules = inputs.policy.placement.workload_affinity.as_ref()?;
    let group = |key: Option<&str>| {
        let key = key?;
        Some(format!("{key}={}", inputs.template.label(key)?))
    };
    let groups = WorkloadAffinityGroups {
        affinity_group: group(rules.affinity.as_ref().map(|term| term.group_by_label_key.as_str()))
            .unwrap_or_default(),
        anti_affinity_group: group(rules.anti_affinity.as_ref().map(|term| term.group_by_label_key.as_str()))
            .unwrap_or_default(),
    };
    (groups != WorkloadAffinityGroups::default()).then_some(groups)
}

fn schedule_priority(inputs: &Inputs<'_>) -> Result<Option<SchedulePriority>> {
    let Some(wanted) = &inputs.policy.schedule_priority else { return Ok(None) };
    if !inputs.features.enabled(features::PRIORITY_BASED_SCHEDULING) {
        return Ok(None);
    }
    if wanted.priority_class_source != PriorityClassSource::KubePriorityClass {
        return Err(Error::PrioritySource { source_name: wanted.priority_class_source.to_string() });
    }
    match inputs.priority_class {
        Some(priority) => Ok(Some(SchedulePriority { priority })),
        None => Err(Error::NoPriorityClass { name: wanted.priority_class_name.clone() }),
    }
}

pub(crate) fn key(metadata: &ObjectMeta) -> String {
    let namespace = metadata.namespace.as_deref().unwrap_or("");
    api::names::namespaced_key(namespace, metadata.name.as_deref().unwrap_or(""))
}
