//! Prints how many decisions per second the scheduler takes, on one thread and on two.
//!
//! Run with `cargo run --release -p scheduler --example throughput`. Every decision is a new binding of one of four kinds:
//! dynamic weights or aggregated, first placement or scaling up, with constraints on regions and clusters. On Linux the
//! rate per second of CPU time is printed too, which a busy machine does not spoil.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::cluster::Cluster;
use api::work::{ResourceBindingSpec, ResourceBindingStatus};
use jiff::Timestamp;
use scheduler::{Assumptions, Fleet, Groups, Options, Scheduler, World};
use serde_json::{Value, json};

fn cluster(index: usize) -> Arc<Cluster> {
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
    let cluster = json!({
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
    });
    Arc::new(serde_json::from_value(cluster).expect("a cluster"))
}

fn binding(index: usize, clusters: usize) -> ResourceBindingSpec {
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
    let spec = json!({
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
    });
    serde_json::from_value(spec).expect("a spec")
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

fn main() {
    let time = Duration::from_secs(3);
    for clusters in [100, 1000] {
        let started = Instant::now();
        let fleet = Fleet::new((0..clusters).map(cluster));
        let built = started.elapsed();
        let bindings: Vec<ResourceBindingSpec> = (0..64).map(|index| binding(index, clusters)).collect();
        println!("{clusters} clusters (fleet built in {built:?})");
        for threads in [1, 2] {
            let start = Instant::now();
            let counts: Vec<(usize, Option<Duration>)> = std::thread::scope(|scope| {
                let runs: Vec<_> =
                    (0..threads).map(|_| scope.spawn(|| run(&fleet, &bindings, time))).collect();
                runs.into_iter().map(|run| run.join().expect("no panic")).collect()
            });
            let total: usize = counts.iter().map(|(count, _)| count).sum();
            let wall = start.elapsed().as_secs_f64();
            let cpu: Option<Duration> = counts.iter().map(|(_, cpu)| *cpu).sum();
            let per_cpu = cpu.map_or(f64::NAN, |cpu| total as f64 / cpu.as_secs_f64());
            println!(
                "  {threads} thread(s): {:.0} decisions/s, {per_cpu:.0} per second of CPU",
                total as f64 / wall
            );
        }
    }
}
