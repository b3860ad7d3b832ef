//! `patch`: changes fields of objects in the control plane.

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use crate::failure::Failures;
use crate::manifests::Files;
use crate::print::{DryRun, DryRunFlag, Output};
use crate::select::Query;
use crate::server::{Namespaced, query, segment};

/// Update fields of a resource.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Partially update a deployment using a strategic merge patch
  karmadactl patch deployment nginx-deployment -p '{\"spec\":{\"replicas\":2}}'

  # Update a container's image using a JSON patch
  karmadactl patch deployment nginx --type=json -p='[{\"op\": \"replace\", \"path\": \"/spec/replicas\", \"value\": 1}]'")]
pub struct Arguments {
    /// TYPE NAME… or TYPE/NAME….
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub files: Files,
    /// The patch to be applied, in JSON or YAML.
    #[arg(short, long, value_name = "PATCH", default_value = "")]
    pub patch: String,
    /// A file containing a patch to be applied to the resource.
    #[arg(long, value_name = "FILE")]
    pub patch_file: Option<std::path::PathBuf>,
    /// The type of patch being provided; one of [json merge strategic].
    #[arg(long = "type", value_name = "TYPE", default_value = "strategic")]
    pub kind: String,
    /// Patch the content of the files only; the server is not asked.
    #[arg(long)]
    pub local: bool,
    /// Patch this subresource of the object.
    #[arg(long, value_name = "SUBRESOURCE")]
    pub subresource: Option<String>,
    /// Name of the manager used to track field ownership.
    #[arg(long, value_name = "NAME", default_value = "kubectl-patch")]
    pub field_manager: String,
    #[command(flatten)]
    pub dry_run: DryRunFlag,
    #[command(flatten)]
    pub output: Output,
}

/// Patches the objects.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let dry_run = arguments.dry_run.get()?;
    let kind = match arguments.kind.to_lowercase().as_str() {
        "json" => "application/json-patch+json",
        "merge" => "application/merge-patch+json",
        "strategic" => "application/strategic-merge-patch+json",
        _ => bail!(
            "--type must be one of [json merge strategic], not {}",
            apimachinery::go::quote(&arguments.kind)
        ),
    };
    let patch = arguments.patch()?;
    if arguments.local {
        return local(&arguments, dry_run, &patch).await;
    }
    let plane = arguments.place.plane().await?;
    let asked = Query {
        words: arguments.resources.clone(),
        files: arguments.files.clone(),
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        subresource: arguments.subresource.clone(),
        ..Query::default()
    };
    let (items, mut failures) = asked.items(&plane.server).await?;
    for item in items {
        let mut path = item.path();
        if let Some(part) = arguments.subresource.as_deref().filter(|part| !part.is_empty()) {
            path = format!("{path}/{}", segment(part));
        }
        // Only the server knows the result of the patch; a dry run stores nothing.
        let rehearsal = if dry_run == DryRun::None { "" } else { "&dryRun=All" };
        let path = format!("{path}?fieldManager={}{rehearsal}", query(&arguments.field_manager));
        let result = plane.server.patch(&path, kind, &patch).await;
        match result {
            Ok(object) => {
                let same = object["metadata"]["resourceVersion"]
                    == item.object["metadata"]["resourceVersion"]
                    && dry_run == DryRun::None
                    || without_bookkeeping(&object) == without_bookkeeping(&item.object);
                let done = if same { "patched (no change)" } else { "patched" };
                // The output of a dry run is the same as without it, as in upstream.
                arguments.output.tell(&item.resource, &object, done, DryRun::None)?;
            }
            Err(error) => failures.push(error),
        }
    }
    Failures::check(failures)
}

/// Patches files, and prints the results.
async fn local(arguments: &Arguments, dry_run: DryRun, patch: &Value) -> anyhow::Result<()> {
    if !arguments.resources.is_empty() {
        bail!("cannot specify --local and server resources");
    }
    if dry_run == DryRun::Server {
        bail!("cannot specify --local and --dry-run=server - did you mean --dry-run=client?");
    }
    let plane = arguments.place.plane().await?;
    for manifest in arguments.files.read().await? {
        let object = manifest.object;
        let changed = match arguments.kind.to_lowercase().as_str() {
            "json" => apimachinery::patch::json::apply(&object, patch)
                .map_err(|error| anyhow::anyhow!("{error}"))?,
            "merge" => {
                let mut changed = object.clone();
                apimachinery::patch::merge::apply(&mut changed, patch.clone());
                changed
            }
            _ => strategic(&object, patch)?,
        };
        let done = if changed == object { "patched (no change)" } else { "patched" };
        let resource = plane.server.discovery().await?.of(&changed)?;
        arguments.output.tell(resource, &changed, done, DryRun::None)?;
    }
    Ok(())
}

/// Lists of native types merge by their keys; those of other types are replaced.
fn strategic(object: &Value, patch: &Value) -> anyhow::Result<Value> {
    use apimachinery::patch::strategic::{Field, Schema, Strategy, apply};
    #[derive(Clone)]
    struct ByName {
        kind: String,
    }
    impl Schema for ByName {
        fn field(&self, name: &str) -> Option<Field<Self>> {
            let key = crate::apply::key_of(name, &self.kind);
            let strategy = if key.is_some() { Strategy::Merge } else { Strategy::Default };
            Some(Field { schema: Some(self.clone()), strategy, merge_key: key.map(str::to_owned) })
        }
    }
    let (Some(object), Some(patch)) = (object.as_object(), patch.as_object()) else {
        bail!("a strategic merge patch is an object");
    };
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or("").to_owned();
    let changed = apply(object, patch, &ByName { kind }).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(changed.into())
}

/// The object without the fields that every write changes.
fn without_bookkeeping(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["resourceVersion", "managedFields", "generation"] {
            metadata.remove(field);
        }
    }
    object
}

impl Arguments {
    fn patch(&self) -> anyhow::Result<Value> {
        let text = match (&self.patch_file, self.patch.is_empty()) {
            (Some(_), false) => bail!("cannot specify --patch and --patch-file together"),
            (Some(file), true) => std::fs::read_to_string(file).map_err(|error| {
                let said = match error.kind() {
                    std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
                    _ => error.to_string(),
                };
                anyhow::anyhow!("unable to read patch file: open {}: {said}", file.display())
            })?,
            (None, false) => self.patch.clone(),
            (None, true) => {
                bail!("must specify --patch or --patch-file containing the contents of the patch")
            }
        };
        let document = apimachinery::yaml::read(&text).map_err(|error| {
            anyhow::anyhow!("unable to parse {}: {error}", apimachinery::go::quote(&text))
        })?;
        Ok(document.value)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_of_native_types_merge_without_a_server() {
        let object = json!({"kind": "Pod", "spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}],
            "tags": ["x"]}});
        let patch = json!({"spec": {"containers": [{"name": "b", "image": "2"}], "tags": ["y"]}});
        let changed = strategic(&object, &patch).expect("patched");
        let mut images: Vec<String> = changed["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|each| format!("{}{}", each["name"], each["image"]).replace('"', ""))
            .collect();
        images.sort();
        assert_eq!(images, ["a1", "b2"]);
        assert_eq!(changed["spec"]["tags"], json!(["y"]));
    }
}
