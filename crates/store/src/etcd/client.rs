//! Talking to etcd: one connection per endpoint, one of them in use, the next one when it fails.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper_util::rt::TokioIo;
use prost::Message;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::{
    Code, Status,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::{
    EtcdOptions,
    protocol::{Ignored, STATUS, StatusResponse, WATCH, WatchRequest, WatchResponse},
    telemetry::EtcdEndpoint,
};

const DIAL: Duration = Duration::from_secs(2);
/// An endpoint that does not answer pings for this long is given up.
const PING: Duration = Duration::from_secs(5);
/// How long a look at an endpoint may take.
const LOOK: Duration = Duration::from_secs(2);
/// A page of large objects has to fit.
const MAX_ANSWER: usize = 512 << 20;

/// Why etcd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    #[error("no etcd endpoint is given")]
    NoEndpoint,
    #[error("{endpoint} is not an etcd endpoint; write it as https://HOST:PORT")]
    Endpoint { endpoint: String },
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("a client certificate needs its key, and a key its certificate")]
    HalfPair,
    #[error("cannot set up TLS to etcd: {0}")]
    Tls(String),
    #[error("etcd at {endpoints} does not answer: {reason}")]
    Unreachable { endpoints: String, reason: String },
    #[error("etcd refuses: {0}")]
    Refused(String),
    #[error("etcd has entries under {prefix} already; a backup is put under a prefix that has none")]
    Occupied { prefix: String },
    #[error("the restore under {prefix} was not finished; start the server with the same --restore again")]
    Unfinished { prefix: String },
}

/// A request that certainly never reached etcd.
#[derive(Debug)]
struct NotSent(io::Error);

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for NotSent {}

/// Connections to all endpoints. Clones share them.
#[derive(Clone)]
pub(crate) struct Client {
    endpoints: Arc<[(String, Channel)]>,
    current: Arc<AtomicUsize>,
    timeout: Duration,
}

impl Client {
    /// Prepares the connections. They are opened by the first requests; so this has to be called inside of a runtime.
    pub(crate) fn new(options: &EtcdOptions) -> Result<Self, EtcdError> {
        let tls = tls(options)?;
        let endpoints = options.endpoints.iter().map(|endpoint| {
            let channel = channel(endpoint, tls.clone())?;
            Ok((endpoint.clone(), channel))
        });
        let endpoints: Vec<(String, Channel)> = endpoints.collect::<Result<_, EtcdError>>()?;
        if endpoints.is_empty() {
            return Err(EtcdError::NoEndpoint);
        }
        Ok(Self { endpoints: endpoints.into(), current: Arc::default(), timeout: options.timeout })
    }

    pub(crate) fn names(&self) -> String {
        self.endpoints.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Sends a request. It goes to another endpoint only if it certainly has not reached the first one, or may be repeated.
    pub(crate) async fn call<Q, A>(
        &self,
        path: &'static str,
        message: Q,
        repeatable: bool,
    ) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut last = Status::unavailable("no endpoint");
        for _ in 0..self.endpoints.len() {
            let at = self.current.load(Ordering::Relaxed);
            let answer = self.once(at, path, message.clone()).await;
            match answer {
                Ok(answer) => return Ok(answer),
                Err(status) if !is_connection(&status) => return Err(status),
                Err(status) => {
                    self.turn_from(at);
                    if !repeatable && !was_never_sent(&status) {
                        return Err(status);
                    }
                    last = status;
                }
            }
        }
        Err(last)
    }

    async fn once<Q, A>(&self, at: usize, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let call = async {
            let mut grpc = self.grpc(at);
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let codec = ProstCodec::<Q, A>::default();
            let path = http::uri::PathAndQuery::from_static(path);
            grpc.unary(needs_leader(message), path, codec).await
        };
        match tokio::time::timeout(self.timeout, call).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {:?}", self.timeout))),
        }
    }

    /// Looks at every endpoint: whether it answers, and what it says of itself.
    pub(crate) async fn look(&self) -> Vec<EtcdEndpoint> {
        let looks = self.endpoints.iter().enumerate().map(|(at, (url, _))| async move {
            let answer =
                tokio::time::timeout(LOOK, self.once::<_, StatusResponse>(at, STATUS, Ignored {})).await;
            let answer = answer
                .unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {LOOK:?}"))));
            let (failure, bytes) = match answer {
                Err(status) => (Some(status.message().to_owned()), 0),
                Ok(told) => {
                    let failure = match told.errors.first() {
                        Some(first) => Some(first.clone()),
                        None if told.leader == 0 => Some("it knows of no leader".to_owned()),
                        None => None,
                    };
                    (failure, u64::try_from(told.db_size).unwrap_or(0))
                }
            };
            EtcdEndpoint { url: url.clone(), failure: failure.map(Into::into), bytes }
        });
        futures::future::join_all(looks).await
    }

    /// Opens a watch stream at the endpoint in use.
    pub(crate) async fn watch(
        &self,
        requests: impl futures::Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<tonic::Streaming<WatchResponse>, Status> {
        let at = self.current.load(Ordering::Relaxed);
        let call = async {
            let mut grpc = self.grpc(at);
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            let path = http::uri::PathAndQuery::from_static(WATCH);
            grpc.streaming(needs_leader(requests), path, codec).await
        };
        let answer = match tokio::time::timeout(self.timeout, call).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {:?}", self.timeout))),
        };
        answer.inspect_err(|_| self.turn_from(at))
    }

    /// Turns to the next endpoint, unless somebody has done so already.
    pub(crate) fn turn_from(&self, failed: usize) {
        let next = (failed + 1) % self.endpoints.len();
        if self.current.compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && next != failed
        {
            tracing::warn!(from = self.name(failed), to = self.name(next), "an etcd endpoint failed");
        }
    }

    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    fn name(&self, at: usize) -> &str {
        self.endpoints.get(at).map_or("", |(name, _)| name)
    }

    fn grpc(&self, at: usize) -> Grpc<Channel> {
        let (_, channel) = &self.endpoints[at % self.endpoints.len()];
        Grpc::new(channel.clone()).max_decoding_message_size(MAX_ANSWER).max_encoding_message_size(MAX_ANSWER)
    }
}

/// Says whether the way to etcd failed, rather than etcd having refused.
pub(crate) fn is_connection(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown)
}

/// Has etcd refuse at once, and end a watch, when it has lost sight of the others: it would know nothing new.
fn needs_leader<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
    request
}

/// Says whether a request has certainly changed nothing.
fn was_never_sent(status: &Status) -> bool {
    // etcd looks for its leader before it looks at the request.
    if status.message() == "etcdserver: no leader" {
        return true;
    }
    let mut next: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    while let Some(error) = next {
        if error.is::<NotSent>() {
            return true;
        }
        next = error.source();
    }
    false
}

fn channel(endpoint: &str, tls: Option<Arc<ClientConfig>>) -> Result<Channel, EtcdError> {
    let wrong = || EtcdError::Endpoint { endpoint: endpoint.to_owned() };
    let uri: http::Uri = endpoint.parse().map_err(|_| wrong())?;
    let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(2379);
    let tls = match uri.scheme_str() {
        Some("http") => None,
        Some("https") => {
            let config = tls.ok_or_else(|| EtcdError::Tls("the system trusts no authority".to_owned()))?;
            Some((config, ServerName::try_from(host.clone()).map_err(|_| wrong())?))
        }
        _ => return Err(wrong()),
    };
    // What is spoken inside is HTTP/2 in either case; TLS is the connector's affair.
    let inside = format!("http://{}", uri.authority().ok_or_else(wrong)?);
    let connector = service_fn(move |_: http::Uri| {
        let (host, tls) = (host.clone(), tls.clone());
        async move { dial(&host, port, tls).await.map_err(NotSent) }
    });
    let endpoint = Endpoint::from_shared(inside)
        .map_err(|_| wrong())?
        .connect_timeout(DIAL)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20);
    Ok(endpoint.connect_with_connector_lazy(connector))
}

/// A connection with or without TLS.
trait Way: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Way for T {}

async fn dial(
    host: &str,
    port: u16,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
) -> io::Result<TokioIo<Box<dyn Way>>> {
    let connect = async {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        Ok(match tls {
            None => Box::new(stream) as Box<dyn Way>,
            Some((config, name)) => Box::new(TlsConnector::from(config).connect(name, stream).await?),
        })
    };
    let late = |_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("no connection to {host}:{port} within {DIAL:?}"))
    };
    let way = tokio::time::timeout(DIAL, connect).await.map_err(late)?;
    way.map(TokioIo::new)
        .map_err(|error: io::Error| io::Error::new(error.kind(), format!("{host}:{port}: {error}")))
}

/// Returns the TLS settings; nothing if no endpoint uses TLS.
fn tls(options: &EtcdOptions) -> Result<Option<Arc<ClientConfig>>, EtcdError> {
    if options.endpoints.iter().all(|endpoint| endpoint.starts_with("http://")) {
        return Ok(None);
    }
    let failed = |error: rustls::Error| EtcdError::Tls(error.to_string());
    let mut roots = RootCertStore::empty();
    match &options.ca {
        Some(path) => {
            for authority in certificates(path)? {
                roots.add(authority).map_err(failed)?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_root_certificates(roots);
    let mut config = match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate)?;
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|source| EtcdError::File { path: key.clone(), source })?;
            builder.with_client_auth_cert(chain, key).map_err(failed)?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(EtcdError::HalfPair),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Some(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdError> {
    let failed = |source| EtcdError::File { path: path.to_owned(), source };
    let read = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let all: Vec<_> = read.collect::<Result<_, _>>().map_err(failed)?;
    if all.is_empty() {
        return Err(EtcdError::Tls(format!("{} contains no certificate", path.display())));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoints: &[&str]) -> EtcdOptions {
        EtcdOptions::new(endpoints.iter().map(ToString::to_string))
    }

    #[tokio::test]
    async fn endpoints_that_are_none_are_named() {
        let refusal =
            |endpoints: &[&str]| Client::new(&options(endpoints)).map(drop).unwrap_err().to_string();
        assert_eq!(refusal(&[]), "no etcd endpoint is given");
        for wrong in ["127.0.0.1:2379", "ftp://a:1", "http://"] {
            assert!(refusal(&[wrong]).contains("write it as https://HOST:PORT"), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_certificate_without_its_key_is_refused() {
        let half = EtcdOptions { certificate: Some("x".into()), ..options(&["https://127.0.0.1:1"]) };
        let told = Client::new(&half).map(drop).unwrap_err().to_string();
        assert!(told.contains("needs its key"), "{told}");
    }

    #[tokio::test]
    async fn a_write_that_was_never_sent_goes_to_the_next_endpoint() {
        // Nobody listens at port 1.
        let client = Client::new(&options(&["http://127.0.0.1:1", "http://localhost:1"])).unwrap();
        let status = client.once::<Ignored, Ignored>(0, super::super::protocol::TXN, Ignored {});
        let status = status.await.unwrap_err();
        assert!(is_connection(&status) && was_never_sent(&status), "{status:?}");
    }
}
