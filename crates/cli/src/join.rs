//! `join`: registers a member in push mode.
//!
//! In the member: a namespace, two service accounts with tokens, and a role for the account that the control plane uses. In the
//! control plane: the two tokens as Secrets, and the Cluster. Existing objects are left alone, so that an interrupted join can
//! simply be repeated. A registered cluster is refused. Secrets that an earlier join left in the control plane get the new
//! credentials.

use std::path::PathBuf;

use anyhow::Context;
use api::cluster::{Cluster, ClusterSpec};
use api::constants::{NAMESPACE_CLUSTER, NAMESPACE_SYSTEM};
use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use member::credentials::{Reported, ensure, prepare_member};
use member::registration;
use serde_json::Value;

use crate::clients::{self, ControlArguments};
use crate::failure;

/// Register a cluster in push mode: the control plane reaches out to it.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Join cluster member1 whose kubeconfig lies beside
  karmadactl join member1 --cluster-kubeconfig=member1.kubeconfig")]
pub struct JoinArguments {
    /// Name of the cluster.
    #[arg(value_name = "CLUSTER_NAME", default_value = "", hide_default_value = true)]
    pub name: String,
    #[command(flatten)]
    pub control: ControlArguments,
    /// Path to the kubeconfig file of the cluster that joins; used during this command only.
    #[arg(long, value_name = "FILE")]
    pub cluster_kubeconfig: Option<PathBuf>,
    /// Name of the context in the kubeconfig file of the cluster; by default the current one.
    #[arg(long, value_name = "CONTEXT")]
    pub cluster_context: Option<String>,
    /// Namespace of the service accounts in the cluster and of the secrets in the control plane.
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE_CLUSTER)]
    pub cluster_namespace: String,
    /// Provider of the cluster.
    #[arg(long, value_name = "PROVIDER")]
    pub cluster_provider: Option<String>,
    /// Region of the cluster.
    #[arg(long, value_name = "REGION")]
    pub cluster_region: Option<String>,
    /// Zones of the cluster.
    #[arg(long, value_name = "ZONE", value_delimiter = ',')]
    pub cluster_zones: Vec<String>,
    /// Also install the definitions of ServiceExport and ServiceImport into the cluster. Without them, a policy has to bring
    /// them there before services can be exported from it or imported into it.
    #[arg(long)]
    pub install_mcs_crds: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
}

/// Registers a member.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "commands talk to their user")]
pub async fn join(arguments: JoinArguments) -> anyhow::Result<()> {
    if arguments.cluster_namespace == NAMESPACE_SYSTEM {
        eprintln!("warning: {NAMESPACE_SYSTEM} is the system's own namespace; better take another one");
    }
    enrol(&arguments, |progress| eprintln!("{progress}")).await?;
    let name = &arguments.name;
    if arguments.dry_run {
        println!("cluster({name}) would be joined (dry run)");
    } else {
        println!("cluster({name}) is joined successfully");
    }
    Ok(())
}

/// Registers a member without output of its own; `say` gets progress messages.
pub async fn enrol(arguments: &JoinArguments, say: impl Fn(&str)) -> anyhow::Result<()> {
    let name = &arguments.name;
    clients::check_name(name)?;
    let control = arguments.control.client().await?;
    let member_config =
        clients::config(arguments.cluster_kubeconfig.as_deref(), arguments.cluster_context.as_deref())
            .await?;
    let member =
        crate::retries::client(member_config.clone()).context("cannot make a client for the cluster")?;

    let id = registration::id_of(&member, name).await.map_err(|error| {
        let error = anyhow::Error::from(error);
        match member_config.cluster_url.authority() {
            Some(host) if failure::is_refused_connection(&error) => {
                failure::refused_connection(host.as_str())
            }
            _ => error,
        }
    })?;
    registration::refuse_registered(&control, name, &id, &arguments.cluster_namespace).await?;
    if arguments.dry_run {
        return Ok(());
    }

    let credentials = prepare_member(&member, name, &arguments.cluster_namespace, Reported::ALL).await?;
    say(&format!("cluster({name}): accounts and credentials are in place"));
    if arguments.install_mcs_crds {
        install_service_definitions(&member).await?;
        say(&format!("cluster({name}): ServiceExport and ServiceImport are defined"));
    }
    let mut cluster = Cluster::default();
    cluster.metadata.name = Some(name.clone());
    cluster.spec = ClusterSpec {
        provider: arguments.cluster_provider.clone().unwrap_or_default(),
        region: arguments.cluster_region.clone().unwrap_or_default(),
        zones: arguments.cluster_zones.clone(),
        ..registration::push(id, &member_config)
    };
    registration::enter(&control, &credentials, &arguments.cluster_namespace, cluster).await?;
    Ok(())
}

/// Defines ServiceExport and ServiceImport in a member. Existing definitions stay unchanged.
pub(crate) async fn install_service_definitions(member: &Client) -> anyhow::Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(member.clone());
    for definition in service_definitions() {
        ensure(&definitions, definition).await?;
    }
    Ok(())
}

/// Returns the definitions of ServiceExport and ServiceImport.
pub(crate) fn service_definitions() -> Vec<Value> {
    let ours = |definition: &Value| definition["spec"]["group"] == api::multicluster::GROUP;
    api::crd::all().into_iter().filter(ours).collect()
}
