//! The flags of failover, by upstream's names where it has them.

use std::time::Duration;

use api::policy::PurgeMode;
use apimachinery::duration;
use clap::Args;
use controllers::failover::{Descheduler, Settings};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Failover")]
pub(crate) struct Failover {
    /// Run the taint manager; it needs the feature gate Failover, too.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_taint_manager: bool,
    /// Evict workloads from clusters whose NoExecute taints they do not tolerate.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_no_execute_taint_eviction: bool,
    /// What becomes of the old copy if the policy says nothing: Gracefully or Directly.
    #[arg(long, value_name = "MODE", default_value = "Gracefully")]
    no_execute_taint_eviction_purge_mode: String,
    /// How many workloads are evicted per second; the first three are evicted at once.
    #[arg(long, value_name = "RATE", default_value_t = 0.5)]
    resource_eviction_rate: f64,
    /// How long an old copy waits for its replacement to become healthy.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    graceful_eviction_timeout: Duration,
    /// Evictions stop while so many percent of the clusters are lost, and at least --eviction-halt-clusters of them: the
    /// control plane may have lost its own network.
    #[arg(long, value_name = "PERCENT", default_value_t = 55, value_parser = clap::value_parser!(u8).range(1..=100))]
    eviction_halt_percent: u8,
    /// See --eviction-halt-percent.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    eviction_halt_clusters: usize,
    /// How often the descheduler looks for replicas that find no node.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration::parse)]
    descheduling_interval: Duration,
    /// How long a replica waits for a node before the descheduler takes it away.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    unschedulable_threshold: Duration,
}

impl Failover {
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let settings = Settings {
            taint_manager: self.enable_taint_manager,
            evict: self.enable_no_execute_taint_eviction,
            purge_mode: PurgeMode::from(self.no_execute_taint_eviction_purge_mode.as_str()),
            evictions_per_second: self.resource_eviction_rate,
            graceful_timeout: self.graceful_eviction_timeout,
            halt_percent: self.eviction_halt_percent,
            halt_clusters: self.eviction_halt_clusters,
            descheduler: Descheduler {
                interval: self.descheduling_interval,
                threshold: self.unschedulable_threshold,
            },
        };
        settings.check().map_err(anyhow::Error::msg)?;
        Ok(settings)
    }
}
