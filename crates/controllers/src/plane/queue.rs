//! Keys that want to be reconciled: each is in work at most once, and what is pushed meanwhile comes up again.
//!
//! A key that fails rests before it is tried again, longer each time; any event ends the rest.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Error;

const FIRST_REST: Duration = Duration::from_millis(5);
const LONGEST_REST: Duration = Duration::from_secs(60);

pub(crate) struct Queue<K> {
    /// The controller's name, for the log.
    name: &'static str,
    state: Mutex<State<K>>,
    wake: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    /// What is in `ready`.
    waiting: HashSet<K>,
    running: HashSet<K>,
    /// What was pushed while it was running.
    again: HashSet<K>,
    resting: HashMap<K, Turn>,
    /// `resting` in the order in which the rests end.
    turns: BTreeMap<Turn, K>,
    failures: HashMap<K, u32>,
    counter: u64,
}

/// When a rest ends; the number tells equal times apart.
type Turn = (Instant, u64);

impl<K: Clone + Eq + Hash + Debug + Send + Sync + 'static> Queue<K> {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        let state = State {
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            running: HashSet::new(),
            again: HashSet::new(),
            resting: HashMap::new(),
            turns: BTreeMap::new(),
            failures: HashMap::new(),
            counter: 0,
        };
        Arc::new(Self { name, state: Mutex::new(state), wake: Notify::new() })
    }

    /// Asks for a key to be reconciled soon.
    pub(crate) fn push(&self, key: K) {
        let mut state = self.state.lock();
        state.stop_resting(&key);
        if state.running.contains(&key) {
            state.again.insert(key);
            return;
        }
        if state.waiting.insert(key.clone()) {
            state.ready.push_back(key);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Starts `workers` tasks that reconcile what is pushed.
    pub(crate) fn spawn<F, Fut>(
        self: &Arc<Self>,
        workers: usize,
        tasks: &TaskTracker,
        stop: &CancellationToken,
        reconcile: F,
    ) where
        F: Fn(K) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Error>> + Send,
    {
        for _ in 0..workers {
            let (queue, stop, reconcile) = (Arc::clone(self), stop.clone(), reconcile.clone());
            tasks.spawn(async move {
                while let Some(key) = queue.next(&stop).await {
                    let result = reconcile(key.clone()).await;
                    queue.done(key, result.as_ref().err());
                }
            });
        }
    }

    /// Returns the key whose turn it is; nothing once stopped.
    async fn next(&self, stop: &CancellationToken) -> Option<K> {
        loop {
            let woken = self.wake.notified();
            let next_turn = {
                let mut state = self.state.lock();
                state.end_rests(Instant::now());
                if stop.is_cancelled() {
                    return None;
                }
                if let Some(key) = state.ready.pop_front() {
                    state.waiting.remove(&key);
                    state.running.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return Some(key);
                }
                state.turns.keys().next().map(|(at, _)| *at)
            };
            let rested = async {
                match next_turn {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                () = woken => {}
                () = rested => {}
            }
        }
    }

    fn done(&self, key: K, error: Option<&Error>) {
        let mut state = self.state.lock();
        state.running.remove(&key);
        match error {
            None => {
                state.failures.remove(&key);
            }
            Some(error) => {
                let failures = state.failures.entry(key.clone()).or_default();
                *failures = failures.saturating_add(1);
                let rest = rest(*failures);
                if error.is_conflict() || *failures < 3 {
                    tracing::debug!(controller = self.name, ?key, %error, "will be tried again");
                } else {
                    tracing::warn!(controller = self.name, ?key, %error, "will be tried again");
                }
                if !state.again.contains(&key) {
                    state.counter += 1;
                    let turn = (Instant::now() + rest, state.counter);
                    state.resting.insert(key.clone(), turn);
                    state.turns.insert(turn, key.clone());
                }
            }
        }
        if state.again.remove(&key) && state.waiting.insert(key.clone()) {
            state.ready.push_back(key);
        }
        drop(state);
        self.wake.notify_one();
    }
}

/// Returns how long a key rests after so many failures in a row.
fn rest(failures: u32) -> Duration {
    FIRST_REST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_REST)
}

impl<K: Clone + Eq + Hash> State<K> {
    fn stop_resting(&mut self, key: &K) {
        if let Some(turn) = self.resting.remove(key) {
            self.turns.remove(&turn);
        }
    }

    fn end_rests(&mut self, now: Instant) {
        while let Some(entry) = self.turns.first_entry()
            && entry.key().0 <= now
        {
            let key = entry.remove();
            self.resting.remove(&key);
            if self.waiting.insert(key.clone()) {
                self.ready.push_back(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_is_in_work_once_and_comes_up_again_when_pushed_meanwhile() {
        let (queue, stop) = (Queue::new("test"), CancellationToken::new());
        queue.push("a");
        queue.push("a");
        assert_eq!(queue.next(&stop).await, Some("a"));
        queue.push("a");
        queue.push("b");
        assert_eq!(queue.next(&stop).await, Some("b"), "a is in work");
        queue.done("a", None);
        assert_eq!(queue.next(&stop).await, Some("a"));
        queue.done("a", None);
        queue.done("b", None);
        stop.cancel();
        assert_eq!(queue.next(&stop).await, None);
    }

    #[tokio::test]
    async fn an_event_ends_the_rest_of_a_failed_key() {
        let (queue, stop) = (Queue::new("test"), CancellationToken::new());
        queue.push("a");
        let key = queue.next(&stop).await.expect("not stopped");
        queue.done(key, Some(&Error::Waiting("for the test".to_owned())));
        assert!(queue.state.lock().resting.contains_key("a"));
        queue.push("a");
        let state = queue.state.lock();
        assert!(state.resting.is_empty() && state.turns.is_empty());
        assert_eq!(state.ready, ["a"]);
    }

    #[test]
    fn rests_grow_up_to_a_limit() {
        let rests: Vec<u128> = [1, 2, 3, 40].map(|failures| rest(failures).as_millis()).to_vec();
        assert_eq!(rests, [5, 10, 20, 60_000]);
    }
}
