//! Connections of the webhook server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::review::Reviewer;

/// The largest review that is read; an object is at most 3 MiB, and an update carries two.
const BODY_MAX: usize = 7 * 1024 * 1024;
/// How long a peer may take for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests on their way may take after the server was told to end.
const GOODBYE: Duration = Duration::from_secs(5);

/// Serves reviews until `stop`; returns the address and a task that ends when the last answer was given.
pub(super) async fn https(
    address: SocketAddr,
    tls: Arc<rustls::ServerConfig>,
    reviewer: Arc<Reviewer>,
    stop: CancellationToken,
) -> anyhow::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let bound = listener.local_addr().context("the listener has no address")?;
    let acceptor = TlsAcceptor::from(tls);
    let task = tokio::spawn(async move {
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            // What fails here is a peer that has gone, or a shortage that passes.
            let Ok((stream, _)) = accepted else { continue };
            let (acceptor, reviewer, stop) = (acceptor.clone(), reviewer.clone(), stop.clone());
            connections.spawn(async move {
                let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
                    return;
                };
                let chain: Arc<[_]> = stream.get_ref().1.peer_certificates().unwrap_or_default().into();
                let service = hyper::service::service_fn(move |request| {
                    let (reviewer, chain) = (reviewer.clone(), chain.clone());
                    async move { Ok::<_, Infallible>(serve(&reviewer, request, &chain).await) }
                });
                let builder = Builder::new(TokioExecutor::new());
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                tokio::pin!(connection);
                tokio::select! {
                    result = connection.as_mut() => { if let Err(error) = result { tracing::debug!(%error, "connection ended"); } }
                    () = stop.cancelled() => {
                        connection.as_mut().graceful_shutdown();
                        let _ = connection.await;
                    }
                }
            });
        }
        connections.close();
        let _ = tokio::time::timeout(GOODBYE, connections.wait()).await;
    });
    Ok((bound, task))
}

/// Serves `/healthz` and `/readyz` without TLS.
pub(super) async fn health(address: SocketAddr, stop: CancellationToken) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else { continue };
            tokio::spawn(async move {
                let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                    Ok::<_, Infallible>(
                        probe(request.uri().path()).unwrap_or_else(|| plain(StatusCode::NOT_FOUND, "")),
                    )
                });
                let _ =
                    Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Ok(())
}

fn probe(path: &str) -> Option<Response<Full<Bytes>>> {
    matches!(path.trim_end_matches('/'), "/healthz" | "/readyz").then(|| plain(StatusCode::OK, "ok"))
}

async fn serve(
    reviewer: &Reviewer,
    request: Request<Incoming>,
    chain: &[CertificateDer<'_>],
) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    if let Some(answer) = probe(&path) {
        return answer;
    }
    if request.method() != Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "reviews are posted");
    }
    if !reviewer.answers(&path, chain) {
        return plain(
            StatusCode::UNAUTHORIZED,
            "reviews are for the API server: show a certificate of the authority in --client-ca-file",
        );
    }
    let body = match Limited::new(request.into_body(), BODY_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return plain(StatusCode::PAYLOAD_TOO_LARGE, "the review is too large or was cut off"),
    };
    match reviewer.answer(&path, &body).await {
        None => plain(StatusCode::NOT_FOUND, "404 page not found"),
        Some(answer) => {
            let allowed = &answer["response"]["allowed"];
            tracing::debug!(path, %allowed, "reviewed");
            let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
            response
                .headers_mut()
                .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
            response
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}
