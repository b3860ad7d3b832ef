//! The store on etcd: the same laws and promises, and what only several servers and a failing etcd can show.

use std::time::Duration;

use clusters::Etcd;
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use store::{
    CommitError, EtcdError, EtcdOptions, Expect, Lost, OpenError, Options, Store, Unchanged, restore,
    restore_into_etcd,
};

use crate::{
    laws, promises,
    support::{Mark, delete, put, set, show, show_events, soon},
};

/// An etcd of the test's own, and stores on it.
pub(crate) struct Place {
    etcd: Etcd,
    _dir: tempfile::TempDir,
}

impl Place {
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    async fn start_with(flags: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let etcd = Etcd::alone_with(dir.path(), flags).await.expect("etcd starts")?;
        Some(Self { etcd, _dir: dir })
    }

    fn options(&self, prefix: &str) -> EtcdOptions {
        EtcdOptions {
            prefix: prefix.to_owned(),
            compact_every: None,
            // A busy disk takes its time, and that is not what is tested.
            timeout: Duration::from_secs(60),
            ..EtcdOptions::new([self.etcd.endpoint.clone()])
        }
    }

    pub(crate) fn store(&self) -> Store<Mark> {
        Store::open(Options::etcd(self.options("test"))).expect("etcd is there")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_etcd_is_its_model_across_restarts() {
    let Some(place) = Place::start().await else { return };
    let mut runner = TestRunner::deterministic();
    let cases = proptest::collection::vec(laws::op(), 1..80);
    for case in 0..12 {
        let ops = cases.new_tree(&mut runner).expect("a case").current();
        let options = Options::etcd(place.options(&format!("case-{case}")));
        let told = format!("{ops:?}");
        soon(laws::run(options, ops, 5 + case)).await.unwrap_or_else(|error| panic!("{error}\n{told}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_of_several_servers_keep_their_promises() {
    let Some(place) = Place::start().await else { return };
    promises::check(&[place.store(), place.store(), place.store()], 60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_on_one_server_is_seen_on_another_that_has_caught_up() {
    let Some(place) = Place::start().await else { return };
    let (one, other) = (place.store(), place.store());
    for n in 0..200 {
        let made = set(&one, "pods", "a", &n.to_string()).await;
        let seen = soon(other.catch_up()).await.expect("etcd answers");
        assert!(seen >= made.revision, "{seen} is before {}", made.revision);
        let entry = other.get("pods", "a").expect("it is there");
        assert_eq!((entry.modified, &entry.head), (made.revision, &made.entry.expect("put").head));
    }
    // What is gone elsewhere can be made anew here at once, however far this server is.
    one.commit(delete("pods", "a", Expect::Any)).await.expect("it is there");
    other.commit(put("pods", "a", Expect::Absent, "new")).await.expect("it is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_servers_that_change_the_same_one_loses_and_sees_why() {
    let Some(place) = Place::start().await else { return };
    let (one, other) = (place.store(), place.store());
    let first = set(&one, "c", "a", "1").await.revision;
    let (left, right) = tokio::join!(
        one.commit(put("c", "a", Expect::Revision(first), "left")),
        other.commit(put("c", "a", Expect::Revision(first), "right")),
    );
    let (won, lost) = match (left, right) {
        (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
        both => panic!("one of them has to lose: {both:?}"),
    };
    let CommitError::Conflict { current: Some(current) } = lost else { panic!("{lost:?}") };
    assert_eq!(current.modified, won.revision);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_belong_together_are_one_transaction() {
    let Some(place) = Place::start().await else { return };
    let (one, other) = (place.store(), place.store());
    let quota = set(&one, "quotas", "q", "0").await.revision;
    let counted = |expect: Expect, value: &str| vec![put("quotas", "q", expect, value)];
    let created = put("bindings", "a", Expect::Absent, "x");
    let made = soon(one.commit_with(created, counted(Expect::Revision(quota), "1"))).await.expect("both");
    let now = one.get("quotas", "q").expect("it is there");
    assert_eq!((now.modified, &now.head.value[..]), (made.revision, "1"));

    // Another server that is behind: what belongs to its write has changed.
    let late = put("bindings", "b", Expect::Absent, "x");
    let refused = soon(other.commit_with(late, counted(Expect::Revision(quota), "2"))).await;
    assert!(matches!(&refused, Err(CommitError::Overtaken { name, .. }) if **name == *"q"), "{refused:?}");
    assert_eq!(other.get("quotas", "q").expect("it is there").modified, made.revision, "it has caught up");
    // Its own name is taken.
    let taken = put("bindings", "a", Expect::Absent, "y");
    let refused = soon(other.commit_with(taken, counted(Expect::Revision(made.revision), "2"))).await;
    assert!(matches!(refused, Err(CommitError::Conflict { current: Some(_) })), "{refused:?}");
    assert_eq!(show(&other.snapshot("bindings")).len(), 1);

    let gone = delete("bindings", "a", Expect::Revision(made.revision));
    soon(other.commit_with(gone, counted(Expect::Revision(made.revision), "0"))).await.expect("both");
    soon(one.catch_up()).await.expect("etcd answers");
    assert!(one.get("bindings", "a").is_none());
    assert_eq!(one.get("quotas", "q").expect("it is there").head.value, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_behind_writes_nothing_that_rests_on_what_has_changed() {
    let Some(place) = Place::start().await else { return };
    let (one, other) = (place.store(), place.store());
    let seen = set(&one, "namespaces", "n", "1").await.revision;
    let rests = |revision| vec![Unchanged { collection: "namespaces".into(), name: "n".into(), revision }];
    let create = |name: &str| put("maps", name, Expect::Absent, "x");
    soon(other.commit_while(create("a"), Vec::new(), rests(seen))).await.expect("it is as it was");

    let changed = set(&one, "namespaces", "n", "2").await.revision;
    let refused = soon(other.commit_while(create("b"), Vec::new(), rests(seen))).await;
    assert!(matches!(&refused, Err(CommitError::Overtaken { name, .. }) if **name == *"n"), "{refused:?}");
    assert_eq!(other.get("namespaces", "n").expect("it is there").modified, changed, "it has caught up");
    let taken = soon(other.commit_while(create("a"), Vec::new(), rests(changed))).await;
    assert!(matches!(taken, Err(CommitError::Conflict { current: Some(_) })), "{taken:?}");

    // What is written with it is named in front of what it rests on.
    let quota = set(&one, "quotas", "q", "0").await.revision;
    one.commit(delete("namespaces", "n", Expect::Any)).await.expect("it is there");
    let counted = vec![put("quotas", "q", Expect::Revision(quota), "1")];
    let refused = soon(other.commit_while(create("b"), counted, rests(changed))).await;
    assert!(matches!(&refused, Err(CommitError::Overtaken { name, .. }) if **name == *"q"), "{refused:?}");
    assert!(other.get("namespaces", "n").is_none() && other.get("maps", "b").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_that_hangs_or_dies_fails_writes_and_nothing_else() {
    let Some(mut place) = Place::start().await else { return };
    let hasty = EtcdOptions { timeout: Duration::from_secs(5), ..place.options("test") };
    let store = Store::<Mark>::open(Options::etcd(hasty)).expect("etcd is there");
    set(&store, "c", "a", "1").await;
    let mut watch = store.watch("c", store.revision()).expect("from now on");

    place.etcd.pause();
    let refused = soon(store.commit(put("c", "a", Expect::Any, "2"))).await.expect_err("nobody answers");
    assert!(matches!(refused, CommitError::Unanswered { .. }), "{refused:?}");
    assert!(store.stats().read_only.is_some_and(|why| why.contains("etcd at http://127.0.0.1")));
    assert!(matches!(soon(store.catch_up()).await, Err(CommitError::Unanswered { .. })));
    assert_eq!(store.get("c", "a").expect("memory goes on").head.value, "1");
    place.etcd.resume();

    place.etcd.kill();
    let refused = soon(store.commit(put("c", "a", Expect::Any, "3"))).await.expect_err("nobody is there");
    assert!(matches!(refused, CommitError::Unanswered { .. }), "{refused:?}");
    place.etcd.start_again().await.expect("it starts again");

    // The connection comes back by itself; the write that was not answered may have been made.
    let last = loop {
        match soon(store.commit(put("c", "b", Expect::Any, "4"))).await {
            Ok(made) => break made.revision,
            Err(CommitError::Unanswered { .. }) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(other) => panic!("{other:?}"),
        }
    };
    let mut seen = Vec::new();
    while seen.last().is_none_or(|revision| *revision < last) {
        seen.extend(
            soon(watch.next()).await.expect("the watch outlives etcd").iter().map(|event| event.revision),
        );
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert!(store.stats().read_only.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_knows_what_happened_since_the_last_compaction() {
    let Some(place) = Place::start().await else { return };
    let every = EtcdOptions { compact_every: Some(Duration::from_millis(300)), ..place.options("test") };
    let store = Store::<Mark>::open(Options::etcd(every)).expect("opens");
    let old = set(&store, "c", "a", "1").await.revision;
    // Each round compacts to where etcd was one round ago.
    let compacted = loop {
        set(&store, "c", "b", "x").await;
        let fresh = place.store();
        let compacted = fresh.compacted();
        fresh.close().await;
        if fresh.revision() > compacted && compacted > old {
            break compacted;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    store.close().await;
    let quiet = place.store();
    let before = quiet.revision();
    set(&quiet, "c", "a", "2").await;
    quiet.close().await;

    let again = place.store();
    assert!(again.compacted() >= compacted && again.compacted() <= before);
    let mut watch = again.watch("c", before).expect("the history reaches back");
    let events = soon(watch.next()).await.expect("what happened while it was away");
    assert_eq!(show_events(&events), [format!("{} a: 1 -> 2", before + 1)]);
    assert!(again.watch("c", old).is_err(), "what was compacted is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_away_for_too_long_reads_everything_anew() {
    let Some(place) = Place::start().await else { return };
    let mut way = place.etcd.way().await.expect("a way to etcd that can be cut");
    let far = EtcdOptions { endpoints: vec![way.endpoint.clone()], ..place.options("test") };
    let far = Store::<Mark>::open(Options::etcd(far)).expect("opens");
    set(&far, "c", "gone", "1").await;
    let mut watch = far.watch("c", far.revision()).expect("from now on");
    way.set(clusters::Network::Refuse).await;

    let every = EtcdOptions { compact_every: Some(Duration::from_millis(200)), ..place.options("test") };
    let near = Store::<Mark>::open(Options::etcd(every)).expect("opens");
    near.commit(delete("c", "gone", Expect::Any)).await.expect("it is there");
    let made = set(&near, "c", "new", "2").await.revision;
    loop {
        set(&near, "other", "x", "y").await;
        let fresh = place.store();
        let compacted = fresh.compacted();
        fresh.close().await;
        if compacted > made && fresh.revision() > compacted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    near.close().await;
    let fresh = place.store();
    let compacted = fresh.compacted();
    set(&fresh, "other", "x", "z").await;

    way.set(clusters::Network::Open).await;
    let lost = loop {
        match soon(watch.next()).await {
            Ok(_) => {}
            Err(lost) => break lost,
        }
    };
    assert!(matches!(lost, Lost::Behind { .. }), "{lost:?}");
    // Whoever comes from another server and has seen what was compacted can go on here.
    soon(far.catch_up()).await.expect("etcd answers");
    assert_eq!(far.compacted(), compacted);
    far.watch("other", compacted).expect("the history since is known");
    assert_eq!(show(&far.snapshot("c")), [format!("new=2@{made}/{made}")]);
    let again = set(&far, "c", "new", "3").await;
    assert_eq!(again.previous.expect("it was there").modified, made);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_makes_the_store_read_only_until_there_is_room() {
    let Some(place) = Place::start_with(&["--quota-backend-bytes=1000000"]).await else { return };
    let store = place.store();
    let mut watch = store.watch("c", store.revision()).expect("from now on");
    let long = "x".repeat(100_000);
    let (mut written, mut seen) = (0, 0);
    // How many go in depends on how soon etcd counts what it has: the history need not hold them all, so the watch is read meanwhile.
    let refused = loop {
        match soon(store.commit(put("c", &format!("n{written}"), Expect::Any, &long))).await {
            Ok(_) => written += 1,
            Err(refused) => break refused,
        }
        while seen < written {
            seen += soon(watch.next()).await.expect("watches go on").len();
        }
        assert!(written < 1_000, "the quota is not in force");
    };
    assert!(
        matches!(&refused, CommitError::ReadOnly { reason } if reason.contains("database space exceeded")),
        "{refused:?}"
    );
    // Reads go on, and do not make anybody believe that there is room.
    for _ in 0..3 {
        soon(store.catch_up()).await.expect("etcd answers");
        let reason = store.stats().read_only.expect("the statistics tell the reason");
        assert!(reason.contains("database space exceeded"), "{reason}");
    }
    assert_eq!(seen, written);
    // The write by which etcd notices that it is full is refused, and yet made.
    let kept = store.snapshot("c").len();
    assert!((written..=written + 1).contains(&kept), "{kept} are kept, {written} were acknowledged");

    // What is deleted makes room once etcd has been compacted, defragmented and told that all is well.
    for n in 0..kept {
        soon(store.commit(delete("c", &format!("n{n}"), Expect::Any)))
            .await
            .expect("a deletion needs no room");
    }
    assert!(store.stats().read_only.is_some(), "a deletion shows nothing about room");
    place.etcd.make_room(store.revision()).await.expect("etcd makes room");
    set(&store, "c", "again", "1").await;
    assert_eq!(store.stats().read_only, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_has_lost_the_others_says_so_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut etcds) = Etcd::several(dir.path(), 3).await.expect("etcds start") else { return };
    let options = EtcdOptions {
        compact_every: None,
        timeout: Duration::from_secs(5),
        ..EtcdOptions::new([etcds[0].endpoint.clone()])
    };
    let store = Store::<Mark>::open(Options::etcd(options)).expect("opens");
    set(&store, "c", "a", "1").await;
    let write = async |until: fn(&str) -> bool| {
        soon(async {
            loop {
                match store.commit(put("c", "b", Expect::Any, "2")).await {
                    Ok(made) => return Some(made),
                    Err(CommitError::Unanswered { reason }) if until(&reason) => return None,
                    Err(CommitError::Unanswered { .. }) => {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
        })
        .await
    };
    for etcd in &mut etcds[1..] {
        etcd.kill();
    }
    // Rather than to wait for them: the next endpoint can be asked, and nothing has been done.
    let made = write(|reason| reason.contains("etcdserver: no leader")).await;
    assert!(made.is_none(), "one of three has written: {made:?}");
    for etcd in &mut etcds[1..] {
        etcd.launch_again().expect("it starts again");
    }
    let made = write(|_| false).await.expect("all are back");
    assert_eq!(store.get("c", "b").expect("it is there").modified, made.revision);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_a_page_is_loaded_whole() {
    let Some(place) = Place::start().await else { return };
    let store = place.store();
    let writes = (0..1_234).map(|n| store.commit(put("c", &format!("n{n:04}"), Expect::Any, &n.to_string())));
    for made in futures::future::join_all(writes).await {
        made.expect("put");
    }
    assert_eq!(show(&place.store().snapshot("c")), show(&store.snapshot("c")));
    assert_eq!(store.snapshot("c").len(), 1_234);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_end_with_their_time_on_every_server() {
    let Some(place) = Place::start().await else { return };
    let (one, other) = (place.store(), place.store());
    for name in ["a", "b", "c"] {
        let write = put("events", name, Expect::Any, "x").with_ttl(Duration::from_secs(1));
        one.commit(write).await.expect("put");
    }
    set(&one, "events", "stays", "x").await;
    for store in [&one, &other] {
        let mut watch = store.watch_all(store.compacted()).expect("the whole history");
        let mut ended = Vec::new();
        while ended.len() < 3 {
            let batch = soon(watch.next()).await.expect("not lost");
            ended.extend(batch.iter().filter(|event| event.is_delete()).map(|event| event.name().to_owned()));
        }
        ended.sort();
        assert_eq!(ended, ["a", "b", "c"]);
        assert_eq!(store.snapshot("events").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_with_other_prefixes_are_not_seen() {
    let Some(place) = Place::start().await else { return };
    let one = place.store();
    let other = Store::<Mark>::open(Options::etcd(place.options("test2"))).expect("opens");
    let made = set(&one, "c", "a", "1").await.revision;
    assert!(soon(other.catch_up()).await.expect("etcd answers") >= made, "revisions are shared");
    assert!(other.get("c", "a").is_none());
    assert!(matches!(other.commit(delete("c", "a", Expect::Any)).await, Err(CommitError::NotFound)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_etcd_refuses_is_told_as_it_is() {
    let Some(place) = Place::start().await else { return };
    let store = place.store();
    let long = "x".repeat(2 << 20);
    let refused = store.commit(put("c", "a", Expect::Any, &long)).await.expect_err("too long for etcd");
    assert!(matches!(refused, CommitError::TooLarge { .. }), "{refused:?}");
    let refused = store.commit(put("c//d", "a", Expect::Any, "x")).await.expect_err("no such collection");
    assert!(matches!(refused, CommitError::InvalidKey { .. }), "{refused:?}");
    set(&store, "c", "a", "still there").await;
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_named() {
    let options = EtcdOptions {
        timeout: Duration::from_secs(2),
        ..EtcdOptions::new(["http://127.0.0.1:1".to_owned()])
    };
    let error = Store::<Mark>::open(Options::etcd(options)).map(drop).expect_err("nobody listens");
    assert!(matches!(error, OpenError::Etcd(_)));
    let told = error.to_string();
    assert!(told.starts_with("etcd at http://127.0.0.1:1 does not answer: "), "{told}");
}

/// Names and values of a collection.
fn contents(store: &Store<Mark>, collection: &str) -> Vec<(String, String)> {
    let entry =
        |entry: &std::sync::Arc<store::Entry<Mark>>| (entry.name.to_string(), entry.head.value.clone());
    store.snapshot(collection).iter().map(entry).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_goes_from_either_store_to_the_other() {
    let Some(place) = Place::start().await else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let file = Store::<Mark>::open(Options::file(at("data"))).expect("a store");
    for n in 0..250 {
        file.commit(put("pods", &format!("n/{n}"), Expect::Absent, &n.to_string()).buffered())
            .await
            .expect("new");
    }
    let big = "x".repeat(600_000);
    for n in 0..4 {
        set(&file, "apps/deployments", &format!("n/{n}"), &big).await;
    }
    file.backup(&at("one")).expect("a backup");

    // Into etcd, and other people's keys there stay as they are.
    let elsewhere: Store<Mark> = Store::open(Options::etcd(place.options("elsewhere"))).expect("a store");
    set(&elsewhere, "pods", "kept", "1").await;
    let etcd = place.options("restored");
    let restored = tokio::task::spawn_blocking({
        let (one, scratch, etcd) = (at("one"), at("scratch"), etcd.clone());
        move || restore_into_etcd(&one, &scratch, &etcd, &[])
    });
    let restored = restored.await.expect("no panic").expect("an empty prefix");
    assert_eq!(restored.entries, 254);
    let copy: Store<Mark> = Store::open(Options::etcd(etcd.clone())).expect("a store");
    for collection in ["pods", "apps/deployments"] {
        assert_eq!(contents(&copy, collection), contents(&file, collection), "{collection}");
    }
    assert_eq!(contents(&elsewhere, "pods").len(), 1);

    // Revisions of the lost store, whether etcd has reached them or not, are refused.
    assert!(restored.revision > 2);
    assert!(copy.watch("pods", 2).is_err(), "etcd had this revision before the restore");
    assert!(copy.compacted() < restored.revision, "the mark goes after the compaction");
    let made = set(&copy, "pods", "new", "1").await;
    assert!(made.revision > restored.revision);

    // And back into a directory.
    copy.backup(&at("two")).expect("a backup");
    restore(&at("two"), &at("back"), &[]).expect("an empty directory");
    let back = Store::<Mark>::open(Options::file(at("back"))).expect("a store");
    for collection in ["pods", "apps/deployments"] {
        assert_eq!(contents(&back, collection), contents(&copy, collection), "{collection}");
    }

    // A second time there is something in the way.
    let refused = tokio::task::spawn_blocking({
        let (one, scratch) = (at("one"), at("scratch"));
        move || restore_into_etcd(&one, &scratch, &etcd, &[])
    });
    let refused = refused.await.expect("no panic").expect_err("it is not empty");
    assert!(matches!(refused, OpenError::Etcd(EtcdError::Occupied { .. })), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_restore_is_not_opened_and_can_be_finished() {
    let Some(place) = Place::start().await else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let file = Store::<Mark>::open(Options::memory()).expect("a store");
    set(&file, "pods", "a", "1").await;
    // Larger than etcd takes: the restore ends after the first entry.
    let whole = Store::<Mark>::open(Options::memory()).expect("a store");
    set(&whole, "pods", "a", "1").await;
    set(&whole, "zeta", "b", &"x".repeat(1_600_000)).await;
    whole.backup(&at("broken")).expect("a backup");
    file.backup(&at("other")).expect("a backup");
    let restored = async |name: &str| {
        let (from, scratch, etcd) = (at(name), at("scratch"), place.options("half"));
        let done = tokio::task::spawn_blocking(move || restore_into_etcd(&from, &scratch, &etcd, &[]));
        done.await.expect("no panic").map_err(|error| error.to_string())
    };
    let refused = restored("broken").await.expect_err("too large");
    assert!(refused.contains("zeta b of the backup has 1600000 bytes"), "{refused}");
    let opened = Store::<Mark>::open(Options::etcd(place.options("half")));
    assert!(matches!(opened.map(drop), Err(OpenError::Etcd(EtcdError::Unfinished { .. }))));
    let refused = restored("other").await.expect_err("another backup");
    assert!(refused.contains("another backup was put under half"), "{refused}");
    // The same one may go on, and fails at the same place; had the disk been at fault, it would now come to its end.
    assert!(restored("broken").await.expect_err("still too large").contains("zeta b"));
}
