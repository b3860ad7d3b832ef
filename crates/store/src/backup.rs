//! Copies of a store, and stores from copies.
//!
//! A backup is an ordinary store file, written from a frozen image while the store runs. Restoring puts it into
//! an empty directory and moves the revision far ahead, so that clients of the lost store notice.

use std::{fs, io, path::Path};

use redb::Database;

use crate::{
    Clock as _, OpenError, Revision, SystemClock,
    disk::{FILE, open_file, private_file, put_meta, sync_dir, write_image},
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
pub fn restore(from: &Path, dir: &Path) -> Result<Backup, OpenError> {
    let at_dir = |source| OpenError::Directory { dir: dir.into(), source };
    let target = dir.join(FILE);
    if target.exists() {
        return Err(OpenError::Exists { path: target });
    }
    let lock = crate::disk::lock_dir(dir)?;
    let unfinished = dir.join(format!("{FILE}.new"));
    let mut source = fs::File::open(from)
        .map_err(|source| OpenError::Database { path: from.into(), source: redb::Error::Io(source) })?;
    if unfinished.exists() {
        fs::remove_file(&unfinished).map_err(at_dir)?;
    }
    // `fs::copy` would take over the backup's mode; whoever may read the backup need not be able to read the store.
    let copied = private_file().create_new(true).open(&unfinished);
    copied.and_then(|mut copy| io::copy(&mut source, &mut copy)).map_err(at_dir)?;
    let restored = adopt(&unfinished, from);
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

/// Checks the copy and moves it ahead. Errors name the backup, which is what the caller knows.
fn adopt(copy: &Path, from: &Path) -> Result<Backup, OpenError> {
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
    let meta = loaded.meta.after_restore(SystemClock.now_ms());
    put_meta(&database, &meta).map_err(failed)?;
    let file_bytes = fs::metadata(copy).map_or(0, |file| file.len());
    Ok(Backup {
        revision: meta.revision,
        entries: loaded.collections.iter().map(|collection| collection.entries.len()).sum(),
        file_bytes,
    })
}
