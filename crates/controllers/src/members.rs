//! The member side: clusters, execution of Works, and what became of them.

use tokio_util::task::TaskTracker;

use crate::{Context, Selection};

/// Starts the selected controllers of this side.
pub fn spawn(_context: &Context, _selection: &Selection, _tasks: &TaskTracker) {}
