//! The accurate estimators: connections that follow the clusters, and the question before each decision.

use std::sync::Arc;

use api::cluster::{Cluster, ClusterSyncMode};
use api::work::ResourceBindingSpec;
use estimator::{Client, Options, Question, Want, Workload};
use futures::future::join_all;
use jiff::Timestamp;
use runtime::Change;
use scheduler::World;
use scheduler::estimator::{Collected, Unavailable};

use super::Controller;
use runtime::{Outcome, Queue, Supervisor};

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
}

impl Estimators {
    pub(super) fn new(settings: Estimating, control_plane: kube::Client) -> Self {
        let Estimating { options, skip_pull_mode } = settings;
        Self { client: Client::new(options, control_plane), skip_pull_mode, queue: Queue::new("estimators") }
    }

    pub(super) fn cluster_changed(&self, change: &Change<'_, Cluster>) {
        self.queue.push(change.key.name.clone());
    }
}

impl Controller {
    /// Makes and ends connections as clusters come and go.
    pub(super) fn keep_connections(self: &Arc<Self>, supervisor: &Supervisor) {
        let Some(estimators) = &self.estimators else { return };
        let controller = Arc::clone(self);
        estimators.queue.spawn(AT_ONCE, supervisor, move |cluster: String| {
            let controller = Arc::clone(&controller);
            async move { controller.connect(&cluster).await }
        });
    }

    /// Waits until every estimator was tried once: the first decisions shall know them.
    pub(super) async fn first_connections(&self) {
        if self.estimators.is_some() {
            let clusters = self.plane.mirrors.clusters.all();
            let names = clusters.iter().filter_map(|cluster| cluster.metadata.name.as_deref());
            join_all(names.map(|name| self.connect(name))).await;
        }
    }

    async fn connect(&self, cluster: &str) -> Outcome {
        let Some(estimators) = &self.estimators else { return Outcome::Done };
        match self.plane.mirrors.clusters.get("", cluster) {
            None => {
                estimators.client.disconnect(cluster);
                Outcome::Done
            }
            Some(found) if estimators.skip_pull_mode && found.spec.sync_mode == ClusterSyncMode::Pull => {
                Outcome::Done
            }
            Some(_) => match estimators.client.connect(cluster).await {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::Failed { conflict: false, error: error.to_string() },
            },
        }
    }

    /// Asks the estimators of the clusters that could take the binding; none when there is nothing to ask.
    pub(super) async fn ask(
        &self,
        spec: &ResourceBindingSpec,
        term: &str,
        now: Timestamp,
    ) -> Option<Collected> {
        let estimators = self.estimators.as_ref()?;
        if spec.replicas == 0 && spec.components.is_empty() {
            return None;
        }
        let clusters: Vec<(String, Vec<Workload>)> = {
            let known = self.known.read();
            let world = World {
                fleet: &known.fleet,
                workloads: &known.groups,
                assumptions: &known.assumptions,
                estimators: &[],
                now,
            };
            let assumed = |name: &str| {
                let all = known.assumptions.on(name, now).into_iter();
                all.map(|one| Workload {
                    namespace: one.namespace.clone(),
                    components: one.components.clone(),
                })
                .collect()
            };
            let feasible = self.scheduler.feasible(world, spec, term);
            feasible.into_iter().map(|name| (name.to_owned(), assumed(name))).collect()
        };
        if clusters.is_empty() {
            return None;
        }
        let want = if self.scheduler.counts_sets(spec) {
            Want::Sets(spec.components.clone())
        } else {
            Want::Replicas(spec.replica_requirements.clone())
        };
        let question = Question { resource: spec.resource.clone(), want, clusters };
        let answers = estimators.client.max_available(&question).await.map_err(|error| {
            tracing::debug!(controller = "scheduler", %error, "estimators are left out");
            Unavailable(error.to_string())
        });
        Some(Collected { name: NAME.to_owned(), answers })
    }
}
