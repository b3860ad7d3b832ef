//! Keeps a copy up to date: a list, then its watch, then a list again, or from where the watch was cut if a
//! witness confirms the server's history. It also decides how long to wait between two attempts of a watch,
//! and what to do when a server sends more than the limit.

use std::convert::Infallible;
use std::fmt::Debug;
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::runtime::watcher;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::{Change, Entry, Key, Listing, Mirror, Source, revision};
use crate::room::TooLarge;
use crate::undecoded::Undecoded;
use crate::witness::Vouched;

/// How long a copy waits before it lists again after its watch failed: doubled each time, at most the second.
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How long a copy waits before it lists again because even a single object was too large, or the list did not end.
const TOO_LARGE_REST: Duration = Duration::from_secs(30);
/// How many objects of a cluster a list may show before it is aborted.
const LIST_LIMIT: usize = 1_000_000;

/// The limit for the parsed form of another cluster's object. The largest that etcd stores has 1.5 MiB, and ordinary objects
/// become twenty to thirty times their size. An object of many small parts becomes hundreds of times its size: it is skipped.
const OBJECT_WEIGHT: usize = 64 << 20;
/// Objects up to this size are not estimated: none grows so much that it matters.
const SMALL: usize = 16 << 10;
/// Larger objects of other clusters are parsed one at a time, whichever copy they are for: the estimate is made for JSON values,
/// and some types have much larger parts.
const HEAVY_WEIGHT: usize = 8 << 20;
static HEAVY: Semaphore = Semaphore::const_new(1);

/// How long a watch may be silent: the library asks servers to end one after 290 s.
const SILENCE: Duration = Duration::from_secs(295);
/// The status of a revision that is no longer in the server's history.
const GONE: u16 = 410;

/// How one attempt of a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Stopped,
    /// A new watch was requested.
    Revived,
    /// It failed; `after_list` if the list before it was complete.
    Failed {
        after_list: bool,
    },
    /// The server sends more than the limit; the next attempt uses smaller pages, if possible.
    TooLarge {
        last_try: bool,
    },
}

impl End {
    fn of(error: &kube::Error, mirror_page: &AtomicU32, after_list: bool) -> Self {
        if TooLarge::within(error).is_some() {
            // Smaller pages may help; the limit has already been logged.
            let page = mirror_page.load(Ordering::Relaxed);
            mirror_page.store((page / 4).max(1), Ordering::Relaxed);
            return Self::TooLarge { last_try: page <= 1 };
        }
        tracing::debug!(%error, "watch interrupted");
        Self::Failed { after_list }
    }
}

/// The decision about an object.
#[derive(Debug)]
pub(super) enum Fit {
    /// Parse it, and keep this until then.
    Read(Option<SemaphorePermit<'static>>),
    PassOver,
}

/// Waits for something, unless the copy has to stop or restart meanwhile.
macro_rules! unless_ended {
    ($mirror:expr, $stop:expr, $waited:expr) => {
        tokio::select! {
            () = $stop.cancelled() => return Err(End::Stopped),
            () = $mirror.revive.notified() => return Err(End::Revived),
            found = $waited => found,
        }
    };
}

impl<T> Mirror<T> {
    /// Follows a collection until it is stopped. Then subscribers are dropped: they often hold a reference to the owner of this
    /// mirror.
    pub async fn follow<K>(
        &self,
        api: Api<K>,
        config: watcher::Config,
        stop: CancellationToken,
        convert: impl Fn(K) -> T,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let api = Api::<Undecoded>::all_with(api.clone().into_client(), &api.resource_url().to_owned());
        let mut failures = 0_u32;
        // The revision up to which everything is known.
        let mut position = None;
        loop {
            let Err(end) = self.live(&api, &config, &stop, &convert, &mut position).await;
            let rest = match end {
                End::Stopped => break,
                End::Revived => {
                    (failures, position) = (0, None);
                    continue;
                }
                End::TooLarge { last_try } => {
                    position = None;
                    if last_try { TOO_LARGE_REST } else { FIRST_REST }
                }
                End::Failed { after_list } => {
                    failures = if after_list { 1 } else { failures.saturating_add(1) };
                    rest_after(failures)
                }
            };
            if let Err(end) = self.pause(rest, &stop, &mut failures, &mut position).await {
                debug_assert_eq!(end, End::Stopped, "nothing else ends a pause");
                break;
            }
        }
        self.subscribers.write().clear();
    }

    /// Waits, and longer while it is unknown whether the watch may resume at its position.
    async fn pause(
        &self,
        rest: Duration,
        stop: &CancellationToken,
        failures: &mut u32,
        position: &mut Option<String>,
    ) -> Result<(), End> {
        let (mut rest, mut since) = (rest, Instant::now());
        loop {
            tokio::select! {
                () = stop.cancelled() => return Err(End::Stopped),
                () = self.revive.notified() => {
                    (*failures, *position) = (0, None);
                    return Ok(());
                }
                () = tokio::time::sleep(rest) => {}
            }
            let (Some(known), Some(witness)) = (&position, self.witness.get()) else {
                *position = None;
                return Ok(());
            };
            let vouched = tokio::select! {
                () = stop.cancelled() => return Err(End::Stopped),
                vouched = witness.vouch(since) => vouched,
            };
            match vouched {
                Vouched::Until(revision) => {
                    *position = Some(earlier(known, revision));
                    return Ok(());
                }
                Vouched::Nothing => {
                    *position = None;
                    return Ok(());
                }
                Vouched::Unreachable => {
                    *failures = failures.saturating_add(1);
                    (rest, since) = (rest_after(*failures), Instant::now());
                }
            }
        }
    }

    /// Lists a collection, unless everything up to a position is known, and follows it until the watch fails. Without a
    /// [`Witness`], the next attempt begins with a list again: resuming at the last revision would miss everything if the server
    /// was restored to an older one.
    async fn live<K>(
        &self,
        api: &Api<Undecoded>,
        config: &watcher::Config,
        stop: &CancellationToken,
        convert: &impl Fn(K) -> T,
        position: &mut Option<String>,
    ) -> Result<Infallible, End>
    where
        K: Resource + DeserializeOwned,
    {
        let mut at = match position.clone() {
            Some(known) => known,
            None => self.list(api, config, stop, convert).await?,
        };
        let params = WatchParams {
            label_selector: config.label_selector.clone(),
            field_selector: config.field_selector.clone(),
            timeout: config.timeout,
            bookmarks: config.bookmarks,
            send_initial_events: false,
        };
        let mut ends_early = false;
        loop {
            *position = Some(at.clone());
            let opened = unless_ended!(self, stop, api.watch(&params, &at));
            let events = opened.map_err(|error| {
                if matches!(&error, kube::Error::Api(status) if status.code == GONE) {
                    *position = None;
                }
                End::of(&error, &self.page, true)
            })?;
            let mut events = pin!(events);
            let began = Instant::now();
            loop {
                let event = unless_ended!(self, stop, tokio::time::timeout(SILENCE, events.next()));
                // A server ends a watch now and then, and no event is lost. A broken connection ends it in the same way.
                let Ok(Some(event)) = event else { break };
                match event.map_err(|error| End::of(&error, &self.page, true))? {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        at = version(&object)?;
                        if let Fit::Read(_turn) = unless_ended!(self, stop, self.fit(&object)) {
                            self.apply(&object, convert, Source::Watch);
                        }
                    }
                    WatchEvent::Deleted(object) => {
                        at = version(&object)?;
                        self.remove(&Key::of(&object), revision(&at));
                    }
                    WatchEvent::Bookmark(bookmark) => at = bookmark.metadata.resource_version,
                    WatchEvent::Error(status) => {
                        tracing::debug!(%status, "watch ended by the server");
                        *position = (status.code != GONE).then_some(at);
                        return Err(End::Failed { after_list: true });
                    }
                }
                *position = Some(at.clone());
            }
            // Once is harmless. But a server, or a proxy in front of it, that ends every watch immediately would be asked again
            // without a pause.
            let ended_early = began.elapsed() < FIRST_REST;
            if ended_early && ends_early {
                unless_ended!(self, stop, tokio::time::sleep(FIRST_REST));
            }
            ends_early = ended_early;
        }
    }

    /// Lists a collection, which replaces the known state; returns its revision.
    async fn list<K>(
        &self,
        api: &Api<Undecoded>,
        config: &watcher::Config,
        stop: &CancellationToken,
        convert: &impl Fn(K) -> T,
    ) -> Result<String, End>
    where
        K: Resource + DeserializeOwned,
    {
        let mut params = ListParams {
            label_selector: config.label_selector.clone(),
            field_selector: config.field_selector.clone(),
            limit: Some(self.page.load(Ordering::Relaxed)),
            ..ListParams::default()
        };
        self.begin_list();
        loop {
            let page = unless_ended!(self, stop, api.list(&params));
            let page = page.map_err(|error| End::of(&error, &self.page, false))?;
            for object in page.items {
                if self.is_endless() {
                    tracing::warn!(limit = LIST_LIMIT, "a list does not end and is given up");
                    return Err(End::TooLarge { last_try: true });
                }
                let source = Source::List { first: !self.is_synced() };
                match unless_ended!(self, stop, self.fit(&object)) {
                    Fit::Read(_turn) => self.apply(&object, convert, source),
                    // It exists all the same.
                    Fit::PassOver => self.show(&Key::of(&object)),
                }
                unless_ended!(self, stop, tokio::task::consume_budget());
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                let version = page.metadata.resource_version.filter(|version| !version.is_empty());
                let version = version.ok_or(End::Failed { after_list: false })?;
                self.end_list();
                self.synced.send_replace(true);
                return Ok(version);
            }
        }
    }

    /// Waits until an object may be parsed; returns whether it can be. An object of another cluster that would take too much
    /// memory is skipped, like other unreadable ones; code that needs it reads it from the API and gets the error.
    pub(super) async fn fit(&self, object: &Undecoded) -> Fit {
        if self.room.is_none() || object.size() <= SMALL {
            return Fit::Read(None);
        }
        let weight = object.weight();
        if weight > OBJECT_WEIGHT {
            let (key, size) = (Key::of(object), object.size());
            tracing::warn!(object = %key, size, "an object has too many small parts and is passed over");
            return Fit::PassOver;
        }
        if weight <= HEAVY_WEIGHT {
            return Fit::Read(None);
        }
        Fit::Read(HEAVY.acquire().await.ok())
    }

    /// Notes that a list has shown an object.
    pub(super) fn show(&self, key: &Key) {
        if let Some(listing) = self.state.write().listing.as_mut() {
            listing.shown.insert(key.clone());
        }
    }

    /// A list is about to be requested: it will show everything that was written before now.
    pub(super) fn begin_list(&self) {
        self.state.write().listing = Some(Listing::default());
    }

    /// Returns whether the list of another cluster shows more than any cluster has.
    fn is_endless(&self) -> bool {
        let listed = || self.state.read().listing.as_ref().map_or(0, |listing| listing.shown.len());
        self.room.is_some() && listed() >= LIST_LIMIT
    }

    /// Objects that the list did not show are gone, unless we wrote them since: the watch will report those.
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
            // It must not affect the others; code that needs it reads it from the API and gets the error.
            Err(error) => {
                tracing::warn!(object = %key, %error, "an object cannot be read and is passed over");
                return;
            }
        };
        // Field ownership is often half of an object, and no controller reads it.
        object.meta_mut().managed_fields = None;
        let new = Arc::new(convert(object));
        let _in_order = self.order.lock();
        let old = {
            let mut state = self.state.write();
            state.seen = state.seen.max(version);
            // An answer to one of our writes may have arrived meanwhile.
            if state.is_known(&key, version, source) {
                return;
            }
            let slot = self.keep(&new);
            let size = slot.size().max(undecoded.size());
            if !self.make_room(&state, &key, size) {
                return;
            }
            let replaced = self.replace(&mut state, &key, Entry { version, size, slot }, &new);
            if let (Some(replaced), Some(listing)) = (&replaced, state.listing.as_mut())
                && replaced.entry.version > version
            {
                listing.went_back = true;
            }
            replaced
        };
        let old = old.map(|replaced| self.reopen(replaced));
        let initial = source == Source::List { first: true };
        self.tell(&Change { key: &key, old, new: Some(new), ours: false, initial });
    }
}

/// Returns the revision of an object in a watch; an object without one is an error.
fn version(object: &Undecoded) -> Result<String, End> {
    let version = object.meta().resource_version.clone().filter(|version| !version.is_empty());
    version.ok_or(End::Failed { after_list: true })
}

/// Returns the earlier one of the known and the confirmed revision. Events that are shown twice are
/// recognised and not reported again.
fn earlier(known: &str, vouched: u64) -> String {
    match known.parse::<u64>() {
        Ok(known) => known.min(vouched).to_string(),
        Err(_) => known.to_owned(),
    }
}

/// Returns how long to wait after this many failures in a row; a fifth of it is random, so that not all copies return at once.
pub(super) fn rest_after(failures: u32) -> Duration {
    let rest = FIRST_REST.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_REST);
    let chance = std::hash::RandomState::new().hash_one(failures) % 1024;
    rest.saturating_add(rest.mul_f64(chance as f64 / 1024.0 / 5.0))
}
