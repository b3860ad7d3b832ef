//! `deinit`: removes the control plane from a host cluster. What it stored stays on its volume.

use anyhow::bail;
use clap::Args;
use serde_json::json;

use crate::failure;
use crate::init::{Host, LABEL};
use crate::output;
use crate::select::list;
use crate::server::segment;

/// Remove the Karmada control plane from the Kubernetes cluster.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Show what would be removed
  karmadactl deinit --dry-run --force

  # Remove it, with its namespace
  karmadactl deinit --purge-namespace")]
pub struct Arguments {
    #[command(flatten)]
    pub host: Host,
    /// Only say what would be removed.
    #[arg(long)]
    pub dry_run: bool,
    /// Remove it without asking.
    #[arg(short, long)]
    pub force: bool,
    /// Remove the namespace as well.
    #[arg(long)]
    pub purge_namespace: bool,
}

/// Collections that are looked through, and how their objects are called.
const KINDS: [(&str, &str, &str); 5] = [
    ("/apis/apps/v1", "deployments", "deployment"),
    ("/apis/apps/v1", "statefulsets", "StatefulSet"),
    ("/api/v1", "services", "Service"),
    ("/api/v1", "secrets", "Secrets"),
    ("/api/v1", "serviceaccounts", "ServiceAccount"),
];

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let host = arguments.host.server().await?;
    let namespace = segment(&arguments.host.namespace);
    host.get(&format!("/api/v1/namespaces/{namespace}")).await?;
    output::line("removes Karmada from Kubernetes");
    if !arguments.force && !confirmed()? {
        return Ok(());
    }
    for (root, plural, shown) in KINDS {
        let path = format!("{root}/namespaces/{namespace}/{plural}");
        for object in list(&host, &path, Some(LABEL), None).await? {
            let name = object["metadata"]["name"].as_str().unwrap_or("");
            output::line(&format!("delete {shown} {}", apimachinery::go::quote(name)));
            if arguments.dry_run {
                continue;
            }
            // This very object; what is there under its name by now is somebody else's.
            let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground",
                "preconditions": {"uid": object["metadata"]["uid"]}});
            match host.delete(&format!("{path}/{}", segment(name)), &options).await {
                Err(error) if !failure::is_not_found(&error) => return Err(error),
                _ => {}
            }
        }
    }
    if arguments.purge_namespace {
        output::line(&format!("delete Namespace {}", apimachinery::go::quote(&arguments.host.namespace)));
        if !arguments.dry_run {
            host.delete(&format!("/api/v1/namespaces/{namespace}"), &json!({})).await?;
        }
    }
    output::line("remove Karmada from Kubernetes successfully.\n");
    output::line(
        "What the control plane stored stays: a directory of its node (/var/lib/karmada-etcd by default), or a claim.",
    );
    Ok(())
}

pub(crate) fn confirmed() -> anyhow::Result<bool> {
    loop {
        output::print("Please type (y)es or (n)o and then press enter:");
        let mut answer = String::new();
        if std::io::stdin().read_line(&mut answer)? == 0 {
            bail!("nobody answered; --force does not ask");
        }
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(true),
            "n" | "no" => return Ok(false),
            _ => {}
        }
    }
}
