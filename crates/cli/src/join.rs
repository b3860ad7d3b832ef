//! `join`: registers a member in push mode.
//!
//! In the member: a namespace, two service accounts with tokens, and a role for the one that the control plane acts
//! through. In the control plane: the two tokens as Secrets, and the Cluster. What exists already is left as it is, so
//! that a join that was interrupted can simply be repeated; a cluster that is registered is refused. Secrets that an
//! earlier join left in the control plane get the new credentials.

use std::path::PathBuf;

use anyhow::{Context, bail};
use api::cluster::{Cluster, ClusterSpec, ClusterSyncMode};
use api::constants::{NAMESPACE_CLUSTER, NAMESPACE_KUBE_SYSTEM, NAMESPACE_SYSTEM};
use clap::Args;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::clients::{self, ControlArguments};
use crate::credentials::{Reported, ensure, prepare_member, system};
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

/// Registers a member without a word of its own; `say` is told how it goes.
pub async fn enrol(arguments: &JoinArguments, say: impl Fn(&str)) -> anyhow::Result<()> {
    let name = &arguments.name;
    clients::check_name(name)?;
    let control = arguments.control.client().await?;
    let member_config =
        clients::config(arguments.cluster_kubeconfig.as_deref(), arguments.cluster_context.as_deref())
            .await?;
    let member = Client::try_from(member_config.clone()).context("cannot make a client for the cluster")?;

    let id = Api::<Namespace>::all(member.clone())
        .get(NAMESPACE_KUBE_SYSTEM)
        .await
        .map_err(|error| {
            let error = anyhow::Error::from(error);
            match member_config.cluster_url.authority() {
                Some(host) if failure::is_refused_connection(&error) => {
                    failure::refused_connection(host.as_str())
                }
                _ => {
                    error.context(format!("cannot read namespace {NAMESPACE_KUBE_SYSTEM} of cluster {name}"))
                }
            }
        })?
        .metadata
        .uid
        .unwrap_or_default();
    refuse_registered(&control, name, &id).await?;
    if arguments.dry_run {
        return Ok(());
    }

    let credentials = prepare_member(&member, name, &arguments.cluster_namespace, Reported::ALL).await?;
    say(&format!("cluster({name}): accounts and credentials are in place"));
    if arguments.install_mcs_crds {
        install_service_definitions(&member).await?;
        say(&format!("cluster({name}): ServiceExport and ServiceImport are defined"));
    }
    let spec = ClusterSpec {
        id,
        sync_mode: ClusterSyncMode::Push,
        api_endpoint: member_config.cluster_url.to_string().trim_end_matches('/').to_owned(),
        insecure_skip_tls_verification: member_config.accept_invalid_certs,
        proxy_url: member_config.proxy_url.map(|url| url.to_string()).unwrap_or_default(),
        provider: arguments.cluster_provider.clone().unwrap_or_default(),
        region: arguments.cluster_region.clone().unwrap_or_default(),
        zones: arguments.cluster_zones.clone(),
        ..ClusterSpec::default()
    };
    let namespace = &arguments.cluster_namespace;
    ensure::<Namespace>(&Api::all(control.clone()), json!({ "metadata": system(namespace) })).await?;
    credentials.store(&control, name, namespace, None).await?;
    let mut cluster = Cluster::default();
    cluster.metadata.name = Some(name.clone());
    cluster.spec = credentials.refer(spec, name, namespace);
    let cluster = Api::<Cluster>::all(control.clone())
        .create(&PostParams::default(), &cluster)
        .await
        .with_context(|| format!("cannot create cluster {name} in the control plane"))?;
    credentials.belong_to(&control, &cluster, namespace).await
}

async fn refuse_registered(control: &Client, name: &str, id: &str) -> anyhow::Result<()> {
    let clusters = Api::<Cluster>::all(control.clone())
        .list(&ListParams::default())
        .await
        .context("cannot list the clusters of the control plane")?;
    let taken = clusters
        .items
        .iter()
        .any(|cluster| cluster.spec.id == id || cluster.metadata.name.as_deref() == Some(name));
    if taken {
        bail!("the cluster ID {id} or the cluster name {name} has been registered");
    }
    Ok(())
}

/// Defines ServiceExport and ServiceImport in a member. What is defined there already stays as it is.
pub(crate) async fn install_service_definitions(member: &Client) -> anyhow::Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(member.clone());
    let ours = |definition: &Value| definition["spec"]["group"] == api::multicluster::GROUP;
    for definition in api::crd::all().into_iter().filter(ours) {
        ensure(&definitions, definition).await?;
    }
    Ok(())
}
