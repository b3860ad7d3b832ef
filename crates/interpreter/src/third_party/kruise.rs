//! OpenKruise: workloads with counters, jobs, sidecars.

use api::config::DependentObjectReference;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::blocks::{
    aggregate_generation, at, json_number, last, list, need, need_number, number, picked, reference,
    set_spec, set_status, some_text, status, statuses, sum, template_dependencies, template_replicas, text,
    with_generation,
};
use super::{Items, Rules};
use crate::pods::PriorityClass;
use crate::{Replicas, Result};

const CLONE_SET_COUNTERS: &[&str] = &[
    "replicas",
    "updatedReplicas",
    "readyReplicas",
    "availableReplicas",
    "updatedReadyReplicas",
    "expectedUpdatedReplicas",
];
const STATEFUL_SET_COUNTERS: &[&str] = &[
    "replicas",
    "readyReplicas",
    "currentReplicas",
    "updatedReplicas",
    "availableReplicas",
    "updatedReadyReplicas",
];
const DAEMON_SET_COUNTERS: &[&str] = &[
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
];
const UNITED_COUNTERS: &[&str] =
    &["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"];

pub(super) const CLONE_SET: Rules = Rules {
    replicas: Some(spec_replicas),
    revise: Some(revise_replicas),
    reflect: Some(|object| {
        let others = ["updateRevision", "currentRevision", "observedGeneration", "labelSelector"];
        Ok(with_generation(object, &[CLONE_SET_COUNTERS, &others].concat()))
    }),
    aggregate: Some(|object, items, _| {
        aggregate_counters(object, items, CLONE_SET_COUNTERS);
        if !items.is_empty() {
            take_last(object, items, &["updateRevision", "currentRevision", "labelSelector"]);
        }
        Ok(())
    }),
    health: Some(replicas_healthy),
    dependencies: Some(spec_template_dependencies),
    ..Rules::NONE
};

pub(super) const STATEFUL_SET: Rules = Rules {
    reflect: Some(|object| {
        let others = ["updateRevision", "currentRevision", "observedGeneration"];
        Ok(with_generation(object, &[STATEFUL_SET_COUNTERS, &others].concat()))
    }),
    aggregate: Some(|object, items, _| {
        aggregate_counters(object, items, STATEFUL_SET_COUNTERS);
        take_last(object, items, &["updateRevision", "currentRevision"]);
        Ok(())
    }),
    ..CLONE_SET
};

pub(super) const DAEMON_SET: Rules = Rules {
    reflect: Some(|object| {
        let others = ["observedGeneration", "daemonSetHash"];
        Ok(with_generation(object, &[DAEMON_SET_COUNTERS, &others].concat()))
    }),
    aggregate: Some(|object, items, _| {
        aggregate_counters(object, items, DAEMON_SET_COUNTERS);
        let hash = last(items, "daemonSetHash").unwrap_or_else(|| json!(0));
        status(object).insert("daemonSetHash".into(), hash);
        Ok(())
    }),
    health: Some(|object| {
        let found = need(object, &["status"])?;
        if at(found, &["observedGeneration"]) != at(object, &["metadata", "generation"]) {
            return Ok(false);
        }
        let updated = need_number(found, &["updatedNumberScheduled"])?;
        if updated < need_number(found, &["desiredNumberScheduled"])? {
            return Ok(false);
        }
        Ok(need_number(found, &["numberAvailable"])? >= updated)
    }),
    dependencies: Some(spec_template_dependencies),
    ..Rules::NONE
};

pub(super) const UNITED_DEPLOYMENT: Rules = Rules {
    replicas: Some(spec_replicas),
    revise: Some(revise_replicas),
    reflect: Some(|object| {
        let others = ["observedGeneration", "conditions"];
        Ok(with_generation(object, &[UNITED_COUNTERS, &others].concat()))
    }),
    aggregate: Some(|object, items, _| {
        aggregate_counters(object, items, UNITED_COUNTERS);
        let mut conditions: Vec<Value> = Vec::new();
        for (_, found) in statuses(items) {
            for condition in list(found, &["conditions"]) {
                match conditions.iter_mut().find(|known| known["type"] == condition["type"]) {
                    Some(known) => *known = condition.clone(),
                    None => conditions.push(condition.clone()),
                }
            }
        }
        if !conditions.is_empty() {
            status(object).insert("conditions".into(), Value::Array(conditions));
        }
        Ok(())
    }),
    health: Some(|object| {
        let complete = ["status", "metadata", "spec"].iter().all(|part| at(object, &[part]).is_some());
        if complete { replicas_healthy(object) } else { Ok(false) }
    }),
    dependencies: Some(spec_template_dependencies),
    ..Rules::NONE
};

pub(super) const BROADCAST_JOB: Rules = Rules {
    replicas: Some(|object, class| template_replicas(object, "parallelism", Some(1.0), class)),
    revise: Some(|object, replicas| set_spec(object, "parallelism", json!(replicas))),
    retain: Some(|desired, observed| {
        let template = need(observed, &["spec", "template"])?;
        if let Some(labels) = at(template, &["metadata", "labels"]) {
            let own = desired.pointer_mut("/spec/template").and_then(Value::as_object_mut);
            let own = own.ok_or_else(|| super::blocks::missing(&["spec", "template"]))?;
            match own.entry("metadata").or_insert_with(|| json!({})) {
                Value::Object(metadata) => metadata.insert("labels".into(), labels.clone()),
                _ => return Err(super::blocks::not_an_object(&["spec", "template", "metadata"])),
            };
        }
        Ok(())
    }),
    reflect: Some(|object| {
        let names = [
            "conditions",
            "startTime",
            "completionTime",
            "active",
            "succeeded",
            "failed",
            "desired",
            "phase",
        ];
        Ok(picked(object, &names).unwrap_or_default())
    }),
    aggregate: Some(aggregate_broadcast_job),
    health: Some(|object| {
        let found = need(object, &["status"])?;
        let counter = |name| number(found, &[name]);
        if counter("desired") == Some(0.0) || counter("failed") != Some(0.0) {
            return Ok(false);
        }
        Ok(!(counter("succeeded") == Some(0.0) && counter("active") == Some(0.0)))
    }),
    dependencies: Some(spec_template_dependencies),
    ..Rules::NONE
};

pub(super) const ADVANCED_CRON_JOB: Rules = Rules {
    aggregate: Some(|object, items, _| {
        if items.is_empty() {
            return Ok(());
        }
        let active: Vec<Value> =
            statuses(items).flat_map(|(_, found)| list(found, &["active"]).to_vec()).collect();
        let mut new = Map::new();
        new.insert("active".into(), Value::Array(active));
        new.insert("type".into(), last(items, "type").unwrap_or_else(|| json!("")));
        if let Some(time) = last(items, "lastScheduleTime") {
            new.insert("lastScheduleTime".into(), time);
        }
        set_status(object, Value::Object(new));
        Ok(())
    }),
    dependencies: Some(|object| {
        need(object, &["spec"])?;
        let broadcast = ["spec", "template", "broadcastJobTemplate", "spec", "template"];
        let job = ["spec", "template", "jobTemplate", "spec", "template"];
        let path = if at(object, &broadcast).is_some() { broadcast } else { job };
        template_dependencies(object, &path)
    }),
    ..Rules::NONE
};

pub(super) const SIDECAR_SET: Rules = Rules {
    replicas: Some(|_, _| Ok(Replicas::default())),
    retain: Some(|_, _| Ok(())),
    reflect: Some(|object| {
        let Some(found) = at(object, &["status"]) else { return Ok(Map::new()) };
        let counter = |name: &str| (name.to_owned(), json_number(number(found, &[name]).unwrap_or(0.0)));
        Ok(["matchedPods", "updatedPods", "readyPods"].into_iter().map(counter).collect())
    }),
    aggregate: Some(|object, items, _| {
        if items.is_empty() {
            return Err(super::blocks::missing(&["aggregatedStatus"]));
        }
        let counter = |name: &str| (name.to_owned(), json_number(sum(items, name)));
        let summed: Map<_, _> =
            ["matchedPods", "updatedPods", "readyPods"].into_iter().map(counter).collect();
        // Only the status counts; upstream leaves the rest of the object out.
        if let Value::Object(whole) = object {
            whole.remove("spec");
        }
        set_status(object, Value::Object(summed));
        Ok(())
    }),
    health: Some(|object| {
        let Some(found) = at(object, &["status"]) else { return Ok(false) };
        let counter = |name| number(found, &[name]).unwrap_or(0.0);
        Ok(counter("matchedPods") == 0.0 || counter("updatedPods") == counter("matchedPods"))
    }),
    dependencies: Some(sidecar_dependencies),
    ..Rules::NONE
};

fn spec_replicas(object: &Value, class: PriorityClass) -> Result<Replicas> {
    template_replicas(object, "replicas", None, class)
}

fn revise_replicas(object: &mut Value, replicas: i64) -> Result<()> {
    set_spec(object, "replicas", json!(replicas))
}

fn spec_template_dependencies(object: &Value) -> Result<Vec<DependentObjectReference>> {
    template_dependencies(object, &["spec", "template"])
}

fn aggregate_counters(object: &mut Value, items: Items<'_>, counters: &[&str]) {
    aggregate_generation(object, items);
    let found = status(object);
    for counter in counters {
        found.insert((*counter).to_owned(), json_number(sum(items, counter)));
    }
}

fn take_last(object: &mut Value, items: Items<'_>, names: &[&str]) {
    let found = status(object);
    for name in names {
        found.insert((*name).to_owned(), last(items, name).unwrap_or_else(|| json!("")));
    }
}

fn replicas_healthy(object: &Value) -> Result<bool> {
    let found = need(object, &["status"])?;
    if at(found, &["observedGeneration"]) != at(object, &["metadata", "generation"]) {
        return Ok(false);
    }
    let spec = need(object, &["spec"])?;
    if let Some(wanted) = number(spec, &["replicas"])
        && need_number(found, &["updatedReplicas"])? < wanted
    {
        return Ok(false);
    }
    Ok(need_number(found, &["availableReplicas"])? >= need_number(found, &["updatedReplicas"])?)
}

fn aggregate_broadcast_job(object: &mut Value, items: Items<'_>, _now: Timestamp) -> Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let mut failed = Vec::new();
    let mut complete = 0;
    // What was found for one member carries over to those after it that say nothing.
    let mut finished = "";
    for item in items {
        let conditions = item.status.as_ref().map(|found| list(found, &["conditions"])).unwrap_or_default();
        let ended = conditions
            .iter()
            .filter(|condition| text(condition, &["status"]) == Some("True"))
            .filter_map(|condition| text(condition, &["type"]))
            .find(|kind| matches!(*kind, "Complete" | "Failed"));
        finished = ended.unwrap_or(finished);
        match finished {
            "Failed" => failed.push(item.cluster_name.as_str()),
            "Complete" => complete += 1,
            _ => {}
        }
    }
    let mut conditions = Vec::new();
    if !failed.is_empty() {
        conditions.push(json!({
            "type": "Failed", "status": "True", "reason": "JobFailed",
            "message": format!("Job executed failed in member clusters: {}", failed.join(", ")),
        }));
    }
    if complete == items.len() {
        conditions.push(json!({
            "type": "Completed", "status": "True", "reason": "Completed", "message": "Job completed",
        }));
    }
    let found = status(object);
    for counter in ["active", "succeeded", "failed", "desired"] {
        found.insert(counter.into(), json_number(sum(items, counter)));
    }
    let phase = statuses(items).filter_map(|(_, found)| at(found, &["phase"])).last();
    found.insert("phase".into(), phase.cloned().unwrap_or_else(|| json!("")));
    found.insert("conditions".into(), Value::Array(conditions));
    Ok(())
}

fn sidecar_dependencies(object: &Value) -> Result<Vec<DependentObjectReference>> {
    let mut found = Vec::new();
    let mut add = |kind: &str, name: Option<&str>| {
        if let Some(name) = name {
            found.push(reference(object, kind, name));
        }
    };
    for container in list(object, &["spec", "containers"]) {
        for variable in list(container, &["env"]) {
            add("ConfigMap", some_text(variable, &["valueFrom", "configMapKeyRef", "name"]));
            add("Secret", some_text(variable, &["valueFrom", "secretKeyRef", "name"]));
        }
        for source in list(container, &["envFrom"]) {
            add("ConfigMap", some_text(source, &["configMapRef", "name"]));
            add("Secret", some_text(source, &["secretRef", "name"]));
        }
    }
    for volume in list(object, &["spec", "volumes"]) {
        add("ConfigMap", some_text(volume, &["configMap", "name"]));
        add("Secret", some_text(volume, &["secret", "secretName"]));
        for source in list(volume, &["projected", "sources"]) {
            add("ConfigMap", some_text(source, &["configMap", "name"]));
            add("Secret", some_text(source, &["secret", "name"]));
        }
    }
    Ok(found)
}
