//! One collection in memory: what is there now, and how it came about.
//!
//! The live entries are a copy-on-write tree. The history is the list of the latest events, shared by all
//! watchers, each of which only remembers a revision. An exact read of the past starts from the nearest later
//! tree that was kept and takes events back one by one; a tree is kept every [`ROOT_EVERY`] events, so this is
//! at most so many steps.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::Notify;

use crate::{Entry, Event, History, Revision, tree::Tree};

/// Distance between kept trees. A kept tree costs the nodes copied since: at most one leaf of about 600 bytes
/// per event. 512 keeps that below what the events themselves hold, and an exact read below a millisecond.
const ROOT_EVERY: usize = 512;

/// What an event costs besides its value: the event, the entry, the name, the pointers.
const EVENT_OVERHEAD: usize = 256;

pub(crate) struct Shard<H> {
    pub(crate) live: Tree<Entry<H>>,
    /// Sum of the lengths of the live values.
    pub(crate) live_bytes: usize,
    /// The newest change, whether or not it is still in the history.
    pub(crate) last: Revision,
    /// Ascending revisions, all above `floor`, complete between `floor` and `last`. Equal ones were made in one step, as when
    /// etcd ends a lease.
    history: VecDeque<Kept<H>>,
    pub(crate) history_bytes: usize,
    /// The newest event that is no longer in the history.
    floor: Revision,
    /// The live tree as it was at some revisions of the history, ascending.
    roots: VecDeque<(Revision, Tree<Entry<H>>)>,
    since_root: usize,
    pub(crate) changed: Arc<Notify>,
}

struct Kept<H> {
    event: Arc<Event<H>>,
    at_ms: u64,
}

impl<H> Default for Shard<H> {
    fn default() -> Self {
        Self::loaded(Vec::new(), 0)
    }
}

impl<H> Shard<H> {
    /// A collection as found on disk: entries in order of their names, no history.
    pub(crate) fn loaded(entries: Vec<Arc<Entry<H>>>, last: Revision) -> Self {
        let live_bytes = entries.iter().map(|entry| entry.value.len()).sum();
        Self {
            live: Tree::from_sorted(entries),
            live_bytes,
            last,
            history: VecDeque::new(),
            history_bytes: 0,
            floor: last,
            roots: VecDeque::new(),
            since_root: 0,
            changed: Arc::default(),
        }
    }

    /// The newest event that is no longer available.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    pub(crate) fn history_len(&self) -> usize {
        self.history.len()
    }

    /// Makes the event visible.
    pub(crate) fn apply(&mut self, event: Arc<Event<H>>, now_ms: u64) {
        debug_assert!(event.revision >= self.last);
        // Not in the middle of a step: a kept tree is all of its revision.
        if self.since_root >= ROOT_EVERY && event.revision > self.last {
            self.since_root = 0;
            self.roots.push_back((self.last, self.live.clone()));
        }
        self.last = event.revision;
        let replaced = match &event.current {
            Some(entry) => {
                self.live_bytes += entry.value.len();
                self.live.insert(Arc::clone(entry))
            }
            None => self.live.remove(event.name()),
        };
        if let Some(entry) = replaced {
            self.live_bytes -= entry.value.len();
        }
        self.history_bytes += cost(&event);
        self.history.push_back(Kept { event, at_ms: now_ms });
        self.since_root += 1;
    }

    /// Drops events that the limits no longer cover, oldest first, into `garbage`.
    pub(crate) fn trim(&mut self, limits: &History, now_ms: u64, garbage: &mut Vec<Arc<Event<H>>>) {
        let age_ms = u64::try_from(limits.age.as_millis()).unwrap_or(u64::MAX);
        while let Some(oldest) = self.history.front() {
            let too_many = self.history.len() > limits.max_events || self.history_bytes > limits.bytes;
            let superfluous =
                self.history.len() > limits.events && now_ms.saturating_sub(oldest.at_ms) >= age_ms;
            if !too_many && !superfluous {
                break;
            }
            self.drop_oldest(garbage);
        }
    }

    /// Drops all events up to and including the revision.
    pub(crate) fn trim_to(&mut self, revision: Revision, garbage: &mut Vec<Arc<Event<H>>>) {
        while self.history.front().is_some_and(|kept| kept.event.revision <= revision) {
            self.drop_oldest(garbage);
        }
    }

    /// Drops that many events.
    pub(crate) fn trim_oldest(&mut self, count: usize, garbage: &mut Vec<Arc<Event<H>>>) {
        for _ in 0..count {
            self.drop_oldest(garbage);
        }
    }

    fn drop_oldest(&mut self, garbage: &mut Vec<Arc<Event<H>>>) {
        let Some(kept) = self.history.pop_front() else { return };
        self.floor = kept.event.revision;
        self.history_bytes -= cost(&kept.event);
        garbage.push(kept.event);
        // What was made in one step goes in one step.
        while self.history.front().is_some_and(|next| next.event.revision == self.floor) {
            let Some(kept) = self.history.pop_front() else { break };
            self.history_bytes -= cost(&kept.event);
            garbage.push(kept.event);
        }
        while self.roots.front().is_some_and(|(revision, _)| *revision < self.floor) {
            self.roots.pop_front();
        }
    }

    /// Returns up to `limit` events after the revision, which must not be below the floor.
    pub(crate) fn events_after(&self, after: Revision, limit: usize) -> Vec<Arc<Event<H>>> {
        debug_assert!(after >= self.floor);
        let from = self.history.partition_point(|kept| kept.event.revision <= after);
        let mut events: Vec<_> =
            self.history.range(from..).take(limit).map(|kept| Arc::clone(&kept.event)).collect();
        // A reader goes on after a revision: it must have all of it.
        if let Some(last) = events.last().map(|event| event.revision) {
            let rest =
                self.history.range(from + events.len()..).take_while(|kept| kept.event.revision == last);
            events.extend(rest.map(|kept| Arc::clone(&kept.event)));
        }
        events
    }

    /// Returns the revision of the first event after `after`, which must be between the floor and the newest
    /// change.
    pub(crate) fn first_after(&self, after: Revision) -> Revision {
        let at = self.history.partition_point(|kept| kept.event.revision <= after);
        self.history.get(at).map_or(self.last, |kept| kept.event.revision)
    }

    /// Returns the events with exactly this revision.
    pub(crate) fn events_at(&self, revision: Revision) -> impl Iterator<Item = &Arc<Event<H>>> {
        let from = self.history.partition_point(|kept| kept.event.revision < revision);
        self.history.range(from..).map(|kept| &kept.event).take_while(move |event| event.revision == revision)
    }

    /// Returns what is needed to rebuild the collection as of `revision`, which must not be below the
    /// floor: a later tree and the events to take back. Cheap, so that it can run under the lock.
    pub(crate) fn past(&self, revision: Revision) -> Past<H> {
        debug_assert!(revision >= self.floor);
        let at = self.roots.partition_point(|(root, _)| *root < revision);
        let (until, tree) = match self.roots.get(at) {
            Some((root, tree)) => (*root, tree.clone()),
            None => (self.last, self.live.clone()),
        };
        let from = self.history.partition_point(|kept| kept.event.revision <= revision);
        let to = self.history.partition_point(|kept| kept.event.revision <= until);
        let undo = self.history.range(from..to.max(from)).map(|kept| Arc::clone(&kept.event)).collect();
        Past { tree, undo }
    }
}

/// A tree and the events to take back from it.
pub(crate) struct Past<H> {
    tree: Tree<Entry<H>>,
    undo: Vec<Arc<Event<H>>>,
}

impl<H> Past<H> {
    pub(crate) fn rebuild(mut self) -> Tree<Entry<H>> {
        for event in self.undo.iter().rev() {
            match &event.previous {
                Some(entry) => self.tree.insert(Arc::clone(entry)),
                None => self.tree.remove(event.name()),
            };
        }
        self.tree
    }
}

/// Every version is counted once, at the event that brought it.
pub(crate) fn cost<H>(event: &Event<H>) -> usize {
    EVENT_OVERHEAD + event.current.as_ref().map_or(0, |entry| entry.value.len())
}
