//! `karmada backup`: a consistent copy of the store, also while the server runs.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

/// Copy the store to a file, while the server runs or not.
///
/// `karmada server --restore FILE` starts from such a file.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The server's data directory.
    #[arg(long, value_name = "DIR", default_value = "karmada-data", env = "KARMADA_DATA_DIR")]
    data_dir: PathBuf,
    /// The file to write; it must not exist yet.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = arguments.data_dir.join("store");
    if !store.exists() {
        bail!(
            "{} holds no store; --data-dir names the directory that `karmada server` was given",
            store.display()
        );
    }
    if arguments.to.exists() {
        bail!("{} exists already; name a new file", arguments.to.display());
    }
    let socket = arguments.data_dir.join(apiserver::admin::SOCKET);
    let made = match apiserver::admin::backup(&socket, &arguments.to).await? {
        Some(made) => made,
        // Nobody serves this directory: read it ourselves.
        None => {
            let to = arguments.to.clone();
            tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
                let store = store::Store::<()>::open(store::Options::file(store))?;
                let made = store.backup(&to)?;
                Ok(format!("{} entries at revision {}", made.entries, made.revision))
            })
            .await
            .context("the backup was interrupted")??
        }
    };
    println!("{}: {made}", arguments.to.display());
    Ok(())
}
