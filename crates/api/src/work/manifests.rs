//! Work: the manifests that one member cluster is to run, and what became of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

use super::ResourceHealth;
use crate::conditions::work::APPLIED;
use crate::wire::{kind, record};

kind! {
    /// The manifests that one member cluster is to run. Lives in the execution namespace of that cluster.
    pub struct Work in "work.karmada.io" / "v1alpha1" as "works", Namespaced {
        /// What the cluster is to run.
        "spec" required spec: WorkSpec;
        /// What became of it.
        "status" always status: WorkStatus;
    }
}

record! {
    /// What a member cluster is to run.
    pub struct WorkSpec {
        /// The manifests.
        "workload" always workload: WorkloadTemplate;
        /// Stops applying the manifests to the cluster; their status is still collected.
        "suspendDispatching" optional suspend_dispatching: Option<bool>;
        /// Keeps the objects in the cluster when the Work is deleted.
        "preserveResourcesOnDeletion" optional preserve_resources_on_deletion: Option<bool>;
    }
}

/// A complete Kubernetes object.
pub type Manifest = Value;

record! {
    /// The manifests of a Work.
    pub struct WorkloadTemplate {
        /// Complete Kubernetes objects.
        "manifests" optional manifests: Vec<Manifest> { free_objects() };
    }
}

record! {
    /// What became of the manifests of a Work.
    pub struct WorkStatus {
        /// Whether the manifests were dispatched and applied.
        "conditions" optional conditions: Vec<Condition>;
        /// The state of each manifest.
        "manifestStatuses" optional manifest_statuses: Vec<ManifestStatus>;
    }
}

impl WorkStatus {
    /// Returns whether the manifests were applied to the cluster.
    pub fn is_applied(&self) -> bool {
        self.conditions.iter().any(|known| known.type_ == APPLIED && known.status == "True")
    }
}

record! {
    /// The state of one manifest in the member cluster.
    pub struct ManifestStatus {
        /// Which manifest is meant.
        "identifier" required identifier: ResourceIdentifier;
        /// The status of the object, as far as it is collected.
        "status" optional status: Option<Value> { free_object() };
        /// Whether the object works.
        "health" optional health: Option<ResourceHealth>;
    }
}

record! {
    /// Which manifest of a Work is meant.
    #[derive(Eq)]
    pub struct ResourceIdentifier {
        /// The index in spec.workload.manifests.
        "ordinal" required ordinal: i64 { no_format() };
        /// The API group of the object; empty for the core group.
        "group" optional group: String;
        /// The API version of the object.
        "version" required version: String;
        /// The kind of the object.
        "kind" required kind: String;
        /// The plural resource name of the object.
        "resource" required resource: String;
        /// The namespace of the object; empty for cluster-scoped ones.
        "namespace" optional namespace: String;
        /// The name of the object.
        "name" required name: String;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_work_is_applied_only_if_it_says_so() {
        let applied = |kind: &str, status: &str| {
            let conditions = json!([{
                "type": kind, "status": status, "reason": "r", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z",
            }]);
            WorkStatus { conditions: serde_json::from_value(conditions).unwrap(), ..WorkStatus::default() }
                .is_applied()
        };
        assert!(applied("Applied", "True"));
        assert!(!applied("Applied", "False") && !applied("Applied", "Unknown"));
        assert!(!applied("Dispatching", "True"));
        assert!(!WorkStatus::default().is_applied());
    }
}
