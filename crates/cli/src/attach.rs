//! `attach`: the terminal of a running process in a member's container.

use anyhow::bail;
use clap::Args;

use crate::clients::duration;
use crate::clusters::Scope;
use crate::exec::Talk;
use crate::output;
use crate::pods;
use crate::server::Namespaced;

/// Attach to a process that is already running inside an existing container.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Get output from the first container of pod web in cluster member1
  karmadactl attach web -s members -C member1

  # Talk to container app of a pod of deployment web
  karmadactl attach -it deploy/web -c app -s members -C member1")]
pub struct Arguments {
    /// POD, or TYPE/NAME.
    #[arg(value_name = "POD")]
    pub resource: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub scope: Scope,
    #[command(flatten)]
    pub talk: Talk,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let patience = duration(&arguments.talk.pod_running_timeout)?;
    let word = match &arguments.resource[..] {
        [] => bail!("at least 1 argument is required for attach"),
        [word] => word.clone(),
        [type_, name] => format!("{type_}/{name}"),
        _ => bail!("expected POD, TYPE/NAME, or TYPE NAME, got {} arguments", arguments.resource.len()),
    };
    let plane = arguments.place.plane().await?;
    let server = plane.scoped(&arguments.scope).await?;
    let pod = pods::find(&server, &plane.namespace, &word, patience).await?.first()?;
    if let Some(phase @ ("Succeeded" | "Failed")) = pod["status"]["phase"].as_str() {
        bail!("cannot attach a container in a completed pod; current phase is {phase}");
    }
    if !arguments.talk.quiet {
        output::warn(
            "All commands and output from this session will be recorded in container logs, including credentials and \
             sensitive information passed through the command prompt.",
        );
        output::warn("If you don't see a command prompt, try pressing enter.");
    }
    arguments.talk.start(&server, &plane.namespace, &pod, "attach", &[]).await
}
