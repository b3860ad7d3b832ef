//! A load balancer in front of several control plane servers: every request goes to the next one, whichever connection it came on.
//!
//! Harder on the servers than a balancer of connections: a client reads at one server what it has just written at another. It ends
//! TLS with the serving certificate of one server, judges client certificates as a server does, and names their owners to the servers
//! as a front proxy. Tokens pass as they are. Watches are passed on as they come, and so are connections that change their protocol.
//!
//! [`of_connections`] is the usual kind: it knows of connections only.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use apiserver::auth::User;
use apiserver::auth::x509::{Judge, Lenient};
use apiserver::http::pass::is_hop_by_hop;
use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::{TlsAcceptor, TlsConnector};

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Starts a balancer that spreads connections over the servers that take them; returns its address.
pub async fn of_connections(servers: Vec<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let next = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (servers, next) = (servers.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                for _ in 0..servers.len() {
                    let at = next.fetch_add(1, Ordering::Relaxed) % servers.len();
                    if let Ok(mut server) = TcpStream::connect(servers[at]).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                        return;
                    }
                }
            });
        }
    });
    address
}

/// What all connections share.
pub struct Balancer {
    servers: Vec<SocketAddr>,
    /// How many requests each server got.
    sent: Vec<AtomicUsize>,
    next: AtomicUsize,
    acceptor: TlsAcceptor,
    judge: Judge,
    /// Ways to the servers, by protocol; the first two as front proxy, the others with no certificate.
    named: Ways,
    unnamed: Ways,
}

struct Ways {
    http2: TlsConnector,
    http1: TlsConnector,
}

impl Balancer {
    /// Prepares a balancer. `pki` is the folder of keys of one of the servers, which all have the same authorities.
    pub fn new(pki: &Path, servers: Vec<SocketAddr>) -> io::Result<Arc<Self>> {
        let wrong = |error: rustls::Error| io::Error::other(error);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let text = |name: &str| std::fs::read_to_string(pki.join(name));
        let judge = Judge::new(&text("ca.crt")?, &text("front-proxy-ca.crt")?, &provider).map_err(wrong)?;
        let (chain, key) = pair(pki, "apiserver")?;
        let mut config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(wrong)?
            .with_client_cert_verifier(Arc::new(Lenient::new(provider.clone())))
            .with_single_cert(chain, key)
            .map_err(wrong)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut roots = RootCertStore::empty();
        for authority in certificates(&pki.join("ca.crt"))? {
            roots.add(authority).map_err(wrong)?;
        }
        let roots = Arc::new(roots);
        let way = |protocol: &str, certificate: Option<&str>| -> io::Result<TlsConnector> {
            let builder = ClientConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()
                .map_err(wrong)?
                .with_root_certificates(roots.clone());
            let mut config = match certificate {
                None => builder.with_no_client_auth(),
                Some(name) => {
                    let (chain, key) = pair(pki, name)?;
                    builder.with_client_auth_cert(chain, key).map_err(wrong)?
                }
            };
            config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
            Ok(TlsConnector::from(Arc::new(config)))
        };
        let ways = |certificate| {
            Ok::<_, io::Error>(Ways { http2: way("h2", certificate)?, http1: way("http/1.1", certificate)? })
        };
        Ok(Arc::new(Self {
            sent: servers.iter().map(|_| AtomicUsize::new(0)).collect(),
            servers,
            next: AtomicUsize::new(0),
            acceptor: TlsAcceptor::from(Arc::new(config)),
            judge,
            named: ways(Some("front-proxy-client"))?,
            unnamed: ways(None)?,
        }))
    }

    /// Returns how many requests each server got.
    pub fn sent(&self) -> Vec<usize> {
        self.sent.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Serves until it is dropped.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(self.clone().connection(stream))),
                // Out of descriptors, most likely; do not spin.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let Ok(stream) = self.acceptor.accept(stream).await else { return };
        let chain = stream.get_ref().1.peer_certificates();
        let user = chain.and_then(|chain| self.judge.judge(chain).now().user);
        let client = Arc::new(Client {
            kept: self.servers.iter().map(|_| Mutex::default()).collect(),
            user,
            balancer: self,
        });
        let service = service_fn(move |request| {
            let client = client.clone();
            async move { Ok::<_, std::convert::Infallible>(client.answer(request).await) }
        });
        let _ = auto::Builder::new(TokioExecutor::new())
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .await;
    }
}

/// One connection of a client.
struct Client {
    balancer: Arc<Balancer>,
    /// The owner of its certificate.
    user: Option<Arc<User>>,
    /// Its connections to the servers.
    kept: Vec<Mutex<Option<http2::SendRequest<Incoming>>>>,
}

impl Client {
    async fn answer(&self, mut request: Request<Incoming>) -> Response<Body> {
        let upgrade = request.headers().get(UPGRADE).cloned();
        let asked = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        *request.headers_mut() = self.headers(request.headers(), upgrade);
        *request.version_mut() = http::Version::default();
        let mut last = String::new();
        for _ in 0..self.balancer.servers.len() {
            let at = self.balancer.next.fetch_add(1, Ordering::Relaxed) % self.balancer.servers.len();
            let sent = if asked.is_some() { self.alone(at).await } else { self.shared(at).await };
            // Only where no connection can be had is the next one asked: a request that was sent may have been carried out.
            let mut way = match sent {
                Ok(way) => way,
                Err(error) => {
                    last = error.to_string();
                    continue;
                }
            };
            self.balancer.sent[at].fetch_add(1, Ordering::Relaxed);
            *request.uri_mut() = self.uri(at, request.uri(), matches!(way, Way::Shared(_)));
            let answer = match &mut way {
                Way::Shared(way) => way.send_request(request).await,
                Way::Alone(way) => way.send_request(request).await,
            };
            return match answer {
                Ok(answer) => passed(answer, asked),
                Err(error) => refusal(&error.to_string()),
            };
        }
        refusal(&last)
    }

    /// Returns the headers for a server: without what is about this connection, with the name of the certificate's owner.
    fn headers(&self, given: &HeaderMap, upgrade: Option<HeaderValue>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            if !is_hop_by_hop(name.as_str()) && name != HOST && !name.as_str().starts_with("x-remote-") {
                headers.append(name.clone(), value.clone());
            }
        }
        if let Some(upgrade) = upgrade {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, upgrade);
        }
        if let Some(user) = &self.user {
            let mut add = |name: &'static str, value: &str| {
                if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                    headers.append(HeaderName::from_static(name), value);
                }
            };
            add("x-remote-user", &user.name);
            for group in &user.groups {
                add("x-remote-group", group);
            }
        }
        headers
    }

    fn uri(&self, at: usize, given: &Uri, whole: bool) -> Uri {
        let mut parts = given.clone().into_parts();
        (parts.scheme, parts.authority) = (None, None);
        if whole {
            parts.scheme = Some(Scheme::HTTPS);
            parts.authority = self.balancer.servers[at].to_string().parse::<Authority>().ok();
        }
        Uri::from_parts(parts).unwrap_or_default()
    }

    fn ways(&self) -> &Ways {
        if self.user.is_some() { &self.balancer.named } else { &self.balancer.unnamed }
    }

    /// Returns the connection to a server that this client's requests share.
    async fn shared(&self, at: usize) -> io::Result<Way> {
        let mut kept = self.kept[at].lock().await;
        if let Some(sender) = kept.as_mut()
            && sender.ready().await.is_ok()
        {
            return Ok(Way::Shared(sender.clone()));
        }
        let stream = self.dial(at, &self.ways().http2).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(8 << 20)
            .handshake(stream)
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(connection);
        *kept = Some(sender.clone());
        Ok(Way::Shared(sender))
    }

    /// Returns a connection for one request that will change the protocol.
    async fn alone(&self, at: usize) -> io::Result<Way> {
        let stream = self.dial(at, &self.ways().http1).await?;
        let (sender, connection) = http1::Builder::new()
            .title_case_headers(true)
            .handshake(stream)
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(connection.with_upgrades());
        Ok(Way::Alone(sender))
    }

    async fn dial(
        &self,
        at: usize,
        connector: &TlsConnector,
    ) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
        let address = self.balancer.servers[at];
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(connector.connect(ServerName::from(address.ip()), stream).await?))
    }
}

/// A connection to a server.
enum Way {
    Shared(http2::SendRequest<Incoming>),
    Alone(http1::SendRequest<Incoming>),
}

fn passed(mut answer: Response<Incoming>, asked: Option<hyper::upgrade::OnUpgrade>) -> Response<Body> {
    let mut headers = answer.headers().clone();
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(near) = asked
    {
        let far = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let (Ok(near), Ok(far)) = tokio::join!(near, far) else { return };
            let (mut near, mut far) = (TokioIo::new(near), TokioIo::new(far));
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
    } else {
        let about_the_connection: Vec<HeaderName> =
            headers.keys().filter(|name| is_hop_by_hop(name.as_str())).cloned().collect();
        for name in about_the_connection {
            headers.remove(name);
        }
    }
    let (parts, body) = answer.into_parts();
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = headers;
    answer
}

fn refusal(why: &str) -> Response<Body> {
    let text = Bytes::from(format!("no server could be asked: {why}\n"));
    let mut answer = Response::new(Full::new(text).map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).map_err(io::Error::other)?;
    read.collect::<Result<_, _>>().map_err(io::Error::other)
}

fn pair(pki: &Path, name: &str) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let key = PrivateKeyDer::from_pem_file(pki.join(format!("{name}.key"))).map_err(io::Error::other)?;
    Ok((certificates(&pki.join(format!("{name}.crt")))?, key))
}
