//! Runs the cases of `testdata/overrides/*.yaml`: an object, a cluster, override policies, and the object that
//! comes out, or the failure.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use api::cluster::Cluster;
use api::policy::{ClusterOverridePolicy, OverridePolicy};
use propagation::overrides::{Overrides, record};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    name: String,
    object: Value,
    #[serde(default)]
    cluster: Value,
    #[serde(default)]
    policies: Vec<Value>,
    /// Short for one cluster-wide policy `p` without selectors, with these overriders.
    #[serde(default)]
    overriders: Value,
    #[serde(default)]
    expected: Option<Value>,
    /// Fields of the expected object by JSON pointer, for when the whole object would only repeat the input.
    #[serde(default)]
    expected_fields: Option<std::collections::BTreeMap<String, Value>>,
    #[serde(default)]
    error: Option<String>,
    /// Names of the applied policies in the order of application.
    #[serde(default)]
    applied: Option<Vec<String>>,
    #[serde(default)]
    recorded_cluster: Option<String>,
    #[serde(default)]
    recorded: Option<String>,
}

impl Case {
    fn overrides(&self) -> Overrides {
        let mut policies = self.policies.clone();
        if !self.overriders.is_null() {
            policies.push(json!({
                "kind": "ClusterOverridePolicy",
                "metadata": {"name": "p"},
                "spec": {"overrideRules": [{"overriders": self.overriders}]},
            }));
        }
        let mut overrides = Overrides::default();
        for policy in policies {
            if policy["kind"] == "ClusterOverridePolicy" {
                let policy: ClusterOverridePolicy = serde_json::from_value(policy).expect("a cluster policy");
                overrides.insert_cluster(Arc::new(policy));
            } else {
                let policy: OverridePolicy = serde_json::from_value(policy).expect("a policy");
                overrides.insert(Arc::new(policy));
            }
        }
        overrides
    }

    fn cluster(&self) -> Cluster {
        let cluster =
            if self.cluster.is_null() { json!({"metadata": {"name": "m1"}}) } else { self.cluster.clone() };
        serde_json::from_value(cluster).expect("a cluster")
    }

    fn check(&self) -> Result<(), String> {
        let mut object = self.object.clone();
        let result = self.overrides().apply(&mut object, &self.cluster());
        let applied = match (result, &self.error) {
            (Ok(applied), None) => applied,
            (Err(failure), Some(error)) if failure.error.to_string() == *error => failure.applied.clone(),
            (Ok(_), Some(error)) => return Err(format!("expected the error {error}, got {object:#}")),
            (Err(failure), _) => return Err(format!("unexpected error: {}", failure.error)),
        };
        if let Some(expected) = &self.expected
            && object != *expected
        {
            return Err(format!("expected {expected:#}, got {object:#}"));
        }
        for (pointer, expected) in self.expected_fields.iter().flatten() {
            let actual = object.pointer(pointer).unwrap_or(&Value::Null);
            if actual != expected {
                return Err(format!("expected {expected} at {pointer}, got {actual}"));
            }
        }
        let names: Vec<&str> =
            applied.cluster.iter().chain(&applied.namespaced).map(|item| item.policy.as_str()).collect();
        if let Some(expected) = &self.applied
            && names != *expected
        {
            return Err(format!("expected the policies {expected:?}, got {names:?}"));
        }
        for (expected, actual) in
            [(&self.recorded_cluster, &applied.cluster), (&self.recorded, &applied.namespaced)]
        {
            if expected.is_some() && *expected != record(actual) {
                return Err(format!("expected the record {expected:?}, got {:?}", record(actual)));
            }
        }
        let checks = self.expected.is_some() || self.expected_fields.is_some() || self.error.is_some();
        if checks { Ok(()) } else { Err("the case expects nothing".into()) }
    }
}

#[test]
fn every_case_gives_what_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/overrides");
    let mut files: Vec<_> = fs::read_dir(&root)
        .expect("the case directory")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let mut failures = Vec::new();
    let mut count = 0;
    for file in files {
        let text = fs::read_to_string(&file).expect("a readable case file");
        for document in text.split("\n---\n") {
            let value = apimachinery::yaml::read(document).expect("valid YAML").value;
            let case: Case = serde_json::from_value(value)
                .unwrap_or_else(|error| panic!("{} is not a list of cases: {error}", file.display()));
            count += 1;
            if let Err(reason) = case.check() {
                let file = file.file_name().expect("a file").display();
                failures.push(format!("{file}: {}: {reason}\n", case.name));
            }
        }
    }
    assert!(count > 0, "there are cases");
    assert!(failures.is_empty(), "{} of {count} cases differ:\n{}", failures.len(), failures.join("\n"));
}

fn with_policy(object: Value, overriders: Value) -> Result<Value, String> {
    let case = Case {
        name: String::new(),
        object: object.clone(),
        cluster: Value::Null,
        policies: Vec::new(),
        overriders,
        expected: None,
        expected_fields: None,
        error: None,
        applied: None,
        recorded_cluster: None,
        recorded: None,
    };
    let cluster: Cluster =
        serde_json::from_value(json!({"metadata": {"name": "m1"}, "spec": {"syncMode": "Push"}}))
            .expect("a cluster");
    let mut object = object;
    match case.overrides().apply(&mut object, &cluster) {
        Ok(_) => Ok(object),
        Err(failure) => Err(failure.error.to_string()),
    }
}

#[test]
fn finding_1_a_policy_that_deepens_an_object_without_end_fails_for_that_object() {
    // Each operation adds fifty levels at the bottom of what the ones before it made, up to 1.9 MB in all.
    let fifty = || (1..50).fold(json!([]), |inner, _| json!([inner]));
    let (mut plaintext, mut path, mut size) = (Vec::new(), "/data".to_owned(), 0);
    while size < 1_900_000 {
        path.push_str("/0");
        plaintext.push(json!({"path": path, "operator": "add", "value": fifty()}));
        path.push_str(&"/0".repeat(49));
        size += path.len() + 200;
    }
    assert!(plaintext.len() > 100);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": []});
    let error = with_policy(object, json!({"plaintext": plaintext})).unwrap_err();
    assert_eq!(error, "exceeded max depth: arrays and objects may nest 120 levels");
}

#[test]
fn finding_1_a_deep_document_inside_of_a_field_is_refused() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let object = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": deep}});
    for format in ["json", "yaml"] {
        let operation = json!({"subPath": "/0", "operator": "remove"});
        let error = with_policy(
            object.clone(),
            json!({"fieldOverrider": [{"fieldPath": "/data/x", format: [operation]}]}),
        );
        assert!(error.unwrap_err().starts_with("the value at /data/x is not readable"));
    }
}

#[test]
fn finding_6_no_policy_makes_another_object_of_an_object() {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "mine"}});
    for (path, value, what) in [
        ("/kind", "ClusterRoleBinding", "kind"),
        ("/apiVersion", "rbac.authorization.k8s.io/v1", "apiVersion"),
        ("/metadata/name", "other", "metadata.name"),
        ("/metadata/namespace", "theirs", "metadata.namespace"),
    ] {
        let plaintext = json!([{"path": path, "operator": "replace", "value": value}]);
        let error = with_policy(object.clone(), json!({"plaintext": plaintext})).unwrap_err();
        assert!(
            error.contains(&format!("changes {what}, which is part of the object's identity")),
            "{error}"
        );
    }
}

#[test]
fn finding_25_a_yaml_bomb_in_a_field_is_refused() {
    let bomb = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), vec!["*a"; 1500].join(","));
    let object = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": bomb}});
    let operation = json!({"subPath": "/a", "operator": "replace", "value": 1});
    let error =
        with_policy(object, json!({"fieldOverrider": [{"fieldPath": "/data/x", "yaml": [operation]}]}));
    assert_eq!(
        error.unwrap_err(),
        "the value at /data/x is not readable: yaml: document contains excessive aliasing"
    );
}
