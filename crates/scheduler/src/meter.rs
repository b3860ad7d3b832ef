//! How long the parts of a decision take, for whoever measures it.
//!
//! The crate has no clock of its own; a [`Meter`] brings one along. Steps are measured in every decision, plug-ins at
//! one cluster of each: reading the clock for every plug-in and cluster would take longer than most of them do.

use std::time::Duration;

/// Measures decisions.
pub trait Meter: Send + Sync {
    /// Returns a time that only ever grows.
    fn now(&self) -> Duration;

    /// Is told how long a part took.
    fn took(&self, part: Part, time: Duration);
}

/// A part of a decision. The texts are the values of upstream's metric labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// One of `Filter`, `Score`, `Select` (with the estimates) and `AssignReplicas`.
    Step(&'static str),
    /// All plug-ins of a point: `Filter` for one cluster, or `Score` for all of them.
    Point { point: &'static str, result: &'static str },
    /// One plug-in for one cluster.
    Plugin { plugin: &'static str, point: &'static str, result: &'static str },
}

pub(crate) const FILTER: &str = "Filter";
pub(crate) const SCORE: &str = "Score";
pub(crate) const SELECT: &str = "Select";
pub(crate) const ASSIGN_REPLICAS: &str = "AssignReplicas";

/// Returns how a filter's answer is called.
pub(crate) fn of_filter<T>(rejection: &Option<T>) -> &'static str {
    if rejection.is_none() { "Success" } else { "Unschedulable" }
}

/// Returns how the outcome of scoring is called.
pub(crate) fn of_score<T, E>(score: &Result<T, E>) -> &'static str {
    if score.is_ok() { "Success" } else { "Error" }
}

/// A meter, or nothing that costs anything.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a>(pub(crate) Option<&'a dyn Meter>);

impl Watch<'_> {
    pub(crate) fn measure<T>(self, part: impl FnOnce(&T) -> Part, work: impl FnOnce() -> T) -> T {
        let Some(meter) = self.0 else { return work() };
        let start = meter.now();
        let result = work();
        meter.took(part(&result), meter.now().saturating_sub(start));
        result
    }
}
