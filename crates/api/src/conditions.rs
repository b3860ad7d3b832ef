//! Condition types and their reasons, by the kind that carries them.

/// Conditions of a Cluster.
pub mod cluster {
    /// Whether the cluster is reachable and healthy.
    pub const READY: &str = "Ready";
    /// Whether the list of APIs that the cluster serves is complete.
    pub const COMPLETE_API_ENABLEMENTS: &str = "CompleteAPIEnablements";
    /// Whether Services can be found by name in the cluster.
    pub const SERVICE_DOMAIN_NAME_RESOLUTION_READY: &str = "ServiceDomainNameResolutionReady";

    /// Ready is True.
    pub const REASON_READY: &str = "ClusterReady";
    /// Ready is False: the health endpoint reports trouble.
    pub const REASON_NOT_READY: &str = "ClusterNotReady";
    /// Ready is False: no connection.
    pub const REASON_NOT_REACHABLE: &str = "ClusterNotReachable";
    /// Ready is False: the status could not be collected.
    pub const REASON_STATUS_COLLECTION_FAILED: &str = "StatusCollectionFailed";
    /// Ready is Unknown: no heartbeat ever came.
    pub const REASON_STATUS_NEVER_UPDATED: &str = "ClusterStatusNeverUpdated";
    /// Ready is Unknown: the heartbeat stopped.
    pub const REASON_STATUS_UNKNOWN: &str = "ClusterStatusUnknown";

    /// CompleteAPIEnablements is True.
    pub const REASON_APIS_COMPLETE: &str = "Complete";
    /// CompleteAPIEnablements is False: some groups could not be discovered.
    pub const REASON_APIS_PARTIAL: &str = "Partial";
    /// CompleteAPIEnablements is False: nothing could be discovered.
    pub const REASON_APIS_EMPTY: &str = "Empty";

    /// ServiceDomainNameResolutionReady is True.
    pub const REASON_RESOLUTION_READY: &str = "ServiceDomainNameResolutionReady";
    /// ServiceDomainNameResolutionReady is False.
    pub const REASON_RESOLUTION_FAILED: &str = "ServiceDomainNameResolutionFailed";
}

/// Conditions of ResourceBindings and ClusterResourceBindings.
pub mod binding {
    /// Whether clusters have been chosen.
    pub const SCHEDULED: &str = "Scheduled";
    /// Whether the resource was applied in every chosen cluster.
    pub const FULLY_APPLIED: &str = "FullyApplied";

    /// Scheduled is True.
    pub const REASON_SUCCESS: &str = "Success";
    /// Scheduled is False: the scheduler failed.
    pub const REASON_SCHEDULER_ERROR: &str = "SchedulerError";
    /// Scheduled is False: no cluster is suitable.
    pub const REASON_NO_CLUSTER_FIT: &str = "NoClusterFit";
    /// Scheduled is False: the suitable clusters lack capacity.
    pub const REASON_UNSCHEDULABLE: &str = "Unschedulable";
    /// Scheduled is False: the namespace has used up its quota.
    pub const REASON_QUOTA_EXCEEDED: &str = "QuotaExceeded";

    /// FullyApplied is True.
    pub const REASON_FULLY_APPLIED: &str = "FullyAppliedSuccess";
    /// FullyApplied is False.
    pub const REASON_NOT_FULLY_APPLIED: &str = "FullyAppliedFailed";
}

/// Conditions of Works.
pub mod work {
    /// Whether the manifests were applied.
    pub const APPLIED: &str = "Applied";
    /// Whether the manifests are dispatched or held back.
    pub const DISPATCHING: &str = "Dispatching";
    /// Declared upstream, set by nobody.
    pub const PROGRESSING: &str = "Progressing";
    /// Declared upstream, set by nobody.
    pub const AVAILABLE: &str = "Available";
    /// Declared upstream, set by nobody.
    pub const DEGRADED: &str = "Degraded";

    /// Applied is True.
    pub const REASON_APPLIED: &str = "AppliedSuccessful";
    /// Applied is False.
    pub const REASON_NOT_APPLIED: &str = "AppliedFailed";
    /// Dispatching is True.
    pub const REASON_DISPATCHING: &str = "Dispatching";
    /// Dispatching is False.
    pub const REASON_SUSPENDED: &str = "SuspendDispatching";
}

/// Conditions of MultiClusterServices.
pub mod multi_cluster_service {
    /// Whether the Service was brought to the clusters.
    pub const SERVICE_APPLIED: &str = "ServiceApplied";
    /// Whether the endpoints were brought to the consumers.
    pub const ENDPOINT_SLICE_DISPATCHED: &str = "EndpointSliceDispatched";

    /// ServiceApplied is True.
    pub const REASON_SERVICE_APPLIED: &str = "ServiceAppliedSucceed";
    /// ServiceApplied is False.
    pub const REASON_SERVICE_NOT_APPLIED: &str = "ServiceAppliedFailed";
    /// EndpointSliceDispatched is True.
    pub const REASON_ENDPOINT_SLICE_DISPATCHED: &str = "EndpointSliceDispatchedSucceed";
    /// EndpointSliceDispatched is False.
    pub const REASON_ENDPOINT_SLICE_NOT_DISPATCHED: &str = "EndpointSliceDispatchedFailed";
}

/// Conditions of FederatedHPAs.
pub mod federated_hpa {
    /// Whether the target can be scaled at all.
    pub const ABLE_TO_SCALE: &str = "AbleToScale";
    /// Whether metrics drive the scaling.
    pub const SCALING_ACTIVE: &str = "ScalingActive";
    /// Whether a limit held the scaling back.
    pub const SCALING_LIMITED: &str = "ScalingLimited";

    /// AbleToScale is False: the scale could not be read.
    pub const REASON_FAILED_GET_SCALE: &str = "FailedGetScale";
    /// AbleToScale is False: the target could not be read.
    pub const REASON_FAILED_GET_SCALE_TARGET_REF: &str = "FailedGetScaleTargetRef";
    /// AbleToScale is False: the binding could not be read.
    pub const REASON_FAILED_GET_BINDING: &str = "FailedGetBinding";
    /// AbleToScale is False: the target's clusters are unknown.
    pub const REASON_FAILED_GET_TARGET_CLUSTERS: &str = "FailedGetTargetClusters";
    /// AbleToScale is False: the scale could not be written.
    pub const REASON_FAILED_UPDATE_SCALE: &str = "FailedUpdateScale";
    /// AbleToScale is True: the scale was read.
    pub const REASON_SUCCEEDED_GET_SCALE: &str = "SucceededGetScale";
    /// AbleToScale is True: the scale was written.
    pub const REASON_SUCCEEDED_RESCALE: &str = "SucceededRescale";
    /// AbleToScale is True: nothing to do.
    pub const REASON_READY_FOR_NEW_SCALE: &str = "ReadyForNewScale";
    /// AbleToScale is True: an earlier, lower recommendation still holds.
    pub const REASON_SCALE_UP_STABILIZED: &str = "ScaleUpStabilized";
    /// AbleToScale is True: an earlier, higher recommendation still holds.
    pub const REASON_SCALE_DOWN_STABILIZED: &str = "ScaleDownStabilized";

    /// ScalingActive is True.
    pub const REASON_VALID_METRIC_FOUND: &str = "ValidMetricFound";
    /// ScalingActive is False: the target has no replicas.
    pub const REASON_SCALING_DISABLED: &str = "ScalingDisabled";
    /// ScalingActive is False: the target's selector is missing or wrong.
    pub const REASON_INVALID_SELECTOR: &str = "InvalidSelector";
    /// ScalingActive is False: several autoscalers select the same pods.
    pub const REASON_AMBIGUOUS_SELECTOR: &str = "AmbiguousSelector";
    /// ScalingActive is False: the metric type is not supported.
    pub const REASON_INVALID_METRIC_SOURCE_TYPE: &str = "InvalidMetricSourceType";
    /// ScalingActive is False: no value for an object metric.
    pub const REASON_FAILED_GET_OBJECT_METRIC: &str = "FailedGetObjectMetric";
    /// ScalingActive is False: no value for a pods metric.
    pub const REASON_FAILED_GET_PODS_METRIC: &str = "FailedGetPodsMetric";
    /// ScalingActive is False: no value for a resource metric.
    pub const REASON_FAILED_GET_RESOURCE_METRIC: &str = "FailedGetResourceMetric";
    /// ScalingActive is False: no value for a container resource metric.
    pub const REASON_FAILED_GET_CONTAINER_RESOURCE_METRIC: &str = "FailedGetContainerResourceMetric";

    /// ScalingLimited is False.
    pub const REASON_DESIRED_WITHIN_RANGE: &str = "DesiredWithinRange";
    /// ScalingLimited is True: the behaviour limits growth.
    pub const REASON_SCALE_UP_LIMIT: &str = "ScaleUpLimit";
    /// ScalingLimited is True: the behaviour limits shrinking.
    pub const REASON_SCALE_DOWN_LIMIT: &str = "ScaleDownLimit";
    /// ScalingLimited is True: more was asked for than maxReplicas.
    pub const REASON_TOO_MANY_REPLICAS: &str = "TooManyReplicas";
    /// ScalingLimited is True: less was asked for than minReplicas.
    pub const REASON_TOO_FEW_REPLICAS: &str = "TooFewReplicas";
}
