//! Evicts workloads from clusters whose NoExecute taints they do not tolerate, or not any longer.
//!
//! Watches: Clusters (their taints and readiness), both kinds of bindings (where they are, which taints they tolerate).
//! Writes:  `spec.clusters` and `spec.gracefulEvictionTasks` of bindings.
//!
//! `taint-manager`, as upstream; upstream has no name for it in `--controllers`. It acts only with
//! `--enable-no-execute-taint-eviction`. The taints are set by administrators or by a ClusterTaintPolicy.
//! Four things delay an eviction: the seconds of a toleration, a cluster that was lost or came back a moment
//! ago (others may be about to follow), [an outage](super::halt) of too many clusters, and [the
//! throttle](super::throttle).

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use api::cluster::Cluster;
use api::constants::{EVICTION_PRODUCER_TAINT_MANAGER, EVICTION_TAINT_UNTOLERATED};
use api::features;
use api::policy::{ClusterFailoverBehavior, PurgeMode, StatePreservation};
use api::work::{ClusterResourceBinding, GracefulEvictionTask, ResourceBinding};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use propagation::Binding;
use propagation::eviction::{self, Stay, applied_placement, drives_out, stay};
use runtime::{Change, Error, Key, Outcome, Reconcile};
use tokio::time::Instant;

use super::halt::Halt;
use super::metrics::{METRICS, Waiting};
use super::throttle::Throttle;
use super::{evict, start};
use crate::plane::both::Bindings;
use crate::plane::{Plane, StoredBinding};
use crate::table::Start;

const COMPONENT: &str = "taint-manager";
const WORKERS: usize = 3;

/// What both kinds of bindings share.
struct Manager {
    plane: Arc<Plane>,
    halt: Arc<Halt>,
    throttle: Throttle<Key>,
    /// How long the state of a cluster has to be the same before it counts: others that were lost for the same reason are
    /// known by then, and a taint that a returned cluster had is gone.
    settle: Duration,
}

struct Controller<B> {
    manager: Arc<Manager>,
    bindings: Bindings<B>,
    waiting: Waiting,
}

impl<B> Deref for Controller<B> {
    type Target = Bindings<B>;

    fn deref(&self) -> &Bindings<B> {
        &self.bindings
    }
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let settings = &plane.failover;
    if !settings.taint_manager || !settings.evict {
        return Box::new(|| ());
    }
    let settle = plane.timing.status_period + plane.timing.monitor_period;
    let manager = Manager::new(plane, settle);
    let namespaced = Controller::<ResourceBinding>::new(&manager);
    let cluster = Controller::<ClusterResourceBinding>::new(&manager);
    manager.halt.subscribe({
        let (one, other) = (namespaced.clone(), cluster.clone());
        move |changed| {
            for push in [&*one as &dyn Push, &*other] {
                push.push_in(changed);
            }
        }
    });
    start(namespaced, cluster, WORKERS)
}

impl Manager {
    fn new(plane: &Arc<Plane>, settle: Duration) -> Arc<Self> {
        Arc::new(Self {
            plane: plane.clone(),
            halt: plane.halt().clone(),
            throttle: Throttle::new(plane.failover.evictions_per_second),
            settle,
        })
    }
}

/// A queue of bindings of one kind.
trait Push {
    /// Pushes the bindings that are in a cluster; without one, all.
    fn push_in(&self, cluster: Option<&str>);
}

impl<B: StoredBinding> Push for Controller<B> {
    fn push_in(&self, cluster: Option<&str>) {
        for binding in self.mirror.all() {
            let mut targets = binding.spec().clusters.iter();
            if cluster.is_none_or(|cluster| targets.any(|target| target.name == cluster)) {
                self.queue.push(Key::of(binding.as_ref()));
            }
        }
    }
}

impl<B: StoredBinding> Controller<B> {
    fn new(manager: &Arc<Manager>) -> Arc<Self> {
        let bindings = Bindings::new(&manager.plane, queue_name::<B>(), COMPONENT);
        bindings.push_on(is_news);
        let waiting = Waiting::new(queue_name::<B>(), kind::<B>());
        Arc::new(Self { manager: manager.clone(), bindings, waiting })
    }
}

fn queue_name<B: Binding>() -> &'static str {
    if B::NAMESPACED { "binding-eviction" } else { "cluster-binding-eviction" }
}

fn kind<B: Binding>() -> &'static str {
    if B::NAMESPACED { "ResourceBinding" } else { "ClusterResourceBinding" }
}

/// Returns whether a binding may have come into a tainted cluster, or tolerate less than before.
fn is_news<B: Binding>(change: &Change<'_, B>) -> bool {
    let seen = |binding: &B| (binding.metadata().generation, binding.metadata().annotations.clone());
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => seen(old) != seen(new),
        (None, Some(_)) => true,
        _ => false,
    }
}

/// A binding and what is wrong with its clusters.
pub(crate) struct View<B> {
    binding: Arc<B>,
    /// Its clusters that have NoExecute taints.
    places: Vec<Place>,
    halted: bool,
    settle: Duration,
    /// How the old copy is removed if the policy does not say.
    purge_mode: PurgeMode,
    /// The gate StatefulFailoverInjection is open.
    preserve: bool,
}

/// A cluster with NoExecute taints.
#[derive(Debug)]
struct Place {
    cluster: String,
    /// Each taint, and for how long this process has seen it.
    taints: Vec<(Taint, Duration)>,
    /// For how long the cluster has been lost, or not lost.
    unchanged_for: Duration,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    evict: Vec<GracefulEvictionTask>,
    /// Look again after this time.
    again: Option<Duration>,
    /// Look again when this has changed.
    waiting: Option<String>,
    /// Why a due eviction does not happen yet.
    held: Option<&'static str>,
}

fn decide<B: Binding>(view: &View<B>) -> Plan {
    let mut plan = Plan::default();
    if view.binding.metadata().deletion_timestamp.is_some() {
        return plan;
    }
    // Without a placement there are no tolerations, and the scheduler could not place it elsewhere.
    let Some(placement) = applied_placement(view.binding.as_ref()) else { return plan };
    let later = |again: Option<Duration>, wait: Duration| Some(again.map_or(wait, |again| again.min(wait)));
    for place in &view.places {
        match due(place, &placement.cluster_tolerations) {
            Stay::Forever => {}
            Stay::For(left) => plan.again = later(plan.again, left),
            // The end of the outage enqueues the binding again.
            Stay::Over(_) if view.halted => plan.held = Some("too many clusters are lost at once"),
            Stay::Over(_) if place.unchanged_for < view.settle => {
                plan.again = later(plan.again, view.settle - place.unchanged_for);
                plan.held = Some("the cluster was lost, came back or was first seen a moment ago");
            }
            Stay::Over(why) => match task(view, &place.cluster, why) {
                Ok(task) => plan.evict.push(task),
                Err(waiting) => plan.waiting = Some(waiting.to_string()),
            },
        }
    }
    plan
}

fn due(place: &Place, tolerations: &[Toleration]) -> Stay {
    stay(place.taints.iter().map(|(taint, seen)| (taint, *seen)), tolerations)
}

fn task<B: Binding>(
    view: &View<B>,
    cluster: &str,
    why: String,
) -> Result<GracefulEvictionTask, eviction::StateError> {
    let spec = view.binding.spec();
    let behaviour: Option<&ClusterFailoverBehavior> =
        spec.failover.as_ref().and_then(|failover| failover.cluster.as_ref());
    let purge_mode = match behaviour {
        None => view.purge_mode.clone(),
        Some(behaviour) => eviction::purge_mode(behaviour.purge_mode.as_ref()),
    };
    let state: Option<&StatePreservation> =
        behaviour.and_then(|behaviour| behaviour.state_preservation.as_ref()).filter(|_| view.preserve);
    let state = state.filter(|state| !state.rules.is_empty());
    let preserved_label_state = match state {
        None => Default::default(),
        Some(state) => eviction::preserved_state(state, cluster, &view.binding.status().aggregated_status)?,
    };
    Ok(GracefulEvictionTask {
        from_cluster: cluster.to_owned(),
        purge_mode: Some(purge_mode),
        reason: EVICTION_TAINT_UNTOLERATED.to_owned(),
        message: why,
        producer: EVICTION_PRODUCER_TAINT_MANAGER.to_owned(),
        preserved_label_state,
        ..GracefulEvictionTask::default()
    })
}

impl<B: StoredBinding> Reconcile for Controller<B> {
    type Key = Key;
    type View = View<B>;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View<B>>, Error> {
        let (manager, plane) = (&self.manager, &self.manager.plane);
        let Some(binding) = self.mirror.find(key) else {
            self.spare(key);
            return Ok(None);
        };
        let halted = manager.halt.standing().halted;
        let (sight, now) = (manager.halt.sight(), Instant::now());
        let place = |cluster: Arc<Cluster>| {
            let name = cluster.metadata.name.clone().unwrap_or_default();
            let taints = cluster.spec.taints.iter().filter(|taint| drives_out(taint));
            let taints: Vec<(Taint, Duration)> =
                taints.map(|taint| (taint.clone(), sight.tainted_for(&name, taint, now))).collect();
            let unchanged_for = sight.unchanged_for(&name, now);
            (!taints.is_empty()).then_some(Place { cluster: name, taints, unchanged_for })
        };
        let targets = binding.spec().clusters.iter();
        let clusters = targets.filter_map(|target| plane.mirrors.clusters.get("", &target.name));
        let places = clusters.filter_map(place).collect();
        Ok(Some(View {
            places,
            halted,
            settle: manager.settle,
            purge_mode: plane.failover.purge_mode.clone(),
            preserve: plane.features.enabled(features::STATEFUL_FAILOVER_INJECTION),
            binding,
        }))
    }

    fn decide(view: &View<B>, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View<B>, plan: Plan) -> Result<Outcome, Error> {
        let throttle = &self.manager.throttle;
        let again = |wait: Option<Duration>| match plan.again.into_iter().chain(wait).min() {
            Some(wait) => Outcome::After(wait),
            None => Outcome::Done,
        };
        if let Some(held) = plan.held {
            tracing::debug!(controller = COMPONENT, object = %key, held, "an eviction waits");
        }
        if plan.evict.is_empty() {
            self.spare(key);
        } else {
            self.waiting.note(key, plan.evict.iter().map(|task| task.from_cluster.clone()).collect());
            if let Some(wait) = throttle.wait(key) {
                return Ok(again(Some(wait)));
            }
            // An eviction whose write failed keeps its turn: it is retried without waiting at the end of the
            // line.
            self.evict(&view.binding, &plan.evict).await?;
            throttle.taken(key);
            self.waiting.note(key, Vec::new());
        }
        match plan.waiting {
            Some(waiting) => Err(Error::Waiting(format!("for {waiting}"))),
            None => Ok(again(None)),
        }
    }
}

impl<B: StoredBinding> Controller<B> {
    /// Records that a binding is not evicted.
    fn spare(&self, key: &Key) {
        self.manager.throttle.give_back(key);
        self.waiting.note(key, Vec::new());
    }

    async fn evict(&self, binding: &B, tasks: &[GracefulEvictionTask]) -> Result<(), Error> {
        let started = Instant::now();
        let result = evict(self, COMPONENT, binding, tasks).await;
        METRICS.processed(queue_name::<B>(), started.elapsed(), result.is_ok());
        result
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Settings;
    use crate::fixtures::{self, deleting, merged};
    use crate::world::World;

    const SETTLE: Duration = Duration::from_secs(15);

    fn taint(key: &str) -> Taint {
        Taint { key: key.to_owned(), value: None, effect: "NoExecute".to_owned(), time_added: None }
    }

    /// A cluster with one taint, seen for so many seconds, whose readiness has been the same for an hour.
    fn place(cluster: &str, seen: u64) -> Place {
        Place {
            cluster: cluster.to_owned(),
            taints: vec![(taint("dead"), Duration::from_secs(seen))],
            unchanged_for: Duration::from_secs(3600),
        }
    }

    fn tolerating(seconds: Option<i64>) -> Value {
        json!({ "key": "dead", "operator": "Exists", "tolerationSeconds": seconds })
    }

    fn view(otherwise: Value, tolerations: Value, places: Vec<Place>) -> View<ResourceBinding> {
        let placed = json!({ "spec": {
            "clusters": [{ "name": "m1", "replicas": 2 }, { "name": "m2", "replicas": 1 }],
            "placement": { "clusterTolerations": tolerations },
        } });
        View {
            binding: Arc::new(fixtures::binding(merged(placed, otherwise))),
            places,
            halted: false,
            settle: SETTLE,
            purge_mode: PurgeMode::Gracefully,
            preserve: false,
        }
    }

    fn evicted(plan: &Plan) -> Vec<(&str, &str)> {
        let mode = |task: &GracefulEvictionTask| {
            task.purge_mode.as_ref().map_or("", |mode| match mode {
                PurgeMode::Directly => "Directly",
                PurgeMode::Gracefully => "Gracefully",
                _ => "other",
            })
        };
        plan.evict.iter().map(|task| (task.from_cluster.as_str(), mode(task))).collect()
    }

    #[test]
    fn who_is_evicted_and_when() {
        let (none, nothing) = (json!([]), json!({}));
        let secs = |secs: u64| Some(Duration::from_secs(secs));
        let tainted = || vec![place("m1", 0)];
        let cases = [
            ("no taint", nothing.clone(), none.clone(), vec![], vec![], None),
            ("not tolerated", nothing.clone(), none.clone(), tainted(), vec!["m1"], None),
            ("tolerated", nothing.clone(), json!([tolerating(None)]), tainted(), vec![], None),
            (
                "for a while",
                nothing.clone(),
                json!([tolerating(Some(30))]),
                vec![place("m1", 10)],
                vec![],
                secs(20),
            ),
            (
                "the while is over",
                nothing.clone(),
                json!([tolerating(Some(30))]),
                vec![place("m1", 30)],
                vec!["m1"],
                None,
            ),
            (
                "two clusters, one of them later",
                nothing.clone(),
                json!([tolerating(Some(30))]),
                vec![place("m1", 30), place("m2", 5)],
                vec!["m1"],
                secs(25),
            ),
            (
                "both later, the first one sooner",
                nothing.clone(),
                json!([tolerating(Some(30))]),
                vec![place("m1", 20), place("m2", 5)],
                vec![],
                secs(10),
            ),
            (
                "both later, the second one sooner",
                nothing.clone(),
                json!([tolerating(Some(30))]),
                vec![place("m1", 5), place("m2", 20)],
                vec![],
                secs(10),
            ),
            ("the binding goes", deleting(), none.clone(), tainted(), vec![], None),
            ("nobody placed it", json!({ "spec": { "placement": null } }), none, tainted(), vec![], None),
        ];
        for (name, otherwise, tolerations, places, expected, again) in cases {
            let plan = decide(&view(otherwise, tolerations, places));
            let clusters: Vec<&str> = evicted(&plan).into_iter().map(|(cluster, _)| cluster).collect();
            assert_eq!((clusters, plan.again), (expected, again), "{name}");
        }
    }

    #[test]
    fn what_was_applied_counts_and_not_what_was_written_since() {
        let applied = json!({ "clusterTolerations": [tolerating(None)] }).to_string();
        let annotations = json!({ "metadata": { "annotations": { api::labels::annotations::APPLIED_PLACEMENT: applied } } });
        assert_eq!(decide(&view(annotations, json!([]), vec![place("m1", 0)])), Plan::default());
    }

    #[test]
    fn an_outage_and_a_cluster_that_changed_a_moment_ago_hold_evictions() {
        let mut outage = view(json!({}), json!([]), vec![place("m1", 0)]);
        outage.halted = true;
        let plan = decide(&outage);
        assert_eq!((evicted(&plan), plan.again), (vec![], None));
        assert_eq!(plan.held, Some("too many clusters are lost at once"));

        let mut recent = view(json!({}), json!([]), vec![place("m1", 0), place("m2", 0)]);
        recent.places[0].unchanged_for = Duration::from_secs(5);
        let plan = decide(&recent);
        assert_eq!((evicted(&plan).len(), plan.again), (1, Some(Duration::from_secs(10))));
        assert_eq!(plan.evict[0].from_cluster, "m2");
        assert!(plan.held.is_some_and(|why| why.contains("a moment ago")), "{plan:?}");
        recent.places[0].unchanged_for = SETTLE;
        assert_eq!(decide(&recent).evict.len(), 2);
    }

    #[test]
    fn the_policy_says_what_becomes_of_the_old_copy_and_else_the_flag() {
        let failover = |cluster: Value| json!({ "spec": { "failover": { "cluster": cluster } } });
        let cases = [
            ("nothing is said", json!({}), PurgeMode::Directly, "Directly"),
            ("the policy says nothing of it", failover(json!({})), PurgeMode::Directly, "Gracefully"),
            (
                "the policy says it",
                failover(json!({ "purgeMode": "Directly" })),
                PurgeMode::Gracefully,
                "Directly",
            ),
        ];
        for (name, otherwise, flag, expected) in cases {
            let mut view = view(otherwise, json!([]), vec![place("m1", 0)]);
            view.purge_mode = flag;
            let plan = decide(&view);
            assert_eq!(evicted(&plan), [("m1", expected)], "{name}");
            let task = &plan.evict[0];
            assert_eq!((task.reason.as_str(), task.producer.as_str()), ("TaintUntolerated", "TaintManager"));
            assert_eq!(
                task.message,
                "it has the taint dead:NoExecute, which the placement does not tolerate"
            );
        }
    }

    #[test]
    fn state_is_preserved_where_the_gate_is_open() {
        let rules = json!([{ "aliasLabelName": "replicas", "jsonPath": "{.replicas}" }]);
        let behaviour = json!({ "purgeMode": "Directly", "statePreservation": { "rules": rules } });
        let bound = json!({ "spec": { "failover": { "cluster": behaviour } } });
        let reported = merged(
            bound.clone(),
            json!({ "status": { "aggregatedStatus": [{ "clusterName": "m1", "status": { "replicas": 2 } }] } }),
        );
        let closed = decide(&view(reported.clone(), json!([]), vec![place("m1", 0)]));
        assert!(closed.evict[0].preserved_label_state.is_empty());
        let mut open = view(reported, json!([]), vec![place("m1", 0)]);
        open.preserve = true;
        let state = &decide(&open).evict[0].preserved_label_state;
        assert_eq!(state.get("replicas").map(String::as_str), Some("2"));
        let mut unknown = view(bound, json!([]), vec![place("m1", 0)]);
        unknown.preserve = true;
        let plan = decide(&unknown);
        assert!(plan.evict.is_empty() && plan.waiting.is_some(), "{plan:?}");
        let without =
            json!({ "spec": { "failover": { "cluster": { "statePreservation": { "rules": [] } } } } });
        let mut nothing = view(without, json!([]), vec![place("m1", 0)]);
        nothing.preserve = true;
        assert_eq!(decide(&nothing).evict.len(), 1, "without rules there is no status to wait for");
    }

    #[tokio::test]
    async fn what_could_not_be_written_keeps_its_turn() {
        let failover = crate::failover::Settings { evictions_per_second: 0.0, ..Default::default() };
        let world = World::with(Settings { failover, ..Settings::default() }).await;
        let manager = Manager::new(&world.plane, Duration::ZERO);
        let controller = Controller::<ResourceBinding>::new(&manager);
        let lost = world
            .cluster("m1", json!({ "spec": { "taints": [{ "key": "dead", "effect": "NoExecute" }] } }))
            .await;
        let placed = json!({ "spec": { "clusters": [{ "name": lost }], "placement": {} } });
        let binding = world.binding(placed).await;
        let key = Key::of(binding.as_ref());
        // Two others have had their turns; one more is free at once, the next is in half an hour.
        for other in ["one", "other"] {
            assert_eq!(manager.throttle.wait(&Key::new("", other)), None);
        }
        world.refuse(http::Method::PATCH, "web-configmap", 500, "InternalError");
        assert!(!matches!(world.once(controller.as_ref(), &key).await, Outcome::Done));
        world.once(controller.as_ref(), &key).await;
        let stored = world.stored(binding.as_ref()).await.expect("a binding");
        assert_eq!(stored.spec.graceful_eviction_tasks.len(), 1, "it was evicted at the second try");
    }

    #[test]
    fn which_changes_count() {
        let key = Key::new("default", "web");
        let cases = [
            ("found", None, Some(json!({})), true),
            ("placed anew", Some(json!({})), Some(json!({ "metadata": { "generation": 2 } })), true),
            (
                "tolerates less",
                Some(json!({})),
                Some(json!({ "metadata": { "annotations": { "a": "b" } } })),
                true,
            ),
            (
                "its status changed",
                Some(json!({})),
                Some(json!({ "status": { "schedulerObservedGeneration": 1 } })),
                false,
            ),
            ("gone", Some(json!({})), None, false),
        ];
        for (name, old, new, expected) in cases {
            let made =
                |otherwise: Option<Value>| otherwise.map(|otherwise| Arc::new(fixtures::binding(otherwise)));
            let change = Change { key: &key, old: made(old), new: made(new), ours: false, initial: false };
            assert_eq!(is_news(&change), expected, "{name}");
        }
    }
}
