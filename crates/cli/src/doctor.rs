//! `doctor`: says why something across clusters does not work, and what to do about it.
//!
//! Only reads, in the caller's name: anything that the caller may not see is named and left out. Code map: `gather` queries the
//! control plane and the members, `probe` tries connections from pods, `report` computes what should be where (pure), `findings`
//! says what is wrong and what to do (pure), `drawing` shows it.

mod drawing;
mod findings;
mod gather;
mod probe;
mod report;

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::clusters::Members;
use crate::failure::Ended;
use crate::output;
use crate::server::Namespaced;

/// Say why something across clusters does not work, and what to do about it.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    #[command(visible_aliases = ["services", "svc"])]
    Service(Box<Service>),
}

/// Follow the endpoints of a Service from cluster to cluster.
///
/// Shows what is exported where, what the control plane collected, what it brought on, and what is missing on the way; for
/// MultiClusterServices as well as for ServiceExports and ServiceImports. Ends with status 1 if something is wrong.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Why is the Service web of the namespace shop not reached from other clusters?
  karmadactl doctor service shop/web

  # Try connections as well, from a pod of each cluster that should reach it
  karmadactl doctor service shop/web --probe

  # The same as data
  karmadactl doctor service web -n shop -o json")]
pub struct Service {
    /// The Service, as NAMESPACE/NAME, or as NAME in the namespace of -n.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub service: String,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub members: Members,
    /// Try connections to the endpoints, by a command in a pod of the same namespace in each cluster that should reach them.
    #[arg(long)]
    pub probe: bool,
    /// Output format. One of: (json).
    #[arg(short, long, value_name = "FORMAT", default_value = "", value_parser = ["", "json"])]
    pub output: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Service(arguments) => service(*arguments).await,
    }
}

async fn service(arguments: Service) -> anyhow::Result<()> {
    let plane = arguments.place.plane().await?;
    let (namespace, name) = meant(&arguments.service, &plane.namespace, plane.namespace_asked)?;
    let facts = gather::gather(&plane, &namespace, &name, &arguments.members.clusters).await?;
    let mut report = report::diagnose(&facts);
    if arguments.probe {
        probe::probe(&plane, &mut report).await;
        findings::judge_probes(&mut report);
    }
    match arguments.output.as_str() {
        "json" => output::line(&serde_json::to_string_pretty(&report)?),
        _ => output::print(&drawing::draw(&report)),
    }
    if report.is_well() { Ok(()) } else { Err(Ended(1).into()) }
}

/// Returns the namespace and the name on the command line.
fn meant(word: &str, namespace: &str, asked: bool) -> anyhow::Result<(String, String)> {
    let (namespace, name) = match word.split_once('/') {
        None => (namespace, word),
        Some((named, _)) if asked && named != namespace => {
            bail!("{word} names the namespace {named}, and -n says {namespace}; one of them is enough")
        }
        Some(both) => both,
    };
    for (what, part) in [("namespace", namespace), ("name", name)] {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if part.is_empty() || part.len() > 63 || !part.chars().all(fits) {
            bail!("{word:?} is not NAMESPACE/NAME of a Service: {part:?} is not a {what}");
        }
    }
    Ok((namespace.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named_with_its_namespace_or_in_that_of_the_flag() {
        let both = |(namespace, name): (&str, &str)| (namespace.to_owned(), name.to_owned());
        assert_eq!(meant("shop/web", "default", false).unwrap(), both(("shop", "web")));
        assert_eq!(meant("web", "shop", true).unwrap(), both(("shop", "web")));
        assert_eq!(meant("shop/web", "shop", true).unwrap(), both(("shop", "web")));
        let error = meant("shop/web", "other", true).unwrap_err().to_string();
        assert_eq!(error, "shop/web names the namespace shop, and -n says other; one of them is enough");
        let error = meant("shop/web/x", "", false).unwrap_err().to_string();
        assert_eq!(error, "\"shop/web/x\" is not NAMESPACE/NAME of a Service: \"web/x\" is not a name");
        assert!(meant("/web", "", false).is_err() && meant("", "shop", false).is_err());
    }
}
