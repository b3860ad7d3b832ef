//! The scheduler's flags, by upstream's names, wherever the scheduler runs.

use anyhow::bail;
use clap::Args;
use controllers::plane::scheduling::Settings;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Scheduler")]
pub(crate) struct Flags {
    /// Name of the scheduler: it takes care of bindings whose spec.schedulerName is this.
    #[arg(long, value_name = "NAME", default_value = "default-scheduler")]
    scheduler_name: String,
    /// Scheduler plug-ins: `*` for all, `name`, `-name`.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    plugins: Vec<String>,
    /// Propagate workloads also to clusters that got no replicas.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_empty_workload_propagation: bool,
}

impl Flags {
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        if self.scheduler_name.is_empty() {
            bail!("--scheduler-name must not be empty");
        }
        Ok(Settings {
            name: self.scheduler_name.clone(),
            plugins: self.plugins.clone(),
            propagate_empty: self.enable_empty_workload_propagation,
            ..Settings::default()
        })
    }
}
