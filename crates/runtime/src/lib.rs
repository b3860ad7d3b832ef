//! The machinery that every controller stands on: local copies of collections, queues of keys, one writer, events, supervised
//! tasks, leader election. It talks to a Kubernetes API and decides nothing.
//!
//! A controller is a declaration and three steps ([`controller::Reconcile`]): `observe` reads mirrors into a view, `decide` turns
//! the view into a plan without touching anything, `apply` carries the plan out. Code map:
//!
//! | Module | Holds |
//! |---|---|
//! | [`mirror`] | a copy of a collection, kept by one watch and shared by all readers; it knows our own writes |
//! | [`queue`] | keys to reconcile: each at most once at a time, with back-off per key; a panic costs one attempt |
//! | [`place`] | a concurrency slot, given up while a key waits for something outside |
//! | [`turns`] | the loop that processes keys, for queues of any order |
//! | [`controller`] | the three steps and what a controller says about itself |
//! | [`writer`] | create, patch, status, finalizers, delete; durable unless the writer says that a write can be made again |
//! | [`events`] | what users see under `kubectl describe` |
//! | [`supervisor`] | tasks that are started again when they die, and what is known of each |
//! | [`election`] | one of several processes acts: the holder of a Lease |
//! | [`throttle`] | joins quick successive writes of one key |
//! | [`room`] | how much of another cluster is read and kept |
//! | [`witness`] | whether a server's history is still the one that was seen |
//! | [`metrics`] | the registry of this process |

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod controller;
pub mod election;
pub mod events;
pub mod locks;
pub mod metrics;
pub mod mirror;
pub mod place;
pub mod queue;
pub mod room;
pub mod supervisor;
pub mod throttle;
pub mod turns;
mod undecoded;
pub mod witness;
pub mod writer;

pub use controller::Reconcile;
pub use events::Events;
pub use locks::{KeyLock, KeyLocks};
pub use mirror::{Change, Key, Mirror};
pub use queue::{Outcome, Queue, UNLIMITED};
pub use supervisor::Supervisor;
pub use throttle::Throttle;
pub use turns::Turns;
pub use witness::{Vouched, Witness};
pub use writer::{Error, Guard, Writer};
