//! Limits how often a quickly changing object is written.
//!
//! A rollout moves through dozens of states in a second, and each of them would pass through a Work, a binding and a template.
//! The first one is written immediately; those within `STEP` after it become one write.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Too short for people to notice, long enough for a member's controllers to take several steps.
const STEP: Duration = Duration::from_millis(200);
/// With this many keys in the map, expired ones are dropped.
const MANY: usize = 1024;

/// Remembers when each key was last written.
#[derive(Debug)]
pub struct Throttle<K>(Mutex<State<K>>);

#[derive(Debug)]
struct State<K> {
    written: HashMap<K, Instant>,
    /// How many there may be before expired ones are dropped again.
    limit: usize,
}

impl<K> Default for Throttle<K> {
    fn default() -> Self {
        Self(Mutex::new(State { written: HashMap::new(), limit: MANY }))
    }
}

impl<K: Eq + Hash + Clone> Throttle<K> {
    /// Returns how long the next write of a key must wait; `None` if it need not.
    pub fn wait(&self, key: &K) -> Option<Duration> {
        self.wait_at(key, Instant::now())
    }

    /// Records that a key has been written.
    pub fn wrote(&self, key: &K) {
        self.wrote_at(key, Instant::now());
    }

    fn wait_at(&self, key: &K, now: Instant) -> Option<Duration> {
        let written = *self.0.lock().written.get(key)?;
        STEP.checked_sub(now.saturating_duration_since(written)).filter(|left| !left.is_zero())
    }

    fn wrote_at(&self, key: &K, now: Instant) {
        let mut state = self.0.lock();
        state.written.insert(key.clone(), now);
        if state.written.len() > state.limit {
            state.written.retain(|_, written| now.saturating_duration_since(*written) < STEP);
            state.limit = MANY.max(state.written.len().saturating_mul(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_write_is_free_and_the_next_one_waits() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        assert_eq!(throttle.wait_at(&"a", start), None);
        throttle.wrote_at(&"a", start);
        assert_eq!(throttle.wait_at(&"a", start + STEP / 2), Some(STEP / 2));
        assert_eq!(throttle.wait_at(&"b", start), None);
        assert_eq!(throttle.wait_at(&"a", start + STEP), None);
    }

    #[test]
    fn expired_keys_are_dropped() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        for key in 0..MANY {
            throttle.wrote_at(&key, start);
        }
        throttle.wrote_at(&MANY, start + STEP);
        assert_eq!(throttle.0.lock().written.len(), 1);
    }
}
