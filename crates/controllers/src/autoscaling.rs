//! Autoscaling over several clusters: by metrics, by schedule, and together with autoscalers inside members.
//!
//! Code map: `settings` holds the flags · `hpa` scales by metrics, `metrics` asks for them, `pods` knows the
//! members' pods · `cron` scales by schedule · `scale` reads and writes the scale of any kind · `marker` and
//! `syncer` let a member's own autoscaler decide · `preview` simulates a day of it · `telemetry` has its
//! metrics.

pub(crate) mod cron;
pub(crate) mod hpa;
pub(crate) mod marker;
mod metrics;
mod pods;
mod preview;
mod scale;
mod settings;
pub(crate) mod syncer;
mod telemetry;

pub use preview::{Moment, START, Workload, preview};
pub use settings::Settings;
pub use workloads::cron::zone;
