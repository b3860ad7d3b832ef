//! Upstream's flags that ours does not need: they are accepted, so that its manifests work, but not shown.
//!
//! Flags that change a result are not here: a flag for something that we do not support is refused as unknown.

use clap::Args;

/// Flags of every upstream component: logging and profiling.
#[derive(Debug, Args)]
pub(crate) struct Everywhere {
    #[command(flatten)]
    logging: Logging,
    #[arg(long, hide = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_pprof: String,
    #[arg(long, hide = true, default_value = ":6060")]
    profiling_bind_address: String,
    #[arg(long, hide = true, default_value = "40")]
    kube_api_qps: String,
    #[arg(long, hide = true, default_value = "60")]
    kube_api_burst: String,
}

/// The flags of Go's loggers. `--log` configures logging here.
#[derive(Debug, Args)]
struct Logging {
    #[arg(long, short = 'v', hide = true, default_value = "0")]
    v: String,
    #[arg(long, hide = true, default_value = "")]
    vmodule: String,
    #[arg(long, hide = true, default_value = "text")]
    logging_format: String,
    #[arg(long, hide = true, default_value = "5s")]
    log_flush_frequency: String,
    #[arg(long, hide = true, default_value = "0")]
    log_json_info_buffer_size: String,
    #[arg(long, hide = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    log_json_split_stream: String,
    #[arg(long, hide = true, default_value = "0")]
    log_text_info_buffer_size: String,
    #[arg(long, hide = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    log_text_split_stream: String,
    #[arg(long, alias = "log_dir", hide = true, default_value = "")]
    log_dir: String,
    #[arg(long, alias = "log_file", hide = true, default_value = "")]
    log_file: String,
    #[arg(long, alias = "log_file_max_size", hide = true, default_value = "1800")]
    log_file_max_size: String,
    #[arg(long, alias = "log_backtrace_at", hide = true, default_value = ":0")]
    log_backtrace_at: String,
    #[arg(long, hide = true, default_value = "2")]
    stderrthreshold: String,
    #[arg(long, hide = true, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    logtostderr: String,
    #[arg(long, hide = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    alsologtostderr: String,
    #[arg(long, alias = "add_dir_header", hide = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    add_dir_header: String,
    #[arg(long, alias = "skip_headers", hide = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    skip_headers: String,
    #[arg(long, alias = "skip_log_headers", hide = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    skip_log_headers: String,
    #[arg(long, alias = "one_output", hide = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    one_output: String,
}

/// Additional flags of upstream's controllers: how many workers there are, and how often they run.
#[derive(Debug, Args)]
pub(crate) struct Controllers {
    #[arg(long, hide = true, default_value = "40")]
    cluster_api_qps: String,
    #[arg(long, hide = true, default_value = "60")]
    cluster_api_burst: String,
    #[arg(long, hide = true, default_value = "2m0s")]
    cluster_cache_sync_timeout: String,
    #[arg(long, hide = true, default_value = "0s")]
    resync_period: String,
    #[arg(long, hide = true, default_value = "5")]
    concurrent_cluster_syncs: String,
    #[arg(long, hide = true, default_value = "5")]
    concurrent_work_syncs: String,
    #[arg(long, hide = true, default_value = "5ms")]
    rate_limiter_base_delay: String,
    #[arg(long, hide = true, default_value = "16m40s")]
    rate_limiter_max_delay: String,
    #[arg(long, hide = true, default_value = "10")]
    rate_limiter_qps: String,
    #[arg(long, hide = true, default_value = "100")]
    rate_limiter_bucket_size: String,
}

/// Flags of upstream's controller manager only.
#[derive(Debug, Args)]
pub(crate) struct Manager {
    #[arg(long, hide = true, default_value = "5")]
    concurrent_clusterresourcebinding_syncs: String,
    #[arg(long, hide = true, default_value = "5")]
    concurrent_resourcebinding_syncs: String,
    #[arg(long, hide = true, default_value = "1")]
    concurrent_namespace_syncs: String,
    #[arg(long, hide = true, default_value = "1")]
    concurrent_propagation_policy_syncs: String,
    #[arg(long, hide = true, default_value = "1")]
    concurrent_cluster_propagation_policy_syncs: String,
    #[arg(long, hide = true, default_value = "5")]
    concurrent_resource_template_syncs: String,
    #[arg(long, hide = true, default_value = "2")]
    concurrent_dependent_resource_syncs: String,
}
