//! Kinds whose status is mainly a phase: the most worrying one of the members speaks for the whole.

use std::collections::BTreeSet;

use api::work::AggregatedStatusItem;
use serde_json::{Map, Value, json};

use super::{replace_status, reported, reports};
use crate::Result;
use crate::fields::{boolean, list, present, text};

pub(super) fn pod(object: Value, items: &[AggregatedStatusItem]) -> Result<Value> {
    if items.is_empty() {
        return Ok(object);
    }
    let mut status = Map::new();
    for field in ["containerStatuses", "initContainerStatuses"] {
        let mut containers = Vec::new();
        for (_, report) in reports(items) {
            for container in list(report, &[field])? {
                containers.push(reduced(container)?);
            }
        }
        if !containers.is_empty() {
            status.insert(field.into(), Value::Array(containers));
        }
    }
    if let Some(phase) = worst(items, &["Failed", "Pending", "Running", "Succeeded"])? {
        status.insert("phase".into(), phase.into());
    }
    replace_status(object, status)
}

/// Names, images and restarts of containers in different clusters do not add up; readiness and state are
/// kept, and the rest has the zero values that the schema demands.
fn reduced(container: &Value) -> Result<Value> {
    Ok(json!({
        "name": "",
        "ready": boolean(container, &["ready"])?.unwrap_or(false),
        "state": present(container, &["state"])?.cloned().unwrap_or_else(|| json!({})),
        "lastState": {},
        "restartCount": 0,
        "image": "",
        "imageID": "",
    }))
}

pub(super) fn volume(object: Value, items: &[AggregatedStatusItem]) -> Result<Value> {
    let phase = worst(items, &["Failed", "Pending", "Available", "Bound", "Released"])?;
    replace_status(object, phase.map(|phase| ("phase".to_owned(), phase.into())).into_iter().collect())
}

/// Returns the first phase of `order` that any member reports. A member that has not reported yet counts as Pending.
fn worst(items: &[AggregatedStatusItem], order: &[&'static str]) -> Result<Option<&'static str>> {
    let mut phases = BTreeSet::new();
    for item in items {
        phases.insert(match reported(item) {
            Some(report) => text(report, &["phase"])?,
            None => "Pending",
        });
    }
    Ok(order.iter().copied().find(|phase| phases.contains(phase)))
}

/// Bound unless some member says otherwise; Lost is final.
pub(super) fn claim(object: Value, items: &[AggregatedStatusItem]) -> Result<Value> {
    let mut phase = "Bound";
    for (_, report) in reports(items) {
        match text(report, &["phase"])? {
            "Lost" => {
                phase = "Lost";
                break;
            }
            "Bound" => {}
            other => phase = other,
        }
    }
    let mut status = Map::new();
    if !phase.is_empty() {
        status.insert("phase".into(), phase.into());
    }
    replace_status(object, status)
}
