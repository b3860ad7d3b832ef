//! Making the disk fail on purpose.
//!
//! A handle that tests keep while the store runs: it can refuse writes or syncs with the error of a full or a
//! broken disk, now or from the N-th call on, heal again, or cut the power, which loses an arbitrary part of
//! what was not synced. The store sees nothing but the failing calls.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use redb::{StorageBackend, backends::FileBackend};

/// Switches for the faults of one store. Clones share the switches.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Switches>);

#[derive(Debug)]
struct Switches {
    full: AtomicBool,
    sync_fails: AtomicBool,
    /// Calls that still succeed before the disk breaks; negative: no limit.
    calls_left: AtomicI64,
    /// Not 0: breaking means a power cut, and this decides what survives it.
    power_cut: AtomicU64,
    bug: AtomicBool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            full: false.into(),
            sync_fails: false.into(),
            calls_left: (-1).into(),
            power_cut: 0.into(),
            bug: false.into(),
        }
    }
}

impl Faults {
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on every write fails as on a full disk.
    pub fn disk_full(&self) {
        self.0.full.store(true, Ordering::SeqCst);
    }

    /// From now on every sync fails as on a broken disk, after the data has been written.
    pub fn sync_fails(&self) {
        self.0.sync_fails.store(true, Ordering::SeqCst);
    }

    /// The next `calls` writes and syncs succeed, all later ones fail.
    pub fn break_after(&self, calls: u32) {
        self.0.calls_left.store(i64::from(calls), Ordering::SeqCst);
    }

    /// The next `calls` writes and syncs succeed, then the power goes: of the writes since the last sync an
    /// arbitrary part is on disk, chosen by `seed`. To be set before the store is opened.
    pub fn power_cut_after(&self, calls: u32, seed: u64) {
        self.0.power_cut.store(seed | 1 << 63, Ordering::SeqCst);
        self.break_after(calls);
    }

    /// The next write panics, as a bug in the store or below it would.
    pub fn bug(&self) {
        self.0.bug.store(true, Ordering::SeqCst);
    }

    /// Everything works again.
    pub fn heal(&self) {
        self.0.full.store(false, Ordering::SeqCst);
        self.0.sync_fails.store(false, Ordering::SeqCst);
        self.0.calls_left.store(-1, Ordering::SeqCst);
        self.0.power_cut.store(0, Ordering::SeqCst);
    }

    fn write(&self) -> io::Result<()> {
        assert!(!self.0.bug.load(Ordering::SeqCst), "a test asked for this panic");
        if self.0.full.load(Ordering::SeqCst) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on device"));
        }
        self.count()
    }

    fn sync(&self) -> io::Result<()> {
        if self.0.sync_fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("input/output error while syncing"));
        }
        self.count()
    }

    fn count(&self) -> io::Result<()> {
        let left = self.0.calls_left.load(Ordering::SeqCst);
        if left == 0 {
            return Err(io::Error::other("input/output error"));
        }
        if left > 0 {
            self.0.calls_left.store(left - 1, Ordering::SeqCst);
        }
        Ok(())
    }

    fn power_cut(&self) -> Option<u64> {
        Some(self.0.power_cut.load(Ordering::SeqCst)).filter(|seed| *seed != 0)
    }
}

/// A file that may be told to fail. It takes no locks: the directory is locked as a whole.
#[derive(Debug)]
pub(crate) struct FaultyFile {
    file: FileBackend,
    faults: Option<Faults>,
    /// What a power cut may lose. Only kept when one is planned.
    unsynced: Mutex<Vec<Unsynced>>,
}

#[derive(Debug)]
struct Unsynced {
    offset: u64,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl FaultyFile {
    pub(crate) fn new(file: FileBackend, faults: Option<Faults>) -> Self {
        Self { file, faults, unsynced: Mutex::default() }
    }

    fn check(&self, fault: fn(&Faults) -> io::Result<()>) -> io::Result<()> {
        let Some(faults) = &self.faults else { return Ok(()) };
        let result = fault(faults);
        if result.is_err()
            && let Some(seed) = faults.power_cut()
        {
            self.lose(seed)?;
        }
        result
    }

    fn remember(&self, offset: u64, after: &[u8]) -> io::Result<()> {
        if self.faults.as_ref().and_then(Faults::power_cut).is_some() {
            let mut before = vec![0; after.len()];
            let known = self.file.len()?.saturating_sub(offset).min(after.len() as u64);
            self.file.read(offset, &mut before[..usize::try_from(known).expect("at most the length")])?;
            self.unsynced.lock().push(Unsynced { offset, before, after: after.to_vec() });
        }
        Ok(())
    }

    /// Goes back to the last sync, then lets some of the later writes through, in order.
    fn lose(&self, seed: u64) -> io::Result<()> {
        let unsynced = std::mem::take(&mut *self.unsynced.lock());
        for write in unsynced.iter().rev() {
            self.file.write(write.offset, &write.before)?;
        }
        let mut random = seed;
        for write in &unsynced {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if !random.is_multiple_of(3) {
                self.file.write(write.offset, &write.after)?;
            }
        }
        self.file.sync_data()
    }
}

impl StorageBackend for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check(Faults::write)?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check(Faults::sync)?;
        self.file.sync_data()?;
        self.unsynced.lock().clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(Faults::write)?;
        self.remember(offset, data)?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}
