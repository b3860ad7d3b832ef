//! The flags of the discovery of cluster-api's clusters, by upstream's names.

use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use kube::Client;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cluster API")]
pub(crate) struct ClusterApi {
    /// Path to the kubeconfig of a management cluster of cluster-api. The clusters that it has provisioned are joined, and
    /// unjoined when they are deleted there.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    cluster_api_kubeconfig: String,
    /// Name of the context in --cluster-api-kubeconfig; by default the current one.
    #[arg(long, value_name = "CONTEXT", default_value = "", hide_default_value = true)]
    cluster_api_context: String,
}

impl ClusterApi {
    /// Returns a client for the management cluster, if one is named. Nothing is sent yet.
    pub(crate) async fn client(&self) -> anyhow::Result<Option<Client>> {
        if self.cluster_api_kubeconfig.is_empty() {
            return Ok(None);
        }
        let context = Some(self.cluster_api_context.as_str()).filter(|name| !name.is_empty());
        let config = cli::config(Some(Path::new(&self.cluster_api_kubeconfig)), context)
            .await
            .context("--cluster-api-kubeconfig cannot be used")?;
        let client = member::kubeconfig::limited_client(&config, "the management cluster of cluster-api");
        client.map(Some).context("--cluster-api-kubeconfig cannot be used")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: ClusterApi,
    }

    async fn client(flags: &[&str]) -> Result<bool, String> {
        let line = <Line as clap::Parser>::parse_from(["karmada"].iter().chain(flags));
        line.flags.client().await.map(|client| client.is_some()).map_err(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn without_a_kubeconfig_there_is_no_discovery() {
        assert_eq!(client(&[]).await, Ok(false));
        assert_eq!(client(&["--cluster-api-kubeconfig=", "--cluster-api-context=a"]).await, Ok(false));
        assert_eq!(
            client(&["--cluster-api-kubeconfig=/nowhere/at.all"]).await,
            Err("--cluster-api-kubeconfig cannot be used: stat /nowhere/at.all: no such file or directory"
                .to_owned())
        );
    }
}
