//! Following changes.
//!
//! A watcher is a cursor into the shared history, nothing more: no queue, no copy of events. It cannot miss,
//! repeat or reorder anything, since it always continues after the last revision it has returned. Being slow
//! costs nothing until the history's limits catch up with the cursor; then the watch is [`Lost`].

use std::sync::{Arc, atomic::Ordering};

use tokio::sync::Notify;

use crate::{Batch, Lost, Revision, store::Shared};

/// Events returned at once. Keeps the lock short for a watcher that is far behind.
const BATCH: usize = 1_000;

/// The changes of one collection, in order. Made by [`crate::Store::watch`].
pub struct Watch<H> {
    shared: Arc<Shared<H>>,
    collection: Arc<str>,
    changed: Arc<Notify>,
    cursor: Revision,
}

impl<H> Watch<H> {
    pub(crate) fn new(
        shared: Arc<Shared<H>>,
        collection: Arc<str>,
        changed: Arc<Notify>,
        after: Revision,
    ) -> Self {
        shared.counters.watchers.fetch_add(1, Ordering::Relaxed);
        Self { shared, collection, changed, cursor: after }
    }

    /// Waits for the next events and returns them, oldest first.
    ///
    /// Dropping the future loses nothing. After an error, every further call gives an error too.
    pub async fn next(&mut self) -> Result<Batch<H>, Lost> {
        let changed = Arc::clone(&self.changed);
        until(&changed, || self.try_next()).await
    }

    /// Returns the next events if there are any.
    pub fn try_next(&mut self) -> Result<Option<Batch<H>>, Lost> {
        let state = self.shared.state.read();
        let shard = state.shards.get(&self.collection);
        if let Some(shard) = shard {
            if shard.floor() > self.cursor {
                return Err(Lost::Behind { oldest: shard.floor().max(state.compacted) });
            }
            if shard.last > self.cursor {
                let events = shard.events_after(self.cursor, BATCH);
                if let Some(newest) = events.last() {
                    self.cursor = newest.revision;
                    return Ok(Some(events));
                }
            }
        }
        if state.closed { Err(Lost::Closed) } else { Ok(None) }
    }

    /// Returns a revision up to which everything in this collection has been returned by [`Watch::next`].
    ///
    /// It never goes back and moves on while the collection is quiet, which makes it the revision for a
    /// bookmark.
    pub fn progress(&self) -> Revision {
        let state = self.shared.state.read();
        match state.shards.get(&self.collection) {
            // Lost: `next` will say so.
            Some(shard) if shard.floor() > self.cursor => self.cursor,
            // Right up to the event that waits, so that progress never goes back: the event may be newer than
            // a mark that was given while the collection was quiet.
            Some(shard) if shard.last > self.cursor => shard.first_after(self.cursor) - 1,
            _ => self.cursor.max(state.revision),
        }
    }

    pub fn collection(&self) -> &Arc<str> {
        &self.collection
    }
}

impl<H> Drop for Watch<H> {
    fn drop(&mut self) {
        self.shared.counters.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The changes of all collections, in order. Made by [`crate::Store::watch_all`].
pub struct WatchAll<H> {
    shared: Arc<Shared<H>>,
    cursor: Revision,
}

impl<H> WatchAll<H> {
    pub(crate) fn new(shared: Arc<Shared<H>>, after: Revision) -> Self {
        shared.counters.watchers.fetch_add(1, Ordering::Relaxed);
        Self { shared, cursor: after }
    }

    /// Waits for the next events and returns them, oldest first. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Batch<H>, Lost> {
        let shared = Arc::clone(&self.shared);
        until(&shared.visible, || self.try_next()).await
    }

    /// Returns the next events if there are any.
    pub fn try_next(&mut self) -> Result<Option<Batch<H>>, Lost> {
        let state = self.shared.state.read();
        // The floor of everything also rises by compaction alone; a cursor that has seen all there is
        // has lost nothing by that.
        if state.all_floor() > self.cursor {
            if state.shards.values().any(|shard| shard.floor() > self.cursor) {
                return Err(Lost::Behind { oldest: state.all_floor() });
            }
            self.cursor = state.all_floor();
        }
        let events = state.all_events_after(self.cursor, BATCH);
        match events.last() {
            Some(newest) => {
                self.cursor = newest.revision;
                Ok(Some(events))
            }
            None if state.closed => Err(Lost::Closed),
            None => Ok(None),
        }
    }

    /// Returns a revision up to which everything has been returned by [`WatchAll::next`].
    pub fn progress(&self) -> Revision {
        let state = self.shared.state.read();
        if state.all_floor() > self.cursor && state.shards.values().any(|shard| shard.floor() > self.cursor) {
            return self.cursor;
        }
        match state.all_first_after(self.cursor) {
            Some(waiting) => waiting - 1,
            None => self.cursor.max(state.revision),
        }
    }
}

impl<H> Drop for WatchAll<H> {
    fn drop(&mut self) {
        self.shared.counters.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Calls `poll` now and after each notification, until it has something.
///
/// The notification is subscribed to before looking, so a change in between is not missed.
pub(crate) async fn until<T, E>(
    notify: &Notify,
    mut poll: impl FnMut() -> Result<Option<T>, E>,
) -> Result<T, E> {
    loop {
        let notified = notify.notified();
        if let Some(found) = poll()? {
            return Ok(found);
        }
        notified.await;
    }
}
