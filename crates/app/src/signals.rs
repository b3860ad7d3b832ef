//! The signals that end a process in order: SIGTERM and Ctrl-C. A second one ends it at once.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from here on. Must be called before anything is started, so that a signal during the start is not lost.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "interrupted",
        }
    }

    /// Waits for a signal, then until the work has ended, unless another signal arrives first.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) {
        // Not inside the macro, which does not evaluate its arguments without a listener.
        let signal = self.next().await;
        tracing::info!("stopping: {signal}");
        self.end(stop).await;
    }

    /// Waits until the work has ended, unless a signal arrives first.
    pub(crate) async fn end(&mut self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = stop => tracing::info!("stopped"),
            _ = self.next() => tracing::warn!("stopped at once: second signal"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_process_that_logs_nothing_waits_for_a_signal_all_the_same() {
        let running = Signals::listen().expect("signals").run(async {});
        assert!(tokio::time::timeout(Duration::from_millis(50), running).await.is_err());
    }
}
