//! Bindings of objects that travel along because another object needs them.
//!
//! An attached binding has no placement of its own; it follows the clusters of those that require it. If its
//! object also has a policy, the binding has both, and the policy's strategies stand.

use std::collections::BTreeMap;

use api::config::DependentObjectReference;
use api::labels::annotations::DEPENDENCIES;
use api::labels::{DEPENDED_BY_PREFIX, RESOURCE_BINDING_PERMANENT_ID, finalizers};
use api::policy::ConflictResolution;
use api::work::{BindingSnapshot, ObjectReference, ResourceBinding, ResourceBindingSpec};
use apimachinery::selector::LabelSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::binding::key;
use crate::object::merge;
use crate::{Binding as _, Error, Object, Reference as _, Result};

/// Returns the text of the annotation that records what a binding's template depends on.
pub fn print(dependencies: &[DependentObjectReference]) -> String {
    api::go_json(&dependencies.to_vec())
}

/// Returns the dependencies recorded on a binding; none when there is no record.
pub fn parse(binding: &ResourceBinding) -> Result<Vec<DependentObjectReference>> {
    let annotations = binding.metadata.annotations.as_ref();
    match annotations.and_then(|annotations| annotations.get(DEPENDENCIES)) {
        None => Ok(Vec::new()),
        Some(text) if text.is_empty() => Ok(Vec::new()),
        Some(text) => serde_json::from_str::<Option<Vec<DependentObjectReference>>>(text)
            .map(Option::unwrap_or_default)
            .map_err(|source| Error::Decode { what: format!("annotation {DEPENDENCIES}"), source }),
    }
}

/// Records the dependencies on the binding; returns whether it changed.
pub fn record(binding: &mut ResourceBinding, dependencies: &[DependentObjectReference]) -> bool {
    let entry = BTreeMap::from([(DEPENDENCIES.to_owned(), print(dependencies))]);
    merge(&mut binding.metadata.annotations, &entry)
}

/// Returns whether the reference means this object. A reference without a name needs a selector.
pub fn refers_to(dependency: &DependentObjectReference, object: &Value) -> Result<bool> {
    if !same_kind(dependency, object.api_version(), object.kind(), object.namespace()) {
        return Ok(false);
    }
    if !dependency.name.is_empty() {
        return Ok(dependency.name == object.name());
    }
    Ok(selector(dependency)?.is_some_and(|selector| selector.matches(object.labels())))
}

fn same_kind(dependency: &DependentObjectReference, api_version: &str, kind: &str, namespace: &str) -> bool {
    dependency.api_version == api_version && dependency.kind == kind && dependency.namespace == namespace
}

/// Returns the parsed label selector of a dependency.
pub fn selector(dependency: &DependentObjectReference) -> Result<Option<LabelSelector>> {
    let Some(selector) = &dependency.label_selector else { return Ok(None) };
    let invalid = |message: String| Error::LabelSelector(message);
    let selector = serde_json::to_value(selector).map_err(|error| invalid(error.to_string()))?;
    LabelSelector::from_object(Some(&selector)).map(Some).map_err(|error| invalid(error.to_string()))
}

/// Returns the label by which an attached binding names one that requires it.
pub fn depended_by_label(namespace: &str, name: &str) -> String {
    format!("{DEPENDED_BY_PREFIX}{}", api::names::depended_by_hash(namespace, name))
}

/// Returns the label that attached bindings of `binding` carry, with its value.
pub fn attached_selector(binding: &ResourceBinding) -> (String, String) {
    let (namespace, name) = names(&binding.metadata);
    (depended_by_label(namespace, name), binding.permanent_id().to_owned())
}

fn names(metadata: &ObjectMeta) -> (&str, &str) {
    (metadata.namespace.as_deref().unwrap_or(""), metadata.name.as_deref().unwrap_or(""))
}

/// Returns whether an attached binding is no longer covered by any dependency. `object` is the live object, if it
/// still exists: references by selector need its labels, and a vanished object matches none.
pub fn is_orphan(
    attached: &ObjectReference,
    dependencies: &[DependentObjectReference],
    object: Option<&Value>,
) -> Result<bool> {
    for dependency in dependencies {
        if !same_kind(dependency, &attached.api_version, &attached.kind, &attached.namespace) {
            continue;
        }
        if !dependency.name.is_empty() {
            if dependency.name == attached.name {
                return Ok(false);
            }
            continue;
        }
        if let (Some(selector), Some(object)) = (selector(dependency)?, object)
            && selector.matches(object.labels())
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the binding that propagates `object` together with `independent`.
pub fn build_attached(independent: &ResourceBinding, object: &Value) -> ResourceBinding {
    let (label, id) = attached_selector(independent);
    ResourceBinding {
        metadata: ObjectMeta {
            name: Some(api::names::binding(object.kind(), object.name())),
            namespace: independent.metadata.namespace.clone(),
            owner_references: Some(vec![object.controller_reference()]),
            labels: Some(BTreeMap::from([(label, id)])),
            finalizers: Some(vec![finalizers::BINDING.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: ResourceBindingSpec {
            resource: object.reference(),
            required_by: vec![snapshot(independent)],
            preserve_resources_on_deletion: independent.spec.preserve_resources_on_deletion,
            conflict_resolution: independent.spec.conflict_resolution.clone(),
            ..ResourceBindingSpec::default()
        },
        ..ResourceBinding::default()
    }
}

fn snapshot(binding: &ResourceBinding) -> BindingSnapshot {
    let (namespace, name) = names(&binding.metadata);
    BindingSnapshot {
        namespace: namespace.into(),
        name: name.into(),
        clusters: binding.spec.clusters.clone(),
    }
}

/// The strategies of those that require a binding, and where they disagree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strategies {
    pub conflict_resolution: ConflictResolution,
    pub preserve_resources_on_deletion: bool,
    /// What the event about a disagreement says; `None` when all agree.
    pub disagreement: Option<String>,
}

impl Strategies {
    /// Overwrite wins over Abort, preserving over not preserving.
    pub fn of(referrers: &[&ResourceBinding]) -> Self {
        let overwrites = |binding: &&ResourceBinding| {
            binding.spec.conflict_resolution == Some(ConflictResolution::Overwrite)
        };
        let preserves =
            |binding: &&ResourceBinding| binding.spec.preserve_resources_on_deletion == Some(true);
        let (overwrite, preserve) = (referrers.iter().any(overwrites), referrers.iter().any(preserves));
        let mut fragments = Vec::new();
        if overwrite && !referrers.iter().all(overwrites) {
            fragments.push("ConflictResolution conflicted (Overwrite vs Abort)");
        }
        if preserve && !referrers.iter().all(preserves) {
            fragments.push("PreserveResourcesOnDeletion conflicted (true vs false)");
        }
        Self {
            conflict_resolution: if overwrite {
                ConflictResolution::Overwrite
            } else {
                ConflictResolution::Abort
            },
            preserve_resources_on_deletion: preserve,
            disagreement: (!fragments.is_empty()).then(|| fragments.join("; ")),
        }
    }
}

/// Returns the bindings that require `spec`, found by `get`.
///
/// Errors: one of them does not exist (any more); the caller retries.
pub fn referrers<'a>(
    required_by: &[BindingSnapshot],
    get: impl Fn(&str, &str) -> Option<&'a ResourceBinding>,
) -> Result<Vec<&'a ResourceBinding>> {
    required_by
        .iter()
        .map(|referrer| {
            get(&referrer.namespace, &referrer.name).ok_or_else(|| Error::NoReferrer {
                binding: api::names::namespaced_key(&referrer.namespace, &referrer.name),
            })
        })
        .collect()
}

/// Attaches `existing` (or, when it is to be created, the built binding itself) to a further referrer.
///
/// `get` finds the bindings that require it. Returns whether the binding changed, and what disagrees.
pub fn attach<'a>(
    existing: &mut ResourceBinding,
    attached: &ResourceBinding,
    get: impl Fn(&str, &str) -> Option<&'a ResourceBinding>,
) -> Result<(bool, Option<String>)> {
    let owner =
        existing.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    if let Some(owner) = owner
        && owner.uid != attached.spec.resource.uid
    {
        return Err(Error::ForeignOwner { binding: key(&existing.metadata), owner: owner.uid.clone() });
    }
    let before = existing.clone();
    for referrer in &attached.spec.required_by {
        let known = existing
            .spec
            .required_by
            .iter_mut()
            .find(|known| known.namespace == referrer.namespace && known.name == referrer.name);
        match known {
            Some(known) => known.clusters = referrer.clusters.clone(),
            None => existing.spec.required_by.push(referrer.clone()),
        }
    }
    let mut disagreement = None;
    if existing.spec.placement.is_none() {
        let strategies = Strategies::of(&referrers(&existing.spec.required_by, get)?);
        existing.spec.conflict_resolution = Some(strategies.conflict_resolution);
        existing.spec.preserve_resources_on_deletion = Some(strategies.preserve_resources_on_deletion);
        disagreement = strategies.disagreement;
    }
    if let Some(labels) = &attached.metadata.labels {
        merge(&mut existing.metadata.labels, labels);
    }
    existing.spec.resource = attached.spec.resource.clone();
    Ok((*existing != before, disagreement))
}

/// Detaches a binding from one that required it; returns whether it changed. The binding itself stays; with no
/// clusters left, its Works go.
pub fn detach<'a>(
    attached: &mut ResourceBinding,
    namespace: &str,
    name: &str,
    get: impl Fn(&str, &str) -> Option<&'a ResourceBinding>,
) -> Result<bool> {
    let before = attached.clone();
    if let Some(labels) = &mut attached.metadata.labels {
        labels.remove(&depended_by_label(namespace, name));
    }
    attached.spec.required_by.retain(|referrer| referrer.namespace != namespace || referrer.name != name);
    if attached.spec.placement.is_none() {
        if attached.spec.required_by.is_empty() {
            attached.spec.conflict_resolution = None;
            attached.spec.preserve_resources_on_deletion = None;
        } else {
            let strategies = Strategies::of(&referrers(&attached.spec.required_by, get)?);
            attached.spec.conflict_resolution = Some(strategies.conflict_resolution);
            attached.spec.preserve_resources_on_deletion = Some(strategies.preserve_resources_on_deletion);
        }
    }
    Ok(*attached != before)
}

/// Finds the bindings that depend on an object without a scan of all bindings.
///
/// References by name are filed under the object, references by selector under the kind and namespace.
#[derive(Debug, Clone, Default)]
pub struct DependencyIndex {
    by_binding: BTreeMap<(String, String), Vec<DependentObjectReference>>,
    by_reference: BTreeMap<ReferenceKey, std::collections::BTreeSet<(String, String)>>,
}

/// apiVersion, kind, namespace, name; the name is empty for a reference by selector.
type ReferenceKey = (String, String, String, String);

impl DependencyIndex {
    /// Records what a binding depends on, replacing the earlier record.
    pub fn insert(&mut self, binding: &ResourceBinding) -> Result<()> {
        let (namespace, name) = names(&binding.metadata);
        self.remove(namespace, name);
        let dependencies = parse(binding)?;
        if dependencies.is_empty() {
            return Ok(());
        }
        let owner = (namespace.to_owned(), name.to_owned());
        for dependency in &dependencies {
            self.by_reference.entry(reference_key(dependency)).or_default().insert(owner.clone());
        }
        self.by_binding.insert(owner, dependencies);
        Ok(())
    }

    pub fn remove(&mut self, namespace: &str, name: &str) {
        let owner = (namespace.to_owned(), name.to_owned());
        for dependency in self.by_binding.remove(&owner).unwrap_or_default() {
            let key = reference_key(&dependency);
            if let Some(owners) = self.by_reference.get_mut(&key) {
                owners.remove(&owner);
                if owners.is_empty() {
                    self.by_reference.remove(&key);
                }
            }
        }
    }

    /// Returns namespace and name of the bindings that depend on the object.
    pub fn dependents(&self, object: &Value) -> Vec<(&str, &str)> {
        let text = |text: &str| text.to_owned();
        let (api_version, kind, namespace) =
            (text(object.api_version()), text(object.kind()), text(object.namespace()));
        let by_name = (api_version.clone(), kind.clone(), namespace.clone(), text(object.name()));
        let by_selector = (api_version, kind, namespace, String::new());
        let mut found: Vec<&(String, String)> =
            [by_name, by_selector].iter().filter_map(|key| self.by_reference.get(key)).flatten().collect();
        found.sort();
        found.dedup();
        found
            .into_iter()
            .filter(|owner| {
                self.by_binding.get(*owner).is_some_and(|dependencies| {
                    dependencies.iter().any(|dependency| refers_to(dependency, object).unwrap_or(false))
                })
            })
            .map(|(namespace, name)| (namespace.as_str(), name.as_str()))
            .collect()
    }
}

fn reference_key(dependency: &DependentObjectReference) -> ReferenceKey {
    (
        dependency.api_version.clone(),
        dependency.kind.clone(),
        dependency.namespace.clone(),
        dependency.name.clone(),
    )
}

/// Returns whether a binding has dependencies to distribute at all; the label that identifies it must be there.
pub fn distributes(binding: &ResourceBinding) -> bool {
    let labels = binding.metadata.labels.as_ref();
    binding.spec.propagate_deps
        && labels.is_some_and(|labels| labels.contains_key(RESOURCE_BINDING_PERMANENT_ID))
}
