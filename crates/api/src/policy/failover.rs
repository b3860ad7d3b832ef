//! What happens when a workload or its cluster fails.

use crate::wire::{choice, record};

choice! {
    /// What becomes of the copy in the cluster that is being left.
    pub enum PurgeMode {
        /// It is removed at once.
        Directly = "Directly",
        /// It is removed once the new copy is healthy, or a grace period has passed.
        Gracefully = "Gracefully",
        /// It stays until somebody removes it.
        Never = "Never",
    }
}

record! {
    /// How a workload fails over.
    pub struct FailoverBehavior {
        /// What to do when the workload is unhealthy in a cluster. Absent means that nothing is done.
        "application" optional application: Option<ApplicationFailoverBehavior>;
        /// What to do when the cluster has failed. Absent means that the controller's own setting decides.
        "cluster" optional cluster: Option<ClusterFailoverBehavior>;
    }
}

record! {
    /// How a workload moves away from a cluster where it is unhealthy.
    pub struct ApplicationFailoverBehavior {
        /// When the workload counts as failed.
        "decisionConditions" required decision_conditions: DecisionConditions;
        /// What happens to the old copy.
        "purgeMode" optional purge_mode: Option<PurgeMode> { defaults_to("Gracefully") };
        /// How long to wait for the new copy before the old one is removed anyway. Only with purgeMode Gracefully;
        /// set to 600 when absent.
        "gracePeriodSeconds" optional grace_period_seconds: Option<i32>;
        /// State of the old copy that is handed to the new one.
        "statePreservation" optional state_preservation: Option<StatePreservation>;
    }
}

record! {
    /// How a workload moves away from a cluster that has failed.
    pub struct ClusterFailoverBehavior {
        /// What happens to the old copy.
        "purgeMode" optional purge_mode: Option<PurgeMode> {
            defaults_to("Gracefully"), one_of(&["Directly", "Gracefully"])
        };
        /// State of the old copy that is handed to the new one.
        "statePreservation" optional state_preservation: Option<StatePreservation>;
    }
}

record! {
    /// When a workload counts as failed.
    #[derive(Eq)]
    pub struct DecisionConditions {
        /// How long the workload may be unhealthy before it is moved; 0 means no waiting.
        "tolerationSeconds" optional toleration_seconds: Option<i32> { defaults_to(300) };
    }
}

record! {
    /// Which state outlives a failover.
    #[derive(Eq)]
    pub struct StatePreservation {
        /// One rule per value to keep.
        "rules" required rules: Vec<StatePreservationRule>;
    }
}

record! {
    /// One value of the old copy's status and the label under which the new copy finds it.
    #[derive(Eq)]
    pub struct StatePreservationRule {
        /// The label key under which the value is put on the new copy.
        "aliasLabelName" required alias_label_name: String;
        /// Where the value is in the status of the old copy, in kubectl's JSONPath syntax, for example
        /// {.availableReplicas}.
        "jsonPath" required json_path: String;
    }
}
