//! `addons`: upstream's additional components. Here they are parts of the control plane, so nothing is installed beside it.
//!
//! The descheduler is off by default. Enabling or disabling it changes the arguments of the control plane that `init` installed,
//! which then restarts. For components with an API, the control plane is asked whether it serves that API.

use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::init::Host;
use crate::{failure, output};

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
    /// Seconds to wait for the control plane to be ready again.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub pod_timeout: u64,
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
  # Have replicas that find no node moved to other clusters
  karmadactl addons enable karmada-descheduler")]
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
  # Leave them where they are
  karmadactl addons disable karmada-descheduler --force")]
pub struct Disable {
    #[command(flatten)]
    pub change: Change,
    /// Do it without asking.
    #[arg(short, long)]
    pub force: bool,
}

/// How an addon is part of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A controller that runs if `--controllers` names it.
    Controller(&'static str),
    /// A group of the API.
    Group(&'static str),
    /// A program beside a member.
    Program,
}

/// Upstream's addons, in the order of their names.
const ADDONS: [(&str, Part); 4] = [
    ("karmada-descheduler", Part::Controller("descheduler")),
    ("karmada-metrics-adapter", Part::Group("custom.metrics.k8s.io")),
    ("karmada-scheduler-estimator", Part::Program),
    ("karmada-search", Part::Group("search.karmada.io")),
];

const PROGRAM: &str = "it runs beside each member: start `karmada estimator` there, and the control plane with \
    --enable-scheduler-estimator; the guide to scheduling shows how";

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::List(list) => {
            let mut rows = Vec::new();
            for (name, part) in ADDONS {
                rows.push((name, status(&list.place, part).await?));
            }
            output::print(&table(&rows));
            Ok(())
        }
        Command::Enable(change) => {
            for (name, part) in known(&change.names)? {
                match part {
                    Part::Controller(controller) => switch(&change.place, name, controller, true).await?,
                    Part::Group(_) if status(&change.place, part).await? == "enabled" => {
                        output::line(&format!("{name} is part of the control plane, and enabled"));
                    }
                    Part::Group(group) => {
                        bail!(
                            "{name} cannot be enabled: this version of the control plane does not serve {group}"
                        )
                    }
                    // `all` means all addons that need no further arguments.
                    Part::Program if change.names.iter().any(|name| name == "all") => {
                        output::warn(&format!("warning: {name} is left out: {PROGRAM}"));
                    }
                    Part::Program => bail!("{name} cannot be enabled by this command: {PROGRAM}"),
                }
            }
            Ok(())
        }
        Command::Disable(disable) => {
            let addons = known(&disable.change.names)?;
            if !disable.force && !crate::deinit::confirmed()? {
                return Ok(());
            }
            for (name, part) in addons {
                match part {
                    Part::Controller(controller) => {
                        switch(&disable.change.place, name, controller, false).await?
                    }
                    Part::Group(_) => {
                        output::line(&format!("{name} is part of the control plane, and stays"))
                    }
                    Part::Program => output::line(&format!(
                        "{name} is not installed by this command; there is nothing to disable"
                    )),
                }
            }
            Ok(())
        }
    }
}

fn known(names: &[String]) -> anyhow::Result<Vec<(&'static str, Part)>> {
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

/// Upstream's words: enabled, disabled, unhealthy, unknown.
async fn status(place: &Place, part: Part) -> anyhow::Result<&'static str> {
    match part {
        Part::Controller(controller) => {
            let set = match place.host.server().await?.get(&crate::init::path(&place.host.namespace)).await {
                Ok(set) => set,
                Err(error) if failure::is_not_found(&error) => return Ok("disabled"),
                Err(error) => return Err(error),
            };
            let runs = crate::init::arguments_of(&set).iter().any(|argument| names(argument, controller));
            let ready = set["status"]["readyReplicas"].as_i64().unwrap_or(0) >= 1;
            Ok(match (runs, ready) {
                (false, _) => "disabled",
                (true, true) => "enabled",
                (true, false) => "unhealthy",
            })
        }
        Part::Group(group) => {
            let connection = crate::server::Connection {
                kubeconfig: Some(place.karmada_kubeconfig.clone().into()),
                karmada_context: place.karmada_context.clone(),
                ..crate::server::Connection::default()
            };
            // Without the kubeconfig of the control plane, its state is unknown.
            if !std::path::Path::new(&place.karmada_kubeconfig).exists() {
                return Ok("unknown");
            }
            match connection.plane().await?.server.get(&format!("/apis/{group}")).await {
                Ok(_) => Ok("enabled"),
                Err(error) if failure::is_not_found(&error) => Ok("disabled"),
                Err(error) => Err(error),
            }
        }
        Part::Program => Ok("unknown"),
    }
}

/// Returns whether an argument of the control plane enables a controller.
fn names(argument: &str, controller: &str) -> bool {
    argument.strip_prefix("--controllers=").is_some_and(|list| list.split(',').any(|each| each == controller))
}

/// Returns the arguments with or without a controller; `None` if nothing changes.
fn switched(arguments: &[String], controller: &str, on: bool) -> Option<Vec<String>> {
    let runs = arguments.iter().any(|argument| names(argument, controller));
    if runs == on {
        return None;
    }
    let mut found = false;
    let mut changed: Vec<String> = Vec::new();
    for argument in arguments {
        let Some(list) = argument.strip_prefix("--controllers=") else {
            changed.push(argument.clone());
            continue;
        };
        found = true;
        let mut list: Vec<&str> = list.split(',').filter(|each| *each != controller).collect();
        if on {
            list.push(controller);
        }
        // A lone star is the default, so the argument is not needed.
        if list != ["*"] {
            changed.push(format!("--controllers={}", list.join(",")));
        }
    }
    if on && !found {
        changed.push(format!("--controllers=*,{controller}"));
    }
    Some(changed)
}

/// Changes the control plane's arguments, and waits until it is ready again.
async fn switch(place: &Place, name: &str, controller: &str, on: bool) -> anyhow::Result<()> {
    let host = place.host.server().await?;
    let path = crate::init::path(&place.host.namespace);
    let set = match host.get(&path).await {
        Ok(set) => set,
        Err(error) if failure::is_not_found(&error) => bail!(
            "there is no control plane in namespace {}; start `karmada server` with --controllers=*,{controller} instead",
            place.host.namespace
        ),
        Err(error) => return Err(error),
    };
    let state = if on { "enabled" } else { "disabled" };
    let Some(changed) = switched(&crate::init::arguments_of(&set), controller, on) else {
        output::line(&format!("{name} is already {state}"));
        return Ok(());
    };
    // Concurrent changes by others are not undone.
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": set["metadata"]["resourceVersion"]},
        {"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": changed},
    ]);
    host.patch(&path, "application/json-patch+json", &patch).await?;
    crate::init::ready(&place.host, &host, Duration::from_secs(place.pod_timeout)).await?;
    output::line(&format!("{name} is {state}"));
    Ok(())
}

fn table(rows: &[(&str, &str)]) -> String {
    let ruler = "|-----------------------------|----------|\n";
    let mut text = format!("{ruler}|         ADDON NAME          |  STATUS  |\n{ruler}");
    for (name, status) in rows {
        text.push_str(&format!("| {name:<27} | {status:<9}|\n"));
    }
    text + ruler
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addons_are_listed_as_upstream_lists_them() {
        let text = table(&[("karmada-scheduler-estimator", "unknown"), ("karmada-search", "unhealthy")]);
        assert!(
            text.contains(
                "| karmada-scheduler-estimator | unknown  |\n| karmada-search              | unhealthy|\n"
            ),
            "{text}"
        );
        assert!(known(&["nope".to_owned()]).is_err() && known(&[]).is_err());
        assert_eq!(known(&["all".to_owned()]).expect("all").len(), 4);
    }

    #[test]
    fn a_controller_is_switched_on_and_off_among_others() {
        let check = |before: &[&str], on: bool, after: Option<&[&str]>| {
            let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            assert_eq!(switched(&own(before), "descheduler", on), after.map(own), "{before:?} {on}");
        };
        check(&["server"], true, Some(&["server", "--controllers=*,descheduler"]));
        check(&["server"], false, None);
        check(&["server", "--controllers=*,descheduler"], true, None);
        check(&["server", "--controllers=*,descheduler", "-v"], false, Some(&["server", "-v"]));
        check(&["--controllers=a,-b"], true, Some(&["--controllers=a,-b,descheduler"]));
        check(&["--controllers=a,descheduler"], false, Some(&["--controllers=a"]));
    }
}
