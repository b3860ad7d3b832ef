//! Karmada's API: the kinds of every group, their CRDs, and the names and constants that belong to them.
//!
//! One module per API group. Everything a kind is (Rust type, encoding, schema, documentation) comes from one
//! declaration; see [`wire`]. No IO, no clients: the kinds implement `kube_core::Resource`, so `kube::Api<T>`
//! takes them as they are.

pub mod apps;
pub mod autoscaling;
pub mod cluster;
pub mod conditions;
pub mod config;
pub mod constants;
pub mod crd;
pub mod events;
pub mod features;
pub mod kubernetes;
pub mod labels;
pub mod multicluster;
pub mod names;
pub mod networking;
pub mod policy;
pub mod reference;
pub mod remedy;
pub mod schema;
pub mod search;
pub mod wire;
pub mod work;

pub use wire::{Kind, go_json};
