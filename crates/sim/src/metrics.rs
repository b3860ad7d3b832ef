//! The resource usage of pods and nodes: shown as `metrics.k8s.io`, like metrics-server, and read by autoscalers.
//!
//! In: the loads that were set. Each is shared equally by the pods that it selects, in the whole cluster; a pod without a load
//! idles. A node's usage is the sum of its pods.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use apimachinery::gvk::{GroupResource, Gvk};
use apimachinery::quantity::{Format, Quantity};
use apimachinery::selector::{FieldSelector, LabelSelector};
use apimachinery::status::Status;
use apiserver::registry::{self, Registry, Rules, Source};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::objects::{Object, is_active, list, phase, stamp, text};
use crate::trouble::Load;
use crate::view::Objects;

pub(crate) const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
/// The window over which usage is measured, metrics-server's default.
const WINDOW: Duration = Duration::from_secs(15);
const MIB: u64 = 1024 * 1024;

/// The usage of one pod or node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) milli_cpu: u64,
    pub(crate) bytes: u64,
}

/// How the loads on a cluster are shared at one moment.
pub(crate) struct Usage {
    shares: Vec<(LabelSelector, Used)>,
}

impl Usage {
    pub(crate) fn of(objects: &dyn Objects, loads: &BTreeMap<String, Load>) -> Self {
        let share = |load: &Load| {
            let selector = LabelSelector::parse(&load.selector).ok()?;
            let pods = objects.selected(Kind::Pod, "", &selector);
            let sharing = pods.iter().filter(|pod| is_active(pod)).count().max(1) as u64;
            let used = Used { milli_cpu: load.milli_cpu / sharing, bytes: load.memory_mib * MIB / sharing };
            Some((selector, used))
        };
        Self { shares: loads.values().filter_map(share).collect() }
    }

    pub(crate) fn pod(&self, pod: &Value) -> Used {
        let mine = self.shares.iter().filter(|(selector, _)| selector.matches(pod.labels()));
        mine.fold(Used::default(), |sum, (_, used)| Used {
            milli_cpu: sum.milli_cpu + used.milli_cpu,
            bytes: sum.bytes + used.bytes,
        })
    }
}

impl Used {
    fn plus(self, other: Self) -> Self {
        Self { milli_cpu: self.milli_cpu + other.milli_cpu, bytes: self.bytes + other.bytes }
    }

    /// Returns the share of one of several pods; the first gets the remainder.
    fn part(self, index: usize, parts: usize) -> Self {
        let parts = parts.max(1) as u64;
        let part = |whole: u64| whole / parts + if index == 0 { whole % parts } else { 0 };
        Self { milli_cpu: part(self.milli_cpu), bytes: part(self.bytes) }
    }

    fn quantities(self) -> [(&'static str, String); 2] {
        let cpu = Quantity::from_scaled(i64::try_from(self.milli_cpu).unwrap_or(i64::MAX), -3);
        let memory = Quantity::new(i64::try_from(self.bytes).unwrap_or(i64::MAX), Format::BinarySi);
        [("cpu", cpu.to_string()), ("memory", memory.to_string())]
    }

    fn to_value(self) -> Value {
        self.quantities().into_iter().map(|(name, amount)| (name.to_owned(), json!(amount))).collect()
    }
}

/// Returns the kinds that a member serves from the start: the native ones and these two. All members share them.
pub(crate) fn registry() -> Arc<Registry> {
    static SERVED: LazyLock<Arc<Registry>> = LazyLock::new(|| {
        Registry::with_computed(vec![
            served("pods", "PodMetrics", true),
            served("nodes", "NodeMetrics", false),
        ])
    });
    SERVED.clone()
}

fn served(plural: &str, kind: &str, namespaced: bool) -> Arc<registry::Kind> {
    let gvk = Gvk::new(GROUP, VERSION, kind);
    Arc::new(registry::Kind {
        api_version: gvk.api_version(),
        list_kind: format!("{kind}List"),
        resource: GroupResource::new(GROUP, plural),
        singular: String::new(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        verbs: vec!["get".to_owned(), "list".to_owned()],
        subresources: Vec::new(),
        collection: Arc::from(format!("{GROUP}/{plural}")),
        source: Source::Native,
        rules: Rules { computed: true, ..Rules::default() },
        storage: gvk.clone(),
        gvk,
    })
}

/// The objects of a request.
pub(crate) struct Selection<'a> {
    pub(crate) namespace: &'a str,
    /// One of them; empty for a list.
    pub(crate) name: &'a str,
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
}

impl Selection<'_> {
    fn takes(&self, object: &Value) -> bool {
        (self.name.is_empty() || self.name == object.name())
            && self.labels.matches(object.labels())
            && self.fields.matches(|field| {
                let value = match field {
                    "metadata.name" => object.name(),
                    "metadata.namespace" => object.namespace(),
                    _ => "",
                };
                value.to_owned().into()
            })
    }
}

/// Returns the metrics for a request; those of a single object that does not run are not found.
pub(crate) fn answer(
    objects: &dyn Objects,
    loads: &BTreeMap<String, Load>,
    kind: &registry::Kind,
    selection: &Selection<'_>,
    now: Timestamp,
) -> Result<Vec<Value>, Status> {
    let usage = Usage::of(objects, loads);
    let found = if kind.namespaced {
        pods(objects, &usage, selection, now)
    } else {
        nodes(objects, &usage, selection, now)
    };
    if !selection.name.is_empty() && found.is_empty() {
        let resource = GroupResource::new(GROUP, kind.gvk.kind.to_lowercase());
        let full = if kind.namespaced {
            format!("{}/{}", selection.namespace, selection.name)
        } else {
            selection.name.to_owned()
        };
        return Err(Status::not_found(&resource, &full));
    }
    Ok(found)
}

fn pods(objects: &dyn Objects, usage: &Usage, selection: &Selection<'_>, now: Timestamp) -> Vec<Value> {
    let pods = match selection.name {
        // Autoscalers request a few pods of many: the labels decide before anything is parsed.
        "" => objects.selected(Kind::Pod, selection.namespace, &selection.labels),
        name => objects.get(Kind::Pod, selection.namespace, name).into_iter().collect(),
    };
    pods.iter()
        .filter(|pod| runs(pod) && selection.takes(pod))
        .map(|pod| {
            let used = usage.pod(pod);
            let all = list(pod, "/spec/containers");
            let containers: Vec<Value> = all
                .iter()
                .enumerate()
                .map(|(index, container)| {
                    json!({"name": container["name"], "usage": used.part(index, all.len()).to_value()})
                })
                .collect();
            let mut metrics = without_usage(pod, now);
            metrics["metadata"]["namespace"] = json!(pod.namespace());
            metrics["containers"] = containers.into();
            metrics
        })
        .collect()
}

fn nodes(objects: &dyn Objects, usage: &Usage, selection: &Selection<'_>, now: Timestamp) -> Vec<Value> {
    let mut by_node: BTreeMap<String, Used> = BTreeMap::new();
    for pod in objects.list(Kind::Pod, "").iter().filter(|pod| runs(pod)) {
        let used = by_node.entry(text(pod, "/spec/nodeName").to_owned()).or_default();
        *used = used.plus(usage.pod(pod));
    }
    objects
        .list(Kind::Node, "")
        .iter()
        .filter(|node| crate::objects::is_ready(node) && selection.takes(node))
        .map(|node| {
            let mut metrics = without_usage(node, now);
            metrics["usage"] = by_node.get(node.name()).copied().unwrap_or_default().to_value();
            metrics
        })
        .collect()
}

fn runs(pod: &Value) -> bool {
    phase(pod) == "Running" && !pod.is_deleting()
}

/// Returns the metrics of a pod or node, still without the usage.
fn without_usage(object: &Value, now: Timestamp) -> Value {
    let mut metadata = json!({"name": object.name(), "creationTimestamp": stamp(now)});
    if object.labels().is_object() {
        metadata["labels"] = object.labels().clone();
    }
    json!({"metadata": metadata, "timestamp": stamp(now), "window": format!("{}s", WINDOW.as_secs())})
}

/// Returns metrics as a table, with the columns of metrics-server.
pub fn table(items: &[Value], beta: bool) -> Value {
    let column = |name: &str, format: &str, about: &str| json!({"name": name, "type": "string", "format": format, "description": about, "priority": 0});
    let columns = [
        column("Name", "name", "Name of the resource"),
        column("cpu", "quantity", ""),
        column("memory", "quantity", ""),
        column("Window", "duration", ""),
    ];
    let rows: Vec<Value> = items
        .iter()
        .map(|item| {
            let single = std::slice::from_ref(&item["usage"]);
            let parts: Vec<&Value> = match item["containers"].as_array() {
                Some(containers) => containers.iter().map(|container| &container["usage"]).collect(),
                None => single.iter().collect(),
            };
            let total = |resource: &str| {
                let amounts = parts.iter().filter_map(|part| Quantity::parse(part[resource].as_str()?).ok());
                amounts.fold(Quantity::ZERO, |sum, amount| amount + sum).to_string()
            };
            let cells = json!([item.name(), total("cpu"), total("memory"), item["window"]]);
            json!({"cells": cells, "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"]}})
        })
        .collect();
    let version = if beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" };
    json!({"kind": "Table", "apiVersion": version, "metadata": {}, "columnDefinitions": columns, "rows": rows})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::Cluster;

    fn pod(name: &str, app: &str, node: &str, phase: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"name": name, "namespace": "d", "labels": {"app": app}},
            "spec": {"nodeName": node, "containers": [{"name": "a"}, {"name": "b"}]}, "status": {"phase": phase}})
    }

    fn cluster() -> (Cluster, BTreeMap<String, Load>) {
        let node = json!({"kind": "Node", "metadata": {"name": "n1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let load = Load { selector: "app=web".to_owned(), milli_cpu: 301, memory_mib: 4 };
        let objects = vec![
            pod("web-1", "web", "n1", "Running"),
            pod("web-2", "web", "n2", "Running"),
            pod("db", "db", "n1", "Running"),
            pod("new", "db", "n1", "Pending"),
            node,
        ];
        (Cluster(objects), BTreeMap::from([(load.selector.clone(), load)]))
    }

    fn ask(plural: &str, name: &str) -> Result<Vec<Value>, Status> {
        let (cluster, loads) = cluster();
        let kind =
            served(plural, if plural == "pods" { "PodMetrics" } else { "NodeMetrics" }, plural == "pods");
        let namespace = if plural == "pods" { "d" } else { "" };
        let (labels, fields) =
            (LabelSelector::parse("").expect("all"), FieldSelector::parse("").expect("all"));
        let selection = Selection { namespace, name, labels, fields };
        answer(&cluster, &loads, &kind, &selection, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn running_pods_share_their_load_and_containers_share_the_pod() {
        let pods = ask("pods", "").expect("metrics");
        let names: Vec<&str> = pods.iter().map(Object::name).collect();
        assert_eq!(names, ["web-1", "web-2", "db"]);
        assert_eq!(
            pods[0]["containers"],
            json!([{"name": "a", "usage": {"cpu": "75m", "memory": "1Mi"}},
                {"name": "b", "usage": {"cpu": "75m", "memory": "1Mi"}}])
        );
        assert_eq!(pods[2]["containers"][0]["usage"], json!({"cpu": "0", "memory": "0"}));
    }

    #[test]
    fn a_node_uses_what_its_pods_use() {
        let nodes = ask("nodes", "n1").expect("metrics");
        assert_eq!(nodes[0]["usage"], json!({"cpu": "150m", "memory": "2Mi"}));
        assert_eq!(table(&nodes, false)["rows"][0]["cells"], json!(["n1", "150m", "2Mi", "15s"]));
    }

    #[test]
    fn pods_that_do_not_run_have_no_metrics() {
        let error = ask("pods", "new").expect_err("it does not run");
        assert_eq!(error.message, "podmetrics.metrics.k8s.io \"d/new\" not found");
    }
}
