//! `karmada backup`: a consistent copy of the store, also while the server runs.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use crate::etcd::{EtcdArguments, StoreKind};

/// Copy the store to a file, while the server runs or not.
///
/// `karmada server --restore FILE` starts from such a file.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The server's data directory.
    #[arg(long, value_name = "DIR", default_value = "karmada-data", env = "KARMADA_DATA_DIR")]
    data_dir: PathBuf,
    /// Where objects are stored; of use if no server runs on the data directory.
    #[arg(long, value_enum, default_value_t = StoreKind::Embedded)]
    store: StoreKind,
    #[command(flatten)]
    etcd: EtcdArguments,
    /// The file to write; it must not exist yet.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let etcd = arguments.etcd.options(arguments.store)?;
    if arguments.to.exists() {
        bail!("{} exists already; name a new file", arguments.to.display());
    }
    let socket = arguments.data_dir.join(apiserver::admin::SOCKET);
    let made = match apiserver::admin::backup(&socket, &arguments.to).await? {
        Some(made) => made,
        // No server serves this directory: read the store ourselves.
        None => {
            let options = options(&arguments.data_dir, etcd)?;
            let to = arguments.to.clone();
            tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
                let store = store::Store::<()>::open(options)?;
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

/// Returns the location of the objects.
fn options(data_dir: &Path, etcd: Option<store::EtcdOptions>) -> anyhow::Result<store::Options> {
    if let Some(etcd) = etcd {
        // A backup must not compact the history.
        return Ok(store::Options::etcd(store::EtcdOptions { compact_every: None, ..etcd }));
    }
    let dir = data_dir.join("store");
    // Opening a missing store would create it.
    if !dir.join("store.redb").exists() {
        bail!(
            "{} holds no store; --data-dir names the directory that `karmada server` was given; hint: a server on etcd is not \
             running, name its --store etcd and --etcd-servers",
            dir.display()
        );
    }
    Ok(store::Options::file(dir))
}
