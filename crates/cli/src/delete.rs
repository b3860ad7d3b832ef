//! `delete`: removes objects from the control plane, and waits until they are gone.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{self, Failures};
use crate::manifests::Files;
use crate::output;
use crate::print::{DryRun, DryRunFlag};
use crate::select::{Item, Query};
use crate::server::{Namespaced, Server};

/// Delete resources by file names, stdin, resources and names, or by resources and label selector.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Delete a propagation policy using the type and name specified in policy.yaml
  karmadactl delete -f ./policy.yaml

  # Delete deployments and services with label app=web
  karmadactl delete deployments,services -l app=web

  # Delete all propagation policies of a namespace
  karmadactl delete propagationpolicies --all -n shop")]
pub struct Arguments {
    /// TYPE[,TYPE] [NAME…], or TYPE/NAME….
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub files: Files,
    /// Delete all resources of the types, in the namespace.
    #[arg(long)]
    pub all: bool,
    /// Delete across all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector, such as app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Field selector, such as metadata.name=web.
    #[arg(long, value_name = "SELECTOR")]
    pub field_selector: Option<String>,
    #[command(flatten)]
    pub cascade: Cascade,
    /// Seconds given to the resource to terminate gracefully; ignored if negative.
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true)]
    pub grace_period: i64,
    /// Resources are signaled for immediate shutdown (same as --grace-period=1).
    #[arg(long)]
    pub now: bool,
    /// Remove resources from the API at once and bypass graceful deletion.
    #[arg(long)]
    pub force: bool,
    /// Treat "resource not found" as a successful delete.
    #[arg(long)]
    pub ignore_not_found: bool,
    /// Delete only when the user confirms.
    #[arg(short, long)]
    pub interactive: bool,
    /// Wait for resources to be gone before returning; this waits for finalizers.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// The length of time to wait before giving up, such as 30s; zero means a week.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::clients::duration_text)]
    pub timeout: String,
    /// Output mode. Use "-o name" for shorter output (resource/name).
    #[arg(short, long, value_name = "MODE", default_value = "")]
    pub output: String,
    /// A path to send a DELETE to, such as /api/v1/namespaces/x; nothing else is looked at.
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    pub raw: String,
    #[command(flatten)]
    pub dry_run: DryRunFlag,
}

/// `--cascade`, for commands that delete.
#[derive(Debug, Clone, Default, Args)]
pub struct Cascade {
    /// What happens to dependents: background, orphan, or foreground.
    #[arg(long, value_name = "CASCADE", default_value = "background", num_args = 0..=1, require_equals = true, default_missing_value = "background")]
    pub cascade: String,
}

impl Cascade {
    /// The delete options for a request.
    pub(crate) fn get(&self) -> anyhow::Result<&'static str> {
        Ok(match self.cascade.as_str() {
            "background" | "true" => "Background",
            "foreground" => "Foreground",
            "orphan" | "false" => "Orphan",
            other => bail!(
                "invalid cascade value ({other}). Must be \"background\", \"foreground\", or \"orphan\""
            ),
        })
    }
}

/// Deletes the objects.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let dry_run = arguments.dry_run.get()?;
    let options = arguments.options(dry_run)?;
    let patience = match crate::clients::duration(&arguments.timeout)? {
        Duration::ZERO => Duration::from_secs(7 * 24 * 3600),
        patience => patience,
    };
    if !matches!(arguments.output.as_str(), "" | "name") {
        bail!("unexpected -o output mode: {}. We only support '-o name'", arguments.output);
    }
    if arguments.all && arguments.selector.is_some() {
        bail!("setting 'all' parameter but found a non empty selector.");
    }
    // A name together with a selector, or with `--all`, is ambiguous, so nothing is deleted by mistake.
    let chosen = arguments.all || arguments.selector.is_some() || arguments.field_selector.is_some();
    if chosen && (arguments.resources.len() > 1 || arguments.resources.iter().any(|word| word.contains('/')))
    {
        bail!("name cannot be provided when a selector is specified");
    }
    if arguments.force && options["gracePeriodSeconds"] == 0 {
        output::warn(
            "Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated. \
             The resource may continue to run on the cluster indefinitely.",
        );
    }
    let plane = arguments.place.plane().await?;
    if !arguments.raw.is_empty() {
        if !arguments.raw.starts_with('/') {
            bail!("--raw must be a path that begins with /, not {:?}", arguments.raw);
        }
        let answer = plane.server.delete(&arguments.raw, &options).await?;
        output::line(&answer.to_string());
        return Ok(());
    }
    let asked = Query {
        words: arguments.resources.clone(),
        files: arguments.files.clone(),
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        all_namespaces: arguments.all_namespaces,
        labels: arguments.selector.clone(),
        fields: arguments.field_selector.clone(),
        all: arguments.all,
        ignore_not_found: arguments.ignore_not_found || arguments.all,
        deleting: true,
        ..Query::default()
    };
    let (items, mut failures) = asked.items(&plane.server).await?;
    if items.is_empty() && failures.is_empty() && !arguments.ignore_not_found {
        output::line("No resources found");
        return Ok(());
    }
    if arguments.interactive && !items.is_empty() && !confirmed(&items)? {
        output::line("deletion is cancelled");
        return Ok(());
    }
    let mut waited = Vec::new();
    for item in items {
        if dry_run != DryRun::Client
            && let Err(error) = plane.server.delete(&item.path(), &options).await
        {
            if !(failure::is_not_found(&error) && (arguments.ignore_not_found || arguments.all)) {
                failures.push(error);
            }
            continue;
        }
        output::line(&arguments.told(&item, dry_run));
        waited.push(item);
    }
    if arguments.wait && dry_run == DryRun::None {
        for item in &waited {
            if let Err(error) = gone(&plane.server, item, patience).await {
                failures.push(error);
            }
        }
    }
    Failures::check(failures)
}

impl Arguments {
    fn options(&self, dry_run: DryRun) -> anyhow::Result<Value> {
        let propagation = self.cascade.get()?;
        let mut grace = self.grace_period;
        if self.now && grace >= 0 {
            bail!("--now and --grace-period cannot be specified together");
        }
        if self.now {
            grace = 1;
        }
        if grace == 0 && !self.force {
            // Immediate deletion is dangerous: the shortest grace period is one second unless it is forced.
            grace = 1;
        }
        if grace < 0 && self.force {
            grace = 0;
        }
        if self.force && grace > 0 {
            bail!("--force and --grace-period greater than 0 cannot be specified together");
        }
        let mut options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation});
        if grace >= 0 {
            options["gracePeriodSeconds"] = grace.into();
        }
        if dry_run == DryRun::Server {
            options["dryRun"] = json!(["All"]);
        }
        Ok(options)
    }

    fn told(&self, item: &Item, dry_run: DryRun) -> String {
        if self.output == "name" {
            return item.title();
        }
        let done = if self.force && self.grace_period <= 0 { "force deleted" } else { "deleted" };
        let place = if item.namespace.is_empty() {
            String::new()
        } else {
            format!(" from {} namespace", item.namespace)
        };
        format!(
            "{} {} {done}{place}{}",
            item.resource.prefix(),
            apimachinery::go::quote(&item.name),
            dry_run.suffix()
        )
    }
}

fn confirmed(items: &[Item]) -> anyhow::Result<bool> {
    output::line("You are about to delete the following resource(s):");
    for item in items {
        output::line(&item.title());
    }
    output::print("Do you want to continue? (y/N): ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y"))
}

/// Waits until exactly this object is gone.
pub(crate) async fn gone(server: &Server, item: &Item, patience: Duration) -> anyhow::Result<()> {
    let uid = &item.object["metadata"]["uid"];
    let waiting = async {
        let mut wait = Duration::from_millis(20);
        loop {
            match server.get(&item.path()).await {
                Ok(object) if object["metadata"]["uid"] == *uid => {}
                Ok(_) => return Ok(()),
                Err(error) if failure::is_not_found(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(1));
        }
    };
    match tokio::time::timeout(patience, waiting).await {
        Ok(result) => result,
        Err(_) => bail!("timed out waiting for the condition on {}/{}", item.resource.plural, item.name),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn options(line: &str) -> anyhow::Result<Value> {
        let words = std::iter::once("delete").chain(line.split_whitespace());
        Line::try_parse_from(words)?.arguments.options(DryRun::None)
    }

    #[test]
    fn grace_and_cascade_become_options() {
        assert_eq!(options("po x").expect("good")["gracePeriodSeconds"], Value::Null);
        assert_eq!(options("po x").expect("good")["propagationPolicy"], "Background");
        assert_eq!(options("po x --now").expect("good")["gracePeriodSeconds"], 1);
        assert_eq!(options("po x --grace-period=0").expect("good")["gracePeriodSeconds"], 1);
        assert_eq!(options("po x --force").expect("good")["gracePeriodSeconds"], 0);
        assert_eq!(options("po x --cascade=orphan").expect("good")["propagationPolicy"], "Orphan");
        for bad in ["po x --now --grace-period=3", "po x --force --grace-period=3", "po x --cascade=maybe"] {
            assert!(options(bad).is_err(), "{bad}");
        }
    }
}
