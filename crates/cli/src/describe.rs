//! `describe`: one object in full, with its events.
//!
//! Types that kubectl knows have kubectl's layout, each in the folder `describe`. Every other type is described field by field,
//! in words instead of YAML. Events follow.

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use crate::clusters::Scope;
use crate::failure::{self, Failures};
use crate::manifests::Files;
use crate::output;
use crate::select::{Item, Query, list, typed};
use crate::server::{Namespaced, Server};

mod events;
mod network;
mod nodes;
mod others;
mod plain;
mod pods;
mod rights;
mod scaling;
mod services;
mod words;
mod workloads;

pub(crate) use events::age;
use words::Page;

/// Show details of a specific resource or group of resources in Karmada control plane or a member cluster.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Describe a propagation policy
  karmadactl describe propagationpolicies/nginx

  # Describe a pod in cluster member1
  karmadactl describe pods/nginx -n shop -s members -C member1

  # Describe all deployments with label app=web
  karmadactl describe deployments -l app=web")]
pub struct Arguments {
    /// TYPE [NAME_PREFIX], or TYPE/NAME….
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    pub scope: Scope,
    /// Describe across all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector, such as app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Show events related to the described object.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub show_events: bool,
}

/// Describes the objects.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plane = arguments.place.plane().await?;
    let server = plane.scoped(&arguments.scope).await?;
    if arguments.resources.is_empty() && arguments.files.is_empty() {
        bail!(
            "You must specify the type of resource to describe. Use \"karmadactl api-resources\" for a complete list of supported resources."
        );
    }
    let asked = Query {
        words: arguments.resources.clone(),
        files: arguments.files.clone(),
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        all_namespaces: arguments.all_namespaces,
        labels: arguments.selector.clone(),
        all: true,
        ..Query::default()
    };
    let (mut items, mut failures) = asked.items(&server).await?;
    // If no object has the name, it may be a prefix of names.
    if items.is_empty()
        && let [_, prefix] = &arguments.resources[..]
        && failures.iter().all(failure::is_not_found)
        && !failures.is_empty()
    {
        items = beginning_with(&server, &asked, prefix).await?;
        if !items.is_empty() {
            failures.clear();
        }
    }
    let mut first = true;
    for item in &items {
        if !std::mem::replace(&mut first, false) {
            output::print("\n\n");
        }
        let events = if arguments.show_events { events::of(&server, item).await } else { None };
        output::print(&describe(&server, item, events).await);
    }
    if items.is_empty() && failures.is_empty() {
        if arguments.all_namespaces {
            output::warn("No resources found");
        } else {
            output::warn(&format!("No resources found in {} namespace.", plane.namespace));
        }
    }
    Failures::check(failures)
}

async fn beginning_with(server: &Server, asked: &Query, prefix: &str) -> anyhow::Result<Vec<Item>> {
    let Some(type_) = asked.words.first() else { return Ok(Vec::new()) };
    let resource = server.discovery().await?.resolve(type_)?;
    let found = list(server, &resource.collection(Some(&asked.namespace)), None, None).await?;
    let begins =
        |object: &Value| object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(prefix));
    Ok(found.into_iter().filter(begins).map(|object| Item::new(resource, typed(object, resource))).collect())
}

/// Returns the object's text, with its events if they are known.
async fn describe(server: &Server, item: &Item, events: Option<Vec<Value>>) -> String {
    let object = &item.object;
    let mut page = Page::default();
    let group = item.resource.group.as_str();
    let mut with_events = true;
    match (group, item.resource.kind.as_str()) {
        ("", "Pod") => pods::pod(&mut page, object),
        ("", "Service") => services::service(&mut page, object, &services::slices(server, item).await),
        ("", "Node") => {
            let (pods, lease) = nodes::pods_and_lease(server, &item.name).await;
            nodes::node(&mut page, object, &pods, lease.as_ref());
        }
        ("", "ConfigMap") => others::config_map(&mut page, object),
        ("", "Secret") => {
            others::secret(&mut page, object);
            with_events = false;
        }
        ("", "ServiceAccount") => others::service_account(&mut page, object),
        ("", "Namespace") => {
            others::namespace(&mut page, object, &others::quotas(server, &item.name).await);
            with_events = false;
        }
        ("", "ResourceQuota") => {
            others::quota(&mut page, object);
            with_events = false;
        }
        ("apps", "Deployment") => {
            workloads::deployment(&mut page, object, &workloads::replica_sets(server, item).await)
        }
        ("apps", "ReplicaSet") => {
            workloads::replica_set(&mut page, object, &workloads::pods(server, item).await)
        }
        ("apps", "StatefulSet") => {
            workloads::stateful_set(&mut page, object, &workloads::pods(server, item).await)
        }
        ("apps", "DaemonSet") => {
            workloads::daemon_set(&mut page, object, &workloads::pods(server, item).await)
        }
        ("", "LimitRange") => {
            others::limits(&mut page, object);
            with_events = false;
        }
        ("", "PersistentVolumeClaim") => {
            scaling::claim(&mut page, object, &network::users(server, item).await)
        }
        ("autoscaling", "HorizontalPodAutoscaler") if object["spec"]["metrics"].is_array() => {
            scaling::autoscaler(&mut page, object)
        }
        ("networking.k8s.io", "Ingress") => {
            network::ingress(&mut page, object, &network::backends(server, item).await)
        }
        ("networking.k8s.io", "NetworkPolicy") => {
            network::policy(&mut page, object);
            with_events = false;
        }
        ("discovery.k8s.io", "EndpointSlice") => network::slice(&mut page, object),
        ("batch", "Job") => workloads::job(&mut page, object),
        ("batch", "CronJob") => workloads::cron_job(&mut page, object),
        ("policy", "PodDisruptionBudget") => others::budget(&mut page, object),
        ("scheduling.k8s.io", "PriorityClass") => others::priority_class(&mut page, object),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => {
            rights::role(&mut page, object);
            with_events = false;
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            rights::binding(&mut page, object);
            with_events = false;
        }
        _ => plain::any(&mut page, object),
    }
    if let Some(events) = events.filter(|_| with_events) {
        events::table(&mut page, &events);
    }
    page.finish()
}
