//! How a store is set up.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use crate::{etcd::EtcdOptions, faults::Faults};

/// Everything that can be chosen when a store is opened. Start from [`Options::memory`] or [`Options::file`].
#[derive(Debug, Clone)]
pub struct Options {
    pub backend: Backend,
    pub history: History,
    /// Longer values are refused. 3 MiB is what kube-apiserver accepts as a request body.
    pub max_value_bytes: usize,
    /// Buffered writes reach the disk within this time.
    pub flush_after: Duration,
    /// Patient writes wait this long for others to go to the disk with.
    pub gather: Duration,
    /// Expired entries are deleted at most this often, many at once. Bounds how late a deletion can be.
    pub ttl_sweep: Duration,
    /// After a disk error, the first retry happens at the first write after this time; later ones after
    /// twice the time each, up to 30 s.
    pub retry_after: Duration,
    /// Where the time for expiry comes from.
    pub clock: Arc<dyn Clock>,
    /// Lets tests make the disk fail. `None` in production.
    pub faults: Option<Faults>,
}

impl Options {
    /// Nothing is kept after the process ends.
    pub fn memory() -> Self {
        Self {
            backend: Backend::Memory,
            history: History::default(),
            max_value_bytes: 3 << 20,
            flush_after: Duration::from_millis(50),
            gather: Duration::from_millis(20),
            ttl_sweep: Duration::from_secs(1),
            retry_after: Duration::from_secs(1),
            clock: Arc::new(SystemClock),
            faults: None,
        }
    }

    /// Kept in etcd, where other servers see it as well.
    pub fn etcd(etcd: EtcdOptions) -> Self {
        Self { backend: Backend::Etcd(etcd), ..Self::memory() }
    }

    /// Kept in a directory, which is created if need be.
    pub fn file(dir: impl Into<PathBuf>) -> Self {
        Self { backend: Backend::File { dir: dir.into() }, ..Self::memory() }
    }
}

/// Where entries are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    Memory,
    File { dir: PathBuf },
    Etcd(EtcdOptions),
}

impl Backend {
    pub(crate) fn etcd(&self) -> Option<&EtcdOptions> {
        match self {
            Self::Etcd(etcd) => Some(etcd),
            Self::Memory | Self::File { .. } => None,
        }
    }
}

/// How much of the past stays available for watches and exact reads, per collection unless said otherwise.
///
/// An event stays while it is among the newest `events` or younger than `age`, unless one of the hard
/// limits `max_events`, `bytes`, `total_bytes` forces it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Kept regardless of age.
    pub events: usize,
    /// Kept beyond `events`: 75 s, as kube-apiserver's watch cache aims for, so that a client can reconnect.
    pub age: Duration,
    pub max_events: usize,
    /// Sum of the lengths of the values that the events brought.
    pub bytes: usize,
    /// The same over all collections together.
    pub total_bytes: usize,
}

impl Default for History {
    fn default() -> Self {
        Self {
            events: 1_000,
            age: Duration::from_secs(75),
            max_events: 100_000,
            bytes: 6 << 20,
            total_bytes: 12 << 20,
        }
    }
}

/// Tells the time. Expiry is compared with it, so it has to survive restarts: wall-clock time.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> u64;
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
    }
}
