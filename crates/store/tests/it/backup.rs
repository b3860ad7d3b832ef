//! Copies while the store runs, and stores from copies.

use store::{AtError, Compacted, Expect, OpenError, Options, RESTORE_JUMP, Store, restore};

use crate::support::{Mark, put, set, show, soon};

#[tokio::test]
async fn a_backup_holds_one_revision_although_writers_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::<Mark>::open(Options::file(dir.path().join("data"))).unwrap();
    // Each round writes the same number into two collections, first "left", then "right".
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for round in 0_u32..300 {
                for collection in ["left", "right"] {
                    let name = format!("n{}", round % 7);
                    let value = round.to_string();
                    store.commit(put(collection, &name, Expect::Any, &value).buffered()).await.unwrap();
                }
            }
        }
    });
    soon(store.wait_for(50)).await;
    let (file, source) = (dir.path().join("copy"), store.clone());
    let backup = soon(tokio::task::spawn_blocking(move || source.backup(&file))).await.unwrap().unwrap();
    writer.await.unwrap();

    let restored = restore(&dir.path().join("copy"), &dir.path().join("restored"), &[]).unwrap();
    assert_eq!(restored.entries, backup.entries);
    let copy = Store::<Mark>::open(Options::file(dir.path().join("restored"))).unwrap();
    for collection in ["left", "right"] {
        let expected = store.snapshot_at(collection, backup.revision).unwrap();
        assert_eq!(show(&copy.snapshot(collection)), show(&expected), "{collection} at {}", backup.revision);
    }
}

#[tokio::test]
async fn finding_12_a_restored_store_is_far_ahead_and_refuses_revisions_of_the_lost_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("copy");
    let store = Store::<Mark>::open(Options::memory()).unwrap();
    set(&store, "c", "a", "1").await; // 2
    set(&store, "d", "a", "1").await; // 3
    assert_eq!(store.backup(&file).unwrap().revision, 3);
    set(&store, "c", "a", "lost").await; // 4, shown to clients, but not in the backup

    let data = dir.path().join("restored");
    let revision = restore(&file, &data, &[]).unwrap().revision;
    assert!(revision >= 3 + RESTORE_JUMP && RESTORE_JUMP >= 1_000_000_000, "{revision}");
    let copy = Store::<Mark>::open(Options::file(&data)).unwrap();
    assert_eq!(copy.revision(), revision);
    assert_eq!(show(&copy.snapshot("c")), ["a=1@2/2"]);
    assert_eq!(copy.watch("c", 4).map(|_| ()).unwrap_err(), Compacted { oldest: revision });
    assert_eq!(copy.snapshot_at("c", 4).map(|_| ()).unwrap_err(), AtError::Compacted { oldest: revision });
    let busy_day = 3 + 20_000_000;
    assert_eq!(copy.watch("c", busy_day).map(|_| ()).unwrap_err(), Compacted { oldest: revision });
    assert_eq!(
        copy.watch("c", 3).map(|_| ()).unwrap_err(),
        Compacted { oldest: revision },
        "all is compacted"
    );
    assert!(copy.watch_all(3).is_err() && copy.watch("never written", 3).is_err());
    assert!(copy.watch("c", revision).is_ok());
    assert!(set(&copy, "c", "a", "2").await.revision > revision);
    copy.close().await;
    let copy = Store::<Mark>::open(Options::file(&data)).unwrap();
    assert_eq!(copy.watch("d", 500).map(|_| ()).unwrap_err(), Compacted { oldest: revision }, "also later");
}

#[tokio::test]
async fn a_second_restore_of_a_backup_refuses_revisions_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("copy");
    let store = Store::<Mark>::open(Options::memory()).unwrap();
    set(&store, "c", "a", "1").await;
    store.backup(&file).unwrap();
    restore(&file, &dir.path().join("first"), &[]).unwrap();
    let first = Store::<Mark>::open(Options::file(dir.path().join("first"))).unwrap();
    let shown = set(&first, "c", "a", "2").await.revision;
    // Restores are told apart by the clock, to the millisecond.
    while jiff::Timestamp::now().as_millisecond() < started_ms(shown) + 2 {
        tokio::task::yield_now().await;
    }
    restore(&file, &dir.path().join("second"), &[]).unwrap();
    let second = Store::<Mark>::open(Options::file(dir.path().join("second"))).unwrap();
    for n in 0..5 {
        set(&second, "c", &format!("n{n}"), "1").await;
    }
    assert!(second.watch("c", shown).is_err(), "{shown} belongs to another life");
}

/// The time that the first revision after a restore contains.
fn started_ms(revision: u64) -> i64 {
    i64::try_from(revision - RESTORE_JUMP).expect("a time")
}

#[cfg(unix)]
#[tokio::test]
async fn finding_24_a_restored_store_cannot_be_read_by_others_although_the_backup_can() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (file, data) = (dir.path().join("copy"), dir.path().join("new"));
    let store = Store::<Mark>::open(Options::memory()).unwrap();
    set(&store, "secrets", "a", "hidden").await;
    store.backup(&file).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    restore(&file, &data, &[]).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&data), mode(&data.join("store.redb"))), (0o700, 0o600));
}

#[tokio::test]
async fn nothing_is_overwritten_and_only_backups_are_restored() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("copy");
    let store = Store::<Mark>::open(Options::file(dir.path().join("data"))).unwrap();
    set(&store, "c", "a", "1").await;
    store.backup(&file).unwrap();
    assert!(matches!(store.backup(&file), Err(OpenError::Exists { .. })));
    assert!(matches!(restore(&file, &dir.path().join("data"), &[]), Err(OpenError::Exists { .. })));
    std::fs::write(dir.path().join("text"), "no backup").unwrap();
    let error = restore(&dir.path().join("text"), &dir.path().join("new"), &[]).unwrap_err();
    assert!(error.to_string().contains("text"), "{error}");
    assert!(!dir.path().join("new/store.redb").exists());
    assert!(restore(&dir.path().join("missing"), &dir.path().join("new"), &[]).is_err());
    restore(&file, &dir.path().join("new"), &[]).unwrap();
}

#[tokio::test]
async fn a_damaged_backup_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("copy");
    let store = Store::<Mark>::open(Options::memory()).unwrap();
    for n in 0..200 {
        set(&store, "c", &format!("n{n}"), &"x".repeat(500)).await;
    }
    store.backup(&file).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(100).position(|window| window.iter().all(|b| *b == b'x')).unwrap();
    bytes[at + 50] = b'y';
    std::fs::write(&file, bytes).unwrap();
    let error = restore(&file, &dir.path().join("new"), &[]).unwrap_err();
    assert!(error.to_string().contains("copy"), "{error}");
    assert!(!dir.path().join("new/store.redb").exists());
}

#[tokio::test]
async fn what_has_a_time_limit_gets_it_back_where_the_backup_does_not_say() {
    let dir = tempfile::tempdir().unwrap();
    let (file, data) = (dir.path().join("copy"), dir.path().join("data"));
    let store = Store::<Mark>::open(Options::memory()).unwrap();
    set(&store, "events", "old", "1").await;
    set(&store, "others", "kept", "1").await;
    store.backup(&file).unwrap();
    restore(&file, &data, &[("events", std::time::Duration::from_secs(60))]).unwrap();
    let clock = std::sync::Arc::new(Late);
    let copy = Store::<Mark>::open(Options { clock, ..Options::file(&data) }).unwrap();
    soon(async {
        while copy.get("events", "old").is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(copy.get("others", "kept").is_some());
}

/// A clock that is two minutes fast.
#[derive(Debug)]
struct Late;

impl store::Clock for Late {
    fn now_ms(&self) -> u64 {
        store::SystemClock.now_ms() + 120_000
    }
}
