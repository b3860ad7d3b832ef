//! A local copy of all objects of one kind, kept by one watch and shared by all who need it.
//!
//! Subscribers are told what changed, after the copy has changed. A watch that breaks is opened again; what a new
//! list shows unchanged is nobody's news.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Namespace and name; the namespace of a cluster-scoped object is empty.
pub(crate) type Key = (String, String);

/// What happened to an object.
pub(crate) struct Change<V> {
    pub(crate) key: Key,
    pub(crate) old: Option<Arc<V>>,
    pub(crate) new: Option<Arc<V>>,
    /// It was found by the first list, so nothing has happened to it that we know of.
    pub(crate) initial: bool,
}

type Subscriber<V> = Box<dyn Fn(&Change<V>) + Send + Sync>;

pub(crate) struct Mirror<V> {
    objects: RwLock<BTreeMap<Key, Entry<V>>>,
    subscribers: RwLock<Vec<Subscriber<V>>>,
    complete: watch::Sender<bool>,
}

struct Entry<V> {
    version: String,
    object: Arc<V>,
}

impl<V> Default for Mirror<V> {
    fn default() -> Self {
        Self {
            objects: RwLock::new(BTreeMap::new()),
            subscribers: RwLock::new(Vec::new()),
            complete: watch::Sender::new(false),
        }
    }
}

impl<V: Send + Sync + 'static> Mirror<V> {
    /// Calls `told` on every change from now on. It must not block.
    pub(crate) fn subscribe(&self, told: impl Fn(&Change<V>) + Send + Sync + 'static) {
        self.subscribers.write().push(Box::new(told));
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<V>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.objects.read().get(&key).map(|entry| Arc::clone(&entry.object))
    }

    /// Returns all objects, in the order of their keys.
    pub(crate) fn all(&self) -> Vec<Arc<V>> {
        self.objects.read().values().map(|entry| Arc::clone(&entry.object)).collect()
    }

    /// Waits until the first list is in.
    pub(crate) async fn complete(&self) {
        // The sender lives as long as `self`, so that waiting cannot fail.
        let _ = self.complete.subscribe().wait_for(|complete| *complete).await;
    }

    /// Keeps the copy until told to stop.
    pub(crate) async fn run<K>(&self, api: Api<K>, convert: impl Fn(K) -> V, stop: CancellationToken)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let events = watcher(api, watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events);
        let mut listed = BTreeSet::new();
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => break,
                event = events.next() => event,
            };
            match event {
                Some(Ok(watcher::Event::Apply(object))) => self.put(object, &convert, false),
                Some(Ok(watcher::Event::Delete(object))) => self.take(key(&object)),
                Some(Ok(watcher::Event::Init)) => listed.clear(),
                Some(Ok(watcher::Event::InitApply(object))) => {
                    listed.insert(key(&object));
                    let initial = !*self.complete.borrow();
                    self.put(object, &convert, initial);
                }
                Some(Ok(watcher::Event::InitDone)) => {
                    let gone: Vec<Key> =
                        self.objects.read().keys().filter(|key| !listed.contains(*key)).cloned().collect();
                    for key in gone {
                        self.take(key);
                    }
                    listed.clear();
                    self.complete.send_replace(true);
                }
                Some(Err(error)) => tracing::debug!(%error, "watch broke"),
                None => break,
            }
        }
        // Subscribers hold what holds this mirror; letting go of them ends the circle.
        self.subscribers.write().clear();
    }

    fn put<K: Resource>(&self, mut object: K, convert: &impl Fn(K) -> V, initial: bool) {
        let key = key(&object);
        object.meta_mut().managed_fields = None;
        let version = object.resource_version().unwrap_or_default();
        let (old, new) = {
            let mut objects = self.objects.write();
            if objects.get(&key).is_some_and(|entry| entry.version == version) {
                return;
            }
            let new = Arc::new(convert(object));
            let old = objects.insert(key.clone(), Entry { version, object: Arc::clone(&new) });
            (old.map(|entry| entry.object), new)
        };
        self.tell(&Change { key, old, new: Some(new), initial });
    }

    fn take(&self, key: Key) {
        let old = self.objects.write().remove(&key);
        if let Some(entry) = old {
            self.tell(&Change { key, old: Some(entry.object), new: None, initial: false });
        }
    }

    fn tell(&self, change: &Change<V>) {
        for told in self.subscribers.read().iter() {
            told(change);
        }
    }
}

fn key<K: Resource>(object: &K) -> Key {
    (object.meta().namespace.clone().unwrap_or_default(), object.meta().name.clone().unwrap_or_default())
}
