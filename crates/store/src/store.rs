//! The handle that everybody holds: reads go straight to memory, writes to the sequencer.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::{Notify, oneshot};

use crate::{
    AtError, Backend, Change, CommitError, Committed, Compacted, Durability, Entry, Event, Expect,
    FIRST_REVISION, Head, OpenError, Options, Revision, Snapshot, Unchanged, Watch, WatchAll, Write,
    backup::{self, Backup},
    disk::{Changes, Disk, Loaded},
    etcd,
    expiry::Expiries,
    format::{Meta, RESERVE},
    load,
    sequencer::{Pending, Queue, Sequencer},
    shard::Shard,
    state::State,
    watch,
};

/// Names and collections longer than this are refused. Kubernetes' longest are below 600 bytes.
const MAX_KEY: usize = 4_096;

/// A revisioned store. Clones are handles on the same store; the last one to go closes it.
pub struct Store<H> {
    owner: Arc<Owner<H>>,
}

impl<H> Clone for Store<H> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner) }
    }
}

/// Owns the sequencer's thread, so that dropping the last handle ends it.
struct Owner<H> {
    shared: Arc<Shared<H>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What handles, watches and the sequencer share. Lock order: `queue` before `state`; `read_only` alone.
pub(crate) struct Shared<H> {
    pub(crate) options: Options,
    pub(crate) state: RwLock<State<H>>,
    /// Notified when the visible revision moves.
    pub(crate) visible: Notify,
    pub(crate) queue: Mutex<Queue<H>>,
    /// Wakes the sequencer.
    pub(crate) wake: Condvar,
    /// The same for a keeper that does not block.
    pub(crate) knock: Notify,
    /// Others write as well: memory may be behind.
    followed: bool,
    /// Notified when the sequencer is gone.
    pub(crate) ended: Notify,
    /// Why writes are refused.
    pub(crate) read_only: RwLock<Option<Arc<str>>>,
    /// Everything up to this revision is on disk.
    pub(crate) durable: AtomicU64,
    pub(crate) counters: Counters,
    /// How etcd is, if objects are kept there.
    pub(crate) telemetry: etcd::Telemetry,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) watchers: AtomicUsize,
    pub(crate) writes: AtomicU64,
    syncs: AtomicU64,
    sync_us: AtomicU64,
}

impl Counters {
    pub(crate) fn synced(&self, took: Duration) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Figures for operators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    pub revision: Revision,
    pub compacted: Revision,
    pub collections: usize,
    pub entries: usize,
    /// Sum of the lengths of the live values.
    pub value_bytes: usize,
    pub history_events: usize,
    pub history_bytes: usize,
    pub watchers: usize,
    /// Writes waiting for the sequencer.
    pub queued: usize,
    /// Successful writes, and transactions on disk, since the store was opened.
    pub writes: u64,
    pub syncs: u64,
    /// Time spent in those transactions.
    pub sync_time: Duration,
    pub file_bytes: u64,
    /// Why writes are refused, if they are.
    pub read_only: Option<Arc<str>>,
    /// They are refused for good: the store's thread is gone.
    pub dead: bool,
}

impl<H: Head> Store<H> {
    /// Opens the store and reads everything into memory.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let (disk, loaded) = match &options.backend {
            Backend::Etcd(etcd) => {
                let etcd = etcd.clone();
                let (shared, thread) = etcd::start(options, etcd)?;
                return Ok(Self { owner: Arc::new(Owner { shared, thread: Mutex::new(Some(thread)) }) });
            }
            Backend::Memory => (None, Loaded { meta: Meta::new(), collections: Vec::new() }),
            Backend::File { dir } => {
                let (disk, loaded) = Disk::open(dir, options.faults.clone())?;
                (Some(disk), loaded)
            }
        };
        let mut meta = loaded.meta;
        let mut disk = disk;
        if let Some(disk) = &mut disk {
            if !meta.clean {
                meta = meta.after_crash();
                tracing::warn!(
                    revision = meta.revision,
                    "the store was not closed in order, it goes on at a later revision"
                );
            }
            meta = Meta { clean: false, reserved: meta.revision + RESERVE, ..meta };
            disk.commit(&Changes::<H>::default(), &meta)
                .map_err(|source| OpenError::Database { path: disk.path(), source })?;
        }
        let mut expiries = Expiries::default();
        let mut shards = HashMap::with_capacity(loaded.collections.len());
        for collection in loaded.collections {
            let entries: Vec<Arc<Entry<H>>> = load::parse_heads(&collection.name, collection.entries);
            for entry in &entries {
                expiries.add(&collection.name, entry);
            }
            shards.insert(collection.name, Shard::loaded(entries, collection.last));
        }
        let revision = meta.revision.max(FIRST_REVISION);
        let durable = if disk.is_some() { revision } else { Revision::MAX };
        let state = State::new(revision, meta.compacted, meta.gap, shards);
        let shared = Arc::new(Shared::new(options, state, durable, false));
        let sequencer = Sequencer::new(Arc::clone(&shared), disk, revision, meta.reserved, expiries);
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || sequencer.run())
            .map_err(|source| OpenError::Thread { name: "store", source })?;
        Ok(Self { owner: Arc::new(Owner { shared, thread: Mutex::new(Some(thread)) }) })
    }

    /// Makes one conditional change.
    ///
    /// *Guarantees*: a durable write that returned `Ok` survives a crash; before that, nobody sees it. After
    /// `Ok`, every read on any handle sees it. Dropping the future does not take the write back.
    pub async fn commit(&self, write: Write<H>) -> Result<Committed<H>, CommitError<H>> {
        self.commit_with(write, Vec::new()).await
    }

    /// Makes one conditional change, and others with it: all of them happen or none does, also if the process dies meanwhile.
    ///
    /// *Guarantees*: those of [`Store::commit`]. The companions get the revisions right after that of `write`, in their order (on
    /// etcd all get the same), and are as durable as `write` is. Each changes another name, and none has a time limit.
    /// [`CommitError::Overtaken`] says that the expectation of a companion did not hold.
    pub async fn commit_with(
        &self,
        write: Write<H>,
        companions: Vec<Write<H>>,
    ) -> Result<Committed<H>, CommitError<H>> {
        self.commit_while(write, companions, Vec::new()).await
    }

    /// As [`Store::commit_with`], but only while other entries are as the caller has seen them, also where others write as well.
    /// [`CommitError::Overtaken`] says that one is not; memory shows by then what it has become. A companion is named in front of them.
    pub async fn commit_while(
        &self,
        write: Write<H>,
        companions: Vec<Write<H>>,
        unchanged: Vec<Unchanged>,
    ) -> Result<Committed<H>, CommitError<H>> {
        for write in std::iter::once(&write).chain(&companions) {
            self.check_size(write)?;
        }
        self.check_newest(&write)?;
        let (done, outcome) = oneshot::channel();
        {
            let mut queue = self.shared().queue.lock();
            check_open(&queue)?;
            let patient = write.durability == Durability::Patient;
            let pending = Pending { write, companions, unchanged, done };
            if patient {
                let until = Instant::now() + self.shared().options.gather;
                queue.patient.push_back((until, pending));
            } else {
                queue.writes.push_back(pending);
            }
        }
        self.shared().wake_up();
        match outcome.await {
            Ok(reply) => reply,
            Err(_) => Err(self.unanswered().await),
        }
    }

    /// Refuses what has been overtaken already: that needs not wait for the writes before it.
    fn check_newest(&self, write: &Write<H>) -> Result<(), CommitError<H>> {
        let current = match write.expect {
            Expect::Any => return Ok(()),
            Expect::Absent | Expect::Revision(_) => self.get(&write.collection, &write.name),
        };
        let overtaken = match (write.expect, &current) {
            // Where others write as well, it may be gone by now.
            (Expect::Absent, Some(_)) => !self.shared().followed,
            (Expect::Revision(expected), Some(entry)) => entry.modified > expected,
            _ => false,
        };
        if overtaken { Err(CommitError::Conflict { current }) } else { Ok(()) }
    }

    fn check_size(&self, write: &Write<H>) -> Result<(), CommitError<H>> {
        let (size, limit) = (write.value_len(), self.shared().options.max_value_bytes);
        if size > limit {
            return Err(CommitError::TooLarge { size, limit });
        }
        if write.name.is_empty() || write.collection.is_empty() {
            return Err(CommitError::InvalidKey { reason: "the name or the collection is empty" });
        }
        if write.name.len() > MAX_KEY || write.collection.len() > MAX_KEY {
            return Err(CommitError::InvalidKey {
                reason: "the name or the collection is longer than 4096 bytes",
            });
        }
        Ok(())
    }
}

impl<H> Store<H> {
    /// Waits until everything up to the revision is on disk. Costs nothing if it is; otherwise it is put there at once.
    ///
    /// For callers that acknowledge what they found and did not write themselves: what others wrote with
    /// [`Durability::Buffered`] is visible before it is on disk.
    pub async fn wait_until_durable(&self, revision: Revision) -> Result<(), CommitError<H>> {
        let shared = self.shared();
        if revision <= shared.durable.load(Ordering::Acquire) {
            return Ok(());
        }
        let (done, outcome) = oneshot::channel();
        {
            let mut queue = shared.queue.lock();
            check_open(&queue)?;
            queue.barriers.push(done);
        }
        shared.wake_up();
        match outcome.await {
            Ok(reply) => reply,
            Err(_) => Err(self.unanswered().await),
        }
    }

    /// Waits until memory shows every write that was acknowledged before this call, on any server. Returns the revision.
    ///
    /// Costs nothing where this process alone writes.
    pub async fn catch_up(&self) -> Result<Revision, CommitError<H>> {
        let shared = self.shared();
        if !shared.followed {
            return Ok(self.revision());
        }
        let (done, outcome) = oneshot::channel();
        {
            let mut queue = shared.queue.lock();
            check_open(&queue)?;
            queue.questions.push(done);
        }
        shared.wake_up();
        match outcome.await {
            Ok(reply) => reply,
            Err(_) => Err(self.unanswered().await),
        }
    }

    /// Waits for the end of the sequencer, which has dropped a question, and returns the answer to it.
    async fn unanswered(&self) -> CommitError<H> {
        match self.ended().await {
            Some(reason) => CommitError::Dead { reason },
            None => CommitError::Closed,
        }
    }

    /// Waits until the sequencer is gone. Returns the reason if nobody asked it to end.
    async fn ended(&self) -> Option<Arc<str>> {
        let shared = self.shared();
        let ended = watch::until(&shared.ended, || {
            let queue = shared.queue.lock();
            Ok::<_, std::convert::Infallible>(queue.closed.then(|| queue.death.clone()))
        });
        match ended.await {
            Ok(death) => death,
        }
    }

    /// Waits until the store fails for good, and returns why. Never returns if it is closed in order.
    ///
    /// After that nothing can be written: the process should end.
    pub async fn death(&self) -> Arc<str> {
        match self.ended().await {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<H>> {
        &self.owner.shared
    }

    /// The newest visible revision.
    pub fn revision(&self) -> Revision {
        self.shared().state.read().revision
    }

    pub fn get(&self, collection: &str, name: &str) -> Option<Arc<Entry<H>>> {
        self.shared().state.read().get(collection, name).cloned()
    }

    /// Returns the collection as it is now.
    pub fn snapshot(&self, collection: &str) -> Snapshot<H> {
        self.shared().state.read().snapshot(collection)
    }

    /// Returns the revision of the newest change to any of the collections, deletions included; 0 if there was none.
    pub fn last_change<'a>(&self, collections: impl IntoIterator<Item = &'a str>) -> Revision {
        let state = self.shared().state.read();
        let last = |collection| state.shards.get(collection).map_or(0, |shard| shard.last);
        collections.into_iter().map(last).max().unwrap_or(0)
    }

    /// Returns several collections as they are now, all at the same revision.
    pub fn snapshots<'a>(&self, collections: impl IntoIterator<Item = &'a str>) -> Vec<Snapshot<H>> {
        let state = self.shared().state.read();
        collections.into_iter().map(|collection| state.snapshot(collection)).collect()
    }

    /// Returns the collection exactly as it was at a revision.
    pub fn snapshot_at(&self, collection: &str, revision: Revision) -> Result<Snapshot<H>, AtError> {
        let past = self.shared().state.read().past(collection, revision)?;
        // Outside the lock: this may be hundreds of steps.
        let tree = past.map(|past| past.rebuild()).unwrap_or_default();
        Ok(Snapshot::new(revision, tree))
    }

    /// Follows the collection: all events with a revision greater than `after`.
    ///
    /// `after` may lie ahead; then the events up to it are skipped.
    pub fn watch(&self, collection: &str, after: Revision) -> Result<Watch<H>, Compacted> {
        let shared = self.shared();
        {
            let state = shared.state.read();
            state.available(collection, after).map_err(|oldest| Compacted { oldest })?;
            if let Some((name, shard)) = state.shards.get_key_value(collection) {
                let (name, changed) = (Arc::clone(name), Arc::clone(&shard.changed));
                drop(state);
                return Ok(Watch::new(Arc::clone(shared), name, changed, after));
            }
        }
        // Nothing was ever written there: make a place for the watcher to wait at.
        let name: Arc<str> = Arc::from(collection);
        let mut state = shared.state.write();
        state.available(collection, after).map_err(|oldest| Compacted { oldest })?;
        let changed = Arc::clone(&state.shards.entry(Arc::clone(&name)).or_default().changed);
        drop(state);
        Ok(Watch::new(Arc::clone(shared), name, changed, after))
    }

    /// Follows all collections: all events with a revision greater than `after`.
    pub fn watch_all(&self, after: Revision) -> Result<WatchAll<H>, Compacted> {
        self.shared().state.read().all_available(after).map_err(|oldest| Compacted { oldest })?;
        Ok(WatchAll::new(Arc::clone(self.shared()), after))
    }

    /// Waits until the revision is visible. Returns early if the store is closed.
    pub async fn wait_for(&self, revision: Revision) {
        let shared = self.shared();
        let reached = watch::until(&shared.visible, || {
            let state = shared.state.read();
            Ok::<_, std::convert::Infallible>((state.revision >= revision || state.closed).then_some(()))
        });
        match reached.await {
            Ok(()) => {}
        }
    }

    /// Forgets the past up to the revision: older exact reads and new watches from before it are refused.
    /// Running watches that have seen everything go on.
    pub fn compact(&self, revision: Revision) {
        let garbage = self.shared().state.write().compact(revision);
        drop(garbage);
    }

    /// The revision of the latest compaction, 0 if there was none.
    pub fn compacted(&self) -> Revision {
        self.shared().state.read().compacted
    }

    /// Writes a consistent copy of everything visible now to a new file, while the store goes on.
    ///
    /// Blocks for as long as writing takes: call it where blocking is allowed.
    pub fn backup(&self, to: &Path) -> Result<Backup, OpenError> {
        backup::write(self.shared(), to)
    }

    /// The collections that have entries, with their numbers, sorted by name.
    pub fn collections(&self) -> Vec<(Arc<str>, usize)> {
        let mut collections: Vec<_> = {
            let state = self.shared().state.read();
            state.shards.iter().map(|(name, shard)| (Arc::clone(name), shard.live.len())).collect()
        };
        collections.retain(|(_, len)| *len > 0);
        collections.sort();
        collections
    }

    pub fn stats(&self) -> Stats {
        let shared = self.shared();
        let counters = &shared.counters;
        let (queued, dead) = {
            let queue = shared.queue.lock();
            (queue.writes.len(), queue.death.is_some())
        };
        let read_only = shared.read_only.read().clone();
        let state = shared.state.read();
        Stats {
            revision: state.revision,
            compacted: state.compacted,
            collections: state.shards.values().filter(|shard| shard.live.len() > 0).count(),
            entries: state.shards.values().map(|shard| shard.live.len()).sum(),
            value_bytes: state.shards.values().map(|shard| shard.live_bytes).sum(),
            history_events: state.shards.values().map(Shard::history_len).sum(),
            history_bytes: state.history_bytes,
            watchers: counters.watchers.load(Ordering::Relaxed),
            queued,
            writes: counters.writes.load(Ordering::Relaxed),
            syncs: counters.syncs.load(Ordering::Relaxed),
            sync_time: Duration::from_micros(counters.sync_us.load(Ordering::Relaxed)),
            file_bytes: match &shared.options.backend {
                Backend::Memory | Backend::Etcd(_) => 0,
                Backend::File { dir } => {
                    std::fs::metadata(dir.join(crate::disk::FILE)).map_or(0, |file| file.len())
                }
            },
            read_only,
            dead,
        }
    }

    /// Returns how etcd is; nothing for other stores.
    pub fn etcd(&self) -> Option<etcd::EtcdReport> {
        self.shared().options.backend.etcd().map(|_| self.shared().telemetry.report())
    }

    /// Returns the endpoints of etcd; none for other stores, and before they were looked at for the first time.
    pub fn etcd_endpoints(&self) -> Vec<etcd::EtcdEndpoint> {
        self.shared().telemetry.endpoints()
    }

    /// Says whether objects are kept in etcd.
    pub fn is_on_etcd(&self) -> bool {
        self.shared().followed
    }

    /// Makes the sequencer look at the clock, for tests with a clock of their own.
    pub fn nudge(&self) {
        self.shared().queue.lock().nudged = true;
        self.shared().wake_up();
    }

    /// Finishes the writes that are waiting, puts everything on disk, ends the thread and releases the
    /// directory. Later writes get [`CommitError::Closed`], reads still work, watches end.
    pub async fn close(&self) {
        self.shared().request_close();
        let _ = self.ended().await;
        // It has said its last word, so this does not block.
        let thread = self.owner.thread.lock().take();
        drop(thread.map(JoinHandle::join));
    }
}

impl<H> Shared<H> {
    pub(crate) fn new(options: Options, state: State<H>, durable: Revision, followed: bool) -> Self {
        Self {
            options,
            state: RwLock::new(state),
            visible: Notify::new(),
            queue: Mutex::default(),
            wake: Condvar::new(),
            knock: Notify::new(),
            followed,
            ended: Notify::new(),
            read_only: RwLock::default(),
            durable: AtomicU64::new(durable),
            counters: Counters::default(),
            telemetry: etcd::Telemetry::default(),
        }
    }

    fn request_close(&self) {
        self.queue.lock().closing = true;
        self.wake_up();
    }

    /// Tells whoever keeps the writes that there is something to do.
    fn wake_up(&self) {
        self.wake.notify_one();
        self.knock.notify_one();
    }

    /// Makes events visible, in order, and the store be at `revision`.
    pub(crate) fn publish(&self, events: Vec<Arc<Event<H>>>, revision: Revision) {
        self.counters.writes.fetch_add(events.len() as u64, Ordering::Relaxed);
        let now_ms = self.options.clock.now_ms();
        let applied = self.state.write().apply(events, revision, now_ms, &self.options.history);
        for changed in &applied.changed {
            changed.notify_waiters();
        }
        self.visible.notify_waiters();
    }
}

impl<H> Drop for Owner<H> {
    fn drop(&mut self) {
        self.shared.request_close();
        // Blocks for one fsync at most, so that the directory is free afterwards.
        drop(self.thread.lock().take().map(JoinHandle::join));
    }
}

fn check_open<H>(queue: &Queue<H>) -> Result<(), CommitError<H>> {
    match &queue.death {
        Some(reason) => Err(CommitError::Dead { reason: Arc::clone(reason) }),
        None if queue.closing || queue.closed => Err(CommitError::Closed),
        None => Ok(()),
    }
}

impl<H> Write<H> {
    pub(crate) fn value_len(&self) -> usize {
        match &self.change {
            Change::Put { value, .. } => value.len(),
            Change::Delete => 0,
        }
    }
}
