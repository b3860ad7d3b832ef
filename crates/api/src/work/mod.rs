//! `work.karmada.io`: what was decided about a resource (bindings) and what a cluster is to run (Work).
//!
//! Bindings are stored as v1alpha2, which stands here; the older form is in [`v1alpha1`] together with the
//! conversion between the two. [`Work`] exists in v1alpha1 only and stands here as well, being in daily use.

mod binding;
pub mod conversion;
mod manifests;
pub mod v1alpha1;

pub use binding::*;
pub use manifests::*;

/// The API group of this module.
pub const GROUP: &str = "work.karmada.io";

pub use crate::policy::ResourceList;
