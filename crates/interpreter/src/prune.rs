//! Removes from an object what its own API server put there and another cluster must not be told.
//!
//! The same pruning runs when a Work is rendered, when a Work is admitted and when a member object is
//! compared with what is desired. All three must agree, otherwise Works are rewritten on every pass; hence
//! one function, and pruning twice is the same as pruning once.
//!
//! The kind's name alone decides, whatever its group, as in Karmada.

use serde_json::Value;

use crate::Result;
use crate::fields;
use crate::native::kinds::SERVICE_ACCOUNT_TOKEN;

/// Prunes `object` in place.
///
/// One deliberate difference from upstream: of two adjacent generated token secrets of a ServiceAccount,
/// upstream overlooks the second; here all of them go.
pub fn prune(object: &mut Value) -> Result<()> {
    for field in [
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "managedFields",
        "resourceVersion",
        "selfLink",
        "uid",
        "ownerReferences",
        "finalizers",
    ] {
        fields::remove(object, &["metadata", field]);
    }
    fields::remove(object, &["status"]);

    match fields::kind(object) {
        "Deployment" => {
            for annotation in
                ["deployment.kubernetes.io/revision", "deployment.kubernetes.io/revision-history"]
            {
                fields::remove(object, &["metadata", "annotations", annotation]);
            }
            Ok(())
        }
        "Job" => job(object),
        "Secret" => secret(object),
        "ServiceAccount" => service_account(object),
        "Service" => service(object),
        "PersistentVolumeClaim" => {
            let annotation = ["metadata", "annotations", "volume.kubernetes.io/selected-node"];
            if fields::string(object, &annotation).ok().flatten().is_some_and(|node| !node.is_empty()) {
                fields::remove(object, &annotation);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A Job's selector and labels are generated from its UID, which differs in every cluster. Its time to live
/// is the control plane's business: a member that deletes a finished Job would only see it recreated.
fn job(object: &mut Value) -> Result<()> {
    if fields::boolean(object, &["spec", "manualSelector"])? != Some(true) {
        for key in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
            remove_label(object, &["spec", "selector", "matchLabels"], key)?;
            remove_label(object, &["spec", "template", "metadata", "labels"], key)?;
        }
        for key in ["job-name", "batch.kubernetes.io/job-name"] {
            remove_label(object, &["spec", "template", "metadata", "labels"], key)?;
        }
    }
    fields::remove(object, &["spec", "ttlSecondsAfterFinished"]);
    Ok(())
}

fn remove_label(object: &mut Value, labels: &[&str], key: &str) -> Result<()> {
    if fields::map(object, labels)?.is_some() {
        let mut path = labels.to_vec();
        path.push(key);
        fields::remove(object, &path);
    }
    Ok(())
}

fn secret(object: &mut Value) -> Result<()> {
    if object["type"].as_str() == Some(SERVICE_ACCOUNT_TOKEN) {
        fields::remove(object, &["metadata", "annotations", "kubernetes.io/service-account.uid"]);
        fields::set(object, &["data"], Value::Null)?;
    }
    Ok(())
}

fn service_account(object: &mut Value) -> Result<()> {
    let prefix = format!("{}-token-", fields::name(object));
    if let Some(Value::Array(secrets)) = object.get_mut("secrets") {
        secrets.retain(|secret| !secret["name"].as_str().is_some_and(|name| name.starts_with(&prefix)));
    }
    Ok(())
}

fn service(object: &mut Value) -> Result<()> {
    // "None" is the user's wish for a headless service, not an allocation.
    if fields::string(object, &["spec", "clusterIP"]).ok().flatten().is_some_and(|ip| ip != "None") {
        fields::remove(object, &["spec", "clusterIP"]);
        fields::remove(object, &["spec", "clusterIPs"]);
    }
    // Whether a preference comes true is up to each member: one that has only the first family would refuse the second.
    if object.pointer("/spec/ipFamilyPolicy").is_some_and(|policy| policy == "PreferDualStack")
        && let Some(families) = object.pointer_mut("/spec/ipFamilies").and_then(Value::as_array_mut)
    {
        families.truncate(1);
    }
    Ok(())
}
