//! The API server against kube-apiserver + etcd: the same load, on the same machine, in the same run, one after
//! the other. Both store durably.
//!
//! `cargo xtask bench apiserver`. `KARMADA_BENCH_OBJECTS` sets how many objects are written (10,000 by default),
//! `KARMADA_BENCH_BEFORE` another build of ours to measure beside this one.
//! Wall times are noisy on a shared machine; CPU seconds and memory are not.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use support::{Column, Ours, children_named, megabytes, per_thousand, print, rate, timed};

const WRITERS: usize = 16;
const WATCHERS: usize = 100;
const FANNED_OUT: usize = 200;

fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let count = support::number("KARMADA_BENCH_OBJECTS", 10_000)?;
    let mut columns = Vec::new();
    for build in support::builds() {
        eprintln!("{} …", build.name);
        let ours = Ours::start(&build)?;
        let pids = [ours.child.id()];
        columns.push(measure(build.name, &ours.kubeconfig, &pids, ours.ready_ms, count).await?);
    }
    match theirs(count).await? {
        Some(column) => columns.push(column),
        None => eprintln!("kube-apiserver is left out: there is no Go toolchain to build it with"),
    }
    print(&columns);
    Ok(())
}

async fn theirs(count: usize) -> Result<Option<Column>> {
    use clusters::toolchain::{MEMBER_RECIPES, Toolchain};
    if !Toolchain::from_env()?.can_provide(&MEMBER_RECIPES) {
        return Ok(None);
    }
    eprintln!("kube-apiserver + etcd …");
    let mut options = clusters::FleetOptions::of([clusters::ClusterOptions::api_server("partner")]);
    options.unsafe_no_fsync = false;
    let started = Instant::now();
    let fleet = clusters::Fleet::start(options).await?;
    let ready_ms = started.elapsed().as_millis();
    let pids = children_named(&["kube-apiserver", "etcd"], fleet.dir())?;
    let cluster = fleet.cluster("partner").context("the cluster that was just started")?;
    let column =
        measure("kube-apiserver + etcd", cluster.direct_kubeconfig(), &pids, ready_ms, count).await?;
    Ok(Some(column))
}

/// The two kinds that are written.
fn kinds() -> [(&'static str, ApiResource); 2] {
    let resource = |group: &str, kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
    };
    [
        ("ConfigMap", resource("", "ConfigMap", "configmaps")),
        ("custom resource", resource("bench.example.com", "Widget", "widgets")),
    ]
}

fn object(kind: &str, index: usize, round: usize) -> Value {
    // 1 KB of content.
    let text = format!("{round:08}").repeat(120);
    match kind {
        "ConfigMap" => json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("bench-{index:06}"), "labels": {"app": "bench"}}, "data": {"text": text}}),
        _ => json!({"apiVersion": "bench.example.com/v1", "kind": "Widget",
            "metadata": {"name": format!("bench-{index:06}"), "labels": {"app": "bench"}},
            "spec": {"text": text, "replicas": 3}}),
    }
}

fn definition() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.bench.example.com"},
        "spec": {"group": "bench.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "text": {"type": "string", "maxLength": 4096}, "replicas": {"type": "integer", "minimum": 0}}}}}}}]}})
}

async fn measure(
    name: &'static str,
    kubeconfig: &Path,
    pids: &[u32],
    ready_ms: u128,
    count: usize,
) -> Result<Column> {
    let client = support::client(kubeconfig).await?;
    let mut rows = vec![
        ("ready after (ms)".to_owned(), ready_ms.to_string()),
        ("memory idle (MB)".to_owned(), megabytes(pids)),
    ];
    let crds: Api<DynamicObject> = Api::all_with(
        client.clone(),
        &ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            "customresourcedefinitions",
        ),
    );
    crds.create(&PostParams::default(), &serde_json::from_value(definition())?).await?;
    let widgets: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kinds()[1].1);
    while widgets.list(&ListParams::default()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (kind, resource) in kinds() {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
        let label = |text: &str| format!("{kind}: {text}");
        eprintln!("  {kind} …");
        let (wall, cpu) = timed(pids, async {
            stream::iter(0..count)
                .map(|index| {
                    let api = api.clone();
                    async move {
                        let object = serde_json::from_value(object(kind, index, 0))?;
                        api.create(&PostParams::default(), &object).await?;
                        anyhow::Ok(())
                    }
                })
                .buffer_unordered(WRITERS)
                .try_collect::<()>()
                .await
        })
        .await?;
        rows.push((label("creates/s"), rate(count, wall)));
        rows.push((label("CPU s per 1,000 creates"), per_thousand(cpu, count)));
        let updates = count / 2;
        let (wall, cpu) = timed(pids, async {
            stream::iter(0..updates)
                .map(|index| {
                    let api = api.clone();
                    async move {
                        let changed = object(kind, index, 1);
                        let name = changed["metadata"]["name"].as_str().unwrap_or("").to_owned();
                        api.patch(&name, &PatchParams::default(), &Patch::Merge(&changed)).await?;
                        anyhow::Ok(())
                    }
                })
                .buffer_unordered(WRITERS)
                .try_collect::<()>()
                .await
        })
        .await?;
        rows.push((label("updates/s"), rate(updates, wall)));
        rows.push((label("CPU s per 1,000 updates"), per_thousand(cpu, updates)));
        let (wall, cpu) = timed(pids, async {
            stream::iter(0..count)
                .map(|index| {
                    let api = api.clone();
                    async move {
                        api.get(&format!("bench-{index:06}")).await?;
                        anyhow::Ok(())
                    }
                })
                .buffer_unordered(WRITERS)
                .try_collect::<()>()
                .await
        })
        .await?;
        rows.push((label("gets/s"), rate(count, wall)));
        rows.push((label("CPU s per 1,000 gets"), per_thousand(cpu, count)));
        let (wall, cpu) = timed(pids, async {
            let list = api.list(&ListParams::default().labels("app=bench")).await?;
            if list.items.len() != count {
                bail!("a list shows {} of {count} objects", list.items.len());
            }
            Ok(())
        })
        .await?;
        rows.push((label("list of all (ms)"), format!("{:.0}", wall.as_secs_f64() * 1000.0)));
        rows.push((label("list of all (CPU ms)"), format!("{:.0}", cpu * 1000.0)));
        let (wall, cpu) = fan_out(&api, kind, pids).await?;
        rows.push((label("watch fan-out, events/s"), rate(WATCHERS * FANNED_OUT, wall)));
        rows.push((label("watch fan-out, CPU s"), format!("{cpu:.2}")));
        rows.push((label("memory after (MB)"), megabytes(pids)));
    }
    Ok(Column { name, rows })
}

/// Opens many watches, changes objects, and waits until every watch has seen every change.
async fn fan_out(api: &Api<DynamicObject>, kind: &'static str, pids: &[u32]) -> Result<(Duration, f64)> {
    let start =
        api.list(&ListParams::default().limit(1)).await?.metadata.resource_version.unwrap_or_default();
    let seen = Arc::new(AtomicUsize::new(0));
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        let (api, seen, start) = (api.clone(), seen.clone(), start.clone());
        watchers.push(tokio::spawn(async move {
            let parameters = WatchParams::default().labels("app=bench");
            let mut events = api.watch(&parameters, &start).await?.boxed();
            let mut own = 0;
            while let Some(event) = events.try_next().await? {
                if matches!(event, WatchEvent::Modified(_)) {
                    seen.fetch_add(1, Ordering::Relaxed);
                    own += 1;
                    if own == FANNED_OUT {
                        break;
                    }
                }
            }
            anyhow::Ok(())
        }));
    }
    timed(pids, async {
        stream::iter(0..FANNED_OUT)
            .map(|index| {
                let api = api.clone();
                async move {
                    let changed = object(kind, index, 2);
                    let name = changed["metadata"]["name"].as_str().unwrap_or("").to_owned();
                    api.patch(&name, &PatchParams::default(), &Patch::Merge(&changed)).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(4)
            .try_collect::<()>()
            .await?;
        for watcher in watchers {
            tokio::time::timeout(Duration::from_secs(120), watcher)
                .await
                .context("a watch missed events")???;
        }
        Ok(())
    })
    .await
}
