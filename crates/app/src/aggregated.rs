//! `karmada aggregated`: the parts of Karmada's API that are not CRDs, behind another kube-apiserver.
//!
//! Serves `cluster.karmada.io` (with `clusters/proxy`), `search.karmada.io` and the metrics of all members. With `karmada
//! controllers` and `karmada webhook` this is all of Karmada on a kube-apiserver. Clusters and ResourceRegistries are kept in a
//! separate store, as in upstream's aggregated server: a data directory, or etcd, which several of these servers may share.
//!
//! Inside is the API server of a control plane that clients cannot reach directly. `front` stands before it: it accepts the
//! identity that the kube-apiserver passes on, and asks the kube-apiserver for authorisation (`trust`). Secrets are read from the
//! kube-apiserver.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

mod front;
mod trust;

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use api::cluster::Cluster;
use apiserver::Profile;
use apiserver::auth::User;
use apiserver::http::listener::{self, Settings};
use clap::Args;
use controllers::plane::scheduling::Diagnoses;
use fleet::Fleet;
use kube::Client;
use kube::api::{Api, ListParams};
use member::{Member, Members, OldestTls};
use parking_lot::RwLock;
use runtime::Supervisor;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnels;

use self::front::Front;
use self::trust::{Delegate, Trust};
use crate::controllers::Tasks;
use crate::environment::Environment;
use crate::etcd::{EtcdArguments, StoreKind};
use crate::fleet::Endpoints;
use crate::plane::SEARCH_CACHE;
use crate::signals::Signals;
use crate::webhook::certificates;
use crate::{extension, fleet_metrics, plugin, tunnels};

/// The groups that are served here.
pub(crate) const GROUPS: [&str; 5] = [
    api::cluster::GROUP,
    api::search::GROUP,
    "metrics.k8s.io",
    "custom.metrics.k8s.io",
    "external.metrics.k8s.io",
];
const SERVICE: &str = "karmada-aggregated-apiserver";
/// How often the list of members for metrics, and the authorities of the API server, are refreshed.
const EVERY: Duration = Duration::from_secs(5);

/// Serve clusters, their proxy, search and metrics as an aggregated API server of a kube-apiserver.
///
/// Together with `karmada controllers` and `karmada webhook` this is a control plane on somebody else's API server. To have the API
/// server hand requests on: karmada aggregated --print-registration --external-name HOST | kubectl apply -f -
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Kubeconfig of the API server in front; by default KUBECONFIG or the file in the home directory.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Address to serve HTTPS on.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    bind_address: IpAddr,
    /// Port to serve HTTPS on; 0 picks a free one.
    #[arg(long, value_name = "PORT", default_value_t = 5444)]
    secure_port: u16,
    /// Directory of the serving certificate and the authority that signed it (ca.crt); made if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "karmada-aggregated-certs")]
    cert_dir: PathBuf,
    /// Further names and addresses that a certificate made here is valid for.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    cert_extra_sans: Vec<String>,
    /// Where Clusters and ResourceRegistries are kept.
    #[arg(long, value_name = "DIR", default_value = "karmada-aggregated-data", env = "KARMADA_DATA_DIR")]
    data_dir: PathBuf,
    /// Where they are stored.
    #[arg(long, value_enum, default_value_t = StoreKind::Embedded)]
    store: StoreKind,
    #[command(flatten)]
    etcd: EtcdArguments,
    /// Start from a backup made by `karmada backup`; the store must not hold anything yet.
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    /// How much memory copies of members' objects may take, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = SEARCH_CACHE >> 20, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    search_cache_size: usize,
    /// Oldest version of TLS that the cluster proxy speaks with members: 1.2 or 1.3.
    #[arg(long, value_name = "VERSION", default_value = "1.3")]
    cluster_proxy_min_tls_version: OldestTls,
    /// Features to switch on or off, as `Name=true,Other=false`.
    #[arg(long, value_name = "LIST", default_value = "", value_parser = crate::server::features)]
    feature_gates: api::features::Features,
    /// Print the objects that make an API server hand requests on to this server, and end.
    #[arg(long, requires = "external_name")]
    print_registration: bool,
    /// Host name at which the API server finds this server, for --print-registration.
    #[arg(long, value_name = "HOST")]
    external_name: Option<String>,
    /// Namespace of the Service that stands for this server.
    #[arg(long, value_name = "NAMESPACE", default_value = "karmada-system")]
    service_namespace: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let namespace = &arguments.service_namespace;
    let mut names =
        vec![format!("{SERVICE}.{namespace}.svc"), format!("{SERVICE}.{namespace}.svc.cluster.local")];
    names.extend(arguments.external_name.clone());
    names.extend(arguments.cert_extra_sans.iter().cloned());
    let certificates = certificates::load_or_create(&arguments.cert_dir, "tls.crt", "tls.key", &names)?;
    if let Some(host) = arguments.external_name.as_deref().filter(|_| arguments.print_registration) {
        let mut out = std::io::stdout().lock();
        for object in front::registration(host, arguments.secure_port, namespace, &certificates.authority) {
            writeln!(out, "---\n{object:#}")?;
        }
        return Ok(());
    }
    let config = match &arguments.kubeconfig {
        Some(path) => cli::config(Some(path), None).await?,
        None => kube::Config::infer()
            .await
            .context("no kubeconfig is given and none is found; use --kubeconfig")?,
    };
    let host = cli::client(config).context("cannot make a client from the kubeconfig")?;
    host.apiserver_version().await.context("the API server does not answer")?;
    let trust = Trust::read(&host).await?;

    let etcd = arguments.etcd.options(arguments.store)?;
    if let Some(from) = &arguments.restore {
        crate::server::restore(from, &arguments.data_dir.join("store"), etcd.clone()).await?;
    }
    let environment = Arc::new(Environment::default());
    let (tasks, members) = (Tasks::default(), Arc::new(RwLock::new(Vec::<Arc<Member>>::new())));
    let seen = members.clone();
    tasks.look_at(Arc::new(move || seen.read().clone()));
    let fleet = Fleet::new(arguments.search_cache_size << 20);
    let tunnels = Tunnels::default();
    let rules = admission::Settings { features: arguments.feature_gates, ..admission::Settings::default() };
    let options = apiserver::Options {
        data_dir: Some(arguments.data_dir.clone()),
        etcd,
        profile: Profile::Karmada,
        definitions: api::crd::aggregated(),
        registry: Some(crate::fleet::registry(fleet_metrics::kinds())),
        plugins: vec![Arc::new(plugin::Karmada::new(rules, environment.clone()))],
        extension: Some(Arc::new(
            extension::Karmada::new(
                Diagnoses::default(),
                tasks.clone(),
                Endpoints::new(fleet.clone()),
                tunnels.clone(),
                arguments.cluster_proxy_min_tls_version,
            )
            .before(host.clone()),
        )),
        // The owners are objects of the API server in front.
        collect_garbage: false,
        ..apiserver::Options::default()
    };
    let handle = apiserver::start(options)
        .await
        .with_context(|| format!("cannot open the store in {}", arguments.data_dir.display()))?;
    environment.connect(host.clone());
    let local = apiserver::local::client(&handle.server, User::system("system:karmada-aggregated"));
    let news = tunnels::tell(&tunnels, &handle.server, &host);
    let followers = Supervisor::default();
    let find_way = crate::fleet::find_way(&host, &tunnels);
    fleet.start(host.clone(), crate::fleet::resolve(&handle.server), find_way, &followers);
    crate::fleet::opensearch::start(&fleet, &host, &followers);

    let tls = certificates.server("1.2", Some(certificates::lenient()))?;
    let front = Arc::new(Front {
        server: handle.server.clone(),
        trust: RwLock::new(Arc::new(trust)),
        delegate: Delegate::new(host.clone()),
    });
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let listener = listener::bind(SocketAddr::new(arguments.bind_address, arguments.secure_port)).await?;
    let bound = listener.local_addr().context("the listener has no address")?;
    let serving =
        tokio::spawn(listener::run(listener, Some(tls), front.clone(), Settings::default(), stop.clone()));
    let looking = tokio::spawn(look(host, local, front, members, followers.clone(), stop.clone()));
    tracing::info!(address = %bound, data = %arguments.data_dir.display(), "ready");
    let outcome = tokio::select! {
        signal = signals.next() => {
            tracing::info!("stopping: {signal}");
            Ok(())
        }
        failure = handle.failure() => Err(anyhow::anyhow!("{failure}")),
    };
    stop.cancel();
    let end = async {
        let _ = serving.await;
        let _ = looking.await;
        let _ = tokio::time::timeout(EVERY, followers.stop()).await;
        news.stop().await;
        handle.stop().await;
    };
    signals.end(end).await;
    outcome
}

/// Keeps connections to ready members, for metrics, and the authorities of the API server in front.
async fn look(
    host: Client,
    local: Client,
    front: Arc<Front>,
    ready: Arc<RwLock<Vec<Arc<Member>>>>,
    supervisor: Supervisor,
    stop: CancellationToken,
) {
    let members = Members::new(supervisor);
    let clusters: Api<Cluster> = Api::all(local);
    loop {
        if let Ok(list) = clusters.list(&ListParams::default()).await {
            let mut found = Vec::new();
            let usable = |cluster: &&Cluster| {
                cluster.status.is_ready() && cluster.metadata.deletion_timestamp.is_none()
            };
            for cluster in list.items.iter().filter(usable) {
                match members.refresh(&host, cluster).await {
                    Ok((member, _)) => found.push(member),
                    Err(error) => tracing::debug!("a member is left out of metrics: {error}"),
                }
            }
            for gone in members.all() {
                if !list.items.iter().any(|cluster| cluster.metadata.name.as_deref() == Some(gone.name())) {
                    members.remove(gone.name());
                }
            }
            found.sort_by(|one, other| one.name().cmp(other.name()));
            *ready.write() = found;
        }
        // After a failure, the known authorities remain valid.
        if let Ok(trust) = Trust::read(&host).await {
            let known = front.trust.read().source.clone();
            if known != trust.source {
                tracing::info!("the API server has new authorities");
                *front.trust.write() = Arc::new(trust);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = stop.cancelled() => return,
        }
    }
}
