//! The keeper on etcd: sends writes, follows the watch, and answers once memory has caught up.
//!
//! One thread with a runtime of its own. All that it knows is in one place and changed by one task; requests to etcd are futures
//! that run beside it and come back with what was answered.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use futures::{
    FutureExt, StreamExt,
    stream::{self, FuturesUnordered},
};
use tokio::{
    sync::{mpsc as asynchronous, oneshot},
    time::{Instant, MissedTickBehavior},
};
use tonic::{Code, Status, Streaming};

use super::{
    EtcdError, EtcdOptions,
    client::{Client, is_connection},
    compaction::{self, Rounds},
    keys::Keys,
    leases::Leases,
    load::{self, Everything, signed, unsigned},
    protocol::{
        Compare, DeleteRangeRequest, EventType, Ignored, KeyValue, PutRequest, RANGE, RangeRequest,
        RangeResponse, Request, Response, TXN, TxnRequest, TxnResponse, WatchAsk, WatchCreateRequest,
        WatchEvent, WatchRequest, WatchResponse,
    },
    restore,
    telemetry::{EtcdEndpoint, Operation},
};
use crate::{
    Change, CommitError, Committed, Entry, Event, Expect, Head, OpenError, Options, Revision, Unchanged,
    Write,
    disk::Versions,
    load::parse_heads,
    sequencer::{Pending, Reply, death, farewell},
    shard::Shard,
    state::State,
    store::Shared,
};

/// Writes under way at once; more wait in the queue.
const MAX_FLIGHTS: usize = 1_024;
/// How often etcd is asked how far the watch is, while somebody waits for it.
const PROGRESS: Duration = Duration::from_millis(100);
/// How often all endpoints are looked at.
const LOOKS: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the end waits for writes that are under way.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// The name of a write while it is under way: collection and name.
type Key = (Arc<str>, Box<str>);

/// Starts the thread and waits until memory is as new as etcd was at the start.
pub(crate) fn start<H: Head>(
    options: Options,
    etcd: EtcdOptions,
) -> Result<(Arc<Shared<H>>, JoinHandle<()>), OpenError> {
    let (ready, started) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name("store".into())
        .spawn(move || run(options, &etcd, &ready))
        .map_err(|source| OpenError::Thread { name: "store", source })?;
    match started.recv() {
        Ok(shared) => shared.map(|shared| (shared, thread)).map_err(OpenError::Etcd),
        Err(_) => {
            Err(OpenError::Etcd(EtcdError::Refused("the store's thread ended at its start".to_owned())))
        }
    }
}

type Ready<H> = mpsc::Sender<Result<Arc<Shared<H>>, EtcdError>>;

fn run<H: Head>(options: Options, etcd: &EtcdOptions, ready: &Ready<H>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(EtcdError::Refused(error.to_string())))),
    };
    let follower = runtime.block_on(async {
        let mut follower = Follower::open(options, etcd).await?;
        follower.follow_to(follower.newest).await?;
        Ok(follower)
    });
    match follower {
        Err(error) => drop(ready.send(Err(error))),
        Ok(follower) => {
            let shared = Arc::clone(&follower.shared);
            drop(ready.send(Ok(Arc::clone(&shared))));
            let ended = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(follower.work())));
            farewell(&shared, ended.err().map(|payload| death(&*payload)));
        }
    }
}

struct Follower<H> {
    shared: Arc<Shared<H>>,
    client: Client,
    keys: Keys,
    /// Where etcd was when everything was read.
    newest: Revision,
    /// Memory is as of this revision.
    applied: Revision,
    link: Link,
    /// Events of an answer that comes in several parts.
    parts: Vec<WatchEvent>,
    calls: FuturesUnordered<Call<H>>,
    /// Writes under way, by what they change.
    flights: HashMap<Key, Vec<Flight<H>>>,
    flying: usize,
    last_flight: u64,
    /// Answers that wait until memory has reached their revision.
    waiting: BTreeMap<Revision, Vec<Waiter<H>>>,
    /// Those that ask how far etcd is, while nobody asks for them yet.
    questions: Vec<oneshot::Sender<Result<Revision, CommitError<H>>>>,
    asking: bool,
    /// etcd has no space left; that reads succeed says nothing about it.
    full: bool,
    leases: Arc<Leases>,
}

/// The watch, or the pause before the next attempt.
enum Link {
    Up {
        answers: Box<Streaming<WatchResponse>>,
        ask: asynchronous::UnboundedSender<WatchRequest>,
        endpoint: usize,
    },
    Down {
        until: Instant,
        pause: Duration,
    },
}

type Call<H> = Pin<Box<dyn Future<Output = Back<H>> + Send>>;

/// What came back from etcd.
enum Back<H> {
    Written {
        flight: Sent,
        done: oneshot::Sender<Reply<H>>,
        answer: Result<TxnResponse, Status>,
        took: Duration,
    },
    Newest {
        askers: Vec<oneshot::Sender<Result<Revision, CommitError<H>>>>,
        answer: Result<Revision, Status>,
        took: Duration,
    },
    Compacted(Result<Rounds, Status>),
    Looked(Vec<EtcdEndpoint>),
}

/// What a refused write means, since etcd only says that the comparison failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Put,
    Delete(Expect),
}

/// What was sent to etcd.
struct Sent {
    key: Key,
    id: u64,
    kind: Kind,
    expect: Expect,
    /// The first of what belongs to it.
    companion: Option<Key>,
}

impl Sent {
    fn operation(&self) -> Operation {
        match (self.kind, self.expect) {
            (Kind::Delete(_), _) => Operation::Delete,
            (Kind::Put, Expect::Absent) => Operation::Create,
            (Kind::Put, _) => Operation::Update,
        }
    }
}

/// A write under way.
struct Flight<H> {
    id: u64,
    /// What is put, so that it is neither parsed nor kept twice.
    value: Option<Bytes>,
    head: Option<H>,
    /// What the watch has shown of its key, while etcd has not answered yet.
    seen: Vec<Arc<Event<H>>>,
    /// etcd has answered, the watch has not shown it yet.
    acknowledged: Option<(Revision, oneshot::Sender<Reply<H>>)>,
}

enum Waiter<H> {
    Overtaken { key: Key, done: oneshot::Sender<Reply<H>> },
    Conflict { key: Key, done: oneshot::Sender<Reply<H>> },
    NotFound { done: oneshot::Sender<Reply<H>> },
    Newest { done: oneshot::Sender<Result<Revision, CommitError<H>>> },
}

impl<H: Head> Follower<H> {
    async fn open(options: Options, etcd: &EtcdOptions) -> Result<Self, EtcdError> {
        let client = Client::new(etcd)?;
        let keys = Keys::new(&etcd.prefix);
        let started = Instant::now();
        let everything =
            load::with_history(&client, &keys, 0).await.map_err(|status| refusal(&client, &status))?;
        let took = started.elapsed();
        if restore::is_unfinished(&client, &keys).await.map_err(|status| refusal(&client, &status))? {
            return Err(EtcdError::Unfinished { prefix: etcd.prefix.clone() });
        }
        let follower = Self::new(options, client, keys, everything);
        follower.shared.telemetry.asked(Operation::List, &Arc::default(), took, false);
        Ok(follower)
    }

    fn new(options: Options, client: Client, keys: Keys, everything: Everything) -> Self {
        let Everything { revision, newest, collections } = everything;
        let shards = collections.into_iter().map(|(collection, raw)| {
            let entries = parse_heads(&collection, raw);
            (collection, Shard::loaded(entries, revision))
        });
        let state = State::new(revision, revision, None, shards.collect());
        let shared = Arc::new(Shared::new(options, state, Revision::MAX, true));
        Self {
            shared,
            client,
            keys,
            newest,
            applied: revision,
            link: Link::Down { until: Instant::now(), pause: FIRST_PAUSE },
            parts: Vec::new(),
            calls: FuturesUnordered::new(),
            flights: HashMap::new(),
            flying: 0,
            last_flight: 0,
            waiting: BTreeMap::new(),
            questions: Vec::new(),
            asking: false,
            full: false,
            leases: Arc::default(),
        }
    }

    /// Follows the watch up to a revision.
    async fn follow_to(&mut self, revision: Revision) -> Result<(), EtcdError> {
        let mut progress = tokio::time::interval(PROGRESS);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.applied < revision {
            tokio::select! {
                next = next_answer(&mut self.link) => self.watched(next).await,
                _ = progress.tick() => self.ask_progress(),
            }
        }
        Ok(())
    }

    async fn work(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut progress = tokio::time::interval(PROGRESS);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let every = shared.options.backend.etcd().and_then(|etcd| etcd.compact_every);
        let mut compaction = tokio::time::interval(every.unwrap_or(Duration::from_secs(3_600)));
        compaction.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rounds = Rounds::default();
        let mut looks = tokio::time::interval(LOOKS);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_call: Option<Instant> = None;
        loop {
            let closing = self.take_mail();
            self.ask_newest();
            if closing && last_call.is_none() {
                last_call = Some(Instant::now() + LAST_WRITES);
            }
            if closing && (self.flying == 0 || last_call.is_some_and(|at| at <= Instant::now())) {
                return;
            }
            tokio::select! {
                () = shared.knock.notified() => {}
                Some(back) = self.calls.next(), if !self.calls.is_empty() => match back {
                    Back::Compacted(Ok(next)) => rounds = next,
                    Back::Compacted(Err(status)) => {
                        tracing::warn!(error = status.message(), "cannot compact etcd; it is tried again");
                    }
                    back => self.came_back(back),
                },
                next = next_answer(&mut self.link) => self.watched(next).await,
                _ = progress.tick(), if closing || !self.waiting.is_empty() => self.ask_progress(),
                _ = looks.tick() => self.look(),
                _ = compaction.tick(), if every.is_some() => {
                    let (client, known) = (self.client.clone(), rounds);
                    self.calls.push(async move { Back::Compacted(compaction::round(&client, known).await) }.boxed());
                }
            }
        }
    }

    /// Looks at all endpoints, and whether etcd as a whole still answers: nobody may have asked for long.
    fn look(&mut self) {
        let client = self.client.clone();
        self.calls.push(async move { Back::Looked(client.look().await) }.boxed());
        let (done, _) = oneshot::channel();
        self.questions.push(done);
    }

    /// Takes what others have asked for; says whether the store is to be closed.
    fn take_mail(&mut self) -> bool {
        let (writes, closing) = {
            let mut queue = self.shared.queue.lock();
            // On etcd everything visible is durable.
            for done in queue.barriers.drain(..) {
                drop(done.send(Ok(())));
            }
            self.questions.append(&mut queue.questions);
            queue.nudged = false;
            let mut writes: VecDeque<Pending<H>> =
                queue.patient.drain(..).map(|(_, pending)| pending).collect();
            let room = MAX_FLIGHTS.saturating_sub(self.flying + writes.len()).min(queue.writes.len());
            writes.extend(queue.writes.drain(..room));
            (writes, queue.closing && queue.writes.is_empty())
        };
        for pending in writes {
            self.send(pending);
        }
        closing
    }

    fn send(&mut self, Pending { write, companions, unchanged, done }: Pending<H>) {
        let Write { collection, name, expect, change, ttl, .. } = write;
        let written = companions.iter().map(|other| (&other.collection, &other.name));
        let compared = unchanged.iter().map(|other| (&other.collection, &other.name));
        let companion = written.chain(compared).next();
        let companion = companion.map(|(collection, name)| (Arc::clone(collection), name.clone()));
        let others: Option<Vec<_>> = companions.into_iter().map(|other| self.together(other)).collect();
        let rests: Option<Vec<_>> = unchanged.iter().map(|other| self.still(other)).collect();
        let (Some(others), Some(rests)) = (others, rests) else {
            let reason = "the collection of what belongs to it has an empty part";
            return drop(done.send(Err(CommitError::InvalidKey { reason })));
        };
        let (conditions, acts): (Vec<_>, Vec<_>) = others.into_iter().unzip();
        let Some(key) = self.keys.key(&collection, &name) else {
            let reason = "the collection has an empty part";
            return drop(done.send(Err(CommitError::InvalidKey { reason })));
        };
        let ours = (collection, name);
        let present = || Compare::present(key.clone());
        let (kind, compare) = match (&change, expect) {
            (Change::Put { .. }, Expect::Any) => (Kind::Put, None),
            (Change::Put { .. }, Expect::Absent) => (Kind::Put, Some(Compare::absent(key.clone()))),
            (Change::Delete, Expect::Any) => (Kind::Delete(expect), Some(present())),
            // It deletes nothing in either case; the answer says what is there.
            (Change::Delete, Expect::Absent) => (Kind::Delete(expect), Some(present())),
            (_, Expect::Revision(revision)) => {
                let kind = if matches!(change, Change::Delete) { Kind::Delete(expect) } else { Kind::Put };
                (kind, Some(Compare::modified(key.clone(), signed(revision))))
            }
        };
        self.last_flight += 1;
        let id = self.last_flight;
        let (value, head) = match change {
            Change::Put { value, head } => (Some(value), Some(head)),
            Change::Delete => (None, None),
        };
        let flight = Flight { id, value: value.clone(), head, seen: Vec::new(), acknowledged: None };
        self.flights.entry(ours.clone()).or_default().push(flight);
        self.flying += 1;
        let look: Request = Request::Range(RangeRequest { key: key.clone(), ..RangeRequest::default() });
        let (client, leases) = (self.client.clone(), Arc::clone(&self.leases));
        let call = async move {
            let request = async {
                let act: Request = match (value, kind) {
                    (Some(value), _) => {
                        let lease = match ttl {
                            Some(ttl) => leases.lease(&client, ttl).await?,
                            None => 0,
                        };
                        Request::Put(PutRequest { key, value, lease })
                    }
                    (None, Kind::Delete(Expect::Absent)) => look.clone(),
                    (None, _) => Request::Delete(DeleteRangeRequest { key }),
                };
                let request = TxnRequest {
                    compare: compare
                        .into_iter()
                        .chain(conditions.into_iter().flatten())
                        .chain(rests)
                        .collect(),
                    success: std::iter::once(act).chain(acts).map(Into::into).collect(),
                    failure: vec![look.into()],
                };
                client.call(TXN, request, false).await
            };
            let (flight, started) = (Sent { key: ours, id, kind, expect, companion }, Instant::now());
            let answer = request.await;
            Back::Written { flight, done, answer, took: started.elapsed() }
        };
        self.calls.push(call.boxed());
    }

    /// Returns the condition of a write that happens together with another one, and what it does. It has no time limit.
    fn together(&self, write: Write<H>) -> Option<(Option<Compare>, Request)> {
        let key = self.keys.key(&write.collection, &write.name)?;
        let condition = match (&write.change, write.expect) {
            (_, Expect::Revision(revision)) => Some(Compare::modified(key.clone(), signed(revision))),
            (Change::Put { .. }, Expect::Any) => None,
            (Change::Put { .. }, Expect::Absent) => Some(Compare::absent(key.clone())),
            (Change::Delete, _) => Some(Compare::present(key.clone())),
        };
        let act = match write.change {
            Change::Put { value, .. } => Request::Put(PutRequest { key, value, lease: 0 }),
            Change::Delete => Request::Delete(DeleteRangeRequest { key }),
        };
        Some((condition, act))
    }

    /// Returns the condition that an entry is as it was.
    fn still(&self, Unchanged { collection, name, revision }: &Unchanged) -> Option<Compare> {
        Some(Compare::modified(self.keys.key(collection, name)?, signed(*revision)))
    }

    /// Asks etcd how far it is, for all that want to know by now.
    fn ask_newest(&mut self) {
        if self.asking || self.questions.is_empty() {
            return;
        }
        self.asking = true;
        let askers = std::mem::take(&mut self.questions);
        let (client, (key, _)) = (self.client.clone(), self.keys.range());
        let call = async move {
            let request = RangeRequest { key, count_only: true, ..RangeRequest::default() };
            let started = Instant::now();
            let answer = client.call::<_, RangeResponse>(RANGE, request, true).await;
            let answer = answer.map(|answer| unsigned(answer.header.map_or(0, |header| header.revision)));
            Back::Newest { askers, answer, took: started.elapsed() }
        };
        self.calls.push(call.boxed());
    }

    fn came_back(&mut self, back: Back<H>) {
        match back {
            Back::Compacted(_) => {}
            Back::Looked(endpoints) => self.shared.telemetry.looked(endpoints),
            Back::Newest { askers, answer, took } => {
                self.asking = false;
                self.shared.telemetry.asked(Operation::Get, &Arc::default(), took, answer.is_err());
                match answer {
                    Ok(revision) => {
                        self.told(None);
                        for done in askers {
                            self.answer_at(revision, Waiter::Newest { done });
                        }
                    }
                    Err(status) => {
                        self.told(Some(&status));
                        for done in askers {
                            drop(done.send(Err(failure(&status, 0))));
                        }
                    }
                }
            }
            Back::Written { flight, done, answer, took } => {
                self.flying -= 1;
                let operation = flight.operation();
                self.shared.telemetry.asked(operation, &flight.key.0, took, answer.is_err());
                match answer {
                    Err(status) => {
                        let dropped = self.drop_flight(&flight.key, flight.id);
                        let size = dropped.and_then(|flight| flight.value).map_or(0, |value| value.len());
                        self.told(Some(&status));
                        drop(done.send(Err(failure(&status, size))));
                    }
                    Ok(answer) => {
                        self.full &= !(answer.succeeded && flight.kind == Kind::Put);
                        self.told(None);
                        self.written(flight, done, answer);
                    }
                }
            }
        }
    }

    fn written(&mut self, flight: Sent, done: oneshot::Sender<Reply<H>>, answer: TxnResponse) {
        let Sent { key, id, kind, expect, companion } = flight;
        let revision = unsigned(answer.header.map_or(0, |header| header.revision));
        let looked = kind == Kind::Delete(Expect::Absent);
        if answer.succeeded && !looked {
            return self.acknowledge(&key, id, revision, done);
        }
        self.drop_flight(&key, id);
        let found = answer.responses.into_iter().find_map(|op| match op.response {
            Some(Response::Range(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        // etcd does not say which of several conditions failed.
        let holds = match (expect, &found) {
            (Expect::Any, Some(_)) | (Expect::Absent, None) => true,
            (Expect::Any, None) => kind == Kind::Put,
            (Expect::Revision(expected), Some(kv)) => unsigned(kv.mod_revision) == expected,
            (Expect::Absent, Some(_)) | (Expect::Revision(_), None) => false,
        };
        if let Some(companion) = companion.filter(|_| holds) {
            return self.answer_at(revision, Waiter::Overtaken { key: companion, done });
        }
        match (found, kind) {
            (Some(kv), _) => self.answer_at(unsigned(kv.mod_revision), Waiter::Conflict { key, done }),
            (None, Kind::Delete(Expect::Any | Expect::Absent)) => {
                self.answer_at(revision, Waiter::NotFound { done });
            }
            (None, _) => self.answer_at(revision, Waiter::Conflict { key, done }),
        }
    }

    /// Answers a write that etcd has made, or notes that the watch has still to show it.
    fn acknowledge(&mut self, key: &Key, id: u64, revision: Revision, done: oneshot::Sender<Reply<H>>) {
        let Some(flight) = self.flights.get_mut(key).and_then(|all| all.iter_mut().find(|one| one.id == id))
        else {
            return;
        };
        match flight.seen.iter().find(|event| event.revision == revision) {
            Some(event) => {
                let reply = committed(event);
                self.drop_flight(key, id);
                drop(done.send(Ok(reply)));
            }
            None => {
                flight.acknowledged = Some((revision, done));
                // Everything was read anew before the answer came: the watch will not show it.
                self.answer_shown(key);
            }
        }
    }

    fn drop_flight(&mut self, key: &Key, id: u64) -> Option<Flight<H>> {
        let all = self.flights.get_mut(key)?;
        let at = all.iter().position(|flight| flight.id == id)?;
        let flight = all.swap_remove(at);
        if all.is_empty() {
            self.flights.remove(key);
        }
        Some(flight)
    }

    /// Answers once memory has reached the revision.
    fn answer_at(&mut self, revision: Revision, waiter: Waiter<H>) {
        if revision <= self.applied {
            return self.answer(waiter);
        }
        let nobody_asked = self.waiting.is_empty();
        self.waiting.entry(revision).or_default().push(waiter);
        if nobody_asked {
            self.ask_progress();
        }
    }

    fn answer(&self, waiter: Waiter<H>) {
        match waiter {
            Waiter::Overtaken { key: (collection, name), done } => {
                drop(done.send(Err(CommitError::Overtaken { collection, name })));
            }
            Waiter::Conflict { key: (collection, name), done } => {
                let current = self.shared.state.read().get(&collection, &name).cloned();
                drop(done.send(Err(CommitError::Conflict { current })));
            }
            Waiter::NotFound { done } => drop(done.send(Err(CommitError::NotFound))),
            Waiter::Newest { done } => drop(done.send(Ok(self.applied))),
        }
    }

    /// Remembers whether etcd answers, for health and for those who ask why writes are refused.
    fn told(&mut self, failed: Option<&Status>) {
        let reason = match failed {
            None if self.full => return,
            None => None,
            Some(status) if is_connection(status) || is_full(status) => Some(self.reason(status)),
            Some(_) => return,
        };
        self.full |= failed.is_some_and(is_full);
        let known = self.shared.read_only.read().clone();
        if known.is_some() != reason.is_some() {
            match &reason {
                Some(reason) => tracing::error!(%reason, "etcd does not take writes"),
                None => tracing::info!("etcd takes writes again"),
            }
            *self.shared.read_only.write() = reason;
        }
    }

    fn reason(&self, status: &Status) -> Arc<str> {
        format!("etcd at {}: {}", self.client.names(), status.message()).into()
    }

    fn ask_progress(&self) {
        if let Link::Up { ask, .. } = &self.link {
            // If nobody listens any more, the stream says so itself.
            let _ = ask.send(WatchRequest { ask: Some(WatchAsk::Progress(Ignored {})) });
        }
    }

    /// Takes what the watch has said, or connects it again.
    async fn watched(&mut self, next: Next) {
        match next {
            Next::Connect => self.connect().await,
            Next::Broken(status) => {
                if let Link::Up { endpoint, .. } = &self.link {
                    self.client.turn_from(*endpoint);
                }
                tracing::warn!(error = status.message(), "the watch on etcd broke, it is resumed");
                self.pause(FIRST_PAUSE);
            }
            Next::Answer(answer) if answer.compact_revision > 0 => self.reload().await,
            Next::Answer(answer) if answer.canceled => {
                tracing::warn!(reason = answer.cancel_reason, "etcd ended the watch, it is resumed");
                self.pause(FIRST_PAUSE);
            }
            Next::Answer(answer) if answer.created => {}
            Next::Answer(answer) => {
                let progress = answer.events.is_empty() && self.parts.is_empty();
                let revision = unsigned(answer.header.map_or(0, |header| header.revision));
                self.parts.extend(answer.events);
                if progress {
                    self.publish(Vec::new(), revision);
                } else if !answer.fragment {
                    let events = std::mem::take(&mut self.parts);
                    self.apply(events);
                }
            }
        }
    }

    fn pause(&mut self, pause: Duration) {
        self.parts.clear();
        self.link = Link::Down { until: Instant::now() + pause, pause };
    }

    async fn connect(&mut self) {
        let (ask, requests) = asynchronous::unbounded_channel();
        let (key, range_end) = self.keys.range();
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision: signed(self.applied.saturating_add(1)),
            progress_notify: true,
            fragment: true,
        };
        let _ = ask.send(WatchRequest { ask: Some(WatchAsk::Create(create)) });
        let requests = stream::unfold(requests, |mut requests| async move {
            let next: Option<WatchRequest> = requests.recv().await;
            next.map(|next| (next, requests))
        });
        let endpoint = self.client.current();
        match self.client.watch(requests).await {
            Ok(answers) => {
                self.link = Link::Up { answers: Box::new(answers), ask, endpoint };
                self.told(None);
            }
            Err(status) => {
                let last = match &self.link {
                    Link::Down { pause, .. } => *pause,
                    Link::Up { .. } => FIRST_PAUSE,
                };
                self.told(Some(&status));
                self.pause((last * 2).min(LONGEST_PAUSE));
            }
        }
    }

    /// Makes events of the watch visible.
    fn apply(&mut self, watched: Vec<WatchEvent>) {
        let shared = Arc::clone(&self.shared);
        let mut events = Vec::with_capacity(watched.len());
        let mut newest = self.applied;
        {
            let state = shared.state.read();
            // What these events themselves have changed so far.
            let mut overlay = Versions::<H>::new();
            for watched in watched {
                let Some(kv) = watched.kv else { continue };
                let revision = unsigned(kv.mod_revision);
                if revision <= self.applied {
                    continue;
                }
                newest = newest.max(revision);
                let Some((collection, name)) = self.keys.parts(&kv.key) else { continue };
                let key = (state.interned(Arc::from(collection)), Box::from(name));
                let previous = match overlay.get(&key) {
                    Some(overlaid) => overlaid.clone(),
                    None => state.get(&key.0, &key.1).cloned(),
                };
                let deleted = watched.kind == i32::from(EventType::Delete);
                if deleted && previous.is_none() {
                    continue;
                }
                let current = (!deleted).then(|| self.entry(&key, &kv));
                overlay.insert(key.clone(), current.clone());
                events.push(Arc::new(Event { revision, collection: key.0, current, previous }));
            }
        }
        self.publish(events, newest);
    }

    /// Makes an entry of what etcd has, with the head and the bytes of the write that made it if it was ours.
    fn entry(&mut self, key: &Key, kv: &KeyValue) -> Arc<Entry<H>> {
        let own = self.flights.get_mut(key).into_iter().flatten().find_map(|flight| {
            let value = flight.value.as_ref().filter(|value| **value == kv.value)?;
            Some((value.clone(), flight.head.take()?))
        });
        let (value, head) = own.unwrap_or_else(|| {
            let head = H::parse(&key.0, &key.1, &kv.value);
            (Bytes::copy_from_slice(&kv.value), head)
        });
        Arc::new(Entry {
            name: key.1.clone(),
            created: unsigned(kv.create_revision),
            modified: unsigned(kv.mod_revision),
            expires_ms: None,
            value,
            head,
        })
    }

    fn publish(&mut self, events: Vec<Arc<Event<H>>>, revision: Revision) {
        if revision <= self.applied {
            return;
        }
        for event in &events {
            let key = (Arc::clone(&event.collection), Box::from(event.name()));
            for flight in self.flights.get_mut(&key).into_iter().flatten() {
                flight.seen.push(Arc::clone(event));
            }
        }
        let touched: Vec<Key> =
            events.iter().map(|event| (Arc::clone(&event.collection), Box::from(event.name()))).collect();
        self.applied = revision;
        self.shared.telemetry.received(events.iter().map(|event| &event.collection));
        self.shared.publish(events, revision);
        for key in touched {
            self.answer_shown(&key);
        }
        self.answer_waiting();
    }

    /// Answers the writes of a key that etcd has acknowledged and the watch has shown.
    fn answer_shown(&mut self, key: &Key) {
        let applied = self.applied;
        let Some(flights) = self.flights.get_mut(key) else { return };
        let mut rest = Vec::new();
        for mut flight in std::mem::take(flights) {
            match flight.acknowledged.take() {
                Some((revision, done)) if revision <= applied => {
                    let shown = flight.seen.iter().find(|event| event.revision == revision);
                    let reply = shown.map_or_else(
                        // Everything was read anew in between, and what was there before is not known.
                        || Committed {
                            revision,
                            entry: self.shared.state.read().get(&key.0, &key.1).cloned(),
                            previous: None,
                        },
                        committed,
                    );
                    drop(done.send(Ok(reply)));
                }
                acknowledged => {
                    flight.acknowledged = acknowledged;
                    rest.push(flight);
                }
            }
        }
        if rest.is_empty() {
            self.flights.remove(key);
        } else if let Some(flights) = self.flights.get_mut(key) {
            *flights = rest;
        }
    }

    fn answer_waiting(&mut self) {
        let later = self.waiting.split_off(&self.applied.saturating_add(1));
        let due = std::mem::replace(&mut self.waiting, later);
        for waiter in due.into_values().flatten() {
            self.answer(waiter);
        }
    }

    /// Reads everything anew, after etcd has given up what the watch would have to show next.
    async fn reload(&mut self) {
        tracing::warn!(
            revision = self.applied,
            "etcd has compacted what was not seen yet: everything is read anew"
        );
        // With the history since, so that clients who come from other servers can go on here.
        match load::with_history(&self.client, &self.keys, self.applied).await {
            Err(status) => {
                self.told(Some(&status));
                self.pause(LONGEST_PAUSE);
            }
            Ok(Everything { revision, collections, .. }) => {
                let collections = collections.into_iter().map(|(collection, raw)| {
                    let entries = parse_heads(&collection, raw);
                    (collection, entries)
                });
                let replaced = self.shared.state.write().replace(revision, collections.collect());
                self.applied = revision;
                for changed in &replaced {
                    changed.notify_waiters();
                }
                self.shared.visible.notify_waiters();
                let keys: Vec<Key> = self.flights.keys().cloned().collect();
                for key in keys {
                    self.answer_shown(&key);
                }
                self.answer_waiting();
                self.pause(Duration::ZERO);
            }
        }
    }
}

enum Next {
    Connect,
    Broken(Status),
    Answer(WatchResponse),
}

async fn next_answer(link: &mut Link) -> Next {
    match link {
        Link::Down { until, .. } => {
            tokio::time::sleep_until(*until).await;
            Next::Connect
        }
        Link::Up { answers, .. } => match answers.message().await {
            Ok(Some(answer)) => Next::Answer(answer),
            Ok(None) => Next::Broken(Status::unavailable("etcd has closed it")),
            Err(status) => Next::Broken(status),
        },
    }
}

fn committed<H>(event: &Arc<Event<H>>) -> Committed<H> {
    Committed { revision: event.revision, entry: event.current.clone(), previous: event.previous.clone() }
}

fn is_full(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("space exceeded")
}

/// Turns etcd's answer into the store's.
fn failure<H>(status: &Status, size: usize) -> CommitError<H> {
    let reason: Arc<str> = format!("etcd: {}", status.message()).into();
    if is_full(status) {
        CommitError::ReadOnly { reason }
    } else if ["request is too large", "larger than max"].iter().any(|words| status.message().contains(words))
    {
        // etcd's default; it does not tell its own.
        CommitError::TooLarge { size, limit: 1 << 20 }
    } else {
        CommitError::Unanswered { reason }
    }
}

pub(super) fn refusal(client: &Client, status: &Status) -> EtcdError {
    let reason = status.message().to_owned();
    if is_connection(status) {
        EtcdError::Unreachable { endpoints: client.names(), reason }
    } else {
        EtcdError::Refused(reason)
    }
}

#[cfg(test)]
mod tests;
