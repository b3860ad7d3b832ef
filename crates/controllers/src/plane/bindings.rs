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
use member::{Change, Mirror};
use propagation::render::{Rendered, Renderer};
use propagation::withdrawal::{self, Leftover, Verdict};
use propagation::{Binding, Object, check_scope, directly_purged_clusters, expected_clusters, selector};
use serde_json::Value;

use super::figures::FIGURES;
use super::templates::TemplateKey;
use super::works::binding_of;
use super::write::{Error, Guard, Stored};
use super::{BindingKey, Plane, Start, removals, write};
use crate::events::about;
use crate::queue::Queue;

const WORKERS: usize = 8;
const OVERRIDES: &str = "override-manager";

pub(super) fn wire(plane: &Arc<Plane>) -> Start {
    let queue = Queue::new("binding-controller");

    let pushed = Arc::clone(&queue);
    plane.bindings.subscribe(move |change| push_changed(&pushed, change));
    let pushed = Arc::clone(&queue);
    plane.cluster_bindings.subscribe(move |change| push_changed(&pushed, change));

    // A Work that vanishes may be one that is wanted, or one that had to go before others come.
    let pushed = Arc::clone(&queue);
    plane.works.mirror.subscribe(move |change| {
        if let (Some(old), None) = (&change.old, &change.new)
            && let Some(binding) = binding_of(old)
        {
            pushed.push(binding);
        }
    });

    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.clusters.subscribe(move |change| {
        if change.old.is_none() && !change.initial {
            push_bound_to(&of.bindings, &pushed, &change.key.name);
            push_bound_to(&of.cluster_bindings, &pushed, &change.key.name);
        }
    });

    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.override_policies.subscribe(move |change| {
        let specs = overridden(change, |policy| &policy.spec, |policy| policy.metadata.generation);
        if !specs.is_empty() {
            push_selected(&of, &of.bindings, &pushed, &specs, Some(&change.key.namespace));
        }
    });
    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.cluster_override_policies.subscribe(move |change| {
        let specs = overridden(change, |policy| &policy.spec, |policy| policy.metadata.generation);
        if !specs.is_empty() {
            push_selected(&of, &of.bindings, &pushed, &specs, None);
            push_selected(&of, &of.cluster_bindings, &pushed, &specs, None);
        }
    });

    // Where no cluster was found, what a cluster says of itself decides whether it keeps its copy.
    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.clusters.subscribe(move |change| {
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && described(old) != described(new)
        {
            push_left_in(&of, &pushed, &change.key.name);
        }
    });

    let limit = removals::wire(plane, &queue);
    let plane = Arc::clone(plane);
    Box::new(move |tasks, stop| {
        limit(tasks, stop);
        queue.spawn(WORKERS, tasks, stop, move |key: BindingKey| {
            let plane = Arc::clone(&plane);
            async move {
                if key.namespace.is_empty() {
                    reconcile(&plane, &plane.cluster_bindings, &key).await
                } else {
                    reconcile(&plane, &plane.bindings, &key).await
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

/// Returns what placements look at in a cluster.
fn described(cluster: &Cluster) -> impl PartialEq + '_ {
    let spec = &cluster.spec;
    (&cluster.metadata.labels, &spec.provider, &spec.region, &spec.zones)
}

/// Pushes the bindings that have a copy in a cluster although no cluster was found for them.
fn push_left_in(plane: &Plane, queue: &Queue<BindingKey>, cluster: &str) {
    let space = api::names::execution_space(cluster);
    for work in plane.works.mirror.keys(|key| key.namespace == space) {
        let Some(key) = plane.works.mirror.find(&work).and_then(|work| binding_of(&work)) else { continue };
        let found_none = if key.namespace.is_empty() {
            plane.cluster_bindings.find(&key).is_some_and(|binding| binding.spec.clusters.is_empty())
        } else {
            plane.bindings.find(&key).is_some_and(|binding| binding.spec.clusters.is_empty())
        };
        if found_none {
            queue.push(key);
        }
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

async fn reconcile<B: Stored>(plane: &Plane, mirror: &Mirror<B>, key: &BindingKey) -> Result<(), Error> {
    let Some(binding) = mirror.get(&key.namespace, &key.name) else { return Ok(()) };
    let id = binding.permanent_id();
    let works = plane.works.of(id);
    if binding.metadata().deletion_timestamp.is_some() {
        return clean_up(plane, binding.as_ref(), &works).await;
    }
    if id.is_empty() {
        return Err(Error::Waiting(format!("for the permanent id of binding {}", key.name)));
    }

    let purged = directly_purged_clusters(binding.spec());
    let Leaving { gone: left, waiting } = leaving(plane, binding.as_ref(), &works).await?;
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
    FIGURES.rendered(started, &result);
    result?;
    match waiting {
        None => Ok(()),
        Some(cluster) => {
            Err(Error::Waiting(format!("for what needs {} to leave cluster {cluster}", template.describe())))
        }
    }
}

/// The Works that are to go.
struct Leaving<'a> {
    gone: Vec<&'a Arc<Work>>,
    /// A cluster in which a dependency stays until what needs it has left.
    waiting: Option<String>,
}

/// Decides which Works of a binding are to go now.
async fn leaving<'a, B: Stored>(
    plane: &Plane,
    binding: &B,
    works: &'a [Arc<Work>],
) -> Result<Leaving<'a>, Error> {
    let spec = binding.spec();
    let (expected, purged) = (expected_clusters(spec), directly_purged_clusters(spec));
    let mut leaving = Leaving { gone: Vec::new(), waiting: None };
    let mut limited = Vec::new();
    for work in works.iter().filter(|work| work.metadata.deletion_timestamp.is_none()) {
        let Some(name) = cluster_of(work).filter(|name| !expected.contains(name)) else { continue };
        let cluster = plane.clusters.get("", name);
        let needed = spec.placement.is_none() && is_needed(plane, binding, name);
        let verdict = withdrawal::judge(&Leftover {
            cluster: cluster.as_deref(),
            placement: spec.placement.as_ref(),
            found_none: expected.is_empty(),
            purged: purged.contains(name),
            needed,
        });
        match verdict {
            Verdict::Keep if needed => leaving.waiting = Some(name.to_owned()),
            Verdict::Keep => {}
            Verdict::Remove => leaving.gone.push(work),
            Verdict::Limited => limited.push(work),
        }
    }
    if !limited.is_empty() && plane.may_remove(binding, &limited).await? {
        leaving.gone.extend(limited);
    }
    Ok(leaving)
}

/// Returns whether an object that needs this one has a copy in the cluster.
fn is_needed<B: Binding>(plane: &Plane, binding: &B, cluster: &str) -> bool {
    binding.spec().required_by.iter().any(|referrer| {
        let referring = plane.bindings.get(&referrer.namespace, &referrer.name);
        let works = referring.map(|referring| plane.works.of(referring.permanent_id())).unwrap_or_default();
        works
            .iter()
            .any(|work| work.metadata.deletion_timestamp.is_none() && cluster_of(work) == Some(cluster))
    })
}

async fn clean_up<B: Stored>(plane: &Plane, binding: &B, works: &[Arc<Work>]) -> Result<(), Error> {
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
    let mut released = binding.clone();
    if let Some(finalizers) = &mut Binding::metadata_mut(&mut released).finalizers {
        finalizers.retain(|finalizer| finalizer != B::FINALIZER);
    }
    let api = B::api(&plane.client, binding.metadata().namespace.as_deref().unwrap_or(""));
    match write::update(&api, binding, &released, Guard::Version).await {
        Err(Error::Api(error)) if write::is_not_found(&error) => Ok(()),
        result => result.map(drop),
    }
}

async fn delete_all(plane: &Plane, works: &[&Arc<Work>]) -> Result<(), Error> {
    let results = join_all(works.iter().map(|work| plane.works.delete(&plane.client, work))).await;
    aggregate(results.into_iter().filter_map(Result::err).collect())
}

/// One error stays itself, so that a conflict is known as one.
fn aggregate(mut errors: Vec<Error>) -> Result<(), Error> {
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(Error::Several(errors.iter().map(ToString::to_string).collect())),
    }
}

pub(super) fn cluster_of(work: &Work) -> Option<&str> {
    api::names::cluster_of_execution_space(work.metadata.namespace.as_deref()?)
}

async fn ensure_works<B: Stored>(plane: &Plane, binding: &B, template: &Value) -> Result<(), Error> {
    let renderer = Renderer::new(binding, template, &plane.interpreter, &plane.features)?;
    let writes = renderer.targets().iter().map(|target| ensure_work(plane, &renderer, template, target));
    let mut changed = false;
    let mut errors = Vec::new();
    for result in join_all(writes).await {
        match result {
            Ok(written) => changed |= written,
            Err(error) => errors.push(error),
        }
    }
    let result = aggregate(errors);
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

async fn ensure_work<B: Stored>(
    plane: &Plane,
    renderer: &Renderer<'_, B>,
    template: &Value,
    target: &TargetCluster,
) -> Result<bool, Error> {
    let Some(cluster) = plane.clusters.get("", &target.name) else {
        return Err(Error::Waiting(format!("for cluster {} to exist", target.name)));
    };
    let rendered = render(plane, renderer, template, target, &cluster)?;
    let written = plane.works.ensure(&plane.client, &rendered.work).await?;
    if written {
        for contribution in rendered.applied.cluster.iter().chain(&rendered.applied.namespaced) {
            let message = format!("Apply {} for cluster({}) succeed.", contribution.describe(), target.name);
            plane.events.normal(OVERRIDES, template, reasons::APPLY_OVERRIDE_POLICY_SUCCEED, message);
        }
    }
    Ok(written)
}

fn render<B: Stored>(
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
    Ok(result?)
}

fn component<B: Binding>() -> &'static str {
    if B::NAMESPACED { "binding-controller" } else { "cluster-resource-binding-controller" }
}
