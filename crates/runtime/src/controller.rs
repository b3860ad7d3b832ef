//! The shape of a controller: observe → decide → apply.
//!
//! [`Reconcile::decide`] has no `self`: it sees the view and the time, nothing else. So it can be tested with a table of cases
//! and no server, and what it returns can be compared, printed and explained.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use jiff::Timestamp;

use crate::writer::Error;
use crate::{Outcome, Queue, Supervisor};

/// One controller.
pub trait Reconcile: Send + Sync + 'static {
    /// What is reconciled, by name.
    type Key: Clone + Eq + Hash + Debug + Send + Sync + 'static;
    /// Everything a decision depends on.
    type View: Send + Sync;
    /// What is to be done, and why.
    type Plan: Debug + Send;

    /// Reads what is known about a key; nothing if there is nothing to decide.
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
}

/// Goes through the three steps once.
pub async fn reconcile<C: Reconcile>(controller: &C, key: &C::Key) -> Outcome {
    let result = async {
        let Some(view) = controller.observe(key).await? else { return Ok(Outcome::Done) };
        let plan = C::decide(&view, Timestamp::now());
        tracing::trace!(?key, ?plan, "decided");
        controller.apply(key, view, plan).await
    };
    result.await.unwrap_or_else(Outcome::from)
}

/// Works off a queue with a controller.
pub fn run<C: Reconcile>(
    controller: &Arc<C>,
    queue: &Arc<Queue<C::Key>>,
    limit: usize,
    supervisor: &Supervisor,
) {
    let controller = controller.clone();
    queue.spawn(limit, supervisor, move |key: C::Key| {
        let controller = controller.clone();
        async move { reconcile(controller.as_ref(), &key).await }
    });
}
