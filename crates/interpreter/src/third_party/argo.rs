//! Argo Workflows.

use api::config::DependentObjectReference;
use serde_json::{Value, json};

use super::Rules;
use super::blocks::{
    at, count, list, need, number, refer, reference, requirements, retain_suspend, set_spec, set_status,
    some_text, text,
};
use crate::{Replicas, Result};

pub(super) const WORKFLOW: Rules = Rules {
    replicas: Some(|object, class| {
        let spec = need(object, &["spec"])?;
        let replicas = number(spec, &["parallelism"]).unwrap_or(1.0);
        let part = |name: &str| at(spec, &[name]).cloned();
        let pod = json!({"spec": {
            "affinity": part("affinity"), "nodeSelector": part("nodeSelector"), "tolerations": part("tolerations"),
        }});
        Ok(Replicas { count: count(replicas), requirements: requirements(&pod, class)? })
    }),
    revise: Some(|object, replicas| set_spec(object, "parallelism", json!(replicas))),
    retain: Some(|desired, observed| {
        retain_suspend(desired, observed)?;
        if let Some(status) = at(observed, &["status"]) {
            set_status(desired, status.clone());
        }
        Ok(())
    }),
    health: Some(|object| {
        let phase = some_text(object, &["status", "phase"]);
        Ok(phase.is_some_and(|phase| !matches!(phase, "Error" | "Failed")))
    }),
    dependencies: Some(dependencies),
    ..Rules::NONE
};

/// Where a volume names a Secret. `secret.name` is upstream's slip; a Secret's volume has `secretName`.
const VOLUME_SECRETS: [&[&str]; 10] = [
    &["azureFile", "secretName"],
    &["cephfs", "secretRef", "name"],
    &["cinder", "secretRef", "name"],
    &["flexVolume", "secretRef", "name"],
    &["rbd", "secretRef", "name"],
    &["secret", "name"],
    &["scaleIO", "secretRef", "name"],
    &["iscsi", "secretRef", "name"],
    &["storageos", "secretRef", "name"],
    &["csi", "nodePublishSecretRef", "name"],
];

fn dependencies(object: &Value) -> Result<Vec<DependentObjectReference>> {
    let spec = need(object, &["spec"])?;
    let mut found = Vec::new();
    refer(&mut found, object, "ServiceAccount", &["spec", "executor", "serviceAccountName"]);
    if text(spec, &["serviceAccountName"]) != Some("default") {
        refer(&mut found, object, "ServiceAccount", &["spec", "serviceAccountName"]);
    }
    let mut add = |kind: &str, name: Option<&str>| {
        if let Some(name) = name {
            found.push(reference(object, kind, name));
        }
    };
    for claim in list(spec, &["volumeClaimTemplates"]) {
        add("PersistentVolumeClaim", some_text(claim, &["metadata", "name"]));
    }
    for volume in list(spec, &["volumes"]) {
        add("PersistentVolumeClaim", some_text(volume, &["persistentVolumeClaim", "claimName"]));
        add("ConfigMap", some_text(volume, &["configMap", "name"]));
        for source in list(volume, &["projected", "sources"]) {
            add("ConfigMap", some_text(source, &["configMap", "name"]));
            add("Secret", some_text(source, &["secret", "name"]));
        }
        for path in VOLUME_SECRETS {
            add("Secret", some_text(volume, path));
        }
    }
    for secret in list(spec, &["imagePullSecrets"]) {
        add("Secret", some_text(secret, &["name"]));
    }
    Ok(found)
}
