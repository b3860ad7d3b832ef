//! The directory: what survives, who may use it, what is refused.

use std::{collections::HashMap, time::Duration};

use store::{AtError, CommitError, Compacted, Expect, OpenError, Options, Store};

use crate::support::{Mark, delete, put, set, show, soon};

fn open(dir: &std::path::Path) -> Store<Mark> {
    Store::open(Options::file(dir)).expect("the directory is usable")
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    set(&store, "c", "a", "1").await;
    set(&store, "c", "b", "1").await;
    set(&store, "c", "a", "2").await;
    set(&store, "d", "x", "1").await;
    store.commit(delete("d", "x", Expect::Any)).await.unwrap();
    store.commit(put("c", "e", Expect::Any, "buffered").buffered()).await.unwrap();
    store.close().await;

    let store = open(dir.path());
    assert_eq!(show(&store.snapshot("c")), ["a=2@2/4", "b=1@3/3", "e=buffered@7/7"]);
    assert_eq!(store.get("c", "a").unwrap().head.key, "c/a", "heads are parsed again");
    assert!(store.snapshot("d").is_empty());
    assert_eq!(store.revision(), 7, "closed in order: no jump");
    assert_eq!(set(&store, "c", "f", "1").await.revision, 8);
}

#[tokio::test]
async fn after_a_restart_quiet_collections_are_watched_on_and_busy_ones_start_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    set(&store, "quiet", "a", "1").await; // 2
    set(&store, "emptied", "a", "1").await; // 3
    store.commit(delete("emptied", "a", Expect::Any)).await.unwrap(); // 4
    set(&store, "busy", "a", "1").await; // 5
    set(&store, "busy", "a", "2").await; // 6
    store.close().await;

    let store = open(dir.path());
    assert!(store.watch("quiet", 2).is_ok());
    assert_eq!(show(&store.snapshot_at("quiet", 3).unwrap()), ["a=1@2/2"]);
    assert_eq!(store.watch("quiet", 1).map(|_| ()).unwrap_err(), Compacted { oldest: 2 });
    assert!(store.watch("emptied", 4).is_ok());
    assert_eq!(store.watch("emptied", 3).map(|_| ()).unwrap_err(), Compacted { oldest: 4 });
    assert_eq!(store.watch("busy", 5).map(|_| ()).unwrap_err(), Compacted { oldest: 6 });
    assert!(store.watch("busy", 6).is_ok());
    assert_eq!(store.snapshot_at("busy", 5).map(|_| ()), Err(AtError::Compacted { oldest: 6 }));
    assert_eq!(store.watch_all(5).map(|_| ()).unwrap_err(), Compacted { oldest: 6 });
}

#[tokio::test]
async fn a_directory_belongs_to_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let error = Store::<Mark>::open(Options::file(dir.path())).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }));
    let expected = format!("the data directory {} is in use by another process", dir.path().display());
    assert_eq!(error.to_string(), expected);
    drop(first);
    open(dir.path());
}

#[tokio::test]
async fn a_file_of_a_newer_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).close().await;
    let path = dir.path().join("store.redb");
    {
        let database = redb::Database::open(&path).unwrap();
        let write = database.begin_write().unwrap();
        let meta = redb::TableDefinition::<&str, &[u8]>::new("meta");
        write.open_table(meta).unwrap().insert("format", 2_u64.to_le_bytes().as_slice()).unwrap();
        write.commit().unwrap();
    }
    let error = Store::<Mark>::open(Options::file(dir.path())).map(|_| ()).unwrap_err();
    let expected =
        format!("{} has format 2, this program reads up to 1; use a newer program", path.display());
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    std::fs::write(&path, "something else entirely").unwrap();
    let error = Store::<Mark>::open(Options::file(dir.path())).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("store.redb"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "something else entirely");
}

#[cfg(unix)]
#[tokio::test]
async fn nobody_else_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let store = open(&data);
    set(&store, "secrets", "a", "hidden").await;
    store.backup(&dir.path().join("backup")).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    assert_eq!(mode(&data.join("store.redb")), 0o600);
    assert_eq!(mode(&dir.path().join("backup")), 0o600);
}

#[tokio::test]
async fn buffered_writes_reach_the_disk_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { flush_after: Duration::from_millis(1), ..Options::file(dir.path()) };
    let store = Store::<Mark>::open(options).unwrap();
    let before = store.stats().syncs;
    store.commit(put("c", "a", Expect::Any, "1").buffered()).await.unwrap();
    assert!(store.get("c", "a").is_some(), "visible at once");
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while store.stats().syncs == before {
        assert!(std::time::Instant::now() < deadline, "never flushed");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_wait_together_share_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { set(&store, "c", &format!("n{n}"), "1").await.revision })
        })
        .collect();
    let mut revisions = Vec::new();
    for task in tasks {
        revisions.push(task.await.unwrap());
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (2..202).collect::<Vec<_>>());
    let stats = store.stats();
    assert!(stats.syncs < 150, "{} syncs for 200 writes", stats.syncs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patient_writes_share_the_sync_of_others_and_do_not_wait_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3_600);
    let store = Store::<Mark>::open(Options { gather: hour, flush_after: hour, ..Options::file(dir.path()) })
        .unwrap();
    let before = store.stats().syncs;
    let mut patient = std::pin::pin!(store.commit(put("c", "a", Expect::Any, "1").patient()));
    assert!(futures::poll!(patient.as_mut()).is_pending());
    store.commit(put("c", "b", Expect::Any, "1").buffered()).await.unwrap();
    assert!(store.get("c", "a").is_none(), "one that needs no disk takes no other one along");
    set(&store, "c", "c", "1").await;
    let committed = soon(patient).await.unwrap();
    assert_eq!((committed.revision, store.stats().syncs), (3, before + 1));
    // Also if there is no other write: when its time has come, or the store is closed.
    let last = store.commit(put("c", "d", Expect::Any, "1").patient());
    let mut last = std::pin::pin!(last);
    assert!(futures::poll!(last.as_mut()).is_pending());
    store.close().await;
    assert_eq!(soon(last).await.unwrap().revision, 5);
    let options = Options { gather: Duration::from_millis(1), ..Options::file(dir.path()) };
    let store = Store::<Mark>::open(options).unwrap();
    assert_eq!(show(&store.snapshot("c")).len(), 4);
    soon(store.commit(put("c", "e", Expect::Any, "1").patient())).await.unwrap();
}

#[tokio::test]
async fn what_is_overtaken_already_waits_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let first = set(&store, "c", "a", "1").await.revision;
    set(&store, "c", "a", "2").await;
    for expect in [Expect::Absent, Expect::Revision(first)] {
        let refused = futures::FutureExt::now_or_never(store.commit(put("c", "a", expect, "3")));
        assert!(matches!(refused, Some(Err(CommitError::Conflict { current: Some(_) }))), "{refused:?}");
    }
}

#[tokio::test]
async fn many_entries_are_loaded_with_their_own_heads() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut expected = HashMap::new();
    for n in 0..3_000_u32 {
        let (name, value) = (format!("n{:04}", n * 7 % 3_000), format!("v{n}"));
        store.commit(put("c", &name, Expect::Any, &value).buffered()).await.unwrap();
        expected.insert(name, value);
    }
    store.close().await;
    let store = open(dir.path());
    let snapshot = store.snapshot("c");
    assert_eq!(snapshot.len(), 3_000);
    for entry in &snapshot {
        assert_eq!(entry.head.value, expected[&*entry.name]);
        assert_eq!(entry.head.key, format!("c/{}", entry.name));
    }
}

#[tokio::test]
async fn a_closed_store_answers_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.close().await;
    assert!(matches!(store.commit(put("c", "a", Expect::Any, "1")).await, Err(CommitError::Closed)));
}

#[test]
fn finding_24_the_page_for_operators_names_the_limits_of_the_code() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/store.md");
    let page = std::fs::read_to_string(page).unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let store::History { events, age, max_events, bytes, total_bytes } = store::History::default();
    let thousands = |number: usize| format!("{},{:03}", number / 1_000, number % 1_000);
    let age = age.as_secs();
    for words in [
        format!("the newest {} changes and all that are younger than {age} seconds", thousands(events)),
        format!("at most {} changes or {} MiB", thousands(max_events), bytes >> 20),
        format!("history (at most {} MiB over all kinds)", total_bytes >> 20),
    ] {
        assert!(page.contains(&words), "the page does not say: {words}");
    }
    assert!(store::RESTORE_JUMP >= 1_000_000_000 && page.contains("at least one billion ahead"));
}
