//! Both ends of a tunnel in one process: a control plane behind TLS, a lever between, an agent, and a member that does what
//! the path says.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::header::{CONNECTION, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::{Client, Config};
use testkit::until_true;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::BoxError;
use tunnel::agent::{self, Ends};
use tunnel::{Limits, PROTOCOL, Reached, Tunnels};

pub(crate) const CLUSTER: &str = "m1";
/// Long enough for a busy machine; nothing waits for it to pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

type Answer = UnsyncBoxBody<Bytes, BoxError>;

/// Waits for a result that has to come.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// The member, and what it saw.
#[derive(Clone, Default)]
pub(crate) struct Member {
    /// Requests whose caller went away before they were answered.
    pub(crate) given_up: Arc<AtomicUsize>,
    /// Requests that wait for ever.
    pub(crate) waiting: Arc<AtomicUsize>,
}

impl Member {
    async fn answer(self, mut request: Request<Incoming>) -> Response<Answer> {
        let whole = |status: u16, text: String| {
            let mut answer = Response::new(Full::from(text).map_err(|never| match never {}).boxed_unsync());
            *answer.status_mut() = StatusCode::from_u16(status).unwrap();
            answer
        };
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/echo" => {
                let mut text = format!("{} {}\n", request.method(), request.uri());
                for (name, value) in request.headers() {
                    text += &format!("{name}: {}\n", value.to_str().unwrap());
                }
                let body = request.into_body().collect().await.unwrap().to_bytes();
                whole(200, text + &String::from_utf8_lossy(&body))
            }
            // One line after the other, for ever.
            "/watch" => {
                let lines = futures::stream::unfold(0, |count| async move {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let frame =
                        Frame::data(Bytes::from(format!("{{\"type\":\"ADDED\",\"object\":{count}}}\n")));
                    Some((Ok::<_, BoxError>(frame), count + 1))
                });
                Response::new(StreamBody::new(lines.boxed()).boxed_unsync())
            }
            // As much as can be sent, for ever.
            "/flood" => {
                let piece = Bytes::from(vec![b'x'; 64 * 1024]);
                let pieces =
                    futures::stream::repeat_with(move || Ok::<_, BoxError>(Frame::data(piece.clone())));
                Response::new(StreamBody::new(pieces.boxed()).boxed_unsync())
            }
            "/never" => {
                struct Waiting(Member);
                impl Drop for Waiting {
                    fn drop(&mut self) {
                        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
                        self.0.given_up.fetch_add(1, Ordering::SeqCst);
                    }
                }
                self.waiting.fetch_add(1, Ordering::SeqCst);
                let _waiting = Waiting(self);
                std::future::pending().await
            }
            "/large-headers" => {
                let mut answer = whole(200, String::new());
                for number in 0..80 {
                    let name = http::HeaderName::from_bytes(format!("x-{number}").as_bytes()).unwrap();
                    answer.headers_mut().insert(name, "y".repeat(1000).parse().unwrap());
                }
                answer
            }
            "/switch" => {
                let protocol = request.headers()[UPGRADE].clone();
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let stream = TokioIo::new(upgrade.await.unwrap());
                    let (mut from, mut to) = tokio::io::split(stream);
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                    let _ = to.shutdown().await;
                });
                let mut answer = whole(101, String::new());
                answer.headers_mut().insert(CONNECTION, "Upgrade".parse().unwrap());
                answer.headers_mut().insert(UPGRADE, protocol);
                answer.headers_mut().insert("sec-websocket-protocol", "v5.channel.k8s.io".parse().unwrap());
                answer
            }
            "/refuses" => whole(403, "{\"kind\":\"Status\",\"code\":403}".to_owned()),
            "/ignores" => whole(200, "not switched".to_owned()),
            _ => whole(404, "no such path".to_owned()),
        }
    }

    /// Serves in plain HTTP on a free port.
    pub(crate) async fn serve(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let member = self.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let member = member.clone();
                        async move { Ok::<_, Infallible>(member.answer(request).await) }
                    });
                    let builder = hyper::server::conn::http1::Builder::new();
                    let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
                });
            }
        });
        address
    }
}

/// A member that says these bytes to whatever it is asked, and closes the connection.
pub(crate) async fn raw_member(says: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let says = says.clone();
            tokio::spawn(async move {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(&says).await;
            });
        }
    });
    address
}

/// A line between agent and control plane that can be cut, or go dead without anybody being told.
#[derive(Clone, Default)]
pub(crate) struct Lever {
    cut: Arc<parking_lot::Mutex<CancellationToken>>,
    dead: Arc<AtomicBool>,
    /// Connections that were made.
    pub(crate) made: Arc<AtomicUsize>,
}

impl Lever {
    pub(crate) fn cut(&self) {
        std::mem::take(&mut *self.cut.lock()).cancel();
    }

    /// What goes through the line now is lost, and so is what comes later, but not what new connections bring.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.dead.store(frozen, Ordering::SeqCst);
    }

    async fn between(&self, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let lever = self.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(to).await.unwrap();
                lever.made.fetch_add(1, Ordering::SeqCst);
                let cut = lever.cut.lock().clone();
                let (near_from, near_to) = near.into_split();
                let (far_from, far_to) = far.into_split();
                for (mut from, mut to) in [(near_from, far_to), (far_from, near_to)] {
                    let (cut, dead) = (cut.clone(), lever.dead.clone());
                    tokio::spawn(async move {
                        let pump = async {
                            let mut buffer = vec![0; 64 * 1024];
                            let mut lost = false;
                            while let Ok(read @ 1..) = from.read(&mut buffer).await {
                                lost |= dead.load(Ordering::SeqCst);
                                if !lost && to.write_all(&buffer[..read]).await.is_err() {
                                    return;
                                }
                            }
                            if lost {
                                // Nobody is told that the other side has gone, either.
                                std::future::pending::<()>().await;
                            }
                        };
                        tokio::select! { () = pump => {}, () = cut.cancelled() => {} }
                    });
                }
            }
        });
        address
    }
}

/// What the agent is given.
pub(crate) struct Given {
    control: Config,
    member: Config,
}

impl Ends for Given {
    fn control(&self) -> BoxFuture<'_, Result<Config, BoxError>> {
        Box::pin(async { Ok(self.control.clone()) })
    }

    fn member(&self) -> BoxFuture<'_, Result<Reached, BoxError>> {
        Box::pin(async { Ok(Reached::new(&self.member, Some("impersonator".to_owned()))?) })
    }
}

pub(crate) struct Stage {
    pub(crate) tunnels: Tunnels,
    /// The servers behind the one address, which take connections in turn. At first it is one.
    pub(crate) servers: Arc<parking_lot::Mutex<Vec<Tunnels>>>,
    pub(crate) lever: Lever,
    pub(crate) member: Member,
    /// Taken away from agents whose tunnels have to go.
    pub(crate) allowed: Arc<AtomicBool>,
    control: Config,
    member_config: Config,
    limits: Limits,
    stop: CancellationToken,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Stage {
    /// Begins with an open tunnel.
    pub(crate) async fn new(limits: Limits) -> Self {
        let member = Member::default();
        let address = member.clone().serve().await;
        Self::with(limits, address, member).await
    }

    pub(crate) async fn with(limits: Limits, address: SocketAddr, member: Member) -> Self {
        let stage = Self::empty(limits, address, member).await;
        stage.agent();
        stage.open().await;
        stage
    }

    /// Begins without an agent.
    pub(crate) async fn empty(limits: Limits, address: SocketAddr, member: Member) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (tunnels, stop) = (Tunnels::new(limits), CancellationToken::new());
        let allowed = Arc::new(AtomicBool::new(true));
        let listener = testkit::tls::Listener::bind(&[], &["http/1.1"]).await;
        let lever = Lever::default();
        let between = lever.between(listener.address).await;
        let mut control = Config::new(format!("https://{between}").parse().unwrap());
        let certificate = listener.certificate.replace("-----BEGIN CERTIFICATE-----", "");
        let certificate = certificate.replace("-----END CERTIFICATE-----", "").replace('\n', "");
        use base64::Engine as _;
        control.root_cert =
            Some(vec![base64::engine::general_purpose::STANDARD.decode(certificate.trim()).unwrap()]);
        let servers = Arc::new(parking_lot::Mutex::new(vec![tunnels.clone()]));
        let (all, ending, may) = (servers.clone(), stop.clone(), allowed.clone());
        listener.serve(move |stream| {
            let (ending, may) = (ending.clone(), may.clone());
            let plane = {
                let mut all = all.lock();
                all.rotate_left(1);
                all[0].clone()
            };
            async move {
                let service = service_fn(move |mut request: Request<Incoming>| {
                    let (plane, ending, may) = (plane.clone(), ending.clone(), may.clone());
                    async move {
                        let cluster = request.uri().path().split('/').nth(5).unwrap_or("").to_owned();
                        assert_eq!(request.uri().path(), tunnel::path(&cluster));
                        assert_eq!(request.headers()[UPGRADE], PROTOCOL);
                        let mut answer = Response::new(Full::<Bytes>::default());
                        if !may.load(Ordering::SeqCst) {
                            *answer.status_mut() = StatusCode::FORBIDDEN;
                            return Ok::<_, Infallible>(answer);
                        }
                        plane.introduce(answer.headers_mut());
                        if plane.has_already(&cluster, request.headers()) {
                            *answer.status_mut() = StatusCode::CONFLICT;
                            return Ok(answer);
                        }
                        let upgrade = hyper::upgrade::on(&mut request);
                        tokio::spawn(async move {
                            let io = upgrade.await.unwrap();
                            let _ = plane.serve(&cluster, io, || may.load(Ordering::SeqCst), &ending).await;
                        });
                        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                        answer.headers_mut().insert(CONNECTION, "Upgrade".parse().unwrap());
                        answer.headers_mut().insert(UPGRADE, PROTOCOL.parse().unwrap());
                        Ok(answer)
                    }
                });
                let builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
            }
        });
        let member_config = Config::new(format!("http://{address}").parse().unwrap());
        Self { tunnels, servers, lever, member, allowed, control, member_config, limits, stop }
    }

    /// Starts an agent.
    pub(crate) fn agent(&self) -> CancellationToken {
        self.agent_of(CLUSTER)
    }

    /// Starts the agent of another cluster.
    pub(crate) fn agent_of(&self, cluster: &str) -> CancellationToken {
        let cluster = cluster.to_owned();
        let given = Given { control: self.control.clone(), member: self.member_config.clone() };
        let (limits, stop) = (self.limits, self.stop.child_token());
        let stopping = stop.clone();
        tokio::spawn(async move { agent::keep(&cluster, &given, limits, stopping).await });
        stop
    }

    pub(crate) async fn open(&self) {
        until_true("the tunnel is open", || self.tunnels.is_open(CLUSTER)).await;
    }

    pub(crate) fn client(&self) -> Client {
        self.tunnels.through(CLUSTER).client()
    }

    /// Asks for a path in Jane's name.
    pub(crate) async fn get(&self, path: &str) -> Result<Response<Body>, kube::Error> {
        soon(path, self.client().send(jane(path))).await
    }

    /// Asks for a path and for another protocol.
    pub(crate) async fn switch(&self, path: &str) -> Response<Body> {
        let mut request = jane(path);
        *request.method_mut() = http::Method::POST;
        request.headers_mut().insert(CONNECTION, "Upgrade".parse().unwrap());
        request.headers_mut().insert(UPGRADE, "SPDY/3.1".parse().unwrap());
        soon(path, self.client().send(request)).await.unwrap()
    }
}

pub(crate) fn jane(path: &str) -> Request<Body> {
    let request = Request::get(path).header("impersonate-user", "jane").header("impersonate-group", "dev");
    request.body(Body::empty()).unwrap()
}

pub(crate) async fn text(response: Response<Body>) -> String {
    let body = soon("a body", response.into_body().collect_bytes()).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Reads the next piece of a body.
pub(crate) async fn piece(body: &mut Body) -> Result<Bytes, String> {
    match soon("a piece", body.frame()).await {
        Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("the end".to_owned()),
    }
}
