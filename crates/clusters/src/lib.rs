//! Real Kubernetes clusters as plain processes, without containers.
//!
//! A [`Fleet`] is one etcd and any number of clusters on it: whole members (API server, controller manager, scheduler and kwok, which
//! plays the kubelets), Karmada-like control planes, or bare API servers. Members with real pods have namespaces, an etcd and a kubelet of
//! their own. Every client goes through a small TCP proxy of ours, so a
//! test can cut a cluster off, make it slow, freeze it, expire its certificate or empty it, and undo all that.
//!
//! | To | Use |
//! |---|---|
//! | use members in a test, alongside other tests | [`shared`] |
//! | do harm to members in a test | [`exclusive`] |
//! | own clusters of a special kind | [`Fleet::start`] |
//! | reach clusters that run already | [`Fleet::attach`] |
//! | build the programs, also Karmada's own | [`toolchain`] |
//! | leave a test out where it cannot run | [`left_out`](crate::left_out()) |
//!
//! Nothing outlives its owner: processes get the kernel's parent-death signal, whatever way the owner ends.
//! `docs/guides/real-clusters.md` shows all of it from the command line.

mod left_out;
pub mod toolchain;

pub use left_out::{LEFT_OUT_VARIABLE, left_out};

#[cfg(feature = "runtime")]
mod apiserver;
#[cfg(feature = "runtime")]
mod cluster;
#[cfg(feature = "runtime")]
mod control;
#[cfg(feature = "runtime")]
mod diagnostics;
#[cfg(feature = "runtime")]
mod error;
#[cfg(feature = "runtime")]
mod etcd;
#[cfg(feature = "runtime")]
mod flags;
#[cfg(feature = "runtime")]
mod fleet;
#[cfg(feature = "runtime")]
mod kind;
#[cfg(feature = "runtime")]
mod kubeconfig;
#[cfg(feature = "runtime")]
mod namespace;
#[cfg(feature = "runtime")]
mod nodes;
#[cfg(feature = "runtime")]
mod options;
#[cfg(feature = "runtime")]
mod peers;
#[cfg(feature = "runtime")]
mod pki;
#[cfg(feature = "runtime")]
mod pods;
#[cfg(feature = "runtime")]
mod ports;
#[cfg(feature = "runtime")]
mod process;
#[cfg(feature = "runtime")]
mod proxy;
#[cfg(feature = "runtime")]
mod run;
#[cfg(feature = "runtime")]
mod sharing;
#[cfg(feature = "runtime")]
mod state;
#[cfg(feature = "runtime")]
mod wait;

#[cfg(feature = "runtime")]
pub use crate::{
    cluster::Cluster,
    error::Error,
    etcd::{Etcd, Way},
    fleet::{Fleet, SUPERVISOR_LOG, default_dir, end, supervise},
    namespace::TestNamespace,
    options::{ClusterOptions, Flavour, FleetOptions, Image, NodeOptions},
    peers::Peers,
    pods::{missing as pods_missing, missing_for_tests as pods_missing_for_tests},
    ports::free as free_ports,
    proxy::Network,
    sharing::{CLUSTERS_VARIABLE, Members, exclusive, shared},
    state::{ClusterState, ComponentState, FleetState},
    wait::until,
};
