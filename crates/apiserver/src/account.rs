//! What one user holds in memory: requests that are being read or handled, and answers that are not sent yet.
//!
//! All users together have budgets, too, since one who may make accounts can be many users. When one is used up, only users who
//! hold little get more.
//!
//! An account exists as long as something is charged to it, or a request of its user is in progress.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// What one user may hold in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Bytes of requests that are being read or handled. All clients together may have eight times as much, and a quarter of that
    /// again is for those who have little.
    pub reading: usize,
    /// Bytes of answers that the client has not read yet. All clients together may hold eight times as much.
    pub unsent: usize,
    /// An answer other than a watch is broken off if it makes no progress for this long.
    pub stall: Duration,
}

impl Default for Budgets {
    fn default() -> Self {
        Self { reading: 64 << 20, unsent: 64 << 20, stall: Duration::from_secs(30) }
    }
}

/// How many users may leave a full budget unread. Beyond that, only users who have left little unread get more.
const USERS: usize = 8;
/// A user has left little unread if it is at most this fraction of the budget.
const LITTLE: usize = 64;
/// A user has few bodies if they are at most this fraction of the budget: one of the largest, by default.
const FEW: usize = 16;

type Known = Mutex<HashMap<String, Weak<Account>>>;

/// The accounts of all users.
#[derive(Debug)]
pub(crate) struct Accounts {
    budgets: Budgets,
    all: Arc<All>,
}

/// What all accounts share.
#[derive(Debug)]
struct All {
    known: Known,
    /// What has arrived of all bodies that are being read or handled.
    arrived: Arc<Pool>,
    /// What handling takes for all large bodies.
    handling: Arc<Pool>,
    /// What all users together have not read yet.
    unsent: AtomicUsize,
    /// All users together are within the budget again.
    freed: Notify,
}

impl Accounts {
    pub(crate) fn new(budgets: Budgets) -> Self {
        let bodies = (kilobytes(budgets.reading) as usize).saturating_mul(1024).saturating_mul(USERS);
        let all = All {
            known: Known::default(),
            arrived: Pool::new(bodies),
            handling: Pool::new(bodies),
            unsent: AtomicUsize::default(),
            freed: Notify::default(),
        };
        Self { budgets, all: Arc::new(all) }
    }

    /// Returns the account of a user.
    pub(crate) fn of(&self, name: &str) -> Arc<Account> {
        let mut known = self.all.known.lock();
        if let Some(account) = known.get(name).and_then(Weak::upgrade) {
            return account;
        }
        let account = Arc::new(Account::new(name, self.budgets, &self.all));
        known.insert(name.to_owned(), Arc::downgrade(&account));
        account
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.known.lock().is_empty()
    }
}

/// What a user holds in memory.
#[derive(Debug)]
pub(crate) struct Account {
    name: String,
    /// In kilobytes, so that a semaphore can count it.
    reading: Arc<Semaphore>,
    /// The same amount again, for large bodies that have been read and are being handled.
    handling: Arc<Semaphore>,
    all_reading: u32,
    unsent: AtomicUsize,
    budget: usize,
    /// The user is within the budget again.
    freed: Notify,
    all: Arc<All>,
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut known = self.all.known.lock();
        // A new account with this name may exist by now.
        if known.get(&self.name).is_some_and(|account| account.strong_count() == 0) {
            known.remove(&self.name);
        }
    }
}

/// The size of smaller bodies is a good estimate of what they cost, however they are written.
const SMALL: usize = 64 << 10;
/// The charge for each part of a body (a field, an item, a line), in addition to its bytes. A Pod of 25,000 volumes and mounts
/// takes about 1,050 bytes for each part at its peak. Half of that is charged, since few bodies are that bad.
const PART: usize = 512;

/// Returns the charge for a body while it is handled: 2 MiB of small parts become trees of 180 MiB.
fn handled(body: &[u8]) -> usize {
    // These bytes start parts of JSON, lines of YAML, and usually messages of protobuf, by their first field.
    let parts = body.iter().filter(|byte| matches!(byte, b',' | b'{' | b'[' | b'\n')).count();
    body.len().saturating_add(parts.saturating_mul(PART))
}

fn kilobytes(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).max(1)
}

impl Account {
    fn new(name: &str, budgets: Budgets, all: &Arc<All>) -> Self {
        let all_reading = kilobytes(budgets.reading);
        Self {
            name: name.to_owned(),
            reading: Arc::new(Semaphore::new(all_reading as usize)),
            handling: Arc::new(Semaphore::new(all_reading as usize)),
            all_reading,
            unsent: AtomicUsize::new(0),
            budget: budgets.unsent,
            freed: Notify::new(),
            all: all.clone(),
        }
    }

    #[cfg(test)]
    pub(crate) fn within(unsent: usize) -> Arc<Self> {
        Accounts::new(Budgets { unsent, ..Budgets::default() }).of("someone")
    }

    /// Waits until a body of this many bytes may be read.
    pub(crate) async fn read(&self, bytes: usize) -> Reading {
        // A body that is larger than the budget waits for the whole budget.
        let wanted = kilobytes(bytes).min(self.all_reading);
        let permit = self.reading.clone().acquire_many_owned(wanted).await;
        let permit = permit.expect("the semaphore is never closed");
        Reading { permit, arrived: Share::none_of(&self.all.arrived), handling: None }
    }

    /// Waits until all users together have room for bytes of a body that have just arrived. Only what has arrived counts, so that
    /// whoever announces much and sends nothing keeps nobody out.
    pub(crate) async fn arrive(&self, reading: &mut Reading, bytes: usize) {
        // As for the user's own budget, a body that is larger than that counts as the whole of it.
        let left = (self.all_reading as usize).saturating_mul(1024).saturating_sub(reading.arrived.bytes);
        reading.arrived.grow(bytes.min(left), || self.has_few(&self.reading)).await;
    }

    /// Returns whether what the user holds of a budget is little.
    fn has_few(&self, own: &Semaphore) -> bool {
        let all = self.all_reading as usize;
        all.saturating_sub(own.available_permits()) <= all / FEW
    }

    /// Waits until a body that has been read may be handled, which takes more memory than its bytes. This has a separate budget:
    /// with a shared one, bodies that wait here could block each other.
    pub(crate) async fn handle(&self, reading: &mut Reading, body: &[u8]) {
        if body.len() <= SMALL {
            return;
        }
        let wanted = kilobytes(handled(body)).min(self.all_reading);
        let permit = self.handling.clone().acquire_many_owned(wanted).await;
        let permit = permit.expect("the semaphore is never closed");
        let mut share = Share::none_of(&self.all.handling);
        share.grow((wanted as usize).saturating_mul(1024), || self.has_few(&self.handling)).await;
        reading.handling = Some((permit, share));
    }

    /// Returns whether the user has left too much unread, or all users together have, and this user is not a modest one.
    pub(crate) fn is_over(&self) -> bool {
        let unsent = self.unsent.load(Ordering::Relaxed);
        unsent > self.budget || unsent > self.budget / LITTLE && self.are_all_over()
    }

    fn are_all_over(&self) -> bool {
        self.all.unsent.load(Ordering::Relaxed) > self.all_budget()
    }

    fn all_budget(&self) -> usize {
        self.budget.saturating_mul(USERS)
    }

    /// Waits until the user is within the budget.
    pub(crate) async fn room(&self) {
        while self.is_over() {
            let (freed, all_freed) = (self.freed.notified(), self.all.freed.notified());
            if !self.is_over() {
                return;
            }
            tokio::select! {
                () = freed => {}
                () = all_freed => {}
            }
        }
    }

    fn add(&self, bytes: usize) {
        self.unsent.fetch_add(bytes, Ordering::Relaxed);
        self.all.unsent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Charges the account for an answer before it is made. The charge ends when the returned value is dropped. Returns `None` if
    /// the user is already over the budget.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        if self.is_over() {
            return None;
        }
        self.add(bytes);
        Some(Held { bytes, account: self.clone() })
    }

    fn release(&self, bytes: usize) {
        let crosses = |before: usize, limit: usize| before > limit && before.saturating_sub(bytes) <= limit;
        let before = self.unsent.fetch_sub(bytes, Ordering::Relaxed);
        let all_before = self.all.unsent.fetch_sub(bytes, Ordering::Relaxed);
        if crosses(before, self.budget) || crosses(before, self.budget / LITTLE) {
            self.freed.notify_waiters();
        }
        if crosses(all_before, self.all_budget()) {
            self.all.freed.notify_waiters();
        }
    }

    /// Returns bytes that are charged to this account until their last copy is dropped, wherever it is.
    pub(crate) fn charged(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.add(bytes.len());
        Bytes::from_owner(Charged { bytes, account: self.clone() })
    }

    #[cfg(test)]
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }
}

/// Bytes of a request, counted until the request is answered.
#[derive(Debug)]
pub(crate) struct Reading {
    permit: OwnedSemaphorePermit,
    arrived: Share,
    /// For the memory that handling takes; released together with the bytes.
    handling: Option<(OwnedSemaphorePermit, Share)>,
}

impl Reading {
    /// Reduces the charge to the bytes that actually arrived.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let held = self.permit.num_permits();
        let _surplus = self.permit.split(held.saturating_sub(kilobytes(bytes) as usize));
    }
}

/// A budget of all users together.
#[derive(Debug)]
struct Pool {
    limit: usize,
    used: AtomicUsize,
    freed: Notify,
}

impl Pool {
    fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::default(), freed: Notify::default() })
    }

    /// Takes bytes, if there are so many. A quarter more is for users who have few bodies. It is a fixed amount, since the number of
    /// such users is not: one who may make accounts makes as many as it takes.
    fn take(&self, bytes: usize, has_few: bool) -> bool {
        let limit = if has_few { self.limit.saturating_add(self.limit / 4) } else { self.limit };
        let grown = |used: usize| Some(used.saturating_add(bytes)).filter(|wanted| *wanted <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }
}

/// Bytes of a pool, which are free again when this is dropped.
#[derive(Debug)]
struct Share {
    bytes: usize,
    pool: Arc<Pool>,
}

impl Share {
    fn none_of(pool: &Arc<Pool>) -> Self {
        Self { bytes: 0, pool: pool.clone() }
    }

    /// Waits until the pool has so many bytes more.
    async fn grow(&mut self, bytes: usize, has_few: impl Fn() -> bool) {
        loop {
            // Made before the look, so that nothing is missed that is freed after it.
            let freed = self.pool.freed.notified();
            if self.pool.take(bytes, has_few()) {
                break;
            }
            freed.await;
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.pool.used.fetch_sub(self.bytes, Ordering::Relaxed);
            self.pool.freed.notify_waiters();
        }
    }
}

/// Bytes with the account to which they are charged.
struct Charged {
    bytes: Bytes,
    account: Arc<Account>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.account.release(self.bytes.len());
    }
}

/// An answer that is being made or sent, counted until it is dropped.
#[derive(Debug)]
pub struct Held {
    bytes: usize,
    account: Arc<Account>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn bodies_that_are_read_are_within_a_budget() {
        let accounts = Accounts::new(Budgets { reading: 10 * 1024, ..Budgets::default() });
        let account = accounts.of("someone");
        let mut first = account.read(8 * 1024).now_or_never().unwrap();
        assert!(accounts.of("someone").read(4 * 1024).now_or_never().is_none());
        assert!(accounts.of("other").read(4 * 1024).now_or_never().is_some());
        first.shrink(1024);
        assert!(account.read(4 * 1024).now_or_never().is_some());
        drop(first);
        assert!(
            account.read(1 << 30).now_or_never().is_some(),
            "what is larger than the budget is read alone"
        );
    }

    #[test]
    fn finding_25_bodies_of_many_small_parts_count_as_what_they_become() {
        let text = format!("[\"{}\"]", "x".repeat(1 << 20));
        let parts = format!("[{}0]", "0,".repeat(1 << 19));
        assert_eq!(handled(text.as_bytes()), text.len() + PART);
        assert_eq!(handled(parts.as_bytes()), parts.len() + ((1 << 19) + 1) * PART);

        let account = Accounts::new(Budgets { reading: 8 << 20, ..Budgets::default() }).of("someone");
        let [mut first, mut second, mut third] =
            [(); 3].map(|()| account.read(1 << 20).now_or_never().unwrap());
        assert!(
            account.handle(&mut first, parts.as_bytes()).now_or_never().is_some(),
            "it takes all there is"
        );
        assert!(account.handle(&mut second, parts.as_bytes()).now_or_never().is_none(), "one at a time");
        assert!(account.handle(&mut third, b"[0,0,0]").now_or_never().is_some(), "small ones do not wait");
        drop(first);
        assert!(account.handle(&mut second, text.as_bytes()).now_or_never().is_some());
        assert!(account.handle(&mut third, text.as_bytes()).now_or_never().is_some(), "text is what it is");
    }

    #[test]
    fn finding_25_bodies_of_many_accounts_have_a_limit_together() {
        const WHOLE: usize = 1 << 20;
        let accounts = Accounts::new(Budgets { reading: WHOLE, ..Budgets::default() });
        let arrives = |name: &str, bytes: usize| {
            let account = accounts.of(name);
            let mut reading = account.read(bytes).now_or_never().expect("it is within the user's own budget");
            account.arrive(&mut reading, bytes).now_or_never().map(|()| reading)
        };
        let mut held: Vec<_> = (0..USERS).map(|number| arrives(&format!("user-{number}"), WHOLE)).collect();
        assert!(held.iter().all(Option::is_some), "all together may have as much");
        assert!(arrives("another", WHOLE).is_none());

        // A user who announced a body and sent nothing of it is charged nothing.
        let slow = accounts.of("slow");
        let mut waiting = slow.read(WHOLE).now_or_never().expect("it is within the user's own budget");
        assert!(slow.arrive(&mut waiting, 1024).now_or_never().is_none(), "it has announced too much");

        let few = WHOLE / FEW;
        let kept: Vec<_> =
            (0..USERS * FEW / 4).map(|number| arrives(&format!("few-{number}"), few)).collect();
        assert!(kept.iter().all(Option::is_some), "a quarter more is for those who have little");
        assert!(arrives("one too many", few).is_none(), "many small ones are much, too");
        drop(kept);
        held.pop();
        assert!(slow.arrive(&mut waiting, WHOLE).now_or_never().is_some());
        assert!(arrives("another", WHOLE).is_none());
        drop((waiting, held));
        assert_eq!(accounts.all.arrived.used.load(Ordering::Relaxed), 0);
        assert!(arrives("another", 100 * WHOLE).is_some(), "what is larger than a budget counts as one");
    }

    #[test]
    fn finding_25_what_bodies_of_many_accounts_become_has_a_limit_together() {
        let accounts = Accounts::new(Budgets { reading: 1 << 20, ..Budgets::default() });
        let text = vec![b' '; 1 << 20];
        let handles = |name: &str, body: &[u8]| {
            let account = accounts.of(name);
            let mut reading = account.read(body.len()).now_or_never().expect("it is the user's first");
            account.handle(&mut reading, body).now_or_never().map(|()| reading)
        };
        let held: Vec<_> = (0..USERS).map(|number| handles(&format!("user-{number}"), &text)).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(handles("another", &text).is_none());
        assert!(handles("another", b"{}").is_some(), "small ones do not wait");
        drop(held);
        assert!(handles("another", &text).is_some());
    }

    #[tokio::test]
    async fn a_body_goes_on_when_others_are_done() {
        let accounts = Accounts::new(Budgets { reading: 1024, ..Budgets::default() });
        let (greedy, account) = (accounts.of("greedy"), accounts.of("someone"));
        let mut first = greedy.read(1024).await;
        first.arrived.grow(1024 * USERS, || false).await;
        let mut reading = account.read(1024).await;
        {
            let arriving = account.arrive(&mut reading, 1024);
            tokio::pin!(arriving);
            assert!(arriving.as_mut().now_or_never().is_none());
            drop(first);
            arriving.await;
        }
        assert_eq!(reading.arrived.bytes, 1024);
    }

    #[test]
    fn finding_25_an_answer_is_counted_before_it_is_made() {
        let account = Account::within(10);
        let first = account.hold(20).expect("the first is within the budget");
        assert!(account.hold(1).is_none(), "there is no room for a second one");
        drop(first);
        assert!(account.hold(1).is_some());
    }

    #[test]
    fn all_users_together_have_a_budget_that_the_modest_do_not_feel() {
        let accounts = Accounts::new(Budgets { unsent: 640, ..Budgets::default() });
        let name = |number: usize| format!("user-{number}");
        let mut held: Vec<_> =
            (0..USERS + 1).map(|number| accounts.of(&name(number)).hold(600).unwrap()).collect();
        let (greedy, modest) = (accounts.of(&name(0)), accounts.of("modest"));
        assert!(greedy.is_over(), "{} users with 600 bytes each are too many", held.len());
        let _little = modest.hold(10).unwrap();
        assert!(!modest.is_over());
        let _more = modest.hold(10).unwrap();
        assert!(modest.is_over() && modest.hold(1).is_none());
        let waits = greedy.room();
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        held.pop();
        assert!(waits.now_or_never().is_some());
    }

    #[test]
    fn an_account_lives_as_long_as_what_is_charged_to_it() {
        let accounts = Accounts::new(Budgets { unsent: 10, ..Budgets::default() });
        let bytes = accounts.of("someone").charged(Bytes::from_static(b"more than ten"));
        let part = bytes.slice(1..2);
        drop(bytes);
        assert!(accounts.of("someone").is_over() && !accounts.of("other").is_over());
        drop(part);
        assert!(accounts.is_empty());
    }
}
