//! Long computations beside the requests: one at a time, on a thread of their own that yields to every other one, so that
//! who asks for large documents again and again keeps nobody else waiting.

use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use apimachinery::status::Status;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// How much less than others the thread counts when the processors are scarce.
const NICENESS: i32 = 10;

static THREAD: LazyLock<Sender<Job>> = LazyLock::new(|| {
    let (sender, jobs) = channel::<Job>();
    let spawned = std::thread::Builder::new().name("aside".to_owned()).spawn(move || {
        if let Err(error) = rustix::process::nice(NICENESS) {
            tracing::debug!(%error, "long computations have the same priority as requests");
        }
        for job in jobs {
            // A job that panics has nobody to tell but who waits for it, and that one sees its channel close.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "cannot start a thread for long computations");
    }
    sender
});

/// Runs a computation on the thread and waits for its result. Who stops waiting before it has begun saves the work.
pub(crate) async fn run<T: Send + 'static>(
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let (answer, result) = oneshot::channel();
    let job = move || {
        if !answer.is_closed() {
            // Nobody may be waiting any more.
            let _ = answer.send(compute());
        }
    };
    let lost = || Status::internal("a computation was lost");
    THREAD.send(Box::new(job)).map_err(|_| lost())?;
    result.await.map_err(|_| lost())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_come_back_and_panics_do_not_stop_the_thread() {
        assert_eq!(run(|| 1 + 1).await.unwrap(), 2);
        assert_eq!(run(|| -> u8 { panic!("on purpose") }).await.unwrap_err().code, 500);
        assert_eq!(run(|| "still there").await.unwrap(), "still there");
    }
}
