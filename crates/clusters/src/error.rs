//! What can go wrong with a fleet. Every message names the cluster or file it is about.

use std::{io, path::PathBuf, time::Duration};

use crate::toolchain;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Toolchain(#[from] toolchain::Error),
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "`setpriv` of util-linux is needed, so that no process outlives its owner; install util-linux 2.33 or newer"
    )]
    NoSetpriv,
    #[error("cannot make a certificate for {subject}")]
    Certificate { subject: String, source: rcgen::Error },
    #[error("{process} of {cluster} ended at once ({status}); its log ends with:\n{tail}")]
    Ended { process: String, cluster: String, status: String, tail: String },
    #[error("waited {} s for {what}; last seen: {seen}", after.as_secs())]
    Timeout { what: String, after: Duration, seen: String },
    #[error("members with real pods cannot run here: they need {what}")]
    NoPods { what: String },
    #[error("{cluster} has no kubelet: only members with real pods have (`clusters up --pods`)")]
    NoKubelet { cluster: String },
    #[error("pod {pod} of {cluster} has no running container")]
    NoContainer { pod: String, cluster: String },
    #[error("`{command}` failed: {said}")]
    Command { command: String, said: String },
    #[error("no {count} free ports found")]
    NoPorts { count: usize },
    #[error("two clusters are called {name}")]
    SameName { name: String },
    #[error("cluster {name} is not part of the fleet in {}", dir.display())]
    NoSuchCluster { name: String, dir: PathBuf },
    #[error("no running fleet in {}", dir.display())]
    NotRunning { dir: PathBuf },
    #[error("a fleet is running in {} already", dir.display())]
    AlreadyRunning { dir: PathBuf },
    #[error("the state in {} is not understood", path.display())]
    State { path: PathBuf, source: serde_json::Error },
    #[error("the supervisor refused to {command} {cluster}: {reason}")]
    Refused { command: String, cluster: String, reason: String },
    #[error("cannot reach cluster {cluster}")]
    Client { cluster: String, source: Box<kube::Error> },
    #[error("cannot use the kubeconfig of cluster {cluster}")]
    Kubeconfig { cluster: String, source: kube::config::KubeconfigError },
    #[error("the thread of the fleet ended before the clusters were ready")]
    ThreadEnded,
}

impl Error {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// Returns this error and everything behind it in one line, for logs and for answers over the control socket.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            text.push_str(&format!(": {source}"));
            next = source.source();
        }
        text
    }
}
