//! `karmada controllers`: Karmada's controllers on any Kubernetes API.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use api::features::Features;
use clap::Args;
use controllers::{Context, Selection, Settings};
use propagation::skip::{SKIPPED_NAMESPACES, SkipRules};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::scheduling;
use crate::signals::Signals;

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
    #[command(flatten)]
    chosen: Chosen,
}

/// What can be chosen for the controllers, wherever they run.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    /// Controllers that run in this process, by upstream's names: `*` for all, `name`, `-name`; empty for none.
    #[arg(long, value_name = "LIST", default_value = "*")]
    controllers: String,
    #[command(flatten)]
    scheduling: scheduling::Flags,
    /// Features to switch on or off, as in `Failover=true,AllAlpha=false`.
    #[arg(long, value_name = "LIST", default_value = "")]
    feature_gates: String,
    /// Kinds that are never propagated, separated by semicolons: `group`, `group/version`, `group/version/Kind,Kind`.
    #[arg(long, value_name = "LIST", default_value = "")]
    skipped_propagating_apis: String,
    /// Namespaces whose objects are never propagated, as regular expressions.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = SKIPPED_NAMESPACES)]
    skipped_propagating_namespaces: Vec<String>,
}

/// What the command line chooses if it says nothing.
impl Default for Chosen {
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Nothing {
            #[command(flatten)]
            chosen: Chosen,
        }
        <Nothing as clap::Parser>::parse_from(["karmada"]).chosen
    }
}

impl Chosen {
    /// Returns the features that are on.
    pub(crate) fn features(&self) -> anyhow::Result<Features> {
        Features::parse(&self.feature_gates).context("--feature-gates cannot be understood")
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let namespaces = self.skipped_propagating_namespaces.iter().map(String::as_str);
        let skip = SkipRules::new(&self.skipped_propagating_apis, namespaces)
            .context("--skipped-propagating-apis or --skipped-propagating-namespaces cannot be understood")?;
        Ok(Settings { features: self.features()?, skip })
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
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
    let signals = Signals::listen()?;
    let running = Running::start(client, &arguments.chosen)?;
    tracing::info!(version = version.git_version, "controllers run");
    signals.run(running.stop()).await;
    Ok(())
}

/// Controllers at work.
pub(crate) struct Running {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Running {
    pub(crate) fn start(client: kube::Client, chosen: &Chosen) -> anyhow::Result<Self> {
        let running = Self { stop: CancellationToken::new(), tasks: TaskTracker::new() };
        let context = Context {
            client,
            settings: chosen.settings()?,
            scheduler: chosen.scheduling.settings()?,
            stop: running.stop.clone(),
            members: Arc::new(member::Members::default()),
        };
        controllers::spawn(&context, &Selection::parse(&chosen.controllers), &running.tasks);
        Ok(running)
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(GOODBYE, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "some controllers did not end in time");
        }
    }
}
