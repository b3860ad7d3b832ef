//! The queue of keys to reconcile: each key at most once at a time; a key that is pushed meanwhile is
//! reconciled again.
//!
//! A key that fails waits before it is tried again, longer each time; any event ends the wait. An attempt
//! that panics counts as a failure of its key and affects no other. The controller chooses how many keys are
//! reconciled at once. Where a member's own limit applies, it chooses [`UNLIMITED`], so that keys of a slow
//! member never block others.

mod metrics;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Supervisor;
use crate::turns::{self, Turns};

use metrics::Metrics;

/// As many keys at once as there are.
pub const UNLIMITED: usize = Semaphore::MAX_PERMITS;

/// The first wait after a failure, as upstream.
const FIRST_REST: Duration = Duration::from_millis(5);
/// The longest. Upstream waits up to 1,000 s; a minute keeps repairs prompt and a thousand failing keys at 17 tries a
/// second.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// The longest time after which a key is reconciled again. Users may write tolerations of billions of years,
/// which the clock cannot represent.
const FARTHEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What to do next with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All is well, or an event will enqueue the key again.
    Done,
    /// Try again, later with every failure. The caller has already logged the reason.
    Retry,
    /// As `Retry`; the reason is logged here. A conflict only means that another writer was faster.
    Failed { error: String, conflict: bool },
    /// The attempt panicked and said this.
    Panicked(String),
    /// Reconcile again after this time; not a failure.
    After(Duration),
}

type Told<K> = Box<dyn Fn(&K, &str) + Send + Sync>;

pub struct Queue<K> {
    /// The controller's name as upstream has it, for logs and metrics.
    name: &'static str,
    state: Mutex<State<K>>,
    wake: Notify,
    metrics: Metrics,
    /// Called for every panic.
    panicked: OnceLock<Told<K>>,
}

struct State<K> {
    ready: VecDeque<K>,
    /// The ready keys, and since when they are ready.
    waiting: HashMap<K, Instant>,
    running: HashSet<K>,
    /// Keys that were pushed while they were running.
    again: HashSet<K>,
    resting: HashMap<K, Turn>,
    /// `resting` in the order in which the waits end.
    turns: BTreeMap<Turn, K>,
    failures: HashMap<K, u32>,
    counter: u64,
    longest_rest: Duration,
}

/// When a wait ends; the number distinguishes equal times.
type Turn = (Instant, u64);

impl<K: Clone + Eq + Hash + Debug + Send + Sync + 'static> Queue<K> {
    pub fn new(name: &'static str) -> Arc<Self> {
        Self::resting_at_most(name, LONGEST_REST)
    }

    /// Returns a queue whose keys wait no longer than this after a failure: others may draw conclusions from their silence.
    pub fn resting_at_most(name: &'static str, longest_rest: Duration) -> Arc<Self> {
        let state = State {
            ready: VecDeque::new(),
            waiting: HashMap::new(),
            running: HashSet::new(),
            again: HashSet::new(),
            resting: HashMap::new(),
            turns: BTreeMap::new(),
            failures: HashMap::new(),
            counter: 0,
            longest_rest,
        };
        Arc::new(Self {
            name,
            state: Mutex::new(state),
            wake: Notify::new(),
            metrics: Metrics::new(name),
            panicked: OnceLock::new(),
        })
    }

    /// Sets the callback for panics of a reconcile, which emits an event about the object.
    pub fn tell_panics(&self, told: impl Fn(&K, &str) + Send + Sync + 'static) {
        // The first one counts: a queue belongs to one controller.
        let _ = self.panicked.set(Box::new(told));
    }

    /// Requests a reconcile of a key.
    pub fn push(&self, key: K) {
        let mut state = self.state.lock();
        let new = state.push(key, Instant::now());
        self.measure(&state);
        drop(state);
        if new {
            self.metrics.adds.inc();
            self.wake.notify_one();
        }
    }

    /// Returns how long a key waits after many failures.
    pub fn longest_rest(&self) -> Duration {
        rest_after(u32::MAX).min(self.state.lock().longest_rest)
    }

    /// Returns the keys that wait for their turn, in order.
    pub fn waiting(&self) -> Vec<K> {
        self.state.lock().ready.iter().cloned().collect()
    }

    fn measure(&self, state: &State<K>) {
        self.metrics.depth.set(i64::try_from(state.ready.len()).unwrap_or(i64::MAX));
    }

    /// Reconciles what is pushed, at most `limit` keys at once, until everything stops.
    pub fn spawn<F, Fut>(self: &Arc<Self>, limit: usize, supervisor: &Supervisor, reconcile: F)
    where
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: Into<Outcome>,
    {
        turns::work_off(self, limit, supervisor, reconcile);
    }

    /// Returns the next key, and how long it has waited; `None` once stopped.
    async fn take(&self, stop: &CancellationToken) -> Option<(K, Duration)> {
        loop {
            let turn = {
                let mut state = self.state.lock();
                let turn = state.take(Instant::now());
                self.measure(&state);
                turn
            };
            if stop.is_cancelled() {
                return None;
            }
            let next_turn = match turn {
                Ok(taken) => return Some(taken),
                Err(next_turn) => next_turn,
            };
            let rested = async {
                match next_turn {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                // `Notify` remembers a push between the check and this line.
                () = self.wake.notified() => {}
                () = rested => {}
            }
        }
    }

    fn put_back(&self, key: K, outcome: &Outcome) {
        if let Outcome::Panicked(panic) = outcome {
            tracing::error!(
                controller = self.name,
                ?key,
                panic,
                "a reconcile panicked; it will be tried again"
            );
            if let Some(told) = self.panicked.get() {
                told(&key, panic);
            }
        }
        let mut state = self.state.lock();
        if let Outcome::Failed { error, conflict } = outcome {
            let often = state.failures.get(&key).is_some_and(|failures| *failures >= 2);
            if often && !conflict {
                tracing::warn!(controller = self.name, ?key, error, "will be tried again");
            } else {
                tracing::debug!(controller = self.name, ?key, error, "will be tried again");
            }
        }
        state.done(key, outcome, Instant::now());
        drop(state);
        self.wake.notify_one();
    }
}

/// A key that is being reconciled, and since when.
pub struct InWork<K> {
    key: K,
    since: Instant,
}

impl<K: Clone + Eq + Hash + Debug + Send + Sync + 'static> Turns for Queue<K> {
    type Key = K;
    type Turn = InWork<K>;

    fn name(&self) -> String {
        format!("queue/{}", self.name)
    }

    fn limited_to(&self, limit: usize) {
        self.metrics.limited_to(limit);
    }

    async fn next(&self, stop: &CancellationToken) -> Option<InWork<K>> {
        let (key, waited) = self.take(stop).await?;
        self.metrics.begin(waited);
        Some(InWork { key, since: Instant::now() })
    }

    fn key(turn: &InWork<K>) -> K {
        turn.key.clone()
    }

    fn done(&self, turn: InWork<K>, outcome: Outcome) {
        self.metrics.end(turn.since.elapsed(), &outcome);
        self.put_back(turn.key, &outcome);
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Returns whether there are more keys to take than before.
    fn push(&mut self, key: K, now: Instant) -> bool {
        if let Some(turn) = self.resting.remove(&key) {
            self.turns.remove(&turn);
        }
        if self.running.contains(&key) {
            self.again.insert(key);
            return false;
        }
        if self.waiting.contains_key(&key) {
            return false;
        }
        self.waiting.insert(key.clone(), now);
        self.ready.push_back(key);
        true
    }

    /// Takes the next key, with the time it has waited, or returns when the next one is due, if that is
    /// known.
    fn take(&mut self, now: Instant) -> Result<(K, Duration), Option<Instant>> {
        while let Some(entry) = self.turns.first_entry()
            && entry.key().0 <= now
        {
            let key = entry.remove();
            self.push(key, now);
        }
        match self.ready.pop_front() {
            Some(key) => {
                let since = self.waiting.remove(&key).unwrap_or(now);
                self.running.insert(key.clone());
                Ok((key, now.saturating_duration_since(since)))
            }
            None => Err(self.turns.keys().next().map(|(at, _)| *at)),
        }
    }

    fn done(&mut self, key: K, outcome: &Outcome, now: Instant) {
        self.running.remove(&key);
        let rest = match outcome {
            Outcome::Done => {
                self.failures.remove(&key);
                None
            }
            Outcome::After(rest) => {
                self.failures.remove(&key);
                Some(*rest)
            }
            Outcome::Retry | Outcome::Failed { .. } | Outcome::Panicked(_) => {
                let failures = self.failures.entry(key.clone()).or_default();
                *failures = failures.saturating_add(1);
                Some(rest_after(*failures).min(self.longest_rest))
            }
        };
        if self.again.remove(&key) {
            self.push(key, now);
        } else if let Some(rest) = rest {
            self.counter = self.counter.wrapping_add(1);
            let turn = (now.checked_add(rest.min(FARTHEST)).unwrap_or(now), self.counter);
            self.resting.insert(key.clone(), turn);
            self.turns.insert(turn, key);
        }
    }
}

/// Returns how long a key waits after this many failures in a row.
fn rest_after(failures: u32) -> Duration {
    FIRST_REST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(state: &mut State<&'static str>, now: Instant) -> Result<&'static str, Option<Instant>> {
        state.take(now).map(|(key, _)| key)
    }

    #[test]
    fn a_key_is_in_work_once_and_comes_up_again_when_pushed_meanwhile() {
        let queue = Queue::new("test");
        queue.push("a");
        queue.push("a");
        let now = Instant::now();
        let mut state = queue.state.lock();
        assert_eq!(taken(&mut state, now), Ok("a"));
        state.push("a", now);
        state.push("b", now);
        assert_eq!(taken(&mut state, now), Ok("b"), "a is in work");
        state.done("a", &Outcome::Done, now);
        assert_eq!(taken(&mut state, now), Ok("a"));
        state.done("a", &Outcome::Done, now);
        state.done("b", &Outcome::Done, now);
        assert_eq!(taken(&mut state, now), Err(None));
    }

    #[test]
    fn failures_wait_longer_each_time_and_success_forgets_them() {
        let queue = Queue::new("test");
        queue.push("a");
        let mut state = queue.state.lock();
        let mut now = Instant::now();
        for wait in [5, 10, 20].map(Duration::from_millis) {
            assert_eq!(taken(&mut state, now), Ok("a"));
            state.done("a", &Outcome::Retry, now);
            assert_eq!(taken(&mut state, now), Err(Some(now + wait)));
            now += wait;
        }
        assert_eq!(taken(&mut state, now), Ok("a"));
        state.done("a", &Outcome::Done, now);
        assert!(state.failures.is_empty() && state.turns.is_empty() && state.resting.is_empty());
        assert_eq!((rest_after(1), rest_after(60)), (FIRST_REST, Duration::from_secs(60)));
    }

    #[test]
    fn a_rest_after_failures_has_an_end() {
        let limit = Duration::from_millis(15);
        let queue = Queue::resting_at_most("test", limit);
        assert_eq!((queue.longest_rest(), Queue::<u8>::new("test").longest_rest()), (limit, LONGEST_REST));
        queue.push("a");
        let mut state = queue.state.lock();
        let mut now = Instant::now();
        for wait in [5, 10, 15, 15].map(Duration::from_millis) {
            assert_eq!(taken(&mut state, now), Ok("a"));
            state.done("a", &Outcome::Retry, now);
            assert_eq!(taken(&mut state, now), Err(Some(now + wait)));
            now += wait;
        }
    }

    #[test]
    fn an_event_ends_the_rest() {
        let queue = Queue::new("test");
        queue.push("a");
        let mut state = queue.state.lock();
        let now = Instant::now();
        assert_eq!(taken(&mut state, now), Ok("a"));
        state.done("a", &Outcome::After(Duration::from_secs(10)), now);
        state.push("a", now);
        assert!(state.resting.is_empty() && state.turns.is_empty());
        assert_eq!(taken(&mut state, now), Ok("a"));
    }

    #[test]
    fn finding_5_no_rest_is_too_long_for_the_clock() {
        let queue = Queue::new("test");
        queue.push("a");
        let mut state = queue.state.lock();
        let now = Instant::now();
        assert_eq!(taken(&mut state, now), Ok("a"));
        state.done("a", &Outcome::After(Duration::MAX), now);
        assert_eq!(taken(&mut state, now), Err(Some(now + FARTHEST)));
    }

    #[tokio::test]
    async fn no_more_keys_than_allowed_are_in_work() {
        let (queue, supervisor) = (Queue::new("test"), Supervisor::default());
        let (running, most) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
        for key in 0..20 {
            queue.push(key);
        }
        let (finished, mut all) = tokio::sync::mpsc::unbounded_channel();
        let counted = most.clone();
        queue.spawn(3, &supervisor, move |_: i32| {
            let (running, most, finished) = (running.clone(), counted.clone(), finished.clone());
            async move {
                {
                    let (mut running, mut most) = (running.lock(), most.lock());
                    *running += 1;
                    *most = running.max(*most);
                }
                tokio::task::yield_now().await;
                *running.lock() -= 1;
                let _ = finished.send(());
                Outcome::Done
            }
        });
        for _ in 0..20 {
            all.recv().await.expect("all keys are worked on");
        }
        supervisor.stop().await;
        assert_eq!(*most.lock(), 3);
    }

    /// Processes a key until it succeeds; returns the reported panics.
    async fn worked_off<F, Fut>(name: &'static str, reconcile: F) -> Vec<String>
    where
        F: Fn(u32) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let (queue, supervisor) = (Queue::new(name), Supervisor::default());
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = told.clone();
        queue.tell_panics(move |key: &&str, panic| telling.lock().push(format!("{key}: {panic}")));
        let (done, mut wait) = tokio::sync::mpsc::unbounded_channel();
        let attempts = std::sync::atomic::AtomicU32::new(0);
        queue.spawn(1, &supervisor, move |_: &str| {
            let attempt = reconcile(attempts.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
            let done = done.clone();
            async move {
                let outcome = attempt.await;
                if outcome == Outcome::Done {
                    let _ = done.send(());
                }
                outcome
            }
        });
        queue.push("a");
        let succeeded = tokio::time::timeout(Duration::from_secs(3600), wait.recv()).await;
        succeeded.ok().flatten().expect("it is tried until it succeeds");
        supervisor.stop().await;
        told.lock().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_reconcile_that_panics_is_told_and_tried_again() {
        let told = worked_off("panicking", |attempt| async move {
            if attempt < 2 {
                tokio::task::yield_now().await;
                panic!("attempt {attempt}");
            }
            Outcome::Done
        });
        assert_eq!(told.await, ["a: attempt 0", "a: attempt 1"]);
        let line = r#"controller_runtime_reconcile_panics_total{controller="panicking"} 2"#;
        let metrics = crate::metrics::render();
        assert!(metrics.contains(line), "{metrics}");
    }

    #[test]
    fn what_dashboards_look_for_is_there_from_the_start() {
        let _queue = Queue::<&str>::new("watched");
        let metrics = crate::metrics::render();
        for name in
            ["reconcile_errors", "reconcile_panics", "terminal_reconcile_errors", "reconcile_timeouts"]
        {
            let line = format!(r#"controller_runtime_{name}_total{{controller="watched"}} 0"#);
            assert!(metrics.contains(&line), "{line}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_before_the_first_await_is_caught_as_well() {
        let told = worked_off("panicking at once", |attempt| {
            assert!(attempt > 0, "no future at all");
            async { Outcome::Done }
        });
        assert_eq!(told.await, ["a: no future at all"]);
    }
}
