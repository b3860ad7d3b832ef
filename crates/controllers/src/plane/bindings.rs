//! Keeps the Works of a binding in step with its chosen clusters.
//!
//! Watches: both kinds of bindings, override policies (the bindings they may touch), Works that vanish, clusters that
//! appear.
//! Writes: Works; releases the binding's finalizer once its Works are told to go.

use std::sync::Arc;
use std::time::Instant;

use api::cluster::Cluster;
use api::events as reasons;
use api::policy::{OverrideSpec, ResourceSelector};
use api::work::{TargetCluster, Work};
use futures::future::join_all;
use propagation::render::{Rendered, Renderer};
use propagation::{Binding, Object, check_scope, directly_purged_clusters, expected_clusters, selector};
use runtime::{Change, Error, Mirror, Queue};
use serde_json::Value;

use super::metrics::METRICS;
use super::templates::TemplateKey;
use super::works::binding_of;
use super::{BindingKey, Plane, Start, StoredBinding};
use runtime::events::about;

const WORKERS: usize = 8;
const OVERRIDES: &str = "override-manager";

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let queue = Queue::new("binding-controller");

    let pushed = Arc::clone(&queue);
    plane.mirrors.bindings.subscribe(move |change| push_changed(&pushed, change));
    let pushed = Arc::clone(&queue);
    plane.mirrors.cluster_bindings.subscribe(move |change| push_changed(&pushed, change));

    // A Work that vanishes may be one that is wanted, or one that had to go before others come.
    let pushed = Arc::clone(&queue);
    plane.mirrors.works.subscribe(move |change| {
        if let (Some(old), None) = (&change.old, &change.new)
            && let Some(binding) = binding_of(old)
        {
            pushed.push(binding);
        }
    });

    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.mirrors.clusters.subscribe(move |change| {
        if change.old.is_none() && !change.initial {
            push_bound_to(&of.mirrors.bindings, &pushed, &change.key.name);
            push_bound_to(&of.mirrors.cluster_bindings, &pushed, &change.key.name);
        }
    });

    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.mirrors.override_policies.subscribe(move |change| {
        let specs = overridden(change, |policy| &policy.spec, |policy| policy.metadata.generation);
        if !specs.is_empty() {
            push_selected(&of, &of.mirrors.bindings, &pushed, &specs, Some(&change.key.namespace));
        }
    });
    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.mirrors.cluster_override_policies.subscribe(move |change| {
        let specs = overridden(change, |policy| &policy.spec, |policy| policy.metadata.generation);
        if !specs.is_empty() {
            push_selected(&of, &of.mirrors.bindings, &pushed, &specs, None);
            push_selected(&of, &of.mirrors.cluster_bindings, &pushed, &specs, None);
        }
    });

    let plane = Arc::clone(plane);
    let supervisor = plane.supervisor.clone();
    Box::new(move || {
        queue.spawn(WORKERS, &supervisor, move |key: BindingKey| {
            let plane = Arc::clone(&plane);
            async move {
                if key.namespace.is_empty() {
                    reconcile(&plane, &plane.mirrors.cluster_bindings, &key).await
                } else {
                    reconcile(&plane, &plane.mirrors.bindings, &key).await
                }
            }
        });
    })
}

fn push_changed<B: Binding>(queue: &Queue<BindingKey>, change: &Change<B>) {
    let Some(new) = &change.new else { return };
    if change.old.as_ref().is_none_or(|old| old.metadata().generation != new.metadata().generation) {
        queue.push(key(new.as_ref()));
    }
}

pub(super) fn key<B: Binding>(binding: &B) -> BindingKey {
    let metadata = binding.metadata();
    BindingKey {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

fn push_bound_to<B: Binding>(mirror: &Mirror<B>, queue: &Queue<BindingKey>, cluster: &str) {
    for binding in mirror.all() {
        if propagation::target_clusters(binding.spec()).iter().any(|target| target.name == cluster) {
            queue.push(key(binding.as_ref()));
        }
    }
}

/// Returns what an override policy said and says, when that changed; nothing for what the first list shows, since
/// all bindings are looked at then anyway.
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

fn push_selected<B: Binding>(
    plane: &Plane,
    mirror: &Mirror<B>,
    queue: &Queue<BindingKey>,
    specs: &[OverrideSpec],
    namespace: Option<&str>,
) {
    let everything = specs.iter().any(|spec| spec.resource_selectors.is_empty());
    let selectors: Vec<ResourceSelector> =
        specs.iter().flat_map(|spec| spec.resource_selectors.clone()).collect();
    for binding in mirror.all() {
        let resource = &binding.spec().resource;
        if namespace.is_some_and(|namespace| resource.namespace != namespace) {
            continue;
        }
        let selected = everything
            || plane
                .templates
                .get(&TemplateKey::of_reference(resource))
                .is_some_and(|template| selector::matches_any(&selectors, &template).is_some());
        if selected {
            queue.push(key(binding.as_ref()));
        }
    }
}

async fn reconcile<B: StoredBinding>(
    plane: &Plane,
    mirror: &Mirror<B>,
    key: &BindingKey,
) -> Result<(), Error> {
    let Some(binding) = mirror.get(&key.namespace, &key.name) else { return Ok(()) };
    let id = binding.permanent_id();
    let works = plane.works.of(id);
    if binding.metadata().deletion_timestamp.is_some() {
        return clean_up(plane, binding.as_ref(), &works).await;
    }
    if id.is_empty() {
        return Err(Error::Waiting(format!("for the permanent id of binding {}", key.name)));
    }

    let expected = expected_clusters(binding.spec());
    let purged = directly_purged_clusters(binding.spec());
    // That a placement finds no cluster is no wish to have the object nowhere: what runs keeps running, except where it
    // was evicted from on purpose. Bindings without a placement follow others, and nobody names them any more.
    let found_none = expected.is_empty() && binding.spec().placement.is_some();
    let left: Vec<&Arc<Work>> = works
        .iter()
        .filter(|work| work.metadata.deletion_timestamp.is_none())
        .filter(|work| cluster_of(work).is_some_and(|cluster| !expected.contains(cluster)))
        .filter(|work| !found_none || cluster_of(work).is_some_and(|cluster| purged.contains(cluster)))
        .collect();
    if let Err(error) = delete_all(plane, &left).await {
        let message = error.to_string();
        plane.events.warning(
            component::<B>(),
            &about(binding.as_ref()),
            reasons::CLEANUP_WORK_FAILED,
            message,
        );
        return Err(error);
    }
    // The old copy must be gone before a new one is made; its end brings us back here.
    if works.iter().any(|work| cluster_of(work).is_some_and(|cluster| purged.contains(cluster))) {
        return Ok(());
    }

    if let Err(error) = check_scope(binding.as_ref()) {
        let message = error.to_string();
        plane.events.warning(component::<B>(), &about(binding.as_ref()), reasons::SYNC_WORK_FAILED, message);
        return Ok(());
    }
    let resource = &binding.spec().resource;
    let Some(template) = plane.templates.fetch(resource).await? else { return Ok(()) };
    if !resource.uid.is_empty() && template.uid() != resource.uid {
        // The template was deleted and made anew; this binding is about to be collected.
        return Ok(());
    }
    let started = Instant::now();
    let result = ensure_works(plane, binding.as_ref(), &template).await;
    METRICS.rendered(started, &result);
    result
}

async fn clean_up<B: StoredBinding>(plane: &Plane, binding: &B, works: &[Arc<Work>]) -> Result<(), Error> {
    let held = |finalizer: &String| finalizer == B::FINALIZER;
    if !binding.metadata().finalizers.iter().flatten().any(held) {
        return Ok(());
    }
    let present: Vec<&Arc<Work>> =
        works.iter().filter(|work| work.metadata.deletion_timestamp.is_none()).collect();
    if let Err(error) = delete_all(plane, &present).await {
        let message = error.to_string();
        plane.events.warning(component::<B>(), &about(binding), reasons::CLEANUP_WORK_FAILED, message);
        return Err(error);
    }
    plane.writer.derived().release(binding, B::FINALIZER).await.map(drop)
}

async fn delete_all(plane: &Plane, works: &[&Arc<Work>]) -> Result<(), Error> {
    let results = join_all(works.iter().map(|work| plane.writer.delete(work.as_ref()))).await;
    Error::join(results.into_iter().filter_map(Result::err).collect())
}

fn cluster_of(work: &Work) -> Option<&str> {
    api::names::cluster_of_execution_space(work.metadata.namespace.as_deref()?)
}

async fn ensure_works<B: StoredBinding>(plane: &Plane, binding: &B, template: &Value) -> Result<(), Error> {
    let renderer =
        Renderer::new(binding, template, &plane.interpreter, &plane.features).map_err(Error::decision)?;
    let writes = renderer.targets().iter().map(|target| ensure_work(plane, &renderer, template, target));
    let mut changed = false;
    let mut errors = Vec::new();
    for result in join_all(writes).await {
        match result {
            Ok(written) => changed |= written,
            Err(error) => errors.push(error),
        }
    }
    let result = Error::join(errors);
    let component = component::<B>();
    match &result {
        Ok(()) if changed => {
            let message = "Sync work of binding succeed.";
            plane.events.normal(component, &about(binding), reasons::SYNC_WORK_SUCCEED, message);
            plane.events.normal(component, template, reasons::SYNC_WORK_SUCCEED, message);
        }
        Err(error) if !error.is_conflict() => {
            let message = error.to_string();
            plane.events.warning(component, &about(binding), reasons::SYNC_WORK_FAILED, message.clone());
            plane.events.warning(component, template, reasons::SYNC_WORK_FAILED, message);
        }
        _ => {}
    }
    result
}

async fn ensure_work<B: StoredBinding>(
    plane: &Plane,
    renderer: &Renderer<'_, B>,
    template: &Value,
    target: &TargetCluster,
) -> Result<bool, Error> {
    let Some(cluster) = plane.mirrors.clusters.get("", &target.name) else {
        return Err(Error::Waiting(format!("for cluster {} to exist", target.name)));
    };
    let rendered = render(plane, renderer, template, target, &cluster)?;
    let written = plane.works.ensure(&plane.writer, &rendered.work).await?;
    if written {
        for contribution in rendered.applied.cluster.iter().chain(&rendered.applied.namespaced) {
            let message = format!("Apply {} for cluster({}) succeed.", contribution.describe(), target.name);
            plane.events.normal(OVERRIDES, template, reasons::APPLY_OVERRIDE_POLICY_SUCCEED, message);
        }
    }
    Ok(written)
}

fn render<B: StoredBinding>(
    plane: &Plane,
    renderer: &Renderer<'_, B>,
    template: &Value,
    target: &TargetCluster,
    cluster: &Cluster,
) -> Result<Rendered, Error> {
    let result = renderer.render(target, cluster, &plane.overrides.read());
    if let Err(error @ propagation::Error::Override { .. }) = &result {
        let message = error.to_string();
        plane.events.warning(OVERRIDES, template, reasons::APPLY_OVERRIDE_POLICY_FAILED, message);
    }
    result.map_err(Error::decision)
}

fn component<B: Binding>() -> &'static str {
    if B::NAMESPACED { "binding-controller" } else { "cluster-resource-binding-controller" }
}
