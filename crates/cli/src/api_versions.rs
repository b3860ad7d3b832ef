//! `api-versions`: the versions of the API that a server serves.

use clap::Args;

use crate::output;
use crate::server::{Connection, Scoped};

/// Print the supported API versions on the server, in the form of "group/version".
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Print the supported API versions
  karmadactl api-versions

  # Print the supported API versions of cluster member1
  karmadactl api-versions --operation-scope=members --cluster=member1")]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,
    /// Operation scope: karmada or members.
    #[arg(short = 's', long, value_name = "SCOPE", default_value = "karmada", value_parser = crate::server::scope)]
    pub operation_scope: String,
    /// The member cluster; takes effect with the scope members.
    #[arg(long, value_name = "CLUSTER")]
    pub cluster: Option<String>,
}

/// Prints them in order.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plane = arguments.connection.plane().await?;
    let scope = Scoped { operation_scope: arguments.operation_scope, cluster: arguments.cluster };
    let server = plane.scoped(&scope).await?;
    let mut versions = server.discovery().await?.versions.clone();
    versions.sort();
    versions.dedup();
    for version in versions {
        output::line(&version);
    }
    Ok(())
}
