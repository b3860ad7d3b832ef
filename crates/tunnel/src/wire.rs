//! A connection that can be cut from outside, and that tells when it is gone.
//!
//! The HTTP library drives a connection by tasks of its own. Cutting the connection below it is the one way to end them all
//! at once, and the moment at which it is dropped is the one that says that all of them have ended.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

pub(crate) struct Wire<I> {
    io: I,
    cut: CancellationToken,
    cutting: Pin<Box<WaitForCancellationFutureOwned>>,
    _gone: DropGuard,
}

impl<I> Wire<I> {
    /// Wraps a connection. It ends when `cut` is cancelled; `gone` is cancelled when it has ended, for whatever reason.
    pub(crate) fn new(io: I, cut: CancellationToken, gone: CancellationToken) -> Self {
        let cutting = Box::pin(cut.clone().cancelled_owned());
        Self { io, cut, cutting, _gone: gone.drop_guard() }
    }

    fn intact(&self) -> std::io::Result<()> {
        if self.cut.is_cancelled() {
            return Err(std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "the tunnel was closed"));
        }
        Ok(())
    }
}

impl<I: Read + Unpin> Read for Wire<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        // Also asks to be woken when the connection is cut. Whoever drives a connection always reads.
        if self.cutting.as_mut().poll(context).is_ready() {
            return Poll::Ready(self.intact());
        }
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<I: Write + Unpin> Write for Wire<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.intact()?;
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.intact()?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.intact()?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        self.intact()?;
        Pin::new(&mut self.io).poll_write_vectored(context, buffers)
    }
}
