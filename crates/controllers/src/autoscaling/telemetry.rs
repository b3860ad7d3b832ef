//! The metrics of autoscaling, under upstream's names.

use std::sync::LazyLock;
use std::time::Instant;

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use runtime::metrics::{Histograms, add, seconds};

/// Buckets of all durations here.
const BUCKETS: u16 = 12;

pub(super) struct Metrics {
    autoscalers: Histograms<1>,
    pulls: Histograms<2>,
    schedules: Histograms<1>,
    rules: Histograms<1>,
}

pub(super) static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let metrics = Metrics {
        autoscalers: Histograms::new_with_constructor(slow),
        pulls: Histograms::new_with_constructor(slow),
        schedules: Histograms::new_with_constructor(seconds::<BUCKETS>),
        rules: Histograms::new_with_constructor(seconds::<BUCKETS>),
    };
    add(|registry| {
        let help = "Duration in seconds to process a FederatedHPA";
        registry.register("federatedhpa_process_duration_seconds", help, metrics.autoscalers.clone());
        let help = "Duration in seconds to ask for a metric of a FederatedHPA";
        registry.register("federatedhpa_pull_metrics_duration_seconds", help, metrics.pulls.clone());
        let help = "Duration in seconds to process a CronFederatedHPA";
        registry.register("cronfederatedhpa_process_duration_seconds", help, metrics.schedules.clone());
        let help = "Duration in seconds to do what a rule of a CronFederatedHPA asks for";
        registry.register("cronfederatedhpa_rule_process_duration_seconds", help, metrics.rules.clone());
    });
    metrics
});

/// What asks members takes longer: these buckets begin with 10 ms.
fn slow() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 2.0, BUCKETS))
}

fn word(good: bool) -> (&'static str, &'static str) {
    ("result", if good { "success" } else { "error" })
}

impl Metrics {
    pub(super) fn autoscaled(&self, started: Instant, good: bool) {
        self.autoscalers.get_or_create(&[word(good)]).observe(started.elapsed().as_secs_f64());
    }

    /// Notes that a metric was asked for; `kind` is upstream's word for its source.
    pub(super) fn pulled(&self, kind: &'static str, started: Instant, good: bool) {
        let labels = [word(good), ("metricType", kind)];
        self.pulls.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
    }

    pub(super) fn scheduled(&self, started: Instant, good: bool) {
        self.schedules.get_or_create(&[word(good)]).observe(started.elapsed().as_secs_f64());
    }

    pub(super) fn acted(&self, started: Instant, good: bool) {
        self.rules.get_or_create(&[word(good)]).observe(started.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_upstreams_names_labels_and_buckets() {
        let started = Instant::now();
        METRICS.autoscaled(started, true);
        METRICS.pulled("ResourceMetric", started, false);
        METRICS.scheduled(started, false);
        METRICS.acted(started, true);
        let text = runtime::metrics::render();
        for sample in [
            "federatedhpa_process_duration_seconds_bucket{le=\"0.01\",result=\"success\"}",
            "federatedhpa_pull_metrics_duration_seconds_count{result=\"error\",metricType=\"ResourceMetric\"}",
            "cronfederatedhpa_process_duration_seconds_bucket{le=\"0.001\",result=\"error\"}",
            "cronfederatedhpa_rule_process_duration_seconds_count{result=\"success\"}",
        ] {
            assert!(text.lines().any(|line| line.starts_with(sample)), "{sample} is missing");
        }
    }
}
