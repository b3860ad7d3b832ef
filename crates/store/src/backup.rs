//! Copies of a store, and stores from copies.
//!
//! A backup is an ordinary store file, written from a frozen image while the store runs. Restoring puts it into
//! an empty directory and moves the revision far ahead, so that clients of the lost store notice; or into etcd, whose
//! history is compacted to the same end.

use std::{
    fs, io,
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use redb::Database;

use crate::{
    Clock as _, EtcdError, EtcdOptions, OpenError, Revision, SystemClock,
    disk::{FILE, Loaded, RawEntry, open_file, private_file, put_limits, put_meta, sync_dir, write_image},
    etcd,
    format::Meta,
    store::Shared,
};

/// What a backup holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    pub revision: Revision,
    pub entries: usize,
    pub file_bytes: u64,
}

pub(crate) fn write<H>(shared: &Shared<H>, to: &Path) -> Result<Backup, OpenError> {
    let image = {
        let state = shared.state.read();
        let meta = Meta {
            revision: state.revision,
            reserved: state.revision,
            compacted: state.compacted,
            gap: state.gap,
            clean: true,
        };
        // The lock is held across both, so that the revision belongs to the contents.
        state.image(meta)
    };
    if to.exists() {
        return Err(OpenError::Exists { path: to.into() });
    }
    let dir = to.parent().unwrap_or(Path::new("."));
    let at_dir = |source| OpenError::Directory { dir: dir.into(), source };
    // Under its final name the file is always complete.
    let mut unfinished = to.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = Path::new(&unfinished);
    if unfinished.exists() {
        fs::remove_file(unfinished).map_err(at_dir)?;
    }
    write_image(unfinished, &image, None)?;
    fs::rename(unfinished, to).and_then(|()| sync_dir(dir)).map_err(at_dir)?;
    Ok(Backup {
        revision: image.meta.revision,
        entries: image.collections.iter().map(|(_, _, tree)| tree.len()).sum(),
        file_bytes: fs::metadata(to).map_err(at_dir)?.len(),
    })
}

/// Makes a store out of a backup, in a directory that has none. Returns what was restored; its revision is the
/// one at which the new store starts, at least [`crate::RESTORE_JUMP`] ahead of the backup.
///
/// Entries of `limited` collections live so long from now on if the backup does not say how long: etcd keeps that to itself.
pub fn restore(from: &Path, dir: &Path, limited: &[(&str, Duration)]) -> Result<Backup, OpenError> {
    let at_dir = |source| OpenError::Directory { dir: dir.into(), source };
    let target = dir.join(FILE);
    if target.exists() {
        return Err(OpenError::Exists { path: target });
    }
    let lock = crate::disk::lock_dir(dir)?;
    let unfinished = copy(from, dir)?;
    let restored = adopt(&unfinished, from, limited);
    let backup = match restored {
        Ok(backup) => backup,
        Err(error) => {
            // The first error is the one to tell; a leftover is removed by the next attempt.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
    };
    fs::rename(&unfinished, &target).and_then(|()| sync_dir(dir)).map_err(at_dir)?;
    drop(lock);
    Ok(backup)
}

/// Puts a backup into etcd, under a prefix that has nothing yet; `dir` is where a copy of it may lie meanwhile. Returns what was
/// restored, at etcd's revision.
///
/// Revisions are etcd's own and cannot be moved ahead. Everything before the last of them is compacted instead.
pub fn restore_into_etcd(
    from: &Path,
    dir: &Path,
    etcd: &EtcdOptions,
    limited: &[(&str, Duration)],
) -> Result<Backup, OpenError> {
    let lock = crate::disk::lock_dir(dir)?;
    let unfinished = copy(from, dir)?;
    let restored = put_into_etcd(&unfinished, from, etcd, limited);
    let at_dir = |source| OpenError::Directory { dir: dir.into(), source };
    let removed = fs::remove_file(&unfinished).map_err(at_dir);
    drop(lock);
    let restored = restored?;
    removed.map(|()| restored)
}

fn put_into_etcd(
    copy: &Path,
    from: &Path,
    etcd: &EtcdOptions,
    limited: &[(&str, Duration)],
) -> Result<Backup, OpenError> {
    let now_ms = SystemClock.now_ms();
    let (database, mut loaded) = open_copy(copy, from)?;
    drop(database);
    limit(&mut loaded, limited, now_ms);
    let entries = loaded.collections.iter().map(|collection| collection.entries.len()).sum();
    let file_bytes = fs::metadata(copy).map_or(0, |file| file.len());
    // What is continued must be the same backup.
    let backup = format!("{entries} entries at revision {}, {file_bytes} bytes", loaded.meta.revision);
    let refused = |error: io::Error| OpenError::Etcd(EtcdError::Refused(error.to_string()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?;
    let restored = runtime.block_on(etcd::restore(etcd, backup, &loaded.collections, now_ms));
    Ok(Backup { revision: restored?, entries, file_bytes })
}

/// Copies a backup into a directory, under a name that says that it is not in use.
fn copy(from: &Path, dir: &Path) -> Result<PathBuf, OpenError> {
    let at_dir = |source| OpenError::Directory { dir: dir.into(), source };
    let unfinished = dir.join(format!("{FILE}.new"));
    let mut source = fs::File::open(from)
        .map_err(|source| OpenError::Database { path: from.into(), source: redb::Error::Io(source) })?;
    if unfinished.exists() {
        fs::remove_file(&unfinished).map_err(at_dir)?;
    }
    // `fs::copy` would take over the backup's mode; whoever may read the backup need not be able to read the store.
    let copied = private_file().create_new(true).open(&unfinished);
    copied.and_then(|mut copy| io::copy(&mut source, &mut copy)).map_err(at_dir)?;
    Ok(unfinished)
}

/// Gives entries a limit that the backup does not know. Returns those that it did not know of.
fn limit(loaded: &mut Loaded, limited: &[(&str, Duration)], now_ms: u64) -> Vec<(Arc<str>, RawEntry)> {
    let mut changed = Vec::new();
    for collection in &mut loaded.collections {
        let Some((_, ttl)) = limited.iter().find(|(name, _)| *name == &*collection.name) else { continue };
        let end = now_ms.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        for entry in collection.entries.iter_mut().filter(|entry| entry.expires_ms.is_none()) {
            entry.expires_ms = NonZeroU64::new(end);
            changed.push((collection.name.clone(), entry.clone()));
        }
    }
    changed
}

/// Checks the copy and moves it ahead.
fn adopt(copy: &Path, from: &Path, limited: &[(&str, Duration)]) -> Result<Backup, OpenError> {
    let failed = |source: redb::Error| OpenError::Database { path: from.into(), source };
    let (database, mut loaded) = open_copy(copy, from)?;
    let now_ms = SystemClock.now_ms();
    put_limits(&database, &limit(&mut loaded, limited, now_ms)).map_err(failed)?;
    let meta = loaded.meta.after_restore(now_ms);
    put_meta(&database, &meta).map_err(failed)?;
    let file_bytes = fs::metadata(copy).map_or(0, |file| file.len());
    Ok(Backup {
        revision: meta.revision,
        entries: loaded.collections.iter().map(|collection| collection.entries.len()).sum(),
        file_bytes,
    })
}

/// Opens the copy of a backup and checks it. Errors name the backup, which is what the caller knows.
fn open_copy(copy: &Path, from: &Path) -> Result<(Database, Loaded), OpenError> {
    let failed = |source: redb::Error| OpenError::Database { path: from.into(), source };
    let naming_backup = |error| match error {
        OpenError::Foreign { what, .. } => OpenError::Foreign { path: from.into(), what },
        OpenError::NewerFormat { found, supported, .. } => {
            OpenError::NewerFormat { path: from.into(), found, supported }
        }
        OpenError::Database { source, .. } => OpenError::Database { path: from.into(), source },
        other => other,
    };
    let (mut database, loaded): (Database, _) = open_file(copy, None).map_err(naming_backup)?;
    if !database.check_integrity().map_err(|e| failed(e.into()))? {
        return Err(OpenError::Foreign { path: from.into(), what: "its checksums do not match".to_owned() });
    }
    Ok((database, loaded))
}
