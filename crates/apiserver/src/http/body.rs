//! Bodies of answers: complete, or produced piece by piece, so that a large list or an endless watch is never completely in
//! memory.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

pub type Body = UnsyncBoxBody<Bytes, Broken>;

/// Why an answer ends before it is complete. The client's stream is reset, so that the client cannot mistake the part for the
/// whole.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Broken(String);

impl Broken {
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// Returns a complete body.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub fn empty() -> Body {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body that fails immediately.
pub fn failing(why: Broken) -> Body {
    http_body_util::StreamBody::new(futures::stream::iter([Err(why)])).boxed_unsync()
}

/// Returns a body from another server; if that server breaks it off, the answer is broken off, too.
pub fn passed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    body.map_err(|error| Broken::new(error.to_string())).boxed_unsync()
}

/// Returns a body made of the pieces an iterator yields.
pub fn pieces(iterator: impl Iterator<Item = Bytes> + Send + Unpin + 'static) -> Body {
    Pieces(iterator).boxed_unsync()
}

struct Pieces<I>(I);

impl<I: Iterator<Item = Bytes> + Unpin> http_body::Body for Pieces<I> {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Poll::Ready(self.0.next().map(|piece| Ok(Frame::data(piece))))
    }
}

/// Returns a body that starts with some bytes and continues with another body.
pub fn chained(start: Bytes, rest: Body) -> Body {
    Chained { start: Some(start), rest }.boxed_unsync()
}

struct Chained {
    start: Option<Bytes>,
    rest: Body,
}

impl http_body::Body for Chained {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.start.take() {
            Some(start) => Poll::Ready(Some(Ok(Frame::data(start)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }
}

/// Returns a body that keeps a value until the body has been sent or dropped.
pub fn holding(body: Body, held: impl Send + Unpin + 'static) -> Body {
    Holding { body, _held: held }.boxed_unsync()
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> http_body::Body for Holding<T> {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns a body that is broken off at `deadline`.
pub fn until(body: Body, deadline: tokio::time::Instant) -> Body {
    Until { body, deadline: Box::pin(tokio::time::sleep_until(deadline)) }.boxed_unsync()
}

struct Until {
    body: Body,
    deadline: Pin<Box<tokio::time::Sleep>>,
}

impl http_body::Body for Until {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_pending() && self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(Broken::new("the answer did not come to its end in time"))));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
