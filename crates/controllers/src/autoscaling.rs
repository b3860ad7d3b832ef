//! Autoscaling over several clusters: by metrics, by the clock, and in step with autoscalers inside of members.
//!
//! Code map: `settings` what flags say · `hpa` scales by metrics, `metrics` asks for them, `pods` knows the members' pods · `cron`
//! scales by the clock · `scale` reads and writes the scale of any kind · `marker` and `syncer` let a member's own autoscaler
//! decide · `preview` foresees all of it · `telemetry` measures it.

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
