//! Requests that the server itself makes: to webhooks, conversion webhooks and aggregated servers.
//!
//! In: the target (a URL or a Service), and which authority to trust. Out: an answer, or an error in the words of Go's HTTP
//! client, since people search for these messages. HTTP/1.1 to Services is deliberate, as upstream: concurrent calls spread over
//! the endpoints of a Service, and connections can be upgraded. A host may use HTTP/2.

mod pool;
pub mod reply;
mod services;
mod tls;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

use crate::server::Server;

pub use services::{Address, ServicePort};
pub use trust::Trust;

/// The body of a forwarded request.
pub type SentBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// The target of a connection, and whom it trusts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub address: Address,
    pub trust: Trust,
    /// Presents the certificate of the front proxy.
    pub as_front_proxy: bool,
}

/// Why a call got no answer, in Go's words.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Error(pub String);

/// The connections to other servers.
#[derive(Default)]
pub struct Outbound {
    /// What the answers of all endpoints may take together.
    room: reply::Room,
    pools: parking_lot::Mutex<std::collections::HashMap<Endpoint, Arc<pool::Pool>>>,
    front_proxy: arc_swap::ArcSwapOption<crate::auth::pki::Pair>,
}

impl std::fmt::Debug for Outbound {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Outbound").field("pools", &self.pools.lock().len()).finish()
    }
}

/// More pools than a control plane has webhooks and aggregated servers; beyond it, unused ones are dropped.
const MAX_POOLS: usize = 512;

impl Outbound {
    pub fn new(front_proxy: crate::auth::pki::Pair) -> Self {
        let this = Self::default();
        this.set_front_proxy(front_proxy);
        this
    }

    /// Presents this certificate from now on.
    pub fn set_front_proxy(&self, pair: crate::auth::pki::Pair) {
        self.front_proxy.store(Some(Arc::new(pair)));
        self.pools.lock().retain(|endpoint, _| !endpoint.as_front_proxy);
    }

    /// Sends a request to an endpoint and returns the whole answer.
    ///
    /// # Errors
    /// If there is none, or one beyond its limits.
    pub async fn exchange(
        &self,
        server: &Server,
        endpoint: &Endpoint,
        request: Request<SentBody>,
        limits: reply::Limits,
    ) -> Result<reply::Reply, Error> {
        let pool = self.pool(endpoint)?;
        let response = pool.send(|| endpoint.address.resolve(server), request).await?;
        pool.rooms.read(response.status().as_u16(), response.into_body(), limits).await
    }

    /// Takes room for a document within an answer of an endpoint, see [`reply::Rooms::keep`].
    ///
    /// # Errors
    /// If there is no room, or no way to the endpoint any more.
    pub fn keep(&self, endpoint: &Endpoint, text: &[u8]) -> Result<Option<reply::Taken>, Error> {
        self.pool(endpoint)?.rooms.keep(text)
    }

    /// Sends a request to an endpoint and returns the head of the answer; the body is still unread.
    pub async fn send(
        &self,
        server: &Server,
        endpoint: &Endpoint,
        request: Request<SentBody>,
    ) -> Result<Response<Incoming>, Error> {
        let pool = self.pool(endpoint)?;
        pool.send(|| endpoint.address.resolve(server), request).await
    }

    fn pool(&self, endpoint: &Endpoint) -> Result<Arc<pool::Pool>, Error> {
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(endpoint) {
            return Ok(pool.clone());
        }
        if pools.len() >= MAX_POOLS {
            pools.retain(|_, pool| Arc::strong_count(pool) > 1);
        }
        let identity = self.front_proxy.load_full().filter(|_| endpoint.as_front_proxy);
        let tls = tls::config(
            &endpoint.trust,
            identity.as_deref(),
            matches!(endpoint.address, Address::Host { .. }),
        )
        .map_err(|error| Error(error.to_string()))?;
        let rooms = reply::Rooms::new(self.room.clone());
        let pool = Arc::new(pool::Pool::new(tls, &endpoint.address, rooms)?);
        pools.insert(endpoint.clone(), pool.clone());
        Ok(pool)
    }
}

/// Returns a body of known bytes.
pub fn full(bytes: impl Into<Bytes>) -> SentBody {
    use http_body_util::BodyExt;
    http_body_util::Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}
