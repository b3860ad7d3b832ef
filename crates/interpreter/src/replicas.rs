//! The replicas of a workload: how many, and what each of them needs.

use api::work::ReplicaRequirements;

/// What a workload with one pod template asks for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Replicas {
    pub count: i32,
    pub requirements: Option<ReplicaRequirements>,
}
