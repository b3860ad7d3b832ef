//! The member side: clusters, execution of Works, and the status of their objects.
//!
//! Two halves that meet at the connection to a member: `cluster` (registration, health, status) and
//! `execution` (Works and the state of their objects). Both handle the clusters of this process
//! ([`crate::MyClusters`]): all in push mode in the control plane, one in an agent. Nothing is polled, except
//! the members' health, every `Timing::status_period`.
//!
//! A member that is down uses only its own in-flight slots: its Works are set aside until its Cluster is
//! Ready again, and then reconciled all at once.
//!
//! Code map: `links` connections · `cluster`, `monitor` registration and silent agents · `heartbeat` an
//! agent's Lease · `cluster_status` with `readiness`, `enablements`, `summary` · `execution` with `removal`,
//! the only place that deletes from members · `work_status`.

pub(crate) mod cluster;
pub(crate) mod cluster_status;
mod enablements;
pub(crate) mod execution;
mod heartbeat;
mod links;
mod metrics;
mod monitor;
mod readiness;
mod removal;
mod summary;
pub(crate) mod work_status;

pub(crate) use cluster::taints_message;
pub(crate) use heartbeat::Signs;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use api::cluster::Cluster;
use api::labels::annotations::{TEMPLATE_UID, WORK_NAME, WORK_NAMESPACE};
use api::work::ObjectReference;
use interpreter::Operation;
use member::{Kinds, ObservedChange};
use propagation::{Object, Reference as _};
use runtime::{Key, KeyLocks, Queue, Throttle};
use serde_json::Value;

use crate::environment::Environment;
use crate::interpretation::on_lessons;
use crate::services::collection::{self, Collection};
use crate::table::Start;

/// Controllers that need connections to members.
const CONNECTED: [&str; 8] = [
    "cluster",
    "clusterStatus",
    "descheduler",
    "endpointsliceCollect",
    "execution",
    "federatedHorizontalPodAutoscaler",
    "serviceExport",
    "workStatus",
];

/// Which controllers of this side run. If both run, one need not report what the other already reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Enabled {
    /// One of those that need connections to members.
    connected: bool,
    execution: bool,
    work_status: bool,
    /// Those that bring collected slices further: to consumers, and into the control plane.
    dispatch: bool,
    import: bool,
}

/// What the controllers of this side share.
pub(crate) struct Shared {
    environment: Arc<Environment>,
    enabled: Enabled,
    pub(crate) kinds: Kinds,
    /// Services whose endpoints are collected.
    pub(crate) collection: Collection,
    /// Clusters whose connection has to be checked.
    links: Arc<Queue<String>>,
    /// Clusters for the cluster controller.
    registrations: Arc<Queue<String>>,
    /// Works for the execution controller.
    executions: Arc<Queue<Key>>,
    /// Works for the work status controller.
    reports: Arc<Queue<Key>>,
    /// When the status of a Work was last written.
    throttle: Throttle<Key>,
    /// The status of a Work has two writers; this lock makes them read and write one after the other.
    status_locks: KeyLocks<Key>,
    /// Clusters whose status has to be collected.
    looks: Arc<Queue<String>>,
}

impl Deref for Shared {
    type Target = Environment;

    fn deref(&self) -> &Environment {
        &self.environment
    }
}

impl Shared {
    /// Returns what the chosen controllers of this side share. If there are any, connections to members are kept.
    pub(crate) fn new(environment: &Arc<Environment>, chosen: &BTreeSet<&str>) -> Arc<Self> {
        let shared = Arc::new(Self {
            environment: environment.clone(),
            enabled: Enabled {
                connected: CONNECTED.iter().any(|name| chosen.contains(name)),
                execution: chosen.contains("execution"),
                work_status: chosen.contains("workStatus"),
                dispatch: chosen.contains("endpointsliceDispatch"),
                import: chosen.contains("endpointSlice"),
            },
            kinds: Kinds::default(),
            collection: Collection::new(collection::Enabled {
                exports: chosen.contains("serviceExport"),
                multi_cluster: chosen.contains("endpointsliceCollect"),
            }),
            links: Queue::new("links"),
            registrations: Queue::new("cluster-controller"),
            executions: Queue::new("execution-controller"),
            reports: Queue::new("work-status"),
            throttle: Throttle::default(),
            status_locks: KeyLocks::default(),
            looks: Queue::new("cluster-status-controller"),
        });
        if shared.is_connected() {
            links::keep(&shared);
        }
        shared
    }

    /// Returns whether connections to members are kept.
    pub(crate) fn is_connected(&self) -> bool {
        self.enabled.connected
    }

    fn cluster(&self, name: &str) -> Option<Arc<Cluster>> {
        self.mirrors.clusters.get("", name)
    }

    /// Returns a cluster that this process is responsible for.
    pub(crate) fn my_cluster(&self, name: &str) -> Option<Arc<Cluster>> {
        self.cluster(name).filter(|cluster| self.mine.has(cluster))
    }

    /// Enqueues all Works of a cluster, and the Services whose endpoints are collected there.
    fn enqueue_works_of(&self, cluster: &str) {
        let space = api::names::execution_space(cluster);
        for key in self.mirrors.works.keys(|key| key.namespace == space) {
            if self.enabled.execution {
                self.executions.push(key.clone());
            }
            if self.enabled.work_status {
                self.reports.push(key);
            }
        }
        if self.collection.enabled != collection::Enabled::default() {
            for service in self.services.of_cluster(cluster) {
                self.collection.queue.push(service);
            }
        }
    }

    /// Enqueues the Works whose objects may now be interpreted differently for these operations.
    fn on_lessons(self: &Arc<Self>, operations: &'static [Operation], queue: fn(&Self) -> &Arc<Queue<Key>>) {
        let shared = Arc::clone(self);
        on_lessons(&self.mirrors, move |lesson| {
            let lesson = lesson.clone();
            let shared_by_task = Arc::clone(&shared);
            // The mirror keeps Works packed, and there are many of them: unpacking all takes a while.
            shared.supervisor.spawn(async move {
                let shared = shared_by_task;
                for key in shared.mirrors.works.keys(|_| true) {
                    let work = shared.mirrors.works.find(&key);
                    let mut manifests = work.iter().flat_map(|work| &work.spec.workload.manifests);
                    if manifests.any(|manifest| lesson.concerns(&manifest.gvk(), operations)) {
                        queue(&shared).push(key);
                    }
                    tokio::task::consume_budget().await;
                }
            });
        });
    }

    /// Emits an event about the template of a manifest; none if the manifest does not name its template.
    fn say_of_template(
        &self,
        component: &'static str,
        manifest: &Value,
        reason: &'static str,
        message: String,
    ) {
        let uid = manifest.annotation(TEMPLATE_UID).unwrap_or("");
        if !uid.is_empty() {
            let template = ObjectReference {
                uid: uid.to_owned(),
                resource_version: String::new(),
                ..manifest.reference()
            };
            self.events.emit(component, &template, api::events::event_type(reason), reason, message);
        }
    }
}

/// Returns the Work of a managed object in a member that has changed.
fn work_of(change: &ObservedChange<'_>) -> Option<Key> {
    // The old object says which Work it belongs to: the new one may have lost its labels.
    let object = change.old.or(change.new)?;
    let (namespace, name) = (object.annotation(WORK_NAMESPACE)?, object.annotation(WORK_NAME)?);
    (namespace == api::names::execution_space(change.cluster)).then(|| Key::new(namespace, name))
}

fn is_leaving(cluster: &Cluster) -> bool {
    cluster.metadata.deletion_timestamp.is_some()
}
