//! Which native kinds have a `/status`, and what an untouched status looks like once Go has printed it.

use apimachinery::gvk::Gvk;
use serde_json::{Value, json};

/// Does the kind serve `/status`, so that the main resource cannot write it?
pub fn has_subresource(gvk: &Gvk) -> bool {
    matches!(
        (gvk.group.as_str(), gvk.kind.as_str()),
        (
            "",
            "Namespace"
                | "Node"
                | "PersistentVolume"
                | "PersistentVolumeClaim"
                | "Pod"
                | "ReplicationController"
                | "ResourceQuota"
                | "Service"
        ) | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
            | ("batch", "Job" | "CronJob")
            | ("autoscaling", "HorizontalPodAutoscaler")
            | ("networking.k8s.io", "Ingress" | "ServiceCIDR")
            | ("policy", "PodDisruptionBudget")
            | ("certificates.k8s.io", "CertificateSigningRequest")
            | ("storage.k8s.io", "VolumeAttachment")
            | ("flowcontrol.apiserver.k8s.io", "FlowSchema" | "PriorityLevelConfiguration")
            | ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy")
            | ("apiextensions.k8s.io", "CustomResourceDefinition")
            | ("apiregistration.k8s.io", "APIService")
            | ("resource.k8s.io", "ResourceClaim")
    )
}

/// A kubelet registers its Node together with its first status.
pub(super) fn kept_on_create(gvk: &Gvk) -> bool {
    gvk.group.is_empty() && gvk.kind == "Node"
}

/// Returns the status of a new object: mostly `{}`, with the zeros that Go always prints.
pub fn empty(gvk: &Gvk) -> Value {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Namespace") => json!({"phase": "Active"}),
        ("", "PersistentVolume" | "PersistentVolumeClaim") => json!({"phase": "Pending"}),
        ("", "Service") | ("networking.k8s.io", "Ingress") => json!({"loadBalancer": {}}),
        ("", "ReplicationController") | ("apps", "ReplicaSet") => json!({"replicas": 0}),
        ("apps", "StatefulSet") => json!({"replicas": 0, "availableReplicas": 0}),
        ("apps", "DaemonSet") => json!({
            "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0,
        }),
        ("autoscaling", "HorizontalPodAutoscaler") if gvk.version == "v1" => {
            json!({"currentReplicas": 0, "desiredReplicas": 0})
        }
        ("autoscaling", "HorizontalPodAutoscaler") => json!({"desiredReplicas": 0, "currentMetrics": null}),
        ("policy", "PodDisruptionBudget") => json!({
            "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
        }),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": null, "storedVersions": null})
        }
        ("storage.k8s.io", "VolumeAttachment") => json!({"attached": false}),
        _ => json!({}),
    }
}
