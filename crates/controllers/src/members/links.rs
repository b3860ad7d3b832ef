//! Keeps the connections to members in step with their Clusters and Secrets.
//!
//! Watches: Cluster. Writes: nothing. It is not a separate controller: every controller of this side needs
//! it.

use std::sync::Arc;

use api::cluster::Cluster;
use jiff::Timestamp;
use member::Member;
use runtime::{Error, Outcome, Reconcile, UNLIMITED, controller};

use super::{Shared, is_leaving};
use crate::MyClusters;

/// Starts to watch the clusters.
pub(super) fn keep(shared: &Arc<Shared>) {
    shared.mirrors.clusters.subscribe({
        let shared = shared.clone();
        move |change| {
            let name = &change.key.name;
            let (old, new) = (change.old.as_deref(), change.new.as_deref());
            if old.map(|old| &old.spec) != new.map(|new| &new.spec) {
                shared.links.push(name.clone());
            }
            // Keys that waited while the member was unreachable are enqueued when it is back, or when it
            // leaves for good.
            if let Some(new) = new {
                let came_back = new.status.is_ready() && !old.is_some_and(|old| old.status.is_ready());
                let leaves = old.map(is_leaving) != Some(is_leaving(new));
                if came_back || leaves {
                    shared.enqueue_works_of(name);
                }
            }
        }
    });
    controller::run(&Arc::new(Links(shared.clone())), &shared.links, UNLIMITED, &shared.supervisor);
}

struct Links(Arc<Shared>);

/// What to do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// The cluster is one of ours: keep its connection up to date.
    Connect,
    /// It is not, or no longer.
    Disconnect,
}

impl Reconcile for Links {
    type Key = String;
    /// The cluster, if it is one of ours.
    type View = Option<Arc<Cluster>>;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<Self::View>, Error> {
        Ok(Some(self.0.my_cluster(name)))
    }

    fn decide(cluster: &Self::View, _: Timestamp) -> Plan {
        if cluster.is_some() { Plan::Connect } else { Plan::Disconnect }
    }

    async fn apply(&self, name: &String, cluster: Self::View, plan: Plan) -> Result<Outcome, Error> {
        let shared = &self.0;
        let (Plan::Connect, Some(cluster)) = (plan, cluster) else {
            shared.members.remove(name);
            return Ok(Outcome::Done);
        };
        match connect(shared, &cluster).await {
            Ok((_, new)) => {
                if new {
                    tracing::info!(cluster = name, "connected");
                    shared.enqueue_works_of(name);
                }
                Ok(Outcome::Done)
            }
            // Join writes the Secret before the Cluster, others may do it the other way round.
            Err(error) => {
                tracing::debug!(cluster = name, %error, "no connection");
                Ok(Outcome::Retry)
            }
        }
    }
}

/// Returns the connection to a member, and whether it is new.
pub(super) async fn connect(shared: &Shared, cluster: &Cluster) -> member::Result<(Arc<Member>, bool)> {
    let (member, new) = match &shared.mine {
        MyClusters::Push => shared.members.refresh(shared.client(), cluster).await?,
        MyClusters::One { name, client } => shared.members.adopt(name, client),
    };
    // It may have left while its Secret was read. Then it has been forgotten already, and nobody would do so again.
    if new && shared.my_cluster(member.name()).is_none() {
        shared.members.remove(member.name());
    }
    Ok((member, new))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use runtime::Key;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{at, cluster, deleting};
    use crate::world::{World, drain};

    #[test]
    fn who_has_a_connection() {
        let away = cluster("m1", "False", json!({}));
        let leaving = cluster("m1", "True", deleting());
        let cases = [
            ("one of ours", Some(cluster("m1", "True", json!({}))), Plan::Connect),
            ("one that has never reported", Some(cluster("m1", "", json!({}))), Plan::Connect),
            ("one that is away", Some(away), Plan::Connect),
            ("one that leaves: its objects are withdrawn", Some(leaving), Plan::Connect),
            ("one that is gone, or somebody else's", None, Plan::Disconnect),
        ];
        for (name, cluster, expected) in cases {
            assert_eq!(Links::decide(&cluster.map(Arc::new), at(0)), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn a_connection_is_made_once_and_brings_up_what_waits_for_it() {
        let world = World::agent().await;
        let name = world.cluster("m1", json!({})).await;
        let work = world.work(&name, json!({})).await;
        let shared = world.members(&["execution"]);
        let links = Links(shared.clone());
        world.writes();
        assert_eq!(world.once(&links, &name).await, Outcome::Done);
        let member = shared.members.get(&name).expect("it is reached");
        assert_eq!(drain(&shared.executions), [Key::of(work.as_ref())]);
        assert_eq!(world.once(&links, &name).await, Outcome::Done);
        assert!(drain(&shared.executions).is_empty(), "it is the same connection");
        world.environment.mirrors.clusters.remove(&Key::new("", name.as_str()), 0);
        assert_eq!(world.once(&links, &name).await, Outcome::Done);
        assert!(member.stopped().is_cancelled() && shared.members.get(&name).is_none());
        assert_eq!(world.writes(), [""; 0]);
        world.supervisor.stop().await;
    }

    #[tokio::test]
    async fn a_cluster_without_its_secret_is_tried_again() {
        let world = World::new().await;
        let reference = json!({ "namespace": world.namespace, "name": "m1" });
        let spec = json!({ "spec": {
            "apiEndpoint": "https://127.0.0.1:1", "insecureSkipTLSVerification": true, "secretRef": reference,
        } });
        let name = world.cluster("m1", spec).await;
        let shared = world.members(&["execution"]);
        let links = Links(shared.clone());
        assert_eq!(world.once(&links, &name).await, Outcome::Retry);
        assert!(shared.members.get(&name).is_none());
        world.create::<Secret>(json!({ "metadata": reference, "data": { "token": "dA==" } })).await;
        assert_eq!(world.once(&links, &name).await, Outcome::Done);
        let member = shared.members.get(&name).expect("it has its credentials");
        world.environment.mirrors.clusters.remove(&Key::new("", name.as_str()), 0);
        assert_eq!(world.once(&links, &name).await, Outcome::Done);
        assert!(member.stopped().is_cancelled() && shared.members.get(&name).is_none());
        world.supervisor.stop().await;
    }

    #[tokio::test]
    async fn a_cluster_that_left_while_it_was_being_connected_to_is_forgotten() {
        let world = World::agent().await;
        let shared = world.members(&["clusterStatus"]);
        let seen = cluster(&world.own("m1"), "True", json!({}));
        let (member, new) = connect(&shared, &seen).await.expect("it is reached");
        assert!(new && member.stopped().is_cancelled(), "nothing is followed there");
        assert!(shared.members.get(member.name()).is_none());

        let name = world.cluster("m1", json!({})).await;
        let (member, _) = connect(&shared, &seen).await.expect("it is reached");
        assert!(!member.stopped().is_cancelled() && shared.members.get(&name).is_some());
        world.supervisor.stop().await;
    }
}
