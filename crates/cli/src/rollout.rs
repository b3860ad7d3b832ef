//! `rollout status`: the progress of a workload's newest version, in the control plane or in members, until it is complete.

use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::clients::duration;
use crate::clusters::{Places, place_prefix};
use crate::failure::Failures;
use crate::manifests::Files;
use crate::output;
use crate::select::{Item, Query};
use crate::server::{Connection, Namespaced, Server};

/// Follow the rollout of a workload.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    Status(Status),
}

/// Show the status of the rollout, until it is done.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Follow the rollout of deployment web
  karmadactl rollout status deployment/web

  # In all clusters of a region
  karmadactl rollout status deployment/web -C region=eu --timeout=5m")]
pub struct Status {
    /// TYPE NAME… or TYPE/NAME….
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub places: Places,
    #[command(flatten)]
    pub files: Files,
    /// Watch the status of the rollout until it's done.
    #[arg(short, long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub watch: bool,
    /// The length of time to wait before ending watch; zero means never.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub timeout: String,
    /// Label selector, such as app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Command::Status(arguments) = arguments.command;
    let patience = match duration(&arguments.timeout)? {
        Duration::ZERO => Duration::from_secs(365 * 24 * 3600),
        patience => patience,
    };
    let plane = arguments.place.plane().await?;
    let asked = Query {
        words: arguments.resources.clone(),
        files: arguments.files.clone(),
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        labels: arguments.selector.clone(),
        ..Query::default()
    };
    let deadline = tokio::time::Instant::now() + patience;
    let servers = plane.places(&arguments.places).await?;
    let following = servers.iter().map(|server| follow(&arguments, server, &asked, deadline));
    let failures = futures::future::join_all(following).await.into_iter().flatten().collect();
    Failures::check(failures)
}

async fn follow(
    arguments: &Status,
    server: &Server,
    asked: &Query,
    deadline: tokio::time::Instant,
) -> Vec<anyhow::Error> {
    let (items, mut failures) = match asked.items(server).await {
        Ok(found) => found,
        Err(error) => return vec![error],
    };
    for item in &items {
        if let Err(error) = one(arguments, server, item, deadline).await {
            failures.push(error);
        }
    }
    failures
}

async fn one(
    arguments: &Status,
    server: &Server,
    item: &Item,
    deadline: tokio::time::Instant,
) -> anyhow::Result<()> {
    let mut said = String::new();
    let mut object = item.object.clone();
    loop {
        let (text, done) = progress(&item.resource.kind, &item.name, &object)?;
        if text != said {
            output::line(&format!("{}{text}", place_prefix(server)));
            said = text;
        }
        if done || !arguments.watch {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            bail!("{}timed out waiting for the condition", place_prefix(server));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        object = server.get(&item.path()).await?;
    }
}

/// Returns a message about the progress, and whether the rollout is complete.
fn progress(kind: &str, name: &str, object: &Value) -> anyhow::Result<(String, bool)> {
    let number = |path: &str| object.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    let observed = number("/status/observedGeneration");
    let waiting = number("/metadata/generation") > observed;
    let name = apimachinery::go::quote(name);
    match kind {
        "Deployment" => {
            if waiting {
                return Ok(("Waiting for deployment spec update to be observed...".to_owned(), false));
            }
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            if conditions
                .into_iter()
                .any(|c| c["type"] == "Progressing" && c["reason"] == "ProgressDeadlineExceeded")
            {
                bail!("deployment {name} exceeded its progress deadline");
            }
            let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
            let (all, updated, available) = (
                number("/status/replicas"),
                number("/status/updatedReplicas"),
                number("/status/availableReplicas"),
            );
            let head = format!("Waiting for deployment {name} rollout to finish");
            Ok(if updated < wanted {
                (format!("{head}: {updated} out of {wanted} new replicas have been updated..."), false)
            } else if all > updated {
                (format!("{head}: {} old replicas are pending termination...", all - updated), false)
            } else if available < updated {
                (format!("{head}: {available} of {updated} updated replicas are available..."), false)
            } else {
                (format!("deployment {name} successfully rolled out"), true)
            })
        }
        "DaemonSet" => {
            if object.pointer("/spec/updateStrategy/type").is_some_and(|kind| kind != "RollingUpdate") {
                bail!("rollout status is only available for RollingUpdate strategy type");
            }
            if waiting {
                return Ok(("Waiting for daemon set spec update to be observed...".to_owned(), false));
            }
            let (wanted, updated, available) = (
                number("/status/desiredNumberScheduled"),
                number("/status/updatedNumberScheduled"),
                number("/status/numberAvailable"),
            );
            let head = format!("Waiting for daemon set {name} rollout to finish");
            Ok(if updated < wanted {
                (format!("{head}: {updated} out of {wanted} new pods have been updated..."), false)
            } else if available < wanted {
                (format!("{head}: {available} of {wanted} updated pods are available..."), false)
            } else {
                (format!("daemon set {name} successfully rolled out"), true)
            })
        }
        "StatefulSet" => {
            if object.pointer("/spec/updateStrategy/type").is_some_and(|kind| kind != "RollingUpdate") {
                bail!("rollout status is only available for RollingUpdate strategy type");
            }
            if observed == 0 || waiting {
                return Ok(("Waiting for statefulset spec update to be observed...".to_owned(), false));
            }
            let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
            let (ready, updated) = (number("/status/readyReplicas"), number("/status/updatedReplicas"));
            if ready < wanted {
                return Ok((format!("Waiting for {} pods to be ready...", wanted - ready), false));
            }
            let partition = number("/spec/updateStrategy/rollingUpdate/partition");
            if partition > 0 {
                let parts = wanted - partition;
                return Ok(if updated < parts {
                    (
                        format!(
                            "Waiting for partitioned roll out to finish: {updated} out of {parts} new pods have been updated..."
                        ),
                        false,
                    )
                } else {
                    (format!("partitioned roll out complete: {updated} new pods have been updated..."), true)
                });
            }
            let revision = |key: &str| object["status"][key].as_str().unwrap_or("").to_owned();
            let (update, current) = (revision("updateRevision"), revision("currentRevision"));
            Ok(if update == current {
                (
                    format!(
                        "statefulset rolling update complete {} pods at revision {current}...",
                        number("/status/currentReplicas")
                    ),
                    true,
                )
            } else {
                (
                    format!(
                        "waiting for statefulset rolling update to complete {updated} pods at revision {update}..."
                    ),
                    false,
                )
            })
        }
        other => Err(anyhow!("no status viewer has been implemented for {other}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rollout_is_told_step_by_step() {
        let deployment = |generation: i64, all: i64, updated: i64, available: i64| {
            json!({"metadata": {"generation": generation}, "spec": {"replicas": 3}, "status": {"observedGeneration": 1,
                "replicas": all, "updatedReplicas": updated, "availableReplicas": available}})
        };
        for (object, text, done) in [
            (deployment(2, 3, 3, 3), "spec update to be observed...", false),
            (deployment(1, 3, 1, 3), "1 out of 3 new replicas have been updated...", false),
            (deployment(1, 4, 3, 3), "1 old replicas are pending termination...", false),
            (deployment(1, 3, 3, 2), "2 of 3 updated replicas are available...", false),
            (deployment(1, 3, 3, 3), "deployment \"web\" successfully rolled out", true),
        ] {
            let (said, ended) = progress("Deployment", "web", &object).expect("a status");
            assert!(said.ends_with(text) && ended == done, "{said}");
        }
        let late = json!({"status": {"conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]}});
        assert!(progress("Deployment", "web", &late).is_err());
        let set = json!({"metadata": {"generation": 1}, "spec": {"replicas": 2}, "status": {"observedGeneration": 1,
            "readyReplicas": 2, "currentReplicas": 2, "updateRevision": "r", "currentRevision": "r"}});
        let (said, done) = progress("StatefulSet", "db", &set).expect("a status");
        assert_eq!(
            (said.as_str(), done),
            ("statefulset rolling update complete 2 pods at revision r...", true)
        );
        assert!(progress("ConfigMap", "x", &json!({})).is_err());
    }
}
