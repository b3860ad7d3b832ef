//! The metrics of every queue, under the names that controllers in Go give them: dashboards know them.
//!
//! The handles are fetched once per queue; counting is then a few atomic additions.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::Outcome;
use crate::metrics::{Counters, Gauges, Histograms, add};

/// Seconds from ten nanoseconds to a quarter of an hour, as in Go's queues.
fn waits() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 12))
}

/// As in controller-runtime: fine below a second, coarse up to a minute.
fn attempts() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0,
        1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0,
        40.0, 50.0, 60.0,
    ])
}

struct All {
    depth: Gauges<3>,
    adds: Counters<2>,
    retries: Counters<2>,
    waited: Histograms<2>,
    worked: Histograms<2>,
    reconciled: Counters<2>,
    failed: Counters<1>,
    panicked: Counters<1>,
    /// Dashboards look for these two. They stay 0: no key is given up for good, and no reconcile has a time limit.
    given_up: Counters<1>,
    timed_out: Counters<1>,
    reconciling: Histograms<1>,
    limit: Gauges<1>,
    active: Gauges<1>,
}

static ALL: LazyLock<All> = LazyLock::new(|| {
    let all = All {
        depth: Gauges::default(),
        adds: Counters::default(),
        retries: Counters::default(),
        waited: Histograms::new_with_constructor(waits),
        worked: Histograms::new_with_constructor(waits),
        reconciled: Counters::default(),
        failed: Counters::default(),
        panicked: Counters::default(),
        given_up: Counters::default(),
        timed_out: Counters::default(),
        reconciling: Histograms::new_with_constructor(attempts),
        limit: Gauges::default(),
        active: Gauges::default(),
    };
    add(|registry| {
        registry.register("workqueue_depth", "Current depth of the queue", all.depth.clone());
        registry.register("workqueue_adds", "Keys that were put into the queue", all.adds.clone());
        registry.register(
            "workqueue_retries",
            "Keys that were put back after a failure",
            all.retries.clone(),
        );
        let help = "How long in seconds a key stays in the queue before it is worked on";
        registry.register("workqueue_queue_duration_seconds", help, all.waited.clone());
        let help = "How long in seconds the work on a key takes";
        registry.register("workqueue_work_duration_seconds", help, all.worked.clone());
        let help = "Reconciles per controller and result";
        registry.register("controller_runtime_reconcile", help, all.reconciled.clone());
        let help = "Reconciles per controller that failed";
        registry.register("controller_runtime_reconcile_errors", help, all.failed.clone());
        let help = "Reconciles per controller that panicked";
        registry.register("controller_runtime_reconcile_panics", help, all.panicked.clone());
        let help = "Reconciles per controller that failed and are not tried again";
        registry.register("controller_runtime_terminal_reconcile_errors", help, all.given_up.clone());
        let help = "Reconciles per controller that took longer than they may";
        registry.register("controller_runtime_reconcile_timeouts", help, all.timed_out.clone());
        let help = "How long in seconds a reconcile takes";
        registry.register("controller_runtime_reconcile_time_seconds", help, all.reconciling.clone());
        let help = "How many reconciles may run at once; 0 stands for any number";
        registry.register("controller_runtime_max_concurrent_reconciles", help, all.limit.clone());
        let help = "How many reconciles run";
        registry.register("controller_runtime_active_workers", help, all.active.clone());
    });
    all
});

/// The metrics of one queue.
pub(super) struct Metrics {
    pub(super) depth: Gauge,
    pub(super) adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
    reconciled: [Counter; 3],
    failed: Counter,
    panicked: Counter,
    reconciling: Histogram,
    limit: Gauge,
    active: Gauge,
}

impl Metrics {
    pub(super) fn new(name: &'static str) -> Self {
        let (queue, controller) = ([("name", name), ("controller", name)], [("controller", name)]);
        let result = |result| [("controller", name), ("result", result)];
        for never in [&ALL.given_up, &ALL.timed_out] {
            drop(never.get_or_create(&controller));
        }
        Self {
            depth: ALL.depth.get_or_create_owned(&[("name", name), ("controller", name), ("priority", "0")]),
            adds: ALL.adds.get_or_create_owned(&queue),
            retries: ALL.retries.get_or_create_owned(&queue),
            waited: ALL.waited.get_or_create_owned(&queue),
            worked: ALL.worked.get_or_create_owned(&queue),
            reconciled: ["success", "error", "requeue_after"]
                .map(|word| ALL.reconciled.get_or_create_owned(&result(word))),
            failed: ALL.failed.get_or_create_owned(&controller),
            panicked: ALL.panicked.get_or_create_owned(&controller),
            reconciling: ALL.reconciling.get_or_create_owned(&controller),
            limit: ALL.limit.get_or_create_owned(&controller),
            active: ALL.active.get_or_create_owned(&controller),
        }
    }

    pub(super) fn limited_to(&self, limit: usize) {
        self.limit.set(if limit == super::UNLIMITED { 0 } else { i64::try_from(limit).unwrap_or(i64::MAX) });
    }

    pub(super) fn begin(&self, waited: Duration) {
        self.waited.observe(waited.as_secs_f64());
        self.active.inc();
    }

    pub(super) fn end(&self, took: Duration, outcome: &Outcome) {
        self.active.dec();
        self.worked.observe(took.as_secs_f64());
        self.reconciling.observe(took.as_secs_f64());
        let [success, error, requeue_after] = &self.reconciled;
        match outcome {
            Outcome::Done => success.inc(),
            Outcome::After(_) => requeue_after.inc(),
            Outcome::Retry | Outcome::Failed { .. } | Outcome::Panicked(_) => {
                if let Outcome::Panicked(_) = outcome {
                    self.panicked.inc();
                }
                self.failed.inc();
                self.retries.inc();
                error.inc()
            }
        };
    }
}
