//! The loss of a cluster: many Deployments over simulated clusters, one of which dies; how long from its taint until everything runs
//! elsewhere, and what it costs.
//!
//! `cargo xtask bench failover`; `--help` names the sizes. Every Deployment has a replica in every cluster, so the death of one
//! touches all of them. Evictions are let through as fast as they come, by the flag: by default it is one in two seconds, which would be
//! all that is measured. CPU is that of the control plane alone; the simulated clusters share the machine.
//!
//! With `--original`, the controllers and the scheduler of Karmada v1.17.1 do the same on the same clusters. Their API server is ours,
//! with our controllers off, and counts as a part of their control plane.

mod support;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use support::originals::{self, Originals};
use support::programs::{join, simulate};
use support::{Build, Column, Ours, cpu_seconds, megabytes};

const WRITERS: usize = 16;
const DEAD: &str = "member1";

/// Measures the loss of a cluster.
#[derive(Debug, Parser)]
struct Sizes {
    /// How many simulated clusters.
    #[arg(long, default_value_t = 10)]
    clusters: usize,
    /// How many Deployments, with as many replicas as there are clusters.
    #[arg(long, default_value_t = 1000)]
    deployments: usize,
    /// How many seconds everything may take to move.
    #[arg(long, default_value_t = 600)]
    patience: u64,
    /// The program to measure instead of the one that was built with the benchmark.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Measure the original, too: it needs Go to be built, once.
    #[arg(long)]
    original: bool,
    /// Measure the original alone.
    #[arg(long)]
    original_alone: bool,
    /// What `cargo bench` says to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(Sizes::parse()))
}

async fn run(sizes: Sizes) -> Result<()> {
    let mut columns = Vec::new();
    if !sizes.original_alone {
        columns.push(measure(&sizes, Side::Ours).await?);
    }
    let mut failure = Ok(());
    if sizes.original || sizes.original_alone {
        match measure(&sizes, Side::Original).await {
            Ok(column) => columns.push(column),
            // What was measured before is shown all the same.
            Err(error) => failure = Err(error.context("Karmada v1.17.1")),
        }
    }
    if !columns.is_empty() {
        support::print(&columns);
    }
    failure
}

/// Whose controllers are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Original,
}

/// A cluster counts as lost after five seconds; what comes then is measured.
const FLAGS: [&str; 5] = [
    "--feature-gates=Failover=true",
    "--enable-no-execute-taint-eviction",
    "--resource-eviction-rate=10000",
    "--cluster-status-update-frequency=5s",
    "--cluster-failure-threshold=5s",
];

/// A flag of admission, which is part of the server.
const ALLOWED: &str = "--allow-no-execute-taint-policy";

async fn measure(sizes: &Sizes, side: Side) -> Result<Column> {
    let program = sizes.program.clone().unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_karmada")));
    let folder = tempfile::tempdir()?;
    let simulated = folder.path().join("sim");
    let build = Build { name: "karmada-rs", program: program.clone() };
    let (ours, others) = match side {
        Side::Ours => (Ours::with(&build, &[&FLAGS[..], &[ALLOWED]].concat())?, None),
        Side::Original => {
            let server = Ours::with(&build, &[&originals::IDLE_SERVER[..], &[ALLOWED]].concat())?;
            let others = Originals::start(&server.kubeconfig, folder.path(), &FLAGS)?;
            (server, Some(others))
        }
    };
    let name = if side == Side::Ours { build.name } else { originals::NAME };
    eprintln!("{name}");
    let pids: Vec<u32> = others.iter().flat_map(Originals::pids).chain([ours.child.id()]).collect();
    // Each has room for its own share and for that of the lost one.
    let _sim = simulate(&program, &simulated, sizes.clusters, &["--nodes", "20"])?;
    for number in 1..=sizes.clusters {
        let name = format!("member{number}");
        join(&program, &ours.kubeconfig, &name, &simulated.join(format!("{name}.kubeconfig")))?;
    }
    let plane = support::client(&ours.kubeconfig).await?;
    eprintln!("{} Deployments …", sizes.deployments);
    fill(&plane, sizes.deployments, sizes.clusters).await?;
    let patience = Duration::from_secs(sizes.patience);
    let full = |ready: &HashMap<String, u64>| ready.values().sum::<u64>() == sizes.clusters as u64;
    let started = Instant::now();
    until_all(&plane, sizes.deployments, patience, "run everywhere", full).await?;
    eprintln!("all run after {:.1} s", started.elapsed().as_secs_f64());
    let before = requests(&plane).await?;

    let broken = Command::new(&program)
        .args(["sim", "break", DEAD, "--api-down", "--data-dir"])
        .arg(&simulated)
        .output()
        .context("cannot run karmada sim break")?;
    if !broken.status.success() {
        bail!("karmada sim break: {}", String::from_utf8_lossy(&broken.stderr));
    }
    let died = Instant::now();
    until_tainted(&plane, patience).await?;
    let (tainted, cpu) = (Instant::now(), cpu_seconds(&pids));
    eprintln!("tainted after {:.1} s", died.elapsed().as_secs_f64());
    let elsewhere = |ready: &HashMap<String, u64>| {
        let sum: u64 = ready.iter().filter(|(cluster, _)| *cluster != DEAD).map(|(_, ready)| ready).sum();
        sum == sizes.clusters as u64
    };
    until_all(&plane, sizes.deployments, patience, "run elsewhere", elsewhere).await?;
    let wall = tainted.elapsed();
    let cpu = cpu_seconds(&pids) - cpu;
    let after = requests(&plane).await?;
    let rows = vec![
        ("from its death to its taint (s)".to_owned(), format!("{:.1}", (tainted - died).as_secs_f64())),
        (
            "from its taint until every replacement is ready (s)".to_owned(),
            format!("{:.1}", wall.as_secs_f64()),
        ),
        ("CPU of the control plane meanwhile (s)".to_owned(), format!("{cpu:.1}")),
        ("requests to the control plane since its death".to_owned(), (after - before).to_string()),
        ("memory afterwards (MB)".to_owned(), megabytes(&pids)),
    ];
    Ok(Column { name, rows })
}

fn api(client: &kube::Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::all_with(client.clone(), &resource)
}

fn inside(client: &kube::Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::namespaced_with(client.clone(), "default", &resource)
}

async fn create(api: &Api<DynamicObject>, object: Value) -> Result<()> {
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Creates the policies and the Deployments.
async fn fill(plane: &kube::Client, count: usize, replicas: usize) -> Result<()> {
    let ready = |values: Value| json!([{"conditionType": "Ready", "operator": "In", "statusValues": values}]);
    let lost = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterTaintPolicy", "metadata": {"name": "lost"}, "spec": {
        "addOnConditions": ready(json!(["False", "Unknown"])), "removeOnConditions": ready(json!(["True"])),
        "taints": [{"key": "cluster.karmada.io/not-ready", "effect": "NoExecute"}]}});
    create(&api(plane, "policy.karmada.io", "v1alpha1", "ClusterTaintPolicy", "clustertaintpolicies"), lost)
        .await?;
    let everywhere = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "all"}, "spec": {
        "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment"}],
        "placement": {"replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted"}}}});
    let policies = inside(plane, "policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    create(&policies, everywhere).await?;
    let deployments = inside(plane, "apps", "v1", "Deployment", "deployments");
    let one = |number: usize| {
        let name = format!("web-{number:05}");
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
                "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}});
        let deployments = deployments.clone();
        async move { create(&deployments, object).await }
    };
    stream::iter(0..count).map(one).buffer_unordered(WRITERS).try_collect::<()>().await
}

/// Ready replicas by cluster, as a binding tells them.
fn ready(binding: &DynamicObject) -> HashMap<String, u64> {
    let items = binding.data["status"]["aggregatedStatus"].as_array().into_iter().flatten();
    let pair = |item: &Value| {
        let cluster = item["clusterName"].as_str()?.to_owned();
        Some((cluster, item["status"]["readyReplicas"].as_u64().unwrap_or(0)))
    };
    items.filter_map(pair).collect()
}

/// Follows the bindings until as many as wanted are as wanted.
async fn until_all(
    plane: &kube::Client,
    count: usize,
    patience: Duration,
    what: &str,
    wanted: impl Fn(&HashMap<String, u64>) -> bool,
) -> Result<()> {
    let bindings = inside(plane, "work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings");
    let mut good: HashMap<String, bool> = HashMap::new();
    let following = async {
        let mut events = watcher(bindings, watcher::Config::default()).default_backoff().boxed();
        while let Some(event) = events.next().await {
            if let Ok(watcher::Event::Apply(binding) | watcher::Event::InitApply(binding)) = event {
                let good_now = wanted(&ready(&binding));
                good.insert(binding.metadata.name.unwrap_or_default(), good_now);
                if good_now && good.values().filter(|good| **good).count() == count {
                    return Ok(());
                }
            }
        }
        bail!("the watch has ended")
    };
    let done = tokio::time::timeout(patience, following).await;
    done.unwrap_or_else(|_| {
        bail!(
            "only {} of {count} {what} after {} s",
            good.values().filter(|good| **good).count(),
            patience.as_secs()
        )
    })
}

async fn until_tainted(plane: &kube::Client, patience: Duration) -> Result<()> {
    let clusters = api(plane, "cluster.karmada.io", "v1alpha1", "Cluster", "clusters");
    let tainted = |cluster: Option<&DynamicObject>| {
        let taints = cluster.and_then(|cluster| cluster.data["spec"]["taints"].as_array());
        taints.into_iter().flatten().any(|taint| taint["effect"] == "NoExecute")
    };
    let waiting = kube::runtime::wait::await_condition(clusters, DEAD, tainted);
    tokio::time::timeout(patience, waiting).await.context("it got no taint")??;
    Ok(())
}

/// How many requests the control plane has answered, as its metrics say.
async fn requests(plane: &kube::Client) -> Result<u64> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = plane.request_text(request).await?;
    let lines = text.lines().filter(|line| line.starts_with("apiserver_request_total{"));
    let sum: f64 = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    Ok(sum as u64)
}
