//! Servers behind a balancer that are ended and started again, one after the other, under load.

use std::sync::Arc;
use std::time::Duration;

use clusters::Etcd;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use testkit::history::truth::Truth;
use testkit::history::{History, Outcome, judge};
use testkit::{Server, eventually, install_tls};

use super::clients::{self, Crowd, Place};
use super::{CLIENTS, WATCHERS};

/// How long after the end of a server a client may still find out that its connection is gone.
const AFTERMATH: Duration = Duration::from_secs(1);
/// Nobody is frozen or cut off here, so that every request is answered, on a busy machine later.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rolling_restart_loses_no_watch_and_no_request_that_was_not_under_way() {
    install_tls();
    let dir = tempfile::tempdir().expect("a folder for the test");
    let Some(etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    let mut servers: Vec<Server> = crate::servers::start_all(&etcd.endpoint, dir.path());
    let addresses = servers.iter().map(|server| {
        let address = server.address().expect("it has been started");
        address.parse().expect("an address")
    });
    let balancer = testkit::balancer::of_connections(addresses.collect()).await;
    let mut config = crate::servers::config(&servers[0]).await;
    config.cluster_url = format!("https://{balancer}").parse().expect("an address");
    config.default_retry = false;
    let client = Client::try_from(config).expect("a client");
    // All of them are reached in the same way.
    let place = Arc::new(Place::new(vec![client.clone()], PATIENCE));

    let namespaces: Api<Namespace> = Api::all(client);
    let new = serde_json::from_value(json!({"metadata": {"name": "rolling"}})).expect("a namespace");
    let made = namespaces.create(&PostParams::default(), &new).await.expect("it is new");
    let from = made.resource_version().and_then(|revision| revision.parse().ok()).expect("a revision");
    let endpoints = [etcd.endpoint.clone()];
    let truth = Truth::follow(&endpoints, "/karmada/configmaps//rolling/", from);
    let crowd = Crowd::start(&place, "rolling", (1, 0), CLIENTS, WATCHERS);
    let mut ends = Vec::new();
    for server in &mut servers {
        let begun = place.now();
        // Both wait for the process, so they must not hold up the clients.
        tokio::task::block_in_place(|| server.end());
        let aftermath = testkit::slowed(AFTERMATH);
        ends.push((begun, place.now() + u64::try_from(aftermath.as_nanos()).unwrap_or(0)));
        tokio::task::block_in_place(|| server.restart());
    }
    let (mut operations, watches) = crowd.end().await;
    // Any server may have answered: their own order is not known.
    for (number, operation) in operations.iter_mut().enumerate() {
        operation.server = (0, number);
    }

    let lost: Vec<_> = operations
        .iter()
        .filter(|operation| matches!(operation.outcome, Outcome::Unknown(_)))
        .filter(|operation| {
            !ends.iter().any(|(begun, ended)| operation.invoked <= *ended && operation.completed >= *begun)
        })
        .collect();
    assert!(lost.is_empty(), "requests were lost that were not under way when a server ended: {lost:#?}");
    let newest = clients::newest_written(&operations);
    let changes = eventually("etcd's own account has everything", async || {
        let changes = truth.changes();
        let told = changes.last().map_or(0, |change| change.revision);
        if told >= newest { Ok(changes) } else { Err(format!("it is at {told} of {newest}")) }
    })
    .await;
    let changes = changes.into_iter().filter(|change| clients::is_ours(&change.name)).collect();
    let unknown =
        operations.iter().filter(|operation| matches!(operation.outcome, Outcome::Unknown(_))).count();
    // Nothing has been compacted, so every watch can go on.
    let history = History { changes, operations, watches, compacted: 0 };
    let violations = judge(&history);
    assert!(violations.is_empty(), "{violations:#?}");
    eprintln!(
        "{} operations, {unknown} of them under way when a server ended; {} watches, none lost",
        history.operations.len(),
        history.watches.len()
    );
}
