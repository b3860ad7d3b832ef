//! Keeps a member's status true: health, version, APIs, nodes and resources.
//!
//! Watches: the member's health, every `Timing::status_period`; its nodes and pods, unless `Settings::resource_modeling` is off.
//! Writes:  the Cluster's status: Ready and CompleteAPIEnablements conditions, kubernetesVersion, apiEnablements,
//!          nodeSummary, resourceSummary. In an agent also the cluster's Lease (`heartbeat`).
//!
//! `cluster-status-controller`, `clusterStatus` in `--controllers`. All clusters are checked in parallel, so
//! a member that does not answer delays no other. The Secret is read at every check, so a new token is used
//! from the next check on.

#[cfg(test)]
mod on_server;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::cluster::{Cluster, ClusterStatus, NodeSummary, ResourceSummary};
use api::conditions::cluster as conditions;
use api::features;
use api::labels::finalizers;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use member::{Health, Member, NodeRecord, PodRecord};
use parking_lot::Mutex;
use propagation::status::{condition, set_condition};
use runtime::{Error, Outcome, Reconcile, UNLIMITED, controller};

use super::heartbeat::Heartbeat;
use super::metrics::METRICS;
use super::readiness::{Readiness, Thresholds};
use super::{Shared, Start, enablements, links, summary};
use crate::MyClusters;

const CONTROLLER: &str = "cluster-status-controller";

/// A healthy API server answers this in milliseconds.
const PROBE_DEADLINE: Duration = Duration::from_secs(10);
/// How long one check waits for nodes and pods before it reports without them; the next check follows soon.
const LOAD_PATIENCE: Duration = Duration::from_secs(5);
const MESSAGE_READY: &str = "cluster is healthy and ready to accept workloads";
const MESSAGE_NOT_READY: &str = "cluster is reachable but health endpoint responded without ok";
const MESSAGE_NOT_REACHABLE: &str = "cluster is not reachable";

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    shared.tell_panics_by_name(&shared.looks, CONTROLLER, &shared.mirrors.clusters);
    let heartbeat = shared.mine.needs_no_secret().then(|| Heartbeat::new(shared));
    let controller = Arc::new(Controller {
        shared: shared.clone(),
        memories: Mutex::default(),
        began: Instant::now(),
        heartbeat,
    });
    shared.mirrors.clusters.subscribe({
        let controller = controller.clone();
        move |change| {
            let name = &change.key.name;
            match change.new.as_deref() {
                Some(new) if is_wanted(&controller.shared.mine, new) => {
                    let old = change.old.as_deref().filter(|old| is_wanted(&controller.shared.mine, old));
                    if is_news(old, new) {
                        controller.shared.looks.push(name.clone());
                    }
                }
                Some(_) => drop(controller.memories.lock().remove(name)),
                None => {
                    controller.memories.lock().remove(name);
                    METRICS.forget(name);
                }
            }
        }
    });
    // There is no limit, so a member that does not answer delays no other.
    Box::new(move || {
        controller.heartbeat.iter().for_each(Heartbeat::run);
        controller::run(&controller, &controller.shared.looks, UNLIMITED, &controller.shared.supervisor);
    })
}

/// Returns whether this process collects the status of a cluster.
fn is_wanted(mine: &MyClusters, cluster: &Cluster) -> bool {
    mine.has(cluster) && (cluster.spec.secret_ref.is_some() || mine.needs_no_secret())
}

/// Returns whether a cluster changed in a way that may change its status. Its heartbeat does not.
fn is_news(old: Option<&Cluster>, new: &Cluster) -> bool {
    old.is_none_or(|old| {
        old.metadata.finalizers != new.metadata.finalizers
            || old.metadata.generation != new.metadata.generation
    })
}

struct Controller {
    shared: Arc<Shared>,
    /// What is remembered of each cluster.
    memories: Mutex<HashMap<String, Memory>>,
    /// Since when this process has been checking it.
    began: Instant,
    /// The heartbeat of the agent; there is none in push mode.
    heartbeat: Option<Arc<Heartbeat>>,
}

/// What is remembered of a cluster between checks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    readiness: Readiness,
    /// The member did not answer last time.
    was_offline: bool,
}

/// What was seen of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// There is no way to reach it.
    NoConnection(String),
    Health(Health),
}

/// What a check means.
#[derive(Debug, PartialEq)]
pub(crate) struct Judgement {
    /// The condition to write.
    ready: Condition,
    /// Whether it is worth asking for version, APIs, nodes and pods.
    collect: bool,
    /// It answers again: its waiting keys are enqueued.
    back: bool,
}

impl Memory {
    /// `now` is written into the condition. `at` is the time since the first check, by a clock that does not
    /// jump.
    fn judge(
        &mut self,
        current: Option<&Condition>,
        seen: &Seen,
        now: Timestamp,
        at: Duration,
        thresholds: Thresholds,
    ) -> Judgement {
        let observed = match seen {
            Seen::NoConnection(error) => {
                let message = format!("failed to create a ClusterClient: {error}");
                let reason = conditions::REASON_STATUS_COLLECTION_FAILED;
                condition(conditions::READY, "False", reason, &message, now)
            }
            Seen::Health(health) => ready(*health, now),
        };
        let mut back = false;
        if let Seen::Health(health) = seen {
            back = self.was_offline && *health == Health::Healthy;
            self.was_offline = *health == Health::Offline;
        }
        let ready = self.readiness.adjust(current, observed, at, thresholds);
        let collect = *seen == Seen::Health(Health::Healthy) && ready.status == "True";
        Judgement { ready, collect, back }
    }
}

/// What is known after a check of a cluster.
pub(crate) struct View {
    cluster: Arc<Cluster>,
    started: Instant,
    /// For how long this process has been checking it.
    at: Duration,
    memory: Memory,
    thresholds: Thresholds,
    /// `None` if it was not checked.
    seen: Option<Seen>,
    member: Option<Arc<Member>>,
    /// What it reported, if it was worth asking.
    details: Option<Details>,
}

impl View {
    fn judge(&self, memory: &mut Memory, now: Timestamp) -> Option<Judgement> {
        let current = self.cluster.status.condition(conditions::READY);
        self.seen.as_ref().map(|seen| memory.judge(current, seen, now, self.at, self.thresholds))
    }
}

/// What follows from a check.
#[derive(Debug)]
pub(crate) enum Plan {
    Nothing(&'static str),
    Write { memory: Memory, judgement: Judgement },
}

fn decide(view: &View, now: Timestamp) -> Plan {
    let mut memory = view.memory.clone();
    match view.judge(&mut memory, now) {
        None => Plan::Nothing("the cluster controller has not taken note of it"),
        Some(judgement) => Plan::Write { memory, judgement },
    }
}

impl Reconcile for Controller {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let shared = &self.shared;
        let Some(cluster) = shared.cluster(name).filter(|cluster| is_wanted(&shared.mine, cluster)) else {
            return Ok(None);
        };
        let (now, started, timing) = (Timestamp::now(), Instant::now(), &shared.timing);
        let mut view = View {
            started,
            at: self.began.elapsed(),
            memory: self.memories.lock().get(name).cloned().unwrap_or_default(),
            thresholds: Thresholds { success: timing.success_threshold, failure: timing.failure_threshold },
            seen: None,
            member: None,
            details: None,
            cluster,
        };
        // Before the cluster controller has added its finalizer, nothing would clean up after the cluster.
        if !view
            .cluster
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == finalizers::CLUSTER)
        {
            return Ok(Some(view));
        }
        match links::connect(shared, &view.cluster).await {
            Err(error) => view.seen = Some(Seen::NoConnection(error.to_string())),
            Ok((member, new)) => {
                if new {
                    shared.enqueue_works_of(name);
                }
                let health = tokio::time::timeout(PROBE_DEADLINE, member::probe(member.client())).await;
                view.seen = Some(Seen::Health(health.unwrap_or(Health::Offline)));
                view.member = Some(member);
            }
        }
        let worth_asking = view.judge(&mut view.memory.clone(), now).is_some_and(|judged| judged.collect);
        if let Some(member) = view.member.as_ref().filter(|_| worth_asking) {
            view.details = Some(collect(shared, member, &view.cluster, now).await);
        }
        Ok(Some(view))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide(view, now)
    }

    async fn apply(&self, name: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        let (shared, period) = (&self.shared, self.shared.timing.status_period);
        let (memory, judgement) = match plan {
            Plan::Write { memory, judgement } => (memory, judgement),
            Plan::Nothing(why) => {
                tracing::trace!(controller = CONTROLLER, cluster = name, why, "nothing to do");
                return Ok(Outcome::After(period));
            }
        };
        self.memories.lock().insert(name.clone(), memory);
        if let Some(heartbeat) = self.heartbeat.as_ref().filter(|_| judgement.collect) {
            heartbeat.begin(name);
        }
        if let Some(member) = view.member.as_ref().filter(|_| judgement.back) {
            // When a member returns, its keys are retried at once; their back-off is reset.
            member.revive();
            shared.enqueue_works_of(name);
        }
        // Others write their own conditions meanwhile, so each attempt starts from the newest state.
        let Some(cluster) = shared.cluster(name) else { return Ok(Outcome::Done) };
        let change = |cluster: &mut Cluster| {
            cluster.status = updated(&cluster.status, judgement.ready.clone(), view.details.as_ref());
            Ok(())
        };
        match shared.writer.change_status(cluster.as_ref(), change).await {
            Ok(written) => {
                let status = written.as_ref().map_or(&cluster.status, |written| &written.status);
                METRICS.looked(name, view.started, status);
                written.into_iter().for_each(|written| shared.mirrors.clusters.note(written));
                Ok(Outcome::After(period))
            }
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => {
                if !error.is_conflict() {
                    tracing::warn!(controller = CONTROLLER, cluster = name, %error, "cannot write the status");
                }
                Ok(Outcome::After(period.min(Duration::from_secs(1))))
            }
        }
    }
}

fn ready(health: Health, now: Timestamp) -> Condition {
    let (status, reason, message) = match health {
        Health::Offline => ("False", conditions::REASON_NOT_REACHABLE, MESSAGE_NOT_REACHABLE),
        Health::Unhealthy => ("False", conditions::REASON_NOT_READY, MESSAGE_NOT_READY),
        Health::Healthy => ("True", conditions::REASON_READY, MESSAGE_READY),
    };
    condition(conditions::READY, status, reason, message, now)
}

/// What a healthy member reports.
struct Details {
    version: String,
    apis: enablements::Enablements,
    apis_condition: Condition,
    /// `None` while nodes and pods are not known yet, or if they are not watched.
    load: Option<(NodeSummary, ResourceSummary)>,
}

async fn collect(shared: &Shared, member: &Member, cluster: &Cluster, now: Timestamp) -> Details {
    let (version, apis, seen) = tokio::join!(
        member.client().apiserver_version(),
        enablements::discover(member.client()),
        member.notice_restore(),
    );
    if let Err(error) = seen {
        tracing::debug!(controller = CONTROLLER, cluster = member.name(), %error, "cannot read revisions");
    }
    let apis = apis.unwrap_or_default();
    let apis_condition = completeness(&apis, now);
    let load = if shared.resource_modeling { sums(shared, member, cluster).await } else { None };
    Details { version: version.map(|info| info.git_version).unwrap_or_default(), apis, apis_condition, load }
}

/// Sums up nodes and pods; the first call starts to watch them.
async fn sums(shared: &Shared, member: &Member, cluster: &Cluster) -> Option<(NodeSummary, ResourceSummary)> {
    let load = member.load();
    if !load.wait(LOAD_PATIENCE).await {
        return None;
    }
    let nodes: BTreeMap<String, NodeRecord> =
        load.nodes.entries().into_iter().map(|(key, node)| (key.name, (*node).clone())).collect();
    let pods: Vec<PodRecord> = load.pods.all().into_iter().map(|pod| (*pod).clone()).collect();
    let by_class = shared.features.enabled(features::CUSTOMIZED_CLUSTER_RESOURCE_MODELING);
    let models = if by_class { cluster.spec.resource_models.as_slice() } else { &[] };
    Some((summary::nodes(nodes.values()), summary::resources(&nodes, &pods, models)))
}

fn completeness(found: &enablements::Enablements, now: Timestamp) -> Condition {
    let count = found.apis.len();
    let (status, reason, message) = if count == 0 {
        ("False", conditions::REASON_APIS_EMPTY, "collected empty APIEnablements from the cluster".to_owned())
    } else if found.partial {
        let message = format!("might collect partial APIEnablements({count}) from the cluster");
        ("False", conditions::REASON_APIS_PARTIAL, message)
    } else {
        (
            "True",
            conditions::REASON_APIS_COMPLETE,
            "collected complete APIEnablements from the cluster".to_owned(),
        )
    };
    condition(conditions::COMPLETE_API_ENABLEMENTS, status, reason, &message, now)
}

/// Returns the status with all of our fields brought up to date.
fn updated(status: &ClusterStatus, ready: Condition, details: Option<&Details>) -> ClusterStatus {
    let mut status = status.clone();
    set_condition(&mut status.conditions, ready);
    if let Some(details) = details {
        set_condition(&mut status.conditions, details.apis_condition.clone());
        status.kubernetes_version = details.version.clone();
        status.api_enablements = details.apis.apis.clone();
        if let Some((nodes, resources)) = &details.load {
            status.node_summary = Some(nodes.clone());
            status.resource_summary = Some(resources.clone());
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use api::cluster::{APIEnablement, APIResource};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{at, cluster, merged};

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    const THRESHOLDS: Thresholds =
        Thresholds { success: Duration::from_secs(30), failure: Duration::from_secs(30) };

    #[test]
    fn what_a_look_means() {
        let health = Seen::Health;
        let broken = || Seen::NoConnection("no secret".to_owned());
        // Before (status, offline), seen, then: status, reason, collect, back.
        let cases = [
            ("first look", None, false, health(Health::Healthy), ("True", "ClusterReady", true, false)),
            ("it is ill", None, false, health(Health::Unhealthy), ("False", "ClusterNotReady", false, false)),
            (
                "no answer",
                None,
                false,
                health(Health::Offline),
                ("False", "ClusterNotReachable", false, false),
            ),
            ("no connection", None, false, broken(), ("False", "StatusCollectionFailed", false, false)),
            (
                "it is back",
                Some("False"),
                true,
                health(Health::Healthy),
                ("True", "ClusterReady", true, true),
            ),
            (
                "it is back, and ill",
                Some("False"),
                true,
                health(Health::Unhealthy),
                ("False", "ClusterNotReady", false, false),
            ),
            (
                "still away",
                Some("False"),
                true,
                health(Health::Offline),
                ("False", "ClusterNotReachable", false, false),
            ),
            (
                "a connection that is missing says nothing about being back",
                Some("False"),
                true,
                broken(),
                ("False", "StatusCollectionFailed", false, false),
            ),
        ];
        for (name, current, was_offline, seen, (status, reason, collect, back)) in cases {
            let mut memory = Memory { was_offline, ..Memory::default() };
            let current = current.map(|status| condition("Ready", status, "r", "", at(0)));
            let judged = memory.judge(current.as_ref(), &seen, at(100), secs(100), THRESHOLDS);
            assert_eq!(
                (judged.ready.status.as_str(), judged.ready.reason.as_str()),
                (status, reason),
                "{name}"
            );
            assert_eq!((judged.collect, judged.back), (collect, back), "{name}");
            assert_eq!(
                memory.was_offline,
                matches!(seen, Seen::Health(Health::Offline)) || (was_offline && seen == broken()),
                "{name}"
            );
        }
    }

    #[test]
    fn a_member_that_is_well_but_not_believed_yet_is_not_asked_for_more() {
        let mut memory = Memory::default();
        let first = memory.judge(None, &Seen::Health(Health::Offline), at(0), secs(0), THRESHOLDS);
        let next =
            memory.judge(Some(&first.ready), &Seen::Health(Health::Healthy), at(10), secs(10), THRESHOLDS);
        assert_eq!((next.ready.status.as_str(), next.collect, next.back), ("False", false, true));
        let later =
            memory.judge(Some(&next.ready), &Seen::Health(Health::Healthy), at(40), secs(40), THRESHOLDS);
        assert_eq!((later.ready.status.as_str(), later.collect, later.back), ("True", true, false));
    }

    #[test]
    fn a_member_that_is_ill_but_still_believed_is_not_asked_for_more() {
        let mut memory = Memory::default();
        let first = memory.judge(None, &Seen::Health(Health::Healthy), at(0), secs(0), THRESHOLDS);
        let ill = [Seen::Health(Health::Unhealthy), Seen::NoConnection("no secret".to_owned())];
        for (seen, second) in ill.into_iter().zip([10, 20]) {
            let next = memory.judge(Some(&first.ready), &seen, at(0), secs(second), THRESHOLDS);
            assert_eq!((next.ready.status.as_str(), next.collect), ("True", false), "{seen:?}");
        }
    }

    #[test]
    fn what_users_are_told_of_a_member() {
        for (seen, expected) in [
            (Seen::Health(Health::Healthy), "cluster is healthy and ready to accept workloads"),
            (
                Seen::Health(Health::Unhealthy),
                "cluster is reachable but health endpoint responded without ok",
            ),
            (Seen::Health(Health::Offline), "cluster is not reachable"),
            (Seen::NoConnection("no secret".to_owned()), "failed to create a ClusterClient: no secret"),
        ] {
            let judged = Memory::default().judge(None, &seen, at(0), secs(0), THRESHOLDS);
            let Condition { type_, message, .. } = &judged.ready;
            assert_eq!((type_.as_str(), message.as_str()), ("Ready", expected), "{seen:?}");
        }
    }

    #[tokio::test]
    async fn whose_status_is_collected_here() {
        let secret = json!({ "spec": { "secretRef": { "namespace": "n", "name": "s" } } });
        let pull = json!({ "spec": { "syncMode": "Pull" } });
        let config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        let agent = MyClusters::One { name: "m1".to_owned(), client };
        let push = MyClusters::Push;
        let cases = [
            ("a push cluster", &push, cluster("m1", "True", secret.clone()), true),
            (
                "one that says not how it is reached",
                &push,
                cluster("m1", "True", json!({ "spec": { "secretRef": null } })),
                false,
            ),
            ("a pull cluster", &push, cluster("m1", "True", merged(secret, pull.clone())), false),
            ("the agent's own", &agent, cluster("m1", "True", pull.clone()), true),
            ("another one", &agent, cluster("m2", "True", pull), false),
        ];
        for (name, mine, cluster, expected) in cases {
            assert_eq!(is_wanted(mine, &cluster), expected, "{name}");
        }
    }

    #[test]
    fn which_changes_of_a_cluster_are_news() {
        let (old, heartbeat) = (cluster("m1", "True", json!({})), cluster("m1", "False", json!({})));
        assert!(is_news(None, &old) && !is_news(Some(&old), &heartbeat));
        assert!(is_news(Some(&old), &cluster("m1", "True", json!({ "metadata": { "generation": 2 } }))));
        assert!(is_news(Some(&old), &cluster("m1", "True", json!({ "metadata": { "finalizers": ["f"] } }))));
    }

    #[test]
    fn a_look_that_finds_nothing_new_changes_nothing() {
        let (now, later) = (at(100), at(200));
        let once = updated(&ClusterStatus::default(), ready(Health::Healthy, now), None);
        let twice = updated(&once, ready(Health::Healthy, later), None);
        assert_eq!(once, twice);
        let offline = updated(&twice, ready(Health::Offline, later), None);
        assert_eq!(offline.conditions[0].reason, "ClusterNotReachable");
        assert_eq!(offline.conditions[0].last_transition_time.0, later);
    }

    fn found(count: usize, partial: bool) -> enablements::Enablements {
        let api = |number: usize| APIEnablement {
            group_version: format!("g{number}/v1"),
            resources: vec![APIResource { name: "things".to_owned(), kind: "Thing".to_owned() }],
        };
        enablements::Enablements { apis: (0..count).map(api).collect(), partial }
    }

    #[test]
    fn an_unwell_member_keeps_what_was_known_of_it() {
        let known = ClusterStatus { kubernetes_version: "v1.36.3".into(), ..ClusterStatus::default() };
        let status = updated(&known, ready(Health::Unhealthy, at(0)), None);
        assert_eq!(status.kubernetes_version, "v1.36.3");
        assert_eq!(status.conditions[0].reason, "ClusterNotReady");
    }

    #[test]
    fn a_member_whose_nodes_are_not_known_yet_keeps_the_old_summary() {
        let summary = ResourceSummary {
            allocatable: [("pods".to_owned(), Quantity("110".to_owned()))].into(),
            ..ResourceSummary::default()
        };
        let mut details = Details {
            version: "v1.36.4".to_owned(),
            apis_condition: completeness(&found(2, false), at(0)),
            apis: found(2, false),
            load: Some((NodeSummary { total_num: 3, ready_num: 2 }, summary.clone())),
        };
        let full = updated(&ClusterStatus::default(), ready(Health::Healthy, at(0)), Some(&details));
        assert_eq!(full.node_summary, Some(NodeSummary { total_num: 3, ready_num: 2 }));
        assert_eq!(full.resource_summary, Some(summary));
        assert_eq!(
            (full.kubernetes_version.as_str(), full.api_enablements.len(), full.conditions.len()),
            ("v1.36.4", 2, 2)
        );
        details.load = None;
        let later = updated(&full, ready(Health::Healthy, at(1)), Some(&details));
        assert_eq!(later, full);
    }

    #[test]
    fn how_complete_the_apis_are() {
        let cases = [
            (found(0, false), "False", "Empty", "collected empty APIEnablements from the cluster"),
            (found(0, true), "False", "Empty", "collected empty APIEnablements from the cluster"),
            (found(2, true), "False", "Partial", "might collect partial APIEnablements(2) from the cluster"),
            (found(2, false), "True", "Complete", "collected complete APIEnablements from the cluster"),
        ];
        for (found, status, reason, message) in cases {
            let made = completeness(&found, at(0));
            assert_eq!((made.status.as_str(), made.message.as_str()), (status, message));
            assert_eq!((made.type_.as_str(), made.reason.as_str()), ("CompleteAPIEnablements", reason));
        }
    }
}
