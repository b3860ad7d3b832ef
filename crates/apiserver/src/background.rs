//! Long work runs on a background thread that yields to all other threads. So a client that requests large documents, or writes
//! one definition after the other, delays nobody else. A second thread does the work that follows from definitions: it also takes
//! milliseconds, but clients wait for it.
//!
//! A low priority alone is not enough: Linux lets a running thread finish its slice of some milliseconds, whichever thread wakes
//! up meanwhile. Therefore both threads ask for long slices. Since Linux 6.12, threads that ask for shorter slices interrupt
//! them, and all other threads do. In the long run, both threads get the share that their priority gives them. Older kernels
//! ignore the length of the slice.

use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Duration;

use apimachinery::status::Status;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

/// How much lower than normal the priority of the thread is when processors are scarce.
const NICENESS: i32 = 10;

/// The slice that the threads ask for: several times the default of other threads (0.7 ms to 3 ms, depending on the number of
/// processors), but not so long that they would hardly run beside threads that never sleep.
const TURN: Duration = Duration::from_millis(20);

static BACKGROUND: LazyLock<Runtime> = LazyLock::new(|| thread("background", NICENESS));
static SETTLING: LazyLock<Runtime> = LazyLock::new(|| thread("settling", 0));

/// Starts one thread for long tasks.
fn thread(name: &str, niceness: i32) -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(name)
        .on_thread_start(move || {
            if let Err(error) = rustix::process::nice(niceness) {
                tracing::debug!(%error, "long computations have the same priority as requests");
            }
            if let Err(error) = take_long_turns(niceness) {
                tracing::debug!(%error, "long computations are not interrupted by requests");
            }
        })
        .enable_all()
        .build()
        .expect("a process that serves can start one more thread")
}

/// Lets all other threads interrupt this one.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the system call has no binding that hides it")]
fn take_long_turns(niceness: i32) -> std::io::Result<()> {
    let turn = u64::try_from(TURN.as_nanos()).unwrap_or(u64::MAX);
    // For an ordinary thread, the runtime is the requested length of a slice.
    let wanted = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: niceness,
        sched_priority: 0,
        sched_runtime: turn,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads as many bytes as the structure says it has, and keeps no pointer; 0 is this thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn take_long_turns(_: i32) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Returns the runtime for work that follows definitions: it delays no request, and no request delays it.
pub(crate) fn settling() -> &'static Handle {
    SETTLING.handle()
}

/// Runs a future there and waits for its result, and for the processor time that it took. If the caller stops waiting, the future
/// ends at its next step.
pub(crate) async fn run<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<(T, Duration), Status> {
    let metered = Metered { work: Box::pin(work), spent: Duration::ZERO };
    let task = AbortOnDropHandle::new(BACKGROUND.spawn(metered));
    task.await.map_err(|_| Status::internal("a computation was lost"))
}

/// A future that counts its processor time.
struct Metered<F> {
    work: Pin<Box<F>>,
    spent: Duration,
}

impl<F: Future> Future for Metered<F> {
    type Output = (F::Output, Duration);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let before = busy();
        let polled = self.work.as_mut().poll(context);
        self.spent = self.spent.saturating_add(busy().saturating_sub(before));
        polled.map(|result| (result, self.spent))
    }
}

/// Returns the processor time of this thread.
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

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_thread_yields() {
        let ((policy, niceness), _) = run(async {
            take_long_turns(NICENESS).expect("an ordinary thread may ask for it");
            let status = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields: Vec<i64> = status
                .rsplit(')')
                .next()
                .unwrap()
                .split_whitespace()
                .map(|f| f.parse().unwrap_or(-1))
                .collect();
            // Counted from the field after the name, which is the third.
            (fields[41 - 3], fields[19 - 3])
        })
        .await
        .unwrap();
        assert_eq!((policy, niceness), (0, i64::from(NICENESS)));
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
