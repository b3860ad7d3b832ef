//! Where a controller gets its keys from, and the loop that processes them.
//!
//! [`crate::Queue`] is first come, first served. A controller with its own order (the scheduler has
//! priorities) implements [`Turns`] and shares the loop, which limits how many keys run at once, catches
//! panics, and is itself supervised.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::supervisor::message;
use crate::{Outcome, Supervisor, place};

/// Hands out keys, and takes back the result of each.
pub trait Turns: Send + Sync + 'static {
    /// What is reconciled, by name.
    type Key: Send;
    /// A key that was handed out.
    type Turn: Send + 'static;

    /// Returns the name of the loop, as reports and logs have it.
    fn name(&self) -> String;

    /// Gets the number of turns that may run at once.
    fn limited_to(&self, _limit: usize) {}

    /// Returns the next turn; `None` once stopped. A key is not handed out again before it is done.
    fn next(&self, stop: &CancellationToken) -> impl Future<Output = Option<Self::Turn>> + Send;

    fn key(turn: &Self::Turn) -> Self::Key;

    /// Takes a turn back. The reconcile may have panicked.
    fn done(&self, turn: Self::Turn, outcome: Outcome);
}

/// Processes the keys that are handed out, at most `limit` at once, until the process stops.
pub fn work_off<T, F, Fut>(turns: &Arc<T>, limit: usize, supervisor: &Supervisor, reconcile: F)
where
    T: Turns,
    F: Fn(T::Key) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: Into<Outcome>,
{
    turns.limited_to(limit);
    let (turns, workers, reconcile) = (turns.clone(), supervisor.clone(), Arc::new(reconcile));
    let free = Arc::new(Semaphore::new(limit));
    supervisor.keep(turns.name(), move || {
        hand_out(turns.clone(), free.clone(), workers.clone(), reconcile.clone())
    });
}

async fn hand_out<T, F, Fut>(turns: Arc<T>, free: Arc<Semaphore>, workers: Supervisor, reconcile: Arc<F>)
where
    T: Turns,
    F: Fn(T::Key) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: Into<Outcome>,
{
    loop {
        let place = free.clone().acquire_owned().await.expect("the semaphore is never closed");
        let Some(turn) = turns.next(workers.token()).await else { return };
        let (turns, reconcile) = (turns.clone(), reconcile.clone());
        workers.spawn(place::hold(place, async move {
            let key = T::key(&turn);
            // Boxed, because a reconcile is large and is moved several times on its way into its own task.
            let attempt = async { Box::pin(reconcile(key)).await.into() };
            let outcome = AssertUnwindSafe(attempt)
                .catch_unwind()
                .await
                .unwrap_or_else(|panic| Outcome::Panicked(message(panic.as_ref())));
            turns.done(turn, outcome);
        }));
    }
}
