//! Ray: clusters with a head and groups of workers, jobs and services on them.

use api::config::DependentObjectReference;
use api::work::Component;
use apimachinery::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::{Map, Value, json};

use super::blocks::{
    at, component, count, is_true, json_number, latest, list, not_an_object, number, only, pod_dependencies,
    requirements, set_status, some_text, status, statuses, sum, text, worst,
};
use super::{Items, Rules};
use crate::pods::PriorityClass;
use crate::{Error, Replicas, Result, fields};

pub(super) const CLUSTER: Rules = Rules {
    components: Some(|object, class| components(object, &["spec"], class)),
    health: Some(|object| {
        let Some(found) = at(object, &["status"]) else { return Ok(false) };
        Ok(is_true(found, "HeadPodReady")
            && is_true(found, "RayClusterProvisioned")
            && !is_true(found, "RayClusterReplicaFailure"))
    }),
    aggregate: Some(aggregate_cluster),
    ..Rules::NONE
};

pub(super) const JOB: Rules = Rules {
    components: Some(|object, class| components(object, &["spec", "rayClusterSpec"], class)),
    health: Some(|object| {
        let field = |name| text(object, &["status", name]).unwrap_or_default();
        Ok(match field("jobDeploymentStatus") {
            "Running" => true,
            "Complete" => field("jobStatus") == "SUCCEEDED",
            _ => false,
        })
    }),
    aggregate: Some(aggregate_job),
    dependencies: Some(|object| {
        let mut found = dependencies(object, &["spec", "rayClusterSpec"])?;
        if let Some(template) = at(object, &["spec", "submitterPodTemplate"]) {
            found.extend(without_ephemeral(template, fields::namespace(object))?);
        }
        Ok(found)
    }),
    ..Rules::NONE
};

pub(super) const SERVICE: Rules = Rules {
    replicas: Some(service_replicas),
    revise: Some(revise_service),
    health: Some(|object| Ok(at(object, &["status"]).is_some_and(|found| is_true(found, "Ready")))),
    aggregate: Some(aggregate_service),
    dependencies: Some(|object| dependencies(object, &["spec", "rayClusterConfig"])),
    ..Rules::NONE
};

fn components(object: &Value, path: &[&str], class: PriorityClass) -> Result<Vec<Component>> {
    let mut found = Vec::new();
    let Some(cluster) = at(object, path) else { return Ok(found) };
    if let Some(head) = at(cluster, &["headGroupSpec", "template"]) {
        found.push(component("ray-head", 1.0, requirements(head, class)?));
    }
    for (place, group) in list(cluster, &["workerGroupSpecs"]).iter().enumerate() {
        let name =
            some_text(group, &["groupName"]).map_or_else(|| format!("worker-{}", place + 1), str::to_owned);
        let needed = match at(group, &["template"]) {
            Some(template) => requirements(template, class)?,
            None => None,
        };
        found.push(component(&name, number(group, &["replicas"]).unwrap_or(0.0), needed));
    }
    Ok(found)
}

fn dependencies(object: &Value, path: &[&str]) -> Result<Vec<DependentObjectReference>> {
    let mut found = Vec::new();
    let Some(cluster) = at(object, path) else { return Ok(found) };
    let head = at(cluster, &["headGroupSpec", "template"]);
    let workers = list(cluster, &["workerGroupSpecs"]).iter().filter_map(|group| at(group, &["template"]));
    for template in head.into_iter().chain(workers) {
        found.extend(without_ephemeral(template, fields::namespace(object))?);
    }
    Ok(found)
}

fn without_ephemeral(template: &Value, namespace: &str) -> Result<Vec<DependentObjectReference>> {
    let mut template = template.clone();
    if let Some(Value::Object(spec)) = template.get_mut("spec") {
        spec.remove("ephemeralContainers");
    }
    pod_dependencies(&template, namespace)
}

/// Upstream takes the spec away from what it returns; only the status counts.
fn begin(object: &mut Value, items: Items<'_>) -> bool {
    if items.is_empty() {
        return false;
    }
    if let Value::Object(fields) = object {
        fields.remove("spec");
    }
    !only(object, items)
}

fn all_conditions(items: Items<'_>) -> Value {
    Value::Array(statuses(items).flat_map(|(_, found)| list(found, &["conditions"]).to_vec()).collect())
}

fn first<'a>(items: Items<'a>, field: &str) -> Option<&'a Value> {
    statuses(items).find_map(|(_, found)| at(found, &[field]))
}

fn aggregate_cluster(object: &mut Value, items: Items<'_>, _now: Timestamp) -> Result<()> {
    if !begin(object, items) {
        return Ok(());
    }
    let mut new = std::mem::take(status(object));
    for name in ["lastUpdateTime", "endpoints", "head", "state", "stateTransitionTimes"] {
        new.remove(name);
    }
    new.insert("conditions".into(), all_conditions(items));
    for counter in [
        "readyWorkerReplicas",
        "availableWorkerReplicas",
        "maxWorkerReplicas",
        "minWorkerReplicas",
        "desiredWorkerReplicas",
    ] {
        new.insert(counter.into(), json_number(sum(items, counter)));
    }
    for amount in ["desiredCPU", "desiredMemory"] {
        let mut total = Quantity::ZERO;
        for text in statuses(items).filter_map(|(_, found)| text(found, &[amount])) {
            let wrong = |_| Error::Quantity { path: format!("status.{amount}"), value: text.to_owned() };
            total += Quantity::parse(text).map_err(wrong)?;
        }
        new.insert(amount.into(), json!(total.to_string()));
    }
    for amount in ["desiredGPU", "desiredTPU"] {
        let value = |value: &Value| value.as_f64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0.0);
        let total: f64 = statuses(items).filter_map(|(_, found)| at(found, &[amount])).map(value).sum();
        new.insert(amount.into(), json!(json_number(total).to_string()));
    }
    if let Some(time) = latest(items, "lastUpdateTime") {
        new.insert("lastUpdateTime".into(), json!(time));
    }
    for name in ["endpoints", "head"] {
        if let Some(value) = first(items, name) {
            new.insert(name.into(), value.clone());
        }
    }
    if let Some((_, found)) = statuses(items).find(|(_, found)| at(found, &["state"]).is_some()) {
        new.insert("state".into(), found["state"].clone());
        if let Some(times) = at(found, &["stateTransitionTimes"]) {
            new.insert("stateTransitionTimes".into(), times.clone());
        }
    }
    set_status(object, Value::Object(new));
    Ok(())
}

fn aggregate_job(object: &mut Value, items: Items<'_>, _now: Timestamp) -> Result<()> {
    if !begin(object, items) {
        return Ok(());
    }
    let deployment_rank = |name: &str| match name {
        "Initializing" => 1,
        "Waiting" => 2,
        "Suspending" | "Suspended" => 3,
        "Retrying" => 4,
        "Running" => 5,
        "Complete" => 6,
        "ValidationFailed" => 7,
        "Failed" => 8,
        _ => 0,
    };
    let job_rank = |name: &str| match name {
        "PENDING" => 1,
        "RUNNING" => 2,
        "SUCCEEDED" => 3,
        "STOPPED" => 4,
        "FAILED" => 5,
        _ => 0,
    };
    let mut new = std::mem::take(status(object));
    for name in ["jobDeploymentStatus", "reason", "message", "jobStatus"] {
        new.remove(name);
    }
    let deployment = worst(statuses(items).filter_map(|(_, found)| {
        some_text(found, &["jobDeploymentStatus"]).map(|name| (deployment_rank(name), found))
    }));
    if let Some(found) = deployment {
        for name in ["jobDeploymentStatus", "reason", "message"] {
            if let Some(value) = at(found, &[name]) {
                new.insert(name.into(), value.clone());
            }
        }
    }
    let job = worst(
        statuses(items)
            .filter_map(|(_, found)| some_text(found, &["jobStatus"]).map(|name| (job_rank(name), name))),
    );
    if let Some(name) = job {
        new.insert("jobStatus".into(), json!(name));
    }
    set_status(object, Value::Object(new));
    Ok(())
}

fn service_replicas(object: &Value, class: PriorityClass) -> Result<Replicas> {
    let cluster = at(object, &["spec", "rayClusterConfig"]);
    let Some((cluster, head)) =
        cluster.and_then(|cluster| Some((cluster, at(cluster, &["headGroupSpec", "template"])?)))
    else {
        return Ok(Replicas::default());
    };
    let mut needed = requirements(head, class)?;
    let mut workers = 0.0;
    for group in list(cluster, &["workerGroupSpecs"]) {
        workers += number(group, &["replicas"]).unwrap_or(0.0);
        let Some(template) = at(group, &["template"]) else { continue };
        let (Some(own), Some(needed)) = (requirements(template, class)?, &mut needed) else { continue };
        for name in ["cpu", "memory"] {
            let parse = |text: &Text| Quantity::parse(&text.0).unwrap_or(Quantity::ZERO);
            let Some(more) = own.resource_request.get(name) else { continue };
            let known = needed.resource_request.get(name).map_or(Quantity::ZERO, parse);
            if parse(more) > known {
                needed.resource_request.insert(name.to_owned(), more.clone());
            }
        }
    }
    Ok(Replicas { count: count(1.0 + workers), requirements: needed })
}

const WORKER_GROUPS: [&str; 3] = ["spec", "rayClusterConfig", "workerGroupSpecs"];

/// One replica is the head; the rest is divided among the groups as they are, the last group taking what is left.
fn revise_service(object: &mut Value, replicas: i64) -> Result<()> {
    let Some(Value::Array(groups)) = object.pointer_mut("/spec/rayClusterConfig/workerGroupSpecs") else {
        return Ok(());
    };
    groups.retain(|group| !group.is_null());
    #[expect(clippy::cast_precision_loss, reason = "counts of replicas are small")]
    let workers = (replicas - 1).max(0) as f64;
    let current: Vec<f64> = groups.iter().map(|group| number(group, &["replicas"]).unwrap_or(0.0)).collect();
    let total: f64 = current.iter().sum();
    let groups_count = groups.len() as f64;
    let mut left = workers;
    let last = groups.len().saturating_sub(1);
    for (place, group) in groups.iter_mut().enumerate() {
        let Value::Object(group) = group else { return Err(not_an_object(&WORKER_GROUPS)) };
        let share = if workers == 0.0 {
            0.0
        } else if place == last {
            left
        } else if total > 0.0 {
            // In this order, as upstream: 45 workers for 7 of 10 are 31, not 32.
            (workers * (current[place] / total) + 0.5).floor()
        } else {
            (workers / groups_count).floor() + f64::from(u8::from((place as f64) < workers % groups_count))
        };
        left -= share;
        group.insert("replicas".into(), json_number(share));
    }
    Ok(())
}

fn aggregate_service(object: &mut Value, items: Items<'_>, _now: Timestamp) -> Result<()> {
    if !begin(object, items) {
        return Ok(());
    }
    let rank = |name: &str| match name {
        "NOT_STARTED" => 1,
        "DEPLOYING" => 2,
        "DELETING" => 3,
        "UNHEALTHY" => 4,
        "DEPLOY_FAILED" => 5,
        _ => 0,
    };
    let mut new = std::mem::take(status(object));
    new.remove("lastUpdateTime");
    new.insert("conditions".into(), all_conditions(items));
    new.insert("numServeEndpoints".into(), json_number(sum(items, "numServeEndpoints")));
    if let Some(time) = latest(items, "lastUpdateTime") {
        new.insert("lastUpdateTime".into(), json!(time));
    }
    let generations = statuses(items).filter_map(|(_, found)| number(found, &["observedGeneration"]));
    new.insert("observedGeneration".into(), json_number(generations.fold(0.0, f64::max)));
    let stopped = statuses(items).any(|(_, found)| text(found, &["serviceStatus"]) == Some(""));
    new.insert("serviceStatus".into(), json!(if stopped { "" } else { "Running" }));
    if let Some(active) = first(items, "activeServiceStatus") {
        let Value::Object(mut active) = active.clone() else {
            return Err(not_an_object(&["status", "activeServiceStatus"]));
        };
        let mut applications = Map::new();
        for (_, found) in statuses(items) {
            let own = at(found, &["activeServiceStatus", "applicationStatuses"]).and_then(Value::as_object);
            for (name, application) in own.into_iter().flatten() {
                let level = |value: &Value| rank(text(value, &["status"]).unwrap_or_default());
                match applications.get(name) {
                    Some(known) if level(known) >= level(application) => {}
                    _ => {
                        applications.insert(name.clone(), application.clone());
                    }
                }
            }
        }
        active.insert("applicationStatuses".into(), Value::Object(applications));
        new.insert("activeServiceStatus".into(), Value::Object(active));
    }
    if let Some(pending) = first(items, "pendingServiceStatus") {
        new.insert("pendingServiceStatus".into(), pending.clone());
    }
    set_status(object, Value::Object(new));
    Ok(())
}
