//! Propagates the dependencies of a template: the objects that it refers to get bindings that follow its
//! clusters.
//!
//! Watches: ResourceBindings, objects that bindings depend on, including those that policies skip
//! (`--skipped-propagating-apis` and `-namespaces`): these are propagated all the same, as upstream does.
//! Writes: the record of dependencies and the finalizer on the binding; attached bindings, their `requiredBy`
//! and the label that names the bindings that require them. `decide` decides about a binding and about those
//! attached to it.

mod decide;
#[cfg(test)]
mod on_server;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::config::DependentObjectReference;
use api::events as reasons;
use api::labels::RESOURCE_BINDING_PERMANENT_ID;
use api::labels::finalizers::BINDING_DEPENDENCIES;
use api::work::{ObjectReference, ResourceBinding};
use interpreter::Operation;
use jiff::Timestamp;
use parking_lot::Mutex;
use propagation::Object;
use propagation::activation::specification_changed;
use propagation::dependencies::{self, DependencyIndex};
use runtime::events::about;
use runtime::{Error, Guard, Key, Outcome, Queue, Reconcile, controller};
use serde_json::Value;

use crate::interpretation::on_lessons;

use super::templates::TemplateKey;
use super::{Plane, Start};
use decide::{Attach, Attached, Detachments, Distribution, Needed, Next, Plan, View, Wanted, is_attached};

const WORKERS: usize = 4;
const COMPONENT: &str = "dependencies-distributor";

struct Distributor {
    plane: Arc<Plane>,
    queue: Arc<Queue<Key>>,
    index: Mutex<DependencyIndex>,
    /// The set of attached bindings. It is small, so it needs no index.
    attached: Mutex<BTreeSet<Key>>,
    /// The last disagreement that was reported for an attached binding.
    told: Mutex<BTreeMap<Key, String>>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let distributor = subscribed(plane);
    plane.tell_panics(&distributor.queue, COMPONENT, &plane.mirrors.bindings);
    Box::new(move || {
        controller::run(&distributor, &distributor.queue, WORKERS, &distributor.plane.supervisor);
    })
}

fn subscribed(plane: &Arc<Plane>) -> Arc<Distributor> {
    let distributor = Arc::new(Distributor {
        plane: Arc::clone(plane),
        queue: Queue::new("dependencies-distributor"),
        index: Mutex::default(),
        attached: Mutex::default(),
        told: Mutex::default(),
    });
    plane.mirrors.bindings.subscribe({
        let distributor = Arc::clone(&distributor);
        move |change| {
            let Some(new) = &change.new else {
                distributor.index.lock().remove(&change.key.namespace, &change.key.name);
                distributor.attached.lock().remove(change.key);
                distributor.told.lock().remove(change.key);
                return;
            };
            if let Err(error) = distributor.index.lock().insert(new) {
                tracing::debug!(%error, binding = ?change.key, "dependencies not readable");
            }
            if is_attached(new) {
                distributor.attached.lock().insert(change.key.clone());
            } else {
                distributor.attached.lock().remove(change.key);
            }
            if decide::is_news(change.old.as_deref(), new) {
                distributor.queue.push(change.key.clone());
            }
        }
    });
    plane.templates.subscribe_to_all({
        let distributor = Arc::clone(&distributor);
        move |change| {
            if let (Some(old), Some(new)) = (&change.old, &change.new)
                && !specification_changed(old, new)
            {
                return;
            }
            let index = distributor.index.lock();
            for object in [&change.old, &change.new].into_iter().flatten() {
                for (namespace, name) in index.dependents(object) {
                    distributor.queue.push(Key::new(namespace, name));
                }
            }
        }
    });
    on_lessons(&plane.mirrors, {
        let distributor = Arc::clone(&distributor);
        move |lesson| {
            for binding in
                lesson.bindings(&distributor.plane.mirrors.bindings, &[Operation::InterpretDependency])
            {
                distributor.queue.push(Key::of(binding.as_ref()));
            }
        }
    });
    distributor
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

    /// Returns the same bindings with what decides about them. An object that only a selector covers would be detached if it
    /// were not seen, and leave the members: where the mirror does not have it, the server is asked.
    async fn attached(&self, binding: &ResourceBinding, wanted: &Wanted) -> Result<Vec<Attached>, Error> {
        let mut all = Vec::new();
        for attached in self.attached_to(binding) {
            let resource = &attached.spec.resource;
            let (templates, key) = (&self.plane.templates, TemplateKey::of_reference(resource));
            let object = match templates.get(&key) {
                None if wanted.selects(resource) => templates.current(&key).await?.map(Arc::new),
                known => known,
            };
            all.push(Attached { object, referrers: self.referrers(&attached), binding: attached });
        }
        Ok(all)
    }

    async fn wanted(&self, template: &Value) -> Wanted {
        let interpreter = &self.plane.interpreter;
        if !interpreter.supports(&template.gvk(), Operation::InterpretDependency) {
            return Wanted::Unsupported;
        }
        match interpreter.get_dependencies(template).await {
            Ok(wanted) => Wanted::These(wanted),
            Err(source) => Wanted::Failed {
                message: source.to_string(),
                error: propagation::Error::Interpret { object: template.describe(), source }.to_string(),
            },
        }
    }

    /// Returns the existing objects that a dependency refers to; the watch reports the others when they
    /// appear.
    async fn objects(&self, dependency: &DependentObjectReference) -> Result<Vec<Arc<Value>>, Error> {
        let reference = ObjectReference {
            api_version: dependency.api_version.clone(),
            kind: dependency.kind.clone(),
            namespace: dependency.namespace.clone(),
            name: dependency.name.clone(),
            ..ObjectReference::default()
        };
        let (templates, kind) = (&self.plane.templates, TemplateKey::of_reference(&reference).kind);
        let all_are_known = templates.need(&kind)?;
        if !dependency.name.is_empty() {
            return Ok(templates.fetch(&reference).await?.into_iter().collect());
        }
        if dependencies::selector(dependency).map_err(Error::decision)?.is_none() {
            return Err(Error::decision(propagation::Error::EmptyDependency));
        }
        if !all_are_known {
            return Err(Error::Waiting(format!("for the objects of {kind}")));
        }
        let mut found = Vec::new();
        for object in templates.all(&kind) {
            if dependencies::refers_to(dependency, &object).map_err(Error::decision)? {
                found.push(object);
            }
        }
        Ok(found)
    }

    fn needed(&self, binding: &ResourceBinding, object: Arc<Value>) -> Needed {
        let built = dependencies::build_attached(binding, &object);
        let existing = self.plane.mirrors.bindings.find(&Key::of(&built));
        Needed { referrers: self.referrers(existing.as_deref().unwrap_or(&built)), existing, object }
    }

    /// Returns the bindings that require `attached`, as far as they exist.
    fn referrers(&self, attached: &ResourceBinding) -> Vec<Arc<ResourceBinding>> {
        let all = attached.spec.required_by.iter();
        all.filter_map(|referrer| self.binding(&referrer.namespace, &referrer.name)).collect()
    }

    /// Records what the template depends on, and adds the finalizer that holds the binding.
    async fn record(
        &self,
        binding: &ResourceBinding,
        template: &Value,
        recorded: &ResourceBinding,
    ) -> Result<(), Error> {
        let (writer, mirror) = (self.plane.writer.derived(), &self.plane.mirrors.bindings);
        if writer.update_mirrored(mirror, binding, recorded, Guard::Fields).await? {
            let message = format!("Get dependencies of {} succeed.", template.describe());
            self.plane.events.normal(COMPONENT, template, reasons::GET_DEPENDENCIES_SUCCEED, message);
            // An object that appeared between the read and this write was not recorded as a dependency yet,
            // so its event enqueued nothing.
            self.queue.push(Key::of(binding));
        }
        Ok(())
    }

    /// Returns whether anything had to be written.
    async fn distribute(&self, plan: Distribution) -> Result<bool, Error> {
        let mut changed = self.detach(plan.detach).await?;
        let mut errors: Vec<Error> =
            plan.errors.into_iter().map(|error| Error::Several(vec![error])).collect();
        for attach in plan.attach {
            match self.attach(attach).await {
                Ok(written) => changed |= written,
                Err(error) => errors.push(error),
            }
        }
        Error::join(errors).map(|()| changed)
    }

    async fn attach(&self, plan: Attach) -> Result<bool, Error> {
        let (writer, mirror) = (self.plane.writer.derived(), &self.plane.mirrors.bindings);
        match plan {
            Attach::Nothing(_) => Ok(false),
            Attach::Create(mut made) => {
                // Admission would add the permanent id, but the control plane may run without our admission.
                let labels = made.metadata.labels.get_or_insert_default();
                labels.insert(RESOURCE_BINDING_PERMANENT_ID.to_owned(), uuid::Uuid::new_v4().to_string());
                writer.create(mirror, made.as_ref()).await.map(|()| true)
            }
            Attach::Existing { existing, update, disagreement } => {
                self.tell_disagreement(&existing, disagreement);
                match update {
                    None => Ok(false),
                    Some(update) => {
                        writer.update_mirrored(mirror, existing.as_ref(), &update, Guard::Fields).await
                    }
                }
            }
        }
    }

    /// Reports on what the policies behind an attached binding disagree, once for each disagreement. The
    /// disagreement may change while its result stays the same.
    fn tell_disagreement(&self, attached: &ResourceBinding, disagreement: Option<String>) {
        let key = Key::of(attached);
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

    /// Detaches what is no longer needed; returns whether anything had to be written.
    async fn detach(&self, plan: Detachments) -> Result<bool, Error> {
        let mut changed = false;
        for (attached, updated) in &plan.updates {
            match self.plane.writer.derived().update(attached.as_ref(), updated, Guard::Version).await {
                Err(error) if error.is_not_found() => {}
                result => changed |= result?.is_some(),
            }
        }
        if plan.errors.is_empty() { Ok(changed) } else { Err(Error::Several(plan.errors)) }
    }

    fn tell(&self, binding: &ResourceBinding, result: &Result<bool, Error>) {
        let subject = about(binding);
        match result {
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
    }
}

impl Reconcile for Distributor {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let Some(binding) = self.plane.mirrors.bindings.find(key) else { return Ok(None) };
        let mut view = View {
            attached: Vec::new(),
            template: None,
            wanted: Wanted::Unsupported,
            needed: Vec::new(),
            failures: Vec::new(),
            binding,
        };
        if decide::next(&view.binding) == Next::Distribute {
            view.template = self.plane.templates.fetch(&view.binding.spec.resource).await?;
        }
        if let Some(template) = &view.template {
            view.wanted = self.wanted(template).await;
        }
        if let Wanted::These(wanted) = &view.wanted {
            for dependency in wanted {
                match self.objects(dependency).await {
                    Ok(objects) => {
                        view.needed
                            .extend(objects.into_iter().map(|object| self.needed(&view.binding, object)));
                    }
                    // Objects that are not known yet look as if they were gone, and would be detached.
                    Err(error @ Error::Waiting(_)) => return Err(error),
                    Err(error) => view.failures.push(error.to_string()),
                }
            }
        }
        view.attached = self.attached(&view.binding, &view.wanted).await?;
        Ok(Some(view))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide::decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        match plan {
            Plan::Nothing(why) => tracing::trace!(controller = COMPONENT, %key, why, "nothing to do"),
            Plan::Wait(what) => return Err(Error::Waiting(what)),
            Plan::LetGo(detachments) => {
                self.detach(detachments).await?;
                let (writer, mirror) = (self.plane.writer.derived(), &self.plane.mirrors.bindings);
                writer.release(mirror, view.binding.as_ref(), BINDING_DEPENDENCIES).await?;
            }
            Plan::Refuse { message, error } => {
                if let Some(template) = &view.template {
                    let reason = reasons::GET_DEPENDENCIES_FAILED;
                    self.plane.events.warning(COMPONENT, template.as_ref(), reason, message);
                }
                return Err(Error::Several(vec![error]));
            }
            Plan::Distribute(plan) => {
                if let Some(template) = &view.template {
                    self.record(&view.binding, template, &plan.recorded).await?;
                }
                let result = self.distribute(*plan).await;
                self.tell(&view.binding, &result);
                result?;
            }
        }
        Ok(Outcome::Done)
    }
}
