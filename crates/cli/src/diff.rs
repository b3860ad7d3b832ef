//! `diff`: what apply would change, in the control plane or in each member, without changing it.
//!
//! In: manifests. Out: the output of `diff -u` (or of `$KUBECTL_EXTERNAL_DIFF`) for the live objects and what the server would
//! make of them; status 1 if anything differs. For members, the file itself is compared, not what policies make of it.

use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use crate::apply::{merged, remembered};
use crate::clusters::Members;
use crate::discovery::Resource;
use crate::failure::{self, Ended};
use crate::manifests::Files;
use crate::output;
use crate::select::Query;
use crate::server::{Namespaced, Server, query};

/// Diff the live version against a would-be applied version.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # What apply would change in the control plane
  karmadactl diff -f web.yaml

  # How two clusters differ from the file
  karmadactl diff -f web.yaml -C member1,member2")]
pub struct Arguments {
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub files: Files,
    /// Operation scope: karmada, members or all; members if clusters are named.
    #[arg(short = 's', long, value_name = "SCOPE", value_parser = crate::server::scope)]
    pub operation_scope: Option<String>,
    #[command(flatten)]
    pub members: Members,
    /// Only objects of the files that this label selector fits.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Compare as apply in the server would do it.
    #[arg(long)]
    pub server_side: bool,
    /// Server-side apply takes fields over that others own.
    #[arg(long, requires = "server_side")]
    pub force_conflicts: bool,
    /// Name of the manager used to track field ownership.
    #[arg(long, value_name = "NAME", default_value = "kubectl-client-side-apply")]
    pub field_manager: String,
    /// If true, include managed fields in the diff.
    #[arg(long)]
    pub show_managed_fields: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if arguments.files.is_empty() {
        bail!("must specify one of -f and -k");
    }
    let selector = arguments.selector.as_deref().map(apimachinery::selector::label::Selector::parse);
    let selector =
        selector.transpose().map_err(|error| anyhow::anyhow!("unable to parse requirement: {error}"))?;
    let manifests = arguments.files.read().await?;
    let plane = arguments.place.plane().await?;
    let default = if arguments.members.clusters.is_empty() { "karmada" } else { "members" };
    let scope = arguments.operation_scope.as_deref().filter(|scope| !scope.is_empty()).unwrap_or(default);
    let mut servers = Vec::new();
    if scope != "members" {
        servers.push(plane.server.clone());
    }
    if scope != "karmada" {
        let names = plane.select(&arguments.members.clusters).await?;
        servers.extend(names.iter().map(|name| plane.known_member(name)));
    }
    let folder =
        tempfile::Builder::new().prefix("karmadactl-diff-").tempdir().context("cannot make a folder")?;
    let (live_folder, merged_folder) = (folder.path().join("LIVE"), folder.path().join("MERGED"));
    for made in [&live_folder, &merged_folder] {
        std::fs::create_dir(made).context("cannot make a folder")?;
    }
    let asked = Query {
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        ..Query::default()
    };
    let mut failures = Vec::new();
    for server in &servers {
        for manifest in &manifests {
            let labels = &manifest.object["metadata"]["labels"];
            if selector.as_ref().is_some_and(|selector| !selector.matches(labels)) {
                continue;
            }
            match one(&arguments, server, &asked, manifest.object.clone()).await {
                Ok(pair) => {
                    let name =
                        if servers.len() > 1 { format!("{}.{}", server.name, pair.name) } else { pair.name };
                    write(&live_folder.join(&name), pair.live.as_ref(), arguments.show_managed_fields)?;
                    write(&merged_folder.join(&name), Some(&pair.merged), arguments.show_managed_fields)?;
                }
                Err(error) => failures.push(error),
            }
        }
    }
    for error in &failures {
        output::warn(&failure::told(error).0);
    }
    let differ = compare(folder.path())?;
    match (failures.is_empty(), differ) {
        (false, _) => Err(Ended(2).into()),
        (true, true) => Err(Ended(1).into()),
        (true, false) => Ok(()),
    }
}

/// An object as it is and as it would be.
struct Pair {
    name: String,
    live: Option<Value>,
    merged: Value,
}

async fn one(
    arguments: &Arguments,
    server: &Server,
    asked: &Query,
    mut object: Value,
) -> anyhow::Result<Pair> {
    let resource = server.discovery().await?.of(&object)?;
    let namespace = asked.namespace_of(resource, &object)?;
    if resource.namespaced {
        object["metadata"]["namespace"] = namespace.clone().into();
    }
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    if name.is_empty() {
        bail!("resource name may not be empty");
    }
    let path = resource.path(&namespace, &name);
    let live = match server.get(&path).await {
        Ok(live) => Some(live),
        Err(error) if failure::is_not_found(&error) => None,
        Err(error) => return Err(error),
    };
    let parameters = format!("fieldManager={}&dryRun=All", query(&arguments.field_manager));
    let merged = if arguments.server_side {
        let path = format!("{path}?{parameters}&force={}", arguments.force_conflicts);
        server.patch(&path, "application/apply-patch+yaml", &object).await?
    } else {
        let object = remembered(object);
        match &live {
            Some(live) => merged(server, resource, &path, &parameters, live, &object).await?,
            None => {
                server
                    .post(&format!("{}?{parameters}", resource.collection(Some(&namespace))), &object)
                    .await?
            }
        }
    };
    Ok(Pair { name: file_name(resource, &namespace, &name), live, merged })
}

fn file_name(resource: &Resource, namespace: &str, name: &str) -> String {
    let group = if resource.group.is_empty() { String::new() } else { format!("{}.", resource.group) };
    let name = format!("{group}{}.{}.{namespace}.{name}", resource.version, resource.kind);
    name.replace(['/', ':'], "_")
}

fn write(path: &Path, object: Option<&Value>, managed_fields: bool) -> anyhow::Result<()> {
    let Some(object) = object else { return Ok(()) };
    let mut object = object.clone();
    if !managed_fields && let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    hide(&mut object);
    std::fs::write(path, apimachinery::yaml::write(&object)).context("cannot write what is compared")
}

/// The values of secrets are not shown, only whether they differ.
fn hide(object: &mut Value) {
    if object["kind"] != "Secret" {
        return;
    }
    use sha2::Digest;
    for key in ["data", "stringData"] {
        for value in object[key].as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
            let digest = sha2::Sha256::digest(value.to_string().as_bytes());
            let text: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            *value = format!("*** ({text})").into();
        }
    }
}

/// Runs the diff program; returns whether there are differences.
fn compare(folder: &Path) -> anyhow::Result<bool> {
    let from = std::env::var("KUBECTL_EXTERNAL_DIFF").unwrap_or_default();
    let mut words: Vec<&str> = from.split_whitespace().collect();
    if words.is_empty() {
        words = vec!["diff", "-u", "-N"];
    }
    let mut command = std::process::Command::new(words[0]);
    command.args(&words[1..]).args(["LIVE", "MERGED"]).current_dir(folder);
    let status = command.status().with_context(|| format!("failed to run {:?}", words[0]))?;
    match status.code() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => bail!("{} failed: {status}", words[0]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_compared_without_being_shown() {
        let mut secret = json!({"kind": "Secret", "data": {"a": "b", "c": "b", "d": "x"}});
        hide(&mut secret);
        let text = secret.to_string();
        assert!(
            !text.contains("\"b\"")
                && secret["data"]["a"] == secret["data"]["c"]
                && secret["data"]["a"] != secret["data"]["d"]
        );
    }

    #[test]
    fn files_that_differ_are_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in [("LIVE", "a\n"), ("MERGED", "a\n")] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
            std::fs::write(folder.path().join(name).join("x"), text).expect("written");
        }
        assert!(!compare(folder.path()).expect("compared"));
        std::fs::write(folder.path().join("MERGED/x"), "b\n").expect("written");
        assert!(compare(folder.path()).expect("compared"));
    }
}
