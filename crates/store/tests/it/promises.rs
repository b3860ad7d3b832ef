//! The promises of a watch, each a validator by name over what watchers recorded while writers raced.
//!
//! ordered: revisions only grow. unique: none comes twice. complete: everything that was committed in the watched
//! range came, with the right versions. resumable: the same holds across reconnects. bookmarked: after a
//! progress mark, nothing at or before it comes any more.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use store::{Expect, Options, Revision, Store};

use crate::support::{Dice, Mark, delete, put, soon};

/// One committed change: what the writer was told, or what a watcher saw.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    revision: Revision,
    collection: String,
    name: String,
    value: Option<String>,
    before: Option<Revision>,
}

/// What one watcher saw, in the order it saw it.
#[derive(Debug, Clone)]
enum Seen {
    Change(Change),
    /// A progress mark, as sent in a bookmark.
    Progress(Revision),
    /// The watcher went away and came back after the revision it had.
    Resumed,
}

#[derive(Debug)]
struct Recording {
    /// `None`: everything.
    collection: Option<&'static str>,
    after: Revision,
    seen: Vec<Seen>,
}

impl Recording {
    fn changes(&self) -> impl Iterator<Item = &Change> {
        self.seen.iter().filter_map(|seen| match seen {
            Seen::Change(change) => Some(change),
            _ => None,
        })
    }
}

fn ordered(recording: &Recording) -> Result<(), String> {
    let revisions: Vec<_> = recording.changes().map(|change| change.revision).collect();
    match revisions.windows(2).find(|pair| pair[0] > pair[1]) {
        Some(pair) => Err(format!("{} came after {}", pair[1], pair[0])),
        None => Ok(()),
    }
}

fn unique(recording: &Recording) -> Result<(), String> {
    let mut revisions: Vec<_> = recording.changes().map(|change| change.revision).collect();
    revisions.sort_unstable();
    match revisions.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{} came twice", pair[0])),
        None => Ok(()),
    }
}

fn complete(recording: &Recording, truth: &BTreeMap<Revision, Change>) -> Result<(), String> {
    let seen: BTreeMap<_, _> = recording.changes().map(|change| (change.revision, change)).collect();
    for (revision, change) in truth {
        let wanted = *revision > recording.after
            && recording.collection.is_none_or(|collection| collection == change.collection);
        match seen.get(revision) {
            Some(found) if !wanted => return Err(format!("{found:?} was not asked for")),
            Some(found) if *found != change => return Err(format!("{found:?} came instead of {change:?}")),
            None if wanted => return Err(format!("{change:?} never came")),
            _ => {}
        }
    }
    match seen.keys().find(|revision| !truth.contains_key(revision)) {
        Some(revision) => Err(format!("{revision} was never committed")),
        None => Ok(()),
    }
}

/// Nothing is missing or repeated where a watcher went away and came back.
fn resumable(recording: &Recording, truth: &BTreeMap<Revision, Change>) -> Result<(), String> {
    let resumed = recording.seen.iter().filter(|seen| matches!(seen, Seen::Resumed)).count();
    unique(recording).and(complete(recording, truth)).map_err(|e| format!("with {resumed} reconnects: {e}"))
}

fn bookmarked(recording: &Recording) -> Result<(), String> {
    let mut mark = recording.after;
    for seen in &recording.seen {
        match seen {
            Seen::Progress(revision) if *revision < mark => {
                return Err(format!("progress went back from {mark} to {revision}"));
            }
            Seen::Progress(revision) => mark = *revision,
            Seen::Change(change) if change.revision <= mark => {
                return Err(format!("{} came after the mark {mark}", change.revision));
            }
            _ => {}
        }
    }
    Ok(())
}

const COLLECTIONS: [&str; 3] = ["pods", "works", "leases"];

async fn write(store: Store<Mark>, seed: u64, writes: usize) -> Vec<Change> {
    let mut dice = Dice::new(seed);
    let mut made = Vec::new();
    for n in 0..writes {
        let collection = COLLECTIONS[usize::try_from(dice.below(3)).unwrap()];
        let name = format!("n{}", dice.below(20));
        let value = format!("{seed}-{n}");
        let current = store.get(collection, &name).map(|entry| entry.modified);
        let expect = match (dice.below(3), current) {
            (0, _) => Expect::Any,
            (_, Some(revision)) => Expect::Revision(revision),
            (_, None) => Expect::Absent,
        };
        let deletes = dice.below(4) == 0;
        let write =
            if deletes { delete(collection, &name, expect) } else { put(collection, &name, expect, &value) };
        // Losing a race is fine: then nothing happened.
        let write = match dice.below(3) {
            0 => write.buffered(),
            1 => write.patient(),
            _ => write,
        };
        if let Ok(committed) = store.commit(write).await {
            made.push(Change {
                revision: committed.revision,
                collection: collection.to_owned(),
                name,
                value: committed.entry.map(|entry| entry.head.value.clone()),
                before: committed.previous.map(|entry| entry.modified),
            });
        }
    }
    made
}

fn change(event: &store::Event<Mark>) -> Change {
    Change {
        revision: event.revision,
        collection: event.collection.to_string(),
        name: event.name().to_owned(),
        value: event.current.as_ref().map(|entry| entry.head.value.clone()),
        before: event.previous.as_ref().map(|entry| entry.modified),
    }
}

/// Watches until everything is written and seen, reconnecting now and then.
async fn record(
    store: Store<Mark>,
    collection: Option<&'static str>,
    seed: u64,
    finished: Arc<AtomicBool>,
) -> Recording {
    let mut dice = Dice::new(seed);
    let after = store.revision();
    let mut recording = Recording { collection, after, seen: Vec::new() };
    let mut resume_from = after;
    loop {
        // Both kinds of watch look alike from here on.
        let mut one =
            collection.map(|collection| store.watch(collection, resume_from).expect("in the window"));
        let mut all = store.watch_all(resume_from).expect("in the window");
        for _ in 0..=dice.below(8) {
            let done = finished.load(Ordering::SeqCst);
            let batch = match &mut one {
                Some(watch) => watch.try_next().expect("not lost"),
                None => all.try_next().expect("not lost"),
            };
            let quiet = batch.is_none();
            for event in batch.into_iter().flatten() {
                recording.seen.push(Seen::Change(change(&event)));
            }
            if dice.below(2) == 0 {
                let progress = one.as_ref().map_or_else(|| all.progress(), |watch| watch.progress());
                recording.seen.push(Seen::Progress(progress));
                resume_from = progress;
            } else if let Some(last) = recording.changes().last() {
                resume_from = resume_from.max(last.revision);
            }
            if quiet && done {
                return recording;
            }
            // Some watchers are slow, some wait properly.
            if dice.below(3) == 0 && !done {
                let next = async {
                    match &mut one {
                        Some(watch) => watch.next().await,
                        None => all.next().await,
                    }
                };
                // Dropped halfway most of the time, which must lose nothing.
                if let Ok(batch) = tokio::time::timeout(std::time::Duration::from_micros(200), next).await {
                    for event in batch.expect("not lost") {
                        resume_from = event.revision;
                        recording.seen.push(Seen::Change(change(&event)));
                    }
                }
            }
            tokio::task::yield_now().await;
        }
        recording.seen.push(Seen::Resumed);
    }
}

/// Writers and watchers take turns with the stores: one, or several servers' on the same etcd.
async fn race(stores: &[Store<Mark>], writes: usize) -> (Vec<Recording>, BTreeMap<Revision, Change>) {
    let store = &stores[0];
    let finished = Arc::new(AtomicBool::new(false));
    let turn = |seed: u64| stores[usize::try_from(seed).unwrap() % stores.len()].clone();
    let start = |collection, seed| tokio::spawn(record(turn(seed), collection, seed, Arc::clone(&finished)));
    let mut watchers: Vec<_> = COLLECTIONS.iter().map(|collection| start(Some(*collection), 1)).collect();
    watchers.push(start(None, 2));
    let writers: Vec<_> = (0..6).map(|seed| tokio::spawn(write(turn(seed), 100 + seed, writes))).collect();
    // Late watchers start from wherever the store is by then.
    soon(store.wait_for(store.revision() + 20)).await;
    watchers.extend(COLLECTIONS.iter().map(|collection| start(Some(*collection), 3)));
    watchers.push(start(None, 4));
    let mut truth = BTreeMap::new();
    for writer in writers {
        for change in soon(writer).await.unwrap() {
            assert!(truth.insert(change.revision, change).is_none(), "a revision was given twice");
        }
    }
    for store in stores {
        soon(store.catch_up()).await.expect("it is there");
    }
    finished.store(true, Ordering::SeqCst);
    let mut recordings = Vec::new();
    for watcher in watchers {
        recordings.push(soon(watcher).await.unwrap());
    }
    for store in stores {
        store.close().await;
    }
    (recordings, truth)
}

pub(crate) async fn check(stores: &[Store<Mark>], writes: usize) {
    let (recordings, truth) = race(stores, writes).await;
    assert!(truth.len() > writes, "{} of {} writes succeeded", truth.len(), 6 * writes);
    for recording in &recordings {
        let who = format!("watcher of {:?} after {}", recording.collection, recording.after);
        let verdicts = [
            ("ordered", ordered(recording)),
            ("unique", unique(recording)),
            ("complete", complete(recording, &truth)),
            ("resumable", resumable(recording, &truth)),
            ("bookmarked", bookmarked(recording)),
        ];
        for (promise, verdict) in verdicts {
            assert_eq!(verdict, Ok(()), "{who} is not {promise}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_of_a_store_in_memory_keep_their_promises() {
    check(&[Store::open(Options::memory()).unwrap()], 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_of_a_store_on_disk_keep_their_promises() {
    let dir = tempfile::tempdir().unwrap();
    check(&[Store::open(Options::file(dir.path())).unwrap()], 60).await;
}

#[test]
fn the_validators_notice_broken_promises() {
    let make = |revision| Change {
        revision,
        collection: "pods".into(),
        name: "a".into(),
        value: Some(revision.to_string()),
        before: None,
    };
    let truth: BTreeMap<_, _> = (2..=6).map(|revision| (revision, make(revision))).collect();
    let recording = |seen: Vec<Seen>| Recording { collection: Some("pods"), after: 3, seen };
    let changes = |revisions: &[Revision]| {
        recording(revisions.iter().map(|revision| Seen::Change(make(*revision))).collect())
    };
    let good = changes(&[4, 5, 6]);
    assert_eq!(ordered(&good).and(unique(&good)).and(complete(&good, &truth)).and(bookmarked(&good)), Ok(()));
    assert!(ordered(&changes(&[5, 4, 6])).is_err());
    assert!(unique(&changes(&[4, 4, 5, 6])).is_err());
    assert!(complete(&changes(&[4, 6]), &truth).is_err());
    assert!(complete(&changes(&[3, 4, 5, 6]), &truth).is_err(), "more than asked for");
    assert!(complete(&changes(&[4, 5, 6, 7]), &truth).is_err(), "never committed");
    let mut wrong = changes(&[4, 5, 6]);
    wrong.seen[1] = Seen::Change(Change { value: None, ..make(5) });
    assert!(complete(&wrong, &truth).is_err(), "the wrong version");
    let gap = recording(vec![Seen::Change(make(4)), Seen::Resumed, Seen::Change(make(6))]);
    assert!(resumable(&gap, &truth).is_err());
    let late = recording(vec![Seen::Progress(5), Seen::Change(make(5))]);
    assert!(bookmarked(&late).is_err());
    assert!(bookmarked(&recording(vec![Seen::Progress(5), Seen::Progress(4)])).is_err());
}
