//! Keeps the server's own controllers running: one that panics is restarted after a growing pause, and until it has worked for a
//! while, its failure is visible.
//!
//! It is reported by the log, by `apiserver_controller_panics_total`, and by a check of `/readyz` for each controller.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::ControllerLabels;
use crate::server::Server;

/// The pause between two runs of a controller that ended by itself: it lost the history and starts over from the present state.
const PAUSE: Duration = Duration::from_millis(50);
/// The pauses between runs.
#[derive(Debug, Clone, Copy)]
struct Timing {
    /// After a panic, doubled with every further one.
    pause: Duration,
    longest_pause: Duration,
    /// A controller that runs this long after a panic counts as working again.
    stable: Duration,
}

const TIMING: Timing = Timing {
    pause: Duration::from_millis(100),
    longest_pause: Duration::from_secs(60),
    stable: Duration::from_secs(10),
};

/// After this many panics in a row, the server is not ready. A single panic may not happen again, and is not a reason to send
/// clients away.
const LASTING: u32 = 3;

/// The state of the controllers.
#[derive(Debug, Default)]
pub struct Health {
    controllers: Mutex<BTreeMap<&'static str, State>>,
}

#[derive(Debug, Clone, Default)]
struct State {
    /// Panics in a row.
    panics: u32,
    why: String,
}

impl Health {
    /// Returns every controller, with the reason if it does not work.
    pub(crate) fn checks(&self) -> Vec<(&'static str, Option<String>)> {
        let controllers = self.controllers.lock();
        let failure = |state: &State| {
            (state.panics >= LASTING)
                .then(|| format!("panicked {} times in a row: {}", state.panics, state.why))
        };
        controllers.iter().map(|(name, state)| (*name, failure(state))).collect()
    }

    fn started(&self, name: &'static str) {
        self.controllers.lock().entry(name).or_default();
    }

    fn works(&self, name: &'static str) {
        self.controllers.lock().insert(name, State::default());
    }

    /// Counts a panic. Returns how long to wait before the next run.
    fn panicked(&self, name: &'static str, why: &str, timing: Timing) -> Duration {
        let mut controllers = self.controllers.lock();
        let state = controllers.entry(name).or_default();
        let before = state.panics;
        *state = State { panics: before.saturating_add(1), why: why.to_owned() };
        timing.pause.saturating_mul(2_u32.saturating_pow(before.min(16))).min(timing.longest_pause)
    }
}

/// Returns a future that runs a controller until the server stops. Readiness lists it from now on, even if its thread starts
/// late.
pub(super) fn run<F, Fut>(
    server: Arc<Server>,
    name: &'static str,
    controller: F,
) -> impl Future<Output = ()> + Send + 'static
where
    F: Fn(Arc<Server>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    server.ready.controllers.started(name);
    supervise(server, name, controller)
}

async fn supervise<F, Fut>(server: Arc<Server>, name: &'static str, controller: F)
where
    F: Fn(Arc<Server>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let stop = server.stop.clone();
    let panicked = || {
        server
            .metrics
            .controller_panics
            .get_or_create(&ControllerLabels { controller: name.to_owned() })
            .inc();
    };
    let health = &server.ready.controllers;
    let runs = keep_running(health, TIMING, name, || controller(server.clone()), panicked);
    tokio::select! {
        () = runs => {}
        () = stop.cancelled() => {}
    }
}

async fn keep_running<Fut: Future<Output = ()>>(
    health: &Health,
    timing: Timing,
    name: &'static str,
    controller: impl Fn() -> Fut,
    panicked: impl Fn(),
) {
    health.started(name);
    loop {
        // The next run uses nothing from the previous one except the store, and a panic leaves nothing half-written there.
        let began = Instant::now();
        let ended = {
            let mut run = std::pin::pin!(AssertUnwindSafe(async { controller().await }).catch_unwind());
            tokio::select! {
                ended = &mut run => ended,
                () = tokio::time::sleep(timing.stable) => {
                    health.works(name);
                    run.await
                }
            }
        };
        let pause = match ended {
            Ok(()) => {
                tracing::debug!(controller = name, "starts over");
                health.works(name);
                PAUSE
            }
            Err(payload) => {
                let why = message(&*payload);
                panicked();
                let pause = health.panicked(name, why, timing);
                let ran = began.elapsed();
                tracing::error!(controller = name, error = why, ?ran, ?pause, "a controller panicked");
                pause
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("unknown reason")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn failure(health: &Health) -> Option<String> {
        health.checks().into_iter().find(|(name, _)| *name == "c").expect("it is known").1
    }

    /// Waits for a state while the controller runs.
    async fn until(running: std::pin::Pin<&mut impl Future<Output = ()>>, wanted: impl Fn() -> bool) {
        let reached = async {
            while !wanted() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = running => unreachable!("it never ends"),
            () = reached => {}
            () = tokio::time::sleep(Duration::from_secs(60)) => panic!("not reached"),
        }
    }

    #[tokio::test]
    async fn finding_5_a_controller_that_panics_is_run_again_told_and_counted() {
        let (health, runs, panics) = (Health::default(), AtomicU32::new(0), AtomicU32::new(0));
        let goes_on = tokio::sync::Notify::new();
        let controller = || async {
            if runs.fetch_add(1, Ordering::SeqCst) < 4 {
                panic!("on purpose");
            }
            goes_on.notified().await;
        };
        let count = || {
            panics.fetch_add(1, Ordering::SeqCst);
        };
        let timing = Timing { pause: Duration::from_micros(1), stable: Duration::from_secs(3600), ..TIMING };
        let mut running = std::pin::pin!(keep_running(&health, timing, "c", controller, count));
        until(running.as_mut(), || runs.load(Ordering::SeqCst) == 5).await;
        assert_eq!(panics.load(Ordering::SeqCst), 4);
        let why = failure(&health).expect("a server whose controller keeps panicking is not ready");
        assert_eq!(why, "panicked 4 times in a row: on purpose");
        goes_on.notify_one();
        until(running.as_mut(), || failure(&health).is_none()).await;
    }

    #[tokio::test]
    async fn a_controller_that_runs_for_a_while_after_a_panic_works_again() {
        let (health, runs) = (Health::default(), AtomicU32::new(0));
        let controller = || async {
            if runs.fetch_add(1, Ordering::SeqCst) < 4 {
                panic!("on purpose");
            }
            std::future::pending::<()>().await;
        };
        let timing = Timing { pause: Duration::from_micros(1), stable: Duration::from_millis(1), ..TIMING };
        let mut running = std::pin::pin!(keep_running(&health, timing, "c", controller, || {}));
        until(running.as_mut(), || runs.load(Ordering::SeqCst) == 5 && failure(&health).is_none()).await;
    }

    #[test]
    fn one_panic_does_not_send_clients_away_and_pauses_grow_within_bounds() {
        let health = Health::default();
        assert_eq!(health.panicked("c", "x", TIMING), TIMING.pause);
        assert_eq!(failure(&health), None);
        assert_eq!(health.panicked("c", "x", TIMING), TIMING.pause * 2);
        for _ in 0..100 {
            health.panicked("c", "x", TIMING);
        }
        assert_eq!(health.panicked("c", "x", TIMING), TIMING.longest_pause);
        assert!(failure(&health).is_some());
    }
}
