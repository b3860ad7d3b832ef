//! Endpoints across clusters: many MultiClusterServices over simulated clusters; one endpoint changes, and how long it takes until every
//! cluster has it, and what it costs.
//!
//! `cargo xtask bench services`; `--help` names the sizes. Changes are measured twice: with a tenth of the Services, and with all of
//! them. What a change costs should be the same. CPU is that of the control plane alone; the simulated clusters share the machine.

mod support;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::programs::{join, simulate};
use support::{Build, Column, Ours, cpu_seconds, megabytes};
use tokio::sync::Notify;

const WRITERS: usize = 16;

/// Measures how fast endpoints travel.
#[derive(Debug, Parser)]
struct Sizes {
    /// How many simulated clusters; each of them receives all endpoints.
    #[arg(long, default_value_t = 10)]
    clusters: usize,
    /// How many MultiClusterServices.
    #[arg(long, default_value_t = 1000)]
    services: usize,
    /// How many endpoints a Service has in each cluster that provides it.
    #[arg(long, default_value_t = 20)]
    endpoints: usize,
    /// How many clusters provide a Service.
    #[arg(long, default_value_t = 1)]
    providers: usize,
    /// How many changes are measured, one at a time.
    #[arg(long, default_value_t = 100)]
    changes: usize,
    /// How many seconds everything may take to arrive.
    #[arg(long, default_value_t = 900)]
    patience: u64,
    /// The program to measure instead of the one that was built with the benchmark.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// What `cargo bench` says to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(Sizes::parse()))
}

async fn run(sizes: Sizes) -> Result<()> {
    if sizes.providers == 0 || sizes.providers > sizes.clusters || sizes.services < 10 || sizes.changes == 0 {
        bail!("--providers is 1 to --clusters, --services 10 or more, --changes 1 or more");
    }
    let program = sizes.program.clone().unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_karmada")));
    let folder = tempfile::tempdir()?;
    let simulated = folder.path().join("sim");
    let flags = ["--feature-gates=MultiClusterService=true"];
    let ours = Ours::with(&Build { name: "karmada-rs", program: program.clone() }, &flags)?;
    let pids = [ours.child.id()];
    let _sim = simulate(&program, &simulated, sizes.clusters, &[])?;
    let mut members = Vec::new();
    for number in 1..=sizes.clusters {
        let name = format!("member{number}");
        let file = simulated.join(format!("{name}.kubeconfig"));
        join(&program, &ours.kubeconfig, &name, &file)?;
        members.push(Follower::start(name, support::client(&file).await?));
    }
    let bench = Bench { plane: support::client(&ours.kubeconfig).await?, members, sizes };
    let few = bench.sizes.services / 10;
    let mut rows = Vec::new();
    for (from, to) in [(0, few), (few, bench.sizes.services)] {
        eprintln!("{to} Services …");
        let started = Instant::now();
        bench.fill(from, to).await?;
        bench.until_full(to).await?;
        rows.push((
            format!("{} Services more, until all is everywhere (s)", to - from),
            seconds(started.elapsed()),
        ));
        bench.measure(to, &pids, &mut rows).await?;
    }
    rows.push(("memory afterwards (MB)".to_owned(), megabytes(&pids)));
    support::print(&[Column { name: "karmada-rs", rows }]);
    Ok(())
}

fn seconds(span: Duration) -> String {
    format!("{:.1}", span.as_secs_f64())
}

fn inside(client: &kube::Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::namespaced_with(client.clone(), "default", &resource)
}

fn slices(client: &kube::Client) -> Api<DynamicObject> {
    inside(client, "discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

async fn create(api: &Api<DynamicObject>, object: Value) -> Result<()> {
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// A member, and what it has: the first address of each slice.
struct Follower {
    name: String,
    client: kube::Client,
    seen: Arc<(Mutex<HashMap<String, String>>, Notify)>,
}

impl Follower {
    fn start(name: String, client: kube::Client) -> Self {
        let seen: Arc<(Mutex<HashMap<String, String>>, Notify)> = Arc::default();
        let (noted, api) = (seen.clone(), slices(&client));
        tokio::spawn(async move {
            let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
            while let Some(event) = events.next().await {
                if let Ok(watcher::Event::Apply(slice) | watcher::Event::InitApply(slice)) = event {
                    let address =
                        slice.data["endpoints"][0]["addresses"][0].as_str().unwrap_or("").to_owned();
                    noted.0.lock().insert(slice.metadata.name.unwrap_or_default(), address);
                    noted.1.notify_waiters();
                }
            }
        });
        Self { name, client, seen }
    }

    /// Waits until what it has is as wanted.
    async fn until(&self, wanted: impl Fn(&HashMap<String, String>) -> bool) {
        loop {
            let notified = self.seen.1.notified();
            if wanted(&self.seen.0.lock()) {
                return;
            }
            notified.await;
        }
    }
}

struct Bench {
    plane: kube::Client,
    members: Vec<Follower>,
    sizes: Sizes,
}

impl Bench {
    /// Returns the clusters that provide a Service.
    fn providers(&self, service: usize) -> impl Iterator<Item = &Follower> {
        (0..self.sizes.providers).map(move |offset| &self.members[(service + offset) % self.members.len()])
    }

    fn endpoints(&self, first: &str, service: usize) -> Value {
        let rest = (1..self.sizes.endpoints)
            .map(|number| format!("10.{}.{}.{number}", service / 250, service % 250));
        let all = std::iter::once(first.to_owned()).chain(rest);
        all.map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect()
    }

    async fn fill(&self, from: usize, to: usize) -> Result<()> {
        let services = inside(&self.plane, "", "v1", "Service", "services");
        let multi = inside(
            &self.plane,
            "networking.karmada.io",
            "v1alpha1",
            "MultiClusterService",
            "multiclusterservices",
        );
        let one = |number: usize| {
            let (services, multi) = (services.clone(), multi.clone());
            async move {
                let name = format!("s{number}");
                create(
                    &services,
                    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                    "spec": {"ports": [{"name": "http", "port": 80}]}}),
                )
                .await?;
                for member in self.providers(number) {
                    create(&slices(&member.client), json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                        "addressType": "IPv4", "metadata": {"name": format!("s{number}-own"),
                            "labels": {"kubernetes.io/service-name": name}},
                        "endpoints": self.endpoints("10.200.0.1", number), "ports": [{"name": "http", "port": 80}]}))
                    .await?;
                }
                let providers: Value =
                    self.providers(number).map(|member| json!({"name": member.name})).collect();
                create(&multi, json!({"apiVersion": "networking.karmada.io/v1alpha1", "kind": "MultiClusterService",
                    "metadata": {"name": name}, "spec": {"types": ["CrossCluster"], "providerClusters": providers}}))
                .await
            }
        };
        stream::iter(from..to).map(one).buffer_unordered(WRITERS).try_collect::<()>().await
    }

    /// Waits until every cluster has the slices of all others.
    async fn until_full(&self, services: usize) -> Result<()> {
        let waiting = async {
            for member in &self.members {
                let mut wanted = 0;
                for number in 0..services {
                    wanted += self.providers(number).filter(|provider| provider.name != member.name).count();
                }
                member
                    .until(|seen| seen.keys().filter(|name| name.starts_with("member")).count() >= wanted)
                    .await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(self.sizes.patience), waiting).await;
        done.with_context(|| format!("the endpoints did not arrive within {} s", self.sizes.patience))
    }

    /// Changes one endpoint after another, and waits each time until every cluster has it.
    async fn measure(&self, services: usize, pids: &[u32], rows: &mut Vec<(String, String)>) -> Result<()> {
        // What happens anyway: signs of life, and what came before and is not over.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let (quiet, before) = (Instant::now(), self.requests().await?);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let idle = (self.requests().await? - before) / quiet.elapsed().as_secs_f64();
        let (started, before, cpu) = (Instant::now(), self.requests().await?, cpu_seconds(pids));
        let round = usize::from(services == self.sizes.services);
        let mut latencies = Vec::new();
        for change in 0..self.sizes.changes {
            let service = change * 7919 % services;
            let provider = self.providers(service).next().context("a provider")?;
            // Never one that a Service has had: a change that changes nothing would be there at once.
            let address = format!("10.{}.{}.{}", 201 + round, change / 250, 1 + change % 250);
            let patch = Patch::Merge(json!({"endpoints": self.endpoints(&address, service)}));
            let name = format!("s{service}-own");
            let changed = Instant::now();
            slices(&provider.client).patch(&name, &PatchParams::default(), &patch).await?;
            let there = format!("{}-{name}", provider.name);
            for member in self.members.iter().filter(|member| member.name != provider.name) {
                let arrived = member.until(|seen| seen.get(&there) == Some(&address));
                let patience = Duration::from_secs(self.sizes.patience);
                tokio::time::timeout(patience, arrived).await.context("a change did not arrive")?;
            }
            latencies.push(changed.elapsed());
        }
        // What follows from the last one is counted, too.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let span = started.elapsed().as_secs_f64();
        let changes = self.sizes.changes as f64;
        let cost = (self.requests().await? - before - idle * span) / changes;
        latencies.sort();
        let at =
            |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize].as_millis().to_string();
        let with = |what: &str| format!("with {services} Services: {what}");
        rows.push((with("a change is everywhere after, median (ms)"), at(0.5)));
        rows.push((with("a change is everywhere after, 99 % (ms)"), at(0.99)));
        rows.push((with("a change is everywhere after, at most (ms)"), at(1.0)));
        rows.push((with("requests per change, control plane and members"), format!("{cost:.1}")));
        let cpu = (cpu_seconds(pids) - cpu) * 1000.0 / changes;
        rows.push((with("CPU of the control plane per change (ms)"), format!("{cpu:.1}")));
        Ok(())
    }

    /// How many requests the control plane and the members have answered, as their metrics say.
    async fn requests(&self) -> Result<f64> {
        let mut sum = 0.0;
        for client in self.members.iter().map(|member| &member.client).chain([&self.plane]) {
            let text = client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?;
            let lines = text.lines().filter(|line| line.starts_with("apiserver_request_total{"));
            sum += lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
        }
        Ok(sum)
    }
}
