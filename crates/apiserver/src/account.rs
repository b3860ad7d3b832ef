//! What one user holds in memory: requests that are being read or worked on, and answers that were not sent yet.
//!
//! An account exists as long as it is charged with anything, or a request of its user is on its way.

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
    /// Bytes of requests that are being read or worked on.
    pub reading: usize,
    /// Bytes of answers that the client has not read yet.
    pub unsent: usize,
    /// An answer other than a watch that makes no progress for so long is broken off.
    pub stall: Duration,
}

impl Default for Budgets {
    fn default() -> Self {
        Self { reading: 64 << 20, unsent: 64 << 20, stall: Duration::from_secs(30) }
    }
}

type Known = Mutex<HashMap<String, Weak<Account>>>;

/// The accounts of all users.
#[derive(Debug)]
pub(crate) struct Accounts {
    budgets: Budgets,
    known: Arc<Known>,
}

impl Accounts {
    pub(crate) fn new(budgets: Budgets) -> Self {
        Self { budgets, known: Arc::default() }
    }

    /// Returns the account of a user.
    pub(crate) fn of(&self, name: &str) -> Arc<Account> {
        let mut known = self.known.lock();
        if let Some(account) = known.get(name).and_then(Weak::upgrade) {
            return account;
        }
        let account = Arc::new(Account::new(name, self.budgets, &self.known));
        known.insert(name.to_owned(), Arc::downgrade(&account));
        account
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.known.lock().is_empty()
    }
}

/// What a user holds in memory.
#[derive(Debug)]
pub(crate) struct Account {
    name: String,
    /// In kilobytes, so that a semaphore can count it.
    reading: Arc<Semaphore>,
    all_reading: u32,
    unsent: AtomicUsize,
    budget: usize,
    /// The user is within the budget again.
    freed: Notify,
    known: Arc<Known>,
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut known = self.known.lock();
        // Somebody may have made a new one of this name meanwhile.
        if known.get(&self.name).is_some_and(|account| account.strong_count() == 0) {
            known.remove(&self.name);
        }
    }
}

fn kilobytes(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).max(1)
}

impl Account {
    fn new(name: &str, budgets: Budgets, known: &Arc<Known>) -> Self {
        let all_reading = kilobytes(budgets.reading);
        Self {
            name: name.to_owned(),
            reading: Arc::new(Semaphore::new(all_reading as usize)),
            all_reading,
            unsent: AtomicUsize::new(0),
            budget: budgets.unsent,
            freed: Notify::new(),
            known: known.clone(),
        }
    }

    #[cfg(test)]
    pub(crate) fn within(unsent: usize) -> Arc<Self> {
        Accounts::new(Budgets { unsent, ..Budgets::default() }).of("someone")
    }

    /// Waits until a body of some bytes may be read.
    pub(crate) async fn read(&self, bytes: usize) -> Reading {
        // What is larger than everything waits for everything.
        let wanted = kilobytes(bytes).min(self.all_reading);
        let permit = self.reading.clone().acquire_many_owned(wanted).await;
        Reading { permit: permit.expect("the semaphore is never closed") }
    }

    /// Says whether too many bytes wait to be read by the user.
    pub(crate) fn is_over(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > self.budget
    }

    /// Waits until the user is within the budget.
    pub(crate) async fn room(&self) {
        while self.is_over() {
            let freed = self.freed.notified();
            if !self.is_over() {
                return;
            }
            freed.await;
        }
    }

    /// Charges the account with an answer that is about to be made, until what is returned is dropped; nothing if the user is
    /// over the budget already.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        if self.is_over() {
            return None;
        }
        self.unsent.fetch_add(bytes, Ordering::Relaxed);
        Some(Held { bytes, account: self.clone() })
    }

    fn release(&self, bytes: usize) {
        let before = self.unsent.fetch_sub(bytes, Ordering::Relaxed);
        if before > self.budget && before.saturating_sub(bytes) <= self.budget {
            self.freed.notify_waiters();
        }
    }

    /// Returns bytes that are charged to this account until their last copy is dropped, wherever that is.
    pub(crate) fn charged(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.unsent.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Charged { bytes, account: self.clone() })
    }

    #[cfg(test)]
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }
}

/// Bytes of a request that are counted until it is answered.
#[derive(Debug)]
pub(crate) struct Reading {
    permit: OwnedSemaphorePermit,
}

impl Reading {
    /// Counts no more than what came.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let held = self.permit.num_permits();
        let _surplus = self.permit.split(held.saturating_sub(kilobytes(bytes) as usize));
    }
}

/// Bytes with the account that they are charged to.
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
pub(crate) struct Held {
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
    fn finding_25_an_answer_is_counted_before_it_is_made() {
        let account = Account::within(10);
        let first = account.hold(20).expect("the first is within the budget");
        assert!(account.hold(1).is_none(), "there is no room for a second one");
        drop(first);
        assert!(account.hold(1).is_some());
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
