//! What the tests of the binary share: `karmada` as a process, and following objects until they are as wanted.
//!
//! Every test is a program of its own and includes this as a module.

#![allow(dead_code, reason = "every test takes what it needs")]

pub(crate) mod follow;
pub(crate) mod process;

use std::path::Path;
use std::time::Duration;

/// Generous: the machine may be busy with everything else.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

/// Returns a client for the current context of a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> kube::Client {
    install_tls();
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config =
        kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("a usable kubeconfig");
    kube::Client::try_from(config).expect("a client")
}

/// Lets clients be made.
pub(crate) fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
