//! The API server behind its listener: TLS with client certificates, and the identity of the client.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use rustls::{ServerConfig, ServerConnection};

use super::body::Body;
use super::listener::{Guest, Host};
use crate::auth::serving::Serving;
use crate::auth::user::MASTERS;
use crate::auth::x509::{Judge, Lenient};
use crate::serve::{Peer, serve};
use crate::server::Server;

/// Returns the TLS configuration: any client certificate passes the handshake and is verified afterwards.
pub fn tls(serving: Arc<Serving>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(Lenient::new(provider)))
        .with_cert_resolver(serving);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Answers the requests of clients.
#[derive(Debug)]
pub struct Front {
    pub server: Arc<Server>,
    pub judge: Judge,
}

impl Host for Front {
    type Peer = Peer;
    type Body = Body;

    fn meet(&self, tls: Option<&ServerConnection>, guest: &Arc<Guest>) -> Peer {
        let chain = tls.and_then(|session| session.peer_certificates());
        let verdict = chain.map(|chain| self.judge.judge(chain)).unwrap_or_default();
        Peer::Remote { verdict: verdict.into(), guest: guest.clone() }
    }

    /// Before the first request, only the certificate is known.
    fn is_administrator(&self, peer: &Peer) -> bool {
        let Peer::Remote { verdict, .. } = peer else { return false };
        verdict.now().user.is_some_and(|user| user.in_group(MASTERS))
    }

    async fn answer(&self, peer: Peer, request: Request<Incoming>) -> Response<Body> {
        serve(self.server.clone(), request, peer).await
    }

    fn is_shut(&self) -> bool {
        self.server.gate.is_shut()
    }

    async fn shut(&self) {
        self.server.gate.shut().await;
    }
}
