//! Runs the cases of `testdata/native/<Kind>/<operation>.yaml`, in the format of Karmada's own cases: one YAML
//! document per case with a name, an operation, its inputs and the expected output by result name.
//!
//! Two additions to that format: `error` instead of `output` for a refusal, and `EXCLUDE`-free times, since
//! `now` is fixed here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use api::work::AggregatedStatusItem;
use apimachinery::gvk::Gvk;
use interpreter::{Interpreter, Operation, at_once};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    name: String,
    operation: String,
    #[serde(default)]
    desired_obj: Value,
    #[serde(default)]
    observed_obj: Value,
    #[serde(default)]
    status_items: Vec<AggregatedStatusItem>,
    #[serde(default)]
    input_replicas: i64,
    #[serde(default)]
    output: Option<Value>,
    #[serde(default)]
    error: Option<String>,
}

async fn run(case: &Case) -> Result<Value, interpreter::Error> {
    let native = Interpreter::native();
    let now = "2026-01-02T03:04:05.678Z".parse().expect("a valid time");
    let operation: Operation = case.operation.parse().expect("a known operation");
    Ok(match operation {
        Operation::InterpretReplica => {
            let replicas = native.get_replicas(&case.desired_obj).await?;
            json!({"replica": replicas.count, "requires": replicas.requirements})
        }
        Operation::InterpretComponent => {
            json!({"components": native.get_components(&case.desired_obj).await?})
        }
        Operation::ReviseReplica => {
            json!({"revised": native.revise_replica(case.desired_obj.clone(), case.input_replicas).await?})
        }
        Operation::Retain => {
            json!({"retained": native.retain(case.desired_obj.clone(), &case.observed_obj).await?})
        }
        Operation::AggregateStatus => {
            let object = native.aggregate_status(case.desired_obj.clone(), &case.status_items, now).await?;
            assert_only_the_status_changed(case, &object);
            json!({"aggregatedStatus": object["status"]})
        }
        Operation::InterpretStatus => json!({"status": native.reflect_status(&case.observed_obj).await?}),
        Operation::InterpretHealth => json!({"healthy": native.interpret_health(&case.observed_obj).await?}),
        Operation::InterpretDependency => {
            json!({"dependencies": native.get_dependencies(&case.desired_obj).await?})
        }
    })
}

fn assert_only_the_status_changed(case: &Case, object: &Value) {
    let without_status = |object: &Value| {
        let mut object = object.clone();
        object.as_object_mut().expect("an object").remove("status");
        object
    };
    assert_eq!(without_status(object), without_status(&case.desired_obj), "{}", case.name);
}

fn cases() -> Vec<(String, Case)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/native");
    let mut files = Vec::new();
    for kind in fs::read_dir(&root).expect("the case directory") {
        for file in fs::read_dir(kind.expect("an entry").path()).expect("a kind's directory") {
            files.push(file.expect("an entry").path());
        }
    }
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a readable case file");
        let label = file.strip_prefix(&root).expect("below the root").display().to_string();
        for document in text.split("\n---\n") {
            let document = apimachinery::yaml::read(document).expect("valid YAML").value;
            let case: Case = serde_json::from_value(document)
                .unwrap_or_else(|error| panic!("{label} is not a list of cases: {error}"));
            cases.push((label.clone(), case));
        }
    }
    cases
}

#[test]
fn every_case_gives_what_it_says() {
    let mut failures = Vec::new();
    for (file, case) in cases() {
        let result = at_once(run(&case)).expect("native rules wait for nothing");
        let wrong = match (&case.output, &case.error, &result) {
            (Some(expected), None, Ok(actual)) => expected != actual,
            (None, Some(expected), Err(actual)) => expected != &actual.to_string(),
            _ => true,
        };
        if wrong {
            let expected = case.output.clone().or(case.error.clone().map(Value::from));
            let expected = serde_json::to_string_pretty(&expected).expect("plain data");
            let actual = match result {
                Ok(output) => serde_json::to_string_pretty(&output).expect("plain data"),
                Err(error) => format!("error: {error}"),
            };
            failures.push(format!("{file}: {}\nexpected {expected}\ngot {actual}\n", case.name));
        }
    }
    assert!(failures.is_empty(), "{} cases differ:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_native_rule_has_a_case() {
    let kinds = [
        ("apps/v1", "Deployment"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "StatefulSet"),
        ("batch/v1", "Job"),
        ("batch/v1", "CronJob"),
        ("v1", "Pod"),
        ("v1", "Service"),
        ("v1", "ServiceAccount"),
        ("v1", "Secret"),
        ("v1", "PersistentVolume"),
        ("v1", "PersistentVolumeClaim"),
        ("networking.k8s.io/v1", "Ingress"),
        ("policy/v1", "PodDisruptionBudget"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        ("multicluster.x-k8s.io/v1alpha1", "ServiceImport"),
    ];
    let covered: BTreeSet<(String, String)> = cases()
        .into_iter()
        .map(|(_, case)| {
            let object = if case.desired_obj.is_null() { case.observed_obj } else { case.desired_obj };
            (object["kind"].as_str().expect("a kind").to_owned(), case.operation)
        })
        .collect();
    let native = Interpreter::native();
    let mut missing = Vec::new();
    for (api_version, kind) in kinds {
        for operation in Operation::ALL {
            let supported = native.supports(&Gvk::from_api_version(api_version, kind), operation);
            // Kinds that report their whole status share one rule, covered by Ingress and others.
            let own_rule = operation != Operation::InterpretStatus
                || !matches!(kind, "ServiceAccount" | "Secret" | "ServiceImport");
            if supported && own_rule && !covered.contains(&(kind.to_owned(), operation.to_string())) {
                missing.push(format!("{kind} {operation}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn another_version_of_a_kind_has_no_native_rule() {
    let native = Interpreter::native();
    let old = Gvk::new("apps", "v1beta1", "Deployment");
    for operation in Operation::ALL {
        assert_eq!(native.supports(&old, operation), operation == Operation::InterpretStatus);
    }
}
