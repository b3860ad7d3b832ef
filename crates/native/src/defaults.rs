//! Fills what kube-apiserver's defaulting fills.
//!
//! In: an object in Go shape. Out: the same object with every default of its kind. It runs after decoding,
//! after patching, after admission and when reading from storage, so a second run changes nothing.
//! What depends on the caller, the clock or other objects is not a default: see [`crate::prepare`].
//!
//! Only absent values and zero plain scalars are filled; an explicit pointer value (`replicas: 0`) stays.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

mod image;
mod pod;
mod policy;
mod quantities;
mod service;
mod storage;
pub(crate) mod tree;
mod workloads;

use apimachinery::gvk::Gvk;
use serde_json::Value;

/// Fills the defaults of a native kind; objects of other kinds stay as they are.
///
/// *Guarantees*: idempotent; never removes anything but what defaulting removes upstream (a Service's
/// `sessionAffinityConfig` without affinity, a StatefulSet's gated `maxUnavailable`).
pub fn apply(gvk: &Gvk, object: &mut Value) {
    let Some(root) = object.as_object_mut() else { return };
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Pod") => pod::pod(root),
        ("", "PodTemplate") => pod::template(root, "template"),
        ("", "ReplicationController") => workloads::replication_controller(root),
        ("", "Service") => service::service(root),
        ("", "Endpoints") => service::endpoints(root),
        ("", "Secret") => tree::put_nonzero(root, "type", "Opaque"),
        ("", "Namespace") => policy::namespace(root),
        ("", "Node") => policy::node(root),
        ("", "LimitRange") => policy::limit_range(root),
        ("", "ResourceQuota") => policy::resource_quota(root),
        ("", "PersistentVolume") => storage::persistent_volume(root),
        ("", "PersistentVolumeClaim") => storage::persistent_volume_claim(root),
        ("apps", "Deployment") => workloads::deployment(root),
        ("apps", "ReplicaSet") => workloads::replica_set(root),
        ("apps", "StatefulSet") => workloads::stateful_set(root),
        ("apps", "DaemonSet") => workloads::daemon_set(root),
        ("batch", "Job") => workloads::job(root),
        ("batch", "CronJob") => workloads::cron_job(root),
        ("autoscaling", "HorizontalPodAutoscaler") => workloads::autoscaler(&gvk.version, root),
        ("discovery.k8s.io", "EndpointSlice") => service::endpoint_slice(root),
        ("networking.k8s.io", "IngressClass") => service::ingress_class(root),
        ("networking.k8s.io", "NetworkPolicy") => service::network_policy(root),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => policy::role_binding(root),
        ("storage.k8s.io", "StorageClass") => storage::storage_class(root),
        ("storage.k8s.io", "CSIDriver") => storage::csi_driver(root),
        ("scheduling.k8s.io", "PriorityClass") => tree::put(root, "preemptionPolicy", "PreemptLowerPriority"),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration") => policy::webhooks(root, false),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration") => policy::webhooks(root, true),
        (
            "admissionregistration.k8s.io",
            "ValidatingAdmissionPolicy"
            | "MutatingAdmissionPolicy"
            | "ValidatingAdmissionPolicyBinding"
            | "MutatingAdmissionPolicyBinding",
        ) => policy::admission_policy(&gvk.kind, root),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => policy::custom_resource_definition(root),
        ("apiregistration.k8s.io", "APIService") => policy::api_service(root),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => policy::flow_schema(root),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => policy::priority_level(root),
        ("resource.k8s.io", "ResourceClaim") => policy::resource_claim(root),
        ("resource.k8s.io", "ResourceClaimTemplate") => {
            if let Some(template) = tree::below(root, "spec") {
                policy::resource_claim(template);
            }
        }
        ("authentication.k8s.io", "TokenRequest") => {
            if let Some(spec) = tree::ensure(root, "spec") {
                tree::put(spec, "expirationSeconds", 3600);
            }
        }
        _ => {}
    }
}
