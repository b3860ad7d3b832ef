//! Propagation from end to end: the real binary, with real member clusters and with simulated ones.
//!
//! Everything is done and seen through Kubernetes APIs, as a user would. The control plane is our server, or a stock
//! kube-apiserver with Karmada's definitions and `karmada controllers`; members are clusters of the `clusters` crate or of
//! the `sim` crate, with the same assertions. Nothing is looked at again and again: the tests follow the objects until they
//! are as wanted.

mod aggregated;
mod application;
mod campaign;
mod cases;
mod clock;
mod cluster_api;
mod detector;
mod election;
mod failover;
mod faults;
mod fleet;
mod host;
mod karmadactl;
mod kinds;
mod liar;
mod members;
mod migration;
mod network;
mod partition;
mod plane;
mod pull;
mod pull_rights;
mod real_pods;
mod requests;
mod services;
mod sight;
mod trouble;
mod tunnel;
mod world;
