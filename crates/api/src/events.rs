//! Reasons of the events that the system reports.
//!
//! Events say what has happened. A reason that ends in `Succeed` is a Normal event, one that ends in `Failed` is a
//! Warning; [`event_type`] knows the others.

// On Clusters.
/// Success of creating the execution namespace.
pub const CREATE_EXECUTION_SPACE_SUCCEED: &str = "CreateExecutionSpaceSucceed";
/// Failure of creating the execution namespace.
pub const CREATE_EXECUTION_SPACE_FAILED: &str = "CreateExecutionSpaceFailed";
/// Success of removing the execution namespace.
pub const REMOVE_EXECUTION_SPACE_SUCCEED: &str = "RemoveExecutionSpaceSucceed";
/// Failure of removing the execution namespace.
pub const REMOVE_EXECUTION_SPACE_FAILED: &str = "RemoveExecutionSpaceFailed";
/// Success of changing the taints.
pub const TAINT_CLUSTER_SUCCEED: &str = "TaintClusterSucceed";
/// Failure of changing the taints.
pub const TAINT_CLUSTER_FAILED: &str = "TaintClusterFailed";
/// Success of bringing the impersonation rules to the cluster.
pub const SYNC_IMPERSONATION_CONFIG_SUCCEED: &str = "SyncImpersonationConfigSucceed";
/// Failure of bringing the impersonation rules to the cluster.
pub const SYNC_IMPERSONATION_CONFIG_FAILED: &str = "SyncImpersonationConfigFailed";

// On Works; Sync also on the template, found by the UID in the manifest.
/// Success of bringing the manifests to the cluster.
pub const SYNC_SUCCEED: &str = "SyncSucceed";
/// Failure of bringing the manifests to the cluster.
pub const SYNC_FAILED: &str = "SyncFailed";
/// Success of collecting the status.
pub const REFLECT_STATUS_SUCCEED: &str = "ReflectStatusSucceed";
/// Failure of collecting the status.
pub const REFLECT_STATUS_FAILED: &str = "ReflectStatusFailed";
/// Success of judging the health.
pub const INTERPRET_HEALTH_SUCCEED: &str = "InterpretHealthSucceed";
/// Failure of judging the health.
pub const INTERPRET_HEALTH_FAILED: &str = "InterpretHealthFailed";
/// The Work is or is no longer dispatched.
pub const WORK_DISPATCHING: &str = "WorkDispatching";

// On bindings.
/// Success of handing the schedule to attached bindings.
pub const SYNC_SCHEDULE_RESULT_TO_DEPENDENCIES_SUCCEED: &str = "SyncScheduleResultToDependenciesSucceed";
/// Failure of handing the schedule to attached bindings.
pub const SYNC_SCHEDULE_RESULT_TO_DEPENDENCIES_FAILED: &str = "SyncScheduleResultToDependenciesFailed";
/// A Work that is no longer wanted could not be removed.
pub const CLEANUP_WORK_FAILED: &str = "CleanupWorkFailed";
/// On policies, ours: too many copies would be removed at once.
pub const REMOVALS_HELD: &str = "RemovalsHeld";
/// Independent bindings want different things of the same attached one.
pub const DEPENDENCY_POLICY_CONFLICT: &str = "DependencyPolicyConflict";

// On bindings and their templates; SyncWork and AggregateStatus also on FederatedResourceQuotas.
/// Success of writing the Works.
pub const SYNC_WORK_SUCCEED: &str = "SyncWorkSucceed";
/// Failure of writing the Works.
pub const SYNC_WORK_FAILED: &str = "SyncWorkFailed";
/// Success of writing the aggregated status.
pub const AGGREGATE_STATUS_SUCCEED: &str = "AggregateStatusSucceed";
/// Failure of writing the aggregated status.
pub const AGGREGATE_STATUS_FAILED: &str = "AggregateStatusFailed";
/// Success of choosing clusters.
pub const SCHEDULE_BINDING_SUCCEED: &str = "ScheduleBindingSucceed";
/// Failure of choosing clusters.
pub const SCHEDULE_BINDING_FAILED: &str = "ScheduleBindingFailed";
/// Success of taking replicas back.
pub const DESCHEDULE_BINDING_SUCCEED: &str = "DescheduleBindingSucceed";
/// Failure of taking replicas back.
pub const DESCHEDULE_BINDING_FAILED: &str = "DescheduleBindingFailed";
/// Success of moving the workload away from a cluster.
pub const EVICT_WORKLOAD_FROM_CLUSTER_SUCCEED: &str = "EvictWorkloadFromClusterSucceed";
/// Failure of moving the workload away from a cluster.
pub const EVICT_WORKLOAD_FROM_CLUSTER_FAILED: &str = "EvictWorkloadFromClusterFailed";

// On FederatedResourceQuotas.
/// Success of summing up the usage.
pub const COLLECT_OVERALL_STATUS_SUCCEED: &str = "CollectOverallStatusSucceed";
/// Failure of summing up the usage.
pub const COLLECT_OVERALL_STATUS_FAILED: &str = "CollectOverallStatusFailed";

// On templates.
/// Success of applying a policy.
pub const APPLY_POLICY_SUCCEED: &str = "ApplyPolicySucceed";
/// Failure of applying a policy.
pub const APPLY_POLICY_FAILED: &str = "ApplyPolicyFailed";
/// Success of applying the override policies.
pub const APPLY_OVERRIDE_POLICY_SUCCEED: &str = "ApplyOverridePolicySucceed";
/// Failure of applying the override policies.
pub const APPLY_OVERRIDE_POLICY_FAILED: &str = "ApplyOverridePolicyFailed";
/// Success of finding what the resource needs.
pub const GET_DEPENDENCIES_SUCCEED: &str = "GetDependenciesSucceed";
/// Failure of finding what the resource needs.
pub const GET_DEPENDENCIES_FAILED: &str = "GetDependenciesFailed";
/// Success of finding the parts of the workload.
pub const GET_COMPONENTS_SUCCEED: &str = "GetComponentsSucceed";
/// Failure of finding the parts of the workload.
pub const GET_COMPONENTS_FAILED: &str = "GetComponentsFailed";
/// Success of finding the replicas of the workload.
pub const GET_REPLICAS_SUCCEED: &str = "GetReplicasSucceed";
/// Failure of finding the replicas of the workload.
pub const GET_REPLICAS_FAILED: &str = "GetReplicasFailed";
/// Success of taking the resource over from another policy.
pub const PREEMPT_POLICY_SUCCEED: &str = "PreemptPolicySucceed";
/// Failure of taking the resource over from another policy.
pub const PREEMPT_POLICY_FAILED: &str = "PreemptPolicyFailed";

// On ServiceImports.
/// Success of writing the derived Service.
pub const SYNC_DERIVED_SERVICE_SUCCEED: &str = "SyncDerivedServiceSucceed";
/// Failure of writing the derived Service.
pub const SYNC_DERIVED_SERVICE_FAILED: &str = "SyncDerivedServiceFailed";

// On MultiClusterServices.
/// Success of bringing the Service to the clusters.
pub const SYNC_SERVICE_SUCCEED: &str = "SyncServiceSucceed";
/// Failure of bringing the Service to the clusters.
pub const SYNC_SERVICE_FAILED: &str = "SyncServiceFailed";
/// Success of bringing the endpoints to the consumers.
pub const DISPATCH_ENDPOINT_SLICE_SUCCEED: &str = "DispatchEndpointSliceSucceed";
/// Failure of bringing the endpoints to the consumers.
pub const DISPATCH_ENDPOINT_SLICE_FAILED: &str = "DispatchEndpointSliceFailed";
/// A provider or consumer cluster does not exist.
pub const CLUSTER_NOT_FOUND: &str = "ClusterNotFound";
/// A cluster does not serve EndpointSlices.
pub const API_INCOMPATIBLE: &str = "APIIncompatible";

// On FederatedHPAs, besides the metric failures of [`crate::conditions::federated_hpa`].
/// The scale could not be read.
pub const FAILED_GET_SCALE: &str = "FailedGetScale";
/// The target could not be read.
pub const FAILED_GET_SCALE_TARGET_REF: &str = "FailedGetScaleTargetRef";
/// The bindings of the target could not be read.
pub const FAILED_GET_BINDINGS: &str = "FailedGetBindings";
/// The clusters of the target are unknown.
pub const FAILED_GET_TARGET_CLUSTERS: &str = "FailedGetTargetClusters";
/// No replica count could be computed.
pub const FAILED_COMPUTE_METRICS_REPLICAS: &str = "FailedComputeMetricsReplicas";
/// The scale could not be written.
pub const FAILED_RESCALE: &str = "FailedRescale";
/// The scale was written.
pub const SUCCESSFUL_RESCALE: &str = "SuccessfulRescale";
/// The target has no selector.
pub const SELECTOR_REQUIRED: &str = "SelectorRequired";
/// The selector of the target is wrong.
pub const INVALID_SELECTOR: &str = "InvalidSelector";
/// Several autoscalers select the same pods.
pub const AMBIGUOUS_SELECTOR: &str = "AmbiguousSelector";
/// The status could not be written.
pub const FAILED_UPDATE_STATUS: &str = "FailedUpdateStatus";

// On CronFederatedHPAs.
/// A rule could not be started.
pub const START_RULE_FAILED: &str = "StartRuleFailed";
/// The target could not be scaled.
pub const SCALE_FAILED: &str = "ScaleFailed";
/// The status could not be written.
pub const UPDATE_STATUS_FAILED: &str = "UpdateStatusFailed";
/// A change could not be taken over.
pub const UPDATE_CRON_FEDERATED_HPA_FAILED: &str = "UpdateCronFederatedHPAFailed";

// On the Pod of the example detector in a member cluster.
/// The state of CoreDNS could not be read.
pub const LOAD_COREDNS_CONDITION_FAILED: &str = "LoadCorednsConditionFailed";
/// The state of CoreDNS could not be reported.
pub const STORE_COREDNS_CONDITION_FAILED: &str = "StoreCorednsConditionFailed";

/// Every reason.
pub const ALL: &[&str] = &[
    CREATE_EXECUTION_SPACE_SUCCEED,
    CREATE_EXECUTION_SPACE_FAILED,
    REMOVE_EXECUTION_SPACE_SUCCEED,
    REMOVE_EXECUTION_SPACE_FAILED,
    TAINT_CLUSTER_SUCCEED,
    TAINT_CLUSTER_FAILED,
    SYNC_IMPERSONATION_CONFIG_SUCCEED,
    SYNC_IMPERSONATION_CONFIG_FAILED,
    SYNC_SUCCEED,
    SYNC_FAILED,
    REFLECT_STATUS_SUCCEED,
    REFLECT_STATUS_FAILED,
    INTERPRET_HEALTH_SUCCEED,
    INTERPRET_HEALTH_FAILED,
    WORK_DISPATCHING,
    SYNC_SCHEDULE_RESULT_TO_DEPENDENCIES_SUCCEED,
    SYNC_SCHEDULE_RESULT_TO_DEPENDENCIES_FAILED,
    CLEANUP_WORK_FAILED,
    DEPENDENCY_POLICY_CONFLICT,
    SYNC_WORK_SUCCEED,
    SYNC_WORK_FAILED,
    AGGREGATE_STATUS_SUCCEED,
    AGGREGATE_STATUS_FAILED,
    SCHEDULE_BINDING_SUCCEED,
    SCHEDULE_BINDING_FAILED,
    DESCHEDULE_BINDING_SUCCEED,
    DESCHEDULE_BINDING_FAILED,
    EVICT_WORKLOAD_FROM_CLUSTER_SUCCEED,
    EVICT_WORKLOAD_FROM_CLUSTER_FAILED,
    COLLECT_OVERALL_STATUS_SUCCEED,
    COLLECT_OVERALL_STATUS_FAILED,
    APPLY_POLICY_SUCCEED,
    APPLY_POLICY_FAILED,
    APPLY_OVERRIDE_POLICY_SUCCEED,
    APPLY_OVERRIDE_POLICY_FAILED,
    GET_DEPENDENCIES_SUCCEED,
    GET_DEPENDENCIES_FAILED,
    GET_COMPONENTS_SUCCEED,
    GET_COMPONENTS_FAILED,
    GET_REPLICAS_SUCCEED,
    GET_REPLICAS_FAILED,
    PREEMPT_POLICY_SUCCEED,
    PREEMPT_POLICY_FAILED,
    SYNC_DERIVED_SERVICE_SUCCEED,
    SYNC_DERIVED_SERVICE_FAILED,
    SYNC_SERVICE_SUCCEED,
    SYNC_SERVICE_FAILED,
    DISPATCH_ENDPOINT_SLICE_SUCCEED,
    DISPATCH_ENDPOINT_SLICE_FAILED,
    CLUSTER_NOT_FOUND,
    API_INCOMPATIBLE,
    FAILED_GET_SCALE,
    FAILED_GET_SCALE_TARGET_REF,
    FAILED_GET_BINDINGS,
    FAILED_GET_TARGET_CLUSTERS,
    FAILED_COMPUTE_METRICS_REPLICAS,
    FAILED_RESCALE,
    SUCCESSFUL_RESCALE,
    SELECTOR_REQUIRED,
    INVALID_SELECTOR,
    AMBIGUOUS_SELECTOR,
    FAILED_UPDATE_STATUS,
    START_RULE_FAILED,
    SCALE_FAILED,
    UPDATE_STATUS_FAILED,
    UPDATE_CRON_FEDERATED_HPA_FAILED,
    LOAD_COREDNS_CONDITION_FAILED,
    STORE_COREDNS_CONDITION_FAILED,
];

/// Returns the type of an event with this reason, `Normal` or `Warning`.
pub fn event_type(reason: &str) -> &'static str {
    if reason.ends_with("Succeed") || reason == WORK_DISPATCHING || reason == SUCCESSFUL_RESCALE {
        "Normal"
    } else {
        "Warning"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_listed_once() {
        let unique: std::collections::BTreeSet<_> = ALL.iter().collect();
        assert_eq!(unique.len(), ALL.len());
        assert_eq!(ALL.len(), 68);
    }

    #[test]
    fn good_news_is_normal_and_bad_news_is_a_warning() {
        assert_eq!(event_type(SYNC_WORK_SUCCEED), "Normal");
        assert_eq!(event_type(SYNC_WORK_FAILED), "Warning");
        assert_eq!(event_type(WORK_DISPATCHING), "Normal");
        assert_eq!(event_type(SUCCESSFUL_RESCALE), "Normal");
        assert_eq!(event_type(CLUSTER_NOT_FOUND), "Warning");
        assert_eq!(event_type(DEPENDENCY_POLICY_CONFLICT), "Warning");
    }
}
