//! Chooses the clusters of bindings: the scheduler around the pure `scheduler` crate.
//!
//! Watches: bindings that a policy stands behind, Clusters.
//! Writes: `spec.clusters` and the applied placement; the `Scheduled` condition and what the scheduler has observed.
//!
//! Bindings are taken up in the order of the queue and worked on side by side: a decision depends on the clusters, not
//! on other decisions. Where features make them depend on each other (rules between workloads, protection against
//! overcommitment), one is finished before the next begins. A binding that could not be placed is woken by the cluster
//! that changes that.
//!
//! Code map: `settings` what flags say · `obstacles` who waits for what · `conclude` writes results · `diagnoses` keeps
//! the reasons of the last decisions · `estimating` asks the accurate estimators · `metrics` are what is measured.

mod conclude;
mod diagnoses;
mod estimating;
mod metrics;
mod obstacles;
mod settings;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use api::cluster::Cluster;
use api::work::{ClusterResourceBinding, ResourceBinding, ResourceHealth};
use futures::FutureExt;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use propagation::Binding;
use runtime::supervisor::message;
use runtime::{Change, Error, Guard, Mirror, Supervisor};
use scheduler::outcome::{self, Retry};
use scheduler::queue::{Item, Queue};
use scheduler::trigger::{self, ChangedCluster, Next};
use scheduler::{Assumptions, Attempt, Estimator, Fleet, Gates, Groups, Scheduler, Trial, World};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{Plane, Start, StoredBinding};
pub use diagnoses::Diagnoses;
pub use estimating::Estimating;
use estimating::Estimators;
use metrics::Incoming;
use obstacles::{News, Obstacles, Seen};
pub use settings::Settings;

/// How many bindings are worked on at once: enough to keep the server's group commits full.
const AT_ONCE: usize = 64;
/// How often a decision is made anew when someone else was faster.
const ATTEMPTS: usize = 5;

struct Controller {
    plane: Arc<Plane>,
    settings: Settings,
    scheduler: Scheduler,
    /// The source of events; there is one name per process.
    component: &'static str,
    /// What decisions are made from. Locked before `turns` where both are needed.
    known: RwLock<Known>,
    turns: Mutex<Turns>,
    wake: Notify,
    estimators: Option<Estimators>,
}

#[derive(Default)]
struct Known {
    fleet: Fleet,
    groups: Groups,
    assumptions: Assumptions,
}

#[derive(Default)]
struct Turns {
    queue: Queue,
    obstacles: Obstacles,
}

/// A binding of either scope as the scheduler crate sees it.
trait Scheduled: StoredBinding {
    fn seen(&self) -> trigger::Binding<'_>;
    /// Returns the binding if it is one that rules between workloads and assumptions are about.
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
    let settings = plane.scheduler.clone();
    let controller = Arc::new(Controller {
        plane: Arc::clone(plane),
        scheduler: settings.scheduler(Gates::from(&plane.features)),
        component: settings.name.clone().leak(),
        estimators: settings.estimating.clone().map(|using| Estimators::new(using, plane.client().clone())),
        settings,
        known: RwLock::default(),
        turns: Mutex::default(),
        wake: Notify::new(),
    });
    let of = Arc::clone(&controller);
    plane.mirrors.bindings.subscribe(move |change| {
        of.relations_changed(change);
        of.binding_changed(change);
    });
    let of = Arc::clone(&controller);
    plane.mirrors.cluster_bindings.subscribe(move |change| of.binding_changed(change));
    let of = Arc::clone(&controller);
    plane.mirrors.clusters.subscribe(move |change| {
        of.cluster_changed(change);
        of.estimators.iter().for_each(|estimators| estimators.cluster_changed(change));
    });
    Box::new(move || {
        let supervisor = controller.plane.supervisor.clone();
        controller.keep_connections(&supervisor);
        let (workers, places) = (supervisor.clone(), Arc::new(Semaphore::new(controller.at_once())));
        supervisor.keep("scheduler", move || controller.clone().run(places.clone(), workers.clone()));
    })
}

impl Controller {
    /// Keeps what decisions about other bindings depend on.
    fn relations_changed(&self, change: &Change<'_, ResourceBinding>) {
        let gates = self.scheduler.gates();
        if gates.workload_affinity {
            let mut known = self.known.write();
            match &change.new {
                Some(binding) => known.groups.see(binding),
                None => known.groups.forget(&change.key.namespace, &change.key.name),
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
                    known.assumptions.release(&key, cluster);
                }
            }
        }
    }

    fn binding_changed<B: Scheduled>(&self, change: &Change<'_, B>) {
        let watched = |binding: &B| trigger::is_watched(&self.settings.name, binding.seen());
        let Some(new) = &change.new else {
            if let Some(old) = &change.old {
                let key = old.seen().key();
                self.known.write().assumptions.forget(&key);
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
            self.turns.lock().queue.push(&key, self.priority(new.as_ref()), Timestamp::now());
            let known = change.old.as_ref().is_some_and(|old| watched(old));
            metrics::incoming(if known { Incoming::BindingUpdate } else { Incoming::BindingAdd }, 1);
            self.wake.notify_one();
        }
    }

    /// Takes up what changed in a cluster, and whoever that concerns.
    fn cluster_changed(&self, change: &Change<'_, Cluster>) {
        let Some(new) = &change.new else {
            self.known.write().fleet.remove(&change.key.name);
            return;
        };
        self.known.write().fleet.upsert(Arc::clone(new));
        if change.initial {
            return;
        }
        let news = News::between(change.old.as_deref(), new);
        if !news.shape && !news.room {
            return;
        }
        let now = Timestamp::now();
        let any = ChangedCluster::of_any_kind(change.old.as_ref(), new);
        let waiting = self.turns.lock().obstacles.eased_by(news);
        for key in waiting {
            match key.split_once('/') {
                Some((namespace, name)) => {
                    self.push_waiting(self.plane.mirrors.bindings.get(namespace, name), &any, now);
                }
                None => self.push_waiting(self.plane.mirrors.cluster_bindings.get("", &key), &any, now),
            }
        }
        let changed = match &change.old {
            Some(old) if old.status.api_enablements == new.status.api_enablements => {
                ChangedCluster::new(old, new)
            }
            // A cluster that is new, or that serves other kinds than before, may suit anyone its affinity allows.
            _ => Some(any),
        };
        if let Some(changed) = changed {
            self.push_concerned(&self.plane.mirrors.bindings, &changed, now);
            self.push_concerned(&self.plane.mirrors.cluster_bindings, &changed, now);
        }
        self.wake.notify_one();
    }

    /// Wakes a binding that could not be placed. One with ordered affinities waits for the clusters of all of them.
    fn push_waiting<B: Scheduled>(&self, binding: Option<Arc<B>>, cluster: &ChangedCluster, now: Timestamp) {
        let Some(binding) = binding else { return };
        let placement = binding.spec().placement.as_ref();
        let ordered = placement.is_some_and(|placement| !placement.cluster_affinities.is_empty());
        if ordered || cluster.concerns(&self.settings.name, binding.seen()) {
            let key = binding.seen().key();
            self.turns.lock().queue.push(&key, self.priority(binding.as_ref()), now);
            metrics::incoming(Incoming::ClusterChanged, 1);
        }
    }

    fn push_concerned<B: Scheduled>(&self, mirror: &Mirror<B>, changed: &ChangedCluster, now: Timestamp) {
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
            turns.queue.push(&key, priority, now);
        }
    }

    fn priority<B: Binding>(&self, binding: &B) -> i32 {
        let priority = binding.spec().schedule_priority.as_ref().map_or(0, |priority| priority.priority);
        if self.scheduler.gates().priority_queue { priority } else { 0 }
    }

    /// Returns how many bindings may be worked on at once: one, where decisions depend on each other.
    fn at_once(&self) -> usize {
        let gates = self.scheduler.gates();
        if gates.workload_affinity || gates.overcommit_protection { 1 } else { AT_ONCE }
    }

    async fn run(self: Arc<Self>, places: Arc<Semaphore>, supervisor: Supervisor) {
        let stop = supervisor.token();
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.first_connections() => {}
        }
        loop {
            let place = tokio::select! {
                () = stop.cancelled() => return,
                place = Arc::clone(&places).acquire_owned() => place,
            };
            let Ok(place) = place else { return };
            let Some(item) = self.next(stop).await else { return };
            let controller = Arc::clone(&self);
            supervisor.spawn(async move {
                let attempt = AssertUnwindSafe(controller.process(&item)).catch_unwind();
                let retry = attempt.await.unwrap_or_else(|panic| {
                    let panic = message(panic.as_ref());
                    tracing::error!(controller = "scheduler", key = item.key, panic, "an attempt panicked");
                    metrics::panicked();
                    Retry::Backoff
                });
                if retry != Retry::Never {
                    metrics::incoming(Incoming::ScheduleAttemptFailure, 1);
                }
                controller.turns.lock().queue.done(item, retry, Timestamp::now());
                controller.wake.notify_one();
                drop(place);
            });
        }
    }

    async fn next(&self, stop: &CancellationToken) -> Option<Item> {
        loop {
            let woken = self.wake.notified();
            let tick = {
                let (mut turns, now) = (self.turns.lock(), Timestamp::now());
                turns.queue.tick(now);
                let item = turns.queue.pop();
                metrics::pending(turns.queue.pending());
                if item.is_some() {
                    return item;
                }
                turns.queue.next_tick().map(|at| at.duration_since(now).unsigned_abs())
            };
            let ticked = async {
                match tick {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                () = woken => {}
                () = ticked => {}
            }
        }
    }

    async fn process(&self, item: &Item) -> Retry {
        let result = match item.key.split_once('/') {
            Some((namespace, name)) => self.schedule(&self.plane.mirrors.bindings, namespace, name).await,
            None => self.schedule(&self.plane.mirrors.cluster_bindings, "", &item.key).await,
        };
        match result {
            Ok(retry) => retry,
            Err(error) => {
                tracing::debug!(controller = "scheduler", key = item.key, %error, "will be tried again");
                Retry::Backoff
            }
        }
    }

    async fn schedule<B: Scheduled>(
        &self,
        mirror: &Mirror<B>,
        namespace: &str,
        name: &str,
    ) -> Result<Retry, Error> {
        let Some(binding) = mirror.get(namespace, name) else { return Ok(Retry::Never) };
        let mut binding = (*binding).clone();
        for _ in 0..ATTEMPTS {
            match self.schedule_once(mirror, &binding).await {
                Err(error) if error.is_conflict() => {}
                result => return result,
            }
            // The mirror may not know yet what was faster than us.
            let api = self.plane.writer.api::<B>(namespace);
            let Some(newer) = api.get_opt(name).await? else { return Ok(Retry::Never) };
            binding = newer;
        }
        Ok(Retry::Backoff)
    }

    async fn schedule_once<B: Scheduled>(&self, mirror: &Mirror<B>, binding: &B) -> Result<Retry, Error> {
        let now = Timestamp::now();
        let next = trigger::next(binding.seen(), &self.known.read().fleet, self.scheduler.gates());
        match next {
            Next::Schedule(trigger) => {
                let started = Instant::now();
                let attempt = self.decide(binding, now).await;
                let (written, result) = self.conclude(binding, trigger, attempt, now).await;
                // Whoever was faster than us is no failure: the decision is made anew at once.
                if !result.as_ref().is_err_and(Error::is_conflict) {
                    metrics::attempted(trigger, started.elapsed(), !matches!(result, Ok(Retry::Never)));
                }
                // Whoever looks next, we ourselves above all, need not wait for the watch.
                written.into_iter().for_each(|written| mirror.note(written));
                result
            }
            Next::Deleting(message) => {
                self.tell(binding, &outcome::deleting(&message));
                Ok(Retry::Never)
            }
            Next::NoPlacement(message) => {
                tracing::warn!(controller = "scheduler", message);
                Ok(Retry::Backoff)
            }
            Next::NoteGeneration(generation) => {
                let mut noted = binding.clone();
                noted.status_mut().scheduler_observed_generation = generation;
                let written = self.plane.writer.update_status(binding, &noted, Guard::Fields).await?;
                written.into_iter().for_each(|written| mirror.note(written));
                Ok(Retry::Never)
            }
            Next::Nothing => Ok(Retry::Never),
        }
    }

    /// Tries one affinity term after the other; says, too, which changes of clusters it could know of.
    async fn decide<B: Scheduled>(&self, binding: &B, now: Timestamp) -> (Attempt, Seen) {
        let seen = self.turns.lock().obstacles.seen();
        let (spec, status) = (binding.spec(), binding.status());
        let mut trial = Trial::new(spec, status);
        while let Some(term) = trial.term() {
            let answers = self.ask(spec, term, now).await;
            let estimators: Vec<&dyn Estimator> =
                answers.iter().map(|answers| answers as &dyn Estimator).collect();
            let known = self.known.read();
            let world = World {
                fleet: &known.fleet,
                workloads: &known.groups,
                assumptions: &known.assumptions,
                estimators: &estimators,
                now,
            };
            trial.step(&self.scheduler, world, spec, status);
        }
        (trial.finish(), seen)
    }
}
