//! The accurate estimator: how many more replicas a member can hold, asked of a service that knows its nodes.
//!
//! [`protocol`] is Karmada's gRPC contract, message by message · [`client`] is the scheduler's side: one connection
//! per cluster, all clusters asked at once · [`address`] finds a cluster's service · [`tls`] secures the way there.
//! [`unschedulable`] counts replicas that find no node. The service itself is not part of this crate yet; Karmada's `karmada-scheduler-estimator` speaks the same protocol.

pub mod address;
pub mod client;
pub mod protocol;
pub mod tls;
pub mod unschedulable;

pub use client::{Client, Error, Options, Question, Want, Workload};
