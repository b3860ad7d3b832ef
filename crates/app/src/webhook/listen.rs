//! Connections of the webhook server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use apiserver::http::listener::{self, Guest, Host, Settings};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use rustls::pki_types::CertificateDer;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::metrics;
use super::review::{self, Reviewer};
use super::room::{Limits, Room};

/// How long a peer may take to send a review, and to be answered: longer than an API server may wait.
const DEADLINE: Duration = Duration::from_secs(60);

/// Serves reviews until `stop`; returns the address and a task that ends after the last answer.
pub(super) async fn https(
    address: SocketAddr,
    tls: Arc<rustls::ServerConfig>,
    reviewer: Arc<Reviewer>,
    stop: CancellationToken,
) -> anyhow::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = listener::bind(address).await?;
    let bound = listener.local_addr().context("the listener has no address")?;
    let room = || Room::new(Limits::default());
    let host = Arc::new(Reviews { reviewer, known: room(), strangers: room() });
    let task = tokio::spawn(listener::run(listener, Some(tls), host, Settings::default(), stop));
    Ok((bound, task))
}

/// Serves `/healthz` and `/readyz` without TLS.
pub(super) async fn health(address: SocketAddr, stop: CancellationToken) -> anyhow::Result<()> {
    let listener = listener::bind(address).await?;
    tokio::spawn(listener::run(listener, None, Arc::new(Probes), Settings::for_probes(), stop));
    Ok(())
}

/// Answers the API server.
struct Reviews {
    reviewer: Arc<Reviewer>,
    /// For callers who have shown that they are API servers, and for all others.
    known: Room,
    strangers: Room,
}

impl Host for Reviews {
    /// The certificates that the peer presented.
    type Peer = Arc<[CertificateDer<'static>]>;
    type Body = Full<Bytes>;

    fn meet(&self, tls: Option<&rustls::ServerConnection>, _: &Arc<Guest>) -> Self::Peer {
        let chain = tls.and_then(|session| session.peer_certificates());
        chain.unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect()
    }

    async fn answer(&self, chain: Self::Peer, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let asked = metrics::begin(review::Path::of(request.uri().path()).served);
        let answer = tokio::time::timeout(DEADLINE, serve(self, request, &chain)).await;
        let answer =
            answer.unwrap_or_else(|_| plain(StatusCode::GATEWAY_TIMEOUT, "the review took too long"));
        if let Some(asked) = asked {
            asked.answered(answer.status());
        }
        answer
    }
}

/// Answers health probes.
struct Probes;

impl Host for Probes {
    type Peer = ();
    type Body = Full<Bytes>;

    fn meet(&self, _: Option<&rustls::ServerConnection>, _: &Arc<Guest>) {}

    async fn answer(&self, (): (), request: Request<Incoming>) -> Response<Full<Bytes>> {
        probe(request.uri().path()).unwrap_or_else(|| plain(StatusCode::NOT_FOUND, ""))
    }
}

fn probe(path: &str) -> Option<Response<Full<Bytes>>> {
    matches!(path.trim_end_matches('/'), "/healthz" | "/readyz").then(|| plain(StatusCode::OK, "ok"))
}

async fn serve(
    reviews: &Reviews,
    request: Request<Incoming>,
    chain: &[CertificateDer<'_>],
) -> Response<Full<Bytes>> {
    if let Some(answer) = probe(request.uri().path()) {
        return answer;
    }
    let (reviewer, given) = (&reviews.reviewer, request.uri().path().to_owned());
    let path = review::Path::of(&given);
    if request.method() != Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "reviews are posted");
    }
    let Some(admitted) = reviewer.admit(&path, chain) else {
        unknown_caller();
        let hint = if reviewer.asks_certificates() {
            "reviews are for the API server: show a certificate of the authority in --client-ca-file"
        } else {
            "reviews that ask the control plane are for the API server: apply what karmada webhook --print-configuration prints"
        };
        return plain(StatusCode::UNAUTHORIZED, hint);
    };
    let path = path.served;
    let room = if admitted.known { &reviews.known } else { &reviews.strangers };
    let review = match room.read(request.into_body()).await {
        Ok(review) => review,
        Err((status, why)) => return plain(status, why),
    };
    match reviewer.answer(path, &review.body).await {
        None => plain(StatusCode::NOT_FOUND, "404 page not found"),
        Some(answer) => {
            let allowed = answer.pointer("/response/allowed").and_then(serde_json::Value::as_bool);
            tracing::debug!(path, allowed, "reviewed");
            let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
            response
                .headers_mut()
                .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
            response
        }
    }
}

/// Says once that somebody was not answered: it may be an API server whose configuration is older than this program.
fn unknown_caller() {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            "a review was refused because its sender is not known; if it was the API server, register this program again \
             with --print-configuration"
        );
    });
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}
