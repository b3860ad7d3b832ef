//! Clients that read, write and watch, and note what they asked, when, and what they were told.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    Api, DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions, VersionMatch,
    WatchEvent, WatchParams,
};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use testkit::DEADLINE;
use testkit::history::{
    Dice, Fields, Freshness, Operation, Outcome, Request, Revision, Shown, Version, Watch,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Few, so that clients meet.
const NAMES: u64 = 6;
/// Written at the end of a round, so that watches have something to arrive at.
const MARKER: &str = "marker";
/// A server that takes longer counts as one that has not answered, where servers are cut off and frozen: a client that waited for them
/// would do little else.
pub(super) const HASTY: Duration = Duration::from_secs(3);

type Show = fn(String, Version) -> Shown;

/// Where clients find servers.
pub(super) struct Place {
    pub(super) clients: Vec<Client>,
    starts: Vec<AtomicUsize>,
    zero: Instant,
    /// How long clients wait for an answer.
    patience: Duration,
}

impl Place {
    pub(super) fn new(clients: Vec<Client>, patience: Duration) -> Self {
        let starts = clients.iter().map(|_| AtomicUsize::new(1)).collect();
        Self { clients, starts, zero: Instant::now(), patience }
    }

    /// A server has been started again.
    pub(super) fn started(&self, at: usize) {
        self.starts[at].fetch_add(1, Ordering::SeqCst);
    }

    fn server(&self, at: usize) -> (usize, usize) {
        (at, self.starts[at].load(Ordering::SeqCst))
    }

    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.zero.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn maps(&self, at: usize, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.clients[at].clone(), namespace)
    }
}

/// A namespace has objects of others, too.
pub(super) fn is_ours(name: &str) -> bool {
    name.starts_with("object-") || name == MARKER
}

/// Returns the newest revision that an acknowledged write got.
pub(super) fn newest_written(operations: &[Operation]) -> Revision {
    let written = operations.iter().filter_map(|operation| match (&operation.request, &operation.outcome) {
        (Request::Get { .. }, _) => None,
        (_, Outcome::Object(version)) => Some(version.revision),
        _ => None,
    });
    written.max().unwrap_or(0)
}

/// The kind of a failure, for the tally.
pub(super) fn in_short(why: &str) -> String {
    why.split([':', '(', '{']).next().unwrap_or("").chars().take(60).collect()
}

/// All clients of a round.
pub(super) struct Crowd {
    place: Arc<Place>,
    namespace: String,
    noted: Arc<Mutex<(Vec<Operation>, Vec<Watch>)>>,
    /// Nothing while requests are made; then where watches end.
    goal: watch::Sender<Option<Revision>>,
    stop: watch::Sender<bool>,
    writers: JoinSet<()>,
    watchers: JoinSet<()>,
}

impl Crowd {
    pub(super) fn start(
        place: &Arc<Place>,
        namespace: &str,
        (seed, round): (u64, u64),
        clients: usize,
        watchers: usize,
    ) -> Self {
        let mut crowd = Self {
            place: Arc::clone(place),
            namespace: namespace.to_owned(),
            noted: Arc::default(),
            goal: watch::channel(None).0,
            stop: watch::channel(false).0,
            writers: JoinSet::new(),
            watchers: JoinSet::new(),
        };
        for number in 0..clients {
            let client = crowd.client(number, Dice::new(&[seed, round, 1, number as u64]), round);
            let stop = crowd.stop.subscribe();
            crowd.writers.spawn(client.work(stop));
        }
        for number in 0..watchers {
            let watcher = Watcher {
                client: crowd.client(clients + number, Dice::new(&[seed, round, 2, number as u64]), round),
                goal: crowd.goal.subscribe(),
            };
            crowd.watchers.spawn(watcher.work());
        }
        crowd
    }

    fn client(&self, number: usize, dice: Dice, round: u64) -> Worker {
        Worker {
            place: Arc::clone(&self.place),
            namespace: self.namespace.clone(),
            noted: Arc::clone(&self.noted),
            number,
            round,
            dice,
            count: 0,
            known: HashMap::new(),
            revisions: Vec::new(),
        }
    }

    /// Ends the round, after everything has been healed: every server takes a write and shows all, every watch arrives.
    pub(super) async fn end(mut self) -> (Vec<Operation>, Vec<Watch>) {
        self.stop.send_replace(true);
        while let Some(ended) = self.writers.join_next().await {
            ended.expect("a client does not panic");
        }
        let mut last = self.client(99, Dice::new(&[0]), 0);
        let create = |last: &mut Worker| Request::Create { name: MARKER.to_owned(), fields: last.fields() };
        // An attempt that was not answered in time may have made it all the same.
        let made = |outcome: &Outcome| matches!(outcome, Outcome::Object(_) | Outcome::AlreadyExists);
        last.insist(0, create, made).await;
        let mut goal = 0;
        for server in 0..self.place.clients.len() {
            let changed = |outcome: &Outcome| matches!(outcome, Outcome::Object(_));
            if let Outcome::Object(version) = last.insist(server, |last| last.patch(MARKER), changed).await {
                goal = version.revision;
            }
            for server in 0..self.place.clients.len() {
                last.ask(server, Request::List { freshness: Freshness::Newest }).await;
            }
        }
        self.goal.send_replace(Some(goal));
        let arrived = async {
            while let Some(ended) = self.watchers.join_next().await {
                ended.expect("a watcher does not panic");
            }
        };
        tokio::time::timeout(DEADLINE, arrived).await.expect("every watch arrives at the end of the round");
        std::mem::take(&mut *self.noted.lock().expect("notes"))
    }
}

/// One client.
struct Worker {
    place: Arc<Place>,
    namespace: String,
    noted: Arc<Mutex<(Vec<Operation>, Vec<Watch>)>>,
    number: usize,
    round: u64,
    dice: Dice,
    count: u64,
    /// What it saw last of each object.
    known: HashMap<String, Version>,
    /// Revisions of lists that it saw.
    revisions: Vec<Revision>,
}

impl Worker {
    async fn work(mut self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let server = self.server();
            let request = self.request();
            self.ask(server, request).await;
            let pause = Duration::from_millis(5 + self.dice.below(90));
            let _ = tokio::time::timeout(pause, stop.wait_for(|stop| *stop)).await;
        }
    }

    fn server(&mut self) -> usize {
        usize::try_from(self.dice.below(self.place.clients.len() as u64)).unwrap_or(0)
    }

    /// A value that nobody else writes.
    fn unique(&mut self) -> String {
        self.count += 1;
        format!("{}-{}-{}", self.round, self.number, self.count)
    }

    fn fields(&mut self) -> Fields {
        Fields::from([("value".to_owned(), self.unique())])
    }

    fn patch(&mut self, name: &str) -> Request {
        Request::Patch { name: name.to_owned(), field: format!("of-{}", self.number), value: self.unique() }
    }

    fn request(&mut self) -> Request {
        let name = format!("object-{}", self.dice.below(NAMES));
        let known = self.known.get(&name).map(|version| version.revision);
        let recent = &self.revisions[self.revisions.len().saturating_sub(20)..];
        let named = self.dice.pick(recent).copied();
        match self.dice.below(100) {
            0..20 => Request::Get { name, freshness: Freshness::Newest },
            20..24 => Request::Get { name, freshness: Freshness::Any },
            24..36 => Request::List { freshness: Freshness::Newest },
            36..42 => Request::List { freshness: Freshness::Any },
            42..45 => Request::List { freshness: named.map_or(Freshness::Any, Freshness::NotOlderThan) },
            45..48 => Request::List { freshness: named.map_or(Freshness::Newest, Freshness::Exactly) },
            48..62 => Request::Create { name, fields: self.fields() },
            62..74 => match known {
                Some(expected) => Request::Update { name, fields: self.fields(), expected: Some(expected) },
                None => Request::Get { name, freshness: Freshness::Newest },
            },
            74..80 => Request::Update { name, fields: self.fields(), expected: None },
            80..92 => self.patch(&name),
            92..96 => Request::Delete { name, expected: None },
            _ => Request::Delete { name, expected: known },
        }
    }

    /// Asks a healed server until the answer is as wanted: a busy machine may take longer than this client waits.
    async fn insist(
        &mut self,
        at: usize,
        mut request: impl FnMut(&mut Self) -> Request,
        wanted: impl Fn(&Outcome) -> bool,
    ) -> Outcome {
        let began = Instant::now();
        loop {
            let request = request(self);
            let outcome = self.ask(at, request).await;
            if wanted(&outcome) {
                return outcome;
            }
            assert!(began.elapsed() < DEADLINE, "healed server {at} does not write: {outcome:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Asks a server, and notes what came of it.
    async fn ask(&mut self, at: usize, request: Request) -> Outcome {
        let maps = self.place.maps(at, &self.namespace);
        // Some lists come in pages, from two servers in turn.
        let other = self.place.maps((at + 1) % self.place.clients.len(), &self.namespace);
        let pages = self.dice.below(3) == 0;
        let server = self.place.server(at);
        let invoked = self.place.now();
        let answer = async {
            match &request {
                Request::List { freshness: Freshness::Newest } if pages => in_pages([&maps, &other]).await,
                _ => answer(&maps, &request).await,
            }
        };
        let outcome = tokio::time::timeout(self.place.patience, answer).await;
        let outcome = outcome.unwrap_or_else(|_| Outcome::Unknown("no answer".to_owned()));
        let completed = self.place.now();
        match &outcome {
            Outcome::Object(version) => {
                if let Some(name) = name(&request) {
                    self.known.insert(name.to_owned(), version.clone());
                }
            }
            Outcome::List { revision, objects } => {
                self.revisions.push(*revision);
                self.known.extend(objects.clone());
            }
            _ => {}
        }
        let operation =
            Operation { client: self.number, server, invoked, completed, request, outcome: outcome.clone() };
        self.noted.lock().expect("notes").0.push(operation);
        outcome
    }
}

fn name(request: &Request) -> Option<&str> {
    match request {
        Request::List { .. } => None,
        Request::Get { name, .. }
        | Request::Create { name, .. }
        | Request::Update { name, .. }
        | Request::Patch { name, .. }
        | Request::Delete { name, .. } => Some(name),
    }
}

fn version(map: &ConfigMap) -> Version {
    let revision = map.resource_version().and_then(|revision| revision.parse().ok()).unwrap_or(0);
    let uid = map.uid().unwrap_or_default();
    Version { uid, revision, fields: map.data.clone().unwrap_or_default() }
}

fn map(name: &str, fields: &Fields, expected: Option<Revision>) -> ConfigMap {
    let mut map: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": name}, "data": fields})).expect("a ConfigMap");
    map.metadata.resource_version = expected.map(|revision| revision.to_string());
    map
}

fn failed(error: &kube::Error) -> Outcome {
    match error {
        kube::Error::Api(status) => match (status.code, &*status.reason) {
            (404, _) => Outcome::NotFound,
            (409, "AlreadyExists") => Outcome::AlreadyExists,
            (409, _) => Outcome::Conflict,
            (410, _) => Outcome::Expired,
            (code, reason) => Outcome::Unknown(format!("{code} {reason}: {}", status.message)),
        },
        other => Outcome::Unknown(other.to_string()),
    }
}

async fn answer(maps: &Api<ConfigMap>, request: &Request) -> Outcome {
    let posting = PostParams::default();
    let object = |answer: Result<ConfigMap, kube::Error>| match answer {
        Ok(map) => Outcome::Object(version(&map)),
        Err(error) => failed(&error),
    };
    match request {
        Request::Get { name, freshness } => {
            let params = match freshness {
                Freshness::Newest => GetParams::default(),
                _ => GetParams::any(),
            };
            object(maps.get_with(name, &params).await)
        }
        Request::List { freshness } => {
            let (revision, version_match) = match freshness {
                Freshness::Newest => (None, None),
                Freshness::Any => (Some(0), None),
                Freshness::NotOlderThan(revision) => (Some(*revision), Some(VersionMatch::NotOlderThan)),
                Freshness::Exactly(revision) => (Some(*revision), Some(VersionMatch::Exact)),
            };
            let resource_version = revision.map(|revision| revision.to_string());
            let params = ListParams { resource_version, version_match, ..ListParams::default() };
            match maps.list(&params).await {
                Ok(list) => Outcome::List {
                    revision: list.metadata.resource_version.and_then(|text| text.parse().ok()).unwrap_or(0),
                    objects: list
                        .items
                        .iter()
                        .filter(|map| is_ours(&map.name_any()))
                        .map(|map| (map.name_any(), version(map)))
                        .collect(),
                },
                Err(error) => failed(&error),
            }
        }
        Request::Create { name, fields } => object(maps.create(&posting, &map(name, fields, None)).await),
        Request::Update { name, fields, expected } => {
            object(maps.replace(name, &posting, &map(name, fields, *expected)).await)
        }
        Request::Patch { name, field, value } => {
            let patch = json!({"data": {field: value}});
            object(maps.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await)
        }
        Request::Delete { name, expected } => {
            let resource_version = expected.map(|revision| revision.to_string());
            let params = match resource_version {
                Some(_) => {
                    DeleteParams::default().preconditions(Preconditions { resource_version, uid: None })
                }
                None => DeleteParams::default(),
            };
            match maps.delete(name, &params).await {
                Ok(answer) => {
                    let uid = answer.either(
                        |object| object.uid().unwrap_or_default(),
                        |status| status.details.map(|details| details.uid).unwrap_or_default(),
                    );
                    Outcome::Deleted { uid }
                }
                Err(error) => failed(&error),
            }
        }
    }
}

/// Lists everything, two objects at a time. All pages show the revision of the first one.
async fn in_pages(servers: [&Api<ConfigMap>; 2]) -> Outcome {
    let mut params = ListParams::default().limit(2);
    let (mut all, mut first) = (BTreeMap::new(), None);
    for server in servers.into_iter().cycle() {
        let page = match server.list(&params).await {
            Ok(page) => page,
            // The next server may not have the history that the first one had.
            Err(error) => return Outcome::Unknown(format!("page: {error}")),
        };
        let revision = page.metadata.resource_version.and_then(|text| text.parse().ok()).unwrap_or(0);
        let first = *first.get_or_insert(revision);
        assert_eq!(revision, first, "pages of one list are of different revisions");
        all.extend(page.items.iter().map(|map| (map.name_any(), version(map))));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => {
                all.retain(|name, _| is_ours(name));
                return Outcome::List { revision, objects: all };
            }
        }
    }
    unreachable!("servers are asked in turn for ever")
}

/// Follows all objects, from server to server.
struct Watcher {
    client: Worker,
    goal: watch::Receiver<Option<Revision>>,
}

impl Watcher {
    async fn work(mut self) {
        let mut position = None;
        loop {
            let server = self.client.server();
            let Some(from) = position else {
                let list = self.client.ask(server, Request::List { freshness: Freshness::Newest }).await;
                if let Outcome::List { revision, .. } = list {
                    position = Some(revision);
                } else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                continue;
            };
            if self.goal.borrow().is_some_and(|goal| from >= goal) {
                return;
            }
            // Now and then somebody comes back who was away for a while.
            let from = if self.client.dice.below(6) == 0 {
                from.saturating_sub(self.client.dice.below(30)).max(1)
            } else {
                from
            };
            let lasts = Duration::from_millis(200 + self.client.dice.below(6_000));
            position = self.watch(server, from, lasts).await;
        }
    }

    /// Watches for a while; returns where to go on, and nothing if the place is lost.
    async fn watch(&mut self, at: usize, from: Revision, lasts: Duration) -> Option<Revision> {
        let maps = self.client.place.maps(at, &self.client.namespace);
        let server = self.client.place.server(at);
        let (mut shown, mut position) = (Vec::new(), from);
        let goal = self.goal.clone();
        let watching = async {
            let mut stream = match maps.watch(&WatchParams::default(), &from.to_string()).await {
                Ok(stream) => stream.boxed(),
                Err(error) => {
                    if failed(&error) == Outcome::Expired {
                        shown.push(Shown::Expired);
                    }
                    // Nobody is there.
                    return tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            while let Some(Ok(event)) = stream.next().await {
                let next = match event {
                    WatchEvent::Added(map) => (map.name_any(), version(&map), Shown::Added as Show),
                    WatchEvent::Modified(map) => (map.name_any(), version(&map), Shown::Modified as Show),
                    WatchEvent::Deleted(map) => (map.name_any(), version(&map), Shown::Deleted as Show),
                    WatchEvent::Bookmark(bookmark) => {
                        let revision = bookmark.metadata.resource_version.parse().unwrap_or(0);
                        position = position.max(revision);
                        shown.push(Shown::Bookmark(revision));
                        continue;
                    }
                    WatchEvent::Error(status) => {
                        if status.code == 410 {
                            shown.push(Shown::Expired);
                        }
                        return;
                    }
                };
                let (name, version, kind) = next;
                position = position.max(version.revision);
                if is_ours(&name) {
                    shown.push(kind(name, version));
                }
                if goal.borrow().is_some_and(|goal| position >= goal) {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(lasts, watching).await;
        let lost = shown.last() == Some(&Shown::Expired);
        let watch = Watch { client: self.client.number, server, from, shown };
        self.client.noted.lock().expect("notes").1.push(watch);
        (!lost).then_some(position)
    }
}
