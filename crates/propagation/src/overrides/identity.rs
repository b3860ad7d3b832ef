//! What an object is, as opposed to what it says: no override may change it.
//!
//! A policy of one namespace would otherwise turn an object of that namespace into any other object of a member: a
//! ConfigMap into a ClusterRoleBinding, or into an object of another namespace. The marks by which we find our own
//! objects again belong to the identity, too.
//!
//! What RBAC objects grant is protected from policies of a namespace as well: whoever may write those is often allowed to write
//! no roles, and members would get other rights than the ones that were checked when the template was written.

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

use super::Error;
use super::budget::Budget;

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

/// What objects of RBAC grant, and to whom.
const RIGHTS: &[&[&str]] = &[&["rules"], &["subjects"], &["roleRef"], &["aggregationRule"]];

/// The identity of an object at one moment.
pub(super) struct Identity {
    fields: Vec<Value>,
    /// What it grants; nothing if that may change.
    rights: Option<Vec<Value>>,
}

impl Identity {
    /// Notes the identity of an object, for policies of a namespace with the rights that it grants.
    pub(super) fn of(object: &Value, namespaced: bool) -> Self {
        let copies = |paths: &[&[&str]]| paths.iter().map(|path| value(object, path).clone()).collect();
        let group = object["apiVersion"].as_str().and_then(|version| version.split('/').next());
        let is_rbac = group == Some("rbac.authorization.k8s.io");
        Self { fields: copies(FIELDS), rights: (namespaced && is_rbac).then(|| copies(RIGHTS)) }
    }

    /// Returns the first field in which the object differs from this identity after the rule as an error.
    pub(super) fn check(&self, object: &Value, rule: String, budget: &mut Budget) -> Result<(), Error> {
        if let Some(path) = changed(object, FIELDS, &self.fields) {
            return Err(Error::Identity { rule, field: display(path) });
        }
        if let Some(rights) = &self.rights {
            budget.pass(object)?;
            if let Some(path) = changed(object, RIGHTS, rights) {
                return Err(Error::Rights { rule, field: display(path) });
            }
        }
        Ok(())
    }
}

fn changed<'a>(object: &Value, paths: &[&'a [&'a str]], before: &[Value]) -> Option<&'a [&'a str]> {
    paths.iter().zip(before).find(|(path, before)| value(object, path) != *before).map(|(path, _)| *path)
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
