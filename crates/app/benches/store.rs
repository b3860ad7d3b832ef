//! Where objects are kept, and what that costs: our server with its own file, our server on etcd, and kube-apiserver on an etcd of
//! the same kind. The same load, on the same machine, in the same run, one after the other. All store durably.
//!
//! `cargo xtask bench store`. `KARMADA_BENCH_OBJECTS` sets how many objects there are in the end (30,000 by default),
//! `KARMADA_BENCH_BEFORE` another build of ours to measure on etcd beside this one.
//! Wall times are noisy on a shared machine; CPU seconds and memory are not. Servers and etcd are counted apart.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clusters::Etcd;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use support::{Build, Column, Ours, children_named, cpu_seconds, megabytes, print};

const WRITERS: usize = 16;
/// How long servers are left alone, to see what they cost then.
const IDLE: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let count = support::number("KARMADA_BENCH_OBJECTS", 30_000)?;
    let mut columns = Vec::new();
    let builds = support::builds();
    let now = builds.last().context("this build")?;
    eprintln!("{}, embedded …", now.name);
    columns.push(embedded(now, count).await?);
    for build in &builds {
        eprintln!("{} on etcd …", build.name);
        match on_etcd(build, count).await? {
            Some(column) => columns.push(column),
            None => eprintln!("etcd is left out: there is no Go toolchain to build it with"),
        }
    }
    match theirs(count).await? {
        Some(column) => columns.push(column),
        None => eprintln!("kube-apiserver is left out: there is no Go toolchain to build it with"),
    }
    print(&columns);
    Ok(())
}

async fn embedded(build: &Build, count: usize) -> Result<Column> {
    let ours = Ours::start(build)?;
    let rows =
        measure(&ours.kubeconfig, &Processes { server: vec![ours.child.id()], etcd: Vec::new() }, count)
            .await?;
    Ok(Column { name: "karmada-rs, embedded", rows: with_follower(rows, None) })
}

async fn on_etcd(build: &Build, count: usize) -> Result<Option<Column>> {
    let dir = tempfile::tempdir()?;
    let Some(etcd) = Etcd::durable(dir.path()).await? else { return Ok(None) };
    let flags = ["--store", "etcd", "--etcd-servers", &etcd.endpoint];
    let ours = Ours::with(build, &flags)?;
    let etcds = children_named(&["etcd"], dir.path())?;
    let processes = Processes { server: vec![ours.child.id()], etcd: etcds };
    let rows = measure(&ours.kubeconfig, &processes, count).await?;
    // Another server, which shows the same and whose controllers wait.
    let second = Ours::with(build, &flags)?;
    let pid = [second.child.id()];
    let ready = second.ready_ms;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = cpu_seconds(&pid);
    tokio::time::sleep(IDLE).await;
    let idle = (cpu_seconds(&pid) - before) / IDLE.as_secs_f64();
    let before = cpu_seconds(&pid);
    let client = support::client(&ours.kubeconfig).await?;
    let updates = count / 6;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    load(0..updates, async |index| change(&maps, index, 9).await).await?;
    let busy = (cpu_seconds(&pid) - before) * 1000.0 / updates as f64;
    let follower = Follower { ready, idle, busy, memory: megabytes(&pid) };
    let name = if build.name.ends_with("before") { "on etcd, before" } else { "karmada-rs on etcd" };
    Ok(Some(Column { name, rows: with_follower(rows, Some(&follower)) }))
}

async fn theirs(count: usize) -> Result<Option<Column>> {
    use clusters::toolchain::{MEMBER_RECIPES, Toolchain};
    if !Toolchain::from_env()?.can_provide(&MEMBER_RECIPES) {
        return Ok(None);
    }
    eprintln!("kube-apiserver on etcd …");
    let mut options = clusters::FleetOptions::of([clusters::ClusterOptions::api_server("partner")]);
    options.unsafe_no_fsync = false;
    let fleet = clusters::Fleet::start(options).await?;
    let processes = Processes {
        server: children_named(&["kube-apiserver"], fleet.dir())?,
        etcd: children_named(&["etcd"], fleet.dir())?,
    };
    let cluster = fleet.cluster("partner").context("the cluster that was just started")?;
    let rows = measure(cluster.direct_kubeconfig(), &processes, count).await?;
    Ok(Some(Column { name: "kube-apiserver on etcd", rows: with_follower(rows, None) }))
}

/// What is measured.
struct Processes {
    server: Vec<u32>,
    etcd: Vec<u32>,
}

/// What another server on the same etcd costs.
struct Follower {
    ready: u128,
    /// Of one core, while nothing happens.
    idle: f64,
    /// CPU seconds for each thousand writes at another server.
    busy: f64,
    memory: String,
}

fn with_follower(mut rows: Vec<(String, String)>, follower: Option<&Follower>) -> Vec<(String, String)> {
    let mut row = |name: &str, value: Option<String>| {
        rows.push((format!("second server: {name}"), value.unwrap_or_else(|| "–".to_owned())));
    };
    row("ready after (ms)", follower.map(|one| one.ready.to_string()));
    row("CPU when idle (% of a core)", follower.map(|one| format!("{:.1}", one.idle * 100.0)));
    row("CPU s per 1,000 writes at the first", follower.map(|one| format!("{:.2}", one.busy)));
    row("memory (MB)", follower.map(|one| one.memory.clone()));
    rows
}

fn object(index: usize, round: usize) -> Value {
    // 1 KB of content.
    let text = format!("{round:08}").repeat(120);
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("bench-{index:06}"), "labels": {"app": "bench"}}, "data": {"text": text}})
}

async fn change(maps: &Api<ConfigMap>, index: usize, round: usize) -> Result<()> {
    let name = format!("bench-{index:06}");
    maps.patch(&name, &PatchParams::default(), &Patch::Merge(&object(index, round))).await?;
    Ok(())
}

/// Does something with every number, several at once; returns how long each took, sorted.
async fn load(
    numbers: std::ops::Range<usize>,
    work: impl AsyncFn(usize) -> Result<()>,
) -> Result<Vec<Duration>> {
    let work = &work;
    let mut took: Vec<Duration> = stream::iter(numbers)
        .map(|index| async move {
            let started = Instant::now();
            work(index).await?;
            anyhow::Ok(started.elapsed())
        })
        .buffer_unordered(WRITERS)
        .try_collect()
        .await?;
    took.sort();
    Ok(took)
}

async fn measure(kubeconfig: &Path, processes: &Processes, count: usize) -> Result<Vec<(String, String)>> {
    let client = support::client(kubeconfig).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let maps = &maps;
    let mut rows = Vec::new();
    memory("idle", processes, &mut rows);
    eprintln!("  creates …");
    phase("creates", processes, &mut rows, 0..count, async |index| {
        let object = serde_json::from_value(object(index, 0))?;
        maps.create(&PostParams::default(), &object).await?;
        Ok(())
    })
    .await?;
    eprintln!("  updates …");
    phase("updates", processes, &mut rows, 0..count / 3, async |index| change(maps, index, 1).await).await?;
    memory(&format!("with {count} objects"), processes, &mut rows);
    eprintln!("  deletions …");
    phase("deletions", processes, &mut rows, count - count / 6..count, async |index| {
        maps.delete(&format!("bench-{index:06}"), &DeleteParams::default()).await?;
        Ok(())
    })
    .await?;
    Ok(rows)
}

fn memory(when: &str, processes: &Processes, rows: &mut Vec<(String, String)>) {
    let etcd = if processes.etcd.is_empty() { "–".to_owned() } else { megabytes(&processes.etcd) };
    rows.push((format!("memory {when}: server (MB)"), megabytes(&processes.server)));
    rows.push((format!("memory {when}: etcd (MB)"), etcd));
}

async fn phase(
    what: &str,
    processes: &Processes,
    rows: &mut Vec<(String, String)>,
    numbers: std::ops::Range<usize>,
    work: impl AsyncFn(usize) -> Result<()>,
) -> Result<()> {
    let count = numbers.len() as f64;
    let (server, etcd) = (cpu_seconds(&processes.server), cpu_seconds(&processes.etcd));
    let started = Instant::now();
    let took = load(numbers, work).await?;
    let wall = started.elapsed().as_secs_f64();
    let (server, etcd) = (cpu_seconds(&processes.server) - server, cpu_seconds(&processes.etcd) - etcd);
    let at = |share: f64| {
        let place = ((took.len() as f64 * share) as usize).min(took.len().saturating_sub(1));
        format!("{:.1}", took.get(place).map_or(0.0, |took| took.as_secs_f64() * 1000.0))
    };
    let mut row = |name: &str, value: String| rows.push((format!("{what}: {name}"), value));
    row("per second", format!("{:.0}", count / wall));
    row("per CPU second of the server", format!("{:.0}", count / server));
    row("per CPU second, etcd included", format!("{:.0}", count / (server + etcd)));
    row("CPU s per 1,000, server", format!("{:.2}", server * 1000.0 / count));
    row(
        "CPU s per 1,000, etcd",
        if processes.etcd.is_empty() { "–".to_owned() } else { format!("{:.2}", etcd * 1000.0 / count) },
    );
    row("p50 (ms)", at(0.5));
    row("p99 (ms)", at(0.99));
    Ok(())
}
