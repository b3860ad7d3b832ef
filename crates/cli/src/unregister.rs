//! `unregister`: removes a cluster in pull mode from its control plane, and the agent from the cluster.
//!
//! First the propagated objects, while the agent is there to remove them; then the Cluster, then the agent.

use std::path::PathBuf;
use std::time::Duration;

use admission::agents;
use anyhow::{Context, bail};
use api::cluster::{Cluster, ClusterSyncMode};
use api::constants::{NAMESPACE_CLUSTER, NAMESPACE_SYSTEM};
use api::names;
use api::work::Work;
use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, Config};
use member::kubeconfig::Access;

use crate::clients::{self, duration};
use crate::output;
use crate::register::{ACCOUNT, AGENT, KUBECONFIG, delete, remove_agent, remove_roles};

/// Remove a cluster that was registered in pull mode.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Let cluster member1 go; the agent's own kubeconfig is used towards the control plane
  karmadactl unregister member1 --cluster-kubeconfig=member1.kubeconfig

  # With a kubeconfig of the control plane
  karmadactl unregister member1 --cluster-kubeconfig=member1.kubeconfig --karmada-config=karmada.kubeconfig")]
pub struct Arguments {
    /// Name of the cluster.
    #[arg(value_name = "CLUSTER_NAME", default_value = "", hide_default_value = true)]
    pub name: String,
    /// Kubeconfig of the cluster.
    #[arg(long, value_name = "FILE")]
    pub cluster_kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig of the cluster; by default the current one.
    #[arg(long, value_name = "CONTEXT")]
    pub cluster_context: Option<String>,
    /// Kubeconfig of the control plane; by default that of the agent in the cluster.
    #[arg(long, value_name = "FILE")]
    pub karmada_config: Option<PathBuf>,
    /// Context in the kubeconfig of the control plane; by default the current one.
    #[arg(long, value_name = "CONTEXT")]
    pub karmada_context: Option<String>,
    /// Upstream's programs have this flag everywhere, and do not look at it here.
    #[arg(long, value_name = "FILE", hide = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the agent in the cluster.
    #[arg(long, short = 'n', value_name = "NAMESPACE", default_value = NAMESPACE_SYSTEM)]
    pub namespace: String,
    /// Name of the agent's Deployment.
    #[arg(long, value_name = "NAME", default_value = "karmada-agent")]
    pub agent_name: String,
    /// Namespace of the cluster's Secrets in the control plane, and of the accounts in the cluster.
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE_CLUSTER)]
    pub cluster_namespace: String,
    /// How long to wait until everything is gone.
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pub wait: String,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
}

/// Removes a cluster.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let name = &arguments.name;
    if name.is_empty() {
        bail!("invalid cluster name(): must be not empty");
    }
    clients::check_name(name)?;
    let Some(file) = &arguments.cluster_kubeconfig else {
        bail!(
            "--cluster-kubeconfig is required to specify KUBECONFIG file path to access unregistering member cluster"
        );
    };
    let wait = duration(&arguments.wait)?;
    if wait.is_zero() {
        bail!("--wait must be a positive duration, e.g. 1m0s");
    }
    let config = clients::config(Some(file), arguments.cluster_context.as_deref()).await?;
    let member = crate::retries::client(config).context("cannot make a client for the cluster")?;
    let control = match &arguments.karmada_config {
        Some(file) => clients::config(Some(file), arguments.karmada_context.as_deref()).await?,
        None => config_of_agent(&member, &arguments).await?,
    };
    let control = crate::retries::client(control).context("cannot make a client for the control plane")?;
    let clusters = Api::<Cluster>::all(control.clone());
    let Some(cluster) = clusters.get_opt(name).await.context("cannot read the cluster")? else {
        bail!(unknown(name, &arguments.namespace));
    };
    if cluster.spec.sync_mode == ClusterSyncMode::Push {
        bail!(
            "cluster {name} is a Push mode member cluster, please use command `unjoin` if you want to continue unjoining \
             the cluster"
        );
    }
    if arguments.dry_run {
        output::line(&format!("cluster({name}) would be unregistered (dry run)"));
        return Ok(());
    }
    match tokio::time::timeout(wait, leave(&control, &clusters, name)).await {
        Ok(result) => result.context("cannot remove the cluster")?,
        Err(_) => bail!(
            "cluster {name} is not gone after {} s; hint: does its agent run? it removes what runs there",
            wait.as_secs()
        ),
    }
    output::line(&format!("cluster({name}) is removed from the control plane"));
    let roles = agents::roles(name, &arguments.cluster_namespace);
    if arguments.karmada_config.is_some() {
        remove_roles(&control, &roles).await?;
    } else {
        let list: Vec<String> = roles
            .iter()
            .map(|role| {
                format!(
                    "{}/{}",
                    role["kind"].as_str().unwrap_or(""),
                    role["metadata"]["name"].as_str().unwrap_or("")
                )
            })
            .collect();
        output::warn(&format!(
            "The RBAC resources on the control plane need to be manually cleaned up, including the following resources:\n{}",
            list.join("\n")
        ));
    }
    clean(&member, &arguments).await
}

/// Reports that there is no such cluster. `register` refers all users with a leftover agent to this command, including those
/// whose Cluster was deleted by hand, or whose last `unregister` was interrupted.
fn unknown(name: &str, namespace: &str) -> String {
    format!(
        "no cluster object {name} found in karmada control Plane; hint: if it was deleted before and left its agent in the member, \
         `kubectl -n {namespace} delete deployment/{AGENT} serviceaccount/{ACCOUNT} secret/{KUBECONFIG}` there removes it"
    )
}

/// Removes the propagated objects, then the Cluster, and waits for both.
async fn leave(control: &Client, clusters: &Api<Cluster>, name: &str) -> Result<(), kube::Error> {
    const LOOK_EVERY: Duration = Duration::from_millis(500);
    let works = Api::<Work>::namespaced(control.clone(), &names::execution_space(name));
    // A stock control plane revokes the agent's right to Works together with the Cluster, so they are removed first. Works that
    // bindings create again meanwhile are removed with the Cluster.
    let all = works.list(&ListParams::default()).await?.items;
    let going: Vec<Option<String>> = all.iter().map(|work| work.metadata.uid.clone()).collect();
    for work in all.iter().filter(|work| work.metadata.deletion_timestamp.is_none()) {
        let deleted =
            works.delete(work.metadata.name.as_deref().unwrap_or(""), &DeleteParams::default()).await;
        passing(deleted.map(drop))?;
    }
    while works
        .list(&ListParams::default())
        .await?
        .items
        .iter()
        .any(|work| going.contains(&work.metadata.uid))
    {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    passing(clusters.delete(name, &DeleteParams::default()).await.map(drop))?;
    while clusters.get_opt(name).await?.is_some() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// A missing object is already in the wanted state.
fn passing(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other,
    }
}

/// Returns how the agent in the member reaches the control plane.
async fn config_of_agent(member: &Client, arguments: &Arguments) -> anyhow::Result<Config> {
    let hint = "hint: say --karmada-config";
    let deployments = Api::<Deployment>::namespaced(member.clone(), &arguments.namespace);
    let agent = deployments
        .get(&arguments.agent_name)
        .await
        .with_context(|| format!("failed to get deployment karmada-agent in member cluster; {hint}"))?;
    let pod = agent.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
    let container = pod.containers.first().cloned().unwrap_or_default();
    let (secret, key) = place_of_kubeconfig(&container, &pod.volumes.unwrap_or_default())
        .with_context(|| format!("failed to get secret name of karmada agent config; {hint}"))?;
    let secrets = Api::<Secret>::namespaced(member.clone(), &arguments.namespace);
    let found = secrets
        .get(&secret)
        .await
        .with_context(|| format!("failed to get the secret which stores the karmada agent config; {hint}"))?;
    let text = found.data.and_then(|mut data| data.remove(&key)).unwrap_or_default();
    let access = access_of_agent(&text.0, flag(&container, "karmada-context").as_deref())?;
    access.config(&arguments.name).await.context("cannot use the agent's kubeconfig")
}

/// Reads the agent's kubeconfig. The member wrote it: it must neither run a program nor read a file on the machine of whoever takes the
/// member out.
fn access_of_agent(text: &[u8], context: Option<&str>) -> anyhow::Result<Access> {
    let context = context.filter(|name| !name.is_empty());
    Access::read_context(text, context)
        .context("the agent's kubeconfig in the member is not used; hint: say --karmada-config")
}

fn flag(container: &Container, name: &str) -> Option<String> {
    let start = format!("--{name}=");
    let words = container.command.iter().flatten().chain(container.args.iter().flatten());
    words.filter_map(|word| word.strip_prefix(&start)).next_back().map(str::to_owned)
}

/// Returns Secret and key of the file that the agent reads.
fn place_of_kubeconfig(
    container: &Container,
    volumes: &[k8s_openapi::api::core::v1::Volume],
) -> Option<(String, String)> {
    let path = PathBuf::from(flag(container, "karmada-kubeconfig")?);
    let directory = path.parent()?;
    let mounts = container.volume_mounts.iter().flatten();
    let mount = mounts.into_iter().find(|mount| std::path::Path::new(&mount.mount_path) == directory)?;
    let volume = volumes.iter().find(|volume| volume.name == mount.name)?;
    Some((volume.secret.as_ref()?.secret_name.clone()?, path.file_name()?.to_str()?.to_owned()))
}

/// Removes the objects that registration and the agent created in the member.
async fn clean(member: &Client, arguments: &Arguments) -> anyhow::Result<()> {
    let namespace = arguments.cluster_namespace.as_str();
    let account = names::service_account(&arguments.name);
    let role = names::cluster_role(&account);
    let impersonator = names::IMPERSONATOR_SERVICE_ACCOUNT;
    for account in [account.as_str(), impersonator] {
        delete(&Api::<ServiceAccount>::namespaced(member.clone(), namespace), account).await?;
        delete(&Api::<Secret>::namespaced(member.clone(), namespace), account).await?;
    }
    delete(&Api::<ClusterRole>::all(member.clone()), &role).await?;
    delete(&Api::<ClusterRoleBinding>::all(member.clone()), &role).await?;
    delete(&Api::<Namespace>::all(member.clone()), namespace).await?;
    if let Some(error) = remove_agent(member, &arguments.namespace).await.into_iter().next() {
        return Err(error);
    }
    for file in ["/etc/karmada/karmada-agent.conf", "/etc/karmada/pki/ca.crt"] {
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot delete {file}"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream hands the text to the client library, which runs what it names: a member that somebody else controls would control
    /// the machine from which it is taken out.
    #[test]
    fn finding_15_a_kubeconfig_in_a_member_runs_no_program_and_reads_no_file() {
        let text = |user: &str| {
            format!(
                "current-context: a\nclusters: [{{name: c, cluster: {{server: 'https://10.0.0.1'}}}}]\n\
                 contexts: [{{name: a, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {user}}}]\n"
            )
        };
        let read = |user: &str| access_of_agent(text(user).as_bytes(), None);
        assert!(read("{client-certificate-data: Yw==, client-key-data: aw==}").is_ok());
        for user in [
            "{exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [/tmp/x]}}",
            "{auth-provider: {name: gcp, config: {cmd-path: touch}}}",
            "{tokenFile: /etc/passwd}",
            "{client-certificate: /c, client-key: /k}",
        ] {
            let error = format!("{:#}", read(user).expect_err(user));
            assert!(error.contains("--karmada-config") && !error.contains("touch"), "{error}");
        }
        assert!(access_of_agent(text("{token: t}").as_bytes(), Some("b")).is_err(), "another context");
        assert!(access_of_agent(text("{token: t}").as_bytes(), Some("")).is_ok());
    }

    #[test]
    fn who_left_an_agent_behind_is_told_how_to_remove_it() {
        let told = unknown("m1", "agents");
        assert!(told.starts_with("no cluster object m1 found in karmada control Plane; hint: "), "{told}");
        let all = "kubectl -n agents delete deployment/karmada-agent serviceaccount/karmada-agent-sa secret/karmada-kubeconfig";
        assert!(told.contains(all), "{told}");
    }
}
