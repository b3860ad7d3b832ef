//! The metrics of evictions: upstream's, and whether evictions are halted.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use runtime::metrics::{Counters, Histograms, Labels, add, seconds};

const BUCKETS: u16 = 15;

pub(super) struct Metrics {
    depth: Family<Labels<1>, Gauge>,
    kinds: Family<Labels<2, String>, Gauge>,
    latency: Histograms<1>,
    processed: Counters<2>,
    halted: Gauge,
}

pub(super) static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let metrics = Metrics {
        depth: Family::default(),
        kinds: Family::default(),
        latency: Histograms::new_with_constructor(seconds::<BUCKETS>),
        processed: Counters::default(),
        halted: Gauge::default(),
    };
    add(|registry| {
        let help = "Evictions that wait for their turn";
        registry.register("eviction_queue_depth", help, metrics.depth.clone());
        let help = "Evictions by cluster and kind of resource";
        registry.register("eviction_kind_total", help, metrics.kinds.clone());
        let help = "Duration in seconds to write an eviction";
        registry.register("eviction_processing_latency_seconds", help, metrics.latency.clone());
        let help = "Evictions by result";
        registry.register("eviction_processing", help, metrics.processed.clone());
        let help = "1 while evictions are halted because too many clusters are lost at once";
        registry.register("karmada_evictions_halted", help, metrics.halted.clone());
    });
    metrics
});

impl Metrics {
    pub(super) fn waiting(&self, queue: &'static str, count: usize) {
        self.depth.get_or_create(&[("name", queue)]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn evicted(&self, cluster: &str, kind: &str) {
        let labels = [("member_cluster", cluster.to_owned()), ("resource_kind", kind.to_owned())];
        self.kinds.get_or_create(&labels).inc();
    }

    pub(super) fn processed(&self, queue: &'static str, took: Duration, success: bool) {
        let result = if success { "success" } else { "error" };
        self.latency.get_or_create(&[("name", queue)]).observe(took.as_secs_f64());
        self.processed.get_or_create(&[("name", queue), ("result", result)]).inc();
    }

    pub(super) fn halted(&self, halted: bool) {
        self.halted.set(i64::from(halted));
    }
}
