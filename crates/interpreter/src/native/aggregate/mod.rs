//! Sums the members' reports up in the template's status.
//!
//! The result is the object unchanged when nothing differs, so that callers can compare and skip the write.
//! Only `.status` is ever touched.

mod job;
mod load_balancer;
mod phases;
mod workloads;

use std::collections::BTreeMap;

use api::work::AggregatedStatusItem;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::kinds::Kind;
use crate::fields::{count, list, map, string};
use crate::{Error, Operation, Result};

pub(super) fn supports(kind: Kind) -> bool {
    !matches!(kind, Kind::ServiceAccount | Kind::Secret | Kind::ServiceImport)
}

pub(super) fn aggregate(
    kind: Kind,
    object: Value,
    items: &[AggregatedStatusItem],
    now: Timestamp,
) -> Result<Value> {
    match kind {
        Kind::Deployment | Kind::ReplicaSet | Kind::DaemonSet | Kind::StatefulSet => {
            workloads::aggregate(kind, object, items)
        }
        Kind::Service | Kind::Ingress => load_balancer::aggregate(kind, object, items),
        Kind::Job => job::aggregate(object, items, now),
        Kind::CronJob => cron_job(object, items),
        Kind::Pod => phases::pod(object, items),
        Kind::PersistentVolume => phases::volume(object, items),
        Kind::PersistentVolumeClaim => phases::claim(object, items),
        Kind::PodDisruptionBudget => disruption_budget(object, items),
        Kind::HorizontalPodAutoscaler => autoscaler(object, items),
        Kind::ServiceAccount | Kind::Secret | Kind::ServiceImport => {
            let kind = crate::chain::kind_of(&object);
            Err(Error::NoRule { operation: Operation::AggregateStatus, kind })
        }
    }
}

fn replace_status(mut object: Value, status: Map<String, Value>) -> Result<Value> {
    crate::fields::set(&mut object, &["status"], Value::Object(status))?;
    Ok(object)
}

/// Returns what a member reported, if anything; a JSON `null` reports nothing.
fn reported(item: &AggregatedStatusItem) -> Option<&Value> {
    item.status.as_ref().filter(|status| !status.is_null())
}

fn reports(items: &[AggregatedStatusItem]) -> impl Iterator<Item = (&str, &Value)> {
    items.iter().filter_map(|item| reported(item).map(|status| (item.cluster_name.as_str(), status)))
}

fn sum(items: &[AggregatedStatusItem], field: &str) -> Result<i64> {
    reports(items).try_fold(0_i64, |total, (_, status)| Ok(total.saturating_add(count(status, &[field])?)))
}

/// Parses a Kubernetes time; `None` for an absent one.
fn time<'a>(status: &'a Value, field: &str) -> Result<Option<(Timestamp, &'a str)>> {
    let Some(text) = string(status, &[field])? else { return Ok(None) };
    let time = text.parse().map_err(|_| Error::Time { path: field.into(), value: text.into() })?;
    Ok(Some((time, text)))
}

fn cron_job(object: Value, items: &[AggregatedStatusItem]) -> Result<Value> {
    let mut status = Map::new();
    let mut active = Vec::new();
    for (_, report) in reports(items) {
        active.extend_from_slice(list(report, &["active"])?);
    }
    if !active.is_empty() {
        status.insert("active".into(), Value::Array(active));
    }
    for field in ["lastScheduleTime", "lastSuccessfulTime"] {
        let mut latest: Option<(Timestamp, &str)> = None;
        for (_, report) in reports(items) {
            if let Some(found) = time(report, field)?
                && latest.is_none_or(|(time, _)| time < found.0)
            {
                latest = Some(found);
            }
        }
        if let Some((_, text)) = latest {
            status.insert(field.into(), text.into());
        }
    }
    replace_status(object, status)
}

/// The members' disrupted pods are told apart by their cluster: `<cluster>/<pod>`.
fn disruption_budget(object: Value, items: &[AggregatedStatusItem]) -> Result<Value> {
    let mut status = Map::new();
    for field in ["currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed"] {
        status.insert(field.into(), sum(items, field)?.into());
    }
    let mut disrupted = BTreeMap::new();
    for (cluster, report) in reports(items) {
        for (pod, since) in map(report, &["disruptedPods"])?.into_iter().flatten() {
            disrupted.insert(format!("{cluster}/{pod}"), since.clone());
        }
    }
    if !disrupted.is_empty() {
        status.insert("disruptedPods".into(), Value::Object(disrupted.into_iter().collect()));
    }
    replace_status(object, status)
}

fn autoscaler(object: Value, items: &[AggregatedStatusItem]) -> Result<Value> {
    let mut status = Map::new();
    let current = sum(items, "currentReplicas")?;
    if current != 0 {
        status.insert("currentReplicas".into(), current.into());
    }
    status.insert("desiredReplicas".into(), sum(items, "desiredReplicas")?.into());
    status.insert("currentMetrics".into(), Value::Null);
    replace_status(object, status)
}
