//! `exec`: runs a program in a container of a member, and connects the terminal to it if requested.

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use crate::clients::duration;
use crate::clusters::Scope;
use crate::failure::misused;
use crate::manifests::Files;
use crate::output;
use crate::pods;
use crate::server::{Namespaced, Server};
use crate::session::{self, From, Sources, Target};
use crate::terminal::{self, Raw};

/// Execute a command in a container in a cluster.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Get output from running the date command in pod web of cluster member1
  karmadactl exec web -s members -C member1 -- date

  # A shell in container app of a pod of deployment web
  karmadactl exec -it deploy/web -c app -s members -C member1 -- sh")]
pub struct Arguments {
    /// POD, or TYPE/NAME.
    #[arg(value_name = "POD")]
    pub resource: Vec<String>,
    /// The program and its arguments, behind two dashes.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub scope: Scope,
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    pub talk: Talk,
}

/// The flags that exec and attach share.
#[derive(Debug, Clone, Args)]
pub struct Talk {
    /// Container name; by default the annotated one, or the first.
    #[arg(short, long, value_name = "CONTAINER", default_value = "")]
    pub container: String,
    /// Pass stdin to the container.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Stdin is a TTY.
    #[arg(short, long)]
    pub tty: bool,
    /// Only print output from the remote session.
    #[arg(short, long)]
    pub quiet: bool,
    /// The length of time to wait until at least one pod is running.
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pub pod_running_timeout: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let patience = duration(&arguments.talk.pod_running_timeout)?;
    let word = match (&arguments.resource[..], arguments.files.is_empty()) {
        ([], true) => bail!("pod, type/name or --filename must be specified"),
        ([_, _, ..], true) | ([_, ..], false) if !arguments.command.is_empty() => {
            return Err(misused(
                "exec",
                "exec takes one POD or TYPE/NAME, or -f FILE; the command stands behind --",
            ));
        }
        ([_, _, ..], _) => {
            let complaint =
                "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead";
            return Err(misused("exec", complaint));
        }
        ([word], _) => word.clone(),
        ([], false) => of_file(&arguments.files).await?,
    };
    if arguments.command.is_empty() {
        bail!("you must specify at least one command for the container");
    }
    let plane = arguments.place.plane().await?;
    let server = plane.scoped(&arguments.scope).await?;
    let pod = pods::find(&server, &plane.namespace, &word, patience).await?.first()?;
    if let Some(phase @ ("Succeeded" | "Failed")) = pod["status"]["phase"].as_str() {
        bail!("cannot exec into a container in a completed pod; current phase is {phase}");
    }
    arguments.talk.start(&server, &plane.namespace, &pod, "exec", &arguments.command).await
}

async fn of_file(files: &Files) -> anyhow::Result<String> {
    let manifests = files.read().await?;
    let [manifest] = &manifests[..] else {
        bail!("exec needs a file with one object, not {}", manifests.len())
    };
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let kind = text(&manifest.object["kind"]).to_lowercase();
    Ok(format!("{kind}/{}", text(&manifest.object["metadata"]["name"])))
}

impl Talk {
    /// Connects to the container until the other side ends the session.
    pub(crate) async fn start(
        &self,
        server: &Server,
        namespace: &str,
        pod: &Value,
        verb: &str,
        command: &[String],
    ) -> anyhow::Result<()> {
        let container = pods::container(pod, &self.container, self.quiet)?;
        let mut tty = self.tty && self.stdin;
        if tty && !terminal::is_typed() {
            output::warn("Unable to use a TTY - input is not a terminal or the right kind of file");
            tty = false;
        }
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or(namespace);
        let target = Target {
            namespace,
            pod: pods::name(pod),
            container: &container,
            verb,
            command,
            stdin: self.stdin,
            tty,
        };
        let raw = if tty { Some(Raw::start()?) } else { None };
        let sources = Sources {
            input: self.stdin.then(terminal::input),
            sizes: if tty { Some(terminal::sizes()?) } else { None },
        };
        let status = session::run(server, &target, sources, |from, bytes| {
            match from {
                From::Stdout => output::bytes(bytes),
                From::Stderr => output::warn_bytes(bytes),
            }
            Ok(())
        })
        .await;
        // From here on, output goes to a terminal in cooked mode.
        drop(raw);
        session::ended(&status?)
    }
}
