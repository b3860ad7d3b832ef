//! Chooses the clusters of bindings: the scheduler around the pure `scheduler` crate.
//!
//! Watches: bindings that have a policy, Clusters.
//! Writes: `spec.clusters` and the applied placement; the `Scheduled` condition and what the scheduler has
//! observed.
//!
//! Bindings are taken from the queue in order and scheduled in parallel: a decision depends on the clusters,
//! not on other decisions. Where features make them depend on each other (rules between workloads, protection
//! against overcommitment), one is finished before the next begins. A binding that could not be placed is
//! enqueued when a cluster changes in a way that may help.
//!
//! Code map: `decide` decides about a binding · `turns` is the queue · `conclude` writes results · `settings`
//! holds the flags · `obstacles` knows which binding waits for what · `diagnoses` keeps the reasons of the
//! last decisions · `estimating` asks the accurate estimators · `local` answers for members without one ·
//! `metrics` has the metrics.

mod conclude;
mod decide;
mod diagnoses;
mod estimating;
mod local;
mod metrics;
mod obstacles;
mod settings;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::Arc;
use std::time::Instant;

use api::cluster::Cluster;
use api::work::{ClusterResourceBinding, ResourceBinding, ResourceHealth};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use propagation::Binding;
use runtime::{Change, Error, Key, Mirror, Outcome, Reconcile, controller};
use scheduler::queue::Queue;
use scheduler::trigger::{self, ChangedCluster};
use scheduler::{Gates, Scheduler};
use tokio::sync::{Notify, OnceCell};

use super::{Plane, Start, StoredBinding};
use decide::{Known, Plan, Subject, View};
pub use diagnoses::Diagnoses;
pub use estimating::Estimating;
use estimating::Estimators;
use metrics::Incoming;
use obstacles::{News, Obstacles};
pub use settings::Settings;

/// How many bindings are scheduled at once: enough to keep the server's group commits full.
const AT_ONCE: usize = 64;

struct Controller {
    plane: Arc<Plane>,
    settings: Settings,
    scheduler: Arc<Scheduler>,
    /// The source of events; there is one name per process.
    component: &'static str,
    /// The input of decisions. Locked before `turns` where both are needed.
    known: RwLock<Known>,
    turns: Mutex<Turns>,
    wake: Notify,
    estimators: Option<Estimators>,
    /// Every estimator was tried once.
    connected: OnceCell<()>,
}

#[derive(Default)]
struct Turns {
    queue: Queue,
    obstacles: Obstacles,
    clock: Clock,
}

impl Turns {
    /// Has a binding come up because of an event.
    fn push(&mut self, key: &str, priority: i32) {
        self.queue.push(key, priority, self.clock.now());
    }
}

/// What the queue counts time with. It does not jump: after a clock on the wall was set back, bindings that failed would wait until
/// it has caught up.
struct Clock {
    /// The time on the wall when it began.
    began: Timestamp,
    at: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { began: Timestamp::now(), at: Instant::now() }
    }
}

impl Clock {
    fn now(&self) -> Timestamp {
        self.began.checked_add(self.at.elapsed()).unwrap_or(self.began)
    }
}

/// A binding of either scope as the scheduler crate sees it.
trait Scheduled: StoredBinding {
    fn seen(&self) -> trigger::Binding<'_>;
    /// Returns the binding if rules between workloads and assumptions concern it.
    fn namespaced(&self) -> Option<&ResourceBinding>;
}

impl Scheduled for ResourceBinding {
    fn seen(&self) -> trigger::Binding<'_> {
        self.into()
    }

    fn namespaced(&self) -> Option<&ResourceBinding> {
        Some(self)
    }
}

impl Scheduled for ClusterResourceBinding {
    fn seen(&self) -> trigger::Binding<'_> {
        self.into()
    }

    fn namespaced(&self) -> Option<&ResourceBinding> {
        None
    }
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let controller = subscribed(plane);
    Box::new(move || {
        let supervisor = controller.plane.supervisor.clone();
        controller.keep_connections(&supervisor);
        controller::run(&controller, &controller, controller.at_once(), &supervisor);
    })
}

fn subscribed(plane: &Arc<Plane>) -> Arc<Controller> {
    let controller = Arc::new(Controller::new(plane, plane.scheduler.clone()));
    plane.mirrors.bindings.subscribe({
        let controller = Arc::clone(&controller);
        move |change| {
            controller.relations_changed(change);
            controller.binding_changed(change);
        }
    });
    plane.mirrors.cluster_bindings.subscribe({
        let controller = Arc::clone(&controller);
        move |change| controller.binding_changed(change)
    });
    plane.mirrors.clusters.subscribe({
        let controller = Arc::clone(&controller);
        move |change| {
            controller.cluster_changed(change);
            controller.estimators.iter().for_each(|estimators| estimators.cluster_changed(change));
        }
    });
    controller
}

impl Controller {
    fn new(plane: &Arc<Plane>, settings: Settings) -> Self {
        Self {
            plane: Arc::clone(plane),
            scheduler: Arc::new(settings.scheduler(Gates::from(&plane.features))),
            component: settings.name.clone().leak(),
            estimators: settings.estimating.clone().map(|using| Estimators::new(using, plane)),
            settings,
            known: RwLock::default(),
            turns: Mutex::default(),
            wake: Notify::new(),
            connected: OnceCell::new(),
        }
    }

    /// Records what decisions about other bindings depend on.
    fn relations_changed(&self, change: &Change<'_, ResourceBinding>) {
        let gates = self.scheduler.gates();
        if gates.workload_affinity {
            let mut known = self.known.write();
            match &change.new {
                Some(binding) => Arc::make_mut(&mut known.groups).see(binding),
                None => Arc::make_mut(&mut known.groups).forget(&change.key.namespace, &change.key.name),
            }
        }
        if gates.overcommit_protection
            && let Some(new) = &change.new
        {
            let key = new.seen().key();
            let healthy = |binding: &ResourceBinding, cluster: &str| {
                let mut all = binding.status.aggregated_status.iter();
                all.any(|one| one.cluster_name == cluster && one.health == Some(ResourceHealth::Healthy))
            };
            let mut known = self.known.write();
            for item in &new.status.aggregated_status {
                let cluster = &item.cluster_name;
                let before = change.old.as_ref().is_some_and(|old| healthy(old, cluster));
                if healthy(new, cluster) && !before {
                    Arc::make_mut(&mut known.assumptions).release(&key, cluster);
                }
            }
        }
    }

    fn binding_changed<B: Scheduled>(&self, change: &Change<'_, B>) {
        let watched = |binding: &B| trigger::is_watched(&self.settings.name, binding.seen());
        let Some(new) = &change.new else {
            if let Some(old) = &change.old {
                let key = old.seen().key();
                Arc::make_mut(&mut self.known.write().assumptions).forget(&key);
                self.settings.diagnoses.forget(&key);
                let mut turns = self.turns.lock();
                turns.queue.forget(&key);
                turns.obstacles.forget(&key);
            }
            return;
        };
        let moved = change
            .old
            .as_ref()
            .is_none_or(|old| old.metadata().generation != new.metadata().generation || !watched(old));
        if moved && watched(new) {
            let key = new.seen().key();
            self.turns.lock().push(&key, self.priority(new.as_ref()));
            let known = change.old.as_ref().is_some_and(|old| watched(old));
            metrics::incoming(if known { Incoming::BindingUpdate } else { Incoming::BindingAdd }, 1);
            self.wake.notify_one();
        }
    }

    /// Handles a change of a cluster, and enqueues the bindings that it concerns.
    fn cluster_changed(&self, change: &Change<'_, Cluster>) {
        let Some(new) = &change.new else {
            Arc::make_mut(&mut self.known.write().fleet).remove(&change.key.name);
            return;
        };
        Arc::make_mut(&mut self.known.write().fleet).upsert(Arc::clone(new));
        if change.initial {
            return;
        }
        let news = News::between(change.old.as_deref(), new);
        if !news.shape && !news.room {
            return;
        }
        let any = ChangedCluster::of_any_kind(change.old.as_ref(), new);
        let waiting = self.turns.lock().obstacles.eased_by(news);
        for key in waiting {
            let key = turns::key_of(&key);
            if key.namespace.is_empty() {
                self.push_waiting(self.plane.mirrors.cluster_bindings.find(&key), &any);
            } else {
                self.push_waiting(self.plane.mirrors.bindings.find(&key), &any);
            }
        }
        let changed = match &change.old {
            Some(old) if old.status.api_enablements == new.status.api_enablements => {
                ChangedCluster::new(old, new)
            }
            // A cluster that is new, or that serves other kinds than before, may suit any binding whose
            // affinity allows it.
            _ => Some(any),
        };
        if let Some(changed) = changed {
            self.push_concerned(&self.plane.mirrors.bindings, &changed);
            self.push_concerned(&self.plane.mirrors.cluster_bindings, &changed);
        }
        self.wake.notify_one();
    }

    /// Wakes a binding that could not be placed. One with ordered affinities waits for the clusters of all of them.
    fn push_waiting<B: Scheduled>(&self, binding: Option<Arc<B>>, cluster: &ChangedCluster) {
        let Some(binding) = binding else { return };
        // It may have been suspended, or have lost its policy, after it could not be placed.
        if !trigger::is_watched(&self.settings.name, binding.seen()) {
            return;
        }
        let placement = binding.spec().placement.as_ref();
        let ordered = placement.is_some_and(|placement| !placement.cluster_affinities.is_empty());
        if ordered || cluster.concerns(&self.settings.name, binding.seen()) {
            let key = binding.seen().key();
            self.turns.lock().push(&key, self.priority(binding.as_ref()));
            metrics::incoming(Incoming::ClusterChanged, 1);
        }
    }

    fn push_concerned<B: Scheduled>(&self, mirror: &Mirror<B>, changed: &ChangedCluster) {
        let concerned = mirror.all();
        let concerned = concerned.iter().filter(|binding| {
            changed.concerns(&self.settings.name, binding.seen())
                && trigger::is_watched(&self.settings.name, binding.seen())
        });
        let keys: Vec<(String, i32)> =
            concerned.map(|binding| (binding.seen().key(), self.priority(binding.as_ref()))).collect();
        metrics::incoming(Incoming::ClusterChanged, keys.len());
        let mut turns = self.turns.lock();
        for (key, priority) in keys {
            turns.push(&key, priority);
        }
    }

    fn priority<B: Binding>(&self, binding: &B) -> i32 {
        let priority = binding.spec().schedule_priority.as_ref().map_or(0, |priority| priority.priority);
        if self.scheduler.gates().priority_queue { priority } else { 0 }
    }

    /// Returns how many bindings may be scheduled at once: one, if decisions depend on each other.
    fn at_once(&self) -> usize {
        let gates = self.scheduler.gates();
        if gates.workload_affinity || gates.overcommit_protection { 1 } else { AT_ONCE }
    }

    fn find(&self, key: &Key) -> Option<Subject> {
        let mirrors = &self.plane.mirrors;
        if key.namespace.is_empty() {
            mirrors.cluster_bindings.find(key).map(Subject::Cluster)
        } else {
            mirrors.bindings.find(key).map(Subject::Namespaced)
        }
    }

    fn tell_panic(&self, key: &Key, panic: &str) {
        let mirrors = &self.plane.mirrors;
        if key.namespace.is_empty() {
            self.plane.tell_panic(self.component, &mirrors.cluster_bindings, key, panic);
        } else {
            self.plane.tell_panic(self.component, &mirrors.bindings, key, panic);
        }
    }

    /// Brings a binding in the mirror up to date; returns whether it still exists. The mirror may not show
    /// the write that was faster than ours yet.
    async fn look_up<B: Scheduled>(&self, mirror: &Mirror<B>, key: &Key) -> Result<bool, Error> {
        let newer = self.plane.writer.api::<B>(&key.namespace).get_opt(&key.name).await?;
        Ok(newer.map(|newer| mirror.note(newer)).is_some())
    }
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let started = Instant::now();
        let Some(subject) = self.find(key) else { return Ok(None) };
        let seen = self.turns.lock().obstacles.seen();
        let mut view = View {
            subject,
            scheduler: self.scheduler.clone(),
            known: self.known.read().clone(),
            answers: self.estimators.is_some().then(Default::default),
            seen,
            started,
        };
        let now = Timestamp::now();
        let mut trial = None;
        while let Some(term) = decide::unanswered(&view, &mut trial, now) {
            let answer = self.ask(&view, &term, now).await;
            view.answers.get_or_insert_default().insert(term, answer);
            // An answer may take a while.
            view.known = self.known.read().clone();
        }
        Ok(Some(view))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide::decide(view, now)
    }

    async fn apply(&self, _: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        // Drops the input of the decision, so that the next change need not copy it.
        let View { subject, seen, started, .. } = view;
        let attempt = conclude::Made { plan, seen, started };
        match subject {
            Subject::Namespaced(binding) => {
                self.carry_out(&self.plane.mirrors.bindings, binding.as_ref(), attempt).await
            }
            Subject::Cluster(binding) => {
                self.carry_out(&self.plane.mirrors.cluster_bindings, binding.as_ref(), attempt).await
            }
        }
    }

    async fn refresh(&self, key: &Key) -> Result<bool, Error> {
        let mirrors = &self.plane.mirrors;
        if key.namespace.is_empty() {
            self.look_up(&mirrors.cluster_bindings, key).await
        } else {
            self.look_up(&mirrors.bindings, key).await
        }
    }
}
