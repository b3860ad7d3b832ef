//! Keeps the connections to members in step with their Clusters and Secrets.
//!
//! Watches: Cluster. Writes: nothing. Not a controller of its own: every controller of this side needs it.

use std::sync::Arc;

use member::Member;
use runtime::{Outcome, UNLIMITED};

use super::{Shared, is_leaving, is_ready};
use crate::MyClusters;

/// Follows the clusters from now on.
pub(super) fn keep(shared: &Arc<Shared>) {
    let of = shared.clone();
    shared.mirrors.clusters.subscribe(move |change| {
        let name = &change.key.name;
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        if old.map(|old| &old.spec) != new.map(|new| &new.spec) {
            of.links.push(name.clone());
        }
        // What was put aside while the member was away is taken up when it is back, or when it leaves for good.
        if let Some(new) = new {
            let came_back = is_ready(new) && !old.is_some_and(is_ready);
            let leaves = old.map(is_leaving) != Some(is_leaving(new));
            if came_back || leaves {
                of.enqueue_works_of(name);
            }
        }
    });
    let of = shared.clone();
    shared.links.spawn(UNLIMITED, &shared.supervisor, move |name: String| {
        let of = of.clone();
        async move { link(&of, &name).await }
    });
}

/// Brings one connection up to date.
async fn link(shared: &Shared, name: &str) -> Outcome {
    let Some(cluster) = shared.my_cluster(name) else {
        shared.members.remove(name);
        return Outcome::Done;
    };
    match connect(shared, &cluster).await {
        Ok((_, new)) => {
            if new {
                tracing::info!(cluster = name, "connected");
                shared.enqueue_works_of(name);
            }
            Outcome::Done
        }
        // Join writes the Secret before the Cluster, others may do it the other way round.
        Err(error) => {
            tracing::debug!(cluster = name, %error, "no connection");
            Outcome::Retry
        }
    }
}

/// Returns the connection to a member, and whether it is new.
pub(super) async fn connect(
    shared: &Shared,
    cluster: &api::cluster::Cluster,
) -> member::Result<(Arc<Member>, bool)> {
    match &shared.mine {
        MyClusters::Push => shared.members.refresh(shared.client(), cluster).await,
        MyClusters::One { name, client } => Ok(shared.members.adopt(name, client)),
    }
}
