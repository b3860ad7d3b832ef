//! Volcano's Job: a workload of several tasks.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::blocks::{
    at, component, json_number, list, need, number, only, picked, prune_zeros, requirements, set_status,
    some_text, stamp, statuses, sum, text,
};
use super::{Items, Rules};
use crate::{Error, Result};

const COUNTERS: [&str; 8] =
    ["minAvailable", "pending", "running", "succeeded", "failed", "terminating", "unknown", "retryCount"];

/// A condition of one of these ends the job.
const BAD: [&str; 5] = ["Failed", "Aborted", "Aborting", "Terminated", "Terminating"];

pub(super) const JOB: Rules = Rules {
    components: Some(|object, class| {
        let tasks = list(object, &["spec", "tasks"]).iter().enumerate();
        tasks
            .map(|(at, task)| {
                let name = some_text(task, &["name"]).map_or_else(|| format!("task-{at}"), str::to_owned);
                let replicas = number(task, &["minAvailable"]).unwrap_or(1.0);
                Ok(component(&name, replicas, requirements(need(task, &["template"])?, class)?))
            })
            .collect()
    }),
    reflect: Some(|object| {
        let others =
            ["version", "runningDuration", "taskStatusCount", "controlledResources", "state", "conditions"];
        Ok(picked(object, &[&COUNTERS[..], &others].concat()).unwrap_or_default())
    }),
    aggregate: Some(aggregate),
    health: Some(|object| {
        let phase = text(object, &["status", "state", "phase"]).unwrap_or_default();
        let healthy = [
            "Running",
            "Completed",
            "Pending",
            "Aborting",
            "Aborted",
            "Restarting",
            "Completing",
            "Terminating",
            "Terminated",
        ];
        Ok(healthy.contains(&phase))
    }),
    ..Rules::NONE
};

fn aggregate(object: &mut Value, items: Items<'_>, now: Timestamp) -> Result<()> {
    if items.is_empty() || only(object, items) {
        return Ok(());
    }
    let mut status = Map::new();
    for counter in COUNTERS {
        status.insert(counter.into(), json_number(sum(items, counter)));
    }
    let versions = statuses(items).filter_map(|(_, found)| number(found, &["version"]));
    status.insert("version".into(), json_number(versions.fold(0.0, f64::max)));
    let (mut longest, mut running_duration) = (0.0, json!("0s"));
    let mut tasks = Map::new();
    let mut controlled = Map::new();
    for (_, found) in statuses(items) {
        if let Some(duration) = at(found, &["runningDuration"]) {
            let seconds = seconds(duration)?;
            if seconds > longest {
                (longest, running_duration) = (seconds, duration.clone());
            }
        }
        for (task, counts) in at(found, &["taskStatusCount"]).and_then(Value::as_object).into_iter().flatten()
        {
            let known = tasks.entry(task.clone()).or_insert_with(|| json!({"phase": {}}));
            for (phase, count) in at(counts, &["phase"]).and_then(Value::as_object).into_iter().flatten() {
                let before = number(known, &["phase", phase]).unwrap_or(0.0);
                known["phase"][phase] = json_number(before + count.as_f64().unwrap_or(0.0));
            }
        }
        for (name, value) in
            at(found, &["controlledResources"]).and_then(Value::as_object).into_iter().flatten()
        {
            controlled.insert(name.clone(), value.clone());
        }
    }
    status.insert("runningDuration".into(), running_duration);
    status.insert("taskStatusCount".into(), Value::Object(tasks));
    status.insert("controlledResources".into(), Value::Object(controlled));
    status.insert("state".into(), state(items, now));
    status.insert("conditions".into(), Value::Array(conditions(items)));
    let mut status = Value::Object(status);
    if prune_zeros(&mut status) {
        set_status(object, status);
    } else if let Value::Object(fields) = object {
        fields.remove("status");
    }
    Ok(())
}

fn state(items: Items<'_>, now: Timestamp) -> Value {
    let phase = |found: &Value| text(found, &["state", "phase"]).unwrap_or_default().to_owned();
    let failed: Vec<&str> = statuses(items)
        .filter(|(_, found)| matches!(phase(found).as_str(), "Failed" | "Aborted"))
        .map(|(cluster, _)| cluster)
        .collect();
    if !failed.is_empty() {
        return json!({
            "phase": "Failed", "reason": "VolcanoJobFailed",
            "message": format!("Job failed in clusters: {}", failed.join(",")),
            "lastTransitionTime": stamp(now),
        });
    }
    let completed = statuses(items).filter(|(_, found)| phase(found) == "Completed").count();
    if completed == items.len() {
        return json!({
            "phase": "Completed", "reason": "Completed", "message": "Job completed successfully",
            "lastTransitionTime": stamp(now),
        });
    }
    Value::Null
}

fn conditions(items: Items<'_>) -> Vec<Value> {
    let mut newest: Vec<Value> = Vec::new();
    for (_, found) in statuses(items) {
        let all = list(found, &["conditions"]);
        if all.iter().any(|condition| BAD.contains(&text(condition, &["status"]).unwrap_or_default())) {
            return all.to_vec();
        }
        for condition in all {
            let time =
                |condition: &Value| text(condition, &["lastTransitionTime"]).unwrap_or_default().to_owned();
            match newest.iter_mut().find(|known| known["status"] == condition["status"]) {
                Some(known) if time(condition) > time(known) => *known = condition.clone(),
                Some(_) => {}
                None => newest.push(condition.clone()),
            }
        }
    }
    newest
}

/// Returns how long a duration is: the sum of all numbers that a unit follows, or a number without one.
///
/// As upstream, `ms` counts as minutes, and a number with two points is an error.
fn seconds(duration: &Value) -> Result<f64> {
    let Value::String(text) = duration else { return Ok(duration.as_f64().unwrap_or(0.0)) };
    let mut total = 0.0;
    let mut digits = String::new();
    for char in text.chars() {
        let unit = match char {
            'h' => 3600.0,
            'm' => 60.0,
            's' => 1.0,
            '0'..='9' | '.' => {
                digits.push(char);
                continue;
            }
            _ => 0.0,
        };
        if unit > 0.0 && !digits.is_empty() {
            let number: f64 = digits
                .parse()
                .map_err(|_| Error::Quantity { path: "runningDuration".into(), value: text.clone() })?;
            total += number * unit;
        }
        digits.clear();
    }
    let plain = || text.trim().parse().ok().filter(|number: &f64| number.is_finite());
    Ok(if total > 0.0 { total } else { plain().unwrap_or(0.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_a_duration_is() {
        let cases = [
            (json!("2m3.5s"), Ok(123.5)),
            (json!("17.123456789s"), Ok(17.123_456_789)),
            (json!("1h0m10s"), Ok(3610.0)),
            (json!("1.5h"), Ok(5400.0)),
            // Upstream's pattern takes the m of ms.
            (json!("2ms"), Ok(120.0)),
            (json!("12"), Ok(12.0)),
            (json!(7), Ok(7.0)),
            (json!("a1b2s"), Ok(2.0)),
            (json!("s"), Ok(0.0)),
            (json!(""), Ok(0.0)),
            (json!({}), Ok(0.0)),
            (json!("1.2.3s"), Err(())),
        ];
        for (duration, expected) in cases {
            assert_eq!(seconds(&duration).map_err(|_| ()), expected, "{duration}");
        }
    }
}
