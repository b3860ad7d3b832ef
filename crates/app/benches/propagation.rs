//! From a template to all members and back, on three real members, seen from outside: a client that writes to the
//! control plane and watches the members.
//!
//! `cargo xtask bench propagation`. `KARMADA_BENCH_TEMPLATES` sets how many templates are written at once (1,000 by
//! default), `KARMADA_BENCH_SINGLES` how many one at a time (100),
//! `KARMADA_BENCH_BEFORE` another build of ours to measure beside this one, `KARMADA_BENCH_ROUNDS` how often. CPU and
//! memory are those of the control plane alone; the CPU time of the members shows whether the machine was as fast for
//! one build as for the other.

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use support::follower::{Follower, each, shares};
use support::programs::join;
use support::{Build, Column, Ours, cpu_seconds, megabytes, per_thousand, print, rate, timed};

const MEMBERS: usize = 3;
const NAMESPACE: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(600);
/// How much of a processor our program may use when it has nothing to do, and everything together.
const CALM: f64 = 0.05;
const ALL_CALM: f64 = 0.3;

fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let templates = support::number("KARMADA_BENCH_TEMPLATES", 1_000)?;
    let singles = support::number("KARMADA_BENCH_SINGLES", 100)?;
    let measured = |build: Build| async move { measure(&build, templates, singles).await };
    print(&support::rounds(measured).await?);
    Ok(())
}

/// Measures a build on members of its own.
async fn measure(build: &Build, templates: usize, singles: usize) -> Result<Column> {
    eprintln!("{MEMBERS} members …");
    let members: Vec<_> = (1..=MEMBERS)
        .map(|number| {
            clusters::ClusterOptions::member(format!("member{number}")).node_capacity("2000", "8Ti", 10_000)
        })
        .collect();
    let fleet = clusters::Fleet::start(clusters::FleetOptions::of(members)).await?;
    let ours = Ours::start(build)?;
    let pids = [ours.child.id()];
    let plane = support::client(&ours.kubeconfig).await?;
    let mut rows = vec![
        ("control plane ready after (ms)".to_owned(), ours.ready_ms.to_string()),
        ("memory alone (MB)".to_owned(), megabytes(&pids)),
    ];
    let mut clients = Vec::new();
    for number in 1..=MEMBERS {
        let name = format!("member{number}");
        let cluster = fleet.cluster(&name).context("a cluster that was just started")?;
        let program = Path::new(env!("CARGO_BIN_EXE_karmada"));
        join(program, &ours.kubeconfig, &name, cluster.direct_kubeconfig())?;
        clients.push(support::client(cluster.direct_kubeconfig()).await?);
    }
    prepare(&plane).await?;
    // Members that have just started have much to do of their own.
    support::quiet(&descendants(&[]), ALL_CALM).await?;

    for kind in [Kind::config_map(), Kind::deployment()] {
        eprintln!("{} …", kind.resource.kind);
        let bench = Bench::start(&plane, &clients, kind).await?;
        bench.warm_up().await?;
        let mut shown = rows.len();
        let mut tell = |rows: &[(String, String)]| {
            rows[shown..].iter().for_each(|(row, value)| eprintln!("  {row}: {value}"));
            shown = rows.len();
        };
        rows.push((bench.row("memory before (MB)"), megabytes(&pids)));
        bench.one_at_a_time(singles, &pids, &mut rows).await?;
        tell(&rows);
        bench.many(templates, &pids, &mut rows).await?;
        tell(&rows);
    }
    drop(ours);
    fleet.down().await?;
    Ok(Column { name: build.name, rows })
}

/// Waits for the members, and makes the namespace and a policy that sends everything in it everywhere.
async fn prepare(plane: &kube::Client) -> Result<()> {
    let resource = |group: &str, version: &str, kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    };
    let members: Api<DynamicObject> =
        Api::all_with(plane.clone(), &resource("cluster.karmada.io", "v1alpha1", "Cluster", "clusters"));
    for number in 1..=MEMBERS {
        let ready = |found: Option<&DynamicObject>| {
            let conditions = found.and_then(|found| found.data["status"]["conditions"].as_array());
            conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
        };
        let name = format!("member{number}");
        let joined = kube::runtime::wait::await_condition(members.clone(), &name, ready);
        tokio::time::timeout(PATIENCE, joined).await.context("a member did not become ready")??;
    }
    let namespaces: Api<DynamicObject> =
        Api::all_with(plane.clone(), &resource("", "v1", "Namespace", "namespaces"));
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
    let policies: Api<DynamicObject> = Api::namespaced_with(
        plane.clone(),
        NAMESPACE,
        &resource("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies"),
    );
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": "everywhere"},
        "spec": {
            "resourceSelectors": [
                {"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": {"matchLabels": {"app": "bench"}}},
                {"apiVersion": "apps/v1", "kind": "Deployment"}],
            "placement": {"clusterAffinity": {"clusterNames": ["member1", "member2", "member3"]}}}});
    policies.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    Ok(())
}

/// A kind of template: how it is addressed, and what it says in each round.
#[derive(Clone)]
struct Kind {
    resource: ApiResource,
    object: fn(&str, usize) -> Value,
    /// Returns the round that an object in a member is of.
    round: fn(&DynamicObject) -> usize,
    /// Returns whether a template has its whole status; none for what has no status.
    complete: Option<fn(&DynamicObject) -> bool>,
}

impl Kind {
    fn config_map() -> Self {
        Self {
            resource: ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk("", "v1", "ConfigMap"),
                "configmaps",
            ),
            object: |name, round| {
                json!({"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": name, "labels": {"app": "bench"}},
                    "data": {"round": round.to_string(), "text": "0123456789abcdef".repeat(16)}})
            },
            round: |object| {
                object.data["data"]["round"].as_str().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX)
            },
            complete: None,
        }
    }

    fn deployment() -> Self {
        Self {
            resource: ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk("apps", "v1", "Deployment"),
                "deployments",
            ),
            object: |name, round| {
                json!({"apiVersion": "apps/v1", "kind": "Deployment",
                    "metadata": {"name": name, "labels": {"app": "bench"}},
                    "spec": {"replicas": 1, "minReadySeconds": round, "selector": {"matchLabels": {"app": name}},
                        "template": {"metadata": {"labels": {"app": name}},
                            "spec": {"containers": [{"name": "web", "image": "registry.example.com/web:1"}]}}}})
            },
            // Zero is left out on the wire.
            round: |object| object.data["spec"]["minReadySeconds"].as_u64().unwrap_or(0) as usize,
            complete: Some(|object| object.data["status"]["readyReplicas"] == MEMBERS),
        }
    }
}

struct Bench {
    kind: Kind,
    plane: Api<DynamicObject>,
    members: Vec<Follower>,
    templates: Follower,
}

impl Bench {
    async fn start(plane: &kube::Client, clients: &[kube::Client], kind: Kind) -> Result<Self> {
        let api = |client: &kube::Client| -> Api<DynamicObject> {
            Api::namespaced_with(client.clone(), NAMESPACE, &kind.resource)
        };
        let members = clients.iter().map(|client| Follower::start(api(client), kind.round)).collect();
        let complete = kind.complete.unwrap_or(|_| true);
        // Whole status is round 1, anything less round 0.
        let templates = Follower::start(api(plane), move |object| usize::from(complete(object)));
        Ok(Self { plane: api(plane), members, templates, kind })
    }

    fn row(&self, text: &str) -> String {
        format!("{}: {text}", self.kind.resource.kind)
    }

    async fn create(&self, name: &str) -> Result<()> {
        let object = serde_json::from_value((self.kind.object)(name, 0))?;
        self.plane.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.plane.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until every member has this many objects of this round and no others.
    async fn everywhere(&self, round: usize, count: usize) -> Result<()> {
        let all = future::try_join_all(self.members.iter().map(|member| member.until(round, count)));
        tokio::time::timeout(PATIENCE, all).await.context("the members were not up to date in time")??;
        Ok(())
    }

    /// The namespace has to be made in the members, and connections be opened, before there is something to measure.
    async fn warm_up(&self) -> Result<()> {
        self.create("warm-up").await?;
        self.everywhere(0, 1).await?;
        self.delete("warm-up").await?;
        self.everywhere(0, 0).await
    }

    async fn one_at_a_time(
        &self,
        count: usize,
        pids: &[u32],
        rows: &mut Vec<(String, String)>,
    ) -> Result<()> {
        let mut times = Vec::new();
        let (_, cpu) = timed(pids, async {
            for index in 0..count {
                let started = Instant::now();
                self.create(&format!("single-{index:04}")).await?;
                self.everywhere(0, index + 1).await?;
                times.push(started.elapsed());
            }
            Ok(())
        })
        .await?;
        rows.push((
            self.row("created one at a time, in all members after p50 / p90 / p99 (ms)"),
            shares(times, &[0.5, 0.9, 0.99]),
        ));
        rows.push((self.row("CPU s per 1,000 created one at a time"), per_thousand(cpu, count)));
        for index in 0..count {
            self.delete(&format!("single-{index:04}")).await?;
        }
        self.everywhere(0, 0).await
    }

    /// Measures work that ends when all members are as they should be, and what comes after it, such as reports.
    async fn work(
        &self,
        done: &str,
        count: usize,
        pids: &[u32],
        rows: &mut Vec<(String, String)>,
        work: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let members = descendants(pids);
        support::quiet(pids, CALM).await?;
        let before = cpu_seconds(&members);
        let (wall, cpu) = timed(pids, work).await?;
        let (_, after) = timed(pids, support::quiet(pids, CALM)).await?;
        let members = cpu_seconds(&members) - before;
        rows.push((self.row(&format!("{done} everywhere per second")), rate(count, wall)));
        rows.push((self.row(&format!("CPU s per 1,000 {done}")), per_thousand(cpu, count)));
        rows.push((
            self.row(&format!("CPU s per 1,000 {done}, with reports")),
            per_thousand(cpu + after, count),
        ));
        rows.push((
            self.row(&format!("the members' own CPU s per 1,000 {done}")),
            per_thousand(members, count),
        ));
        Ok(())
    }

    async fn many(&self, count: usize, pids: &[u32], rows: &mut Vec<(String, String)>) -> Result<()> {
        let names: Vec<String> = (0..count).map(|index| format!("many-{index:05}")).collect();
        let members = descendants(pids);
        let before = cpu_seconds(&members);
        let (wall, cpu) = timed(pids, async {
            each(&names, |name| self.create(name)).await?;
            self.everywhere(0, count).await
        })
        .await?;
        let members = cpu_seconds(&members) - before;
        rows.push((self.row("created everywhere per second"), rate(count, wall)));
        rows.push((self.row("CPU s per 1,000 created"), per_thousand(cpu, count)));
        rows.push((self.row("the members' own CPU s per 1,000 created"), per_thousand(members, count)));
        if self.kind.complete.is_some() {
            let (more, more_cpu) = timed(pids, async {
                let settled = self.templates.until(1, count);
                tokio::time::timeout(PATIENCE, settled).await.context("no whole status in time")?
            })
            .await?;
            let seconds = (wall + more).as_secs_f64();
            rows.push((self.row("whole status of all after (s)"), format!("{seconds:.1}")));
            rows.push((self.row("CPU s per 1,000 with whole status"), per_thousand(cpu + more_cpu, count)));
        }
        rows.push((self.row("memory after creating (MB)"), megabytes(pids)));
        self.work("updated", count, pids, rows, async {
            each(&names, |name| async move {
                let changed = (self.kind.object)(name, 1);
                self.plane.patch(name, &PatchParams::default(), &Patch::Merge(&changed)).await?;
                Ok(())
            })
            .await?;
            self.everywhere(1, count).await
        })
        .await?;
        self.work("deleted", count, pids, rows, async {
            each(&names, |name| self.delete(name)).await?;
            self.everywhere(1, 0).await
        })
        .await?;
        rows.push((self.row("memory after all (MB)"), megabytes(pids)));
        Ok(())
    }
}

/// Returns the processes that this one has started, and those that they have, except some.
fn descendants(except: &[u32]) -> Vec<u32> {
    let mut parents: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        if let Some(parent) = parent {
            parents.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![std::process::id()];
    while let Some(pid) = open.pop() {
        let children = parents.remove(&pid).unwrap_or_default();
        found.extend(children.iter().copied().filter(|child| !except.contains(child)));
        open.extend(children);
    }
    found
}
