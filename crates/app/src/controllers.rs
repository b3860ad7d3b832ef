//! `karmada controllers`: Karmada's controllers on any Kubernetes API.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use controllers::plane::scheduling::Settings;
use controllers::{Context, Selection};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::scheduling;

/// How long controllers may take to end.
const GOODBYE: Duration = Duration::from_secs(10);

/// Run the controllers against a control plane elsewhere: our server or a kube-apiserver with Karmada's definitions.
///
/// Run one of them per control plane: there is no leader election yet.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The control plane's kubeconfig; by default KUBECONFIG or the file in the home directory.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Controllers to run, by upstream's names: `*` for all, `name`, `-name`.
    #[arg(long, value_name = "LIST", default_value = "*")]
    controllers: String,
    #[command(flatten)]
    scheduling: scheduling::Flags,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let settings = arguments.scheduling.settings()?;
    let config = match &arguments.kubeconfig {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path)
                .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &Default::default())
                .await
                .with_context(|| format!("the kubeconfig {} cannot be used", path.display()))?
        }
        None => kube::Config::infer()
            .await
            .context("no kubeconfig is given and none is found; use --kubeconfig")?,
    };
    let client = kube::Client::try_from(config).context("cannot make a client from the kubeconfig")?;
    let version = client.apiserver_version().await.context("the control plane does not answer")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let running = Running::start(client, &arguments.controllers, settings);
    tracing::info!(version = version.git_version, "controllers run");
    tokio::select! {
        _ = terminate.recv() => tracing::info!("stopping: SIGTERM"),
        _ = interrupt.recv() => tracing::info!("stopping: interrupted"),
    }
    running.stop().await;
    Ok(())
}

/// Controllers at work.
pub(crate) struct Running {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Running {
    pub(crate) fn start(client: kube::Client, selection: &str, scheduler: Settings) -> Self {
        let running = Self { stop: CancellationToken::new(), tasks: TaskTracker::new() };
        let context = Context {
            client,
            stop: running.stop.clone(),
            members: Arc::new(member::Members::default()),
            scheduler,
        };
        controllers::spawn(&context, &Selection::parse(selection), &running.tasks);
        running
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(GOODBYE, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "some controllers did not end in time");
        }
    }
}
