//! The patch formats of the API: JSON patch, merge patch, strategic merge patch.
//!
//! All of them are functions from an object and a patch to an object; decoding and validating the result is the
//! caller's part. Server-side apply is in [`crate::server_side_apply`].

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod json;
pub mod merge;
pub mod strategic;
