//! `balancer ADDRESS PKI SERVER…`: spreads requests over servers. For the end-to-end suite, which runs on several servers with it.
//!
//! Says where it listens on standard output, and there once in a while how many requests each server got.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use testkit::balancer::Balancer;
use tokio::net::TcpListener;

const TALLY: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, pki, servers @ ..] = arguments.as_slice() else {
        return Err(io::Error::other("usage: balancer ADDRESS PKI SERVER…"));
    };
    let servers: Result<Vec<SocketAddr>, _> = servers.iter().map(|server| server.parse()).collect();
    let servers = servers.map_err(io::Error::other)?;
    if servers.is_empty() {
        return Err(io::Error::other("no server is given"));
    }
    let balancer = Balancer::new(&PathBuf::from(pki), servers)?;
    let listener = TcpListener::bind(address).await?;
    let mut out = io::stdout();
    writeln!(out, "listening at {}", listener.local_addr()?)?;
    tokio::spawn(balancer.clone().run(listener));
    loop {
        tokio::time::sleep(TALLY).await;
        writeln!(out, "requests: {:?}", balancer.sent())?;
    }
}
