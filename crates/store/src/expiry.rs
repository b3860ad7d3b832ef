//! When entries cease to exist: the deadlines of all live entries that have one, in order of time.

use std::{collections::BTreeSet, sync::Arc};

use crate::{Entry, Event, Revision};

/// Exactly one deadline per live entry with a time limit, so it cannot grow beyond the entries.
#[derive(Default)]
pub(crate) struct Expiries {
    deadlines: BTreeSet<Deadline>,
}

/// Ordered by time first; the rest makes it unique.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline {
    pub(crate) at_ms: u64,
    pub(crate) collection: Arc<str>,
    pub(crate) name: Box<str>,
    pub(crate) modified: Revision,
}

impl Deadline {
    fn of<H>(collection: &Arc<str>, entry: &Entry<H>) -> Option<Self> {
        Some(Self {
            at_ms: entry.expires_ms?.get(),
            collection: Arc::clone(collection),
            name: entry.name.clone(),
            modified: entry.modified,
        })
    }
}

impl Expiries {
    /// Takes up an entry found on disk.
    pub(crate) fn add<H>(&mut self, collection: &Arc<str>, entry: &Entry<H>) {
        self.deadlines.extend(Deadline::of(collection, entry));
    }

    /// Replaces the deadline of the old version by that of the new one.
    pub(crate) fn follow<H>(&mut self, event: &Event<H>) {
        if let Some(old) = event.previous.as_ref().and_then(|entry| Deadline::of(&event.collection, entry)) {
            self.deadlines.remove(&old);
        }
        if let Some(entry) = &event.current {
            self.add(&event.collection, entry);
        }
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|deadline| deadline.at_ms)
    }

    /// Returns up to `limit` deadlines that have passed. They stay until [`Expiries::follow`] sees the
    /// deletions, so a deletion that fails is tried again.
    pub(crate) fn due(&self, now_ms: u64, limit: usize) -> Vec<Deadline> {
        self.deadlines.iter().take_while(|d| d.at_ms <= now_ms).take(limit).cloned().collect()
    }
}
