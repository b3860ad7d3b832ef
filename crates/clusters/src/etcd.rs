//! The one etcd of a fleet.

use std::{fs, net::Ipv4Addr, path::Path, time::Duration};

use tokio::net::TcpStream;

use crate::{
    error::Error,
    flags, ports,
    process::{Launch, Process},
    toolchain::{ETCD, Toolchain},
};

pub(crate) struct Etcd {
    pub(crate) endpoint: String,
    pub(crate) launch: Launch,
    pub(crate) process: Process,
}

impl Etcd {
    /// Starts etcd with its data in `<dir>/etcd`; returns once it takes requests.
    pub(crate) async fn start(
        toolchain: &Toolchain,
        dir: &Path,
        unsafe_no_fsync: bool,
    ) -> Result<Self, Error> {
        let folder = dir.join("etcd");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let mut attempt = 1;
        loop {
            let found = ports::free(2)?;
            let (client_port, peer_port) = (found[0], found[1]);
            let launch = Launch {
                name: "etcd".to_string(),
                cluster: "the fleet".to_string(),
                program: toolchain.path(&ETCD.program("etcd")),
                args: flags::etcd(&folder.join("data"), client_port, peer_port, unsafe_no_fsync),
                folder: folder.clone(),
            };
            let mut process = launch.start()?;
            match ready(&launch, &mut process, client_port).await {
                Ok(()) => {
                    return Ok(Self { endpoint: format!("http://127.0.0.1:{client_port}"), launch, process });
                }
                // Another fleet was quicker with the port. The data folder is new, so nothing is lost by starting over.
                Err(Error::Ended { tail, .. }) if attempt < 5 && tail.contains("address already in use") => {
                    let _ = fs::remove_dir_all(folder.join("data"));
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

async fn ready(launch: &Launch, process: &mut Process, port: u16) -> Result<(), Error> {
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
