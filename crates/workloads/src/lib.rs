//! How workloads behave in a Kubernetes cluster, as functions from values to values: which node takes a pod, when a
//! schedule is due, how many replicas a load needs.
//!
//! For whoever has to foresee a cluster (an estimator, a simulator) or to do the same across clusters (autoscalers).

pub mod autoscaling;
pub mod cron;
pub mod nodes;
