//! `edit`: opens objects in the user's editor, and sends the changes to the control plane.
//!
//! In: objects of the server, as one file. Out: merge patches that contain only the differences, so that concurrent changes of
//! others are kept. If a file cannot be used, it is opened again with the reason on top; the user's text is never lost.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use apimachinery::patch::merge;
use clap::Args;
use serde_json::Value;

use crate::apply::remembered;
use crate::failure::{self, Failures};
use crate::manifests::{self, Files};
use crate::output;
use crate::print::{DryRun, Output, Validation, document, pretty};
use crate::select::{Item, Query};
use crate::server::{Namespaced, Plane, query, segment};

const HEAD: &str = "# Please edit the object below. Lines beginning with a '#' will be ignored,
# and an empty file will abort the edit. If an error occurs while saving this file will be
# reopened with the relevant failures.
#
";

/// Edit a resource from the default editor.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Edit deployment web with $KUBE_EDITOR, $EDITOR, or vi
  karmadactl edit deployment/web

  # Edit it as JSON
  karmadactl edit deployment web -o json

  # Edit its status
  karmadactl edit deployment web --subresource=status")]
pub struct Arguments {
    /// TYPE NAME… or TYPE/NAME….
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub validation: Validation,
    /// Name of the manager used to track field ownership.
    #[arg(long, value_name = "NAME", default_value = "kubectl-edit")]
    pub field_manager: String,
    /// Output the patch if the resource is edited.
    #[arg(long)]
    pub output_patch: bool,
    /// Keep the configuration in an annotation, for a later apply.
    #[arg(long)]
    pub save_config: bool,
    /// Edit this subresource of the object.
    #[arg(long, value_name = "SUBRESOURCE")]
    pub subresource: Option<String>,
    /// Lines of the file end as on Windows.
    #[arg(long)]
    pub windows_line_endings: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let json = match arguments.output.output.as_deref() {
        None | Some("" | "yaml") => false,
        Some("json") => true,
        Some(other) => bail!("The flag 'output' must be one of yaml|json, not {other}"),
    };
    let plane = arguments.place.plane().await?;
    let asked = Query {
        words: arguments.resources.clone(),
        files: arguments.files.clone(),
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        subresource: arguments.subresource.clone(),
        ..Query::default()
    };
    let (items, failures) = asked.items(&plane.server).await?;
    Failures::check(failures)?;
    if items.is_empty() {
        bail!("edit cancelled, no objects found");
    }
    let originals: Vec<Value> =
        items.iter().map(|item| shown(&item.object, arguments.output.show_managed_fields)).collect();
    let editor = Editor { json, windows: arguments.windows_line_endings };
    let mut session = Session::new(&editor, &originals)?;
    loop {
        let edited = match session.next()? {
            Outcome::Cancelled(words) => {
                output::warn(words);
                return Ok(());
            }
            Outcome::GaveUp => {
                output::warn(&format!("A copy of your changes has been stored to {}", session.keep()?));
                bail!("Edit cancelled, no valid changes were saved.");
            }
            Outcome::Edited(edited) => edited,
        };
        match save(&arguments, &plane, &items, &originals, &edited).await {
            Ok(()) => return Ok(()),
            Err(error) => session.again(&failure::told(&error).0),
        }
    }
}

/// Lets the user edit objects before they are created; `None` if the edit was cancelled.
pub(crate) fn before_creating(
    objects: &[Value],
    json: bool,
    windows: bool,
) -> anyhow::Result<Option<Vec<Value>>> {
    let editor = Editor { json, windows };
    let mut session = Session::new(&editor, objects)?;
    match session.next()? {
        Outcome::Edited(edited) => Ok(Some(edited)),
        Outcome::Cancelled(_) => Ok(None),
        Outcome::GaveUp => {
            output::warn(&format!("A copy of your changes has been stored to {}", session.keep()?));
            bail!("Edit cancelled, no valid changes were saved.")
        }
    }
}

fn shown(object: &Value, managed_fields: bool) -> Value {
    let mut object = object.clone();
    if !managed_fields && let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

async fn save(
    arguments: &Arguments,
    plane: &Plane,
    items: &[Item],
    originals: &[Value],
    edited: &[Value],
) -> anyhow::Result<()> {
    if edited.len() != items.len() {
        bail!(
            "the file holds {} objects instead of {}; an object cannot be added or removed here",
            edited.len(),
            items.len()
        );
    }
    let tell = Output { output: None, ..arguments.output.clone() };
    let mut failures = Vec::new();
    for ((item, original), edited) in items.iter().zip(originals).zip(edited) {
        let same = |path: &str| original.pointer(path) == edited.pointer(path);
        if !(same("/apiVersion") && same("/kind") && same("/metadata/name")) {
            bail!("At least one of apiVersion, kind and name was changed");
        }
        let edited = if arguments.save_config { remembered(edited.clone()) } else { edited.clone() };
        let Some(patch) = merge::diff(original, &edited) else {
            tell.tell(&item.resource, original, "skipped", DryRun::None)?;
            continue;
        };
        if arguments.output_patch {
            output::line(&format!("Patch: {patch}"));
        }
        let part = arguments.subresource.as_deref().filter(|part| !part.is_empty());
        let part = part.map(|part| format!("/{}", segment(part))).unwrap_or_default();
        let path = format!(
            "{}{part}?fieldManager={}&fieldValidation={}",
            item.path(),
            query(&arguments.field_manager),
            arguments.validation.get()?
        );
        match plane.server.patch(&path, "application/merge-patch+json", &patch).await {
            Ok(object) => tell.tell(&item.resource, &object, "edited", DryRun::None)?,
            Err(error) => failures.push(error),
        }
    }
    Failures::check(failures)
}

/// The text of the file.
struct Editor {
    json: bool,
    windows: bool,
}

impl Editor {
    fn text(&self, objects: &[Value]) -> String {
        let document = document(objects.to_vec(), false);
        let text = if self.json { pretty(&document) } else { apimachinery::yaml::write(&document) };
        if self.windows { text.replace('\n', "\r\n") } else { text }
    }

    fn parse(text: &str) -> anyhow::Result<Vec<Value>> {
        let mut found = Vec::new();
        manifests::parse("the edited file", text, &mut found)?;
        Ok(found.into_iter().map(|manifest| manifest.object).collect())
    }
}

/// The result of one session of the editor.
enum Outcome {
    Edited(Vec<Value>),
    Cancelled(&'static str),
    /// The file had an error before, and was not changed since.
    GaveUp,
}

/// One file, opened until it can be used.
struct Session {
    file: PathBuf,
    /// The content of the file when it was last opened, without comments.
    before: String,
    complaint: Option<String>,
    _folder: tempfile::TempDir,
}

impl Session {
    fn new(editor: &Editor, objects: &[Value]) -> anyhow::Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("karmadactl-edit-").tempdir().context("cannot make a folder")?;
        let file = folder.path().join(if editor.json { "edit.json" } else { "edit.yaml" });
        Ok(Self { file, before: editor.text(objects), complaint: None, _folder: folder })
    }

    /// Opens the editor again until the saved file can be read.
    fn next(&mut self) -> anyhow::Result<Outcome> {
        loop {
            let mut text = HEAD.to_owned();
            for line in self.complaint.iter().flat_map(|complaint| complaint.lines()) {
                let _ = writeln!(text, "# {line}");
            }
            if self.complaint.is_some() {
                text.push_str("#\n");
            }
            text.push_str(&self.before);
            std::fs::write(&self.file, &text).context("cannot write the file to edit")?;
            open(&self.file)?;
            let saved = std::fs::read_to_string(&self.file).context("cannot read the edited file")?;
            let saved = without_comments(&saved.replace("\r\n", "\n"));
            if saved.trim().is_empty() {
                return Ok(Outcome::Cancelled("Edit cancelled, saved file was empty."));
            }
            if saved == without_comments(&self.before.replace("\r\n", "\n")) {
                return Ok(match self.complaint {
                    Some(_) => Outcome::GaveUp,
                    None => Outcome::Cancelled("Edit cancelled, no changes made."),
                });
            }
            self.before = saved;
            match Editor::parse(&self.before) {
                Ok(objects) => return Ok(Outcome::Edited(objects)),
                Err(error) => self.again(&format!("The edited file had a syntax error: {error:#}")),
            }
        }
    }

    fn again(&mut self, complaint: &str) {
        output::warn(complaint);
        self.complaint = Some(complaint.to_owned());
    }

    /// Saves the user's text; returns where.
    fn keep(&self) -> anyhow::Result<String> {
        let end = self.file.extension().unwrap_or_default().to_string_lossy().into_owned();
        let (mut file, path) = tempfile::Builder::new()
            .prefix("karmadactl-edit-")
            .suffix(&format!(".{end}"))
            .tempfile()
            .and_then(|file| file.keep().map_err(|error| error.error))
            .context("cannot keep the edited file")?;
        std::io::Write::write_all(&mut file, self.before.as_bytes())
            .context("cannot keep the edited file")?;
        Ok(apimachinery::go::quote(&path.display().to_string()))
    }
}

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// Opens a file in the user's editor, and waits.
fn open(file: &Path) -> anyhow::Result<()> {
    let from = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let editor = from("KUBE_EDITOR").or_else(|| from("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let shell = from("SHELL").unwrap_or_else(|| "/bin/sh".to_owned());
    // Runs in a shell: editors are configured with flags, and with quotes.
    let status = std::process::Command::new(&shell)
        .arg("-c")
        .arg(format!("{editor} \"$0\""))
        .arg(file)
        .status()
        .map_err(|error| {
            anyhow!("unable to launch the editor {}: {error}", apimachinery::go::quote(&editor))
        })?;
    if !status.success() {
        bail!("there was a problem with the editor {}", apimachinery::go::quote(&editor));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn several_objects_are_one_file() {
        let objects = [json!({"apiVersion": "v1", "kind": "A"}), json!({"apiVersion": "v1", "kind": "B"})];
        for json in [true, false] {
            let text = Editor { json, windows: true }.text(&objects);
            assert!(text.contains("\r\n"));
            assert_eq!(Editor::parse(&text.replace("\r\n", "\n")).expect("good"), objects);
        }
    }
}
