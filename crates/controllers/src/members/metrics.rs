//! The metrics of members and of the Works applied in them, under upstream's names.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use api::cluster::ClusterStatus;
use apimachinery::quantity::Quantity;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use propagation::Object;
use serde_json::Value;

use runtime::metrics::{Histograms, Labels, add, seconds, usual_seconds};

type Member = Labels<1, String>;
type MemberGauges = Family<Member, Gauge<f64, AtomicU64>>;
/// Upstream's counters of objects do not end in `_total`, which the library would append to a counter.
type Counts<const N: usize> = Family<Labels<N, String>, Gauge>;

const CLUSTER: &str = "member_cluster";
const BUCKETS: u16 = 12;

pub(super) struct Metrics {
    ready: MemberGauges,
    nodes: MemberGauges,
    ready_nodes: MemberGauges,
    /// Memory, CPU and pods: allocatable and allocated.
    allocatable: [MemberGauges; 3],
    allocated: [MemberGauges; 3],
    looks: Family<Member, Histogram, fn() -> Histogram>,
    works: Histograms<1>,
    created: Counts<5>,
    updated: Counts<5>,
    deleted: Counts<4>,
}

const RESOURCES: [(&str, &str); 3] =
    [("memory", "memory_{}_bytes"), ("cpu", "cpu_{}_number"), ("pods", "pod_{}_number")];

pub(super) static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let metrics = Metrics {
        ready: Family::default(),
        nodes: Family::default(),
        ready_nodes: Family::default(),
        allocatable: Default::default(),
        allocated: Default::default(),
        looks: Family::new_with_constructor(usual_seconds),
        works: Histograms::new_with_constructor(seconds::<BUCKETS>),
        created: Family::default(),
        updated: Family::default(),
        deleted: Family::default(),
    };
    add(|registry| {
        let help = "State of the cluster: 1 if it is ready, 0 otherwise";
        registry.register("cluster_ready_state", help, metrics.ready.clone());
        registry.register("cluster_node_number", "Nodes in the cluster", metrics.nodes.clone());
        let help = "Ready nodes in the cluster";
        registry.register("cluster_ready_node_number", help, metrics.ready_nodes.clone());
        for (index, (resource, pattern)) in RESOURCES.iter().enumerate() {
            for (word, gauges) in
                [("allocatable", &metrics.allocatable[index]), ("allocated", &metrics.allocated[index])]
            {
                let name = format!("cluster_{}", pattern.replace("{}", word));
                registry.register(name, format!("{word} {resource} of the cluster"), gauges.clone());
            }
        }
        let help = "Duration in seconds to bring the status of a cluster up to date";
        registry.register("cluster_sync_status_duration_seconds", help, metrics.looks.clone());
        let help = "Duration in seconds to carry a Work out";
        registry.register("work_sync_workload_duration_seconds", help, metrics.works.clone());
        let help = "Objects created in members";
        registry.register("create_resource_to_cluster", help, metrics.created.clone());
        let help = "Objects updated in members";
        registry.register("update_resource_to_cluster", help, metrics.updated.clone());
        let help = "Objects deleted from members";
        registry.register("delete_resource_from_cluster", help, metrics.deleted.clone());
    });
    metrics
});

fn word(good: bool) -> &'static str {
    if good { "success" } else { "error" }
}

fn object(good: bool, object: &Value, cluster: &str) -> Labels<4, String> {
    [
        ("result", word(good).to_owned()),
        ("apiversion", object.api_version().to_owned()),
        ("kind", object.kind().to_owned()),
        (CLUSTER, cluster.to_owned()),
    ]
}

fn with(labels: Labels<4, String>, more: (&'static str, &str)) -> Labels<5, String> {
    let [a, b, c, d] = labels;
    [a, b, c, d, (more.0, more.1.to_owned())]
}

impl Metrics {
    /// Records what is known of a cluster after a check.
    pub(super) fn looked(&self, name: &str, started: Instant, status: &ClusterStatus) {
        let labels = [(CLUSTER, name.to_owned())];
        self.looks.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
        self.ready.get_or_create(&labels).set(f64::from(u8::from(status.is_ready())));
        if let Some(nodes) = &status.node_summary {
            self.nodes.get_or_create(&labels).set(f64::from(nodes.total_num));
            self.ready_nodes.get_or_create(&labels).set(f64::from(nodes.ready_num));
        }
        if let Some(summary) = &status.resource_summary {
            for (index, (resource, _)) in RESOURCES.iter().enumerate() {
                for (list, gauges) in
                    [(&summary.allocatable, &self.allocatable), (&summary.allocated, &self.allocated)]
                {
                    let amount = list.get(*resource).and_then(|amount| Quantity::parse(&amount.0).ok());
                    let amount = amount.map_or(0.0, |amount| amount.as_f64());
                    gauges[index].get_or_create(&labels).set(amount);
                }
            }
        }
    }

    /// Forgets a cluster that has left.
    pub(super) fn forget(&self, cluster: &str) {
        let labels = [(CLUSTER, cluster.to_owned())];
        let gauges = [&self.ready, &self.nodes, &self.ready_nodes].into_iter();
        for gauges in gauges.chain(&self.allocatable).chain(&self.allocated) {
            gauges.remove(&labels);
        }
        self.looks.remove(&labels);
    }

    /// Records whether a Work was applied.
    pub(super) fn carried(&self, started: Instant, good: bool) {
        self.works.get_or_create(&[("result", word(good))]).observe(started.elapsed().as_secs_f64());
    }

    pub(super) fn created<T, E>(&self, result: &Result<T, E>, manifest: &Value, cluster: &str) {
        let labels = with(object(result.is_ok(), manifest, cluster), ("recreate", "false"));
        self.created.get_or_create(&labels).inc();
    }

    pub(super) fn updated<T, E>(&self, result: &Result<T, E>, manifest: &Value, cluster: &str) {
        let operation = if result.is_ok() { "updated" } else { "none" };
        let labels = with(object(result.is_ok(), manifest, cluster), ("operationResult", operation));
        self.updated.get_or_create(&labels).inc();
    }

    pub(super) fn deleted<T, E>(&self, result: &Result<T, E>, manifest: &Value, cluster: &str) {
        self.deleted.get_or_create(&object(result.is_ok(), manifest, cluster)).inc();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_is_shown_under_the_names_that_dashboards_know_until_it_leaves() {
        let status: ClusterStatus = serde_json::from_value(json!({
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
            "nodeSummary": { "totalNum": 3, "readyNum": 2 },
            "resourceSummary": {
                "allocatable": { "cpu": "2500m", "memory": "1Ki", "pods": "110" }, "allocated": { "cpu": "1" },
            },
        }))
        .unwrap();
        METRICS.looked("measured", Instant::now(), &status);
        let text = runtime::metrics::render();
        for line in [
            r#"cluster_ready_state{member_cluster="measured"} 1.0"#,
            r#"cluster_ready_node_number{member_cluster="measured"} 2.0"#,
            r#"cluster_cpu_allocatable_number{member_cluster="measured"} 2.5"#,
            r#"cluster_memory_allocatable_bytes{member_cluster="measured"} 1024.0"#,
            r#"cluster_pod_allocated_number{member_cluster="measured"} 0.0"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        METRICS.forget("measured");
        assert!(!runtime::metrics::render().contains("measured"));
    }

    #[test]
    fn objects_are_counted_under_upstreams_names() {
        let manifest = json!({ "apiVersion": "apps/v1", "kind": "Deployment" });
        METRICS.created(&Ok::<_, ()>(()), &manifest, "counted");
        let text = runtime::metrics::render();
        let line = concat!(
            r#"create_resource_to_cluster{result="success",apiversion="apps/v1",kind="Deployment","#,
            r#"member_cluster="counted",recreate="false"} 1"#
        );
        assert!(text.contains(line), "{text}");
    }
}
