//! Connections as they come in, secured or not. A handshake that takes long holds up nobody else.
//!
//! A connection has a place among all from the moment it is accepted until it ends: see [`super::guests`]. So that silent ones do not
//! keep the places for ever, each has to say the first words of HTTP/2 in time, which the server behind would wait for without end;
//! later it is asked whether it is still there, and it leaves if its place is needed for another one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::guests::{Guest, Guests, Slot};

/// What every HTTP/2 client says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long to wait when no connection can be accepted, for want of file descriptors for example.
const REST: Duration = Duration::from_millis(100);

/// How long a handshake may take, and then the first words.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// One connection.
pub(super) struct Connection {
    /// What of the first words has not been read again yet.
    said: &'static [u8],
    stream: Box<dyn Duplex>,
    slot: Slot,
    /// Ends when the place is needed for another connection.
    dismissed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connected for Connection {
    type ConnectInfo = Arc<Guest>;

    fn connect_info(&self) -> Arc<Guest> {
        self.slot.guest.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.dismissed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if !self.said.is_empty() {
            let (now, later) = self.said.split_at(self.said.len().min(buf.remaining()));
            buf.put_slice(now);
            self.said = later;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Returns the connections that a listener gets, until told to stop.
pub(super) fn incoming(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    guests: Arc<Guests>,
    patience: Duration,
    stop: CancellationToken,
) -> impl Stream<Item = io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept(listener, tls.map(TlsAcceptor::from), &guests, patience, sender) => {}
        }
    });
    futures::stream::unfold(receiver, |mut receiver| async {
        let connection = receiver.recv().await?;
        Some((Ok(connection), receiver))
    })
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    guests: &Arc<Guests>,
    patience: Duration,
    sender: mpsc::Sender<Connection>,
) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let Some(slot) = guests.enter(peer.ip()) else {
            tracing::debug!(address = %peer.ip(), "there are too many connections");
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (tls, sender) = (tls.clone(), sender.clone());
        tokio::spawn(async move {
            let dismissed = slot.guest.leaving();
            let opened = tokio::select! {
                () = dismissed.cancelled() => return,
                opened = greet(stream, tls, patience) => opened,
            };
            match opened {
                Ok(stream) => {
                    let dismissed = Box::pin(dismissed.cancelled_owned());
                    let _ = sender.send(Connection { said: PREFACE, stream, slot, dismissed }).await;
                }
                Err(why) => tracing::debug!("{why}"),
            }
        });
    }
}

/// Waits for the handshake and the first words.
async fn greet(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    patience: Duration,
) -> Result<Box<dyn Duplex>, String> {
    let opened = tokio::time::timeout(patience, open(stream, tls)).await;
    let opened = opened.map_err(|_| "a handshake took too long".to_owned())?;
    let mut stream = opened.map_err(|error| format!("a handshake failed: {error}"))?;
    let mut said = [0; PREFACE.len()];
    match tokio::time::timeout(patience, stream.read_exact(&mut said)).await {
        Ok(Ok(_)) if said == *PREFACE => Ok(stream),
        Ok(_) => Err("a connection is none of HTTP/2".to_owned()),
        Err(_) => Err("a connection was silent for too long".to_owned()),
    }
}

async fn open(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Box<dyn Duplex>> {
    Ok(match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.accept(stream).await?),
    })
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use tokio::io::AsyncWriteExt as _;

    use super::super::guests::Limits;
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn finding_4_silent_connections_give_their_places_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let guests = Guests::new(Limits { all: 3, per_address: 3 });
        let (patience, stop) = (Duration::from_millis(200), CancellationToken::new());
        let mut incoming = Box::pin(incoming(listener, None, guests, patience, stop.clone()));
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // One has begun to speak, and stops.
        silent[2].write_all(&PREFACE[..23]).await.unwrap();
        let mut caller = TcpStream::connect(address).await.unwrap();
        caller.write_all(PREFACE).await.unwrap();
        caller.write_all(b"and more").await.unwrap();
        let served = tokio::time::timeout(LONG, incoming.next()).await;
        let mut connection = served.expect("all places are taken for good").unwrap().unwrap();
        let mut said = [0; PREFACE.len() + 8];
        connection.read_exact(&mut said).await.unwrap();
        assert_eq!(
            said.as_slice(),
            [PREFACE.as_slice(), b"and more"].concat(),
            "nothing is lost or said twice"
        );
        for mut stream in silent {
            let ended = tokio::time::timeout(LONG, stream.read(&mut [0; 1])).await.expect("it is kept open");
            assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        }
        stop.cancel();
    }

    /// Connections that have said the first words, and would answer when asked whether they are still there.
    #[tokio::test]
    async fn finding_4_connections_without_requests_leave_when_their_places_are_needed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let guests = Guests::new(Limits { all: 3, per_address: 3 });
        let stop = CancellationToken::new();
        let mut incoming = Box::pin(incoming(listener, None, guests, LONG, stop.clone()));
        let mut next = async || {
            let mut caller = TcpStream::connect(address).await.unwrap();
            caller.write_all(PREFACE).await.unwrap();
            let served = tokio::time::timeout(LONG, incoming.next()).await;
            let mut connection = served.expect("all places are taken for good").unwrap().unwrap();
            connection.read_exact(&mut [0; PREFACE.len()]).await.unwrap();
            (caller, connection)
        };
        let (mut first, second, third) = (next().await, next().await, next().await);
        let busy = second.1.connect_info().begin();
        let fourth = next().await;
        let ended = tokio::time::timeout(LONG, first.1.read(&mut [0; 1])).await.expect("it is kept");
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionAborted, "the longest idle");
        let leaving = |one: &(TcpStream, Connection)| one.1.connect_info().leaving().is_cancelled();
        assert!(!leaving(&second) && !leaving(&third) && !leaving(&fourth));
        drop((busy, first));
        stop.cancel();
    }
}
