//! A local copy of a collection, kept by a watch, that knows its own writes.
//!
//! Objects go in through a conversion, so that a copy keeps only what its users need. Whoever writes an object puts
//! the answer in at once ([`Mirror::put`]) and reads its own writes; an event that is older than what is there is
//! ignored. A lost watch is made good by a list: what is missing from it is reported as deleted.
//!
//! A copy is a memory, not the truth: "not in the copy" never means "does not exist".

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

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
}

/// The copy.
#[derive(Debug)]
pub struct Mirror<T> {
    state: RwLock<State<T>>,
    synced: watch::Sender<bool>,
    revive: Notify,
}

#[derive(Debug)]
struct State<T> {
    objects: HashMap<Key, (u64, Arc<T>)>,
    /// The newest revision that the watch has told of. What was written before it is already known, or gone again.
    seen: u64,
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self {
            state: RwLock::new(State { objects: HashMap::new(), seen: 0 }),
            synced: watch::Sender::new(false),
            revive: Notify::new(),
        }
    }
}

impl<T> Mirror<T> {
    /// Returns an object.
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.state.read().objects.get(key).map(|(_, object)| object.clone())
    }

    /// Returns everything there is.
    pub fn all(&self) -> Vec<(Key, Arc<T>)> {
        self.state.read().objects.iter().map(|(key, (_, object))| (key.clone(), object.clone())).collect()
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
        let mut synced = self.synced.subscribe();
        tokio::time::timeout(at_most, synced.wait_for(|synced| *synced)).await.is_ok_and(|seen| seen.is_ok())
    }

    /// Puts in what the API answered to a write of ours. Returns the change, or `None` if the watch was faster.
    pub fn put<'a>(&self, key: &'a Key, version: &str, object: T) -> Option<Change<'a, T>> {
        let version = revision(version);
        let mut state = self.state.write();
        if version <= state.seen {
            return None;
        }
        let new = Arc::new(object);
        let old = state.objects.insert(key.clone(), (version, new.clone())).map(|(_, object)| object);
        Some(Change { key, old, new: Some(new), ours: true })
    }

    /// Begins the watch anew, at once: called when a member answers again, so that nobody waits for the back-off.
    pub fn revive(&self) {
        self.revive.notify_one();
    }

    /// Follows a collection until told to stop, reporting every change.
    pub async fn follow<K>(
        &self,
        api: Api<K>,
        config: watcher::Config,
        stop: CancellationToken,
        convert: impl Fn(K) -> T,
        notify: impl Fn(&Change<'_, T>),
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        loop {
            let mut events = pin!(watcher(api.clone(), config.clone()).default_backoff());
            let mut listed = HashSet::new();
            loop {
                let event = tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.revive.notified() => break,
                    event = events.next() => event,
                };
                match event {
                    None => break,
                    Some(Err(error)) => tracing::debug!(%error, "watch interrupted"),
                    Some(Ok(watcher::Event::Init)) => listed.clear(),
                    Some(Ok(watcher::Event::InitApply(object))) => {
                        listed.insert(Key::of(&object));
                        self.apply(object, &convert, &notify);
                    }
                    Some(Ok(watcher::Event::InitDone)) => {
                        for key in self.keys(|key| !listed.contains(key)) {
                            self.remove(&key, 0, &notify);
                        }
                        self.synced.send_replace(true);
                    }
                    Some(Ok(watcher::Event::Apply(object))) => self.apply(object, &convert, &notify),
                    Some(Ok(watcher::Event::Delete(object))) => {
                        let version = revision(object.meta().resource_version.as_deref().unwrap_or(""));
                        self.remove(&Key::of(&object), version, &notify);
                    }
                }
            }
        }
    }

    fn apply<K: Resource>(&self, object: K, convert: impl Fn(K) -> T, notify: impl Fn(&Change<'_, T>)) {
        let key = Key::of(&object);
        let version = revision(object.meta().resource_version.as_deref().unwrap_or(""));
        let new = Arc::new(convert(object));
        let old = {
            let mut state = self.state.write();
            state.seen = state.seen.max(version);
            match state.objects.get(&key) {
                // Our own write, or something older than it. A version that is no number is always news.
                Some((known, _)) if version != 0 && *known >= version => return,
                _ => state.objects.insert(key.clone(), (version, new.clone())).map(|(_, object)| object),
            }
        };
        notify(&Change { key: &key, old, new: Some(new), ours: false });
    }

    fn remove(&self, key: &Key, version: u64, notify: impl Fn(&Change<'_, T>)) {
        let old = {
            let mut state = self.state.write();
            state.seen = state.seen.max(version);
            match state.objects.get(key) {
                None => return,
                // It was made anew meanwhile, by us.
                Some((known, _)) if version != 0 && *known > version => return,
                Some(_) => state.objects.remove(key).map(|(_, object)| object),
            }
        };
        notify(&Change { key, old, new: None, ours: false });
    }
}

/// Revisions are numbers in every API server we know of; zero stands for one that is not.
fn revision(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use parking_lot::Mutex;

    use super::*;

    fn map(name: &str, version: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.metadata.resource_version = Some(version.to_owned());
        map
    }

    fn version(map: ConfigMap) -> String {
        map.metadata.resource_version.unwrap_or_default()
    }

    #[test]
    fn an_event_older_than_our_own_write_is_ignored() {
        let mirror = Mirror::default();
        let key = Key::new("", "a");
        assert!(mirror.put(&key, "7", "7".to_owned()).is_some());
        let told = Mutex::new(0);
        mirror.apply(map("a", "5"), version, |_| *told.lock() += 1);
        mirror.apply(map("a", "7"), version, |_| *told.lock() += 1);
        assert_eq!((*told.lock(), mirror.get(&key).unwrap().as_str()), (0, "7"));
        mirror.apply(map("a", "8"), version, |change| {
            assert_eq!(change.old.as_deref().map(String::as_str), Some("7"));
            *told.lock() += 1;
        });
        assert_eq!((*told.lock(), mirror.get(&key).unwrap().as_str()), (1, "8"));
    }

    #[test]
    fn a_late_answer_does_not_bring_a_deleted_object_back() {
        let mirror = Mirror::default();
        let key = Key::new("", "a");
        mirror.apply(map("a", "5"), version, |_| {});
        mirror.remove(&key, 9, |_| {});
        assert!(mirror.put(&key, "7", "7".to_owned()).is_none());
        assert!(mirror.get(&key).is_none());
    }

    #[test]
    fn an_old_deletion_spares_what_was_made_anew() {
        let mirror = Mirror::default();
        let key = Key::new("", "a");
        assert!(mirror.put(&key, "12", "12".to_owned()).is_some());
        mirror.remove(&key, 9, |_| panic!("nothing happened"));
        assert!(mirror.get(&key).is_some());
    }
}
