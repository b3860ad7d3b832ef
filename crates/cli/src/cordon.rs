//! `cordon` and `uncordon`: keep new workloads away from a member, or allow them again.

use clap::Args;
use serde_json::{Value, json};

use crate::output;
use crate::server::{Connection, segment};

const TAINT: &str = "cluster.karmada.io/unschedulable";

/// Mark cluster as unschedulable.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Mark cluster foo as unschedulable
  karmadactl cordon foo")]
pub struct CordonArguments {
    #[command(flatten)]
    pub what: What,
}

/// Mark cluster as schedulable.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Mark cluster foo as schedulable
  karmadactl uncordon foo")]
pub struct UncordonArguments {
    #[command(flatten)]
    pub what: What,
}

/// Which member, and how.
#[derive(Debug, Clone, Args)]
pub struct What {
    /// Name of the cluster.
    #[arg(value_name = "CLUSTER")]
    pub cluster: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
    /// Run the command in dry-run mode, without making any server requests that change something.
    #[arg(long)]
    pub dry_run: bool,
}

pub(crate) async fn cordon(arguments: CordonArguments) -> anyhow::Result<()> {
    change(arguments.what, true).await
}

pub(crate) async fn uncordon(arguments: UncordonArguments) -> anyhow::Result<()> {
    change(arguments.what, false).await
}

async fn change(what: What, closed: bool) -> anyhow::Result<()> {
    let name = match &what.cluster[..] {
        [] => anyhow::bail!("cluster name is required"),
        [name] => name,
        _ => anyhow::bail!("more than one cluster name is not supported"),
    };
    let plane = what.connection.plane().await?;
    let path = format!("/apis/cluster.karmada.io/v1alpha1/clusters/{}", segment(name));
    let cluster = plane.server.get(&path).await?;
    let done = if closed { "cordoned" } else { "uncordoned" };
    let Some(taints) = taints(&cluster["spec"]["taints"], closed) else {
        output::line(&format!("{name} cluster already {done}"));
        return Ok(());
    };
    if !what.dry_run {
        let patch = json!({ "spec": { "taints": taints } });
        plane.server.patch(&path, "application/merge-patch+json", &patch).await?;
    }
    output::line(&format!("{name} cluster {done}"));
    Ok(())
}

/// Returns the new taints; `None` if nothing changes.
fn taints(taints: &Value, closed: bool) -> Option<Value> {
    let ours = |taint: &Value| taint["key"] == TAINT && taint["effect"] == "NoSchedule";
    let mut list = taints.as_array().cloned().unwrap_or_default();
    if list.iter().any(ours) == closed {
        return None;
    }
    if closed {
        list.push(json!({ "key": TAINT, "effect": "NoSchedule" }));
    } else {
        list.retain(|taint| !ours(taint));
    }
    Some(if list.is_empty() { Value::Null } else { list.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_taint_comes_and_goes() {
        let other = json!({"key": "a", "effect": "NoExecute"});
        let ours = json!({"key": TAINT, "effect": "NoSchedule"});
        assert_eq!(taints(&json!([other]), true), Some(json!([other, ours])));
        assert_eq!(taints(&json!([other, ours]), true), None);
        assert_eq!(taints(&json!([other, ours]), false), Some(json!([other])));
        assert_eq!(taints(&json!([ours]), false), Some(Value::Null));
        assert_eq!(taints(&Value::Null, false), None);
    }
}
