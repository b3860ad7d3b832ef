//! The controllers a control plane cannot do without, inside the server: they follow the store's own history
//! instead of lists and watches, and write like any other client.

pub(crate) mod accounts;
mod bootstrap_tokens;
mod certificates;
pub(crate) mod definitions;
mod garbage;
mod namespaces;
mod policy_types;
mod roles;
mod ttl;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::aside;
use crate::options::Options;
use crate::server::Server;

/// Starts those that are wanted; they end when the server stops.
pub(crate) fn spawn(server: &Arc<Server>, tasks: &TaskTracker, options: &Options) {
    run_aside(server, tasks, "definitions", definitions::run);
    run(server, tasks, "namespaces", namespaces::run);
    if options.collect_garbage {
        run(server, tasks, "garbage-collector", garbage::run);
    }
    run(server, tasks, "service-accounts", accounts::run);
    run(server, tasks, "certificates", certificates::run);
    run(server, tasks, "bootstrap-tokens", bootstrap_tokens::run);
    run(server, tasks, "cluster-roles", roles::run);
    run_aside(server, tasks, "api-services", crate::aggregation::availability::run);
    run_aside(server, tasks, "policy-types", policy_types::run);
    run(server, tasks, "ttl-after-finished", ttl::run);
    tasks.spawn(compact(server.clone(), options.compact_every));
}

fn run<F, Fut>(server: &Arc<Server>, tasks: &TaskTracker, name: &'static str, controller: F)
where
    F: Fn(Arc<Server>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    tasks.spawn(restarted(server.clone(), name, controller));
}

/// The same beside the requests, for controllers that compute a lot.
fn run_aside<F, Fut>(server: &Arc<Server>, tasks: &TaskTracker, name: &'static str, controller: F)
where
    F: Fn(Arc<Server>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    tasks.spawn_on(restarted(server.clone(), name, controller), aside::settling());
}

/// Runs a controller until the server stops; one that lost the history starts over from the present state.
async fn restarted<F, Fut>(server: Arc<Server>, name: &'static str, controller: F)
where
    F: Fn(Arc<Server>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    while !server.stop.is_cancelled() {
        let stop = server.stop.clone();
        tokio::select! {
            () = controller(server.clone()) => tracing::debug!(controller = name, "starts over"),
            () = stop.cancelled() => break,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Forgets history that is older than one interval, as clients expect of a server that compacts.
async fn compact(server: Arc<Server>, every: Duration) {
    let mut last = server.store.revision();
    loop {
        tokio::select! {
            () = tokio::time::sleep(every) => {
                server.store.compact(last);
                last = server.store.revision();
            }
            () = server.stop.cancelled() => return,
        }
    }
}
