//! Compares our answers with those of the original, recorded once (`tests/oracle`) for objects and scripts of our own.
//! `cargo xtask compare interpreter` asks the original again, and with `UPDATE_GOLDEN=1` records what it says.
//!
//! A case of `testdata/original/*.jsonl` is one line: what was asked, and `answer`: its output, its error, or that the
//! original has no rule. Where we differ on purpose, `differences.json` names the case and says why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use api::config::ResourceInterpreterCustomization;
use api::work::AggregatedStatusItem;
use apimachinery::gvk::Gvk;
use apimachinery::quantity::Quantity;
use interpreter::{AtOnce, Customizations, Interpreter, Layer, Operation, ThirdParty, at_once};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    operation: String,
    #[serde(default)]
    customizations: Option<Vec<ResourceInterpreterCustomization>>,
    #[serde(default)]
    desired: Value,
    #[serde(default)]
    observed: Value,
    #[serde(default)]
    items: Option<Vec<AggregatedStatusItem>>,
    #[serde(default)]
    replicas: i64,
    answer: Answer,
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    output: Value,
    error: Option<String>,
    #[serde(default)]
    disabled: bool,
}

/// What one side says, comparable.
#[derive(Debug, PartialEq)]
enum Said {
    Output(Value),
    Error(String),
    NoRule,
}

fn now() -> Timestamp {
    Timestamp::now()
}

fn ours(case: &Case) -> Said {
    let layer: Arc<dyn Layer> = match &case.customizations {
        Some(customizations) => {
            let layer = Customizations::new(Arc::new(now));
            layer.load(customizations);
            Arc::new(AtOnce(layer))
        }
        None => Arc::new(AtOnce(ThirdParty::default())),
    };
    let operation: Operation = case.operation.parse().expect("a known operation");
    let subject = if case.desired.is_null() { &case.observed } else { &case.desired };
    let text = |field: &str| subject[field].as_str().unwrap_or_default();
    if !layer.supports(&Gvk::from_api_version(text("apiVersion"), text("kind")), operation) {
        return Said::NoRule;
    }
    let chain = Interpreter::with_layers([layer]);
    let answer = async {
        match operation {
            Operation::InterpretReplica => chain
                .get_replicas(subject)
                .await
                .map(|replicas| json!({"replica": replicas.count, "requires": replicas.requirements})),
            Operation::InterpretComponent => {
                chain.get_components(subject).await.map(|components| json!(components))
            }
            Operation::ReviseReplica => chain.revise_replica(subject.clone(), case.replicas).await,
            Operation::Retain => chain.retain(case.desired.clone(), &case.observed).await,
            Operation::AggregateStatus => {
                chain
                    .aggregate_status(subject.clone(), case.items.as_deref().unwrap_or_default(), now())
                    .await
            }
            Operation::InterpretStatus => chain.reflect_status(subject).await.map(|status| json!(status)),
            Operation::InterpretHealth => chain.interpret_health(subject).await.map(Value::from),
            Operation::InterpretDependency => chain.get_dependencies(subject).await.map(|found| json!(found)),
        }
    };
    match at_once(answer).expect("no layer here waits for anything") {
        Ok(output) => Said::Output(output),
        Err(interpreter::Error::Script { message, .. }) => Said::Error(message),
        Err(error) => Said::Error(error.to_string()),
    }
}

fn theirs(case: &Case) -> Said {
    match (&case.answer.error, case.answer.disabled) {
        (Some(error), _) => Said::Error(error.clone()),
        (None, true) => Said::NoRule,
        (None, false) => Said::Output(case.answer.output.clone()),
    }
}

/// Takes away what may differ without meaning anything.
fn plain(said: Said, operation: &str) -> Said {
    match said {
        Said::Output(mut value) => {
            forget_times(&mut value);
            canonical_requests(&mut value);
            // No list and an empty one are the same where lists are wanted.
            if value.is_null() && matches!(operation, "InterpretComponent" | "InterpretDependency") {
                value = json!([]);
            }
            // Both have no order of their own.
            if matches!(operation, "InterpretDependency" | "InterpretComponent")
                && let Value::Array(items) = &mut value
            {
                items.sort_by_key(Value::to_string);
            }
            Said::Output(value)
        }
        Said::Error(text) => {
            // How deep Go's encoder was, and addresses of tables.
            let text = text.replace("json: error calling MarshalJSON for type json.jsonValue: ", "");
            Said::Error(match text.split_once(": 0x") {
                Some((start, _)) => format!("{start}: 0x"),
                None => text.trim_end().to_owned(),
            })
        }
        Said::NoRule => Said::NoRule,
    }
}

/// Upstream keeps the text in which a script wrote a quantity until it is stored; ours is canonical at once.
fn canonical_requests(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::Object(request)) = fields.get_mut("resourceRequest") {
                for amount in request.values_mut() {
                    if let Some(quantity) = amount.as_str().and_then(|text| Quantity::parse(text).ok()) {
                        *amount = Value::from(quantity.to_string());
                    }
                }
            }
            fields.values_mut().for_each(canonical_requests);
        }
        Value::Array(items) => items.iter_mut().for_each(canonical_requests),
        _ => {}
    }
}

/// Generated conditions carry the time of the run: those of this year's tests are all alike.
fn forget_times(value: &mut Value) {
    match value {
        Value::String(text)
            if text.parse::<Timestamp>().is_ok_and(|time| time.as_second() > 1_780_000_000) =>
        {
            *text = "now".into();
        }
        Value::Array(items) => items.iter_mut().for_each(forget_times),
        Value::Object(fields) => fields.values_mut().for_each(forget_times),
        // Go writes 1.0 as 1.
        Value::Number(number) => {
            if let Some(float) = number.as_f64()
                && number.is_f64()
                && float.fract() == 0.0
                && float.abs() < 9e15
            {
                #[expect(clippy::cast_possible_truncation, reason = "it was checked to fit")]
                let integer = float as i64;
                *value = Value::from(integer);
            }
        }
        _ => {}
    }
}

fn check(file: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/original");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a readable file of cases");
    let allowed: BTreeMap<String, String> =
        serde_json::from_str(&read("differences.json")).expect("reasons by the names of cases");
    let mut names = BTreeSet::new();
    let mut failures = Vec::new();
    let text = read(file);
    for line in text.lines() {
        let case: Case = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        assert!(names.insert(case.name.clone()), "two cases are called {}", case.name);
        let (ours, theirs) = (plain(ours(&case), &case.operation), plain(theirs(&case), &case.operation));
        let same = match (&case.customizations, &ours, &theirs) {
            // A rule of ours fails where the script does, but has no line to name.
            (None, Said::Error(_), Said::Error(_)) => true,
            // A script that finds no dependencies returns nil, which is an error; that is a slip.
            (None, Said::Output(found), Said::Error(error)) if found == &json!([]) => {
                ours == theirs || error == "expect the returned requires type is table but got nil"
            }
            _ => ours == theirs,
        };
        match (same, allowed.contains_key(&case.name)) {
            (true, false) | (false, true) => {}
            (true, true) => failures.push(format!("{}: listed as a difference and is none", case.name)),
            (false, false) => {
                failures.push(format!("{}\n  original {theirs:?}\n  ours     {ours:?}", case.name))
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), names.len(), failures.join("\n"));
}

#[test]
fn scripts_behave_as_on_the_original() {
    check("lua.jsonl");
}

#[test]
fn operations_of_customizations_answer_as_on_the_original() {
    check("operations.jsonl");
}

#[test]
fn third_party_kinds_are_understood_as_on_the_original() {
    check("third_party.jsonl");
}

/// How often the original is asked again when it answers otherwise than recorded: in a few cases its answer depends on the order of
/// a Go map, which changes from run to run.
const AGAIN: usize = 20;

/// Returns the original's answers to cases. It is a program that reads cases and writes answers, one line each.
fn ask(oracle: &str, cases: &[Value]) -> Vec<Value> {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let asked: String = cases
        .iter()
        .map(|case| {
            let mut question = case.clone();
            question.as_object_mut().expect("an object").remove("answer");
            format!("{question}\n")
        })
        .collect();
    let mut child = Command::new(oracle)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the original starts");
    let mut input = child.stdin.take().expect("piped");
    let feeding = std::thread::spawn(move || input.write_all(asked.as_bytes()));
    let output = child.wait_with_output().expect("the original answers");
    feeding.join().expect("no panic").expect("the original reads");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut answers: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an answer")).collect();
    assert_eq!(answers.len(), cases.len(), "an answer to each case");
    for answer in &mut answers {
        // Where it was is not part of the record: our scripts run without Go's functions around them.
        let text = answer["error"].as_str().unwrap_or_default();
        if let Some((error, _)) = text.split_once("\nstack traceback:") {
            answer["error"] = Value::from(error.to_owned());
        }
    }
    answers
}

/// Returns what an answer of the original to a case says, whenever it is asked.
fn meant(case: &Value, answer: &Value) -> Said {
    let answer: Answer = serde_json::from_value(answer.clone()).expect("an answer");
    let said = match (answer.error, answer.disabled) {
        // Addresses are different each time.
        (Some(error), _) => Said::Error(error.split("0x").next().unwrap_or_default().to_owned()),
        (None, true) => Said::NoRule,
        (None, false) => Said::Output(answer.output),
    };
    plain(said, case["operation"].as_str().unwrap_or_default())
}

#[test]
#[ignore = "needs the original: cargo xtask compare interpreter"]
fn the_original_says_what_was_recorded() {
    let oracle = std::env::var("KARMADA_RS_INTERPRETER_ORACLE").expect("the path of the original");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/original");
    let mut changed = Vec::new();
    for file in ["lua.jsonl", "operations.jsonl", "third_party.jsonl"] {
        let recorded = std::fs::read_to_string(folder.join(file)).expect("a readable file of cases");
        let mut cases: Vec<Value> =
            recorded.lines().map(|line| serde_json::from_str(line).expect("a case")).collect();
        let answers = ask(&oracle, &cases);
        for (case, answer) in cases.iter_mut().zip(answers) {
            let recorded = meant(case, &case["answer"]);
            if meant(case, &answer) == recorded {
                continue;
            }
            let again = ask(&oracle, &vec![case.clone(); AGAIN]);
            if again.iter().any(|answer| meant(case, answer) == recorded) {
                println!("{file}: {}: the original does not always say the same", case["name"]);
                continue;
            }
            changed.push(format!("{file}: {}: {} became {answer}", case["name"], case["answer"]));
            case["answer"] = answer;
        }
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let text: String = cases.iter().map(|case| format!("{case}\n")).collect();
            std::fs::write(folder.join(file), text).expect("the cases can be written");
        }
    }
    assert!(changed.is_empty(), "{} answers differ from the record:\n{}", changed.len(), changed.join("\n"));
}
