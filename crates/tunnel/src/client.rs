//! Requests through a tunnel, as a service that makes a `kube::Client`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use kube::Client;
use kube::client::Body;
use tokio::sync::OwnedSemaphorePermit;
use tower::Service;

use crate::metrics::{Counted, PLANE};
use crate::plane::Tunnel;
use crate::{Error, METHOD, STATUS, Tunnels};

/// The way to one cluster, through whichever tunnel is open when a request is made.
#[derive(Clone, Debug)]
pub struct Through {
    tunnels: Tunnels,
    cluster: Arc<str>,
}

impl Through {
    pub(crate) fn new(tunnels: Tunnels, cluster: &str) -> Self {
        Self { tunnels, cluster: cluster.into() }
    }

    /// Makes a client that asks through the tunnel. Its requests must say in whose name they are made.
    pub fn client(self) -> Client {
        Client::new(self, "default")
    }

    async fn send(self, request: Request<Body>) -> Result<Response<Answer>, Error> {
        let cluster = || self.cluster.to_string();
        let mut asked = None;
        let mut request = stream(&self.cluster, request)?;
        // A tunnel that is just being replaced gives requests back.
        loop {
            let found = self.tunnels.live(&self.cluster).filter(|tunnel| Some(tunnel.id) != asked);
            let Some(tunnel) = found else {
                PLANE.count("absent");
                return Err(Error::Absent { cluster: cluster() });
            };
            asked = Some(tunnel.id);
            let Some(places) = places(&self.tunnels, &tunnel) else {
                PLANE.count("busy");
                let limit = self.tunnels.limits().streams as usize;
                return Err(Error::Busy { cluster: cluster(), limit });
            };
            let switch = request.extensions().get::<Protocol>().cloned();
            let mut sender = tunnel.sender.clone();
            drop(tunnel);
            match sender.try_send_request(request).await {
                Ok(response) => {
                    PLANE.count("answered");
                    return Ok(answer(response, switch.as_ref(), places));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => {
                        PLANE.count("lost");
                        return Err(Error::Lost { cluster: cluster(), source: error.into_error() });
                    }
                },
            }
        }
    }
}

impl Service<Request<Body>> for Through {
    type Response = Response<Answer>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Response<Answer>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

/// What a request holds until its answer has been read.
struct Places {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
    _counted: Counted,
}

fn places(tunnels: &Tunnels, tunnel: &Tunnel) -> Option<Places> {
    Some(Places {
        _own: tunnel.slots.clone().try_acquire_owned().ok()?,
        _all: tunnels.all_streams().clone().try_acquire_owned().ok()?,
        _counted: Counted::new(&PLANE.streams),
    })
}

/// Makes a stream of a request. One that wants to switch protocols becomes an extended CONNECT.
fn stream(cluster: &str, request: Request<Body>) -> Result<Request<Body>, Error> {
    let odd = |why| Error::Request { cluster: cluster.to_owned(), why };
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().cloned().ok_or_else(|| odd("it has no path"))?;
    parts.uri = Uri::builder()
        .scheme("https")
        .authority("member")
        .path_and_query(target)
        .build()
        .map_err(|_| odd("its path is none"))?;
    parts.version = Version::HTTP_2;
    parts.headers.remove(HOST);
    parts.headers.remove(CONNECTION);
    if let Some(protocol) = parts.headers.remove(UPGRADE) {
        let protocol = protocol.to_str().map_err(|_| odd("the protocol it names is none"))?;
        parts.extensions.insert(Protocol::from(protocol));
        let method = HeaderValue::from_str(parts.method.as_str()).map_err(|_| odd("its method is none"))?;
        parts.headers.insert(METHOD, method);
        // Those who switch send what they have to say afterwards.
        parts.headers.remove(http::header::CONTENT_LENGTH);
        parts.method = Method::CONNECT;
        return Ok(Request::from_parts(parts, Body::empty()));
    }
    Ok(Request::from_parts(parts, body))
}

/// Makes of the answer to a stream what the member answered.
fn answer(mut response: Response<Incoming>, switch: Option<&Protocol>, places: Places) -> Response<Answer> {
    let told = response.headers_mut().remove(STATUS);
    if let Some(protocol) = switch {
        if response.status() == StatusCode::OK {
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            if let Ok(protocol) = HeaderValue::from_str(protocol.as_str()) {
                response.headers_mut().insert(UPGRADE, protocol);
            }
        } else if let Some(status) = told.and_then(|told| StatusCode::from_bytes(told.as_bytes()).ok()) {
            // Protocols are switched by the tunnel's own answer only.
            if status != StatusCode::SWITCHING_PROTOCOLS {
                *response.status_mut() = status;
            }
        }
    }
    let own: Vec<HeaderName> = response
        .headers()
        .keys()
        .filter(|name| name.as_str().starts_with("karmada-tunnel-"))
        .cloned()
        .collect();
    for name in own {
        response.headers_mut().remove(name);
    }
    *response.version_mut() = Version::HTTP_11;
    response.map(|body| Answer { body, _places: places })
}

/// The body of an answer, with its place among the requests.
pub struct Answer {
    body: Incoming,
    _places: Places,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Answer")
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
