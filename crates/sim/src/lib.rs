//! Simulated member clusters: any number in one process, each with an API server of its own on a port of its own, and
//! controllers that make it behave like a cluster as far as a client can tell.
//!
//! In: the number, size and location of the members ([`Options`]). Out: a [`Fleet`] with a kubeconfig per member and switches for
//! trouble. No container is started and only the API servers listen.
//!
//! One `engine` per member follows the store's history. Every controller is a function from what exists to a list of
//! steps (`plan`); `executor` carries them out. So all behaviour can be tested without a server.

mod addresses;
mod admission;
mod binding;
mod control;
mod controllers;
mod engine;
mod eviction;
mod executor;
mod extension;
mod fleet;
mod hash;
mod kinds;
mod metrics;
mod objects;
mod options;
mod plan;
mod trouble;
mod view;

pub use control::{Answer, Request, SOCKET, ask};
pub use fleet::{Error, Fleet, Member, start};
pub use metrics::table as metrics_table;
pub use options::{Delays, MemberOptions, NodeOptions, Options};
pub use trouble::{Load, Trouble, Troubles};
