//! The patch formats of the API: JSON patch, merge patch, strategic merge patch.
//!
//! All of them are functions from an object and a patch to an object; decoding and validating the result is the
//! caller's part. Server-side apply is in [`crate::server_side_apply`].

pub mod json;
pub mod merge;
pub mod strategic;
