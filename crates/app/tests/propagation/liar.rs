//! A member's API server as a treacherous network shows it: requests pass, but lists and watches of managed objects can be
//! made to lie. It also counts what is asked for.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use testkit::{DEADLINE, client};
use tokio::sync::watch;

/// What it does to lists and watches of managed objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Honest,
    /// Open watches end, and no new ones begin.
    NoWatches,
    /// Open watches end and have to begin with a list; lists are empty, and the watches after them tell nothing.
    EmptyLists,
    /// Open watches end; new ones are told that their revision is too old.
    Gone,
}

pub(crate) struct Liar {
    /// Leads to the member through here.
    pub(crate) kubeconfig: PathBuf,
    mode: watch::Sender<Mode>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Lies about ConfigMaps that were told in the present mode.
    lies: watch::Sender<usize>,
    deletions: AtomicUsize,
}

impl Liar {
    /// Stands between the member of a kubeconfig and the world, for as long as the test runs.
    pub(crate) async fn before(member: &Path, folder: &Path) -> Self {
        let honest = client(member).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address: SocketAddr = listener.local_addr().expect("an address");
        let (mode, counts) = (watch::Sender::new(Mode::Honest), Arc::new(Counts::default()));
        let (now, counting) = (mode.subscribe(), Arc::clone(&counts));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (honest, now, counts) = (honest.clone(), now.clone(), Arc::clone(&counting));
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let (honest, now, counts) = (honest.clone(), now.clone(), Arc::clone(&counts));
                        async move { Ok::<_, Infallible>(answer(honest, now, &counts, request).await) }
                    });
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        // Without TLS, and so without a client certificate: the liar needs none to know who asks.
        let kubeconfig = folder.join("liar.kubeconfig");
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "liar",
            "clusters": [{"name": "liar", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "liar", "user": {}}],
            "contexts": [{"name": "liar", "context": {"cluster": "liar", "user": "liar"}}]});
        std::fs::write(&kubeconfig, text.to_string()).expect("a kubeconfig");
        Self { kubeconfig, mode, counts }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.counts.lies.send_replace(0);
        self.mode.send_replace(mode);
    }

    /// Waits until so many lies of the present mode were told.
    pub(crate) async fn told(&self, lies: usize) {
        let mut told = self.counts.lies.subscribe();
        let enough = tokio::time::timeout(DEADLINE, told.wait_for(|told| *told >= lies)).await;
        assert!(enough.is_ok(), "nobody asked for lies as in {:?}", *self.mode.borrow());
    }

    /// Returns how many deletions were asked for.
    pub(crate) fn deletions(&self) -> usize {
        self.counts.deletions.load(Ordering::SeqCst)
    }
}

/// The revision of lists that are empty.
const NOWHERE: &str = "1000000000";

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn full(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

async fn answer(
    honest: kube::Client,
    mut mode: watch::Receiver<Mode>,
    counts: &Counts,
    request: Request<Incoming>,
) -> Response<Body> {
    if request.method() == Method::DELETE {
        counts.deletions.fetch_add(1, Ordering::SeqCst);
    }
    let query = request.uri().query().unwrap_or("").to_owned();
    let managed = request.method() == Method::GET && query.contains("karmada.io%2Fmanaged");
    let watching = managed && query.contains("watch=true");
    let now = *mode.borrow_and_update();
    let lie = managed
        && match now {
            Mode::Honest => false,
            Mode::NoWatches | Mode::Gone => watching,
            Mode::EmptyLists => true,
        };
    if lie {
        // Of a list that is empty it is the list that counts, not the watches around it.
        if request.uri().path().contains("/configmaps") && (now != Mode::EmptyLists || !watching) {
            counts.lies.send_modify(|lies| *lies += 1);
        }
        let empty = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": NOWHERE}, "items": []});
        return match now {
            Mode::Honest | Mode::NoWatches => full(StatusCode::SERVICE_UNAVAILABLE, ""),
            Mode::EmptyLists if !watching => full(StatusCode::OK, empty.to_string()),
            Mode::EmptyLists if query.contains(NOWHERE) => silence(mode),
            Mode::EmptyLists | Mode::Gone => full(
                StatusCode::GONE,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired",
                    "message": "too old resource version", "code": 410})
                .to_string(),
            ),
        };
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut passed = Request::new(kube::client::Body::from(body));
    *passed.method_mut() = parts.method;
    *passed.uri_mut() = parts.uri.path_and_query().map_or("/", |path| path.as_str()).parse().expect("a path");
    for name in ["accept", "content-type"] {
        if let Some(value) = parts.headers.get(name) {
            passed.headers_mut().insert(http::HeaderName::from_static(name), value.clone());
        }
    }
    let Ok(response) = honest.send(passed).await else { return full(StatusCode::BAD_GATEWAY, "") };
    let (parts, body) = response.into_parts();
    let pieces = body.into_data_stream().map_ok(Frame::data).filter_map(|piece| async { piece.ok().map(Ok) });
    // A watch lasts as long as the mode it began in.
    let ended = async move {
        if watching {
            let _ = mode.changed().await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    let mut answer = Response::new(StreamBody::new(pieces.take_until(Box::pin(ended))).boxed_unsync());
    *answer.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get("content-type") {
        answer.headers_mut().insert("content-type", kind.clone());
    }
    answer
}

/// A watch that tells nothing until the mode changes.
fn silence(mut mode: watch::Receiver<Mode>) -> Response<Body> {
    let ended = async move {
        let _ = mode.changed().await;
    };
    let nothing = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>().take_until(Box::pin(ended));
    Response::new(StreamBody::new(nothing).boxed_unsync())
}
