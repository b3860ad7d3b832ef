//! The scheduler of Karmada v1.17.1, as a process, and ours decide on the same random fleets and bindings: the
//! outcomes are the same.
//!
//! Run it with `cargo xtask compare scheduler`, which builds the original first. The original works on a
//! kube-apiserver, ours on our own server. In each round both are given the same bindings: new ones, then scaled up
//! and down, with another placement, evicted, on clusters with other labels, taints, room and APIs. After a round the
//! original's result is what both continue from, so that one difference is not counted twice. Events are compared through
//! the bindings: each side has to have told what its bindings say, in upstream's words.
//!
//! What may differ is counted, excuse by excuse and field by field (`tally::EXCUSES`); a full run fails for what never did:
//! - *reasons*: which reason is reported for a cluster that several filters reject is random in the original.
//! - *order*: clusters that keep their replicas while others grow come last, in random order, in the original.
//! - *cause*: a lack of room had the reason `SchedulerError` in v1.17.1; it is `Unschedulable` since.
//! - *sums*: the original adds up room in 32 bits. A fresh start for a workload of 0 replicas, for whom every cluster has
//!   unlimited room, comes to a negative sum there and fails; ours succeeds.
//!
//! `KARMADA_COMPARE_FLEETS` (12) from `KARMADA_COMPARE_FIRST` (0), `KARMADA_COMPARE_BINDINGS` per fleet (60) and
//! `KARMADA_COMPARE_SEED` (1) choose how much and which.

mod bindings;
mod estimators;
mod fleets;
mod random;
mod sides;
mod tally;

use clusters::toolchain::{KARMADA, Toolchain};
use random::Random;
use serde_json::{Value, json};
use sides::Side;
use tally::{Input, Tally};
use testkit::Server;

const SIZES: [usize; 12] = [1, 2, 3, 5, 8, 12, 14, 20, 30, 45, 6, 10];
const ROUNDS: usize = 4;
/// Flags that both schedulers get, fleet by fleet.
const FLAGS: [&[&str]; 4] =
    [&[], &["--enable-empty-workload-propagation=true"], &["--plugins=*,-TaintToleration"], &[]];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the original scheduler; run `cargo xtask compare scheduler`"]
async fn both_schedulers_decide_alike() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let program = Toolchain::from_env()
        .expect("a cache")
        .ensure_program(&KARMADA, "karmada-scheduler")
        .expect("the original scheduler");
    let partner = clusters::FleetOptions::of([clusters::ClusterOptions::api_server("original")]);
    let partner = clusters::Fleet::start(partner).await.expect("a kube-apiserver");
    let server = Server::start(env!("CARGO_BIN_EXE_karmada"), &["--controllers", ""]);
    let cluster = partner.cluster("original").expect("the cluster that was just started");
    let flags = [
        "--leader-elect=false",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
        "--feature-gates=PriorityBasedScheduling=true",
    ];
    let logs = server.data();
    let original = Side::new("original", cluster.direct_kubeconfig(), &program, &flags, logs).await;
    let kubeconfig = server.kubeconfig();
    let ours = std::path::Path::new(env!("CARGO_BIN_EXE_karmada"));
    let ours =
        Side::new("ours", &kubeconfig, ours, &["controllers", "--controllers", "scheduler"], logs).await;
    let definitions: Vec<Value> = api::crd::all().into_iter().chain(api::crd::aggregated()).collect();
    original.prepare(&definitions).await;
    ours.prepare(&[]).await;

    let seed = setting("KARMADA_COMPARE_SEED", 1);
    let fleets = setting("KARMADA_COMPARE_FLEETS", 12) as usize;
    let count = setting("KARMADA_COMPARE_BINDINGS", 60) as usize;
    let mut tally = Tally::default();
    let first = setting("KARMADA_COMPARE_FIRST", 0) as usize;
    for number in first..first + fleets {
        let mut random = Random::new(seed.wrapping_mul(1_000).wrapping_add(number as u64));
        compare_on_one_fleet(&mut random, number, count, &original, &ours, &mut tally).await;
        eprintln!(
            "fleet {}/{fleets}: {} decisions, {} differ",
            number + 1,
            tally.decisions,
            tally.differences.len()
        );
    }
    eprintln!("seed {seed}, {}", tally.summary());
    let differences = &tally.differences;
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    if first == 0 && fleets >= SIZES.len() {
        assert!(tally.missing().is_empty(), "never came up: {:?}", tally.missing());
        assert!(tally.unused().is_empty(), "may differ and never did: {:?}", tally.unused());
    }
}

async fn compare_on_one_fleet(
    random: &mut Random,
    number: usize,
    count: usize,
    original: &Side,
    ours: &Side,
    tally: &mut Tally,
) {
    let mut clusters = fleets::fleet(random, SIZES[number % SIZES.len()]);
    let names: Vec<String> = clusters
        .iter()
        .filter_map(|cluster| cluster["metadata"]["name"].as_str())
        .map(str::to_owned)
        .collect();
    let mut bindings: Vec<Value> = (0..count).map(|index| bindings::binding(random, index, &names)).collect();
    let mut changes = vec!["new"; count];
    let flags = FLAGS[number % FLAGS.len()];
    for round in 0..ROUNDS {
        if round > 0 {
            fleets::change(random, &mut clusters);
            let changed = bindings.iter_mut().map(|binding| bindings::change(random, binding, &names, round));
            changes = changed.collect();
        }
        if round == 2 && clusters.len() > 2 {
            let leaving = random.between(0, clusters.len() as i64 - 1) as usize;
            clusters[leaving]["deleting"] = true.into();
        }
        for side in [original, ours] {
            side.put_clusters(&clusters).await;
            side.put_bindings(&bindings).await;
        }
        let (mut theirs, mine) = tokio::join!(original.schedule(flags, count), ours.schedule(flags, count));
        for (binding, change) in bindings.iter_mut().zip(&changes) {
            let name = binding["metadata"]["name"].as_str().expect("a name").to_owned();
            let result = theirs.remove(&name).expect("the binding is still there");
            let at = format!("fleet {number}, round {round}, {name}");
            let input = Input { at, binding, clusters: &clusters, change };
            tally.compare(&input, &result, &mine[&name]);
            *binding = next_input(binding, &result, round);
        }
    }
    for side in [original, ours] {
        side.clear().await;
    }
}

/// Returns what the next round starts from: the result, as if nobody had looked at it yet.
fn next_input(binding: &Value, result: &Value, round: usize) -> Value {
    let mut next = binding.clone();
    next["spec"] = result["spec"].clone();
    next["metadata"]["annotations"] = result["metadata"]["annotations"].clone();
    if next["metadata"]["annotations"].is_null() {
        next["metadata"]["annotations"] = json!({});
    }
    let status = &result["status"];
    let mut kept = json!({});
    if let Some(name) = status.get("schedulerObservingAffinityName") {
        kept["schedulerObservingAffinityName"] = name.clone();
    }
    if status.get("lastScheduledTime").is_some() {
        // A request for a fresh start of the next round is younger, one that has been served is older.
        kept["lastScheduledTime"] = format!("2026-02-{:02}T18:00:00Z", round + 1).into();
    }
    next["status"] = kept;
    next
}
