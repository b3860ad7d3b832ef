//! Connections: who may have one, TLS, HTTP/1.1 and HTTP/2, and their orderly end. All listeners of the program use this code.
//!
//! A silent connection is closed at every stage: during the handshake, before its first request, and between requests. A request
//! in progress keeps a connection open, as long as the peer answers pings (HTTP/2) or acknowledges probes (TCP). There are limits
//! for the total number of connections and for those from one address. At a limit, an idle connection is closed for the new one:
//! first those that never had a valid credential. If all are busy, only administrators get in.

pub mod descriptors;
mod guests;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use guests::Guest;
use guests::{Active, Guests, Slot};

/// One connection of client-go carries all watches of a process.
const MAX_STREAMS: u32 = 1000;
/// How long connections may take to end once they or the server must end.
const GOODBYE: Duration = Duration::from_secs(5);
/// How often, and after which pause, a port in use is tried again: five seconds in total.
const BIND_TRIES: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(50);
/// The pause after the system refused a connection.
const PAUSE: Duration = Duration::from_millis(50);
/// The default limit is never higher than this: each connection takes some ten kilobytes.
const USUAL_MOST: usize = 10_000;

/// The limits of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Connections in total.
    pub connections: usize,
    /// Connections from one address.
    pub per_address: usize,
    /// Additional connections, for administrators.
    pub reserve: usize,
    /// The time limit for a TLS handshake.
    pub handshake: Duration,
    /// The time limit from there to the end of the first request's head.
    pub first_request: Duration,
    /// How long a connection remains open without a request.
    pub idle: Duration,
    /// How long an idle connection may take to close.
    pub goodbye: Duration,
    /// How often HTTP/2 peers are pinged, and how long they may take to answer.
    pub ping: Duration,
    pub pong: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self::for_descriptors(descriptors::raise())
    }
}

impl Settings {
    /// Returns limits that leave enough of this process's open files: an eighth for files, a quarter for outgoing connections, a
    /// sixteenth for administrators.
    pub fn for_descriptors(descriptors: u64) -> Self {
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let reserve = (descriptors / 16).clamp(1, 64);
        let kept = (descriptors / 8).saturating_add(descriptors / 4).saturating_add(reserve);
        let connections = descriptors.saturating_sub(kept).clamp(1, USUAL_MOST);
        Self {
            connections,
            per_address: connections.div_ceil(2),
            reserve,
            handshake: Duration::from_secs(10),
            first_request: Duration::from_secs(32),
            idle: Duration::from_secs(120),
            goodbye: GOODBYE,
            ping: Duration::from_secs(30),
            pong: Duration::from_secs(20),
        }
    }

    /// Returns limits for listeners with few requests: metrics, health.
    pub fn for_probes() -> Self {
        Self { connections: 64, per_address: 32, reserve: 0, ..Self::default() }
    }

    /// Returns the same limits with explicit values; the other ones are derived from these.
    pub fn chosen(
        self,
        connections: Option<usize>,
        per_address: Option<usize>,
        idle: Option<Duration>,
    ) -> Self {
        let connections = connections.map_or(self.connections, |chosen| chosen.max(1));
        Self {
            connections,
            per_address: per_address.map_or(connections.div_ceil(2), |chosen| chosen.max(1)),
            idle: idle.unwrap_or(self.idle),
            ..self
        }
    }
}

/// A service on a listener.
pub trait Host: Send + Sync + 'static {
    /// The known identity of the client.
    type Peer: Clone + Send + Sync + 'static;
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// Identifies the client; with TLS, from the handshake.
    fn meet(&self, tls: Option<&rustls::ServerConnection>, guest: &Arc<Guest>) -> Self::Peer;

    /// Returns whether this client gets in when all connections are busy.
    fn is_administrator(&self, _: &Self::Peer) -> bool {
        false
    }

    fn answer(
        &self,
        peer: Self::Peer,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Returns whether connections are currently refused.
    fn is_shut(&self) -> bool {
        false
    }

    /// Waits until all connections must be cut.
    fn shut(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// Binds the address; the error names it.
///
/// An address in use is tried again for a while: after `kill -9` the predecessor may still be dying.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let mut tries: u32 = 0;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && tries < BIND_TRIES => {
                if tries == 0 {
                    tracing::info!(%address, "waiting for another program to let go of the port");
                }
                tries = tries.saturating_add(1);
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

/// Accepts connections until it is stopped, then waits a moment for the open ones.
pub async fn run<H: Host>(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    host: Arc<H>,
    settings: Settings,
    stop: CancellationToken,
) {
    let acceptor = tls.map(TlsAcceptor::from);
    let guests = Guests::new(settings);
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Usually the process has run out of file descriptors.
                let relieved = guests.make_room();
                tracing::warn!(%error, relieved, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if host.is_shut() {
            // To the client, the server looks dead.
            reset(stream);
            continue;
        }
        let Some(slot) = guests.enter(address.ip()) else {
            tracing::debug!(%address, "refusing a connection: there are too many");
            reset(stream);
            continue;
        };
        let connection = Connection { slot, settings, host: host.clone(), stop: stop.clone() };
        connections.spawn(connection.run(stream, acceptor.clone()));
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(GOODBYE, connections.wait()).await.is_err() {
        tracing::info!(open = connections.len(), "closing connections that did not end by themselves");
    }
}

/// Ends a connection with a reset instead of an orderly close.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Makes the system detect a dead peer while nothing is sent.
fn probe(stream: &TcpStream) {
    use rustix::net::sockopt;
    let probed = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, Duration::from_secs(60)))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15)))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, 4));
    if let Err(error) = probed {
        tracing::debug!(%error, "cannot have a connection probed");
    }
}

struct Connection<H> {
    slot: Slot,
    settings: Settings,
    host: Arc<H>,
    stop: CancellationToken,
}

impl<H: Host> Connection<H> {
    async fn run(self, stream: TcpStream, acceptor: Option<TlsAcceptor>) {
        // Answers are small, and latency matters.
        let _ = stream.set_nodelay(true);
        probe(&stream);
        let guest = self.slot.guest.clone();
        let Some(acceptor) = acceptor else {
            let peer = self.host.meet(None, &guest);
            return self.serve(stream, peer, false).await;
        };
        let accepted = tokio::select! {
            accepted = tokio::time::timeout(self.settings.handshake, acceptor.accept(stream)) => accepted,
            () = guest.dismissed() => return,
        };
        let stream = match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return,
        };
        let session = stream.get_ref().1;
        let http2 = session.alpn_protocol() == Some(b"h2");
        let peer = self.host.meet(Some(session), &guest);
        self.serve(stream, peer, http2).await;
    }

    async fn serve<S>(self, stream: S, peer: H::Peer, http2: bool)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { slot, settings, host, stop } = self;
        if !slot.may_stay(host.is_administrator(&peer)) {
            return tracing::debug!(address = %slot.guest.address(), "refusing a connection: there are too many");
        }
        let guest = slot.guest.clone();
        let gate = host.clone();
        let arrived = guest.clone();
        let service = service_fn(move |request| {
            let (host, peer, active) = (host.clone(), peer.clone(), arrived.begin());
            async move {
                let answer = host.answer(peer, request).await;
                Ok::<_, Infallible>(answer.map(|body| Unfinished { body, _active: active }))
            }
        });
        // The place is freed when the socket is closed: upgraded connections live on without this task.
        let io = TokioIo::new(Counted { stream, _slot: slot });
        if http2 {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(MAX_STREAMS)
                .max_header_list_size(256 * 1024)
                .initial_stream_window_size(256 * 1024)
                .initial_connection_window_size(1024 * 1024)
                .keep_alive_interval(settings.ping)
                .keep_alive_timeout(settings.pong);
            let connection = std::pin::pin!(builder.serve_connection(io, service));
            drive(connection, |it| it.graceful_shutdown(), &guest, &settings, &*gate, &stop).await;
        } else {
            let mut builder = hyper::server::conn::http1::Builder::new();
            // Heads have no timer of their own: until one is complete, the connection counts as idle.
            builder.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(256 * 1024);
            let connection = std::pin::pin!(builder.serve_connection(io, service).with_upgrades());
            drive(connection, |it| it.graceful_shutdown(), &guest, &settings, &*gate, &stop).await;
        }
    }
}

/// Serves a connection until it ends, is idle for too long, or must end.
async fn drive<C>(
    mut connection: Pin<&mut C>,
    end: impl Fn(Pin<&mut C>),
    guest: &Guest,
    settings: &Settings,
    gate: &impl Host,
    stop: &CancellationToken,
) where
    C: Future<Output = hyper::Result<()>>,
{
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = gate.shut() => return,
        () = guest.dismissed() => return,
        () = guest.idle_for_too_long(settings) => {
            end(connection.as_mut());
            tokio::time::timeout(settings.goodbye, connection).await.unwrap_or(Ok(()))
        }
        () = stop.cancelled() => {
            end(connection.as_mut());
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// The body of an answer; its request ends when the body has been sent or dropped.
struct Unfinished<B> {
    body: B,
    _active: Active,
}

impl<B: http_body::Body + Unpin> http_body::Body for Unfinished<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket with its place among the connections.
struct Counted<S> {
    stream: S,
    _slot: Slot,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_leave_descriptors_for_us() {
        let few = Settings::for_descriptors(256);
        assert_eq!((few.connections, few.per_address, few.reserve), (144, 72, 16));
        let many = Settings::for_descriptors(1 << 20);
        assert_eq!((many.connections, many.per_address, many.reserve), (10_000, 5_000, 64));
        let chosen = many.chosen(Some(100), None, None);
        assert_eq!((chosen.connections, chosen.per_address, chosen.idle), (100, 50, many.idle));
    }
}
