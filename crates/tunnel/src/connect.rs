//! How the agent reaches the two servers that it stands between, by what their kubeconfigs say.
//!
//! The client library's own stack cannot stream the body of a request, and lets small packets wait for each other, which is
//! felt in a shell. The parts are its own: TLS, credentials, proxies.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::ConfigExt;
use serde_json::Value;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt};

use crate::servers::{self, HELD, Names, SERVER};
use crate::{PROTOCOL, path};

/// How long a connection may take to be made.
const CONNECTING: Duration = Duration::from_secs(5);
/// How long a connection to the member is kept for the next request, and how many.
const IDLE: Duration = Duration::from_secs(30);
const MOST_IDLE: usize = 16;
/// How much of a refusal is read.
const REFUSAL: usize = 64 * 1024;

/// The body of a request that goes on.
pub(crate) type Outgoing = UnsyncBoxBody<Bytes, hyper::Error>;
/// A server behind its credentials.
pub(crate) type Server = BoxCloneSyncService<Request<Outgoing>, Response<Incoming>, BoxError>;

/// The member's API server, reached with an account that may take on names and nothing else.
#[derive(Clone)]
pub struct Reached {
    pub(crate) server: Server,
    pub(crate) account: Option<String>,
}

impl std::fmt::Debug for Reached {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Reached").field("account", &self.account).finish_non_exhaustive()
    }
}

impl Reached {
    /// Prepares the way to a member. `account` is the account's name, if it is known: nothing is asked in it.
    ///
    /// # Errors
    /// If certificates, credentials or the proxy cannot be used.
    pub fn new(config: &Config, account: Option<String>) -> Result<Self, kube::Error> {
        Ok(Self { server: server(config)?, account })
    }
}

fn server(config: &Config) -> Result<Server, kube::Error> {
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_nodelay(true);
    plain.set_connect_timeout(Some(CONNECTING));
    plain.set_keepalive(Some(IDLE));
    let Some(proxy) = config.proxy_url.clone() else {
        return stack(config, config.rustls_https_connector_with_connector(plain)?);
    };
    match proxy.scheme_str() {
        Some("socks5") => {
            stack(config, config.rustls_https_connector_with_connector(SocksV5::new(proxy, plain))?)
        }
        Some("https") => {
            let to_proxy = config.rustls_https_connector_with_connector(plain)?;
            let through = told(&proxy, Tunnel::new(proxy.clone(), to_proxy));
            stack(config, config.rustls_https_connector_with_connector(through)?)
        }
        _ => {
            let through = told(&proxy, Tunnel::new(proxy.clone(), plain));
            stack(config, config.rustls_https_connector_with_connector(through)?)
        }
    }
}

/// Tells a proxy the name and password that stand in its address.
fn told<C>(proxy: &Uri, through: Tunnel<C>) -> Tunnel<C> {
    let user = proxy.authority().and_then(|authority| authority.as_str().rsplit_once('@'));
    let value = user.map(|(user, _)| format!("Basic {}", STANDARD.encode(user)));
    match value.and_then(|value| HeaderValue::from_str(&value).ok()) {
        Some(value) => through.with_auth(value),
        None => through,
    }
}

fn stack<C>(config: &Config, connector: C) -> Result<Server, kube::Error>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let connections: Client<C, Outgoing> = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MOST_IDLE)
        .http1_max_buf_size(128 * 1024)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(|error: ClientError| BoxError::from(error))
        .service(connections);
    Ok(BoxCloneSyncService::new(service))
}

/// Why a tunnel could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    #[error("the credentials for the tunnel cannot be used")]
    Credentials(#[source] BoxError),
    #[error("the control plane cannot be reached")]
    Unreachable(#[source] BoxError),
    #[error("the control plane did not answer in time")]
    Silent,
    #[error("the control plane knows no tunnels (status {0})")]
    Unknown(StatusCode),
    #[error("there is a tunnel to the server that answered")]
    Held,
    #[error("the control plane refuses the tunnel (status {code}): {message}")]
    Refused { code: StatusCode, message: String },
    #[error("the member's account for the tunnel cannot be used")]
    Member(#[source] BoxError),
}

/// Asks the control plane for the tunnel of a cluster and switches protocols. Returns the connection and who the server is,
/// if it says so. A server to which there is a tunnel opens no second one.
pub(crate) async fn open(
    config: &Config,
    cluster: &str,
    held: &Names,
) -> Result<(Upgraded, Option<String>), Closed> {
    let unusable = |error: kube::Error| Closed::Credentials(error.into());
    let server = server(config).map_err(unusable)?;
    let mut request = Request::get(path(cluster))
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, PROTOCOL)
        .header(http::header::USER_AGENT, concat!("karmada-agent/v", env!("CARGO_PKG_VERSION")))
        .body(Empty::new().map_err(|never| match never {}).boxed_unsync())
        .map_err(|error| Closed::Credentials(error.into()))?;
    request.headers_mut().extend(servers::write(held).map(|held| (HELD, held)));
    let response = server.oneshot(request).await.map_err(Closed::Unreachable)?;
    let status = response.status();
    let who = servers::read(response.headers().get(SERVER)).pop_first();
    let switched = response.headers().get(UPGRADE).is_some_and(|protocol| protocol == PROTOCOL);
    if status == StatusCode::SWITCHING_PROTOCOLS && switched {
        let io = hyper::upgrade::on(response).await.map_err(|error| Closed::Unreachable(error.into()))?;
        return Ok((io, who));
    }
    if status == StatusCode::CONFLICT && who.is_some_and(|who| held.contains(&who)) {
        return Err(Closed::Held);
    }
    if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) || status.is_success() {
        return Err(Closed::Unknown(status));
    }
    let body = Limited::new(response.into_body(), REFUSAL).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let told: Option<Value> = serde_json::from_slice(&body).ok();
    let message = told.as_ref().and_then(|told| told["message"].as_str()).unwrap_or("no reason is given");
    Err(Closed::Refused { code: status, message: message.chars().take(500).collect() })
}
