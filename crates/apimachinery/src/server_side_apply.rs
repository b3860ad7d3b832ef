//! Server-side apply: who owns which field, and what an applied configuration does to an object.
//!
//! The pieces, from the bottom: a [`PathElement`] names one step into an object; a [`Set`] is a trie of owned
//! paths, stored as `FieldsV1`; a [`TypeSchema`] says which lists are sets or maps and what is atomic; [`typed`]
//! compares, merges and cuts objects by such a type; [`managed`] reads and prints `metadata.managedFields`; and
//! [`FieldManager`] puts them together for writes and applies.
//!
//! Everything is a function of its arguments. Time comes in as text, conversion between API versions through
//! [`Types`].

pub mod managed;
mod manager;
mod path;
#[cfg(test)]
mod sample;
mod scale;
mod schema;
mod set;
pub mod typed;

pub use manager::{Conflict, Error, FieldManager, Types, keep_times_if_equal};
pub use path::{Path, PathElement};
pub use scale::{scale_to_parent, to_scale};
pub use schema::{Deduced, List, Member, Scalar, Topology, TypeSchema};
pub use set::Set;
