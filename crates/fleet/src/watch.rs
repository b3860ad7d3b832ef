//! A reader of what happens to the objects of a kind, in all places.
//!
//! Nothing is queued for a reader: it is a number in the cache's log, and what it knows of each place. It holds no object either: what is
//! there in the beginning, what happens and what goes with a place are all read in small pieces, as they are when their turn comes.
//! So a reader that nobody waits for costs nothing, and whoever writes for a client decides when the next piece is made.
//!
//! Guarantees: the events of a place come in their order; each is told once, unless a reader broke off within a group; nothing is
//! left out between the version that a reader starts from and the present. The version beside each event is one to start
//! from, unless a place is being told as a whole, because it came or went: then the version says so, and whoever broke off in the middle of
//! it has to list again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::cache::{Cache, Event, Found, Place, Shard, What};
use crate::entry::Entry;
use crate::version::Versions;

/// How many events are told at once.
const BATCH: usize = 256;
/// How many bytes of objects are told at once. One more is always told, whatever its size.
pub const PIECE: usize = 64 * 1024;
/// How long a reader that knows more than the cache waits for the cache to catch up.
const AHEAD: Duration = Duration::from_secs(3);

/// Where a reader begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With all objects that are there.
    Everything,
    /// With what happened after a version. All objects of places that it does not name come first.
    After(Versions),
    /// With what happens from now on.
    Now,
}

/// The reader has to list again.
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

/// What a reader is told.
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
    /// The number of the first event that was still to come when this began.
    began: u64,
    end: watch::Receiver<u64>,
    versions: Versions,
    /// How far a reader knew each place before it began: events up to that version need not be told.
    skip: HashMap<Place, Skip>,
    /// The places whose objects are told one by one, and how far that has come; each stays here until its version is known.
    begun: HashMap<Place, Pieces>,
    /// Of these, the ones that are not through.
    first: VecDeque<Place>,
    /// How far the going of a place has been told that is the next event.
    going: Option<Going>,
}

/// What a reader knew of a place before it began.
#[derive(Debug)]
struct Skip {
    at: u64,
    /// The number of the event by which the place came: what the log has of it from before belongs to a place that was given up, or to a
    /// time that has been taken back, whatever its versions are.
    born: u64,
}

/// A place that has gone, whose objects are told to be gone in pieces.
#[derive(Debug, Default)]
struct Going {
    /// How many of its objects have been looked at.
    done: usize,
    /// What had been told of the place, if that was not everything.
    begun: Option<Pieces>,
}

/// Counts what is told at once.
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

/// The objects of a place, read in pieces while the place goes on changing.
#[derive(Debug, Default)]
struct Pieces {
    /// Which coming of the place this is about: it may have gone and come again.
    born: u64,
    /// The last key of each piece that was read, and the number of the next event at that moment: events before it are in the piece.
    read: BTreeMap<Box<str>, u64>,
    /// Set after the last piece: the number of the next event and how far the place was known then.
    through: Option<(u64, u64)>,
}

impl Pieces {
    /// Says whether the object of an event was read after the event.
    fn contains(&self, number: u64, key: &str) -> bool {
        let piece = self.read.range::<str, _>((Bound::Included(key), Bound::Unbounded)).next();
        match (piece, self.through) {
            (Some((_, read)), _) => number < *read,
            (None, Some((read, _))) => number < read,
            // It is still to be read.
            (None, None) => true,
        }
    }
}

impl Watch {
    /// Begins to read.
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

    /// Has the objects of a place told from the beginning, if there are any yet.
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

    /// Reads the next piece of what is there; returns it, or nothing if there is nothing left.
    fn piece(&mut self) -> Vec<(Found, bool)> {
        let cache = self.cache.clone();
        let state = cache.state.read();
        while let Some(place) = self.first.front() {
            let pieces = self.begun.get_mut(place);
            let shard = state.shards.get(place);
            let Some((pieces, shard)) = pieces.zip(shard).filter(|(pieces, shard)| pieces.born == shard.born)
            else {
                // It has gone again; the log tells that, too.
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
                // What was read at the same moment is one piece, however many it was read in.
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

    /// Notes how far those places are known whose objects and events have been told up to the same moment.
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

    /// Returns how far everything is known that has been told so far.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Says whether everything that was there in the beginning has been told.
    pub fn has_begun(&self) -> bool {
        self.first.is_empty() && self.begun.is_empty()
    }

    /// Returns how far everything is known if nothing waits to be told; places move on without events.
    pub fn progress(&mut self) -> &Versions {
        let state = self.cache.state.read();
        if self.first.is_empty() && self.next == state.end() {
            for (place, at) in state.versions().iter() {
                // A place whose coming is not told yet is not known.
                if self.versions.get(place).is_some() {
                    self.versions.advance(place, at);
                }
            }
        }
        &self.versions
    }

    /// Says whether a reader knew of an event before it began, or need not know of it: its place has gone since.
    fn is_known(&self, event: &Event, number: u64) -> bool {
        let known = |skip: &Skip| number < skip.born || event.at <= skip.at;
        number < self.began && self.skip.get(&event.place).is_none_or(known)
    }

    /// Waits for what comes next. `tell` gets each event with the version after it.
    ///
    /// May be dropped while it waits.
    pub async fn next(&mut self, mut tell: impl FnMut(Told, &Versions)) -> Result<(), Lost> {
        loop {
            self.ready().await;
            if self.tell_ready(&mut tell)? {
                return Ok(());
            }
        }
    }

    /// Waits until there is something to be told. May be dropped.
    pub async fn ready(&mut self) {
        loop {
            self.end.borrow_and_update();
            if !self.first.is_empty() || self.next < self.cache.state.read().end() {
                return;
            }
            // The cache outlives its readers, so that this cannot fail.
            let _ = self.end.changed().await;
        }
    }

    /// Tells a piece of what is there already; returns whether that was anything.
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

    /// Tells the next event of the log; returns whether the one after it may be told, too.
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
            // What came and went before this began is in what this began with.
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

    /// Tells that the objects of a place have gone, as many as a piece takes; returns whether those were all.
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
        // Of a place that went before it was told, only what was told goes.
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

/// Waits until the cache knows as much as a reader does.
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

/// Returns a place of which a reader knows more than the cache does.
fn ahead(cache: &Cache, versions: &Versions) -> Option<Lost> {
    let state = cache.state.read();
    let mut found = versions.iter().filter_map(|(place, asked)| {
        let known = state.shards.get(place)?.at.unwrap_or(0);
        (asked > known).then(|| Lost::Ahead { place: place.clone(), asked, known })
    });
    found.next()
}

/// Waits, but not for long, until the cache knows as much as somebody who has read a version.
///
/// # Errors
/// If it does not.
pub async fn not_older(cache: &Arc<Cache>, versions: &Versions) -> Result<(), Lost> {
    catch_up(cache, versions).await
}

#[cfg(test)]
mod tests;
