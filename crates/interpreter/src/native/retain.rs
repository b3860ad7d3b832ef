//! What a member cluster owns of a native object and an update must not take away.

use std::collections::BTreeSet;

use api::labels::{RETAIN_REPLICAS, TRUE};
use serde_json::{Map, Value};

use super::kinds::{Kind, SERVICE_ACCOUNT_TOKEN};
use crate::fields::{self, present, set, string, text};
use crate::{Error, Operation, Result};

pub(super) fn supports(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Deployment
            | Kind::Pod
            | Kind::Service
            | Kind::ServiceAccount
            | Kind::PersistentVolumeClaim
            | Kind::PersistentVolume
            | Kind::Job
            | Kind::Secret
    )
}

pub(super) fn retain(kind: Kind, mut desired: Value, observed: &Value) -> Result<Value> {
    match kind {
        Kind::Deployment => replicas(&mut desired, observed)?,
        Kind::Pod => pod(&mut desired, observed)?,
        Kind::Service => {
            if let Some(port) = fields::int(observed, &["spec", "healthCheckNodePort"])?
                && port > 0
            {
                set(&mut desired, &["spec", "healthCheckNodePort"], port.into())?;
            }
            keep_text(&mut desired, observed, &["spec", "clusterIP"])?;
            second_family(&mut desired, observed)?;
        }
        Kind::ServiceAccount => {
            for field in ["secrets", "imagePullSecrets"] {
                secrets(&mut desired, observed, field)?;
            }
        }
        Kind::PersistentVolumeClaim => keep_text(&mut desired, observed, &["spec", "volumeName"])?,
        Kind::PersistentVolume => {
            if let Some(claim) = fields::get(observed, &["spec", "claimRef"])? {
                set(&mut desired, &["spec", "claimRef"], claim.clone())?;
            }
        }
        Kind::Job => {
            keep_map(&mut desired, observed, &["spec", "selector", "matchLabels"])?;
            keep_map(&mut desired, observed, &["spec", "template", "metadata", "labels"])?;
        }
        Kind::Secret => {
            if desired["type"].as_str() == Some(SERVICE_ACCOUNT_TOKEN) {
                keep_map(&mut desired, observed, &["data"])?;
            }
        }
        _ => {
            let kind = crate::chain::kind_of(&desired);
            return Err(Error::NoRule { operation: Operation::Retain, kind });
        }
    }
    Ok(desired)
}

/// A Service that prefers two families of addresses gets the second from a member that has both, beside the one we name. Without this
/// we would ask for its removal, which the member refuses.
fn second_family(desired: &mut Value, observed: &Value) -> Result<()> {
    let families = |service: &Value| service.pointer("/spec/ipFamilies").and_then(Value::as_array).cloned();
    let prefers = desired.pointer("/spec/ipFamilyPolicy").is_some_and(|policy| policy == "PreferDualStack");
    let (ours, Some(theirs)) = (families(desired).unwrap_or_default(), families(observed)) else {
        return Ok(());
    };
    if prefers && ours.len() < theirs.len() && theirs.starts_with(&ours) {
        set(desired, &["spec", "ipFamilies"], Value::Array(theirs))?;
    }
    Ok(())
}

/// The label leaves the replica count to the member, for example to an autoscaler there.
fn replicas(desired: &mut Value, observed: &Value) -> Result<()> {
    if string(desired, &["metadata", "labels", RETAIN_REPLICAS])? != Some(TRUE) {
        return Ok(());
    }
    let Ok(Some(replicas)) = fields::int(observed, &["spec", "replicas"]) else {
        return Err(Error::NoReplicasToRetain {
            kind: fields::kind(observed).into(),
            namespace: fields::namespace(observed).into(),
            name: fields::name(observed).into(),
        });
    };
    set(desired, &["spec", "replicas"], replicas.into())
}

/// Most of a pod cannot be changed after it was scheduled, and admission in the member adds to it.
fn pod(desired: &mut Value, observed: &Value) -> Result<()> {
    for field in ["nodeName", "serviceAccountName", "volumes"] {
        replace(desired, observed, &["spec", field])?;
    }
    for kind in ["containers", "initContainers"] {
        let theirs = fields::list(observed, &["spec", kind])?.to_vec();
        let Some(ours) = desired.get_mut("spec").and_then(|spec| spec.get_mut(kind)) else { continue };
        let Some(ours) = ours.as_array_mut() else { continue };
        for container in &theirs {
            let name = text(container, &["name"])?;
            let same = ours.iter_mut().find(|our| our["name"].as_str().unwrap_or("") == name);
            if let Some(our) = same {
                replace(our, container, &["volumeMounts"])?;
            }
        }
    }
    Ok(())
}

/// Takes the observed value over, including its absence.
fn replace(desired: &mut Value, observed: &Value, path: &[&str]) -> Result<()> {
    match present(observed, path)? {
        Some(value) => set(desired, path, value.clone()),
        None => {
            fields::remove(desired, path);
            Ok(())
        }
    }
}

fn keep_text(desired: &mut Value, observed: &Value, path: &[&str]) -> Result<()> {
    match string(observed, path)? {
        Some(value) if !value.is_empty() => set(desired, path, value.into()),
        _ => Ok(()),
    }
}

fn keep_map(desired: &mut Value, observed: &Value, path: &[&str]) -> Result<()> {
    match fields::map(observed, path)? {
        Some(map) => set(desired, path, Value::Object(Map::clone(map))),
        None => Ok(()),
    }
}

/// Unites a list of references by name: ours first, then those that only the member has. Without this the
/// member's token controller and we would take turns in undoing each other. The field is written even when
/// the union is empty, as `null`.
fn secrets(desired: &mut Value, observed: &Value, field: &str) -> Result<()> {
    let ours = fields::list(desired, &[field])?;
    let theirs = fields::list(observed, &[field])?;
    let known: BTreeSet<&str> = ours.iter().filter_map(|secret| secret["name"].as_str()).collect();
    let mut seen = known.clone();
    let mut united = ours.to_vec();
    for secret in theirs {
        if seen.insert(secret["name"].as_str().unwrap_or("")) {
            united.push(secret.clone());
        }
    }
    let united = if united.is_empty() { Value::Null } else { Value::Array(united) };
    set(desired, &[field], united)
}
