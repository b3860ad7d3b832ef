//! Locks by key: only one task at a time works on a key.
//!
//! A queue does that for one controller. Where two controllers write the same field of an object, each has to
//! see what the other has written before it decides; otherwise one repeats the other's write, or overwrites a
//! newer state with an older one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// With this many keys in the map, unused locks are dropped.
const MANY: usize = 1024;

/// One lock for each key.
#[derive(Debug)]
pub struct KeyLocks<K>(Mutex<State<K>>);

#[derive(Debug)]
struct State<K> {
    locks: HashMap<K, Arc<tokio::sync::Mutex<()>>>,
    /// How many there may be before unused ones are dropped again.
    limit: usize,
}

/// A lock that is held. Dropping it lets the next task continue.
#[derive(Debug)]
#[must_use = "the lock is free when this is dropped"]
pub struct KeyLock(#[expect(dead_code, reason = "held, not used")] OwnedMutexGuard<()>);

impl<K> Default for KeyLocks<K> {
    fn default() -> Self {
        Self(Mutex::new(State { locks: HashMap::new(), limit: MANY }))
    }
}

impl<K: Eq + Hash + Clone> KeyLocks<K> {
    /// Waits until the lock of a key is free, and takes it.
    pub async fn of(&self, key: &K) -> KeyLock {
        let lock = self.lock(key);
        KeyLock(lock.lock_owned().await)
    }

    fn lock(&self, key: &K) -> Arc<tokio::sync::Mutex<()>> {
        let mut state = self.0.lock();
        if state.locks.len() > state.limit {
            // Only this map has a reference to it: locks are handed out under the same mutex.
            state.locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            state.limit = MANY.max(state.locks.len().saturating_mul(2));
        }
        state.locks.entry(key.clone()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_works_on_a_key_and_others_are_not_held_up() {
        let locks = KeyLocks::default();
        let first = locks.of(&"a").await;
        let _other = locks.of(&"b").await;
        let waits = tokio::time::timeout(Duration::from_secs(1), locks.of(&"a")).await;
        assert!(waits.is_err(), "the first is still at work");
        drop(first);
        let _second = locks.of(&"a").await;
    }

    #[tokio::test]
    async fn keys_that_nobody_works_on_are_forgotten_and_held_locks_are_kept() {
        let locks = KeyLocks::default();
        let held = locks.of(&0).await;
        for key in 1..=3 * MANY {
            drop(locks.of(&key).await);
        }
        assert!(locks.0.lock().locks.len() <= MANY + 1);
        let lock = locks.lock(&0);
        assert!(lock.try_lock().is_err(), "a held lock outlives the forgetting");
        drop(held);
        assert!(lock.try_lock().is_ok());
    }
}
