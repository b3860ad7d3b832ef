//! The metrics of evictions: upstream's, and whether evictions are halted.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use runtime::Key;
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
        let help = "Evictions that wait for their turn, by cluster and kind of binding";
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
    pub(super) fn processed(&self, queue: &'static str, took: Duration, success: bool) {
        let result = if success { "success" } else { "error" };
        self.latency.get_or_create(&[("name", queue)]).observe(took.as_secs_f64());
        self.processed.get_or_create(&[("name", queue), ("result", result)]).inc();
    }

    pub(super) fn halted(&self, halted: bool) {
        self.halted.set(i64::from(halted));
    }
}

/// The bindings of one kind that wait for eviction, and from which clusters.
pub(super) struct Waiting {
    queue: &'static str,
    kind: &'static str,
    clusters: Mutex<HashMap<Key, Vec<String>>>,
}

impl Waiting {
    pub(super) fn new(queue: &'static str, kind: &'static str) -> Self {
        Self { queue, kind, clusters: Mutex::default() }
    }

    /// Records from which clusters a binding has to be evicted; none if nothing waits any more.
    pub(super) fn note(&self, key: &Key, clusters: Vec<String>) {
        let mut all = self.clusters.lock();
        for cluster in &clusters {
            self.count(cluster).inc();
        }
        let before = if clusters.is_empty() { all.remove(key) } else { all.insert(key.clone(), clusters) };
        for cluster in before.iter().flatten() {
            self.count(cluster).dec();
        }
        let depth = i64::try_from(all.len()).unwrap_or(i64::MAX);
        METRICS.depth.get_or_create(&[("name", self.queue)]).set(depth);
    }

    fn count(&self, cluster: &str) -> Gauge {
        let labels = [("member_cluster", cluster.to_owned()), ("resource_kind", self.kind.to_owned())];
        METRICS.kinds.get_or_create(&labels).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_until_it_does_not() {
        let waiting = Waiting::new("a-queue-of-this-test", "ResourceBinding");
        let (one, other) = (Key::new("ns", "one"), Key::new("ns", "other"));
        let clusters = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<String>>();
        let counted = || {
            let depth = METRICS.depth.get_or_create(&[("name", "a-queue-of-this-test")]).get();
            (depth, waiting.count("a-lost-one").get(), waiting.count("another-lost-one").get())
        };
        waiting.note(&one, clusters(&["a-lost-one"]));
        waiting.note(&other, clusters(&["a-lost-one", "another-lost-one"]));
        assert_eq!(counted(), (2, 2, 1));
        waiting.note(&other, clusters(&["another-lost-one"]));
        assert_eq!(counted(), (2, 1, 1), "one of the two came back");
        waiting.note(&one, Vec::new());
        waiting.note(&other, Vec::new());
        waiting.note(&other, Vec::new());
        assert_eq!(counted(), (0, 0, 0));
    }
}
