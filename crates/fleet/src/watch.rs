//! A reader of the events of a kind, in all places.
//!
//! Nothing is queued for a reader: it is a position in the cache's log, and the known version of each place. It holds no objects
//! either: initial objects, events and the objects of removed places are all read in small pieces, when their turn comes. So an
//! idle reader costs nothing, and the sender to the client decides when the next piece is read.
//!
//! Guarantees: the events of a place are sent in their order. Each is sent once, unless a reader stopped within a group. No event
//! is left out between the version from which a reader starts and the present. A client can resume from the version of each
//! event, unless a place is being sent as a whole, because it was added or removed: then the version says so, and a client that
//! stops in the middle must list again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::cache::{Cache, Event, Found, Place, Shard, What};
use crate::entry::Entry;
use crate::version::Versions;

/// How many events are sent at once.
const BATCH: usize = 256;
/// How many bytes of objects are sent at once. The last one may exceed this, whatever its size is.
pub const PIECE: usize = 64 * 1024;
/// How long a reader that is ahead of the cache waits for the cache to catch up.
const AHEAD: Duration = Duration::from_secs(3);

/// Where a reader begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With all existing objects.
    Everything,
    /// With the events after a version. All objects of places that it does not name come first.
    After(Versions),
    /// With the events from now on.
    Now,
}

/// The reader must list again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("too old resource version: what happened in {0} since then is not known any more")]
    Behind(Place),
    #[error("too old resource version: the watch has fallen behind")]
    Slow,
    #[error("the objects of {0} are not kept any more")]
    Gone(Place),
    #[error("resource version {asked} of {place} is ahead of what is known of it, which is {known}")]
    Ahead { place: Place, asked: u64, known: u64 },
    #[error("the resource versions of {0} have gone back")]
    WentBack(Place),
}

/// An event for a reader.
#[derive(Debug, Clone)]
pub struct Told {
    pub place: Place,
    pub old: Option<Arc<Entry>>,
    pub new: Option<Arc<Entry>>,
}

/// The reader.
#[derive(Debug)]
pub struct Watch {
    cache: Arc<Cache>,
    next: u64,
    /// The number of the next event when this reader started.
    began: u64,
    end: watch::Receiver<u64>,
    versions: Versions,
    /// The version of each place that the reader already knew: events up to that version are not sent.
    skip: HashMap<Place, Skip>,
    /// The places whose objects are sent one by one, and the position in each; a place stays here until its version is known.
    begun: HashMap<Place, Pieces>,
    /// The unfinished ones of these places.
    first: VecDeque<Place>,
    /// The progress of the removal of a place, if that is the next event.
    going: Option<Going>,
}

/// The version of a place that a reader already knew.
#[derive(Debug)]
struct Skip {
    at: u64,
    /// The number of the event with which the place was added: earlier events belong to a place that was removed, or to versions
    /// that were undone, whatever their numbers are.
    born: u64,
}

/// A removed place, whose objects are sent as deleted in pieces.
#[derive(Debug, Default)]
struct Going {
    /// How many of its objects have been checked.
    done: usize,
    /// The part of the place that had been sent, if it was not everything.
    begun: Option<Pieces>,
}

/// Counts the events and bytes of one piece.
#[derive(Default)]
struct Portion {
    events: usize,
    bytes: usize,
}

impl Portion {
    fn is_full(&self) -> bool {
        self.events >= BATCH || self.bytes >= PIECE
    }

    fn add(&mut self, entry: Option<&Arc<Entry>>) {
        self.events = self.events.saturating_add(1);
        self.bytes = self.bytes.saturating_add(entry.map_or(0, |entry| entry.size()));
    }
}

/// The objects of a place, read in pieces while the place keeps changing.
#[derive(Debug, Default)]
struct Pieces {
    /// Which addition of the place this belongs to: it may have been removed and added again.
    born: u64,
    /// The last key of each piece that was read, and the number of the next event at that moment: the piece contains the earlier
    /// events.
    read: BTreeMap<Box<str>, u64>,
    /// Set after the last piece: the number of the next event and the known version of the place at that moment.
    through: Option<(u64, u64)>,
}

impl Pieces {
    /// Returns whether the object of an event was read after the event.
    fn contains(&self, number: u64, key: &str) -> bool {
        let piece = self.read.range::<str, _>((Bound::Included(key), Bound::Unbounded)).next();
        match (piece, self.through) {
            (Some((_, read)), _) => number < *read,
            (None, Some((read, _))) => number < read,
            // It has not been read yet.
            (None, None) => true,
        }
    }
}

impl Watch {
    /// Starts to read.
    pub async fn begin(cache: &Arc<Cache>, start: Start) -> Result<Self, Lost> {
        if let Start::After(versions) = &start {
            catch_up(cache, versions).await?;
        }
        let end = cache.end.subscribe();
        let state = cache.state.read();
        let mut watch = Self {
            cache: cache.clone(),
            next: state.end(),
            began: state.end(),
            end,
            versions: Versions::default(),
            skip: HashMap::new(),
            begun: HashMap::new(),
            first: VecDeque::new(),
            going: None,
        };
        match start {
            Start::Now => watch.versions = state.versions(),
            Start::Everything => {
                for (place, shard) in &state.shards {
                    watch.replay(place, shard);
                }
            }
            Start::After(versions) => {
                watch.next = state.first;
                for (place, at) in versions.iter() {
                    let shard = state.shards.get(place).ok_or_else(|| Lost::Gone(place.clone()))?;
                    if at < shard.floor || at == Versions::IN_PART {
                        return Err(Lost::Behind(place.clone()));
                    }
                    watch.skip.insert(place.clone(), Skip { at, born: shard.born });
                }
                for (place, shard) in &state.shards {
                    if versions.get(place).is_none() {
                        watch.replay(place, shard);
                    }
                }
                watch.versions = versions;
            }
        }
        drop(state);
        Ok(watch)
    }

    /// Sends the objects of a place from the beginning, if it has any yet.
    fn replay(&mut self, place: &Place, shard: &Shard) {
        if shard.at.is_some() {
            self.replay_from(place, shard.born);
        }
    }

    fn replay_from(&mut self, place: &Place, born: u64) {
        self.skip.remove(place);
        self.begun.insert(place.clone(), Pieces { born, ..Pieces::default() });
        self.first.push_back(place.clone());
    }

    /// Returns the next piece of the initial objects, or nothing if there are no more.
    fn piece(&mut self) -> Vec<(Found, bool)> {
        let cache = self.cache.clone();
        let state = cache.state.read();
        while let Some(place) = self.first.front() {
            let pieces = self.begun.get_mut(place);
            let shard = state.shards.get(place);
            let Some((pieces, shard)) = pieces.zip(shard).filter(|(pieces, shard)| pieces.born == shard.born)
            else {
                // It was removed again; the log has that event, too.
                self.first.pop_front();
                continue;
            };
            let after = pieces.read.last_key_value().map(|(key, _)| key.clone());
            let mut walk = shard.index.walk("", after.as_deref()).peekable();
            let mut piece: Vec<(Found, bool)> = Vec::new();
            let mut portion = Portion::default();
            while !portion.is_full()
                && let Some(entry) = walk.next()
            {
                portion.add(Some(entry));
                piece.push((shard.found(place, entry), walk.peek().is_none()));
            }
            if walk.peek().is_none() {
                pieces.through = Some((state.end(), shard.at.unwrap_or(0)));
                self.first.pop_front();
            } else if let Some((last, _)) = piece.last() {
                // Objects that were read at the same moment are one piece, even if they were read in several.
                if pieces.read.last_key_value().is_some_and(|(_, read)| *read == state.end()) {
                    pieces.read.pop_last();
                }
                pieces.read.insert(last.entry.key().into(), state.end());
            }
            if !piece.is_empty() {
                return piece;
            }
        }
        Vec::new()
    }

    /// Sets the known version of those places whose objects and events have been sent up to the same moment.
    fn settle(&mut self) {
        let (next, versions) = (self.next, &mut self.versions);
        self.begun.retain(|place, pieces| match pieces.through {
            Some((number, at)) if next >= number => {
                versions.advance(place, at);
                false
            }
            _ => true,
        });
    }

    /// Returns the known versions after everything sent so far.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Returns whether all initial objects have been sent.
    pub fn has_begun(&self) -> bool {
        self.first.is_empty() && self.begun.is_empty()
    }

    /// Returns the known versions if no event is waiting to be sent; places also advance without events.
    pub fn progress(&mut self) -> &Versions {
        let state = self.cache.state.read();
        if self.first.is_empty() && self.next == state.end() {
            for (place, at) in state.versions().iter() {
                // A place whose addition has not been sent yet is not known.
                if self.versions.get(place).is_some() {
                    self.versions.advance(place, at);
                }
            }
        }
        &self.versions
    }

    /// Returns whether a reader already knew an event, or does not need it, since its place was removed later.
    fn is_known(&self, event: &Event, number: u64) -> bool {
        let known = |skip: &Skip| number < skip.born || event.at <= skip.at;
        number < self.began && self.skip.get(&event.place).is_none_or(known)
    }

    /// Waits for the next events. `tell` gets each event with the version after it.
    ///
    /// Safe to drop while it waits.
    pub async fn next(&mut self, mut tell: impl FnMut(Told, &Versions)) -> Result<(), Lost> {
        loop {
            self.ready().await;
            if self.tell_ready(&mut tell)? {
                return Ok(());
            }
        }
    }

    /// Waits until there is something to send. Safe to drop.
    pub async fn ready(&mut self) {
        loop {
            self.end.borrow_and_update();
            if !self.first.is_empty() || self.next < self.cache.state.read().end() {
                return;
            }
            // The cache outlives its readers, so this cannot fail.
            let _ = self.end.changed().await;
        }
    }

    /// Sends a piece of the initial objects. Returns whether there was one.
    pub fn tell_ready(&mut self, tell: &mut impl FnMut(Told, &Versions)) -> Result<bool, Lost> {
        if !self.first.is_empty() {
            let piece = self.piece();
            let told = !piece.is_empty();
            for (found, last) in piece {
                if last {
                    self.settle();
                }
                if self.begun.contains_key(&found.place) {
                    self.versions.break_off(&found.place);
                }
                tell(Told { place: found.place, old: None, new: Some(found.entry) }, &self.versions);
            }
            self.settle();
            if told {
                return Ok(true);
            }
        }
        let events: Vec<Arc<Event>> = {
            let state = self.cache.state.read();
            let from = self.next.checked_sub(state.first).ok_or(Lost::Slow)?;
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let (mut events, mut portion) = (Vec::new(), Portion::default());
            for event in state.log.iter().skip(from) {
                if portion.is_full() {
                    break;
                }
                match &event.what {
                    What::Changed { old, new } => portion.add(new.as_ref().or(old.as_ref())),
                    _ => portion.add(None),
                }
                events.push(event.clone());
            }
            events
        };
        let mut gone = Portion::default();
        for event in &events {
            if !self.tell_event(event, &mut gone, tell)? {
                return Ok(true);
            }
        }
        self.settle();
        Ok(!events.is_empty())
    }

    /// Sends the next event of the log. Returns whether another one may be sent.
    fn tell_event(
        &mut self,
        event: &Event,
        gone: &mut Portion,
        tell: &mut impl FnMut(Told, &Versions),
    ) -> Result<bool, Lost> {
        let number = self.next;
        let past = number < self.began;
        match &event.what {
            What::Went(entries) if !past => return Ok(self.tell_gone(&event.place, entries, gone, tell)),
            _ => self.next = self.next.saturating_add(1),
        }
        match &event.what {
            What::Changed { old, new } => {
                let key = old.as_ref().or(new.as_ref()).map_or("", |entry| entry.key());
                let known = match self.begun.get(&event.place) {
                    Some(pieces) => pieces.contains(number, key),
                    None => self.is_known(event, number),
                };
                if event.last && !self.begun.contains_key(&event.place) && !known {
                    self.versions.advance(&event.place, event.at);
                }
                self.settle();
                if !known {
                    let told = Told { place: event.place.clone(), old: old.clone(), new: new.clone() };
                    tell(told, &self.versions);
                }
            }
            // Additions and removals before the start are part of the initial state.
            What::Came | What::Went(_) | What::WentBack if past => self.settle(),
            What::Came => {
                self.replay_from(&event.place, number);
                return Ok(false);
            }
            What::WentBack => return Err(Lost::WentBack(event.place.clone())),
            What::Went(_) => {}
        }
        Ok(true)
    }

    /// Sends the objects of a removed place as deleted, as many as fit into a piece. Returns whether those were all.
    fn tell_gone(
        &mut self,
        place: &Place,
        entries: &[Arc<Entry>],
        gone: &mut Portion,
        tell: &mut impl FnMut(Told, &Versions),
    ) -> bool {
        let number = self.next;
        let mut going = self.going.take().unwrap_or_else(|| {
            self.skip.remove(place);
            self.first.retain(|other| other != place);
            Going { done: 0, begun: self.begun.remove(place) }
        });
        self.versions.break_off(place);
        // If a place is removed before it was sent completely, only the sent part is deleted.
        let told = |entry: &&Arc<Entry>| {
            going.begun.as_ref().is_none_or(|pieces| !pieces.contains(number, entry.key()))
        };
        let left = entries.iter().enumerate().skip(going.done);
        let mut left = left.filter(|(_, entry)| told(entry)).peekable();
        while !gone.is_full()
            && let Some((_, entry)) = left.next()
        {
            if left.peek().is_none() {
                self.versions.remove(place);
            }
            gone.add(Some(entry));
            tell(Told { place: place.clone(), old: Some(entry.clone()), new: None }, &self.versions);
        }
        if let Some((position, _)) = left.next() {
            going.done = position;
            self.going = Some(going);
            return false;
        }
        self.versions.remove(place);
        self.next = self.next.saturating_add(1);
        self.settle();
        true
    }
}

/// Waits until the cache knows as much as a reader.
async fn catch_up(cache: &Arc<Cache>, versions: &Versions) -> Result<(), Lost> {
    let mut end = cache.end.subscribe();
    let caught_up = async {
        loop {
            end.borrow_and_update();
            if ahead(cache, versions).is_none() {
                return;
            }
            let _ = end.changed().await;
        }
    };
    let _ = tokio::time::timeout(AHEAD, caught_up).await;
    ahead(cache, versions).map_or(Ok(()), Err)
}

/// Returns a place of which a reader knows more than the cache.
fn ahead(cache: &Cache, versions: &Versions) -> Option<Lost> {
    let state = cache.state.read();
    let mut found = versions.iter().filter_map(|(place, asked)| {
        let known = state.shards.get(place)?.at.unwrap_or(0);
        (asked > known).then(|| Lost::Ahead { place: place.clone(), asked, known })
    });
    found.next()
}

/// Waits a limited time until the cache knows as much as a client that has read a version.
///
/// # Errors
/// If it does not.
pub async fn not_older(cache: &Arc<Cache>, versions: &Versions) -> Result<(), Lost> {
    catch_up(cache, versions).await
}

#[cfg(test)]
mod tests;
