//! What a pod needs: resources and nodes to run on, and other objects to refer to.
//!
//! Shared by the native rules and by rules written in Lua, which reach these functions by name.

mod references;
mod requirements;

pub use references::references;
pub use requirements::{PriorityClass, requirements};
