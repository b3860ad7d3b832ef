//! The agents of simulated clusters in pull mode: processes of this program, registered like any other agent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::directory::Directory;
use super::members::Member;
use crate::plane::Plane;

/// How long a registration may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a token is valid, in case this process ends before it deletes it.
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_mins(10);

/// A running agent.
pub(super) struct Agent(Child);

impl Agent {
    pub(super) async fn stop(mut self) {
        let _ = self.0.kill().await;
    }
}

fn kubeconfig(directory: &Directory, name: &str) -> PathBuf {
    directory.path.join(format!("agent-{name}.kubeconfig"))
}

/// Returns which clusters are in pull mode: the last ones, as many as requested, and those that were at an earlier start.
pub(super) fn chosen(directory: &Directory, names: &[&str], count: u8) -> Vec<String> {
    let asked = names.len().saturating_sub(usize::from(count));
    let chosen = names
        .iter()
        .enumerate()
        .filter(|(index, name)| *index >= asked || kubeconfig(directory, name).exists());
    chosen.map(|(_, name)| (*name).to_owned()).collect()
}

/// Returns the arguments for each start of an agent. It gets the features of the control plane.
fn told(
    name: &str,
    kubeconfig: &Path,
    place: Option<(&str, &[String])>,
    feature_gates: &str,
) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        vec!["--cluster-name".into(), name.into(), "--kubeconfig".into(), kubeconfig.into()];
    if let Some((region, zones)) = place {
        words.extend(["--cluster-provider", "simulated", "--cluster-region", region].map(OsString::from));
        words.extend(["--cluster-zones".into(), zones.join(",").into()]);
    }
    if !feature_gates.is_empty() {
        words.push(format!("--feature-gates={feature_gates}").into());
    }
    words
}

/// Starts the agent of a cluster; registers it first if necessary.
pub(super) async fn start(
    plane: &Plane,
    directory: &Directory,
    member: &Member,
    feature_gates: &str,
) -> anyhow::Result<Agent> {
    let name = &member.entry.name;
    let program = std::env::current_exe().context("cannot find this program")?;
    let file = kubeconfig(directory, name);
    let log = directory.path.join(format!("agent-{name}.log"));
    let written = std::fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut command = Command::new(program);
    if file.exists() {
        redirect(&file, &plane.url)?;
        command.arg("agent").arg("--karmada-kubeconfig").arg(&file).args(["--leader-elect=false"]);
    } else {
        let token = Token::make(plane).await?;
        let discovery = directory.path.join("discovery.kubeconfig");
        directory.write("discovery.kubeconfig", &token.discovery)?;
        command.args(["register", plane.url.trim_start_matches("https://"), "--token", &token.text]);
        command.arg("--discovery-file").arg(discovery).arg("--run").arg("--agent-kubeconfig").arg(&file);
    }
    let place = member.region.as_deref().map(|region| (region, member.zones.as_slice()));
    let child = command
        .args(told(name, &member.kubeconfig, place, feature_gates))
        .stdin(Stdio::null())
        .stdout(written.try_clone().context("cannot open the log twice")?)
        .stderr(written)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start an agent")?;
    let mut agent = Agent(child);
    let runs = async {
        loop {
            if std::fs::read_to_string(&log).unwrap_or_default().contains("agent runs") {
                return Ok(());
            }
            if let Some(status) = agent.0.try_wait().context("cannot watch an agent")? {
                bail!("the agent of {name} ended at once ({status}); see {}", log.display());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, runs).await {
        Ok(result) => result?,
        Err(_) => bail!("the agent of {name} does not run yet; see {}", log.display()),
    }
    Token::forget(plane).await;
    Ok(agent)
}

/// Updates the address of the control plane in a kubeconfig from an earlier start.
fn redirect(file: &Path, url: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot change {}", file.display());
    let text = std::fs::read_to_string(file).with_context(failed)?;
    let mut kubeconfig = Kubeconfig::from_yaml(&text).with_context(failed)?;
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|known| known.cluster.as_mut()) {
        cluster.server = Some(url.to_owned());
    }
    std::fs::write(file, serde_json::to_string_pretty(&kubeconfig)?).with_context(failed)
}

/// A token for one registration.
struct Token {
    text: String,
    /// A kubeconfig with the authority to trust.
    discovery: Vec<u8>,
}

/// One token at a time is enough.
const TOKEN: &str = "upagnt";

impl Token {
    async fn make(plane: &Plane) -> anyhow::Result<Self> {
        Self::forget(plane).await;
        let secret: String = uuid::Uuid::new_v4().simple().to_string().chars().take(16).collect();
        let object: Secret = serde_json::from_value(json!({
            "metadata": { "name": format!("bootstrap-token-{TOKEN}") },
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": TOKEN, "token-secret": secret, "usage-bootstrap-authentication": "true",
                "expiration": (Timestamp::now() + TOKEN_LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                "auth-extra-groups": admission::agents::BOOTSTRAP_GROUP,
            },
        }))?;
        let secrets = Api::<Secret>::namespaced(plane.client.clone(), "kube-system");
        secrets.create(&PostParams::default(), &object).await.context("cannot make a token")?;
        let text = std::fs::read_to_string(&plane.kubeconfig).context("cannot read our own kubeconfig")?;
        let own = Kubeconfig::from_yaml(&text).context("cannot read our own kubeconfig")?;
        let clusters: Vec<Value> = own
            .clusters
            .iter()
            .filter_map(|known| known.cluster.as_ref())
            .filter(|known| known.server.as_deref() == Some(plane.url.as_str()))
            .map(|known| json!({ "name": "", "cluster": known }))
            .collect();
        let discovery = json!({ "apiVersion": "v1", "kind": "Config", "clusters": clusters });
        Ok(Self { text: format!("{TOKEN}.{secret}"), discovery: discovery.to_string().into_bytes() })
    }

    /// Deletes the token; it may be missing.
    async fn forget(plane: &Plane) {
        let secrets = Api::<Secret>::namespaced(plane.client.clone(), "kube-system");
        let _ = secrets.delete(&format!("bootstrap-token-{TOKEN}"), &DeleteParams::default()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_have_the_features_of_the_control_plane() {
        let zones = ["a".to_owned(), "b".to_owned()];
        let words =
            told("member3", Path::new("m.kubeconfig"), Some(("eu", &zones)), "MultiClusterService=true");
        let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
        let expected = "--cluster-name member3 --kubeconfig m.kubeconfig --cluster-provider simulated --cluster-region eu \
                        --cluster-zones a,b --feature-gates=MultiClusterService=true";
        assert_eq!(words.join(" "), expected);
        assert_eq!(told("member3", Path::new("m.kubeconfig"), None, "").len(), 4);
    }
}
