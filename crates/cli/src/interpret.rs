//! `interpret`: a test bench for ResourceInterpreterCustomizations. With `-f` it needs no server.
//!
//! `--check` compiles the scripts, `--operation` runs one of them on objects from files, `--edit` edits them as one Lua file.
//! Errors are reported with their file and line. `--built-in` uses the built-in rules.

mod edit;
mod place;

use anyhow::{Context, bail};
use api::config::{CustomizationRules, ResourceInterpreterCustomization};
use api::work::AggregatedStatusItem;
use apimachinery::gvk::Gvk;
use clap::Args;
use interpreter::{
    Answer, AtOnce, Customizations, Interpreter, Operation, Question, Rulebook as _, lua, scripts,
    third_party_kinds,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::failure::{Ended, Plain};
use crate::manifests::{Files, Manifest};
use crate::output;
use crate::server::{Connection, segment};

const PATH: &str = "/apis/config.karmada.io/v1alpha1/resourceinterpretercustomizations";

/// Validate, test and edit interpreter customization before applying it to the control plane.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Check the customizations in a file
  karmadactl interpret -f customization.yaml --check

  # Execute the retention rule
  karmadactl interpret -f customization.yaml --operation retain --desired-file desired.yaml --observed-file observed.yaml

  # Execute the rule that counts replicas
  karmadactl interpret -f customization.yaml --operation interpretReplica --observed-file observed.yaml

  # Execute the rule that sums up the status; the items come from stdin
  karmadactl interpret -f customization.yaml --operation aggregateStatus --observed-file observed.yaml --status-file -

  # Edit a customization of the control plane
  karmadactl interpret my-customization --edit

  # Show which kinds need no customization
  karmadactl interpret --built-in")]
pub struct Arguments {
    /// Customizations of the control plane.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub files: Files,
    /// Validates the given ResourceInterpreterCustomization configuration(s).
    #[arg(long)]
    pub check: bool,
    /// Edit customizations.
    #[arg(long)]
    pub edit: bool,
    /// Show document of rules when editing.
    #[arg(long)]
    pub show_doc: bool,
    /// The interpret operation to use: Retain, InterpretReplica, InterpretComponent, ReviseReplica, InterpretStatus,
    /// AggregateStatus, InterpretHealth or InterpretDependency, in any case.
    #[arg(long, value_name = "OPERATION")]
    pub operation: Option<String>,
    /// File or URL with the object to use as desiredObj argument in rule script; `-` is stdin.
    #[arg(long, value_name = "FILE")]
    pub desired_file: Option<String>,
    /// File or URL with the object to use as observedObj argument in rule script; `-` is stdin.
    #[arg(long, value_name = "FILE")]
    pub observed_file: Option<String>,
    /// File or URL with the items to use as statusItems argument in rule script; `-` is stdin.
    #[arg(long, value_name = "FILE")]
    pub status_file: Option<String>,
    /// The desiredReplica argument in rule script.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub desired_replica: i32,
    /// Ask the built-in rules instead of customizations; without an operation, show which kinds they know.
    #[arg(long, conflicts_with_all = ["check", "edit"])]
    pub built_in: bool,
    /// Output format of what was edited. One of: (json, yaml, kyaml, name).
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// Record current kubectl command in the resource annotation; accepted for compatibility.
    #[arg(long, hide = true)]
    pub record: bool,
}

/// In the order in which users see them.
const RULES: [Operation; 8] = [
    Operation::Retain,
    Operation::InterpretReplica,
    Operation::InterpretComponent,
    Operation::ReviseReplica,
    Operation::InterpretStatus,
    Operation::AggregateStatus,
    Operation::InterpretHealth,
    Operation::InterpretDependency,
];

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if arguments.check && arguments.edit {
        bail!("you can't set both --check and --edit options");
    }
    let operation = arguments.operation.as_deref().map(parse).transpose()?;
    if arguments.edit {
        return edit::run(&arguments).await;
    }
    if arguments.built_in {
        return match operation {
            Some(operation) => execute(&arguments, operation, None, &[]).await,
            None => {
                output::print(&built_in());
                Ok(())
            }
        };
    }
    if operation.is_none() && !arguments.check && !(arguments.names.is_empty() && arguments.files.is_empty())
    {
        bail!("operation is not set for executing");
    }
    let customizations = arguments.read().await?;
    if arguments.check {
        let (text, passed) = check(&customizations);
        output::print(&text);
        return if passed { Ok(()) } else { Err(Ended(1).into()) };
    }
    let Some(operation) = operation else { bail!("operation is not set for executing") };
    let mut typed = Vec::new();
    for manifest in &customizations {
        typed.push(read(manifest).map_err(|why| anyhow::anyhow!("fail to get customization object: {why}"))?);
    }
    let rules = Customizations::new(std::sync::Arc::new(Timestamp::now));
    rules.load(&typed);
    execute(&arguments, operation, Some(rules), &customizations).await
}

/// Parses the name of an operation.
fn parse(text: &str) -> anyhow::Result<Operation> {
    let known = RULES.into_iter().find(|each| each.as_str().eq_ignore_ascii_case(text));
    known.with_context(|| {
        let names: Vec<&str> = RULES.iter().map(|each| each.as_str()).collect();
        format!("operation {text} is not supported. Use one of: {}", names.join(", "))
    })
}

/// Reads a customization; if the file contains another kind, the error names it.
fn read(manifest: &Manifest) -> Result<ResourceInterpreterCustomization, String> {
    let object = &manifest.object;
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    if (text("apiVersion"), text("kind"))
        != ("config.karmada.io/v1alpha1", "ResourceInterpreterCustomization")
    {
        let found = Gvk::from_api_version(text("apiVersion"), text("kind"));
        return Err(format!("not a ResourceInterpreterCustomization, got {found}"));
    }
    serde_json::from_value(object.clone()).map_err(|error| format!("{}: {error}", manifest.source))
}

impl Arguments {
    /// Reads the customizations from files or from the control plane. The source of the latter is empty.
    async fn read(&self) -> anyhow::Result<Vec<Manifest>> {
        let mut found =
            if self.files.is_empty() { Vec::new() } else { self.files.read().await.map_err(missing)? };
        if !self.names.is_empty() {
            if !self.files.is_empty() {
                bail!(
                    "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well"
                );
            }
            let plane = self.connection.plane().await?;
            for name in &self.names {
                let object = plane.server.get(&format!("{PATH}/{}", segment(name))).await?;
                found.push(Manifest { source: String::new(), object });
            }
        }
        if found.is_empty() {
            bail!("must specify one of -f, the names of customizations, or --built-in");
        }
        Ok(found)
    }
}

/// Compiles all scripts; returns the output and whether all of them are valid.
fn check(manifests: &[Manifest]) -> (String, bool) {
    let (mut text, mut passed) = (String::new(), true);
    for manifest in manifests {
        let name = manifest.object["metadata"]["name"].as_str().filter(|name| !name.is_empty());
        text.push_str("-----------------------------------\n");
        text.push_str(&format!("SOURCE: {}\n", name.unwrap_or(&manifest.source)));
        let fault = match read(manifest) {
            Err(why) => Some(why),
            Ok(it) if it.spec.target.kind.is_empty() => Some("target.kind no set".to_owned()),
            Ok(it) if it.spec.target.api_version.is_empty() => Some("target.apiVersion no set".to_owned()),
            Ok(it) => {
                let target = &it.spec.target;
                text.push_str(&format!("TARGET: {} {}\n", target.api_version, target.kind));
                text.push_str("RULERS:\n");
                passed &= check_rules(&it.spec.customizations, manifest, &mut text);
                None
            }
        };
        if let Some(why) = fault {
            passed = false;
            text.push_str(&format!("{why}\n"));
        }
    }
    (text, passed)
}

fn check_rules(rules: &CustomizationRules, manifest: &Manifest, text: &mut String) -> bool {
    let mut passed = true;
    for (operation, script) in in_order(rules) {
        let name = format!("{operation}:");
        let verdict = match script.map(|script| (script, lua::fault(script))) {
            None => "UNSET".to_owned(),
            Some((_, None)) => "PASS".to_owned(),
            Some((script, Some(fault))) => {
                passed = false;
                let place = place::in_file(manifest, script, place::line(&fault));
                let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
                format!("ERROR: {}{place}", fault.trim())
            }
        };
        // Like upstream's tab stops: the longest name and three spaces.
        text.push_str(&format!("    {name:<23}{verdict}\n"));
    }
    passed
}

/// Returns the scripts in the order in which users see them.
fn in_order(rules: &CustomizationRules) -> Vec<(Operation, Option<&str>)> {
    let known = scripts(rules);
    let find = |operation: &Operation| known.iter().find(|(each, _)| each == operation).copied();
    RULES.iter().filter_map(find).collect()
}

/// Runs one operation and prints its result; without customizations, by the built-in rules.
async fn execute(
    arguments: &Arguments,
    operation: Operation,
    rules: Option<Customizations>,
    manifests: &[Manifest],
) -> anyhow::Result<()> {
    let wrong = |what: &str, error: anyhow::Error| match error.downcast::<Plain>() {
        Ok(plain) => plain.into(),
        Err(error) => error.context(format!("fail to get {what} object")),
    };
    let desired = object(&arguments.desired_file).await.map_err(|error| wrong("desired", error))?;
    let observed = object(&arguments.observed_file).await.map_err(|error| wrong("observed", error))?;
    let items = items(&arguments.status_file).await.context("fail to get status items")?;
    let replicas = i64::from(arguments.desired_replica);
    let asked = question(operation, desired, observed, items, replicas);
    let answer = match asked {
        Ok(question) => answer(question, rules).await.map_err(|error| match error {
            interpreter::Error::Script { customization, message, .. } => {
                let place = place::of_run(manifests, &customization, operation, &message);
                place.map_or(message.clone(), |place| format!("{message}\n    at {place}"))
            }
            interpreter::Error::NoRule { .. }
            | interpreter::Error::NoDependencyRule
            | interpreter::Error::NoComponentRule => "rule is not enabled".to_owned(),
            other => other.to_string(),
        }),
        Err(why) => Err(why),
    };
    match answer {
        Err(why) => output::warn(&format!("Execute {operation} error: {why}")),
        Ok(answer) => output::print(&documents(&named(operation, answer))),
    }
    Ok(())
}

/// Only the customizations answer: operations without a script are not enabled, even if a control plane has a rule for them.
async fn answer(question: Question, rules: Option<Customizations>) -> interpreter::Result<Answer> {
    let (kind, operation) = (question.kind(), question.operation());
    match rules {
        None => Interpreter::built_in([]).ask(question).await,
        Some(rules) if rules.supports(&kind, operation) => {
            Interpreter::with_layers([std::sync::Arc::new(AtOnce(rules)) as _]).ask(question).await
        }
        Some(_) => Err(interpreter::Error::NoRule { operation, kind }),
    }
}

fn question(
    operation: Operation,
    desired: Option<Value>,
    observed: Option<Value>,
    items: Vec<AggregatedStatusItem>,
    replicas: i64,
) -> Result<Question, String> {
    if operation == Operation::Retain {
        let desired = desired.ok_or("desired, desired-file options are not set")?;
        let observed = observed.ok_or("observed, observed-file options are not set")?;
        return Ok(Question::Retain { desired, observed });
    }
    let object = match (desired, observed) {
        (None, None) => return Err("desired-file, observed-file options are not set".to_owned()),
        (Some(_), Some(_)) => {
            return Err("you can not specify both desired-file and observed-file options".to_owned());
        }
        (Some(object), None) | (None, Some(object)) => object,
    };
    Ok(match operation {
        Operation::InterpretReplica => Question::Replicas { object },
        Operation::InterpretComponent => Question::Components { object },
        Operation::ReviseReplica => Question::Revise { object, replicas },
        Operation::AggregateStatus => Question::Aggregate { object, items, now: Timestamp::now() },
        Operation::InterpretStatus => Question::Status { object },
        Operation::InterpretHealth => Question::Health { object },
        Operation::InterpretDependency => Question::Dependencies { object },
        Operation::Retain => unreachable!("handled above"),
    })
}

/// For a missing file, the error has no prefix, as in upstream here.
fn missing(error: anyhow::Error) -> anyhow::Error {
    let text = error.to_string();
    if text.starts_with("the path ") { Plain(text).into() } else { error }
}

async fn object(file: &Option<String>) -> anyhow::Result<Option<Value>> {
    let Some(file) = file.as_deref().filter(|file| !file.is_empty()) else { return Ok(None) };
    let files = Files { filename: vec![file.to_owned()], ..Files::default() };
    let mut found = files.read().await.map_err(missing)?;
    if found.len() > 1 {
        bail!("get {} objects, expect one at most", found.len());
    }
    Ok(found.pop().map(|manifest| manifest.object))
}

async fn items(file: &Option<String>) -> anyhow::Result<Vec<AggregatedStatusItem>> {
    let Some(file) = file.as_deref().filter(|file| !file.is_empty()) else { return Ok(Vec::new()) };
    let text = match file {
        "-" => std::io::read_to_string(std::io::stdin()).context("cannot read stdin")?,
        url if url.starts_with("http://") || url.starts_with("https://") => {
            crate::manifests::download(url).await?
        }
        path => std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?,
    };
    let documents = apimachinery::yaml::read_all(&text)
        .map_err(|error| anyhow::anyhow!("error parsing {file}: {error}"))?;
    let mut items = Vec::new();
    for document in documents {
        match document.value {
            Value::Null => {}
            Value::Array(several) => {
                for each in several {
                    items
                        .push(serde_json::from_value(each).with_context(|| format!("error parsing {file}"))?);
                }
            }
            one => items.push(serde_json::from_value(one).with_context(|| format!("error parsing {file}"))?),
        }
    }
    Ok(items)
}

/// Returns the parts of an answer under upstream's names.
fn named(operation: Operation, answer: Answer) -> Vec<(&'static str, Value)> {
    match answer {
        Answer::Replicas(replicas) => {
            vec![("replica", json!(replicas.count)), ("requires", json!(replicas.requirements))]
        }
        Answer::Components(components) => vec![("components", json!(components))],
        Answer::Object(object) => {
            let name = match operation {
                Operation::Retain => "retained",
                Operation::ReviseReplica => "revised",
                _ => "aggregatedStatus",
            };
            vec![(name, object)]
        }
        Answer::Status(status) => vec![("status", json!(status))],
        Answer::Health(healthy) => vec![("healthy", json!(healthy))],
        Answer::Dependencies(dependencies) => vec![("dependencies", json!(dependencies))],
    }
}

fn documents(parts: &[(&str, Value)]) -> String {
    let count = parts.len();
    let texts = parts.iter().enumerate().map(|(index, (name, value))| {
        format!("---\n# [{}/{count}] {name}:\n{}", index + 1, apimachinery::yaml::write(value))
    });
    texts.collect()
}

/// Returns the table of kinds that need no customization.
fn built_in() -> String {
    let mut text = format!("{:<46}{:<20}OPERATIONS\n", "APIVERSION", "KIND");
    for (kind, operations) in third_party_kinds() {
        let names: Vec<&str> = operations.iter().map(|each| each.as_str()).collect();
        text.push_str(&format!("{:<46}{:<20}{}\n", kind.api_version(), kind.kind, names.join(",")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(text: &str) -> Manifest {
        let mut found = Vec::new();
        crate::manifests::parse("c.yaml", text, &mut found).expect("good YAML");
        found.remove(0)
    }

    const HEAD: &str = "apiVersion: config.karmada.io/v1alpha1\nkind: ResourceInterpreterCustomization\n";

    #[test]
    fn a_check_tells_of_every_rule_and_where_a_fault_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("c.yaml");
        let text = format!(
            "{HEAD}metadata: {{name: c}}\nspec:\n  target: {{apiVersion: apps/v1, kind: Deployment}}\n  customizations:\n    \
             retention:\n      luaScript: |\n        function Retain(d, o)\n          return d\n        end\n    \
             healthInterpretation:\n      luaScript: |\n        function InterpretHealth(o)\n          return (\n        end\n"
        );
        std::fs::write(&file, &text).expect("written");
        let mut it = manifest(&text);
        it.source = file.display().to_string();
        let (printed, passed) = check(&[it]);
        assert!(!passed);
        let expected = format!(
            "-----------------------------------\nSOURCE: c\nTARGET: apps/v1 Deployment\nRULERS:\n    \
             Retain:                PASS\n    InterpretReplica:      UNSET\n    InterpretComponent:    UNSET\n    \
             ReviseReplica:         UNSET\n    InterpretStatus:       UNSET\n    AggregateStatus:       UNSET\n    \
             InterpretHealth:       ERROR: <string> line:3(column:3) near 'end':   syntax error ({}:16)\n    \
             InterpretDependency:   UNSET\n",
            file.display()
        );
        assert_eq!(printed, expected);
    }

    #[test]
    fn an_object_of_another_kind_fails_the_check() {
        for (text, expected) in [
            (
                "apiVersion: v1\nkind: Pod\n".to_owned(),
                "not a ResourceInterpreterCustomization, got /v1, Kind=Pod",
            ),
            (
                format!("{HEAD}spec: {{target: {{apiVersion: v1, kind: ''}}, customizations: {{}}}}"),
                "target.kind no set",
            ),
            (
                format!("{HEAD}spec: {{target: {{apiVersion: '', kind: Pod}}, customizations: {{}}}}"),
                "target.apiVersion no set",
            ),
        ] {
            let (printed, passed) = check(&[manifest(&text)]);
            assert!(!passed, "{text}");
            let expected = format!("-----------------------------------\nSOURCE: c.yaml\n{expected}\n");
            assert_eq!(printed, expected);
        }
    }

    #[test]
    fn operations_are_known_in_any_case_and_need_their_objects() {
        assert_eq!(parse("interpretreplica").expect("known"), Operation::InterpretReplica);
        let error = parse("x").expect_err("unknown").to_string();
        assert!(
            error.starts_with("operation x is not supported. Use one of: Retain, InterpretReplica, "),
            "{error}"
        );
        let ask = |operation, desired: bool, observed: bool| {
            let object = |present: bool| present.then(|| json!({}));
            question(operation, object(desired), object(observed), Vec::new(), 0)
                .map(|question| question.operation())
        };
        let (retain, health) = (Operation::Retain, Operation::InterpretHealth);
        assert_eq!(ask(retain, true, true), Ok(retain));
        assert_eq!(ask(retain, false, true), Err("desired, desired-file options are not set".to_owned()));
        assert_eq!(ask(retain, true, false), Err("observed, observed-file options are not set".to_owned()));
        assert_eq!(ask(health, true, false), Ok(health));
        assert_eq!(
            ask(health, false, false),
            Err("desired-file, observed-file options are not set".to_owned())
        );
        let both = "you can not specify both desired-file and observed-file options";
        assert_eq!(ask(health, true, true), Err(both.to_owned()));
    }

    #[test]
    fn answers_are_documents_under_upstreams_names() {
        let replicas = Answer::Replicas(interpreter::Replicas { count: 3, requirements: None });
        let text = documents(&named(Operation::InterpretReplica, replicas));
        assert_eq!(text, "---\n# [1/2] replica:\n3\n---\n# [2/2] requires:\nnull\n");
        let revised = named(Operation::ReviseReplica, Answer::Object(json!({"a": 1})));
        assert_eq!(documents(&revised), "---\n# [1/1] revised:\na: 1\n");
    }

    #[test]
    fn the_built_in_kinds_are_shown() {
        let text = built_in();
        assert_eq!(text.lines().count(), 28, "{text}");
        assert!(
            text.contains(
                "ray.io/v1                                     RayCluster          InterpretComponent,"
            ),
            "{text}"
        );
    }
}
