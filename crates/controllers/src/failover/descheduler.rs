//! Removes replicas from clusters in which they cannot be scheduled, so that the scheduler places them
//! elsewhere.
//!
//! Watches: ResourceBindings, Clusters; looks at the bindings every `Settings::interval`. Asks members, or their estimators, for
//!          pods that wait.
//! Writes:  `spec.clusters` of ResourceBindings: fewer replicas.
//!
//! `descheduler` in `--controllers`, off by default. Upstream has a separate program for it
//! (`karmada-descheduler`); here, `karmada controllers --controllers=descheduler` does the same. Members are
//! asked directly, while upstream needs an estimator for each. Only members that this process cannot reach,
//! such as clusters in pull mode, are asked through their estimator. A cluster that cannot be asked keeps its
//! replicas.

#[cfg(test)]
mod on_server;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::events::{DESCHEDULE_BINDING_FAILED, DESCHEDULE_BINDING_SUCCEED};
use api::policy::{ReplicaDivisionPreference, ReplicaSchedulingType};
use api::work::{ResourceBinding, TargetCluster};
use estimator::{Client, unschedulable};
use futures::future::join_all;
use jiff::Timestamp;
use propagation::eviction::applied_placement;
use runtime::events::about;
use runtime::{Error, Guard, Key, Outcome, Queue, Reconcile, controller};
use scheduler::trigger::is_suspended;

use crate::members::Shared;
use crate::table::Start;

const COMPONENT: &str = "karmada-descheduler";
/// One at a time, as upstream: the scheduler should place the replicas of one binding before the next one is
/// checked.
const WORKERS: usize = 1;
/// How long a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The options of the descheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `--descheduling-interval`
    pub interval: Duration,
    /// `--unschedulable-threshold`
    pub threshold: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { interval: Duration::from_secs(120), threshold: Duration::from_secs(300) }
    }
}

struct Controller {
    shared: Arc<Shared>,
    estimators: Client,
}

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    let controller = Arc::new(Controller::new(shared));
    Box::new(move || {
        let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
        controller.shared.tell_panics(&queue, COMPONENT, &controller.shared.mirrors.bindings);
        controller.shared.supervisor.keep("descheduler", {
            let (looking, pushed) = (controller.clone(), queue.clone());
            move || look(looking.clone(), pushed.clone())
        });
        controller::run(&controller, &queue, WORKERS, &controller.shared.supervisor);
    })
}

/// Enqueues all bindings periodically.
async fn look(controller: Arc<Controller>, queue: Arc<Queue<Key>>) {
    let shared = &controller.shared;
    // An interval of zero would loop without a pause.
    let interval = shared.failover.descheduler.interval.max(Duration::from_secs(1));
    loop {
        tokio::select! {
            () = shared.supervisor.token().cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        controller.connect().await;
        for binding in shared.mirrors.bindings.all().iter().filter(|binding| is_candidate(binding)) {
            queue.push(Key::of(binding.as_ref()));
        }
    }
}

/// Returns whether replicas of a binding can be moved by their number alone: a Deployment that is divided by the room there is. While
/// its scheduling is suspended, nobody would place elsewhere what is taken away.
fn is_candidate(binding: &ResourceBinding) -> bool {
    let resource = &binding.spec.resource;
    if resource.api_version != "apps/v1" || resource.kind != "Deployment" || is_suspended(&binding.spec) {
        return false;
    }
    let strategy = applied_placement(binding).and_then(|placement| placement.replica_scheduling);
    strategy.is_some_and(|strategy| {
        let by_room =
            || strategy.weight_preference.as_ref().is_some_and(|weights| weights.dynamic_weight.is_some());
        strategy.replica_scheduling_type == Some(ReplicaSchedulingType::Divided)
            && match strategy.replica_division_preference {
                Some(ReplicaDivisionPreference::Aggregated) => true,
                Some(ReplicaDivisionPreference::Weighted) => by_room(),
                _ => false,
            }
    })
}

/// Returns how many replicas are ready in a cluster; −1 if that is not known.
fn ready(binding: &ResourceBinding, cluster: &str) -> i32 {
    let items = &binding.status.aggregated_status;
    let item = items.iter().find(|item| item.cluster_name == cluster);
    let ready = item.and_then(|item| item.status.as_ref()?.get("readyReplicas")?.as_i64());
    ready.map_or(-1, |ready| i32::try_from(ready).unwrap_or(i32::MAX))
}

/// Returns the clusters that are asked about a binding: fewer replicas are ready there than were assigned. If the number of those that
/// are ready is not known, the cluster is asked as well.
fn lacking(binding: &ResourceBinding) -> Vec<&str> {
    if binding.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let targets = binding.spec.clusters.iter();
    let lacking = targets.filter(|target| ready(binding, &target.name) < target.replicas);
    lacking.map(|target| target.name.as_str()).collect()
}

/// A binding, and how many of its replicas find no node where.
pub(crate) struct View {
    binding: Arc<ResourceBinding>,
    unschedulable: BTreeMap<String, i32>,
}

/// The plan.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// The clusters with fewer replicas; nothing if all may stay.
    clusters: Option<Vec<TargetCluster>>,
    /// How many leave which cluster.
    taken: Vec<(String, i32)>,
}

fn decide(view: &View) -> Plan {
    let mut plan = Plan::default();
    let mut clusters = view.binding.spec.clusters.clone();
    for target in &mut clusters {
        let stuck = view.unschedulable.get(&target.name).copied().unwrap_or(0);
        if stuck <= 0 || target.replicas < stuck {
            continue;
        }
        let (before, ready) = (target.replicas, ready(&view.binding, &target.name));
        let mut after = before - stuck;
        // Running replicas are never removed, whatever the number of waiting ones.
        if after < ready && ready <= before {
            after = ready;
        }
        if after < before {
            target.replicas = after;
            plan.taken.push((target.name.clone(), before - after));
        }
    }
    plan.clusters = (!plan.taken.is_empty()).then_some(clusters);
    plan
}

/// Returns what is told of an attempt: reason and message of an event. Nothing, if somebody else has written the binding meanwhile: it is
/// looked at again after the interval.
fn conclude(taken: &[(String, i32)], written: &Result<(), Error>) -> Option<(&'static str, String)> {
    match written {
        Ok(()) => Some((DESCHEDULE_BINDING_SUCCEED, message(taken))),
        Err(error) if error.is_conflict() => None,
        Err(error) => Some((DESCHEDULE_BINDING_FAILED, error.to_string())),
    }
}

fn message(taken: &[(String, i32)]) -> String {
    let each = taken.iter().map(|(cluster, count)| format!("{count} replica(s) in cluster({cluster})"));
    let total: i64 = taken.iter().map(|(_, count)| i64::from(*count)).sum();
    let each: Vec<String> = each.collect();
    format!("Binding has been descheduled, {}, {total} total descheduled replica(s)", each.join(", "))
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let Some(binding) = self.shared.mirrors.bindings.find(key) else { return Ok(None) };
        let asked = lacking(&binding).into_iter().map(|cluster| self.ask(&binding, cluster));
        let asked = join_all(asked).await;
        let unschedulable: BTreeMap<String, i32> = asked.into_iter().flatten().collect();
        Ok((!unschedulable.is_empty()).then_some(View { binding, unschedulable }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, _: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let Some(clusters) = plan.clusters else { return Ok(Outcome::Done) };
        let (shared, binding) = (&self.shared, view.binding.as_ref());
        let mut fewer = binding.clone();
        fewer.spec.clusters = clusters;
        let mirror = &shared.mirrors.bindings;
        let written = shared.writer.update_mirrored(mirror, binding, &fewer, Guard::Version).await.map(drop);
        let Some((reason, message)) = conclude(&plan.taken, &written) else { return Ok(Outcome::Done) };
        let kind = api::events::event_type(reason);
        shared.events.emit(COMPONENT, &about(binding), kind, reason, message.clone());
        shared.events.emit(COMPONENT, &binding.spec.resource, kind, reason, message);
        written.map(|()| Outcome::Done)
    }
}

impl Controller {
    fn new(shared: &Arc<Shared>) -> Self {
        let estimators = Client::new(shared.scheduler.estimators.clone(), shared.client().clone());
        Self { shared: shared.clone(), estimators }
    }

    /// Connects to the estimators of clusters that this process cannot reach itself, and closes all other
    /// connections.
    async fn connect(&self) {
        let clusters = self.shared.mirrors.clusters.all();
        let names: Vec<&str> =
            clusters.iter().filter_map(|cluster| cluster.metadata.name.as_deref()).collect();
        self.estimators.keep(|name| names.contains(&name));
        let beyond = names.into_iter().filter(|name| self.shared.members.get(name).is_none());
        join_all(beyond.map(|name| async move {
            if let Err(error) = self.estimators.connect(name).await {
                tracing::debug!(controller = COMPONENT, cluster = name, %error, "no estimator");
            }
        }))
        .await;
    }

    /// Asks a cluster how many replicas find no node; nothing if it cannot be asked.
    async fn ask(&self, binding: &ResourceBinding, cluster: &str) -> Option<(String, i32)> {
        let (resource, threshold) = (&binding.spec.resource, self.shared.failover.descheduler.threshold);
        let asked = async {
            match self.shared.members.get(cluster) {
                Some(member) => {
                    let answer =
                        unschedulable::replicas(member.client(), resource, threshold, Timestamp::now());
                    answer.await.map_err(|error| error.to_string())
                }
                None => {
                    let answer = self.estimators.unschedulable(cluster, resource, threshold);
                    answer.await.map_err(|error| error.to_string())
                }
            }
        };
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(count)) => Some((cluster.to_owned(), count)),
            Ok(Err(error)) => {
                tracing::debug!(controller = COMPONENT, cluster, error, "left out");
                None
            }
            Err(_) => {
                tracing::debug!(controller = COMPONENT, cluster, "left out: no answer in time");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{binding, deleting, merged, refused};
    use crate::world::World;

    fn placed(replicas: &[(&str, i32, Option<i64>)], otherwise: Value) -> ResourceBinding {
        let clusters: Vec<Value> =
            replicas.iter().map(|(name, count, _)| json!({ "name": name, "replicas": count })).collect();
        let items: Vec<Value> = replicas
            .iter()
            .map(|(name, _, ready)| json!({ "clusterName": name, "status": { "readyReplicas": ready } }))
            .collect();
        let base = json!({ "spec": { "clusters": clusters }, "status": { "aggregatedStatus": items } });
        binding(merged(base, otherwise))
    }

    #[test]
    fn how_many_replicas_leave() {
        let cases = [
            ("none waits", vec![("m1", 10, Some(6))], vec![("m1", 0)], vec![]),
            ("those that wait", vec![("m1", 10, Some(5))], vec![("m1", 5)], vec![("m1", 5)]),
            ("what is ready stays", vec![("m1", 10, Some(6))], vec![("m1", 5)], vec![("m1", 4)]),
            (
                "nothing is known of those that are ready",
                vec![("m1", 10, None)],
                vec![("m1", 5)],
                vec![("m1", 5)],
            ),
            ("more wait than there are", vec![("m1", 3, Some(0))], vec![("m1", 4)], vec![]),
            ("all of them", vec![("m1", 3, Some(0))], vec![("m1", 3)], vec![("m1", 3)]),
            ("all are ready", vec![("m1", 3, Some(3))], vec![("m1", 2)], vec![]),
            ("more are ready than asked for", vec![("m1", 3, Some(5))], vec![("m1", 2)], vec![("m1", 2)]),
            (
                "a cluster that was not asked",
                vec![("m1", 3, Some(0)), ("m2", 3, Some(1))],
                vec![("m2", 2)],
                vec![("m2", 2)],
            ),
        ];
        for (name, replicas, stuck, expected) in cases {
            let unschedulable = stuck.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
            let view = View { binding: Arc::new(placed(&replicas, json!({}))), unschedulable };
            let plan = decide(&view);
            let taken: Vec<(&str, i32)> =
                plan.taken.iter().map(|(name, count)| (name.as_str(), *count)).collect();
            assert_eq!(taken, expected, "{name}");
            let before: i32 = replicas.iter().map(|(_, count, _)| count).sum();
            let after = plan.clusters.map(|all| all.iter().map(|target| target.replicas).sum::<i32>());
            let lost: i32 = expected.iter().map(|(_, count)| count).sum();
            assert_eq!(after, (lost > 0).then_some(before - lost), "{name}");
        }
    }

    #[test]
    fn which_clusters_are_asked() {
        let cases = [
            ("fewer are ready", vec![("m1", 3, Some(2))], json!({}), vec!["m1"]),
            ("all are ready", vec![("m1", 3, Some(3))], json!({}), vec![]),
            ("more are ready", vec![("m1", 3, Some(4))], json!({}), vec![]),
            ("it is not known how many are ready", vec![("m1", 3, None)], json!({}), vec!["m1"]),
            ("none is wanted, and none is ready", vec![("m1", 0, Some(0))], json!({}), vec![]),
            ("none is wanted, and nothing is known", vec![("m1", 0, None)], json!({}), vec!["m1"]),
            (
                "two of three",
                vec![("m1", 1, Some(0)), ("m2", 1, Some(1)), ("m3", 2, Some(1))],
                json!({}),
                vec!["m1", "m3"],
            ),
            ("it goes", vec![("m1", 3, Some(2))], deleting(), vec![]),
            ("it is nowhere", vec![], json!({}), vec![]),
        ];
        for (name, replicas, otherwise, expected) in cases {
            assert_eq!(lacking(&placed(&replicas, otherwise)), expected, "{name}");
        }
        let silent = binding(json!({ "spec": { "clusters": [{ "name": "m1", "replicas": 1 }] } }));
        assert_eq!(lacking(&silent), ["m1"], "it has reported nothing");
    }

    #[test]
    fn what_is_told_of_an_attempt() {
        let taken = [("m1".to_owned(), 2)];
        let cases = [
            ("it worked", Ok(()), Some(("DescheduleBindingSucceed", message(&taken)))),
            ("others were faster", Err(refused(409)), None),
            ("it was refused", Err(refused(500)), Some(("DescheduleBindingFailed", "why".to_owned()))),
        ];
        for (name, written, expected) in cases {
            assert_eq!(conclude(&taken, &written), expected, "{name}");
        }
    }

    #[test]
    fn whose_replicas_may_leave() {
        let strategy = |strategy: Value| {
            let resource = json!({ "apiVersion": "apps/v1", "kind": "Deployment" });
            json!({ "spec": { "resource": resource, "placement": { "replicaScheduling": strategy } } })
        };
        let divided = |more: Value| strategy(merged(json!({ "replicaSchedulingType": "Divided" }), more));
        let dynamic = json!({ "replicaDivisionPreference": "Weighted",
            "weightPreference": { "dynamicWeight": "AvailableReplicas" } });
        let fixed = json!({ "replicaDivisionPreference": "Weighted", "weightPreference": { "staticWeightList": [] } });
        let aggregated = || divided(json!({ "replicaDivisionPreference": "Aggregated" }));
        let kind = |version: &str, kind: &str| json!({ "spec": { "resource": { "apiVersion": version, "kind": kind } } });
        let job = kind("batch/v1", "Job");
        let cases = [
            ("aggregated", aggregated(), true),
            ("by room", divided(dynamic), true),
            (
                "while nobody would place them",
                merged(aggregated(), json!({ "spec": { "suspension": { "scheduling": true } } })),
                false,
            ),
            ("by fixed weights", divided(fixed), false),
            ("weighted without weights", divided(json!({ "replicaDivisionPreference": "Weighted" })), false),
            ("duplicated", strategy(json!({ "replicaSchedulingType": "Duplicated" })), false),
            (
                "duplicated, though it says how it would be divided",
                strategy(
                    json!({ "replicaSchedulingType": "Duplicated", "replicaDivisionPreference": "Aggregated" }),
                ),
                false,
            ),
            ("no strategy", strategy(Value::Null), false),
            ("divided by nothing that is said", divided(json!({})), false),
            ("another kind", merged(aggregated(), job), false),
            ("another kind of the group", merged(aggregated(), kind("apps/v1", "StatefulSet")), false),
            (
                "the same name in another group",
                merged(aggregated(), kind("example.com/v1", "Deployment")),
                false,
            ),
        ];
        for (name, otherwise, expected) in cases {
            assert_eq!(is_candidate(&binding(otherwise)), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn a_cluster_that_is_not_reached_is_asked_through_its_estimator() {
        let world = World::new().await;
        let controller = Controller::new(&world.members(&[]));
        let deployment = binding(json!({ "spec": { "resource": {
            "apiVersion": "apps/v1", "kind": "Deployment", "namespace": world.namespace, "name": "none",
        } } }));
        let pull = world.cluster("pull", json!({ "spec": { "syncMode": "Pull" } })).await;
        assert_eq!(controller.ask(&deployment, &pull).await, None, "nobody can be asked");

        world.serve_estimator(&pull, &world.environment.scheduler.estimators).await;
        controller.connect().await;
        assert_eq!(controller.ask(&deployment, &pull).await, Some((pull.clone(), 0)));
        world.environment.mirrors.clusters.remove(&Key::new("", &pull), 0);
        controller.connect().await;
        assert_eq!(controller.ask(&deployment, &pull).await, None, "it left");
    }

    #[test]
    fn it_is_told_as_upstream_tells_it() {
        let taken = [("m1".to_owned(), 2), ("m2".to_owned(), 1)];
        assert_eq!(
            message(&taken),
            "Binding has been descheduled, 2 replica(s) in cluster(m1), 1 replica(s) in cluster(m2), 3 total descheduled replica(s)"
        );
    }
}
