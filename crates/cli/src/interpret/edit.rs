//! `interpret --edit`: the scripts of one customization as one Lua file, in the user's editor.
//!
//! Lines `---@name:`, `---@apiVersion:`, `---@kind:` and `---@rule:` mark what follows; other lines that begin with `--` are
//! comments and dropped, as in upstream. If the file cannot be used, the editor opens again, with the reason on top.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use api::config::{
    CustomizationRules, CustomizationTarget, LuaScriptHolder, ResourceInterpreterCustomizationSpec,
};
use interpreter::{Operation, lua};
use serde_json::{Value, json};

use super::{Arguments, PATH, in_order, parse as operation, read};
use crate::failure::{Ended, is_not_found};
use crate::manifests::Manifest;
use crate::output;
use crate::print::Format;
use crate::server::segment;

const NAME: &str = "---@name:";
const API_VERSION: &str = "---@apiVersion:";
const KIND: &str = "---@kind:";
const RULE: &str = "---@rule:";
const RESOURCE: &str = "resourceinterpretercustomizations";

/// The parsed content of the edited file.
#[derive(Debug, Clone, Default, PartialEq)]
struct Edited {
    name: String,
    spec: ResourceInterpreterCustomizationSpec,
}

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let manifest = chosen(arguments).await?;
    let typed = read(&manifest).map_err(anyhow::Error::msg)?;
    let original = Edited { name: typed.metadata.name.clone().unwrap_or_default(), spec: typed.spec.clone() };
    let (mut text, mut reasons) = (print(&original, arguments.show_doc), Vec::new());
    let mut rejected: Option<String> = None;
    loop {
        let (edited, file) = launch(&format!("{}{text}", header(&reasons)))?;
        let stripped = without_comments(&edited);
        if rejected.as_deref() == Some(stripped.as_str()) {
            output::warn(&format!(
                "A copy of your changes has been stored to {:?}",
                file.display().to_string()
            ));
            bail!("Edit cancelled, no valid changes were saved.");
        }
        let refused = match parse(&edited) {
            Err(why) => why,
            Ok(new) if new == original => {
                let _ = std::fs::remove_file(&file);
                output::warn("Edit cancelled, no changes made.");
                return Ok(());
            }
            Ok(new) => match save(arguments, &manifest, &original, &new).await {
                Ok(saved) => {
                    let _ = std::fs::remove_file(&file);
                    return tell(arguments, &saved);
                }
                Err(error) if is_invalid(&error) => crate::told(&error).0,
                Err(error) => {
                    if is_not_found(&error) {
                        output::warn(&format!(
                            "error: {RESOURCE} {:?} could not be found on the server",
                            new.name
                        ));
                        let kept = file.display().to_string();
                        output::warn(&format!(
                            "The edits you made on deleted resources have been saved to {kept:?}"
                        ));
                        return Err(Ended(1).into());
                    }
                    let kept = file.display().to_string();
                    output::warn(&format!("A copy of your changes has been stored to {kept:?}"));
                    return Err(error);
                }
            },
        };
        output::warn(&format!("error: {RESOURCE} {:?} is invalid", original.name));
        reasons = vec![format!("{RESOURCE} {:?} was not valid: {refused}", original.name)];
        rejected = Some(stripped.clone());
        text = stripped;
        let _ = std::fs::remove_file(&file);
    }
}

/// Returns the one customization to edit; for a missing file, an empty one.
async fn chosen(arguments: &Arguments) -> anyhow::Result<Manifest> {
    if let ([file], true) = (&arguments.files.filename[..], arguments.names.is_empty())
        && !file.contains("://")
        && file != "-"
        && !Path::new(file).exists()
    {
        let object = json!({ "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization",
            "metadata": {}, "spec": { "target": { "apiVersion": "", "kind": "" }, "customizations": {} } });
        return Ok(Manifest { source: file.clone(), object });
    }
    let mut found = arguments.read().await?;
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        _ => bail!("only one customization can be edited"),
    }
}

fn print(edited: &Edited, documented: bool) -> String {
    let target = &edited.spec.target;
    let mut text =
        format!("{NAME} {}\n{API_VERSION} {}\n{KIND} {}\n", edited.name, target.api_version, target.kind);
    for (operation, script) in in_order(&edited.spec.customizations) {
        text.push_str(&format!("{RULE} {operation}\n"));
        if documented {
            text.extend(document(operation).lines().map(|line| format!("-- {line}\n")));
        }
        if let Some(script) = script {
            text.push_str(script);
            if !script.ends_with('\n') {
                text.push('\n');
            }
        }
    }
    text
}

fn parse(text: &str) -> Result<Edited, String> {
    let mut edited = Edited::default();
    let mut scripts: Vec<(Operation, String)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let after = |prefix: &str| trimmed.strip_prefix(prefix).map(|rest| rest.trim().to_owned());
        if let Some(name) = after(NAME) {
            edited.name = name;
        } else if let Some(version) = after(API_VERSION) {
            edited.spec.target.api_version = version;
        } else if let Some(kind) = after(KIND) {
            edited.spec.target.kind = kind;
        } else if let Some(rule) = after(RULE) {
            let known = operation(&rule).map_err(|why| format!("line {}: {why}", number + 1))?;
            scripts.push((known, String::new()));
        } else if trimmed.starts_with("--") {
            // Comments are only for the user.
        } else if let Some((_, script)) = scripts.last_mut() {
            script.push_str(line);
            script.push('\n');
        } else if !trimmed.is_empty() {
            return Err(format!("line {}: unexpected line {line:?}", number + 1));
        }
    }
    for (operation, script) in scripts {
        if script.trim().is_empty() {
            continue;
        }
        if let Some(fault) = lua::fault(&script) {
            return Err(format!("{operation}: {}", fault.trim()));
        }
        *rule(&mut edited.spec.customizations, operation) = Some(LuaScriptHolder { lua_script: script });
    }
    let CustomizationTarget { api_version, kind } = &edited.spec.target;
    if edited.name.is_empty() || api_version.is_empty() || kind.is_empty() {
        return Err(format!("{NAME}, {API_VERSION} and {KIND} must be set"));
    }
    Ok(edited)
}

fn rule(rules: &mut CustomizationRules, operation: Operation) -> &mut Option<LuaScriptHolder> {
    match operation {
        Operation::Retain => &mut rules.retention,
        Operation::InterpretReplica => &mut rules.replica_resource,
        Operation::InterpretComponent => &mut rules.component_resource,
        Operation::ReviseReplica => &mut rules.replica_revision,
        Operation::InterpretStatus => &mut rules.status_reflection,
        Operation::AggregateStatus => &mut rules.status_aggregation,
        Operation::InterpretHealth => &mut rules.health_interpretation,
        Operation::InterpretDependency => &mut rules.dependency_interpretation,
    }
}

/// Returns the purpose of a rule and the signature of its script.
fn document(operation: Operation) -> &'static str {
    match operation {
        Operation::Retain => {
            "Keeps what the member cluster owns:\nfunction Retain(desiredObj, observedObj)\n  \
             desiredObj.spec.field = observedObj.spec.field\n  return desiredObj\nend"
        }
        Operation::InterpretReplica => {
            "Counts replicas and tells what one needs:\nlocal kube = require(\"kube\")\n\
             function GetReplicas(desiredObj)\n  \
             return desiredObj.spec.replicas, kube.accuratePodRequirements(desiredObj.spec.template)\nend"
        }
        Operation::InterpretComponent => {
            "Lists the parts of a workload with several pod templates:\nfunction GetComponents(desiredObj)\n  \
             return {{name = 'worker', replicas = 2}}\nend"
        }
        Operation::ReviseReplica => {
            "Changes the number of replicas:\nfunction ReviseReplica(desiredObj, desiredReplica)\n  \
             desiredObj.spec.replicas = desiredReplica\n  return desiredObj\nend"
        }
        Operation::InterpretStatus => {
            "Picks what is collected of the status:\nfunction ReflectStatus(observedObj)\n  \
             return {readyReplicas = observedObj.status.readyReplicas}\nend"
        }
        Operation::AggregateStatus => {
            "Sums up what was collected:\nfunction AggregateStatus(desiredObj, statusItems)\n  \
             for _, item in ipairs(statusItems or {}) do end\n  return desiredObj\nend"
        }
        Operation::InterpretHealth => {
            "Judges the health:\nfunction InterpretHealth(observedObj)\n  \
             return observedObj.status.ready == true\nend"
        }
        Operation::InterpretDependency => {
            "Lists what the resource refers to:\nfunction GetDependencies(desiredObj)\n  \
             return {{apiVersion = 'v1', kind = 'Secret', namespace = 'default', name = 'x'}}\nend"
        }
    }
}

fn header(reasons: &[String]) -> String {
    let mut text = String::from(
        "-- Please edit the object below. Lines beginning with a '--' will be ignored,\n\
         -- and an empty file will abort the edit. If an error occurs while saving this file will be\n\
         -- reopened with the relevant failures.\n--\n",
    );
    for line in reasons.iter().flat_map(|reason| reason.lines()) {
        text.push_str(&format!("-- {line}\n"));
    }
    if !reasons.is_empty() {
        text.push_str("--\n");
    }
    text
}

fn without_comments(text: &str) -> String {
    let keep = |line: &&str| !line.trim().starts_with("--") || line.trim().starts_with("---@");
    text.lines().filter(keep).map(|line| format!("{line}\n")).collect()
}

/// Lets the user edit a text; returns it, and the file with it.
fn launch(text: &str) -> anyhow::Result<(String, PathBuf)> {
    let file = std::env::temp_dir().join(format!("karmadactl-edit-{}.lua", rand::random::<u32>()));
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    let editor = ["KUBE_EDITOR", "EDITOR"].iter().find_map(|name| std::env::var(name).ok());
    let editor = editor.filter(|editor| !editor.trim().is_empty()).unwrap_or_else(|| "vi".to_owned());
    // An editor may have arguments; the shell splits them, as in kubectl.
    let status = Command::new("/bin/sh")
        .arg("-c")
        .arg(format!("{editor} \"$0\""))
        .arg(&file)
        .status()
        .with_context(|| format!("unable to launch the editor {editor:?}"))?;
    if !status.success() {
        bail!("there was a problem with the editor {editor:?}");
    }
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok((text, file))
}

fn is_invalid(error: &anyhow::Error) -> bool {
    let refusal = error.downcast_ref::<crate::failure::Refusal>();
    refusal.is_some_and(|refusal| matches!(refusal.code, 403 | 422))
}

/// Writes the result to where it came from; returns the object as it is there now.
async fn save(
    arguments: &Arguments,
    manifest: &Manifest,
    original: &Edited,
    new: &Edited,
) -> anyhow::Result<Value> {
    let mut object = manifest.object.clone();
    object["metadata"]["name"] = new.name.clone().into();
    object["spec"] = serde_json::to_value(&new.spec)?;
    let source = &manifest.source;
    if source.is_empty() {
        if new.name != original.name {
            bail!("At least one of apiVersion, kind and name was changed");
        }
        let patch = apimachinery::patch::merge::diff(&manifest.object, &object).unwrap_or_else(|| json!({}));
        let plane = arguments.connection.plane().await?;
        let path = format!("{PATH}/{}?fieldManager=kubectl-edit", segment(&new.name));
        return plane.server.patch(&path, "application/merge-patch+json", &patch).await;
    }
    let json = std::fs::read_to_string(source).is_ok_and(|text| text.trim_start().starts_with('{'));
    let text = if json { crate::print::pretty(&object) } else { apimachinery::yaml::write(&object) };
    if source == "STDIN" || source.contains("://") {
        output::print(&text);
    } else {
        std::fs::write(source, text).with_context(|| format!("cannot write {source}"))?;
    }
    Ok(object)
}

fn tell(arguments: &Arguments, object: &Value) -> anyhow::Result<()> {
    match &arguments.output {
        Some(format) => output::print(&Format::parse(format, false)?.print(object, false)?),
        None => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            output::line(&format!("resourceinterpretercustomization.config.karmada.io/{name} edited"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use interpreter::{Customizations, Question};

    use super::super::RULES;
    use super::*;

    fn edited() -> Edited {
        let mut it = Edited { name: "c".to_owned(), ..Edited::default() };
        it.spec.target =
            CustomizationTarget { api_version: "apps/v1".to_owned(), kind: "Deployment".to_owned() };
        let script = "function InterpretHealth(o)\n  return true\nend\n";
        it.spec.customizations.health_interpretation =
            Some(LuaScriptHolder { lua_script: script.to_owned() });
        it
    }

    #[test]
    fn the_file_can_be_read_again_with_comments_and_without() {
        for documented in [false, true] {
            let text = format!("{}{}", header(&["a\nb".to_owned()]), print(&edited(), documented));
            assert_eq!(parse(&text), Ok(edited()), "{text}");
        }
    }

    #[test]
    fn every_document_shows_a_script_that_can_be_used() {
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
            "spec": { "field": 1, "replicas": 2, "template": { "spec": {} } },
            "status": { "ready": true, "readyReplicas": 1 },
        });
        for operation in RULES {
            let script = document(operation).lines().skip(1).map(|line| format!("{line}\n")).collect();
            let mut spec = edited().spec;
            *rule(&mut spec.customizations, operation) = Some(LuaScriptHolder { lua_script: script });
            let customization = json!({ "metadata": { "name": "c" }, "spec": spec });
            let rules = Customizations::new(std::sync::Arc::new(jiff::Timestamp::now));
            rules.load([&serde_json::from_value(customization).expect("a customization")]);
            let object = object.clone();
            let question = match operation {
                Operation::Retain => Question::Retain { desired: object.clone(), observed: object },
                Operation::InterpretReplica => Question::Replicas { object },
                Operation::InterpretComponent => Question::Components { object },
                Operation::ReviseReplica => Question::Revise { object, replicas: 3 },
                Operation::InterpretStatus => Question::Status { object },
                Operation::AggregateStatus => {
                    Question::Aggregate { object, items: Vec::new(), now: jiff::Timestamp::UNIX_EPOCH }
                }
                Operation::InterpretHealth => Question::Health { object },
                Operation::InterpretDependency => Question::Dependencies { object },
            };
            let answer = question.put_to(&rules);
            assert!(answer.is_ok(), "{operation}: {answer:?}");
        }
    }

    #[test]
    fn unusable_parts_are_named() {
        let text = print(&edited(), false);
        for (text, expected) in [
            ("x = 1\n".to_owned(), "line 1: unexpected line \"x = 1\""),
            (format!("{text}{RULE} Nothing\n"), "line 15: operation Nothing is not supported."),
            (text.replace("return true", "return ("), "InterpretHealth: <string> line:3"),
            (
                text.replace("---@kind: Deployment", "---@kind:"),
                "---@name:, ---@apiVersion: and ---@kind: must be set",
            ),
        ] {
            let error = parse(&text).expect_err("unusable");
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
