//! How many decisions per second the scheduler takes: the pure part at 100 and 1,000 clusters, and the controller end
//! to end, with our server in the same process, for 5,000 new bindings.
//!
//! `cargo xtask bench scheduler`. Every decision is about one of four kinds of binding: dynamic weights or aggregated,
//! first placement or scaling up, with constraints on regions and clusters. On Linux the pure rate per second of CPU
//! time is printed too, which a busy machine does not spoil. `KARMADA_BENCH_BINDINGS` sets how many bindings the
//! controller gets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::cluster::Cluster;
use api::work::{ResourceBinding, ResourceBindingSpec, ResourceBindingStatus};
use apiserver::auth::User;
use controllers::{Context, Selection};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::runtime::watcher;
use runtime::Supervisor;
use scheduler::{Assumptions, Fleet, Groups, Options, Scheduler, World};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How many clusters the controller chooses from.
const FLEET: usize = 100;

fn cluster(index: usize) -> Value {
    let taints =
        if index % 20 == 7 { json!([{"key": "maintenance", "effect": "NoSchedule"}]) } else { json!([]) };
    let apis: Vec<Value> = (0..40)
        .map(|group| {
            let resources: Vec<Value> = (0..5)
                .map(|kind| json!({"name": format!("things{kind}"), "kind": format!("Thing{kind}")}))
                .collect();
            json!({"groupVersion": format!("group{group}.example.com/v1"), "resources": resources})
        })
        .chain([
            json!({"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}),
        ])
        .collect();
    let grades: Vec<Value> = (0..9)
        .map(|grade| {
            let min = |scale: u64| if grade == 0 { 0 } else { scale << (grade - 1) };
            json!({"grade": grade, "ranges": [
                {"name": "cpu", "min": min(1).to_string(), "max": min(2).max(1).to_string()},
                {"name": "memory", "min": format!("{}Gi", min(4)), "max": format!("{}Gi", min(8).max(4))},
            ]})
        })
        .collect();
    let counts: Vec<Value> =
        (0..9).map(|grade| json!({"grade": grade, "count": (index * 7 + grade) % 5})).collect();
    json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": format!("member-{index:04}"), "labels": {"env": if index.is_multiple_of(3) { "test" } else { "prod" }, "team": format!("t{}", index % 11)}},
        "spec": {"syncMode": "Push", "region": format!("region-{}", index % 8), "provider": "p", "taints": taints, "resourceModels": grades},
        "status": {
            "apiEnablements": apis,
            "resourceSummary": {
                "allocatable": {"cpu": "640", "memory": "2560Gi", "pods": "1100"},
                "allocated": {"cpu": format!("{}m", index * 113 % 400_000), "memory": "800Gi", "pods": (index % 300).to_string()},
                "allocatableModelings": counts,
            },
        },
    })
}

fn binding(index: usize, clusters: usize) -> Value {
    let strategy = if index.is_multiple_of(2) {
        json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
            "weightPreference": {"dynamicWeight": "AvailableReplicas"}})
    } else {
        json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"})
    };
    let previous: Vec<Value> = if index % 4 < 2 {
        Vec::new()
    } else {
        (0..10).map(|step| json!({"name": format!("member-{:04}", (index * 31 + step * 17) % clusters), "replicas": 2})).collect()
    };
    json!({
        "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ns", "name": format!("web-{index}"), "uid": format!("uid-{index}")},
        "replicas": 50 + index % 100,
        "replicaRequirements": {"resourceRequest": {"cpu": "500m", "memory": "1Gi"}},
        "clusters": previous,
        "placement": {
            "clusterAffinity": {"labelSelector": {"matchLabels": {"env": "prod"}}},
            "replicaScheduling": strategy,
            "spreadConstraints": [
                {"spreadByField": "region", "minGroups": 2, "maxGroups": 4},
                {"spreadByField": "cluster", "minGroups": 3, "maxGroups": 20},
            ],
        },
    })
}

/// Returns the CPU time of this thread, where the system tells.
fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}

/// Runs decisions for a while; returns how many, and the CPU time they took.
fn run(fleet: &Fleet, bindings: &[ResourceBindingSpec], time: Duration) -> (usize, Option<Duration>) {
    let before = cpu_time();
    let scheduler = Scheduler::new(Options::default());
    let (workloads, assumptions, status) =
        (Groups::default(), Assumptions::default(), ResourceBindingStatus::default());
    let now = Timestamp::UNIX_EPOCH;
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < time {
        for spec in bindings {
            let world =
                World { fleet, workloads: &workloads, assumptions: &assumptions, estimators: &[], now };
            let attempt = scheduler.schedule(world, spec, &status);
            assert!(attempt.result.is_ok(), "{:?}", attempt.result.map(|decision| decision.clusters));
            count += 1;
        }
    }
    (count, before.and_then(|before| Some(cpu_time()? - before)))
}

fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    pure();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(end_to_end())
}

fn pure() {
    let time = Duration::from_secs(3);
    println!("pure decisions, spread constraints, dynamic weights and aggregation");
    for clusters in [100, 1000] {
        let built = (0..clusters).map(|index| serde_json::from_value::<Cluster>(cluster(index)));
        let fleet = Fleet::new(built.map(|cluster| Arc::new(cluster.expect("a cluster"))));
        let specs = (0..64).map(|index| serde_json::from_value(binding(index, clusters)).expect("a spec"));
        let specs: Vec<ResourceBindingSpec> = specs.collect();
        for threads in [1, 2] {
            let start = Instant::now();
            let counts: Vec<(usize, Option<Duration>)> = std::thread::scope(|scope| {
                let runs: Vec<_> = (0..threads).map(|_| scope.spawn(|| run(&fleet, &specs, time))).collect();
                runs.into_iter().map(|run| run.join().expect("no panic")).collect()
            });
            let total: usize = counts.iter().map(|(count, _)| count).sum();
            let rate = total as f64 / start.elapsed().as_secs_f64();
            let cpu: Option<Duration> = counts.iter().map(|(_, cpu)| *cpu).sum();
            let per_cpu = cpu.map_or(f64::NAN, |cpu| total as f64 / cpu.as_secs_f64());
            println!(
                "  {clusters:>5} clusters, {threads} thread(s): {rate:>7.0}/s, {per_cpu:>7.0} per CPU second"
            );
        }
    }
}

/// Lets the controller schedule bindings that wait for it, on a durable server in the same process.
async fn end_to_end() -> Result<()> {
    let count: usize = match std::env::var("KARMADA_BENCH_BINDINGS") {
        Ok(text) => text.parse().context("KARMADA_BENCH_BINDINGS is not a number")?,
        Err(_) => 5_000,
    };
    let dir = tempfile::tempdir()?;
    let options = apiserver::Options {
        data_dir: Some(dir.path().to_owned()),
        definitions: api::crd::all().into_iter().chain(api::crd::aggregated()).collect(),
        ..apiserver::Options::default()
    };
    let handle = apiserver::start(options).await?;
    let client = apiserver::local::client(&handle.server, User::system("system:bench"));
    fill(&client, count).await?;

    let supervisor = Supervisor::default();
    let context = Context::new(client.clone(), supervisor.clone());
    let (start, cpu) = (Instant::now(), process_cpu_time());
    controllers::spawn(&context, &Selection::parse("scheduler")?);
    let first = all_scheduled(&client, count).await?;
    let (took, cpu) = (start.elapsed(), process_cpu_time().and_then(|after| Some(after - cpu?)));
    println!("end to end, {count} new bindings, {FLEET} clusters, server in the same process, durable");
    println!(
        "  {:.0}/s from the start of the controller, {:.0}/s from the first result; {:.1} s of CPU",
        count as f64 / took.as_secs_f64(),
        count as f64 / (took - first).as_secs_f64(),
        cpu.map_or(f64::NAN, |cpu| cpu.as_secs_f64()),
    );
    supervisor.stop().await;
    handle.stop().await;
    Ok(())
}

/// Creates the clusters and the bindings.
async fn fill(client: &kube::Client, count: usize) -> Result<()> {
    let clusters: Api<Cluster> = Api::all(client.clone());
    let bindings: Api<ResourceBinding> = Api::namespaced(client.clone(), "default");
    for index in 0..FLEET {
        let wanted: Cluster = serde_json::from_value(cluster(index))?;
        let mut created = clusters.create(&PostParams::default(), &wanted).await?;
        created.status = wanted.status;
        let name = created.metadata.name.clone().unwrap_or_default();
        clusters.replace_status(&name, &PostParams::default(), &created).await?;
    }
    let created = stream::iter(0..count).map(|index| {
        let bindings = bindings.clone();
        async move {
            let mut spec = binding(index, FLEET);
            spec["clusters"] = json!([]);
            let labels = json!({"propagationpolicy.karmada.io/permanent-id": "bench"});
            let wanted = json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
                "metadata": {"name": format!("web-{index}-deployment"), "labels": labels}, "spec": spec});
            bindings.create(&PostParams::default(), &serde_json::from_value(wanted)?).await?;
            anyhow::Ok(())
        }
    });
    created.buffer_unordered(32).try_collect::<()>().await
}

/// Waits until every binding is scheduled; returns when the first one was.
async fn all_scheduled(client: &kube::Client, count: usize) -> Result<Duration> {
    let start = Instant::now();
    let api: Api<ResourceBinding> = Api::all(client.clone());
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
    let (mut done, mut first) = (std::collections::HashSet::new(), None);
    while done.len() < count {
        let event = events.try_next().await?.context("the watch ended")?;
        let (watcher::Event::Apply(binding) | watcher::Event::InitApply(binding)) = event else { continue };
        let observed = binding.status.scheduler_observed_generation;
        if !binding.spec.clusters.is_empty() && Some(observed) == binding.metadata.generation {
            first.get_or_insert_with(|| start.elapsed());
            done.insert(binding.metadata.name.unwrap_or_default());
        }
    }
    Ok(first.unwrap_or_default())
}

/// Returns the CPU time of the whole process, where the system tells.
fn process_cpu_time() -> Option<Duration> {
    let mut total = 0u64;
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        total += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(total))
}
