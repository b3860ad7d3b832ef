//! A copy of the target's store, for a report.
//!
//! In: the location of the target. Out: a temporary directory with the same objects, which is deleted with its owner; `None` if
//! the target stores nothing. A server always writes to its store, and the first report must not be what fills etcd.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use store::{EtcdOptions, Options, Store};

pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Copies the target's store, if it is not empty. No server may run on the data directory; on etcd it may.
    pub(crate) async fn of(data_dir: &Path, etcd: Option<EtcdOptions>) -> anyhow::Result<Option<Self>> {
        let store = data_dir.join("store");
        let copied = tokio::task::spawn_blocking(move || match etcd {
            Some(etcd) => from_etcd(etcd),
            None => from_file(&store),
        });
        let copied = copied.await.context("the copy was interrupted")?;
        copied.context("cannot read what the target stores; hint: no server may run on its data directory")
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    fn new() -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("karmada-migrate-{}", uuid::Uuid::new_v4()));
        // It will contain Secrets.
        let made = fs::DirBuilder::new().mode(0o700).create(&dir);
        made.with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }

    /// Initialises the store of the copy from a backup.
    fn fill(&self, backup: &Path) -> anyhow::Result<()> {
        store::restore(backup, &self.0.join("store"), &apiserver::registry::limited())?;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, dir = %self.0.display(), "cannot remove a copy of the target");
        }
    }
}

fn from_etcd(etcd: EtcdOptions) -> anyhow::Result<Option<Scratch>> {
    // Compaction also writes.
    let store = Store::<()>::open(Options::etcd(EtcdOptions { compact_every: None, ..etcd }))?;
    if store.collections().is_empty() {
        return Ok(None);
    }
    let (scratch, backup) = (Scratch::new()?, "backup");
    store.backup(&scratch.dir().join(backup))?;
    scratch.fill(&scratch.dir().join(backup))?;
    Ok(Some(scratch))
}

fn from_file(dir: &Path) -> anyhow::Result<Option<Scratch>> {
    let file = dir.join("store.redb");
    if !file.exists() {
        return Ok(None);
    }
    let _nobody_writes = store::lock(dir)?;
    let scratch = Scratch::new()?;
    scratch.fill(&file)?;
    Ok(Some(scratch))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use clusters::Etcd;
    use store::{Expect, Write};

    use super::*;

    async fn fill(store: &Store<()>) {
        let write = Write::put("pods", "n/a", Expect::Absent, Bytes::from_static(b"{}"), ());
        store.commit(write).await.expect("it is new");
    }

    /// Opens the copy and returns its content.
    async fn copied(scratch: &Scratch) -> Vec<String> {
        let copy = Store::<()>::open(Options::file(scratch.dir().join("store"))).expect("a store");
        let held = copy.collections().iter().map(|(name, count)| format!("{count} {name}")).collect();
        copy.close().await;
        held
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_directory_is_copied_and_left_as_it_was() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(Scratch::of(dir.path(), None).await.expect("readable").is_none());
        assert!(fs::read_dir(dir.path()).expect("a folder").next().is_none(), "nothing was made");
        let file = dir.path().join("store/store.redb");
        let store = Store::<()>::open(Options::file(dir.path().join("store"))).expect("a store");
        fill(&store).await;
        store.close().await;
        drop(store);
        let before = fs::read(&file).expect("a file");
        let scratch = Scratch::of(dir.path(), None).await.expect("readable").expect("it stores something");
        assert_eq!(copied(&scratch).await, ["1 pods"]);
        assert_eq!(fs::read(&file).expect("a file"), before);
        let place = scratch.dir().to_owned();
        drop(scratch);
        assert!(!place.exists());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn etcd_is_copied_and_left_as_it_was() {
        let dir = tempfile::tempdir().expect("a folder");
        let Some(etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
        let options = EtcdOptions::new([etcd.endpoint.clone()]);
        let quiet = EtcdOptions { compact_every: None, ..options.clone() };
        let data = dir.path().join("data");
        assert!(Scratch::of(&data, Some(options.clone())).await.expect("readable").is_none());
        let store = Store::<()>::open(Options::etcd(quiet)).expect("a store");
        assert_eq!(store.catch_up().await.expect("etcd answers"), 1, "nothing was written");
        fill(&store).await;
        let before = store.revision();
        let scratch =
            Scratch::of(&data, Some(options)).await.expect("readable").expect("it stores something");
        assert_eq!(copied(&scratch).await, ["1 pods"]);
        assert_eq!(store.catch_up().await.expect("etcd answers"), before);
        assert!(!data.exists());
    }
}
