//! Finds free TCP ports on the loopback address.
//!
//! Ports come from below the range that Linux hands to outgoing connections (32768 and up): a port from that range could be
//! taken by some client's connection between our look and the server's start. A clash with another fleet is still possible; whoever
//! starts a server with such a port retries with another one.

use std::net::{Ipv4Addr, TcpListener};

use crate::error::Error;

const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Returns `count` different ports that were free a moment ago.
pub(crate) fn free(count: usize) -> Result<Vec<u16>, Error> {
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
    if held.len() < count {
        return Err(Error::NoPorts { count });
    }
    Ok(held.into_iter().map(|(port, _)| port).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_different_and_can_be_bound() {
        let ports = free(5).expect("free ports");
        let listeners: Vec<_> =
            ports.iter().map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).expect("bind")).collect();
        assert_eq!(listeners.len(), 5);
    }
}
