//! The store on etcd: etcd orders and keeps the writes, memory follows its watch.
//!
//! A write is one transaction, conditional on the key's revision; etcd's revisions are the store's. It is acknowledged once memory
//! has followed the watch to it, so that whoever was answered finds it. What other servers write arrives by the same watch.
//! Nothing is ordered here: writes are sent as they come and are under way together.
//!
//! Memory may be behind etcd. [`crate::Store::catch_up`] asks etcd how far it is and waits for that: a read after it sees
//! everything that was acknowledged before, on any server.
//!
//! On start everything is read as of the last compaction, and the watch goes on from there: so the history is there as well, and
//! watches of clients outlive the restart of a server. If the watch has fallen behind a compaction, everything is read anew and
//! watchers are told that they have lost their place.

mod client;
mod compaction;
mod follower;
mod keys;
mod leases;
mod load;
mod protocol;
mod restore;
mod telemetry;

use std::{path::PathBuf, time::Duration};

pub use client::EtcdError;
pub(crate) use follower::start;
pub(crate) use restore::restore;
pub(crate) use telemetry::Telemetry;
pub use telemetry::{ETCD_BUCKETS, EtcdEndpoint, EtcdReport, EtcdRequests};

/// Where etcd is and how it is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// `https://HOST:PORT`; the first that answers is used until it fails.
    pub endpoints: Vec<String>,
    /// What all keys begin with. Stores with different prefixes do not see each other.
    pub prefix: String,
    /// Authorities of etcd's certificates, as PEM; the system's if none is given.
    pub ca: Option<PathBuf>,
    /// Client certificate, as PEM.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// A request that takes longer has failed.
    pub timeout: Duration,
    /// How often the past is given up. What is older than this is no longer needed; `None` leaves it to others.
    pub compact_every: Option<Duration>,
}

impl EtcdOptions {
    pub fn new(endpoints: impl IntoIterator<Item = String>) -> Self {
        Self {
            endpoints: endpoints.into_iter().collect(),
            prefix: "/karmada".to_owned(),
            ca: None,
            certificate: None,
            key: None,
            timeout: Duration::from_secs(10),
            compact_every: Some(Duration::from_secs(300)),
        }
    }
}
