//! A local copy of a collection, kept by one watch and shared by all readers. It knows our own writes.
//!
//! Objects go in through a conversion, so that a copy keeps only what its users need. Subscribers are notified of a change after
//! the copy has changed. A writer puts the answer of the server in immediately ([`Mirror::put`]), so that all readers see it
//! without waiting for the watch; an event that is older than the stored object is ignored. A lost watch resumes where it was cut
//! if a [`Witness`] confirms the server's history. Otherwise a list replaces the known state: objects that are missing from it
//! are reported as deleted, unchanged ones are not reported, and older versions are believed, since a server may have been
//! restored from a backup. Only objects that we wrote ourselves after the list began override it.
//!
//! A [packed](Mirror::packed) copy keeps large and rarely read objects as text, which takes a fraction of the
//! memory of the parsed form. One that is [`recalling`](Mirror::recalling) also keeps the last ones parsed.
//!
//! A copy may be out of date: "not in the copy" never means "does not exist".

mod follow;
mod recent;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use kube::Resource;
use parking_lot::{Mutex, MutexGuard, RwLock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};

use crate::metrics::{Counters, add};
use crate::mirror::recent::Recent;
use crate::room::Budget;
use crate::witness::Witness;

/// How many objects a page of a list has at first.
const PAGE: u32 = 500;

/// Namespace and name; the namespace of a cluster-scoped object is empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    /// Returns the key of a namespaced object, or, without namespace, of a cluster-scoped one.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns the key of an object.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            out.write_str(&self.name)
        } else {
            write!(out, "{}/{}", self.namespace, self.name)
        }
    }
}

/// A change of one object.
#[derive(Debug)]
pub struct Change<'a, T> {
    pub key: &'a Key,
    pub old: Option<Arc<T>>,
    /// `None`: it is gone, or no longer belongs to the collection.
    pub new: Option<Arc<T>>,
    /// We wrote it ourselves.
    pub ours: bool,
    /// It was found by the first list, so no change is known.
    pub initial: bool,
}

type Subscriber<T> = Box<dyn Fn(&Change<'_, T>) + Send + Sync>;

/// The copy.
pub struct Mirror<T> {
    state: RwLock<State<T>>,
    subscribers: RwLock<Vec<Subscriber<T>>>,
    /// Held while a change is made and reported, so that subscribers get changes in order. Taken before
    /// `state`.
    order: Mutex<()>,
    packing: Option<Packing<T>>,
    /// The memory budget for objects of another cluster.
    room: Option<(String, Arc<Budget>)>,
    /// How many objects a page of a list has; fewer after one that was too large.
    page: AtomicU32,
    synced: watch::Sender<bool>,
    revive: Notify,
    witness: OnceLock<Arc<dyn Witness>>,
}

struct State<T> {
    objects: BTreeMap<Key, Entry<T>>,
    /// The newest revision that the watch has reported. Everything written before it is already known, or
    /// gone again.
    seen: u64,
    /// While a list is in progress: what it has shown, and what we wrote since it was requested.
    listing: Option<Listing>,
}

#[derive(Default)]
struct Listing {
    shown: HashSet<Key>,
    written: HashSet<Key>,
    /// It has shown an older revision of an object than was known: the server's revisions have gone back.
    went_back: bool,
}

impl<T> State<T> {
    /// Returns whether an object from a list or watch is already known: it is our own write, or older than
    /// it. A version that is not a number is never known.
    fn is_known(&self, key: &Key, version: u64, source: Source) -> bool {
        let Some(Entry { version: known, .. }) = self.objects.get(key) else { return false };
        let written = self.listing.as_ref().is_some_and(|list| list.written.contains(key));
        let replaces = source != Source::Watch && !written;
        version != 0 && if replaces { *known == version } else { *known >= version }
    }
}

/// Where an object that goes into the copy comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A list; `first` if it is the first one.
    List {
        first: bool,
    },
    Watch,
}

/// An object in the copy.
struct Entry<T> {
    version: u64,
    /// How much of the budget it takes.
    size: usize,
    slot: Slot<T>,
}

/// An object that is no longer in the copy.
struct Replaced<T> {
    entry: Entry<T>,
    parsed: Option<Arc<T>>,
}

/// How the copy stores an object.
enum Slot<T> {
    Whole(Arc<T>),
    Packed(Box<[u8]>),
}

impl<T> Slot<T> {
    fn size(&self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Packed(text) => text.len(),
        }
    }
}

struct Packing<T> {
    pack: fn(&T) -> Box<[u8]>,
    unpack: fn(&[u8]) -> T,
    /// The last objects in their parsed form. Locked after `state`, and changed with it.
    recent: Option<Mutex<Recent<T>>>,
}

impl<T> Debug for Mirror<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Mirror").field("objects", &self.state.read().objects.len()).finish_non_exhaustive()
    }
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self {
            state: RwLock::new(State { objects: BTreeMap::new(), seen: 0, listing: None }),
            subscribers: RwLock::default(),
            order: Mutex::default(),
            packing: None,
            room: None,
            page: AtomicU32::new(PAGE),
            synced: watch::Sender::new(false),
            revive: Notify::new(),
            witness: OnceLock::new(),
        }
    }
}

impl<T: Serialize + DeserializeOwned> Mirror<T> {
    /// Returns a copy that keeps its objects as text. Each read has to parse the object.
    pub fn packed() -> Self {
        let packing = Packing {
            pack: |object| {
                let text = serde_json::to_vec(object).expect("an object can be written to memory");
                // Copies into a buffer of the right size: an allocator may not return memory that is only
                // shrunk.
                Box::from(text.as_slice())
            },
            unpack: |text| serde_json::from_slice(text).expect("what was packed can be unpacked"),
            recent: None,
        };
        Self { packing: Some(packing), ..Self::default() }
    }

    /// Returns the copy with a memory for the last objects that changed or were read by name.
    pub fn recalling(mut self) -> Self {
        if let Some(packing) = &mut self.packing {
            packing.recent = Some(Mutex::default());
        }
        self
    }
}

impl<T> Mirror<T> {
    /// Returns the copy with a memory budget. Objects beyond it are left out: as always, an object that is
    /// not in the copy may still exist.
    pub fn within(self, cluster: &str, budget: Arc<Budget>) -> Self {
        Self { room: Some((cluster.to_owned(), budget)), ..self }
    }

    /// Reserves memory for an object in place of the stored one; returns whether the budget allows it.
    fn make_room(&self, state: &State<T>, key: &Key, size: usize) -> bool {
        let Some((cluster, budget)) = &self.room else { return true };
        let known = state.objects.get(key).map_or(0, |entry| entry.size);
        let fits = budget.exchange(known, size);
        if !fits {
            let limit = budget.limit();
            tracing::warn!(cluster, object = %key, limit, "too many or too large objects; passed over");
        }
        fits
    }

    /// Lets watches resume where they were cut if the witness confirms the server's history. The first
    /// witness counts.
    pub fn rely_on(&self, witness: Arc<dyn Witness>) {
        let _ = self.witness.set(witness);
    }

    /// Calls `told` on every change from now on, including our own writes. It must neither block nor write to this mirror.
    pub fn subscribe(&self, told: impl Fn(&Change<'_, T>) + Send + Sync + 'static) {
        self.subscribers.write().push(Box::new(told));
    }

    /// Returns the object of this namespace and name; without namespace, a cluster-scoped one.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.find(&Key::new(namespace, name))
    }

    /// Returns the object with this key.
    pub fn find(&self, key: &Key) -> Option<Arc<T>> {
        let state = self.state.read();
        let Entry { slot, .. } = state.objects.get(key)?;
        if let Some(object) = self.recent().and_then(|recent| recent.get(key)) {
            return Some(object);
        }
        let object = self.open(slot);
        if let Some(mut recent) = self.recent() {
            recent.put(key, slot.size(), object.clone());
        }
        Some(object)
    }

    /// Returns the memory for the last objects, locked; the caller has the lock of `state`.
    fn recent(&self) -> Option<MutexGuard<'_, Recent<T>>> {
        Some(self.packing.as_ref()?.recent.as_ref()?.lock())
    }

    /// Returns the revision of the stored object; 0 if there is none.
    pub fn revision(&self, namespace: &str, name: &str) -> u64 {
        self.state.read().objects.get(&Key::new(namespace, name)).map_or(0, |entry| entry.version)
    }

    /// Returns how many objects there are.
    pub fn len(&self) -> usize {
        self.state.read().objects.len()
    }

    /// Returns whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all objects, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.state.read().objects.values().map(|entry| self.open(&entry.slot)).collect()
    }

    /// Returns all objects with their keys.
    pub fn entries(&self) -> Vec<(Key, Arc<T>)> {
        let state = self.state.read();
        state.objects.iter().map(|(key, entry)| (key.clone(), self.open(&entry.slot))).collect()
    }

    /// Returns the objects whose keys satisfy a condition.
    pub fn keys(&self, wanted: impl Fn(&Key) -> bool) -> Vec<Key> {
        self.state.read().objects.keys().filter(|key| wanted(key)).cloned().collect()
    }

    /// Returns whether a complete list has arrived at least once.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first complete list; returns whether it came in time.
    pub async fn wait(&self, at_most: Duration) -> bool {
        tokio::time::timeout(at_most, self.complete()).await.is_ok()
    }

    /// Waits for the first complete list.
    pub async fn complete(&self) {
        // The sender lives as long as `self`, so that waiting cannot fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Puts in the API's answer to one of our writes, unless the watch was faster.
    pub fn put(&self, key: &Key, version: &str, object: Arc<T>) {
        let version = revision(version);
        let _in_order = self.order.lock();
        let old = {
            let mut state = self.state.write();
            let known = state.objects.get(key).map_or(0, |entry| entry.version);
            if version <= state.seen || version <= known {
                return;
            }
            if let Some(listing) = &mut state.listing {
                listing.written.insert(key.clone());
            }
            let slot = self.keep(&object);
            let size = slot.size();
            if !self.make_room(&state, key, size) {
                return;
            }
            self.replace(&mut state, key, Entry { version, size, slot }, &object)
        };
        let old = old.map(|replaced| self.reopen(replaced));
        self.tell(&Change { key, old, new: Some(object), ours: true, initial: false });
    }

    /// Puts an object in; returns what it replaces.
    fn replace(
        &self,
        state: &mut State<T>,
        key: &Key,
        entry: Entry<T>,
        object: &Arc<T>,
    ) -> Option<Replaced<T>> {
        let parsed = self.recent().and_then(|mut recent| {
            let before = recent.get(key);
            recent.put(key, entry.slot.size(), object.clone());
            before
        });
        state.objects.insert(key.clone(), entry).map(|entry| Replaced { entry, parsed })
    }

    fn reopen(&self, replaced: Replaced<T>) -> Arc<T> {
        replaced.parsed.unwrap_or_else(|| self.open(&replaced.entry.slot))
    }

    fn keep(&self, object: &Arc<T>) -> Slot<T> {
        match &self.packing {
            Some(packing) => Slot::Packed((packing.pack)(object)),
            None => Slot::Whole(object.clone()),
        }
    }

    fn open(&self, slot: &Slot<T>) -> Arc<T> {
        match (slot, &self.packing) {
            (Slot::Whole(object), _) => object.clone(),
            (Slot::Packed(text), Some(packing)) => Arc::new((packing.unpack)(text)),
            (Slot::Packed(_), None) => unreachable!("a copy packs all or nothing"),
        }
    }

    /// Returns the newest known revision of the collection.
    pub fn newest(&self) -> u64 {
        let state = self.state.read();
        state.objects.values().map(|entry| entry.version).max().unwrap_or(0).max(state.seen)
    }

    /// Reports that the collection's revisions have gone back: everything is listed again, and lower
    /// revisions are accepted.
    pub fn went_back(&self) {
        self.state.write().seen = 0;
        self.revive();
    }

    /// Restarts the watch immediately: called when a member answers again, so that no copy waits for its back-off.
    pub fn revive(&self) {
        self.revive.notify_one();
    }

    /// Removes an object that was deleted at a revision; with 0, whatever version is stored.
    pub fn remove(&self, key: &Key, version: u64) {
        let _in_order = self.order.lock();
        let old = {
            let mut state = self.state.write();
            state.seen = state.seen.max(version);
            match state.objects.get(key) {
                None => return,
                // We have created it again meanwhile.
                Some(known) if version != 0 && known.version > version => return,
                Some(_) => {
                    let parsed = self.recent().and_then(|mut recent| recent.take(key));
                    state.objects.remove(key).map(|entry| Replaced { entry, parsed })
                }
            }
        };
        if let (Some((_, budget)), Some(old)) = (&self.room, &old) {
            budget.exchange(old.entry.size, 0);
        }
        let old = old.map(|replaced| self.reopen(replaced));
        self.tell(&Change { key, old, new: None, ours: false, initial: false });
    }

    fn tell(&self, change: &Change<'_, T>) {
        for told in self.subscribers.read().iter() {
            // A subscriber that panics must not end the watch that all others use.
            if catch_unwind(AssertUnwindSafe(|| told(change))).is_err() {
                PANICS.get_or_create(&[("place", "subscriber")]).inc();
                tracing::error!(object = %change.key, "a subscriber panicked");
            }
        }
    }
}

impl<K: Resource> Mirror<K> {
    /// Puts in an object from the API's answer to one of our writes, unless the watch was faster.
    pub fn note(&self, mut answer: K) {
        let version = answer.meta().resource_version.clone().unwrap_or_default();
        answer.meta_mut().managed_fields = None;
        self.put(&Key::of(&answer), &version, Arc::new(answer));
    }
}

/// Revisions are numbers in every API server we know of; zero stands for one that is not.
fn revision(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// Panics that were caught outside of reconciles.
pub(crate) static PANICS: LazyLock<Counters<1>> = LazyLock::new(|| {
    let counters = Counters::default();
    let help = "Panics that were caught, by where they happened";
    add(|registry| registry.register("karmada_caught_panics", help, Counters::clone(&counters)));
    counters
});

#[cfg(test)]
mod tests;
