//! The one loop that makes a member behave like a cluster.
//!
//! It follows the store's history and notes which objects must be reconciled. To reconcile an object, it asks the object's
//! controller for steps and carries them out. Reads see every write immediately, so controllers never act on outdated state.
//! Nothing is polled: besides changes, only timers trigger a reconcile, and the controllers set those themselves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use apiserver::Server;
use apiserver::head::Head;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use workloads::nodes::{Node, Placed, Places, place};

use crate::addresses::Addresses;
use crate::controllers::pods::Stage;
use crate::controllers::{
    autoscalers, budgets, claims, cronjobs, daemonsets, deployments, endpoints, jobs, nodes, pods, quotas,
    replicasets, statefulsets,
};
use crate::executor::{Done, Executor};
use crate::kinds::Kind;
use crate::objects::{Object, condition, list, text};
use crate::options::Delays;
use crate::plan::Step;
use crate::trouble::Troubles;
use crate::view::{Objects, View};

/// The roles, in the order in which they run when several wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Role {
    Node,
    Schedule,
    Pod,
    ReplicaSet,
    ReplicationController,
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    Service,
    Budget,
    Claim,
    Volume,
    Quota,
    Autoscaler,
    Lease,
}

/// A role and `namespace/name`.
type Key = (Role, Box<str>);

/// The pauses after a failed creation: the first one, doubled each time.
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);

pub(crate) struct Engine {
    executor: Executor,
    delays: Delays,
    troubles: watch::Receiver<Troubles>,
    queue: BTreeSet<Key>,
    timers: Timers,
    nodes: BTreeMap<String, Node>,
    places: Places,
    /// Pods without a node that could not be scheduled.
    pending: BTreeSet<Box<str>>,
    stages: HashMap<Box<str>, (String, Stage, Instant)>,
    addresses: Addresses,
    failures: HashMap<String, String>,
    retries: HashMap<Key, u32>,
}

#[derive(Default)]
struct Timers {
    by_time: BTreeSet<(Instant, Key)>,
    by_key: HashMap<Key, Instant>,
}

impl Timers {
    /// An earlier timer for the same key wins: when it fires, the controller sets the next one.
    fn set(&mut self, key: Key, at: Instant) {
        match self.by_key.get(&key) {
            Some(old) if *old <= at => return,
            Some(old) => {
                self.by_time.remove(&(*old, key.clone()));
            }
            None => {}
        }
        self.by_key.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn take_due(&mut self, now: Instant) -> Option<Key> {
        if self.next()? > now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

impl Engine {
    pub(crate) fn new(
        server: &Arc<Server>,
        delays: Delays,
        addresses: Addresses,
        troubles: watch::Receiver<Troubles>,
    ) -> Self {
        Self {
            executor: Executor::new(server),
            delays,
            troubles,
            queue: BTreeSet::new(),
            timers: Timers::default(),
            nodes: BTreeMap::new(),
            places: Places::default(),
            pending: BTreeSet::new(),
            stages: HashMap::new(),
            addresses,
            failures: HashMap::new(),
            retries: HashMap::new(),
        }
    }

    /// Runs until the server stops; starts over if it falls too far behind.
    pub(crate) async fn run(mut self) {
        let stop = self.executor.server().stop.clone();
        while !stop.is_cancelled() {
            tokio::select! {
                () = self.follow() => tracing::debug!("the simulation starts over"),
                () = stop.cancelled() => return,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn follow(&mut self) {
        let store = self.executor.server().store.clone();
        let Ok(mut changes) = store.watch_all(store.revision()) else { return };
        self.load();
        loop {
            loop {
                match changes.try_next() {
                    Ok(Some(batch)) => batch.iter().for_each(|event| self.note(event)),
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
            while let Some(key) = self.timers.take_due(Instant::now()) {
                self.queue.insert(key);
            }
            if let Some(key) = self.queue.pop_first() {
                self.look(key).await;
                continue;
            }
            let next = self.timers.next();
            tokio::select! {
                batch = changes.next() => match batch {
                    Ok(batch) => batch.iter().for_each(|event| self.note(event)),
                    Err(_) => return,
                },
                () = async { tokio::time::sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {}
                changed = self.troubles.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.trouble();
                }
            }
        }
    }

    /// Enqueues everything that exists.
    fn load(&mut self) {
        self.nodes.clear();
        self.places = Places::default();
        self.pending.clear();
        for kind in Kind::ALL {
            let mut found = Vec::new();
            self.executor.each(kind, "", |entry| found.push(entry.clone()));
            for entry in found {
                self.seen(kind, &entry.name, Some(&entry));
            }
        }
    }

    /// A trouble has begun or ended: this concerns all nodes and pods, and all readers of the load.
    fn trouble(&mut self) {
        let _ = self.troubles.borrow_and_update();
        for node in self.nodes.keys() {
            self.queue.insert((Role::Node, node.as_str().into()));
            self.queue.insert((Role::Lease, node.as_str().into()));
        }
        let mut keys = Vec::new();
        self.executor.each(Kind::Pod, "", |entry| keys.push((Role::Pod, entry.name.clone())));
        self.executor.each(Kind::Autoscaler, "", |entry| keys.push((Role::Autoscaler, entry.name.clone())));
        self.queue.extend(keys);
    }

    fn note(&mut self, event: &store::Event<Head>) {
        let Some(kind) = self.executor.kind_of(&event.collection) else {
            // Quotas can count any kind.
            if let Some((space, _)) = event.name().split_once('/')
                && (event.is_create() || event.is_delete())
            {
                self.in_namespace(space, Kind::Quota, Role::Quota);
            }
            return;
        };
        self.seen(kind, event.name(), event.current.as_ref());
        // The previous owner may have lost it.
        if let Some(previous) = &event.previous {
            self.owners(event.name(), &previous.head);
        }
        if event.is_delete() {
            self.gone(kind, event.name());
        }
    }

    /// Enqueues the owners and dependents of an object that exists in this state, or is gone.
    fn seen(&mut self, kind: Kind, key: &str, entry: Option<&Arc<store::Entry<Head>>>) {
        let space = key.split_once('/').map_or("", |(space, _)| space);
        if let Some(entry) = entry {
            self.owners(key, &entry.head);
            if entry.head.owners.is_empty() {
                self.orphan(kind, space);
            }
        }
        let role = match kind {
            Kind::Node => {
                match entry {
                    Some(entry) => {
                        let node = Node::read(&self.executor.parse(kind, entry));
                        if self.nodes.insert(key.to_owned(), node).is_none() {
                            self.queue.insert((Role::Lease, key.into()));
                        }
                    }
                    None => {
                        self.nodes.remove(key);
                    }
                }
                self.retry_pending();
                self.all(Kind::DaemonSet, Role::DaemonSet);
                Role::Node
            }
            Kind::Pod => {
                let pod = entry.map(|entry| self.executor.parse(kind, entry));
                self.seen_pod(key, space, pod.as_ref());
                Role::Pod
            }
            Kind::Deployment => Role::Deployment,
            Kind::ReplicaSet => Role::ReplicaSet,
            Kind::ReplicationController => Role::ReplicationController,
            Kind::StatefulSet => Role::StatefulSet,
            Kind::DaemonSet => Role::DaemonSet,
            Kind::Job => Role::Job,
            Kind::CronJob => Role::CronJob,
            Kind::Service => {
                self.in_namespace(space, Kind::Quota, Role::Quota);
                Role::Service
            }
            Kind::Endpoints => Role::Service,
            Kind::EndpointSlice => {
                if let Some(entry) = entry
                    && let Some(service) = entry.head.label("kubernetes.io/service-name")
                {
                    self.queue.insert((Role::Service, format!("{space}/{service}").into()));
                }
                return;
            }
            Kind::DisruptionBudget => Role::Budget,
            Kind::Claim => {
                self.in_namespace(space, Kind::Quota, Role::Quota);
                // A pod may have waited for it, and a volume may now be free.
                self.retry_pending();
                self.all(Kind::Volume, Role::Volume);
                Role::Claim
            }
            Kind::Volume => {
                self.all(Kind::Claim, Role::Claim);
                Role::Volume
            }
            Kind::Quota => {
                // The usage that admission writes into the status includes objects that are not stored yet.
                let is_new = entry.is_some_and(|entry| {
                    let quota = self.executor.parse(kind, entry);
                    quota.pointer("/spec/hard") != quota.pointer("/status/hard")
                });
                if !is_new {
                    return;
                }
                Role::Quota
            }
            Kind::Autoscaler => Role::Autoscaler,
            _ => return,
        };
        if !space.is_empty() && !matches!(kind, Kind::Endpoints | Kind::Quota) {
            self.in_namespace(space, Kind::Quota, Role::Quota);
        }
        self.queue.insert((role, key.into()));
    }

    fn seen_pod(&mut self, key: &str, space: &str, pod: Option<&Value>) {
        let placed = pod.and_then(Placed::read);
        let frees = placed.is_none();
        self.places.set(key, placed);
        match pod {
            Some(pod) => {
                self.addresses.seen(text(pod, "/status/podIP"));
                let waits = text(pod, "/spec/nodeName").is_empty();
                if waits && text(pod, "/spec/schedulerName") == "default-scheduler" {
                    self.queue.insert((Role::Schedule, key.into()));
                } else {
                    self.pending.remove(key);
                }
            }
            None => {
                self.pending.remove(key);
                self.stages.remove(key);
                // A claim may have waited for the last pod that used it.
                self.in_namespace(space, Kind::Claim, Role::Claim);
            }
        }
        if frees && !self.pending.is_empty() && pod.is_none_or(|pod| !text(pod, "/spec/nodeName").is_empty())
        {
            self.retry_pending();
        }
        self.in_namespace(space, Kind::Service, Role::Service);
        self.in_namespace(space, Kind::DisruptionBudget, Role::Budget);
    }

    fn gone(&mut self, kind: Kind, key: &str) {
        if kind == Kind::Node {
            // Pods of a deleted node are deleted, as the pod garbage collector does.
            for pod in self.places.on(key) {
                self.queue.insert((Role::Pod, pod.into()));
            }
        }
    }

    fn owners(&mut self, key: &str, head: &Head) {
        let space = key.split_once('/').map_or("", |(space, _)| space);
        for owner in &head.owners {
            let role = match Kind::of(&owner.api_version, &owner.kind) {
                Some(Kind::ReplicaSet) => Role::ReplicaSet,
                Some(Kind::ReplicationController) => Role::ReplicationController,
                Some(Kind::Deployment) => Role::Deployment,
                Some(Kind::StatefulSet) => Role::StatefulSet,
                Some(Kind::DaemonSet) => Role::DaemonSet,
                Some(Kind::Job) => Role::Job,
                Some(Kind::CronJob) => Role::CronJob,
                Some(Kind::Service) => Role::Service,
                _ => continue,
            };
            self.queue.insert((role, format!("{space}/{}", owner.name).into()));
        }
    }

    /// Enqueues every controller that may adopt an object without an owner.
    fn orphan(&mut self, kind: Kind, space: &str) {
        let takers: &[(Kind, Role)] = match kind {
            Kind::Pod => &[
                (Kind::ReplicaSet, Role::ReplicaSet),
                (Kind::ReplicationController, Role::ReplicationController),
                (Kind::StatefulSet, Role::StatefulSet),
                (Kind::DaemonSet, Role::DaemonSet),
                (Kind::Job, Role::Job),
            ],
            Kind::ReplicaSet => &[(Kind::Deployment, Role::Deployment)],
            Kind::ControllerRevision => {
                &[(Kind::StatefulSet, Role::StatefulSet), (Kind::DaemonSet, Role::DaemonSet)]
            }
            _ => return,
        };
        for (kind, role) in takers {
            self.in_namespace(space, *kind, *role);
        }
    }

    fn retry_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.queue.extend(pending.into_iter().map(|key| (Role::Schedule, key)));
    }

    fn in_namespace(&mut self, space: &str, kind: Kind, role: Role) {
        let queue = &mut self.queue;
        self.executor.each(kind, space, |entry| {
            queue.insert((role, entry.name.clone()));
        });
    }

    fn all(&mut self, kind: Kind, role: Role) {
        self.in_namespace("", kind, role);
    }

    async fn look(&mut self, key: Key) {
        let now = Timestamp::now();
        let steps = self.decide(&key, now);
        let mut failed = None;
        for step in steps {
            if let Step::Create { object, .. } = &step
                && let Some(owner) = object.controller()
                && failed.as_deref() == Some(text(owner, "/uid"))
            {
                // The others would fail as well: try all of them again later.
                continue;
            }
            match self.executor.carry_out(step, now).await {
                Ok(Done::Nothing) => {}
                Ok(Done::Again(after)) => self.timers.set(key.clone(), Instant::now() + after),
                Ok(Done::Failed { owner, message }) => {
                    self.failures.insert(owner.clone(), message);
                    failed = Some(owner);
                }
                Err(status) => {
                    tracing::debug!(role = ?key.0, object = %key.1, error = %status, "cannot do what was decided");
                    failed.get_or_insert_default();
                }
            }
        }
        match failed {
            Some(_) => {
                let retries = self.retries.entry(key.clone()).or_default();
                let pause = RETRY.saturating_mul(1 << (*retries).min(6)).min(MAX_RETRY);
                *retries += 1;
                self.timers.set(key, Instant::now() + pause);
            }
            None => {
                self.retries.remove(&key);
            }
        }
    }

    fn decide(&mut self, key: &Key, now: Timestamp) -> Vec<Step> {
        let (role, path) = key;
        let (space, own) = path.split_once('/').unwrap_or(("", path));
        let kind = match role {
            Role::Node | Role::Lease => Kind::Node,
            Role::Schedule | Role::Pod => Kind::Pod,
            Role::ReplicaSet => Kind::ReplicaSet,
            Role::ReplicationController => Kind::ReplicationController,
            Role::Deployment => Kind::Deployment,
            Role::StatefulSet => Kind::StatefulSet,
            Role::DaemonSet => Kind::DaemonSet,
            Role::Job => Kind::Job,
            Role::CronJob => Kind::CronJob,
            Role::Service => Kind::Service,
            Role::Budget => Kind::DisruptionBudget,
            Role::Claim => Kind::Claim,
            Role::Volume => Kind::Volume,
            Role::Quota => Kind::Quota,
            Role::Autoscaler => Kind::Autoscaler,
        };
        let troubles = self.troubles.borrow().clone();
        let view = View {
            objects: &self.executor,
            now,
            delays: &self.delays,
            troubles: &troubles,
            failures: &self.failures,
        };
        let Some(object) = self.executor.get(kind, space, own) else {
            return match role {
                Role::Service => endpoints::abandoned(&view, space, own),
                Role::Job => jobs::abandoned(&view, space, own),
                _ => Vec::new(),
            };
        };
        match role {
            Role::Node => {
                let pods: Vec<Value> = self
                    .places
                    .on(own)
                    .iter()
                    .filter_map(|key| key.split_once('/'))
                    .filter_map(|(space, own)| self.executor.get(Kind::Pod, space, own))
                    .collect();
                let index = self.nodes.keys().position(|node| node == own).unwrap_or(0);
                nodes::decide(&view, &object, &self.addresses.of_node(index), &pods)
            }
            Role::Lease => {
                let mut steps: Vec<Step> = nodes::lease(&view, &object).into_iter().collect();
                steps.push(Step::Again(self.delays.lease));
                steps
            }
            Role::Schedule => self.schedule(path, &object),
            Role::Pod => {
                let node = text(&object, "/spec/nodeName");
                if !node.is_empty() && !self.nodes.contains_key(node) {
                    // No kubelet will ever run or remove it.
                    return vec![orphaned(&object)];
                }
                let stage = pods::stage(&object, troubles.fails(object.labels()));
                let since = self.since(path, object.uid(), stage);
                let view = View {
                    objects: &self.executor,
                    now,
                    delays: &self.delays,
                    troubles: &troubles,
                    failures: &self.failures,
                };
                let steps = pods::decide(&view, &object, stage, since, &self.addresses.of_next_pod());
                if steps.iter().any(|step| matches!(step, Step::Status { .. })) {
                    self.addresses.take();
                }
                steps
            }
            Role::ReplicaSet => replicasets::decide(&view, Kind::ReplicaSet, &object),
            Role::ReplicationController => replicasets::decide(&view, Kind::ReplicationController, &object),
            Role::Deployment => deployments::decide(&view, &object),
            Role::StatefulSet => statefulsets::decide(&view, &object),
            Role::DaemonSet => daemonsets::decide(&view, &object),
            Role::Job => jobs::decide(&view, &object),
            Role::CronJob => cronjobs::decide(&view, &object),
            Role::Service => endpoints::decide(&view, &object),
            Role::Budget => budgets::decide(&view, &object),
            Role::Claim => claims::decide(&view, &object),
            Role::Volume => claims::decide_volume(&view, &object),
            Role::Quota => quotas::decide(&view, &object),
            Role::Autoscaler => autoscalers::decide(&view, &object),
        }
    }

    /// Returns how long a pod has been in its stage.
    fn since(&mut self, key: &str, uid: &str, stage: Stage) -> Duration {
        let now = Instant::now();
        match self.stages.get(key) {
            Some((same, old, since)) if same == uid && *old == stage => now - *since,
            _ => {
                self.stages.insert(key.into(), (uid.to_owned(), stage, now));
                Duration::ZERO
            }
        }
    }

    fn schedule(&mut self, key: &str, pod: &Value) -> Vec<Step> {
        if pod.is_deleting() || !text(pod, "/spec/nodeName").is_empty() {
            return Vec::new();
        }
        if !list(pod, "/spec/schedulingGates").is_empty() {
            return Vec::new();
        }
        let nodes: Vec<&Node> = self.nodes.values().collect();
        let found = match claims::unbound(&self.executor, pod) {
            Some(why) => Err(format!("0/{} nodes are available: {why}", nodes.len())),
            None => place(pod, &nodes, &self.places),
        };
        match found {
            Ok(node) => {
                let mut bound = pod.clone();
                bound["spec"]["nodeName"] = json!(node);
                self.places.set(key, Placed::read(&bound));
                let message = format!("Successfully assigned {}/{} to {node}", pod.namespace(), pod.name());
                let labels = self.nodes[&node].topology();
                vec![
                    Step::Bind {
                        namespace: pod.namespace().to_owned(),
                        name: pod.name().to_owned(),
                        uid: pod.uid().to_owned(),
                        node,
                        labels,
                    },
                    Step::event(pod, "default-scheduler", "Scheduled", message),
                ]
            }
            Err(why) => {
                self.pending.insert(key.into());
                if condition(pod, "PodScheduled")
                    .is_some_and(|condition| condition["message"] == why.as_str())
                {
                    return Vec::new();
                }
                vec![
                    scheduling_failed(pod, &why),
                    Step::warning(pod, "default-scheduler", "FailedScheduling", why),
                ]
            }
        }
    }
}

fn scheduling_failed(pod: &Value, why: &str) -> Step {
    let old = condition(pod, "PodScheduled").filter(|old| old["status"] == "False");
    let since = old
        .map(|old| old["lastTransitionTime"].clone())
        .unwrap_or_else(|| json!(crate::objects::stamp(Timestamp::now())));
    let mut status = pod["status"].clone();
    let mut conditions = list(pod, "/status/conditions").to_vec();
    conditions.retain(|condition| condition["type"] != "PodScheduled");
    conditions
        .push(json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
        "observedGeneration": pod.generation(), "lastProbeTime": null, "lastTransitionTime": since}));
    status["conditions"] = conditions.into();
    let mut step = Step::status(Kind::Pod, pod, status);
    if let Step::Status { by, .. } = &mut step {
        *by = crate::plan::Component::Scheduler;
    }
    step
}

fn orphaned(pod: &Value) -> Step {
    let mut step = Step::delete(Kind::Pod, pod);
    if let Step::Delete { grace, .. } = &mut step {
        *grace = Some(0);
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_timer_of_a_key_counts() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let key: Key = (Role::Pod, "a/b".into());
        timers.set(key.clone(), start + Duration::from_secs(5));
        timers.set(key.clone(), start + Duration::from_secs(1));
        timers.set(key.clone(), start + Duration::from_secs(9));
        assert_eq!(timers.take_due(start), None);
        assert_eq!(timers.take_due(start + Duration::from_secs(2)), Some(key));
        assert_eq!(timers.next(), None);
    }
}
