//! `create`: creates objects in the control plane, from files or from a few flags.
//!
//! In: manifests, or a generator (`create deployment web --image=nginx`). Out: objects; with a dry run, the objects that would be
//! created. The generators are in the folder `create`, by topic; each only returns the object.

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::apply::remembered;
use crate::discovery::Resource;
use crate::failure::{self, Failures, Refusal, misused};
use crate::manifests::Files;
use crate::print::{DryRun, DryRunFlag, Output, Validation};
use crate::select::Query;
use crate::server::{Namespaced, Plane, query};

mod data;
mod network;
mod rights;
mod token;
mod workloads;

/// Create a resource from a file or from stdin.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  # Create what is described in web.yaml
  karmadactl create -f web.yaml

  # Change it in the editor first
  karmadactl create -f web.yaml --edit

  # A deployment without a file
  karmadactl create deployment web --image=nginx --replicas=2"
)]
pub struct Arguments {
    #[command(subcommand)]
    pub generator: Option<Generator>,
    /// Nothing is expected here.
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(flatten)]
    pub files: Files,
    /// Only objects of the files that this label selector fits.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Edit the objects before creating them.
    #[arg(long)]
    pub edit: bool,
    /// Edited files end their lines as on Windows.
    #[arg(long)]
    pub windows_line_endings: bool,
    /// Raw URI to POST the file to.
    #[arg(long, value_name = "URI", default_value = "")]
    pub raw: String,
    #[command(flatten)]
    pub creation: Creation,
}

/// The flags of every way to create.
#[derive(Debug, Clone, Args)]
#[group(id = "creation")]
pub struct Creation {
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub dry_run: DryRunFlag,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub validation: Validation,
    /// Name of the manager used to track field ownership.
    #[arg(long, value_name = "NAME", default_value = "kubectl-create")]
    pub field_manager: String,
    /// Keep the configuration in an annotation, for a later apply.
    #[arg(long)]
    pub save_config: bool,
}

/// Ways to create without a file.
#[derive(Debug, Clone, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one in the life of the process")]
pub enum Generator {
    Clusterrole(rights::ClusterRole),
    Clusterrolebinding(rights::ClusterRoleBinding),
    #[command(visible_alias = "cm")]
    Configmap(data::ConfigMap),
    #[command(visible_alias = "cj")]
    Cronjob(workloads::CronJob),
    #[command(visible_alias = "deploy")]
    Deployment(workloads::Deployment),
    #[command(visible_alias = "ing")]
    Ingress(network::Ingress),
    Job(workloads::Job),
    #[command(visible_alias = "ns")]
    Namespace(data::Namespace),
    #[command(visible_alias = "pdb")]
    Poddisruptionbudget(workloads::Budget),
    #[command(visible_alias = "pc")]
    Priorityclass(workloads::PriorityClass),
    #[command(visible_alias = "resourcequota")]
    Quota(data::Quota),
    Role(rights::Role),
    Rolebinding(rights::RoleBinding),
    Secret(data::Secret),
    #[command(visible_alias = "svc")]
    Service(network::Service),
    #[command(visible_alias = "sa")]
    Serviceaccount(data::ServiceAccount),
    Token(token::Token),
}

/// The one positional argument of generators.
#[derive(Debug, Clone, Default, Args)]
pub struct Name {
    /// Name of the object.
    #[arg(value_name = "NAME")]
    pub name: Vec<String>,
}

impl Name {
    fn get(&self, command: &str) -> anyhow::Result<&str> {
        match &self.name[..] {
            [name] => Ok(name),
            names => Err(misused(
                &format!("create {command}"),
                &format!("exactly one NAME is required, got {}", names.len()),
            )),
        }
    }
}

/// Reports missing flags, as upstream's parser does.
fn required(flags: &[(&str, bool)]) -> anyhow::Result<()> {
    let missing: Vec<String> =
        flags.iter().filter(|(_, given)| !given).map(|(name, _)| format!("\"{name}\"")).collect();
    if missing.is_empty() { Ok(()) } else { bail!("required flag(s) {} not set", missing.join(", ")) }
}

/// The result of a generator.
pub(crate) struct Made {
    object: Value,
    plural: &'static str,
    namespaced: bool,
    /// The prefix of a refusal; none if this is empty.
    failed: &'static str,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.generator {
        None => files(&arguments).await,
        Some(Generator::Clusterrole(made)) => made.run().await,
        Some(Generator::Clusterrolebinding(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Configmap(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Cronjob(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Deployment(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Ingress(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Job(made)) => made.run().await,
        Some(Generator::Namespace(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Poddisruptionbudget(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Priorityclass(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Quota(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Role(made)) => made.run().await,
        Some(Generator::Rolebinding(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Secret(made)) => made.run().await,
        Some(Generator::Service(made)) => made.run().await,
        Some(Generator::Serviceaccount(made)) => made.creation.create(made.make()?).await,
        Some(Generator::Token(made)) => made.run().await,
    }
}

impl Creation {
    /// Creates the object from a generator.
    async fn create(&self, made: Made) -> anyhow::Result<()> {
        let plane = self.place.plane().await?;
        self.create_on(&plane, made).await
    }

    async fn create_on(&self, plane: &Plane, mut made: Made) -> anyhow::Result<()> {
        let api_version = made.object["apiVersion"].as_str().unwrap_or("");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: made.object["kind"].as_str().unwrap_or("").to_owned(),
            plural: made.plural.to_owned(),
            namespaced: made.namespaced,
            ..Resource::default()
        };
        if made.namespaced && plane.namespace_asked {
            made.object["metadata"]["namespace"] = plane.namespace.clone().into();
        }
        let result = self.send(plane, &resource, &plane.namespace, made.object).await;
        match result {
            Err(error) if !made.failed.is_empty() && error.is::<Refusal>() => {
                bail!("{}{error}", made.failed)
            }
            result => result,
        }
    }

    /// Creates one object, and reports it.
    async fn send(
        &self,
        plane: &Plane,
        resource: &Resource,
        namespace: &str,
        object: Value,
    ) -> anyhow::Result<()> {
        let dry_run = self.dry_run.get()?;
        self.output.format()?;
        let object = if self.save_config { remembered(object) } else { object };
        let object = if dry_run == DryRun::Client {
            object
        } else {
            let path = format!(
                "{}?fieldManager={}&fieldValidation={}{}",
                resource.collection(Some(namespace)),
                query(&self.field_manager),
                self.validation.get()?,
                dry_run.query()
            );
            plane.server.post(&path, &object).await?
        };
        self.output.tell(resource, &object, "created", dry_run)
    }
}

async fn files(arguments: &Arguments) -> anyhow::Result<()> {
    if !arguments.words.is_empty() {
        return Err(misused("create", &format!("Unexpected args: [{}]", arguments.words.join(" "))));
    }
    let creation = &arguments.creation;
    if !arguments.raw.is_empty() {
        return raw(arguments).await;
    }
    creation.validation.get()?;
    creation.output.format()?;
    if arguments.files.is_empty() {
        bail!("must specify one of -f and -k");
    }
    let selector = arguments.selector.as_deref().map(apimachinery::selector::label::Selector::parse);
    let selector =
        selector.transpose().map_err(|error| anyhow::anyhow!("unable to parse requirement: {error}"))?;
    let mut objects: Vec<(String, Value)> = arguments
        .files
        .read()
        .await?
        .into_iter()
        .map(|manifest| (manifest.source, manifest.object))
        .collect();
    objects.retain(|(_, object)| {
        selector.as_ref().is_none_or(|selector| selector.matches(&object["metadata"]["labels"]))
    });
    if arguments.edit {
        let before: Vec<Value> = objects.iter().map(|(_, object)| object.clone()).collect();
        let json = creation.output.output.as_deref() == Some("json");
        let Some(edited) = crate::edit::before_creating(&before, json, arguments.windows_line_endings)?
        else {
            crate::output::line("Edit cancelled, no changes made.");
            return Ok(());
        };
        objects = edited.into_iter().map(|object| ("the edited file".to_owned(), object)).collect();
    }
    let plane = creation.place.plane().await?;
    let asked = Query {
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        ..Query::default()
    };
    let mut failures = Vec::new();
    for (source, object) in objects {
        if let Err(error) = one(creation, &plane, &asked, object).await {
            failures.push(match error.downcast::<Refusal>() {
                Ok(refusal) => refusal.when("creating", &source),
                Err(error) => failure::in_source(error, "creating", &source),
            });
        }
    }
    Failures::check(failures)
}

async fn one(creation: &Creation, plane: &Plane, asked: &Query, mut object: Value) -> anyhow::Result<()> {
    let resource = plane.server.discovery().await?.of(&object)?;
    let namespace = asked.namespace_of(resource, &object)?;
    if resource.namespaced {
        object["metadata"]["namespace"] = namespace.clone().into();
    }
    creation.send(plane, resource, &namespace, object).await
}

/// Sends a file unchanged.
async fn raw(arguments: &Arguments) -> anyhow::Result<()> {
    let [file] = &arguments.files.filename[..] else {
        bail!("--raw can only use a single local file or stdin");
    };
    if !arguments.raw.starts_with('/') {
        bail!("--raw must be a path that begins with /, not {:?}", arguments.raw);
    }
    let text =
        if file == "-" { std::io::read_to_string(std::io::stdin())? } else { std::fs::read_to_string(file)? };
    let body =
        apimachinery::yaml::read(&text).map_err(|error| anyhow::anyhow!("error parsing {file}: {error}"))?;
    let plane = arguments.creation.place.plane().await?;
    let answer = plane.server.post(&arguments.raw, &body.value).await?;
    crate::output::line(&answer.to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_takes_one_name() {
        let name = |words: &[&str]| Name { name: words.iter().map(|word| (*word).to_owned()).collect() };
        assert_eq!(name(&["a"]).get("namespace").expect("one"), "a");
        assert_eq!(
            name(&[]).get("namespace").expect_err("none").to_string(),
            "exactly one NAME is required, got 0\nSee 'karmadactl create namespace -h' for help and examples"
        );
        assert_eq!(
            required(&[("image", false), ("port", true), ("schedule", false)])
                .expect_err("missing")
                .to_string(),
            "required flag(s) \"image\", \"schedule\" not set"
        );
    }
}
