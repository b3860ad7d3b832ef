//! The one writer: gives every write its revision and makes batches durable and visible.
//!
//! A thread of its own, since fsync blocks. It sleeps until there is a write, a flush or an expiry, then:
//!
//! 1. Buffered writes of the batch are checked, numbered, made visible and acknowledged.
//! 2. Durable ones are checked and numbered next, against what is visible and what the batch did before them.
//! 3. Everything not yet on disk, including earlier buffered writes, becomes one transaction with one fsync.
//! 4. The durable writes become visible, then acknowledged.
//!
//! While 3 runs, the next batch gathers: group commit without a timer. Patient writes stay in the queue until there is a
//! transaction that they can be part of. Writes in one batch were all waiting at the same time, so any order among them is
//! right. What is visible is always a prefix of the revisions, and so is what is on disk: a transaction contains every
//! revision up to its last.
//!
//! If the disk fails, the batch is refused and the store becomes read-only. Revisions of the refused batch are
//! skipped for good. The first write after a pause then tries to write the whole store into a fresh file.

use std::{
    any::Any,
    collections::VecDeque,
    num::NonZeroU64,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use crate::{
    Change, CommitError, Committed, Durability, Entry, Event, Expect, Revision, Unchanged, Write,
    disk::{Changes, Disk, Versions},
    error::OpenError,
    expiry::Expiries,
    format::{Meta, RESERVE},
    store::Shared,
};

/// Writes per batch: bounds the size of a transaction and the time the lock is held.
const MAX_BATCH: usize = 1_024;
/// Bytes of values per batch, for the same reason.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// Buffered bytes that are flushed without waiting any longer.
const MAX_UNSYNCED_BYTES: usize = 8 << 20;
const MAX_RETRY: Duration = Duration::from_secs(30);
/// Deadlines are in wall-clock time, which may be set; so never sleep longer than this towards one.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// A write and whoever waits for it.
pub(crate) struct Pending<H> {
    pub(crate) write: Write<H>,
    /// What happens together with it, or not at all.
    pub(crate) companions: Vec<Write<H>>,
    /// What it rests on.
    pub(crate) unchanged: Vec<Unchanged>,
    pub(crate) done: oneshot::Sender<Reply<H>>,
}

impl<H> Pending<H> {
    /// Returns how many bytes of values are to be written.
    fn value_len(&self) -> usize {
        self.write.value_len() + self.companions.iter().map(Write::value_len).sum::<usize>()
    }
}

pub(crate) type Reply<H> = Result<Committed<H>, CommitError<H>>;

/// What others ask of the sequencer.
pub(crate) struct Queue<H> {
    pub(crate) writes: VecDeque<Pending<H>>,
    /// Those that wait for a transaction that they can be part of, each until its time at most; in order of time.
    pub(crate) patient: VecDeque<(Instant, Pending<H>)>,
    /// Those that wait until everything visible is on disk.
    pub(crate) barriers: Vec<oneshot::Sender<Result<(), CommitError<H>>>>,
    /// Those that ask for the newest revision anywhere; only where that is not known here.
    pub(crate) questions: Vec<oneshot::Sender<Result<Revision, CommitError<H>>>>,
    /// Look at the clock again.
    pub(crate) nudged: bool,
    pub(crate) closing: bool,
    /// Set by the sequencer when it is gone.
    pub(crate) closed: bool,
    /// Why it is gone, if nobody asked it to end.
    pub(crate) death: Option<Arc<str>>,
}

impl<H> Default for Queue<H> {
    fn default() -> Self {
        Self {
            writes: VecDeque::new(),
            patient: VecDeque::new(),
            barriers: Vec::new(),
            questions: Vec::new(),
            nudged: false,
            closing: false,
            closed: false,
            death: None,
        }
    }
}

pub(crate) struct Sequencer<H> {
    shared: Arc<Shared<H>>,
    /// `None`: memory only.
    disk: Option<Disk>,
    /// The last revision handed out. Ahead of the visible one during a batch and after a failed one.
    revision: Revision,
    /// What is reserved on disk.
    reserved: Revision,
    unsynced: Changes<H>,
    barriers: Vec<oneshot::Sender<Result<(), CommitError<H>>>>,
    flush_at: Option<Instant>,
    expiries: Expiries,
    last_sweep_ms: u64,
    failure: Option<Failure>,
}

struct Failure {
    reason: Arc<str>,
    retry_at: Instant,
    pause: Duration,
}

/// Checked and numbered writes that nobody sees yet.
struct Staged<H> {
    events: Vec<Arc<Event<H>>>,
    replies: Vec<(oneshot::Sender<Reply<H>>, Reply<H>)>,
}

impl<H: Send + Sync + 'static> Sequencer<H> {
    pub(crate) fn new(
        shared: Arc<Shared<H>>,
        disk: Option<Disk>,
        revision: Revision,
        reserved: Revision,
        expiries: Expiries,
    ) -> Self {
        Self {
            shared,
            disk,
            revision,
            reserved,
            unsynced: Changes::default(),
            barriers: Vec::new(),
            flush_at: None,
            expiries,
            last_sweep_ms: 0,
            failure: None,
        }
    }

    /// Runs until the store is closed, and tells everybody that it has ended, also after a panic: nobody must wait
    /// for a thread that is gone.
    pub(crate) fn run(self) {
        let shared = Arc::clone(&self.shared);
        let ended = panic::catch_unwind(AssertUnwindSafe(|| self.work()));
        farewell(&shared, ended.err().map(|payload| death(&*payload)));
    }

    fn work(mut self) {
        loop {
            let (batch, closing) = self.wait();
            self.process(batch);
            self.expire();
            self.settle_barriers();
            if self.flush_at.is_some_and(|at| closing || at <= Instant::now())
                || self.unsynced.bytes > MAX_UNSYNCED_BYTES
            {
                self.flush();
            }
            if closing {
                self.finish();
                return;
            }
        }
    }

    /// Sleeps until there is something to do. Closing is reported only once the queue is empty.
    fn wait(&mut self) -> (Vec<Pending<H>>, bool) {
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.queue.lock();
        while queue.writes.is_empty() && queue.barriers.is_empty() && !queue.closing && !queue.nudged {
            match self.wake_in(&queue) {
                None => shared.wake.wait(&mut queue),
                Some(pause) if pause.is_zero() => break,
                Some(pause) => {
                    if shared.wake.wait_for(&mut queue, pause).timed_out() {
                        break;
                    }
                }
            }
        }
        queue.nudged = false;
        self.barriers.append(&mut queue.barriers);
        let with_patient = queue.closing
            || !self.barriers.is_empty()
            || self.disk.is_none()
            || is_due(self.flush_at)
            || is_due(queue.patient.front().map(|(until, _)| *until))
            || queue.writes.iter().take(MAX_BATCH).any(|next| next.write.durability == Durability::Durable);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < MAX_BATCH && bytes <= MAX_BATCH_BYTES {
            // They have waited longest.
            let patient = if with_patient { queue.patient.pop_front() } else { None };
            let Some(next) = patient.map(|(_, next)| next).or_else(|| queue.writes.pop_front()) else {
                break;
            };
            bytes += next.value_len();
            batch.push(next);
        }
        (batch, queue.closing && queue.writes.is_empty() && queue.patient.is_empty())
    }

    fn wake_in(&self, queue: &Queue<H>) -> Option<Duration> {
        let patient = queue.patient.front().map(|(until, _)| *until);
        if patient.is_some() && self.disk.is_none() {
            return Some(Duration::ZERO);
        }
        let sync = [self.flush_at, patient].into_iter().flatten().min();
        let sync = sync.map(|at| at.saturating_duration_since(Instant::now()));
        // While the disk refuses writes, expiry has to wait for the next attempt to write.
        let expiry = self.expiries.next_ms().filter(|_| self.failure.is_none()).map(|at_ms| {
            let now_ms = self.shared.options.clock.now_ms();
            let earliest_ms = at_ms.max(self.sweep_from_ms(now_ms));
            Duration::from_millis(earliest_ms.saturating_sub(now_ms)).min(MAX_SLEEP)
        });
        [sync, expiry].into_iter().flatten().min()
    }

    /// The next sweep is not before this. A clock that was set back must not stop sweeping.
    fn sweep_from_ms(&self, now_ms: u64) -> u64 {
        let pause = millis(self.shared.options.ttl_sweep);
        if self.last_sweep_ms > now_ms { now_ms } else { self.last_sweep_ms.saturating_add(pause) }
    }

    fn process(&mut self, batch: Vec<Pending<H>>) {
        if batch.is_empty() {
            return;
        }
        if !self.writable() {
            for pending in batch {
                self.refuse(pending.done);
            }
            return;
        }
        let in_memory = self.disk.is_none();
        let (buffered, durable): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|pending| in_memory || pending.write.durability == Durability::Buffered);
        if !buffered.is_empty() {
            self.process_buffered(buffered);
        }
        if !durable.is_empty() {
            self.process_durable(durable);
        }
    }

    fn process_buffered(&mut self, batch: Vec<Pending<H>>) {
        // A revision may be shown before it is on disk only if the disk knows it is taken.
        let writes: usize = batch.iter().map(|pending| 1 + pending.companions.len()).sum();
        let enough = self.revision + writes as u64;
        if self.disk.is_some() && enough > self.reserved && self.sync(enough + RESERVE).is_err() {
            for pending in batch {
                self.refuse(pending.done);
            }
            return;
        }
        let staged = self.stage(batch);
        if self.disk.is_some() && !staged.events.is_empty() {
            for event in &staged.events {
                self.unsynced.add(event);
            }
            self.flush_at.get_or_insert_with(|| Instant::now() + self.shared.options.flush_after);
        }
        self.publish(staged);
    }

    fn process_durable(&mut self, batch: Vec<Pending<H>>) {
        // After a failed flush in the same round.
        if self.failure.is_some() {
            for pending in batch {
                self.refuse(pending.done);
            }
            return;
        }
        let staged = self.stage(batch);
        if staged.events.is_empty() {
            self.publish(staged);
            return;
        }
        for event in &staged.events {
            self.unsynced.add(event);
        }
        let reserved =
            if self.reserved < self.revision + RESERVE / 2 { self.revision + RESERVE } else { self.reserved };
        match self.sync(reserved) {
            Ok(()) => self.publish(staged),
            Err(()) => {
                for (done, _) in staged.replies {
                    self.refuse(done);
                }
            }
        }
    }

    /// Checks and numbers writes, in order.
    fn stage(&mut self, batch: Vec<Pending<H>>) -> Staged<H> {
        let shared = Arc::clone(&self.shared);
        let now_ms = shared.options.clock.now_ms();
        let state = shared.state.read();
        let mut staged = Staged { events: Vec::with_capacity(batch.len()), replies: Vec::new() };
        // What the batch itself has changed so far.
        let mut overlay = Versions::<H>::new();
        for Pending { mut write, mut companions, unchanged, done } in batch {
            let mut in_flight = false;
            let mut now = |collection: &Arc<str>, name: &str| {
                let overlaid = overlay.get(&(Arc::clone(collection), name.into())).cloned();
                in_flight |= overlaid.is_some();
                overlaid.unwrap_or_else(|| state.get(collection, name).cloned())
            };
            let mut find = |write: &mut Write<H>| {
                write.collection = state.interned(Arc::clone(&write.collection));
                now(&write.collection, &write.name)
            };
            let current = find(&mut write);
            let others: Vec<_> = companions.iter_mut().map(&mut find).collect();
            let refusal = refusal(&write, current.as_ref()).or_else(|| {
                let mut pairs = companions.iter().zip(&others);
                let refused = pairs.find(|(write, current)| refusal(write, current.as_ref()).is_some());
                let refused = refused.map(|(write, _)| (&write.collection, &write.name));
                let changed = |rests: &&Unchanged| {
                    now(&rests.collection, &rests.name).is_none_or(|entry| entry.modified != rests.revision)
                };
                let changed = || unchanged.iter().find(changed).map(|rests| (&rests.collection, &rests.name));
                let (collection, name) = refused.or_else(changed)?;
                Some(CommitError::Overtaken { collection: Arc::clone(collection), name: name.clone() })
            });
            match refusal {
                None => {
                    let event = self.number(write, current, now_ms);
                    let committed = Committed {
                        revision: event.revision,
                        entry: event.current.clone(),
                        previous: event.previous.clone(),
                    };
                    staged.replies.push((done, Ok(committed)));
                    let others = companions.into_iter().zip(others);
                    let others = others.map(|(write, current)| self.number(write, current, now_ms));
                    for event in std::iter::once(event).chain(others) {
                        let key = (Arc::clone(&event.collection), event.name().into());
                        overlay.insert(key, event.current.clone());
                        staged.events.push(Arc::new(event));
                    }
                }
                // The refusal shows a version that is not on disk yet: it has to wait for it.
                Some(error) if in_flight => staged.replies.push((done, Err(error))),
                Some(error) => drop(done.send(Err(error))),
            }
        }
        staged
    }

    /// Gives a write that may happen its revision.
    fn number(&mut self, write: Write<H>, current: Option<Arc<Entry<H>>>, now_ms: u64) -> Event<H> {
        self.revision += 1;
        let revision = self.revision;
        let entry = match write.change {
            Change::Delete => None,
            Change::Put { value, head } => Some(Arc::new(Entry {
                name: write.name,
                created: current.as_ref().map_or(revision, |entry| entry.created),
                modified: revision,
                expires_ms: write.ttl.and_then(|ttl| NonZeroU64::new(now_ms.saturating_add(millis(ttl)))),
                value,
                head,
            })),
        };
        Event { revision, collection: write.collection, current: entry, previous: current }
    }

    /// Makes staged writes visible and answers.
    fn publish(&mut self, staged: Staged<H>) {
        let shared = Arc::clone(&self.shared);
        if !staged.events.is_empty() {
            for event in &staged.events {
                self.expiries.follow(event);
            }
            shared.publish(staged.events, self.revision);
        }
        for (done, reply) in staged.replies {
            // Whoever no longer waits does not want to know.
            drop(done.send(reply));
        }
    }

    /// Deletes what has expired.
    fn expire(&mut self) {
        let now_ms = self.shared.options.clock.now_ms();
        if self.failure.is_some()
            || self.expiries.next_ms().is_none_or(|at_ms| at_ms > now_ms)
            || now_ms < self.sweep_from_ms(now_ms)
        {
            return;
        }
        let due = self.expiries.due(now_ms, MAX_BATCH);
        if due.len() < MAX_BATCH {
            self.last_sweep_ms = now_ms;
        }
        let deletions = due.into_iter().map(|deadline| {
            let expect = Expect::Revision(deadline.modified);
            // Losing the deletion in a crash is fine, since the deadline is on disk.
            let write = Write::delete(deadline.collection, deadline.name, expect).buffered();
            Pending { write, companions: Vec::new(), unchanged: Vec::new(), done: oneshot::channel().0 }
        });
        self.process(deletions.collect());
    }

    /// Puts everything visible on disk, if anybody waits for that, and answers.
    fn settle_barriers(&mut self) {
        if self.barriers.is_empty() {
            return;
        }
        let durable = self.writable() && (self.unsynced.is_empty() || self.sync(self.reserved).is_ok());
        for done in std::mem::take(&mut self.barriers) {
            let reply = if durable { Ok(()) } else { Err(self.refusal()) };
            drop(done.send(reply));
        }
    }

    /// Puts buffered writes on disk.
    fn flush(&mut self) {
        if self.unsynced.is_empty() || self.failure.is_some() {
            self.flush_at = None;
        } else {
            // A failure is remembered and answered to the next write.
            let _ = self.sync(self.reserved);
        }
    }

    /// Puts everything that is not yet on disk there, and reserves revisions.
    fn sync(&mut self, reserved: Revision) -> Result<(), ()> {
        let meta = self.meta(reserved, false);
        let Some(disk) = &mut self.disk else { return Ok(()) };
        let started = Instant::now();
        let result = disk.commit(&self.unsynced, &meta);
        self.shared.counters.synced(started.elapsed());
        let changes = std::mem::take(&mut self.unsynced);
        self.flush_at = None;
        match result {
            Ok(()) => {
                self.reserved = reserved;
                self.shared.durable.store(meta.revision, Ordering::Release);
                Ok(())
            }
            Err(error) => {
                let reason = format!("cannot write to {}: {error}", disk.path().display());
                tracing::error!(error = %reason, changes = changes.len(), "the store is read-only");
                self.fail(reason.into(), self.shared.options.retry_after);
                Err(())
            }
        }
    }

    fn fail(&mut self, reason: Arc<str>, pause: Duration) {
        *self.shared.read_only.write() = Some(Arc::clone(&reason));
        self.failure = Some(Failure { reason, retry_at: Instant::now() + pause, pause });
    }

    fn refuse(&self, done: oneshot::Sender<Reply<H>>) {
        drop(done.send(Err(self.refusal())));
    }

    fn refusal(&self) -> CommitError<H> {
        let reason =
            self.failure.as_ref().map_or_else(|| Arc::from("the disk failed"), |f| Arc::clone(&f.reason));
        CommitError::ReadOnly { reason }
    }

    /// Returns whether writes are possible, trying to make them so if the disk had failed.
    fn writable(&mut self) -> bool {
        let Some(failure) = &self.failure else { return true };
        if Instant::now() < failure.retry_at {
            return false;
        }
        let pause = (failure.pause * 2).min(MAX_RETRY);
        match self.rewrite() {
            Ok(()) => {
                tracing::info!("the store is writable again");
                self.failure = None;
                *self.shared.read_only.write() = None;
                true
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(|s| format!(": {s}")).unwrap_or_default();
                self.fail(format!("{error}{source}").into(), pause);
                false
            }
        }
    }

    /// Writes all that is visible into a fresh file.
    fn rewrite(&mut self) -> Result<(), OpenError> {
        let reserved = self.reserved.max(self.revision) + RESERVE;
        let meta = self.meta(reserved, false);
        let image = self.shared.state.read().image(meta);
        let Some(disk) = &mut self.disk else { return Ok(()) };
        disk.rewrite(&image)?;
        self.reserved = reserved;
        self.shared.durable.store(meta.revision, Ordering::Release);
        self.unsynced = Changes::default();
        self.flush_at = None;
        Ok(())
    }

    fn meta(&self, reserved: Revision, clean: bool) -> Meta {
        let state = self.shared.state.read();
        Meta { revision: self.revision, reserved, compacted: state.compacted, gap: state.gap, clean }
    }

    /// Leaves a mark that nothing was lost.
    fn finish(&mut self) {
        if self.failure.is_some() && !self.writable() {
            return;
        }
        let meta = self.meta(self.revision, true);
        if let Some(disk) = &mut self.disk
            && let Err(error) = disk.commit(&self.unsynced, &meta)
        {
            tracing::warn!(error = %error, "the store could not be closed in order, its next start will repair it");
        }
        self.disk = None;
    }
}

/// Returns why a write cannot happen, if it cannot.
fn refusal<H>(write: &Write<H>, current: Option<&Arc<Entry<H>>>) -> Option<CommitError<H>> {
    let holds = match (write.expect, current) {
        (Expect::Any, _) | (Expect::Absent, None) => true,
        (Expect::Revision(expected), Some(entry)) => entry.modified == expected,
        (Expect::Absent, Some(_)) | (Expect::Revision(_), None) => false,
    };
    match (&write.change, current) {
        _ if !holds => Some(CommitError::Conflict { current: current.cloned() }),
        (Change::Delete, None) => Some(CommitError::NotFound),
        _ => None,
    }
}

fn is_due(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at <= Instant::now())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns why the thread ended, for operators and clients.
pub(crate) fn death(payload: &(dyn Any + Send)) -> Arc<str> {
    let words = payload.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("it does not say why");
    format!("the store has failed and takes no more writes: its thread panicked: {words}").into()
}

/// Tells everybody that no more will come, and why if that was not asked for.
pub(crate) fn farewell<H>(shared: &Shared<H>, death: Option<Arc<str>>) {
    if let Some(reason) = &death {
        tracing::error!(%reason, "the store is gone");
        *shared.read_only.write() = Some(Arc::clone(reason));
    }
    let unanswered = {
        let mut queue = shared.queue.lock();
        queue.closed = true;
        queue.death = death;
        let asked = (std::mem::take(&mut queue.barriers), std::mem::take(&mut queue.questions));
        (std::mem::take(&mut queue.writes), std::mem::take(&mut queue.patient), asked)
    };
    drop(unanswered);
    let changed: Vec<_> = {
        let mut state = shared.state.write();
        state.closed = true;
        state.shards.values().map(|shard| Arc::clone(&shard.changed)).collect()
    };
    changed.iter().for_each(|changed| changed.notify_waiters());
    shared.visible.notify_waiters();
    shared.ended.notify_waiters();
}
