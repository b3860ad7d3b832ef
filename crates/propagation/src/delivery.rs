//! Decides what to write into a member cluster, given the desired and the existing object.
//!
//! The member owns parts of every object: what its controllers add, its own labels and allocations. Those are
//! taken over before anything is compared or written, so that neither side undoes the other's changes.

use std::collections::BTreeSet;

use api::labels::annotations::{
    CLUSTER_PROPAGATION_POLICY_NAME, CLUSTER_RESOURCE_BINDING_NAME, CONFLICT_OVERWRITE, CONFLICT_RESOLUTION,
    MANAGED_ANNOTATIONS, MANAGED_LABELS, PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAMESPACE,
    RESOURCE_BINDING_NAME, RESOURCE_BINDING_NAMESPACE, TEMPLATE_GENERATION, TEMPLATE_UID, WORK_NAME,
    WORK_NAMESPACE,
};
use api::labels::{
    CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, CLUSTER_RESOURCE_BINDING_PERMANENT_ID, MANAGED,
    PROPAGATION_POLICY_PERMANENT_ID, RESOURCE_BINDING_PERMANENT_ID, TRUE, WORK_PERMANENT_ID,
};
use interpreter::{Interpreter, Operation, prune};
use serde_json::Value;

use crate::{Error, Object, Result};

/// What to do about an object that exists in the member.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// It is as wanted.
    Keep,
    /// Put this in its place; the resource version is the observed one.
    Update(Value),
    /// It belongs to someone else, and the policy does not allow us to take it over.
    Foreign,
}

/// Returns whether the object in the member is ours.
pub fn is_managed(observed: &Value) -> bool {
    observed.label(MANAGED) == Some(TRUE)
}

/// Returns the words in which a refusal to touch a foreign object is reported.
pub fn foreign_message(desired: &Value, cluster: &str) -> String {
    format!(
        "resource(kind={}, {}/{}) already exists in the cluster {cluster} and the {CONFLICT_RESOLUTION} strategy \
         value is empty, Karmada will not manage this resource",
        desired.kind(),
        desired.namespace(),
        desired.name(),
    )
}

/// Decides how to bring the observed object in line with the desired manifest.
///
/// Upstream does not repeat the interpreter's retention on the copy it compares with, so that every Service with
/// a cluster IP is written on each pass; here it is repeated, and a second pass writes nothing.
pub async fn decide(desired: &Value, observed: &Value, interpreter: &Interpreter) -> Result<Decision> {
    if !may_touch(desired, observed) {
        return Ok(Decision::Foreign);
    }
    let wanted = retain(desired.clone(), observed, interpreter).await?;
    // An observed object that cannot be pruned or retained from is simply not equal.
    let mut present = observed.clone();
    let same = prune(&mut present).is_ok()
        && retain(present, observed, interpreter).await.is_ok_and(|present| equivalent(&present, &wanted));
    Ok(if same { Decision::Keep } else { Decision::Update(wanted) })
}

/// Returns whether upstream sends this object although nothing is to be changed; see [`decide`]. It does so when its
/// controllers start, and the member's API server finds nothing new in it.
pub async fn upstream_repeats(desired: &Value, observed: &Value, interpreter: &Interpreter) -> Result<bool> {
    if !may_touch(desired, observed) {
        return Ok(false);
    }
    // Upstream turns pods into Go's type and back, which adds an empty status.
    if desired.api_version() == "v1" && desired.kind() == "Pod" {
        return Ok(true);
    }
    let wanted = retain(desired.clone(), observed, interpreter).await?;
    let mut present = observed.clone();
    if prune(&mut present).is_err() {
        return Ok(true);
    }
    retain_generic(&mut present, observed);
    // Upstream sets empty lists of a ServiceAccount, and does not treat them as absent.
    let emptied = |field| wanted.get(field).is_some_and(Value::is_null) && present.get(field).is_none();
    let account =
        desired.kind() == "ServiceAccount" && ["secrets", "imagePullSecrets"].into_iter().any(emptied);
    Ok(account || !equivalent(&present, &wanted))
}

fn may_touch(desired: &Value, observed: &Value) -> bool {
    is_managed(observed) || desired.annotation(CONFLICT_RESOLUTION) == Some(CONFLICT_OVERWRITE)
}

/// Returns the desired object with everything taken over that the member owns.
pub async fn retain(mut desired: Value, observed: &Value, interpreter: &Interpreter) -> Result<Value> {
    let kind = desired.gvk();
    retain_generic(&mut desired, observed);
    if !interpreter.supports(&kind, Operation::Retain) {
        return Ok(desired);
    }
    let object = desired.describe();
    interpreter.retain(desired, observed).await.map_err(|source| Error::Interpret { object, source })
}

fn retain_generic(desired: &mut Value, observed: &Value) {
    let Value::Object(root) = desired else { return };
    let metadata = root.entry("metadata").or_insert_with(|| Value::Object(Default::default()));
    if let Value::Object(metadata) = metadata {
        for field in ["resourceVersion", "finalizers", "ownerReferences"] {
            match observed["metadata"].get(field) {
                Some(value) if !value.is_null() => metadata.insert(field.to_owned(), value.clone()),
                _ => metadata.remove(field),
            };
        }
    }
    retain_marks(desired, observed, "annotations", MANAGED_ANNOTATIONS);
    retain_marks(desired, observed, "labels", MANAGED_LABELS);
}

/// Keeps the member's labels or annotations, except those that we put there earlier and have withdrawn since;
/// ours win over the member's.
fn retain_marks(desired: &mut Value, observed: &Value, section: &str, managed_keys: &str) {
    let managed: BTreeSet<&str> = observed.annotation(managed_keys).unwrap_or("").split(',').collect();
    let marks = observed["metadata"].get(section).and_then(Value::as_object).into_iter().flatten();
    for (key, value) in marks {
        let Some(value) = value.as_str() else { continue };
        let labels = section == "labels";
        let ours = if labels { desired.label(key) } else { desired.annotation(key) };
        if ours.is_some() || managed.contains(key.as_str()) {
            continue;
        }
        if labels {
            desired.set_label(key, value);
        } else {
            desired.set_annotation(key, value);
        }
    }
}

/// Compares as the API does: a null field is an absent one. An empty list or map is not, since it can mean
/// something else than none (a network policy's empty selector picks everything).
fn equivalent(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            keys.into_iter().all(|key| {
                equivalent(left.get(key).unwrap_or(&Value::Null), right.get(key).unwrap_or(&Value::Null))
            })
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equivalent(left, right))
        }
        (left, right) => left == right,
    }
}

/// Returns whether the observed object has everything that is wanted, and perhaps more: what its cluster has added.
pub fn covers(observed: &Value, wanted: &Value) -> bool {
    match (observed, wanted) {
        (_, Value::Null) => true,
        (Value::Object(observed), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            wanted.is_null() || observed.get(key).is_some_and(|observed| covers(observed, wanted))
        }),
        (Value::Array(observed), Value::Array(wanted)) => {
            observed.len() == wanted.len()
                && observed.iter().zip(wanted).all(|(observed, wanted)| covers(observed, wanted))
        }
        (observed, wanted) => observed == wanted,
    }
}

/// Returns whether a change of a member object is one that we must look at: anything but what pruning removes
/// (status above all).
pub fn drifted(old: &Value, new: &Value) -> bool {
    let pruned = |object: &Value| {
        let mut object = object.clone();
        prune(&mut object).map(|()| object)
    };
    match (pruned(old), pruned(new)) {
        (Ok(old), Ok(new)) => old != new,
        _ => true,
    }
}

/// Removes our labels and annotations from a manifest whose object stays in the member after we release it.
pub fn release(manifest: &mut Value) {
    let (label, annotations): (&str, &[&str]) = if manifest.namespace().is_empty() {
        (CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, &[CLUSTER_PROPAGATION_POLICY_NAME])
    } else {
        (PROPAGATION_POLICY_PERMANENT_ID, &[PROPAGATION_POLICY_NAMESPACE, PROPAGATION_POLICY_NAME])
    };
    manifest.remove_label(label);
    for key in annotations {
        manifest.remove_annotation(key);
    }
    // Labels of both scopes are removed: those of the other scope are leftovers that nothing else would clean
    // up.
    for key in [
        RESOURCE_BINDING_PERMANENT_ID,
        CLUSTER_RESOURCE_BINDING_PERMANENT_ID,
        CLUSTER_PROPAGATION_POLICY_PERMANENT_ID,
        WORK_PERMANENT_ID,
        MANAGED,
    ] {
        manifest.remove_label(key);
    }
    for key in [
        MANAGED_ANNOTATIONS,
        MANAGED_LABELS,
        RESOURCE_BINDING_NAMESPACE,
        RESOURCE_BINDING_NAME,
        CLUSTER_RESOURCE_BINDING_NAME,
        CLUSTER_PROPAGATION_POLICY_NAME,
        CONFLICT_RESOLUTION,
        TEMPLATE_UID,
        TEMPLATE_GENERATION,
        WORK_NAME,
        WORK_NAMESPACE,
    ] {
        manifest.remove_annotation(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_cluster_adds_is_covered_and_what_it_changes_or_lacks_is_not() {
        let wanted = json!({"spec": {"containers": [{"name": "a"}], "none": null}});
        assert!(covers(
            &json!({"spec": {"containers": [{"name": "a", "pull": "Always"}], "node": "n"}}),
            &wanted
        ));
        assert!(!covers(&json!({"spec": {"containers": [{"name": "b"}]}}), &wanted));
        assert!(!covers(&json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}), &wanted));
        assert!(!covers(&json!({"spec": {}}), &wanted));
    }
}
