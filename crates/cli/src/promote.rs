//! `promote`: brings an existing object of a member under the control plane's management.
//!
//! In: a type, a name, a member. Out: the object in the control plane without the fields that the member's server added, and a
//! policy that places it exactly where it is. Existing objects of the control plane are left alone.

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use api::names;
use apimachinery::gvk::Gvk;
use clap::Args;
use interpreter::{Interpreter, Operation};
use serde_json::{Value, json};

use crate::clients;
use crate::discovery::Resource;
use crate::failure;
use crate::output;
use crate::print::Format;
use crate::select;
use crate::server::{Namespaced, Plane, Server, query};

const RESOLUTION: &str = "work.karmada.io/conflict-resolution";

/// Promote resources from legacy clusters to Karmada control plane.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Promote deployment default/nginx from member1 to the control plane
  karmadactl promote deployment nginx -n default -C member1

  # Show what would be created, without doing it
  karmadactl promote deployment nginx -n default -C member1 -o yaml

  # Promote it with what it needs
  karmadactl promote deployment nginx -n default -C member1 -d")]
pub struct Arguments {
    /// Type of the object.
    #[arg(value_name = "RESOURCE_TYPE")]
    pub kind: Option<String>,
    /// Name of the object.
    #[arg(value_name = "RESOURCE_NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub place: Namespaced,
    /// The name of the cluster that has the object.
    #[arg(short = 'C', long, value_name = "CLUSTER", default_value = "")]
    pub cluster: String,
    /// Path of the cluster's kubeconfig, to read it directly instead of through the control plane.
    #[arg(long, value_name = "FILE")]
    pub cluster_kubeconfig: Option<PathBuf>,
    /// Context in the cluster's kubeconfig; by default the cluster's name.
    #[arg(long, value_name = "CONTEXT")]
    pub cluster_context: Option<String>,
    /// Print what would be created: json or yaml.
    #[arg(short, long, value_name = "FORMAT", default_value = "")]
    pub output: String,
    /// Run the command in dry-run mode, without making any server requests that change something.
    #[arg(long)]
    pub dry_run: bool,
    /// Promote the object with its dependencies.
    #[arg(short, long)]
    pub dependencies: bool,
    /// Create a PropagationPolicy or ClusterPropagationPolicy for the object.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub auto_create_policy: bool,
    /// The name of the policy that is created.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub policy_name: String,
}

/// Promotes the object.
pub(crate) async fn run(mut arguments: Arguments) -> anyhow::Result<()> {
    let (Some(kind), Some(name)) = (&arguments.kind, &arguments.name) else {
        bail!("incorrect command format, please use correct command format");
    };
    if arguments.cluster.is_empty() {
        bail!("the cluster cannot be empty");
    }
    let format = match arguments.output.as_str() {
        "" => None,
        "json" | "yaml" => Some(Format::parse(&arguments.output, false)?),
        _ => bail!("invalid output format: supported formats are json and yaml"),
    };
    let plane = arguments.place.plane().await?;
    let member = plane.member(&arguments.cluster).await.map_err(|error| {
        if failure::is_not_found(&error) {
            return anyhow!("failed to get Factory of the member cluster. err: {error}");
        }
        error
    })?;
    // From here on, a glob or selector has been replaced by one name.
    arguments.cluster = member.name.clone();
    let member = match &arguments.cluster_kubeconfig {
        Some(file) => {
            let context = arguments.cluster_context.as_deref().unwrap_or(&arguments.cluster);
            Server::new(&arguments.cluster, clients::config(Some(file), Some(context)).await?)?
        }
        None => member,
    };
    let resource = member.discovery().await?.resolve(kind).cloned();
    let resource = resource
        .map_err(|error| anyhow!("failed to get resource in cluster({}). err: {error:#}", member.name))?;
    let namespace = if resource.namespaced { plane.namespace.clone() } else { String::new() };
    let object = select::get(&member, &resource, &namespace, name, None).await.map_err(|error| {
        let cluster = &member.name;
        if failure::is_not_found(&error) {
            return anyhow!(
                "failed to get resource in cluster({cluster}). err: the {kind} or {name} don't exist in cluster({cluster})"
            );
        }
        anyhow!("failed to get resource in cluster({cluster}). err: {error:#}")
    })?;
    if arguments.dependencies && !arguments.dry_run {
        dependencies(&plane, &member, &object).await?;
    }
    let template = prepared(object)?;
    let policy = policy(&arguments, &resource, &namespace, name);
    if let Some(format) = format {
        output::print(&format.print(&template, false)?);
        if arguments.auto_create_policy {
            if matches!(format, Format::Yaml) {
                output::line("---");
            }
            output::print(&format.print(&policy, false)?);
        }
        return Ok(());
    }
    let control = plane.server.discovery().await?;
    let resource = control.of(&template)?.clone();
    match plane.server.get(&resource.path(&namespace, name)).await {
        Ok(_) => {
            output::warn(&format!(
                "Resource {:?}({}) already exist in karmada control plane, you can edit PropagationPolicy and \
                 OverridePolicy to propagate it",
                resource.go_text(),
                place(&namespace, name)
            ));
            return Ok(());
        }
        Err(error) if failure::is_not_found(&error) => {}
        Err(error) => return Err(error),
    }
    if arguments.dry_run {
        output::line(&promoted(&resource, &namespace, name));
        return Ok(());
    }
    let policies = control.of(&policy)?.clone();
    let policy_name = policy["metadata"]["name"].as_str().unwrap_or("").to_owned();
    if arguments.auto_create_policy
        && plane.server.get(&policies.path(&namespace, &policy_name)).await.is_ok()
    {
        bail!("the {}({}) already exists", policies.kind, place(&namespace, &policy_name));
    }
    create(&plane.server, &resource, &namespace, &template).await?;
    output::line(&format!("ResourceTemplate ({}) is created successfully", place(&namespace, name)));
    if arguments.auto_create_policy {
        create(&plane.server, &policies, &namespace, &policy).await?;
        output::line(&format!(
            "{} ({}) is created successfully",
            policies.kind,
            place(&namespace, &policy_name)
        ));
    }
    output::line(&promoted(&resource, &namespace, name));
    Ok(())
}

fn promoted(resource: &Resource, namespace: &str, name: &str) -> String {
    format!("Resource {:?}({}) is promoted successfully", resource.go_text(), place(namespace, name))
}

/// `namespace/name`, or only the name.
fn place(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

async fn create(
    server: &Server,
    resource: &Resource,
    namespace: &str,
    object: &Value,
) -> anyhow::Result<Value> {
    let path = format!("{}?fieldManager={}", resource.collection(Some(namespace)), query("karmadactl"));
    server.post(&path, object).await
}

/// Removes the fields that the member's server added.
fn prepared(mut object: Value) -> anyhow::Result<Value> {
    interpreter::prune(&mut object)?;
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    if object["metadata"]["annotations"][RESOLUTION].is_null() {
        object["metadata"]["annotations"][RESOLUTION] = "overwrite".into();
    }
    Ok(object)
}

fn policy(arguments: &Arguments, resource: &Resource, namespace: &str, name: &str) -> Value {
    let policy_name = if arguments.policy_name.is_empty() {
        names::generated_policy(
            namespace,
            name,
            &names::go_gvk(&resource.group, &resource.version, &resource.kind),
        )
    } else {
        arguments.policy_name.clone()
    };
    let mut metadata = json!({ "name": policy_name });
    if resource.namespaced {
        metadata["namespace"] = namespace.into();
    }
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1",
        "kind": if resource.namespaced { "PropagationPolicy" } else { "ClusterPropagationPolicy" },
        "metadata": metadata,
        "spec": {
            "resourceSelectors": [{ "apiVersion": resource.api_version(), "kind": resource.kind, "name": name }],
            "placement": { "clusterAffinity": { "clusterNames": [arguments.cluster] } },
            "conflictResolution": "Overwrite",
            "preserveResourcesOnDeletion": true,
            "propagateDeps": arguments.dependencies,
        },
    })
}

/// Promotes the object's dependencies; undoes everything if one of them fails.
async fn dependencies(plane: &Plane, member: &Server, object: &Value) -> anyhow::Result<()> {
    let interpreter = Interpreter::with_layers([]);
    let text = |key: &str| object[key].as_str().unwrap_or("");
    if !interpreter
        .supports(&Gvk::from_api_version(text("apiVersion"), text("kind")), Operation::InterpretDependency)
    {
        output::warn(&format!("there is no interpreter for the dependencies of {}", text("kind")));
        return Ok(());
    }
    output::line("use default interpreter");
    let control = plane.server.discovery().await?;
    let mut done: Vec<(Resource, String, String)> = Vec::new();
    for needed in interpreter.get_dependencies(object).await? {
        let reference = json!({ "apiVersion": needed.api_version, "kind": needed.kind, "metadata": { "name": needed.name } });
        let result = async {
            let resource = control.of(&reference)?.clone();
            let found = select::get(member, &resource, &needed.namespace, &needed.name, None).await?;
            if plane.server.get(&resource.path(&needed.namespace, &needed.name)).await.is_ok() {
                output::warn(&format!(
                    "Dependency resource ({}) already exist in karmada control plane",
                    place(&needed.namespace, &needed.name)
                ));
                return anyhow::Ok(None);
            }
            create(&plane.server, &resource, &needed.namespace, &prepared(found)?).await?;
            Ok(Some(resource))
        };
        match result.await {
            Ok(Some(resource)) => {
                output::line(&format!(
                    "Dependency resource {:?}({}) is promoted successfully",
                    resource.go_text(),
                    place(&needed.namespace, &needed.name)
                ));
                done.push((resource, needed.namespace, needed.name));
            }
            Ok(None) => {
                revert(plane, member, &done).await;
                return Ok(());
            }
            Err(error) => {
                revert(plane, member, &done).await;
                return Err(error.context(format!(
                    "failed to promote dependency {} {}",
                    needed.kind,
                    place(&needed.namespace, &needed.name)
                )));
            }
        }
    }
    Ok(())
}

async fn revert(plane: &Plane, member: &Server, done: &[(Resource, String, String)]) {
    for (resource, namespace, name) in done {
        let path = resource.path(namespace, name);
        let labels = json!({ "metadata": { "labels": { "work.karmada.io/permanent-id": null, "karmada.io/managed": null } } });
        let freed = member.patch(&path, "application/merge-patch+json", &labels).await;
        let deleted = plane.server.delete(&path, &json!({})).await;
        match freed.and(deleted) {
            Ok(_) => output::line(&format!(
                "Dependency resource {:?}({}) is reverted successfully",
                resource.go_text(),
                place(namespace, name)
            )),
            Err(error) => output::warn(&format!("cannot revert {}: {error:#}", place(namespace, name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_members_server_are_left_behind() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "status": {}, "data": {"a": "b"},
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "managedFields": []}});
        assert_eq!(
            prepared(object).expect("prepared"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
                "metadata": {"name": "n", "annotations": {RESOLUTION: "overwrite"}}})
        );
    }
}
