//! Kept connections to one endpoint.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Error, SentBody, tls};

/// Idle connections that are kept per endpoint; more than two per processor are rarely busy at once.
const KEEP: usize = 8;
/// As Go's default dialer.
const CONNECT: Duration = Duration::from_secs(30);

pub(super) struct Pool {
    connector: TlsConnector,
    name: ServerName<'static>,
    /// Protects the list only; nothing is awaited while it is held.
    idle: Arc<Mutex<Vec<SendRequest<SentBody>>>>,
}

impl Pool {
    pub(super) fn new(tls: Arc<ClientConfig>, name: &str) -> Result<Self, Error> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| Error(format!("tls: invalid server name {name:?}")))?;
        Ok(Self { connector: TlsConnector::from(tls), name, idle: Arc::default() })
    }

    /// Sends on a kept connection, or on a new one. A kept one may have been closed by the other side meanwhile; then
    /// the request has not left yet and goes out on a new connection.
    pub(super) async fn send(
        &self,
        resolve: impl Fn() -> Result<Vec<String>, Error>,
        mut request: Request<SentBody>,
    ) -> Result<Response<Incoming>, Error> {
        loop {
            let kept = self.idle.lock().pop();
            let (mut sender, fresh) = match kept {
                Some(sender) if sender.is_closed() => continue,
                Some(sender) => (sender, false),
                None => (self.connect(&resolve()?).await?, true),
            };
            if sender.ready().await.is_err() {
                if fresh {
                    return Err(Error("EOF".to_owned()));
                }
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.keep(sender);
                    return Ok(response);
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if !fresh => request = unsent,
                    _ => return Err(Error(go_words(&failed.into_error()))),
                },
            }
        }
    }

    /// Keeps a connection once the answer that is on it has been read.
    fn keep(&self, mut sender: SendRequest<SentBody>) {
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

    async fn connect(&self, addresses: &[String]) -> Result<SendRequest<SentBody>, Error> {
        let stream = dial(addresses).await?;
        let _ = stream.set_nodelay(true);
        let stream = self
            .connector
            .connect(self.name.clone(), stream)
            .await
            .map_err(|error| Error(tls::go_words(&error, &self.name)))?;
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(true)
            .title_case_headers(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Error(go_words(&error)))?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "an outgoing connection ended");
            }
        });
        Ok(sender)
    }
}

/// Tries the addresses in turn; the last failure is told.
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
