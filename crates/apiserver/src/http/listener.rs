//! Connections: TLS, HTTP/1.1 and HTTP/2, and their orderly end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::serving::Serving;
use crate::auth::x509::{Judge, Lenient};
use crate::serve::{Peer, serve};
use crate::server::Server;

/// A client that has not finished its handshake or request head by then is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADERS: Duration = Duration::from_secs(30);
/// One connection of client-go carries all watches of a process.
const MAX_STREAMS: u32 = 1000;
/// How often and at which distance a port that another program has is tried: five seconds in all.
const BIND_TRIES: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(50);
/// How long connections may take to end once the server stops.
const GOODBYE: Duration = Duration::from_secs(5);

/// Returns the TLS configuration: any client certificate passes the handshake and is judged afterwards.
pub fn tls(serving: Arc<Serving>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(Lenient::new(provider)))
        .with_cert_resolver(serving);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Binds the address; the error names it.
///
/// An address in use is tried again for a while: after `kill -9` the predecessor may still be dying.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let mut tries = 0;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && tries < BIND_TRIES => {
                if tries == 0 {
                    tracing::info!(%address, "waiting for another program to let go of the port");
                }
                tries += 1;
                tokio::time::sleep(BIND_PAUSE).await;
            }
            bound => {
                return bound.map_err(|error| {
                    std::io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
                });
            }
        }
    }
}

/// Accepts connections until told to stop, then waits a moment for the open ones.
pub async fn run(
    server: Arc<Server>,
    listener: TcpListener,
    config: Arc<ServerConfig>,
    judge: Judge,
    stop: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(config);
    let connections = TaskTracker::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                // Dropping it at once resets it: the client sees a server that is gone.
                Ok((stream, _)) if server.gate.is_shut() => drop(abort(stream)),
                Ok((stream, address)) => {
                    let connection = Connection {
                        address,
                        server: server.clone(),
                        acceptor: acceptor.clone(),
                        judge: judge.clone(),
                        stop: stop.clone(),
                    };
                    connections.spawn(connection.run(stream));
                }
                Err(error) => {
                    // Out of file descriptors, mostly: give the others a moment to end.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            () = stop.cancelled() => break,
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(GOODBYE, connections.wait()).await.is_err() {
        tracing::info!(open = connections.len(), "closing connections that did not end by themselves");
    }
}

/// Makes a connection end with a reset instead of a polite goodbye.
fn abort(stream: TcpStream) -> TcpStream {
    let _ = stream.set_zero_linger();
    stream
}

struct Connection {
    address: SocketAddr,
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    judge: Judge,
    stop: CancellationToken,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        // Answers are small and latency counts.
        let _ = stream.set_nodelay(true);
        let stream = match tokio::time::timeout(HANDSHAKE, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake failed");
                return;
            }
            Err(_) => return,
        };
        let verdict = stream.get_ref().1.peer_certificates().map(|chain| self.judge.judge(chain));
        let peer = Peer::Remote { verdict: verdict.unwrap_or_default().into(), address: self.address.ip() };
        let server = self.server;
        let gate = server.gate.clone();
        let service = service_fn(move |request| {
            let (server, peer) = (server.clone(), peer.clone());
            async move { Ok::<_, Infallible>(serve(server, request, peer).await) }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS).max_buf_size(256 * 1024);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(256 * 1024)
            .initial_stream_window_size(256 * 1024)
            .initial_connection_window_size(1024 * 1024)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = gate.shut() => return,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }
}
