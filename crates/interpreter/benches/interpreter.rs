//! How many questions per second the interpreter answers, and how many allocations each takes: native rules, third-party rules and
//! scripts, on objects of the recorded cases.
//!
//! `cargo xtask bench interpreter`, which also builds the original and has it answer the same questions
//! (`KARMADA_RS_INTERPRETER_ORACLE` is its path). One thread each.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use interpreter::{AtOnce, Customizations, Interpreter, Layer, Operation, Question, at_once};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came.
#[expect(unsafe_code, reason = "allocations can be counted only by an allocator")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, which is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How long each question is asked.
const DURATION: Duration = Duration::from_millis(200);
/// How many questions of each kind of rules.
const QUESTIONS: usize = 24;

struct Case {
    group: &'static str,
    name: String,
    /// As the original reads it.
    line: Value,
    interpreter: Interpreter,
    question: Question,
}

struct Measured {
    rate: f64,
    allocations: f64,
}

fn question(case: &Value) -> Option<Question> {
    let operation: Operation = case["operation"].as_str()?.parse().ok()?;
    let object = || {
        let desired = &case["desired"];
        if desired.is_null() { case["observed"].clone() } else { desired.clone() }
    };
    Some(match operation {
        Operation::InterpretReplica => Question::Replicas { object: object() },
        Operation::InterpretComponent => Question::Components { object: object() },
        Operation::ReviseReplica => {
            Question::Revise { object: object(), replicas: case["replicas"].as_i64().unwrap_or(0) }
        }
        Operation::Retain => {
            Question::Retain { desired: case["desired"].clone(), observed: case["observed"].clone() }
        }
        Operation::AggregateStatus => Question::Aggregate {
            object: object(),
            items: serde_json::from_value(case["items"].clone()).unwrap_or_default(),
            now: Timestamp::UNIX_EPOCH,
        },
        Operation::InterpretStatus => Question::Status { object: object() },
        Operation::InterpretHealth => Question::Health { object: object() },
        Operation::InterpretDependency => Question::Dependencies { object: object() },
    })
}

/// Returns cases that the original answered without an error, spread evenly over the file.
fn recorded(file: &str, group: &'static str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/original").join(file);
    let text = std::fs::read_to_string(path).expect("the recorded cases");
    let answered: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a case"))
        .filter(|case| case["answer"]["output"].is_object() || case["answer"]["output"].is_boolean())
        .collect();
    let step = (answered.len() / QUESTIONS).max(1);
    let chosen = answered.into_iter().step_by(step).take(QUESTIONS);
    chosen.filter_map(|case| self::case(group, case)).collect()
}

fn case(group: &'static str, mut line: Value) -> Option<Case> {
    line.as_object_mut()?.remove("answer");
    let question = question(&line)?;
    let interpreter = match line["customizations"].as_array() {
        None => Interpreter::built_in([]),
        Some(_) => {
            let layer = Customizations::new(Arc::new(Timestamp::now));
            let loaded: Vec<api::config::ResourceInterpreterCustomization> =
                serde_json::from_value(line["customizations"].clone()).expect("customizations");
            layer.load(&loaded);
            Interpreter::with_layers([Arc::new(AtOnce(layer)) as Arc<dyn Layer>])
        }
    };
    let name = format!("{} {}", line["operation"].as_str().unwrap_or_default(), question.kind().kind);
    at_once(interpreter.ask(question.clone()))?.ok()?;
    Some(Case { group, name, line, interpreter, question })
}

/// A Deployment as a member has it, and what is asked about it.
fn native() -> Vec<Case> {
    let containers: Vec<Value> = (0..2)
        .map(|index| {
            json!({"name": format!("c{index}"), "image": "nginx", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}},
                "envFrom": [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "password"}}]})
        })
        .collect();
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "generation": 3,
            "annotations": {"resourcetemplate.karmada.io/generation": "3"}},
        "spec": {"replicas": 6, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}},
        "status": {"replicas": 6, "readyReplicas": 6, "updatedReplicas": 6, "availableReplicas": 6, "observedGeneration": 3}});
    let items: Vec<Value> = (0..3)
        .map(|index| json!({"clusterName": format!("m{index}"), "applied": true, "status": deployment["status"]}))
        .collect();
    let operations = [
        "InterpretReplica",
        "ReviseReplica",
        "AggregateStatus",
        "InterpretStatus",
        "InterpretHealth",
        "InterpretDependency",
    ];
    let line = |operation: &str| {
        json!({"name": operation, "operation": operation, "native": true, "replicas": 4, "items": items,
            "desired": deployment})
    };
    operations.into_iter().filter_map(|operation| case("native", line(operation))).collect()
}

fn measure(case: &Case) -> Measured {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let (started, mut count) = (Instant::now(), 0_u32);
    while started.elapsed() < DURATION {
        for _ in 0..16 {
            let answer = at_once(ask(&case.interpreter, &case.question)).expect("nothing waits");
            assert!(std::hint::black_box(answer), "{}", case.name);
        }
        count += 16;
    }
    let took = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let allocations = (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64;
    Measured { rate: f64::from(count) / took, allocations: allocations / f64::from(count) }
}

/// Asks as the controllers do: by reference, with a copy where the rule changes it.
async fn ask(interpreter: &Interpreter, question: &Question) -> bool {
    match question {
        Question::Replicas { object } => interpreter.get_replicas(object).await.is_ok(),
        Question::Components { object } => interpreter.get_components(object).await.is_ok(),
        Question::Revise { object, replicas } => {
            interpreter.revise_replica(object.clone(), *replicas).await.is_ok()
        }
        Question::Retain { desired, observed } => interpreter.retain(desired.clone(), observed).await.is_ok(),
        Question::Aggregate { object, items, now } => {
            interpreter.aggregate_status(object.clone(), items, *now).await.is_ok()
        }
        Question::Status { object } => interpreter.reflect_status(object).await.is_ok(),
        Question::Health { object } => interpreter.interpret_health(object).await.is_ok(),
        Question::Dependencies { object } => interpreter.get_dependencies(object).await.is_ok(),
    }
}

/// Has the original answer the same questions; nothing without it.
fn original(cases: &[Case]) -> Vec<Option<Measured>> {
    let Ok(oracle) = std::env::var("KARMADA_RS_INTERPRETER_ORACLE") else {
        eprintln!("without the original; `cargo xtask bench interpreter` builds it");
        return cases.iter().map(|_| None).collect();
    };
    let mut child = Command::new(oracle)
        .arg("-bench")
        .env("GOMAXPROCS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the original starts");
    let mut input = child.stdin.take().expect("piped");
    let asked: String = cases.iter().map(|case| format!("{}\n", case.line)).collect();
    let feeding = std::thread::spawn(move || input.write_all(asked.as_bytes()));
    let output = child.wait_with_output().expect("the original answers");
    feeding.join().expect("no panic").expect("the original reads");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut answers = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
    cases
        .iter()
        .map(|_| {
            let answer = answers.next()?;
            Some(Measured { rate: answer["rate"].as_f64()?, allocations: answer["allocations"].as_f64()? })
        })
        .collect()
}

/// Returns the mean rate of questions that are asked equally often.
fn mean(rates: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = f64::from(u32::try_from(rates.clone().count()).unwrap_or(u32::MAX));
    count / rates.map(|rate| 1.0 / rate).sum::<f64>()
}

fn main() {
    let mut cases = native();
    cases.extend(recorded("third_party.jsonl", "third-party"));
    cases.extend(recorded("operations.jsonl", "scripts"));
    let ours: Vec<Measured> = cases.iter().map(measure).collect();
    let theirs = original(&cases);
    let mut groups: BTreeMap<&str, Vec<(&Measured, Option<&Measured>)>> = BTreeMap::new();
    println!(
        "{:<12} {:<44} {:>12} {:>8} {:>12} {:>8}",
        "rules", "question", "ours/s", "allocs", "original/s", "allocs"
    );
    for ((case, ours), theirs) in cases.iter().zip(&ours).zip(&theirs) {
        let (rate, allocations) = theirs.as_ref().map_or((String::new(), String::new()), |theirs| {
            (format!("{:.0}", theirs.rate), format!("{:.0}", theirs.allocations))
        });
        let Measured { rate: our_rate, allocations: our_allocations } = ours;
        println!(
            "{:<12} {:<44} {our_rate:>12.0} {our_allocations:>8.1} {rate:>12} {allocations:>8}",
            case.group, case.name
        );
        groups.entry(case.group).or_default().push((ours, theirs.as_ref()));
    }
    for (group, measured) in groups {
        let ours = mean(measured.iter().map(|(ours, _)| ours.rate));
        let theirs = measured.iter().filter_map(|(_, theirs)| theirs.map(|theirs| theirs.rate));
        if theirs.clone().count() == measured.len() {
            let theirs = mean(theirs);
            println!("{group}: {ours:.0} per second, the original {theirs:.0}: {:.1} times", ours / theirs);
        } else {
            println!("{group}: {ours:.0} per second");
        }
    }
}
