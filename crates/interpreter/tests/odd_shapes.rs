//! Objects of custom kinds and what members report may have any shape, where a schema is lax. Puts every kind of value
//! into every place of the recorded objects: each operation answers or refuses, and never panics.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use api::work::AggregatedStatusItem;
use interpreter::{Interpreter, Operation, at_once};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Cases of one kind and operation that are looked at, those with the most in them.
const CASES: usize = 2;

/// Returns the recorded cases by what they ask, in the fields of `testdata/original`.
fn cases() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let read = |path: &Path| std::fs::read_to_string(path).expect("a readable file of cases");
    let mut all: Vec<Value> = read(&folder.join("original/third_party.jsonl"))
        .lines()
        .map(|line| serde_json::from_str(line).expect("a case"))
        .collect();
    for kind in std::fs::read_dir(folder.join("native")).expect("a folder of kinds") {
        for file in std::fs::read_dir(kind.expect("an entry").path()).expect("a folder of operations") {
            for document in read(&file.expect("an entry").path()).split("\n---\n") {
                let case = apimachinery::yaml::read(document).expect("valid YAML").value;
                all.push(json!({
                    "operation": case["operation"], "desired": case["desiredObj"], "observed": case["observedObj"],
                    "items": case["statusItems"],
                }));
            }
        }
    }
    let mut by_question: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
    for mut case in all {
        case.as_object_mut().expect("an object").remove("answer");
        let subject = if case["desired"].is_null() { &case["observed"] } else { &case["desired"] };
        let question = (subject["kind"].to_string(), case["operation"].to_string());
        by_question.entry(question).or_default().push(case);
    }
    let fullest = |mut cases: Vec<Value>| {
        cases.sort_by_key(|case| std::cmp::Reverse(case.to_string().len()));
        cases.truncate(CASES);
        cases
    };
    by_question.into_values().flat_map(fullest).collect()
}

/// Calls `visit` with the pointer of every value below `path`.
fn places(value: &Value, path: &str, visit: &mut impl FnMut(String)) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
            fields.iter().map(|(name, field)| (format!("{path}/{}", escaped(name)), field)).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(at, item)| (format!("{path}/{at}"), item)).collect()
        }
        _ => return,
    };
    for (path, value) in below {
        places(value, &path, visit);
        visit(path);
    }
}

fn ask(interpreter: &Interpreter, case: &Value) {
    let operation: Operation =
        case["operation"].as_str().unwrap_or_default().parse().expect("a known operation");
    let subject = if case["desired"].is_null() { &case["observed"] } else { &case["desired"] };
    let asked = async {
        match operation {
            Operation::InterpretReplica => interpreter.get_replicas(subject).await.map(drop),
            Operation::InterpretComponent => interpreter.get_components(subject).await.map(drop),
            Operation::ReviseReplica => interpreter.revise_replica(subject.clone(), 7).await.map(drop),
            Operation::Retain => {
                interpreter.retain(case["desired"].clone(), &case["observed"]).await.map(drop)
            }
            Operation::AggregateStatus => {
                let items: Vec<AggregatedStatusItem> = case["items"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|item| AggregatedStatusItem {
                        cluster_name: item["clusterName"].as_str().unwrap_or_default().to_owned(),
                        status: item.get("status").cloned(),
                        ..AggregatedStatusItem::default()
                    })
                    .collect();
                interpreter.aggregate_status(subject.clone(), &items, Timestamp::UNIX_EPOCH).await.map(drop)
            }
            Operation::InterpretStatus => interpreter.reflect_status(subject).await.map(drop),
            Operation::InterpretHealth => interpreter.interpret_health(subject).await.map(drop),
            Operation::InterpretDependency => interpreter.get_dependencies(subject).await.map(drop),
        }
    };
    // Whether it answers or refuses is for other tests.
    let _ = at_once(asked).expect("no layer here waits for anything");
}

#[test]
fn no_shape_of_an_object_makes_a_rule_panic() {
    let odd = [json!("x"), json!(1), json!(i64::MAX), json!(true), Value::Null, json!([1]), json!({"x": 1})];
    let interpreter = Interpreter::built_in([]);
    let (mut asked, mut panicked) = (0, Vec::new());
    for case in cases() {
        let mut paths = Vec::new();
        for part in ["desired", "observed", "items"] {
            places(&case[part], &format!("/{part}"), &mut |path| paths.push(path));
        }
        for path in paths {
            // An object is a map, and these say which rule is asked.
            if path.ends_with("/apiVersion") || path.ends_with("/kind") {
                continue;
            }
            for value in &odd {
                let mut case = case.clone();
                *case.pointer_mut(&path).expect("a place of the case") = value.clone();
                asked += 1;
                if catch_unwind(AssertUnwindSafe(|| ask(&interpreter, &case))).is_err() {
                    panicked
                        .push(format!("{} {} {path} = {value}", case["operation"], case["desired"]["kind"]));
                }
            }
        }
    }
    assert!(asked > 10_000, "only {asked} were asked");
    assert!(panicked.is_empty(), "{} of {asked} panicked:\n{}", panicked.len(), panicked.join("\n"));
}
