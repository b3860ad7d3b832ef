//! What can go wrong, by operation.

use std::{fmt, io, path::PathBuf, sync::Arc};

use crate::{Entry, Revision, etcd::EtcdError};

/// Why a store could not be opened, backed up or restored.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use the data directory {}", dir.display())]
    Directory {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the data directory {} is in use by another process", dir.display())]
    Locked { dir: PathBuf },
    #[error("{} has format {found}, this program reads up to {supported}; use a newer program", path.display())]
    NewerFormat { path: PathBuf, found: u64, supported: u64 },
    #[error("{} is not a store: {what}", path.display())]
    Foreign { path: PathBuf, what: String },
    #[error("cannot read or write {}", path.display())]
    Database {
        path: PathBuf,
        #[source]
        source: redb::Error,
    },
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error("{} already exists", path.display())]
    Exists { path: PathBuf },
    #[error("cannot start the thread {name}")]
    Thread {
        name: &'static str,
        #[source]
        source: io::Error,
    },
}

/// Why a write was not made.
pub enum CommitError<H> {
    /// The expectation did not hold; `current` is the version that is there now, `None` if there is none.
    Conflict { current: Option<Arc<Entry<H>>> },
    /// The expectation of a write that was to happen together with this one did not hold, or what it rests on has changed;
    /// nothing was written.
    Overtaken { collection: Arc<str>, name: Box<str> },
    /// A deletion found nothing and had not expected a certain revision.
    NotFound,
    /// The disk refuses writes; reads and watches go on. The store tries again by itself, see
    /// `docs/design/store.md`. An etcd may have made the very write by which it noticed that it is full.
    ReadOnly { reason: Arc<str> },
    /// Whoever keeps the writes did not answer: this one may have been made or not.
    Unanswered { reason: Arc<str> },
    /// The value is longer than [`crate::Options::max_value_bytes`].
    TooLarge { size: usize, limit: usize },
    /// The name or the collection is empty or longer than the store allows.
    InvalidKey { reason: &'static str },
    /// The store has been closed.
    Closed,
    /// The store's thread ended without having been told to; nothing can be written until the process is started anew.
    Dead { reason: Arc<str> },
}

impl<H> fmt::Display for CommitError<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { current: Some(entry) } => {
                write!(f, "the entry is at revision {}, another one was expected", entry.modified)
            }
            Self::Conflict { current: None } => f.write_str("the entry does not exist, but was expected to"),
            Self::Overtaken { collection, name } => {
                write!(f, "{name} of {collection}, which belongs to it, has changed")
            }
            Self::NotFound => f.write_str("the entry to delete does not exist"),
            Self::ReadOnly { reason } => write!(f, "the store is read-only: {reason}"),
            Self::Unanswered { reason } => {
                write!(f, "it is not known whether the write was made: {reason}")
            }
            Self::TooLarge { size, limit } => {
                write!(f, "the value has {size} bytes, more than the limit of {limit}")
            }
            Self::InvalidKey { reason } => f.write_str(reason),
            Self::Closed => f.write_str("the store is closed"),
            Self::Dead { reason } => f.write_str(reason),
        }
    }
}

impl<H> fmt::Debug for CommitError<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { current } => f.debug_struct("Conflict").field("current", current).finish(),
            other => write!(f, "{other}"),
        }
    }
}

impl<H> std::error::Error for CommitError<H> {}

/// Why a past state cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AtError {
    #[error("the requested revision has been compacted, the oldest available one is {oldest}")]
    Compacted { oldest: Revision },
    #[error("the requested revision lies ahead, the store is at {current}")]
    Future { current: Revision },
}

/// The events after the requested revision are no longer all there. Read a snapshot and watch from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("events have been compacted, watch from revision {oldest} or later")]
pub struct Compacted {
    pub oldest: Revision,
}

/// Why a running watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The watcher was so slow that its next events left the bounded history.
    #[error("the watcher fell behind the history, watch from revision {oldest} or later")]
    Behind { oldest: Revision },
    #[error("the store is closed")]
    Closed,
}
