//! `deinit`: removes the control plane from a host cluster, or the programs beside the host's own API server. The stored data
//! remains: on a volume, or as objects of Karmada's definitions.

use anyhow::bail;
use clap::Args;
use serde_json::json;

use crate::failure;
use crate::init::{Host, LABEL, marked};
use crate::output;
use crate::select::list;
use crate::server::{Server, segment};

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

/// Collections that are searched, and the names of their objects.
const KINDS: [(&str, &str, &str); 5] = [
    ("/apis/apps/v1", "deployments", "deployment"),
    ("/apis/apps/v1", "statefulsets", "StatefulSet"),
    ("/api/v1", "services", "Service"),
    ("/api/v1", "secrets", "Secrets"),
    ("/api/v1", "serviceaccounts", "ServiceAccount"),
];

/// The objects of `init --on-existing` outside of the namespace, which refer to it: they are removed first.
const OUTSIDE: [(&str, &str, &str); 7] = [
    (
        "/apis/admissionregistration.k8s.io/v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
    ),
    (
        "/apis/admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
    ),
    ("/apis/apiregistration.k8s.io/v1", "apiservices", "APIService"),
    ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding"),
    ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole"),
    ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding"),
    ("/apis/rbac.authorization.k8s.io/v1", "roles", "Role"),
];

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let host = arguments.host.server().await?;
    let namespace = segment(&arguments.host.namespace);
    host.get(&format!("/api/v1/namespaces/{namespace}")).await?;
    output::line("removes Karmada from Kubernetes");
    if !arguments.force && !confirmed()? {
        return Ok(());
    }
    let marked = marked(&arguments.host.namespace);
    for (root, plural, shown) in OUTSIDE {
        remove(&host, &arguments, &format!("{root}/{plural}"), &marked, shown).await?;
    }
    for (root, plural, shown) in KINDS {
        remove(&host, &arguments, &format!("{root}/namespaces/{namespace}/{plural}"), LABEL, shown).await?;
    }
    if arguments.purge_namespace {
        output::line(&format!("delete Namespace {}", apimachinery::go::quote(&arguments.host.namespace)));
        if !arguments.dry_run {
            host.delete(&format!("/api/v1/namespaces/{namespace}"), &json!({})).await?;
        }
    }
    output::line("remove Karmada from Kubernetes successfully.\n");
    output::line(
        "What the control plane stored stays: a directory of its node (/var/lib/karmada-etcd by default), or a claim; on an API server \
         that was there before, also Karmada's definitions with their objects.",
    );
    Ok(())
}

/// Removes the objects of a collection that have a label.
async fn remove(
    host: &Server,
    arguments: &Arguments,
    collection: &str,
    label: &str,
    shown: &str,
) -> anyhow::Result<()> {
    for object in list(host, collection, Some(label), None).await? {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or("");
        let name = text("name");
        output::line(&format!("delete {shown} {}", apimachinery::go::quote(name)));
        if arguments.dry_run {
            continue;
        }
        // A collection over all namespaces has no path for a single object.
        let path = match (text("namespace"), collection.contains("/namespaces/")) {
            ("", _) | (_, true) => format!("{collection}/{}", segment(name)),
            (namespace, false) => {
                let (root, plural) = collection.rsplit_once('/').unwrap_or(("", collection));
                format!("{root}/namespaces/{}/{plural}/{}", segment(namespace), segment(name))
            }
        };
        // Exactly this object: an object that has its name by now belongs to someone else.
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground",
            "preconditions": {"uid": object["metadata"]["uid"]}});
        match host.delete(&path, &options).await {
            Err(error) if !failure::is_not_found(&error) => return Err(error),
            _ => {}
        }
    }
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
