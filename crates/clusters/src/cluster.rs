//! A cluster as its users see it: a cheap handle with a client, switches for trouble, and eyes.
//!
//! The handle works the same in the process that owns the fleet and in any other: the switches go over the control socket.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    apiserver::{self, Trust},
    control::{self, Answer, Command},
    diagnostics,
    error::Error,
    flags::Files,
    namespace::TestNamespace,
    options::Flavour,
    pods,
    proxy::Network,
    state::ClusterState,
};

/// One cluster of a running fleet.
#[derive(Debug, Clone)]
pub struct Cluster {
    dir: PathBuf,
    /// As it was when the handle was made; only what never changes is read from it.
    state: ClusterState,
}

impl Cluster {
    pub(crate) fn new(dir: &Path, state: ClusterState) -> Self {
        Self { dir: dir.to_path_buf(), state }
    }

    pub fn name(&self) -> &str {
        &self.state.name
    }

    pub fn flavour(&self) -> Flavour {
        self.state.flavour
    }

    /// Returns the address clients use, `https://127.0.0.1:<port>`: the proxy's.
    pub fn server(&self) -> &str {
        &self.state.server
    }

    /// Returns the kubeconfig for clients; cluster, user and context are called like the cluster.
    pub fn kubeconfig(&self) -> &Path {
        &self.state.kubeconfig
    }

    /// Returns a kubeconfig that goes past the proxy: it works while the network is cut.
    pub fn direct_kubeconfig(&self) -> &Path {
        &self.state.direct_kubeconfig
    }

    /// Returns the folder with logs and keys.
    pub fn folder(&self) -> &Path {
        &self.state.folder
    }

    /// Returns the log of the writes to a member: all of them, with their content where a service account made them.
    pub fn audit_log(&self) -> PathBuf {
        Files { folder: self.folder().to_path_buf() }.audit_log()
    }

    /// Returns a client as everybody has it, through the proxy.
    pub async fn client(&self) -> Result<Client, Error> {
        apiserver::client(self.name(), self.kubeconfig(), Trust::Verify).await
    }

    /// Returns a client that goes past the proxy.
    pub async fn direct_client(&self) -> Result<Client, Error> {
        apiserver::client(self.name(), self.direct_kubeconfig(), Trust::Verify).await
    }

    /// Returns how the cluster is now.
    pub async fn state(&self) -> Result<ClusterState, Error> {
        match self.send(Command::Status).await? {
            Answer::State(state) => Ok(*state),
            Answer::Done | Answer::Failed(_) => Err(Error::NotRunning { dir: self.dir.clone() }),
        }
    }

    /// Sets how the network between the cluster and its clients behaves; returns once it does.
    pub async fn network(&self, network: Network) -> Result<(), Error> {
        self.order(Command::Network(network)).await
    }

    /// Cuts the cluster off: connections are refused, open ones closed.
    pub async fn cut_off(&self) -> Result<(), Error> {
        self.network(Network::Refuse).await
    }

    /// Undoes whatever was done to the network.
    pub async fn heal(&self) -> Result<(), Error> {
        self.network(Network::Open).await
    }

    /// Freezes the API server: connections stay open, nothing is answered.
    pub async fn pause(&self) -> Result<(), Error> {
        self.order(Command::Pause).await
    }

    /// Lets a frozen API server go on.
    pub async fn resume(&self) -> Result<(), Error> {
        self.order(Command::Resume).await
    }

    /// Kills the API server; it stays down until [`restart`](Self::restart).
    pub async fn kill(&self) -> Result<(), Error> {
        self.order(Command::Kill).await
    }

    /// Starts the API server again, with all its data; returns when it is ready.
    pub async fn restart(&self) -> Result<(), Error> {
        self.order(Command::Restart).await
    }

    /// Restarts the API server with a serving certificate that expired long ago.
    pub async fn expire_certificate(&self) -> Result<(), Error> {
        self.order(Command::ExpireCertificate).await
    }

    /// Restarts the API server with a good serving certificate.
    pub async fn renew_certificate(&self) -> Result<(), Error> {
        self.order(Command::RenewCertificate).await
    }

    /// Starts the whole cluster afresh without any data, at the same address and with the same keys; returns when it works.
    pub async fn restart_empty(&self) -> Result<(), Error> {
        self.order(Command::RestartEmpty).await
    }

    /// Keeps the cluster's data as they are now. Clusters of the same fleet stand still meanwhile, for a moment.
    pub async fn snapshot(&self) -> Result<(), Error> {
        self.order(Command::Snapshot).await
    }

    /// Starts the whole cluster again with the data of the last [`snapshot`](Self::snapshot), and with its revisions: what was written
    /// since never happened. Returns when it works.
    pub async fn restart_from_snapshot(&self) -> Result<(), Error> {
        self.order(Command::RestartFromSnapshot).await
    }

    /// Kills the kubelet of a member with real pods; it stays down until [`restart_kubelet`](Self::restart_kubelet). Its containers run on.
    pub async fn kill_kubelet(&self) -> Result<(), Error> {
        self.order(Command::KillKubelet).await
    }

    /// Starts the kubelet again.
    pub async fn restart_kubelet(&self) -> Result<(), Error> {
        self.order(Command::RestartKubelet).await
    }

    /// Kills the processes in the containers of a real pod, as a crash would; its kubelet starts them again as the pod's
    /// restart policy says. Returns how many there were.
    pub async fn stop_pod(&self, namespace: &str, name: &str) -> Result<usize, Error> {
        let group =
            self.state().await?.cgroup.ok_or(Error::NoKubelet { cluster: self.name().to_string() })?;
        let pods: Api<Pod> = Api::namespaced(self.direct_client().await?, namespace);
        let pod = pods
            .get(name)
            .await
            .map_err(|source| Error::Client { cluster: self.name().to_string(), source: Box::new(source) })?;
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let containers = statuses.iter().filter_map(|status| status.container_id.as_deref());
        let ids = containers.filter_map(|id| id.strip_prefix("containerd://"));
        let processes: Vec<u32> = ids.flat_map(|id| pods::processes(&group, id)).collect();
        for id in &processes {
            if let Some(id) = i32::try_from(*id).ok().and_then(Pid::from_raw) {
                let _ = kill_process(id, Signal::KILL); // it may have ended by itself
            }
        }
        if processes.is_empty() {
            let (pod, cluster) = (format!("{namespace}/{name}"), self.name().to_string());
            return Err(Error::NoContainer { pod, cluster });
        }
        Ok(processes.len())
    }

    /// Undoes every trouble that was made, except that an emptied cluster stays empty. Costs nothing where there is none.
    pub async fn recover(&self) -> Result<(), Error> {
        self.order(Command::Recover).await
    }

    /// Like [`recover`](Self::recover), for destructors. A failure is only reported: there is nobody to handle it.
    pub(crate) fn recover_blocking(&self) {
        if let Err(error) = control::send_blocking(&self.dir, self.name(), Command::Recover) {
            eprintln!("clusters: {} could not be put in order again: {error}", self.name());
        }
    }

    /// Creates a namespace with a unique name; it is deleted when the value is dropped.
    pub async fn namespace(&self, prefix: &str) -> Result<TestNamespace, Error> {
        TestNamespace::create(self, prefix).await
    }

    /// Returns the objects and events of `namespace` and the last lines of every log, for a failed test to print.
    /// It says what it could not find out instead of failing.
    pub async fn diagnose(&self, namespace: &str) -> String {
        diagnostics::report(self, namespace).await
    }

    async fn order(&self, command: Command) -> Result<(), Error> {
        self.send(command).await.map(|_| ())
    }

    async fn send(&self, command: Command) -> Result<Answer, Error> {
        control::send(&self.dir, Some(self.name()), command).await
    }
}
