//! What an object is, as opposed to what it says: no override may change it.
//!
//! A policy of one namespace would otherwise turn an object of that namespace into any other object of a member: a
//! ConfigMap into a ClusterRoleBinding, or into an object of another namespace. The marks by which we find our own
//! objects again belong to the identity, too.

use api::labels::annotations::{
    CLUSTER_PROPAGATION_POLICY_NAME, CLUSTER_RESOURCE_BINDING_NAME, MANAGED_ANNOTATIONS, MANAGED_LABELS,
    PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAMESPACE, RESOURCE_BINDING_NAME, RESOURCE_BINDING_NAMESPACE,
    TEMPLATE_GENERATION, TEMPLATE_UID, WORK_NAME, WORK_NAMESPACE,
};
use api::labels::{
    CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, CLUSTER_RESOURCE_BINDING_PERMANENT_ID, MANAGED,
    PROPAGATION_POLICY_PERMANENT_ID, RESOURCE_BINDING_PERMANENT_ID, WORK_PERMANENT_ID,
};
use serde_json::Value;

/// The fields that together are an object's identity.
const FIELDS: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "generateName"],
    &["metadata", "uid"],
    &["metadata", "resourceVersion"],
    &["metadata", "generation"],
    &["metadata", "creationTimestamp"],
    &["metadata", "deletionTimestamp"],
    &["metadata", "labels", PROPAGATION_POLICY_PERMANENT_ID],
    &["metadata", "labels", CLUSTER_PROPAGATION_POLICY_PERMANENT_ID],
    &["metadata", "labels", RESOURCE_BINDING_PERMANENT_ID],
    &["metadata", "labels", CLUSTER_RESOURCE_BINDING_PERMANENT_ID],
    &["metadata", "labels", WORK_PERMANENT_ID],
    &["metadata", "labels", MANAGED],
    &["metadata", "annotations", PROPAGATION_POLICY_NAMESPACE],
    &["metadata", "annotations", PROPAGATION_POLICY_NAME],
    &["metadata", "annotations", CLUSTER_PROPAGATION_POLICY_NAME],
    &["metadata", "annotations", RESOURCE_BINDING_NAMESPACE],
    &["metadata", "annotations", RESOURCE_BINDING_NAME],
    &["metadata", "annotations", CLUSTER_RESOURCE_BINDING_NAME],
    &["metadata", "annotations", WORK_NAMESPACE],
    &["metadata", "annotations", WORK_NAME],
    &["metadata", "annotations", TEMPLATE_UID],
    &["metadata", "annotations", TEMPLATE_GENERATION],
    &["metadata", "annotations", MANAGED_LABELS],
    &["metadata", "annotations", MANAGED_ANNOTATIONS],
];

/// The identity of an object at one moment.
pub(super) struct Identity(Vec<Value>);

impl Identity {
    pub(super) fn of(object: &Value) -> Self {
        Self(FIELDS.iter().map(|path| value(object, path).clone()).collect())
    }

    /// Returns the first field in which the object differs from this identity as an error.
    pub(super) fn check(&self, object: &Value) -> Result<(), String> {
        let differs = |(path, before): &(&&[&str], &Value)| value(object, path) != *before;
        match FIELDS.iter().zip(&self.0).find(differs) {
            None => Ok(()),
            Some((path, _)) => Err(display(path)),
        }
    }
}

/// An absent field and one that is null are the same to the API.
fn value<'a>(object: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(object, |holder, field| &holder[*field])
}

/// `metadata.name`, `metadata.labels[karmada.io/managed]`
fn display(path: &[&str]) -> String {
    match path {
        [fields @ .., key] if key.contains('/') => format!("{}[{key}]", fields.join(".")),
        fields => fields.join("."),
    }
}
