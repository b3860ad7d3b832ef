//! A disk that is full, broken, or loses power.

use std::time::Duration;

use store::{CommitError, Expect, Faults, Options, Store};

use crate::support::{Dice, Mark, is_read_only, put, set, show, show_events, soon};

fn options(dir: &std::path::Path, faults: &Faults) -> Options {
    Options { faults: Some(faults.clone()), retry_after: Duration::ZERO, ..Options::file(dir) }
}

async fn refused_then_recovered(trouble: fn(&Faults)) {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let store = Store::<Mark>::open(options(dir.path(), &faults)).unwrap();
    set(&store, "c", "a", "1").await;
    let mut watch = store.watch("c", store.revision()).unwrap();
    store.commit(put("c", "b", Expect::Any, "buffered").buffered()).await.unwrap();

    trouble(&faults);
    assert!(is_read_only(store.commit(put("c", "a", Expect::Any, "refused")).await));
    assert!(is_read_only(store.commit(put("c", "a", Expect::Any, "refused").buffered()).await));
    let reason = store.stats().read_only.expect("the statistics tell the reason");
    assert!(reason.contains("store.redb"), "{reason}");
    assert_eq!(store.get("c", "a").unwrap().head.value, "1", "reads go on");
    assert_eq!(show_events(&soon(watch.next()).await.unwrap()), ["3 b: - -> buffered"], "watches go on");

    faults.heal();
    let revision = set(&store, "c", "a", "2").await.revision;
    assert!(revision > 3, "{revision}");
    assert_eq!(store.stats().read_only, None);
    assert_eq!(soon(watch.next()).await.unwrap()[0].revision, revision, "nothing refused was shown");
    let shown = show(&store.snapshot("c"));
    store.close().await;
    let store = Store::<Mark>::open(Options::file(dir.path())).unwrap();
    assert_eq!(show(&store.snapshot("c")), shown, "and all of it is on disk");
    assert!(store.revision() >= revision);
}

#[tokio::test]
async fn a_full_disk_makes_the_store_read_only_until_there_is_room() {
    refused_then_recovered(Faults::disk_full).await;
}

#[tokio::test]
async fn a_failed_sync_is_never_trusted_and_the_file_is_written_anew() {
    refused_then_recovered(Faults::sync_fails).await;
}

#[tokio::test]
async fn a_broken_disk_names_its_reason_and_is_not_hammered() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let options = Options { retry_after: Duration::from_secs(3_600), ..options(dir.path(), &faults) };
    let store = Store::<Mark>::open(options).unwrap();
    faults.disk_full();
    for _ in 0..3 {
        match store.commit(put("c", "a", Expect::Any, "1")).await {
            Err(CommitError::ReadOnly { reason }) => {
                assert!(reason.contains("no space left on device"), "{reason}");
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
    }
    faults.heal();
    assert!(
        is_read_only(store.commit(put("c", "a", Expect::Any, "1")).await),
        "the next attempt is an hour away"
    );
    assert_eq!(store.stats().syncs, 1);
}

#[tokio::test]
async fn a_disk_that_breaks_at_any_call_loses_nothing_acknowledged() {
    for calls in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::new();
        let store = Store::<Mark>::open(options(dir.path(), &faults)).unwrap();
        faults.break_after(calls);
        let mut acknowledged = None;
        for n in 0..30 {
            match store.commit(put("c", "a", Expect::Any, &n.to_string())).await {
                Ok(committed) => acknowledged = Some((n, committed.revision)),
                Err(CommitError::ReadOnly { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        drop(store);
        faults.heal();
        let store = Store::<Mark>::open(options(dir.path(), &faults)).unwrap();
        if let Some((n, revision)) = acknowledged {
            let entry = store.get("c", "a").expect("acknowledged, so it is there");
            let found: i32 = entry.head.value.parse().unwrap();
            // The refused write may have reached the disk, as with any crash.
            assert!(found == n || found == n + 1, "after {calls} calls: {found} instead of {n}");
            assert!(set(&store, "c", "a", "next").await.revision > revision);
        }
    }
}

#[tokio::test]
async fn a_power_cut_at_any_call_loses_nothing_acknowledged_and_repeats_no_revision() {
    for round in 0..40_u64 {
        let dir = tempfile::tempdir().unwrap();
        let mut dice = Dice::new(round + 1);
        let faults = Faults::new();
        faults.power_cut_after(20 + u32::try_from(dice.below(300)).unwrap(), round);
        let options = Options { retry_after: Duration::from_secs(3_600), ..options(dir.path(), &faults) };
        let Ok(store) = Store::<Mark>::open(options) else { continue };
        let mut durable = std::collections::BTreeMap::new();
        let mut newest = 0;
        for n in 0..200 {
            let name = format!("n{}", dice.below(10));
            let write = put("c", &name, Expect::Any, &format!("{n}{}", "x".repeat(700)));
            let (buffered, write) = match dice.below(8) {
                0 | 1 => (true, write.buffered()),
                2 => (false, write.patient()),
                _ => (false, write),
            };
            match store.commit(write).await {
                Ok(committed) => {
                    newest = committed.revision;
                    if buffered {
                        durable.remove(&name);
                    } else {
                        durable.insert(name, (n, committed.revision));
                    }
                }
                Err(_) => {
                    durable.remove(&name);
                    break;
                }
            }
        }
        drop(store);
        faults.heal();
        let store = Store::<Mark>::open(Options::file(dir.path())).unwrap();
        for (name, (n, revision)) in durable {
            let entry = store.get("c", &name).unwrap_or_else(|| panic!("round {round}: {name} is lost"));
            assert_eq!(entry.modified, revision, "round {round}");
            assert_eq!(entry.head.value.trim_end_matches('x'), n.to_string(), "round {round}");
        }
        let revision = set(&store, "c", "next", "1").await.revision;
        assert!(revision > newest, "round {round}: {revision} after {newest}");
    }
}

#[tokio::test]
async fn who_saw_a_lost_write_has_to_start_over() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let options = Options { flush_after: Duration::from_secs(3_600), ..options(dir.path(), &faults) };
    let store = Store::<Mark>::open(options).unwrap();
    set(&store, "c", "a", "1").await; // 2, durable
    let lost = store.commit(put("c", "a", Expect::Any, "2").buffered()).await.unwrap().revision;
    assert_eq!(lost, 3);
    faults.disk_full();
    store.close().await;
    faults.heal();
    let store = Store::<Mark>::open(Options::file(dir.path())).unwrap();
    assert_eq!(show(&store.snapshot("c")), ["a=1@2/2"], "it was only buffered");
    assert!(store.watch("c", 2).is_ok(), "up to here both lives agree");
    let oldest = store.watch("c", lost).map(|_| ()).unwrap_err().oldest;
    assert_eq!(oldest, store.revision());
    assert!(store.snapshot_at("c", lost).is_err());
    assert!(set(&store, "c", "a", "3").await.revision > oldest);
}

#[tokio::test]
async fn finding_12_whoever_saw_the_last_reserved_revision_before_a_crash_has_to_start_over() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let hour = Duration::from_secs(3_600);
    let store =
        Store::<Mark>::open(Options { flush_after: hour, retry_after: hour, ..options(dir.path(), &faults) })
            .unwrap();
    // A new store reserves ten thousand revisions. The buffered writes show all of them and none is on disk.
    let before = store.stats().syncs;
    let mut lost = 0;
    while lost < 10_001 {
        lost = store.commit(put("c", "a", Expect::Any, "lost").buffered()).await.unwrap().revision;
    }
    assert_eq!((lost, store.stats().syncs), (10_001, before), "nothing was synced meanwhile");
    faults.disk_full();
    store.close().await;
    faults.heal();
    let store = Store::<Mark>::open(Options::file(dir.path())).unwrap();
    assert!(store.revision() > lost, "{}", store.revision());
    assert!(store.watch("c", lost).is_err() && store.snapshot_at("c", lost).is_err());
}

#[tokio::test]
async fn waiting_for_a_buffered_write_puts_it_on_disk_or_fails() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let hour = Duration::from_secs(3_600);
    let options = Options { flush_after: hour, retry_after: hour, ..options(dir.path(), &faults) };
    let store = Store::<Mark>::open(options).unwrap();
    let before = store.stats().syncs;
    let first = store.commit(put("c", "a", Expect::Any, "1").buffered()).await.unwrap().revision;
    soon(store.wait_until_durable(first)).await.unwrap();
    assert_eq!(store.stats().syncs, before + 1);
    soon(store.wait_until_durable(first)).await.unwrap();
    assert_eq!(store.stats().syncs, before + 1, "what is on disk is not waited for");

    let second = store.commit(put("c", "a", Expect::Any, "2").buffered()).await.unwrap().revision;
    faults.disk_full();
    let refused = soon(store.wait_until_durable(second)).await;
    assert!(matches!(refused, Err(CommitError::ReadOnly { .. })), "{refused:?}");
    assert!(soon(store.wait_until_durable(first)).await.is_ok(), "this one is on disk");
    assert!(Store::<Mark>::open(Options::memory()).unwrap().wait_until_durable(77).await.is_ok());
}

#[tokio::test]
async fn finding_18_a_store_whose_thread_is_gone_says_so_to_everybody() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let store = Store::<Mark>::open(options(dir.path(), &faults)).unwrap();
    set(&store, "c", "a", "1").await;
    let mut watch = store.watch("c", store.revision()).unwrap();
    let closed_in_order = Store::<Mark>::open(Options::memory()).unwrap();
    closed_in_order.close().await;
    assert!(futures::FutureExt::now_or_never(closed_in_order.death()).is_none(), "this is not a failure");

    faults.bug();
    let under_way = soon(store.commit(put("c", "a", Expect::Any, "2"))).await;
    assert!(matches!(under_way, Err(CommitError::Dead { .. })), "{under_way:?}");
    let reason = soon(store.death()).await;
    assert!(reason.contains("a test asked for this panic"), "{reason}");
    for _ in 0..2 {
        let later = soon(store.commit(put("c", "a", Expect::Any, "3"))).await;
        assert!(matches!(later, Err(CommitError::Dead { .. })), "{later:?}");
    }
    let stats = store.stats();
    assert!(stats.dead && stats.read_only.as_ref() == Some(&reason));
    assert!(soon(watch.next()).await.is_err());
    assert_eq!(store.get("c", "a").unwrap().head.value, "1", "reads go on");
    soon(store.close()).await;
}
