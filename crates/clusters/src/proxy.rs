//! The TCP proxy in front of every API server: the network between a cluster and its clients.
//!
//! Bytes pass unread (TLS ends at the API server). The mode can change at any time and also acts on open connections:
//! a cut network does not spare a watch that was opened before.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    pods::{Room, in_network},
    ports,
};

/// How the network between a cluster and its clients behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Everything passes.
    Open,
    /// New connections are refused, open ones are closed: the machine is up, the server is not.
    Refuse,
    /// Nothing passes and nothing is closed: connections hang, as behind a firewall that drops packets. When the network opens again, they
    /// go on where they stopped.
    Blackhole,
    /// Every byte arrives this many milliseconds late, in both directions. Only latency: throughput stays.
    Slow { delay_ms: u64 },
}

impl Network {
    fn delay(self) -> Duration {
        match self {
            Self::Slow { delay_ms } => Duration::from_millis(delay_ms),
            _ => Duration::ZERO,
        }
    }
}

/// In which network the API server is.
#[derive(Debug, Clone)]
pub(crate) enum Home {
    Machine,
    /// In that of a house, which may be rebuilt; None while it is.
    House(Arc<Mutex<Option<Room>>>),
}

impl Home {
    async fn connect(&self, target: SocketAddr) -> std::io::Result<TcpStream> {
        let room = match self {
            Self::Machine => return TcpStream::connect(target).await,
            Self::House(room) => *room.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let Some(room) = room else { return Err(std::io::ErrorKind::NotConnected.into()) };
        let stream = in_network(room, move || std::net::TcpStream::connect(target)).await?;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }
}

/// A listening proxy. Dropping it closes every connection.
#[derive(Debug)]
pub(crate) struct Proxy {
    mode: watch::Sender<Network>,
    /// Follows `mode` once the listener has been opened or closed accordingly.
    settled: watch::Receiver<Network>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens at `address` and forwards to port `target` of `home`'s loopback address.
    pub(crate) async fn start(address: SocketAddr, target: u16, home: Home) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let (mode, watched) = watch::channel(Network::Open);
        let (settle, settled) = watch::channel(Network::Open);
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, target));
        let task = tokio::spawn(serve(listener, address, (home, target), watched, settle));
        Ok(Self { mode, settled, task })
    }

    pub(crate) fn network(&self) -> Network {
        *self.mode.borrow()
    }

    /// Changes the mode; returns once it is in force.
    pub(crate) async fn set(&mut self, network: Network) {
        self.mode.send_replace(network);
        // An error means that the task is gone; then nothing listens and there is nothing to wait for.
        let _ = self.settled.wait_for(|settled| *settled == network).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts as long as the mode allows. The connections' tasks end with the mode's sender, which the proxy owns.
async fn serve(
    listener: TcpListener,
    address: SocketAddr,
    target: (Home, SocketAddr),
    mut mode: watch::Receiver<Network>,
    settle: watch::Sender<Network>,
) {
    let mut listener = Some(listener);
    loop {
        let now = *mode.borrow_and_update();
        if now == Network::Refuse {
            listener.take().into_iter().for_each(ports::release);
        } else if listener.is_none() {
            // Somebody may have taken the port in the meantime; it is the one in the kubeconfig, so keep asking.
            match TcpListener::bind(address).await {
                Ok(again) => listener = Some(again),
                Err(_) => {
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            }
        }
        settle.send_replace(now);
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = mode.changed() => if changed.is_err() { return },
            accepted = accept => match accepted {
                Ok((client, _)) => { tokio::spawn(connection(client, target.clone(), mode.clone())); }
                // Out of descriptors, most likely; do not spin.
                Err(_) => sleep(Duration::from_millis(50)).await,
            },
        }
    }
}

async fn connection(client: TcpStream, (home, target): (Home, SocketAddr), mode: watch::Receiver<Network>) {
    let mut cut = mode.clone();
    let forward = async {
        let Ok(server) = home.connect(target).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::join!(pump(from_client, to_server, mode.clone()), pump(from_server, to_client, mode));
    };
    tokio::select! {
        () = forward => {}
        // Also taken when the proxy is gone.
        _ = cut.wait_for(|network| *network == Network::Refuse) => {}
    }
}

/// Copies one direction. Chunks carry the time at which they may leave, so that latency does not become a limit on throughput.
pub(crate) async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut mode: watch::Receiver<Network>,
) {
    // 64 chunks of 16 KiB: one MiB may be under way, ample for a list of a few thousand objects.
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(64);
    let reading = mode.clone();
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let leaves = Instant::now() + reading.borrow().delay();
            if sender.send((leaves, buffer[..count].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let write = async move {
        while let Some((leaves, chunk)) = receiver.recv().await {
            sleep_until(leaves).await;
            if mode.wait_for(|network| *network != Network::Blackhole).await.is_err() {
                return;
            }
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
        let _ = mode.wait_for(|network| *network != Network::Blackhole).await;
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo server behind a proxy; returns the proxy and its address.
    async fn echo() -> (Proxy, SocketAddr) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
        let target = server.local_addr().expect("address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = server.accept().await {
                tokio::spawn(async move {
                    let (mut reader, mut writer) = stream.split();
                    let _ = tokio::io::copy(&mut reader, &mut writer).await;
                });
            }
        });
        let port = ports::free(1).expect("a free port")[0];
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let proxy = Proxy::start(address, target, Home::Machine).await.expect("listen");
        (proxy, address)
    }

    async fn ask(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(text).await?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn an_open_network_passes_bytes() {
        let (_proxy, address) = echo().await;
        let mut stream = TcpStream::connect(address).await.expect("connect");
        assert_eq!(ask(&mut stream, b"hello").await.expect("answer"), b"hello");
    }

    #[tokio::test]
    async fn a_refusing_network_closes_open_connections_and_takes_no_new_ones() {
        let (mut proxy, address) = echo().await;
        let mut stream = TcpStream::connect(address).await.expect("connect");
        ask(&mut stream, b"hello").await.expect("answer");
        proxy.set(Network::Refuse).await;
        assert!(ask(&mut stream, b"again").await.is_err());
        let refused = TcpStream::connect(address).await.expect_err("must be refused");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

        proxy.set(Network::Open).await;
        let mut stream = TcpStream::connect(address).await.expect("connect");
        assert_eq!(ask(&mut stream, b"back").await.expect("answer"), b"back");
    }

    #[tokio::test]
    async fn a_black_hole_keeps_what_was_sent_until_it_opens() {
        let (mut proxy, address) = echo().await;
        let mut stream = TcpStream::connect(address).await.expect("connect");
        ask(&mut stream, b"hello").await.expect("answer");
        proxy.set(Network::Blackhole).await;
        stream.write_all(b"later").await.expect("the kernel takes it");
        let mut answer = [0; 5];
        let silence = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut answer)).await;
        assert!(silence.is_err(), "something came through");

        proxy.set(Network::Open).await;
        stream.read_exact(&mut answer).await.expect("the answer");
        assert_eq!(&answer, b"later");
    }

    #[tokio::test]
    async fn a_slow_network_delays_both_directions() {
        let (mut proxy, address) = echo().await;
        proxy.set(Network::Slow { delay_ms: 60 }).await;
        let mut stream = TcpStream::connect(address).await.expect("connect");
        let before = Instant::now();
        assert_eq!(ask(&mut stream, b"hello").await.expect("answer"), b"hello");
        assert!(before.elapsed() >= Duration::from_millis(120), "only {:?}", before.elapsed());
    }
}
