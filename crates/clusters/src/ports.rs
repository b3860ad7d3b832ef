//! Finds free TCP ports on the loopback address.
//!
//! Ports come from below the range that Linux hands to outgoing connections (32768 and up): a port from that range could be
//! taken by some client's connection between our look and the server's start. A clash with another fleet is still possible; whoever
//! starts a server with such a port retries with another one.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;

use rustix::net::{Shutdown, shutdown};

use crate::error::Error;

const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Returns `count` different ports that were free a moment ago.
pub fn free(count: usize) -> Result<Vec<u16>, Error> {
    let mut held: Vec<(u16, TcpListener)> = Vec::new();
    // A random start keeps parallel fleets apart; the whole range is tried at most once.
    let start = rand::random_range(RANGE);
    let candidates = (start..RANGE.end).chain(RANGE.start..start);
    for port in candidates {
        if held.len() == count {
            break;
        }
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push((port, listener)); // kept until all are found, so that none is found twice
        }
    }
    let found: Vec<u16> = held
        .into_iter()
        .map(|(port, listener)| {
            release(listener);
            port
        })
        .collect();
    if found.len() < count {
        return Err(Error::NoPorts { count });
    }
    Ok(found)
}

/// Stops listening. A process that another thread is just starting has a copy of every descriptor until it becomes its program:
/// closing ours alone would leave the port taken for that long.
pub(crate) fn release(listener: impl AsFd) {
    // It can only fail for what does not listen.
    let _ = shutdown(&listener, Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn ports_are_different_and_can_be_bound() {
        let ports = free(5).expect("free ports");
        let listeners: Vec<_> =
            ports.iter().map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).expect("bind")).collect();
        assert_eq!(listeners.len(), 5);
    }

    #[test]
    fn a_released_port_is_free_even_while_someone_has_a_copy_of_the_listener() {
        let port = free(1).expect("a free port")[0];
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = listen().expect("bind");
        let copy = listener.try_clone().expect("a copy");
        release(listener);
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect_err("nobody listens");
        listen().expect("the port is free");
        drop(copy);
    }
}
