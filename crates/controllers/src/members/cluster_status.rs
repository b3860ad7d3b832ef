//! Keeps a member's status true: health, version, APIs, nodes and resources.
//!
//! Watches: the member's health, every `Timing::status_period`; its nodes and pods.
//! Writes:  the Cluster's status: Ready and CompleteAPIEnablements conditions, kubernetesVersion, apiEnablements,
//!          nodeSummary, resourceSummary.
//!
//! `cluster-status-controller`, `clusterStatus` in `--controllers`. One loop per cluster, so a member that does not
//! answer holds up nobody. The Secret is read at every look: a new token is used from the next one on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::cluster::{Cluster, ClusterStatus};
use api::conditions::cluster as conditions;
use api::labels::finalizers;
use apimachinery::patch::merge;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use member::{Health, Member, NodeRecord, PodRecord};
use propagation::status::{condition, set_condition};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::metrics::METRICS;
use super::readiness::{Readiness, Thresholds};
use super::{Shared, Start, enablements, links, summary};

const CONTROLLER: &str = "cluster-status-controller";

/// A healthy API server answers this in milliseconds.
const PROBE_DEADLINE: Duration = Duration::from_secs(10);
/// How long one look waits for nodes and pods before it reports without them; the next look is soon.
const LOAD_PATIENCE: Duration = Duration::from_secs(5);
const MESSAGE_READY: &str = "cluster is healthy and ready to accept workloads";
const MESSAGE_NOT_READY: &str = "cluster is reachable but health endpoint responded without ok";
const MESSAGE_NOT_REACHABLE: &str = "cluster is not reachable";

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    let of = shared.clone();
    shared.mirrors.clusters.subscribe(move |change| {
        let name = &change.key.name;
        match change.new.as_deref() {
            Some(new) => watch_over(&of, name, change.old.as_deref(), new),
            None => {
                if let Some(probe) = of.probes.lock().remove(name) {
                    probe.stop.cancel();
                }
                METRICS.forget(name);
            }
        }
    });
    // The loops start as clusters appear.
    Box::new(|| {})
}

/// Starts, prods or ends the status loop of a cluster.
fn watch_over(shared: &Arc<Shared>, name: &str, old: Option<&Cluster>, new: &Cluster) {
    let wanted = shared.mine.has(new) && (new.spec.secret_ref.is_some() || shared.mine.needs_no_secret());
    let mut probes = shared.probes.lock();
    match (probes.get(name), wanted) {
        (Some(probe), true) => {
            let news = old.is_none_or(|old| {
                old.metadata.finalizers != new.metadata.finalizers
                    || old.metadata.generation != new.metadata.generation
            });
            if news {
                probe.prod.notify_one();
            }
        }
        (Some(_), false) => {
            if let Some(probe) = probes.remove(name) {
                probe.stop.cancel();
            }
        }
        (None, true) => {
            let probe = Probe { stop: shared.supervisor.token().child_token(), prod: Arc::default() };
            probes.insert(name.to_owned(), probe.clone());
            let (of, name) = (shared.clone(), name.to_owned());
            let task = format!("cluster-status/{name}");
            shared
                .supervisor
                .keep_until(task, probe.stop.clone(), move || run(of.clone(), name.clone(), probe.clone()));
        }
        (None, false) => {}
    }
}

/// How a status loop is steered.
#[derive(Clone)]
pub(super) struct Probe {
    stop: CancellationToken,
    /// Ends the wait for the next look.
    prod: Arc<tokio::sync::Notify>,
}

async fn run(shared: Arc<Shared>, name: String, probe: Probe) {
    let mut memory = Memory::default();
    loop {
        let wait = look(&shared, &name, &mut memory).await;
        tokio::select! {
            () = probe.stop.cancelled() => return,
            () = probe.prod.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// What one loop remembers from look to look.
#[derive(Default)]
struct Memory {
    readiness: Readiness,
    /// The member did not answer last time.
    was_offline: bool,
}

/// Looks once; returns when to look again.
async fn look(shared: &Arc<Shared>, name: &str, memory: &mut Memory) -> Duration {
    let period = shared.timing.status_period;
    let Some(cluster) = shared.cluster(name) else { return period };
    // Before the cluster controller has taken note of the cluster, nobody would clean up after it.
    if !cluster.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == finalizers::CLUSTER) {
        return period;
    }
    let (now, started) = (Timestamp::now(), Instant::now());
    let (observed, member) = match links::connect(shared, &cluster).await {
        Err(error) => {
            let message = format!("failed to create a ClusterClient: {error}");
            let reason = conditions::REASON_STATUS_COLLECTION_FAILED;
            (condition(conditions::READY, "False", reason, &message, now), None)
        }
        Ok((member, new)) => {
            if new {
                shared.enqueue_works_of(name);
            }
            let health = tokio::time::timeout(PROBE_DEADLINE, member::probe(member.client()))
                .await
                .unwrap_or(Health::Offline);
            let back = memory.was_offline && health == Health::Healthy;
            memory.was_offline = health == Health::Offline;
            if back {
                // When a member returns, its keys are retried at once; their back-off is reset.
                member.revive();
                shared.enqueue_works_of(name);
            }
            (ready(health, now), (health == Health::Healthy).then_some(member))
        }
    };
    let thresholds =
        Thresholds { success: shared.timing.success_threshold, failure: shared.timing.failure_threshold };
    let current = cluster.status.condition(conditions::READY);
    let adjusted = memory.readiness.adjust(current, observed, now, thresholds);
    let details = match member.filter(|_| adjusted.status == "True") {
        Some(member) => Some(collect(&member, &cluster, now).await),
        None => None,
    };
    for _ in 0..5 {
        // Others write conditions of their own meanwhile: start from the newest state each time.
        let Some(cluster) = shared.cluster(name) else { return period };
        let status = updated(&cluster.status, adjusted.clone(), details.as_ref());
        match write(shared, name, &cluster, &status).await {
            Ok(()) => {
                METRICS.looked(name, started, &status);
                return period;
            }
            Err(kube::Error::Api(answer)) if answer.code == 409 => {
                let Ok(fresh) = Api::<Cluster>::all(shared.client().clone()).get(name).await else { break };
                shared.mirrors.clusters.note(fresh);
            }
            Err(kube::Error::Api(answer)) if answer.code == 404 => return period,
            Err(error) => {
                tracing::warn!(controller = CONTROLLER, cluster = name, %error, "cannot write the status");
                break;
            }
        }
    }
    period.min(Duration::from_secs(1))
}

fn ready(health: Health, now: Timestamp) -> Condition {
    let (status, reason, message) = match health {
        Health::Offline => ("False", conditions::REASON_NOT_REACHABLE, MESSAGE_NOT_REACHABLE),
        Health::Unhealthy => ("False", conditions::REASON_NOT_READY, MESSAGE_NOT_READY),
        Health::Healthy => ("True", conditions::REASON_READY, MESSAGE_READY),
    };
    condition(conditions::READY, status, reason, message, now)
}

/// What a healthy member tells of itself.
struct Details {
    version: String,
    apis: enablements::Enablements,
    apis_condition: Condition,
    /// `None` while nodes and pods are not known yet.
    load: Option<(api::cluster::NodeSummary, api::cluster::ResourceSummary)>,
}

async fn collect(member: &Member, cluster: &Cluster, now: Timestamp) -> Details {
    let (version, apis) =
        tokio::join!(member.client().apiserver_version(), enablements::discover(member.client()));
    let apis = apis.unwrap_or_default();
    let apis_condition = completeness(&apis, now);
    let load = member.load();
    let load = load.wait(LOAD_PATIENCE).await.then(|| {
        let nodes: BTreeMap<String, NodeRecord> =
            load.nodes.entries().into_iter().map(|(key, node)| (key.name, (*node).clone())).collect();
        let pods: Vec<PodRecord> = load.pods.all().into_iter().map(|pod| (*pod).clone()).collect();
        (summary::nodes(nodes.values()), summary::resources(&nodes, &pods, &cluster.spec.resource_models))
    });
    Details { version: version.map(|info| info.git_version).unwrap_or_default(), apis, apis_condition, load }
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

/// Returns the status with everything that is ours brought up to date.
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

async fn write(
    shared: &Arc<Shared>,
    name: &str,
    cluster: &Cluster,
    status: &ClusterStatus,
) -> Result<(), kube::Error> {
    let tree = |status: &ClusterStatus| serde_json::to_value(status).expect("API types can be encoded");
    let Some(difference) = merge::diff(&tree(&cluster.status), &tree(status)) else { return Ok(()) };
    let patch = json!({
        "metadata": { "resourceVersion": cluster.metadata.resource_version },
        "status": difference,
    });
    let answer = Api::<Cluster>::all(shared.client().clone())
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    shared.mirrors.clusters.note(answer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_finds_nothing_new_changes_nothing() {
        let now = Timestamp::from_second(100).unwrap();
        let later = Timestamp::from_second(200).unwrap();
        let once = updated(&ClusterStatus::default(), ready(Health::Healthy, now), None);
        let twice = updated(&once, ready(Health::Healthy, later), None);
        assert_eq!(once, twice);
        let offline = updated(&twice, ready(Health::Offline, later), None);
        assert_eq!(offline.conditions[0].reason, "ClusterNotReachable");
        assert_eq!(offline.conditions[0].last_transition_time.0, later);
    }

    #[test]
    fn an_unwell_member_keeps_what_was_known_of_it() {
        let now = Timestamp::UNIX_EPOCH;
        let known = ClusterStatus { kubernetes_version: "v1.36.3".into(), ..ClusterStatus::default() };
        let status = updated(&known, ready(Health::Unhealthy, now), None);
        assert_eq!(status.kubernetes_version, "v1.36.3");
        assert_eq!(status.conditions[0].reason, "ClusterNotReady");
    }
}
