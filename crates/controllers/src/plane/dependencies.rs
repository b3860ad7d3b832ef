//! Brings along what a template needs beside it: the objects it refers to get bindings that follow its clusters.
//!
//! Watches: ResourceBindings, templates that bindings depend on.
//! Writes: the record of dependencies and the finalizer on the binding; attached bindings, their `requiredBy` and the
//! label that names who requires them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::config::DependentObjectReference;
use api::events as reasons;
use api::labels::finalizers::BINDING_DEPENDENCIES;
use api::labels::{DEPENDED_BY_PREFIX, RESOURCE_BINDING_PERMANENT_ID};
use api::work::{ObjectReference, ResourceBinding};
use interpreter::Operation;
use parking_lot::Mutex;
use propagation::activation::specification_changed;
use propagation::dependencies::{self, DependencyIndex};
use propagation::{Binding, Object, check_scope};
use runtime::{Error, Guard, Key, Queue};
use serde_json::Value;

use super::templates::TemplateKey;
use super::{Plane, Start};
use runtime::events::about;

const WORKERS: usize = 4;
const COMPONENT: &str = "dependencies-distributor";

struct Distributor {
    plane: Arc<Plane>,
    queue: Arc<Queue<Key>>,
    index: Mutex<DependencyIndex>,
    /// Attached bindings, by nothing but that they are: few bindings are.
    attached: Mutex<BTreeSet<Key>>,
    /// The last disagreement that was told of an attached binding.
    told: Mutex<BTreeMap<Key, String>>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let distributor = Arc::new(Distributor {
        plane: Arc::clone(plane),
        queue: Queue::new("dependencies-distributor"),
        index: Mutex::default(),
        attached: Mutex::default(),
        told: Mutex::default(),
    });
    let of = Arc::clone(&distributor);
    plane.mirrors.bindings.subscribe(move |change| {
        let Some(new) = &change.new else {
            of.index.lock().remove(&change.key.namespace, &change.key.name);
            of.attached.lock().remove(change.key);
            of.told.lock().remove(change.key);
            return;
        };
        if let Err(error) = of.index.lock().insert(new) {
            tracing::debug!(%error, binding = ?change.key, "dependencies not readable");
        }
        if is_attached(new) {
            of.attached.lock().insert(change.key.clone());
        } else {
            of.attached.lock().remove(change.key);
        }
        let concerns = |binding: &ResourceBinding| binding.spec.propagate_deps || is_held(binding);
        let push = match &change.old {
            Some(old) => {
                old.metadata.generation != new.metadata.generation && (concerns(old) || concerns(new))
            }
            None => concerns(new),
        };
        if push {
            of.queue.push(change.key.clone());
        }
    });
    let of = Arc::clone(&distributor);
    plane.templates.subscribe(move |change| {
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && !specification_changed(old, new)
        {
            return;
        }
        let index = of.index.lock();
        for object in [&change.old, &change.new].into_iter().flatten() {
            for (namespace, name) in index.dependents(object) {
                of.queue.push(Key::new(namespace, name));
            }
        }
    });
    Box::new(move || {
        let of = Arc::clone(&distributor);
        distributor.queue.spawn(WORKERS, &distributor.plane.supervisor, move |key: Key| {
            let of = Arc::clone(&of);
            async move { of.reconcile(&key).await }
        });
    })
}

fn is_attached(binding: &ResourceBinding) -> bool {
    let mut labels = binding.metadata.labels.iter().flat_map(|labels| labels.keys());
    labels.any(|label| label.starts_with(DEPENDED_BY_PREFIX))
}

/// Returns whether the binding waits for us before it goes.
fn is_held(binding: &ResourceBinding) -> bool {
    binding.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == BINDING_DEPENDENCIES)
}

impl Distributor {
    fn binding(&self, namespace: &str, name: &str) -> Option<Arc<ResourceBinding>> {
        self.plane.mirrors.bindings.get(namespace, name)
    }

    /// Returns the bindings that are attached to this one.
    fn attached_to(&self, binding: &ResourceBinding) -> Vec<Arc<ResourceBinding>> {
        let (label, id) = dependencies::attached_selector(binding);
        let keys: Vec<Key> = self.attached.lock().iter().cloned().collect();
        keys.into_iter()
            .filter(|key| Some(&key.namespace) == binding.metadata.namespace.as_ref())
            .filter_map(|key| self.binding(&key.namespace, &key.name))
            .filter(|attached| {
                let labels = attached.metadata.labels.as_ref();
                labels.and_then(|labels| labels.get(&label)) == Some(&id)
            })
            .collect()
    }

    async fn reconcile(&self, key: &Key) -> Result<(), Error> {
        let Some(binding) = self.binding(&key.namespace, &key.name) else { return Ok(()) };
        if !binding.spec.propagate_deps || binding.metadata.deletion_timestamp.is_some() {
            return self.let_go(&binding).await;
        }
        // Nothing to follow before the first decision; upstream waits for it, too.
        if binding.spec.clusters.is_empty() && !is_held(&binding) {
            return Ok(());
        }
        if !dependencies::distributes(&binding) {
            return Err(Error::Waiting(format!("for the permanent id of binding {}", key.name)));
        }
        // The binding controller tells of it.
        if check_scope(binding.as_ref()).is_err() {
            return Ok(());
        }
        let Some(template) = self.plane.templates.fetch(&binding.spec.resource).await? else {
            return Err(Error::Waiting(format!("for the template of binding {}", key.name)));
        };
        if !self.plane.interpreter.supports(&template.gvk(), Operation::InterpretDependency) {
            return Ok(());
        }
        let wanted = self.dependencies(&template)?;
        let binding = self.record(&binding, &template, &wanted).await?;
        let result = self.distribute(&binding, &wanted).await;
        let subject = about(&binding);
        match &result {
            Ok(true) => {
                let message = "Sync schedule results to dependencies succeed.";
                let reason = reasons::SYNC_SCHEDULE_RESULT_TO_DEPENDENCIES_SUCCEED;
                self.plane.events.normal(COMPONENT, &subject, reason, message);
            }
            Err(error) if !error.is_conflict() => {
                let reason = reasons::SYNC_SCHEDULE_RESULT_TO_DEPENDENCIES_FAILED;
                self.plane.events.warning(COMPONENT, &subject, reason, error.to_string());
            }
            _ => {}
        }
        result.map(drop)
    }

    fn dependencies(&self, template: &Value) -> Result<Vec<DependentObjectReference>, Error> {
        self.plane.interpreter.get_dependencies(template).map_err(|source| {
            let message = source.to_string();
            self.plane.events.warning(COMPONENT, template, reasons::GET_DEPENDENCIES_FAILED, message);
            Error::decision(propagation::Error::Interpret { object: template.describe(), source })
        })
    }

    /// Writes down what the template depends on, and holds the binding until it is let go.
    async fn record(
        &self,
        binding: &ResourceBinding,
        template: &Value,
        wanted: &[DependentObjectReference],
    ) -> Result<ResourceBinding, Error> {
        let mut recorded = binding.clone();
        dependencies::record(&mut recorded, wanted);
        if !is_held(&recorded) {
            recorded.metadata.finalizers.get_or_insert_default().push(BINDING_DEPENDENCIES.to_owned());
        }
        match self.plane.writer.derived().update(binding, &recorded, Guard::Fields).await? {
            Some(written) => {
                self.plane.mirrors.bindings.note(written.clone());
                let message = format!("Get dependencies of {} succeed.", template.describe());
                self.plane.events.normal(COMPONENT, template, reasons::GET_DEPENDENCIES_SUCCEED, message);
                Ok(written)
            }
            None => Ok(recorded),
        }
    }

    /// Returns whether anything had to be written.
    async fn distribute(
        &self,
        binding: &ResourceBinding,
        wanted: &[DependentObjectReference],
    ) -> Result<bool, Error> {
        let mut changed = false;
        for attached in self.attached_to(binding) {
            let object = self.plane.templates.get(&TemplateKey::of_reference(&attached.spec.resource));
            let resource = &attached.spec.resource;
            if dependencies::is_orphan(resource, wanted, object.as_deref()).map_err(Error::decision)? {
                changed |= self.detach(&attached, binding).await?;
            }
        }
        let mut errors = Vec::new();
        for dependency in wanted {
            for object in self.objects(dependency).await? {
                match self.attach(binding, &object).await {
                    Ok(written) => changed |= written,
                    Err(error) => errors.push(error),
                }
            }
        }
        Error::join(errors).map(|()| changed)
    }

    /// Returns the objects that a dependency means and that exist; the others come through the watch.
    async fn objects(&self, dependency: &DependentObjectReference) -> Result<Vec<Arc<Value>>, Error> {
        let reference = ObjectReference {
            api_version: dependency.api_version.clone(),
            kind: dependency.kind.clone(),
            namespace: dependency.namespace.clone(),
            name: dependency.name.clone(),
            ..ObjectReference::default()
        };
        if !dependency.name.is_empty() {
            return Ok(self.plane.templates.fetch(&reference).await?.into_iter().collect());
        }
        if dependencies::selector(dependency).map_err(Error::decision)?.is_none() {
            return Err(Error::decision(propagation::Error::EmptyDependency));
        }
        let mut found = Vec::new();
        for object in self.plane.templates.all(&TemplateKey::of_reference(&reference).kind) {
            if dependencies::refers_to(dependency, &object).map_err(Error::decision)? {
                found.push(object);
            }
        }
        Ok(found)
    }

    async fn attach(&self, binding: &ResourceBinding, object: &Value) -> Result<bool, Error> {
        if object.is_deleting() || self.plane.templates.skip().skips(object) {
            return Ok(false);
        }
        let mut wanted = dependencies::build_attached(binding, object);
        check_scope(&wanted).map_err(Error::decision)?;
        let name = wanted.metadata.name.clone().unwrap_or_default();
        let namespace = wanted.metadata.namespace.clone().unwrap_or_default();
        let existing = self.binding(&namespace, &name);
        let referrers = self.referrers(existing.as_deref().unwrap_or(&wanted), Some(binding));
        let find = |namespace: &str, name: &str| {
            referrers.iter().map(AsRef::as_ref).find(|known| is_named(known, namespace, name))
        };
        let Some(existing) = existing else {
            let built = wanted.clone();
            dependencies::attach(&mut wanted, &built, find).map_err(Error::decision)?;
            let labels = wanted.metadata.labels.get_or_insert_default();
            labels.insert(RESOURCE_BINDING_PERMANENT_ID.to_owned(), uuid::Uuid::new_v4().to_string());
            self.plane.writer.derived().create(&self.plane.mirrors.bindings, &wanted).await?;
            return Ok(true);
        };
        let mut updated = (*existing).clone();
        let (changed, disagreement) =
            dependencies::attach(&mut updated, &wanted, find).map_err(Error::decision)?;
        self.tell_disagreement(&existing, disagreement);
        // That only the version of the object moved is news to those who render it.
        if !changed {
            return Ok(false);
        }
        let writer = self.plane.writer.derived();
        writer.update_mirrored(&self.plane.mirrors.bindings, &existing, &updated, Guard::Fields).await
    }

    /// Says on what the policies behind an attached binding disagree, once for each disagreement. It may be another one
    /// while its result stays the same.
    fn tell_disagreement(&self, attached: &ResourceBinding, disagreement: Option<String>) {
        let namespace = attached.metadata.namespace.as_deref().unwrap_or("");
        let key = Key::new(namespace, attached.metadata.name.as_deref().unwrap_or(""));
        let mut told = self.told.lock();
        let Some(message) = disagreement else {
            told.remove(&key);
            return;
        };
        if told.get(&key) == Some(&message) {
            return;
        }
        let subject = about(attached);
        self.plane.events.warning(COMPONENT, &subject, reasons::DEPENDENCY_POLICY_CONFLICT, message.clone());
        told.insert(key, message);
    }

    /// Returns the bindings that require `attached`, `also` being one of them.
    fn referrers(
        &self,
        attached: &ResourceBinding,
        also: Option<&ResourceBinding>,
    ) -> Vec<Arc<ResourceBinding>> {
        let mut found: Vec<Arc<ResourceBinding>> = also.into_iter().cloned().map(Arc::new).collect();
        for referrer in &attached.spec.required_by {
            found.extend(self.binding(&referrer.namespace, &referrer.name));
        }
        found
    }

    async fn detach(&self, attached: &ResourceBinding, binding: &ResourceBinding) -> Result<bool, Error> {
        let namespace = binding.metadata.namespace.as_deref().unwrap_or("");
        let name = binding.metadata.name.as_deref().unwrap_or("");
        let referrers = self.referrers(attached, None);
        let find = |namespace: &str, name: &str| {
            referrers.iter().map(AsRef::as_ref).find(|known| is_named(known, namespace, name))
        };
        let mut updated = attached.clone();
        if !dependencies::detach(&mut updated, namespace, name, find).map_err(Error::decision)? {
            return Ok(false);
        }
        match self.plane.writer.derived().update(attached, &updated, Guard::Version).await {
            Err(error) if error.is_not_found() => Ok(false),
            result => Ok(result?.is_some()),
        }
    }

    /// Detaches everything from a binding that no longer brings anything along, and stops holding it.
    async fn let_go(&self, binding: &ResourceBinding) -> Result<(), Error> {
        for attached in self.attached_to(binding) {
            self.detach(&attached, binding).await?;
        }
        self.plane.writer.derived().release(binding, BINDING_DEPENDENCIES).await.map(drop)
    }
}

fn is_named(binding: &ResourceBinding, namespace: &str, name: &str) -> bool {
    let metadata = Binding::metadata(binding);
    metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
}
