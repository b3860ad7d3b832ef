//! Limits the rate of evictions. The first few happen at once; after that each waits for its turn.
//!
//! A key keeps its turn while it waits, so that a thousand keys wake up one after the other and not all
//! together. Only a turn that is used costs time: one that is given back goes to the next key. So a cluster
//! that comes back before its turn does not leave a gap of half an hour without evictions.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How many evictions need not wait, as upstream's three workers begin at once.
const BURST: u32 = 3;
/// How long an eviction takes where the rate is zero, as upstream.
const STANDSTILL: Duration = Duration::from_secs(1800);
/// How long a key waits before it asks again: others may have given back earlier turns than its own.
const REST: Duration = Duration::from_secs(60);

/// Gives turns to keys.
#[derive(Debug)]
pub(super) struct Throttle<K> {
    interval: Duration,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    turns: HashMap<K, Instant>,
    /// Turns that were given back unused.
    free: BTreeSet<Instant>,
    /// The turn after all that have been given.
    next: Option<Instant>,
}

impl<K: Eq + Hash + Clone> Throttle<K> {
    pub(super) fn new(per_second: f64) -> Self {
        // What is too long for a Duration is one, too.
        let interval = Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(STANDSTILL);
        Self {
            interval: interval.min(STANDSTILL),
            state: Mutex::new(State { turns: HashMap::new(), free: BTreeSet::new(), next: None }),
        }
    }

    /// Returns after which time a key has to ask again; nothing if its turn is now.
    pub(super) fn wait(&self, key: &K) -> Option<Duration> {
        self.wait_at(key, Instant::now()).map(|wait| wait.min(REST))
    }

    fn wait_at(&self, key: &K, now: Instant) -> Option<Duration> {
        let state = &mut *self.state.lock();
        // Unused turns add up to the burst, but not more.
        let earliest = now.checked_sub(self.interval * (BURST - 1)).unwrap_or(now);
        state.free = state.free.split_off(&earliest);
        let held = state.turns.get(key).copied();
        let sooner = state.free.first().copied().filter(|free| held.is_none_or(|held| *free < held));
        let turn = match (sooner, held) {
            (Some(sooner), _) => {
                state.free.remove(&sooner);
                state.free.extend(held);
                sooner
            }
            (None, Some(held)) => held,
            (None, None) => {
                let turn = state.next.map_or(earliest, |next| next.max(earliest));
                state.next = Some(turn + self.interval);
                turn
            }
        };
        state.turns.insert(key.clone(), turn);
        turn.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    /// A key has had its turn.
    pub(super) fn taken(&self, key: &K) {
        self.state.lock().turns.remove(key);
    }

    /// A key no longer needs its turn; the next key may have it.
    pub(super) fn give_back(&self, key: &K) {
        let state = &mut *self.state.lock();
        state.free.extend(state.turns.remove(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_begin_at_once_and_the_others_take_turns() {
        let (throttle, secs) = (Throttle::new(0.5), Duration::from_secs);
        let start = Instant::now() + secs(1000);
        let waits: Vec<Option<Duration>> = (0..5).map(|key| throttle.wait_at(&key, start)).collect();
        assert_eq!(waits, [None, None, None, Some(secs(2)), Some(secs(4))]);
        assert_eq!(throttle.wait_at(&4, start + secs(1)), Some(secs(3)), "a key keeps its turn");
        assert_eq!(throttle.wait_at(&4, start + secs(4)), None);
        throttle.taken(&4);
        assert_eq!(throttle.wait_at(&4, start + secs(4)), Some(secs(2)), "and has it once");
        // After a long rest it is as in the beginning.
        let waits: Vec<Option<Duration>> =
            (10..14).map(|key| throttle.wait_at(&key, start + secs(900))).collect();
        assert_eq!(waits, [None, None, None, Some(secs(2))]);
    }

    #[test]
    fn a_turn_that_nobody_takes_delays_nobody() {
        let (throttle, secs) = (Throttle::new(0.5), Duration::from_secs);
        let start = Instant::now() + secs(1000);
        for key in 0..1000 {
            throttle.wait_at(&key, start);
        }
        assert_eq!(throttle.wait_at(&2000, start), Some(secs(1996)), "behind all others");
        let later = start + secs(10);
        (0..1000).for_each(|key| throttle.give_back(&key));
        assert_eq!(throttle.wait_at(&2000, later), None, "those that wait move up");
        // Not all at once, though: the turns are as far from each other as ever.
        let waits: Vec<Option<Duration>> = (3000..3004).map(|key| throttle.wait_at(&key, later)).collect();
        assert_eq!(waits, [None, None, Some(secs(2)), Some(secs(4))]);
        throttle.taken(&2000);
        throttle.taken(&3000);
        assert_eq!(throttle.wait_at(&3004, later), Some(secs(6)), "a turn that was taken does not come back");
    }

    #[test]
    fn a_key_that_waits_for_long_asks_again_meanwhile() {
        let throttle = Throttle::new(0.0);
        assert_eq!((0..4).filter_map(|key| throttle.wait(&key)).max(), Some(REST));
    }

    #[test]
    fn a_rate_of_zero_is_a_standstill() {
        let throttle = Throttle::new(0.0);
        let start = Instant::now() + STANDSTILL * 3;
        for key in 0..3 {
            assert_eq!(throttle.wait_at(&key, start), None);
        }
        assert_eq!(throttle.wait_at(&3, start), Some(STANDSTILL));
        for rate in [1e-9, 1e-30, f64::MIN_POSITIVE, 5e-324] {
            assert_eq!(Throttle::<u8>::new(rate).interval, STANDSTILL, "{rate}");
        }
        assert_eq!(Throttle::<u8>::new(f64::MAX).interval, Duration::ZERO);
    }
}
