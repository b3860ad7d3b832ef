//! How fast evictions follow each other. The first few happen at once; after that each waits for its turn.
//!
//! A key keeps its turn while it waits, so that a thousand keys wake up one after the other and not all together.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How many evictions need not wait, as upstream's three workers begin at once.
const BURST: u32 = 3;
/// How long an eviction takes where the rate is zero, as upstream.
const STANDSTILL: Duration = Duration::from_secs(1800);

/// Gives turns to keys.
#[derive(Debug)]
pub(super) struct Pace<K> {
    interval: Duration,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    turns: HashMap<K, Instant>,
    /// The turn after all that have been given.
    next: Option<Instant>,
}

impl<K: Eq + Hash + Clone> Pace<K> {
    pub(super) fn new(per_second: f64) -> Self {
        let interval = if per_second > 0.0 { Duration::from_secs_f64(1.0 / per_second) } else { STANDSTILL };
        Self {
            interval: interval.min(STANDSTILL),
            state: Mutex::new(State { turns: HashMap::new(), next: None }),
        }
    }

    /// Returns how long a key has to wait for its turn; nothing if it is now.
    pub(super) fn wait(&self, key: &K) -> Option<Duration> {
        self.wait_at(key, Instant::now())
    }

    fn wait_at(&self, key: &K, now: Instant) -> Option<Duration> {
        let mut state = self.state.lock();
        let turn = match state.turns.get(key) {
            Some(turn) => *turn,
            None => {
                // Turns that nobody took add up to the burst, and to no more.
                let earliest = now.checked_sub(self.interval * (BURST - 1)).unwrap_or(now);
                let turn = state.next.map_or(earliest, |next| next.max(earliest));
                state.next = Some(turn + self.interval);
                state.turns.insert(key.clone(), turn);
                turn
            }
        };
        turn.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    /// Takes the turn of a key back: it has had it, or needs it no more.
    pub(super) fn done(&self, key: &K) {
        self.state.lock().turns.remove(key);
    }

    pub(super) fn waiting(&self) -> usize {
        self.state.lock().turns.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_begin_at_once_and_the_others_take_turns() {
        let (pace, secs) = (Pace::new(0.5), Duration::from_secs);
        let start = Instant::now() + secs(1000);
        let waits: Vec<Option<Duration>> = (0..5).map(|key| pace.wait_at(&key, start)).collect();
        assert_eq!(waits, [None, None, None, Some(secs(2)), Some(secs(4))]);
        assert_eq!(pace.wait_at(&4, start + secs(1)), Some(secs(3)), "a key keeps its turn");
        assert_eq!(pace.wait_at(&4, start + secs(4)), None);
        pace.done(&4);
        assert_eq!(pace.wait_at(&4, start + secs(4)), Some(secs(2)), "and has it once");
        assert_eq!(pace.waiting(), 5);
        // After a long rest it is as in the beginning.
        let waits: Vec<Option<Duration>> =
            (10..14).map(|key| pace.wait_at(&key, start + secs(900))).collect();
        assert_eq!(waits, [None, None, None, Some(secs(2))]);
    }

    #[test]
    fn a_rate_of_zero_is_a_standstill() {
        let pace = Pace::new(0.0);
        let start = Instant::now() + STANDSTILL * 3;
        for key in 0..3 {
            assert_eq!(pace.wait_at(&key, start), None);
        }
        assert_eq!(pace.wait_at(&3, start), Some(STANDSTILL));
    }
}
