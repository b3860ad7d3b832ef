//! The agent's identity in the control plane: its kubeconfig, read again whenever it changes.
//!
//! One client lasts for the life of the process. The connection behind it is replaced as a whole when the certificate is renewed,
//! by this agent or by any other writer of the file. Running requests continue with the old certificate, the next one presents
//! the new one. So there is neither a gap nor a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::RwLock;
use tower::service_fn;

/// How often the file is checked: mounted Secrets change from outside.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// The agent's identity; all clones share it.
#[derive(Clone)]
pub(crate) struct Identity(Arc<Inner>);

struct Inner {
    file: PathBuf,
    context: Option<String>,
    current: RwLock<Current>,
}

/// The current credentials.
#[derive(Clone)]
struct Current {
    text: Arc<str>,
    config: Config,
    client: Client,
}

impl Identity {
    /// Reads the kubeconfig.
    pub(crate) async fn read(file: &Path, context: Option<&str>) -> anyhow::Result<Self> {
        let text = text_of(file).await?;
        let current = current(&text, context)
            .await
            .with_context(|| format!("cannot use kubeconfig {}", file.display()))?;
        let (file, context) = (file.to_owned(), context.map(str::to_owned));
        Ok(Self(Arc::new(Inner { file, context, current: RwLock::new(current) })))
    }

    /// Returns a client that presents the newest certificate with every request.
    pub(crate) fn client(&self) -> Client {
        let inner = self.0.clone();
        let service = service_fn(move |request| {
            let client = inner.current.read().client.clone();
            async move { client.send(request).await }
        });
        Client::new(service, "default")
    }

    /// Returns the current route to the control plane.
    pub(crate) fn config(&self) -> Config {
        self.0.current.read().config.clone()
    }

    /// Returns the current kubeconfig.
    pub(super) fn text(&self) -> Arc<str> {
        self.0.current.read().text.clone()
    }

    /// Returns the context in use, if it is not the current one of the file.
    pub(super) fn context(&self) -> Option<&str> {
        self.0.context.as_deref()
    }

    pub(super) fn file(&self) -> &Path {
        &self.0.file
    }

    /// Uses this kubeconfig from now on.
    pub(super) async fn become_this(&self, text: &str) -> anyhow::Result<()> {
        let new = current(text, self.0.context.as_deref()).await.context("cannot use the new kubeconfig")?;
        *self.0.current.write() = new;
        Ok(())
    }

    /// Follows the file while the process runs. An unreadable or unusable file is ignored: the old kubeconfig remains.
    pub(super) async fn follow(&self) {
        let mut seen = self.text();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Ok(text) = text_of(&self.0.file).await else { continue };
            if *text == *seen {
                continue;
            }
            seen = text.as_str().into();
            match self.become_this(&text).await {
                Ok(()) => {
                    tracing::info!(file = %self.0.file.display(), "the kubeconfig has changed and is used")
                }
                Err(error) => tracing::warn!(file = %self.0.file.display(), "{error:#}"),
            }
        }
    }
}

async fn text_of(file: &Path) -> anyhow::Result<String> {
    tokio::fs::read_to_string(file).await.with_context(|| {
        format!("cannot read kubeconfig {}; hint: `karmada register` writes it", file.display())
    })
}

async fn current(text: &str, context: Option<&str>) -> anyhow::Result<Current> {
    let kubeconfig = Kubeconfig::from_yaml(text).context("it is malformed")?;
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    // The queues of the agent decide about retries, not the client.
    config.default_retry = false;
    let client = member::lasting_client(&config)?;
    Ok(Current { text: text.into(), config, client })
}
