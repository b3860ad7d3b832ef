//! Everything that readers see: all collections, the visible revision, what of the past is available.
//!
//! Lives behind one read-write lock. Readers hold it for a lookup or a pointer copy, the sequencer while it
//! applies a batch that is already on disk; nobody holds it during IO or while dropping old versions. One lock
//! instead of one per collection makes a batch visible at once everywhere: a snapshot never shows half of it,
//! and "the revision of the store" has one meaning.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::sync::Notify;

use crate::{
    AtError, Entry, Event, History, Revision, Snapshot,
    disk::Image,
    format::{Gap, Meta},
    shard::{Past, Shard},
    tree::Tree,
};

pub(crate) struct State<H> {
    pub(crate) revision: Revision,
    /// Explicitly compacted up to here.
    pub(crate) compacted: Revision,
    /// Revisions that were skipped when the store was opened, see [`Gap`].
    pub(crate) gap: Option<Gap>,
    pub(crate) shards: HashMap<Arc<str>, Shard<H>>,
    /// Which collection has the event of a revision, ascending, for watchers of everything.
    order: VecDeque<(Revision, Arc<str>)>,
    /// The newest event of any collection that is no longer available.
    all_floor: Revision,
    pub(crate) history_bytes: usize,
    /// Set when no event will ever follow.
    pub(crate) closed: bool,
}

/// What a batch leaves behind: watchers to wake and versions to free, both outside the lock.
pub(crate) struct Applied<H> {
    pub(crate) changed: Vec<Arc<Notify>>,
    /// Only held so that it is dropped by the caller.
    pub(crate) _garbage: Vec<Arc<Event<H>>>,
}

impl<H> State<H> {
    pub(crate) fn new(
        revision: Revision,
        compacted: Revision,
        gap: Option<Gap>,
        shards: HashMap<Arc<str>, Shard<H>>,
    ) -> Self {
        Self {
            revision,
            compacted,
            gap,
            shards,
            order: VecDeque::new(),
            all_floor: revision,
            history_bytes: 0,
            closed: false,
        }
    }

    pub(crate) fn get(&self, collection: &str, name: &str) -> Option<&Arc<Entry<H>>> {
        self.shards.get(collection)?.live.get(name)
    }

    /// Returns the name under which the collection is known, so that events share it.
    pub(crate) fn interned(&self, collection: Arc<str>) -> Arc<str> {
        self.shards.get_key_value(&collection).map_or(collection, |(known, _)| Arc::clone(known))
    }

    pub(crate) fn snapshot(&self, collection: &str) -> Snapshot<H> {
        let tree = self.shards.get(collection).map_or_else(Tree::default, |shard| shard.live.clone());
        Snapshot::new(self.revision, tree)
    }

    /// Makes events visible, in order, and the store be at `revision`.
    pub(crate) fn apply(
        &mut self,
        events: Vec<Arc<Event<H>>>,
        revision: Revision,
        now_ms: u64,
        limits: &History,
    ) -> Applied<H> {
        let mut garbage = Vec::new();
        let mut changed: Vec<Arc<Notify>> = Vec::new();
        for event in events {
            let collection = Arc::clone(&event.collection);
            let place = (event.revision, Arc::clone(&collection));
            if self.order.iter().rev().take_while(|(at, _)| *at == place.0).all(|other| *other != place) {
                self.order.push_back(place);
            }
            let shard = self.shards.entry(collection).or_default();
            let before = shard.history_bytes;
            shard.apply(event, now_ms);
            shard.trim(limits, now_ms, &mut garbage);
            self.history_bytes = self.history_bytes - before + shard.history_bytes;
            if !changed.iter().any(|other| Arc::ptr_eq(other, &shard.changed)) {
                changed.push(Arc::clone(&shard.changed));
            }
            self.all_floor = self.all_floor.max(shard.floor());
        }
        self.revision = revision;
        self.drop_order();
        while self.history_bytes > limits.total_bytes && self.shed(&mut garbage) {}
        Applied { changed, _garbage: garbage }
    }

    /// Shows other contents, of which only the present is known. Returns the watchers to wake.
    pub(crate) fn replace(
        &mut self,
        revision: Revision,
        mut collections: HashMap<Arc<str>, Vec<Arc<Entry<H>>>>,
    ) -> Vec<Arc<Notify>> {
        let mut changed = Vec::with_capacity(self.shards.len());
        for (name, shard) in &mut self.shards {
            let entries = collections.remove(name).unwrap_or_default();
            let fresh = Shard::loaded(entries, revision);
            let watchers = std::mem::replace(shard, fresh).changed;
            shard.changed = Arc::clone(&watchers);
            changed.push(watchers);
        }
        for (name, entries) in collections {
            self.shards.insert(name, Shard::loaded(entries, revision));
        }
        self.revision = revision;
        self.compacted = revision;
        self.order.clear();
        self.all_floor = revision;
        self.history_bytes = 0;
        changed
    }

    /// Makes the collection with the longest history give up its oldest quarter: the busy pay, not the quiet,
    /// and the search for it is worth its while. Returns whether there was anything left to give up.
    fn shed(&mut self, garbage: &mut Vec<Arc<Event<H>>>) -> bool {
        let Some(shard) = self.shards.values_mut().max_by_key(|shard| shard.history_bytes) else {
            return false;
        };
        let before = shard.history_bytes;
        shard.trim_oldest(shard.history_len().div_ceil(4), garbage);
        self.history_bytes -= before - shard.history_bytes;
        self.all_floor = self.all_floor.max(shard.floor());
        let shed = shard.history_bytes < before;
        self.drop_order();
        shed
    }

    fn drop_order(&mut self) {
        while self.order.front().is_some_and(|(revision, _)| *revision <= self.all_floor) {
            self.order.pop_front();
        }
    }

    /// Forgets the past up to the revision. Returns what can be freed.
    pub(crate) fn compact(&mut self, revision: Revision) -> Vec<Arc<Event<H>>> {
        let revision = revision.min(self.revision);
        let mut garbage = Vec::new();
        if revision <= self.compacted {
            return garbage;
        }
        self.compacted = revision;
        for shard in self.shards.values_mut() {
            let before = shard.history_bytes;
            shard.trim_to(revision, &mut garbage);
            self.history_bytes -= before - shard.history_bytes;
        }
        self.all_floor = self.all_floor.max(revision);
        self.drop_order();
        garbage
    }

    /// Checks that everything after the revision is still known for the collection, and that this store
    /// has ever been at that revision.
    pub(crate) fn available(&self, collection: &str, revision: Revision) -> Result<(), Revision> {
        let floor = self.shards.get(collection).map_or(0, Shard::floor);
        self.available_above(floor, revision)
    }

    /// The same for all collections together.
    pub(crate) fn all_available(&self, revision: Revision) -> Result<(), Revision> {
        self.available_above(self.all_floor, revision)
    }

    fn available_above(&self, floor: Revision, revision: Revision) -> Result<(), Revision> {
        let oldest = floor.max(self.compacted);
        if revision < oldest {
            return Err(self.gap.map_or(oldest, |gap| if gap.contains(oldest) { gap.end } else { oldest }));
        }
        match self.gap {
            Some(gap) if gap.contains(revision) => Err(gap.end),
            _ => Ok(()),
        }
    }

    /// Returns what is needed to show the collection as of a revision.
    pub(crate) fn past(&self, collection: &str, revision: Revision) -> Result<Option<Past<H>>, AtError> {
        if revision > self.revision {
            return Err(AtError::Future { current: self.revision });
        }
        self.available(collection, revision).map_err(|oldest| AtError::Compacted { oldest })?;
        Ok(self.shards.get(collection).map(|shard| shard.past(revision)))
    }

    /// Freezes everything visible.
    pub(crate) fn image(&self, meta: Meta) -> Image<H> {
        // Where nothing was ever written, there is only a watcher.
        let written = self.shards.iter().filter(|(_, shard)| shard.last > 0);
        let collections = written.map(|(name, shard)| (Arc::clone(name), shard.last, shard.live.clone()));
        Image { collections: collections.collect(), meta }
    }

    /// The newest event of any collection that is gone.
    pub(crate) fn all_floor(&self) -> Revision {
        self.all_floor
    }

    /// Returns the revision of the first event of any collection after `after`.
    pub(crate) fn all_first_after(&self, after: Revision) -> Option<Revision> {
        let at = self.order.partition_point(|(revision, _)| *revision <= after);
        self.order.get(at).map(|(revision, _)| *revision)
    }

    /// Returns up to `limit` events of all collections after the revision, which must not be below the
    /// floor.
    pub(crate) fn all_events_after(&self, after: Revision, limit: usize) -> Vec<Arc<Event<H>>> {
        let from = self.order.partition_point(|(revision, _)| *revision <= after);
        let mut events: Vec<Arc<Event<H>>> = Vec::new();
        for (revision, collection) in self.order.range(from..) {
            // A reader goes on after a revision: it must have all of it.
            if events.len() >= limit && events.last().is_some_and(|last| last.revision < *revision) {
                break;
            }
            if let Some(shard) = self.shards.get(collection) {
                events.extend(shard.events_at(*revision).cloned());
            }
        }
        events
    }
}
