//! The flags of autoscalers, by upstream's names.

use std::time::Duration;

use apimachinery::duration;
use clap::Args;
use controllers::autoscaling::Settings;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Autoscaling")]
pub(crate) struct Autoscaling {
    /// How often the metrics of each FederatedHPA are looked at.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration::parse)]
    horizontal_pod_autoscaler_sync_period: Duration,
    /// Accepted for the sake of upstream's manifests; it has no effect there either.
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = duration::parse)]
    horizontal_pod_autoscaler_upscale_delay: Duration,
    /// For how long earlier, higher recommendations keep replicas, if the FederatedHPA does not say.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// Accepted for the sake of upstream's manifests; it has no effect there either.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    horizontal_pod_autoscaler_downscale_delay: Duration,
    /// By which part a metric may be off its target before anything is done.
    #[arg(long, value_name = "PART", default_value_t = 0.1)]
    horizontal_pod_autoscaler_tolerance: f64,
    /// How long after the start of a pod its cpu counts only if it is ready and was measured since.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// A pod that stops being ready within this time after its start counts as never ready.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    horizontal_pod_autoscaler_initial_readiness_delay: Duration,
}

impl Autoscaling {
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let settings = Settings {
            sync_period: self.horizontal_pod_autoscaler_sync_period,
            downscale_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
            tolerance: self.horizontal_pod_autoscaler_tolerance,
            cpu_initialization_period: self.horizontal_pod_autoscaler_cpu_initialization_period,
            initial_readiness_delay: self.horizontal_pod_autoscaler_initial_readiness_delay,
        };
        settings.check().map_err(anyhow::Error::msg)?;
        Ok(settings)
    }
}
