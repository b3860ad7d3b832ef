//! Follows one collection of one member: lists it once, then resumes its watch for as long as the member lets us.
//!
//! Which answers of a member are believed:
//! - A list replaces the known state, unless its version is older: a server that lags behind answers like that, and so does one
//!   that was restored. Only after several such answers in a row have the versions really gone back.
//! - An empty list instead of objects is believed when a second one says the same.
//! - After a failure, or a long silence, the watch resumes where it was. A short list before that shows whether the member
//!   answers and whether its versions have gone back.
//! - A page that is too large is requested again with fewer objects.
//! - Objects that are listed again and have not changed stay as they are. New ones need room from the moment they are read.
//!
//! While a member is silent, or takes too long to answer, its known state remains and is marked as stale.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use runtime::room::Budget;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Full, Place, Stale};
use crate::entry::Entry;
pub use crate::source::{Error, Event, Events, Items, Page, Source};

/// How many objects a page has at first.
const PAGE: u32 = 500;
/// No member has more objects of a kind; a list that continues beyond this is broken.
const LIST_LIMIT: usize = 2_000_000;
/// After this time without an answer, a member counts as stale.
const SLOW: Duration = Duration::from_secs(5);
/// The time limit for a page.
const PAGE_DEADLINE: Duration = Duration::from_secs(60);
/// The minimum duration of a watch, in seconds; it ends by itself and is resumed.
const WATCH_SECONDS: std::ops::Range<u64> = 300..600;
/// How long a watch may be silent before the member is probed. Members report their version about once a minute, but need not.
/// Connections whose packets are dropped report nothing.
const SILENCE: Duration = Duration::from_secs(90);
/// The pauses after failures: doubled each time, up to the second value.
const FIRST_REST: Duration = Duration::from_millis(250);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// After this many answers with an older version in a row, they are believed.
const BACK: u32 = 3;

/// How long a follower waits after a failure: at first, and at most. Tests wait for a moment only.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    pub first_rest: Duration,
    pub longest_rest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first_rest: FIRST_REST, longest_rest: LONGEST_REST }
    }
}

/// A failure.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error(transparent)]
    Source(#[from] Error),
    #[error(transparent)]
    Full(#[from] Full),
    #[error("it does not answer within {} s", .0.as_secs())]
    Slow(Duration),
    #[error("it answers with resource version {now}, and {before} was known")]
    Older { now: u64, before: u64 },
    #[error("an object cannot be kept: {0}")]
    Object(#[from] crate::entry::Unusable),
    #[error("its list does not end")]
    Endless,
}

/// Follows a collection.
pub struct Follower {
    pub cache: Arc<Cache>,
    pub place: Place,
    pub source: Box<dyn Source>,
    pub backoff: Backoff,
}

/// How a watch ends without trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// In order.
    Itself,
    /// It has been silent for long, or should have ended: the member may have forgotten it, or be away.
    Silence,
}

/// The state between two attempts.
#[derive(Debug, Default)]
struct Known {
    /// Where the watch resumes; `None` if everything must be listed.
    at: Option<u64>,
    /// The last attempt failed, or ended in silence.
    shaken: bool,
    /// How often in a row the member has answered with an older version.
    older: u32,
    page: Option<u32>,
}

impl Follower {
    /// Follows until it is stopped.
    pub async fn run(&self, stop: &CancellationToken) {
        // A follower before this one may have left a version from which to resume.
        let mut known =
            Known { at: self.cache.versions().get(&self.place), shaken: true, ..Known::default() };
        let mut failures: u32 = 0;
        loop {
            let before = known.at;
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = self.once(&mut known) => outcome,
            };
            let trouble = match outcome {
                Ok(end) => {
                    failures = 0;
                    known.shaken = end == End::Silence;
                    continue;
                }
                Err(trouble) => trouble,
            };
            failures = if known.at != before { 1 } else { failures.saturating_add(1) };
            known.shaken = true;
            let smaller = self.judge(&trouble, &mut known);
            tracing::debug!(place = %self.place, kind = self.cache.kind.plural, error = %trouble, "not followed");
            if smaller {
                failures = failures.min(1);
            } else {
                self.mark_stale(trouble.to_string());
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.rest(failures)) => {}
            }
        }
    }

    fn mark_stale(&self, why: String) {
        let since = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string();
        self.cache.mark(&self.place, Some(Stale { since: since.into(), why }));
    }

    /// Waits for an answer for a limited time, and marks the place as stale soon if none arrives.
    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Trouble> {
        let mut answer = std::pin::pin!(answer);
        if let Ok(answer) = tokio::time::timeout(SLOW, &mut answer).await {
            return Ok(answer?);
        }
        self.mark_stale(format!("it does not answer within {} s", SLOW.as_secs()));
        match tokio::time::timeout(PAGE_DEADLINE.saturating_sub(SLOW), answer).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Trouble::Slow(PAGE_DEADLINE)),
        }
    }

    fn rest(&self, failures: u32) -> Duration {
        let rest =
            self.backoff.first_rest.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(10)));
        // A fifth is random, so that not all followers return at the same time.
        rest.min(self.backoff.longest_rest).mul_f64(rand::random_range(1.0..1.2))
    }

    /// Decides how to continue after a failure. Returns whether the next attempt is a smaller one.
    fn judge(&self, trouble: &Trouble, known: &mut Known) -> bool {
        match trouble {
            Trouble::Source(Error::Expired) => {
                known.at = None;
                true
            }
            Trouble::Source(Error::TooLarge(_)) => {
                let page = known.page.unwrap_or(PAGE);
                // Even a single object was too large, so nothing is lost by requesting many again.
                known.page = (page > 1).then(|| (page / 4).max(1));
                page > 1
            }
            Trouble::Older { .. } | Trouble::Full(_) | Trouble::Object(_) => {
                known.at = None;
                false
            }
            Trouble::Source(Error::Unreadable(_)) => {
                known.at = None;
                false
            }
            Trouble::Source(_) | Trouble::Slow(_) | Trouble::Endless => false,
        }
    }

    /// Lists if necessary, and watches until the watch ends.
    async fn once(&self, known: &mut Known) -> Result<End, Trouble> {
        let at = match known.at {
            Some(at) if known.shaken => {
                let page = self.in_time(self.source.list(1, "")).await?;
                if page.version < at {
                    known.at = None;
                    return Err(Trouble::Older { now: page.version, before: at });
                }
                at
            }
            Some(at) => at,
            None => self.list(known).await?,
        };
        known.at = Some(at);
        let seconds = rand::random_range(WATCH_SECONDS);
        let watch = self.source.watch(at, seconds);
        let mut events = self.in_time(watch).await?;
        self.cache.mark(&self.place, None);
        let end = in_future(Duration::from_secs(seconds.saturating_add(30)));
        loop {
            let event = match tokio::time::timeout_at(end.min(in_future(SILENCE)), events.next()).await {
                Ok(Some(event)) => event?,
                Ok(None) => return Ok(End::Itself),
                Err(_) => return Ok(End::Silence),
            };
            known.at = Some(self.apply(event, known.at.unwrap_or(at))?);
            known.shaken = false;
        }
    }

    fn apply(&self, event: Event, at: u64) -> Result<u64, Trouble> {
        match event {
            Event::Put(object) => {
                let entry = self.entry(object)?;
                let now = entry.revision;
                self.cache.put(&self.place, entry)?;
                Ok(now.max(at))
            }
            Event::Gone(object) => {
                let entry = self.entry(object)?;
                self.cache.remove(&self.place, &entry);
                Ok(entry.revision.max(at))
            }
            Event::Progress(now) if now < at => Err(Trouble::Older { now, before: at }),
            Event::Progress(now) => {
                self.cache.progress(&self.place, now);
                Ok(now)
            }
        }
    }

    fn entry(&self, object: Value) -> Result<Entry, Trouble> {
        Ok(Entry::new(&self.cache.kind, object)?)
    }

    /// Lists everything. Returns the version of the list.
    async fn list(&self, known: &mut Known) -> Result<u64, Trouble> {
        let before = self.cache.versions().get(&self.place);
        let mut read = self.pages(known).await?;
        if read.is_empty() && self.has_objects() {
            read = self.pages(known).await?;
        }
        let version = read.version.unwrap_or(0);
        if let Some(before) = before.filter(|before| version < *before) {
            known.older = known.older.saturating_add(1);
            if known.older < BACK {
                return Err(Trouble::Older { now: version, before });
            }
            tracing::warn!(place = %self.place, before, now = version, "a member's resource versions have gone back");
        }
        known.older = 0;
        known.page = None;
        let Read { new, same, reserved, .. } = read;
        drop(reserved);
        self.cache.replace_but(&self.place, version, new, &same)?;
        Ok(version)
    }

    fn has_objects(&self) -> bool {
        let listed = self.cache.list("", None, |place, _| {
            if *place == self.place { crate::cache::Take::Enough } else { crate::cache::Take::No }
        });
        listed.rest
    }

    async fn pages(&self, known: &mut Known) -> Result<Read, Trouble> {
        let limit = known.page.unwrap_or(PAGE);
        let mut pages: usize = 0;
        let mut next = String::new();
        let mut read = Read::new(&self.cache.budget);
        loop {
            let page = self.in_time(self.source.list(limit, &next)).await?;
            let version = *read.version.get_or_insert(page.version);
            for object in page.items {
                self.take(object?, &mut read)?;
            }
            // A member could also answer with empty pages for ever.
            pages = pages.saturating_add(1);
            if read.new.len().saturating_add(read.same.len()) > LIST_LIMIT || pages > LIST_LIMIT / 100 {
                return Err(Trouble::Endless);
            }
            if page.next.is_empty() {
                read.version = Some(version);
                return Ok(read);
            }
            next = page.next;
        }
    }

    /// Adds an object of a list. Known objects are not created again.
    fn take(&self, object: Value, read: &mut Read) -> Result<(), Trouble> {
        if let Some(key) = self.cache.knows(&self.place, &object) {
            read.same.insert(key);
            return Ok(());
        }
        match Entry::new(&self.cache.kind, object) {
            Ok(entry) => {
                read.reserved.add(entry.cost())?;
                read.new.push(entry);
            }
            // Other objects must not suffer for it.
            Err(error) => tracing::warn!(place = %self.place, %error, "an object is passed over"),
        }
        Ok(())
    }
}

/// Returns the moment after a duration from now.
pub(crate) fn in_future(time: Duration) -> tokio::time::Instant {
    let now = tokio::time::Instant::now();
    now.checked_add(time).unwrap_or(now)
}

/// The pages of a list read so far.
struct Read {
    version: Option<u64>,
    new: Vec<Entry>,
    /// The keys of unchanged objects.
    same: BTreeSet<Box<str>>,
    reserved: Reserved,
}

impl Read {
    fn new(budget: &Arc<Budget>) -> Self {
        let reserved = Reserved { budget: budget.clone(), bytes: 0 };
        Self { version: None, new: Vec::new(), same: BTreeSet::new(), reserved }
    }

    fn is_empty(&self) -> bool {
        self.new.is_empty() && self.same.is_empty()
    }
}

/// Room for objects that have been read but are not in the cache yet, so that several long lists at once do not exceed the limit.
struct Reserved {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Reserved {
    fn add(&mut self, bytes: usize) -> Result<(), Full> {
        if !self.budget.exchange(0, bytes) {
            return Err(Full { limit: self.budget.limit() });
        }
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.exchange(self.bytes, 0);
    }
}

#[cfg(test)]
mod tests;
