//! The arithmetic of a HorizontalPodAutoscaler: from metrics to replicas, in one cluster or over many.
//!
//! In: pods and what was measured of them, targets, limits, what was asked for and done lately. Out: the next number of replicas, with
//! reasons. Does not know where metrics come from, nor the time.
//!
//! Code map: `pods` which pods count, and how far · `replicas` what a metric asks for · `limits` what is done about it. The
//! functions here are for those who keep no history.

mod limits;
mod pods;
mod replicas;

use jiff::{SignedDuration, Timestamp};

pub use limits::{
    Amount, Behavior, Bounds, Change, History, Policy, Reason, Rules, Select, Verdict, behaving, plain,
};
pub use pods::{Container, Phase, Pod, Ready, Sample, Samples};
pub use replicas::{Proposal, Workload, by_average, by_share, by_utilization, by_value};

/// How patiently metrics are judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Nothing happens within this part of the target.
    pub tolerance: f64,
    /// How long after its start the cpu of a pod counts only if it is ready and was measured since.
    pub cpu_initialization: SignedDuration,
    /// A pod that stopped being ready within this time after its start has never been ready.
    pub readiness_delay: SignedDuration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tolerance: 0.1,
            cpu_initialization: SignedDuration::from_secs(300),
            readiness_delay: SignedDuration::from_secs(30),
        }
    }
}

/// How long the number must not have changed before it may go down, in seconds, unless the autoscaler says otherwise.
pub const SCALE_DOWN_WINDOW: i64 = 300;

/// What the limits of an autoscaler do to a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Within,
    TooMany,
    TooFew,
}

/// Returns a wish within its limits. Where the limits contradict each other, the lower one counts.
pub fn limited(wish: i64, least: i64, most: i64) -> (i64, Limit) {
    let limit = match wish {
        wish if wish > most => Limit::TooMany,
        wish if wish < least => Limit::TooFew,
        _ => Limit::Within,
    };
    (wish.clamp(least, most.max(least)), limit)
}

/// Returns the next number of replicas: going up is free, going down waits until the number has not changed for `window`
/// seconds.
pub fn next(current: i64, wish: i64, last_change: Option<Timestamp>, window: i64, now: Timestamp) -> i64 {
    let window = SignedDuration::from_secs(window);
    let may_shrink = last_change.is_none_or(|last| now.duration_since(last) >= window);
    if wish < current && !may_shrink { current } else { wish }
}

#[cfg(test)]
mod tests;
