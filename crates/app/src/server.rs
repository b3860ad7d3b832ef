//! `karmada server`: the control plane.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use apiserver::{Options, ServiceRanges};
use clap::Args;
use member::OldestTls;

use crate::access::{AuditArguments, ConnectionArguments, OidcArguments};
use crate::controllers::Chosen;
use crate::etcd::{EtcdArguments, StoreKind};
use crate::plane::{Plane, SEARCH_CACHE, Setup};
use crate::signals::Signals;

/// Run the control plane: the API server with everything a control plane needs, in one process.
///
/// The first start makes keys and certificates and writes DIR/karmada.kubeconfig for the administrator.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Where state, keys and the kubeconfig are kept; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "karmada-data", env = "KARMADA_DATA_DIR")]
    data_dir: PathBuf,
    /// Address and port to serve HTTPS on; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5443")]
    bind: SocketAddr,
    /// Where objects are stored.
    #[arg(long, value_enum, default_value_t = StoreKind::Embedded)]
    store: StoreKind,
    #[command(flatten)]
    etcd: EtcdArguments,
    /// Host name or address that clients are told to connect to; by default what is bound.
    #[arg(long, value_name = "HOST")]
    advertise_address: Option<String>,
    /// Further names and addresses the serving certificate is valid for.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    cert_extra_sans: Vec<String>,
    /// File of static bearer tokens, one `token,user,uid,"group1,group2"` per line.
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// Start from a backup made by `karmada backup`; the data directory, or etcd under the prefix, must not hold anything yet.
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    #[command(flatten)]
    chosen: Chosen,
    /// Let ClusterTaintPolicies set taints that drive workloads away.
    #[arg(long)]
    allow_no_execute_taint_policy: bool,
    /// Where the addresses of Services come from: a range of IPv4 or IPv6, or one of each with a comma between them. With two, Services
    /// may be dual-stack; the first is for those that do not say.
    #[arg(long, value_name = "CIDRS", default_value_t)]
    service_cluster_ip_range: ServiceRanges,
    /// How often history is compacted, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    compaction_interval: u64,
    /// Reads that are worked on at once.
    #[arg(long, value_name = "N", default_value_t = 400)]
    max_requests_inflight: usize,
    /// Writes that are worked on at once.
    #[arg(long, value_name = "N", default_value_t = 200)]
    max_mutating_requests_inflight: usize,
    /// How much memory copies of members' objects may take, in MiB; which objects are copied, ResourceRegistries say.
    #[arg(long, value_name = "MIB", default_value_t = SEARCH_CACHE >> 20, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    search_cache_size: usize,
    /// Oldest version of TLS that the cluster proxy speaks with members: 1.2 or 1.3.
    #[arg(long, value_name = "VERSION", default_value = "1.3")]
    cluster_proxy_min_tls_version: OldestTls,
    #[command(flatten)]
    connections: ConnectionArguments,
    #[command(flatten)]
    oidc: OidcArguments,
    #[command(flatten)]
    audit: AuditArguments,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let started = Instant::now();
    let etcd = arguments.etcd.options(arguments.store)?;
    let store_dir = arguments.data_dir.join("store");
    if let Some(from) = &arguments.restore {
        restore(from, &store_dir, etcd.clone()).await?;
    }
    let rules = admission::Settings {
        features: arguments.chosen.features()?,
        allow_no_execute_taint_policy: arguments.allow_no_execute_taint_policy,
    };
    let options = Options {
        data_dir: Some(arguments.data_dir.clone()),
        etcd,
        bind: arguments.bind,
        extra_names: arguments.cert_extra_sans,
        advertise: arguments.advertise_address,
        token_file: arguments.token_auth_file,
        oidc: arguments.oidc.settings(),
        audit: arguments.audit.options(),
        budgets: arguments.connections.budgets(),
        connections: Some(arguments.connections.settings()),
        service_ranges: arguments.service_cluster_ip_range,
        compact_every: Duration::from_secs(arguments.compaction_interval),
        max_reads: arguments.max_requests_inflight.max(1),
        max_writes: arguments.max_mutating_requests_inflight.max(1),
        ..Options::default()
    };
    let signals = Signals::listen()?;
    let plane = Plane::start(Setup {
        server: options,
        rules,
        chosen: arguments.chosen,
        search_cache_bytes: arguments.search_cache_size << 20,
        oldest_tls: arguments.cluster_proxy_min_tls_version,
    })
    .await?;
    tracing::info!(
        url = plane.url,
        kubeconfig = %plane.kubeconfig.display(),
        milliseconds = started.elapsed().as_millis(),
        "ready"
    );
    live(plane, signals).await
}

/// Waits for a signal, or for a failure after which the control plane cannot continue, and ends it.
async fn live(plane: Plane, mut signals: Signals) -> anyhow::Result<()> {
    let outcome = tokio::select! {
        signal = signals.next() => {
            tracing::info!("stopping: {signal}");
            Ok(())
        }
        failure = plane.failure() => Err(failure),
    };
    signals.end(plane.stop()).await;
    outcome
}

/// Parses a list of feature gates, like upstream's components.
pub(crate) fn features(text: &str) -> Result<api::features::Features, String> {
    api::features::Features::parse(text).map_err(|error| error.to_string())
}

/// Restores a backup into the store that the server is about to open.
pub(crate) async fn restore(from: &Path, dir: &Path, etcd: Option<store::EtcdOptions>) -> anyhow::Result<()> {
    let place = etcd.as_ref().map_or_else(
        || dir.display().to_string(),
        |etcd| format!("etcd at {} under {}", etcd.endpoints.join(","), etcd.prefix),
    );
    let told = format!("cannot restore {} to {place}", from.display());
    let (from, dir) = (from.to_owned(), dir.to_owned());
    let restored = tokio::task::spawn_blocking(move || {
        let limited = apiserver::registry::limited();
        match etcd {
            Some(etcd) => store::restore_into_etcd(&from, &dir, &etcd, &limited),
            None => store::restore(&from, &dir, &limited),
        }
    });
    let restored = restored.await.context("the restore was interrupted")?.context(told)?;
    tracing::info!(entries = restored.entries, revision = restored.revision, "restored");
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;
    use kube::api::{Api, ObjectMeta, PostParams};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn finding_18_a_server_whose_store_is_gone_ends_with_the_reason() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().expect("a folder");
        let faults = store::Faults::new();
        let server = Options {
            data_dir: Some(dir.path().join("data")),
            store_faults: Some(faults.clone()),
            ..Options::default()
        };
        let setup = Setup {
            server,
            rules: admission::Settings::default(),
            chosen: Chosen::default(),
            search_cache_bytes: SEARCH_CACHE,
            oldest_tls: OldestTls::V1_3,
        };
        let plane = Plane::start(setup).await.expect("a control plane");
        let namespaces: Api<Namespace> = Api::all(plane.client.clone());
        let running = tokio::spawn(live(plane, Signals::listen().expect("signals")));
        faults.bug();
        let metadata = ObjectMeta { name: Some("last".to_owned()), ..ObjectMeta::default() };
        let last = Namespace { metadata, ..Namespace::default() };
        namespaces.create(&PostParams::default(), &last).await.expect_err("the store is gone");
        let ended = tokio::time::timeout(Duration::from_secs(120), running).await.expect("it ends");
        let reason = ended.expect("no panic of its own").expect_err("not a good end").to_string();
        assert!(reason.starts_with("the store has failed and takes no more writes"), "{reason}");
    }
}
