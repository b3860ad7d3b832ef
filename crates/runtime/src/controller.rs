//! The shape of a controller: observe → decide → apply.
//!
//! [`Reconcile::decide`] has no `self`: it sees the view and the time, nothing else. So it can be tested with a table of cases
//! and no server, and what it returns can be compared, printed and explained.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use jiff::Timestamp;

use crate::turns::{self, Turns};
use crate::writer::Error;
use crate::{Outcome, Supervisor};

/// One controller.
pub trait Reconcile: Send + Sync + 'static {
    /// The key that is reconciled, by name.
    type Key: Clone + Eq + Hash + Debug + Send + Sync + 'static;
    /// Everything a decision depends on.
    type View: Send + Sync;
    /// The steps to take, with their reasons.
    type Plan: Debug + Send;

    /// Reads the known state of a key; `None` if there is nothing to decide.
    fn observe(&self, key: &Self::Key) -> impl Future<Output = Result<Option<Self::View>, Error>> + Send;

    /// Decides. Pure: the same view and time give the same plan.
    fn decide(view: &Self::View, now: Timestamp) -> Self::Plan;

    /// Carries a plan out.
    fn apply(
        &self,
        key: &Self::Key,
        view: Self::View,
        plan: Self::Plan,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send;

    /// Called when `apply` met a conflict: makes sure that the next `observe` sees the other write, and returns whether to
    /// reconcile again immediately. By default, the queue waits for the watch.
    fn refresh(&self, _key: &Self::Key) -> impl Future<Output = Result<bool, Error>> + Send {
        std::future::ready(Ok(false))
    }
}

/// How often a key is reconciled again immediately after a conflict.
const ATTEMPTS: usize = 5;

/// Runs the three steps, and repeats them after a conflict if the controller can read the other write.
pub async fn reconcile<C: Reconcile>(controller: &C, key: &C::Key) -> Outcome {
    let mut attempt = 0_usize;
    loop {
        attempt = attempt.saturating_add(1);
        let error = match once(controller, key).await {
            Ok(outcome) => return outcome,
            Err(error) => error,
        };
        if !error.is_conflict() || attempt >= ATTEMPTS {
            return error.into();
        }
        match controller.refresh(key).await {
            Ok(true) => {}
            Ok(false) => return error.into(),
            Err(error) => return error.into(),
        }
    }
}

async fn once<C: Reconcile>(controller: &C, key: &C::Key) -> Result<Outcome, Error> {
    let Some(view) = controller.observe(key).await? else { return Ok(Outcome::Done) };
    let plan = C::decide(&view, Timestamp::now());
    tracing::trace!(?key, ?plan, "decided");
    controller.apply(key, view, plan).await
}

/// Processes a queue with a controller.
pub fn run<C: Reconcile, T: Turns<Key = C::Key>>(
    controller: &Arc<C>,
    turns: &Arc<T>,
    limit: usize,
    supervisor: &Supervisor,
) {
    let controller = controller.clone();
    turns::work_off(turns, limit, supervisor, move |key: C::Key| {
        let controller = controller.clone();
        async move { reconcile(controller.as_ref(), &key).await }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    /// The number of conflicts.
    struct Contended {
        conflicts: usize,
        /// Whether it can read the other write.
        refreshes: bool,
        seen: AtomicUsize,
        refreshed: AtomicUsize,
    }

    impl Contended {
        fn new(conflicts: usize, refreshes: bool) -> Self {
            Self { conflicts, refreshes, seen: AtomicUsize::new(0), refreshed: AtomicUsize::new(0) }
        }
    }

    fn answer(code: u16) -> Error {
        let status = json!({ "status": "Failure", "message": "m", "reason": "r", "code": code });
        Error::Api(kube::Error::Api(Box::new(serde_json::from_value(status).expect("a status"))))
    }

    impl Reconcile for Contended {
        type Key = &'static str;
        type View = usize;
        type Plan = usize;

        async fn observe(&self, key: &Self::Key) -> Result<Option<usize>, Error> {
            let attempt = self.seen.fetch_add(1, Ordering::SeqCst);
            match *key {
                "nothing" => Ok(None),
                "unreadable" => Err(answer(500)),
                _ => Ok(Some(attempt)),
            }
        }

        fn decide(view: &usize, _: Timestamp) -> usize {
            *view
        }

        async fn apply(&self, key: &Self::Key, view: usize, plan: usize) -> Result<Outcome, Error> {
            assert_eq!(view, plan);
            match *key {
                "refused" => Err(answer(403)),
                _ if plan < self.conflicts => Err(answer(409)),
                _ => Ok(Outcome::Done),
            }
        }

        async fn refresh(&self, key: &Self::Key) -> Result<bool, Error> {
            self.refreshed.fetch_add(1, Ordering::SeqCst);
            if *key == "gone" { Err(answer(404)) } else { Ok(self.refreshes) }
        }
    }

    #[tokio::test]
    async fn a_conflict_is_looked_at_again_where_the_newer_object_is_known() {
        let failed = |conflict| Outcome::Failed { error: "m".to_owned(), conflict };
        // Key, conflicts, whether it refreshes; then: outcome, observations, refreshes.
        let cases = [
            ("a", 0, true, Outcome::Done, 1, 0),
            ("a", 1, true, Outcome::Done, 2, 1),
            ("a", 4, true, Outcome::Done, 5, 4),
            ("a", 5, true, failed(true), 5, 4),
            ("a", 1, false, failed(true), 1, 1),
            ("gone", 1, true, failed(false), 1, 1),
            ("refused", 0, true, failed(false), 1, 0),
            ("nothing", 0, true, Outcome::Done, 1, 0),
            ("unreadable", 0, true, failed(false), 1, 0),
        ];
        for (key, conflicts, refreshes, outcome, looks, refreshed) in cases {
            let controller = Contended::new(conflicts, refreshes);
            assert_eq!(reconcile(&controller, &key).await, outcome, "{key}, {conflicts} conflicts");
            assert_eq!(controller.seen.load(Ordering::SeqCst), looks, "{key}, {conflicts} conflicts");
            assert_eq!(
                controller.refreshed.load(Ordering::SeqCst),
                refreshed,
                "{key}, {conflicts} conflicts"
            );
        }
    }
}
