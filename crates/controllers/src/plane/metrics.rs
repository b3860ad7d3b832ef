//! The metrics of policies and bindings, under upstream's names.

use std::sync::LazyLock;
use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;
use runtime::metrics::{Counters, Histograms, add, seconds};

/// Buckets of all durations here.
const BUCKETS: u16 = 12;

pub(super) struct Metrics {
    matching: Histogram,
    applying: Histograms<1>,
    attempts: Counters<1>,
    rendering: Histograms<1>,
    preemptions: Counters<1>,
}

pub(super) static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let metrics = Metrics {
        matching: seconds::<BUCKETS>(),
        applying: Histograms::new_with_constructor(seconds::<BUCKETS>),
        attempts: Counters::default(),
        rendering: Histograms::new_with_constructor(seconds::<BUCKETS>),
        preemptions: Counters::default(),
    };
    add(|registry| {
        let help = "Duration in seconds to find the policy of a template";
        registry.register("resource_match_policy_duration_seconds", help, metrics.matching.clone());
        let help = "Duration in seconds to apply a policy to a template";
        registry.register("resource_apply_policy_duration_seconds", help, metrics.applying.clone());
        let help = "Attempts to apply a policy";
        registry.register("policy_apply_attempts", help, metrics.attempts.clone());
        let help = "Duration in seconds to bring the Works of a binding up to date";
        registry.register("binding_sync_work_duration_seconds", help, metrics.rendering.clone());
        let help = "Templates taken over from a policy of lower priority";
        registry.register("policy_preemption", help, metrics.preemptions.clone());
    });
    metrics
});

fn word<T, E>(result: &Result<T, E>) -> [(&'static str, &'static str); 1] {
    [("result", if result.is_ok() { "success" } else { "error" })]
}

impl Metrics {
    pub(super) fn matched(&self, started: Instant) {
        self.matching.observe(started.elapsed().as_secs_f64());
    }

    pub(super) fn applied<T, E>(&self, started: Instant, result: &Result<T, E>) {
        self.applying.get_or_create(&word(result)).observe(started.elapsed().as_secs_f64());
        self.attempts.get_or_create(&word(result)).inc();
    }

    pub(super) fn rendered<T, E>(&self, started: Instant, result: &Result<T, E>) {
        self.rendering.get_or_create(&word(result)).observe(started.elapsed().as_secs_f64());
    }

    pub(super) fn preempted<T, E>(&self, result: &Result<T, E>) {
        self.preemptions.get_or_create(&word(result)).inc();
    }
}
