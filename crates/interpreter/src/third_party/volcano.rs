//! Volcano's Job: a workload of several tasks.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::blocks::{
    at, component, json_number, list, need, number, only, picked, prune_zeros, requirements, set_status,
    some_text, stamp, statuses, sum, text,
};
use super::{Items, Rules};
use crate::Result;

const COUNTERS: [&str; 8] =
    ["minAvailable", "pending", "running", "succeeded", "failed", "terminating", "unknown", "retryCount"];

/// A condition of one of these ends the job.
const BAD: [&str; 5] = ["Failed", "Aborted", "Aborting", "Terminated", "Terminating"];

pub(super) const JOB: Rules = Rules {
    components: Some(|object| {
        let tasks = list(object, &["spec", "tasks"]).iter().enumerate();
        tasks
            .map(|(at, task)| {
                let name = some_text(task, &["name"]).map_or_else(|| format!("task-{at}"), str::to_owned);
                let replicas = number(task, &["minAvailable"]).unwrap_or(1.0);
                Ok(component(&name, replicas, requirements(need(task, &["template"])?)?))
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
    let mut longest = (0.0, "0s");
    let mut tasks = Map::new();
    let mut controlled = Map::new();
    for (_, found) in statuses(items) {
        if let Some(duration) = text(found, &["runningDuration"])
            && seconds(duration) > longest.0
        {
            longest = (seconds(duration), duration);
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
    status.insert("runningDuration".into(), json!(longest.1));
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

/// Reads hours, minutes and whole seconds; anything else counts nothing.
fn seconds(duration: &str) -> f64 {
    let mut total = 0.0;
    let mut digits = String::new();
    for char in duration.chars() {
        let unit = match char {
            'h' => 3600.0,
            'm' => 60.0,
            's' => 1.0,
            digit if digit.is_ascii_digit() => {
                digits.push(digit);
                continue;
            }
            _ => {
                digits.clear();
                continue;
            }
        };
        total += digits.parse::<f64>().unwrap_or(0.0) * unit;
        digits.clear();
    }
    total
}
