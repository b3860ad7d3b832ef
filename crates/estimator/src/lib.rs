//! The accurate estimator: how many more replicas a member can hold, asked of a service that knows its nodes.
//!
//! [`protocol`] is Karmada's gRPC contract, message by message · [`client`] is the scheduler's side: one connection
//! per cluster, all clusters asked at once · [`address`] finds a cluster's service · [`tls`] secures the way there ·
//! [`server`] is the service, on copies of a member's nodes, pods and quotas · [`estimate`] is the answer: [`room`] counts what fits on
//! nodes, [`quota`] what quotas allow · [`unschedulable`] counts replicas that find no node. Karmada's
//! `karmada-scheduler-estimator` speaks the same protocol.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod address;
pub mod client;
pub mod estimate;
pub mod protocol;
pub mod quota;
pub mod room;
pub mod server;
pub mod tls;
pub mod unschedulable;

pub use client::{Client, Error, Options, Question, Request, Want, Workload};

/// Which pods count: those that have not ended.
pub(crate) const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";
