//! Connections to member clusters: clients, caches, health.
//!
//! In: Cluster objects and the Secrets they name. Out: one [`Member`] per cluster, with a client, an
//! in-flight limit of its own (a slow cluster does not delay others), caches of the objects we manage there,
//! and requests with meaningful errors. It does not decide what belongs in a member. It also registers
//! clusters as members: [`registration`], with the credentials that they give to the control plane
//! ([`credentials`]).

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod answer;
mod connection;
pub mod credentials;
mod error;
mod health;
mod kinds;
pub mod kubeconfig;
mod lasting;
pub mod limit;
mod load;
mod member;
mod members;
mod proxied;
pub mod registration;
mod through;
mod tls;

pub use connection::Connection;
pub use error::{Error, Result};
pub use health::{Health, probe};
pub use kinds::{Kind, Kinds};
pub use lasting::lasting_client;
pub use load::{Load, NodeRecord, PodRecord};
pub use member::{Lookup, Member, Selection};
pub use members::{Between, Members, ObservedChange, Observer};
pub use through::through_proxy;
pub use tls::{OldestTls, TooOld};
