//! `apps.karmada.io/v1alpha1`: asking for workloads to be placed afresh.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::wire::{choice, kind, record};

/// The API group of this module.
pub const GROUP: &str = "apps.karmada.io";

/// Why a workload could not be rescheduled: it has no binding.
pub const REFERENCED_BINDING_NOT_FOUND: &str = "ReferencedBindingNotFound";

kind! {
    /// Asks once for a fresh placement of some workloads.
    pub struct WorkloadRebalancer in "apps.karmada.io" / "v1alpha1" as "workloadrebalancers", Cluster {
        /// Which workloads are placed afresh.
        "spec" required spec: WorkloadRebalancerSpec;
        /// What has become of the request.
        "status" always status: WorkloadRebalancerStatus;
    }
}

choice! {
    /// What has become of the request for one workload; absent means that it is still open.
    pub enum RebalanceResult {
        /// The scheduler was asked to place the workload afresh.
        Successful = "Successful",
        /// It could not be asked.
        Failed = "Failed",
    }
}

record! {
    /// Which workloads are placed afresh.
    #[derive(Eq)]
    pub struct WorkloadRebalancerSpec {
        /// The workloads.
        "workloads" required workloads: Vec<ObjectReference> { min_items(1) };
        /// How long after its end this object is deleted: 0 means at once, absent means never.
        "ttlSecondsAfterFinished" optional ttl_seconds_after_finished: Option<i32>;
    }
}

record! {
    /// A workload.
    #[derive(Eq)]
    pub struct ObjectReference {
        /// The API version of the workload.
        "apiVersion" required api_version: String;
        /// The kind of the workload.
        "kind" required kind: String;
        /// The name of the workload.
        "name" required name: String;
        /// The namespace of the workload; empty for cluster-scoped ones.
        "namespace" optional namespace: String;
    }
}

record! {
    /// What has become of the request.
    #[derive(Eq)]
    pub struct WorkloadRebalancerStatus {
        /// The result for each workload, sorted by API version, kind, namespace and name.
        "observedWorkloads" optional observed_workloads: Vec<ObservedWorkload>;
        /// The generation of this object that was dealt with.
        "observedGeneration" optional observed_generation: i64;
        /// When the last workload was dealt with.
        "finishTime" optional finish_time: Option<Time>;
    }
}

record! {
    /// What has become of the request for one workload.
    #[derive(Eq)]
    pub struct ObservedWorkload {
        /// The workload.
        "workload" required workload: ObjectReference;
        /// Successful or Failed; absent while it is still open.
        "result" optional result: Option<RebalanceResult> { any_text() };
        /// Why it failed.
        "reason" optional reason: String;
    }
}
