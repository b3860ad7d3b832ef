//! Spark: a driver and its executors.

use api::work::ReplicaRequirements;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::blocks::{
    at, component, json_number, latest, missing, node_claim, number, only, picked, status, statuses, sum,
    text, worst,
};
use super::flink::canonical;
use super::{Items, Rules};
use crate::{Error, Result};

pub(super) const APPLICATION: Rules = Rules {
    components: Some(|object, _| {
        let kind = text(object, &["spec", "type"]).ok_or_else(|| missing(&["spec", "type"]))?.to_lowercase();
        let factor = at(object, &["spec", "memoryOverheadFactor"])
            .and_then(|factor| factor.as_f64().or_else(|| factor.as_str()?.parse().ok()))
            .unwrap_or(if matches!(kind.as_str(), "java" | "scala") { 0.1 } else { 0.4 });
        let mut executors = number(object, &["spec", "executor", "instances"]).unwrap_or(1.0);
        if at(object, &["spec", "dynamicAllocation", "enabled"]) == Some(&json!(true)) {
            for bound in ["initialExecutors", "minExecutors"] {
                let least = number(object, &["spec", "dynamicAllocation", bound]).unwrap_or(1.0);
                executors = executors.max(least);
            }
        }
        Ok(vec![
            component("driver", 1.0, Some(requirements(object, "driver", factor)?)),
            component("executor", executors, Some(requirements(object, "executor", factor)?)),
        ])
    }),
    health: Some(|object| {
        let state = text(object, &["status", "applicationState", "state"]);
        Ok(state.is_some_and(|state| state != "FAILED"))
    }),
    reflect: Some(|object| {
        let names = [
            "applicationState",
            "driverInfo",
            "executorState",
            "sparkApplicationId",
            "lastSubmissionAttemptTime",
            "submissionAttempts",
            "executionAttempts",
            "submissionID",
            "terminationTime",
        ];
        Ok(picked(object, &names).unwrap_or_default())
    }),
    aggregate: Some(aggregate),
    ..Rules::NONE
};

fn requirements(object: &Value, role: &str, factor: f64) -> Result<ReplicaRequirements> {
    let empty = json!({});
    let part = at(object, &["spec", role]).unwrap_or(&empty);
    let required = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let mut requirements = ReplicaRequirements {
        node_claim: node_claim([
            ("nodeSelector", at(part, &["nodeSelector"])),
            ("tolerations", at(part, &["tolerations"])),
            ("hardNodeAffinity", at(part, &required)),
        ])?,
        priority_class_name: text(part, &["priorityClassName"]).unwrap_or_default().to_owned(),
        ..ReplicaRequirements::default()
    };
    let request = &mut requirements.resource_request;
    let cores = at(part, &["cores"]).cloned().unwrap_or_else(|| json!(1));
    request.insert("cpu".into(), canonical(&cores)?);
    request.insert("memory".into(), canonical(&json!(memory(part, factor)?))?);
    if let (Some(name), Some(quantity)) = (text(part, &["gpu", "name"]), number(part, &["gpu", "quantity"]))
        && quantity > 0.0
    {
        request.insert(name.to_owned(), canonical(&json_number(quantity))?);
    }
    Ok(requirements)
}

/// Java's units, from small to large, and those of quantities.
const UNITS: [(&str, &str); 6] =
    [("b", "B"), ("k", "Ki"), ("m", "Mi"), ("g", "Gi"), ("t", "Ti"), ("p", "Pi")];

/// Returns the memory of a container with what Spark adds, as upstream writes it: in the smaller of both units.
fn memory(part: &Value, factor: f64) -> Result<String> {
    let (base, base_unit) = java_size(text(part, &["memory"]).unwrap_or("1g"))?;
    let (extra, extra_unit) = match text(part, &["memoryOverhead"]) {
        Some(given) => java_size(given)?,
        None => {
            let (least, unit) = (384.0 * scale(2), 2);
            let share = base * factor * scale(base_unit);
            if share > least { (base * factor, base_unit) } else { (384.0, unit) }
        }
    };
    let unit = base_unit.min(extra_unit);
    let total = (base * scale(base_unit) + extra * scale(extra_unit)) / scale(unit);
    Ok(format!("{total:.6}{}", UNITS[unit].1))
}

fn scale(unit: usize) -> f64 {
    1024_f64.powi(i32::try_from(unit).unwrap_or(0))
}

fn java_size(text: &str) -> Result<(f64, usize)> {
    let lower = text.trim().to_lowercase();
    let end = lower.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(lower.len());
    let (digits, unit) = lower.split_at(end);
    let letter = unit.strip_suffix('b').filter(|rest| !rest.is_empty()).unwrap_or(unit);
    let wrong = || Error::Quantity { path: "memory".into(), value: text.to_owned() };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let place = UNITS.iter().position(|(name, _)| *name == letter).ok_or_else(wrong)?;
    Ok((number, place))
}

fn rank(state: &str) -> Result<i32> {
    Ok(match state {
        "" | "UNKNOWN" => 0,
        "SUBMITTED" | "PENDING_RERUN" => 1,
        "COMPLETED" => 2,
        "SUSPENDING" | "SUSPENDED" => 3,
        "RUNNING" | "RESUMING" | "SUCCEEDING" => 4,
        "INVALIDATING" => 5,
        "FAILING" | "FAILED" | "SUBMISSION_FAILED" => 6,
        other => return Err(Error::Layer(format!("unknown state {other:?} of a SparkApplication"))),
    })
}

fn aggregate(object: &mut Value, items: Items<'_>, _now: Timestamp) -> Result<()> {
    if items.is_empty() || only(object, items) {
        return Ok(());
    }
    let mut ranked = Vec::new();
    let mut executors = Map::new();
    for (_, found) in statuses(items) {
        if let Some(state) = at(found, &["applicationState"]) {
            ranked.push((rank(text(state, &["state"]).unwrap_or_default())?, state.clone()));
        }
        for (name, value) in at(found, &["executorState"]).and_then(Value::as_object).into_iter().flatten() {
            executors.insert(name.clone(), value.clone());
        }
    }
    let state = worst(ranked.into_iter()).unwrap_or(Value::Null);
    let own = status(object);
    own.insert("applicationState".into(), state);
    for name in ["submissionAttempts", "executionAttempts"] {
        own.insert(name.into(), json_number(sum(items, name)));
    }
    for name in ["lastSubmissionAttemptTime", "terminationTime"] {
        own.insert(name.into(), json!(latest(items, name).unwrap_or_default()));
    }
    own.insert("executorState".into(), Value::Object(executors));
    Ok(())
}
