//! `karmada detector`: reports from inside a member whether names of Services can be resolved there.
//!
//! One process runs on each node, started by a DaemonSet. Each looks up a name again and again, and writes the result into its
//! Node. One of them, the holder of a Lease in the member, summarises the nodes in the condition ServiceDomainNameResolutionReady
//! of the Cluster, to which Remedies and ClusterTaintPolicies react. The decisions are in `decide`.

mod decide;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::cluster::Cluster;
use apimachinery::duration;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Config};
use propagation::status::set_condition;
use runtime::Writer;
use runtime::election::Candidate;
use tokio_util::sync::CancellationToken;

use crate::controllers::Election;
use crate::observability::{self, Topic};
use crate::signals::Signals;
use decide::{Lookup, Memory, Thresholds, Verdict};

/// The only detector, by upstream's name.
const COREDNS: &str = "coredns";
/// The Lease in the member, by upstream's name.
const LEASE: &str = "cluster-problem-detector-coredns-detector";
/// How many nodes a page has.
const PAGE: u32 = 500;

/// Tell whether names of Services can be resolved in a member cluster: Karmada's service name resolution detector.
///
/// To be run on each node of the member, with the name resolution of its pods. The Nodes, and then the Cluster in the control
/// plane, get the condition ServiceDomainNameResolutionReady; it is False if no ready node can resolve names. Remedies and
/// ClusterTaintPolicies react to it.
#[derive(Debug, Args)]
// Upstream's detector has its Lease beside the name server that it watches.
#[command(mut_arg("leader_elect_resource_namespace", |arg| arg.default_value("kube-system")))]
pub(crate) struct Arguments {
    /// The control plane's kubeconfig.
    #[arg(long, value_name = "FILE")]
    karmada_kubeconfig: PathBuf,
    /// Context in the control plane's kubeconfig; by default the current one.
    #[arg(long, value_name = "CONTEXT")]
    karmada_context: Option<String>,
    /// The member's kubeconfig; by default KUBECONFIG, the account of the pod, or the file in the home directory. It has to name
    /// an IP address: a host name could not be resolved when it matters.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The member's name in the control plane.
    #[arg(long, value_name = "NAME")]
    cluster_name: String,
    /// Name of the node that this process runs on; by default the name of the host.
    #[arg(long, value_name = "NAME")]
    host_name: Option<String>,
    /// The name that is looked up.
    #[arg(long, value_name = "NAME", default_value = "kubernetes.default")]
    service_name: String,
    /// Detectors that run: `*` for all, `name`, `-name`. These are known: coredns.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true)]
    detectors: String,
    #[command(flatten)]
    patience: Patience,
    /// Address to serve /healthz on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind_address: IpAddr,
    /// Port to serve /healthz on, without credentials; 0 is nowhere.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    healthz_port: u16,
    #[command(flatten)]
    election: Election,
}

/// How often and how patiently names are looked up.
#[derive(Debug, Args)]
#[command(next_help_heading = "Name resolution")]
struct Patience {
    /// How often the name is looked up.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    coredns_detect_period: Duration,
    /// How long lookups have to succeed again before the node counts as healthy.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    coredns_success_threshold: Duration,
    /// How long lookups have to fail before the node counts as unhealthy.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    coredns_failure_threshold: Duration,
    /// How long what a node says counts; after that, its state is unknown.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse)]
    coredns_stale_threshold: Duration,
}

impl Patience {
    fn check(&self) -> anyhow::Result<()> {
        if self.coredns_detect_period < Duration::from_millis(100) {
            bail!("--coredns-detect-period is {:?}; it has to be 100ms or more", self.coredns_detect_period);
        }
        if self.coredns_stale_threshold <= self.coredns_detect_period {
            bail!(
                "--coredns-stale-threshold ({:?}) has to be longer than --coredns-detect-period ({:?}): what a node says would \
                 be stale before it can say it again",
                self.coredns_stale_threshold,
                self.coredns_detect_period
            );
        }
        Ok(())
    }
}

/// Returns whether the one detector is selected, by upstream's rules: the first item that names it counts.
fn chosen(text: &str) -> anyhow::Result<bool> {
    let items: Vec<&str> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    for item in &items {
        let name = item.strip_prefix('-').unwrap_or(item);
        if name != "*" && name != COREDNS {
            bail!("--detectors: there is no detector {name:?}; there is {COREDNS}");
        }
    }
    let named = items.iter().find(|item| item.trim_start_matches('-') == COREDNS);
    Ok(named.map_or(items.contains(&"*"), |item| !item.starts_with('-')))
}

/// Fails unless the member's address is an IP address.
fn check_address(config: &Config) -> anyhow::Result<()> {
    let host = config.cluster_url.host().unwrap_or("");
    if host.trim_matches(['[', ']']).parse::<IpAddr>().is_err() {
        bail!(
            "the member's API server is called {host:?}; it has to be an IP address, because a name cannot be resolved when \
             it matters (hint: use the account of the pod, or another --kubeconfig)"
        );
    }
    Ok(())
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    cli::check_name(&arguments.cluster_name)?;
    arguments.patience.check()?;
    if !chosen(&arguments.detectors)? {
        bail!("--detectors {:?} leaves nothing to run; there is {COREDNS}", arguments.detectors);
    }
    let candidate = arguments.election.candidate(LEASE)?;
    let plane =
        cli::config(Some(&arguments.karmada_kubeconfig), arguments.karmada_context.as_deref()).await?;
    let member = match &arguments.kubeconfig {
        Some(path) => cli::config(Some(path), None).await?,
        None => Config::infer()
            .await
            .context("no kubeconfig of the member is given and none is found; use --kubeconfig")?,
    };
    check_address(&member)?;
    let detector = Detector {
        plane: Writer::new(cli::client(plane).context("cannot make a client for the control plane")?),
        nodes: Api::all(cli::client(member.clone()).context("cannot make a client for the member")?),
        cluster: arguments.cluster_name,
        node: arguments
            .host_name
            .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned()),
        service: arguments.service_name,
        patience: arguments.patience,
    };
    let client = cli::client(member).context("cannot make a client for the member")?;
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let _stop_the_rest = stop.clone().drop_guard();
    let health = (arguments.healthz_port != 0)
        .then(|| SocketAddr::new(arguments.bind_address, arguments.healthz_port));
    observability::serve(&[(Topic::Health, health)], &stop).await?;
    tracing::info!(
        cluster = detector.cluster,
        node = detector.node,
        name = detector.service,
        "detector runs"
    );
    let watching = detector.watch_the_cluster(&client, candidate, &stop);
    tokio::pin!(watching);
    tokio::select! {
        () = detector.watch_this_node() => {}
        () = &mut watching => {}
        signal = signals.next() => {
            tracing::info!("stopping: {signal}");
            stop.cancel();
            signals.end(watching).await;
        }
    }
    Ok(())
}

struct Detector {
    plane: Writer,
    nodes: Api<Node>,
    cluster: String,
    node: String,
    service: String,
    patience: Patience,
}

impl Detector {
    /// Looks up the name again and again, and writes the result into the Node.
    async fn watch_this_node(&self) {
        let start = Instant::now();
        let mut memory = Memory::default();
        let mut ticks = tokio::time::interval(self.patience.coredns_detect_period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut resolver = Resolver::default();
        loop {
            ticks.tick().await;
            let observed = resolver.look_up(&self.service, self.patience.coredns_detect_period).await;
            if let Err(error) = &observed {
                tracing::debug!(name = self.service, error, "the name cannot be resolved");
            }
            if let Err(error) = self.tell_node(&mut memory, &observed, start.elapsed()).await {
                tracing::warn!(node = self.node, error = format!("{error:#}"), "the node cannot tell");
            }
        }
    }

    async fn tell_node(&self, memory: &mut Memory, observed: &Lookup, at: Duration) -> anyhow::Result<()> {
        let node = self.nodes.get(&self.node).await.with_context(|| {
            format!("cannot read node {} (hint: --host-name is the name of the Node)", self.node)
        })?;
        let thresholds = Thresholds {
            success: self.patience.coredns_success_threshold,
            failure: self.patience.coredns_failure_threshold,
        };
        let said = memory.adjust(decide::found(&node), observed, at, thresholds);
        let patch = decide::node_patch(&node, &said, Timestamp::now());
        self.nodes
            .patch_status(&self.node, &PatchParams::default(), &Patch::Strategic(patch))
            .await
            .with_context(|| format!("cannot write the status of node {}", self.node))?;
        Ok(())
    }

    /// Summarises the nodes in the Cluster, while the Lease is held. A process that loses it keeps reporting its own node.
    async fn watch_the_cluster(
        &self,
        member: &Client,
        candidate: Option<Candidate>,
        stop: &CancellationToken,
    ) {
        let Some(candidate) = candidate else {
            tokio::select! {
                () = self.sum_up() => {}
                () = stop.cancelled() => {}
            }
            return;
        };
        while let Some(leadership) = candidate.clone().lead(member, stop).await {
            tokio::select! {
                () = self.sum_up() => {}
                () = leadership.lost() => {
                    tracing::warn!("the lease is lost; another detector tells the control plane");
                }
                () = stop.cancelled() => leadership.release().await,
            }
        }
    }

    async fn sum_up(&self) {
        let mut ticks = tokio::time::interval(self.patience.coredns_detect_period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.tell_cluster().await {
                let error = format!("{error:#}");
                tracing::warn!(cluster = self.cluster, error, "the control plane cannot be told");
            }
        }
    }

    async fn tell_cluster(&self) -> anyhow::Result<()> {
        let now = Timestamp::now();
        let verdict = decide::judge(&self.all_nodes().await?, now, self.patience.coredns_stale_threshold);
        if let Verdict::Unknown(why) = &verdict {
            tracing::info!(cluster = self.cluster, "nothing is said about the cluster: {why}");
        }
        let Some(condition) = decide::cluster_condition(&verdict, now) else { return Ok(()) };
        let clusters = self.plane.api::<Cluster>("");
        let found = clusters.get_opt(&self.cluster).await;
        let Some(cluster) = found.with_context(|| format!("cannot read cluster {}", self.cluster))? else {
            tracing::info!(cluster = self.cluster, "the control plane has no such cluster");
            return Ok(());
        };
        if cluster.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let change = |cluster: &mut Cluster| {
            set_condition(&mut cluster.status.conditions, condition.clone());
            Ok(())
        };
        let written = self.plane.change_status(&cluster, change).await;
        if written.with_context(|| format!("cannot write the status of cluster {}", self.cluster))?.is_some()
        {
            let message = condition.message.as_str();
            tracing::info!(
                cluster = self.cluster,
                status = condition.status,
                "the control plane is told: {message}"
            );
        }
        Ok(())
    }

    async fn all_nodes(&self) -> anyhow::Result<Vec<Node>> {
        let (mut nodes, mut next) = (Vec::new(), None);
        loop {
            let page = ListParams { limit: Some(PAGE), continue_token: next, ..ListParams::default() };
            let listed = self.nodes.list(&page).await.context("cannot list the nodes of the member")?;
            nodes.extend(listed.items);
            next = listed.metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(nodes);
            }
        }
    }
}

/// Looks up names like the programs of this host. A lookup cannot be cancelled, so there is at most one at a time.
#[derive(Default)]
struct Resolver {
    running: Option<tokio::task::JoinHandle<Lookup>>,
}

impl Resolver {
    async fn look_up(&mut self, name: &str, patience: Duration) -> Lookup {
        let name = name.to_owned();
        let running = self.running.get_or_insert_with(|| {
            tokio::spawn(async move {
                let found = tokio::net::lookup_host((name.as_str(), 0)).await;
                let found = found.map(|mut addresses| addresses.next().is_some());
                match found {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(format!("lookup {name}: no address")),
                    Err(error) => Err(format!("lookup {name}: {error}")),
                }
            })
        });
        match tokio::time::timeout(patience, &mut *running).await {
            Ok(answer) => {
                self.running = None;
                answer.unwrap_or_else(|error| Err(format!("the lookup ended without an answer: {error}")))
            }
            Err(_) => Err("the name server does not answer".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// Upstream's flags and their defaults; ours listens nowhere by default.
    const UPSTREAM: &[(&str, &str)] = &[
        ("karmada-kubeconfig", ""),
        ("karmada-context", ""),
        ("cluster-name", ""),
        ("host-name", ""),
        ("bind-address", "127.0.0.1"),
        ("healthz-port", "0"),
        ("detectors", "*"),
        ("coredns-detect-period", "5s"),
        ("coredns-success-threshold", "30s"),
        ("coredns-failure-threshold", "30s"),
        ("coredns-stale-threshold", "1m"),
        ("leader-elect", "true"),
        ("leader-elect-lease-duration", "15s"),
        ("leader-elect-renew-deadline", "10s"),
        ("leader-elect-retry-period", "2s"),
        ("leader-elect-resource-namespace", "kube-system"),
    ];

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

    #[test]
    fn detectors_are_chosen_by_upstreams_rules() {
        assert!(chosen("*").expect("a list") && chosen("coredns,-coredns").expect("a list"));
        assert!(!chosen("*,-coredns").expect("a list") && !chosen("").expect("a list"));
        let error = chosen("*,etcd").expect_err("no such detector").to_string();
        assert_eq!(error, "--detectors: there is no detector \"etcd\"; there is coredns");
    }

    #[test]
    fn times_that_do_not_fit_are_refused() {
        let patience = |period, stale| Patience {
            coredns_detect_period: Duration::from_millis(period),
            coredns_success_threshold: Duration::ZERO,
            coredns_failure_threshold: Duration::ZERO,
            coredns_stale_threshold: Duration::from_millis(stale),
        };
        assert!(patience(100, 200).check().is_ok());
        let error = patience(99, 200).check().expect_err("too often").to_string();
        assert_eq!(error, "--coredns-detect-period is 99ms; it has to be 100ms or more");
        assert!(patience(5000, 5000).check().expect_err("stale at once").to_string().contains("longer than"));
    }

    #[test]
    fn a_member_has_to_be_called_by_its_address() {
        let config = |url: &str| Config::new(url.parse().expect("an address"));
        assert!(check_address(&config("https://10.96.0.1:443")).is_ok());
        assert!(check_address(&config("https://[fd00::1]:443")).is_ok());
        let error = check_address(&config("https://member.example:6443")).expect_err("a name").to_string();
        assert!(error.starts_with("the member's API server is called \"member.example\""), "{error}");
    }

    #[tokio::test]
    async fn a_name_resolves_or_says_why_not() {
        let mut resolver = Resolver::default();
        let patience = Duration::from_secs(60);
        assert_eq!(resolver.look_up("localhost", patience).await, Ok(()));
        let error = resolver.look_up("nowhere.invalid", patience).await.expect_err("no such name");
        assert!(error.starts_with("lookup nowhere.invalid: "), "{error}");
    }
}
