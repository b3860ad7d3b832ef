//! The scheduler's flags, by upstream's names, wherever the scheduler runs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use apimachinery::duration;
use clap::Args;
use controllers::plane::scheduling::{Estimating, Settings};
use estimator::tls::Tls;

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
    /// Ask the scheduler estimators of the clusters how much room there is.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_scheduler_estimator: bool,
    /// Leave out the estimators of clusters in pull mode.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    disable_scheduler_estimator_in_pull_mode: bool,
    /// How long all estimators together may take to answer, such as `3s`.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration::parse)]
    scheduler_estimator_timeout: Duration,
    /// Namespace of the estimators' Services in the control plane.
    #[arg(long, value_name = "NAMESPACE", default_value = "karmada-system")]
    scheduler_estimator_service_namespace: String,
    /// The Service of a cluster's estimator is called PREFIX-CLUSTER.
    #[arg(long, value_name = "PREFIX", default_value = "karmada-scheduler-estimator")]
    scheduler_estimator_service_prefix: String,
    /// Port of the estimators.
    #[arg(long, value_name = "PORT", default_value_t = 10352)]
    scheduler_estimator_port: u16,
    /// Certificate to show to estimators.
    #[arg(long, value_name = "FILE", requires = "scheduler_estimator_key_file")]
    scheduler_estimator_cert_file: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, value_name = "FILE", requires = "scheduler_estimator_cert_file")]
    scheduler_estimator_key_file: Option<PathBuf>,
    /// Authority that signed the estimators' certificates; without it, connections are not encrypted.
    #[arg(long, value_name = "FILE")]
    scheduler_estimator_ca_file: Option<PathBuf>,
    /// Do not check the estimators' certificates.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    insecure_skip_estimator_verify: bool,
}

impl Flags {
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        if self.scheduler_name.is_empty() {
            bail!("--scheduler-name must not be empty");
        }
        let estimators = self.estimators()?;
        let estimating = Estimating {
            options: estimators.clone(),
            skip_pull_mode: self.disable_scheduler_estimator_in_pull_mode,
        };
        Ok(Settings {
            name: self.scheduler_name.clone(),
            plugins: self.plugins.clone(),
            propagate_empty: self.enable_empty_workload_propagation,
            estimating: self.enable_scheduler_estimator.then_some(estimating),
            estimators,
            ..Settings::default()
        })
    }

    fn estimators(&self) -> anyhow::Result<estimator::Options> {
        let tls = Tls {
            ca: self.scheduler_estimator_ca_file.clone(),
            certificate: self.scheduler_estimator_cert_file.clone(),
            key: self.scheduler_estimator_key_file.clone(),
            skip_verification: self.insecure_skip_estimator_verify,
        };
        Ok(estimator::Options {
            namespace: self.scheduler_estimator_service_namespace.clone(),
            prefix: self.scheduler_estimator_service_prefix.clone(),
            port: self.scheduler_estimator_port,
            timeout: self.scheduler_estimator_timeout,
            tls: tls.client_config().context("the estimators' certificates cannot be used")?,
        })
    }
}
