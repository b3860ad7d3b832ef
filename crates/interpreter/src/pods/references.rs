//! The ConfigMaps, Secrets, ServiceAccount and claims that a pod spec mentions.

use std::collections::BTreeSet;

use api::config::DependentObjectReference;
use serde_json::Value;

use crate::Result;
use crate::fields::{list, string, text};

/// Returns what the pod `spec` refers to in `namespace`: ConfigMaps, Secrets, the ServiceAccount, then claims,
/// each sorted by name and listed once. (Upstream's order within a kind is random; sorted is one of them.)
pub fn references(spec: &Value, namespace: &str) -> Result<Vec<DependentObjectReference>> {
    let mut config_maps = BTreeSet::new();
    let mut secrets = BTreeSet::new();
    let mut claims = BTreeSet::new();

    for reference in list(spec, &["imagePullSecrets"])? {
        insert(&mut secrets, string(reference, &["name"])?);
    }
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        for container in list(spec, &[kind])? {
            for source in list(container, &["envFrom"])? {
                insert(&mut config_maps, string(source, &["configMapRef", "name"])?);
                insert(&mut secrets, string(source, &["secretRef", "name"])?);
            }
            for variable in list(container, &["env"])? {
                insert(&mut config_maps, string(variable, &["valueFrom", "configMapKeyRef", "name"])?);
                insert(&mut secrets, string(variable, &["valueFrom", "secretKeyRef", "name"])?);
            }
        }
    }
    for volume in list(spec, &["volumes"])? {
        volume_secrets(volume, &mut secrets)?;
        volume_config_maps(volume, &mut config_maps)?;
        insert(&mut claims, string(volume, &["persistentVolumeClaim", "claimName"])?);
    }
    let account = text(spec, &["serviceAccountName"])?;
    let accounts = if matches!(account, "" | "default") { vec![] } else { vec![account] };

    let of_kind = |kind: &'static str, names: Vec<&str>| {
        names
            .into_iter()
            .map(|name| DependentObjectReference {
                api_version: "v1".into(),
                kind: kind.into(),
                namespace: namespace.into(),
                name: name.into(),
                label_selector: None,
            })
            .collect::<Vec<_>>()
    };
    Ok([
        of_kind("ConfigMap", config_maps.into_iter().collect()),
        of_kind("Secret", secrets.into_iter().collect()),
        of_kind("ServiceAccount", accounts),
        of_kind("PersistentVolumeClaim", claims.into_iter().collect()),
    ]
    .concat())
}

fn insert<'a>(names: &mut BTreeSet<&'a str>, name: Option<&'a str>) {
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        names.insert(name);
    }
}

/// Where a volume source names its Secret, in the order in which the sources are looked at. A volume has one
/// source; should it carry several, only the first of this list counts.
const SECRET_SOURCES: [(&str, &[&str]); 11] = [
    ("azureFile", &["secretName"]),
    ("cephfs", &["secretRef", "name"]),
    ("cinder", &["secretRef", "name"]),
    ("flexVolume", &["secretRef", "name"]),
    ("projected", &[]),
    ("rbd", &["secretRef", "name"]),
    ("secret", &["secretName"]),
    ("scaleIO", &["secretRef", "name"]),
    ("iscsi", &["secretRef", "name"]),
    ("storageos", &["secretRef", "name"]),
    ("csi", &["nodePublishSecretRef", "name"]),
];

fn volume_secrets<'a>(volume: &'a Value, secrets: &mut BTreeSet<&'a str>) -> Result<()> {
    let found = SECRET_SOURCES.iter().find_map(|(source, path)| {
        let source = volume.get(source).filter(|value| !value.is_null())?;
        Some((source, *path))
    });
    match found {
        Some((source, [])) => {
            for projection in list(source, &["sources"])? {
                insert(secrets, string(projection, &["secret", "name"])?);
            }
        }
        Some((source, path)) => insert(secrets, string(source, path)?),
        None => {}
    }
    Ok(())
}

fn volume_config_maps<'a>(volume: &'a Value, config_maps: &mut BTreeSet<&'a str>) -> Result<()> {
    if volume.get("projected").is_some_and(|value| !value.is_null()) {
        for projection in list(volume, &["projected", "sources"])? {
            insert(config_maps, string(projection, &["configMap", "name"])?);
        }
        return Ok(());
    }
    insert(config_maps, string(volume, &["configMap", "name"])?);
    Ok(())
}
