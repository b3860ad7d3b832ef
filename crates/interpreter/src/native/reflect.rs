//! What is worth reporting of a member object's status.
//!
//! Workloads report their counters together with two generations: the member object's own, and the template
//! generation it was rendered from. That lets the aggregation tell a status that already reflects the latest
//! template from one that does not. Go leaves out zero counters unless the field is mandatory; the table
//! below says which are.

use api::labels::annotations::TEMPLATE_GENERATION;
use serde_json::{Map, Value};

use super::kinds::Kind;
use crate::fields::{self, count, present, string};
use crate::{Error, Result};

pub(super) fn reflect(kind: Option<Kind>, object: &Value) -> Result<Option<Value>> {
    match kind {
        Some(Kind::Deployment) => counters(
            object,
            &[
                "replicas",
                "updatedReplicas",
                "readyReplicas",
                "availableReplicas",
                "unavailableReplicas",
                "observedGeneration",
            ],
            &[],
        ),
        Some(Kind::ReplicaSet) => {
            counters(object, &["readyReplicas", "availableReplicas", "observedGeneration"], &["replicas"])
        }
        Some(Kind::DaemonSet) => counters(
            object,
            &["updatedNumberScheduled", "numberAvailable", "numberUnavailable", "observedGeneration"],
            &["currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"],
        ),
        // Without observedGeneration, as upstream.
        Some(Kind::StatefulSet) => counters(
            object,
            &["readyReplicas", "currentReplicas", "updatedReplicas"],
            &["replicas", "availableReplicas"],
        ),
        Some(Kind::Service) => service(object),
        Some(Kind::Job) => job(object),
        Some(Kind::PodDisruptionBudget) => disruption_budget(object),
        Some(Kind::HorizontalPodAutoscaler) => autoscaler(object),
        _ => Ok(status(object)?.map(|status| Value::Object(status.clone()))),
    }
}

fn status(object: &Value) -> Result<Option<&Map<String, Value>>> {
    match fields::get(object, &["status"])? {
        None => Ok(None),
        Some(Value::Object(status)) => Ok(Some(status)),
        Some(other) => Err(fields::wrong_type(&["status"], other, "map[string]interface {}")),
    }
}

fn counters(object: &Value, optional: &[&str], mandatory: &[&str]) -> Result<Option<Value>> {
    if status(object)?.is_none() {
        return Ok(None);
    }
    let template_generation = template_generation(object)?;
    let mut report = Map::new();
    put(&mut report, "generation", count(object, &["metadata", "generation"])?);
    put(&mut report, "resourceTemplateGeneration", template_generation);
    for field in optional {
        put(&mut report, field, count(object, &["status", field])?);
    }
    for field in mandatory {
        report.insert((*field).into(), count(object, &["status", field])?.into());
    }
    // Nothing but zeros: the member has not looked at the object yet.
    Ok((!report.is_empty()).then_some(Value::Object(report)))
}

fn put(report: &mut Map<String, Value>, field: &str, value: i64) {
    if value != 0 {
        report.insert(field.into(), value.into());
    }
}

/// A workload that does not carry the generation it was rendered from cannot be judged: no report at all.
fn template_generation(object: &Value) -> Result<i64> {
    let value = string(object, &["metadata", "annotations", TEMPLATE_GENERATION])?.unwrap_or("");
    value
        .parse()
        .map_err(|_| Error::TemplateGeneration { annotation: TEMPLATE_GENERATION, value: value.into() })
}

fn service(object: &Value) -> Result<Option<Value>> {
    if string(object, &["spec", "type"]).ok().flatten() != Some("LoadBalancer") || status(object)?.is_none() {
        return Ok(None);
    }
    let balancer = fields::map(object, &["status", "loadBalancer"])?.cloned().unwrap_or_default();
    Ok(Some(Value::Object(Map::from_iter([("loadBalancer".to_owned(), Value::Object(balancer))]))))
}

fn job(object: &Value) -> Result<Option<Value>> {
    if status(object)?.is_none() {
        return Ok(None);
    }
    let mut report = Map::new();
    for field in ["active", "succeeded", "failed"] {
        put(&mut report, field, count(object, &["status", field])?);
    }
    if !fields::list(object, &["status", "conditions"])?.is_empty() {
        copy(&mut report, object, "conditions")?;
    }
    for field in ["startTime", "completionTime"] {
        copy(&mut report, object, field)?;
    }
    Ok(Some(Value::Object(report)))
}

fn disruption_budget(object: &Value) -> Result<Option<Value>> {
    if status(object)?.is_none() {
        return Ok(None);
    }
    let mut report = Map::new();
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        report.insert(field.into(), count(object, &["status", field])?.into());
    }
    if fields::map(object, &["status", "disruptedPods"])?.is_some_and(|pods| !pods.is_empty()) {
        copy(&mut report, object, "disruptedPods")?;
    }
    Ok(Some(Value::Object(report)))
}

fn autoscaler(object: &Value) -> Result<Option<Value>> {
    if status(object)?.is_none() {
        return Ok(None);
    }
    let mut report = Map::new();
    put(&mut report, "currentReplicas", count(object, &["status", "currentReplicas"])?);
    report.insert("desiredReplicas".into(), count(object, &["status", "desiredReplicas"])?.into());
    report.insert("currentMetrics".into(), Value::Null);
    Ok(Some(Value::Object(report)))
}

fn copy(report: &mut Map<String, Value>, object: &Value, field: &str) -> Result<()> {
    if let Some(value) = present(object, &["status", field])? {
        report.insert(field.into(), value.clone());
    }
    Ok(())
}
