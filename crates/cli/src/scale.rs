//! `scale`: sets the number of replicas, in the control plane or in members.

use anyhow::bail;
use clap::Args;
use serde_json::json;

use crate::clusters::{Places, place_prefix};
use crate::failure::Failures;
use crate::manifests::Files;
use crate::output;
use crate::print::{DryRun, DryRunFlag};
use crate::select::Query;
use crate::server::Namespaced;

/// Set a new size for a deployment, replica set, or stateful set.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Three replicas of deployment web, divided among clusters by its policy
  karmadactl scale deployment/web --replicas=3

  # Only if there are two
  karmadactl scale deployment web --current-replicas=2 --replicas=3

  # In one cluster; what its template says comes back, unless the control plane leaves replicas alone
  karmadactl scale deployment/web --replicas=0 -C member1")]
pub struct Arguments {
    /// TYPE NAME… or TYPE/NAME….
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub places: Places,
    #[command(flatten)]
    pub files: Files,
    /// The new desired number of replicas.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub replicas: Option<i64>,
    /// Scale only what has this number of replicas; -1 is any.
    #[arg(long, value_name = "NUMBER", default_value_t = -1, allow_negative_numbers = true)]
    pub current_replicas: i64,
    /// Scale only what has this resource version.
    #[arg(long, value_name = "VERSION", default_value = "")]
    pub resource_version: String,
    /// Select all objects of the types, in the namespace.
    #[arg(long)]
    pub all: bool,
    /// Label selector, such as app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    #[command(flatten)]
    pub dry_run: DryRunFlag,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let dry_run = arguments.dry_run.get()?;
    let replicas = match arguments.replicas {
        Some(replicas) if replicas >= 0 => replicas,
        _ => bail!("The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0"),
    };
    let plane = arguments.place.plane().await?;
    let asked = Query {
        words: arguments.resources.clone(),
        files: arguments.files.clone(),
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        labels: arguments.selector.clone(),
        all: arguments.all,
        ..Query::default()
    };
    let mut failures = Vec::new();
    let mut any = false;
    for server in plane.places(&arguments.places).await? {
        let (items, missing) = asked.items(&server).await?;
        failures.extend(missing);
        for item in items {
            any = true;
            let object = &item.object;
            if arguments.current_replicas >= 0 && object["spec"]["replicas"] != arguments.current_replicas {
                failures.push(anyhow::anyhow!(
                    "{}Expected replicas to be {}, was {}",
                    place_prefix(&server),
                    arguments.current_replicas,
                    object["spec"]["replicas"]
                ));
                continue;
            }
            let version = arguments.resource_version.as_str();
            if !version.is_empty() && object["metadata"]["resourceVersion"] != version {
                failures.push(anyhow::anyhow!(
                    "{}Expected resource version to be {version}, was {}",
                    place_prefix(&server),
                    object["metadata"]["resourceVersion"].as_str().unwrap_or("")
                ));
                continue;
            }
            let patch = json!({"spec": {"replicas": replicas}});
            let path = format!("{}/scale?fieldManager=kubectl-scale{}", item.path(), dry_run.query());
            let sent = match dry_run {
                DryRun::Client => Ok(()),
                _ => server.patch(&path, "application/merge-patch+json", &patch).await.map(|_| ()),
            };
            match sent {
                Ok(()) => output::line(&format!(
                    "{}{} scaled{}",
                    place_prefix(&server),
                    item.title(),
                    dry_run.suffix()
                )),
                Err(error) => failures.push(error),
            }
        }
    }
    if !any && failures.is_empty() {
        bail!("no objects passed to scale");
    }
    Failures::check(failures)
}
