//! A gate between clients and the server, for rehearsals. If it is shut, new connections are refused and open ones end. If it is
//! slow, every request waits. Parts of the same process are not affected.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// A handle on a gate; clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate(Arc<watch::Sender<State>>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    shut: bool,
    delay: Duration,
}

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }
}

impl Gate {
    /// Shuts the gate or opens it; open connections end at once when it shuts.
    pub fn set_shut(&self, shut: bool) {
        self.0.send_modify(|state| state.shut = shut);
    }

    /// Makes every request wait this long before it is handled.
    pub fn set_delay(&self, delay: Duration) {
        self.0.send_modify(|state| state.delay = delay);
    }

    pub fn is_shut(&self) -> bool {
        self.0.borrow().shut
    }

    /// Waits until the gate is shut.
    pub async fn shut(&self) {
        let mut states = self.0.subscribe();
        // The sender lives as long as `self`.
        let _ = states.wait_for(|state| state.shut).await;
    }

    pub(crate) async fn delay(&self) {
        let delay = self.0.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}
