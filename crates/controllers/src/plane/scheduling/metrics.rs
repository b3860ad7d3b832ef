//! The metrics of the scheduler, under upstream's names.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use scheduler::meter::{Meter, Part};
use scheduler::trigger::Trigger;

use runtime::metrics::{self, Counters, Histograms, Labels};

/// Why a binding was enqueued.
#[derive(Debug, Clone, Copy)]
pub(super) enum Incoming {
    BindingAdd,
    BindingUpdate,
    ClusterChanged,
    ScheduleAttemptFailure,
}

struct Metrics {
    attempts: Counters<2>,
    durations: Histograms<2>,
    steps: Histograms<1>,
    incoming: Counters<1>,
    points: Histograms<2>,
    plugins: Histograms<3>,
    pending: Family<Labels<1>, Gauge>,
    panics: Counter,
}

static METRICS: LazyLock<Metrics> = LazyLock::new(|| metrics::add(Metrics::new));

impl Metrics {
    fn new(registry: &mut Registry) -> Self {
        let seconds: fn() -> Histogram = metrics::seconds::<15>;
        let metrics = Self {
            attempts: Family::default(),
            durations: Family::new_with_constructor(seconds),
            steps: Family::new_with_constructor(seconds),
            incoming: Family::default(),
            points: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0001, 2.0, 12))),
            plugins: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.00001, 1.5, 20))),
            pending: Family::default(),
            panics: Counter::default(),
        };
        registry.register(
            "karmada_scheduler_schedule_attempts",
            "Attempts to schedule a binding",
            metrics.attempts.clone(),
        );
        registry.register(
            "karmada_scheduler_e2e_scheduling_duration_seconds",
            "How long attempts took, with what they wrote",
            metrics.durations.clone(),
        );
        registry.register(
            "karmada_scheduler_scheduling_algorithm_duration_seconds",
            "How long the steps of decisions took",
            metrics.steps.clone(),
        );
        registry.register(
            "karmada_scheduler_queue_incoming_bindings",
            "Bindings that came into the queue, by what brought them there",
            metrics.incoming.clone(),
        );
        registry.register(
            "karmada_scheduler_framework_extension_point_duration_seconds",
            "How long all plug-ins of an extension point took, measured at one cluster per decision",
            metrics.points.clone(),
        );
        registry.register(
            "karmada_scheduler_plugin_execution_duration_seconds",
            "How long a plug-in took, measured at one cluster per decision",
            metrics.plugins.clone(),
        );
        registry.register(
            "scheduler_pending_bindings",
            "Bindings that wait: for their turn, to be tried again, or for room",
            metrics.pending.clone(),
        );
        let help = "Attempts to schedule a binding that panicked";
        registry.register("karmada_scheduler_panics", help, metrics.panics.clone());
        metrics
    }
}

/// Notes that an attempt has ended.
pub(super) fn attempted(trigger: Trigger, time: Duration, failed: bool) {
    let result = if failed { "error" } else { "scheduled" };
    let labels = [("result", result), ("schedule_type", trigger.schedule_type())];
    METRICS.attempts.get_or_create(&labels).inc();
    METRICS.durations.get_or_create(&labels).observe(time.as_secs_f64());
}

/// Notes that an attempt panicked.
pub(super) fn panicked() {
    METRICS.panics.inc();
}

/// Records that bindings were enqueued.
pub(super) fn incoming(event: Incoming, count: usize) {
    let event = match event {
        Incoming::BindingAdd => "BindingAdd",
        Incoming::BindingUpdate => "BindingUpdate",
        Incoming::ClusterChanged => "ClusterChanged",
        Incoming::ScheduleAttemptFailure => "ScheduleAttemptFailure",
    };
    METRICS.incoming.get_or_create(&[("event", event)]).inc_by(count as u64);
}

/// Notes how many bindings wait: active, in back-off, unschedulable.
pub(super) fn pending((active, backoff, unschedulable): (usize, usize, usize)) {
    for (queue, count) in [("active", active), ("backoff", backoff), ("unschedulable", unschedulable)] {
        METRICS.pending.get_or_create(&[("queue", queue)]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// Measures decisions by the clock of this machine.
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Meter for Stopwatch {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn took(&self, part: Part, time: Duration) {
        let seconds = time.as_secs_f64();
        match part {
            Part::Step(step) => METRICS.steps.get_or_create(&[("schedule_step", step)]).observe(seconds),
            Part::Point { point, result } => {
                let labels = [("extension_point", point), ("result", result)];
                METRICS.points.get_or_create(&labels).observe(seconds);
            }
            Part::Plugin { plugin, point, result } => {
                let labels = [("plugin", plugin), ("extension_point", point), ("result", result)];
                METRICS.plugins.get_or_create(&labels).observe(seconds);
            }
        }
    }
}
