//! The feature gates that change decisions.

use api::features::{self, Features};

/// Which optional behaviour is on. The defaults are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    /// CustomizedClusterResourceModeling: estimates use resource models where a cluster reports them.
    pub resource_models: bool,
    /// MultiplePodTemplatesScheduling: workloads with several components are estimated as sets.
    pub components: bool,
    /// WorkloadAffinity: the filters between workloads exist.
    pub workload_affinity: bool,
    /// SchedulingOvercommitProtection: estimates deduct what was placed but is not yet reported.
    pub overcommit_protection: bool,
    /// PriorityBasedScheduling: the queue orders by priority.
    pub priority_queue: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self::from(&Features::default())
    }
}

impl From<&Features> for Gates {
    fn from(features: &Features) -> Self {
        Self {
            resource_models: features.enabled(features::CUSTOMIZED_CLUSTER_RESOURCE_MODELING),
            components: features.enabled(features::MULTIPLE_POD_TEMPLATES_SCHEDULING),
            workload_affinity: features.enabled(features::WORKLOAD_AFFINITY),
            overcommit_protection: features.enabled(features::SCHEDULING_OVERCOMMIT_PROTECTION),
            priority_queue: features.enabled(features::PRIORITY_BASED_SCHEDULING),
        }
    }
}
