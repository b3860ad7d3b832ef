//! The way into members that nobody can reach: streams over a connection that the agent keeps open.
//!
//! The agent of a cluster in pull mode asks the control plane for `clusters/NAME/tunnel` and wishes to switch protocols
//! (HTTP/1.1, `Upgrade: karmada-tunnel/1`). From then on the roles are reversed: on the same connection the control
//! plane is a client that speaks HTTP/2, and the agent is the server. Every request to the member is one stream.
//! Flow control of each stream, pings, and the orderly end come with HTTP/2; there are no frames of our own.
//!
//! Two ends:
//! - [`Tunnels`] is the control plane's: it holds one live tunnel per cluster, and gives out clients that use it.
//! - [`agent::keep`] is the agent's: it opens the tunnel, opens it again whenever it ends, and hands every stream on to
//!   the member's API server with an account that may take on names and nothing else.
//!
//! Where several servers share a store ([`Tunnels::know_servers`]), the agent has a tunnel to each of them: no server needs to
//! reach another one. Behind a balancer the agent asks until it has met them all.
//!
//! A stream without the name of a caller is refused by the agent: the account never acts in its own name. Requests that
//! switch protocols themselves (exec, attach, port-forward) are extended CONNECT streams (RFC 8441).
//!
//! Does not decide who may open a tunnel or use it: that is the API server's business on either side.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod agent;
mod client;
mod connect;
mod door;
mod error;
mod inward;
mod metrics;
mod plane;
mod roster;
mod servers;
mod wire;

use std::time::Duration;

pub use client::{Answer, Through};
pub use connect::Reached;
pub use error::Error;
pub use plane::{News, Tunnels};

/// What an agent wishes to switch to.
pub const PROTOCOL: &str = "karmada-tunnel/1";

/// Asked when a tunnel has been opened: the answer shows that an agent is at the other end. No API path begins so.
const HELLO: &str = "/.tunnel/hello";
/// The same, as it is asked.
const GREETING: &str = "https://member/.tunnel/hello";
/// The method of a request that is carried by a CONNECT stream.
const METHOD: &str = "karmada-tunnel-method";
/// The member's answer to a CONNECT stream whose protocols were not switched.
const STATUS: &str = "karmada-tunnel-status";

/// Returns the path at which the agent of a cluster asks for its tunnel.
pub fn path(cluster: &str) -> String {
    format!("/apis/cluster.karmada.io/v1alpha1/clusters/{cluster}/tunnel")
}

/// The limits of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Streams that may be open on one tunnel at once.
    pub streams: u32,
    /// Streams that may be open on all tunnels of a control plane at once.
    pub all_streams: usize,
    /// Bytes of one stream that may be on their way without having been read, in either direction.
    pub window: u32,
    /// Bytes of the headers of a request or an answer.
    pub headers: u32,
    /// How often each end asks whether the other is still there, and how long that may take to answer.
    pub ping: Duration,
    pub pong: Duration,
    /// How long the member may take to begin an answer.
    pub answer: Duration,
    /// How long opening a tunnel may take.
    pub opening: Duration,
    /// When the agent opens a new tunnel in place of one that works, so that it shows its newest certificate.
    pub renewal: Duration,
    /// When the control plane stops using a tunnel that was not renewed.
    pub lifetime: Duration,
    /// How long the streams of a tunnel that has been replaced may go on.
    pub farewell: Duration,
    /// How often the control plane asks whether the agent may still have its tunnel.
    pub review: Duration,
}

impl Default for Limits {
    /// A watch of search takes one stream per kind and cluster, of which a cluster has up to two hundred. One stream fills a
    /// line of 128 KiB per round trip (2.5 MB/s at 50 ms), and one tunnel holds 32 MiB at most, if no stream is read.
    fn default() -> Self {
        Self {
            streams: 256,
            all_streams: 8192,
            window: 128 * 1024,
            headers: 64 * 1024,
            ping: Duration::from_secs(4),
            pong: Duration::from_secs(4),
            answer: Duration::from_secs(90),
            opening: Duration::from_secs(10),
            renewal: Duration::from_secs(50 * 60),
            lifetime: Duration::from_secs(60 * 60),
            farewell: Duration::from_secs(4 * 60 * 60),
            review: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// Returns the window of the whole connection: as much as all streams together may need, so that streams that are not
    /// read never hold up one that is.
    fn connection_window(&self) -> u32 {
        self.streams.saturating_mul(self.window).min(i32::MAX.unsigned_abs())
    }

    /// Returns how many streams are announced to the other end. More than are served: a stream beyond the limit gets an
    /// answer that says so, and none has to wait until others end.
    fn announced_streams(&self) -> u32 {
        self.streams.saturating_mul(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_streams_together_fit_into_the_window_of_the_connection() {
        let limits = Limits::default();
        assert_eq!(limits.connection_window(), 32 * 1024 * 1024);
        let huge = Limits { streams: u32::MAX, ..limits };
        assert_eq!(huge.connection_window(), 0x7fff_ffff, "no more than HTTP/2 knows");
    }
}
