//! The way from real pods to an address of the machine, such as that of a control plane for an agent in a pod.
//!
//! The hub has the same address as the machine and listens there; what comes is led to the machine's. So one address is good for pods
//! and for everybody else, and no link leads out of the houses.

use std::net::{IpAddr, SocketAddr, TcpListener};

use tokio::{net::TcpStream, task::JoinHandle};

use super::house::{Room, in_network};
use crate::error::Error;

/// An open way. Dropping it closes it for new connections.
#[derive(Debug)]
pub(crate) struct WayOut {
    task: JoinHandle<()>,
}

impl WayOut {
    pub(crate) async fn open(hub: Room, address: SocketAddr) -> Result<Self, Error> {
        check(address.ip())?;
        hub.network("ip", &format!("address add {}/32 dev hub", address.ip()))?;
        let listener = in_network(hub, move || TcpListener::bind(address))
            .await
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener)
            })
            .map_err(Error::io("listen for pods at", address.to_string()))?;
        Ok(Self { task: tokio::spawn(serve(listener, address)) })
    }
}

impl Drop for WayOut {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn check(address: IpAddr) -> Result<(), Error> {
    let said = match address {
        IpAddr::V6(_) => "pods have no addresses of IPv6",
        IpAddr::V4(address) if address.is_loopback() => "a pod's loopback network is its own",
        IpAddr::V4(address) if address.is_unspecified() => "pods need an address to connect to",
        IpAddr::V4(_) => return Ok(()),
    };
    Err(Error::Command { command: format!("lead pods to {address}"), said: said.to_string() })
}

async fn serve(listener: tokio::net::TcpListener, address: SocketAddr) {
    while let Ok((mut pod, _)) = listener.accept().await {
        tokio::spawn(async move {
            // Nobody listens there, or not yet: the pod's connection ends, and it will try again.
            let Ok(mut machine) = TcpStream::connect(address).await else { return };
            let _ = (pod.set_nodelay(true), machine.set_nodelay(true));
            let _ = tokio::io::copy_bidirectional(&mut pod, &mut machine).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_mean_something_else_to_a_pod_are_refused() {
        for wrong in ["127.0.0.1", "0.0.0.0", "::1", "2001:db8::1"] {
            assert!(check(wrong.parse().expect("an address")).is_err(), "{wrong}");
        }
        assert!(check("10.60.0.2".parse().expect("an address")).is_ok());
    }
}
