//! Flink: a job manager and its task managers.

use api::work::{NodeClaim, ReplicaRequirements};
use apimachinery::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::{Value, json};

use super::Rules;
use super::blocks::{
    at, component, count, node_claim as node_claim_of, number, picked, status as status_of, statuses, text,
};
use crate::{Error, Replicas, Result, fields};

const STATUS: [&str; 8] = [
    "clusterInfo",
    "error",
    "jobManagerDeploymentStatus",
    "jobStatus",
    "lifecycleState",
    "observedGeneration",
    "reconciliationStatus",
    "taskManager",
];

pub(super) const DEPLOYMENT: Rules = Rules {
    replicas: Some(|object, _| replicas(object)),
    components: Some(|object, _| {
        let (job_managers, task_managers) = managers(object);
        let part = |name: &str, replicas: f64, path: &str| {
            let mut requirements = ReplicaRequirements {
                node_claim: node_claim(object)?,
                priority_class_name: priority_class(object),
                ..ReplicaRequirements::default()
            };
            let resource = ["spec", path, "resource"];
            if let Some(cpu) = at(object, &resource).and_then(|resource| at(resource, &["cpu"])) {
                requirements.resource_request.insert("cpu".into(), canonical(cpu)?);
            }
            if let Some(memory) = at(object, &resource).and_then(|resource| text(resource, &["memory"])) {
                let bytes = parse(memory)?.as_f64();
                requirements.resource_request.insert("memory".into(), canonical(&json!(bytes))?);
            }
            Ok(component(name, replicas, Some(requirements)))
        };
        Ok(vec![
            part("jobmanager", job_managers, "jobManager")?,
            part("taskmanager", task_managers, "taskManager")?,
        ])
    }),
    reflect: Some(|object| Ok(picked(object, &STATUS).unwrap_or_default())),
    aggregate: Some(|object, items, _| {
        if items.is_empty() {
            return Ok(());
        }
        let nobody = json!({
            "error": "", "jobManagerDeploymentStatus": "", "lifecycleState": "", "observedGeneration": 0,
        });
        let last = statuses(items).last().map_or(&nobody, |(_, last)| last);
        let own = status_of(object);
        for name in STATUS {
            match at(last, &[name]) {
                Some(value) => own.insert(name.to_owned(), value.clone()),
                None => own.remove(name),
            };
        }
        Ok(())
    }),
    health: Some(|object| {
        // Without a status nothing speaks for it.
        let Some(status) = at(object, &["status"]) else { return Ok(false) };
        Ok(match text(status, &["jobStatus", "state"]) {
            None => {
                text(status, &["jobManagerDeploymentStatus"]) == Some("READY")
                    && text(status, &["lifecycleState"]) == Some("STABLE")
            }
            Some(
                "RUNNING" | "FINISHED" | "FAILED" | "CANCELED" | "SUSPENDED" | "CANCELLING" | "FAILING"
                | "RESTARTING",
            ) => true,
            // Waiting is fine when it is for something that the user must mend.
            Some("CREATED" | "INITIALIZING" | "RECONCILING") => {
                let error = text(status, &["error"]).unwrap_or_default();
                ["ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff"]
                    .iter()
                    .any(|word| error.contains(word))
            }
            Some(_) => false,
        })
    }),
    ..Rules::NONE
};

/// Returns how many job managers and task managers there are.
fn managers(object: &Value) -> (f64, f64) {
    let job_managers = number(object, &["spec", "jobManager", "replicas"]).unwrap_or(1.0);
    let task_managers = number(object, &["spec", "taskManager", "replicas"]).unwrap_or_else(|| {
        let parallelism = number(object, &["spec", "job", "parallelism"]);
        let slots = at(object, &["spec", "flinkConfiguration", "taskmanager.numberOfTaskSlots"]);
        let slots = slots.and_then(|slots| slots.as_f64().or_else(|| slots.as_str()?.trim().parse().ok()));
        match (parallelism, slots) {
            (Some(parallelism), Some(slots)) if slots != 0.0 => (parallelism / slots).ceil(),
            _ => 1.0,
        }
    });
    (job_managers, task_managers)
}

fn replicas(object: &Value) -> Result<Replicas> {
    let (job_managers, task_managers) = managers(object);
    let resource = |part: &str, name: &str| at(object, &["spec", part, "resource", name]);
    let mut requirements = ReplicaRequirements {
        node_claim: node_claim(object)?,
        priority_class_name: priority_class(object),
        namespace: fields::namespace(object).to_owned(),
        ..ReplicaRequirements::default()
    };
    let cpus = [resource("taskManager", "cpu"), resource("jobManager", "cpu")];
    if cpus.iter().flatten().any(|cpu| !cpu.is_number()) {
        return Err(Error::Quantity {
            path: "spec.jobManager.resource.cpu".into(),
            value: "not a number".into(),
        });
    }
    let most = cpus
        .iter()
        .flatten()
        .filter_map(|cpu| cpu.as_f64())
        .fold(None, |most: Option<f64>, cpu| Some(most.map_or(cpu, |most| most.max(cpu))));
    if let Some(most) = most.filter(|most| *most > 0.0) {
        requirements.resource_request.insert("cpu".into(), canonical(&json!(most))?);
    }
    let mut larger: Option<(f64, String)> = None;
    for part in ["taskManager", "jobManager"] {
        if let Some(memory) = resource(part, "memory").and_then(Value::as_str) {
            let bytes = parse(memory)?.as_f64();
            if larger.as_ref().is_none_or(|(most, _)| bytes > *most) {
                larger = Some((bytes, memory.to_owned()));
            }
        }
    }
    if let Some((_, memory)) = larger {
        requirements.resource_request.insert("memory".into(), canonical(&json!(memory))?);
    }
    Ok(Replicas { count: count(job_managers + task_managers), requirements: Some(requirements) })
}

fn node_claim(object: &Value) -> Result<Option<NodeClaim>> {
    let Some(spec) = at(object, &["spec", "podTemplate", "spec"]) else { return Ok(None) };
    // Affinity does not count for upstream either.
    node_claim_of(["nodeSelector", "tolerations"].map(|name| (name, at(spec, &[name]))))
}

fn priority_class(object: &Value) -> String {
    text(object, &["spec", "podTemplate", "spec", "priorityClassName"]).unwrap_or_default().to_owned()
}

fn parse(text: &str) -> Result<Quantity> {
    Quantity::parse(text).map_err(|_| Error::Quantity { path: "spec".into(), value: text.to_owned() })
}

/// Returns the canonical text of a quantity given as text or number.
pub(super) fn canonical(value: &Value) -> Result<Text> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(number) if number.fract() == 0.0 => format!("{number:.0}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    };
    Ok(Text(parse(&text)?.to_string()))
}
