//! The one etcd of a fleet, or one by itself, or several that are one store.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    error::Error,
    flags,
    peers::Peers,
    ports,
    process::{Launch, Process},
    proxy::{Home, Network, Proxy},
    toolchain::{ETCD, Toolchain},
};

/// The folder of the data, beside the log.
const DATA: &str = "data";

/// A running etcd. It ends with its owner.
pub struct Etcd {
    /// `http://HOST:PORT`
    pub endpoint: String,
    pub(crate) launch: Launch,
    pub(crate) process: Process,
}

impl Etcd {
    /// Starts an etcd by itself, with its data in `<dir>/etcd`; builds it first if need be.
    ///
    /// Returns nothing where it can be neither found nor built, after the calling test was noted as left out.
    pub async fn alone(dir: &Path) -> Result<Option<Self>, Error> {
        Self::alone_with(dir, &[]).await
    }

    /// As [`Etcd::alone`], and it waits for the disk as in production.
    pub async fn durable(dir: &Path) -> Result<Option<Self>, Error> {
        match Self::provided().await? {
            Some(toolchain) => Self::start(&toolchain, dir, false).await.map(Some),
            None => Ok(None),
        }
    }

    /// As [`Etcd::alone`], with further flags.
    pub async fn alone_with(dir: &Path, further: &[&str]) -> Result<Option<Self>, Error> {
        match Self::provided().await? {
            Some(toolchain) => Self::start_with(&toolchain, dir, true, further).await.map(Some),
            None => Ok(None),
        }
    }

    /// Starts several that are one store, with their data in `<dir>/etcd-<number>`; otherwise as [`Etcd::alone`].
    pub async fn several(dir: &Path, count: usize) -> Result<Option<Vec<Self>>, Error> {
        let Some(toolchain) = Self::provided().await? else { return Ok(None) };
        let ports = ports::free(2 * count)?;
        let (client_ports, peer_ports) = ports.split_at(count);
        Self::members(&toolchain, dir, client_ports, peer_ports, peer_ports).await.map(Some)
    }

    /// As [`Etcd::several`], with a network between them that can be cut.
    pub async fn several_apart(dir: &Path, count: usize) -> Result<Option<(Vec<Self>, Peers)>, Error> {
        let Some(toolchain) = Self::provided().await? else { return Ok(None) };
        let ports = ports::free(3 * count)?;
        let (client_ports, rest) = ports.split_at(count);
        let (peer_ports, doors) = rest.split_at(count);
        let peers = Peers::start(doors, peer_ports).await;
        let peers = peers.map_err(Error::io("listen at", format!("{doors:?}")))?;
        let all = Self::members(&toolchain, dir, client_ports, peer_ports, doors).await?;
        let Some(first) = all.first() else { return Ok(None) };
        let told = first.ask("/v3/cluster/member/list", "{}").await?;
        let id = |number: usize| {
            let mut members = told["members"].as_array().into_iter().flatten();
            let found = members.find(|member| member["name"] == flags::etcd_name(number).as_str());
            let id = found.and_then(|member| member["ID"].as_str()?.parse::<u64>().ok());
            id.map(|id| format!("{id:x}")).unwrap_or_default()
        };
        peers.introduce((0..count).map(id).collect());
        Ok(Some((all, peers)))
    }

    /// Starts several that find each other at `doors`, which lead to their peer ports.
    async fn members(
        toolchain: &Toolchain,
        dir: &Path,
        client_ports: &[u16],
        peer_ports: &[u16],
        doors: &[u16],
    ) -> Result<Vec<Self>, Error> {
        let mut all = Vec::new();
        for (number, (&client_port, &peer_port)) in client_ports.iter().zip(peer_ports).enumerate() {
            let folder = dir.join(format!("etcd-{number}"));
            fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
            let data = folder.join("data");
            let launch = Launch {
                name: format!("etcd-{number}"),
                cluster: "the fleet".to_string(),
                program: toolchain.path(&ETCD.program("etcd")),
                args: flags::etcd_member(&data, client_port, peer_port, doors, number, true),
                folder,
            };
            let process = launch.start()?;
            all.push(Self { endpoint: format!("http://127.0.0.1:{client_port}"), launch, process });
        }
        for etcd in &mut all {
            let port = etcd.port();
            ready(&etcd.launch, &mut etcd.process, port).await?;
        }
        Ok(all)
    }

    async fn provided() -> Result<Option<Toolchain>, Error> {
        let toolchain = Toolchain::from_env()?;
        if !toolchain.can_provide(&[&ETCD]) {
            crate::left_out("etcd, which is built with Go");
            return Ok(None);
        }
        let builder = toolchain.clone();
        tokio::task::spawn_blocking(move || builder.ensure(&[&ETCD]))
            .await
            .expect("building does not panic")?;
        Ok(Some(toolchain))
    }

    /// Ends it at once, as a power failure would. Its data stay.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again at the same address, with the data that it had; returns once it takes requests.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        self.process = self.launch.start()?;
        let port = self.port();
        ready(&self.launch, &mut self.process, port).await
    }

    /// As [`Etcd::start_again`], without waiting: one of several takes no requests before most of them run.
    pub fn launch_again(&mut self) -> Result<(), Error> {
        self.process = self.launch.start()?;
        Ok(())
    }

    /// Lets it hang: connections stay, nothing is answered.
    pub fn pause(&self) {
        self.process.pause();
    }

    pub fn resume(&self) {
        self.process.resume();
    }

    /// Gives up the past up to a revision and whatever room that takes, and takes back the alarm of a full store.
    pub async fn make_room(&self, revision: u64) -> Result<(), Error> {
        self.ask("/v3/kv/compaction", &format!(r#"{{"revision": "{revision}", "physical": true}}"#)).await?;
        self.ask("/v3/maintenance/defragment", "{}").await?;
        let alarms: serde_json::Value = self.ask("/v3/maintenance/alarm", r#"{"action": "GET"}"#).await?;
        for alarm in alarms["alarms"].as_array().into_iter().flatten() {
            let mut disarm = alarm.clone();
            disarm["action"] = "DEACTIVATE".into();
            self.ask("/v3/maintenance/alarm", &disarm.to_string()).await?;
        }
        Ok(())
    }

    /// Sends a request to its JSON gateway.
    async fn ask(&self, path: &str, body: &str) -> Result<serde_json::Value, Error> {
        let ask = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())).await?;
            let length = body.len();
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            );
            stream.write_all(head.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            // Small answers come whole, with their length.
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let answered =
                answer.starts_with("HTTP/1.1 200").then(|| serde_json::from_str(body).ok()).flatten();
            answered.ok_or_else(|| std::io::Error::other(answer))
        };
        ask.await.map_err(Error::io("ask etcd for", path))
    }

    /// Returns where its data are, if it was started with [`Etcd::start`].
    pub(crate) fn data(&self) -> PathBuf {
        self.launch.folder.join(DATA)
    }

    /// Returns a way to it that can be cut.
    pub async fn way(&self) -> Result<Way, Error> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free(1)?[0]));
        let proxy = Proxy::start(address, self.port(), Home::Machine).await;
        let proxy = proxy.map_err(Error::io("listen at", address.to_string()))?;
        Ok(Way { endpoint: format!("http://{address}"), proxy })
    }

    fn port(&self) -> u16 {
        self.endpoint.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0)
    }

    /// Starts etcd with its data in `<dir>/etcd`; returns once it takes requests.
    pub(crate) async fn start(
        toolchain: &Toolchain,
        dir: &Path,
        unsafe_no_fsync: bool,
    ) -> Result<Self, Error> {
        Self::start_with(toolchain, dir, unsafe_no_fsync, &[]).await
    }

    async fn start_with(
        toolchain: &Toolchain,
        dir: &Path,
        unsafe_no_fsync: bool,
        further: &[&str],
    ) -> Result<Self, Error> {
        let folder = dir.join("etcd");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let mut attempt = 1;
        loop {
            let found = ports::free(2)?;
            let (client_port, peer_port) = (found[0], found[1]);
            let mut args = flags::etcd(&folder.join(DATA), client_port, peer_port, unsafe_no_fsync);
            args.extend(further.iter().map(ToString::to_string));
            let launch = Launch {
                name: "etcd".to_string(),
                cluster: "the fleet".to_string(),
                program: toolchain.path(&ETCD.program("etcd")),
                args,
                folder: folder.clone(),
            };
            let mut process = launch.start()?;
            match ready(&launch, &mut process, client_port).await {
                Ok(()) => {
                    return Ok(Self { endpoint: format!("http://127.0.0.1:{client_port}"), launch, process });
                }
                // Another fleet was quicker with the port. The data folder is new, so nothing is lost by starting over.
                Err(Error::Ended { tail, .. }) if attempt < 5 && tail.contains("address already in use") => {
                    let _ = fs::remove_dir_all(folder.join(DATA));
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A network between an etcd and its clients.
pub struct Way {
    /// `http://HOST:PORT`
    pub endpoint: String,
    proxy: Proxy,
}

impl Way {
    /// Changes how it behaves; returns once that is in force.
    pub async fn set(&mut self, network: Network) {
        self.proxy.set(network).await;
    }
}

pub(crate) async fn ready(launch: &Launch, process: &mut Process, port: u16) -> Result<(), Error> {
    // etcd opens its client port when it has a leader, not before.
    for _ in 0..1_200 {
        if let Some(status) = process.exited() {
            return Err(launch.ended(status));
        }
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Error::Timeout {
        what: "etcd to listen".to_string(),
        after: Duration::from_secs(120),
        seen: launch.log_tail(5),
    })
}
