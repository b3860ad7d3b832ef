//! A reader of what happens to the objects of a kind, in all places.
//!
//! Nothing is queued for a reader: it is a number in the cache's log, and what it knows of each place. Guarantees: the events of a
//! place come in their order; each is told once, unless a reader broke off within a group; nothing is left out between the version
//! that a reader starts from and the present; the version beside each event is one to start from.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::cache::{Cache, Event, Found, Place, What};
use crate::entry::Entry;
use crate::version::Versions;

/// How many events are taken from the log at once.
const BATCH: usize = 256;
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
    /// What each place need not be told: events of a group up to a version, and events up to a number.
    skip: HashMap<Place, Skip>,
    /// What is told before anything from the log, and how far a place is known after the last of its objects.
    first: VecDeque<(Found, Option<u64>)>,
    /// Places without objects that came before.
    known: Vec<(Place, u64)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Skip {
    at: u64,
    number: u64,
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
            first: VecDeque::new(),
            known: Vec::new(),
        };
        match start {
            Start::Now => watch.versions = state.versions(),
            Start::Everything => {
                for (place, shard) in &state.shards {
                    watch.replay(place, shard, state.end());
                }
            }
            Start::After(versions) => {
                watch.next = state.first;
                for (place, at) in versions.iter() {
                    match state.shards.get(place) {
                        None => return Err(Lost::Gone(place.clone())),
                        Some(shard) if at < shard.floor => return Err(Lost::Behind(place.clone())),
                        Some(_) => {}
                    }
                    watch.skip.insert(place.clone(), Skip { at, number: 0 });
                }
                for (place, shard) in &state.shards {
                    if versions.get(place).is_none() {
                        watch.replay(place, shard, state.end());
                    }
                }
                watch.versions = versions;
            }
        }
        drop(state);
        Ok(watch)
    }

    /// Tells the objects of a place from the beginning, and of its events those from a number on.
    fn replay(&mut self, place: &Place, shard: &crate::cache::Shard, number: u64) {
        let Some(at) = shard.at else { return };
        self.skip.insert(place.clone(), Skip { at, number });
        let count = shard.index.len();
        if count == 0 {
            self.known.push((place.clone(), at));
            return;
        }
        let found = shard.index.iter().enumerate().filter_map(|(index, entry)| {
            Some((shard.found(place, entry)?, (index + 1 == count).then_some(at)))
        });
        self.first.extend(found);
    }

    /// Returns how far everything is known that has been told so far.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Says whether everything that was there in the beginning has been told.
    pub fn has_begun(&self) -> bool {
        self.first.is_empty()
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

    /// Waits for what comes next. `tell` gets each event with the version after it.
    ///
    /// May be dropped while it waits.
    pub async fn next(&mut self, mut tell: impl FnMut(Told, &Versions)) -> Result<(), Lost> {
        loop {
            if self.tell_ready(&mut tell)? {
                return Ok(());
            }
            // The cache outlives its readers, so that this cannot fail.
            let _ = self.end.changed().await;
        }
    }

    /// Tells what is there already; returns whether that was anything.
    pub fn tell_ready(&mut self, tell: &mut impl FnMut(Told, &Versions)) -> Result<bool, Lost> {
        self.end.borrow_and_update();
        for (place, at) in self.known.drain(..) {
            self.versions.advance(&place, at);
        }
        if !self.first.is_empty() {
            for _ in 0..BATCH {
                let Some((found, at)) = self.first.pop_front() else { break };
                if let Some(at) = at {
                    self.versions.advance(&found.place, at);
                }
                tell(Told { place: found.place, old: None, new: Some(found.entry) }, &self.versions);
            }
            return Ok(true);
        }
        let events: Vec<Arc<Event>> = {
            let state = self.cache.state.read();
            if self.next < state.first {
                return Err(Lost::Slow);
            }
            let from = usize::try_from(self.next - state.first).unwrap_or(usize::MAX);
            state.log.iter().skip(from).take(BATCH).cloned().collect()
        };
        for event in &events {
            let number = self.next;
            self.next += 1;
            let skip = self.skip.get(&event.place).copied().unwrap_or_default();
            let past = number < self.began;
            let known = number < skip.number || past && event.at <= skip.at;
            match &event.what {
                What::Changed { .. } if known => {}
                What::Changed { old, new } => {
                    if event.last {
                        self.versions.advance(&event.place, event.at);
                    }
                    let told = Told { place: event.place.clone(), old: old.clone(), new: new.clone() };
                    tell(told, &self.versions);
                }
                // What came and went before this began is in what this began with.
                What::Came | What::Went(_) | What::WentBack if past || number < skip.number => {}
                What::Came => {
                    let cache = self.cache.clone();
                    let state = cache.state.read();
                    if let Some(shard) = state.shards.get(&event.place) {
                        self.replay(&event.place, shard, state.end());
                    }
                    return Ok(true);
                }
                What::Went(entries) => {
                    self.versions.remove(&event.place);
                    self.skip.remove(&event.place);
                    for entry in entries {
                        let told = Told { place: event.place.clone(), old: Some(entry.clone()), new: None };
                        tell(told, &self.versions);
                    }
                }
                What::WentBack => return Err(Lost::WentBack(event.place.clone())),
            }
        }
        Ok(!events.is_empty())
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
