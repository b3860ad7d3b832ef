//! `karmada agent`: the member side of a control plane, beside the member, for clusters in pull mode.
//!
//! It has two clients: one for the control plane, of which it reads only its own objects, and one for the member. Everything that
//! runs in an agent is a [`Task`]: the controllers of the member side are one, the renewal of its certificate is another. Nothing
//! listens, except for probes.

mod certificate;
mod enrol;
mod identity;
mod way_in;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use api::features::Features;
use apimachinery::duration;
use clap::Args;
use controllers::table;
use controllers::{AGENT, CERT_ROTATION, Context, MyClusters, Selection, Settings, Timing};
use kube::{Client, Config};
use runtime::{Supervisor, Writer};
use tokio_util::sync::CancellationToken;

use crate::controllers::Election;
use crate::observability::{self, Topic};
use crate::signals::Signals;
use crate::unneeded;
use identity::Identity;

/// How long tasks may take to end.
const GOODBYE: Duration = Duration::from_secs(10);
/// How long the agent waits between two attempts to reach the control plane or the member when it starts.
const AGAIN: Duration = Duration::from_secs(2);

/// Look after one cluster from inside of it: Karmada's agent for clusters in pull mode.
///
/// The agent fetches what is to run in its cluster from the control plane and reports what became of it. The control plane
/// needs no way into the cluster.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The control plane's kubeconfig, as `karmada register` writes it.
    #[arg(long, value_name = "FILE")]
    karmada_kubeconfig: PathBuf,
    /// Context in the control plane's kubeconfig; by default the current one.
    #[arg(long, value_name = "CONTEXT")]
    karmada_context: Option<String>,
    /// The cluster's own kubeconfig; by default KUBECONFIG, the account of the pod, or the file in the home directory.
    #[arg(long, value_name = "FILE", alias = "cluster-kubeconfig")]
    kubeconfig: Option<PathBuf>,
    /// Context in the cluster's kubeconfig; by default the current one.
    #[arg(long, value_name = "CONTEXT", requires = "kubeconfig")]
    context: Option<String>,
    /// Name of the cluster in the control plane.
    #[arg(long, value_name = "NAME")]
    cluster_name: String,
    /// Namespace of the accounts in the cluster and of the Secrets in the control plane.
    #[arg(long, value_name = "NAMESPACE", default_value = api::constants::NAMESPACE_CLUSTER)]
    cluster_namespace: String,
    /// Address of the cluster's API server that its Cluster shall tell; by default that of the kubeconfig.
    #[arg(long, value_name = "URL", default_value = "")]
    cluster_api_endpoint: String,
    /// Proxy by which the cluster's API server can be reached.
    #[arg(long, value_name = "URL", default_value = "")]
    proxy_server_address: String,
    /// Provider of the cluster.
    #[arg(long, value_name = "PROVIDER", default_value = "")]
    cluster_provider: String,
    /// Region of the cluster.
    #[arg(long, value_name = "REGION", default_value = "")]
    cluster_region: String,
    /// Zones of the cluster.
    #[arg(long, value_name = "ZONE", value_delimiter = ',')]
    cluster_zones: Vec<String>,
    /// Which credentials of the cluster the control plane gets: KubeCredentials, KubeImpersonator, or None.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "KubeCredentials,KubeImpersonator"
    )]
    report_secrets: Vec<String>,
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true, help = help())]
    controllers: String,
    /// Features to switch on or off, as in `MultiClusterService=true`.
    #[arg(long, value_name = "LIST", default_value = "")]
    feature_gates: String,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    rotation: certificate::Rotation,
    #[command(flatten)]
    tunnel: way_in::Tunnel,
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
}

/// Returns the help of `--controllers`.
fn help() -> String {
    let known = table::agent_names();
    format!(
        "Controllers that run: `*` for all that are on by default, `name`, `-name`. These are known: {known}"
    )
}

/// How often and how patiently the cluster is looked at.
#[derive(Debug, Args)]
#[command(next_help_heading = "The cluster")]
struct Patience {
    /// How often the status of the cluster is collected.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    cluster_status_update_frequency: Duration,
    /// How long the cluster has to be healthy again before it counts as ready.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    cluster_success_threshold: Duration,
    /// How long the cluster has to be unhealthy before it counts as not ready.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    cluster_failure_threshold: Duration,
    /// How long the agent's sign of life lasts.
    #[arg(long, value_name = "DURATION", default_value = "40s", value_parser = duration::parse)]
    cluster_lease_duration: Duration,
    /// Which part of --cluster-lease-duration the agent waits between two signs of life.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.25)]
    cluster_lease_renew_interval_fraction: f64,
    /// Follow the nodes and pods of the cluster and tell their sums in the status of its Cluster.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_cluster_resource_modeling: bool,
}

impl Patience {
    fn timing(&self) -> anyhow::Result<Timing> {
        let timing = Timing {
            status_period: self.cluster_status_update_frequency,
            success_threshold: self.cluster_success_threshold,
            failure_threshold: self.cluster_failure_threshold,
            lease_duration: self.cluster_lease_duration,
            lease_renew_fraction: self.cluster_lease_renew_interval_fraction,
            ..Timing::default()
        };
        timing.check().map_err(anyhow::Error::msg)?;
        Ok(timing)
    }
}

/// What all tasks of an agent share.
#[derive(Clone)]
pub(crate) struct Agent {
    /// The cluster's name.
    pub(crate) name: String,
    /// The control plane, in the agent's own name; every request presents the newest certificate.
    pub(crate) plane: Client,
    /// The current route to the control plane, for tasks that need their own connection.
    pub(crate) identity: Identity,
    /// The member.
    pub(crate) member: Client,
    /// Where and how to reach the member.
    pub(crate) member_config: Config,
    /// Supervises all tasks, and ends them.
    pub(crate) supervisor: Supervisor,
}

/// A task that runs while the agent acts: it is started once, and ends with the agent's supervisor.
pub(crate) type Task = Box<dyn Fn(&Agent) + Send + Sync>;

/// Which controllers run, by upstream's rules.
#[derive(Debug, PartialEq)]
struct Chosen {
    selection: Selection,
    rotation: bool,
    /// Names that no controller of an agent has. Manifests may name those of other versions, so they are ignored.
    unknown: Vec<String>,
}

impl Chosen {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let items: Vec<&str> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
        let named = items.iter().map(|item| item.strip_prefix('-').unwrap_or(item));
        let unknown = named.filter(|name| *name != "*" && *name != CERT_ROTATION && !AGENT.contains(name));
        let unknown = unknown.map(str::to_owned).collect();
        let has = |name: &str, default: bool| {
            let named = items.iter().find_map(|item| match item.strip_prefix('-') {
                Some(without) => (without == name).then_some(false),
                None => (*item == name).then_some(true),
            });
            named.unwrap_or(default && items.contains(&"*"))
        };
        let chosen: Vec<&str> = AGENT.iter().copied().filter(|name| has(name, true)).collect();
        let selection = Selection::parse(&chosen.join(","))?;
        Ok(Self { selection, rotation: has(CERT_ROTATION, false), unknown })
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    cli::check_name(&arguments.cluster_name)?;
    let name = arguments.cluster_name.clone();
    let chosen = Chosen::parse(&arguments.controllers)?;
    for name in &chosen.unknown {
        let known = table::agent_names();
        tracing::warn!("--controllers: an agent has no controller {name:?}; it has {known}");
    }
    let settings = Settings {
        features: Features::parse(&arguments.feature_gates)
            .context("--feature-gates cannot be understood")?,
        timing: arguments.patience.timing()?,
        resource_modeling: arguments.patience.enable_cluster_resource_modeling,
        ..Settings::default()
    };
    let reported = enrol::reported(&arguments.report_secrets)?;
    let rotation = arguments.rotation.clone().checked()?;
    let candidate = arguments.election.candidate(&format!("karmada-agent-{name}"))?;
    let address = |flag: &str, text: &str| {
        observability::address(text).map_err(|error| anyhow::anyhow!("--{flag}: {error}"))
    };
    let metrics = address("metrics-bind-address", &arguments.metrics_bind_address)?;
    let health = address("health-probe-bind-address", &arguments.health_probe_bind_address)?;

    let identity =
        Identity::read(&arguments.karmada_kubeconfig, arguments.karmada_context.as_deref()).await?;
    let member_config = match &arguments.kubeconfig {
        Some(path) => cli::config(Some(path), arguments.context.as_deref()).await?,
        None => Config::infer()
            .await
            .context("no kubeconfig of the cluster is given and none is found; use --kubeconfig")?,
    };
    let member = cli::client(member_config.clone()).context("cannot make a client for the cluster")?;
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let _stop_the_rest = stop.clone().drop_guard();
    observability::serve(&[(Topic::Metrics, metrics), (Topic::Health, health)], &stop).await?;

    let agent = Agent {
        plane: identity.client(),
        identity: identity.clone(),
        member,
        member_config,
        supervisor: Supervisor::default(),
        name,
    };
    let described = enrol::Description::new(&arguments, &agent, reported);
    tokio::select! {
        enrolled = enrol::enrol_patiently(&agent, &described) => {
            enrolled.map_err(|error| certificate::explain(error, &identity))?;
        }
        _ = signals.next() => return Ok(()),
    }

    let following = identity.clone();
    let _following =
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move { following.follow().await }));
    let mut tasks: Vec<Task> =
        vec![Box::new(move |agent| start_controllers(agent, &settings, &chosen.selection))];
    if chosen.rotation {
        tasks.push(Box::new(move |agent| certificate::renew(agent, &identity, &rotation)));
    }
    if arguments.tunnel.tunnel {
        let (tunnel, namespace) = (arguments.tunnel.clone(), arguments.cluster_namespace.clone());
        tasks.push(Box::new(move |agent| way_in::start(agent, &tunnel, &namespace)));
    }
    let acting = act(agent, candidate, &tasks, &stop);
    tokio::pin!(acting);
    tokio::select! {
        () = &mut acting => {}
        signal = signals.next() => {
            tracing::info!("stopping: {signal}");
            stop.cancel();
            signals.end(acting).await;
        }
    }
    Ok(())
}

fn start_controllers(agent: &Agent, settings: &Settings, selection: &Selection) {
    let context = Context {
        settings: settings.clone(),
        writer: Writer::new(agent.plane.clone()),
        clusters: MyClusters::One { name: agent.name.clone(), client: agent.member.clone() },
        ..Context::new(agent.plane.clone(), agent.supervisor.clone())
    };
    controllers::spawn(&context, selection);
}

/// Acts while the agent holds the Lease, or always if there is none; ends when it is stopped. A lost Lease ends the tasks, not
/// the process: another agent of the same cluster may act until this one gets the Lease again.
async fn act(
    agent: Agent,
    candidate: Option<runtime::election::Candidate>,
    tasks: &[Task],
    stop: &CancellationToken,
) {
    loop {
        let leadership = match &candidate {
            None => None,
            Some(candidate) => match candidate.clone().lead(&agent.plane, stop).await {
                Some(leadership) => Some(leadership),
                None => return,
            },
        };
        let agent = Agent { supervisor: Supervisor::default(), ..agent.clone() };
        for task in tasks {
            task(&agent);
        }
        tracing::info!(cluster = agent.name, "agent runs");
        let lost = async {
            match &leadership {
                Some(leadership) => leadership.lost().await,
                None => std::future::pending().await,
            }
        };
        let ends = tokio::select! {
            () = stop.cancelled() => true,
            () = lost => false,
        };
        if tokio::time::timeout(GOODBYE, agent.supervisor.stop()).await.is_err() {
            tracing::warn!(tasks = agent.supervisor.len(), "some tasks did not end in time");
        }
        if ends {
            if let Some(leadership) = leadership {
                leadership.release().await;
            }
            return;
        }
        tracing::warn!("the lease is lost; this agent waits until it is its turn again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_chosen_by_upstreams_rules() {
        let chosen = |text: &str| Chosen::parse(text).expect("a list");
        let all = chosen("*");
        assert_eq!(all.selection, Selection::parse(&AGENT.join(",")).expect("known"));
        assert!(!all.rotation && chosen("*,certRotation").rotation);
        let one = chosen("execution");
        assert!(one.selection.is_only("execution"), "{one:?}");
        assert!(chosen("-clusterStatus").selection.is_empty());
        assert!(help().ends_with(
            "execution, workStatus, serviceExport, endpointsliceCollect, certRotation (off by default)"
        ));
        let odd = chosen("execution,-binding,flying");
        assert_eq!(
            (odd.selection, odd.unknown),
            (one.selection, vec!["binding".to_owned(), "flying".to_owned()])
        );
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// Upstream's flags and their defaults; ours listens nowhere by default.
    const UPSTREAM: &[(&str, &str)] = &[
        ("controllers", "*"),
        ("cluster-namespace", "karmada-cluster"),
        ("cluster-api-endpoint", ""),
        ("proxy-server-address", ""),
        ("cluster-provider", ""),
        ("cluster-region", ""),
        ("cluster-zones", ""),
        ("cluster-cache-sync-timeout", "2m0s"),
        ("report-secrets", "KubeCredentials,KubeImpersonator"),
        ("cluster-status-update-frequency", "10s"),
        ("cluster-lease-duration", "40s"),
        ("cluster-lease-renew-interval-fraction", "0.25"),
        ("cluster-success-threshold", "30s"),
        ("cluster-failure-threshold", "30s"),
        ("cluster-api-qps", "40"),
        ("cluster-api-burst", "60"),
        ("kube-api-qps", "40"),
        ("kube-api-burst", "60"),
        ("resync-period", "0s"),
        ("concurrent-cluster-syncs", "5"),
        ("concurrent-work-syncs", "5"),
        ("enable-cluster-resource-modeling", "true"),
        ("cert-rotation-checking-interval", "5m"),
        ("cert-rotation-remaining-time-threshold", "0.2"),
        ("karmada-kubeconfig-namespace", "karmada-system"),
        ("leader-elect", "true"),
        ("leader-elect-resource-namespace", "karmada-system"),
        ("enable-pprof", "false"),
        ("profiling-bind-address", ":6060"),
        ("logging-format", "text"),
        ("log-flush-frequency", "5s"),
        ("v", "0"),
        ("vmodule", ""),
    ];

    /// The command lines of upstream's manifests and of `karmadactl register`, and every flag of its loggers.
    #[test]
    fn upstreams_command_lines_are_understood() {
        use clap::Parser as _;
        let manifest = "--karmada-kubeconfig=/etc/kubeconfig/karmada-kubeconfig --karmada-context=karmada-apiserver \
            --cluster-name=member3 --cluster-api-endpoint=https://172.18.0.5:6443 --cluster-status-update-frequency=10s \
            --metrics-bind-address=:8080 --health-probe-bind-address=0.0.0.0:10357 \
            --feature-gates=CustomizedClusterResourceModeling=true,MultiClusterService=true --logging-format=json --v=4";
        let registered = "--karmada-kubeconfig=/etc/kubeconfig/karmada-kubeconfig --cluster-name=member3 \
            --cluster-api-endpoint=https://172.18.0.5:6443 --cluster-provider= --cluster-region= --cluster-zones= \
            --controllers=*,certRotation --proxy-server-address= --leader-elect-resource-namespace=karmada-system \
            --cluster-namespace=karmada-cluster --cluster-status-update-frequency=10s --metrics-bind-address=:8080 \
            --health-probe-bind-address=0.0.0.0:10357 --v=2";
        let logging = "--karmada-kubeconfig=k --cluster-name=m -v 4 --vmodule=a=1 --logging-format text --log-flush-frequency=5s \
            --log-json-info-buffer-size=0 --log-json-split-stream --log-text-info-buffer-size=0 --log-text-split-stream=false \
            --logtostderr --alsologtostderr=false --log-dir=/tmp --log_file=/tmp/a --log-file-max-size=1 --stderrthreshold=2 \
            --log_backtrace_at=:0 --add_dir_header --skip-headers --skip_log_headers --one-output --enable-pprof \
            --profiling-bind-address=:6060 --enable-cluster-resource-modeling=false";
        for line in [manifest, registered, logging] {
            let words = ["karmada-agent"].into_iter().chain(line.split_whitespace());
            let read = Command::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
            let models = read.arguments.patience.enable_cluster_resource_modeling;
            assert_eq!(models, !line.contains("modeling=false"));
            Chosen::parse(&read.arguments.controllers).expect("controllers");
            Features::parse(&read.arguments.feature_gates).expect("features");
        }
    }

    #[test]
    fn flags_have_upstreams_names_and_defaults() {
        use clap::CommandFactory;
        let command = Command::command();
        for (flag, default) in UPSTREAM {
            let found = command.get_arguments().find(|known| known.get_long() == Some(flag));
            let values = found.unwrap_or_else(|| panic!("--{flag} is missing")).get_default_values().iter();
            let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
            assert_eq!(values.join(","), *default, "--{flag}");
        }
    }
}
