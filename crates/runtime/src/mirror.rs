//! A local copy of a collection, kept by one watch, shared by all who need it, that knows its own writes.
//!
//! Objects go in through a conversion, so that a copy keeps only what its users need. Subscribers are told what
//! changed, after the copy has changed. Whoever writes an object puts the answer in at once ([`Mirror::put`]), so that
//! everybody reads it without waiting for the watch; an event that is older than what is there is ignored. A lost
//! watch is made good by a list, which replaces what was known: what is missing from it is reported as deleted, what is
//! unchanged is not reported, and what is older than before is believed, since a server may have been restored from a backup.
//! Only what we wrote ourselves after the list began is kept against it.
//!
//! Objects that are large and seldom looked at lie in a [packed](Mirror::packed) copy as text, which takes a fraction of what they
//! take when unfolded.
//!
//! A copy is a memory, not the truth: "not in the copy" never means "does not exist".

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::watcher;
use kube::{Api, Resource};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::metrics::{Counters, add};
use crate::room::{Budget, TooLarge};
use crate::undecoded::Undecoded;

/// How long a copy waits before it lists again after its watch failed: doubled each time, at most the second.
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How long a copy waits before it lists again because even a single object was too large, or the list did not end.
const TOO_LARGE_REST: Duration = Duration::from_secs(30);
/// How many objects a page of a list has at first.
const PAGE: u32 = 500;
/// How many objects of a cluster a list may show before it is given up.
const LIST_LIMIT: usize = 1_000_000;

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

/// What happened to one object.
#[derive(Debug)]
pub struct Change<'a, T> {
    pub key: &'a Key,
    pub old: Option<Arc<T>>,
    /// `None`: it is gone, or no longer belongs to the collection.
    pub new: Option<Arc<T>>,
    /// We wrote it ourselves.
    pub ours: bool,
    /// It was found by the first list, so nothing has happened to it that we know of.
    pub initial: bool,
}

type Subscriber<T> = Box<dyn Fn(&Change<'_, T>) + Send + Sync>;

/// The copy.
pub struct Mirror<T> {
    state: RwLock<State<T>>,
    subscribers: RwLock<Vec<Subscriber<T>>>,
    /// Held while a change is made and told, so that subscribers hear of changes in their order. Taken before `state`.
    order: Mutex<()>,
    packing: Option<Packing<T>>,
    /// Of another cluster no more is kept than there is room for.
    room: Option<(String, Arc<Budget>)>,
    /// How many objects a page of a list has; fewer after one that was too large.
    page: AtomicU32,
    synced: watch::Sender<bool>,
    revive: Notify,
}

struct State<T> {
    objects: BTreeMap<Key, Entry<T>>,
    /// The newest revision that the watch has told of. What was written before it is already known, or gone again.
    seen: u64,
    /// While a list is under way: what it has shown and what we wrote since it was asked for.
    listing: Option<Listing>,
}

#[derive(Default)]
struct Listing {
    shown: HashSet<Key>,
    written: HashSet<Key>,
    /// It has shown an older revision of something than was known: revisions have gone back.
    went_back: bool,
}

impl<T> State<T> {
    /// Returns whether what a list or watch brings of an object is not news: our own write, or something older than it.
    /// A version that is not a number is always news.
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

/// How one life of a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Stopped,
    /// Somebody wants a new watch now.
    Revived,
    /// It failed; `after_list` if the list before it was complete.
    Failed {
        after_list: bool,
    },
    /// What the server sends is too large; the next try is with smaller pages, if there are any.
    TooLarge {
        last_try: bool,
    },
}

/// An object in the copy.
struct Entry<T> {
    version: u64,
    /// How much of the room it takes.
    size: usize,
    slot: Slot<T>,
}

/// How an object lies in the copy.
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
        }
    }
}

impl<T: Serialize + DeserializeOwned> Mirror<T> {
    /// Returns a copy that keeps its objects as text. Each look at one costs the reading of it.
    pub fn packed() -> Self {
        let packing = Packing {
            pack: |object| {
                let text = serde_json::to_vec(object).expect("an object can be written to memory");
                // A copy of the right size: an allocator may leave what is only shrunk where it is.
                Box::from(text.as_slice())
            },
            unpack: |text| serde_json::from_slice(text).expect("what was packed can be unpacked"),
        };
        Self { packing: Some(packing), ..Self::default() }
    }
}

impl<T> Mirror<T> {
    /// Returns the copy with a limit to what it keeps of a cluster. Without room, objects are passed over: as always,
    /// what is not in the copy may exist all the same.
    pub fn within(self, cluster: &str, budget: Arc<Budget>) -> Self {
        Self { room: Some((cluster.to_owned(), budget)), ..self }
    }

    /// Makes room for an object in place of what is there; returns whether there is any.
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

    /// Calls `told` on every change from now on, also on those put in by us. It must neither block nor write
    /// to this mirror.
    pub fn subscribe(&self, told: impl Fn(&Change<'_, T>) + Send + Sync + 'static) {
        self.subscribers.write().push(Box::new(told));
    }

    /// Returns the object of this namespace and name; without namespace, a cluster-scoped one.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.find(&Key::new(namespace, name))
    }

    /// Returns the object with this key.
    pub fn find(&self, key: &Key) -> Option<Arc<T>> {
        self.state.read().objects.get(key).map(|entry| self.open(&entry.slot))
    }

    /// Returns how new what is here of an object is; 0 if nothing is.
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

    /// Puts in what the API answered to a write of ours, unless the watch was faster.
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
            state.objects.insert(key.clone(), Entry { version, size, slot })
        };
        let old = old.map(|entry| self.open(&entry.slot));
        self.tell(&Change { key, old, new: Some(object), ours: true, initial: false });
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

    /// Returns the newest revision that is known of the collection.
    pub fn newest(&self) -> u64 {
        let state = self.state.read();
        state.objects.values().map(|entry| entry.version).max().unwrap_or(0).max(state.seen)
    }

    /// Says that the collection's revisions have gone back: all is listed anew, and answers with lower revisions count.
    pub fn went_back(&self) {
        self.state.write().seen = 0;
        self.revive();
    }

    /// Begins the watch anew, at once: called when a member answers again, so that nobody waits for the back-off.
    pub fn revive(&self) {
        self.revive.notify_one();
    }

    /// Follows a collection until told to stop. Subscribers are let go then: they often hold what holds this mirror.
    pub async fn follow<K>(
        &self,
        api: Api<K>,
        config: watcher::Config,
        stop: CancellationToken,
        convert: impl Fn(K) -> T,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut failures = 0;
        loop {
            match self.watch(&api, &config, &stop, &convert).await {
                End::Stopped => break,
                End::Revived => failures = 0,
                End::TooLarge { last_try } => {
                    let rest = if last_try { TOO_LARGE_REST } else { FIRST_REST };
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = self.revive.notified() => {}
                        () = tokio::time::sleep(rest) => {}
                    }
                }
                End::Failed { after_list } => {
                    failures = if after_list { 1 } else { failures + 1 };
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = self.revive.notified() => failures = 0,
                        () = tokio::time::sleep(rest_after(failures)) => {}
                    }
                }
            }
        }
        self.subscribers.write().clear();
    }

    /// Lists a collection and follows it until the watch fails. The next life begins with a list again: resuming at the
    /// last revision would miss everything if the server was restored to an older one.
    async fn watch<K>(
        &self,
        api: &Api<K>,
        config: &watcher::Config,
        stop: &CancellationToken,
        convert: &impl Fn(K) -> T,
    ) -> End
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let undecoded = Api::<Undecoded>::all_with(api.clone().into_client(), &api.resource_url().to_owned());
        let config = config.clone().page_size(self.page.load(Ordering::Relaxed));
        let mut events = pin!(watcher(undecoded, config));
        let mut after_list = false;
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return End::Stopped,
                () = self.revive.notified() => return End::Revived,
                event = events.next() => event,
            };
            match event {
                None => return End::Failed { after_list },
                Some(Err(error)) if TooLarge::within(&error).is_some() => {
                    // Smaller pages may do; the limit has told of itself.
                    let page = self.page.load(Ordering::Relaxed);
                    self.page.store((page / 4).max(1), Ordering::Relaxed);
                    return End::TooLarge { last_try: page <= 1 };
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "watch interrupted");
                    return End::Failed { after_list };
                }
                Some(Ok(watcher::Event::Init)) => self.begin_list(),
                Some(Ok(watcher::Event::InitApply(_))) if self.is_endless() => {
                    tracing::warn!(limit = LIST_LIMIT, "a list does not end and is given up");
                    return End::TooLarge { last_try: true };
                }
                Some(Ok(watcher::Event::InitApply(object))) => {
                    self.apply(&object, convert, Source::List { first: !self.is_synced() });
                }
                Some(Ok(watcher::Event::InitDone)) => {
                    self.end_list();
                    after_list = true;
                    self.synced.send_replace(true);
                }
                Some(Ok(watcher::Event::Apply(object))) => self.apply(&object, convert, Source::Watch),
                Some(Ok(watcher::Event::Delete(object))) => {
                    let version = revision(object.meta().resource_version.as_deref().unwrap_or(""));
                    self.remove(&Key::of(&object), version);
                }
            }
        }
    }

    /// A list is about to be asked for: it will show everything that was written before now.
    fn begin_list(&self) {
        self.state.write().listing = Some(Listing::default());
    }

    /// Returns whether the list of another cluster shows more than any cluster has.
    fn is_endless(&self) -> bool {
        let listed = || self.state.read().listing.as_ref().map_or(0, |listing| listing.shown.len());
        self.room.is_some() && listed() >= LIST_LIMIT
    }

    /// What the list did not show is gone, unless we wrote it since: the watch will tell of that.
    fn end_list(&self) {
        let (gone, went_back) = {
            let mut state = self.state.write();
            let Some(Listing { shown, written, went_back }) = state.listing.take() else { return };
            let gone = state.objects.keys().filter(|key| !shown.contains(key) && !written.contains(key));
            (gone.cloned().collect::<Vec<Key>>(), went_back)
        };
        for key in gone {
            self.remove(&key, 0);
        }
        if went_back {
            // Answers to our writes have lower revisions now, too.
            let mut state = self.state.write();
            state.seen = state.objects.values().map(|entry| entry.version).max().unwrap_or(0);
        }
    }

    fn apply<K>(&self, undecoded: &Undecoded, convert: impl Fn(K) -> T, source: Source)
    where
        K: Resource + DeserializeOwned,
    {
        let key = Key::of(undecoded);
        let version = revision(undecoded.meta().resource_version.as_deref().unwrap_or(""));
        {
            let _in_order = self.order.lock();
            let mut state = self.state.write();
            if let Some(listing) = state.listing.as_mut().filter(|_| source != Source::Watch) {
                listing.shown.insert(key.clone());
            }
            if state.is_known(&key, version, source) {
                state.seen = state.seen.max(version);
                return;
            }
        }
        let mut object = match undecoded.read::<K>() {
            Ok(object) => object,
            // The others are not to suffer for it; whoever needs it asks the API and hears what is wrong with it.
            Err(error) => {
                tracing::warn!(object = %key, %error, "an object cannot be read and is passed over");
                return;
            }
        };
        // Field ownership is often half of an object and nobody here asks for it.
        object.meta_mut().managed_fields = None;
        let new = Arc::new(convert(object));
        let _in_order = self.order.lock();
        let old = {
            let mut state = self.state.write();
            state.seen = state.seen.max(version);
            // An answer to a write of ours may have come meanwhile.
            if state.is_known(&key, version, source) {
                return;
            }
            let slot = self.keep(&new);
            let size = slot.size().max(undecoded.size());
            if !self.make_room(&state, &key, size) {
                return;
            }
            let replaced = state.objects.insert(key.clone(), Entry { version, size, slot });
            if let (Some(replaced), Some(listing)) = (&replaced, state.listing.as_mut())
                && replaced.version > version
            {
                listing.went_back = true;
            }
            replaced
        };
        let old = old.map(|entry| self.open(&entry.slot));
        let initial = source == Source::List { first: true };
        self.tell(&Change { key: &key, old, new: Some(new), ours: false, initial });
    }

    /// Takes out an object that was deleted at a revision; with 0, whatever is there.
    pub fn remove(&self, key: &Key, version: u64) {
        let _in_order = self.order.lock();
        let old = {
            let mut state = self.state.write();
            state.seen = state.seen.max(version);
            match state.objects.get(key) {
                None => return,
                // It was made anew meanwhile, by us.
                Some(known) if version != 0 && known.version > version => return,
                Some(_) => state.objects.remove(key),
            }
        };
        if let (Some((_, budget)), Some(old)) = (&self.room, &old) {
            budget.exchange(old.size, 0);
        }
        let old = old.map(|entry| self.open(&entry.slot));
        self.tell(&Change { key, old, new: None, ours: false, initial: false });
    }

    fn tell(&self, change: &Change<'_, T>) {
        for told in self.subscribers.read().iter() {
            // One subscriber that panics must not end the watch that all others live on.
            if catch_unwind(AssertUnwindSafe(|| told(change))).is_err() {
                PANICS.get_or_create(&[("place", "subscriber")]).inc();
                tracing::error!(object = %change.key, "a subscriber panicked");
            }
        }
    }
}

impl<K: Resource> Mirror<K> {
    /// Puts in an object that the API answered to a write of ours, unless the watch was faster.
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

/// Returns how long to rest after so many failures in a row; a fifth of it is chance, so that not all come back at once.
fn rest_after(failures: u32) -> Duration {
    let rest = FIRST_REST.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_REST);
    let chance = std::hash::RandomState::new().hash_one(failures) % 1024;
    rest + rest.mul_f64(chance as f64 / 1024.0 / 5.0)
}

/// Panics that were caught outside of reconciles.
pub(crate) static PANICS: LazyLock<Counters<1>> = LazyLock::new(|| {
    let counters = Counters::default();
    let help = "Panics that were caught, by where they happened";
    add(|registry| registry.register("karmada_caught_panics", help, Counters::clone(&counters)));
    counters
});

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn map(name: &str, version: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.metadata.resource_version = Some(version.to_owned());
        map
    }

    /// A mirror of versions, and what its subscriber was told: the versions before and after.
    fn mirror() -> (Mirror<String>, Arc<Mutex<Vec<String>>>) {
        let (mirror, told) = (Mirror::<String>::default(), Arc::new(Mutex::new(Vec::new())));
        let saying = told.clone();
        mirror.subscribe(move |change| {
            let text =
                |version: &Option<Arc<String>>| version.as_deref().map_or("-", String::as_str).to_owned();
            saying.lock().push(format!("{}>{}", text(&change.old), text(&change.new)));
        });
        (mirror, told)
    }

    fn apply(mirror: &Mirror<String>, version: &str) {
        bring(mirror, version, Source::Watch);
    }

    fn bring(mirror: &Mirror<String>, version: &str, source: Source) {
        let undecoded = serde_json::from_value(serde_json::to_value(map("a", version)).unwrap()).unwrap();
        let convert = |map: ConfigMap| map.metadata.resource_version.unwrap_or_default();
        mirror.apply(&undecoded, convert, source);
    }

    #[test]
    fn an_event_older_than_our_own_write_is_ignored() {
        let (mirror, told) = mirror();
        mirror.put(&Key::new("", "a"), "7", Arc::new("7".to_owned()));
        apply(&mirror, "5");
        apply(&mirror, "7");
        assert_eq!(*told.lock(), ["->7"]);
        apply(&mirror, "8");
        assert_eq!(*told.lock(), ["->7", "7>8"]);
        assert_eq!(mirror.get("", "a").unwrap().as_str(), "8");
    }

    #[test]
    fn a_late_answer_does_not_bring_a_deleted_object_back() {
        let (mirror, told) = mirror();
        let key = Key::new("", "a");
        apply(&mirror, "5");
        mirror.remove(&key, 9);
        mirror.put(&key, "7", Arc::new("7".to_owned()));
        assert_eq!(*told.lock(), ["->5", "5>-"]);
        assert!(mirror.find(&key).is_none());
    }

    fn list(mirror: &Mirror<String>, version: &str) {
        bring(mirror, version, Source::List { first: false });
    }

    #[test]
    fn a_list_with_older_revisions_replaces_what_is_known() {
        let (mirror, told) = mirror();
        let key = Key::new("", "a");
        apply(&mirror, "9");
        mirror.begin_list();
        list(&mirror, "5");
        mirror.end_list();
        assert_eq!(*told.lock(), ["->9", "9>5"]);
        // From here on life goes on at the lower revisions.
        mirror.put(&key, "6", Arc::new("6".to_owned()));
        apply(&mirror, "7");
        assert_eq!(*told.lock(), ["->9", "9>5", "5>6", "6>7"]);
        mirror.remove(&key, 8);
        assert!(mirror.find(&key).is_none());
    }

    #[test]
    fn what_is_written_while_a_list_is_on_its_way_is_newer_than_the_list() {
        let (mirror, told) = mirror();
        apply(&mirror, "5");
        mirror.begin_list();
        mirror.put(&Key::new("", "a"), "7", Arc::new("7".to_owned()));
        mirror.put(&Key::new("", "b"), "8", Arc::new("8".to_owned()));
        list(&mirror, "5");
        mirror.end_list();
        assert_eq!(*told.lock(), ["->5", "5>7", "->8"]);
        assert!(mirror.get("", "b").is_some(), "made after the list was asked for");
        // A list that shows what is known is not reported.
        mirror.begin_list();
        list(&mirror, "7");
        mirror.end_list();
        assert_eq!(told.lock().len(), 4, "b is gone: {:?}", told.lock());
        assert!(mirror.get("", "b").is_none());
    }

    #[test]
    fn a_subscriber_that_panics_harms_nobody_else() {
        let (mirror, told) = (Mirror::<String>::default(), Arc::new(Mutex::new(0)));
        mirror.subscribe(|_| panic!("on purpose"));
        let counted = told.clone();
        mirror.subscribe(move |_| *counted.lock() += 1);
        apply(&mirror, "5");
        apply(&mirror, "6");
        assert_eq!(*told.lock(), 2);
    }

    #[test]
    fn rests_grow_and_differ() {
        let within = |failures: u32, least: u64, most: u64| {
            let rest = rest_after(failures);
            assert!(rest >= Duration::from_millis(least) && rest <= Duration::from_millis(most), "{rest:?}");
        };
        within(1, 500, 600);
        within(2, 1000, 1200);
        within(20, 30_000, 36_000);
    }

    #[test]
    fn a_copy_keeps_no_more_than_there_is_room_for() {
        let budget = Arc::new(Budget::new(250));
        let mirror = Mirror::<ConfigMap>::packed().within("m1", budget.clone());
        let mut large = map("a", "7");
        large.data = Some([("k".to_owned(), "x".repeat(80))].into());
        mirror.note(large);
        let used = budget.used();
        assert!((125..=250).contains(&used), "{used}");
        let mut other = map("b", "8");
        other.data = Some([("k".to_owned(), "x".repeat(80))].into());
        mirror.note(other);
        assert!(mirror.get("", "b").is_none(), "passed over");
        mirror.remove(&Key::new("", "a"), 9);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn of_two_answers_the_newer_one_stays() {
        let (mirror, told) = mirror();
        let key = Key::new("", "a");
        mirror.put(&key, "7", Arc::new("7".to_owned()));
        mirror.put(&key, "6", Arc::new("6".to_owned()));
        assert_eq!(*told.lock(), ["->7"]);
    }

    #[test]
    fn an_old_deletion_spares_what_was_made_anew() {
        let (mirror, told) = mirror();
        let key = Key::new("", "a");
        mirror.put(&key, "12", Arc::new("12".to_owned()));
        mirror.remove(&key, 9);
        assert_eq!(*told.lock(), ["->12"]);
        assert!(mirror.find(&key).is_some());
    }

    #[test]
    fn a_packed_copy_tells_the_same_as_one_that_keeps_objects_whole() {
        let mirror = Mirror::<ConfigMap>::packed();
        let told = Arc::new(Mutex::new(Vec::new()));
        let saying = told.clone();
        mirror.subscribe(move |change| {
            saying.lock().push((change.old.as_deref().cloned(), change.new.as_deref().cloned()));
        });
        mirror.note(map("a", "7"));
        mirror.note(map("a", "8"));
        let key = Key::new("", "a");
        assert_eq!(mirror.find(&key).as_deref(), Some(&map("a", "8")));
        mirror.remove(&key, 9);
        let (seven, eight) = (Some(map("a", "7")), Some(map("a", "8")));
        assert_eq!(*told.lock(), [(None, seven.clone()), (seven, eight.clone()), (eight, None)]);
        assert!(mirror.all().is_empty());
    }
}
