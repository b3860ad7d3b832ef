//! The embedded Kubernetes API server: one process, no etcd, no kube-apiserver.
//!
//! In: HTTPS requests from clients, or in-memory ones from the same process. Out: what kube-apiserver would answer. It knows
//! Kubernetes, not federation: Karmada's kinds are definitions plus admission plug-ins from outside.
//!
//! The path of a request: `http::listener` → `http::front` → `serve` (identity, limits, authorisation) → `handlers` (decode,
//! admit, validate, commit) → `store`. Native kinds and custom ones take the same path; `registry` holds the differences.

// Most input here comes from outside. In tests, a panic is how a failure is reported.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

mod account;
pub mod admin;
pub mod admission;
pub mod aggregation;
mod allocator;
pub mod audit;
pub mod auth;
mod background;
mod bootstrap;
mod clock;
mod controllers;
pub mod conversion;
mod endpoints;
mod field_ownership;
pub mod gate;
mod gnostic;
pub mod handlers;
pub mod head;
pub mod http;
pub mod internal;
mod issuer;
mod limits;
pub mod local;
mod metrics;
mod object;
mod openapi;
mod openapi_custom;
mod openapi_pieces;
mod options;
pub mod outbound;
pub mod registry;
mod serve;
pub mod server;
mod service_ranges;
mod start;
mod yaml;

pub use account::{Budgets, Held};
pub use endpoints::{KUBERNETES_VERSION, ROUTES, Readers, Route};
pub use options::{Options, Profile};
pub use serve::{Onward, Peer, serve, timed_out};
pub use server::{Extension, Server};
pub use service_ranges::{Error as ServiceRangesError, ServiceRanges};
pub use start::{Error, Handle, start};
