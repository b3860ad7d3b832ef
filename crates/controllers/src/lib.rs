//! Karmada's controllers: they keep the control plane and the members in step with what users wrote.
//!
//! They talk to a Kubernetes API through a `kube::Client` and know nothing of the server behind it. Each file is one
//! controller; whatever decides is in the pure crates (`propagation`, `scheduler`, `interpreter`).
//!
//! The control-plane side (`plane`) turns templates and policies into bindings, placements and Works, and collects
//! their status. The member side (`members`) registers clusters, carries Works out and reports what became of them.
//! The two meet at the Work.

mod common;
pub mod election;
mod events;
pub mod members;
pub mod metrics;
mod pace;
pub mod plane;
mod queue;
pub mod selection;

use std::sync::Arc;

use api::features::Features;
use propagation::skip::SkipRules;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use selection::Selection;

/// What can be chosen on the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `--feature-gates`
    pub features: Features,
    /// `--skipped-propagating-apis` and `--skipped-propagating-namespaces`
    pub skip: SkipRules,
    /// `--removal-limit-templates` and `--removal-limit-percent`
    pub removals: propagation::withdrawal::Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self { features: Features::default(), skip: SkipRules::with_defaults(), removals: Default::default() }
    }
}

/// What every controller gets.
#[derive(Clone)]
pub struct Context {
    /// Which features are on and what is not propagated.
    pub settings: Settings,
    /// The control plane.
    pub client: kube::Client,
    /// Cancelled when the controllers are to stop.
    pub stop: CancellationToken,
    /// Connections to the members, shared by all controllers.
    pub members: Arc<member::Members>,
    /// How the scheduler is set up.
    pub scheduler: plane::scheduling::Settings,
}

/// Starts the selected controllers; they end when the token is cancelled.
pub fn spawn(context: &Context, selection: &Selection, tasks: &TaskTracker) {
    metrics::introduce();
    let common = common::Common::default();
    let plane = plane::wire(context, &common, selection, tasks);
    let members = members::wire(context, &common, selection, tasks, members::Timing::default());
    if plane || members {
        common.follow(context, tasks);
    }
}
