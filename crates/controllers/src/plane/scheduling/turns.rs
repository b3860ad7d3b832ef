//! The scheduler's own queue, with priorities and three waiting areas, behind the loop that all controllers
//! share.

use runtime::{Key, Outcome, Turns};
use scheduler::outcome::Retry;
use scheduler::queue::{Item, UNSCHEDULABLE_MAX};
use tokio_util::sync::CancellationToken;

use super::Controller;
use super::metrics::{self, Incoming};

impl Turns for Controller {
    type Key = Key;
    type Turn = Item;

    fn name(&self) -> String {
        "scheduler".to_owned()
    }

    async fn next(&self, stop: &CancellationToken) -> Option<Item> {
        tokio::select! {
            () = stop.cancelled() => return None,
            () = self.first_connections() => {}
        }
        loop {
            let woken = self.wake.notified();
            let tick = {
                let mut turns = self.turns.lock();
                let now = turns.clock.now();
                turns.queue.tick(now);
                let item = turns.queue.pop();
                metrics::pending(turns.queue.pending());
                if item.is_some() {
                    return item;
                }
                turns.queue.next_tick().map(|at| at.duration_since(now).unsigned_abs())
            };
            let ticked = async {
                match tick {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                () = woken => {}
                () = ticked => {}
            }
        }
    }

    fn key(item: &Item) -> Key {
        key_of(&item.key)
    }

    fn done(&self, item: Item, outcome: Outcome) {
        match &outcome {
            Outcome::Panicked(panic) => {
                tracing::error!(controller = "scheduler", key = item.key, panic, "an attempt panicked");
                metrics::panicked();
                self.tell_panic(&key_of(&item.key), panic);
            }
            Outcome::Failed { error, .. } => {
                tracing::debug!(controller = "scheduler", key = item.key, error, "will be tried again");
            }
            Outcome::Done | Outcome::Retry | Outcome::After(_) => {}
        }
        let retry = retry(&outcome);
        if retry != Retry::Never {
            metrics::incoming(Incoming::ScheduleAttemptFailure, 1);
        }
        let mut turns = self.turns.lock();
        let now = turns.clock.now();
        turns.queue.done(item, retry, now);
        drop(turns);
        self.wake.notify_one();
    }
}

/// Returns the key of a binding as mirrors have it.
pub(super) fn key_of(item: &str) -> Key {
    match item.split_once('/') {
        Some((namespace, name)) => Key::new(namespace, name),
        None => Key::new("", item),
    }
}

/// Returns what the scheduler's queue has to do next.
fn retry(outcome: &Outcome) -> Retry {
    match outcome {
        Outcome::Done => Retry::Never,
        Outcome::After(_) => Retry::Unschedulable,
        Outcome::Retry | Outcome::Failed { .. } | Outcome::Panicked(_) => Retry::Backoff,
    }
}

/// Returns the same for the loop: a binding that lacks room is not a failure.
pub(super) fn outcome(retry: Retry) -> Outcome {
    match retry {
        Retry::Never => Outcome::Done,
        Retry::Unschedulable => Outcome::After(UNSCHEDULABLE_MAX.unsigned_abs()),
        Retry::Backoff => Outcome::Retry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_and_the_queue_mean_the_same() {
        for all in [Retry::Never, Retry::Unschedulable, Retry::Backoff] {
            assert_eq!(retry(&outcome(all)), all);
        }
        let failed = |conflict| Outcome::Failed { error: "e".to_owned(), conflict };
        for outcome in [failed(true), failed(false), Outcome::Panicked("p".to_owned())] {
            assert_eq!(retry(&outcome), Retry::Backoff, "{outcome:?}");
        }
    }

    #[test]
    fn items_are_named_as_mirrors_name_bindings() {
        assert_eq!(key_of("default/web"), Key::new("default", "web"));
        assert_eq!(key_of("role"), Key::new("", "role"));
    }
}
