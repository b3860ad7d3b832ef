//! Mechanics of Kubernetes objects, without IO: what a field error says, how a selector matches, how a
//! patch changes an object, what a quantity means.
//!
//! Objects are `serde_json::Value` trees whose maps are ordered by key, so that equal objects have equal
//! bytes. Nothing here knows a particular kind; that knowledge is data, handed in through small traits.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod conditions;
pub mod crd;
pub mod depth;
pub mod duration;
pub mod field;
pub mod go;
pub mod gvk;
pub mod json;
pub mod jsonpath;
pub mod names;
pub mod object;
pub mod patch;
pub mod pointer;
pub mod quantity;
pub mod selector;
pub mod server_side_apply;
pub mod stack;
pub mod status;
pub mod structural;
pub mod webhook;
pub mod weight;
pub mod yaml;
