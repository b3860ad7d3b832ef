//! What one user holds in memory: requests that are being read or handled, and answers that are not sent yet.
//!
//! All users together have a budget, too. When it is used up, only users who have left little unread get more.
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
    /// Bytes of requests that are being read or handled.
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

type Known = Mutex<HashMap<String, Weak<Account>>>;

/// The accounts of all users.
#[derive(Debug)]
pub(crate) struct Accounts {
    budgets: Budgets,
    all: Arc<All>,
}

/// What all accounts share.
#[derive(Debug, Default)]
struct All {
    known: Known,
    /// What all users together have not read yet.
    unsent: AtomicUsize,
    /// All users together are within the budget again.
    freed: Notify,
}

impl Accounts {
    pub(crate) fn new(budgets: Budgets) -> Self {
        Self { budgets, all: Arc::default() }
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
        Reading { permit: permit.expect("the semaphore is never closed"), handling: None }
    }

    /// Waits until a body that has been read may be handled, which takes more memory than its bytes. This has a separate budget:
    /// with a shared one, bodies that wait here could block each other.
    pub(crate) async fn handle(&self, reading: &mut Reading, body: &[u8]) {
        if body.len() <= SMALL {
            return;
        }
        let wanted = kilobytes(handled(body)).min(self.all_reading);
        let permit = self.handling.clone().acquire_many_owned(wanted).await;
        reading.handling = Some(permit.expect("the semaphore is never closed"));
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
    /// For the memory that handling takes; released together with the bytes.
    handling: Option<OwnedSemaphorePermit>,
}

impl Reading {
    /// Reduces the charge to the bytes that actually arrived.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let held = self.permit.num_permits();
        let _surplus = self.permit.split(held.saturating_sub(kilobytes(bytes) as usize));
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
