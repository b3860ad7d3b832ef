//! What is measured, under upstream's names.

use std::sync::LazyLock;
use std::time::Instant;

use runtime::metrics::{Counters, Histograms, add, seconds};

const BUCKETS: u16 = 10;

pub(super) struct Metrics {
    requests: Counters<2>,
    durations: Histograms<3>,
}

pub(super) static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let metrics = Metrics {
        requests: Counters::default(),
        durations: Histograms::new_with_constructor(seconds::<BUCKETS>),
    };
    add(|registry| {
        let name = "karmada_scheduler_estimator_estimating_request";
        registry.register(name, "Questions by type and result", metrics.requests.clone());
        let name = "karmada_scheduler_estimator_estimating_algorithm_duration_seconds";
        registry.register(name, "Duration in seconds to answer a question", metrics.durations.clone());
    });
    metrics
});

impl Metrics {
    pub(super) fn answered(&self, kind: &'static str, started: Instant, success: bool) {
        let result = if success { "success" } else { "error" };
        self.requests.get_or_create(&[("result", result), ("type", kind)]).inc();
        let labels = [("result", result), ("type", kind), ("step", "Total")];
        self.durations.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
    }
}
