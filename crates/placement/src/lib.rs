//! What a placement says, below both the scheduler, which decides by it, and the rendering of Works: which clusters it means,
//! how a number is divided among clusters by weight, which taints of clusters it tolerates.

pub mod affinity;
pub mod taints;
pub mod webster;
