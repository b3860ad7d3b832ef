//! Where replicas go: filter, score, select, divide, with reasons.
//!
//! Pure: no clock, no network, no randomness. The controller around it feeds a [`Fleet`] from Cluster objects, asks
//! [`trigger`] whether a binding needs a decision, runs [`Scheduler::schedule`], and writes what [`outcome`] says.
//! Results are those of Karmada for the same input; where Karmada leaves an order to chance, ours is by name.
//!
//! Code map: [`affinity`] tells which clusters are meant · [`fleet`] prepares clusters · `plugins` reject and score them ·
//! `capacity` says what fits · `spread` selects · `assign` and `webster` divide · [`decision`] runs them in order · [`attempt`]
//! walks ordered affinities · [`trigger`], [`queue`] and [`outcome`] decide what happens before and after · [`diagnosis`] and
//! [`explanation`] say why · [`meter`] lets others measure.

pub mod affinity;
mod assign;
pub mod assumptions;
pub mod attempt;
mod capacity;
pub mod decision;
pub mod diagnosis;
pub mod estimator;
pub mod explanation;
pub mod fleet;
mod gates;
mod gosort;
pub mod meter;
pub mod outcome;
pub mod plugins;
pub mod queue;
mod spread;
mod symbols;
mod taints;
pub mod trigger;

pub use ::placement::webster;
pub use assumptions::Assumptions;
pub use attempt::{Attempt, Trial};
pub use decision::{Cause, Decision, Failure, Options, Scheduler, World};
pub use diagnosis::{Diagnosis, Report};
pub use estimator::Estimator;
pub use explanation::Explanation;
pub use fleet::Fleet;
pub use gates::Gates;
pub use meter::Meter;
pub use plugins::workloads::Groups;
pub use plugins::{Plugin, Registry};
