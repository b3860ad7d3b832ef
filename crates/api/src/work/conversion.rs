//! Conversion of bindings between v1alpha1 and v1alpha2, the stored form.
//!
//! What v1alpha1 cannot say (placement, components, failover, health and so on) is lost on the way there. Metadata
//! is copied as it is, untouched by our types, so that nothing in it can get lost.

use serde_json::Value;

use super::v1alpha1;
use super::{
    AggregatedStatusItem, ObjectReference, ReplicaRequirements, ResourceBindingSpec, ResourceBindingStatus,
    TargetCluster,
};

/// The `apiVersion` of the stored form.
pub const V1ALPHA2: &str = "work.karmada.io/v1alpha2";
/// The `apiVersion` of the old form.
pub const V1ALPHA1: &str = "work.karmada.io/v1alpha1";

/// Why an object could not be converted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object is not a binding.
    #[error("cannot convert kind {kind:?} of {api_version:?}")]
    NotABinding {
        /// The kind that was found.
        kind: String,
        /// The version that was found.
        api_version: String,
    },
    /// The wanted version is not one of the two.
    #[error("cannot convert to {0:?}")]
    NoSuchVersion(String),
    /// A part of the object does not have the form that its version says.
    #[error("cannot read {part} of the binding")]
    Malformed {
        /// Which part, `spec` or `status`.
        part: &'static str,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

/// Returns a binding in the wanted version.
///
/// # Errors
/// If the object is not a ResourceBinding or ClusterResourceBinding, the version is unknown, or the object is
/// malformed.
pub fn convert(object: &Value, api_version: &str) -> Result<Value, Error> {
    let from = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    if !matches!(kind, "ResourceBinding" | "ClusterResourceBinding") || !matches!(from, V1ALPHA1 | V1ALPHA2) {
        return Err(Error::NotABinding { kind: kind.to_owned(), api_version: from.to_owned() });
    }
    if from == api_version {
        return Ok(object.clone());
    }
    let (spec, status) = match api_version {
        V1ALPHA2 => (
            encode(ResourceBindingSpec::from(part::<v1alpha1::ResourceBindingSpec>(object, "spec")?)),
            encode(ResourceBindingStatus::from(part::<v1alpha1::ResourceBindingStatus>(object, "status")?)),
        ),
        V1ALPHA1 => (
            encode(v1alpha1::ResourceBindingSpec::from(part::<ResourceBindingSpec>(object, "spec")?)),
            encode(v1alpha1::ResourceBindingStatus::from(part::<ResourceBindingStatus>(object, "status")?)),
        ),
        other => return Err(Error::NoSuchVersion(other.to_owned())),
    };
    let mut out = object.clone();
    out["apiVersion"] = api_version.into();
    out["spec"] = spec;
    out["status"] = status;
    Ok(out)
}

fn part<T: serde::de::DeserializeOwned + Default>(object: &Value, part: &'static str) -> Result<T, Error> {
    match &object[part] {
        Value::Null => Ok(T::default()),
        value => T::deserialize(value).map_err(|source| Error::Malformed { part, source }),
    }
}

fn encode(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("API types have string keys only")
}

impl From<v1alpha1::ResourceBindingSpec> for ResourceBindingSpec {
    fn from(old: v1alpha1::ResourceBindingSpec) -> Self {
        Self {
            resource: ObjectReference {
                api_version: old.resource.api_version,
                kind: old.resource.kind,
                namespace: old.resource.namespace,
                name: old.resource.name,
                resource_version: old.resource.resource_version,
                ..ObjectReference::default()
            },
            replica_requirements: old.resource.resource_per_replicas.map(|request| ReplicaRequirements {
                resource_request: request,
                ..ReplicaRequirements::default()
            }),
            replicas: old.resource.replicas,
            clusters: old
                .clusters
                .into_iter()
                .map(|c| TargetCluster { name: c.name, replicas: c.replicas, ..TargetCluster::default() })
                .collect(),
            ..Self::default()
        }
    }
}

impl From<ResourceBindingSpec> for v1alpha1::ResourceBindingSpec {
    fn from(new: ResourceBindingSpec) -> Self {
        Self {
            resource: v1alpha1::ObjectReference {
                api_version: new.resource.api_version,
                kind: new.resource.kind,
                namespace: new.resource.namespace,
                name: new.resource.name,
                resource_version: new.resource.resource_version,
                // An empty request is a nil map in Go, which is omitted and does not come back.
                resource_per_replicas: new
                    .replica_requirements
                    .map(|requirements| requirements.resource_request)
                    .filter(|request| !request.is_empty()),
                replicas: new.replicas,
            },
            clusters: new
                .clusters
                .into_iter()
                .map(|c| v1alpha1::TargetCluster { name: c.name, replicas: c.replicas })
                .collect(),
        }
    }
}

impl From<v1alpha1::ResourceBindingStatus> for ResourceBindingStatus {
    fn from(old: v1alpha1::ResourceBindingStatus) -> Self {
        Self {
            conditions: old.conditions,
            aggregated_status: old
                .aggregated_status
                .into_iter()
                .map(|item| AggregatedStatusItem {
                    cluster_name: item.cluster_name,
                    status: item.status,
                    applied: item.applied,
                    applied_message: item.applied_message,
                    health: None,
                })
                .collect(),
            ..Self::default()
        }
    }
}

impl From<ResourceBindingStatus> for v1alpha1::ResourceBindingStatus {
    fn from(new: ResourceBindingStatus) -> Self {
        Self {
            conditions: new.conditions,
            aggregated_status: new
                .aggregated_status
                .into_iter()
                .map(|item| v1alpha1::AggregatedStatusItem {
                    cluster_name: item.cluster_name,
                    status: item.status,
                    applied: item.applied,
                    applied_message: item.applied_message,
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn old() -> Value {
        json!({
            "apiVersion": V1ALPHA1,
            "kind": "ResourceBinding",
            "metadata": { "name": "nginx-deployment", "namespace": "default", "odd": { "kept": true } },
            "spec": {
                "resource": {
                    "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "nginx",
                    "resourceVersion": "7", "resourcePerReplicas": { "cpu": "250m" }, "replicas": 3,
                },
                "clusters": [{ "name": "m1", "replicas": 2 }, { "name": "m2", "replicas": 1 }],
            },
            "status": {
                "conditions": [{
                    "type": "Scheduled", "status": "True", "reason": "Success", "message": "",
                    "lastTransitionTime": "2024-01-02T03:04:05Z",
                }],
                "aggregatedStatus": [{
                    "clusterName": "m1", "applied": true, "status": { "replicas": 2 },
                }],
            },
        })
    }

    #[test]
    fn an_old_binding_survives_the_way_there_and_back() {
        let new = convert(&old(), V1ALPHA2).unwrap();
        assert_eq!(new["spec"]["replicas"], 3);
        assert_eq!(new["spec"]["replicaRequirements"]["resourceRequest"]["cpu"], "250m");
        assert_eq!(new["metadata"], old()["metadata"]);
        assert_eq!(convert(&new, V1ALPHA1).unwrap(), old());
    }

    #[test]
    fn requirements_exist_only_if_the_old_binding_had_a_map() {
        let mut binding = old();
        binding["spec"]["resource"].as_object_mut().unwrap().remove("resourcePerReplicas");
        assert!(convert(&binding, V1ALPHA2).unwrap()["spec"].get("replicaRequirements").is_none());
        binding["spec"]["resource"]["resourcePerReplicas"] = json!({});
        assert_eq!(convert(&binding, V1ALPHA2).unwrap()["spec"]["replicaRequirements"], json!({}));
    }

    #[test]
    fn what_the_old_form_cannot_say_is_lost() {
        let mut new = convert(&old(), V1ALPHA2).unwrap();
        let without = new.clone();
        new["spec"]["resource"]["uid"] = json!("u1");
        new["spec"]["conflictResolution"] = json!("Overwrite");
        new["spec"]["placement"] = json!({ "clusterAffinity": { "clusterNames": ["m1"] } });
        new["status"]["aggregatedStatus"][0]["health"] = json!("Healthy");
        let back = convert(&convert(&new, V1ALPHA1).unwrap(), V1ALPHA2).unwrap();
        assert_eq!(back, without);
    }

    #[test]
    fn only_bindings_and_known_versions_are_converted() {
        let mut work = old();
        work["kind"] = json!("Work");
        assert!(matches!(convert(&work, V1ALPHA2), Err(Error::NotABinding { .. })));
        assert!(matches!(convert(&old(), "work.karmada.io/v1"), Err(Error::NoSuchVersion(_))));
        let mut broken = old();
        broken["spec"]["clusters"] = json!("m1");
        assert!(matches!(convert(&broken, V1ALPHA2), Err(Error::Malformed { part: "spec", .. })));
    }
}
