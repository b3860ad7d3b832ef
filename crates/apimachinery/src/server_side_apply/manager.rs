//! The field manager: keeps `managedFields` true on every write and carries out applies.
//!
//! In: the live object, what the client sent, who it is, the time. Out: the object to store, managed fields included.
//! Defaulting, admission and validation happen elsewhere; an apply's result still has to go through them.
//!
//! Two sorts of writes: [`FieldManager::update`] compares before and after and gives what changed to the writer;
//! [`FieldManager::apply`] merges a configuration, takes back what the same manager applied before and dropped, and
//! refuses to change what others own unless forced.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::managed::{Identity, Managed, Operation, Owned};
use super::path::{Path, PathElement, print_path};
use super::schema::TypeSchema;
use super::set::Set;
use super::typed::{self, Comparison, Duplicates};
use crate::gvk::Gvk;
use crate::json;
use crate::status::{Cause, Details, Status};

/// More updaters than this are folded together.
const MAX_UPDATERS: usize = 10;

/// Where `kubectl apply` without `--server-side` keeps what it sent last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// All annotations together may take this many bytes; a longer last-applied configuration is not kept.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// The types of a kind, version by version.
pub trait Types {
    type Type: TypeSchema;

    /// Returns the type in an API version, `None` if that version is not served.
    fn type_of(&self, api_version: &str) -> Option<Self::Type>;

    /// Returns the object in another version of the same kind.
    fn convert(&self, object: &Value, api_version: &str) -> Result<Value, String>;

    /// Returns an object of the kind to which nobody has written: with what is always printed, such as `spec: {}`.
    fn empty(&self, gvk: &Gvk) -> Value {
        serde_json::json!({"apiVersion": gvk.api_version(), "kind": gvk.kind})
    }
}

/// Why an apply failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The request makes no sense: 400.
    #[error("{0}")]
    BadRequest(String),
    /// Others own what the apply would change: 409.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// Types and objects do not fit: 500 with a bare message, as upstream.
    #[error("{0}")]
    Typed(String),
}

/// What the paths of all conflicts of one object may weigh. A path repeats all keys above: many fields below a long key would take
/// hundreds of gigabytes. Beyond it, conflicts are not told.
const MOST_CONFLICTS: usize = 16 << 20;

/// A field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub manager: Identity,
    pub path: Path,
}

impl Error {
    /// Returns the answer to the client.
    pub fn to_status(&self) -> Status {
        match self {
            Self::BadRequest(message) => Status::bad_request(message),
            Self::Typed(message) => Status::bare_internal(message),
            Self::Conflicts(conflicts) => {
                let causes = conflicts
                    .iter()
                    .map(|conflict| Cause {
                        reason: "FieldManagerConflict".to_owned(),
                        message: format!("conflict with {}", conflict.manager),
                        field: print_path(&conflict.path),
                    })
                    .collect();
                Status::new(409, "Conflict", self.to_string())
                    .with_details(Details { causes, ..Details::default() })
            }
        }
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            one.manager,
            print_path(&one.path)
        );
    }
    let mut by_manager: BTreeMap<&Identity, Vec<&Path>> = BTreeMap::new();
    for conflict in conflicts {
        by_manager.entry(&conflict.manager).or_default().push(&conflict.path);
    }
    let mut lines = Vec::new();
    for (manager, paths) in by_manager {
        lines.push(format!("conflicts with {manager}:"));
        lines.extend(paths.iter().map(|path| format!("- {}", print_path(path))));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Manages the fields of one kind through one endpoint.
pub struct FieldManager<'a, T: Types> {
    pub types: &'a T,
    pub gvk: &'a Gvk,
    /// `status`, `scale`, or empty for the object itself.
    pub subresource: &'a str,
    /// What this endpoint does not write, by API version: `status` for the main endpoint, `spec` for `/status`.
    pub reset: &'a BTreeMap<String, Set>,
}

/// An object together with its type; both belong to one API version.
struct Typed<'a, S> {
    value: Cow<'a, Value>,
    schema: S,
}

impl<S> Typed<'_, S> {
    fn into_owned(self) -> Typed<'static, S> {
        Typed { value: Cow::Owned(self.value.into_owned()), schema: self.schema }
    }
}

impl<T: Types> FieldManager<'_, T> {
    /// Records a write that is not an apply, and returns the new object with its managed fields.
    ///
    /// `live` is the stored object; for a create it is the kind's zero object, without a uid. Objects that do not fit
    /// their type lose their managed fields rather than fail the write.
    pub fn update(&self, live: &Value, mut new: Value, manager: &str, now: &str) -> Value {
        let managed = self.managed_for_update(live, &new);
        remove_managed(&mut new);
        let is_create = live.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().is_empty();
        if managed.is_empty() && !is_create {
            return new;
        }
        match self.track(live, &new, managed, manager, Some(now)) {
            Ok(mut managed) => {
                managed.cap_updaters(MAX_UPDATERS);
                managed.store(&mut new);
                new
            }
            Err(_) => new,
        }
    }

    /// Applies a configuration and returns the merged object with its managed fields.
    ///
    /// `live` is the stored object, or the empty object of the kind when the apply creates it. An object that the
    /// apply does not change comes back as it was.
    pub fn apply(
        &self,
        live: &Value,
        applied: &Value,
        manager: &str,
        force: bool,
        now: &str,
    ) -> Result<Value, Error> {
        let text = |name: &str| applied.get(name).and_then(Value::as_str).unwrap_or_default();
        let gvk = Gvk::from_api_version(text("apiVersion"), text("kind"));
        if gvk != *self.gvk {
            return Err(Error::BadRequest(format!("invalid object type: {gvk}")));
        }
        if applied.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
            return Err(Error::BadRequest("metadata.managedFields must be nil".to_owned()));
        }
        let mut managed = Managed::decode(live.pointer("/metadata/managedFields"))
            .map_err(|error| Error::Typed(format!("failed to decode managed fields: {error}")))?;
        let mut live = live.clone();
        remove_managed(&mut live);
        if managed.is_empty() {
            let empty = self.empty_object();
            managed = self.track(&empty, &live, managed, "before-first-apply", None).map_err(|error| {
                Error::Typed(format!("failed to create manager for existing fields: {error}"))
            })?;
        }
        let mut outcome = self.merge(&live, applied, managed.clone(), manager, force);
        if manager == "kubectl"
            && let Err(Error::Conflicts(conflicts)) = &outcome
            && let Some(allowed) = self.last_applied_fields(&live)
        {
            let remaining: Vec<Conflict> =
                conflicts.iter().filter(|conflict| !allowed.has(&conflict.path)).cloned().collect();
            // What is not told may be one that is not allowed.
            let weight: usize =
                conflicts.iter().flat_map(|conflict| &conflict.path).map(PathElement::weight).sum();
            outcome = if weight >= MOST_CONFLICTS {
                outcome
            } else if remaining.is_empty() {
                self.merge(&live, applied, managed, manager, true)
            } else {
                Err(Error::Conflicts(remaining))
            };
        }
        let (changed, mut managed) = outcome?;
        let identity = self.identity(manager, Operation::Apply);
        let mut object = match changed {
            Some(object) => {
                if let Some(owned) = managed.0.get_mut(&identity) {
                    owned.time = Some(now.to_owned());
                }
                object
            }
            None => live,
        };
        if manager == "kubectl" {
            renew_last_applied(&mut object, applied);
        }
        managed.store(&mut object);
        Ok(object)
    }

    fn identity(&self, manager: &str, operation: Operation) -> Identity {
        Identity::new(manager, operation, &self.gvk.api_version(), self.subresource)
    }

    fn empty_object(&self) -> Value {
        self.types.empty(self.gvk)
    }

    /// Clients may edit managed fields through the main endpoint; leaving them out keeps the stored ones.
    fn managed_for_update(&self, live: &Value, new: &Value) -> Managed {
        let stored = || Managed::decode(live.pointer("/metadata/managedFields")).unwrap_or_default();
        if !self.subresource.is_empty() {
            return stored();
        }
        let sent = new.pointer("/metadata/managedFields");
        if let Some(Value::Array(entries)) = sent {
            let hollow = |entry: &Value| entry.as_object().is_some_and(Map::is_empty);
            if entries.len() <= 1 && entries.iter().all(hollow) {
                return Managed::default();
            }
        }
        match Managed::decode(sent) {
            Ok(managed) if !managed.is_empty() => managed,
            _ => stored(),
        }
    }

    fn typed<'o>(&self, object: &'o Value, duplicates: Duplicates) -> Result<Typed<'o, T::Type>, String> {
        let schema = self
            .types
            .type_of(&self.gvk.api_version())
            .ok_or_else(|| format!("no corresponding type for {}", self.gvk))?;
        typed::validate(&schema, object, duplicates).map_err(|error| error.to_string())?;
        Ok(Typed { value: Cow::Borrowed(object), schema })
    }

    /// Returns the object in another version; `None` if that version is not served any more.
    fn in_version<'o>(
        &self,
        object: &'o Typed<'_, T::Type>,
        version: &str,
    ) -> Result<Option<Typed<'o, T::Type>>, String> {
        let current = object.value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        if current == version {
            return Ok(Some(Typed { value: Cow::Borrowed(&*object.value), schema: object.schema.clone() }));
        }
        let Some(schema) = self.types.type_of(version) else { return Ok(None) };
        let value = self.types.convert(&object.value, version)?;
        typed::validate(&schema, &value, Duplicates::Allowed).map_err(|error| error.to_string())?;
        Ok(Some(Typed { value: Cow::Owned(value), schema }))
    }

    fn without_reset(&self, set: Set, version: &str) -> Set {
        match self.reset.get(version) {
            Some(reset) => set.recursive_difference(reset),
            None => set,
        }
    }

    /// Gives the changed fields to the writer; with `now` its entry gets that time.
    fn track(
        &self,
        live: &Value,
        new: &Value,
        managed: Managed,
        manager: &str,
        now: Option<&str>,
    ) -> Result<Managed, String> {
        let version = self.gvk.api_version();
        let live = self.typed(live, Duplicates::Allowed)?;
        let new = self.typed(new, Duplicates::Allowed)?;
        let managed = self.reconciled(&live, managed)?;
        let Resolved::Clear(mut managed, comparison) = self.resolve(&live, &new, managed, None, true)? else {
            unreachable!("a forced write has no conflicts");
        };
        let taken = comparison.modified.union(&comparison.added);
        let taken = self.without_reset(taken, &version).difference(&NEVER_OWNED);
        if taken.is_empty() {
            return Ok(managed);
        }
        let identity = self.identity(manager, Operation::Update);
        let previous = managed.0.get(&identity).map(|owned| owned.set.clone()).unwrap_or_default();
        managed.0.insert(
            identity,
            Owned { set: taken.union(&previous), api_version: version, time: now.map(str::to_owned) },
        );
        Ok(managed)
    }

    fn reconciled(&self, live: &Typed<'_, T::Type>, mut managed: Managed) -> Result<Managed, String> {
        let mut gone = Vec::new();
        for (identity, owned) in &mut managed.0 {
            match self.in_version(live, &owned.api_version)? {
                Some(object) => {
                    if let Some(set) = typed::reconcile(&object.schema, &owned.set) {
                        owned.set = set;
                    }
                }
                None => gone.push(identity.clone()),
            }
        }
        for identity in gone {
            managed.0.remove(&identity);
        }
        Ok(managed)
    }

    /// Takes changed and removed fields away from everybody but `writer`, or reports them as conflicts.
    fn resolve(
        &self,
        live: &Typed<'_, T::Type>,
        new: &Typed<'_, T::Type>,
        mut managed: Managed,
        writer: Option<&Identity>,
        force: bool,
    ) -> Result<Resolved, String> {
        let version = self.gvk.api_version();
        let compare = |live: &Typed<'_, T::Type>, new: &Typed<'_, T::Type>, version: &str| {
            let comparison = typed::compare(&live.schema, &live.value, &new.value)
                .map_err(|error| format!("failed to compare objects: {error}"))?;
            Ok::<Comparison, String>(match self.reset.get(version) {
                Some(reset) => comparison.without(reset),
                None => comparison,
            })
        };
        let mut by_version: BTreeMap<String, Comparison> = BTreeMap::new();
        by_version.insert(version.clone(), compare(live, new, &version)?);
        let (mut conflicts, mut left) = (Vec::new(), MOST_CONFLICTS);
        let mut gone = Vec::new();
        for (identity, owned) in &mut managed.0 {
            if Some(identity) == writer {
                continue;
            }
            if !by_version.contains_key(&owned.api_version) {
                let version = &owned.api_version;
                let failed = |which: &'static str| {
                    move |error: String| format!("failed to convert {which} object: {error}")
                };
                let versions = (
                    self.in_version(live, version).map_err(failed("old"))?,
                    self.in_version(new, version).map_err(failed("new"))?,
                );
                let (Some(live), Some(new)) = versions else {
                    gone.push(identity.clone());
                    continue;
                };
                by_version.insert(owned.api_version.clone(), compare(&live, &new, &owned.api_version)?);
            }
            let Some(comparison) = by_version.get(&owned.api_version) else { continue };
            let lost = owned.set.intersection(&comparison.modified.union(&comparison.added));
            if !force {
                let paths = lost.paths_within(&mut left).into_iter();
                conflicts.extend(paths.map(|path| Conflict { manager: identity.clone(), path }));
            }
            owned.set = owned.set.difference(&lost).difference(&comparison.removed);
        }
        if !force && !conflicts.is_empty() {
            return Ok(Resolved::Conflicts(conflicts));
        }
        for identity in gone {
            managed.0.remove(&identity);
        }
        managed.0.retain(|_, owned| !owned.set.is_empty());
        let comparison = by_version.remove(&version).expect("inserted above");
        Ok(Resolved::Clear(managed, comparison))
    }

    /// Merges a configuration; returns the object if it changed.
    fn merge(
        &self,
        live: &Value,
        applied: &Value,
        managed: Managed,
        manager: &str,
        force: bool,
    ) -> Result<(Option<Value>, Managed), Error> {
        let version = self.gvk.api_version();
        let applied = self.typed(applied, Duplicates::Refused).map_err(|error| {
            let text = |name: &str| applied.pointer(name).and_then(Value::as_str).unwrap_or_default();
            Error::Typed(format!(
                "failed to create typed patch object ({}/{}; {}): {error}",
                text("/metadata/namespace"),
                text("/metadata/name"),
                self.gvk
            ))
        })?;
        let live = self
            .typed(live, Duplicates::Allowed)
            .map_err(|error| Error::Typed(format!("failed to create typed live object: {error}")))?;
        let mut managed = self.reconciled(&live, managed).map_err(Error::Typed)?;
        let merged = typed::merge(&live.schema, &live.value, &applied.value)
            .map_err(|error| Error::Typed(format!("failed to merge config: {error}")))?;
        let merged = Typed { value: Cow::Owned(merged), schema: live.schema.clone() };
        let identity = self.identity(manager, Operation::Apply);
        let last = managed.0.get(&identity).cloned();
        let set = self.without_reset(typed::field_set(&applied.schema, &applied.value), &version);
        let time = last.as_ref().and_then(|owned| owned.time.clone());
        managed.0.insert(identity.clone(), Owned { set, api_version: version, time });
        let new = match last {
            Some(last) if !last.set.is_empty() => {
                let pruned = self
                    .prune(merged, &managed, &last)
                    .map_err(|error| Error::Typed(format!("failed to prune fields: {error}")))?;
                // Pruning drops containers that it empties. If the configuration names such a container (`labels: {}`),
                // it stays: otherwise a second apply would bring it back and be a change.
                let value = typed::merge(&pruned.schema, &pruned.value, &applied.value)
                    .map_err(|error| Error::Typed(format!("failed to merge config: {error}")))?;
                Typed { value: Cow::Owned(value), schema: pruned.schema }
            }
            _ => merged,
        };
        let resolved = self.resolve(&live, &new, managed, Some(&identity), force).map_err(Error::Typed)?;
        let mut managed = match resolved {
            Resolved::Clear(managed, _) => managed,
            Resolved::Conflicts(conflicts) => return Err(Error::Conflicts(conflicts)),
        };
        if let Some(owned) = managed.0.get_mut(&identity) {
            owned.set = owned.set.difference(&NEVER_OWNED);
            if owned.set.is_empty() {
                managed.0.remove(&identity);
            }
        }
        let changed = (new.value != live.value).then(|| new.value.into_owned());
        Ok((changed, managed))
    }

    /// Removes what the manager applied last time and did not apply now, unless somebody else owns it.
    fn prune(
        &self,
        merged: Typed<'static, T::Type>,
        managed: &Managed,
        last: &Owned,
    ) -> Result<Typed<'static, T::Type>, String> {
        let Some(merged_then) = self.in_version(&merged, &last.api_version)?.map(Typed::into_owned) else {
            return Ok(merged);
        };
        let schema = Some(&merged_then.schema);
        let last_set = last.set.with_declared_parents(schema);
        let pruned = Typed {
            value: Cow::Owned(typed::remove(&merged_then.schema, &merged_then.value, &last_set)),
            schema: merged_then.schema.clone(),
        };
        let pruned = self.add_back_owned(&merged_then, pruned, managed, &last.api_version)?;
        // What was removed but never belonged to this manager comes back as well.
        let pruned = match self.in_version(&pruned, &last.api_version)? {
            None => return Ok(merged),
            Some(pruned) => {
                let kept = typed::field_set(&pruned.schema, &pruned.value).with_declared_parents(schema);
                let all =
                    typed::field_set(&merged_then.schema, &merged_then.value).with_declared_parents(schema);
                let gone = all.difference(&kept).intersection(&last_set);
                Typed {
                    value: Cow::Owned(typed::remove(&merged_then.schema, &merged_then.value, &gone)),
                    schema: merged_then.schema.clone(),
                }
            }
        };
        let version = self.gvk.api_version();
        Ok(self.in_version(&pruned, &version)?.map(Typed::into_owned).unwrap_or(merged))
    }

    /// Brings back removed items that any manager still owns (the new configuration included).
    fn add_back_owned(
        &self,
        merged: &Typed<'_, T::Type>,
        pruned: Typed<'static, T::Type>,
        managed: &Managed,
        pruned_version: &str,
    ) -> Result<Typed<'static, T::Type>, String> {
        let mut owned_by_version: BTreeMap<&str, Set> = BTreeMap::new();
        for owned in managed.0.values() {
            let set = owned_by_version.entry(owned.api_version.as_str()).or_default();
            *set = set.union(&owned.set);
        }
        // The version at hand first: fields that conversion needs may be among those to bring back.
        let mut versions: Vec<(&str, Set)> = owned_by_version.into_iter().collect();
        versions.sort_by_key(|(version, _)| *version != pruned_version);
        let mut merged = Typed { value: Cow::Owned((*merged.value).clone()), schema: merged.schema.clone() };
        let mut pruned = pruned;
        for (version, owned) in versions {
            let (Some(merged_there), Some(pruned_there)) =
                (self.in_version(&merged, version)?, self.in_version(&pruned, version)?)
            else {
                continue;
            };
            let merged_there = merged_there.into_owned();
            let schema = Some(&merged_there.schema);
            let all =
                typed::field_set(&merged_there.schema, &merged_there.value).with_declared_parents(schema);
            let kept =
                typed::field_set(&pruned_there.schema, &pruned_there.value).with_declared_parents(schema);
            let owned = owned.with_declared_parents(schema);
            let gone = all.difference(&kept.union(&owned));
            pruned = Typed {
                value: Cow::Owned(typed::remove(&merged_there.schema, &merged_there.value, &gone)),
                schema: merged_there.schema.clone(),
            };
            merged = merged_there;
        }
        Ok(pruned)
    }

    /// Returns the fields that a client-side apply set and nobody has changed since.
    fn last_applied_fields(&self, live: &Value) -> Option<Set> {
        let text = live.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
        let last: Value = json::read_value(text.as_bytes()).ok()?;
        if last.get("apiVersion")?.as_str()? != self.gvk.api_version() {
            return None;
        }
        let live = self.typed(live, Duplicates::Refused).ok()?;
        let last = self.typed(&last, Duplicates::Refused).ok()?;
        let comparison = typed::compare(&last.schema, &last.value, &live.value).ok()?;
        Some(
            typed::field_set(&last.schema, &last.value)
                .difference(&comparison.modified)
                .difference(&comparison.added)
                .difference(&comparison.removed),
        )
    }
}

enum Resolved {
    Clear(Managed, Comparison),
    Conflicts(Vec<Conflict>),
}

/// Metadata that the server sets or that names the object has no owners.
static NEVER_OWNED: LazyLock<Set> = LazyLock::new(|| {
    Set::of_fields([
        ["apiVersion"].as_slice(),
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

fn remove_managed(object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
}

/// Keeps the client-side annotation in step, so that users may go back to client-side apply.
fn renew_last_applied(object: &mut Value, applied: &Value) {
    let Some(Value::Object(annotations)) =
        object.get_mut("metadata").and_then(|meta| meta.get_mut("annotations"))
    else {
        return;
    };
    if annotations.get(LAST_APPLIED).and_then(Value::as_str).unwrap_or_default().is_empty() {
        return;
    }
    let mut applied = applied.clone();
    if let Some(Value::Object(metadata)) = applied.get_mut("metadata")
        && let Some(Value::Object(own)) = metadata.get_mut("annotations")
    {
        own.remove(LAST_APPLIED);
        if own.is_empty() {
            metadata.remove("annotations");
        }
    }
    annotations.insert(LAST_APPLIED.to_owned(), Value::String(format!("{}\n", json::write(&applied))));
    let size = |(key, value): (&String, &Value)| key.len().saturating_add(value.as_str().map_or(0, str::len));
    if annotations.iter().map(size).sum::<usize>() > MAX_ANNOTATION_BYTES {
        annotations.remove(LAST_APPLIED);
    }
}

/// A cheap look before the dear one: most writes change something else.
fn differ_in_metadata_alone(old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return false };
    old.len() == new.len()
        && old.iter().all(|(key, value)| key == "metadata" || new.get(key).is_some_and(|new| new == value))
}

/// Returns `new` with the old managed fields if the two objects differ only in their entries' times.
///
/// Such a write must be a no-op: a new time alone would make every level-triggered writer run for ever.
pub fn keep_times_if_equal(old: &Value, mut new: Value) -> Value {
    let without_times = |object: &Value| {
        let mut object = object.clone();
        if let Some(Value::Array(entries)) = object.pointer_mut("/metadata/managedFields") {
            for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
                entry.remove("time");
            }
            entries.sort_by_cached_key(json::write);
        }
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.remove("resourceVersion");
        }
        object
    };
    if let Some(entries) = old.pointer("/metadata/managedFields")
        && new.pointer("/metadata/managedFields").is_some()
        && differ_in_metadata_alone(old, &new)
        && without_times(old) == without_times(&new)
        && let Some(sent) = new.pointer_mut("/metadata/managedFields")
    {
        *sent = entries.clone();
    }
    new
}

#[cfg(test)]
mod tests;
