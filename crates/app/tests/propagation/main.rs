//! Propagation from end to end: the real binary and real member clusters.
//!
//! Everything is done and seen through Kubernetes APIs, as a user would. The control plane is our server, or a stock
//! kube-apiserver with Karmada's definitions and `karmada controllers`; members are clusters of the `clusters` crate.
//! Nothing is looked at again and again: the tests follow the objects until they are as wanted.

mod application;
mod cases;
mod election;
mod karmadactl;
mod kinds;
mod liar;
mod plane;
mod requests;
mod sight;
mod trouble;
mod world;
