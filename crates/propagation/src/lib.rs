//! Policy matching, bindings, overrides and the rendering of works: everything that decides what runs where,
//! and in which form, as functions from values to values.
//!
//! The path of an object through this crate:
//!
//! 1. [`policies`] finds the policy that manages a template, [`claim`] writes that down on it;
//! 2. [`binding`] builds the binding the scheduler works on;
//! 3. [`dependencies`] attaches what the template needs beside it;
//! 4. [`render`] makes one Work per chosen cluster, with [`overrides`] having the last word;
//! 5. [`delivery`] decides what to write into the member, keeping what the member owns;
//! 6. [`status`] brings the members' reports back to the binding and the template;
//! 7. [`eviction`] takes it out of a cluster that has failed, [`withdrawal`] out of one that is not asked for any more.
//!
//! Templates and manifests are `serde_json::Value`; Karmada's own kinds are the types of the `api` crate.
//! There is no clock, no randomness and no IO here. Functions that would change an object say whether they did,
//! so that a controller never writes what is already right.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod activation;
pub mod binding;
pub mod claim;
pub mod delivery;
pub mod dependencies;
mod error;
pub mod eviction;
pub mod index;
mod object;
pub mod overrides;
pub mod policies;
pub mod render;
pub mod selector;
pub mod skip;
pub mod status;
mod target;
pub mod withdrawal;

pub use api::work::Binding;
pub use apimachinery::object::Object;
pub use error::{Error, Result};
pub use object::Reference;
pub use target::{check_scope, directly_purged_clusters, expected_clusters, target_clusters};
