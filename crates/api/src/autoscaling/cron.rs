//! CronFederatedHPA: scaling by the clock.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::CrossVersionObjectReference;
use crate::wire::{kind, record};

kind! {
    /// Scales a workload, or moves the limits of a FederatedHPA, at given times.
    pub struct CronFederatedHPA in "autoscaling.karmada.io" / "v1alpha1" as "cronfederatedhpas", Namespaced {
        /// What is scaled, and when.
        "spec" required spec: CronFederatedHPASpec;
        /// What was done so far.
        "status" always status: CronFederatedHPAStatus;
    }
}

record! {
    /// What is scaled, and when.
    #[derive(Eq)]
    pub struct CronFederatedHPASpec {
        /// The workload to scale, or the FederatedHPA whose limits are moved.
        "scaleTargetRef" required scale_target_ref: CrossVersionObjectReference;
        /// When to do what.
        "rules" required rules: Vec<CronFederatedHPARule>;
    }
}

record! {
    /// When to scale to what.
    #[derive(Eq)]
    pub struct CronFederatedHPARule {
        /// The name of the rule, unique within the object. Renaming a rule discards its history.
        "name" required name: String { min_length(1), max_length(32) };
        /// When to act, as a cron expression.
        "schedule" required schedule: String;
        /// The number of replicas to scale to, for targets other than a FederatedHPA.
        "targetReplicas" optional target_replicas: Option<i32>;
        /// The minReplicas to set, for a FederatedHPA.
        "targetMinReplicas" optional target_min_replicas: Option<i32>;
        /// The maxReplicas to set, for a FederatedHPA.
        "targetMaxReplicas" optional target_max_replicas: Option<i32>;
        /// Pauses the rule.
        "suspend" optional suspend: Option<bool> { defaults_to(false) };
        /// The time zone of the schedule, as an IANA name; absent means the controller's own.
        "timeZone" optional time_zone: Option<String>;
        /// How many successful executions are remembered.
        "successfulHistoryLimit" optional successful_history_limit: Option<i32> {
            defaults_to(3), minimum(1), maximum(32)
        };
        /// How many failed executions are remembered.
        "failedHistoryLimit" optional failed_history_limit: Option<i32> {
            defaults_to(3), minimum(0), maximum(32)
        };
    }
}

record! {
    /// What was done so far.
    #[derive(Eq)]
    pub struct CronFederatedHPAStatus {
        /// The history of each rule.
        "executionHistories" optional execution_histories: Vec<ExecutionHistory>;
    }
}

record! {
    /// The history of a rule.
    #[derive(Eq)]
    pub struct ExecutionHistory {
        /// The name of the rule.
        "ruleName" required rule_name: String;
        /// When the rule acts next; absent while it is suspended.
        "nextExecutionTime" optional next_execution_time: Option<Time>;
        /// The last successful executions.
        "successfulExecutions" optional successful_executions: Vec<SuccessfulExecution>;
        /// The last failed executions.
        "failedExecutions" optional failed_executions: Vec<FailedExecution>;
    }
}

record! {
    /// A successful execution of a rule.
    #[derive(Eq)]
    pub struct SuccessfulExecution {
        /// When it was planned.
        "scheduleTime" required schedule_time: Option<Time>;
        /// When it happened.
        "executionTime" required execution_time: Option<Time>;
        /// The number of replicas that was set.
        "appliedReplicas" optional applied_replicas: Option<i32>;
        /// The maxReplicas that was set.
        "appliedMaxReplicas" optional applied_max_replicas: Option<i32>;
        /// The minReplicas that was set.
        "appliedMinReplicas" optional applied_min_replicas: Option<i32>;
    }
}

record! {
    /// A failed execution of a rule.
    #[derive(Eq)]
    pub struct FailedExecution {
        /// When it was planned.
        "scheduleTime" required schedule_time: Option<Time>;
        /// When it happened.
        "executionTime" required execution_time: Option<Time>;
        /// What went wrong.
        "message" required message: String;
    }
}
