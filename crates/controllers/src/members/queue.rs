//! A queue of keys: each key at most once, never worked on twice at a time, with a back-off of its own.
//!
//! A key that is added while it is worked on is taken up again afterwards, so no change goes unseen. There is no limit
//! on how many keys are worked on at once: what limits is the member a key belongs to, so that no member delays another.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Shared;

/// The first wait after a failure, as upstream.
const FIRST_WAIT: Duration = Duration::from_millis(5);
/// The longest. Upstream waits up to 1,000 s; a minute keeps repairs prompt and a thousand failing keys at 17 tries a
/// second.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How a key is to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All is well, or somebody will say when to look again.
    Done,
    /// Try again, later with every failure.
    Retry,
    /// Look again after this time; not a failure.
    After(Duration),
}

pub(super) struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    /// What is in `ready`.
    waiting: HashSet<K>,
    running: HashSet<K>,
    /// Added while running.
    again: HashSet<K>,
    /// What is due later; the number tells equal times apart.
    delayed: BTreeMap<(Instant, u64), K>,
    failures: HashMap<K, u32>,
    serial: u64,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                waiting: HashSet::new(),
                running: HashSet::new(),
                again: HashSet::new(),
                delayed: BTreeMap::new(),
                failures: HashMap::new(),
                serial: 0,
            }),
            wake: Notify::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Display + Send + Sync + 'static> Queue<K> {
    /// Has a key looked at, now.
    pub(super) fn add(&self, key: K) {
        self.state.lock().add(key);
        self.wake.notify_one();
    }

    /// Works the queue off until the process stops.
    pub(super) fn run<F, Fut>(self: &Arc<Self>, shared: &Arc<Shared>, work: F)
    where
        F: Fn(Arc<Shared>, K) -> Fut + Send + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let (queue, shared) = (self.clone(), shared.clone());
        shared.tasks.clone().spawn(async move {
            loop {
                let key = tokio::select! {
                    () = shared.stop.cancelled() => return,
                    key = queue.next() => key,
                };
                let (queue, attempt) = (queue.clone(), work(shared.clone(), key.clone()));
                shared.tasks.spawn(async move { queue.done(&key, attempt.await) });
            }
        });
    }

    async fn next(&self) -> K {
        loop {
            let taken = self.state.lock().take(Instant::now());
            match taken {
                Ok(key) => return key,
                Err(Some(due)) => {
                    let _ = tokio::time::timeout_at(due, self.wake.notified()).await;
                }
                Err(None) => self.wake.notified().await,
            }
        }
    }

    fn done(&self, key: &K, outcome: Outcome) {
        self.state.lock().done(key, outcome, Instant::now());
        self.wake.notify_one();
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.waiting.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    /// Takes a key to work on, or says when there is one, if it is known.
    fn take(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.add(key);
        }
        match self.ready.pop_front() {
            Some(key) => {
                self.waiting.remove(&key);
                self.running.insert(key.clone());
                Ok(key)
            }
            None => Err(self.delayed.first_key_value().map(|((due, _), _)| *due)),
        }
    }

    fn done(&mut self, key: &K, outcome: Outcome, now: Instant) {
        self.running.remove(key);
        let wait = match outcome {
            Outcome::Done => {
                self.failures.remove(key);
                None
            }
            Outcome::After(wait) => {
                self.failures.remove(key);
                Some(wait)
            }
            Outcome::Retry => {
                let failures = self.failures.entry(key.clone()).or_insert(0);
                *failures += 1;
                Some(backoff(*failures))
            }
        };
        if self.again.remove(key) {
            self.add(key.clone());
        } else if let Some(wait) = wait {
            self.serial += 1;
            self.delayed.insert((now + wait, self.serial), key.clone());
        }
    }
}

fn backoff(failures: u32) -> Duration {
    FIRST_WAIT.saturating_mul(1 << (failures - 1).min(20)).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_added_while_it_is_worked_on_is_taken_up_again() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        let now = Instant::now();
        let mut state = queue.state.lock();
        assert_eq!(state.take(now), Ok("a"));
        state.add("a");
        state.add("b");
        assert_eq!(state.take(now), Ok("b"));
        state.done(&"a", Outcome::Done, now);
        assert_eq!(state.take(now), Ok("a"));
        state.done(&"a", Outcome::Done, now);
        state.done(&"b", Outcome::Done, now);
        assert_eq!(state.take(now), Err(None));
    }

    #[test]
    fn failures_wait_longer_each_time_and_success_forgets_them() {
        let queue = Queue::default();
        queue.add("a");
        let mut state = queue.state.lock();
        let mut now = Instant::now();
        for wait in [5, 10, 20].map(Duration::from_millis) {
            assert_eq!(state.take(now), Ok("a"));
            state.done(&"a", Outcome::Retry, now);
            assert_eq!(state.take(now), Err(Some(now + wait)));
            now += wait;
        }
        assert_eq!(state.take(now), Ok("a"));
        state.done(&"a", Outcome::Done, now);
        assert!(state.failures.is_empty() && state.delayed.is_empty());
        assert_eq!((backoff(1), backoff(60)), (FIRST_WAIT, LONGEST_WAIT));
    }

    #[test]
    fn an_event_does_not_wait_for_the_back_off() {
        let queue = Queue::default();
        queue.add("a");
        let mut state = queue.state.lock();
        let now = Instant::now();
        assert_eq!(state.take(now), Ok("a"));
        state.done(&"a", Outcome::After(Duration::from_secs(10)), now);
        state.add("a");
        assert_eq!(state.take(now), Ok("a"));
    }
}
