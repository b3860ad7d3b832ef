//! Sums Jobs up: the whole is complete when every member is, and has failed when any member has.

use api::work::AggregatedStatusItem;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{replace_status, reports, sum, time};
use crate::Result;
use crate::fields::{list, text};

pub(super) fn aggregate(object: Value, items: &[AggregatedStatusItem], now: Timestamp) -> Result<Value> {
    // A finished Job is history; late reports do not rewrite it.
    if finished(&object["status"])?.is_some() {
        return Ok(object);
    }
    let mut status = Map::new();
    for field in ["active", "succeeded", "failed"] {
        let total = sum(items, field)?;
        if total != 0 {
            status.insert(field.into(), total.into());
        }
    }

    let mut failed = Vec::new();
    let mut complete = 0;
    let mut criteria_met = 0;
    let mut starts = Vec::new();
    let mut completions = Vec::new();
    for (cluster, report) in reports(items) {
        match finished(report)? {
            Some("Complete") => complete += 1,
            Some(_) => failed.push(cluster),
            None => {}
        }
        for condition in list(report, &["conditions"])? {
            if is_true(condition, "SuccessCriteriaMet")? {
                criteria_met += 1;
                break;
            }
        }
        starts.extend(time(report, "startTime")?);
        completions.extend(time(report, "completionTime")?);
    }

    let mut conditions = Vec::new();
    if !failed.is_empty() {
        let message = format!("Job executed failed in member clusters {}", failed.join(","));
        conditions.push(condition("Failed", "JobFailed", &message, now));
    }
    if complete == items.len() && complete > 0 {
        conditions.push(condition("Complete", "Completed", "Job completed", now));
        if criteria_met == items.len() {
            let message = "All member clusters have met success criteria";
            conditions.push(condition("SuccessCriteriaMet", "CompletionsReached", message, now));
        }
    }
    if !conditions.is_empty() {
        status.insert("conditions".into(), Value::Array(conditions));
    }

    let own_start = object["status"]["startTime"].as_str();
    if let Some(start) = own_start {
        status.insert("startTime".into(), start.into());
    } else if starts.len() == items.len()
        && let Some((_, earliest)) = starts.into_iter().min()
    {
        status.insert("startTime".into(), earliest.into());
    }
    if completions.len() == items.len()
        && let Some((_, latest)) = completions.into_iter().max()
    {
        status.insert("completionTime".into(), latest.into());
    }
    // A Job nobody reported on and that has no status of its own stays as it is.
    if status.is_empty() && object.get("status").is_none_or(Value::is_null) {
        return Ok(object);
    }
    replace_status(object, status)
}

/// Returns the first true condition among Complete and Failed.
fn finished(status: &Value) -> Result<Option<&'static str>> {
    for condition in list(status, &["conditions"])? {
        for kind in ["Complete", "Failed"] {
            if is_true(condition, kind)? {
                return Ok(Some(kind));
            }
        }
    }
    Ok(None)
}

fn is_true(condition: &Value, kind: &str) -> Result<bool> {
    Ok(text(condition, &["type"])? == kind && text(condition, &["status"])? == "True")
}

fn condition(kind: &str, reason: &str, message: &str, now: Timestamp) -> Value {
    // Kubernetes times have whole seconds.
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "type": kind, "status": "True", "reason": reason, "message": message,
        "lastProbeTime": now, "lastTransitionTime": now,
    })
}
