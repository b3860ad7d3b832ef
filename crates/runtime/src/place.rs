//! A concurrency slot that is held while a key is reconciled, and given up while the key waits for something
//! outside.
//!
//! Queues and members limit how many keys are reconciled at once. A key that waits for a script or a webhook
//! does no work, and must not block others: however slow a webhook is, only the keys that need its answer
//! wait for it. So code that waits for something outside calls [`outside`], which releases the places of the
//! current task and takes them again afterwards.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

tokio::task_local! {
    static HELD: Arc<Held>;
}

/// A place, and the one that was held before it.
struct Held {
    places: Arc<Semaphore>,
    /// `None` while the task is outside.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    outer: Option<Arc<Held>>,
}

/// Holds a place while `work` runs, except while that is [`outside`].
pub fn hold<F: Future>(permit: OwnedSemaphorePermit, work: F) -> impl Future<Output = F::Output> {
    let held = Held {
        places: permit.semaphore().clone(),
        permit: Mutex::new(Some(permit)),
        outer: HELD.try_with(Arc::clone).ok(),
    };
    HELD.scope(Arc::new(held), work)
}

/// Waits for `wait` without holding a place, and takes the places of this task again before it returns.
pub async fn outside<F: Future>(wait: F) -> F::Output {
    let mut given_up = Vec::new();
    let mut next = HELD.try_with(Arc::clone).ok();
    while let Some(held) = next {
        // If several futures of one task wait, the first releases the places and takes them again.
        if held.permit.lock().take().is_some() {
            given_up.push(held.clone());
        }
        next = held.outer.clone();
    }
    let output = wait.await;
    // The outer one first, in the original order: no task holds an inner place while it waits for an outer
    // one.
    for held in given_up.into_iter().rev() {
        let permit = held.places.clone().acquire_owned().await.expect("the semaphore is never closed");
        *held.permit.lock() = Some(permit);
    }
    output
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_task_that_waits_outside_gives_up_its_places_and_takes_them_again() {
        let (queue, member) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
        let (answer, wait) = oneshot::channel::<()>();
        let (waiting, is_waiting) = oneshot::channel::<()>();
        let (held, inner) = (queue.clone(), member.clone());
        let task = tokio::spawn(async move {
            let permit = held.clone().acquire_owned().await.expect("open");
            hold(permit, async {
                let permit = inner.clone().acquire_owned().await.expect("open");
                hold(permit, async {
                    assert_eq!((held.available_permits(), inner.available_permits()), (0, 0));
                    outside(async {
                        let _ = waiting.send(());
                        wait.await
                    })
                    .await
                    .expect("an answer");
                    assert_eq!((held.available_permits(), inner.available_permits()), (0, 0));
                })
                .await;
                assert_eq!((held.available_permits(), inner.available_permits()), (0, 1));
            })
            .await;
        });
        is_waiting.await.expect("it waits");
        assert_eq!((queue.available_permits(), member.available_permits()), (1, 1));
        answer.send(()).expect("somebody waits");
        task.await.expect("no assertion failed");
        assert_eq!((queue.available_permits(), member.available_permits()), (1, 1));
    }

    #[tokio::test]
    async fn without_a_place_there_is_nothing_to_give_up() {
        assert_eq!(outside(async { 1 }).await, 1);
    }
}
