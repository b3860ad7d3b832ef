//! The agent's end of the tunnel: which account it uses in the member, and how it reaches the control plane.
//!
//! The account is upstream's impersonator: it may only impersonate the users of the cluster proxy, as the controller
//! `unifiedAuth` decides. A kubeconfig for a different account can be given.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use api::cluster::Cluster;
use api::names::IMPERSONATOR_SERVICE_ACCOUNT;
use clap::Args;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::config::AuthInfo;
use kube::{Api, Config};
use member::credentials::{Reported, prepare_member};
use tunnel::agent::{Ends, keep};
use tunnel::{Limits, Reached};

use super::Agent;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Whether and how the control plane reaches the cluster.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The way into the cluster")]
pub(super) struct Tunnel {
    /// Keep a connection to the control plane open through which its users reach the cluster in their own names: logs, exec,
    /// port-forward, watches.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(super) tunnel: bool,
    /// Kubeconfig of the account that takes on the names of users in the cluster and needs no other right; by default the
    /// service account karmada-impersonator in --cluster-namespace.
    #[arg(long, value_name = "FILE")]
    tunnel_kubeconfig: Option<PathBuf>,
}

/// Keeps the tunnel open while the agent acts.
pub(super) fn start(agent: &Agent, tunnel: &Tunnel, namespace: &str) {
    let supervisor = agent.supervisor.clone();
    let (agent, tunnel, namespace) = (agent.clone(), tunnel.clone(), namespace.to_owned());
    supervisor.keep("tunnel", move || {
        let between = Between {
            agent: agent.clone(),
            file: tunnel.tunnel_kubeconfig.clone(),
            namespace: namespace.clone(),
        };
        async move {
            let stop = between.agent.supervisor.token().clone();
            keep(&between.agent.name, &between, Limits::default(), stop).await;
        }
    });
}

/// The two sides that the agent connects.
struct Between {
    agent: Agent,
    file: Option<PathBuf>,
    namespace: String,
}

impl Ends for Between {
    fn control(&self) -> BoxFuture<'_, Result<Config, BoxError>> {
        Box::pin(async { Ok(self.agent.identity.config()) })
    }

    fn member(&self) -> BoxFuture<'_, Result<Reached, BoxError>> {
        Box::pin(async { Ok(self.reached().await?) })
    }
}

impl Between {
    async fn reached(&self) -> anyhow::Result<Reached> {
        if let Some(file) = &self.file {
            let config = cli::config(Some(file), None).await?;
            return Ok(Reached::new(&config, None)?);
        }
        let account = IMPERSONATOR_SERVICE_ACCOUNT;
        let token = match self.token().await? {
            Some(token) => token,
            None => {
                self.is_known().await?;
                // The reporting of the account's token usually creates it; here it is not reported.
                let own = Reported { credentials: false, impersonator: true };
                prepare_member(&self.agent.member, &self.agent.name, &self.namespace, own).await?;
                self.token().await?.with_context(|| format!("service account {account} has no token"))?
            }
        };
        let mut config = self.agent.member_config.clone();
        config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
        let name = format!("system:serviceaccount:{}:{account}", self.namespace);
        Ok(Reached::new(&config, Some(name))?)
    }

    /// Fails if the cluster was taken out of the control plane. What its agent used in the member is cleaned away after that, and an agent
    /// that still runs must not bring it back.
    async fn is_known(&self) -> anyhow::Result<()> {
        let clusters = Api::<Cluster>::all(self.agent.plane.clone());
        let known = clusters.get_opt(&self.agent.name).await;
        let known = known.context("cannot ask whether the control plane knows the cluster")?;
        ensure!(known.is_some(), "the control plane does not know the cluster any more");
        Ok(())
    }

    async fn token(&self) -> anyhow::Result<Option<String>> {
        let secrets = Api::<Secret>::namespaced(self.agent.member.clone(), &self.namespace);
        let secret = secrets.get_opt(IMPERSONATOR_SERVICE_ACCOUNT).await;
        let secret = secret.context("cannot read the token of the account for the tunnel")?;
        let token =
            secret.and_then(|secret| secret.data?.remove("token")).filter(|token| !token.0.is_empty());
        token
            .map(|token| String::from_utf8(token.0).context("the token of the account is not text"))
            .transpose()
    }
}
