//! Labels and annotations: the common part of `label` and `annotate`.
//!
//! In: `TYPE NAME… KEY=VALUE… KEY-…`. Out: a merge patch per object, and a message about the result.

use anyhow::bail;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::failure::Failures;
use crate::manifests::Files;
use crate::output;
use crate::print::{DryRun, DryRunFlag, Output};
use crate::select::{Item, Query};
use crate::server::{Namespaced, Server, query};

/// The flags of both.
#[derive(Debug, Clone, Args)]
#[group(id = "marks")]
pub struct Arguments {
    /// TYPE NAME… or TYPE/NAME…, then KEY=VALUE to set and KEY- to remove.
    #[arg(value_name = "RESOURCE|KEY=VALUE|KEY-")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub files: Files,
    /// Select all objects of the types, in the namespace.
    #[arg(long)]
    pub all: bool,
    /// Act in all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector, such as app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Field selector, such as metadata.name=web.
    #[arg(long, value_name = "SELECTOR")]
    pub field_selector: Option<String>,
    /// Show what the objects have.
    #[arg(long)]
    pub list: bool,
    /// Change the content of the files only; the server is not asked.
    #[arg(long, requires = "filename")]
    pub local: bool,
    /// Allow values to be overwritten.
    #[arg(long)]
    pub overwrite: bool,
    /// Change only an object that has this resource version.
    #[arg(long, value_name = "VERSION", default_value = "")]
    pub resource_version: String,
    #[command(flatten)]
    pub dry_run: DryRunFlag,
    #[command(flatten)]
    pub output: Output,
}

/// The kind of mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Label,
    Annotation,
}

impl Mark {
    fn field(self) -> &'static str {
        if self == Self::Label { "labels" } else { "annotations" }
    }

    fn noun(self) -> &'static str {
        if self == Self::Label { "label" } else { "annotation" }
    }

    /// The message about an object, from its marks before and after.
    fn done(self, old: &Value, new: &Value, overwrite: bool) -> &'static str {
        if self == Self::Annotation {
            return "annotated";
        }
        if old == new {
            return "not labeled";
        }
        if !overwrite && new.to_string().len() < old.to_string().len() { "unlabeled" } else { "labeled" }
    }
}

/// What to set and what to remove.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    set: Vec<(String, String)>,
    remove: Vec<String>,
}

pub(crate) async fn run(mark: Mark, arguments: Arguments, manager: &str) -> anyhow::Result<()> {
    let dry_run = arguments.dry_run.get()?;
    let (resources, changes) = parse(mark, &arguments.words)?;
    if resources.is_empty() && arguments.files.is_empty() {
        bail!("one or more resources must be specified as <resource> <name> or <resource>/<name>");
    }
    if arguments.list && arguments.output.output.as_deref().is_some_and(|format| !format.is_empty()) {
        bail!("--list and --output may not be specified together");
    }
    if changes.set.is_empty() && changes.remove.is_empty() && !arguments.list {
        bail!("at least one {} update is required", mark.noun());
    }
    if arguments.all && (arguments.selector.is_some() || arguments.field_selector.is_some()) {
        bail!("cannot set --all and --selector at the same time");
    }
    if arguments.local {
        return local(mark, &arguments, &changes).await;
    }
    let plane = arguments.place.plane().await?;
    let asked = Query {
        words: resources,
        files: arguments.files.clone(),
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        all_namespaces: arguments.all_namespaces,
        labels: arguments.selector.clone(),
        fields: arguments.field_selector.clone(),
        all: arguments.all || arguments.list,
        ..Query::default()
    };
    let (items, mut failures) = asked.items(&plane.server).await?;
    if !arguments.resource_version.is_empty() && items.len() > 1 {
        bail!("--resource-version may only be used with a single resource");
    }
    let several = items.len() > 1;
    for item in items {
        if let Err(error) =
            one(mark, &arguments, &changes, &plane.server, item, several, dry_run, manager).await
        {
            failures.push(error);
        }
    }
    Failures::check(failures)
}

#[expect(clippy::too_many_arguments, reason = "all of it belongs to one object's change")]
async fn one(
    mark: Mark,
    arguments: &Arguments,
    changes: &Changes,
    server: &Server,
    item: Item,
    several: bool,
    dry_run: DryRun,
    manager: &str,
) -> anyhow::Result<()> {
    let old = item.object["metadata"][mark.field()].clone();
    if !changes.set.is_empty() || !changes.remove.is_empty() {
        changes.check(mark, &old, arguments.overwrite)?;
    }
    let mut object = item.object.clone();
    if !changes.set.is_empty() || !changes.remove.is_empty() {
        for key in changes.remove.iter().filter(|key| old[key.as_str()].is_null() && mark == Mark::Label) {
            output::line(&format!("label {} not found.", apimachinery::go::quote(key)));
        }
        let patch = changes.patch(mark, &arguments.resource_version);
        // The result is shown, but nothing is written.
        if dry_run == DryRun::Client || arguments.list {
            apimachinery::patch::merge::apply(&mut object, patch);
        } else {
            let path = format!("{}?fieldManager={}{}", item.path(), query(manager), dry_run.query());
            object = server.patch(&path, "application/merge-patch+json", &patch).await?;
        }
    }
    if arguments.list {
        let indent = if several { " " } else { "" };
        if several {
            let group = if item.resource.group.is_empty() {
                String::new()
            } else {
                format!(".{}", item.resource.group)
            };
            output::line(&format!(
                "Listing {} for {}{group}/{}:",
                mark.field(),
                item.resource.kind,
                item.name
            ));
        }
        for (key, value) in object["metadata"][mark.field()].as_object().into_iter().flatten() {
            output::line(&format!("{indent}{key}={}", value.as_str().unwrap_or("")));
        }
        return Ok(());
    }
    let done = mark.done(&old, &object["metadata"][mark.field()], arguments.overwrite);
    arguments.output.tell(&item.resource, &object, done, dry_run)
}

async fn local(mark: Mark, arguments: &Arguments, changes: &Changes) -> anyhow::Result<()> {
    for manifest in arguments.files.read().await? {
        let mut object = manifest.object;
        let old = object["metadata"][mark.field()].clone();
        changes.check(mark, &old, arguments.overwrite)?;
        apimachinery::patch::merge::apply(&mut object, changes.patch(mark, ""));
        let api_version = object["apiVersion"].as_str().unwrap_or("");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = crate::discovery::Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: object["kind"].as_str().unwrap_or("").to_owned(),
            ..Default::default()
        };
        let done = mark.done(&old, &object["metadata"][mark.field()], arguments.overwrite);
        arguments.output.tell(&resource, &object, done, DryRun::None)?;
    }
    Ok(())
}

/// Sorts the words: resources first, then changes.
fn parse(mark: Mark, words: &[String]) -> anyhow::Result<(Vec<String>, Changes)> {
    let mut resources = Vec::new();
    let mut changes = Changes::default();
    let mut begun = false;
    for word in words {
        if let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty()) {
            begun = true;
            check_key(mark, key, word)?;
            if mark == Mark::Label {
                let complaints = apimachinery::names::label_value(value);
                if !complaints.is_empty() {
                    bail!("invalid label value: {}: {}", apimachinery::go::quote(word), complaints.join(";"));
                }
            }
            changes.set.push((key.to_owned(), value.to_owned()));
        } else if let Some(key) = word.strip_suffix('-').filter(|key| !key.is_empty()) {
            begun = true;
            changes.remove.push(key.to_owned());
        } else if begun {
            bail!("all resources must be specified before {} changes: {word}", mark.noun());
        } else {
            resources.push(word.clone());
        }
    }
    if let Some((key, _)) = changes.set.iter().find(|(key, _)| changes.remove.contains(key)) {
        let key =
            if mark == Mark::Label { String::new() } else { format!(" {}", apimachinery::go::quote(key)) };
        bail!("can not both modify and remove {}{key} in the same command", article(mark));
    }
    Ok((resources, changes))
}

fn article(mark: Mark) -> &'static str {
    if mark == Mark::Label { "a label" } else { "an annotation" }
}

fn check_key(mark: Mark, key: &str, word: &str) -> anyhow::Result<()> {
    let complaints = apimachinery::names::qualified_name(key);
    if !complaints.is_empty() {
        bail!("invalid {} key {}: {}", mark.noun(), apimachinery::go::quote(word), complaints.join(";"));
    }
    Ok(())
}

impl Changes {
    /// Refuses to overwrite unless that was requested.
    fn check(&self, mark: Mark, old: &Value, overwrite: bool) -> anyhow::Result<()> {
        if overwrite {
            return Ok(());
        }
        let taken: Vec<String> = self
            .set
            .iter()
            .filter_map(|(key, value)| {
                let had = old[key.as_str()].as_str().filter(|had| had != value)?;
                Some(format!("'{key}' already has a value ({had})"))
            })
            .collect();
        match (mark, &taken[..]) {
            (_, []) => Ok(()),
            (Mark::Label, several) => bail!("{}, and --overwrite is false", several.join(", ")),
            (Mark::Annotation, several) => bail!(
                "--overwrite is false but found the following declared annotation(s): {}",
                several.join("; ")
            ),
        }
    }

    fn patch(&self, mark: Mark, resource_version: &str) -> Value {
        let mut map: Map<String, Value> =
            self.set.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
        map.extend(self.remove.iter().map(|key| (key.clone(), Value::Null)));
        let mut metadata = Map::new();
        metadata.insert(mark.field().to_owned(), map.into());
        if !resource_version.is_empty() {
            metadata.insert("resourceVersion".to_owned(), resource_version.into());
        }
        json!({ "metadata": metadata })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mark: Mark, line: &str) -> anyhow::Result<(Vec<String>, Changes)> {
        parse(mark, &line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_resources_first_and_changes_then() {
        let (resources, changes) = read(Mark::Label, "deploy web a=1 b- c=").expect("good");
        assert_eq!(resources, ["deploy", "web"]);
        assert_eq!(changes.set, [("a".to_owned(), "1".to_owned()), ("c".to_owned(), String::new())]);
        assert_eq!(
            changes.patch(Mark::Label, "7"),
            json!({"metadata": {"labels": {"a": "1", "b": null, "c": ""}, "resourceVersion": "7"}})
        );
        for (line, complaint) in [
            ("po x a=1 y", "all resources must be specified before label changes: y"),
            ("po x a=1 a-", "can not both modify and remove a label in the same command"),
            ("po x a=!", "invalid label value: \"a=!\""),
            ("po x a$=1", "invalid label key"),
        ] {
            let error = read(Mark::Label, line).expect_err(line).to_string();
            assert!(error.contains(complaint), "{line}: {error}");
        }
        assert!(read(Mark::Annotation, "po x a=!").is_ok());
    }

    #[test]
    fn nothing_is_overwritten_by_accident() {
        let changes = read(Mark::Label, "po x a=1").expect("good").1;
        assert!(changes.check(Mark::Label, &json!({"a": "1"}), false).is_ok());
        assert!(changes.check(Mark::Label, &json!({"a": "2"}), true).is_ok());
        let error = changes.check(Mark::Label, &json!({"a": "2"}), false).expect_err("taken").to_string();
        assert_eq!(error, "'a' already has a value (2), and --overwrite is false");
        let error =
            changes.check(Mark::Annotation, &json!({"a": "2"}), false).expect_err("taken").to_string();
        assert!(error.ends_with("declared annotation(s): 'a' already has a value (2)"), "{error}");
    }

    #[test]
    fn the_message_depends_on_the_difference() {
        let (one, two) = (json!({"a": "1"}), json!({"a": "1", "b": "2"}));
        assert_eq!(Mark::Label.done(&one, &one, false), "not labeled");
        assert_eq!(Mark::Label.done(&one, &two, false), "labeled");
        assert_eq!(Mark::Label.done(&two, &one, false), "unlabeled");
        assert_eq!(Mark::Annotation.done(&one, &one, false), "annotated");
    }
}
