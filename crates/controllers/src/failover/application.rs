//! Evicts workloads from clusters in which they have been unhealthy for longer than their policy tolerates.
//!
//! Watches: both kinds of bindings with `spec.failover.application` (any change: health is part of their status), Clusters (how
//!          many are lost).
//! Writes:  `spec.clusters` and `spec.gracefulEvictionTasks` of bindings.
//!
//! How long a workload has been unhealthy is counted from when this process saw it first, with a clock that
//! does not jump. While [too many clusters are lost](super::halt) nothing is evicted, because reports may be
//! out of date. Afterwards the time starts again.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use api::constants::{
    EVICTION_APPLICATION_FAILURE, EVICTION_PRODUCER_BINDING_FAILOVER,
    EVICTION_PRODUCER_CLUSTER_BINDING_FAILOVER,
};
use api::features;
use api::policy::{ApplicationFailoverBehavior, PurgeMode};
use api::work::{ClusterResourceBinding, GracefulEvictionTask, ResourceBinding, ResourceHealth};
use apimachinery::gvk::Gvk;
use interpreter::Operation;
use jiff::Timestamp;
use parking_lot::Mutex;
use propagation::Binding;
use propagation::eviction::{self, purge_mode};
use runtime::{Change, Error, Key, Outcome, Reconcile};
use tokio::time::Instant;

use super::{evict, start};
use crate::plane::both::Bindings;
use crate::plane::{Plane, StoredBinding};
use crate::table::Start;

const WORKERS: usize = 5;
/// How long a workload may be unhealthy if the policy says nothing; the default of the field.
const TOLERATION: i32 = 300;

struct Controller<B> {
    bindings: Bindings<B>,
    /// Since when bindings are unhealthy in clusters.
    since: Mutex<HashMap<Key, BTreeMap<String, Instant>>>,
}

impl<B> Deref for Controller<B> {
    type Target = Bindings<B>;

    fn deref(&self) -> &Bindings<B> {
        &self.bindings
    }
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let namespaced = Controller::<ResourceBinding>::new(plane);
    let cluster = Controller::<ClusterResourceBinding>::new(plane);
    start(namespaced, cluster, WORKERS)
}

impl<B: StoredBinding> Controller<B> {
    fn new(plane: &Arc<Plane>) -> Arc<Self> {
        let bindings = Bindings::new(plane, component::<B>(), component::<B>());
        bindings.push_on(is_news);
        bindings.push_on_halt(|binding| behaviour(binding).is_some());
        Arc::new(Self { bindings, since: Mutex::default() })
    }
}

fn component<B: Binding>() -> &'static str {
    if B::NAMESPACED {
        EVICTION_PRODUCER_BINDING_FAILOVER
    } else {
        EVICTION_PRODUCER_CLUSTER_BINDING_FAILOVER
    }
}

fn behaviour<B: Binding>(binding: &B) -> Option<&ApplicationFailoverBehavior> {
    binding.spec().failover.as_ref()?.application.as_ref()
}

/// Returns whether a binding fails over by its health, or did so before this change.
fn is_news<B: Binding>(change: &Change<'_, B>) -> bool {
    [&change.old, &change.new].into_iter().flatten().any(|binding| behaviour(binding.as_ref()).is_some())
}

/// A binding, and for how long it has been unhealthy where.
pub(crate) struct View<B> {
    binding: Arc<B>,
    unhealthy_for: BTreeMap<String, Duration>,
    /// Too many clusters are lost.
    halted: bool,
    /// The interpreter has a health rule for this kind.
    has_health: bool,
    /// The gate GracefulEviction is open.
    graceful: bool,
    /// The gate StatefulFailoverInjection is open.
    preserve: bool,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    evict: Vec<GracefulEvictionTask>,
    /// Clusters in which it is unhealthy; time is counted only for these.
    watch: Vec<String>,
    /// Look again after this time.
    again: Option<Duration>,
    /// Why a due eviction is not possible.
    refused: Option<String>,
    /// Why a due eviction does not happen yet.
    held: Option<&'static str>,
}

fn decide<B: Binding>(view: &View<B>) -> Plan {
    let mut plan = Plan::default();
    let binding = view.binding.as_ref();
    let (spec, status) = (binding.spec(), binding.status());
    let Some(behaviour) = behaviour(binding) else { return plan };
    // A namespaced workload has to propagate its dependencies; otherwise it would not work elsewhere.
    let complete = !B::NAMESPACED || spec.propagate_deps;
    if binding.metadata().deletion_timestamp.is_some() || !view.has_health || !complete {
        return plan;
    }
    let seconds = behaviour.decision_conditions.toleration_seconds.unwrap_or(TOLERATION);
    let toleration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let is_there = |cluster: &str| spec.clusters.iter().any(|target| target.name == cluster);
    let leaves = |cluster: &str| spec.graceful_eviction_tasks.iter().any(|task| task.from_cluster == cluster);
    for item in &status.aggregated_status {
        let cluster = item.cluster_name.as_str();
        if item.health != Some(ResourceHealth::Unhealthy) || !is_there(cluster) || leaves(cluster) {
            continue;
        }
        let lasted = view.unhealthy_for.get(cluster).copied().unwrap_or_default();
        match toleration.checked_sub(lasted).filter(|left| !left.is_zero()) {
            Some(left) => {
                plan.watch.push(cluster.to_owned());
                plan.again = Some(plan.again.map_or(left, |again| again.min(left)));
            }
            // The end of the outage enqueues the binding again.
            None if view.halted => {
                plan.watch.push(cluster.to_owned());
                plan.held = Some("too many clusters are lost at once");
            }
            None => match task(view, behaviour, cluster, seconds) {
                Ok(task) => plan.evict.push(task),
                Err(why) => {
                    plan.watch.push(cluster.to_owned());
                    plan.refused = Some(why);
                }
            },
        }
    }
    plan
}

fn task<B: Binding>(
    view: &View<B>,
    behaviour: &ApplicationFailoverBehavior,
    cluster: &str,
    seconds: i32,
) -> Result<GracefulEvictionTask, String> {
    let binding = view.binding.as_ref();
    let mode = purge_mode(behaviour.purge_mode.as_ref());
    let gracefully = mode == PurgeMode::Gracefully;
    if gracefully && !view.graceful {
        return Err("purgeMode Gracefully needs the feature gate GracefulEviction".to_owned());
    }
    let state = behaviour.state_preservation.as_ref().filter(|_| view.preserve);
    let state = state.filter(|state| !state.rules.is_empty());
    let preserved =
        state.map(|state| eviction::preserved_state(state, cluster, &binding.status().aggregated_status));
    let preserved = preserved.transpose().map_err(|error| error.to_string())?;
    let before = binding.spec().clusters.iter().map(|target| target.name.clone());
    Ok(GracefulEvictionTask {
        from_cluster: cluster.to_owned(),
        suppress_deletion: (mode == PurgeMode::Never).then_some(true),
        grace_period_seconds: behaviour.grace_period_seconds.filter(|_| gracefully),
        purge_mode: Some(mode),
        reason: EVICTION_APPLICATION_FAILURE.to_owned(),
        message: format!("it has been unhealthy there for longer than {seconds}s"),
        producer: component::<B>().to_owned(),
        clusters_before_failover: if preserved.is_some() { before.collect() } else { Vec::new() },
        preserved_label_state: preserved.unwrap_or_default(),
        ..GracefulEvictionTask::default()
    })
}

impl<B: StoredBinding> Reconcile for Controller<B> {
    type Key = Key;
    type View = View<B>;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View<B>>, Error> {
        let Some(binding) = self.mirror.find(key) else {
            self.since.lock().remove(key);
            return Ok(None);
        };
        let (standing, now) = (self.plane.halt().standing(), Instant::now());
        let since = self.since.lock().get(key).cloned().unwrap_or_default();
        let resource = &binding.spec().resource;
        let kind = Gvk::from_api_version(&resource.api_version, &resource.kind);
        Ok(Some(View {
            unhealthy_for: since
                .into_iter()
                .map(|(cluster, since)| (cluster, now.saturating_duration_since(standing.since(since))))
                .collect(),
            halted: standing.halted,
            has_health: self.plane.interpreter.supports(&kind, Operation::InterpretHealth),
            graceful: self.plane.features.enabled(features::GRACEFUL_EVICTION),
            preserve: self.plane.features.enabled(features::STATEFUL_FAILOVER_INJECTION),
            binding,
        }))
    }

    fn decide(view: &View<B>, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View<B>, plan: Plan) -> Result<Outcome, Error> {
        if let Some(held) = plan.held {
            tracing::debug!(controller = component::<B>(), object = %key, held, "an eviction waits");
        }
        // Until the eviction is written, the time that has passed counts.
        let leaving = plan.evict.iter().map(|task| task.from_cluster.clone());
        self.count(key, &plan.watch.iter().cloned().chain(leaving).collect::<Vec<_>>());
        if !plan.evict.is_empty() {
            evict(self, component::<B>(), view.binding.as_ref(), &plan.evict).await?;
            self.count(key, &plan.watch);
        }
        if let Some(why) = plan.refused {
            return Err(Error::Waiting(format!("to evict: {why}")));
        }
        Ok(plan.again.map_or(Outcome::Done, Outcome::After))
    }
}

impl<B: StoredBinding> Controller<B> {
    /// Counts the time for these clusters and forgets all others.
    fn count(&self, key: &Key, watch: &[String]) {
        let mut all = self.since.lock();
        if watch.is_empty() {
            all.remove(key);
            return;
        }
        let (since, now) = (all.entry(key.clone()).or_default(), Instant::now());
        since.retain(|cluster, _| watch.contains(cluster));
        for cluster in watch {
            since.entry(cluster.clone()).or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, deleting, merged};
    use crate::world::World;

    /// A binding in m1 and m2 that tolerates 30 s, of which these clusters report this health.
    fn view(items: &[(&str, &str)], application: Value, otherwise: Value) -> View<ResourceBinding> {
        let items: Vec<Value> = items
            .iter()
            .map(|(cluster, health)| json!({ "clusterName": cluster, "health": health, "status": { "replicas": 2 } }))
            .collect();
        let application = merged(
            json!({ "decisionConditions": { "tolerationSeconds": 30 }, "purgeMode": "Directly" }),
            application,
        );
        let base = json!({
            "spec": {
                "propagateDeps": true, "failover": { "application": application },
                "clusters": [{ "name": "m1", "replicas": 2 }, { "name": "m2", "replicas": 1 }],
            },
            "status": { "aggregatedStatus": items },
        });
        View {
            binding: Arc::new(fixtures::binding(merged(base, otherwise))),
            unhealthy_for: BTreeMap::new(),
            halted: false,
            has_health: true,
            graceful: true,
            preserve: true,
        }
    }

    fn lasting(mut view: View<ResourceBinding>, cluster: &str, seconds: u64) -> View<ResourceBinding> {
        view.unhealthy_for.insert(cluster.to_owned(), Duration::from_secs(seconds));
        view
    }

    fn none() -> Value {
        json!({})
    }

    fn evicted(plan: &Plan) -> Vec<&str> {
        plan.evict.iter().map(|task| task.from_cluster.as_str()).collect()
    }

    #[test]
    fn who_is_evicted_and_when() {
        let ill = || view(&[("m1", "Unhealthy"), ("m2", "Healthy")], none(), none());
        let both = || view(&[("m1", "Unhealthy"), ("m2", "Unhealthy")], none(), none());
        let secs = |secs: u64| Some(Duration::from_secs(secs));
        let leaving = json!({ "spec": { "gracefulEvictionTasks": [{ "fromCluster": "m1", "reason": "R", "producer": "P" }] } });
        let elsewhere = json!({ "spec": { "clusters": [{ "name": "m2" }] } });
        let alone = json!({ "spec": { "propagateDeps": false } });
        let with = |otherwise: Value| lasting(view(&[("m1", "Unhealthy")], none(), otherwise), "m1", 30);
        let at_once = json!({ "decisionConditions": { "tolerationSeconds": 0 } });
        let below_zero = json!({ "decisionConditions": { "tolerationSeconds": -1 } });
        let unsaid = json!({ "decisionConditions": { "tolerationSeconds": null } });
        let dull = View { has_health: false, ..lasting(ill(), "m1", 30) };
        let cases = [
            ("first sighting", ill(), vec![], vec!["m1"], secs(30)),
            ("still tolerated", lasting(ill(), "m1", 20), vec![], vec!["m1"], secs(10)),
            ("not any longer", lasting(ill(), "m1", 30), vec!["m1"], vec![], None),
            ("one of two", lasting(both(), "m1", 30), vec!["m1"], vec!["m2"], secs(30)),
            (
                "the first of two",
                lasting(lasting(both(), "m1", 5), "m2", 20),
                vec![],
                vec!["m1", "m2"],
                secs(10),
            ),
            (
                "the second of two",
                lasting(lasting(both(), "m1", 20), "m2", 5),
                vec![],
                vec!["m1", "m2"],
                secs(10),
            ),
            ("at once", view(&[("m1", "Unhealthy")], at_once, none()), vec!["m1"], vec![], None),
            (
                "a time below zero is none",
                view(&[("m1", "Unhealthy")], below_zero, none()),
                vec!["m1"],
                vec![],
                None,
            ),
            (
                "five minutes by default",
                view(&[("m1", "Unhealthy")], unsaid, none()),
                vec![],
                vec!["m1"],
                secs(300),
            ),
            (
                "nobody knows",
                lasting(view(&[("m1", "Unknown")], none(), none()), "m1", 30),
                vec![],
                vec![],
                None,
            ),
            (
                "it has recovered",
                lasting(view(&[("m1", "Healthy")], none(), none()), "m1", 30),
                vec![],
                vec![],
                None,
            ),
            ("it leaves already", with(leaving), vec![], vec![], None),
            ("it is not placed there", with(elsewhere), vec![], vec![], None),
            ("without its dependencies", with(alone), vec![], vec![], None),
            ("the binding goes", with(deleting()), vec![], vec![], None),
            (
                "the policy does not ask for it",
                with(json!({ "spec": { "failover": null } })),
                vec![],
                vec![],
                None,
            ),
            ("a kind without health", dull, vec![], vec![], None),
        ];
        for (name, view, leave, watch, again) in cases {
            let plan = decide(&view);
            let watched: Vec<&str> = plan.watch.iter().map(String::as_str).collect();
            assert_eq!((evicted(&plan), watched, plan.again), (leave, watch, again), "{name}");
        }
    }

    #[test]
    fn a_workload_without_namespace_leaves_without_dependencies() {
        let alone = json!({ "spec": { "propagateDeps": false } });
        let ill = lasting(view(&[("m1", "Unhealthy")], none(), alone), "m1", 30);
        assert_eq!(evicted(&decide(&ill)), [""; 0], "it would not work elsewhere");
        let (spec, status) = (&ill.binding.spec, &ill.binding.status);
        let binding = json!({ "metadata": { "name": "web" }, "spec": spec, "status": status });
        let cluster_wide = View::<ClusterResourceBinding> {
            binding: Arc::new(fixtures::read(binding)),
            unhealthy_for: ill.unhealthy_for,
            halted: ill.halted,
            has_health: ill.has_health,
            graceful: ill.graceful,
            preserve: ill.preserve,
        };
        let plan = decide(&cluster_wide);
        assert_eq!(evicted(&plan), ["m1"]);
        assert_eq!(plan.evict[0].producer, EVICTION_PRODUCER_CLUSTER_BINDING_FAILOVER);
    }

    #[test]
    fn an_eviction_names_its_reason_and_its_producer() {
        let ill = lasting(view(&[("m1", "Unhealthy")], none(), none()), "m1", 30);
        let task = decide(&ill).evict.remove(0);
        assert_eq!(task.reason, EVICTION_APPLICATION_FAILURE);
        assert_eq!(task.message, "it has been unhealthy there for longer than 30s");
        assert_eq!(task.producer, EVICTION_PRODUCER_BINDING_FAILOVER);
    }

    #[test]
    fn an_outage_holds_evictions() {
        let seen = |seconds: u64| {
            let ill = view(&[("m1", "Unhealthy"), ("m2", "Unhealthy")], none(), none());
            View { halted: true, ..lasting(ill, "m1", seconds) }
        };
        let due = decide(&seen(30));
        assert!(due.evict.is_empty() && due.held.is_some(), "{due:?}");
        assert_eq!(due.watch, ["m1", "m2"], "it is looked at again when the outage is over");
        let tolerated = decide(&seen(20));
        assert_eq!((tolerated.held, tolerated.again), (None, Some(Duration::from_secs(10))));
    }

    #[tokio::test]
    async fn the_end_of_an_outage_brings_workloads_back() {
        let world = World::new().await;
        let controller = Controller::<ResourceBinding>::new(&world.plane);
        let mut version = 0;
        let mut report = |ready: &str| {
            for name in ["m1", "m2", "m3"] {
                version += 1;
                let cluster = Arc::new(fixtures::cluster(name, ready, json!({})));
                world.environment.mirrors.clusters.put(&Key::new("", name), &version.to_string(), cluster);
            }
        };
        report("Unknown");
        let application =
            json!({ "purgeMode": "Directly", "decisionConditions": { "tolerationSeconds": 0 } });
        let ill = json!({
            "spec": {
                "resource": { "apiVersion": "apps/v1", "kind": "Deployment" }, "propagateDeps": true,
                "clusters": [{ "name": "m1" }], "failover": { "application": application },
            },
            "status": { "aggregatedStatus": [{ "clusterName": "m1", "health": "Unhealthy" }] },
        });
        let binding = world.binding(ill).await;
        let key = Key::of(binding.as_ref());
        let pushed = || {
            let stop = tokio_util::sync::CancellationToken::new();
            let mut taken = Vec::new();
            let queue = controller.queue.as_ref();
            while let Some(Some(turn)) = futures::FutureExt::now_or_never(runtime::Turns::next(queue, &stop))
            {
                taken.push(<runtime::Queue<Key> as runtime::Turns>::key(&turn));
                runtime::Turns::done(queue, turn, Outcome::Done);
            }
            taken
        };
        assert_eq!(pushed(), std::slice::from_ref(&key));
        assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
        assert_eq!(world.writes(), [""; 0], "nothing is evicted");
        report("True");
        assert_eq!(pushed(), std::slice::from_ref(&key));
        world.once(controller.as_ref(), &key).await;
        assert_eq!(world.writes().len(), 1, "now it is");
    }

    #[tokio::test]
    async fn time_is_counted_for_those_alone_that_are_watched() {
        let world = World::new().await;
        let controller = Controller::<ResourceBinding>::new(&world.plane);
        let key = Key::new("default", "web");
        let counted = |watch: &[&str]| {
            controller.count(&key, &watch.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
            controller.since.lock().get(&key).cloned().unwrap_or_default()
        };
        let first = counted(&["m1", "m2"]);
        let second = counted(&["m2", "m3"]);
        assert_eq!(second.keys().collect::<Vec<_>>(), ["m2", "m3"], "m1 has recovered");
        assert_eq!(second["m2"], first["m2"]);
        assert_eq!(counted(&[]).len(), 0);
    }

    #[tokio::test]
    async fn the_time_that_has_passed_counts_until_the_eviction_is_written() {
        let world = World::new().await;
        let controller = Controller::<ResourceBinding>::new(&world.plane);
        let application =
            json!({ "purgeMode": "Directly", "decisionConditions": { "tolerationSeconds": 3600 } });
        let ill = json!({
            "spec": {
                "resource": { "apiVersion": "apps/v1", "kind": "Deployment" }, "propagateDeps": true,
                "clusters": [{ "name": "m1" }], "failover": { "application": application },
            },
            "status": { "aggregatedStatus": [{ "clusterName": "m1", "health": "Unhealthy" }] },
        });
        let binding = world.binding(ill).await;
        let key = Key::of(binding.as_ref());
        assert!(matches!(world.once(controller.as_ref(), &key).await, Outcome::After(_)));
        for since in controller.since.lock().values_mut().flat_map(BTreeMap::values_mut) {
            *since = since.checked_sub(Duration::from_secs(3600)).expect("a time");
        }
        world.refuse(Method::PATCH, "/resourcebindings/web-configmap", 500, "InternalError");
        world.once(controller.as_ref(), &key).await;
        assert_eq!(world.writes().len(), 1, "it is refused");
        let told = ["ResourceBinding", "Deployment"];
        assert_eq!(world.told_of("EvictWorkloadFromClusterFailed", 2).await, told);
        assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
        assert_eq!(world.writes().len(), 1, "the next look evicts at once");
        assert!(controller.since.lock().is_empty(), "nothing is counted any more");
        assert_eq!(world.told_of("EvictingWorkloadFromCluster", 2).await, told);
        let why = "Evicting from cluster m1: it has been unhealthy there for longer than 3600s.";
        assert_eq!(world.event("EvictingWorkloadFromCluster").await, why);
    }

    #[test]
    fn which_changes_count() {
        let key = Key::new("default", "web");
        let (with, without) = (json!({ "application": {} }), Value::Null);
        let cases = [
            ("it fails over by health", None, Some(&with), true),
            ("it does not", None, Some(&without), false),
            ("it begins to", Some(&without), Some(&with), true),
            ("it did so before", Some(&with), Some(&without), true),
            ("neither before nor now", Some(&without), Some(&without), false),
            ("it is gone, and what was counted with it", Some(&with), None, true),
        ];
        for (name, old, new, expected) in cases {
            let made = |failover: Option<&Value>| {
                failover
                    .map(|failover| Arc::new(fixtures::binding(json!({ "spec": { "failover": failover } }))))
            };
            let change = Change { key: &key, old: made(old), new: made(new), ours: false, initial: false };
            assert_eq!(is_news(&change), expected, "{name}");
        }
    }

    #[test]
    fn what_becomes_of_the_old_copy() {
        let task = |application: Value| {
            let plan = decide(&lasting(view(&[("m1", "Unhealthy")], application, none()), "m1", 30));
            let task = plan.evict.first().cloned().expect("a task");
            (task.purge_mode.expect("a mode"), task.suppress_deletion, task.grace_period_seconds)
        };
        let mode = |mode: &str| json!({ "purgeMode": mode, "gracePeriodSeconds": 60 });
        assert_eq!(task(mode("Directly")), (PurgeMode::Directly, None, None));
        assert_eq!(task(mode("Immediately")), (PurgeMode::Directly, None, None));
        assert_eq!(task(mode("Gracefully")), (PurgeMode::Gracefully, None, Some(60)));
        assert_eq!(task(mode("Graciously")), (PurgeMode::Gracefully, None, Some(60)));
        assert_eq!(task(mode("Never")), (PurgeMode::Never, Some(true), None));
        assert_eq!(task(json!({ "purgeMode": null })), (PurgeMode::Gracefully, None, None));
        let mut closed = lasting(view(&[("m1", "Unhealthy")], mode("Gracefully"), none()), "m1", 30);
        closed.graceful = false;
        let plan = decide(&closed);
        assert!(plan.evict.is_empty() && plan.refused.is_some_and(|why| why.contains("GracefulEviction")));
        let mut closed = lasting(view(&[("m1", "Unhealthy")], mode("Directly"), none()), "m1", 30);
        closed.graceful = false;
        assert_eq!(evicted(&decide(&closed)), ["m1"], "it needs no gate");
    }

    #[test]
    fn state_goes_with_the_task() {
        let rules = |path: &str| json!({ "statePreservation": { "rules": [{ "aliasLabelName": "n", "jsonPath": path }] } });
        let ill = |path: &str| lasting(view(&[("m1", "Unhealthy")], rules(path), none()), "m1", 30);
        let task = decide(&ill("{.replicas}")).evict.remove(0);
        assert_eq!(task.preserved_label_state, [("n".to_owned(), "2".to_owned())].into());
        assert_eq!(task.clusters_before_failover, ["m1", "m2"]);
        let closed = decide(&View { preserve: false, ..ill("{.replicas}") }).evict.remove(0);
        assert!(closed.preserved_label_state.is_empty() && closed.clusters_before_failover.is_empty());
        let without_rules = json!({ "statePreservation": { "rules": [] } });
        let nothing = lasting(view(&[("m1", "Unhealthy")], without_rules, none()), "m1", 30);
        assert_eq!(decide(&nothing).evict.remove(0).clusters_before_failover, [""; 0], "no state is kept");
        let missing = decide(&ill("{.gone}"));
        assert!(missing.evict.is_empty() && missing.refused.is_some(), "{missing:?}");
        assert_eq!(missing.watch, ["m1"], "what it has waited for still counts");
    }
}
