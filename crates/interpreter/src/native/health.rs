//! Whether a native object in a member cluster is healthy.

use serde_json::Value;

use super::kinds::Kind;
use crate::fields::{count, int, list, text};
use crate::{Error, Operation, Result};

pub(super) fn supports(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Deployment
            | Kind::StatefulSet
            | Kind::ReplicaSet
            | Kind::DaemonSet
            | Kind::Service
            | Kind::Ingress
            | Kind::PersistentVolumeClaim
            | Kind::Pod
            | Kind::PodDisruptionBudget
    )
}

pub(super) fn interpret(kind: Kind, object: &Value) -> Result<bool> {
    let status = |field| count(object, &["status", field]);
    let observed = || Ok(status("observedGeneration")? == count(object, &["metadata", "generation"])?);
    // An unset count asks for nothing.
    let wanted = || Ok(int(object, &["spec", "replicas"])?.unwrap_or(i64::MIN));
    match kind {
        Kind::Deployment | Kind::StatefulSet => Ok(observed()?
            && status("updatedReplicas")? >= wanted()?
            && status("availableReplicas")? >= status("updatedReplicas")?),
        Kind::ReplicaSet => Ok(observed()? && status("availableReplicas")? >= wanted()?),
        Kind::DaemonSet => Ok(observed()?
            && status("updatedNumberScheduled")? >= status("desiredNumberScheduled")?
            && status("numberAvailable")? >= status("updatedNumberScheduled")?),
        Kind::Service => Ok(text(object, &["spec", "type"])? != "LoadBalancer" || has_address(object)?),
        Kind::Ingress => has_address(object),
        Kind::PersistentVolumeClaim => Ok(text(object, &["status", "phase"])? == "Bound"),
        Kind::Pod => match text(object, &["status", "phase"])? {
            "Succeeded" => Ok(true),
            "Running" => is_ready(object),
            _ => Ok(false),
        },
        Kind::PodDisruptionBudget => Ok(status("currentHealthy")? >= status("desiredHealthy")?),
        _ => {
            let kind = crate::chain::kind_of(object);
            Err(Error::NoRule { operation: Operation::InterpretHealth, kind })
        }
    }
}

fn has_address(object: &Value) -> Result<bool> {
    for ingress in list(object, &["status", "loadBalancer", "ingress"])? {
        if !text(ingress, &["hostname"])?.is_empty() || !text(ingress, &["ip"])?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first condition of type Ready decides.
fn is_ready(pod: &Value) -> Result<bool> {
    for condition in list(pod, &["status", "conditions"])? {
        if text(condition, &["type"])? == "Ready" {
            return Ok(text(condition, &["status"])? == "True");
        }
    }
    Ok(false)
}
