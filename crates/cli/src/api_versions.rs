//! `api-versions`: the versions of the API that a server serves.

use clap::Args;

use crate::clusters::Scope;
use crate::failure::misused;
use crate::output;
use crate::server::Connection;

/// Print the supported API versions on the server, in the form of "group/version".
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Print the supported API versions
  karmadactl api-versions

  # Print the supported API versions of cluster member1
  karmadactl api-versions --operation-scope=members --cluster=member1")]
pub struct Arguments {
    /// Nothing is expected here.
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub scope: Scope,
}

/// Prints them in order.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if !arguments.words.is_empty() {
        return Err(misused(
            "api-versions",
            &format!("unexpected arguments: [{}]", arguments.words.join(" ")),
        ));
    }
    let plane = arguments.connection.plane().await?;
    let server = plane.scoped(&arguments.scope).await?;
    let mut versions = server.discovery().await?.versions.clone();
    versions.sort();
    versions.dedup();
    for version in versions {
        output::line(&version);
    }
    Ok(())
}
