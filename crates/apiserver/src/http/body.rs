//! Bodies of answers: complete, or produced piece by piece so that a large list or an endless watch never sits
//! in memory as a whole.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::sync::mpsc;

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Returns a body that is known at once.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into()).boxed_unsync()
}

pub fn empty() -> Body {
    http_body_util::Empty::new().boxed_unsync()
}

/// Returns a body made of the pieces an iterator yields.
pub fn pieces(iterator: impl Iterator<Item = Bytes> + Send + Unpin + 'static) -> Body {
    Pieces(iterator).boxed_unsync()
}

struct Pieces<I>(I);

impl<I: Iterator<Item = Bytes> + Unpin> http_body::Body for Pieces<I> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|piece| Ok(Frame::data(piece))))
    }
}

/// Returns a body that begins with some bytes and goes on with another body.
pub fn chained(start: Bytes, rest: Body) -> Body {
    Chained { start: Some(start), rest }.boxed_unsync()
}

struct Chained {
    start: Option<Bytes>,
    rest: Body,
}

impl http_body::Body for Chained {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.start.take() {
            Some(start) => Poll::Ready(Some(Ok(Frame::data(start)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }
}

/// Returns a body that holds on to something until it has been sent or is given up.
pub fn holding(body: Body, held: impl Send + Unpin + 'static) -> Body {
    Holding { body, _held: held }.boxed_unsync()
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> http_body::Body for Holding<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}

/// Returns a body fed through a channel. The sender sees a closed channel when the client has gone.
pub fn channel(receiver: mpsc::Receiver<Bytes>) -> Body {
    Channel(receiver).boxed_unsync()
}

struct Channel(mpsc::Receiver<Bytes>);

impl http_body::Body for Channel {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
