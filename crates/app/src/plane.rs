//! A control plane in this process: API server, admission, controllers. `server` and `up` start it alike.
//!
//! In: the differences between control planes ([`Setup`]). Out: a running [`Plane`], until it is stopped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use apiserver::local::Terms;
use apiserver::server::Server;
use apiserver::{Handle, Profile};
use controllers::plane::scheduling::Diagnoses;
use fleet::Fleet;
use kube::Client;
use member::OldestTls;
use runtime::{Supervisor, Writer};
use store::Durability;
use tunnel::Tunnels;

use crate::agents::Agents;
use crate::controllers::{Chosen, Running, Tasks};
use crate::environment::Environment;
use crate::fleet::Endpoints;
use crate::{etcd, extension, fleet_metrics, peers, plugin, roles, tunnels};

/// The configuration of a control plane.
pub(crate) struct Setup {
    /// Addresses, files and limits; the options that make the server Karmada's are filled in here.
    pub(crate) server: apiserver::Options,
    pub(crate) rules: admission::Settings,
    pub(crate) chosen: Chosen,
    /// How much memory the copies of members' objects may take.
    pub(crate) search_cache_bytes: usize,
    /// The oldest version of TLS that the cluster proxy speaks with members.
    pub(crate) oldest_tls: OldestTls,
}

/// The default of how much memory the copies of members' objects may take.
pub(crate) const SEARCH_CACHE: usize = 2 << 30;

/// A running control plane.
pub(crate) struct Plane {
    pub(crate) url: String,
    /// The administrator's kubeconfig; empty without a data directory.
    pub(crate) kubeconfig: PathBuf,
    /// A client that may do everything and needs no socket.
    pub(crate) client: Client,
    handle: Handle,
    running: Running,
    /// The tasks that follow members for the search.
    followers: Supervisor,
    /// Writes the events of tunnels.
    news: Supervisor,
    /// Finds the other servers on the same store, if there may be any.
    peers: Option<Supervisor>,
}

impl Plane {
    /// Starts a control plane; returns when it answers and its controllers run.
    pub(crate) async fn start(setup: Setup) -> anyhow::Result<Self> {
        let environment = Arc::new(Environment::default());
        let diagnoses = Diagnoses::default();
        let tasks = Tasks::default();
        let fleet = Fleet::new(setup.search_cache_bytes);
        let tunnels = Tunnels::default();
        let place = match &setup.server.data_dir {
            Some(dir) => dir.display().to_string(),
            None => "memory".to_owned(),
        };
        // A server that shares its store with others needs a distinct name.
        let shared = setup.server.data_dir.as_deref().filter(|_| setup.server.etcd.is_some());
        let server = shared.map(etcd::server_id).transpose()?;
        if let Some(own) = &server {
            tunnels.know_servers(own, []);
        }
        let agents = Agents::default();
        let options = apiserver::Options {
            profile: Profile::Karmada,
            definitions: api::crd::all().into_iter().chain(api::crd::aggregated()).collect(),
            namespaces: vec!["karmada-system".to_owned(), "karmada-cluster".to_owned()],
            registry: Some(crate::fleet::registry(fleet_metrics::kinds())),
            plugins: vec![
                Arc::new(agents.clone()),
                Arc::new(plugin::Karmada::new(setup.rules, environment.clone())),
            ],
            bounds: Some(Arc::new(agents)),
            extension: Some(Arc::new(extension::Karmada::new(
                diagnoses.clone(),
                tasks.clone(),
                Endpoints::new(fleet.clone()),
                tunnels.clone(),
                setup.oldest_tls,
            ))),
            // The plug-in covers these two webhooks of the original installation.
            ignored_webhooks: vec!["mutating-config".to_owned(), "validating-config".to_owned()],
            ..setup.server
        };
        let handle =
            apiserver::start(options).await.with_context(|| format!("cannot start the server on {place}"))?;
        let kubeconfig = handle.write_kubeconfig("karmada.kubeconfig")?.unwrap_or_default();
        let client = apiserver::local::client(
            &handle.server,
            apiserver::auth::User::system("system:karmada-controllers"),
        );
        environment.connect(client.clone());
        let news = tunnels::tell(&tunnels, &handle.server, &client);
        roles::ensure(&client, &handle.url, &handle.pki.ca.cert).await?;
        let peers = server.as_deref().map(|own| peers::start(&client, own, &tunnels));
        let on_terms = |durability| {
            let user = apiserver::auth::User::system("system:karmada-controllers");
            apiserver::local::client_on(&handle.server, user, Terms { durability, ownership: false })
        };
        // Writes that controllers mark as repeatable need not wait for the disk; all others do.
        let writer = Writer::with_derived(on_terms(Durability::Durable), on_terms(Durability::Buffered));
        let followers = Supervisor::default();
        let find_way = crate::fleet::find_way(&client, &tunnels);
        fleet.start(client.clone(), crate::fleet::resolve(&handle.server), find_way, &followers);
        crate::fleet::opensearch::start(&fleet, &client, &followers);
        let running = Running::elected(writer, &setup.chosen, server, diagnoses, tasks).await?;
        Ok(Self { url: handle.url.clone(), kubeconfig, client, handle, running, followers, news, peers })
    }

    /// Returns the server itself, for operations that no client may perform.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.handle.server
    }

    /// Waits until the control plane cannot continue, and returns why.
    pub(crate) async fn failure(&self) -> anyhow::Error {
        anyhow::anyhow!("{}; a restart reads the store from the disk", self.handle.failure().await)
    }

    /// Ends it: the controllers first, since they are clients of the server.
    pub(crate) async fn stop(self) {
        if let Some(peers) = &self.peers {
            peers.stop().await;
        }
        self.running.stop().await;
        let _ = tokio::time::timeout(Duration::from_secs(5), self.followers.stop()).await;
        self.news.stop().await;
        self.handle.stop().await;
    }
}
