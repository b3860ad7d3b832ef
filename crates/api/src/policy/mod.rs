//! `policy.karmada.io/v1alpha1`: what goes where, how it differs there, and how much of it may exist.
//!
//! PropagationPolicy and ClusterPropagationPolicy share [`PropagationSpec`], the two override policies share
//! [`OverrideSpec`]; scope is the only difference.

mod failover;
mod overrides;
mod placement;
mod propagation;
mod quota;
mod taint;

pub use failover::*;
pub use overrides::*;
pub use placement::*;
pub use propagation::*;
pub use quota::*;
pub use taint::*;

/// The API group of this module.
pub const GROUP: &str = "policy.karmada.io";
