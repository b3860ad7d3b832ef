//! The controllers that every control plane needs, inside the server: they follow the store's own history instead of lists and
//! watches, and write like any other client.

pub(crate) mod accounts;
mod bootstrap_tokens;
mod certificates;
pub(crate) mod definitions;
mod garbage;
mod namespaces;
mod policy_types;
mod roles;
pub(crate) mod supervision;
mod ttl;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::background;
use crate::options::Options;
use crate::server::Server;

/// Starts the controllers that are configured; they end when the server stops.
pub(crate) fn spawn(server: &Arc<Server>, tasks: &TaskTracker, options: &Options) {
    run_apart(server, tasks, "definitions", definitions::run);
    let grace = options.namespace_grace;
    run(server, tasks, "namespaces", move |server| namespaces::run(server, grace));
    if options.collect_garbage {
        run(server, tasks, "garbage-collector", garbage::run);
    }
    run(server, tasks, "service-accounts", accounts::run);
    run(server, tasks, "certificates", certificates::run);
    run(server, tasks, "bootstrap-tokens", bootstrap_tokens::run);
    run(server, tasks, "cluster-roles", roles::run);
    run_apart(server, tasks, "api-services", crate::aggregation::availability::run);
    run_apart(server, tasks, "policy-types", policy_types::run);
    run(server, tasks, "ttl-after-finished", ttl::run);
    let every = options.compact_every;
    run(server, tasks, "compaction", move |server| compact(server, every));
}

/// Runs one controller until the server stops, and restarts it if it fails.
pub(crate) fn run<F, Fut>(server: &Arc<Server>, tasks: &TaskTracker, name: &'static str, controller: F)
where
    F: Fn(Arc<Server>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    tasks.spawn(supervision::run(server.clone(), name, controller));
}

/// The same on the thread beside the requests, for controllers that compute a lot.
fn run_apart<F, Fut>(server: &Arc<Server>, tasks: &TaskTracker, name: &'static str, controller: F)
where
    F: Fn(Arc<Server>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    tasks.spawn_on(supervision::run(server.clone(), name, controller), background::settling());
}

/// Drops history that is older than one interval, as clients expect of a server that compacts.
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
