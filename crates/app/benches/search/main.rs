//! The fleet as one cluster, beside the original karmada-search: what a cached pod costs, how long lists take, and how soon a watcher
//! hears of an update.
//!
//! `cargo xtask bench search`; `--help` names the sizes. Both sides follow members that this program imitates (`members`); ours follows
//! all of them, the original one with fewer pods, since it needs many times the memory. The original keeps its registries in an etcd and is
//! registered with a server of ours that has no caches. CPU and memory are those of the server alone, as the kernel
//! counts them; wall times include this program.

mod members;
#[path = "../support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use clusters::toolchain::{ETCD, KARMADA, Toolchain};
use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use members::{Member, names};
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::programs::Running;
use support::{Build, Column, Ours, cpu_seconds, print};

const PROXY: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1";
const CACHE: &str = "/apis/search.karmada.io/v1alpha1/search/cache/api/v1";
/// How long caches may take to fill.
const PATIENCE: Duration = Duration::from_secs(180);

/// Measures the members as one cluster.
#[derive(Debug, Parser)]
struct Sizes {
    /// How many members.
    #[arg(long, default_value_t = 20)]
    members: usize,
    /// How many pods each of them has.
    #[arg(long, default_value_t = 5000)]
    pods: usize,
    /// How many pods the original has to cache, in one member; 0 leaves it out.
    #[arg(long, default_value_t = 5000)]
    original: usize,
    /// How many watchers there are.
    #[arg(long, default_value_t = 100)]
    watchers: usize,
    /// How many updates there are, and how many in a second.
    #[arg(long, default_value_t = 1000)]
    updates: usize,
    #[arg(long, default_value_t = 100)]
    rate: usize,
    /// The program to measure instead of the one that was built with the benchmark.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// What `cargo bench` says to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let sizes = Sizes::parse();
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(&sizes))
}

async fn run(sizes: &Sizes) -> Result<()> {
    let program = sizes.program.clone().unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_karmada")));
    let build = Build { name: "karmada-rs", program };
    let mut columns = Vec::new();
    {
        eprintln!("ours: {} members with {} pods …", sizes.members, sizes.pods);
        let server = Ours::with(&build, &["--controllers", "", "--search-cache-size", "4096"])?;
        let client = support::client(&server.kubeconfig).await?;
        let members = start(&client, sizes.members, sizes.pods).await?;
        let side = Side { name: "karmada-rs", pid: server.child.id(), client: client.clone(), members };
        columns.push(side.measure(&client, sizes).await?);
    }
    if sizes.original > 0 {
        eprintln!("the original: {} pods …", sizes.original);
        let server = Ours::with(&build, &["--controllers", ""])?;
        let control = support::client(&server.kubeconfig).await?;
        let members = start(&control, 1, sizes.original).await?;
        let folder = tempfile::tempdir()?;
        let (_etcd, search, client) = original(&server, folder.path()).await?;
        let side = Side { name: "karmada-search", pid: search.id(), client, members };
        columns.push(side.measure(&control, sizes).await?);
    }
    print(&columns);
    Ok(())
}

/// Starts members and makes them known to a control plane.
async fn start(control: &Client, count: usize, pods: usize) -> Result<Vec<Member>> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "way", "namespace": "karmada-cluster"},
        "stringData": {"token": "t", "caBundle": "c"}});
    post(control, "/api/v1/namespaces/karmada-cluster/secrets", &secret).await?;
    let mut members = Vec::new();
    for number in 0..count {
        let member = Member::start(number, pods).await?;
        let clusters = "/apis/cluster.karmada.io/v1alpha1/clusters";
        let cluster = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": member.name},
            "spec": {"syncMode": "Push", "apiEndpoint": member.address, "insecureSkipTLSVerification": true,
                "secretRef": {"namespace": "karmada-cluster", "name": "way"}}});
        post(control, clusters, &cluster).await?;
        // What a controller would say, if one ran: the original caches nothing of a cluster that is not ready.
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "ClusterReady", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "apiEnablements": [{"groupVersion": "v1", "resources": [{"name": "pods", "kind": "Pod"}]}]}});
        let request = Request::patch(format!("{clusters}/{}/status", member.name))
            .header("content-type", "application/merge-patch+json")
            .body(status.to_string().into_bytes())?;
        control.request::<Value>(request).await?;
        members.push(member);
    }
    Ok(members)
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<()> {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes())?;
    client.request::<Value>(request).await?;
    Ok(())
}

/// Starts the original beside a server of ours, with an etcd of its own.
async fn original(server: &Ours, folder: &std::path::Path) -> Result<(Running, Running, Client)> {
    let toolchain = Toolchain::from_env()?;
    toolchain.ensure(&[&ETCD])?;
    let program = toolchain.ensure_program(&KARMADA, "karmada-search")?;
    let ports = clusters::free_ports(3)?;
    let (etcd, peers) = (format!("http://127.0.0.1:{}", ports[0]), format!("http://127.0.0.1:{}", ports[1]));
    let quiet = |program: &std::path::Path, arguments: &[&str]| -> Result<Running> {
        let mut command = Command::new(program);
        Running::start(command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()))
    };
    let data = folder.join("etcd").display().to_string();
    let cluster = format!("default={peers}");
    let store = quiet(
        &toolchain.path(&ETCD.program("etcd")),
        &[
            "--data-dir",
            &data,
            "--listen-client-urls",
            &etcd,
            "--advertise-client-urls",
            &etcd,
            "--listen-peer-urls",
            &peers,
            "--initial-advertise-peer-urls",
            &peers,
            "--initial-cluster",
            &cluster,
        ],
    )?;
    let config = server.kubeconfig.display().to_string();
    let (port, certificates) = (ports[2].to_string(), folder.join("search").display().to_string());
    let search = quiet(
        &program,
        &[
            "--kubeconfig",
            &config,
            "--authentication-kubeconfig",
            &config,
            "--authorization-kubeconfig",
            &config,
            "--etcd-servers",
            &etcd,
            "--secure-port",
            &port,
            "--cert-dir",
            &certificates,
            "--bind-address",
            "127.0.0.1",
            "--kube-api-qps",
            "1000",
            "--kube-api-burst",
            "1000",
        ],
    )?;
    // The same administrator, at another address.
    let mut file = kube::config::Kubeconfig::read_from(&server.kubeconfig)?;
    for cluster in file.clusters.iter_mut().filter_map(|cluster| cluster.cluster.as_mut()) {
        cluster.server = Some(format!("https://127.0.0.1:{port}"));
        cluster.insecure_skip_tls_verify = Some(true);
        cluster.certificate_authority_data = None;
    }
    let mut config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await?;
    config.read_timeout = None;
    let client = Client::try_from(config)?;
    let started = Instant::now();
    loop {
        let answer = client.send(Request::get("/readyz").body(kube::client::Body::empty())?).await;
        if answer.is_ok_and(|answer| answer.status() == 200) {
            break;
        }
        if started.elapsed() > PATIENCE {
            bail!("karmada-search is not ready after {} s", PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok((store, search, client))
}

/// What is measured.
struct Side {
    name: &'static str,
    pid: u32,
    client: Client,
    members: Vec<Member>,
}

impl Side {
    async fn measure(&self, control: &Client, sizes: &Sizes) -> Result<Column> {
        let mut rows: Vec<(String, String)> = Vec::new();
        let mut row = |what: &str, value: String| {
            eprintln!("  {what}: {value}");
            rows.push((what.to_owned(), value));
        };
        let pods: usize = if self.name == "karmada-rs" { sizes.members * sizes.pods } else { sizes.original };
        let idle = self.memory();
        let (started, used) = (Instant::now(), cpu_seconds(&[self.pid]));
        let registry = json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": "pods"},
            "spec": {"targetCluster": {}, "resourceSelectors": [{"apiVersion": "v1", "kind": "Pod"}]}});
        post(control, "/apis/search.karmada.io/v1alpha1/resourceregistries", &registry).await?;
        if self.name != "karmada-rs" {
            // It has a store of its own beside.
            let _ =
                post(&self.client, "/apis/search.karmada.io/v1alpha1/resourceregistries", &registry).await;
        }
        let mut size;
        loop {
            let count;
            (count, size) = self.count(&format!("{CACHE}/pods")).await?;
            if count == pods {
                break;
            }
            if started.elapsed() > PATIENCE {
                bail!("{count} of {pods} pods are cached after {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let each = size / pods;
        row("pods", format!("{pods} of {each} B"));
        row(
            "filled after",
            format!("{:.1} s, {:.1} s CPU", started.elapsed().as_secs_f64(), cpu_seconds(&[self.pid]) - used),
        );
        row("memory before and after", format!("{} / {} MB", idle >> 20, self.memory() >> 20));
        row(
            "memory of a pod beyond its size",
            format!("{} B", (self.memory().saturating_sub(idle)).saturating_sub(size) / pods),
        );
        let (namespace, name) = names(7);
        let name = if pods > 8 { name } else { names(0).1 };
        for (what, path, times) in [
            ("list of all, search/cache", format!("{CACHE}/pods"), 3),
            ("list of all, proxying", format!("{PROXY}/pods?resourceVersion=0"), 3),
            ("first page of 500", format!("{PROXY}/pods?limit=500"), 21),
            ("list of a namespace", format!("{PROXY}/namespaces/{namespace}/pods?resourceVersion=0"), 5),
        ] {
            row(what, self.timed(&path, times).await?);
        }
        if self.members.len() == 1 {
            // With more, the name is in all of them.
            let path = format!("{PROXY}/namespaces/{namespace}/pods/{name}?resourceVersion=0");
            row("get", self.timed(&path, 51).await?);
        } else {
            let path = format!(
                "{PROXY}/namespaces/{namespace}/pods?resourceVersion=0&fieldSelector=metadata.name%3D{name}"
            );
            row("get", format!("{} (by name, in all members)", self.timed(&path, 51).await?));
        }
        row("memory after that", format!("{} MB", self.memory() >> 20));
        let used = cpu_seconds(&[self.pid]);
        let (middle, last, told) = self.updates(sizes).await?;
        let cpu = cpu_seconds(&[self.pid]) - used;
        row(
            &format!("update at {} watchers, p50 / p99", sizes.watchers),
            format!(
                "{middle:.1} / {last:.1} ms ({:.0} µs CPU an event and watcher)",
                cpu * 1e6 / told as f64
            ),
        );
        row(&format!("memory with {} watchers", sizes.watchers), format!("{} MB", self.memory() >> 20));
        Ok(Column { name: self.name, rows })
    }

    fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("");
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or(0) << 10
    }

    /// Returns how many pods an answer has, and its bytes.
    async fn count(&self, path: &str) -> Result<(usize, usize)> {
        const MARK: &[u8] = b"\"containerStatuses\"";
        let response = self.client.send(Request::get(path).body(kube::client::Body::empty())?).await?;
        let body = response.into_body().collect().await?.to_bytes();
        Ok((body.windows(MARK.len()).filter(|part| *part == MARK).count(), body.len()))
    }

    /// Returns time and CPU of an answer to its last byte, in the median.
    async fn timed(&self, path: &str, times: usize) -> Result<String> {
        let used = cpu_seconds(&[self.pid]);
        let mut taken = Vec::new();
        for _ in 0..times {
            let started = Instant::now();
            let response = self.client.send(Request::get(path).body(kube::client::Body::empty())?).await?;
            let code = response.status();
            let mut body = response.into_body();
            while let Some(frame) = body.frame().await {
                frame?;
            }
            if code != 200 {
                bail!("{path}: {code}");
            }
            taken.push(started.elapsed());
        }
        taken.sort();
        let cpu = (cpu_seconds(&[self.pid]) - used) * 1000.0 / times as f64;
        Ok(format!("{:.1} ms, {cpu:.1} ms CPU", taken[times / 2].as_secs_f64() * 1000.0))
    }

    /// Has many watch while pods change; returns how long that took to reach them, and how many events there were.
    async fn updates(&self, sizes: &Sizes) -> Result<(f64, f64, usize)> {
        let clock = Instant::now();
        let request = Request::get(format!("{PROXY}/pods?limit=1")).body(Vec::new())?;
        let list = self.client.request::<Value>(request).await?;
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
        let delays = Arc::new(Mutex::new(Vec::new()));
        let watching = Arc::new(AtomicUsize::new(0));
        let mut watchers = Vec::new();
        for _ in 0..sizes.watchers {
            let path = format!("{PROXY}/pods?watch=true&timeoutSeconds=3000&resourceVersion={version}");
            let (client, delays, watching) = (self.client.clone(), delays.clone(), watching.clone());
            let wanted = sizes.updates;
            watchers.push(tokio::spawn(async move {
                let lines = client.request_stream(Request::get(path).body(Vec::new())?).await?.lines();
                watching.fetch_add(1, Ordering::SeqCst);
                let mut lines = std::pin::pin!(lines);
                let mut own = Vec::with_capacity(wanted);
                while own.len() < wanted {
                    let line = lines.try_next().await?.context("the watch ended")?;
                    let sent = line.split("\"sent\":\"").nth(1).and_then(|rest| rest.split('"').next());
                    let sent: u128 = sent.and_then(|sent| sent.parse().ok()).unwrap_or(0);
                    if sent > 0 {
                        own.push(clock.elapsed().as_micros().saturating_sub(sent));
                    }
                }
                delays.lock().extend(own);
                anyhow::Ok(())
            }));
        }
        while watching.load(Ordering::SeqCst) < sizes.watchers {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / sizes.rate as u64));
        for number in 0..sizes.updates {
            tick.tick().await;
            let member = &self.members[number % self.members.len()];
            member.update(number % 500, clock.elapsed().as_micros());
        }
        for watcher in watchers {
            tokio::time::timeout(PATIENCE, watcher)
                .await
                .context("a watcher is not told everything")???;
        }
        let mut all = std::mem::take(&mut *delays.lock());
        all.sort_unstable();
        let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
        Ok((at(0.5), at(0.99), all.len()))
    }
}
