//! How an agent registers when it starts: it brings its Cluster up to date, and stores its credentials in the control plane, as
//! far as they should be there.
//!
//! Another start changes nothing. A name that belongs to another cluster is refused. If a side cannot be reached, the agent tries
//! again until it can.

use anyhow::{Context as _, bail};
use api::cluster::{Cluster, ClusterSpec, ClusterSyncMode};
use api::constants::NAMESPACE_KUBE_SYSTEM;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use member::credentials::{Reported, prepare_member};
use serde_json::json;

use super::{AGAIN, Agent, Arguments};

/// Reads `--report-secrets`.
pub(super) fn reported(list: &[String]) -> anyhow::Result<Reported> {
    let mut reported = Reported::NONE;
    for item in list {
        match item.as_str() {
            "KubeCredentials" => reported.credentials = true,
            "KubeImpersonator" => reported.impersonator = true,
            "None" if list.len() == 1 => {}
            "None" => bail!("--report-secrets: None stands alone"),
            other => {
                bail!("--report-secrets: {other:?} is not one of KubeCredentials, KubeImpersonator, None")
            }
        }
    }
    Ok(reported)
}

/// The facts about the cluster from the command line.
pub(super) struct Description {
    namespace: String,
    reported: Reported,
    spec: ClusterSpec,
}

impl Description {
    pub(super) fn new(arguments: &Arguments, agent: &Agent, reported: Reported) -> Self {
        let config = &agent.member_config;
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let proxy = || config.proxy_url.as_ref().map(ToString::to_string);
        let spec = ClusterSpec {
            sync_mode: ClusterSyncMode::Pull,
            api_endpoint: given(&arguments.cluster_api_endpoint)
                .unwrap_or_else(|| config.cluster_url.to_string().trim_end_matches('/').to_owned()),
            proxy_url: given(&arguments.proxy_server_address).or_else(proxy).unwrap_or_default(),
            insecure_skip_tls_verification: config.accept_invalid_certs,
            provider: arguments.cluster_provider.clone(),
            region: arguments.cluster_region.clone(),
            // `--cluster-zones=` means no zones.
            zones: arguments.cluster_zones.iter().filter(|zone| !zone.is_empty()).cloned().collect(),
            ..ClusterSpec::default()
        };
        Self { namespace: arguments.cluster_namespace.clone(), reported, spec }
    }
}

/// Registers the cluster; waits while one of the two sides does not answer.
pub(super) async fn enrol_patiently(agent: &Agent, described: &Description) -> anyhow::Result<()> {
    loop {
        let error = match enrol(agent, described).await {
            Ok(()) => return Ok(()),
            Err(error) if is_passing(&error) => error,
            Err(error) => return Err(error),
        };
        tracing::warn!("{error:#}; trying again");
        tokio::time::sleep(AGAIN).await;
    }
}

/// Returns whether an error is temporary: nothing answers, or a server is starting or ending.
fn is_passing(error: &anyhow::Error) -> bool {
    match error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>()) {
        Some(kube::Error::Api(status)) => status.code == 429 || status.code >= 500 || status.code == 409,
        Some(kube::Error::HyperError(_) | kube::Error::Service(_)) => true,
        _ => false,
    }
}

async fn enrol(agent: &Agent, described: &Description) -> anyhow::Result<()> {
    let (name, namespace) = (&agent.name, &described.namespace);
    let id = id_of(&agent.member).await?;
    let clusters = Api::<Cluster>::all(agent.plane.clone());
    let existing = existing(&clusters, name, &id).await?;
    let credentials = prepare_member(&agent.member, name, namespace, described.reported).await?;
    credentials.store(&agent.plane, name, namespace, existing.as_ref()).await?;
    let spec = credentials.refer(ClusterSpec { id, ..described.spec.clone() }, name, namespace);
    let cluster = match existing {
        None => {
            let mut cluster = Cluster::default();
            cluster.metadata.name = Some(name.clone());
            cluster.spec = spec;
            clusters
                .create(&PostParams::default(), &cluster)
                .await
                .with_context(|| format!("cannot create cluster {name} in the control plane"))?
        }
        Some(cluster) => update(&clusters, cluster, spec).await?,
    };
    Ok(credentials.belong_to(&agent.plane, &cluster, namespace).await?)
}

/// Returns the identity of the member: the UID of a namespace that lives as long as the member does.
async fn id_of(member: &Client) -> anyhow::Result<String> {
    let namespace = Api::<Namespace>::all(member.clone())
        .get(NAMESPACE_KUBE_SYSTEM)
        .await
        .with_context(|| format!("cannot read namespace {NAMESPACE_KUBE_SYSTEM} of the cluster"))?;
    Ok(namespace.metadata.uid.unwrap_or_default())
}

/// Returns the Cluster if an earlier start created it; one of another member is refused.
async fn existing(clusters: &Api<Cluster>, name: &str, id: &str) -> anyhow::Result<Option<Cluster>> {
    let all = clusters.list(&ListParams::default()).await.context(
        "cannot list the clusters of the control plane; hint: `karmada register` gives an agent its rights",
    )?;
    taken(&all.items, name, id)?;
    Ok(all.items.into_iter().find(|cluster| cluster.metadata.name.as_deref() == Some(name)))
}

/// Refuses a name or a member that is already registered differently.
fn taken(clusters: &[Cluster], name: &str, id: &str) -> anyhow::Result<()> {
    for cluster in clusters {
        let other = cluster.metadata.name.as_deref().unwrap_or("");
        match (other == name, cluster.spec.id == id) {
            (true, false) => bail!(
                "the name {name} belongs to another cluster; hint: choose another --cluster-name, or unregister that one"
            ),
            (false, true) => bail!("this cluster is registered as {other}; hint: unregister it there first"),
            (true, true) if cluster.spec.sync_mode == ClusterSyncMode::Push => {
                bail!("cluster {name} is registered in push mode; hint: `karmada unjoin {name}` lets it go")
            }
            _ => {}
        }
    }
    Ok(())
}

/// Updates the Cluster with what the agent reports. Other fields stay unchanged.
async fn update(clusters: &Api<Cluster>, cluster: Cluster, told: ClusterSpec) -> anyhow::Result<Cluster> {
    let spec = ClusterSpec {
        taints: cluster.spec.taints.clone(),
        resource_models: cluster.spec.resource_models.clone(),
        proxy_header: cluster.spec.proxy_header.clone(),
        // Missing flags leave their fields unchanged.
        provider: or(told.provider, &cluster.spec.provider),
        region: or(told.region, &cluster.spec.region),
        zones: if told.zones.is_empty() { cluster.spec.zones.clone() } else { told.zones },
        zone: cluster.spec.zone.clone(),
        ..told
    };
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let (old, new) = (serde_json::to_value(&cluster.spec)?, serde_json::to_value(&spec)?);
    let Some(patch) = apimachinery::patch::merge::diff(&old, &new) else { return Ok(cluster) };
    clusters
        .patch(&name, &PatchParams::default(), &Patch::Merge(json!({ "spec": patch })))
        .await
        .with_context(|| format!("cannot update cluster {name} in the control plane"))
}

fn or(told: String, known: &str) -> String {
    if told.is_empty() { known.to_owned() } else { told }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(name: &str, id: &str, mode: ClusterSyncMode) -> Cluster {
        let mut cluster = Cluster::default();
        cluster.metadata.name = Some(name.to_owned());
        cluster.spec = ClusterSpec { id: id.to_owned(), sync_mode: mode, ..ClusterSpec::default() };
        cluster
    }

    #[test]
    fn a_name_and_a_member_belong_together() {
        use ClusterSyncMode::{Pull, Push};
        let cases = [
            ("nobody is known", vec![], None),
            ("a start after a start", vec![cluster("m1", "1", Pull)], None),
            ("others do not matter", vec![cluster("m2", "2", Push)], None),
            (
                "the name is somebody else's",
                vec![cluster("m1", "2", Pull)],
                Some("the name m1 belongs to another"),
            ),
            ("the member has another name", vec![cluster("m2", "1", Pull)], Some("is registered as m2")),
            ("it is pushed to", vec![cluster("m1", "1", Push)], Some("registered in push mode")),
        ];
        for (what, clusters, refusal) in cases {
            let result = taken(&clusters, "m1", "1").map_err(|error| error.to_string());
            match (result, refusal) {
                (Ok(()), None) => {}
                (Err(error), Some(expected)) => assert!(error.contains(expected), "{what}: {error}"),
                (result, _) => panic!("{what}: {result:?}"),
            }
        }
    }

    #[test]
    fn reports_are_read() {
        let read = |list: &[&str]| reported(&list.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&["KubeCredentials", "KubeImpersonator"]).expect("both"), Reported::ALL);
        assert_eq!(read(&["None"]).expect("none"), Reported::NONE);
        assert!(read(&["None", "KubeCredentials"]).is_err() && read(&["Everything"]).is_err());
    }
}
