//! Idle connections to one endpoint.

use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::reply::Rooms;
use super::{Address, Error, SentBody};

/// The number of idle connections for each endpoint, as in client-go.
const KEEP: usize = 25;
/// As in Go's default dialer.
const CONNECT: Duration = Duration::from_secs(30);
/// As in Go's default transport.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A shared connection that is silent for this long is pinged, and dropped if it does not answer, as in Go.
const SILENCE: Duration = Duration::from_secs(30);
const PING: Duration = Duration::from_secs(15);

pub(super) struct Pool {
    connector: TlsConnector,
    name: ServerName<'static>,
    authority: Option<Authority>,
    /// Connections for one request at a time. The lock protects only the list; it is never held across an await.
    idle: Arc<Mutex<Vec<http1::SendRequest<SentBody>>>>,
    /// The connection for all requests, if the other side speaks HTTP/2. Its lock is held just as briefly.
    shared: Mutex<Option<http2::SendRequest<SentBody>>>,
    /// What its answers may take.
    pub(super) rooms: Rooms,
}

/// A connection to send on.
enum Sender {
    Alone(http1::SendRequest<SentBody>),
    Shared(http2::SendRequest<SentBody>),
}

impl Sender {
    async fn ready(&mut self) -> Result<(), hyper::Error> {
        match self {
            Self::Alone(sender) => sender.ready().await,
            Self::Shared(sender) => sender.ready().await,
        }
    }

    async fn try_send(
        &mut self,
        request: Request<SentBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<SentBody>>> {
        match self {
            Self::Alone(sender) => sender.try_send_request(request).await,
            Self::Shared(sender) => sender.try_send_request(request).await,
        }
    }
}

impl Pool {
    pub(super) fn new(tls: Arc<ClientConfig>, address: &Address, rooms: Rooms) -> Result<Self, Error> {
        let name = address.server_name();
        let name = ServerName::try_from(name.clone())
            .map_err(|_| Error(format!("tls: invalid server name {name:?}")))?;
        Ok(Self {
            connector: TlsConnector::from(tls),
            name,
            authority: address.authority().parse().ok(),
            idle: Arc::default(),
            shared: Mutex::default(),
            rooms,
        })
    }

    /// Sends on a kept connection, or on a new one. The other side may have closed a kept one meanwhile; then the request has not
    /// been sent yet and is sent on a new connection.
    pub(super) async fn send(
        &self,
        resolve: impl Fn() -> Result<Vec<String>, Error>,
        mut request: Request<SentBody>,
    ) -> Result<Response<Incoming>, Error> {
        loop {
            let (mut sender, fresh) = match self.kept() {
                Some(sender) => (sender, false),
                // Connecting is rare and its state large: without the box, every request that might call a webhook would carry
                // it.
                None => (Box::pin(self.connect(&resolve()?)).await?, true),
            };
            if sender.ready().await.is_err() {
                if fresh {
                    return Err(Error("EOF".to_owned()));
                }
                self.drop_shared(&sender);
                continue;
            }
            self.address(&mut request, &sender);
            match sender.try_send(request).await {
                Ok(response) => {
                    self.keep(sender);
                    return Ok(response);
                }
                Err(mut failed) => {
                    self.drop_shared(&sender);
                    match failed.take_message() {
                        Some(unsent) if !fresh => request = unsent,
                        _ => return Err(Error(go_words(&failed.into_error()))),
                    }
                }
            }
        }
    }

    /// Returns a connection that appears to be open.
    fn kept(&self) -> Option<Sender> {
        if let Some(sender) = self.shared.lock().as_ref().filter(|sender| !sender.is_closed()) {
            return Some(Sender::Shared(sender.clone()));
        }
        loop {
            match self.idle.lock().pop()? {
                sender if sender.is_closed() => continue,
                sender => return Some(Sender::Alone(sender)),
            }
        }
    }

    /// Keeps a connection: a shared one at once, another one after the answer on it has been read.
    fn keep(&self, sender: Sender) {
        let mut sender = match sender {
            Sender::Alone(sender) => sender,
            Sender::Shared(sender) => {
                let mut shared = self.shared.lock();
                if shared.as_ref().is_none_or(http2::SendRequest::is_closed) {
                    *shared = Some(sender);
                }
                return;
            }
        };
        let idle = self.idle.clone();
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                let mut idle = idle.lock();
                if idle.len() < KEEP {
                    idle.push(sender);
                }
            }
        });
    }

    /// Stops using a shared connection that failed.
    fn drop_shared(&self, sender: &Sender) {
        if let Sender::Shared(_) = sender {
            *self.shared.lock() = None;
        }
    }

    /// Writes the target of a request as the connection needs it: the whole URL on a shared one, otherwise only the path.
    fn address(&self, request: &mut Request<SentBody>, sender: &Sender) {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        (parts.scheme, parts.authority) = match sender {
            Sender::Shared(_) => (Some(Scheme::HTTPS), self.authority.clone()),
            Sender::Alone(_) => (None, None),
        };
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }

    async fn connect(&self, addresses: &[String]) -> Result<Sender, Error> {
        let stream = dial(addresses).await?;
        let _ = stream.set_nodelay(true);
        let stream = tokio::time::timeout(HANDSHAKE, self.connector.connect(self.name.clone(), stream))
            .await
            .map_err(|_| Error("net/http: TLS handshake timeout".to_owned()))?
            .map_err(|error| Error(trust::go_words(&error, &self.name)))?;
        let failed = |error: hyper::Error| Error(go_words(&error));
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(SILENCE)
                .keep_alive_timeout(PING)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(failed)?;
            tokio::spawn(async move { ended(connection.await) });
            // Concurrent requests need not make another one.
            self.keep(Sender::Shared(sender.clone()));
            return Ok(Sender::Shared(sender));
        }
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(true)
            .title_case_headers(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        tokio::spawn(async move { ended(connection.with_upgrades().await) });
        Ok(Sender::Alone(sender))
    }
}

fn ended(result: Result<(), hyper::Error>) {
    if let Err(error) = result {
        tracing::debug!(%error, "an outgoing connection ended");
    }
}

/// Tries the addresses in order; the last failure is reported.
async fn dial(addresses: &[String]) -> Result<TcpStream, Error> {
    let mut last = Error("no addresses".to_owned());
    for address in addresses {
        match tokio::time::timeout(CONNECT, TcpStream::connect(address.as_str())).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => {
                let what = match error.kind() {
                    std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
                    std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
                    std::io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
                    std::io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
                    _ if error.to_string().contains("lookup") => {
                        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                        last = Error(format!("dial tcp: lookup {host}: no such host"));
                        continue;
                    }
                    _ => error.to_string(),
                };
                last = Error(format!("dial tcp {address}: {what}"));
            }
            Err(_) => last = Error(format!("dial tcp {address}: i/o timeout")),
        }
    }
    Err(last)
}

fn go_words(error: &hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        return "EOF".to_owned();
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}
