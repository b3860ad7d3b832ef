//! `unjoin`: removes a push-mode member from the control plane and, if its kubeconfig is given, our accounts from the member.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use api::cluster::{Cluster, ClusterSyncMode};
use api::constants::NAMESPACE_CLUSTER;
use api::labels::finalizers;
use api::names;
use api::work::{ClusterResourceBinding, ResourceBinding, TargetCluster, Work};
use apimachinery::duration;
use clap::Args;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::clients::{self, ControlArguments};

/// Remove a cluster that joined in push mode.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Let cluster member1 go
  karmadactl unjoin member1")]
pub struct UnjoinArguments {
    /// Name of the cluster.
    #[arg(value_name = "CLUSTER_NAME", default_value = "", hide_default_value = true)]
    pub name: String,
    #[command(flatten)]
    pub control: ControlArguments,
    /// Path to the kubeconfig file of the cluster; with it, what join made in the cluster is removed too.
    #[arg(long, value_name = "FILE")]
    pub cluster_kubeconfig: Option<PathBuf>,
    /// Name of the context in the kubeconfig file of the cluster; by default the cluster's name.
    #[arg(long, value_name = "CONTEXT")]
    pub cluster_context: Option<String>,
    /// Namespace of the service accounts in the cluster.
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE_CLUSTER)]
    pub cluster_namespace: String,
    /// Remove the cluster from the control plane even if it cannot be cleaned up in time.
    #[arg(long)]
    pub force: bool,
    /// How many seconds to wait for the cluster to be gone.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = seconds)]
    pub wait: u64,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
}

/// Reads `60` or a duration such as `60s` or `2m`.
fn seconds(text: &str) -> Result<u64, String> {
    match text.parse().ok().or_else(|| Some(duration::parse(text).ok()?.as_secs())) {
        Some(0) | None => Err("must be a number of seconds greater than 0".to_owned()),
        Some(seconds) => Ok(seconds),
    }
}

/// Removes a member.
#[expect(clippy::print_stderr, reason = "commands talk to their user")]
pub async fn unjoin(arguments: UnjoinArguments) -> anyhow::Result<()> {
    let name = &arguments.name;
    clients::check_name(name)?;
    // This is checked before anything is removed: afterwards the command could not be repeated.
    let member = match &arguments.cluster_kubeconfig {
        Some(kubeconfig) => {
            let context = arguments.cluster_context.as_deref().unwrap_or(name);
            let config = clients::config(Some(kubeconfig), Some(context)).await?;
            Some(crate::retries::client(config).context("cannot make a client for the cluster")?)
        }
        None => None,
    };
    let control = arguments.control.client().await?;
    let clusters = Api::<Cluster>::all(control.clone());
    let Some(cluster) = clusters.get_opt(name).await.context("cannot read the cluster")? else {
        bail!("no cluster object {name} found in karmada control Plane");
    };
    if cluster.spec.sync_mode == ClusterSyncMode::Pull {
        bail!("cluster {name} is a Pull mode member cluster; hint: use unregister");
    }
    if arguments.dry_run {
        eprintln!("cluster({name}) would be removed (dry run)");
        return Ok(());
    }
    eprintln!("cluster({name}): removing it and what runs there");
    match clusters.delete(name, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => return Err(error).context("cannot delete the cluster object"),
    }
    if !is_gone(&clusters, name, Duration::from_secs(arguments.wait)).await? {
        if !arguments.force {
            let held = holders(&control, name).await.unwrap_or_else(|error| vec![format!("{error:#}")]);
            bail!(
                "cluster {name} is not gone after {} s{}; hint: --force gives up what still runs there",
                arguments.wait,
                waiting(&held),
            );
        }
        force_out(&control, name).await;
    }
    if let Some(member) = member {
        let cleaned = clean_member(&member, name, &arguments.cluster_namespace).await;
        match cleaned {
            Err(error) if arguments.force => eprintln!("warning: {error:#}"),
            result => result?,
        }
    }
    Ok(())
}

async fn is_gone(clusters: &Api<Cluster>, name: &str, patience: Duration) -> anyhow::Result<bool> {
    let gone = async {
        let mut wait = Duration::from_millis(50);
        while clusters.get_opt(name).await?.is_some() {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(1));
        }
        Ok::<_, kube::Error>(())
    };
    match tokio::time::timeout(patience, gone).await {
        Ok(result) => result.map(|()| true).context("cannot read the cluster"),
        Err(_) => Ok(false),
    }
}

/// Returns what the deletion of a cluster waits for.
async fn holders(control: &Client, name: &str) -> anyhow::Result<Vec<String>> {
    let space = names::execution_space(name);
    let mut held = Vec::new();
    if Api::<Namespace>::all(control.clone())
        .get_opt(&space)
        .await
        .context("cannot read its namespace")?
        .is_some()
    {
        let works = Api::<Work>::namespaced(control.clone(), &space);
        let works = works.list(&ListParams::default()).await.context("cannot list its Works")?;
        let names: Vec<String> = works.items.iter().map(|work| Key(work).to_string()).collect();
        held.push(format!("the namespace {space}{}", listed(" with what runs there: ", &names)));
        return Ok(held);
    }
    let bindings = Api::<ResourceBinding>::all(control.clone()).list(&ListParams::default()).await;
    let bindings = bindings.context("cannot list the bindings")?.items;
    let named = |targets: &[TargetCluster]| targets.iter().any(|target| target.name == name);
    let all = bindings
        .iter()
        .filter(|binding| named(&binding.spec.clusters))
        .map(|binding| Key(binding).to_string());
    let mut all: Vec<String> = all.collect();
    let bindings = Api::<ClusterResourceBinding>::all(control.clone()).list(&ListParams::default()).await;
    let bindings = bindings.context("cannot list the bindings")?.items;
    all.extend(
        bindings
            .iter()
            .filter(|binding| named(&binding.spec.clusters))
            .map(|binding| Key(binding).to_string()),
    );
    if !all.is_empty() {
        held.push(format!("bindings that still name it{}", listed(": ", &all)));
    }
    Ok(held)
}

/// An object by namespace and name.
struct Key<'a, K>(&'a K);

impl<K: Resource> std::fmt::Display for Key<'_, K> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let meta = self.0.meta();
        if let Some(namespace) = &meta.namespace {
            write!(out, "{namespace}/")?;
        }
        out.write_str(meta.name.as_deref().unwrap_or_default())
    }
}

/// The first few of a list of names.
fn listed(before: &str, names: &[String]) -> String {
    const FEW: usize = 5;
    match names.len() {
        0 => String::new(),
        count if count > FEW => format!("{before}{} and {} more", names[..FEW].join(", "), count - FEW),
        _ => format!("{before}{}", names.join(", ")),
    }
}

fn waiting(held: &[String]) -> String {
    if held.is_empty() { String::new() } else { format!("; it waits for {}", held.join(" and ")) }
}

/// Releases everything that waits for the member. Failures are reported and skipped.
#[expect(clippy::print_stderr, reason = "commands talk to their user")]
async fn force_out(control: &Client, name: &str) {
    let space = names::execution_space(name);
    let works = Api::<Work>::namespaced(control.clone(), &space);
    match works.list(&ListParams::default()).await {
        Ok(list) => {
            for work in list.items {
                strip(&works, work.metadata.name.as_deref().unwrap_or(""), finalizers::EXECUTION).await;
            }
        }
        Err(error) => eprintln!("warning: cannot list the works of cluster {name}: {error}"),
    }
    strip(&Api::<Namespace>::all(control.clone()), &space, "kubernetes").await;
    strip(&Api::<Cluster>::all(control.clone()), name, finalizers::CLUSTER).await;
}

#[expect(clippy::print_stderr, reason = "commands talk to their user")]
async fn strip<K>(objects: &Api<K>, name: &str, finalizer: &str)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let result = async {
        let Some(object) = objects.get_opt(name).await? else { return Ok(()) };
        let retained = object.meta().finalizers.clone().unwrap_or_default();
        if !retained.iter().any(|each| each == finalizer) {
            return Ok(());
        }
        let rest: Vec<String> = retained.into_iter().filter(|each| each != finalizer).collect();
        let patch = json!({ "metadata": { "finalizers": rest } });
        objects.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())
    };
    if let Err(error) = result.await {
        eprintln!("warning: cannot let {} {name} go: {error}", K::kind(&()));
    }
}

/// Removes the objects that join created in the member.
async fn clean_member(member: &Client, name: &str, namespace: &str) -> anyhow::Result<()> {
    let account = names::service_account(name);
    let role = names::cluster_role(&account);
    delete(&Api::<ClusterRoleBinding>::all(member.clone()), &role).await?;
    delete(&Api::<ClusterRole>::all(member.clone()), &role).await?;
    delete(&Api::<ServiceAccount>::namespaced(member.clone(), namespace), &account).await?;
    delete(&Api::<Namespace>::all(member.clone()), namespace).await
}

async fn delete<K>(objects: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    match objects.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => {
            Err(error).with_context(|| format!("cannot delete {} {name} of the cluster", K::kind(&())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: UnjoinArguments,
    }

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_read_is_told_before_anything_is_removed() {
        // The control plane is never contacted: its kubeconfig does not exist either.
        let line = ["unjoin", "m1", "--cluster-kubeconfig=/no/member", "--kubeconfig=/no/plane"];
        let line = <Line as clap::Parser>::parse_from(line);
        let error = unjoin(line.arguments).await.expect_err("refused").to_string();
        assert_eq!(error, "stat /no/member: no such file or directory");
    }

    #[test]
    fn the_wait_is_a_positive_number_of_seconds() {
        assert_eq!((seconds("60"), seconds("5s")), (Ok(60), Ok(5)));
        assert!(seconds("0").is_err() && seconds("0s").is_err() && seconds("soon").is_err());
    }

    #[test]
    fn the_obstacles_of_a_cluster_are_a_few_names() {
        let names = |count: usize| (1..=count).map(|number| format!("ns/b{number}")).collect::<Vec<_>>();
        assert_eq!(listed(": ", &names(0)), "");
        assert_eq!(listed(": ", &names(2)), ": ns/b1, ns/b2");
        assert_eq!(listed(": ", &names(7)), ": ns/b1, ns/b2, ns/b3, ns/b4, ns/b5 and 2 more");
        assert_eq!(waiting(&[]), "");
        assert_eq!(waiting(&["a".to_owned(), "b".to_owned()]), "; it waits for a and b");
        let mut work = Work::default();
        work.metadata.name = Some("w".to_owned());
        assert_eq!(Key(&work).to_string(), "w");
        work.metadata.namespace = Some("ns".to_owned());
        assert_eq!(Key(&work).to_string(), "ns/w");
    }
}
