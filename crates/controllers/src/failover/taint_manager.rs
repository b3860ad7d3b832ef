//! Evicts workloads from clusters whose NoExecute taints they do not tolerate, or not any longer.
//!
//! Watches: Clusters (their taints and readiness), both kinds of bindings (where they are, which taints they tolerate).
//! Writes:  `spec.clusters` and `spec.gracefulEvictionTasks` of bindings.
//!
//! `taint-manager`, as upstream; upstream has no name for it in `--controllers`. It acts only with
//! `--enable-no-execute-taint-eviction`. The taints are set by administrators or by a ClusterTaintPolicy. Four things hold an
//! eviction back: the seconds of a toleration, a cluster that was lost or came back a moment ago (others may be about to
//! follow), [an outage](super::outage) of too many clusters, and [the pace](super::pace).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::cluster::Cluster;
use api::constants::{EVICTION_PRODUCER_TAINT_MANAGER, EVICTION_TAINT_UNTOLERATED};
use api::features;
use api::policy::{ClusterFailoverBehavior, PurgeMode, StatePreservation};
use api::work::{ClusterResourceBinding, GracefulEvictionTask, ResourceBinding};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use parking_lot::Mutex;
use propagation::Binding;
use propagation::eviction::{self, Stay, applied_placement, drives_out, stay};
use runtime::events::about;
use runtime::{Change, Error, Key, Outcome, Reconcile};
use tokio::time::Instant;

use super::evict;
use super::metrics::METRICS;
use super::outage::{Loss, Sight, Told};
use super::pace::Pace;
use crate::plane::both::{self, Bindings};
use crate::plane::{Plane, StoredBinding};
use crate::table::Start;

const COMPONENT: &str = "taint-manager";
const WORKERS: usize = 3;
/// The reasons of the events about clusters while too many of them are lost. Upstream has no such limit.
const HALTED: &str = "EvictionsHalted";
const RESUMED: &str = "EvictionsResumed";

/// What both kinds of bindings share.
struct Manager {
    plane: Arc<Plane>,
    sight: Mutex<Sight>,
    /// Too many clusters are lost.
    halted: AtomicBool,
    /// Which clusters have been told so.
    told: Mutex<Told>,
    pace: Pace<Key>,
    /// How long the state of a cluster has to be the same before it counts: others that were lost for the same reason are
    /// known by then, and a taint that a returned cluster had is gone.
    settle: Duration,
}

struct Controller<B> {
    manager: Arc<Manager>,
    bindings: Bindings<B>,
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
    let manager = Arc::new(Manager {
        plane: plane.clone(),
        sight: Mutex::default(),
        halted: AtomicBool::new(false),
        told: Mutex::default(),
        pace: Pace::new(settings.evictions_per_second),
        settle: plane.timing.status_period + plane.timing.monitor_period,
    });
    let namespaced = Controller::<ResourceBinding>::new(&manager);
    let cluster = Controller::<ClusterResourceBinding>::new(&manager);
    plane.mirrors.clusters.subscribe({
        let (noticing, one, other) = (manager.clone(), namespaced.clone(), cluster.clone());
        move |change| {
            let relevant =
                noticing.sight.lock().note(&change.key.name, change.new.as_deref(), Instant::now());
            // The first list is not complete before its end; what it means is looked at when the workers start.
            if !relevant || change.initial {
                return;
            }
            let turned = noticing.review();
            for push in [&*one as &dyn Push, &*other] {
                push.push_in((!turned).then_some(change.key.name.as_str()));
            }
        }
    });
    Box::new(move || {
        manager.review();
        both::run(&namespaced, &cluster, WORKERS);
    })
}

impl Manager {
    /// Looks whether too many clusters are lost; tells those that do not know, and returns true when that has changed.
    fn review(&self) -> bool {
        let (loss, lost) = {
            let sight = self.sight.lock();
            (sight.loss(), sight.lost())
        };
        let limits = self.plane.failover.limits();
        let halted = loss.exceeds(limits);
        METRICS.halted(halted);
        let turned = self.halted.swap(halted, Ordering::SeqCst) != halted;
        // Whoever is lost while evictions stand still hears of it, too.
        let news = self.told.lock().news(halted, lost);
        if !turned && news.is_empty() {
            return false;
        }
        if turned && !halted {
            self.sight.lock().count_anew(Instant::now());
        }
        let Loss { lost: count, all } = loss;
        let message = if halted {
            format!(
                "{count} of {all} clusters are lost at once: evictions stop until fewer than {}% of the clusters, or fewer \
                 than {} are. This control plane may have lost its own network.",
                limits.percent, limits.clusters
            )
        } else {
            format!("{count} of {all} clusters are lost: evictions go on.")
        };
        tracing::warn!(controller = COMPONENT, lost = count, all, "{message}");
        let events = &self.plane.events;
        // When evictions go on there may be none left that is lost: the others are told, too.
        let clusters = self.plane.mirrors.clusters.all();
        for cluster in clusters {
            let name = cluster.metadata.name.clone().unwrap_or_default();
            match halted {
                true if news.contains(&name) => {
                    events.warning(COMPONENT, &about(cluster.as_ref()), HALTED, message.clone());
                }
                true => {}
                false => events.normal(COMPONENT, &about(cluster.as_ref()), RESUMED, message.clone()),
            }
        }
        turned
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
        Arc::new(Self { manager: manager.clone(), bindings })
    }
}

fn queue_name<B: Binding>() -> &'static str {
    if B::NAMESPACED { "binding-eviction" } else { "cluster-binding-eviction" }
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
    /// The clusters it is in that have taints which drive out.
    places: Vec<Place>,
    halted: bool,
    settle: Duration,
    /// What becomes of the old copy if the policy says nothing.
    purge_mode: PurgeMode,
    /// The gate StatefulFailoverInjection is open.
    preserve: bool,
}

/// A cluster with taints that drive out.
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
    /// Why what is due does not happen yet.
    held: Option<&'static str>,
}

fn decide<B: Binding>(view: &View<B>) -> Plan {
    let mut plan = Plan::default();
    if view.binding.metadata().deletion_timestamp.is_some() {
        return plan;
    }
    // Without a placement nobody has said what is tolerated, and nobody could place it elsewhere.
    let Some(placement) = applied_placement(view.binding.as_ref()) else { return plan };
    let later = |again: Option<Duration>, wait: Duration| Some(again.map_or(wait, |again| again.min(wait)));
    for place in &view.places {
        match due(place, &placement.cluster_tolerations) {
            Stay::Forever => {}
            Stay::For(left) => plan.again = later(plan.again, left),
            // The end of the outage brings us back here.
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
            manager.pace.done(key);
            return Ok(None);
        };
        let (sight, now) = (manager.sight.lock(), Instant::now());
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
            halted: manager.halted.load(Ordering::SeqCst),
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
        let manager = &self.manager;
        let again = |wait: Option<Duration>| match plan.again.into_iter().chain(wait).min() {
            Some(wait) => Outcome::After(wait),
            None => Outcome::Done,
        };
        if let Some(held) = plan.held {
            tracing::debug!(controller = COMPONENT, object = %key, held, "an eviction waits");
        }
        if plan.evict.is_empty() {
            manager.pace.done(key);
        } else if let Some(wait) = manager.pace.wait(key) {
            METRICS.waiting(queue_name::<B>(), manager.pace.waiting());
            return Ok(again(Some(wait)));
        } else {
            manager.pace.done(key);
            METRICS.waiting(queue_name::<B>(), manager.pace.waiting());
            self.evict(&view.binding, &plan.evict).await?;
        }
        match plan.waiting {
            Some(waiting) => Err(Error::Waiting(format!("for {waiting}"))),
            None => Ok(again(None)),
        }
    }
}

impl<B: StoredBinding> Controller<B> {
    async fn evict(&self, binding: &B, tasks: &[GracefulEvictionTask]) -> Result<(), Error> {
        let started = Instant::now();
        let result = evict(self, COMPONENT, binding, tasks).await;
        METRICS.processed(queue_name::<B>(), started.elapsed(), result.is_ok());
        for task in tasks.iter().filter(|_| result.is_ok()) {
            METRICS.evicted(&task.from_cluster, &binding.spec().resource.kind);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, deleting, merged};

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
