//! The words of the store: entries, writes, events.
//!
//! Plain data without behaviour of its own; every other file of the crate speaks in these terms.

use std::{fmt, num::NonZeroU64, sync::Arc, time::Duration};

use bytes::Bytes;

/// A point in the history of the whole store. Strictly increasing, never used twice.
pub type Revision = u64;

/// What a new store shows before its first write, so that the first write gets 2 and no list is ever "at 0".
pub const FIRST_REVISION: Revision = 1;

/// What the caller derives from a value once and wants kept beside it (labels, uid, owners …).
///
/// On commit the caller hands the head in with the value, since it has just looked at it. When a store is
/// opened, every value passes through [`Head::parse`] once.
pub trait Head: Send + Sync + Sized + 'static {
    fn parse(collection: &str, name: &str, value: &[u8]) -> Self;
}

impl Head for () {
    fn parse(_: &str, _: &str, _: &[u8]) -> Self {}
}

/// One version of one value. Immutable once visible, hence shared as `Arc<Entry<H>>`.
pub struct Entry<H> {
    pub name: Box<str>,
    /// The revision of the write that found the name absent.
    pub created: Revision,
    /// The revision of the write that made this version.
    pub modified: Revision,
    /// When the entry ceases to exist, in milliseconds since the Unix epoch.
    pub expires_ms: Option<NonZeroU64>,
    pub value: Bytes,
    pub head: H,
}

impl<H> fmt::Debug for Entry<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may hold secrets and are long: their length is enough to recognise a version.
        f.debug_struct("Entry")
            .field("name", &self.name)
            .field("created", &self.created)
            .field("modified", &self.modified)
            .field("bytes", &self.value.len())
            .finish_non_exhaustive()
    }
}

/// What a write demands of the present state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The name must not exist.
    Absent,
    /// The name must exist with exactly this `modified` revision.
    Revision(Revision),
    /// Unconditional.
    Any,
}

/// When a write may be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// After it is on disk. Nobody sees it earlier.
    Durable,
    /// The same, but it lets others go first: it reaches the disk together with the next durable write, or by itself if
    /// there is none for a while ([`crate::Options::gather`]).
    Patient,
    /// As soon as it is in memory; on disk a moment later ([`crate::Options::flush_after`]). A crash may lose
    /// it, but never gives its revision to another write.
    Buffered,
}

/// What becomes of a name.
pub enum Change<H> {
    Put { value: Bytes, head: H },
    Delete,
}

/// One conditional change of one name.
pub struct Write<H> {
    pub collection: Arc<str>,
    pub name: Box<str>,
    pub expect: Expect,
    pub change: Change<H>,
    pub durability: Durability,
    /// The entry is deleted this long after the write. Every put states it anew: one without a ttl makes
    /// the entry permanent. Ignored for deletions.
    pub ttl: Option<Duration>,
}

impl<H> Write<H> {
    /// A durable put without a time limit.
    pub fn put(
        collection: impl Into<Arc<str>>,
        name: impl Into<Box<str>>,
        expect: Expect,
        value: Bytes,
        head: H,
    ) -> Self {
        Self {
            collection: collection.into(),
            name: name.into(),
            expect,
            change: Change::Put { value, head },
            durability: Durability::Durable,
            ttl: None,
        }
    }

    /// A durable deletion.
    pub fn delete(collection: impl Into<Arc<str>>, name: impl Into<Box<str>>, expect: Expect) -> Self {
        Self {
            collection: collection.into(),
            name: name.into(),
            expect,
            change: Change::Delete,
            durability: Durability::Durable,
            ttl: None,
        }
    }

    /// The same write, acknowledged before it is on disk.
    #[must_use]
    pub fn buffered(self) -> Self {
        Self { durability: Durability::Buffered, ..self }
    }

    /// The same write, which does not hold up others.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { durability: Durability::Patient, ..self }
    }

    /// The same write with a time limit.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }
}

impl<H> fmt::Debug for Write<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = match &self.change {
            Change::Put { value, .. } => format!("put {} bytes", value.len()),
            Change::Delete => "delete".to_owned(),
        };
        f.debug_struct("Write")
            .field("collection", &self.collection)
            .field("name", &self.name)
            .field("expect", &self.expect)
            .field("change", &change)
            .field("durability", &self.durability)
            .field("ttl", &self.ttl)
            .finish()
    }
}

/// What must not have changed for a write to happen; it is compared, not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unchanged {
    pub collection: Arc<str>,
    pub name: Box<str>,
    /// Its `modified` revision.
    pub revision: Revision,
}

/// The outcome of a successful write.
pub struct Committed<H> {
    pub revision: Revision,
    /// The new version; `None` after a deletion.
    pub entry: Option<Arc<Entry<H>>>,
    /// The version that was replaced or deleted.
    pub previous: Option<Arc<Entry<H>>>,
}

impl<H> fmt::Debug for Committed<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Committed")
            .field("revision", &self.revision)
            .field("entry", &self.entry)
            .field("previous", &self.previous)
            .finish()
    }
}

/// One change as watchers see it. Shared by all of them as `Arc<Event<H>>`.
pub struct Event<H> {
    pub revision: Revision,
    pub collection: Arc<str>,
    /// `None`: deleted.
    pub current: Option<Arc<Entry<H>>>,
    /// `None`: created.
    pub previous: Option<Arc<Entry<H>>>,
}

impl<H> Event<H> {
    /// The name that changed.
    pub fn name(&self) -> &str {
        let entry = self.current.as_ref().or(self.previous.as_ref());
        &entry.expect("an event has a version after it, before it, or both").name
    }

    pub fn is_delete(&self) -> bool {
        self.current.is_none()
    }

    pub fn is_create(&self) -> bool {
        self.previous.is_none()
    }
}

impl<H> fmt::Debug for Event<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("revision", &self.revision)
            .field("collection", &self.collection)
            .field("current", &self.current)
            .field("previous", &self.previous)
            .finish()
    }
}

/// Events in order of their revisions, never empty.
pub type Batch<H> = Vec<Arc<Event<H>>>;
