//! Defaults, preparation, validation, warnings and tables against what a kube-apiserver 1.36.3 answered.
//!
//! Each file of `testdata/rules/<kind>/` holds an object as a user sent it (`input`), for updates the one it
//! replaced (`stored`), and what was recorded: the stored result (`created`), the table's columns and row, the
//! warnings, or the `errors` in order. Uids, times, addresses and node ports were replaced by fixed ones.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use native::prepare::service::{self, Allocator, Family};
use native::{defaults, prepare, shape, tables, validation};
use serde_json::{Value, json};

const UID: &str = "00000000-0000-0000-0000-000000000001";

/// Hands out the fixed numbers that stand in the recorded answers.
#[derive(Default)]
struct Fixed(RefCell<BTreeSet<u16>>);

impl Allocator for Fixed {
    fn families(&self) -> &[Family] {
        &[Family::V4]
    }

    fn cluster_ip(&self, _family: Family, wanted: Option<&str>) -> Result<String, String> {
        Ok(wanted.unwrap_or("10.96.0.10").to_owned())
    }

    fn node_port(&self, wanted: Option<u16>) -> Result<u16, String> {
        let mut taken = self.0.borrow_mut();
        let port =
            wanted.unwrap_or_else(|| (30001..).find(|port| !taken.contains(port)).expect("ports are plenty"));
        taken.insert(port);
        Ok(port)
    }

    fn release_cluster_ip(&self, _address: &str) {}

    fn release_node_port(&self, port: u16) {
        self.0.borrow_mut().remove(&port);
    }
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

fn gvk_of(object: &Value) -> Gvk {
    let text = |key: &str| object[key].as_str().expect("apiVersion and kind are there");
    Gvk::from_api_version(text("apiVersion"), text("kind"))
}

struct Outcome {
    object: Value,
    errors: Vec<String>,
    warnings: Vec<String>,
}

/// What the server does to an object between decoding and storing it.
fn write(input: &Value, old: Option<&Value>, allocator: &Fixed) -> Outcome {
    let gvk = gvk_of(input);
    let mut object = input.clone();
    if let Err(error) = shape::canonicalise(&gvk, &mut object) {
        return Outcome { object, errors: vec![error.to_string()], warnings: Vec::new() };
    }
    defaults::apply(&gvk, &mut object);
    let extra = None;
    let ctx = prepare::Context { user: "u", user_uid: "", groups: &[], extra, now: now(), uid: UID };
    match old {
        None => prepare::for_create(&gvk, &mut object, &ctx),
        Some(old) => {
            object["metadata"]["resourceVersion"] = json!("1");
            prepare::for_update(&gvk, &mut object, old, &ctx);
        }
    }
    let mut errors = Vec::new();
    if gvk.kind == "Service" {
        match service::allocate(&mut object, old, allocator) {
            Ok(allocation) => allocation.commit(allocator),
            Err(wrong) => errors = wrong,
        }
    }
    if errors.is_empty() {
        errors = match old {
            None => validation::create(&gvk, &object),
            Some(old) => validation::update(&gvk, &object, old),
        };
    }
    let warnings = match old {
        None => prepare::warnings(&gvk, &object),
        Some(old) => prepare::warnings_on_update(&gvk, &object, old),
    };
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    let before = object.clone();
    defaults::apply(&gvk, &mut object);
    assert_eq!(before, object, "defaults are filled once");
    Outcome { object, errors: errors.iter().map(ToString::to_string).collect(), warnings }
}

/// Returns one line per difference between two trees.
fn differences(path: &str, ours: &Value, theirs: &Value, lines: &mut String) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let get =
                    |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(json!("<absent>"));
                differences(&format!("{path}.{key}"), &get(a), &get(b), lines);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{index}]"), a, b, lines);
            }
        }
        (a, b) if a == b => {}
        (a, b) => {
            writeln!(lines, "  {path}\n    ours   {a}\n    theirs {b}").expect("a string takes everything")
        }
    }
}

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Errors about maps come in Go's random order. Some show internal structs with Go's field names, some end in a
/// diff of such structs: neither is imitated, so order, shown objects and diffs are not compared.
fn comparable(errors: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = errors.iter().map(|error| without_structs(error)).collect();
    lines.sort();
    lines
}

fn without_structs(error: &str) -> String {
    let error = error.split('\n').next().unwrap_or_default();
    let shown = [" value: {", " value: [{"].iter().find_map(|start| error.find(start));
    match (shown, error.rfind('}')) {
        (Some(start), Some(end)) => format!("{} value: {{…{}", &error[..start], &error[end..]),
        _ => error.to_owned(),
    }
}

fn check(file: &Path) -> Result<(), String> {
    let text = fs::read_to_string(file).expect("the case can be read");
    let case = apimachinery::yaml::read(&text).expect("the case is YAML").value;
    let allocator = Fixed::default();
    let old = case.get("stored").map(|stored| {
        let outcome = write(stored, None, &allocator);
        assert!(outcome.errors.is_empty(), "{}: {:?}", file.display(), outcome.errors);
        outcome.object
    });
    let outcome = write(&case["input"], old.as_ref(), &allocator);
    let mut report = String::new();
    differences(
        "errors",
        &json!(comparable(&outcome.errors)),
        &json!(comparable(&texts(&case["errors"]))),
        &mut report,
    );
    if let Some(created) = case.get("created") {
        differences("created", &outcome.object, created, &mut report);
        differences("warnings", &json!(outcome.warnings), &json!(texts(&case["warnings"])), &mut report);
        let gvk = gvk_of(&case["input"]);
        let columns: Vec<String> = tables::columns(&gvk)
            .iter()
            .map(|column| {
                let parts = [column.name, column.kind, column.format, &column.priority.to_string()]
                    .map(str::to_owned);
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
            })
            .collect();
        differences("columns", &json!(columns), &case["columns"], &mut report);
        let cells: Vec<Value> = tables::cells(&gvk, &outcome.object, now())
            .into_iter()
            .map(|cell| if cell == "0s" { json!("AGE") } else { cell })
            .collect();
        // Kinds whose status a controller of the recorded server fills at once have no recorded row.
        if let Some(row) = case.get("row") {
            differences("row", &json!(cells), row, &mut report);
        }
    }
    if report.is_empty() { Ok(()) } else { Err(format!("{}\n{report}", file.display())) }
}

fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/rules");
    let mut files = Vec::new();
    for kind in fs::read_dir(root).expect("there are cases") {
        let kind = kind.expect("the folder can be read").path();
        if kind.is_dir() {
            files.extend(fs::read_dir(kind).expect("a folder").map(|file| file.expect("a file").path()));
        }
    }
    files.sort();
    files
}

#[test]
fn objects_come_out_as_kube_apiserver_stores_or_refuses_them() {
    let cases = cases();
    assert!(cases.len() > 150, "only {} cases found", cases.len());
    let only = std::env::var("RULES_CASE").unwrap_or_default();
    let failures: Vec<String> = cases
        .iter()
        .filter(|file| file.to_string_lossy().contains(&only))
        .filter_map(|file| check(file).err())
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} cases differ\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}
