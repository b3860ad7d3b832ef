//! `autoscaling.karmada.io/v1alpha1`: scaling workloads over several clusters, by metrics and by the clock.

mod cron;
mod hpa;
mod metrics;

pub use cron::*;
pub use hpa::*;
pub use metrics::*;

/// The API group of this module.
pub const GROUP: &str = "autoscaling.karmada.io";
