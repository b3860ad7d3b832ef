//! The controllers of a simulated cluster: each a function from what exists to what should be done.

pub(crate) mod autoscalers;
pub(crate) mod budgets;
pub(crate) mod claims;
pub(crate) mod cronjobs;
pub(crate) mod daemonsets;
pub(crate) mod deployments;
pub(crate) mod endpoints;
pub(crate) mod family;
pub(crate) mod jobs;
pub(crate) mod nodes;
pub(crate) mod pods;
pub(crate) mod quotas;
pub(crate) mod replicasets;
pub(crate) mod revisions;
pub(crate) mod rollout;
pub(crate) mod statefulsets;
