//! `addons`: upstream's further components. None of them is a program of its own here, so there is nothing to install.

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::init::Host;
use crate::output;

/// Enable or disable a Karmada addon.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub host: Host,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one in the life of the process")]
pub enum Command {
    List(List),
    Enable(Change),
    Disable(Disable),
}

/// Where addons would be.
#[derive(Debug, Clone, Args)]
pub struct Place {
    #[command(flatten)]
    pub host: Host,
    /// Path to the kubeconfig file of the control plane.
    #[arg(long, value_name = "FILE", default_value = "/etc/karmada/karmada-apiserver.config")]
    pub karmada_kubeconfig: String,
    /// Name of the context in that file.
    #[arg(long, value_name = "CONTEXT")]
    pub karmada_context: Option<String>,
    /// The member cluster of an estimator.
    #[arg(short = 'C', long, value_name = "CLUSTER")]
    pub cluster: Option<String>,
}

/// List Karmada addons.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # List addons
  karmadactl addons list")]
pub struct List {
    #[command(flatten)]
    pub place: Place,
}

/// Enable Karmada addons.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Ask for an addon
  karmadactl addons enable karmada-search")]
pub struct Change {
    /// Names of addons, or all.
    #[arg(value_name = "ADDON")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub place: Place,
}

/// Disable Karmada addons.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Ask for an addon to go
  karmadactl addons disable karmada-search --force")]
pub struct Disable {
    #[command(flatten)]
    pub change: Change,
    /// Do it without asking.
    #[arg(short, long)]
    pub force: bool,
}

/// Upstream's addons, and what is known about each here.
const ADDONS: [(&str, &str); 4] = [
    ("karmada-descheduler", "this control plane does not move replicas away from full clusters yet"),
    (
        "karmada-metrics-adapter",
        "this control plane does not serve the metrics of its members yet; `top` reads them directly",
    ),
    (
        "karmada-scheduler-estimator",
        "upstream's estimators are asked with --enable-scheduler-estimator; none is installed by this command",
    ),
    (
        "karmada-search",
        "this control plane does not cache objects of its members yet; `get -s members` reads them directly",
    ),
];

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::List(list) => {
            output::print(&table(list.place.cluster.is_some()));
            Ok(())
        }
        Command::Enable(change) => {
            let names = known(&change.names)?;
            let told: Vec<String> =
                names.iter().map(|(name, reason)| format!("{name} cannot be enabled: {reason}")).collect();
            bail!("{}", told.join("\n"))
        }
        Command::Disable(disable) => {
            for (name, _) in known(&disable.change.names)? {
                output::line(&format!("{name} is not installed; there is nothing to disable"));
            }
            Ok(())
        }
    }
}

fn known(names: &[String]) -> anyhow::Result<Vec<(&'static str, &'static str)>> {
    if names.is_empty() {
        bail!("addonNames must be not be null");
    }
    if names.iter().any(|name| name == "all") {
        return Ok(ADDONS.to_vec());
    }
    let find = |name: &String| match ADDONS.iter().find(|(known, _)| known == name) {
        Some(found) => Ok(*found),
        None => bail!("addon {name} is not be supported now"),
    };
    names.iter().map(find).collect()
}

fn table(cluster: bool) -> String {
    let ruler = "|-----------------------------|----------|\n";
    let mut text = format!("{ruler}|         ADDON NAME          |  STATUS  |\n{ruler}");
    for (name, _) in ADDONS {
        let unknown = name == "karmada-scheduler-estimator" && !cluster;
        text.push_str(&format!("| {name:<27} | {:<8} |\n", if unknown { "unknown" } else { "disabled" }));
    }
    text + ruler
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addons_are_listed_as_upstream_lists_them() {
        let text = table(false);
        assert!(
            text.contains(
                "| karmada-scheduler-estimator | unknown  |\n| karmada-search              | disabled |\n"
            ),
            "{text}"
        );
        assert!(known(&["nope".to_owned()]).is_err() && known(&[]).is_err());
        assert_eq!(known(&["all".to_owned()]).expect("all").len(), 4);
    }
}
