//! Which clusters this process is responsible for: all in push mode, or, in an agent, one.

use api::cluster::{Cluster, ClusterSyncMode};
use api::work::Work;
use kube::runtime::watcher;
use kube::{Api, Client};

/// Which clusters this process is responsible for.
#[derive(Clone, Default)]
pub enum MyClusters {
    /// All clusters in push mode, reached by the Secrets that their Clusters name.
    #[default]
    Push,
    /// One cluster, reached by this client. Only its own objects of the control plane are read.
    One { name: String, client: Client },
}

impl MyClusters {
    /// Returns whether this process is responsible for a cluster.
    pub fn has(&self, cluster: &Cluster) -> bool {
        match self {
            Self::Push => cluster.spec.sync_mode == ClusterSyncMode::Push,
            Self::One { name, .. } => cluster.metadata.name.as_ref() == Some(name),
        }
    }

    /// Returns whether members are reached without a Secret.
    pub(crate) fn needs_no_secret(&self) -> bool {
        matches!(self, Self::One { .. })
    }

    /// Returns which Clusters are watched. The control plane watches all, since placements need them.
    pub(crate) fn clusters(&self) -> watcher::Config {
        match self {
            Self::Push => watcher::Config::default(),
            Self::One { name, .. } => watcher::Config::default().fields(&format!("metadata.name={name}")),
        }
    }

    /// Returns which Works are watched.
    pub(crate) fn works(&self, client: Client) -> Api<Work> {
        match self {
            Self::Push => Api::all(client),
            Self::One { name, .. } => Api::namespaced(client, &api::names::execution_space(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(name: &str, mode: &str) -> Cluster {
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "syncMode": mode } })).unwrap()
    }

    fn nowhere() -> Client {
        let config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
        Client::try_from(config).unwrap()
    }

    #[tokio::test]
    async fn the_control_plane_has_push_clusters_and_an_agent_has_its_own() {
        let all = MyClusters::Push;
        assert!(all.has(&cluster("m1", "Push")) && !all.has(&cluster("m1", "Pull")));
        let one = MyClusters::One { name: "m1".to_owned(), client: nowhere() };
        assert!(one.has(&cluster("m1", "Pull")) && !one.has(&cluster("m2", "Pull")));
        assert!(!one.has(&cluster("m2", "Push")));
    }

    #[tokio::test]
    async fn an_agent_reads_nothing_of_other_clusters() {
        let one = MyClusters::One { name: "m1".to_owned(), client: nowhere() };
        assert_eq!(one.clusters().field_selector.as_deref(), Some("metadata.name=m1"));
        let works = one.works(nowhere());
        assert!(works.resource_url().contains("/namespaces/karmada-es-m1/"), "{}", works.resource_url());
        assert!(!MyClusters::Push.works(nowhere()).resource_url().contains("namespaces"));
    }
}
