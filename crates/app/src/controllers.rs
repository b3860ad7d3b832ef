//! `karmada controllers`: Karmada's controllers on any Kubernetes API.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use api::features::Features;
use apimachinery::duration;
use clap::Args;
use controllers::election::{Candidate, Timing};
use controllers::plane::scheduling::{Diagnoses, Settings as Scheduling};
use controllers::{Context, Selection, Settings};
use propagation::skip::{SKIPPED_NAMESPACES, SkipRules};
use propagation::withdrawal::Limits;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::measured::{self, Topic};
use crate::scheduling;
use crate::signals::Signals;

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
}

/// Upstream's flags for the Lease.
#[derive(Debug, Args)]
#[command(next_help_heading = "Leader election")]
struct Election {
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
    /// Returns who stands in line, or nothing if nobody has to.
    fn candidate(&self, chosen: &Chosen) -> anyhow::Result<Option<Candidate>> {
        if !self.leader_elect {
            return Ok(None);
        }
        let timing = Timing {
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
            lease: self.leader_elect_resource_name.clone().unwrap_or_else(|| chosen.component().to_owned()),
            identity: format!("{host}_{}", uuid::Uuid::new_v4()),
            timing,
        }))
    }
}

/// What can be chosen for the controllers, wherever they run.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    /// Controllers that run in this process, by upstream's names: `*` for all, `name`, `-name`; empty for none.
    #[arg(long, value_name = "LIST", default_value = "*")]
    controllers: String,
    #[command(flatten)]
    scheduling: scheduling::Flags,
    /// Features to switch on or off, as in `Failover=true,AllAlpha=false`.
    #[arg(long, value_name = "LIST", default_value = "")]
    feature_gates: String,
    /// Kinds that are never propagated, separated by semicolons: `group`, `group/version`, `group/version/Kind,Kind`.
    #[arg(long, value_name = "LIST", default_value = "")]
    skipped_propagating_apis: String,
    /// Namespaces whose objects are never propagated, as regular expressions.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = SKIPPED_NAMESPACES)]
    skipped_propagating_namespaces: Vec<String>,
    /// Removals of copies are held when more templates than this lose copies within a minute, and more than
    /// --removal-limit-percent of all copies are lost. The policy says how to let them go.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    removal_limit_templates: usize,
    /// See --removal-limit-templates; 100 never holds anything.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    removal_limit_percent: u8,
}

/// What the command line chooses if it says nothing.
impl Default for Chosen {
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Nothing {
            #[command(flatten)]
            chosen: Chosen,
        }
        <Nothing as clap::Parser>::parse_from(["karmada"]).chosen
    }
}

impl Chosen {
    /// Returns the features that are on.
    pub(crate) fn features(&self) -> anyhow::Result<Features> {
        Features::parse(&self.feature_gates).context("--feature-gates cannot be understood")
    }

    /// Returns which of upstream's components this stands for.
    fn component(&self) -> &'static str {
        if self.controllers.trim() == "scheduler" {
            "karmada-scheduler"
        } else {
            "karmada-controller-manager"
        }
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let namespaces = self.skipped_propagating_namespaces.iter().map(String::as_str);
        let skip = SkipRules::new(&self.skipped_propagating_apis, namespaces)
            .context("--skipped-propagating-apis or --skipped-propagating-namespaces cannot be understood")?;
        let removals =
            Limits { templates: self.removal_limit_templates, percent: self.removal_limit_percent };
        Ok(Settings { features: self.features()?, skip, removals })
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let candidate = arguments.election.candidate(&arguments.chosen)?;
    let address = |flag: &str, text: &str| {
        measured::address(text).map_err(|error| anyhow::anyhow!("--{flag}: {error}"))
    };
    let metrics = address("metrics-bind-address", &arguments.metrics_bind_address)?;
    let health = address("health-probe-bind-address", &arguments.health_probe_bind_address)?;
    let config = match &arguments.kubeconfig {
        Some(path) => cli::config(Some(path), None).await?,
        None => kube::Config::infer()
            .await
            .context("no kubeconfig is given and none is found; use --kubeconfig")?,
    };
    let client = kube::Client::try_from(config).context("cannot make a client from the kubeconfig")?;
    let version = client.apiserver_version().await.context("the control plane does not answer")?;
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let _stop_the_rest = stop.clone().drop_guard();
    measured::serve(&[(Topic::Metrics, metrics), (Topic::Health, health)], &stop).await?;
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
    let running = Running::start(client, &arguments.chosen, Diagnoses::default())?;
    tracing::info!(version = version.git_version, "controllers run");
    let lost = async {
        match &leadership {
            Some(leadership) => leadership.lost().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        signal = signals.next() => tracing::info!("stopping: {signal}"),
        // Somebody else may act from now on. Nothing is finished first: the process ends here and now.
        () = lost => anyhow::bail!("leader election lost"),
    }
    signals.end(running.stop()).await;
    if let Some(leadership) = leadership {
        leadership.release().await;
    }
    Ok(())
}

/// Controllers at work.
pub(crate) struct Running {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Running {
    /// Starts what was chosen; the scheduler keeps the reasons of its decisions in `diagnoses`.
    pub(crate) fn start(client: kube::Client, chosen: &Chosen, diagnoses: Diagnoses) -> anyhow::Result<Self> {
        let running = Self { stop: CancellationToken::new(), tasks: TaskTracker::new() };
        let context = Context {
            client,
            settings: chosen.settings()?,
            scheduler: Scheduling { diagnoses, ..chosen.scheduling.settings()? },
            stop: running.stop.clone(),
            members: Arc::new(member::Members::default()),
        };
        controllers::spawn(&context, &Selection::parse(&chosen.controllers), &running.tasks);
        Ok(running)
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(GOODBYE, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "some controllers did not end in time");
        }
    }
}
