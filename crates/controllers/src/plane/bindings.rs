//! Keeps the Works of a binding in step with its chosen clusters.
//!
//! Watches: both kinds of bindings (by generation), override policies (the bindings they may touch), Works
//! that vanish, clusters that appear (the bindings that name them) or whose labels, provider, region or zones
//! change (the bindings with copies left there).
//! Writes: Works; removes the binding's finalizer once its Works are marked for deletion.
//!
//! `decide` chooses which Works are deleted, and for which clusters they are written; `propagation::render`
//! says what a Work contains, `works::judge` whether it is created, updated or left alone. The template is
//! read and rendered only after old Works were deleted, since the interpreter may take its time.

mod decide;
#[cfg(test)]
mod on_server;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use api::cluster::Cluster;
use api::events as reasons;
use api::policy::{OverrideSpec, ResourceSelector};
use api::work::{ClusterResourceBinding, ResourceBinding, TargetCluster};
use futures::future::join_all;
use interpreter::Operation;
use jiff::Timestamp;
use propagation::render::{Rendered, Renderer};
use propagation::{Binding, expected_clusters, selector};
use runtime::events::about;
use runtime::{Change, Error, Outcome, Queue, Reconcile};
use serde_json::Value;

use crate::interpretation::on_lessons;

use super::both::{self, Bindings};
use super::metrics::METRICS;
use super::templates::TemplateKey;
use super::works::binding_of;
use super::{BindingKey, Plane, Start, StoredBinding, override_events, removals};
pub(super) use decide::cluster_of;
use decide::{Deletion, Place, Plan, Then, View};

const WORKERS: usize = 8;

struct Controller<B> {
    bindings: Bindings<B>,
}

impl<B> Deref for Controller<B> {
    type Target = Bindings<B>;

    fn deref(&self) -> &Bindings<B> {
        &self.bindings
    }
}

/// The queues of both kinds of bindings.
#[derive(Clone)]
pub(super) struct Queues {
    namespaced: Arc<Queue<BindingKey>>,
    cluster: Arc<Queue<BindingKey>>,
}

impl Queues {
    pub(super) fn push(&self, key: BindingKey) {
        let queue = if key.namespace.is_empty() { &self.cluster } else { &self.namespaced };
        queue.push(key);
    }
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (namespaced, cluster, queues) = subscribed(plane);
    let limit = removals::wire(plane, &queues);
    Box::new(move || {
        limit();
        both::run(&namespaced, &cluster, WORKERS);
    })
}

type Both = (Arc<Controller<ResourceBinding>>, Arc<Controller<ClusterResourceBinding>>, Queues);

fn subscribed(plane: &Arc<Plane>) -> Both {
    let namespaced = Controller::<ResourceBinding>::new(plane);
    let cluster = Controller::<ClusterResourceBinding>::new(plane);
    let queues = Queues { namespaced: namespaced.queue.clone(), cluster: cluster.queue.clone() };
    namespaced.subscribe();
    cluster.subscribe();

    // A Work that vanishes may still be wanted, or its end may be what other Works wait for.
    let pushed = queues.clone();
    plane.mirrors.works.subscribe(move |change| {
        if let (Some(old), None) = (&change.old, &change.new)
            && let Some(binding) = binding_of(old)
        {
            pushed.push(binding);
        }
    });

    // If no cluster was found, the labels and fields of a cluster decide whether it keeps its copy.
    plane.mirrors.clusters.subscribe({
        let (pushed, plane) = (queues.clone(), Arc::clone(plane));
        move |change| {
            if let (Some(old), Some(new)) = (&change.old, &change.new)
                && described(old) != described(new)
            {
                push_left_in(&plane, &pushed, &change.key.name);
            }
        }
    });

    plane.mirrors.override_policies.subscribe({
        let namespaced = namespaced.clone();
        move |change| {
            let specs = overridden(change, |policy| &policy.spec, |policy| policy.metadata.generation);
            namespaced.push_selected(&specs, Some(&change.key.namespace));
        }
    });
    plane.mirrors.cluster_override_policies.subscribe({
        let (namespaced, cluster) = (namespaced.clone(), cluster.clone());
        move |change| {
            let specs = overridden(change, |policy| &policy.spec, |policy| policy.metadata.generation);
            namespaced.push_selected(&specs, None);
            cluster.push_selected(&specs, None);
        }
    });

    on_lessons(&plane.mirrors, {
        let (pushed, plane) = (queues.clone(), Arc::clone(plane));
        move |lesson| {
            let (mirrors, asked) = (&plane.mirrors, [Operation::ReviseReplica]);
            lesson.bindings(&mirrors.bindings, &asked).iter().for_each(|it| pushed.push(key(it.as_ref())));
            let also = lesson.bindings(&mirrors.cluster_bindings, &asked);
            also.iter().for_each(|it| pushed.push(key(it.as_ref())));
        }
    });

    (namespaced, cluster, queues)
}

/// Returns the fields of a cluster that placements depend on.
fn described(cluster: &Cluster) -> impl PartialEq + '_ {
    let spec = &cluster.spec;
    (&cluster.metadata.labels, &spec.provider, &spec.region, &spec.zones)
}

/// Pushes the bindings that have a copy in a cluster although no cluster was found for them.
fn push_left_in(plane: &Plane, queues: &Queues, cluster: &str) {
    let (space, mirrors) = (api::names::execution_space(cluster), &plane.mirrors);
    for work in mirrors.works.keys(|key| key.namespace == space) {
        let Some(key) = mirrors.works.find(&work).and_then(|work| binding_of(&work)) else { continue };
        let found_none = if key.namespace.is_empty() {
            mirrors.cluster_bindings.find(&key).is_some_and(|binding| binding.spec.clusters.is_empty())
        } else {
            mirrors.bindings.find(&key).is_some_and(|binding| binding.spec.clusters.is_empty())
        };
        if found_none {
            queues.push(key);
        }
    }
}

pub(super) fn key<B: Binding>(binding: &B) -> BindingKey {
    let metadata = binding.metadata();
    BindingKey {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// Returns the old and the new override policy if it changed; nothing for the first list, since all bindings
/// are reconciled then anyway.
fn overridden<P>(
    change: &Change<P>,
    spec: impl Fn(&P) -> &OverrideSpec,
    generation: impl Fn(&P) -> Option<i64>,
) -> Vec<OverrideSpec> {
    let versions = [&change.old, &change.new];
    if change.initial {
        return Vec::new();
    }
    if let [Some(old), Some(new)] = versions
        && generation(old) == generation(new)
    {
        return Vec::new();
    }
    versions.into_iter().flatten().map(|policy| spec(policy).clone()).collect()
}

impl<B: StoredBinding> Controller<B> {
    fn new(plane: &Arc<Plane>) -> Arc<Self> {
        Arc::new(Self { bindings: Bindings::new(plane, component::<B>(), component::<B>()) })
    }

    fn subscribe(self: &Arc<Self>) {
        self.push_on(|change| {
            let generation = |binding: &Arc<B>| binding.metadata().generation;
            let Some(new) = &change.new else { return false };
            change.old.as_ref().is_none_or(|old| generation(old) != generation(new))
        });
        self.plane.mirrors.clusters.subscribe({
            let controller = self.clone();
            move |change| {
                if change.old.is_none() && !change.initial {
                    controller.push_bound_to(&change.key.name);
                }
            }
        });
    }

    fn push_bound_to(&self, cluster: &str) {
        for binding in self.mirror.all() {
            if propagation::target_clusters(binding.spec()).iter().any(|target| target.name == cluster) {
                self.queue.push(key(binding.as_ref()));
            }
        }
    }

    fn push_selected(&self, specs: &[OverrideSpec], namespace: Option<&str>) {
        if specs.is_empty() {
            return;
        }
        let everything = specs.iter().any(|spec| spec.resource_selectors.is_empty());
        let selectors: Vec<ResourceSelector> =
            specs.iter().flat_map(|spec| spec.resource_selectors.clone()).collect();
        for binding in self.mirror.all() {
            let resource = &binding.spec().resource;
            if namespace.is_some_and(|namespace| resource.namespace != namespace) {
                continue;
            }
            let selected = everything
                || self
                    .plane
                    .templates
                    .get(&TemplateKey::of_reference(resource))
                    .is_some_and(|template| selector::matches_any(&selectors, &template).is_some());
            if selected {
                self.queue.push(key(binding.as_ref()));
            }
        }
    }

    fn warn(&self, binding: &B, reason: &'static str, message: String) {
        self.plane.events.warning(component::<B>(), &about(binding), reason, message);
    }

    /// Returns whether an object that needs this one has a copy in the cluster.
    fn is_needed(&self, binding: &B, cluster: &str) -> bool {
        binding.spec().required_by.iter().any(|referrer| {
            let referring = self.plane.mirrors.bindings.get(&referrer.namespace, &referrer.name);
            let works = referring.map(|referring| self.plane.works.of(referring.as_ref()));
            works
                .unwrap_or_default()
                .iter()
                .any(|work| work.metadata.deletion_timestamp.is_none() && cluster_of(work) == Some(cluster))
        })
    }

    async fn delete(&self, view: &View<B>, deletions: &[Deletion]) -> Result<(), Error> {
        let wanted = deletions.iter().filter_map(|deletion| {
            let work = view.work(&deletion.work)?;
            tracing::debug!(object = %deletion.work, why = ?deletion.why, "a Work is deleted");
            Some(self.plane.writer.delete(work.as_ref()))
        });
        Error::join(join_all(wanted).await.into_iter().filter_map(Result::err).collect())
    }

    /// Brings the Works of the chosen clusters up to date.
    async fn render(&self, binding: &B, targets: &[TargetCluster]) -> Result<(), Error> {
        let resource = &binding.spec().resource;
        let Some(template) = self.plane.templates.fetch(resource).await? else { return Ok(()) };
        // If the template was deleted and created again, this binding is about to be garbage-collected.
        if !both::stands_for(resource, &template) {
            return Ok(());
        }
        let started = Instant::now();
        let result = self.ensure_works(binding, &template, targets).await;
        METRICS.rendered(started, &result);
        result
    }

    async fn ensure_works(
        &self,
        binding: &B,
        template: &Value,
        targets: &[TargetCluster],
    ) -> Result<(), Error> {
        let (plane, events) = (&self.plane, &self.plane.events);
        let renderer =
            Renderer::new(binding, template, &plane.interpreter, &plane.features).map_err(Error::decision)?;
        let writes = targets.iter().map(|target| self.ensure_work(&renderer, template, target));
        let mut changed = false;
        let mut errors = Vec::new();
        for result in join_all(writes).await {
            match result {
                Ok(written) => changed |= written,
                Err(error) => errors.push(error),
            }
        }
        let result = Error::join(errors);
        match &result {
            Ok(()) if changed => {
                let message = "Sync work of binding succeed.";
                events.normal(component::<B>(), &about(binding), reasons::SYNC_WORK_SUCCEED, message);
                events.normal(component::<B>(), template, reasons::SYNC_WORK_SUCCEED, message);
            }
            Err(error) if !error.is_conflict() => {
                self.warn(binding, reasons::SYNC_WORK_FAILED, error.to_string());
                events.warning(component::<B>(), template, reasons::SYNC_WORK_FAILED, error.to_string());
            }
            _ => {}
        }
        result
    }

    async fn ensure_work(
        &self,
        renderer: &Renderer<'_, B>,
        template: &Value,
        target: &TargetCluster,
    ) -> Result<bool, Error> {
        let Some(cluster) = self.plane.mirrors.clusters.get("", &target.name) else {
            return Err(Error::Waiting(format!("for cluster {} to exist", target.name)));
        };
        let rendered = self.render_one(renderer, template, target, &cluster).await?;
        let written = self.plane.works.ensure(&self.plane.writer, &rendered.work).await?;
        if written {
            override_events::applied(&self.plane.events, template, &target.name, &rendered.applied);
        }
        Ok(written)
    }

    async fn render_one(
        &self,
        renderer: &Renderer<'_, B>,
        template: &Value,
        target: &TargetCluster,
        cluster: &Cluster,
    ) -> Result<Rendered, Error> {
        let revised = renderer.revise(target).await.map_err(Error::decision)?;
        let overrides = Arc::clone(&self.plane.overrides.read());
        let result = renderer.render(target, revised, cluster, &overrides);
        if let Err(error) = &result {
            override_events::failed(&self.plane.events, template, error);
        }
        result.map_err(Error::decision)
    }
}

impl<B: StoredBinding> Reconcile for Controller<B> {
    type Key = BindingKey;
    type View = View<B>;
    type Plan = Plan;

    async fn observe(&self, key: &BindingKey) -> Result<Option<View<B>>, Error> {
        let Some(binding) = self.mirror.find(key) else { return Ok(None) };
        let works = self.plane.works.of(binding.as_ref());
        let place = |cluster: &str| Place {
            cluster: self.plane.mirrors.clusters.get("", cluster),
            needed: binding.spec().placement.is_none() && self.is_needed(&binding, cluster),
        };
        let expected = expected_clusters(binding.spec());
        let left = works.iter().filter_map(|work| cluster_of(work)).filter(|name| !expected.contains(name));
        let left = left.map(|name| (name.to_owned(), place(name))).collect();
        let mut view = View { binding, works, left, request: None };
        if decide::is_limited(&view) {
            view.request = Some(self.plane.removal_request(view.binding.as_ref()));
        }
        Ok(Some(view))
    }

    fn decide(view: &View<B>, now: Timestamp) -> Plan {
        decide::decide(view, now)
    }

    async fn apply(&self, _: &BindingKey, view: View<B>, plan: Plan) -> Result<Outcome, Error> {
        if let Some(permit) = plan.permit {
            self.plane.note_removals(view.binding.as_ref(), permit, Timestamp::now()).await?;
        }
        if let Err(error) = self.delete(&view, &plan.delete).await {
            // A conflict is not a failure: the next turn sees what the other one wrote.
            if !error.is_conflict() {
                self.warn(&view.binding, reasons::CLEANUP_WORK_FAILED, error.to_string());
            }
            return Err(error);
        }
        match plan.then {
            Then::Nothing(_) => {}
            Then::Wait(what) => return Err(Error::Waiting(what)),
            Then::Refuse(why) => self.warn(&view.binding, reasons::SYNC_WORK_FAILED, why),
            Then::Release => {
                let (writer, mirror) = (self.plane.writer.derived(), B::mirror(&self.plane.mirrors));
                writer.release(mirror, view.binding.as_ref(), B::FINALIZER).await?;
            }
            Then::Render(targets) => self.render(&view.binding, &targets).await?,
        }
        match plan.waiting {
            None => Ok(Outcome::Done),
            Some(cluster) => {
                let object = &view.binding.spec().resource;
                let what = format!("{} {}/{}", object.kind, object.namespace, object.name);
                Err(Error::Waiting(format!("for what needs {what} to leave cluster {cluster}")))
            }
        }
    }
}

fn component<B: Binding>() -> &'static str {
    if B::NAMESPACED { "binding-controller" } else { "cluster-resource-binding-controller" }
}

#[cfg(test)]
mod tests {
    use api::policy::OverridePolicy;
    use serde_json::json;

    use super::*;
    use crate::fixtures::read;

    fn policy(generation: i64) -> Arc<OverridePolicy> {
        Arc::new(read(json!({
            "metadata": { "name": "p", "namespace": "default", "generation": generation },
            "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap" }], "overrideRules": [] },
        })))
    }

    #[test]
    fn bindings_are_looked_at_for_what_a_policy_said_and_says() {
        let key = BindingKey::new("default", "p");
        let cases = [
            ("first list", None, Some(1), true, 0),
            ("it is new", None, Some(1), false, 1),
            ("it says something else", Some(1), Some(2), false, 2),
            ("only its status changed", Some(1), Some(1), false, 0),
            ("it is gone", Some(1), None, false, 1),
        ];
        for (name, old, new, initial, expected) in cases {
            let (old, new): (Option<i64>, Option<i64>) = (old, new);
            let change =
                Change { key: &key, old: old.map(policy), new: new.map(policy), ours: false, initial };
            let specs = overridden(&change, |policy| &policy.spec, |policy| policy.metadata.generation);
            assert_eq!(specs.len(), expected, "{name}");
        }
    }
}
