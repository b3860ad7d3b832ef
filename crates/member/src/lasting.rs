//! Clients whose dead connections are noticed.
//!
//! Watches are silent for minutes, and a broken link gives no signal: by default the kernel retransmits for a
//! quarter of an hour before it gives up. These clients make the kernel probe a silent connection and give up
//! early, so that the caller gets an error and opens a new connection.

use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use kube::client::{ClientBuilder, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, ServiceExt as _, service_fn};

use crate::limit::LimitLayer;
use crate::proxied::stack;
use crate::tls::OldestTls;

/// How long a connection may be silent before the other side is probed, and the time between two probes.
const SILENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(5);
/// How long sent data may stay unacknowledged.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes a client that notices within half a minute that a connection is dead. Through a proxy, the client library makes the
/// connection to the proxy.
///
/// # Errors
/// If certificates or credentials cannot be used.
pub fn lasting_client(config: &Config) -> Result<Client, kube::Error> {
    client(config, None, OldestTls::default())
}

/// The same, with a limit on what it reads. Without a proxy, it also has a minimum version of TLS.
pub(crate) fn client(
    config: &Config,
    limits: Option<&LimitLayer>,
    oldest: OldestTls,
) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        let builder = ClientBuilder::try_from(config.clone())?;
        return Ok(match limits {
            Some(limits) => builder.with_layer(limits).build(),
            None => builder.build(),
        });
    }
    let secured = oldest.of(config.rustls_https_connector_with_connector(connector())?);
    let patience = config.connect_timeout.unwrap_or(PATIENCE);
    // With the exchange of certificates.
    let connect = service_fn(move |address: Uri| {
        let connecting = secured.clone().oneshot(address);
        Box::pin(async move {
            let connected = tokio::time::timeout(patience, connecting).await;
            connected.map_err(|_| BoxError::from("the server did not answer in time"))?
        })
    });
    stack(config, connect, limits)
}

/// Makes connections that fail soon after the link breaks.
pub(crate) fn connector() -> HttpConnector {
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_nodelay(true);
    plain.set_keepalive(Some(SILENCE));
    plain.set_keepalive_interval(Some(AGAIN));
    plain.set_keepalive_retries(Some(2));
    #[cfg(target_os = "linux")]
    plain.set_tcp_user_timeout(Some(PATIENCE));
    plain
}
