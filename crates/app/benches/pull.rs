//! What agents cost, and how long a template takes through them: three members in push mode, in pull mode with our agents, and in
//! pull mode with the original control plane and agents v1.17.1, one after the other on the same real members.
//!
//! `cargo xtask bench pull`, which builds the originals first. `KARMADA_BENCH_TEMPLATES` sets how many ConfigMaps are created, updated
//! and deleted at once (300 by default), `KARMADA_BENCH_SINGLES` how many are created one at a time (100), `KARMADA_BENCH_IDLE` for how
//! many seconds agents are watched doing nothing (30), `KARMADA_BENCH_ORIGINAL=0` leaves the original out. CPU and memory are those of
//! an agent, on average; in push mode there is none. The original agents use the administrator's kubeconfig: rights are not measured.

#[path = "../tests/original/plane.rs"]
mod original;
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::future;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use original::Original;
use serde_json::{Value, json};
use support::follower::{Follower, each, shares};
use support::programs::{Running, join};
use support::{Build, Column, Ours, cpu_seconds, print, rate};

const MEMBERS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(600);
/// A member counts as ready after half a minute at most, unless its agent has ended.
const READY: Duration = Duration::from_secs(180);
const PLANE: &str = "karmada-apiserver";
const KARMADA: &str = env!("CARGO_BIN_EXE_karmada");

struct Sizes {
    templates: usize,
    singles: usize,
    idle: Duration,
    original: bool,
}

fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let sizes = Sizes {
        templates: support::number("KARMADA_BENCH_TEMPLATES", 300)?,
        singles: support::number("KARMADA_BENCH_SINGLES", 100)?,
        idle: Duration::from_secs(support::number("KARMADA_BENCH_IDLE", 30)? as u64),
        original: support::number("KARMADA_BENCH_ORIGINAL", 1)? > 0,
    };
    eprintln!("{MEMBERS} members …");
    let mut options = clusters::FleetOptions::members(MEMBERS);
    if sizes.original {
        options = options.and(clusters::ClusterOptions::control_plane(PLANE));
    }
    let fleet = clusters::Fleet::start(options).await?;
    let members: Vec<(String, PathBuf)> = (1..=MEMBERS)
        .map(|number| {
            let name = format!("member{number}");
            let place = fleet.cluster(&name)?.direct_kubeconfig().to_path_buf();
            Ok((name, place))
        })
        .collect::<Result<_>>()?;
    let build = Build { name: "karmada-rs, push", program: KARMADA.into() };
    let mut columns = vec![push(&build, &members, &sizes).await?];
    columns.push(pull(&build, &members, &sizes).await?);
    if sizes.original {
        columns.push(original(&fleet.cluster(PLANE)?, &members, &sizes).await?);
    }
    print(&columns);
    fleet.down().await?;
    Ok(())
}

async fn push(build: &Build, members: &[(String, PathBuf)], sizes: &Sizes) -> Result<Column> {
    eprintln!("{} …", build.name);
    let ours = Ours::start(build)?;
    for (name, place) in members {
        join(Path::new(KARMADA), &ours.kubeconfig, name, place)?;
    }
    let plane = support::client(&ours.kubeconfig).await?;
    Ok(Column { name: "karmada-rs, push", rows: measure(&plane, "bench-push", members, &[], sizes).await? })
}

async fn pull(build: &Build, members: &[(String, PathBuf)], sizes: &Sizes) -> Result<Column> {
    eprintln!("karmada-rs, pull …");
    let (ours, folder) = (Ours::start(build)?, tempfile::tempdir()?);
    let mut agents = Vec::new();
    for (name, place) in members {
        let made = Command::new(KARMADA)
            .args(["token", "create", "--print-register-command", "--kubeconfig"])
            .arg(&ours.kubeconfig)
            .output()
            .context("cannot make a token")?;
        if !made.status.success() {
            bail!("karmada token create: {}", String::from_utf8_lossy(&made.stderr));
        }
        let line = String::from_utf8_lossy(&made.stdout).into_owned();
        let mut command = Command::new(KARMADA);
        command.args(line.split_whitespace().skip(1)).args(["--cluster-name", name, "--run", "--kubeconfig"]);
        command.arg(place).arg("--agent-kubeconfig").arg(folder.path().join(name));
        agents.push(Agent::start(command, name, folder.path())?);
    }
    let plane = support::client(&ours.kubeconfig).await?;
    let rows = measure(&plane, "bench-pull", members, &agents, sizes).await?;
    Ok(Column { name: "karmada-rs, pull", rows })
}

async fn original(
    cluster: &clusters::Cluster,
    members: &[(String, PathBuf)],
    sizes: &Sizes,
) -> Result<Column> {
    eprintln!("Karmada v1.17.1, pull …");
    let folder = tempfile::tempdir()?;
    let original = Original::start(cluster, folder.path()).await;
    let program = original::program("karmada-agent");
    let agents = members
        .iter()
        .map(|(name, place)| {
            let mut command = Command::new(&program);
            command
                .arg(format!("--karmada-kubeconfig={}", original.kubeconfig.display()))
                .arg(format!("--kubeconfig={}", place.display()))
                .arg(format!("--cluster-name={name}"))
                .arg(format!("--cluster-api-endpoint={}", endpoint(place)?))
                .args(["--leader-elect=false", "--metrics-bind-address=0", "--health-probe-bind-address=0"]);
            Agent::start(command, name, folder.path())
        })
        .collect::<Result<Vec<Agent>>>()?;
    let rows = measure(&original.client, "bench-original", members, &agents, sizes).await?;
    Ok(Column { name: "Karmada v1.17.1, pull", rows })
}

/// Returns the address of a member's API server.
fn endpoint(kubeconfig: &Path) -> Result<String> {
    let file = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let cluster = file.clusters.into_iter().next().and_then(|named| named.cluster);
    cluster.and_then(|cluster| cluster.server).context("a kubeconfig without an address")
}

/// An agent that ends with the benchmark.
struct Agent {
    name: String,
    process: Running,
    log: PathBuf,
}

impl Agent {
    fn start(mut command: Command, name: &str, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let written = std::fs::File::create(&log).context("cannot keep what an agent says")?;
        let process = Running::start(command.stdout(Stdio::null()).stderr(written))?;
        Ok(Self { name: name.to_owned(), process, log })
    }

    /// Returns the end of what it has said.
    fn last_words(&self) -> String {
        let said = std::fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        let last = lines.get(lines.len().saturating_sub(5)..).unwrap_or_default();
        format!("the agent of {} said last:\n{}", self.name, last.join("\n"))
    }
}

/// What the agents have used, on average.
struct Costs {
    pids: Vec<u32>,
}

impl Costs {
    /// In MB, and how much of it is not a part of the program's file, which agents on one machine share.
    fn memory(&self) -> String {
        let megabytes = |pid: &u32, field: &str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find(|line| line.starts_with(field))?.to_owned();
            Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
        };
        let sum = |field: &str| self.pids.iter().filter_map(|pid| megabytes(pid, field)).sum::<f64>();
        match self.pids.is_empty() {
            true => "–".to_owned(),
            false => format!("{} / {}", self.each(sum("VmRSS:"), 1), self.each(sum("RssAnon:"), 1)),
        }
    }

    fn cpu(&self) -> f64 {
        cpu_seconds(&self.pids)
    }

    fn each(&self, sum: f64, digits: usize) -> String {
        if self.pids.is_empty() {
            return "–".to_owned();
        }
        format!("{:.digits$}", sum / self.pids.len() as f64)
    }
}

/// Measures members that have been joined or are about to register.
async fn measure(
    plane: &kube::Client,
    namespace: &str,
    members: &[(String, PathBuf)],
    agents: &[Agent],
    sizes: &Sizes,
) -> Result<Vec<(String, String)>> {
    let costs = Costs { pids: agents.iter().map(|agent| agent.process.id()).collect() };
    if let Err(error) = prepare(plane, namespace, members).await {
        agents.iter().for_each(|agent| eprintln!("{}", agent.last_words()));
        return Err(error);
    }
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "ConfigMap"), "configmaps");
    let api = |client: &kube::Client| -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &resource)
    };
    let mut followers = Vec::new();
    for (_, place) in members {
        followers.push(Follower::start(api(&support::client(place).await?), |object| {
            object.data["data"]["round"].as_str().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX)
        }));
    }
    let bench = Bench { maps: api(plane), members: followers };
    bench.create("warm-up").await?;
    bench.everywhere(0, 1).await?;
    bench.delete("warm-up").await?;
    bench.everywhere(0, 0).await?;

    let mut rows = Vec::new();
    let before = costs.cpu();
    if !agents.is_empty() {
        tokio::time::sleep(sizes.idle).await;
    }
    let idle = (costs.cpu() - before) * 60.0 / sizes.idle.as_secs_f64().max(1.0);
    rows.push(("an idle agent: memory, without the program's file (MB)".to_owned(), costs.memory()));
    rows.push(("an idle agent: CPU (s per minute)".to_owned(), costs.each(idle, 2)));

    let mut times = Vec::new();
    for index in 0..sizes.singles {
        let started = Instant::now();
        bench.create(&format!("single-{index:04}")).await?;
        bench.everywhere(0, index + 1).await?;
        times.push(started.elapsed());
    }
    rows.push((
        "one at a time, in all members after p50 / p90 / p99 (ms)".to_owned(),
        shares(times, &[0.5, 0.9, 0.99]),
    ));
    for index in 0..sizes.singles {
        bench.delete(&format!("single-{index:04}")).await?;
    }
    bench.everywhere(0, 0).await?;

    let names: Vec<String> = (0..sizes.templates).map(|index| format!("many-{index:05}")).collect();
    let before = costs.cpu();
    let started = Instant::now();
    each(&names, |name| bench.create(name)).await?;
    bench.everywhere(0, names.len()).await?;
    rows.push(("created everywhere per second".to_owned(), rate(names.len(), started.elapsed())));
    let started = Instant::now();
    each(&names, |name| bench.update(name)).await?;
    bench.everywhere(1, names.len()).await?;
    rows.push(("updated everywhere per second".to_owned(), rate(names.len(), started.elapsed())));
    let memory = costs.memory();
    let started = Instant::now();
    each(&names, |name| bench.delete(name)).await?;
    bench.everywhere(1, 0).await?;
    rows.push(("deleted everywhere per second".to_owned(), rate(names.len(), started.elapsed())));
    let label = format!("an agent: CPU for {} created, updated, deleted (s)", names.len());
    rows.push((label, costs.each(costs.cpu() - before, 2)));
    rows.push(("an agent: memory with all of them (MB)".to_owned(), memory));
    rows.push(("an agent: memory afterwards (MB)".to_owned(), costs.memory()));
    rows.iter().for_each(|(row, value)| eprintln!("  {row}: {value}"));
    Ok(rows)
}

/// Waits for the members, and makes the namespace and a policy that sends everything in it everywhere.
async fn prepare(plane: &kube::Client, namespace: &str, members: &[(String, PathBuf)]) -> Result<()> {
    let resource = |group: &str, version: &str, kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    };
    let clusters: Api<DynamicObject> =
        Api::all_with(plane.clone(), &resource("cluster.karmada.io", "v1alpha1", "Cluster", "clusters"));
    for (name, _) in members {
        let ready = |found: Option<&DynamicObject>| {
            let conditions = found.and_then(|found| found.data["status"]["conditions"].as_array());
            conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
        };
        let joined = kube::runtime::wait::await_condition(clusters.clone(), name, ready);
        tokio::time::timeout(READY, joined)
            .await
            .with_context(|| format!("{name} did not become ready"))??;
    }
    let namespaces: Api<DynamicObject> =
        Api::all_with(plane.clone(), &resource("", "v1", "Namespace", "namespaces"));
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    namespaces.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    let policies: Api<DynamicObject> = Api::namespaced_with(
        plane.clone(),
        namespace,
        &resource("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies"),
    );
    let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": "everywhere"},
        "spec": {
            "resourceSelectors": [
                {"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": {"matchLabels": {"app": "bench"}}}],
            "placement": {"clusterAffinity": {"clusterNames": names}}}});
    policies.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    Ok(())
}

struct Bench {
    maps: Api<DynamicObject>,
    members: Vec<Follower>,
}

impl Bench {
    fn object(name: &str, round: usize) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": "bench"}},
            "data": {"round": round.to_string(), "text": "0123456789abcdef".repeat(16)}})
    }

    async fn create(&self, name: &str) -> Result<()> {
        let object = serde_json::from_value(Self::object(name, 0))?;
        self.maps.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    async fn update(&self, name: &str) -> Result<()> {
        let changed = Self::object(name, 1);
        self.maps.patch(name, &PatchParams::default(), &Patch::Merge(&changed)).await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.maps.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until every member has this many objects of this round and no others.
    async fn everywhere(&self, round: usize, count: usize) -> Result<()> {
        let all = future::try_join_all(self.members.iter().map(|member| member.until(round, count)));
        tokio::time::timeout(PATIENCE, all).await.context("the members were not up to date in time")??;
        Ok(())
    }
}
