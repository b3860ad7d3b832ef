//! One stream of the tunnel at the agent's end: a request of the control plane becomes one to the member's API server.
//!
//! Bodies are passed on as they come and no faster than the other side reads. If the stream is given up, so is the request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{BoxError, ServiceExt};

use crate::connect::Reached;
use crate::door::{self, Asked, Head};
use crate::metrics::{AGENT, Counted};
use crate::roster::Told;
use crate::servers::{self, SERVERS};
use crate::{Limits, STATUS};

/// The answer to a stream.
pub(crate) type Answer = UnsyncBoxBody<Bytes, BoxError>;

/// What the streams of one tunnel share.
#[derive(Clone)]
pub(crate) struct Inward {
    pub(crate) member: Reached,
    pub(crate) limits: Limits,
    pub(crate) slots: Arc<Semaphore>,
    /// What greetings say.
    pub(crate) told: Told,
}

/// A stream that counts against the limit until it is dropped.
struct Slot {
    _permit: OwnedSemaphorePermit,
    _counted: Counted,
}

impl Inward {
    /// Answers a stream.
    pub(crate) async fn answer(self, request: Request<Incoming>) -> Response<Answer> {
        let connecting = request.method() == Method::CONNECT;
        let (result, answer) = match self.pass(request).await {
            Ok(passed) => passed,
            Err((result, status)) => (result, refusal(&status)),
        };
        AGENT.count(result);
        // To CONNECT, an answer of success means that protocols were switched, whatever it says.
        if connecting && result != "switched" { told_apart(answer) } else { answer }
    }

    async fn pass(
        self,
        mut request: Request<Incoming>,
    ) -> Result<(&'static str, Response<Answer>), (&'static str, Status)> {
        let protocol = request.extensions().get::<Protocol>().map(|protocol| protocol.as_str().to_owned());
        let account = self.member.account.as_deref();
        let asked =
            door::read(request.method(), request.uri(), request.headers(), protocol.as_deref(), account);
        let head = match asked {
            Ok(Asked::Member(head)) => head,
            Ok(Asked::Hello) => {
                self.told.set(servers::read(request.headers().get(SERVERS)));
                return Ok(("hello", Response::new(empty())));
            }
            Err(why) => {
                let message = format!("the agent refuses a request that came through its tunnel: {why}");
                return Err(("refused", Status::bad_request(message)));
            }
        };
        let Ok(permit) = self.slots.clone().try_acquire_owned() else {
            let message =
                format!("{} requests are on their way through the tunnel already", self.limits.streams);
            return Err(("busy", Status::too_many_requests(message, 1)));
        };
        let slot = Slot { _permit: permit, _counted: Counted::new(&AGENT.streams) };
        let near = hyper::upgrade::on(&mut request);
        let switch = head.switch.clone();
        let onward = onward(head, request.into_body());
        let asked = tokio::time::timeout(self.limits.answer, self.member.server.oneshot(onward)).await;
        let mut response = match asked {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(("failed", bad_gateway(&*error))),
            Err(_) => {
                let message = "the member's API server did not begin to answer in time";
                return Err(("failed", Status::new(504, "Timeout", message)));
            }
        };
        if size(response.headers()) > self.limits.headers as usize {
            let message = "the headers of the answer of the member's API server are too large for the tunnel";
            return Err(("failed", Status::new(502, "InternalError", message)));
        }
        let status = response.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            if switch.is_none() {
                let message = "the member's API server switched protocols unasked";
                return Err(("failed", Status::new(502, "InternalError", message)));
            }
            let far = hyper::upgrade::on(&mut response);
            tokio::spawn(async move {
                let _slot = slot;
                let (Ok(near), Ok(far)) = tokio::join!(near, far) else { return };
                let (mut near, mut far) = (TokioIo::new(near), TokioIo::new(far));
                if let Err(error) = tokio::io::copy_bidirectional(&mut near, &mut far).await {
                    tracing::debug!(%error, "a connection through the tunnel ended");
                }
            });
            let mut answer = Response::new(empty());
            *answer.headers_mut() = end_to_end(response.headers());
            return Ok(("switched", answer));
        }
        let (parts, body) = response.into_parts();
        let body = Held { body, _slot: slot };
        let mut answer = Response::new(body.map_err(BoxError::from).boxed_unsync());
        *answer.status_mut() = status;
        *answer.headers_mut() = end_to_end(&parts.headers);
        Ok(("answered", answer))
    }
}

fn onward(head: Head, body: Incoming) -> Request<crate::connect::Outgoing> {
    let mut onward = Request::new(body.boxed_unsync());
    *onward.method_mut() = head.method;
    *onward.uri_mut() = head.target.into();
    *onward.headers_mut() = head.headers;
    if let Some(protocol) = head.switch {
        onward.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        onward.headers_mut().insert(UPGRADE, protocol);
    }
    onward
}

/// Returns the headers that are not about the one connection, and none that could be taken for the tunnel's.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    const HOP_BY_HOP: [&str; 5] =
        ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
    let kept = |name: &HeaderName| {
        !HOP_BY_HOP.contains(&name.as_str()) && !name.as_str().starts_with("karmada-tunnel-")
    };
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| kept(name)) {
        map.append(name.clone(), value.clone());
    }
    map
}

/// Returns how much the headers count, by the rule of HTTP/2.
fn size(headers: &HeaderMap) -> usize {
    headers.iter().fold(0, |sum: usize, (name, value)| {
        sum.saturating_add(name.as_str().len()).saturating_add(value.len()).saturating_add(32)
    })
}

/// Puts the status of an answer into a header.
fn told_apart(mut answer: Response<Answer>) -> Response<Answer> {
    if let Ok(status) = HeaderValue::from_str(answer.status().as_str()) {
        answer.headers_mut().insert(STATUS, status);
    }
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer
}

fn bad_gateway(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Status {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Status::new(
        502,
        "InternalError",
        format!("the agent cannot get an answer of the member's API server: {cause}"),
    )
}

fn refusal(status: &Status) -> Response<Answer> {
    let text = status.to_value().to_string();
    let mut answer = Response::new(Full::from(text).map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn empty() -> Answer {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// The member's answer, with its place among the streams.
struct Held {
    body: Incoming,
    _slot: Slot,
}

impl Body for Held {
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
