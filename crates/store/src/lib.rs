//! A revisioned key-value store with watch, in memory over a durable backend.
//!
//! Knows collections, names and bytes; not Kubernetes. Every write gets the next revision of the whole store.
//! Reads come from memory only: a lookup, or a frozen snapshot of a collection, now or at a recent revision.
//! Watches follow a collection or everything from any recent revision: ordered, complete, nothing twice. Writes
//! are conditional, go through one sequencer and are on disk before they are acknowledged or visible, unless
//! the caller asks for less. On etcd they are ordered and kept there instead, and memory follows.
//!
//! ```
//! use store::{Expect, Options, Store, Write};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # runtime.block_on(async {
//! let store = Store::<()>::open(Options::memory()).unwrap();
//! let mut watch = store.watch("pods", store.revision()).unwrap();
//!
//! let write = Write::put("pods", "default/web", Expect::Absent, "{}".into(), ());
//! let committed = store.commit(write).await.unwrap();
//!
//! assert_eq!(store.get("pods", "default/web").unwrap().modified, committed.revision);
//! assert_eq!(watch.next().await.unwrap()[0].name(), "default/web");
//! store.close().await;
//! # });
//! ```
//!
//! Where to look: `store` (the handle), `sequencer` (the write path), `state` and `shard` (memory), `tree` (the
//! map under it), `watch`, `disk` and `format` (the file), `etcd` (in place of sequencer and file), `backup`. Why it is built
//! so: `docs/design/store.md`.

mod backup;
mod disk;
mod error;
mod etcd;
mod expiry;
mod faults;
mod format;
mod load;
mod model;
mod options;
mod sequencer;
mod shard;
mod snapshot;
mod state;
mod store;
mod tree;
mod watch;

pub use backup::{Backup, restore, restore_into_etcd};
pub use disk::{Lock, lock};
pub use error::{AtError, CommitError, Compacted, Lost, OpenError};
pub use etcd::{ETCD_BUCKETS, EtcdEndpoint, EtcdError, EtcdOptions, EtcdReport, EtcdRequests};
pub use faults::Faults;
pub use format::RESTORE_JUMP;
pub use model::{
    Batch, Change, Committed, Durability, Entry, Event, Expect, FIRST_REVISION, Head, Revision, Unchanged,
    Write,
};
pub use options::{Backend, Clock, History, Options, SystemClock};
pub use snapshot::{Range, Snapshot};
pub use store::{Stats, Store};
pub use watch::{Watch, WatchAll};
