//! What FederatedHPAs cost the control plane: 1,000 of them, each for a Deployment of its own, over ten simulated members.
//!
//! `cargo xtask bench autoscaling`. `KARMADA_BENCH_AUTOSCALERS` sets how many (1,000 by default), `KARMADA_BENCH_MEMBERS` over how many
//! members (10), `KARMADA_BENCH_PERIODS` for how many sync periods of 15 s they are watched (4), `KARMADA_BENCH_BEFORE` another build of
//! ours to measure beside this one. With `KARMADA_BENCH_ORIGINAL=1`, the controllers and the scheduler of Karmada v1.17.1 do the same on
//! members of their own; their API server is ours, with our controllers off, serves them the members' metrics and counts as a part of
//! their control plane. CPU and memory are those of the control plane alone; members are a process of their own. Each
//! autoscaler asks every member for metrics once per period, and nothing changes.

#[path = "fleet/processes.rs"]
mod processes;
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use processes::Process;
use serde_json::{Value, json};
use support::originals::{self, Originals};
use support::programs::join;
use support::{Build, Column, Ours, cpu_seconds, megabytes, print};

const WRITERS: usize = 16;
const PERIOD: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(900);

struct Sizes {
    autoscalers: usize,
    members: usize,
    periods: usize,
}

fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let sizes = Sizes {
        autoscalers: support::number("KARMADA_BENCH_AUTOSCALERS", 1_000)?,
        members: support::number("KARMADA_BENCH_MEMBERS", 10)?,
        periods: support::number("KARMADA_BENCH_PERIODS", 4)?.max(1),
    };
    let mut columns = Vec::new();
    for build in support::builds() {
        eprintln!("{} …", build.name);
        columns.push(measure(&build, &sizes, Side::Ours).await?);
    }
    if std::env::var_os("KARMADA_BENCH_ORIGINAL").is_some_and(|value| value == "1") {
        eprintln!("{} …", originals::NAME);
        let server = Build { name: originals::NAME, program: env!("CARGO_BIN_EXE_karmada").into() };
        columns.push(measure(&server, &sizes, Side::Original).await?);
    }
    print(&columns);
    Ok(())
}

/// Whose controllers are measured.
#[derive(Debug, Clone, Copy)]
enum Side {
    Ours,
    Original,
}

async fn measure(build: &Build, sizes: &Sizes, side: Side) -> Result<Column> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().display().to_string();
    let count = sizes.members.to_string();
    let members = Process::start(&["sim", "--data-dir", &place, "--clusters", &count, "--nodes", "20"])?;
    let (ours, others) = match side {
        Side::Ours => (Ours::start(build)?, None),
        Side::Original => {
            let server = Ours::with(build, &originals::IDLE_SERVER)?;
            let others = Originals::start(&server.kubeconfig, folder.path(), &[])?;
            (server, Some(others))
        }
    };
    let pids: Vec<u32> = others.iter().flat_map(Originals::pids).chain([ours.child.id()]).collect();
    let plane = support::client(&ours.kubeconfig).await?;
    for number in 1..=sizes.members {
        let name = format!("member{number}");
        let file = folder.path().join(format!("{name}.kubeconfig"));
        join(Path::new(env!("CARGO_BIN_EXE_karmada")), &ours.kubeconfig, &name, &file)?;
    }
    prepare(&plane, sizes).await?;
    eprintln!("  {} Deployments run", sizes.autoscalers);
    let periods = u32::try_from(sizes.periods)?;
    let idle = cpu_per_period(&pids, periods).await;
    let mut rows = vec![
        ("CPU per period without autoscalers (s)".to_owned(), format!("{idle:.2}")),
        ("memory without autoscalers (MB)".to_owned(), megabytes(&pids)),
    ];
    let begin = Instant::now();
    autoscalers(&plane, sizes.autoscalers).await?;
    rows.push(("until all have decided (s)".to_owned(), format!("{:.1}", begin.elapsed().as_secs_f64())));
    eprintln!("  {} autoscalers have decided", sizes.autoscalers);
    tokio::time::sleep(PERIOD).await;
    let busy = cpu_per_period(&pids, periods).await;
    rows.push(("CPU per period with autoscalers (s)".to_owned(), format!("{busy:.2}")));
    let each = (busy - idle) * 1e3 / sizes.autoscalers as f64;
    rows.push(("CPU per autoscaler and period (ms)".to_owned(), format!("{each:.2}")));
    rows.push(("memory with autoscalers (MB)".to_owned(), megabytes(&pids)));
    let cost = members.cost();
    rows.push(("CPU of all members in the whole run (s)".to_owned(), format!("{:.0}", cost.cpu_seconds)));
    rows.push(("memory of all members (MB)".to_owned(), cost.megabytes));
    Ok(Column { name: build.name, rows })
}

/// Returns what the processes use of the CPU in one period, averaged over some.
async fn cpu_per_period(pids: &[u32], periods: u32) -> f64 {
    let before = cpu_seconds(pids);
    tokio::time::sleep(PERIOD * periods).await;
    (cpu_seconds(pids) - before) / f64::from(periods)
}

fn objects(client: &Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::default_namespaced_with(client.clone(), &resource)
}

async fn create(api: &Api<DynamicObject>, object: Value) -> Result<()> {
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Creates the Deployments, one replica in each member, and waits until all replicas are ready.
async fn prepare(plane: &Client, sizes: &Sizes) -> Result<()> {
    let policies =
        objects(plane, "policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    let division = json!({ "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted" });
    create(&policies, json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": { "name": "all" },
        "spec": {
            "resourceSelectors": [{ "apiVersion": "apps/v1", "kind": "Deployment" }],
            "placement": { "replicaScheduling": division },
        },
    }))
    .await?;
    let deployments = objects(plane, "apps", "v1", "Deployment", "deployments");
    let all = stream::iter(0..sizes.autoscalers).map(|number| {
        let labels = json!({ "app": format!("app{number}") });
        let container =
            json!({ "name": "c", "image": "nginx", "resources": { "requests": { "cpu": "10m" } } });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": format!("app{number}") },
            "spec": { "replicas": sizes.members, "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } } },
        });
        create(&deployments, deployment)
    });
    all.buffer_unordered(WRITERS).try_collect::<Vec<()>>().await?;
    let wanted = sizes.members as u64;
    until(&deployments, sizes.autoscalers, |it| it["status"]["readyReplicas"].as_u64() == Some(wanted)).await
}

/// Creates the autoscalers, which have nothing to do, and waits until all have said so.
async fn autoscalers(plane: &Client, count: usize) -> Result<()> {
    let scalers = objects(plane, "autoscaling.karmada.io", "v1alpha1", "FederatedHPA", "federatedhpas");
    let replicas = objects(plane, "apps", "v1", "Deployment", "deployments");
    let replicas = replicas.get("app0").await?.data["spec"]["replicas"].clone();
    let all = stream::iter(0..count).map(|number| {
        let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": format!("app{number}") });
        let scaler = json!({
            "apiVersion": "autoscaling.karmada.io/v1alpha1", "kind": "FederatedHPA",
            "metadata": { "name": format!("app{number}") },
            "spec": { "scaleTargetRef": target, "minReplicas": replicas, "maxReplicas": 100, "metrics": [
                { "type": "Resource", "resource": { "name": "cpu",
                    "target": { "type": "Utilization", "averageUtilization": 50 } } },
            ] },
        });
        create(&scalers, scaler)
    });
    all.buffer_unordered(WRITERS).try_collect::<Vec<()>>().await?;
    until(&scalers, count, |it| {
        let conditions = it["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|it| it["type"] == "ScalingActive" && it["status"] == "True")
    })
    .await
}

/// Waits until so many objects are as wanted.
async fn until(api: &Api<DynamicObject>, count: usize, fits: impl Fn(&Value) -> bool) -> Result<()> {
    let begin = Instant::now();
    loop {
        let list = api.list(&ListParams::default()).await?;
        let done = list.items.iter().filter(|it| fits(&it.data)).count();
        if done >= count {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            bail!("only {done} of {count} were ready in time");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
