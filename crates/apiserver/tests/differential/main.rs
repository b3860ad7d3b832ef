//! The same requests to kube-apiserver and to ours, and what comes back side by side.
//!
//! In: `testdata/differential/kinds.yaml` (an object per kind, from which requests are derived), `requests.yaml`,
//! `identity.yaml`, `apply.yaml`, `strict.yaml`, `structures.yaml` and `deeper.yaml` (requests written by hand) and
//! `known.yaml` (differences that are known, with reasons). Out: a failure for every difference that is not known, and for
//! every known one that is gone.
//!
//! Needs the programs of the `clusters` crate. Where they cannot be had, it says so loudly and does nothing.
//! Ours keeps objects in memory; `cargo xtask compare etcd` compares once more with ours on etcd.
//! `KARMADA_RS_DIFFERENTIAL=<first words of cases, separated by commas>` limits a run to some cases; then nothing is said about known
//! differences that did not show.

#[path = "../support/mod.rs"]
mod support;

mod aggregation;
mod batch;
mod changes;
mod conversion;
mod expressions;
mod hooks;
mod kinds;
mod known;
mod mutations;
mod normal;
mod policies;
mod ratchet;
mod requests;
mod suite;
mod versions;
mod written;

use apiserver::Options;
use clusters::toolchain::{ETCD, KUBERNETES, Toolchain};
use clusters::{ClusterOptions, Etcd, Fleet, FleetOptions};

use crate::known::Known;
use crate::suite::Suite;

/// Karmada runs kube-apiserver without the first two, since it runs no pods. The third computes the priority of pods,
/// and the last gives them tolerations: both matter to who schedules pods, and ours leaves pods as written.
const WITHOUT_PLUGINS: &str = "--disable-admission-plugins=StorageObjectInUseProtection,ServiceAccount,Priority,DefaultTolerationSeconds";
/// The suite does not shrink unnoticed.
const AT_LEAST: usize = 4000;

#[tokio::test(flavor = "multi_thread")]
async fn both_servers_answer_the_same() {
    compare(Options::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the same once more with another store: `cargo xtask compare etcd`"]
async fn both_servers_answer_the_same_on_etcd() {
    let dir = tempfile::tempdir().expect("a folder for etcd");
    let Some(etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    let store = store::EtcdOptions::new([etcd.endpoint.clone()]);
    compare(Options { etcd: Some(store), ..Options::default() }).await;
}

/// Sends everything to kube-apiserver and to ours, which is set up so.
async fn compare(ours: Options) {
    let toolchain = Toolchain::from_env().expect("a place for the programs");
    if !toolchain.can_provide(&[&KUBERNETES, &ETCD]) {
        clusters::left_out("a real kube-apiserver, and there is no Go toolchain to build one with");
        return;
    }
    let options = ClusterOptions::api_server("partner").apiserver_arg(WITHOUT_PLUGINS);
    let fleet = Fleet::start(FleetOptions::of([options]))
        .await
        .unwrap_or_else(|error| panic!("no partner: {}", error.chain()));
    let partner = fleet.cluster("partner").expect("the cluster that was asked for");
    let kubeconfig = std::fs::read_to_string(partner.direct_kubeconfig()).expect("the partner's kubeconfig");
    let handle = apiserver::start(ours).await.expect("our server starts");

    let only = std::env::var("KARMADA_RS_DIFFERENTIAL").ok();
    let mut suite = Suite::new(&kubeconfig, &handle.kubeconfig, only.clone()).await;
    kinds::run(&mut suite).await;
    requests::run(&mut suite).await;
    hooks::run(&mut suite).await;
    expressions::run(&mut suite).await;
    mutations::run(&mut suite).await;
    written::run(&mut suite).await;
    policies::run(&mut suite).await;
    changes::run(&mut suite).await;
    ratchet::run(&mut suite).await;
    versions::run(&mut suite).await;
    conversion::run(&mut suite).await;
    aggregation::run(&mut suite).await;
    handle.stop().await;
    fleet.down().await.expect("the partner ends");

    println!("{} requests sent to both servers, {} answers differ", suite.count, suite.differences.len());
    let known = Known::read();
    let surprises = known.unlisted(&suite.differences);
    for difference in &surprises {
        println!("{difference}");
    }
    let gone = if only.is_none() { known.stale(&suite.differences) } else { Vec::new() };
    for case in &gone {
        println!("==== {case}: listed as a known difference, but the answers are the same");
    }
    assert!(suite.unprepared.is_empty(), "{:?}", suite.unprepared);
    assert!(
        surprises.is_empty() && gone.is_empty(),
        "{} new differences, {} that are gone",
        surprises.len(),
        gone.len()
    );
    assert!(only.is_some() || suite.count >= AT_LEAST, "only {} requests", suite.count);
}

#[test]
fn the_compatibility_page_gives_every_reason() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compatibility.md");
    let page = std::fs::read_to_string(path).expect("the page about compatibility");
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = flat(&page);
    for entry in Known::read().entries {
        assert!(page.contains(&flat(&entry.reason)), "docs/compatibility.md lacks: {}", entry.reason);
    }
}

/// Returns a file of `testdata/differential`, read when the test runs: changing it needs no build.
fn testdata(name: &str) -> String {
    let path = format!("{}/testdata/differential/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
