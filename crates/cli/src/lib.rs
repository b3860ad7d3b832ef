//! The commands, one file each; what they print.

mod clients;
mod join;
mod unjoin;

pub use clients::{ControlArguments, config};
pub use join::{JoinArguments, enrol, join};
pub use unjoin::{UnjoinArguments, unjoin};
