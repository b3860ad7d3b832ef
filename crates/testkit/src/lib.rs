//! What integration tests share: servers in this process, programs as processes, waiting for a state, objects of any kind,
//! [`check`]: the laws that every control plane with members has to keep, and [`history`]: whether what clients saw was one store.
//!
//! A dev-dependency only. It does not know `app`, so whatever starts the binary is told where the binary is: cargo sets
//! `CARGO_BIN_EXE_karmada` for the tests of `app`.

pub mod balancer;
pub mod check;
pub mod embedded;
pub mod history;
mod objects;
pub mod process;
pub mod tls;
mod wait;

use std::path::Path;
use std::time::Duration;

pub use objects::{Inventory, Kind, assert_kept, at, condition, inventory, object, resource};
pub use process::{Process, Server, run};
pub use wait::{eventually, slowed, until, until_gone, until_some, until_true};

/// How long a test waits for a state. Generous: the machine may be busy with everything else.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Returns a client for the current context of a kubeconfig.
pub async fn client(kubeconfig: &Path) -> kube::Client {
    let text = std::fs::read_to_string(kubeconfig)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", kubeconfig.display()));
    let config = config(&text).await;
    kube::Client::try_from(config).expect("a client")
}

/// Returns the client configuration that the text of a kubeconfig describes.
pub async fn config(kubeconfig: &str) -> kube::Config {
    install_tls();
    let file = kube::config::Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig");
    kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("a usable kubeconfig")
}

/// Lets clients be made.
pub fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
