//! Brings along what a template needs beside it: the objects it refers to get bindings that follow its clusters.
//!
//! Watches: ResourceBindings, templates that bindings depend on.
//! Writes: the record of dependencies and the finalizer on the binding; attached bindings, their `requiredBy` and the
//! label that names who requires them.

mod decide;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::config::DependentObjectReference;
use api::events as reasons;
use api::labels::finalizers::BINDING_DEPENDENCIES;
use api::work::{ObjectReference, ResourceBinding};
use interpreter::Operation;
use parking_lot::Mutex;
use propagation::Object;
use propagation::activation::specification_changed;
use propagation::dependencies::{self, DependencyIndex};
use runtime::{Error, Guard, Key, Queue};
use serde_json::Value;

use crate::interpretation::on_lessons;

use super::templates::TemplateKey;
use super::{Plane, Start};
use decide::{Attach, Next, is_attached, is_held};
use runtime::events::about;

const WORKERS: usize = 4;
const COMPONENT: &str = "dependencies-distributor";

struct Distributor {
    plane: Arc<Plane>,
    queue: Arc<Queue<Key>>,
    index: Mutex<DependencyIndex>,
    /// The set of attached bindings. It is small, so it needs no index.
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
        if decide::is_news(change.old.as_deref(), new) {
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
    let of = Arc::clone(&distributor);
    on_lessons(&plane.mirrors, move |lesson| {
        for binding in lesson.bindings(&of.plane.mirrors.bindings, &[Operation::InterpretDependency]) {
            of.queue.push(Key::of(binding.as_ref()));
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
        match decide::next(&binding) {
            Next::LetGo => return self.let_go(&binding).await,
            Next::Nothing(why) => {
                tracing::trace!(controller = COMPONENT, %key, why, "nothing to do");
                return Ok(());
            }
            Next::Wait(what) => return Err(Error::Waiting(what)),
            Next::Distribute => {}
        }
        let Some(template) = self.plane.templates.fetch(&binding.spec.resource).await? else {
            return Err(Error::Waiting(format!("for the template of binding {}", key.name)));
        };
        if !self.plane.interpreter.supports(&template.gvk(), Operation::InterpretDependency) {
            return Ok(());
        }
        let wanted = self.dependencies(&template).await?;
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

    async fn dependencies(&self, template: &Value) -> Result<Vec<DependentObjectReference>, Error> {
        self.plane.interpreter.get_dependencies(template).await.map_err(|source| {
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
        let wanted = dependencies::build_attached(binding, object);
        let name = wanted.metadata.name.clone().unwrap_or_default();
        let namespace = wanted.metadata.namespace.clone().unwrap_or_default();
        let existing = self.binding(&namespace, &name);
        let referrers = self.referrers(existing.as_deref().unwrap_or(&wanted), Some(binding));
        let skipped = self.plane.templates.skip().skips(object);
        let fresh_id = || uuid::Uuid::new_v4().to_string();
        let plan = decide::attach(object, skipped, wanted, existing.as_deref(), &referrers, fresh_id)
            .map_err(Error::decision)?;
        let (writer, mirror) = (self.plane.writer.derived(), &self.plane.mirrors.bindings);
        match (plan, &existing) {
            (Attach::Nothing(_), _) => Ok(false),
            (Attach::Create(made), _) => writer.create(mirror, made.as_ref()).await.map(|()| true),
            (Attach::Existing { update, disagreement }, Some(existing)) => {
                self.tell_disagreement(existing, disagreement);
                match update {
                    None => Ok(false),
                    Some(update) => {
                        writer.update_mirrored(mirror, existing.as_ref(), &update, Guard::Fields).await
                    }
                }
            }
            (Attach::Existing { .. }, None) => Ok(false),
        }
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
        let referrers = self.referrers(attached, None);
        let Some(updated) = decide::detach(attached, binding, &referrers).map_err(Error::decision)? else {
            return Ok(false);
        };
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
