//! Single operations, on a new store in memory and on a new one on etcd.

use std::{collections::HashSet, ops::Bound};

use store::{
    AtError, CommitError, Compacted, Expect, FIRST_REVISION, History, Lost, Options, Store, Unchanged,
};

use crate::support::{Mark, delete, put, set, show, show_events, soon};

/// On etcd each has an etcd of its own, so that revisions begin with the first one there as well.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod in_memory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(super::open()).await;
                }
            )*
        }

        mod on_etcd {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let Some(place) = crate::etcd::Place::start().await else { return };
                    super::$name(place.store()).await;
                }
            )*
        }
    };
}

on_both! {
    the_first_write_of_a_new_store_gets_revision_2,
    a_put_keeps_the_creation_and_moves_the_modification,
    expectations_are_met_or_answered_with_what_is_there,
    of_writes_in_one_batch_none_counts_on_what_another_has_changed,
    a_name_that_comes_back_is_created_anew,
    a_snapshot_stays_as_it_was,
    a_range_is_ordered_and_bounded,
    several_collections_can_be_frozen_at_one_revision,
    the_past_is_exact_and_the_future_is_refused,
    compaction_forgets_the_past_but_not_for_running_watches,
    a_watch_shows_both_versions_and_knows_its_progress,
    a_watch_may_start_in_the_future_and_before_the_collection_exists,
    waiting_for_a_revision_ends_when_it_is_there,
    closing_ends_writes_and_watches_but_not_reads,
    concurrent_creators_of_one_name_have_one_winner,
}

fn open() -> Store<Mark> {
    Store::open(Options::memory()).expect("memory is always there")
}

async fn the_first_write_of_a_new_store_gets_revision_2(store: Store<Mark>) {
    assert_eq!(store.revision(), FIRST_REVISION);
    assert_eq!(set(&store, "pods", "a", "1").await.revision, 2);
    assert_eq!(store.revision(), 2);
}

async fn a_put_keeps_the_creation_and_moves_the_modification(store: Store<Mark>) {
    let first = set(&store, "pods", "a", "1").await;
    assert!(first.previous.is_none());
    let second = set(&store, "pods", "a", "2").await;
    assert_eq!(second.previous.unwrap().modified, first.revision);
    let entry = store.get("pods", "a").unwrap();
    assert_eq!((entry.created, entry.modified, &entry.value[..]), (2, 3, &b"2"[..]));
}

async fn expectations_are_met_or_answered_with_what_is_there(store: Store<Mark>) {
    let conflict = |result| match result {
        Err(CommitError::Conflict { current }) => {
            current.map(|entry: std::sync::Arc<store::Entry<Mark>>| entry.modified)
        }
        other => panic!("expected a conflict, got {other:?}"),
    };
    assert_eq!(conflict(store.commit(put("c", "a", Expect::Revision(7), "x")).await), None);
    store.commit(put("c", "a", Expect::Absent, "1")).await.unwrap();
    assert_eq!(conflict(store.commit(put("c", "a", Expect::Absent, "2")).await), Some(2));
    assert_eq!(conflict(store.commit(put("c", "a", Expect::Revision(3), "2")).await), Some(2));
    store.commit(put("c", "a", Expect::Revision(2), "2")).await.unwrap();
    assert_eq!(conflict(store.commit(delete("c", "a", Expect::Revision(2))).await), Some(3));
    let deleted = store.commit(delete("c", "a", Expect::Revision(3))).await.unwrap();
    assert_eq!((deleted.revision, deleted.entry.is_none(), deleted.previous.unwrap().modified), (4, true, 3));
    assert_eq!(conflict(store.commit(delete("c", "a", Expect::Revision(3))).await), None);
    for expect in [Expect::Any, Expect::Absent] {
        assert!(matches!(store.commit(delete("c", "a", expect)).await, Err(CommitError::NotFound)));
    }
    assert_eq!(store.revision(), 4, "refused writes take no revision");
}

#[tokio::test]
async fn writes_that_belong_together_all_happen_or_none_does() {
    let store = open();
    let quota = set(&store, "quotas", "q", "0").await.revision;
    let both = |expect: Expect, value: &str| vec![put("quotas", "q", expect, value)];
    let created = put("bindings", "a", Expect::Absent, "x");
    let committed = store.commit_with(created, both(Expect::Revision(quota), "1")).await.unwrap();
    let (binding, counted) = (store.get("bindings", "a").unwrap(), store.get("quotas", "q").unwrap());
    assert_eq!((committed.revision, binding.modified, counted.modified), (3, 3, 4));
    assert_eq!((&counted.value[..], store.revision()), (&b"1"[..], 4));

    let late = put("bindings", "b", Expect::Absent, "x");
    match store.commit_with(late, both(Expect::Revision(quota), "2")).await {
        Err(CommitError::Overtaken { collection, name }) => {
            assert_eq!((&*collection, &*name), ("quotas", "q"))
        }
        other => panic!("{other:?}"),
    }
    let taken = put("bindings", "a", Expect::Absent, "y");
    let refused = store.commit_with(taken, both(Expect::Revision(4), "2")).await;
    assert!(matches!(refused, Err(CommitError::Conflict { current: Some(_) })), "{refused:?}");
    assert_eq!(show(&store.snapshot("bindings")), ["a=x@3/3"]);
    assert_eq!((show(&store.snapshot("quotas")), store.revision()), (vec!["q=1@2/4".to_owned()], 4));

    store.commit_with(delete("bindings", "a", Expect::Revision(3)), both(Expect::Any, "0")).await.unwrap();
    assert_eq!((show(&store.snapshot("bindings")).len(), store.revision()), (0, 6));
}

#[tokio::test]
async fn a_write_happens_only_while_what_it_rests_on_is_unchanged() {
    let store = open();
    let seen = set(&store, "namespaces", "n", "1").await.revision;
    let rests = |revision| vec![Unchanged { collection: "namespaces".into(), name: "n".into(), revision }];
    let create = |name: &str| put("maps", name, Expect::Absent, "x");
    let made = store.commit_while(create("a"), Vec::new(), rests(seen)).await.unwrap();
    assert_eq!((made.revision, store.revision()), (3, 3), "it is compared, not written");

    // Changed, deleted, and made anew.
    let changed = set(&store, "namespaces", "n", "2").await.revision;
    let overtaken = async |revision| {
        let refused = store.commit_while(create("b"), Vec::new(), rests(revision)).await;
        matches!(refused, Err(CommitError::Overtaken { collection, .. }) if &*collection == "namespaces")
    };
    assert!(overtaken(seen).await);
    store.commit(delete("namespaces", "n", Expect::Any)).await.unwrap();
    assert!(overtaken(changed).await);
    set(&store, "namespaces", "n", "3").await;
    assert!(overtaken(changed).await);
    assert_eq!(show(&store.snapshot("maps")), ["a=x@3/3"]);
}

async fn of_writes_in_one_batch_none_counts_on_what_another_has_changed(store: Store<Mark>) {
    let mut quota = set(&store, "quotas", "q", "0").await.revision;
    let mut done = 0;
    while done < 20 {
        let tries = (0..20).map(|n| {
            let binding = put("bindings", &format!("b{done}-{n}"), Expect::Absent, "x");
            store.commit_with(binding, vec![put("quotas", "q", Expect::Revision(quota), "n")])
        });
        let outcomes = futures::future::join_all(tries).await;
        let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(made, 1, "{outcomes:?}");
        done += made;
        quota = store.get("quotas", "q").unwrap().modified;
    }
    assert_eq!(show(&store.snapshot("bindings")).len(), 20);
}

async fn a_name_that_comes_back_is_created_anew(store: Store<Mark>) {
    set(&store, "c", "a", "1").await;
    store.commit(delete("c", "a", Expect::Any)).await.unwrap();
    set(&store, "c", "a", "2").await;
    assert_eq!(show(&store.snapshot("c")), ["a=2@4/4"]);
}

#[tokio::test]
async fn values_and_keys_have_limits() {
    let store = Store::open(Options { max_value_bytes: 4, ..Options::memory() }).unwrap();
    let error = store.commit(put("c", "a", Expect::Any, "12345")).await.unwrap_err();
    assert!(matches!(error, CommitError::TooLarge { size: 5, limit: 4 }));
    assert_eq!(error.to_string(), "the value has 5 bytes, more than the limit of 4");
    set(&store, "c", "a", "1234").await;
    for (collection, name) in [("", "a"), ("c", ""), ("c", "x".repeat(5_000).as_str())] {
        let result = store.commit(put(collection, name, Expect::Any, "1")).await;
        assert!(matches!(result, Err(CommitError::InvalidKey { .. })));
    }
}

async fn a_snapshot_stays_as_it_was(store: Store<Mark>) {
    set(&store, "c", "a", "1").await;
    set(&store, "c", "b", "1").await;
    let before = store.snapshot("c");
    set(&store, "c", "a", "2").await;
    store.commit(delete("c", "b", Expect::Any)).await.unwrap();
    assert_eq!(show(&before), ["a=1@2/2", "b=1@3/3"]);
    assert_eq!((before.revision(), before.len()), (3, 2));
    assert_eq!(show(&store.snapshot("c")), ["a=2@2/4"]);
    assert_eq!(before.get("b").unwrap().modified, 3);
}

async fn a_range_is_ordered_and_bounded(store: Store<Mark>) {
    for name in ["b/2", "a/1", "b/1", "c/1"] {
        set(&store, "c", name, "x").await;
    }
    let snapshot = store.snapshot("c");
    let names = |from, to| snapshot.range(from, to).map(|entry| &*entry.name).collect::<Vec<_>>();
    assert_eq!(names(Bound::Unbounded, Bound::Unbounded), ["a/1", "b/1", "b/2", "c/1"]);
    assert_eq!(names(Bound::Included("b/"), Bound::Excluded("b0")), ["b/1", "b/2"]);
    assert_eq!(names(Bound::Excluded("b/1"), Bound::Unbounded), ["b/2", "c/1"]);
    assert_eq!(snapshot.rank("b0") - snapshot.rank("b/"), 2);
}

async fn several_collections_can_be_frozen_at_one_revision(store: Store<Mark>) {
    set(&store, "a", "x", "1").await;
    set(&store, "b", "y", "1").await;
    let frozen = store.snapshots(["a", "b", "none"]);
    assert_eq!(frozen.iter().map(|s| (s.revision(), s.len())).collect::<Vec<_>>(), [(3, 1), (3, 1), (3, 0)]);
    assert_eq!(store.collections(), [("a".into(), 1), ("b".into(), 1)]);
}

async fn the_past_is_exact_and_the_future_is_refused(store: Store<Mark>) {
    set(&store, "c", "a", "1").await; // 2
    set(&store, "other", "z", "1").await; // 3
    set(&store, "c", "b", "1").await; // 4
    set(&store, "c", "a", "2").await; // 5
    store.commit(delete("c", "b", Expect::Any)).await.unwrap(); // 6
    let at = |revision| store.snapshot_at("c", revision).map(|snapshot| show(&snapshot));
    assert_eq!(at(1).unwrap(), Vec::<String>::new());
    assert_eq!(at(2).unwrap(), ["a=1@2/2"]);
    assert_eq!(at(3).unwrap(), ["a=1@2/2"]);
    assert_eq!(at(4).unwrap(), ["a=1@2/2", "b=1@4/4"]);
    assert_eq!(at(5).unwrap(), ["a=2@2/5", "b=1@4/4"]);
    assert_eq!(at(6).unwrap(), ["a=2@2/5"]);
    assert_eq!(at(7), Err(AtError::Future { current: 6 }));
    assert_eq!(store.snapshot_at("c", 4).unwrap().revision(), 4);
}

async fn compaction_forgets_the_past_but_not_for_running_watches(store: Store<Mark>) {
    let mut up_to_date = store.watch("c", 1).unwrap();
    let mut behind = store.watch("c", 1).unwrap();
    let mut everything = store.watch_all(1).unwrap();
    for value in ["1", "2", "3"] {
        set(&store, "c", "a", value).await; // 2, 3, 4
    }
    set(&store, "d", "a", "1").await; // 5
    up_to_date.next().await.unwrap();
    everything.next().await.unwrap();
    store.compact(5);
    assert_eq!(store.compacted(), 5);
    assert_eq!(store.snapshot_at("c", 4).map(|_| ()), Err(AtError::Compacted { oldest: 5 }));
    assert!(store.snapshot_at("c", 5).is_ok());
    assert_eq!(store.watch("c", 4).map(|_| ()).unwrap_err(), Compacted { oldest: 5 });
    assert_eq!(store.watch_all(4).map(|_| ()).unwrap_err(), Compacted { oldest: 5 });
    set(&store, "c", "a", "4").await;
    assert_eq!(show_events(&up_to_date.next().await.unwrap()), ["6 a: 3 -> 4"]);
    assert_eq!(show_events(&everything.next().await.unwrap()), ["6 a: 3 -> 4"]);
    assert_eq!(behind.next().await.unwrap_err(), Lost::Behind { oldest: 5 });
    store.compact(1_000);
    assert_eq!(store.compacted(), 6, "compaction does not reach into the future");
    store.compact(3);
    assert_eq!(store.compacted(), 6, "nor does it go back");
}

#[tokio::test]
async fn the_history_keeps_to_its_limits() {
    let limits = |change: fn(&mut History)| {
        let mut history = History { events: 10, age: std::time::Duration::ZERO, ..History::default() };
        change(&mut history);
        Store::<Mark>::open(Options { history, ..Options::memory() }).unwrap()
    };
    let by_count = limits(|_| {});
    let by_bytes = limits(|history| history.bytes = 5 * (256 + 100));
    let by_total = limits(|history| history.total_bytes = 4 * (256 + 100));
    let value = "x".repeat(100);
    for store in [&by_count, &by_bytes, &by_total] {
        for n in 0..50 {
            set(store, if n % 2 == 0 { "even" } else { "odd" }, "a", &value).await;
        }
    }
    assert_eq!(by_count.stats().history_events, 20);
    assert_eq!(by_bytes.stats().history_events, 10);
    assert!((1..=4).contains(&by_total.stats().history_events));
    // The last event in "even" is revision 50, its 10th from the end 32.
    assert_eq!(by_count.watch("even", 29).map(|_| ()).unwrap_err(), Compacted { oldest: 30 });
    let events = by_count.watch("even", 30).unwrap().next().await.unwrap();
    assert_eq!(
        events.iter().map(|event| event.revision).collect::<Vec<_>>(),
        (32..=50).step_by(2).collect::<Vec<_>>()
    );
    for store in [&by_count, &by_bytes, &by_total] {
        assert!(store.watch_all(10).is_err());
        let oldest = store.watch_all(10).map(|_| ()).unwrap_err().oldest;
        let mut watch = store.watch_all(oldest).unwrap();
        let seen: Vec<_> = watch.next().await.unwrap().iter().map(|event| event.revision).collect();
        assert_eq!(seen, (oldest + 1..=51).collect::<Vec<_>>(), "what is left is complete");
    }
}

async fn a_watch_shows_both_versions_and_knows_its_progress(store: Store<Mark>) {
    let mut watch = store.watch("c", store.revision()).unwrap();
    assert_eq!(watch.progress(), 1);
    set(&store, "c", "a", "1").await;
    set(&store, "c", "a", "2").await;
    assert_eq!(watch.progress(), 1, "events are waiting");
    store.commit(delete("c", "a", Expect::Any)).await.unwrap();
    let seen = watch.next().await.unwrap();
    assert_eq!(show_events(&seen), ["2 a: - -> 1", "3 a: 1 -> 2", "4 a: 2 -> -"]);
    assert!(seen[0].is_create() && seen[2].is_delete());
    set(&store, "elsewhere", "b", "1").await;
    assert_eq!(watch.progress(), 5, "a quiet collection moves on with the store");
    assert!(watch.try_next().unwrap().is_none());
    set(&store, "c", "a", "3").await;
    assert_eq!(watch.progress(), 5, "it does not go back when the next event waits");
    watch.next().await.unwrap();
    assert_eq!(watch.progress(), 6);
}

async fn a_watch_may_start_in_the_future_and_before_the_collection_exists(store: Store<Mark>) {
    let mut watch = store.watch("c", 3).unwrap();
    for value in ["1", "2", "3"] {
        set(&store, "c", "a", value).await;
    }
    assert_eq!(show_events(&soon(watch.next()).await.unwrap()), ["4 a: 2 -> 3"]);
}

async fn waiting_for_a_revision_ends_when_it_is_there(store: Store<Mark>) {
    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            store.wait_for(3).await;
            store.revision()
        }
    });
    set(&store, "c", "a", "1").await;
    set(&store, "c", "a", "2").await;
    assert!(soon(waiting).await.unwrap() >= 3);
}

async fn closing_ends_writes_and_watches_but_not_reads(store: Store<Mark>) {
    let mut watch = store.watch("c", 1).unwrap();
    let mut idle = store.watch("quiet", 1).unwrap();
    set(&store, "c", "a", "1").await;
    soon(store.close()).await;
    soon(store.close()).await;
    assert!(matches!(store.commit(put("c", "a", Expect::Any, "2")).await, Err(CommitError::Closed)));
    assert_eq!(show(&store.snapshot("c")), ["a=1@2/2"]);
    assert_eq!(watch.next().await.unwrap().len(), 1, "what was there before still comes");
    assert_eq!(watch.next().await.unwrap_err(), Lost::Closed);
    assert_eq!(soon(idle.next()).await.unwrap_err(), Lost::Closed);
    soon(store.wait_for(1_000)).await;
}

async fn concurrent_creators_of_one_name_have_one_winner(store: Store<Mark>) {
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(put("c", "a", Expect::Absent, &n.to_string())).await })
        })
        .collect();
    let mut winners = HashSet::new();
    for task in tasks {
        match task.await.unwrap() {
            Ok(committed) => assert!(winners.insert(committed.revision)),
            Err(CommitError::Conflict { current }) => assert_eq!(current.unwrap().modified, 2),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(winners.len(), 1);
}

#[tokio::test]
async fn statistics_tell_what_is_there() {
    let store = open();
    let _watch = store.watch("c", 1).unwrap();
    set(&store, "c", "a", "123").await;
    set(&store, "c", "b", "45").await;
    set(&store, "c", "a", "6").await;
    let stats = store.stats();
    assert_eq!((stats.revision, stats.entries, stats.collections), (4, 2, 1));
    assert_eq!((stats.value_bytes, stats.history_events, stats.watchers), (3, 3, 1));
    assert_eq!((stats.writes, stats.syncs, stats.read_only), (3, 0, None));
}

#[test]
fn handles_watches_and_their_futures_can_move_between_threads() {
    fn movable<T: Send>(_: &T) {}
    let store = open();
    movable(&store);
    movable(&store.commit(put("c", "a", Expect::Any, "1")));
    movable(&store.wait_for(1));
    movable(&store.close());
    let mut watch = store.watch("c", 1).unwrap();
    movable(&watch.next());
    movable(&store.watch_all(1).unwrap().next());
    movable(&store.snapshot("c"));
}
