//! Supervised tasks: a task that ends or panics is restarted, after a longer wait each time, and counted.
//!
//! One token stops all tasks; shutdown is complete when every task has returned. A caller that must not wait
//! for that cuts them off instead ([`Supervisor::cut_off`]). What is known of the tasks can be asked for at
//! any time ([`Supervisor::report`]).

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics::{Counters, add};
use crate::mirror::PANICS;

/// How long to wait before a task is restarted: doubled with every failure, from the first value up to the
/// second.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// A task that ran this long has recovered: its failures are forgotten.
const RECOVERED: Duration = Duration::from_secs(60);
/// This many failures in a row count as a failure of the process.
const TOO_MANY: u32 = 3;

static RESTARTS: LazyLock<Counters<1, String>> = LazyLock::new(|| {
    let counters = Counters::default();
    let help = "How often a task of the controllers ended or panicked and was started again";
    add(|registry| registry.register("karmada_task_restarts", help, Counters::clone(&counters)));
    counters
});

/// Supervises tasks; cheap to clone, all clones share the same tasks.
#[derive(Clone, Default)]
pub struct Supervisor(Arc<Inner>);

#[derive(Default)]
struct Inner {
    stop: CancellationToken,
    /// Ends tasks wherever they wait.
    cut: CancellationToken,
    tasks: TaskTracker,
    known: Mutex<BTreeMap<String, Known>>,
}

#[derive(Default)]
struct Known {
    /// Several tasks may share a name.
    running: usize,
    restarts: u64,
    deaths_in_a_row: u32,
    last: Option<String>,
    /// When it was last restarted; `None` while it waits.
    restarted: Option<Instant>,
}

impl Known {
    fn is_failing(&self) -> bool {
        let has_recovered = self.restarted.is_some_and(|at| at.elapsed() >= RECOVERED);
        self.deaths_in_a_row >= TOO_MANY && !has_recovered
    }
}

/// The state of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub name: String,
    pub running: bool,
    pub restarts: u64,
    /// How it last failed.
    pub last: Option<String>,
    /// It keeps failing.
    pub failing: bool,
}

impl Supervisor {
    /// Returns a supervisor whose tasks end when `stop` is cancelled.
    pub fn new(stop: CancellationToken) -> Self {
        Self(Arc::new(Inner { stop, ..Inner::default() }))
    }

    /// Returns the token that ends all tasks.
    pub fn token(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// Keeps a task running until everything stops.
    pub fn keep<F, Fut>(&self, name: impl Into<String>, start: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.keep_until(name, self.0.stop.clone(), start);
    }

    /// Keeps a task running until `stop` is cancelled. The task itself must listen to the token; if it ends earlier, it is
    /// restarted.
    pub fn keep_until<F, Fut>(&self, name: impl Into<String>, stop: CancellationToken, start: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.keep_boxed(name.into(), stop, Box::new(move || Box::pin(start())));
    }

    /// Does the work of [`Self::keep_until`]. Compiled once, not for every task.
    fn keep_boxed(
        &self,
        name: String,
        stop: CancellationToken,
        start: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    ) {
        let inner = self.0.clone();
        self.0.started(&name);
        self.0.tasks.spawn(self.0.cut.clone().run_until_cancelled_owned(async move {
            let mut deaths = 0_u32;
            while !stop.is_cancelled() && !inner.stop.is_cancelled() {
                let started = Instant::now();
                let ended = AssertUnwindSafe(async { start().await }).catch_unwind().await;
                if stop.is_cancelled() || inner.stop.is_cancelled() {
                    break;
                }
                let how = match ended {
                    Ok(()) => "it ended".to_owned(),
                    Err(panic) => format!("it panicked: {}", message(panic.as_ref())),
                };
                deaths = if started.elapsed() < RECOVERED { deaths.saturating_add(1) } else { 1 };
                tracing::error!(task = name, how, deaths, "a task died and is started again");
                inner.died(&name, how, deaths);
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = inner.stop.cancelled() => {}
                    () = tokio::time::sleep(rest_after(deaths)) => {}
                }
                inner.restarted(&name);
            }
            inner.ended(&name);
        }));
    }

    /// Runs a piece of work to its end; stopping waits for it. A panic ends it and is counted.
    pub fn spawn<Fut>(&self, work: Fut)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.spawn_boxed(Box::pin(work));
    }

    /// Does the work of [`Self::spawn`]. Compiled once, not for every piece of work.
    fn spawn_boxed(&self, work: BoxFuture<'static, ()>) {
        let work = AssertUnwindSafe(work).catch_unwind().map(|ended| {
            if let Err(panic) = ended {
                PANICS.get_or_create(&[("place", "task")]).inc();
                tracing::error!(panic = message(panic.as_ref()), "a piece of work panicked");
            }
        });
        self.0.tasks.spawn(self.0.cut.clone().run_until_cancelled_owned(work));
    }

    /// Returns the state of the tasks, by name.
    pub fn report(&self) -> Vec<Report> {
        let known = self.0.known.lock();
        let report = |(name, known): (&String, &Known)| Report {
            name: name.clone(),
            running: known.running > 0,
            restarts: known.restarts,
            last: known.last.clone(),
            failing: known.is_failing(),
        };
        known.iter().map(report).collect()
    }

    /// Stops all tasks and waits until they have ended.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Aborts all tasks where they are: a task that waits for an answer does not continue when it arrives. Returns when no task
    /// is left.
    pub async fn cut_off(&self) {
        self.0.cut.cancel();
        self.stop().await;
    }

    /// Returns how many tasks and jobs have not ended.
    pub fn len(&self) -> usize {
        self.0.tasks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.tasks.is_empty()
    }
}

impl Inner {
    fn died(&self, name: &str, how: String, deaths: u32) {
        let mut known = self.known.lock();
        let known = known.entry(name.to_owned()).or_default();
        known.running = known.running.saturating_sub(1);
        known.last = Some(how);
        known.deaths_in_a_row = deaths;
        known.restarted = None;
    }

    fn started(&self, name: &str) {
        let mut known = self.known.lock();
        let known = known.entry(name.to_owned()).or_default();
        known.running = known.running.saturating_add(1);
    }

    fn restarted(&self, name: &str) {
        let mut known = self.known.lock();
        let known = known.entry(name.to_owned()).or_default();
        known.running = known.running.saturating_add(1);
        known.restarts = known.restarts.saturating_add(1);
        known.restarted = Some(Instant::now());
        RESTARTS.get_or_create(&[("task", name.to_owned())]).inc();
    }

    /// A task that ended because it was stopped needs no entry, unless it has died before.
    fn ended(&self, name: &str) {
        let mut all = self.known.lock();
        if let Some(known) = all.get_mut(name) {
            known.running = known.running.saturating_sub(1);
            if known.running == 0 {
                all.remove(name);
            }
        }
    }
}

fn rest_after(deaths: u32) -> Duration {
    FIRST_REST.saturating_mul(1 << deaths.saturating_sub(1).min(16)).min(LONGEST_REST)
}

/// Returns the message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "it did not say why".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Runs a task that fails as `die` says in its first runs and then keeps running; returns the supervisor
    /// and the number of runs.
    async fn lives(die: fn(u32) -> bool) -> (Supervisor, u32) {
        let (supervisor, lives) = (Supervisor::default(), Arc::new(AtomicU32::new(0)));
        let (counted, stop) = (lives.clone(), supervisor.token().clone());
        let (recovered, mut wait) = tokio::sync::mpsc::unbounded_channel();
        supervisor.keep("task", move || {
            let (life, stop, recovered) =
                (counted.fetch_add(1, Ordering::SeqCst), stop.clone(), recovered.clone());
            async move {
                if die(life) {
                    return;
                }
                let _ = recovered.send(());
                stop.cancelled().await;
            }
        });
        wait.recv().await.expect("it recovers");
        (supervisor, lives.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_is_started_again() {
        let (supervisor, lives) = lives(|life| life < 2).await;
        assert_eq!(lives, 3);
        let report = supervisor.report();
        assert_eq!((report[0].restarts, report[0].running, report[0].failing), (2, true, false));
        assert_eq!(report[0].last.as_deref(), Some("it ended"));
        assert!(crate::metrics::render().contains(r#"karmada_task_restarts_total{task="task"}"#));
        supervisor.stop().await;
        assert!(supervisor.report().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again_and_one_that_keeps_dying_is_failing() {
        let (supervisor, lives) = lives(|life| if life < 4 { panic!("life {life}") } else { false }).await;
        assert_eq!(lives, 5);
        let report = supervisor.report();
        assert_eq!(report[0].last.as_deref(), Some("it panicked: life 3"));
        assert!(report[0].failing);
        supervisor.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_lives_on_is_not_failing_any_more() {
        let (supervisor, _) = lives(|life| life < TOO_MANY).await;
        assert!(supervisor.report()[0].failing, "it has only just been started again");
        tokio::time::sleep(RECOVERED).await;
        let report = supervisor.report();
        assert_eq!((report[0].failing, report[0].running, report[0].restarts), (false, true, 3));
        assert_eq!(report[0].last.as_deref(), Some("it ended"), "how it died is still told");
        supervisor.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_is_told_to_stop_is_not_started_again() {
        let (supervisor, stop) = (Supervisor::default(), CancellationToken::new());
        let listening = stop.clone();
        supervisor.keep_until("one of many", stop.clone(), move || listening.clone().cancelled_owned());
        assert_eq!(supervisor.report().len(), 1);
        stop.cancel();
        while !supervisor.is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(supervisor.report().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_holds_up_a_stop_and_is_cut_off() {
        let (supervisor, written) = (Supervisor::default(), Arc::new(AtomicU32::new(0)));
        let (answer, hangs) = tokio::sync::watch::channel(false);
        let counted = written.clone();
        let write = move || {
            let (written, mut answered) = (counted.clone(), hangs.clone());
            async move {
                let _ = answered.wait_for(|answered| *answered).await;
                written.fetch_add(1, Ordering::SeqCst);
            }
        };
        supervisor.spawn(write());
        supervisor.keep("task", write);
        tokio::task::yield_now().await;
        let stopped = tokio::time::timeout(Duration::from_secs(10), supervisor.stop()).await;
        assert!(stopped.is_err(), "both wait for an answer");
        supervisor.cut_off().await;
        assert!(supervisor.is_empty());
        answer.send_replace(true);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(written.load(Ordering::SeqCst), 0, "nobody is left who would write");
    }

    #[test]
    fn rests_grow_up_to_a_limit() {
        let millis = |deaths| rest_after(deaths).as_millis();
        assert_eq!([millis(1), millis(2), millis(3), millis(30)], [100, 200, 400, 30_000]);
    }
}
