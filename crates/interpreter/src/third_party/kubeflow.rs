//! Kubeflow: notebooks and training jobs.

use api::work::Component;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::blocks::{
    at, component, condition, earliest, is_true, json_number, latest, list, need, number, only, picked,
    pod_dependencies, prune_zeros, requirements, set_status, stamp, status, statuses, text,
};
use super::{Items, Rules};
use crate::pods::PriorityClass;
use crate::{Replicas, Result, fields};

pub(super) const NOTEBOOK: Rules = Rules {
    replicas: Some(|object, class| {
        let template = need(object, &["spec", "template"])?;
        Ok(Replicas { count: 1, requirements: requirements(template, class)? })
    }),
    health: Some(|object| {
        let Some(state) = at(object, &["status", "containerState"]) else { return Ok(false) };
        if at(state, &["running"]).is_some() {
            return Ok(true);
        }
        if let Some(waiting) = at(state, &["waiting"]) {
            return Ok(text(waiting, &["reason"]) == Some("ContainerCreating"));
        }
        if let Some(terminated) = at(state, &["terminated"]) {
            let reason = text(terminated, &["reason"]).unwrap_or_default();
            let bad = matches!(reason, "Error" | "OOMKilled" | "ContainerCannotRun");
            let code = at(terminated, &["exitCode"]);
            return Ok(!bad && code.is_none_or(|code| code.as_f64() == Some(0.0)));
        }
        Ok(false)
    }),
    reflect: Some(|object| {
        let Some(mut found) = picked(object, &["readyReplicas", "containerState", "conditions"]) else {
            return Ok(Map::new());
        };
        found.entry("readyReplicas").or_insert_with(|| json!(0));
        Ok(found)
    }),
    aggregate: Some(aggregate_notebook),
    ..Rules::NONE
};

fn aggregate_notebook(object: &mut Value, items: Items<'_>, now: Timestamp) -> Result<()> {
    if items.is_empty() || only(object, items) {
        return Ok(());
    }
    let mut ready = 0.0;
    let mut running = 0;
    let mut failed = Vec::new();
    let mut state = json!({});
    for (cluster, found) in statuses(items) {
        ready += number(found, &["readyReplicas"]).unwrap_or(0.0);
        let empty = json!({});
        let own = at(found, &["containerState"]).unwrap_or(&empty);
        let is_empty = own.as_object().is_none_or(Map::is_empty);
        if is_empty || at(own, &["terminated"]).is_some() || at(own, &["waiting"]).is_some() {
            failed.push(cluster);
            state = if is_empty { json!({"waiting": {"reason": "Unschedulable"}}) } else { own.clone() };
        } else if let Some(started) = at(own, &["running"]) {
            running += 1;
            if failed.is_empty() {
                let time = |state: &Value| text(state, &["startedAt"]).unwrap_or_default().to_owned();
                if at(&state, &["running"]).is_none_or(|known| time(started) > time(known)) {
                    state = json!({"running": started});
                }
            }
        }
    }
    let condition = |kind: &str, reason: &str, message: String| {
        json!([{
            "type": kind, "status": "True", "reason": reason, "message": message,
            "lastProbeTime": stamp(now), "lastTransitionTime": stamp(now),
        }])
    };
    let conditions = if !failed.is_empty() {
        let message = format!("Notebook executed failed in member clusters: {}", failed.join(", "));
        condition("Failed", "NotebookFailed", message)
    } else if running == items.len() {
        condition("Ready", "Ready", "All notebooks are ready".into())
    } else {
        json!([])
    };
    set_status(
        object,
        json!({"readyReplicas": json_number(ready), "containerState": state, "conditions": conditions}),
    );
    Ok(())
}

const PYTORCH_ROLES: [&str; 2] = ["Master", "Worker"];
const TF_ROLES: [&str; 5] = ["PS", "Worker", "Chief", "Master", "Evaluator"];

pub(super) const PYTORCH_JOB: Rules = Rules {
    components: Some(|object, class| role_components(object, "pytorchReplicaSpecs", &PYTORCH_ROLES, class)),
    health: Some(job_healthy),
    aggregate: Some(aggregate_pytorch_job),
    dependencies: Some(|object| role_dependencies(object, "pytorchReplicaSpecs", &PYTORCH_ROLES)),
    ..Rules::NONE
};

pub(super) const TF_JOB: Rules = Rules {
    components: Some(|object, class| role_components(object, "tfReplicaSpecs", &TF_ROLES, class)),
    aggregate: Some(aggregate_tf_job),
    dependencies: Some(|object| role_dependencies(object, "tfReplicaSpecs", &TF_ROLES)),
    ..PYTORCH_JOB
};

fn role_components(
    object: &Value,
    specs: &str,
    roles: &[&str],
    class: PriorityClass,
) -> Result<Vec<Component>> {
    let mut components = Vec::new();
    for role in roles {
        let Some(spec) = at(object, &["spec", specs, role]) else { continue };
        let replicas = number(spec, &["replicas"]).unwrap_or(1.0);
        let needed = match at(spec, &["template"]) {
            Some(template) => requirements(template, class)?,
            None => None,
        };
        components.push(component(&role.to_lowercase(), replicas, needed));
    }
    Ok(components)
}

fn role_dependencies(
    object: &Value,
    specs: &str,
    roles: &[&str],
) -> Result<Vec<api::config::DependentObjectReference>> {
    let mut found = Vec::new();
    for role in roles {
        if let Some(template) = at(object, &["spec", specs, role, "template"]) {
            found.extend(pod_dependencies(template, fields::namespace(object))?);
        }
    }
    Ok(found)
}

fn job_healthy(object: &Value) -> Result<bool> {
    let Some(found) = at(object, &["status"]) else { return Ok(false) };
    Ok(at(found, &["conditions"]).is_some() && !is_true(found, "Failed"))
}

/// Adds up `active`, `failed` and `succeeded` of each role.
fn replica_statuses(items: Items<'_>, roles: &[&str]) -> Value {
    let mut summed = Map::new();
    for role in roles {
        let mut counts = Map::new();
        for counter in ["active", "failed", "succeeded"] {
            let total: f64 = statuses(items)
                .filter_map(|(_, found)| number(found, &["replicaStatuses", role, counter]))
                .sum();
            counts.insert(counter.into(), json_number(total));
        }
        summed.insert((*role).to_owned(), Value::Object(counts));
    }
    Value::Object(summed)
}

/// Writes what is known into the status, without zeros and what is empty; nothing left means no status. When a job
/// ended stays known: only a later end replaces it.
fn write_pruned(object: &mut Value, new: Value) {
    let mut whole = Value::Object(std::mem::take(status(object)));
    if let (Value::Object(whole), Value::Object(new)) = (&mut whole, new) {
        for (name, value) in new {
            if !(name == "completionTime" && value.is_null()) {
                whole.insert(name, value);
            }
        }
    }
    if prune_zeros(&mut whole) {
        set_status(object, whole);
    } else if let Value::Object(fields) = object {
        fields.remove("status");
    }
}

fn aggregate_pytorch_job(object: &mut Value, items: Items<'_>, _now: Timestamp) -> Result<()> {
    if items.is_empty() {
        reset_job(object);
        return Ok(());
    }
    let start = earliest(items, "startTime");
    let completion = latest(items, "completionTime");
    let failed: Vec<&str> =
        statuses(items).filter(|(_, found)| is_true(found, "Failed")).map(|(cluster, _)| cluster).collect();
    let succeeded = statuses(items).filter(|(_, found)| is_true(found, "Succeeded")).count();
    let all_succeeded = succeeded == items.len();
    let made = |kind: &str, is: &str, reason: &str, message: String, times: [Value; 2]| {
        json!({
            "type": kind, "status": is, "reason": reason, "message": message,
            "lastUpdateTime": times[0], "lastTransitionTime": times[1],
        })
    };
    let mut conditions = Vec::new();
    if statuses(items).any(|(_, found)| is_true(found, "Created")) {
        let times = [json!(start), json!(start)];
        conditions.push(made("Created", "True", "PyTorchJobCreated", "PyTorchJob is created.".into(), times));
    }
    if let Some(running) = statuses(items).filter_map(|(_, found)| condition(found, "Running")).last() {
        let over = !failed.is_empty() || all_succeeded;
        let times = ["lastUpdateTime", "lastTransitionTime"].map(|name| running[name].clone());
        let is = if over { "False" } else { "True" };
        conditions.push(made("Running", is, "PyTorchJobRunning", "PyTorchJob is running.".into(), times));
    }
    let ended = [json!(completion), json!(completion)];
    if !failed.is_empty() {
        let message = format!("PyTorchJob executed failed in member clusters: {}", failed.join(", "));
        conditions.push(made("Failed", "True", "PyTorchJobFailed", message, ended));
    } else if all_succeeded {
        let message = "PyTorchJob is successfully completed.".to_owned();
        conditions.push(made("Succeeded", "True", "PyTorchJobSucceeded", message, ended));
    }
    let completion = if failed.is_empty() && all_succeeded { completion } else { None };
    write_pruned(
        object,
        json!({
            "startTime": start, "completionTime": completion, "lastReconcileTime": latest(items, "lastReconcileTime"),
            "replicaStatuses": replica_statuses(items, &PYTORCH_ROLES), "conditions": conditions,
        }),
    );
    Ok(())
}

fn reset_job(object: &mut Value) {
    let own = status(object);
    own.remove("startTime");
    own.remove("completionTime");
    // Empty ones are dropped later; the status itself stays.
    own.insert("replicaStatuses".into(), json!({}));
    own.insert("conditions".into(), json!([]));
}

fn aggregate_tf_job(object: &mut Value, items: Items<'_>, now: Timestamp) -> Result<()> {
    if items.is_empty() {
        reset_job(object);
        return Ok(());
    }
    // The last true condition of a member that says how it ended decides.
    let ended = |found: &Value| {
        list(found, &["conditions"])
            .iter()
            .filter(|each| text(each, &["status"]) == Some("True"))
            .filter_map(|each| text(each, &["type"]))
            .rfind(|kind| matches!(*kind, "Succeeded" | "Failed"))
            .unwrap_or_default()
            .to_owned()
    };
    let failed: Vec<&str> =
        statuses(items).filter(|(_, found)| ended(found) == "Failed").map(|(cluster, _)| cluster).collect();
    let all_succeeded =
        statuses(items).filter(|(_, found)| ended(found) == "Succeeded").count() == items.len();
    let made = |kind: &str, reason: &str, message: String| {
        json!({
            "type": kind, "status": "True", "reason": reason, "message": message,
            "lastProbeTime": stamp(now), "lastTransitionTime": stamp(now),
        })
    };
    let mut conditions = Vec::new();
    if !failed.is_empty() {
        let message = format!("TFJob executed failed in member clusters: {}", failed.join(", "));
        conditions.push(made("Failed", "TFJobFailed", message));
    }
    if all_succeeded {
        conditions.push(made("Succeeded", "Completed", "TFJob completed successfully".into()));
    }
    let completion = if all_succeeded { latest(items, "completionTime") } else { None };
    write_pruned(
        object,
        json!({
            "startTime": earliest(items, "startTime"), "completionTime": completion,
            "lastReconcileTime": latest(items, "lastReconcileTime"),
            "replicaStatuses": replica_statuses(items, &TF_ROLES), "conditions": conditions,
        }),
    );
    Ok(())
}

pub(super) const MPI_JOB: Rules = Rules {
    components: Some(|object, class| {
        let specs = at(object, &["spec", "mpiReplicaSpecs"]).and_then(Value::as_object);
        let mut components = Vec::new();
        for (role, spec) in specs.into_iter().flatten() {
            let Some(template) = at(spec, &["template"]) else { continue };
            let default = if role.eq_ignore_ascii_case("worker") { 0.0 } else { 1.0 };
            let replicas = number(spec, &["replicas"]).unwrap_or(default);
            components.push(component(role, replicas, requirements(template, class)?));
        }
        Ok(components)
    }),
    health: Some(|object| {
        let Some(found) = at(object, &["status"]) else { return Ok(false) };
        Ok(!list(found, &["conditions"]).is_empty() && !is_true(found, "Failed"))
    }),
    reflect: Some(|object| {
        let names = ["replicaStatuses", "conditions", "startTime", "completionTime", "lastReconcileTime"];
        let mut found = picked(object, &names).unwrap_or_default();
        if let Some(Value::Object(roles)) = found.get_mut("replicaStatuses") {
            for counts in roles.values_mut() {
                if let Value::Object(counts) = counts {
                    counts.retain(|name, _| {
                        matches!(name.as_str(), "active" | "succeeded" | "failed" | "selector")
                    });
                }
            }
        }
        Ok(found)
    }),
    aggregate: Some(aggregate_mpi_job),
    ..Rules::NONE
};

fn aggregate_mpi_job(object: &mut Value, items: Items<'_>, _now: Timestamp) -> Result<()> {
    if items.is_empty() || only(object, items) {
        return Ok(());
    }
    let mut roles = Map::new();
    let mut conditions: Vec<Value> = Vec::new();
    for (_, found) in statuses(items) {
        for (role, counts) in at(found, &["replicaStatuses"]).and_then(Value::as_object).into_iter().flatten()
        {
            let known = roles
                .entry(role.clone())
                .or_insert_with(|| json!({"active": 0, "succeeded": 0, "failed": 0}));
            for counter in ["active", "succeeded", "failed"] {
                let total =
                    number(known, &[counter]).unwrap_or(0.0) + number(counts, &[counter]).unwrap_or(0.0);
                known[counter] = json_number(total);
            }
        }
        for each in list(found, &["conditions"]) {
            let time = |each: &Value| {
                let time = text(each, &["lastUpdateTime"]).or_else(|| text(each, &["lastTransitionTime"]));
                time.unwrap_or_default().to_owned()
            };
            // What has no time cannot be the newest.
            if time(each).is_empty() {
                continue;
            }
            match conditions.iter_mut().find(|known| known["type"] == each["type"]) {
                Some(known) if time(each) > time(known) => *known = each.clone(),
                Some(_) => {}
                None => conditions.push(each.clone()),
            }
        }
    }
    let mut new = Map::new();
    for (name, time) in [
        ("startTime", earliest(items, "startTime")),
        ("completionTime", latest(items, "completionTime")),
        ("lastReconcileTime", latest(items, "lastReconcileTime")),
    ] {
        if let Some(time) = time {
            new.insert(name.into(), json!(time));
        }
    }
    if !roles.is_empty() {
        new.insert("replicaStatuses".into(), Value::Object(roles));
    }
    if !conditions.is_empty() {
        new.insert("conditions".into(), Value::Array(conditions));
    }
    set_status(object, Value::Object(new));
    Ok(())
}
