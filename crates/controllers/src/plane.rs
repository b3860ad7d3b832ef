//! The control-plane side: templates, policies, bindings, placements, Works, and status on its way back.
//!
//! All controllers of this side share one set of mirrors (a watch and a copy per kind) and read nothing else. Each
//! owns a queue of keys; changes in the mirrors push keys, workers reconcile them. They start once the mirrors are
//! complete: what has not been seen yet must not look as if it did not exist.
//!
//! Code map: `write`, `figures` are the machinery · `templates` finds and mirrors every kind ·
//! `detector` and `policies` bind templates to policies · `dependencies` brings along what they need · `scheduling`
//! chooses clusters · `bindings` writes Works · `removals` holds what would take too many away · `status` brings reports back · `namespaces` mirrors namespaces into all
//! clusters · `unified_auth` lets the cluster proxy act in the name of its users.

mod bindings;
mod dependencies;
mod detector;
mod figures;
mod heads;
mod namespaces;
mod policies;
mod removals;
pub mod scheduling;
mod status;
mod templates;
mod unified_auth;
mod works;
mod write;

use std::sync::Arc;

use api::cluster::Cluster;
use api::features::Features;
use api::policy::{ClusterOverridePolicy, ClusterPropagationPolicy, OverridePolicy, PropagationPolicy};
use api::work::{ClusterResourceBinding, ResourceBinding};
use interpreter::Interpreter;
use kube::runtime::watcher;
use kube::{Api, Client};
use member::Mirror;
use parking_lot::RwLock;
use propagation::overrides::Overrides;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::common::Common;
use crate::events::Events;
use crate::{Context, Selection};
use templates::Templates;
use works::Works;

/// What the controllers of this side share.
struct Plane {
    client: Client,
    interpreter: Interpreter,
    features: Features,
    events: Events,
    templates: Arc<Templates>,
    policies: Mirror<PropagationPolicy>,
    cluster_policies: Mirror<ClusterPropagationPolicy>,
    override_policies: Mirror<OverridePolicy>,
    cluster_override_policies: Mirror<ClusterOverridePolicy>,
    overrides: RwLock<Overrides>,
    clusters: Arc<Mirror<Cluster>>,
    bindings: Mirror<ResourceBinding>,
    cluster_bindings: Mirror<ClusterResourceBinding>,
    works: Works,
    removals: removals::Removals,
    scheduler: scheduling::Settings,
}

/// Identifies a binding of either scope; the namespace of a ClusterResourceBinding is empty.
type BindingKey = member::Key;

/// Starts the selected controllers of this side.
///
/// The detector and the dependencies distributor have no name in upstream's flag; here they answer to
/// `resource-detector` and `dependencies-distributor`, so that a process can run the scheduler alone.
pub fn spawn(context: &Context, selection: &Selection, tasks: &TaskTracker) {
    let common = Common::default();
    if wire(context, &common, selection, tasks) {
        common.follow(context, tasks);
    }
}

/// As [`spawn`], with what both sides look at; returns whether anything was selected.
pub(crate) fn wire(context: &Context, common: &Common, selection: &Selection, tasks: &TaskTracker) -> bool {
    let stop = context.stop.clone();
    let (events, writer) = Events::new(context.client.clone(), stop.clone());
    tasks.spawn(writer);
    let plane = Arc::new(Plane {
        client: context.client.clone(),
        interpreter: Interpreter::native(),
        features: context.settings.features.clone(),
        events,
        templates: Templates::new(context.client.clone(), context.settings.skip.clone()),
        policies: Mirror::default(),
        cluster_policies: Mirror::default(),
        override_policies: Mirror::default(),
        cluster_override_policies: Mirror::default(),
        overrides: RwLock::default(),
        clusters: common.clusters.clone(),
        bindings: Mirror::default(),
        cluster_bindings: Mirror::default(),
        works: Works::new(common.works.clone()),
        removals: removals::Removals::new(context.settings.removals),
        scheduler: context.scheduler.clone(),
    });
    plane.follow_overrides();
    plane.follow_works();
    let mut starts: Vec<Start> = Vec::new();
    let mut start = |name: &str, wire: fn(&Arc<Plane>) -> Start| {
        if selection.has(name) {
            starts.push(wire(&plane));
        }
    };
    start("resource-detector", detector::wire);
    start("dependencies-distributor", dependencies::wire);
    start("scheduler", scheduling::wire);
    start("binding", bindings::wire);
    start("bindingStatus", status::wire);
    start("namespace", namespaces::wire);
    start("unifiedAuth", unified_auth::wire);
    if starts.is_empty() {
        return false;
    }
    plane.mirror(tasks, &stop);
    let tasks_of_workers = tasks.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => return,
            () = plane.complete() => {}
        }
        for start in starts {
            start(&tasks_of_workers, &stop);
        }
    });
    true
}

/// Starts the workers of a controller that is wired to the mirrors already.
type Start = Box<dyn FnOnce(&TaskTracker, &CancellationToken) + Send>;

impl Plane {
    /// Keeps the index of overrides in step with the policies. Wired first, so that whoever is told of a change of
    /// policies finds the index up to date.
    fn follow_overrides(self: &Arc<Self>) {
        let plane = Arc::clone(self);
        self.override_policies.subscribe(move |change| {
            let mut overrides = plane.overrides.write();
            match &change.new {
                Some(policy) => overrides.insert(Arc::clone(policy)),
                None => overrides.remove(&change.key.namespace, &change.key.name),
            }
        });
        let plane = Arc::clone(self);
        self.cluster_override_policies.subscribe(move |change| {
            let mut overrides = plane.overrides.write();
            match &change.new {
                Some(policy) => overrides.insert_cluster(Arc::clone(policy)),
                None => overrides.remove_cluster(&change.key.name),
            }
        });
    }

    fn mirror(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        macro_rules! mirrored {
            ($($mirror:ident),*) => {$({
                let (plane, stop) = (Arc::clone(self), stop.clone());
                tasks.spawn(async move {
                    let (api, config) = (Api::all(plane.client.clone()), watcher::Config::default());
                    plane.$mirror.follow(api, config, stop, |object| object).await;
                });
            })*};
        }
        mirrored!(
            policies,
            cluster_policies,
            override_policies,
            cluster_override_policies,
            bindings,
            cluster_bindings
        );
        tasks.spawn(Arc::clone(&self.templates).run(tasks.clone(), stop.clone()));
    }

    /// Waits until everything is known.
    async fn complete(&self) {
        self.policies.complete().await;
        self.cluster_policies.complete().await;
        self.override_policies.complete().await;
        self.cluster_override_policies.complete().await;
        self.clusters.complete().await;
        self.bindings.complete().await;
        self.cluster_bindings.complete().await;
        self.works.mirror.complete().await;
        self.templates.complete().await;
    }
}
