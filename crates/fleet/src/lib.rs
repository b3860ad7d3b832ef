//! The fleet as one cluster: copies of members' objects, and how they are listed, watched and searched together.
//!
//! In: ResourceRegistries, which say which objects of which members are kept, and the members' own lists and watches. Out: one
//! [`Cache`] for each kind, with the objects of all members; lists and watches over all of them, whose resource versions name
//! every member ([`version`]). Does not serve HTTP and does not authorise reads: the caller does both.
//!
//! | Module | Holds |
//! |---|---|
//! | [`plan`] | which kinds are kept from which clusters and namespaces |
//! | [`keeper`] | carries the plan out, and reports the result in the registries' status |
//! | [`follow`] | one list and watch: pages, resuming, which answers of a member are believed |
//! | [`entry`] | how an object is kept in memory, and how it is written for clients |
//! | [`cache`] | all objects of a kind, and their recent events |
//! | [`watch`] | a reader of the events |
//! | `past` | how the objects were at a version, for later pages of a list |
//! | [`version`] | resource versions and continue tokens over several clusters |
//! | [`query`] | a language for searching, answered from the caches |

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod cache;
pub mod entry;
pub mod follow;
mod index;
pub mod keeper;
mod past;
pub mod plan;
pub mod query;
mod source;
pub mod version;
pub mod watch;

pub use cache::{Cache, Place, Stale};
pub use entry::Entry;
pub use keeper::Fleet;
pub use plan::Kind;
pub use version::Versions;
pub use watch::{Lost, Start, Watch};
