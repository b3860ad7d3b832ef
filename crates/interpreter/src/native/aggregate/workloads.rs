//! Sums the counters of the `apps/v1` workloads.
//!
//! `observedGeneration` moves to the template's generation only when every member has observed it: that is
//! what GitOps tools wait for. Everything else in the status (conditions, revisions) stays.

use api::work::AggregatedStatusItem;
use serde_json::Value;

use super::{reports, sum};
use crate::Result;
use crate::fields::{count, remove, set};
use crate::native::kinds::Kind;

/// The counters of a kind, and those of them that are written even when zero.
fn counters(kind: Kind) -> (&'static [&'static str], &'static [&'static str]) {
    match kind {
        Kind::Deployment => (
            &["replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "unavailableReplicas"],
            &[],
        ),
        Kind::ReplicaSet => (&["replicas", "readyReplicas", "availableReplicas"], &["replicas"]),
        Kind::StatefulSet => (
            &["availableReplicas", "currentReplicas", "readyReplicas", "replicas", "updatedReplicas"],
            &["replicas", "availableReplicas"],
        ),
        _ => (
            &[
                "currentNumberScheduled",
                "desiredNumberScheduled",
                "numberAvailable",
                "numberMisscheduled",
                "numberReady",
                "updatedNumberScheduled",
                "numberUnavailable",
            ],
            &["currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"],
        ),
    }
}

pub(super) fn aggregate(kind: Kind, mut object: Value, items: &[AggregatedStatusItem]) -> Result<Value> {
    let generation = count(&object, &["metadata", "generation"])?;
    let mut up_to_date = 0;
    for (_, report) in reports(items) {
        let member = count(report, &["generation"])?;
        // The StatefulSet rule compares with the member's generation; kept because clients can see it.
        let reference = if kind == Kind::StatefulSet { member } else { generation };
        if count(report, &["observedGeneration"])? >= member
            && count(report, &["resourceTemplateGeneration"])? >= reference
        {
            up_to_date += 1;
        }
    }
    let old = count(&object, &["status", "observedGeneration"])?;
    let observed = if up_to_date == items.len() { generation } else { old };

    let (fields, mandatory) = counters(kind);
    let mut wanted = vec![("observedGeneration", observed)];
    for field in fields {
        wanted.push((field, sum(items, field)?));
    }
    let mut differs = false;
    for (field, value) in &wanted {
        differs |= count(&object, &["status", field])? != *value;
    }
    if !differs {
        return Ok(object);
    }
    for (field, value) in wanted {
        let path = ["status", field];
        if value != 0 || mandatory.contains(&field) {
            set(&mut object, &path, value.into())?;
        } else {
            remove(&mut object, &path);
        }
    }
    Ok(object)
}
