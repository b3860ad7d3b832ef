//! The network between etcds that are one store: any two of them can be cut off from each other.
//!
//! Each etcd is found by the others at a proxy of its own. All etcds know the same addresses of each other, so an address does not tell
//! who calls; the header does by which etcds introduce themselves. Calls without it (versions, leases) may be anybody's: they are refused
//! by an etcd that is cut off from any other.

use std::{
    collections::{BTreeMap, HashMap},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use crate::proxy::{Network, pump};

/// The header with the id of the etcd that calls.
const CALLER: &str = "x-server-from:";
/// More than the head of any request between etcds.
const LONGEST_HEAD: usize = 16 * 1024;

/// The network between etcds. Dropping it closes every connection.
#[derive(Debug)]
pub struct Peers {
    ways: Arc<Mutex<Ways>>,
    listeners: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Ways {
    /// What etcds call themselves, in their order; empty until they run.
    ids: Vec<String>,
    /// Between which of them something is wrong, the lesser number first.
    troubles: BTreeMap<(usize, usize), Network>,
    /// How callers reach each etcd, for the connections that exist.
    modes: HashMap<(String, usize), watch::Sender<Network>>,
}

impl Ways {
    fn between(&self, caller: &str, called: usize) -> Network {
        match self.ids.iter().position(|id| id == caller) {
            Some(caller) => *self.troubles.get(&pair(caller, called)).unwrap_or(&Network::Open),
            None if self.troubles.keys().any(|&(one, other)| one == called || other == called) => {
                Network::Refuse
            }
            None => Network::Open,
        }
    }

    fn mode(&mut self, caller: String, called: usize) -> watch::Receiver<Network> {
        let now = self.between(&caller, called);
        self.modes.entry((caller, called)).or_insert_with(|| watch::channel(now).0).subscribe()
    }

    fn changed(&self) {
        for ((caller, called), mode) in &self.modes {
            mode.send_replace(self.between(caller, *called));
        }
    }
}

fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

impl Peers {
    /// Listens at `doors` and leads on to `targets`, all of them ports of this machine, in the order of the etcds.
    pub(crate) async fn start(doors: &[u16], targets: &[u16]) -> std::io::Result<Self> {
        let ways = Arc::<Mutex<Ways>>::default();
        let mut peers = Self { ways, listeners: Vec::new() };
        for (number, (door, target)) in doors.iter().zip(targets).enumerate() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *door)).await?;
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, *target));
            peers.listeners.push(tokio::spawn(serve(listener, number, target, Arc::clone(&peers.ways))));
        }
        Ok(peers)
    }

    /// Says what the etcds call themselves.
    pub(crate) fn introduce(&self, ids: Vec<String>) {
        let mut ways = lock(&self.ways);
        ways.ids = ids;
        ways.changed();
    }

    /// Changes how two of them reach each other, in both directions.
    pub fn set(&self, one: usize, other: usize, network: Network) {
        let mut ways = lock(&self.ways);
        match network {
            Network::Open => drop(ways.troubles.remove(&pair(one, other))),
            network => drop(ways.troubles.insert(pair(one, other), network)),
        }
        ways.changed();
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for listener in &self.listeners {
            listener.abort();
        }
        // Connections end with their modes.
        lock(&self.ways).modes.clear();
    }
}

fn lock(ways: &Mutex<Ways>) -> MutexGuard<'_, Ways> {
    ways.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: TcpListener, number: usize, target: SocketAddr, ways: Arc<Mutex<Ways>>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => drop(tokio::spawn(connection(client, number, target, Arc::clone(&ways)))),
            // Out of descriptors, most likely; do not spin.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn connection(mut client: TcpStream, number: usize, target: SocketAddr, ways: Arc<Mutex<Ways>>) {
    let Some(head) = head(&mut client).await else { return };
    let mut mode = lock(&ways).mode(caller(&head), number);
    // Otherwise it would hold itself.
    drop(ways);
    let mut cut = mode.clone();
    let forward = async {
        let Ok(mut server) = TcpStream::connect(target).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        if mode.wait_for(|network| *network != Network::Blackhole).await.is_err() {
            return;
        }
        if server.write_all(&head).await.is_err() {
            return;
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::join!(pump(from_client, to_server, mode.clone()), pump(from_server, to_client, mode.clone()));
    };
    tokio::select! {
        () = forward => {}
        // Also taken when the network is gone.
        _ = cut.wait_for(|network| *network == Network::Refuse) => {}
    }
}

/// Reads the head of the first request, with whatever comes along.
async fn head(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while head.len() < LONGEST_HEAD {
        let count = client.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        head.extend_from_slice(&buffer[..count]);
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            return Some(head);
        }
    }
    None
}

/// Returns the id of the etcd that calls; empty if it does not say.
fn caller(head: &[u8]) -> String {
    let text = String::from_utf8_lossy(head);
    let lines = text.lines().take_while(|line| !line.is_empty());
    let named = lines.filter_map(|line| {
        let start = line.get(..CALLER.len())?;
        start.eq_ignore_ascii_case(CALLER).then(|| line[CALLER.len()..].trim().to_owned())
    });
    named.last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports;

    async fn ask(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
        stream.write_all(text.as_bytes()).await?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer).await?;
        assert_eq!(answer, text.as_bytes());
        Ok(())
    }

    fn hello(caller: &str) -> String {
        let named = if caller.is_empty() { String::new() } else { format!("X-Server-From: {caller}\r\n") };
        format!("GET /raft HTTP/1.1\r\nHost: etcd\r\n{named}\r\n")
    }

    #[tokio::test]
    async fn two_are_cut_off_from_each_other_and_both_reach_the_third() {
        let found = ports::free(3).expect("free ports");
        let mut targets = Vec::new();
        for _ in 0..3 {
            let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
            targets.push(echo.local_addr().expect("an address").port());
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = echo.accept().await {
                    tokio::spawn(async move {
                        let (mut reader, mut writer) = stream.split();
                        let _ = tokio::io::copy(&mut reader, &mut writer).await;
                    });
                }
            });
        }
        let peers = Peers::start(&found, &targets).await.expect("it listens");
        let call = async |caller: &str, called: usize| {
            let mut stream =
                TcpStream::connect((Ipv4Addr::LOCALHOST, found[called])).await.expect("it listens");
            ask(&mut stream, &hello(caller)).await.map(|()| stream)
        };
        // Opened before anybody knows who is who.
        let mut early = call("b", 0).await.expect("open");
        peers.introduce(["a", "b", "c"].map(str::to_owned).to_vec());
        let mut unnamed = call("", 0).await.expect("open");
        let mut third = call("c", 0).await.expect("open");
        ask(&mut early, "still open").await.expect("open");

        peers.set(1, 0, Network::Refuse);
        assert!(ask(&mut early, "more").await.is_err(), "an open connection is closed");
        assert!(ask(&mut unnamed, "more").await.is_err(), "it may have been the other one's");
        ask(&mut third, "more").await.expect("the third is not concerned");
        assert!(call("b", 0).await.is_err() && call("a", 1).await.is_err(), "both directions");
        call("c", 1).await.expect("the third is not concerned");

        peers.set(0, 1, Network::Blackhole);
        let silence = tokio::time::timeout(Duration::from_millis(100), call("b", 0)).await;
        assert!(silence.is_err(), "something came through");
        peers.set(0, 1, Network::Open);
        call("b", 0).await.expect("open");
        call("", 0).await.expect("open");
    }
}
