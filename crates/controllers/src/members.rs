//! The member side: clusters, execution of Works, and what became of them.
//!
//! Three watches on the control plane (Clusters, Works, execution namespaces) and one per managed kind on each member
//! feed a few queues; each queue belongs to one controller. Nothing is polled, except the members' health, every
//! [`Timing::status_period`].
//!
//! A member that is down costs nothing but its own in-flight slots: its Works are put aside until its Cluster is Ready
//! again, and then taken up all at once.

mod cluster;
mod cluster_status;
mod enablements;
mod execution;
mod figures;
mod monitor;
mod readiness;
mod removal;
mod sources;
mod summary;
mod work_status;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::cluster::{Cluster, ClusterSyncMode};
use api::conditions;
use api::work::Work;
use interpreter::Interpreter;
use k8s_openapi::api::core::v1::Namespace;
use member::{Key, Kinds, Mirror};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::common::Common;
use crate::events::Events;
use crate::pace::Pace;
use crate::queue::{Outcome, Queue, UNLIMITED};
use crate::{Context, Selection};

/// How often and how patiently; upstream's flags and defaults.
#[derive(Debug, Clone)]
pub struct Timing {
    /// `--cluster-status-update-frequency`
    pub status_period: Duration,
    /// `--cluster-success-threshold`
    pub success_threshold: Duration,
    /// `--cluster-failure-threshold`
    pub failure_threshold: Duration,
    /// `--cluster-monitor-period`
    pub monitor_period: Duration,
    /// `--cluster-monitor-grace-period`
    pub monitor_grace_period: Duration,
    /// `--cluster-startup-grace-period`
    pub startup_grace_period: Duration,
    /// `--cluster-cache-sync-timeout`
    pub cache_sync_timeout: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            status_period: Duration::from_secs(10),
            success_threshold: Duration::from_secs(30),
            failure_threshold: Duration::from_secs(30),
            monitor_period: Duration::from_secs(5),
            monitor_grace_period: Duration::from_secs(40),
            startup_grace_period: Duration::from_secs(60),
            cache_sync_timeout: Duration::from_secs(120),
        }
    }
}

/// Starts the selected controllers of this side.
pub fn spawn(context: &Context, selection: &Selection, tasks: &TaskTracker, timing: Timing) {
    let common = Common::default();
    if wire(context, &common, selection, tasks, timing) {
        common.follow(context, tasks);
    }
}

/// As [`spawn`], with what both sides look at; returns whether anything was selected.
pub(crate) fn wire(
    context: &Context,
    common: &Common,
    selection: &Selection,
    tasks: &TaskTracker,
    timing: Timing,
) -> bool {
    let enabled = Enabled {
        cluster: selection.has("cluster"),
        cluster_status: selection.has("clusterStatus"),
        execution: selection.has("execution"),
        work_status: selection.has("workStatus"),
    };
    if enabled == Enabled::default() {
        return false;
    }
    let (recorder, writer) = Events::new(context.client.clone(), context.stop.clone());
    tasks.spawn(writer);
    let shared = Arc::new(Shared {
        client: context.client.clone(),
        members: context.members.clone(),
        stop: context.stop.clone(),
        tasks: tasks.clone(),
        timing,
        enabled,
        recorder,
        interpreter: Interpreter::native(),
        kinds: Kinds::default(),
        clusters: common.clusters.clone(),
        works: common.works.clone(),
        namespaces: Mirror::default(),
        links: Queue::new("links"),
        registrations: Queue::new("cluster-controller"),
        executions: Queue::new("execution-controller"),
        reports: Queue::new("work-status"),
        pace: Pace::default(),
        probes: Mutex::default(),
    });
    sources::start(&shared);
    run(&shared, &shared.links, |shared, name: String| async move { sources::link(&shared, &name).await });
    if enabled.cluster {
        run(&shared, &shared.registrations, |shared, name: String| async move {
            cluster::reconcile(&shared, &name).await
        });
        tasks.spawn(monitor::run(shared.clone()));
    }
    if enabled.execution {
        run(&shared, &shared.executions, |shared, key: Key| async move {
            execution::reconcile(&shared, &key).await
        });
    }
    if enabled.work_status {
        run(&shared, &shared.reports, |shared, key: Key| async move {
            work_status::reconcile(&shared, &key).await
        });
    }
    true
}

/// Works a queue off. What limits is the member a key belongs to.
fn run<K, F, Fut>(shared: &Arc<Shared>, queue: &Arc<Queue<K>>, reconcile: F)
where
    K: Clone + Eq + std::hash::Hash + std::fmt::Debug + Send + Sync + 'static,
    F: Fn(Arc<Shared>, K) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    let of = shared.clone();
    queue.spawn(UNLIMITED, &shared.tasks, &shared.stop, move |key| reconcile(of.clone(), key));
}

/// Which controllers of this side run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Enabled {
    cluster: bool,
    cluster_status: bool,
    execution: bool,
    work_status: bool,
}

/// What the controllers of this side share.
struct Shared {
    client: kube::Client,
    members: Arc<member::Members>,
    stop: CancellationToken,
    tasks: TaskTracker,
    timing: Timing,
    enabled: Enabled,
    recorder: Events,
    interpreter: Interpreter,
    kinds: Kinds,
    clusters: Arc<Mirror<Cluster>>,
    works: Arc<Mirror<Work>>,
    /// Execution namespaces and others of the system's own.
    namespaces: Mirror<Namespace>,
    /// Clusters whose connection is to be looked at.
    links: Arc<Queue<String>>,
    /// Clusters for the cluster controller.
    registrations: Arc<Queue<String>>,
    /// Works for the execution controller.
    executions: Arc<Queue<Key>>,
    /// Works for the work status controller.
    reports: Arc<Queue<Key>>,
    /// When the status of a Work was last written.
    pace: Pace<Key>,
    /// The running status loops by cluster.
    probes: Mutex<HashMap<String, sources::Probe>>,
}

impl Shared {
    fn cluster(&self, name: &str) -> Option<Arc<Cluster>> {
        self.clusters.get("", name)
    }

    /// Takes up everything that is to run in a cluster.
    fn enqueue_works_of(&self, cluster: &str) {
        let space = api::names::execution_space(cluster);
        for key in self.works.keys(|key| key.namespace == space) {
            if self.enabled.execution {
                self.executions.push(key.clone());
            }
            if self.enabled.work_status {
                self.reports.push(key);
            }
        }
    }
}

/// Returns whether this process, rather than an agent, looks after the cluster.
fn is_push(cluster: &Cluster) -> bool {
    cluster.spec.sync_mode == ClusterSyncMode::Push
}

fn is_ready(cluster: &Cluster) -> bool {
    cluster.status.condition(conditions::cluster::READY).is_some_and(|condition| condition.status == "True")
}

fn is_leaving(cluster: &Cluster) -> bool {
    cluster.metadata.deletion_timestamp.is_some()
}
