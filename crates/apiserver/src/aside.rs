//! Work that takes long, beside the requests that do not: on a thread of its own that yields to every other one, so that
//! who asks for large documents or makes one definition after the other keeps nobody else waiting. And a thread for what
//! follows from definitions, which takes milliseconds too but is waited for.

use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Duration;

use apimachinery::status::Status;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

/// How much less than others the thread counts when the processors are scarce.
const NICENESS: i32 = 10;

static ASIDE: LazyLock<Runtime> = LazyLock::new(|| thread("aside", NICENESS));
static SETTLING: LazyLock<Runtime> = LazyLock::new(|| thread("settling", 0));

/// Starts one thread for tasks that take long.
fn thread(name: &str, niceness: i32) -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(name)
        .on_thread_start(move || {
            if let Err(error) = rustix::process::nice(niceness) {
                tracing::debug!(%error, "long computations have the same priority as requests");
            }
        })
        .enable_all()
        .build()
        .expect("a process that serves can start one more thread")
}

/// Returns where to follow definitions: that is in the way of no request, and is not put off for one either.
pub(crate) fn settling() -> &'static Handle {
    SETTLING.handle()
}

/// Runs something there and waits for its result, and how long a processor was busy with it. Who stops waiting ends it at
/// its next step.
pub(crate) async fn run<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<(T, Duration), Status> {
    let metered = Metered { work: Box::pin(work), spent: Duration::ZERO };
    let task = AbortOnDropHandle::new(ASIDE.spawn(metered));
    task.await.map_err(|_| Status::internal("a computation was lost"))
}

/// Work that counts how long a processor is busy with it.
struct Metered<F> {
    work: Pin<Box<F>>,
    spent: Duration,
}

impl<F: Future> Future for Metered<F> {
    type Output = (F::Output, Duration);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let before = busy();
        let polled = self.work.as_mut().poll(context);
        self.spent += busy().saturating_sub(before);
        polled.map(|result| (result, self.spent))
    }
}

/// Returns how long a processor has been busy with this thread.
fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_come_back_and_panics_do_not_stop_the_thread() {
        assert_eq!(run(async { 1 + 1 }).await.unwrap().0, 2);
        let lost: Result<((), Duration), _> = run(async { panic!("on purpose") }).await;
        assert_eq!(lost.unwrap_err().code, 500);
        assert_eq!(run(async { "still there" }).await.unwrap().0, "still there");
    }

    #[tokio::test]
    async fn time_counts_while_it_is_used() {
        let ((), waited) = run(tokio::time::sleep(Duration::from_millis(200))).await.unwrap();
        assert!(waited < Duration::from_millis(100), "{waited:?}");
        let needed = Duration::from_millis(5);
        let ((), worked) = run(async move {
            let began = busy();
            while busy() - began < needed {}
        })
        .await
        .unwrap();
        assert!(worked >= needed, "{worked:?}");
    }
}
