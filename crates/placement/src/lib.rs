//! What a placement says, below both the scheduler, which decides by it, and the rendering of Works: which clusters it means,
//! how a number is divided among clusters by weight, which taints of clusters it tolerates.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod affinity;
pub mod taints;
pub mod webster;
