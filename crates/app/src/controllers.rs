//! `karmada controllers`: Karmada's controllers on any Kubernetes API.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use api::features::Features;
use apimachinery::duration;
use clap::Args;
use controllers::plane::scheduling::{Diagnoses, Settings as Scheduling};
use controllers::table;
use controllers::{Context, Fleet, Selection, Settings, Timing};
use k8s_openapi::api::core::v1::Namespace;
use member::{Between, Member, Members};
use parking_lot::Mutex;
use propagation::skip::{SKIPPED_NAMESPACES, SkipRules};
use propagation::withdrawal::Limits;
use runtime::election::{self, Candidate, Leadership};
use runtime::{Supervisor, Writer};
use tokio_util::sync::CancellationToken;

use apiserver::server::Check;

use crate::observability::{self, Topic};
use crate::signals::Signals;
use crate::{autoscaling, cluster_api, failover, scheduling, unneeded};

/// How long controllers may take to end.
const GOODBYE: Duration = Duration::from_secs(10);

/// Run the controllers against a control plane elsewhere: our server or a kube-apiserver with Karmada's definitions.
///
/// Of several processes on one control plane one acts; the others wait until it ends or falls silent.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The control plane's kubeconfig; by default KUBECONFIG or the file in the home directory.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    election: Election,
    /// Address to serve /metrics on, without credentials; `:8080` is all interfaces, `0` is nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    metrics_bind_address: String,
    /// Address to serve /healthz on, without credentials; `:10357` is all interfaces, `0` is nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    health_probe_bind_address: String,
    #[command(flatten)]
    _unneeded: unneeded::Everywhere,
    #[command(flatten)]
    _unneeded_by_controllers: unneeded::Controllers,
    #[command(flatten)]
    _unneeded_by_the_manager: unneeded::Manager,
}

/// Upstream's flags for the Lease.
#[derive(Debug, Args)]
#[command(next_help_heading = "Leader election")]
pub(crate) struct Election {
    /// Act only while holding a Lease of the control plane.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    leader_elect: bool,
    /// How long a Lease that is not renewed is respected.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration::parse)]
    leader_elect_lease_duration: Duration,
    /// How long the holder tries to renew the Lease before it gives up.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    leader_elect_renew_deadline: Duration,
    /// How long everybody waits between two looks at the Lease.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    leader_elect_retry_period: Duration,
    /// Namespace of the Lease.
    #[arg(long, value_name = "NAMESPACE", default_value = "karmada-system")]
    leader_elect_resource_namespace: String,
    /// Name of the Lease; by default that of upstream's component. Processes that share out the controllers among
    /// themselves need a Lease each.
    #[arg(long, value_name = "NAME")]
    leader_elect_resource_name: Option<String>,
}

impl Election {
    /// Returns the candidate for the Lease, or `None` if no election is needed. `lease` is the name of the Lease unless a flag
    /// says otherwise.
    pub(crate) fn candidate(&self, lease: &str) -> anyhow::Result<Option<Candidate>> {
        if !self.leader_elect {
            return Ok(None);
        }
        let timing = election::Timing {
            lease: self.leader_elect_lease_duration,
            renew: self.leader_elect_renew_deadline,
            retry: self.leader_elect_retry_period,
        };
        timing
            .check()
            .context("--leader-elect-lease-duration, -renew-deadline and -retry-period do not fit")?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Some(Candidate {
            namespace: self.leader_elect_resource_namespace.clone(),
            lease: self.leader_elect_resource_name.clone().unwrap_or_else(|| lease.to_owned()),
            identity: format!("{host}_{}", uuid::Uuid::new_v4()),
            timing,
        }))
    }
}

/// Options of the controllers, wherever they run.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    // The help lists the names of all controllers.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true, value_parser = Selection::parse, help = help())]
    controllers: Selection,
    #[command(flatten)]
    scheduling: scheduling::Flags,
    /// Features to switch on or off, as in `Failover=true,AllAlpha=false`.
    #[arg(long, value_name = "LIST", default_value = "")]
    feature_gates: String,
    /// Kinds that policies do not propagate, separated by semicolons: `group`, `group/version`, `group/version/Kind,Kind`.
    /// What a template depends on is brought along with it all the same.
    #[arg(long, value_name = "LIST", default_value = "")]
    skipped_propagating_apis: String,
    /// Namespaces whose objects policies do not propagate, as regular expressions.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = SKIPPED_NAMESPACES)]
    skipped_propagating_namespaces: Vec<String>,
    #[command(flatten)]
    clusters: Clusters,
    #[command(flatten)]
    cluster_api: cluster_api::ClusterApi,
    #[command(flatten)]
    failover: failover::Failover,
    #[command(flatten)]
    autoscaling: autoscaling::Autoscaling,
    /// Removals of copies are held when more templates than this lose copies within a minute, and more than
    /// --removal-limit-percent of all copies are lost. The policy says how to let them go.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    removal_limit_templates: usize,
    /// See --removal-limit-templates; 100 never holds anything.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    removal_limit_percent: u8,
}

/// Returns the help of `--controllers`.
fn help() -> String {
    format!(
        "Controllers that run in this process, by upstream's names: `*` for all that are on by default, `name`, `-name`; \
         empty for none. These are known: {}",
        table::names()
    )
}

/// Upstream's flags for how often and how patiently clusters are looked at.
#[derive(Debug, Args)]
#[command(next_help_heading = "Clusters")]
struct Clusters {
    /// How often the status of a cluster is collected.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    cluster_status_update_frequency: Duration,
    /// How long a cluster has to be healthy again before it counts as ready.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    cluster_success_threshold: Duration,
    /// How long a cluster has to be unhealthy before it counts as not ready.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    cluster_failure_threshold: Duration,
    /// How often the agents of clusters in pull mode are looked at.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    cluster_monitor_period: Duration,
    /// How long an agent may be silent before its cluster's readiness is unknown.
    #[arg(long, value_name = "DURATION", default_value = "40s", value_parser = duration::parse)]
    cluster_monitor_grace_period: Duration,
    /// As --cluster-monitor-grace-period, for a cluster that has never reported.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    cluster_startup_grace_period: Duration,
    /// How long the Lease of an agent lasts.
    #[arg(long, value_name = "DURATION", default_value = "40s", value_parser = duration::parse)]
    cluster_lease_duration: Duration,
    /// Which part of --cluster-lease-duration an agent waits between two renewals of its Lease.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.25)]
    cluster_lease_renew_interval_fraction: f64,
    /// Follow the nodes and pods of members and tell their sums in the status of Clusters; the scheduler estimates with them.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_cluster_resource_modeling: bool,
    /// How often what FederatedResourceQuotas count is counted afresh.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    federated_resource_quota_sync_period: Duration,
}

impl Clusters {
    fn timing(&self) -> anyhow::Result<Timing> {
        let timing = Timing {
            status_period: self.cluster_status_update_frequency,
            success_threshold: self.cluster_success_threshold,
            failure_threshold: self.cluster_failure_threshold,
            monitor_period: self.cluster_monitor_period,
            monitor_grace_period: self.cluster_monitor_grace_period,
            startup_grace_period: self.cluster_startup_grace_period,
            lease_duration: self.cluster_lease_duration,
            lease_renew_fraction: self.cluster_lease_renew_interval_fraction,
            quota_sync_period: self.federated_resource_quota_sync_period,
        };
        timing.check().map_err(anyhow::Error::msg)?;
        Ok(timing)
    }
}

/// The defaults of the command line.
impl Default for Chosen {
    fn default() -> Self {
        Self::by(&[])
    }
}

impl Chosen {
    /// Returns the options for flags that are known to be valid.
    pub(crate) fn by(flags: &[&str]) -> Self {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            chosen: Chosen,
        }
        <Line as clap::Parser>::parse_from(["karmada"].iter().chain(flags)).chosen
    }

    /// Returns the options with additional `--feature-gates`.
    pub(crate) fn with_features(mut self, further: &str) -> Self {
        let both = [self.feature_gates.as_str(), further];
        self.feature_gates = both.into_iter().filter(|list| !list.is_empty()).collect::<Vec<_>>().join(",");
        self
    }

    /// Returns the options with these `--controllers`.
    pub(crate) fn with_controllers(self, controllers: Selection) -> Self {
        Self { controllers, ..self }
    }

    /// Returns the enabled features.
    pub(crate) fn features(&self) -> anyhow::Result<Features> {
        Features::parse(&self.feature_gates).context("--feature-gates cannot be understood")
    }

    /// Returns how often the status of a cluster is collected.
    pub(crate) fn status_period(&self) -> Duration {
        self.clusters.cluster_status_update_frequency
    }

    /// Returns the upstream component for which this stands.
    fn component(&self) -> &'static str {
        if self.controllers.is_only("scheduler") {
            "karmada-scheduler"
        } else if self.controllers.is_only("descheduler") {
            "karmada-descheduler"
        } else {
            "karmada-controller-manager"
        }
    }

    /// Returns the management cluster of cluster-api, if there is one.
    async fn cluster_api(&self) -> anyhow::Result<Option<kube::Client>> {
        self.cluster_api.client().await
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let namespaces = self.skipped_propagating_namespaces.iter().map(String::as_str);
        let skip = SkipRules::new(&self.skipped_propagating_apis, namespaces)
            .context("--skipped-propagating-apis or --skipped-propagating-namespaces cannot be understood")?;
        let removals =
            Limits { templates: self.removal_limit_templates, percent: self.removal_limit_percent };
        Ok(Settings {
            features: self.features()?,
            skip,
            timing: self.clusters.timing()?,
            removals,
            failover: self.failover.settings()?,
            autoscaling: self.autoscaling.settings()?,
            resource_modeling: self.clusters.enable_cluster_resource_modeling,
        })
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let candidate = arguments.election.candidate(arguments.chosen.component())?;
    let address = |flag: &str, text: &str| {
        observability::address(text).map_err(|error| anyhow::anyhow!("--{flag}: {error}"))
    };
    let metrics = address("metrics-bind-address", &arguments.metrics_bind_address)?;
    let health = address("health-probe-bind-address", &arguments.health_probe_bind_address)?;
    let config = match &arguments.kubeconfig {
        Some(path) => cli::config(Some(path), None).await?,
        None => kube::Config::infer()
            .await
            .context("no kubeconfig is given and none is found; use --kubeconfig")?,
    };
    let client = cli::client(config).context("cannot make a client from the kubeconfig")?;
    let cluster_api = arguments.chosen.cluster_api().await?;
    let version = client.apiserver_version().await.context("the control plane does not answer")?;
    crate::migrate::marker::check(&client).await?;
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let _stop_the_rest = stop.clone().drop_guard();
    observability::serve(&[(Topic::Metrics, metrics), (Topic::Health, health)], &stop).await?;
    let leadership = match candidate {
        None => None,
        Some(candidate) => {
            tracing::info!(identity = candidate.identity, lease = candidate.lease, "waiting for the lease");
            tokio::select! {
                leadership = candidate.lead(&client, &stop) => leadership,
                _ = signals.next() => return Ok(()),
            }
        }
    };
    let tasks = Tasks::default();
    let plan = Plan::new(Writer::new(client), &arguments.chosen, Diagnoses::default())?;
    Plan { cluster_api, ..plan }.start(&tasks);
    tracing::info!(version = version.git_version, "controllers run");
    let lost = async {
        match &leadership {
            Some(leadership) => leadership.lost().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        signal = signals.next() => tracing::info!("stopping: {signal}"),
        // From now on, another process may act. Nothing is completed first: the process ends immediately.
        () = lost => anyhow::bail!("leader election lost"),
    }
    signals.end(tasks.stop()).await;
    if let Some(leadership) = leadership {
        leadership.release().await;
    }
    Ok(())
}

/// The configuration from the command line.
#[derive(Clone)]
struct Plan {
    writer: Writer,
    settings: Settings,
    scheduler: Scheduling,
    selection: Selection,
    /// The management cluster whose clusters are joined. A rehearsal has none: it must not change other clusters.
    cluster_api: Option<kube::Client>,
    /// A layer between the controllers and the members, for rehearsals.
    between: Option<Between>,
}

impl Plan {
    /// Returns the configuration; the scheduler keeps the reasons of its decisions in `diagnoses`.
    fn new(writer: Writer, chosen: &Chosen, diagnoses: Diagnoses) -> anyhow::Result<Self> {
        Ok(Self {
            writer,
            settings: chosen.settings()?,
            scheduler: Scheduling { diagnoses, ..chosen.scheduling.settings()? },
            selection: chosen.controllers.clone(),
            cluster_api: None,
            between: None,
        })
    }

    /// Starts the controllers. Returns the members that they manage, if any.
    fn start(&self, tasks: &Tasks) -> Option<Fleet> {
        let supervisor = Supervisor::default();
        let mut context = Context {
            settings: self.settings.clone(),
            scheduler: self.scheduler.clone(),
            writer: self.writer.clone(),
            cluster_api: self.cluster_api.clone(),
            ..Context::new(self.writer.client().clone(), supervisor.clone())
        };
        if let Some(between) = &self.between {
            context.members = Arc::new(Members::behind(supervisor.clone(), between.clone()));
        }
        let fleet = controllers::spawn(&context, &self.selection);
        let members = fleet.clone().map(|fleet: Fleet| -> Ready { Arc::new(move || fleet.ready()) });
        *tasks.0.lock() = Some(Started { supervisor, members });
        fleet
    }
}

/// Runs the controllers until the tasks are stopped, with a layer between them and the members. No other process may act on this
/// control plane. Returns the tasks, and the members if the controllers manage any.
pub(crate) fn rehearse(
    writer: Writer,
    chosen: &Chosen,
    between: Between,
) -> anyhow::Result<(Tasks, Option<Fleet>)> {
    let tasks = Tasks::default();
    let plan = Plan { between: Some(between), ..Plan::new(writer, chosen, Diagnoses::default())? };
    let fleet = plan.start(&tasks);
    Ok((tasks, fleet))
}

/// The tasks of the running controllers; cheap to clone, all clones share their state.
#[derive(Clone, Default)]
pub(crate) struct Tasks(Arc<Mutex<Option<Started>>>);

/// The state of running controllers.
struct Started {
    supervisor: Supervisor,
    /// The members they are connected to.
    members: Option<Ready>,
}

/// Returns the members that can be queried.
pub(crate) type Ready = Arc<dyn Fn() -> Vec<Arc<Member>> + Send + Sync>;

impl Tasks {
    /// Ends them; tasks that do not end in time are cut off.
    pub(crate) async fn stop(&self) {
        let Some(Started { supervisor, .. }) = self.0.lock().take() else { return };
        if tokio::time::timeout(GOODBYE, supervisor.stop()).await.is_err() {
            tracing::warn!(tasks = supervisor.len(), "some controllers did not end in time and are cut off");
            supervisor.cut_off().await;
        }
    }

    /// Cuts them off: another process acts from now on, and a write that still hangs must not arrive after its writes.
    async fn cut_off(&self) {
        let Some(Started { supervisor, .. }) = self.0.lock().take() else { return };
        supervisor.cut_off().await;
    }

    /// Returns the members that can be queried; `None` if this process is not connected to members.
    pub(crate) fn ready_members(&self) -> Option<Vec<Arc<Member>>> {
        let members = self.0.lock().as_ref().and_then(|started| started.members.clone());
        members.map(|members| members())
    }

    /// Sets the members to query, in a process without controllers.
    pub(crate) fn look_at(&self, members: Ready) {
        *self.0.lock() = Some(Started { supervisor: Supervisor::default(), members: Some(members) });
    }

    /// Returns the checks for `/readyz`: one line for all tasks, and one for each that has ever died.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let reports = self.0.lock().as_ref().map(|started| started.supervisor.report()).unwrap_or_default();
        let failing: Vec<&str> =
            reports.iter().filter(|report| report.failing).map(|report| report.name.as_str()).collect();
        let failure = (!failing.is_empty()).then(|| format!("these keep dying: {}", failing.join(", ")));
        let died = reports.iter().filter(|report| report.restarts > 0 || report.last.is_some());
        let each = died.map(|report| Check {
            name: format!("karmada-controllers/{}", report.name).into(),
            live: false,
            failure: report.failing.then(|| report.last.clone().unwrap_or_default()),
        });
        [Check { name: "karmada-controllers".into(), live: false, failure }].into_iter().chain(each).collect()
    }
}

/// The controllers of a server: they act while they hold the Lease.
pub(crate) struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Lets the controllers act whenever this server holds the Lease. A server that is alone gets it at once: the Lease is free,
    /// or a predecessor on the same data holds it, which has the same identity. If servers share a store, `server` distinguishes
    /// this one from the others.
    pub(crate) async fn elected(
        writer: Writer,
        chosen: &Chosen,
        server: Option<String>,
        diagnoses: Diagnoses,
        tasks: Tasks,
    ) -> anyhow::Result<Self> {
        let plan = Plan::new(writer, chosen, diagnoses)?;
        let plan = Plan { cluster_api: chosen.cluster_api().await?, ..plan };
        let stop = CancellationToken::new();
        if chosen.controllers.is_empty() {
            if plan.cluster_api.is_some() {
                tracing::warn!("--cluster-api-kubeconfig has no effect: no controllers run here");
            }
            return Ok(Self { stop, task: tokio::spawn(async {}) });
        }
        crate::migrate::marker::check(plan.writer.client()).await?;
        let own = match server {
            Some(server) => server,
            // It lives as long as the store, and each store has a different one.
            None => {
                let namespaces = kube::Api::<Namespace>::all(plan.writer.client().clone());
                let found = namespaces.get("kube-system").await;
                found.context("cannot tell this control plane from others")?.metadata.uid.unwrap_or_default()
            }
        };
        let candidate = Candidate {
            namespace: "karmada-system".to_owned(),
            lease: chosen.component().to_owned(),
            identity: format!("karmada-server_{own}"),
            timing: election::Timing::default(),
        };
        let task = tokio::spawn(act(plan, candidate, tasks, stop.clone()));
        Ok(Self { stop, task })
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

/// Waits for the Lease, acts while it is held, and starts over when it is lost.
async fn act(plan: Plan, candidate: Candidate, tasks: Tasks, stop: CancellationToken) {
    while let Some(leadership) = candidate.clone().lead(plan.writer.client(), &stop).await {
        plan.start(&tasks);
        let lost = tokio::select! {
            () = leadership.lost() => true,
            () = stop.cancelled() => false,
        };
        if lost {
            tracing::error!("another process acts as controllers; these wait until it ends");
            tasks.cut_off().await;
        } else {
            tasks.stop().await;
            Leadership::release(leadership).await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        chosen: Chosen,
    }

    fn parsed(flags: &[&str]) -> Result<Chosen, String> {
        use clap::Parser;
        let line = ["karmada"].iter().chain(flags);
        Command::try_parse_from(line).map(|command| command.chosen).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn controllers_that_hang_do_not_outlive_the_lease() {
        let (supervisor, (held, dropped)) = (Supervisor::default(), tokio::sync::oneshot::channel::<()>());
        supervisor.spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        let tasks = Tasks(Arc::new(Mutex::new(Some(Started { supervisor, members: None }))));
        tokio::task::yield_now().await;
        tokio::time::timeout(GOODBYE / 2, tasks.cut_off()).await.expect("it waits for nobody");
        dropped.await.expect_err("it is gone");
    }

    #[test]
    fn defaults_are_upstreams() {
        let chosen = parsed(&[]).expect("defaults");
        assert_eq!(chosen.clusters.timing().expect("good defaults"), Timing::default());
        let failover = chosen.failover.settings().expect("good defaults");
        assert_eq!(failover, controllers::failover::Settings::default());
        assert_eq!(
            (chosen.controllers.clone(), chosen.component()),
            (Selection::default(), "karmada-controller-manager")
        );
        assert_eq!(parsed(&["--controllers", "scheduler"]).expect("one").component(), "karmada-scheduler");
        assert_eq!(
            parsed(&["--controllers", "descheduler"]).expect("one").component(),
            "karmada-descheduler"
        );
    }

    /// Upstream's flags that we support, and their defaults.
    const UPSTREAM: &[(&str, &str)] = &[
        ("controllers", "*"),
        ("feature-gates", ""),
        ("skipped-propagating-apis", ""),
        ("skipped-propagating-namespaces", "kube-.*"),
        ("cluster-status-update-frequency", "10s"),
        ("cluster-success-threshold", "30s"),
        ("cluster-failure-threshold", "30s"),
        ("cluster-monitor-period", "5s"),
        ("cluster-monitor-grace-period", "40s"),
        ("cluster-startup-grace-period", "60s"),
        ("cluster-lease-duration", "40s"),
        ("cluster-lease-renew-interval-fraction", "0.25"),
        ("federated-resource-quota-sync-period", "5m"),
        ("enable-cluster-resource-modeling", "true"),
        ("leader-elect", "true"),
        ("leader-elect-lease-duration", "15s"),
        ("leader-elect-renew-deadline", "10s"),
        ("leader-elect-retry-period", "2s"),
        ("leader-elect-resource-namespace", "karmada-system"),
        ("scheduler-name", "default-scheduler"),
        ("plugins", "*"),
        ("enable-empty-workload-propagation", "false"),
        ("enable-scheduler-estimator", "false"),
        ("disable-scheduler-estimator-in-pull-mode", "false"),
        ("scheduler-estimator-timeout", "3s"),
        ("scheduler-estimator-service-namespace", "karmada-system"),
        ("scheduler-estimator-service-prefix", "karmada-scheduler-estimator"),
        ("scheduler-estimator-port", "10352"),
        ("scheduler-estimator-cert-file", ""),
        ("scheduler-estimator-key-file", ""),
        ("scheduler-estimator-ca-file", ""),
        ("insecure-skip-estimator-verify", "false"),
        ("enable-taint-manager", "true"),
        ("enable-no-execute-taint-eviction", "false"),
        ("no-execute-taint-eviction-purge-mode", "Gracefully"),
        ("resource-eviction-rate", "0.5"),
        ("graceful-eviction-timeout", "10m"),
        ("descheduling-interval", "2m"),
        ("unschedulable-threshold", "5m"),
        ("horizontal-pod-autoscaler-sync-period", "15s"),
        ("horizontal-pod-autoscaler-upscale-delay", "3m"),
        ("horizontal-pod-autoscaler-downscale-stabilization", "5m"),
        ("horizontal-pod-autoscaler-downscale-delay", "5m"),
        ("horizontal-pod-autoscaler-tolerance", "0.1"),
        ("horizontal-pod-autoscaler-cpu-initialization-period", "5m"),
        ("horizontal-pod-autoscaler-initial-readiness-delay", "30s"),
        ("cluster-api-kubeconfig", ""),
        ("cluster-api-context", ""),
        ("cluster-api-qps", "40"),
        ("cluster-api-burst", "60"),
        ("kube-api-qps", "40"),
        ("kube-api-burst", "60"),
        ("cluster-cache-sync-timeout", "2m0s"),
        ("resync-period", "0s"),
        ("concurrent-cluster-syncs", "5"),
        ("concurrent-clusterresourcebinding-syncs", "5"),
        ("concurrent-resourcebinding-syncs", "5"),
        ("concurrent-work-syncs", "5"),
        ("concurrent-namespace-syncs", "1"),
        ("concurrent-propagation-policy-syncs", "1"),
        ("concurrent-cluster-propagation-policy-syncs", "1"),
        ("concurrent-resource-template-syncs", "5"),
        ("concurrent-dependent-resource-syncs", "2"),
        ("enable-cluster-resource-modeling", "true"),
        ("rate-limiter-base-delay", "5ms"),
        ("rate-limiter-max-delay", "16m40s"),
        ("rate-limiter-qps", "10"),
        ("rate-limiter-bucket-size", "100"),
        ("enable-pprof", "false"),
        ("profiling-bind-address", ":6060"),
        ("logging-format", "text"),
    ];

    /// Returns the flags of `karmada controllers` with their defaults.
    fn flags() -> std::collections::BTreeMap<String, String> {
        let command = Arguments::augment_args(clap::Command::new("karmada"));
        let named = |flag: &clap::Arg| {
            let defaults: Vec<_> = flag.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
            Some((flag.get_long()?.to_owned(), defaults.join(",")))
        };
        command.get_arguments().filter_map(named).collect()
    }

    #[test]
    fn flags_have_upstreams_names_and_defaults() {
        let flags = flags();
        for (flag, default) in UPSTREAM {
            assert_eq!(flags.get(*flag).map(String::as_str), Some(*default), "--{flag}");
        }
    }

    #[test]
    fn every_flag_that_a_comment_names_exists() {
        let (flags, crates) = (flags(), std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        let mut named = std::collections::BTreeSet::new();
        let mut folders: Vec<PathBuf> = ["controllers", "runtime", "member", "scheduler", "propagation"]
            .iter()
            .map(|name| crates.join(name).join("src"))
            .collect();
        while let Some(folder) = folders.pop() {
            for entry in
                std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path())
            {
                if entry.is_dir() {
                    folders.push(entry);
                    continue;
                }
                let text = std::fs::read_to_string(&entry).expect("a source file");
                for comment in
                    text.lines().filter_map(|line| line.split_once("//").map(|(_, comment)| comment))
                {
                    let words = comment.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                    let flags = words.filter_map(|word| {
                        word.strip_prefix("--").filter(|flag| !flag.starts_with('-') && !flag.is_empty())
                    });
                    named.extend(flags.map(|flag| (flag.to_owned(), entry.display().to_string())));
                }
            }
        }
        assert!(named.len() > 10, "the comments are read: {named:?}");
        for (flag, file) in named {
            assert!(flags.contains_key(&flag), "{file} names --{flag}, which does not exist");
        }
    }

    #[test]
    fn flags_for_clusters_are_read_and_checked() {
        let chosen =
            parsed(&["--cluster-status-update-frequency=3s", "--cluster-monitor-grace-period=1m30s"])
                .expect("flags");
        let timing = chosen.clusters.timing().expect("a timing");
        assert_eq!((timing.status_period.as_secs(), timing.monitor_grace_period.as_secs()), (3, 90));
        let never = parsed(&["--cluster-monitor-period=0s"]).expect("a duration");
        assert_eq!(
            never.clusters.timing().unwrap_err().to_string(),
            "--cluster-monitor-period must be greater than 0"
        );
        assert!(parsed(&["--cluster-monitor-period=soon"]).unwrap_err().contains("soon"));
    }

    #[test]
    fn the_help_names_every_controller() {
        let help = Command::command().render_long_help().to_string();
        let words: std::collections::BTreeSet<&str> =
            help.split(|c: char| !c.is_alphanumeric() && c != '-').collect();
        for declaration in table::TABLE {
            assert!(words.contains(declaration.name), "{} is missing in\n{help}", declaration.name);
        }
    }

    #[tokio::test]
    async fn tasks_that_keep_dying_are_shown_and_fail_the_check() {
        let tasks = Tasks::default();
        let names = |tasks: &Tasks| {
            tasks
                .checks()
                .into_iter()
                .map(|check| (check.name.into_owned(), check.failure.is_some()))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&tasks), [("karmada-controllers".to_owned(), false)]);
        let supervisor = Supervisor::default();
        *tasks.0.lock() = Some(Started { supervisor: supervisor.clone(), members: None });
        supervisor.keep("short-lived", || async {});
        let failing = async {
            while !names(&tasks).contains(&("karmada-controllers/short-lived".to_owned(), true)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), failing).await.expect("it is shown");
        assert_eq!(names(&tasks)[0], ("karmada-controllers".to_owned(), true));
        tasks.stop().await;
        assert_eq!(names(&tasks), [("karmada-controllers".to_owned(), false)]);
    }
}
