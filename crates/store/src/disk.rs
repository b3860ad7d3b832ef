//! The store on disk: one redb file in a locked directory.
//!
//! In: sets of changed entries and the [`Meta`] that belongs to them, made durable as one transaction. Out: all
//! entries when the store is opened. Nothing is ever read from here while the store runs.
//!
//! After a failed write the file is not trusted any more, since a failed fsync may have dropped pages that the
//! system claims are clean. As memory holds everything, [`Disk::rewrite`] then writes a fresh file and puts it
//! in the place of the old one.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io,
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, WriteTransaction, backends::FileBackend};

use crate::{
    Entry, OpenError, Revision,
    faults::{Faults, FaultyFile},
    format::{
        COLLECTIONS, ENTRIES, FORMAT, META, META_FORMAT, META_STATE, Meta, RECORD_HEADER, decode_record,
        encode_record, u64_at,
    },
    tree::Tree,
};

pub(crate) const FILE: &str = "store.redb";
const LOCK: &str = "lock";

/// How often and at which distance a lock that somebody holds is tried: five seconds in all.
const LOCK_TRIES: u32 = 250;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// redb caches pages itself; since nobody reads from the file, it needs room for the inner pages and the
/// transaction at hand only.
const CACHE: usize = 1 << 20;

/// Entries per transaction when a whole file is written: bounds the memory held by redb meanwhile.
const IMAGE_STEP: usize = 4_096;

pub(crate) struct Disk {
    dir: PathBuf,
    /// `None` after a failure, until the file has been rewritten.
    database: Option<Database>,
    faults: Option<Faults>,
    /// Held as long as the store is open.
    _lock: File,
}

/// The newest version of each name that was changed; `None` where it was deleted.
pub(crate) type Versions<H> = BTreeMap<(Arc<str>, Box<str>), Option<Arc<Entry<H>>>>;

/// The changes that one transaction makes durable: the newest version per name.
pub(crate) struct Changes<H> {
    entries: Versions<H>,
    /// The newest change per collection.
    last: BTreeMap<Arc<str>, Revision>,
    pub(crate) bytes: usize,
}

impl<H> Default for Changes<H> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), last: BTreeMap::new(), bytes: 0 }
    }
}

impl<H> Changes<H> {
    pub(crate) fn add(&mut self, event: &crate::Event<H>) {
        self.bytes += event.current.as_ref().map_or(64, |entry| entry.value.len());
        self.last.insert(Arc::clone(&event.collection), event.revision);
        self.entries.insert((Arc::clone(&event.collection), Box::from(event.name())), event.current.clone());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Everything the store holds, frozen.
pub(crate) struct Image<H> {
    pub(crate) meta: Meta,
    pub(crate) collections: Vec<(Arc<str>, Revision, Tree<Entry<H>>)>,
}

/// What was found on disk.
pub(crate) struct Loaded {
    pub(crate) meta: Meta,
    /// In the order of their names; the entries too.
    pub(crate) collections: Vec<LoadedCollection>,
}

pub(crate) struct LoadedCollection {
    pub(crate) name: Arc<str>,
    pub(crate) last: Revision,
    pub(crate) entries: Vec<RawEntry>,
}

/// An entry whose head is still to be parsed.
#[derive(Clone)]
pub(crate) struct RawEntry {
    pub(crate) name: Box<str>,
    pub(crate) created: Revision,
    pub(crate) modified: Revision,
    pub(crate) expires_ms: Option<NonZeroU64>,
    pub(crate) value: Bytes,
}

impl Disk {
    /// Locks the directory, opens or creates the file and reads everything.
    pub(crate) fn open(dir: &Path, faults: Option<Faults>) -> Result<(Self, Loaded), OpenError> {
        let lock = lock_dir(dir)?;
        // A rewrite that did not get to its end left this; the real file is still in place.
        let unfinished = dir.join(format!("{FILE}.new"));
        if unfinished.exists() {
            fs::remove_file(&unfinished)
                .map_err(|source| OpenError::Directory { dir: dir.into(), source })?;
        }
        let path = dir.join(FILE);
        let fresh = !path.exists();
        let (database, loaded) = open_file(&path, faults.clone())?;
        if fresh {
            sync_dir(dir).map_err(|source| OpenError::Directory { dir: dir.into(), source })?;
        }
        Ok((Self { dir: dir.into(), database: Some(database), faults, _lock: lock }, loaded))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Makes the changes durable, all or nothing.
    ///
    /// After an error the file is left alone until [`Disk::rewrite`].
    pub(crate) fn commit<H>(&mut self, changes: &Changes<H>, meta: &Meta) -> Result<(), redb::Error> {
        let Some(database) = &self.database else { return Err(redb::Error::PreviousIo) };
        let result = write_changes(database, changes, meta);
        if result.is_err() {
            self.database = None;
        }
        result
    }

    /// Replaces the file by a new one with these contents.
    pub(crate) fn rewrite<H>(&mut self, image: &Image<H>) -> Result<(), OpenError> {
        self.database = None;
        let path = self.path();
        let new = self.dir.join(format!("{FILE}.new"));
        match fs::remove_file(&new) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(OpenError::Directory { dir: self.dir.clone(), source });
            }
            _ => {}
        }
        write_image(&new, image, self.faults.clone())?;
        fs::rename(&new, &path)
            .and_then(|()| sync_dir(&self.dir))
            .map_err(|source| OpenError::Directory { dir: self.dir.clone(), source })?;
        self.database = Some(open_database(&path, self.faults.clone())?);
        Ok(())
    }
}

/// A directory that nobody else uses while this exists.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the system lets go of the lock when the file is closed")] File);

/// Takes a directory as a store in it would, for those who keep other things beside it.
pub fn lock(dir: &Path) -> Result<Lock, OpenError> {
    lock_dir(dir).map(Lock)
}

pub(crate) fn lock_dir(dir: &Path) -> Result<File, OpenError> {
    let at_dir = |source| OpenError::Directory { dir: dir.into(), source };
    create_private_dir(dir).map_err(at_dir)?;
    let lock = private_file().create(true).truncate(false).open(dir.join(LOCK)).map_err(at_dir)?;
    // Its holder may be about to let go: a server that was just killed and is still dying, or a child of ours that was
    // forked while the lock was held and has not started its own program yet.
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(source)) => return Err(at_dir(source)),
        }
    }
    Err(OpenError::Locked { dir: dir.into() })
}

/// Values include secrets, so nobody else may read the directory or its files.
fn create_private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

pub(crate) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}

fn open_database(path: &Path, faults: Option<Faults>) -> Result<Database, OpenError> {
    let failed = |source: redb::Error| OpenError::Database { path: path.into(), source };
    let file = private_file()
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|source| failed(redb::Error::Io(source)))?;
    let backend = FaultyFile::new(FileBackend::new(file).map_err(|e| failed(e.into()))?, faults);
    Database::builder().set_cache_size(CACHE).create_with_backend(backend).map_err(|e| failed(e.into()))
}

/// Opens the file, creating it if need be, and reads everything.
pub(crate) fn open_file(path: &Path, faults: Option<Faults>) -> Result<(Database, Loaded), OpenError> {
    let database = open_database(path, faults)?;
    let failed = |source: redb::Error| OpenError::Database { path: path.into(), source };
    let foreign = |what: &str| OpenError::Foreign { path: path.into(), what: what.to_owned() };

    let read = database.begin_read().map_err(|e| failed(e.into()))?;
    if read.list_tables().map_err(|e| failed(e.into()))?.next().is_none() {
        drop(read);
        let meta = Meta::new();
        create_tables(&database, &meta).map_err(failed)?;
        return Ok((database, Loaded { meta, collections: Vec::new() }));
    }
    let table = read.open_table(META).map_err(|e| match e {
        redb::TableError::Storage(source) => failed(source.into()),
        other => foreign(&other.to_string()),
    })?;
    let format = table.get(META_FORMAT).map_err(|e| failed(e.into()))?;
    match format.and_then(|bytes| u64_at(bytes.value(), 0)) {
        None => return Err(foreign("it has no format version")),
        Some(found) if found > FORMAT => {
            return Err(OpenError::NewerFormat { path: path.into(), found, supported: FORMAT });
        }
        Some(_) => {}
    }
    let meta = table.get(META_STATE).map_err(|e| failed(e.into()))?;
    let meta =
        meta.and_then(|bytes| Meta::decode(bytes.value())).ok_or_else(|| foreign("its state is damaged"))?;
    let collections = load(&read).map_err(|e| match e {
        LoadError::Redb(source) => failed(source),
        LoadError::Damaged(what) => foreign(&what),
    })?;
    drop(table);
    drop(read);
    Ok((database, Loaded { meta, collections }))
}

enum LoadError {
    Redb(redb::Error),
    Damaged(String),
}

impl<E: Into<redb::Error>> From<E> for LoadError {
    fn from(error: E) -> Self {
        Self::Redb(error.into())
    }
}

fn load(read: &redb::ReadTransaction) -> Result<Vec<LoadedCollection>, LoadError> {
    let mut collections = Vec::new();
    for item in read.open_table(COLLECTIONS)?.iter()? {
        let (name, last) = item?;
        let (name, last) = (Arc::from(name.value()), last.value());
        collections.push(LoadedCollection { name, last, entries: Vec::new() });
    }
    let mut at = 0;
    for item in read.open_table(ENTRIES)?.iter()? {
        let (key, record) = item?;
        let (collection, name) = key.value();
        // Both tables are in the same order, so this moves forward only.
        while collections.get(at).is_some_and(|known| &*known.name != collection) {
            at += 1;
        }
        let Some(target) = collections.get_mut(at) else {
            return Err(LoadError::Damaged(format!("collection {collection} is not in its list")));
        };
        let Some((created, modified, expires_ms, value)) = decode_record(record.value()) else {
            return Err(LoadError::Damaged(format!("the entry {name} of {collection} is too short")));
        };
        target.entries.push(RawEntry {
            name: name.into(),
            created,
            modified,
            expires_ms,
            value: Bytes::copy_from_slice(value),
        });
    }
    Ok(collections)
}

fn create_tables(database: &Database, meta: &Meta) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    write.open_table(ENTRIES)?;
    write.open_table(COLLECTIONS)?;
    write.open_table(META)?.insert(META_FORMAT, FORMAT.to_le_bytes().as_slice())?;
    write_meta(&write, meta)?;
    write.commit()?;
    Ok(())
}

fn write_meta(write: &WriteTransaction, meta: &Meta) -> Result<(), redb::Error> {
    write.open_table(META)?.insert(META_STATE, meta.encode().as_slice())?;
    Ok(())
}

/// Replaces the state of a file that is not in use.
pub(crate) fn put_meta(database: &Database, meta: &Meta) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    write_meta(&write, meta)?;
    write.commit()?;
    Ok(())
}

/// Replaces entries of a file that is not in use, by ones that say when they end.
pub(crate) fn put_limits(database: &Database, changed: &[(Arc<str>, RawEntry)]) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    {
        let mut entries = write.open_table(ENTRIES)?;
        for (collection, entry) in changed {
            let length = RECORD_HEADER + entry.value.len();
            let mut slot = entries.insert_reserve((&**collection, &*entry.name), length)?;
            encode_record(slot.as_mut(), entry.created, entry.modified, entry.expires_ms, &entry.value);
        }
    }
    write.commit()?;
    Ok(())
}

fn write_changes<H>(database: &Database, changes: &Changes<H>, meta: &Meta) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    {
        let mut entries = write.open_table(ENTRIES)?;
        for ((collection, name), entry) in &changes.entries {
            match entry {
                Some(entry) => insert(&mut entries, collection, entry)?,
                None => drop(entries.remove((&**collection, &**name))?),
            }
        }
        let mut collections = write.open_table(COLLECTIONS)?;
        for (collection, last) in &changes.last {
            collections.insert(&**collection, last)?;
        }
    }
    write_meta(&write, meta)?;
    write.commit()?;
    Ok(())
}

fn insert<H>(
    entries: &mut redb::Table<'_, (&'static str, &'static str), &'static [u8]>,
    collection: &str,
    entry: &Entry<H>,
) -> Result<(), redb::Error> {
    let mut slot = entries.insert_reserve((collection, &*entry.name), RECORD_HEADER + entry.value.len())?;
    encode_record(slot.as_mut(), entry.created, entry.modified, entry.expires_ms, &entry.value);
    Ok(())
}

/// Writes a complete, synced file. The file must not exist; it is removed again on failure.
pub(crate) fn write_image<H>(path: &Path, image: &Image<H>, faults: Option<Faults>) -> Result<(), OpenError> {
    let failed = |source: redb::Error| OpenError::Database { path: path.into(), source };
    let exists = |e: io::Error| match e.kind() {
        io::ErrorKind::AlreadyExists => OpenError::Exists { path: path.into() },
        _ => failed(redb::Error::Io(e)),
    };
    drop(private_file().create_new(true).open(path).map_err(exists)?);
    let written = open_database(path, faults).and_then(|database| fill(&database, image).map_err(failed));
    if written.is_err() {
        // The error that matters is the first one; a leftover is removed by the next attempt.
        let _ = fs::remove_file(path);
    }
    written
}

fn fill<H>(database: &Database, image: &Image<H>) -> Result<(), redb::Error> {
    create_tables(database, &image.meta)?;
    for (collection, last, tree) in &image.collections {
        let mut rest = tree.iter().peekable();
        loop {
            let mut write = database.begin_write()?;
            // The last transaction syncs everything at once.
            write
                .set_durability(redb::Durability::None)
                .expect("no savepoint is in the way of a cheap commit");
            {
                write.open_table(COLLECTIONS)?.insert(&**collection, last)?;
                let mut entries = write.open_table(ENTRIES)?;
                for entry in rest.by_ref().take(IMAGE_STEP) {
                    insert(&mut entries, collection, entry)?;
                }
            }
            write.commit()?;
            if rest.peek().is_none() {
                break;
            }
        }
    }
    put_meta(database, &image.meta)
}
