//! The control-plane side: templates, policies, bindings, placements, Works, and status on its way back.

use tokio_util::task::TaskTracker;

use crate::{Context, Selection};

/// Starts the selected controllers of this side.
pub fn spawn(_context: &Context, _selection: &Selection, _tasks: &TaskTracker) {}
