//! The store against a model: a `BTreeMap` and the list of everything that happened.

use std::collections::BTreeMap;

use proptest::prelude::*;
use store::{AtError, CommitError, Expect, History, Options, Revision, Store};

use crate::support::{Mark, delete, put};

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Put { collection: u8, name: u8, expect: Wish, buffered: bool },
    Delete { collection: u8, name: u8, expect: Wish },
    ReadAt { collection: u8, back: u64 },
    WatchFrom { collection: u8, back: u64 },
    WatchAllFrom { back: u64 },
    Compact { back: u64 },
    Reopen,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Wish {
    Absent,
    Current,
    Wrong,
    Any,
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let wish = prop_oneof![Just(Wish::Absent), Just(Wish::Current), Just(Wish::Wrong), Just(Wish::Any)];
    prop_oneof![
        12 => (0u8..3, 0u8..12, wish.clone(), any::<bool>())
            .prop_map(|(collection, name, expect, buffered)| Op::Put { collection, name, expect, buffered }),
        6 => (0u8..3, 0u8..12, wish).prop_map(|(collection, name, expect)| Op::Delete { collection, name, expect }),
        4 => (0u8..3, 0u64..60).prop_map(|(collection, back)| Op::ReadAt { collection, back }),
        3 => (0u8..3, 0u64..60).prop_map(|(collection, back)| Op::WatchFrom { collection, back }),
        2 => (0u64..60).prop_map(|back| Op::WatchAllFrom { back }),
        1 => (0u64..60).prop_map(|back| Op::Compact { back }),
        1 => Just(Op::Reopen),
    ]
}

type Collection = BTreeMap<String, (String, Revision, Revision)>;

/// What happened: revision, collection, name, the value after it.
type Happened = (Revision, u8, String, Option<String>);

struct Model {
    now: [Collection; 3],
    /// The state after every revision of this run.
    past: BTreeMap<Revision, [Collection; 3]>,
    happened: Vec<Happened>,
    revision: Revision,
    compacted: Revision,
    /// Per collection: nothing before this is known. Moves with restarts and limits.
    floor: [Revision; 3],
    all_floor: Revision,
    /// Events kept per collection.
    limit: usize,
}

impl Model {
    fn new(store: &Store<Mark>, limit: usize) -> Self {
        let now: [Collection; 3] = Default::default();
        Self {
            past: BTreeMap::from([(0, now.clone())]),
            now,
            happened: Vec::new(),
            revision: store.revision(),
            compacted: store.compacted(),
            floor: [0; 3],
            all_floor: store.revision(),
            limit,
        }
    }

    fn record(&mut self, collection: u8, name: String, value: Option<String>, revision: Revision) {
        self.revision = revision;
        let at = usize::from(collection);
        match value.clone() {
            Some(value) => {
                let created = self.now[at].get(&name).map_or(self.revision, |(_, created, _)| *created);
                self.now[at].insert(name.clone(), (value, created, self.revision));
            }
            None => drop(self.now[at].remove(&name)),
        }
        self.happened.push((self.revision, collection, name, value));
        self.past.insert(self.revision, self.now.clone());
        let kept: Vec<_> = self
            .happened
            .iter()
            .filter(|h| h.1 == collection && h.0 > self.floor[at].max(self.compacted))
            .collect();
        if kept.len() > self.limit {
            self.floor[at] = kept[kept.len() - self.limit - 1].0;
            self.all_floor = self.all_floor.max(self.floor[at]);
        }
    }

    fn oldest(&self, collection: u8) -> Revision {
        self.floor[usize::from(collection)].max(self.compacted)
    }

    fn expected(&self, collection: u8, revision: Revision) -> Vec<(String, String, Revision, Revision)> {
        let (_, state) = self.past.range(..=revision).next_back().expect("the past starts at 0");
        let entries = &state[usize::from(collection)];
        entries.iter().map(|(name, (value, c, m))| (name.clone(), value.clone(), *c, *m)).collect()
    }
}

fn collection_name(collection: u8) -> String {
    format!("c{collection}")
}

fn contents(snapshot: &store::Snapshot<Mark>) -> Vec<(String, String, Revision, Revision)> {
    snapshot
        .iter()
        .map(|entry| (entry.name.to_string(), entry.head.value.clone(), entry.created, entry.modified))
        .collect()
}

fn drain(mut next: impl FnMut() -> Option<store::Batch<Mark>>) -> Vec<Happened> {
    let mut seen = Vec::new();
    while let Some(batch) = next() {
        seen.extend(batch.iter().map(|event| {
            let collection = event.collection[1..].parse().expect("c0, c1 or c2");
            let value = event.current.as_ref().map(|entry| entry.head.value.clone());
            (event.revision, collection, event.name().to_owned(), value)
        }));
    }
    seen
}

pub(crate) async fn run(options: Options, ops: Vec<Op>, limit: usize) -> Result<(), TestCaseError> {
    let history = History { events: limit, age: std::time::Duration::ZERO, ..History::default() };
    let options = Options { history, ..options };
    let kept = options.backend != store::Backend::Memory;
    let on_etcd = matches!(options.backend, store::Backend::Etcd(_));
    let mut store = Store::<Mark>::open(options.clone()).expect("opens");
    let mut model = Model::new(&store, limit);
    for (step, op) in ops.into_iter().enumerate() {
        match op {
            Op::Put { collection, name, expect, buffered } => {
                let name = format!("n{name}");
                let current = model.now[usize::from(collection)].get(&name).map(|(_, _, modified)| *modified);
                let (expect, holds) = wish(expect, current);
                let value = format!("v{step}");
                let write = put(&collection_name(collection), &name, expect, &value);
                match store.commit(if buffered { write.buffered() } else { write }).await {
                    Ok(committed) => {
                        prop_assert!(holds);
                        prop_assert_eq!(committed.previous.map(|entry| entry.modified), current);
                        prop_assert!(numbered(&options, model.revision, committed.revision));
                        model.record(collection, name, Some(value), committed.revision);
                    }
                    Err(CommitError::Conflict { current: found }) => {
                        prop_assert!(!holds);
                        prop_assert_eq!(found.map(|entry| entry.modified), current);
                    }
                    Err(other) => return Err(TestCaseError::fail(other.to_string())),
                }
            }
            Op::Delete { collection, name, expect } => {
                let name = format!("n{name}");
                let current = model.now[usize::from(collection)].get(&name).map(|(_, _, modified)| *modified);
                let (expect, holds) = wish(expect, current);
                match store.commit(delete(&collection_name(collection), &name, expect)).await {
                    Ok(committed) => {
                        prop_assert!(holds && current.is_some());
                        prop_assert!(numbered(&options, model.revision, committed.revision));
                        model.record(collection, name, None, committed.revision);
                    }
                    Err(CommitError::NotFound) => prop_assert!(holds && current.is_none()),
                    Err(CommitError::Conflict { current: found }) => {
                        prop_assert!(!holds);
                        prop_assert_eq!(found.map(|entry| entry.modified), current);
                    }
                    Err(other) => return Err(TestCaseError::fail(other.to_string())),
                }
            }
            Op::ReadAt { collection, back } => {
                let revision = (model.revision + 2).saturating_sub(back);
                let found = store.snapshot_at(&collection_name(collection), revision);
                if revision > model.revision {
                    prop_assert_eq!(found.map(|_| ()), Err(AtError::Future { current: model.revision }));
                } else if revision < model.oldest(collection) {
                    let oldest = model.oldest(collection);
                    prop_assert_eq!(found.map(|_| ()), Err(AtError::Compacted { oldest }));
                } else {
                    prop_assert_eq!(contents(&found.unwrap()), model.expected(collection, revision));
                }
            }
            Op::WatchFrom { collection, back } => {
                let after = model.revision.saturating_sub(back);
                match store.watch(&collection_name(collection), after) {
                    Err(error) => {
                        prop_assert!(after < model.oldest(collection));
                        prop_assert_eq!(error.oldest, model.oldest(collection));
                    }
                    Ok(mut watch) => {
                        prop_assert!(after >= model.oldest(collection));
                        let seen = drain(|| watch.try_next().expect("not lost"));
                        let expected: Vec<_> = model
                            .happened
                            .iter()
                            .filter(|h| h.1 == collection && h.0 > after)
                            .cloned()
                            .collect();
                        prop_assert_eq!(seen, expected);
                        prop_assert_eq!(watch.progress(), model.revision);
                    }
                }
            }
            Op::WatchAllFrom { back } => {
                let after = model.revision.saturating_sub(back);
                let oldest = model.all_floor.max(model.compacted);
                match store.watch_all(after) {
                    Err(error) => prop_assert!(after < oldest && error.oldest == oldest),
                    Ok(mut watch) => {
                        prop_assert!(after >= oldest);
                        let seen = drain(|| watch.try_next().expect("not lost"));
                        let expected: Vec<_> =
                            model.happened.iter().filter(|h| h.0 > after).cloned().collect();
                        prop_assert_eq!(seen, expected);
                        prop_assert_eq!(watch.progress(), model.revision);
                    }
                }
            }
            Op::Compact { back } => {
                let revision = model.revision.saturating_sub(back);
                store.compact(revision);
                model.compacted = model.compacted.max(revision);
                prop_assert_eq!(store.compacted(), model.compacted);
            }
            Op::Reopen if kept => {
                store.close().await;
                store = Store::open(options.clone()).expect("opens again");
                if on_etcd {
                    // Nobody has compacted etcd here, so that it does not say from where its history is whole.
                    model.compacted = model.revision;
                }
                model.all_floor = model.revision;
                for collection in 0..3 {
                    let last = model.happened.iter().rev().find(|h| usize::from(h.1) == collection);
                    model.floor[collection] = last.map_or(0, |h| h.0);
                }
            }
            Op::Reopen => {}
        }
        prop_assert_eq!(store.revision(), model.revision);
        for collection in 0..3 {
            let snapshot = store.snapshot(&collection_name(collection));
            prop_assert_eq!(snapshot.revision(), model.revision);
            prop_assert_eq!(contents(&snapshot), model.expected(collection, model.revision));
        }
    }
    store.close().await;
    Ok(())
}

/// Embedded revisions have no gaps; etcd's are shared with others.
fn numbered(options: &Options, before: Revision, revision: Revision) -> bool {
    match options.backend {
        store::Backend::Etcd(_) => revision > before,
        store::Backend::Memory | store::Backend::File { .. } => revision == before + 1,
    }
}

fn wish(wish: Wish, current: Option<Revision>) -> (Expect, bool) {
    match wish {
        Wish::Absent => (Expect::Absent, current.is_none()),
        Wish::Current => (Expect::Revision(current.unwrap_or(7)), current.is_some()),
        Wish::Wrong => (Expect::Revision(current.unwrap_or(7) + 1), false),
        Wish::Any => (Expect::Any, true),
    }
}

fn block_on(test: impl Future<Output = Result<(), TestCaseError>>) -> Result<(), TestCaseError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_store_in_memory_is_its_model(ops in prop::collection::vec(op(), 1..120), limit in 1usize..40) {
        block_on(run(Options::memory(), ops, limit))?;
    }
}

proptest! {
    // Long runs: each write is handed to another thread and back.
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_past_is_exact_across_kept_trees(seed in 0u64..1_000, count in 500usize..1_800) {
        // Long runs on few names, so that several trees are kept; read back at random.
        block_on(async {
            let store = Store::<Mark>::open(Options::memory()).expect("opens");
            let mut dice = crate::support::Dice::new(seed);
            let mut now = BTreeMap::new();
            let mut past = vec![now.clone(), now.clone()];
            for n in 0..count {
                let name = format!("n{}", dice.below(200));
                if dice.below(3) == 0 && now.remove(&name).is_some() {
                    store.commit(delete("c", &name, Expect::Any)).await.expect("it is there");
                } else {
                    store.commit(put("c", &name, Expect::Any, &n.to_string())).await.expect("unconditional");
                    now.insert(name, n.to_string());
                }
                past.push(now.clone());
            }
            for _ in 0..20 {
                let revision = 1 + dice.below(count as u64 + 1);
                let snapshot = store.snapshot_at("c", revision).expect("inside the window");
                let found: BTreeMap<_, _> =
                    snapshot.iter().map(|e| (e.name.to_string(), e.head.value.clone())).collect();
                let expected = &past[usize::try_from(revision).expect("small")];
                prop_assert_eq!(&found, expected, "revision {}", revision);
            }
            Ok(())
        })?;
    }
}

proptest! {
    // Each case opens files and waits for real syncs.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_store_on_disk_is_its_model_across_restarts(ops in prop::collection::vec(op(), 1..80), limit in 1usize..40) {
        let dir = tempfile::tempdir().expect("a directory");
        block_on(run(Options::file(dir.path()), ops, limit))?;
    }
}
