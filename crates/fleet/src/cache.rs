//! All objects of a kind, by the places they come from, and their recent events.
//!
//! Events are appended to one log for all places, which all watches of the kind read ([`crate::watch`]). Each event says which
//! version of its place is known after it. A list from a member becomes a group of events, and only the last event of a group
//! advances the place: a reader that stops in the middle of a group gets the whole group again.
//!
//! A new place is one event: its reader takes the objects from the cache. The removal of a place, with its objects, is also one
//! event. When a member's versions go back (it was restored from a backup), readers must list again.
//!
//! The log is limited by events and by the bytes that only the log keeps. A reader that falls behind the log must list again,
//! too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use runtime::room::Budget;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::entry::{self, Entry};
use crate::index::Index;
use crate::past;
use crate::plan::Kind;
use crate::version::Versions;
use crate::watch::Lost;

/// How many events are kept for readers that have fallen behind or come back: a few minutes of a busy fleet.
const LOG_EVENTS: usize = 16_384;
/// How many bytes of objects that no longer exist the log keeps.
const LOG_BYTES: usize = 32 << 20;

/// How long lists wait for the first list of a place: after the start of a cache, and when a place is added later.
const FIRST_LISTS: Duration = Duration::from_secs(10);
const LATER_LIST: Duration = Duration::from_secs(1);

/// The source of objects: a cluster, or one of its namespaces if only some are kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub cluster: Arc<str>,
    pub namespace: Option<Arc<str>>,
}

impl Place {
    pub fn cluster(name: &str) -> Self {
        Self { cluster: name.into(), namespace: None }
    }

    pub fn namespace(cluster: &str, namespace: &str) -> Self {
        Self { cluster: cluster.into(), namespace: Some(namespace.into()) }
    }

    /// Reads what [`Display`](std::fmt::Display) writes.
    pub fn parse(text: &str) -> Self {
        match text.split_once('/') {
            Some((cluster, namespace)) => Self::namespace(cluster, namespace),
            None => Self::cluster(text),
        }
    }

    /// Returns whether it may contain objects of a namespace; the empty one stands for all.
    fn holds(&self, namespace: &str) -> bool {
        namespace.is_empty() || self.namespace.as_deref().is_none_or(|own| own == namespace)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(out, "{}/{namespace}", self.cluster),
            None => out.write_str(&self.cluster),
        }
    }
}

/// Why the objects shown of a place may be outdated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// In the form of the annotation.
    pub since: Arc<str>,
    pub why: String,
}

/// An object and its place.
#[derive(Debug, Clone)]
pub struct Found {
    pub place: Place,
    pub entry: Arc<Entry>,
    pub stale: Option<Arc<str>>,
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) place: Place,
    /// The version of the place that is known after this group of events.
    pub(crate) at: u64,
    /// Whether the event is the last of its group.
    pub(crate) last: bool,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Changed {
        old: Option<Arc<Entry>>,
        new: Option<Arc<Entry>>,
    },
    /// The place was added, and its objects are in the cache.
    Came,
    Went(Vec<Arc<Entry>>),
    WentBack,
}

/// All objects of a kind.
#[derive(Debug)]
pub struct Cache {
    pub kind: Kind,
    pub(crate) state: RwLock<State>,
    /// The number of the next event.
    pub(crate) end: watch::Sender<u64>,
    /// Cancelled when no registry names the kind any more.
    pub closed: CancellationToken,
    pub(crate) budget: Arc<Budget>,
    limits: Limits,
    made: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    events: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) shards: BTreeMap<Place, Shard>,
    pub(crate) log: VecDeque<Arc<Event>>,
    /// The number of the first event in the log.
    pub(crate) first: u64,
    /// The approximate number of bytes that only the log keeps.
    log_bytes: usize,
}

/// The state of a place.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) index: Index,
    /// The known version; `None` until the first list is complete.
    pub(crate) at: Option<u64>,
    /// The number of the event with which it was added, or with which its versions went back.
    pub(crate) born: u64,
    /// A reader that knows less than this version cannot get the rest: the log does not reach back that far.
    pub(crate) floor: u64,
    stale: Option<Stale>,
    /// When it was first expected.
    expected: Option<Instant>,
}

/// There is no room for more objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the caches are full: they may hold {} MiB", limit >> 20)]
pub struct Full {
    pub limit: usize,
}

impl Cache {
    pub fn new(kind: Kind, budget: Arc<Budget>) -> Self {
        let limits = Limits { events: LOG_EVENTS, bytes: LOG_BYTES };
        Self {
            kind,
            state: RwLock::default(),
            end: watch::Sender::new(0),
            closed: CancellationToken::new(),
            budget,
            limits,
            made: Instant::now(),
        }
    }

    /// Adds a place from which objects are expected.
    pub fn expect(&self, place: &Place) {
        let mut state = self.state.write();
        let shard = state.shards.entry(place.clone()).or_default();
        shard.expected.get_or_insert_with(Instant::now);
    }

    /// Removes a place and its objects.
    pub fn forget(&self, place: &Place) {
        let mut state = self.state.write();
        let Some(shard) = state.shards.remove(place) else { return };
        self.budget.exchange(shard.index.cost, 0);
        if let Some(at) = shard.at {
            let entries = shard.index.iter().cloned().collect();
            self.append(
                &mut state,
                [Event { place: place.clone(), at, last: true, what: What::Went(entries) }],
            );
        }
    }

    /// Applies a complete list of a place. Unchanged objects are left alone.
    ///
    /// # Errors
    /// If there is no room for it; then nothing has changed.
    pub fn replace(&self, place: &Place, at: u64, listed: Vec<Entry>) -> Result<(), Full> {
        self.replace_but(place, at, listed, &BTreeSet::new())
    }

    /// Applies a complete list of a place of which some objects are already known and unchanged.
    pub(crate) fn replace_but(
        &self,
        place: &Place,
        at: u64,
        listed: Vec<Entry>,
        same: &BTreeSet<Box<str>>,
    ) -> Result<(), Full> {
        let mut state = self.state.write();
        let end = state.end();
        let Some(shard) = state.shards.get_mut(place) else { return Ok(()) };
        let kept: usize = same.iter().filter_map(|key| shard.index.get(key)).map(|entry| entry.cost()).sum();
        let cost: usize = listed.iter().map(Entry::cost).sum();
        let cost = kept.saturating_add(cost);
        if !self.budget.exchange(shard.index.cost, cost) {
            return Err(Full { limit: self.budget.limit() });
        }
        let before = shard.at;
        shard.at = Some(at);
        shard.stale = None;
        let went_back = before.is_some_and(|before| at < before);
        let gone: Vec<Box<str>> = shard
            .index
            .iter()
            .map(|entry| entry.key())
            .filter(|key| !same.contains(*key))
            .map(Into::into)
            .collect();
        if before.is_none() || went_back {
            shard.born = end;
            shard.floor = at;
            for key in gone {
                shard.index.remove(&key);
            }
            for entry in listed {
                shard.index.insert(entry);
            }
            self.budget.exchange(cost, shard.index.cost);
            let what = if went_back { What::WentBack } else { What::Came };
            self.append(&mut state, [Event { place: place.clone(), at, last: true, what }]);
            return Ok(());
        }
        let mut told = Vec::new();
        let mut gone: BTreeSet<Box<str>> = gone.into_iter().collect();
        for entry in listed {
            gone.remove(entry.key());
            if shard.index.get(entry.key()).is_some_and(|known| known.is_as(entry.revision, &entry.facts.uid))
            {
                continue;
            }
            let (new, old) = shard.index.insert(entry);
            told.extend(changes(old, Some(new)));
        }
        for key in gone {
            told.extend(changes(shard.index.remove(&key), None));
        }
        // A list may name an object twice.
        self.budget.exchange(cost, shard.index.cost);
        self.append(&mut state, group(place, at, told));
        Ok(())
    }

    /// Returns the key of an object in a list if the object is known and unchanged.
    pub(crate) fn knows(&self, place: &Place, object: &Value) -> Option<Box<str>> {
        let metadata = object.get("metadata")?;
        let text = |field: &str| metadata.get(field).and_then(Value::as_str);
        let key = entry::key(text("namespace").unwrap_or(""), text("name")?);
        let revision = text("resourceVersion")?.parse().ok()?;
        let state = self.state.read();
        let known = state.shards.get(place)?.index.get(&key)?;
        known.is_as(revision, text("uid").unwrap_or("")).then_some(key)
    }

    /// Applies a new or changed object from a watch.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn put(&self, place: &Place, entry: Entry) -> Result<(), Full> {
        let mut state = self.state.write();
        let Some(shard) = state.shards.get_mut(place) else { return Ok(()) };
        let at = entry.revision;
        if shard.at.is_none_or(|known| at <= known) {
            // This event is already known: a resumed watch may repeat events.
            return Ok(());
        }
        let known = shard.index.get(entry.key()).map_or(0, |known| known.cost());
        if !self.budget.exchange(known, entry.cost()) {
            return Err(Full { limit: self.budget.limit() });
        }
        let (new, old) = shard.index.insert(entry);
        shard.at = Some(at);
        shard.stale = None;
        self.append(&mut state, group(place, at, changes(old, Some(new))));
        Ok(())
    }

    /// Applies a deletion, with the last state of the object if the member sent it.
    pub fn remove(&self, place: &Place, last: &Entry) {
        let mut state = self.state.write();
        let Some(shard) = state.shards.get_mut(place) else { return };
        let at = last.revision;
        if shard.at.is_none_or(|known| at <= known) {
            return;
        }
        shard.at = Some(at);
        shard.stale = None;
        let old = shard.index.remove(last.key());
        self.budget.exchange(old.as_ref().map_or(0, |old| old.cost()), 0);
        self.append(&mut state, group(place, at, changes(old, None)));
    }

    /// Advances a place to a version, without any events.
    pub fn progress(&self, place: &Place, at: u64) {
        let mut state = self.state.write();
        let Some(shard) = state.shards.get_mut(place) else { return };
        shard.stale = None;
        if let Some(known) = &mut shard.at {
            *known = at.max(*known);
        }
        // A reader that waits for a version may have been waiting for this one.
        self.end.send_modify(|_| {});
    }

    /// Marks a place as stale, unless it already is; with `None`, marks it as fresh.
    pub fn mark(&self, place: &Place, stale: Option<Stale>) {
        if let Some(shard) = self.state.write().shards.get_mut(place) {
            shard.stale = match (shard.stale.take(), stale) {
                (Some(known), Some(new)) => Some(Stale { since: known.since, why: new.why }),
                (_, new) => new,
            };
        }
        self.end.send_modify(|_| {});
    }

    fn append(&self, state: &mut State, events: impl IntoIterator<Item = Event>) {
        for event in events {
            state.log_bytes = state.log_bytes.saturating_add(weight(&event));
            state.log.push_back(Arc::new(event));
        }
        while state.log.len() > self.limits.events || state.log_bytes > self.limits.bytes {
            let Some(event) = state.log.pop_front() else { break };
            state.log_bytes = state.log_bytes.saturating_sub(weight(&event));
            let number = state.first;
            state.first = state.first.saturating_add(1);
            // An event from before the place was added says nothing about the versions that it has now.
            if let Some(shard) = state.shards.get_mut(&event.place).filter(|shard| number >= shard.born) {
                shard.floor = shard.floor.max(event.at);
            }
        }
        self.end.send_replace(state.end());
    }

    /// Waits a limited time until every place has been listed or is known to be away. After a start, clients that know objects
    /// must not see that there are none.
    pub async fn ready(&self) {
        let mut end = self.end.subscribe();
        loop {
            end.borrow_and_update();
            let Some(until) = self.waits_until() else { return };
            if tokio::time::timeout_at(until.into(), end.changed()).await.is_err() {
                return;
            }
        }
    }

    fn waits_until(&self) -> Option<Instant> {
        let state = self.state.read();
        let waiting = state.shards.values().filter(|shard| shard.at.is_none() && shard.stale.is_none());
        let until = waiting
            .filter_map(|shard| Some(after(self.made, FIRST_LISTS).max(after(shard.expected?, LATER_LIST))));
        until.max().filter(|until| *until > Instant::now())
    }

    /// Returns the known version of each place.
    pub fn versions(&self) -> Versions {
        self.state.read().versions()
    }

    /// Returns the clusters from which objects are expected.
    pub fn clusters(&self) -> Vec<Arc<str>> {
        let mut clusters: Vec<_> =
            self.state.read().shards.keys().map(|place| place.cluster.clone()).collect();
        clusters.dedup();
        clusters
    }

    /// Returns for each place whether its first list has come, and why it is stale.
    pub fn places(&self) -> Vec<(Place, bool, Option<Stale>)> {
        let state = self.state.read();
        state
            .shards
            .iter()
            .map(|(place, shard)| (place.clone(), shard.at.is_some(), shard.stale.clone()))
            .collect()
    }

    /// Returns the objects with a name, one for each cluster that has it.
    pub fn get(&self, key: &str) -> Vec<Found> {
        let state = self.state.read();
        let found =
            state.shards.iter().filter_map(|(place, shard)| Some(shard.found(place, shard.index.get(key)?)));
        found.collect()
    }

    /// Returns the objects of a namespace, or all, after a place and key, until `take` stops.
    pub fn list(
        &self,
        namespace: &str,
        after: Option<(&Place, &str)>,
        mut take: impl FnMut(&Place, &Arc<Entry>) -> Take,
    ) -> Listed {
        let state = self.state.read();
        let mut listed = Listed { versions: state.versions(), found: Vec::new(), rest: false };
        for (place, shard) in &state.shards {
            let Some(from) = begins(place, namespace, after) else { continue };
            let walk = shard.index.walk(namespace, from);
            if !listed.extend(place, shard, walk, &mut take) {
                break;
            }
        }
        listed
    }

    /// Returns objects as they were at a version.
    ///
    /// # Errors
    /// If the log does not reach back that far.
    pub fn list_at(
        &self,
        versions: &Versions,
        namespace: &str,
        after: Option<(&Place, &str)>,
        mut take: impl FnMut(&Place, &Arc<Entry>) -> Take,
    ) -> Result<Listed, Lost> {
        let state = self.state.read();
        let places = past::before(&state, versions)?;
        let mut listed = Listed { versions: versions.clone(), found: Vec::new(), rest: false };
        for (place, before) in &places {
            let Some(from) = begins(place, namespace, after) else { continue };
            let Some(shard) = state.shards.get(place) else { continue };
            let walk = past::walk(&shard.index, before, namespace, from);
            if !listed.extend(place, shard, walk, &mut take) {
                break;
            }
        }
        Ok(listed)
    }

    /// Returns the number of objects and their size, by cluster.
    pub fn sizes(&self) -> BTreeMap<Arc<str>, (usize, usize)> {
        let mut sizes = BTreeMap::new();
        for (place, shard) in &self.state.read().shards {
            let (count, cost): &mut (usize, usize) = sizes.entry(place.cluster.clone()).or_default();
            *count = count.saturating_add(shard.index.len());
            *cost = cost.saturating_add(shard.index.cost);
        }
        sizes
    }

    #[cfg(test)]
    pub(crate) fn with_log(mut self, events: usize, bytes: usize) -> Self {
        self.limits = Limits { events, bytes };
        self
    }
}

/// The decision about an object of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    Yes,
    No,
    /// This object and all after it belong to another page.
    Enough,
}

/// The result of a list.
#[derive(Debug)]
pub struct Listed {
    pub versions: Versions,
    pub found: Vec<Found>,
    /// There is more.
    pub rest: bool,
}

impl Listed {
    /// Takes objects of a place. Returns whether more are wanted.
    fn extend<'a>(
        &mut self,
        place: &Place,
        shard: &Shard,
        entries: impl Iterator<Item = &'a Arc<Entry>>,
        take: &mut impl FnMut(&Place, &Arc<Entry>) -> Take,
    ) -> bool {
        for entry in entries {
            match take(place, entry) {
                Take::Yes => self.found.push(shard.found(place, entry)),
                Take::No => {}
                Take::Enough => {
                    self.rest = true;
                    return false;
                }
            }
        }
        true
    }
}

/// Returns the key after which the objects of a place must be read by a reader at this position; `None` if not at all.
pub(crate) fn begins<'a>(
    place: &Place,
    namespace: &str,
    after: Option<(&Place, &'a str)>,
) -> Option<Option<&'a str>> {
    if !place.holds(namespace) {
        return None;
    }
    match after {
        Some((last, _)) if place < last => None,
        Some((last, key)) if place == last => Some(Some(key)),
        _ => Some(None),
    }
}

impl State {
    pub(crate) fn versions(&self) -> Versions {
        let mut versions = Versions::default();
        for (place, shard) in &self.shards {
            if let Some(at) = shard.at {
                versions.advance(place, at);
            }
        }
        versions
    }

    pub(crate) fn end(&self) -> u64 {
        self.first.saturating_add(self.log.len() as u64)
    }
}

impl Shard {
    pub(crate) fn found(&self, place: &Place, entry: &Arc<Entry>) -> Found {
        Found { place: place.clone(), entry: entry.clone(), stale: self.stale_since() }
    }

    pub(crate) fn stale_since(&self) -> Option<Arc<str>> {
        self.stale.as_ref().map(|stale| stale.since.clone())
    }
}

/// Returns the events of a change. If another object now has the name, the old one was deleted and the new one was added.
fn changes(old: Option<Arc<Entry>>, new: Option<Arc<Entry>>) -> Vec<What> {
    match (old, new) {
        (None, None) => Vec::new(),
        (Some(old), Some(new)) if old.facts.uid != new.facts.uid => {
            vec![What::Changed { old: Some(old), new: None }, What::Changed { old: None, new: Some(new) }]
        }
        (old, new) => vec![What::Changed { old, new }],
    }
}

/// Returns the events of a group: after all of them, the place is known up to the version.
fn group(place: &Place, at: u64, changes: Vec<What>) -> impl Iterator<Item = Event> {
    let count = changes.len();
    let event =
        move |(number, what): (usize, What)| Event { place: place.clone(), at, last: number == count, what };
    (1..).zip(changes).map(event)
}

fn after(start: Instant, time: Duration) -> Instant {
    start.checked_add(time).unwrap_or(start)
}

/// Returns the bytes of an event's objects that only the log keeps.
fn weight(event: &Event) -> usize {
    match &event.what {
        What::Changed { old, .. } => old.as_ref().map_or(0, |old| old.cost()),
        What::Went(entries) => entries.iter().map(|entry| entry.cost()).sum::<usize>(),
        What::Came | What::WentBack => 0,
    }
    .saturating_add(64)
}
