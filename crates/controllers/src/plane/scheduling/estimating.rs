//! The accurate estimators: one connection per cluster, and the request before each decision.
//!
//! A member whose nodes and pods this process follows needs no estimator: where none is connected, [`super::local`] answers.

#[cfg(test)]
mod on_server;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::cluster::{Cluster, ClusterSyncMode};
use estimator::{Client, Options, Question, Want, Workload};
use futures::future::join_all;
use jiff::Timestamp;
use runtime::{Change, Error, Outcome, Queue, Reconcile, Supervisor, controller};
use scheduler::estimator::{Collected, Unavailable};

use super::Controller;
use super::decide::View;
use super::local::Local;
use crate::plane::Plane;

/// The name by which upstream registers it.
const NAME: &str = "scheduler-estimator";
/// How many connections are made at once.
const AT_ONCE: usize = 16;

/// How estimators are used.
#[derive(Debug, Clone, Default)]
pub struct Estimating {
    pub options: Options,
    /// `--disable-scheduler-estimator-in-pull-mode`
    pub skip_pull_mode: bool,
}

pub(super) struct Estimators {
    client: Client,
    skip_pull_mode: bool,
    /// Clusters whose connection has to be made or ended.
    queue: Arc<Queue<String>>,
    local: Local,
}

impl Estimators {
    pub(super) fn new(settings: Estimating, plane: &Plane) -> Self {
        let Estimating { options, skip_pull_mode } = settings;
        Self {
            client: Client::new(options, plane.client().clone()),
            skip_pull_mode,
            queue: Queue::new("estimators"),
            local: Local::new(plane),
        }
    }

    /// Asks about all clusters at once: from connected estimators, and from what this process knows itself.
    async fn max_available(&self, question: &Question) -> Result<BTreeMap<String, i32>, String> {
        let names = question.clusters.iter().map(|(name, _)| name.clone());
        let connected: BTreeSet<String> = names.filter(|name| self.client.is_connected(name)).collect();
        let local = |name: &str| !connected.contains(name) && self.local.knows(name);
        let (known, asked) = question.clusters.iter().cloned().partition(|(name, _)| local(name));
        let here = Question { clusters: known, ..question.clone() };
        let there = Question { clusters: asked, ..question.clone() };
        let (own, others) = tokio::join!(
            tokio::time::timeout(self.client.timeout(), self.local.max_available(&here)),
            self.client.max_available(&there),
        );
        // What was given up is looked for again, and answered from here meanwhile if it can be.
        for (name, _) in there.clusters.iter().filter(|(name, _)| connected.contains(name)) {
            if !self.client.is_connected(name) {
                self.queue.push(name.clone());
            }
        }
        let mut answers = others.map_err(|error| error.to_string())?;
        answers.extend(own.map_err(|_| "the nodes and pods of a member are not known in time".to_owned())??);
        Ok(answers)
    }

    pub(super) fn cluster_changed(&self, change: &Change<'_, Cluster>) {
        self.queue.push(change.key.name.clone());
    }
}

impl Controller {
    /// Makes and ends connections as clusters come and go.
    pub(super) fn keep_connections(self: &Arc<Self>, supervisor: &Supervisor) {
        if let Some(estimators) = &self.estimators {
            let connections = Arc::new(Connections(self.clone()));
            controller::run(&connections, &estimators.queue, AT_ONCE, supervisor);
        }
    }

    /// Waits until every estimator was tried once, so that the first decisions can use them.
    pub(super) async fn first_connections(&self) {
        if self.estimators.is_some() {
            self.connected.get_or_init(|| self.connect_all()).await;
        }
    }

    async fn connect_all(&self) {
        let clusters = self.plane.mirrors.clusters.all();
        let names = clusters.iter().filter_map(|cluster| cluster.metadata.name.as_deref());
        join_all(names.map(|name| self.connect(name))).await;
    }

    /// Brings the connection to one estimator up to date; failures are tried again by the queue.
    async fn connect(&self, cluster: &str) {
        let Some(estimators) = &self.estimators else { return };
        let found = self.plane.mirrors.clusters.get("", cluster);
        if decide(found.as_deref(), estimators.skip_pull_mode) == Plan::Connect
            && let Err(error) = estimators.client.connect(cluster).await
        {
            tracing::debug!(controller = "scheduler", cluster, %error, "no estimator");
        }
    }

    /// Asks the estimators of the clusters that could take the binding; none when there is nothing to ask.
    pub(super) async fn ask(&self, view: &View, term: &str, now: Timestamp) -> Option<Collected> {
        let estimators = self.estimators.as_ref()?;
        let question = question(view, term, now)?;
        let answers = estimators.max_available(&question).await.map_err(|error| {
            tracing::debug!(controller = "scheduler", error, "estimators are left out");
            Unavailable(error)
        });
        Some(Collected { name: NAME.to_owned(), answers })
    }
}

/// Keeps the connections to the estimators.
struct Connections(Arc<Controller>);

/// What to do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Connect,
    Disconnect,
    /// It is left as it is: clusters in pull mode may have an estimator that cannot be reached from here.
    Nothing,
}

fn decide(cluster: Option<&Cluster>, skip_pull_mode: bool) -> Plan {
    match cluster {
        None => Plan::Disconnect,
        Some(found) if skip_pull_mode && found.spec.sync_mode == ClusterSyncMode::Pull => Plan::Nothing,
        Some(_) => Plan::Connect,
    }
}

impl Reconcile for Connections {
    type Key = String;
    /// The cluster, and whether those in pull mode are passed over.
    type View = (Option<Arc<Cluster>>, bool);
    type Plan = Plan;

    async fn observe(&self, cluster: &String) -> Result<Option<Self::View>, Error> {
        let Some(estimators) = &self.0.estimators else { return Ok(None) };
        Ok(Some((self.0.plane.mirrors.clusters.get("", cluster), estimators.skip_pull_mode)))
    }

    fn decide((cluster, skip_pull_mode): &Self::View, _: Timestamp) -> Plan {
        decide(cluster.as_deref(), *skip_pull_mode)
    }

    async fn apply(&self, cluster: &String, _: Self::View, plan: Plan) -> Result<Outcome, Error> {
        let Some(estimators) = &self.0.estimators else { return Ok(Outcome::Done) };
        match plan {
            Plan::Nothing => {}
            Plan::Disconnect => estimators.client.disconnect(cluster),
            Plan::Connect => {
                if let Err(error) = estimators.client.connect(cluster).await {
                    return Ok(without_estimator(estimators.local.knows(cluster), error.to_string()));
                }
            }
        }
        Ok(Outcome::Done)
    }
}

/// Returns what follows if a cluster has no estimator: where this process knows the nodes and pods itself, none is missing.
fn without_estimator(is_known: bool, error: String) -> Outcome {
    if is_known { Outcome::Retry } else { Outcome::Failed { conflict: false, error } }
}

/// Returns what there is to ask about an affinity term.
fn question(view: &View, term: &str, now: Timestamp) -> Option<Question> {
    let (spec, known) = (view.subject.seen().spec, &view.known);
    if spec.replicas == 0 && spec.components.is_empty() {
        return None;
    }
    let assumed = |name: &str| {
        let all = known.assumptions.on(name, now).into_iter();
        all.map(|one| Workload { namespace: one.namespace.clone(), components: one.components.clone() })
            .collect()
    };
    let feasible = view.scheduler.feasible(known.world(&[], now), spec, term);
    let clusters: Vec<(String, Vec<Workload>)> =
        feasible.into_iter().map(|name| (name.to_owned(), assumed(name))).collect();
    if clusters.is_empty() {
        return None;
    }
    let want = if view.scheduler.counts_sets(spec) {
        Want::Sets(spec.components.clone())
    } else {
        Want::Replicas(spec.replica_requirements.clone())
    };
    Some(Question { resource: spec.resource.clone(), want, clusters })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use api::work::TargetCluster;
    use scheduler::{Assumptions, Fleet, Gates};
    use serde_json::{Value, json};

    use super::super::decide::{Known, Subject};
    use super::super::obstacles::Obstacles;
    use super::super::settings::Settings;
    use super::*;
    use crate::fixtures::{at, binding, cluster, merged};

    #[test]
    fn what_becomes_of_a_connection() {
        let (push, pull) = (
            cluster("m1", "True", json!({})),
            cluster("m1", "True", json!({ "spec": { "syncMode": "Pull" } })),
        );
        let cases = [
            ("it is gone", None, false, Plan::Disconnect),
            ("it is gone, and those in pull mode are passed over", None, true, Plan::Disconnect),
            ("in push mode", Some(&push), true, Plan::Connect),
            ("in pull mode", Some(&pull), false, Plan::Connect),
            ("in pull mode, passed over", Some(&pull), true, Plan::Nothing),
        ];
        for (name, cluster, skip_pull_mode, expected) in cases {
            assert_eq!(decide(cluster, skip_pull_mode), expected, "{name}");
        }
    }

    #[test]
    fn an_estimator_that_is_not_needed_is_not_missed() {
        assert_eq!(without_estimator(true, "no".to_owned()), Outcome::Retry);
        let missed = Outcome::Failed { conflict: false, error: "no".to_owned() };
        assert_eq!(without_estimator(false, "no".to_owned()), missed);
    }

    /// What is asked about a binding where `m1` and `m2` serve Deployments: the clusters, and whether sets are counted.
    fn asked(otherwise: Value) -> Option<(Vec<String>, bool)> {
        let question = asked_with(Assumptions::default(), otherwise)?;
        let names = question.clusters.iter().map(|(name, _)| name.clone()).collect();
        Some((names, matches!(question.want, Want::Sets(_))))
    }

    fn asked_with(assumptions: Assumptions, otherwise: Value) -> Option<Question> {
        let serving = json!({ "status": { "apiEnablements": [
            { "groupVersion": "apps/v1", "resources": [{ "name": "deployments", "kind": "Deployment" }] },
        ] } });
        let clusters = ["m1", "m2"].map(|name| Arc::new(cluster(name, "True", serving.clone())));
        let base = json!({ "spec": {
            "replicas": 2, "placement": {}, "resource": { "apiVersion": "apps/v1", "kind": "Deployment" },
        } });
        let view = View {
            subject: Subject::Namespaced(Arc::new(binding(merged(base, otherwise)))),
            scheduler: Arc::new(
                Settings::default().scheduler(Gates { components: true, ..Gates::default() }),
            ),
            known: Known {
                fleet: Arc::new(Fleet::new(clusters)),
                assumptions: assumptions.into(),
                ..Known::default()
            },
            answers: Some(Default::default()),
            seen: Obstacles::default().seen(),
            started: Instant::now(),
        };
        question(&view, "", at(1))
    }

    #[test]
    fn what_is_asked() {
        let both = || vec!["m1".to_owned(), "m2".to_owned()];
        let only = |name: &str| json!({ "spec": { "placement": { "clusterAffinity": { "clusterNames": [name] } } } });
        assert_eq!(asked(json!({})), Some((both(), false)), "all that could take it");
        assert_eq!(asked(only("m2")), Some((vec!["m2".to_owned()], false)));
        assert_eq!(asked(only("m9")), None, "nobody could take it");
        assert_eq!(asked(json!({ "spec": { "replicas": 0 } })), None, "it needs no room");
        let component = json!({ "name": "c", "replicas": 1 });
        let sets = json!({ "spec": { "replicas": 0, "components": [component] } });
        assert_eq!(asked(sets.clone()), Some((both(), false)), "its components need room");
        let spread = json!([{ "spreadByField": "cluster", "minGroups": 1, "maxGroups": 1 }]);
        let one_cluster = merged(sets, json!({ "spec": { "placement": { "spreadConstraints": spread } } }));
        assert_eq!(asked(one_cluster), Some((both(), true)), "all of them in one cluster");
    }

    #[test]
    fn what_was_placed_and_does_not_run_yet_is_a_part_of_the_question() {
        let other = binding(json!({ "spec": {
            "replicas": 3, "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop" },
        } }));
        let mut assumptions = Assumptions::default();
        let target = TargetCluster { name: "m1".to_owned(), replicas: 3, ..TargetCluster::default() };
        assumptions.assume("default/other", &other.spec, &[target], at(0));
        let question = asked_with(assumptions, json!({})).expect("a question");
        let assumed: Vec<_> = question
            .clusters
            .iter()
            .map(|(name, workloads)| {
                let each = workloads.iter().map(|one| (one.namespace.as_str(), one.components[0].replicas));
                (name.as_str(), each.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(assumed, [("m1", vec![("shop", 3)]), ("m2", vec![])]);
    }
}
