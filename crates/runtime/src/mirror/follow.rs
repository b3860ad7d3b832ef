//! Keeps a copy up to date: a list, then its watch, then again from the list. Also how long to rest between two lives of a watch, and
//! what to do when a server sends more than is taken.

use std::fmt::Debug;
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::watcher;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{Change, Entry, Key, Listing, Mirror, Source, revision};
use crate::room::TooLarge;
use crate::undecoded::Undecoded;

/// How long a copy waits before it lists again after its watch failed: doubled each time, at most the second.
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How long a copy waits before it lists again because even a single object was too large, or the list did not end.
const TOO_LARGE_REST: Duration = Duration::from_secs(30);
/// How many objects of a cluster a list may show before it is given up.
const LIST_LIMIT: usize = 1_000_000;

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

impl<T> Mirror<T> {
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
    pub(super) fn begin_list(&self) {
        self.state.write().listing = Some(Listing::default());
    }

    /// Returns whether the list of another cluster shows more than any cluster has.
    fn is_endless(&self) -> bool {
        let listed = || self.state.read().listing.as_ref().map_or(0, |listing| listing.shown.len());
        self.room.is_some() && listed() >= LIST_LIMIT
    }

    /// What the list did not show is gone, unless we wrote it since: the watch will tell of that.
    pub(super) fn end_list(&self) {
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

    pub(super) fn apply<K>(&self, undecoded: &Undecoded, convert: impl Fn(K) -> T, source: Source)
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
}

/// Returns how long to rest after so many failures in a row; a fifth of it is chance, so that not all come back at once.
pub(super) fn rest_after(failures: u32) -> Duration {
    let rest = FIRST_REST.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_REST);
    let chance = std::hash::RandomState::new().hash_one(failures) % 1024;
    rest + rest.mul_f64(chance as f64 / 1024.0 / 5.0)
}
