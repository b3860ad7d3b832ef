//! FederatedHPA: a horizontal pod autoscaler that counts the pods of all clusters.
//!
//! Most of it is `autoscaling/v2`, field by field.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{MetricSpec, MetricStatus};
use crate::wire::{kind, record};

kind! {
    /// Scales a workload by the metrics of its pods in all clusters.
    pub struct FederatedHPA in "autoscaling.karmada.io" / "v1alpha1" as "federatedhpas", Namespaced {
        /// What is scaled, within which limits, by which metrics.
        "spec" required spec: FederatedHPASpec;
        /// What was seen and decided last.
        "status" always status: HPAStatus;
    }
}

record! {
    /// What is scaled, within which limits, by which metrics.
    pub struct FederatedHPASpec {
        /// The workload to scale; it must have a scale subresource.
        "scaleTargetRef" required scale_target_ref: CrossVersionObjectReference;
        /// The smallest number of replicas, at least 1; set to 1 when absent.
        "minReplicas" optional min_replicas: Option<i32>;
        /// The largest number of replicas, not below minReplicas.
        "maxReplicas" required max_replicas: i32;
        /// The metrics, of which the one asking for most replicas wins; set to 80 percent of the requested cpu when
        /// absent.
        "metrics" optional metrics: Vec<MetricSpec>;
        /// How fast to scale; absent means the controller's own rules.
        "behavior" optional behavior: Option<HPABehavior>;
    }
}

record! {
    /// An object in the same namespace, whatever version it is served in.
    #[derive(Eq)]
    pub struct CrossVersionObjectReference {
        /// The kind of the object.
        "kind" required kind: String;
        /// The name of the object.
        "name" required name: String;
        /// The API version of the object.
        "apiVersion" optional api_version: String;
    }
}

record! {
    /// How fast to scale in either direction.
    pub struct HPABehavior {
        /// How fast to add replicas.
        "scaleUp" optional scale_up: Option<HPAScalingRules>;
        /// How fast to remove replicas.
        "scaleDown" optional scale_down: Option<HPAScalingRules>;
    }
}

record! {
    /// How fast to scale in one direction.
    pub struct HPAScalingRules {
        /// For how many seconds past recommendations are taken into account, up to an hour.
        "stabilizationWindowSeconds" optional stabilization_window_seconds: Option<i32>;
        /// Which of several policies wins: Max, Min, or Disabled to stop scaling in this direction.
        "selectPolicy" optional select_policy: Option<String>;
        /// Limits on the change within a period.
        "policies" optional policies: Vec<HPAScalingPolicy> { atomic_list() };
        /// How far a metric may be off its target before anything is done. Removed again on every write.
        "tolerance" optional tolerance: Option<Quantity>;
    }
}

record! {
    /// A limit on the change within a period.
    #[derive(Eq)]
    pub struct HPAScalingPolicy {
        /// What value counts: Pods or Percent.
        "type" required type_: String;
        /// The largest change.
        "value" required value: i32;
        /// The length of the period in seconds, up to half an hour.
        "periodSeconds" required period_seconds: i32;
    }
}

record! {
    /// What was seen and decided last.
    pub struct HPAStatus {
        /// The generation of the object that was dealt with.
        "observedGeneration" optional observed_generation: Option<i64>;
        /// When the number of replicas was last changed.
        "lastScaleTime" optional last_scale_time: Option<Time>;
        /// The number of replicas that were seen.
        "currentReplicas" optional current_replicas: i32;
        /// The number of replicas that are wanted.
        "desiredReplicas" required desired_replicas: i32;
        /// The metrics that were seen.
        "currentMetrics" always current_metrics: Option<Vec<MetricStatus>> { atomic_list() };
        /// Whether scaling is possible, active and limited.
        "conditions" optional conditions: Vec<HPACondition> { list_map("type") };
    }
}

record! {
    /// One aspect of the state of an autoscaler.
    #[derive(Eq)]
    pub struct HPACondition {
        /// What it is about: AbleToScale, ScalingActive or ScalingLimited.
        "type" required type_: String;
        /// True, False or Unknown.
        "status" required status: String;
        /// When the status last changed.
        "lastTransitionTime" optional last_transition_time: Option<Time>;
        /// Why, as a word for programs.
        "reason" optional reason: String;
        /// Why, for humans.
        "message" optional message: String;
    }
}
