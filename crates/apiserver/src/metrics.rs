//! Metrics for operators, under kube-apiserver's names.

mod storage;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use store::Store;

use crate::head::Head;
use crate::registry::Kind;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: String,
    pub code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DurationLabels {
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabels {
    pub request_kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResourceLabels {
    pub resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ControllerLabels {
    pub controller: String,
}

fn durations() -> Histogram {
    Histogram::new([
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    ])
}

/// The server's own metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub requests: Family<RequestLabels, Counter>,
    pub durations: Family<DurationLabels, Histogram, fn() -> Histogram>,
    pub inflight: Family<KindLabels, Gauge>,
    pub long_running: Family<DurationLabels, Gauge>,
    objects: Family<ResourceLabels, Gauge>,
    revision: Gauge<i64>,
    pub dropped: Counter<u64, AtomicU64>,
    pub audit_errors: Counter<u64, AtomicU64>,
    pub controller_panics: Family<ControllerLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        let durations: Family<_, _, fn() -> Histogram> = Family::new_with_constructor(durations);
        let inflight = Family::default();
        let long_running = Family::default();
        let objects = Family::default();
        let revision = Gauge::default();
        let dropped = Counter::default();
        // The library appends `_total` to counters.
        registry.register("apiserver_request", "Requests by verb, resource and code", requests.clone());
        registry.register("apiserver_request_duration_seconds", "How long answers took", durations.clone());
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests being worked on",
            inflight.clone(),
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Open watches and proxied streams",
            long_running.clone(),
        );
        registry.register("apiserver_storage_objects", "Stored objects by resource", objects.clone());
        registry.register("apiserver_storage_revision", "The latest revision of the store", revision.clone());
        registry.register(
            "apiserver_dropped_requests",
            "Requests refused because too many waited",
            dropped.clone(),
        );
        let audit_errors = Counter::default();
        registry.register("apiserver_audit_error", "Audit events that were lost", audit_errors.clone());
        let controller_panics = Family::default();
        registry.register(
            "apiserver_controller_panics",
            "How often a controller of the server panicked and was started again",
            controller_panics.clone(),
        );
        Self {
            registry,
            requests,
            durations,
            inflight,
            long_running,
            objects,
            revision,
            dropped,
            audit_errors,
            controller_panics,
        }
    }
}

impl Metrics {
    /// Returns the text that Prometheus reads, with other components' metrics after our own.
    ///
    /// `kinds` maps collections to resources.
    pub fn render(&self, store: &Store<Head>, kinds: &[Arc<Kind>], others: &str) -> String {
        let served = store.collections().into_iter().filter(|(name, _)| !crate::allocator::is_range(name));
        for (collection, count) in served {
            let labels = ResourceLabels { resource: collection.to_string() };
            self.objects.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.revision.set(i64::try_from(store.revision()).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode_registry(&mut text, &self.registry);
        match store.etcd() {
            Some(report) => storage::etcd(&mut text, &report, &storage::Resources::of(kinds)),
            None => storage::size(&mut text, store.stats().file_bytes),
        }
        text.push_str(others);
        let _ = encode_eof(&mut text);
        text
    }
}
