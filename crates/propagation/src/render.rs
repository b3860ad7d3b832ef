//! Renders the Works of a binding: what each chosen cluster is to run.
//!
//! Replicas first, then overrides, which have the last word, then our own marks, then pruning. The Work's
//! admission stamps manifests the same way; doing exactly what it does keeps a second pass from writing.

use std::collections::BTreeMap;

use api::cluster::Cluster;
use api::features::{self, Features};
use api::labels::annotations::{
    APPLIED_CLUSTER_OVERRIDES, APPLIED_OVERRIDES, CLUSTER_RESOURCE_BINDING_NAME, CONFLICT_ABORT,
    CONFLICT_OVERWRITE, CONFLICT_RESOLUTION, MANAGED_ANNOTATIONS, MANAGED_LABELS, RESOURCE_BINDING_NAME,
    RESOURCE_BINDING_NAMESPACE, TEMPLATE_GENERATION, TEMPLATE_UID, WORK_NAME, WORK_NAMESPACE,
};
use api::labels::{
    CLUSTER_RESOURCE_BINDING_PERMANENT_ID, MANAGED, RESOURCE_BINDING_PERMANENT_ID, TRUE, WORK_PERMANENT_ID,
    finalizers,
};
use api::policy::{ConflictResolution, Placement, ReplicaSchedulingType};
use api::work::{ResourceBindingSpec, Suspension, TargetCluster, Work, WorkSpec, WorkloadTemplate};
use apimachinery::depth;
use interpreter::{Interpreter, Operation, prune};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use placement::webster::{self, TieRule};
use serde_json::Value;

use crate::eviction::purges_directly;
use crate::object::merge;
use crate::overrides::{Applied, Overrides, record};
use crate::{Binding, Error, Object, Result, target_clusters};

/// The objects and lists around a manifest in a Work: itself, `spec`, `workload`, `manifests`.
const LEVELS_OF_WORK: usize = 4;

/// Renders the Works of one binding; what all clusters share is computed once.
pub struct Renderer<'a, B> {
    binding: &'a B,
    template: &'a Value,
    interpreter: &'a Interpreter,
    features: &'a Features,
    targets: Vec<TargetCluster>,
    /// A divided Job's completions by cluster.
    completions: Option<BTreeMap<String, i32>>,
}

/// A Work to write, and which overrides went into it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    pub work: DesiredWork,
    pub applied: Applied,
}

impl<'a, B: Binding> Renderer<'a, B> {
    pub fn new(
        binding: &'a B,
        template: &'a Value,
        interpreter: &'a Interpreter,
        features: &'a Features,
    ) -> Result<Self> {
        let spec = binding.spec();
        let targets = target_clusters(spec);
        let completions = completions(spec, template, &targets)?;
        Ok(Self { binding, template, interpreter, features, targets, completions })
    }

    /// Returns the clusters to render for.
    pub fn targets(&self) -> &[TargetCluster] {
        &self.targets
    }

    /// Renders the Work for one target from its revised template. A failure concerns this cluster only.
    pub fn render(
        &self,
        target: &TargetCluster,
        revised: Value,
        cluster: &Cluster,
        overrides: &Overrides,
    ) -> Result<Rendered> {
        let spec = self.binding.spec();
        let mut manifest = revised;
        self.set_completions(&mut manifest, &target.name)?;
        let applied = overrides.apply(&mut manifest, cluster).map_err(|failure| {
            // The failure also tells what was applied before it, which is worth events.
            Error::Override { cluster: target.name.clone(), failure }
        })?;

        let id = self.binding.permanent_id();
        manifest.set_label(B::PERMANENT_ID, id);
        let mut annotations = BTreeMap::new();
        if manifest.generation() > 0 {
            let generation = manifest.generation().to_string();
            manifest.set_annotation(TEMPLATE_GENERATION, &generation);
        }
        for (key, value) in self.binding.back_references() {
            manifest.set_annotation(key, &value);
            annotations.insert(key.to_owned(), value);
        }
        let resolution = conflict_resolution(&manifest, spec);
        annotations.insert(CONFLICT_RESOLUTION.to_owned(), resolution.to_owned());
        let records =
            [(APPLIED_CLUSTER_OVERRIDES, &applied.cluster), (APPLIED_OVERRIDES, &applied.namespaced)];
        for (key, contributions) in records {
            if let Some(record) = record(contributions) {
                annotations.insert(key.to_owned(), record);
            }
        }
        if self.features.enabled(features::STATEFUL_FAILOVER_INJECTION) {
            self.inject_preserved_state(&mut manifest, target);
        }

        let work = DesiredWork::new(
            &target.name,
            manifest,
            BTreeMap::from([(B::PERMANENT_ID.to_owned(), id.to_owned())]),
            annotations,
        )?
        .suspended(Some(is_suspended(spec.suspension.as_ref(), &target.name)))
        .preserved(Some(spec.preserve_resources_on_deletion.unwrap_or(false)));
        Ok(Rendered { work, applied })
    }

    /// Returns the template with the replicas of one target: what [`Renderer::render`] begins with. This is the part that
    /// may have to wait for a script or a webhook.
    ///
    /// The scheduler's count always wins over the template's, for duplicated workloads too: otherwise a scale-up
    /// would bypass quotas and a suspended queue.
    pub async fn revise(&self, target: &TargetCluster) -> Result<Value> {
        let template = self.template.clone();
        if !self.binding.spec().is_workload()
            || !self.interpreter.supports(&template.gvk(), Operation::ReviseReplica)
        {
            return Ok(template);
        }
        self.interpreter
            .revise_replica(template, i64::from(target.replicas))
            .await
            .map_err(|source| Error::Interpret { object: self.template.describe(), source })
    }

    fn set_completions(&self, manifest: &mut Value, cluster: &str) -> Result<()> {
        let Some(completions) = &self.completions else { return Ok(()) };
        let Some(share) = completions.get(cluster) else {
            return Err(Error::NoCompletions { cluster: cluster.to_owned() });
        };
        if let Some(field) = manifest.get_mut("spec").and_then(|spec| spec.get_mut("completions")) {
            *field = (*share).into();
        }
        Ok(())
    }

    /// Hands the state of a failed copy to its successor: only for an application that moved, as a whole, from
    /// one cluster directly to another.
    fn inject_preserved_state(&self, manifest: &mut Value, target: &TargetCluster) {
        let Some(task) = self.binding.spec().graceful_eviction_tasks.last() else { return };
        if self.targets.len() > 1
            || !purges_directly(task)
            || task.clusters_before_failover.contains(&target.name)
        {
            return;
        }
        for (key, value) in &task.preserved_label_state {
            manifest.set_label(key, value);
        }
    }
}

/// Divides a Job's completions like its parallelism, so that all clusters finish at about the same time. A Job
/// without completions works off a queue and has nothing to divide.
fn completions(
    spec: &ResourceBindingSpec,
    template: &Value,
    targets: &[TargetCluster],
) -> Result<Option<BTreeMap<String, i32>>> {
    if template.kind() != "Job" || spec.replicas <= 0 || !spec.placement.as_ref().is_some_and(is_divided) {
        return Ok(None);
    }
    let total =
        match template["spec"].get("completions").unwrap_or(&Value::Null) {
            Value::Null => return Ok(None),
            value => value.as_i64().and_then(|total| i32::try_from(total).ok()).ok_or_else(|| {
                Error::Field { object: template.describe(), path: "spec.completions", expected: "an integer" }
            })?,
        };
    let votes: BTreeMap<&str, i64> =
        targets.iter().map(|target| (target.name.as_str(), i64::from(target.replicas))).collect();
    let votes: Vec<(&str, i64)> = votes.into_iter().collect();
    let shares = webster::divide(total.into(), &votes, TieRule::of_uid(template.uid()));
    // A share is part of a number of 32 bits.
    let share = |share: i64| i32::try_from(share).unwrap_or(i32::MAX);
    let names = votes.iter().map(|(name, _)| (*name).to_owned());
    Ok(shares.map(|shares| names.zip(shares.into_iter().map(share)).collect()))
}

/// Without a strategy, replicas are duplicated; the schema gives every strategy a type.
fn is_divided(placement: &Placement) -> bool {
    placement
        .replica_scheduling
        .as_ref()
        .is_some_and(|strategy| strategy.replica_scheduling_type == Some(ReplicaSchedulingType::Divided))
}

/// The template's own wish counts if it is a valid one (an override may have put it there), else the policy's.
fn conflict_resolution(manifest: &Value, spec: &ResourceBindingSpec) -> &'static str {
    match manifest.annotation(CONFLICT_RESOLUTION) {
        Some(CONFLICT_OVERWRITE) => CONFLICT_OVERWRITE,
        Some(CONFLICT_ABORT) => CONFLICT_ABORT,
        _ if spec.conflict_resolution == Some(ConflictResolution::Overwrite) => CONFLICT_OVERWRITE,
        _ => CONFLICT_ABORT,
    }
}

fn is_suspended(suspension: Option<&Suspension>, cluster: &str) -> bool {
    let Some(suspension) = suspension else { return false };
    suspension.policy.dispatching == Some(true)
        || suspension
            .policy
            .dispatching_on_clusters
            .as_ref()
            .is_some_and(|clusters| clusters.cluster_names.iter().any(|name| name == cluster))
}

/// A Work as it should be, apart from what only the API server knows (its permanent id).
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredWork {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Set at creation only.
    pub owner: Option<OwnerReference>,
    manifest: Value,
    suspend_dispatching: Option<bool>,
    preserve_resources_on_deletion: Option<bool>,
}

impl DesiredWork {
    /// Returns the Work that brings `manifest` to `cluster`; the manifest is marked and pruned here.
    pub fn new(
        cluster: &str,
        manifest: Value,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
    ) -> Result<Self> {
        let name = api::names::work(manifest.kind(), manifest.name(), manifest.namespace());
        Self::named(cluster, name, manifest, labels, annotations)
    }

    /// As [`DesiredWork::new`] under a name of the caller's choice.
    pub fn named(
        cluster: &str,
        name: String,
        mut manifest: Value,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
    ) -> Result<Self> {
        let namespace = api::names::execution_space(cluster);
        manifest.set_label(MANAGED, TRUE);
        let uid = manifest.uid().to_owned();
        manifest.set_annotation(TEMPLATE_UID, &uid);
        manifest.set_annotation(WORK_NAME, &name);
        manifest.set_annotation(WORK_NAMESPACE, &namespace);
        if let Some(resolution) = annotations.get(CONFLICT_RESOLUTION) {
            manifest.set_annotation(CONFLICT_RESOLUTION, resolution);
        }
        let object = manifest.describe();
        prune(&mut manifest).map_err(|source| Error::Interpret { object, source })?;
        // A Work has it four levels down; where its API server looks at the depth, it would be refused for ever.
        depth::check_below(LEVELS_OF_WORK, &manifest)
            .map_err(|source| Error::Depth { object: manifest.describe(), source })?;
        Ok(Self {
            namespace,
            name,
            labels,
            annotations,
            owner: None,
            manifest,
            suspend_dispatching: None,
            preserve_resources_on_deletion: None,
        })
    }

    pub fn suspended(mut self, suspend: Option<bool>) -> Self {
        self.suspend_dispatching = suspend;
        self
    }

    pub fn preserved(mut self, preserve: Option<bool>) -> Self {
        self.preserve_resources_on_deletion = preserve;
        self
    }

    pub fn owned_by(mut self, owner: OwnerReference) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Returns the Work to create. Admission adds the permanent id, to the Work and to the manifest.
    pub fn create(&self) -> Work {
        Work {
            metadata: ObjectMeta {
                namespace: Some(self.namespace.clone()),
                name: Some(self.name.clone()),
                labels: Some(self.labels.clone()),
                annotations: Some(self.annotations.clone()),
                finalizers: Some(vec![finalizers::EXECUTION.to_owned()]),
                owner_references: self.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: self.spec(None),
            ..Work::default()
        }
    }

    /// Brings an existing Work up to date; returns whether it changed.
    ///
    /// Labels and annotations of others stay, except records of overrides that no longer apply: they would claim
    /// something untrue. (Upstream leaves them; nothing depends on it.)
    ///
    /// Errors: the Work belongs to another binding; a Work that is being deleted cannot be revived, the caller retries
    /// until it is gone.
    pub fn update(&self, existing: &mut Work) -> Result<bool> {
        if let Some(binding) = self.other_owner(existing) {
            let work = api::names::namespaced_key(&self.namespace, &self.name);
            return Err(Error::ForeignWork { work, binding });
        }
        if existing.metadata.deletion_timestamp.is_some() {
            let work = api::names::namespaced_key(&self.namespace, &self.name);
            return Err(Error::WorkBeingDeleted { work });
        }
        let before = (existing.metadata.clone(), existing.spec.clone());
        let metadata = &mut existing.metadata;
        merge(&mut metadata.labels, &self.labels);
        merge(&mut metadata.annotations, &self.annotations);
        for key in [APPLIED_OVERRIDES, APPLIED_CLUSTER_OVERRIDES] {
            if !self.annotations.contains_key(key)
                && let Some(annotations) = &mut metadata.annotations
            {
                annotations.remove(key);
            }
        }
        let finalizers = metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|finalizer| finalizer == finalizers::EXECUTION) {
            finalizers.push(finalizers::EXECUTION.to_owned());
            finalizers.sort();
        }
        let id = metadata.labels.as_ref().and_then(|labels| labels.get(WORK_PERMANENT_ID)).cloned();
        existing.spec = self.spec(id.as_deref());
        Ok((&existing.metadata, &existing.spec) != (&before.0, &before.1))
    }

    /// Returns the binding that an existing Work belongs to if it is not the one that this Work is made for.
    ///
    /// A binding that was made anew under its old name takes over the Works of its predecessor.
    fn other_owner(&self, existing: &Work) -> Option<String> {
        let empty = BTreeMap::new();
        let labels = existing.metadata.labels.as_ref().unwrap_or(&empty);
        let ids = [RESOURCE_BINDING_PERMANENT_ID, CLUSTER_RESOURCE_BINDING_PERMANENT_ID];
        let (theirs, ours) = (ids.map(|key| labels.get(key)), ids.map(|key| self.labels.get(key)));
        if ours == [None, None] || theirs == [None, None] || theirs == ours {
            return None;
        }
        let named = |annotations: &BTreeMap<String, String>| {
            [RESOURCE_BINDING_NAMESPACE, RESOURCE_BINDING_NAME, CLUSTER_RESOURCE_BINDING_NAME]
                .map(|key| annotations.get(key).cloned())
        };
        let (theirs, ours) =
            (named(existing.metadata.annotations.as_ref().unwrap_or(&empty)), named(&self.annotations));
        if theirs == ours {
            return None;
        }
        let [namespace, name, cluster_name] = theirs;
        let name = name.or(cluster_name).unwrap_or_else(|| "of unknown name".to_owned());
        Some(api::names::namespaced_key(namespace.as_deref().unwrap_or(""), &name))
    }

    fn spec(&self, permanent_id: Option<&str>) -> WorkSpec {
        let mut manifest = self.manifest.clone();
        stamp(&mut manifest, permanent_id);
        WorkSpec {
            workload: WorkloadTemplate { manifests: vec![manifest] },
            suspend_dispatching: self.suspend_dispatching,
            preserve_resources_on_deletion: self.preserve_resources_on_deletion,
        }
    }
}

/// Writes down which labels and annotations of the manifest are ours, so that in the member those we later
/// withdraw can be told from those that others added.
pub fn stamp(manifest: &mut Value, work_permanent_id: Option<&str>) {
    let mut annotations = keys(manifest.annotations());
    annotations.retain(|key| key != MANAGED_ANNOTATIONS && key != MANAGED_LABELS);
    annotations.extend([MANAGED_ANNOTATIONS.to_owned(), MANAGED_LABELS.to_owned()]);
    annotations.sort();
    manifest.set_annotation(MANAGED_ANNOTATIONS, &annotations.join(","));
    if let Some(id) = work_permanent_id.filter(|id| !id.is_empty()) {
        manifest.set_label(WORK_PERMANENT_ID, id);
    }
    let labels = keys(manifest.labels()).join(",");
    manifest.set_annotation(MANAGED_LABELS, &labels);
}

fn keys(map: &Value) -> Vec<String> {
    map.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
}
