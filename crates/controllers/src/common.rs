//! What both sides look at: one watch and one copy for each of these kinds. What one side writes, the other sees at once.

use std::sync::Arc;

use api::cluster::Cluster;
use api::work::Work;
use kube::Api;
use kube::runtime::watcher;
use member::Mirror;
use tokio_util::task::TaskTracker;

use crate::Context;

pub(crate) struct Common {
    pub(crate) clusters: Arc<Mirror<Cluster>>,
    pub(crate) works: Arc<Mirror<Work>>,
}

impl Default for Common {
    fn default() -> Self {
        // There are many Works, each with whole manifests, and each is looked at a few times in its life.
        Self { clusters: Arc::default(), works: Arc::new(Mirror::packed()) }
    }
}

impl Common {
    /// Starts the watches. Everybody has subscribed by then: the first list is news to all.
    pub(crate) fn follow(&self, context: &Context, tasks: &TaskTracker) {
        let config = watcher::Config::default;
        let (clusters, works) = (self.clusters.clone(), self.works.clone());
        let (client, stop) = (context.client.clone(), context.stop.clone());
        tasks
            .spawn(async move { clusters.follow(Api::all(client), config(), stop, |cluster| cluster).await });
        let (client, stop) = (context.client.clone(), context.stop.clone());
        tasks.spawn(async move { works.follow(Api::all(client), config(), stop, |work| work).await });
    }
}
