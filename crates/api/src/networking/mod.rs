//! `networking.karmada.io/v1alpha1`: Services and Ingresses over several clusters.

mod ingress;
mod service;

pub use ingress::*;
pub use service::*;

/// The API group of this module.
pub const GROUP: &str = "networking.karmada.io";
