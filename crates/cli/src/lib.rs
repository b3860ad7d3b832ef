//! The commands, one file each; what they print.

mod clients;
mod join;
mod unjoin;

pub use join::{JoinArguments, join};
pub use unjoin::{UnjoinArguments, unjoin};
