//! The data directory of `karmada up`: who owns it, what it records, and how it is emptied.
//!
//! `up.json` in the directory says that `karmada up` created it, and how. Only such a directory is ever emptied, and only of our
//! own files.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

const MARKER: &str = "up.json";
pub(super) const LOG: &str = "karmada.log";
/// All files of the control plane and the simulated members, except `<member>.kubeconfig`.
const OURS: [&str; 8] =
    ["store", "pki", "members", "karmada.kubeconfig", "admin.sock", "sim.sock", LOG, MARKER];

/// The state that is recorded from start to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Memory {
    /// Kubeconfigs of real members; `None` means that members are simulated.
    pub(super) members: Vec<PathBuf>,
    /// Nodes of each simulated member.
    pub(super) nodes: u16,
    /// The sample was created once. A user who deletes it does not want it back.
    pub(super) sample: bool,
    /// The registry of the context `fleet` was created once; the same applies to it.
    pub(super) fleet: bool,
}

/// A directory that we may use.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
}

impl Directory {
    /// Opens or creates the directory; with `fresh`, the files of an earlier run are deleted first.
    ///
    /// # Errors
    /// If another process uses it, or if it must be emptied and is not ours.
    pub(super) fn open(path: &Path, fresh: bool) -> anyhow::Result<Self> {
        let directory = Self { path: path.to_owned() };
        directory.refuse_used()?;
        if fresh {
            directory.empty()?;
        }
        directory.refuse_foreign()?;
        directory.create()?;
        Ok(directory)
    }

    /// Returns the state from an earlier run, if there was one.
    pub(super) fn recall(&self) -> anyhow::Result<Option<Memory>> {
        let path = self.path.join(MARKER);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        serde_json::from_str(&text)
            .map(Some)
            .with_context(|| format!("cannot understand {}; hint: --fresh starts over", path.display()))
    }

    pub(super) fn remember(&self, memory: &Memory) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(memory)?;
        self.write(MARKER, &text)
    }

    /// Writes a file that only the owner can read.
    pub(super) fn write(&self, name: &str, contents: &[u8]) -> anyhow::Result<()> {
        let path = self.path.join(name);
        apiserver::auth::pki::write_private(&path, contents)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The store's own lock shows whether another process is running. This is checked first: an error about a port in use would
    /// be a less helpful message about the same mistake.
    fn refuse_used(&self) -> anyhow::Result<()> {
        let Ok(file) = File::open(self.path.join("store/lock")) else { return Ok(()) };
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            bail!(
                "{} is in use by another karmada process; hint: stop it with Ctrl-C, or choose another --data-dir",
                self.path.display()
            );
        }
        Ok(())
    }

    /// A directory from `karmada server` or any other source must not be filled with simulated clusters, nor emptied later.
    fn refuse_foreign(&self) -> anyhow::Result<()> {
        if !self.path.join(MARKER).is_file()
            && let Some(found) = OURS.iter().find(|name| **name != LOG && self.path.join(name).exists())
        {
            bail!(
                "{} holds {found} already, which `karmada up` did not make; hint: choose another --data-dir",
                self.path.display()
            );
        }
        Ok(())
    }

    fn empty(&self) -> anyhow::Result<()> {
        let shown = self.path.display();
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries.collect::<Result<Vec<_>, _>>(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => Err(error),
        };
        let entries = entries.with_context(|| format!("cannot read {shown}"))?;
        // A start that failed early does not delete its log.
        if entries.iter().all(|entry| entry.file_name() == LOG) {
            return Ok(());
        }
        if !self.path.join(MARKER).is_file() {
            bail!(
                "{shown} was not made by `karmada up`, so --fresh does not delete it; hint: choose another --data-dir"
            );
        }
        let members: Vec<String> = std::fs::read_dir(self.path.join("members"))
            .map(|members| {
                let names = members.flatten().map(|member| member.file_name());
                names.map(|name| format!("{}.kubeconfig", name.to_string_lossy())).collect()
            })
            .unwrap_or_default();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Last, so that an interrupted start can be repeated.
            if name == MARKER || !(OURS.contains(&name.as_str()) || members.contains(&name)) {
                continue;
            }
            delete(&entry.path())?;
        }
        delete(&self.path.join(MARKER))
    }

    fn create(&self) -> anyhow::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .with_context(|| format!("cannot create {}", self.path.display()))
    }
}

fn delete(path: &Path) -> anyhow::Result<()> {
    // A link is deleted, not followed.
    let is_dir = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let result = if is_dir { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    result.with_context(|| format!("cannot delete {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, "x").expect("a file");
    }

    #[test]
    fn the_recorded_state_is_read_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let directory = Directory::open(dir.path(), false).expect("opened");
        assert_eq!(directory.recall().expect("readable"), None);
        let memory = Memory { members: vec!["/a/b".into()], nodes: 4, sample: true, fleet: true };
        directory.remember(&memory).expect("remembered");
        assert_eq!(directory.recall().expect("readable"), Some(memory));
    }

    #[test]
    fn a_fresh_start_deletes_ours_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        Directory::open(dir.path(), false).expect("opened").remember(&Memory::default()).expect("remembered");
        for name in ["store/store.redb", "members/m1/port", "m1.kubeconfig", "notes.txt", "own.kubeconfig"] {
            touch(&at(name));
        }
        let directory = Directory::open(dir.path(), true).expect("emptied");
        assert_eq!(directory.recall().expect("readable"), None);
        assert!(!at("store").exists() && !at("members").exists() && !at("m1.kubeconfig").exists());
        assert!(at("notes.txt").exists() && at("own.kubeconfig").exists());
    }

    #[test]
    fn a_directory_that_is_not_ours_is_neither_emptied_nor_used() {
        let dir = tempfile::tempdir().expect("a folder");
        touch(&dir.path().join("store/store.redb"));
        let error = Directory::open(dir.path(), true).expect_err("refused").to_string();
        assert!(error.contains("was not made by `karmada up`"), "{error}");
        let error = Directory::open(dir.path(), false).expect_err("refused").to_string();
        assert!(error.contains("holds store already"), "{error}");
        assert!(dir.path().join("store/store.redb").exists());
    }

    #[test]
    fn a_start_that_failed_early_can_be_repeated() {
        let dir = tempfile::tempdir().expect("a folder");
        touch(&dir.path().join(LOG));
        assert!(Directory::open(dir.path(), false).is_ok() && Directory::open(dir.path(), true).is_ok());
    }

    #[test]
    fn a_directory_in_use_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        touch(&dir.path().join("store/lock"));
        let held = File::open(dir.path().join("store/lock")).expect("the lock");
        held.try_lock().expect("held");
        let error = Directory::open(dir.path(), false).expect_err("refused").to_string();
        assert!(error.contains("in use by another karmada process"), "{error}");
    }
}
