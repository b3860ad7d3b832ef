//! Chooses the clusters of bindings: the scheduler around the pure `scheduler` crate.
//!
//! Watches: bindings that a policy stands behind, Clusters.
//! Writes: `spec.clusters` and the applied placement; the `Scheduled` condition and what the scheduler has observed.
//!
//! Bindings are taken up in the order of the queue and decided one at a time; their results are written side by side.
//! A binding that found no cluster, or no room, is woken by the cluster that changes that.

use std::collections::HashSet;
use std::sync::Arc;

use api::cluster::Cluster;
use api::conditions::binding as conditions;
use api::constants::DEFAULT_SCHEDULER;
use api::labels::annotations::APPLIED_PLACEMENT;
use api::work::{ClusterResourceBinding, ResourceBinding};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use member::{Change, Mirror};
use parking_lot::Mutex;
use propagation::Binding;
use propagation::status::{condition, set_condition};
use scheduler::outcome::{self, Conclusion, Retry, WriteError};
use scheduler::queue::{Item, Queue};
use scheduler::trigger::{self, ChangedCluster, Next, Trigger};
use scheduler::{Assumptions, Attempt, Fleet, Groups, Options, Scheduler, World};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::events::about;
use super::write::{Error, Guard, Stored};
use super::{Plane, Start, write};

const COMPONENT: &str = "default-scheduler";
/// How many results are written at once.
const WRITES: usize = 32;
/// How often a decision is made anew when someone else was faster.
const ATTEMPTS: usize = 5;

struct Controller {
    plane: Arc<Plane>,
    scheduler: Scheduler,
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    queue: Queue,
    fleet: Fleet,
    groups: Groups,
    assumptions: Assumptions,
    /// Bindings that no cluster fitted; only a change of clusters can help them.
    unfit: HashSet<String>,
}

/// A binding of either scope as the scheduler crate sees it.
trait Scheduled: Stored {
    fn seen(&self) -> trigger::Binding<'_>;
}

impl Scheduled for ResourceBinding {
    fn seen(&self) -> trigger::Binding<'_> {
        self.into()
    }
}

impl Scheduled for ClusterResourceBinding {
    fn seen(&self) -> trigger::Binding<'_> {
        self.into()
    }
}

pub(super) fn wire(plane: &Arc<Plane>) -> Start {
    let controller = Arc::new(Controller {
        plane: Arc::clone(plane),
        scheduler: Scheduler::new(Options::default()),
        state: Mutex::default(),
        wake: Notify::new(),
    });
    let of = Arc::clone(&controller);
    plane.bindings.subscribe(move |change| {
        if of.scheduler.gates().workload_affinity {
            let mut state = of.state.lock();
            match &change.new {
                Some(binding) => state.groups.see(binding),
                None => state.groups.forget(&change.key.namespace, &change.key.name),
            }
        }
        of.binding_changed(change);
    });
    let of = Arc::clone(&controller);
    plane.cluster_bindings.subscribe(move |change| of.binding_changed(change));
    let of = Arc::clone(&controller);
    plane.clusters.subscribe(move |change| of.cluster_changed(change));
    Box::new(move |tasks, stop| {
        tasks.spawn(controller.run(tasks.clone(), stop.clone()));
    })
}

impl Controller {
    fn binding_changed<B: Scheduled>(&self, change: &Change<B>) {
        let watched = |binding: &B| trigger::is_watched(DEFAULT_SCHEDULER, binding.seen());
        let Some(new) = &change.new else {
            if let Some(old) = &change.old {
                let key = old.seen().key();
                let mut state = self.state.lock();
                state.queue.forget(&key);
                state.assumptions.forget(&key);
                state.unfit.remove(&key);
            }
            return;
        };
        let moved = change
            .old
            .as_ref()
            .is_none_or(|old| old.metadata().generation != new.metadata().generation || !watched(old));
        if moved && watched(new) {
            self.state.lock().queue.push(&new.seen().key(), priority(new.as_ref()), Timestamp::now());
            self.wake.notify_one();
        }
    }

    fn cluster_changed(&self, change: &Change<Cluster>) {
        let now = Timestamp::now();
        let mut state = self.state.lock();
        let Some(new) = &change.new else {
            state.fleet.remove(&change.key.name);
            return;
        };
        state.fleet.upsert(Arc::clone(new));
        if change.initial {
            return;
        }
        // Capacity, readiness and kinds come with the status: whoever waits for a cluster looks again.
        state.queue.room_may_have_come(|_| true, now);
        let unfit = std::mem::take(&mut state.unfit);
        for key in unfit {
            state.queue.push(&key, 0, now);
        }
        drop(state);
        let changed = match &change.old {
            Some(old) if old.status.api_enablements == new.status.api_enablements => {
                ChangedCluster::new(old, new)
            }
            // A cluster that is new, or that serves other kinds than before, may suit anyone its affinity allows.
            _ => ChangedCluster::new(&Arc::new(Cluster::default()), new),
        };
        if let Some(changed) = changed {
            self.push_concerned(&self.plane.bindings, &changed, now);
            self.push_concerned(&self.plane.cluster_bindings, &changed, now);
        }
        self.wake.notify_one();
    }

    fn push_concerned<B: Scheduled>(&self, mirror: &Mirror<B>, changed: &ChangedCluster, now: Timestamp) {
        let concerned = mirror.all();
        let concerned = concerned.iter().filter(|binding| {
            changed.concerns(DEFAULT_SCHEDULER, binding.seen())
                && trigger::is_watched(DEFAULT_SCHEDULER, binding.seen())
        });
        let keys: Vec<(String, i32)> =
            concerned.map(|binding| (binding.seen().key(), priority(binding.as_ref()))).collect();
        let mut state = self.state.lock();
        for (key, priority) in keys {
            state.queue.push(&key, priority, now);
        }
    }

    async fn run(self: Arc<Self>, tasks: TaskTracker, stop: CancellationToken) {
        let writes = Arc::new(Semaphore::new(WRITES));
        loop {
            let permit = tokio::select! {
                () = stop.cancelled() => return,
                permit = Arc::clone(&writes).acquire_owned() => permit,
            };
            let Ok(permit) = permit else { return };
            let Some(item) = self.next(&stop).await else { return };
            let controller = Arc::clone(&self);
            tasks.spawn(async move {
                let retry = controller.process(&item).await;
                controller.state.lock().queue.done(item, retry, Timestamp::now());
                controller.wake.notify_one();
                drop(permit);
            });
        }
    }

    async fn next(&self, stop: &CancellationToken) -> Option<Item> {
        loop {
            let woken = self.wake.notified();
            let tick = {
                let (mut state, now) = (self.state.lock(), Timestamp::now());
                state.queue.tick(now);
                if let Some(item) = state.queue.pop() {
                    return Some(item);
                }
                state.queue.next_tick().map(|at| at.duration_since(now).unsigned_abs())
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
            Some((namespace, name)) => self.schedule(&self.plane.bindings, namespace, name).await,
            None => self.schedule(&self.plane.cluster_bindings, "", &item.key).await,
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
        let api = B::api(&self.plane.client, namespace);
        let mut binding = (*binding).clone();
        for _ in 0..ATTEMPTS {
            match self.schedule_once(&api, &binding).await {
                Err(error) if error.is_conflict() => {}
                result => return result,
            }
            // The mirror may not know yet what was faster than us.
            let Some(newer) = api.get_opt(name).await? else { return Ok(Retry::Never) };
            binding = newer;
        }
        Ok(Retry::Backoff)
    }

    async fn schedule_once<B: Scheduled>(&self, api: &kube::Api<B>, binding: &B) -> Result<Retry, Error> {
        let now = Timestamp::now();
        let (trigger, attempt) = match self.decide(binding, now) {
            Ok(decided) => decided,
            Err(Next::Deleting(message)) => {
                self.tell(binding, &outcome::deleting(&message));
                return Ok(Retry::Never);
            }
            Err(Next::NoPlacement(message)) => {
                tracing::warn!(controller = "scheduler", message);
                return Ok(Retry::Backoff);
            }
            Err(Next::NoteGeneration(generation)) => {
                let mut noted = binding.clone();
                noted.status_mut().scheduler_observed_generation = generation;
                write::update_status(api, binding, &noted, Guard::Fields).await?;
                return Ok(Retry::Never);
            }
            Err(Next::Nothing | Next::Schedule(_)) => return Ok(Retry::Never),
        };
        self.conclude(api, binding, trigger, &attempt, now).await
    }

    /// Makes a decision, or says what is to be done instead.
    fn decide<B: Scheduled>(&self, binding: &B, now: Timestamp) -> Result<(Trigger, Attempt), Next> {
        let state = self.state.lock();
        match trigger::next(binding.seen(), &state.fleet, self.scheduler.gates()) {
            Next::Schedule(trigger) => {
                let world = World {
                    fleet: &state.fleet,
                    workloads: &state.groups,
                    assumptions: &state.assumptions,
                    estimators: &[],
                    now,
                };
                Ok((trigger, self.scheduler.schedule(world, binding.spec(), binding.status())))
            }
            instead => Err(instead),
        }
    }

    /// Writes what came of an attempt.
    async fn conclude<B: Scheduled>(
        &self,
        api: &kube::Api<B>,
        binding: &B,
        trigger: Trigger,
        attempt: &Attempt,
        now: Timestamp,
    ) -> Result<Retry, Error> {
        let result = outcome::result(binding.seen(), attempt);
        let mut placed = binding.clone();
        let mut write_errors = Vec::new();
        let mut moved = false;
        if let Some(result) = &result {
            placed.spec_mut().clusters = result.clusters.clone();
            let placement = binding.spec().placement.as_ref();
            let text = placement.map_or_else(|| result.applied_placement.clone(), api::go_json);
            let annotations = Binding::metadata_mut(&mut placed).annotations.get_or_insert_default();
            annotations.insert(APPLIED_PLACEMENT.to_owned(), text);
            match write::update(api, binding, &placed, Guard::Version).await {
                Ok(Some(written)) => {
                    moved = true;
                    self.remember(binding, &written, result);
                    placed = written;
                }
                Ok(None) => {}
                Err(error) if error.is_conflict() => return Err(error),
                Err(Error::Api(error)) => {
                    write_errors.push(refusal(&error));
                    placed = binding.clone();
                }
                Err(error) => return Err(error),
            }
        }
        let conclusion = outcome::conclude(binding.seen(), attempt, &write_errors);
        let affinity = result.as_ref().and_then(|result| result.affinity_name.clone());
        let observed = observe(&placed, &conclusion, affinity.as_deref(), trigger, moved, now);
        let written = if observed.status() == placed.status() {
            None
        } else {
            write::change_status(api, &placed, |current| {
                apply_status(current.status_mut(), &observed, &conclusion, now);
                Ok(())
            })
            .await?
        };
        if moved || written.is_some() {
            for event in &conclusion.events {
                self.tell(binding, event);
            }
        }
        let key = binding.seen().key();
        let mut state = self.state.lock();
        if conclusion.condition.reason == conditions::REASON_NO_CLUSTER_FIT {
            state.unfit.insert(key);
        } else {
            state.unfit.remove(&key);
        }
        Ok(conclusion.retry)
    }

    fn remember<B: Scheduled>(&self, old: &B, written: &B, result: &outcome::Result) {
        let gates = self.scheduler.gates();
        if !B::NAMESPACED || !gates.overcommit_protection {
            return;
        }
        let mut state = self.state.lock();
        let key = written.seen().key();
        state.assumptions.assume(&key, old.spec(), &result.clusters, Timestamp::now());
    }

    fn tell<B: Scheduled>(&self, binding: &B, event: &outcome::Event) {
        let events = &self.plane.events;
        events.emit(COMPONENT, &about(binding), event.kind, event.reason, event.message.clone());
        let resource = &binding.spec().resource;
        events.emit(COMPONENT, resource, event.kind, event.reason, event.message.clone());
    }
}

fn priority<B: Binding>(binding: &B) -> i32 {
    binding.spec().schedule_priority.as_ref().map_or(0, |priority| priority.priority)
}

fn refusal(error: &kube::Error) -> WriteError {
    let kube::Error::Api(status) = error else {
        return WriteError {
            message: error.to_string(),
            quota_exceeded: false,
            namespace_terminating: false,
        };
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    WriteError {
        message: status.message.clone(),
        quota_exceeded: status.code == 403 && status.reason == "QuotaExceeded",
        namespace_terminating: causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating"),
    }
}

/// Returns the binding with the status that the attempt leaves. A result that confirms what is there leaves it as it
/// is: that it was looked at once more is no news.
fn observe<B: Binding>(
    placed: &B,
    conclusion: &Conclusion,
    affinity: Option<&str>,
    trigger: Trigger,
    moved: bool,
    now: Timestamp,
) -> B {
    let mut observed = placed.clone();
    let generation = placed.metadata().generation.unwrap_or(0);
    let status = observed.status_mut();
    if let Some(affinity) = affinity {
        status.scheduler_observed_affinity_name = affinity.to_owned();
    }
    let mut changed = set_condition(&mut status.conditions, scheduled(conclusion, now));
    if conclusion.succeeded {
        changed |= status.scheduler_observed_generation != generation;
        status.scheduler_observed_generation = generation;
        if changed || moved || trigger == Trigger::RescheduleRequested || status.last_scheduled_time.is_none()
        {
            let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
            status.last_scheduled_time = Some(Time(second));
        }
    }
    observed
}

fn scheduled(
    conclusion: &Conclusion,
    now: Timestamp,
) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
    let outcome::Condition { status, reason, message } = &conclusion.condition;
    condition(conditions::SCHEDULED, status, reason, message, now)
}

/// Puts what the scheduler observed into a status that others may have changed meanwhile.
fn apply_status<B: Binding>(
    current: &mut api::work::ResourceBindingStatus,
    observed: &B,
    conclusion: &Conclusion,
    now: Timestamp,
) {
    let wanted = observed.status();
    set_condition(&mut current.conditions, scheduled(conclusion, now));
    current.scheduler_observed_affinity_name = wanted.scheduler_observed_affinity_name.clone();
    current.scheduler_observed_generation = wanted.scheduler_observed_generation;
    current.last_scheduled_time = wanted.last_scheduled_time.clone();
}
