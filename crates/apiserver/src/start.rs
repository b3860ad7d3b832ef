//! Starting and stopping a server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use apimachinery::status::Status;
use arc_swap::ArcSwap;
use store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::Chain;
use crate::admission::mutations::Mutations;
use crate::admission::policies::Policies;
use crate::admission::webhooks::Webhooks;
use crate::allocator;
use crate::audit::Audit;
use crate::auth::oidc::{self, Oidc};
use crate::auth::pki::{self, Pki};
use crate::auth::rbac::Rbac;
use crate::auth::renewal::Renewal;
use crate::auth::serving::{Serving, Signer};
use crate::auth::shared_keys;
use crate::auth::tokens::{self, Tokens};
use crate::auth::x509::Judge;
use crate::http::front::{self, Front};
use crate::http::listener;
use crate::http::sending::Sendings;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::outbound::Outbound;
use crate::registry::Registry;
use crate::server::{Identity, NoExtension, Readiness, Server};
use crate::{bootstrap, controllers};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot create {path}")]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("cannot open the store")]
    Store(#[from] store::OpenError),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    SharedKeys(#[from] shared_keys::Error),
    #[error(transparent)]
    Tokens(#[from] tokens::Error),
    #[error(transparent)]
    Oidc(#[from] oidc::Error),
    #[error(transparent)]
    Audit(#[from] crate::audit::Error),
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Listen(std::io::Error),
    #[error(transparent)]
    Admin(#[from] crate::admin::Error),
    #[error("cannot write what has to exist from the start")]
    Bootstrap(#[from] Status),
}

/// A running server.
#[derive(Debug)]
pub struct Handle {
    pub server: Arc<Server>,
    pub address: SocketAddr,
    pub url: String,
    /// The administrator's kubeconfig.
    pub kubeconfig: String,
    pub pki: Pki,
    stop: CancellationToken,
    tasks: TaskTracker,
    listening: CancellationToken,
    data_dir: Option<PathBuf>,
    /// Ensures that no other process uses the data directory.
    _lock: Option<store::Lock>,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests make time pass for it"))]
    pub(crate) renewal: Arc<Renewal>,
}

/// Starts a server; returns when it answers requests and is ready.
pub async fn start(options: Options) -> Result<Handle, Error> {
    let pki_dir = match &options.data_dir {
        Some(dir) => Some(private_dir(dir)?),
        None => None,
    };
    let listener = listener::bind(options.bind).await.map_err(Error::Listen)?;
    let address = listener.local_addr().map_err(Error::Listen)?;
    let mut names = options.extra_names.clone();
    names.push(address.ip().to_string());
    names.extend(options.advertise.clone());
    names.push(options.service_ranges.first_address());
    let store_options = match (&options.etcd, &options.data_dir) {
        (Some(etcd), _) => store::Options::etcd(etcd.clone()),
        (None, Some(dir)) if !options.in_memory => {
            store::Options { faults: options.store_faults.clone(), ..store::Options::file(dir.join("store")) }
        }
        _ => store::Options::memory(),
    };
    // A store in the directory takes this lock itself.
    let lock = match &options.data_dir {
        Some(dir) if options.etcd.is_some() => Some(store::lock(&dir.join("store"))?),
        _ => None,
    };
    // The store first: it takes the lock of the data directory, and only its owner may write keys there.
    let store = tokio::task::spawn_blocking(move || Store::open(store_options));
    let store = store.await.expect("opening the store does not panic")?;
    if let Some(dir) = pki_dir.as_deref().filter(|_| options.etcd.is_some())
        && let Err(error) = shared_keys::agree(&store, dir).await
    {
        store.close().await;
        return Err(error.into());
    }
    let names_for_pki = names.clone();
    let pki_path = pki_dir.clone();
    let pki = tokio::task::spawn_blocking(move || Pki::load_or_create(pki_dir.as_deref(), &names_for_pki));
    let pki = match pki.await.expect("making keys does not panic") {
        Ok(pki) => pki,
        Err(error) => {
            store.close().await;
            return Err(error.into());
        }
    };

    let metrics = Metrics::default();
    let lost = metrics.audit_errors.clone();
    let audit = options.audit.as_ref().map(|audit| Audit::open(audit, lost)).transpose()?.map(Arc::new);
    let issuer = "https://kubernetes.default.svc.cluster.local".to_owned();
    let stop = CancellationToken::new();
    let server = Arc::new(Server {
        store,
        registry: ArcSwap::new(options.registry.clone().unwrap_or_else(Registry::natives)),
        rbac: Rbac::within(options.bounds.clone()),
        impersonators: Default::default(),
        tokens: Tokens::new(&pki.service_account_key, &issuer, options.token_file.as_deref())?,
        oidc: options.oidc.clone().map(Oidc::new).transpose()?,
        admission: Chain::new(options.plugins.clone()),
        policies: Policies::default(),
        mutations: Mutations::default(),
        conversions: crate::conversion::Cache::default(),
        webhooks: Webhooks::new(options.ignored_webhooks.clone()),
        signer: Arc::new(Signer::new(pki.ca.clone())),
        outbound: Outbound::new(pki.front_proxy_client.clone()),
        metrics,
        profile: options.profile,
        service_ranges: options.service_ranges.clone(),
        pod_priority: options.pod_priority,
        extensions: options.extension.clone().unwrap_or_else(|| Arc::new(NoExtension)),
        stop: stop.clone(),
        watches: TaskTracker::new(),
        identity: Identity { issuer, started: jiff::Timestamp::now() },
        ready: Readiness::default(),
        audit,
        limits: Limits::new(options.max_reads, options.max_writes, options.budgets),
        sendings: Sendings::new(options.budgets.stall),
        relaxed: options.relaxed,
        gate: options.gate.clone(),
    });
    if let Err(error) = allocator::repair(&server.store).await {
        tracing::warn!(%error, "cannot note which addresses Services have; it is tried again at the next start");
    }
    server.rbac.catch_up(&server.store);
    // Before any request is answered: kinds that were served before a restart must not be unknown after it.
    controllers::definitions::load(&server);
    crate::aggregation::availability::load(&server);
    if let Some(bounds) = &options.bounds {
        bounds.connect(&server);
    }
    let serving = Arc::new(Serving::new(&pki.serving, server.signer.clone(), names, pki_path.clone())?);
    let tls = front::tls(serving.clone())?;
    let judge = Judge::new(
        &pki.ca.cert,
        &pki.front_proxy_ca.cert,
        &Arc::new(rustls::crypto::ring::default_provider()),
    )?;
    let tasks = TaskTracker::new();
    let listening = CancellationToken::new();
    let front = Arc::new(Front { server: server.clone(), judge });
    let settings = options.connections.unwrap_or_default();
    tasks.spawn(listener::run(listener, Some(tls), front, settings, listening.clone()));
    tasks.spawn(server.sendings.clone().run(stop.clone()));

    if let Some(dir) = options.data_dir.as_ref().filter(|_| !options.in_memory) {
        tasks.spawn(crate::admin::listen(&server, dir)?);
    }
    bootstrap::run(&server, &options, &pki).await?;
    server.ready.bootstrapped.store(true, Ordering::Release);
    controllers::definitions::install(&server, &options.definitions).await?;
    server.ready.definitions.store(true, Ordering::Release);
    controllers::spawn(&server, &tasks, &options);
    let renewal = Arc::new(Renewal::new(&server, serving, &pki, pki_path));
    let (looked_after, until) = (renewal.clone(), stop.clone());
    controllers::run(&server, &tasks, "certificate-renewal", move |_| {
        looked_after.clone().run(until.clone())
    });

    let host = options.advertise.clone().unwrap_or_else(|| match address.ip() {
        ip if ip.is_unspecified() => "127.0.0.1".to_owned(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        ip => ip.to_string(),
    });
    let url = format!("https://{host}:{}", address.port());
    let kubeconfig = pki.kubeconfig(&url, &options.context_name);
    tasks.close();
    Ok(Handle {
        server,
        address,
        url,
        kubeconfig,
        pki,
        stop,
        tasks,
        listening,
        data_dir: options.data_dir,
        _lock: lock,
        renewal,
    })
}

/// Creates the data directory and its `pki`, closed to others.
fn private_dir(dir: &Path) -> Result<PathBuf, Error> {
    use std::os::unix::fs::DirBuilderExt;
    let pki = dir.join("pki");
    for path in [dir, &pki] {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|source| Error::Directory { path: path.to_owned(), source })?;
    }
    pki::sync_dir(dir)?;
    // A process that may use the directory may lack the right to read its parent.
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        let _ = pki::sync_dir(parent);
    }
    Ok(pki)
}

impl Handle {
    /// Writes the administrator's kubeconfig into the data directory and returns its path.
    pub fn write_kubeconfig(&self, name: &str) -> Result<Option<PathBuf>, Error> {
        let Some(dir) = &self.data_dir else { return Ok(None) };
        let path = dir.join(name);
        pki::write_private(&path, self.kubeconfig.as_bytes())?;
        Ok(Some(path))
    }

    /// Waits until the server cannot continue, and returns why: its store has failed for good. It still answers reads and reports
    /// that it is neither ready nor alive; its owner should stop it and end the process.
    pub async fn failure(&self) -> Arc<str> {
        self.server.store.death().await
    }

    /// Ends the server: no new requests, watches closed, controllers stopped, everything on disk.
    pub async fn stop(self) {
        self.listening.cancel();
        self.stop.cancel();
        self.server.watches.close();
        let _ = tokio::time::timeout(Duration::from_secs(5), self.server.watches.wait()).await;
        if tokio::time::timeout(Duration::from_secs(10), self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "some tasks did not end in time");
        }
        self.server.store.close().await;
    }
}
