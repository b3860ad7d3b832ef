//! Connections as they come in, secured or not. A handshake that takes long holds up nobody else.
//!
//! A connection has a place among all from the moment it is accepted until it ends. So that silent ones do not keep the places for ever,
//! each has to say the first words of HTTP/2 in time, which the server behind would wait for without end; later it is asked whether
//! it is still there. One address has a share of the places.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

/// What every HTTP/2 client says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long to wait when no connection can be accepted, for want of file descriptors for example.
const REST: Duration = Duration::from_millis(100);

/// How many connections there may be, and for how long they may say nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A few schedulers have one each.
    all: usize,
    /// Of one address; several schedulers may come from behind one.
    per_address: usize,
    /// How long a handshake may take, and then the first words.
    patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { all: 256, per_address: 64, patience: Duration::from_secs(10) }
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// One connection.
pub(super) struct Connection {
    /// What of the first words has not been read again yet.
    said: &'static [u8],
    stream: Box<dyn Duplex>,
    _place: Place,
}

/// A place among all connections, and among those of its address.
struct Place {
    address: IpAddr,
    addresses: Arc<Addresses>,
    _permit: OwnedSemaphorePermit,
}

/// How many places each address has.
type Addresses = Mutex<HashMap<IpAddr, usize>>;

impl Place {
    /// Returns nothing if the address has as many as it may have.
    fn take(
        address: IpAddr,
        addresses: &Arc<Addresses>,
        most: usize,
        permit: OwnedSemaphorePermit,
    ) -> Option<Self> {
        // An IPv4 address counts as itself where it comes in the form of IPv6.
        let address = address.to_canonical();
        let mut counts = addresses.lock();
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count = count.saturating_add(1);
        Some(Self { address, addresses: addresses.clone(), _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.addresses.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
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
    limits: Limits,
    stop: CancellationToken,
) -> impl Stream<Item = io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept(listener, tls.map(TlsAcceptor::from), limits, sender) => {}
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
    limits: Limits,
    sender: mpsc::Sender<Connection>,
) {
    let (places, addresses) = (Arc::new(Semaphore::new(limits.all)), Arc::default());
    loop {
        let Ok(permit) = places.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let Some(place) = Place::take(peer.ip(), &addresses, limits.per_address, permit) else {
            tracing::debug!(address = %peer.ip(), "an address has too many connections");
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (tls, sender) = (tls.clone(), sender.clone());
        tokio::spawn(async move {
            let opened = match tokio::time::timeout(limits.patience, open(stream, tls)).await {
                Ok(opened) => opened,
                Err(_) => return tracing::debug!("a handshake took too long"),
            };
            let mut stream = match opened {
                Ok(stream) => stream,
                Err(error) => return tracing::debug!(%error, "a handshake failed"),
            };
            let mut said = [0; PREFACE.len()];
            match tokio::time::timeout(limits.patience, stream.read_exact(&mut said)).await {
                Ok(Ok(_)) if said == *PREFACE => {}
                Ok(_) => return tracing::debug!("a connection is none of HTTP/2"),
                Err(_) => return tracing::debug!("a connection was silent for too long"),
            }
            let _ = sender.send(Connection { said: PREFACE, stream, _place: place }).await;
        });
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

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn finding_4_silent_connections_give_their_places_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { all: 3, per_address: 3, patience: Duration::from_millis(200) };
        let stop = CancellationToken::new();
        let mut incoming = Box::pin(incoming(listener, None, limits, stop.clone()));
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

    #[tokio::test]
    async fn finding_4_one_address_does_not_take_all_places() {
        let addresses = Arc::default();
        let places = Arc::new(Semaphore::new(10));
        let take = |address: &str| {
            let permit = places.clone().try_acquire_owned().unwrap();
            Place::take(address.parse().unwrap(), &addresses, 2, permit)
        };
        let _first = take("10.0.0.1").unwrap();
        let second = take("::ffff:10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none());
        assert!(take("10.0.0.2").is_some());
        drop(second);
        assert!(take("10.0.0.1").is_some());
        assert_eq!(
            (places.available_permits(), addresses.lock().len()),
            (9, 1),
            "nothing is kept of the gone"
        );
    }
}
