//! The members: our simulated ones, or real ones by their kubeconfigs; and their registration.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use api::cluster::Cluster;
use cli::{ControlArguments, JoinArguments};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::directory::Directory;
use super::kubeconfig::Entry;

/// The label by which the sample's policies distinguish regions.
const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";

/// How many clusters are simulated: enough to show dividing and spreading, few enough to be read at a glance.
const SIMULATED: usize = 3;

/// The members of one start.
pub(super) struct Members {
    pub(super) list: Vec<Member>,
    /// Runs the simulated ones.
    pub(super) fleet: Option<sim::Fleet>,
}

/// One member.
pub(super) struct Member {
    pub(super) entry: Entry,
    pub(super) kubeconfig: PathBuf,
    pub(super) region: Option<String>,
    pub(super) zones: Vec<String>,
}

impl Members {
    /// Starts three simulated clusters that keep their state in the directory.
    pub(super) async fn simulate(directory: &Directory, nodes: u16) -> anyhow::Result<Self> {
        let mut options = sim::Options::new(SIMULATED, usize::from(nodes));
        options.data_dir = Some(directory.path.clone());
        options.persist = true;
        let places: Vec<_> = options.members.iter().map(place).collect();
        let fleet = sim::start(options).await.context("cannot start the simulated clusters")?;
        let mut list = Vec::new();
        for (member, (region, zones)) in fleet.members().iter().zip(places) {
            let kubeconfig =
                member.kubeconfig_path.clone().context("a simulated cluster has no kubeconfig")?;
            let entry = Entry::parse(&member.kubeconfig, Path::new(""))?;
            list.push(Member { entry, kubeconfig, region, zones });
        }
        Ok(Self { list, fleet: Some(fleet) })
    }

    /// Uses real clusters by their kubeconfigs.
    pub(super) fn real(kubeconfigs: &[PathBuf]) -> anyhow::Result<Self> {
        let mut list: Vec<Member> = Vec::new();
        for path in kubeconfigs {
            let entry = Entry::read(path)?;
            if list.iter().any(|other| other.entry.name == entry.name) {
                bail!(
                    "two kubeconfigs have a current context that makes the name {}; hint: rename one with \
                     `kubectl config rename-context`",
                    entry.name
                );
            }
            list.push(Member { entry, kubeconfig: path.clone(), region: None, zones: Vec::new() });
        }
        Ok(Self { list, fleet: None })
    }

    pub(super) fn kubeconfigs(&self) -> Vec<PathBuf> {
        self.list.iter().map(|member| member.kubeconfig.clone()).collect()
    }

    /// Registers all members that are not registered yet; clusters in pull mode register themselves.
    pub(super) async fn join(
        &self,
        control: &Client,
        kubeconfig: &Path,
        pulled: &[String],
    ) -> anyhow::Result<()> {
        let joining = self
            .list
            .iter()
            .map(|member| member.join(control, kubeconfig, pulled.contains(&member.entry.name)));
        futures::future::try_join_all(joining).await?;
        Ok(())
    }
}

impl Member {
    async fn join(&self, control: &Client, kubeconfig: &Path, pulled: bool) -> anyhow::Result<()> {
        let (name, server) = (&self.entry.name, &self.entry.server);
        let clusters = Api::<Cluster>::all(control.clone());
        let failed = || format!("cannot read cluster {name}");
        let cluster = match clusters.get_opt(name).await.with_context(failed)? {
            Some(cluster) => cluster,
            None if pulled => appears(&clusters, name).await.with_context(failed)?,
            None => {
                cli::enrol(&self.arguments(kubeconfig), |progress| tracing::info!("{progress}"))
                    .await
                    .with_context(|| format!("cannot register {name}"))?;
                clusters.get(name).await.with_context(failed)?
            }
        };
        let moved = cluster.spec.api_endpoint != *server;
        let Some(region) = &self.region else {
            if moved {
                bail!(
                    "cluster {name} is registered with {}, and its kubeconfig says {server}; hint: --fresh starts over",
                    cluster.spec.api_endpoint
                );
            }
            return Ok(());
        };
        let labelled = cluster.metadata.labels.as_ref().and_then(|labels| labels.get(REGION)) == Some(region);
        if labelled && !moved {
            return Ok(());
        }
        // The port changes if another process has the previous one. Issued credentials remain valid.
        let change = json!({"metadata": {"labels": {REGION: region}}, "spec": {"apiEndpoint": server}});
        clusters
            .patch(name, &PatchParams::default(), &Patch::Merge(&change))
            .await
            .with_context(|| format!("cannot update cluster {name}"))?;
        Ok(())
    }

    fn arguments(&self, kubeconfig: &Path) -> JoinArguments {
        JoinArguments {
            name: self.entry.name.clone(),
            control: ControlArguments {
                kubeconfig: Some(kubeconfig.to_owned()),
                karmada_context: None,
                karmada_as: None,
                karmada_as_group: Vec::new(),
                karmada_as_uid: None,
            },
            cluster_kubeconfig: Some(self.kubeconfig.clone()),
            cluster_context: None,
            cluster_namespace: api::constants::NAMESPACE_CLUSTER.to_owned(),
            cluster_provider: self.region.is_some().then(|| "simulated".to_owned()),
            cluster_region: self.region.clone(),
            cluster_zones: self.zones.clone(),
            install_mcs_crds: false,
            dry_run: false,
        }
    }
}

/// Waits for a Cluster that its agent creates. After a moment, the user is pointed to the agent's log.
async fn appears(clusters: &Api<Cluster>, name: &str) -> Result<Cluster, kube::Error> {
    loop {
        if let Some(cluster) = clusters.get_opt(name).await? {
            return Ok(cluster);
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Returns region and zones of a simulated cluster, as in its nodes.
fn place(member: &sim::MemberOptions) -> (Option<String>, Vec<String>) {
    let region = member.nodes.iter().find_map(|node| node.labels.get(REGION).cloned());
    let mut zones: Vec<String> =
        member.nodes.iter().filter_map(|node| node.labels.get(ZONE).cloned()).collect();
    zones.sort();
    zones.dedup();
    (region, zones)
}
