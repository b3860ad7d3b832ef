//! Threads for scripts.
//!
//! A script may compute for up to a second. It does so on a dedicated thread, and there are few of them, so
//! scripts cannot take over the machine. A script that was slow runs in the slow lane from then on, until it
//! is quick again: the slow lane is one thread with the lowest priority for all slow scripts. So a hundred
//! scripts that loop cost others next to nothing, and quick scripts do not wait behind them.
//!
//! A panic becomes an error for the caller. A job that hangs in spite of its budget (that would be our bug)
//! is abandoned after [`PATIENCE`]; its thread is replaced, and ends if it ever returns.

use std::any::Any;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use apimachinery::gvk::Gvk;
use interpreter::Operation;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How long work may take after it has begun; scripts end themselves after a second of a free processor.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// A script that computes for longer than the first value is slow, and quick again when it takes less than
/// the second. Usual scripts take less than a millisecond. Processor time counts, so a busy machine makes no
/// script slow.
const SLOW: Duration = Duration::from_millis(20);
const QUICK: Duration = Duration::from_millis(10);
/// The lowest priority: runs when no other thread wants to.
const LAST: i32 = 19;

/// The kind and the operation: their rules are slow or quick together.
pub(super) type Subject = (Gvk, Operation);

/// Why there is no result.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lost {
    #[error("panicked: {0}")]
    Panicked(String),
    #[error("does not come to an end")]
    Hangs,
}

pub(super) struct Pool {
    quick: Lane,
    slow: Lane,
    /// Kinds whose scripts were slow, and take the slow lane.
    slow_subjects: Mutex<HashSet<Subject>>,
    patience: Duration,
}

/// Threads that take work from one line.
struct Lane {
    name: &'static str,
    niceness: i32,
    limit: usize,
    /// How many threads were started that are still counted on.
    threads: AtomicUsize,
    send: mpsc::Sender<Job>,
    receive: Arc<Mutex<mpsc::Receiver<Job>>>,
}

/// Returns whether its thread may continue with other work.
type Job = Box<dyn FnOnce() -> bool + Send>;

impl Pool {
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self::with(processors.clamp(2, 8), PATIENCE)
    }

    fn with(threads: usize, patience: Duration) -> Self {
        Self {
            quick: Lane::new("scripts", 0, threads),
            slow: Lane::new("slow-scripts", LAST, 1),
            slow_subjects: Mutex::default(),
            patience,
        }
    }

    /// Does work on a thread of the pool.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        subject: Subject,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let was_slow = self.slow_subjects.lock().contains(&subject);
        let lane = if was_slow { &self.slow } else { &self.quick };
        let (begin, begun) = oneshot::channel::<()>();
        let (finish, finished) = oneshot::channel();
        let given_up = Arc::new(AtomicBool::new(false));
        let abandoned = given_up.clone();
        lane.submit(Box::new(move || {
            // The caller no longer waits: the process stops, or the key is gone.
            if begin.send(()).is_err() {
                return true;
            }
            let started = computed();
            let result = catch_unwind(AssertUnwindSafe(work));
            let took = computed().saturating_sub(started);
            let _ = finish.send((result.map_err(|panic| text(panic.as_ref())), took));
            !abandoned.load(Ordering::SeqCst)
        }));
        // The line always moves: a job before us is abandoned after a while at the latest.
        let _ = begun.await;
        match tokio::time::timeout(self.patience, finished).await {
            Ok(Ok((result, took))) => {
                self.remember(subject, was_slow, took);
                result.map_err(Lost::Panicked)
            }
            // A thread that ends without an answer has panicked outside the caught section.
            Ok(Err(_)) => Err(Lost::Panicked("its thread is gone".to_owned())),
            Err(_) => {
                given_up.store(true, Ordering::SeqCst);
                self.remember(subject, was_slow, self.patience);
                lane.replace();
                Err(Lost::Hangs)
            }
        }
    }

    fn remember(&self, subject: Subject, was_slow: bool, took: Duration) {
        if !was_slow && took > SLOW {
            tracing::debug!(kind = %subject.0, operation = %subject.1, ?took, "a script is slow");
            self.slow_subjects.lock().insert(subject);
        } else if was_slow && took < QUICK {
            self.slow_subjects.lock().remove(&subject);
        }
    }

    /// Returns how many take the slow lane.
    #[cfg(test)]
    pub(super) fn slow(&self) -> usize {
        self.slow_subjects.lock().len()
    }

    /// Forgets who was slow: the rules have changed.
    pub(super) fn forget(&self) {
        self.slow_subjects.lock().clear();
    }
}

impl Lane {
    fn new(name: &'static str, niceness: i32, limit: usize) -> Self {
        let (send, receive) = mpsc::channel();
        let receive = Arc::new(Mutex::new(receive));
        Self { name, niceness, limit, threads: AtomicUsize::new(0), send, receive }
    }

    fn submit(&self, job: Job) {
        let more = |threads: usize| (threads < self.limit).then_some(threads + 1);
        if self.threads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok() {
            self.start();
        }
        self.send.send(job).expect("the lane itself holds the other end");
    }

    /// Replaces a thread that does not come back.
    fn replace(&self) {
        tracing::error!(pool = self.name, "work hangs; its thread is replaced");
        self.start();
    }

    fn start(&self) {
        let (receive, niceness) = (self.receive.clone(), self.niceness);
        let work = move || {
            if niceness != 0
                && let Err(error) = rustix::process::nice(niceness)
            {
                tracing::debug!(%error, "a thread cannot yield to others");
            }
            loop {
                // The lock is held while waiting: its holder takes the next job, the others wait for the
                // lock.
                let next = receive.lock().recv();
                let Ok(job) = next else { return };
                if !job() {
                    return;
                }
            }
        };
        let started = std::thread::Builder::new().name(self.name.to_owned()).spawn(work);
        if let Err(error) = started {
            // Those that run already do the work.
            tracing::error!(pool = self.name, %error, "cannot start a thread");
        }
    }
}

/// Returns how long this thread has computed.
fn computed() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns what a panic said.
fn text(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn subject(kind: &str) -> Subject {
        (Gvk::new("example.io", "v1", kind), Operation::InterpretHealth)
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_of_the_one_who_asked() {
        let pool = Pool::with(1, LONG);
        for _ in 0..3 {
            let lost = pool.run(subject("A"), || -> i32 { panic!("boom") }).await;
            assert_eq!(lost, Err(Lost::Panicked("boom".to_owned())));
        }
        assert_eq!(pool.run(subject("A"), || 1).await, Ok(1), "the one thread lives");
    }

    #[tokio::test]
    async fn work_that_hangs_is_given_up_and_others_go_on() {
        let pool = Pool::with(2, Duration::from_millis(100));
        let mut doors = Vec::new();
        for _ in 0..5 {
            let (open, door) = mpsc::channel::<()>();
            doors.push(open);
            // In both lanes: the first time in the quick one, then in the slow one.
            let lost = pool
                .run(subject("A"), move || {
                    let _ = door.recv();
                })
                .await;
            assert_eq!(lost, Err(Lost::Hangs));
            assert_eq!(pool.run(subject("B"), || 1).await, Ok(1), "others have a thread");
        }
        drop(doors);
    }

    #[tokio::test]
    async fn whoever_was_slow_waits_in_line_with_its_like_only_until_it_is_quick() {
        let pool = Arc::new(Pool::with(1, LONG));
        let slow = || {
            let started = computed();
            while computed() - started <= SLOW {
                std::hint::spin_loop();
            }
        };
        assert_eq!(pool.run(subject("A"), slow).await, Ok(()));
        let (open, door) = mpsc::channel::<()>();
        let (begin, begun) = oneshot::channel();
        let busy = pool.clone();
        let blocked = tokio::spawn(async move {
            let work = move || {
                let _ = begin.send(());
                let _ = door.recv();
            };
            busy.run(subject("A"), work).await
        });
        begun.await.expect("it has begun");
        assert_eq!(pool.run(subject("B"), || 1).await, Ok(1), "the only quick thread is free");
        drop(open);
        assert_eq!(blocked.await.expect("no panic"), Ok(()));
        while pool.slow_subjects.lock().contains(&subject("A")) {
            assert_eq!(pool.run(subject("A"), || ()).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_not_begun() {
        let pool = Arc::new(Pool::with(1, LONG));
        let (open, door) = mpsc::channel::<()>();
        let busy = pool.clone();
        let (begin, begun) = oneshot::channel();
        let first = tokio::spawn(async move {
            let work = move || {
                let _ = begin.send(());
                let _ = door.recv();
            };
            busy.run(subject("A"), work).await
        });
        begun.await.expect("it has begun");
        let ran = Arc::new(AtomicBool::new(false));
        let (late, told) = (pool.clone(), ran.clone());
        let second =
            tokio::spawn(
                async move { late.run(subject("B"), move || told.store(true, Ordering::SeqCst)).await },
            );
        tokio::task::yield_now().await;
        second.abort();
        let _ = second.await;
        drop(open);
        assert_eq!(first.await.expect("no panic"), Ok(()));
        assert_eq!(pool.run(subject("C"), || 1).await, Ok(1));
        assert!(!ran.load(Ordering::SeqCst));
    }
}
