//! Clients of an API server, and the question whether it is ready.

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::error::Error;

/// Whether the client checks the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    Verify,
    /// Only to ask a server with an expired certificate whether it is up.
    Anything,
}

/// Returns a client for the only context of the kubeconfig at `path`.
pub(crate) async fn client(cluster: &str, path: &Path, trust: Trust) -> Result<Client, Error> {
    let wrap = |source| Error::Kubeconfig { cluster: cluster.to_string(), source };
    let kubeconfig = Kubeconfig::read_from(path).map_err(wrap)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(wrap)?;
    config.accept_invalid_certs = trust == Trust::Anything;
    // A cut-off cluster shall be noticed while the test still runs.
    config.connect_timeout = Some(Duration::from_secs(10));
    // The proxy in front is ours; one in the environment is meant for the outside world.
    config.proxy_url = None;
    Client::try_from(config)
        .map_err(|source| Error::Client { cluster: cluster.to_string(), source: Box::new(source) })
}

/// Asks `/readyz`; `Err` says what is not ready.
pub(crate) async fn ready(client: &Client) -> Result<(), String> {
    let request = http::Request::get("/readyz").body(Vec::new()).expect("a constant request is valid");
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
