//! The guarantees for readers: every event of a place once, in order, from any version that the log still reaches.

use std::collections::BTreeMap;

use runtime::room::Budget;
use serde_json::json;

use super::*;
use crate::plan::Kind;

fn kind() -> Kind {
    Kind::test("", "v1", "ConfigMap", "configmaps")
}

fn entry(name: &str, revision: u64) -> Entry {
    let object = json!({"metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": revision.to_string()}});
    Entry::new(&kind(), object).unwrap()
}

fn cache() -> Arc<Cache> {
    Arc::new(Cache::new(kind(), Arc::new(Budget::new(1 << 20))))
}

fn place(cluster: &str) -> Place {
    Place::cluster(cluster)
}

/// Adds a place with objects `name@revision`.
fn bring(cache: &Cache, cluster: &str, at: u64, objects: &[(&str, u64)]) {
    cache.expect(&place(cluster));
    cache
        .replace(&place(cluster), at, objects.iter().map(|(name, revision)| entry(name, *revision)).collect())
        .unwrap();
}

/// Returns everything that is ready, as `+m1:x@5` (added), `~` (changed), `-` (deleted).
fn ready(watch: &mut Watch) -> Result<Vec<String>, Lost> {
    let mut told = Vec::new();
    while watch.tell_ready(&mut |event: Told, _: &Versions| {
        let (sign, entry) = match (&event.old, &event.new) {
            (None, Some(new)) => ("+", new),
            (Some(_), Some(new)) => ("~", new),
            (Some(old), None) => ("-", old),
            (None, None) => unreachable!("an event is about something"),
        };
        told.push(format!("{sign}{}:{}@{}", event.place, entry.names().1, entry.revision));
    })? {}
    Ok(told)
}

async fn from(cache: &Arc<Cache>, start: Start) -> Watch {
    Watch::begin(cache, start).await.unwrap()
}

#[tokio::test]
async fn a_reader_is_told_what_is_there_and_what_happens_in_all_places() {
    let cache = cache();
    bring(&cache, "m2", 20, &[("y", 18)]);
    bring(&cache, "m1", 10, &[("x", 5)]);
    let mut watch = from(&cache, Start::Everything).await;
    assert_eq!(ready(&mut watch).unwrap(), ["+m1:x@5", "+m2:y@18"]);
    assert_eq!(*watch.versions(), cache.versions());
    cache.put(&place("m1"), entry("x", 11)).unwrap();
    cache.put(&place("m2"), entry("z", 21)).unwrap();
    cache.remove(&place("m1"), &entry("x", 12));
    assert_eq!(ready(&mut watch).unwrap(), ["~m1:x@11", "+m2:z@21", "-m1:x@11"]);
    cache.put(&place("m1"), entry("x", 12)).unwrap();
    assert!(
        ready(&mut watch).unwrap().is_empty(),
        "what a resumed watch of a member repeats is not told twice"
    );
}

#[tokio::test]
async fn an_object_that_took_the_name_of_another_one_is_told_as_new() {
    let (cache, m1) = (cache(), place("m1"));
    let named = |uid: &str, revision: u64| {
        let object = json!({"metadata": {"name": "x", "namespace": "a", "uid": uid, "resourceVersion": revision.to_string()}});
        Entry::new(&kind(), object).unwrap()
    };
    cache.expect(&m1);
    cache.replace(&m1, 10, vec![named("first", 5)]).unwrap();
    let mut watch = from(&cache, Start::Now).await;
    cache.replace(&m1, 20, vec![named("second", 15)]).unwrap();
    assert_eq!(ready(&mut watch).unwrap(), ["-m1:x@5", "+m1:x@15"], "it was made anew while nobody looked");
    assert_eq!(*watch.versions(), cache.versions());
    cache.put(&m1, named("second", 21)).unwrap();
    assert_eq!(ready(&mut watch).unwrap(), ["~m1:x@21"]);
}

#[tokio::test]
async fn places_come_and_go() {
    let cache = cache();
    bring(&cache, "m1", 10, &[("x", 5)]);
    let mut watch = from(&cache, Start::Now).await;
    bring(&cache, "m2", 7, &[("y", 6), ("z", 7)]);
    cache.put(&place("m2"), entry("y", 8)).unwrap();
    assert_eq!(ready(&mut watch).unwrap(), ["+m2:y@8", "+m2:z@7"], "as it is now, once");
    cache.forget(&place("m1"));
    assert_eq!(ready(&mut watch).unwrap(), ["-m1:x@5"]);
    assert_eq!(watch.versions().get(&place("m1")), None);
    bring(&cache, "m1", 10, &[("x", 5)]);
    bring(&cache, "m3", 1, &[]);
    assert_eq!(ready(&mut watch).unwrap(), ["+m1:x@5"]);
    assert_eq!(*watch.progress(), cache.versions());
}

#[tokio::test]
async fn a_change_during_the_initial_events_is_sent_once() {
    let cache = cache();
    let many: Vec<String> = (0..3 * BATCH).map(|number| format!("n{number:04}")).collect();
    let objects: Vec<(&str, u64)> = many.iter().map(|name| (name.as_str(), 5)).collect();
    bring(&cache, "m1", 10, &objects);
    bring(&cache, "m2", 10, &[("other", 5)]);
    let mut watch = from(&cache, Start::Everything).await;
    let (mut told, mut versions, mut wrong) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut revision = 10;
    for round in 0.. {
        let more = watch.tell_ready(&mut |event: Told, after: &Versions| {
            let key = event.new.as_ref().or(event.old.as_ref()).unwrap().key().to_owned();
            let known = told.contains_key(&format!("{}/{key}", event.place));
            if event.old.is_some() != known {
                wrong.push(format!("{event:?}"));
            }
            apply(&mut told, &event);
            versions.push((after.clone(), told.clone()));
        });
        if !more.unwrap() {
            break;
        }
        if round < 4 {
            // Before and after the reader's position: changed, deleted, new; and a place that is added, one that is removed and
            // added again.
            for (name, gone) in
                [("n0001", false), ("n0700", false), ("n0002", true), ("n0701", true), ("n0002x", false)]
            {
                revision += 1;
                let name = if round % 2 == 0 { name.to_owned() } else { format!("{name}-{round}") };
                match gone {
                    true => cache.remove(&place("m1"), &entry(&name, revision)),
                    false => cache.put(&place("m1"), entry(&name, revision)).unwrap(),
                }
            }
        }
        if round == 1 {
            cache.forget(&place("m2"));
            bring(&cache, "m2", 20, &[("another", 15)]);
            bring(&cache, "m3", 20, &[("third", 15)]);
            cache.forget(&place("m3"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    let there = |found: &Found| (format!("{}/{}", found.place, found.entry.key()), found.entry.revision);
    let expected: BTreeMap<_, _> =
        cache.list("", None, |_, _| crate::cache::Take::Yes).found.iter().map(there).collect();
    assert_eq!(told, expected);
    assert!(watch.has_begun());
    assert_eq!(*watch.progress(), cache.versions());
    for (version, mut state) in versions.into_iter().step_by(97) {
        let mut second = match Watch::begin(&cache, Start::After(version.clone())).await {
            Ok(second) => second,
            Err(lost) => {
                assert!(is_in_part(&version), "from {version:?}: {lost}");
                continue;
            }
        };
        while second.tell_ready(&mut |event: Told, _: &Versions| apply(&mut state, &event)).unwrap() {}
        // For places that the version does not name, no deletions are sent.
        state.retain(|key, _| expected.contains_key(key) || version.get(&Place::parse(&key[..2])).is_some());
        assert_eq!(state, expected, "from {version:?}");
    }
}

#[tokio::test]
async fn every_version_that_was_told_is_one_to_go_on_from() {
    let cache = cache();
    bring(&cache, "m1", 10, &[("x", 5)]);
    let mut first = from(&cache, Start::Everything).await;
    let (mut versions, mut state) = (vec![(Versions::default(), BTreeMap::new())], BTreeMap::new());
    let mut read = || {
        let mut tell = |event: Told, after: &Versions| {
            apply(&mut state, &event);
            let around = after.around(&event.place);
            // The version that clients see is equivalent, and an existing object has its own version.
            let text = match (&event.new, &event.old) {
                (Some(new), _) => {
                    let text = around.there(new.revision);
                    let own = Versions::of_object(&text, &event.place, new.namespace());
                    assert_eq!(own, Some(new.revision), "{after:?}");
                    text
                }
                (None, old) => around.gone(old.as_ref().unwrap().revision),
            };
            assert_eq!(Versions::parse(&text), *after);
            versions.push((after.clone(), state.clone()));
        };
        while first.tell_ready(&mut tell).unwrap() {}
    };
    read();
    bring(&cache, "m2", 20, &[("a", 1), ("b", 2), ("c", 3)]);
    read();
    cache.put(&place("m1"), entry("x", 11)).unwrap();
    // A list after a gap: one object is new, one has changed, one is gone.
    cache.replace(&place("m2"), 30, vec![entry("a", 1), entry("b", 25), entry("d", 26)]).unwrap();
    cache.remove(&place("m1"), &entry("x", 12));
    cache.put(&place("m2"), entry("d", 31)).unwrap();
    read();
    assert!(versions.len() > 6);
    for (version, state) in versions {
        if is_in_part(&version) {
            let lost = Watch::begin(&cache, Start::After(version)).await.unwrap_err();
            assert_eq!(lost, Lost::Behind(place("m2")), "it was told in part");
            continue;
        }
        let mut state = state;
        let mut second = from(&cache, Start::After(version.clone())).await;
        while second.tell_ready(&mut |event: Told, _: &Versions| apply(&mut state, &event)).unwrap() {}
        let expected: Vec<_> = cache.list("", None, |_, _| crate::cache::Take::Yes).found;
        let expected: BTreeMap<_, _> = expected
            .iter()
            .map(|found| (format!("{}/{}", found.place, found.entry.key()), found.entry.revision))
            .collect();
        assert_eq!(state, expected, "from {version:?}");
        assert_eq!(*second.progress(), cache.versions());
    }
}

/// Returns whether a place was being sent when a version was.
fn is_in_part(version: &Versions) -> bool {
    version.iter().any(|(_, at)| at == Versions::IN_PART)
}

fn apply(state: &mut BTreeMap<String, u64>, event: &Told) {
    match (&event.old, &event.new) {
        (_, Some(new)) => state.insert(format!("{}/{}", event.place, new.key()), new.revision),
        (Some(old), None) => state.remove(&format!("{}/{}", event.place, old.key())),
        (None, None) => None,
    };
}

#[tokio::test]
async fn a_reader_that_cannot_be_told_everything_is_sent_to_list_again() {
    let cache = Arc::new(Cache::new(kind(), Arc::new(Budget::new(1 << 20))).with_log(3, 1 << 20));
    bring(&cache, "m1", 10, &[]);
    let after = |at| Start::After(Versions::of(&place("m1"), at));
    assert_eq!(
        Watch::begin(&cache, after(9)).await.unwrap_err(),
        Lost::Behind(place("m1")),
        "before the first list"
    );
    let mut slow = from(&cache, after(10)).await;
    for revision in 11..20 {
        cache.put(&place("m1"), entry("x", revision)).unwrap();
    }
    assert_eq!(ready(&mut slow).unwrap_err(), Lost::Slow);
    assert_eq!(Watch::begin(&cache, after(15)).await.unwrap_err(), Lost::Behind(place("m1")));
    assert_eq!(ready(&mut from(&cache, after(17)).await).unwrap(), ["~m1:x@18", "~m1:x@19"]);
    let mut watching = from(&cache, Start::Now).await;
    cache.replace(&place("m1"), 5, vec![entry("x", 3)]).unwrap();
    assert_eq!(ready(&mut watching).unwrap_err(), Lost::WentBack(place("m1")));
    cache.forget(&place("m1"));
    assert_eq!(Watch::begin(&cache, after(19)).await.unwrap_err(), Lost::Gone(place("m1")));
}

#[tokio::test]
async fn what_was_taken_back_is_told_to_nobody_and_does_not_count_when_it_leaves_the_log() {
    for log in [100, 3] {
        let cache = Arc::new(Cache::new(kind(), Arc::new(Budget::new(1 << 20))).with_log(log, 1 << 20));
        let m1 = place("m1");
        bring(&cache, "m1", 10, &[("x", 9)]);
        cache.put(&m1, entry("y", 11)).unwrap();
        cache.put(&m1, entry("z", 12)).unwrap();
        cache.replace(&m1, 5, vec![entry("x", 3)]).unwrap();
        let after = |at| Watch::begin(&cache, Start::After(Versions::of(&m1, at)));
        assert!(ready(&mut after(5).await.unwrap()).unwrap().is_empty(), "a log of {log}");
        // The earlier events leave a short log.
        for revision in 6..9 {
            cache.put(&m1, entry("x", revision)).unwrap();
        }
        assert_eq!(ready(&mut after(7).await.unwrap()).unwrap(), ["~m1:x@8"], "a log of {log}");
        let then = cache.list_at(&Versions::of(&m1, 7), "", None, |_, _| crate::cache::Take::Yes).unwrap();
        assert_eq!(then.found.len(), 1);
        // Removed and added again: a new cluster with the same name.
        cache.forget(&m1);
        bring(&cache, "m1", 2, &[("x", 1)]);
        assert!(ready(&mut after(2).await.unwrap()).unwrap().is_empty(), "a log of {log}");
        for revision in 3..6 {
            cache.put(&m1, entry("x", revision)).unwrap();
        }
        assert_eq!(ready(&mut after(4).await.unwrap()).unwrap(), ["~m1:x@5"], "a log of {log}");
        let mut watch = from(&cache, Start::Everything).await;
        assert_eq!(ready(&mut watch).unwrap(), ["+m1:x@5"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_knows_more_waits_for_the_cache() {
    let cache = cache();
    bring(&cache, "m1", 10, &[]);
    let ahead = Start::After(Versions::of(&place("m1"), 12));
    let lost = Watch::begin(&cache, ahead.clone()).await.unwrap_err();
    assert_eq!(lost, Lost::Ahead { place: place("m1"), asked: 12, known: 10 });
    let waiting = tokio::spawn({
        let (cache, ahead) = (cache.clone(), ahead.clone());
        async move { Watch::begin(&cache, ahead).await.map(drop) }
    });
    tokio::task::yield_now().await;
    cache.progress(&place("m1"), 12);
    assert_eq!(waiting.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn an_empty_place_is_known_and_moves_on_without_events() {
    let cache = cache();
    bring(&cache, "m1", 10, &[]);
    let mut watch = from(&cache, Start::Everything).await;
    assert!(ready(&mut watch).unwrap().is_empty());
    assert_eq!(watch.versions().get(&place("m1")), Some(10));
    cache.progress(&place("m1"), 15);
    assert_eq!(watch.progress().get(&place("m1")), Some(15));
}

#[test]
fn an_object_that_a_list_names_twice_is_counted_once() {
    let cache = cache();
    for at in [10, 20, 5] {
        bring(&cache, "m1", at, &[("x", at - 1), ("x", at - 1), ("y", 1)]);
    }
    cache.forget(&place("m1"));
    assert_eq!(cache.budget.used(), 0);
}

#[test]
fn without_room_nothing_changes() {
    let cache = Arc::new(Cache::new(kind(), Arc::new(Budget::new(1000))));
    bring(&cache, "m1", 10, &[("x", 5)]);
    let many = (0..10).map(|number| entry(&number.to_string(), 11)).collect();
    assert!(cache.replace(&place("m1"), 12, many).is_err());
    assert_eq!(cache.versions().get(&place("m1")), Some(10));
    cache.put(&place("m1"), entry("y", 11)).unwrap();
    assert!(cache.put(&place("m1"), entry("z", 12)).is_err());
    cache.forget(&place("m1"));
    assert_eq!(cache.budget.used(), 0);
}

#[tokio::test]
async fn whoever_broke_off_while_a_place_came_or_went_lists_again() {
    let cache = cache();
    bring(&cache, "m1", 10, &[]);
    let mut watch = from(&cache, Start::Now).await;
    bring(&cache, "m2", 7, &[("x", 5), ("y", 6)]);
    let versions = |watch: &mut Watch| {
        let mut versions = Vec::new();
        while watch.tell_ready(&mut |_: Told, after: &Versions| versions.push(after.clone())).unwrap() {}
        versions
    };
    let came = versions(&mut watch);
    // The objects that the reader got are deleted before it comes back, and the log no longer has these events.
    cache.remove(&place("m2"), &entry("x", 8));
    let after = |version: &Versions| Watch::begin(&cache, Start::After(version.clone()));
    assert_eq!(after(&came[0]).await.unwrap_err(), Lost::Behind(place("m2")));
    assert_eq!(ready(&mut after(&came[1]).await.unwrap()).unwrap(), ["-m2:x@5"]);
    cache.put(&place("m2"), entry("z", 9)).unwrap();
    versions(&mut watch);
    cache.forget(&place("m2"));
    let went = versions(&mut watch);
    assert_eq!(after(&went[0]).await.unwrap_err(), Lost::Gone(place("m2")));
    assert!(ready(&mut after(&went[1]).await.unwrap()).unwrap().is_empty());
    // It is added again unchanged, and the reader has been told that a part of it was deleted.
    bring(&cache, "m2", 9, &[("y", 6), ("z", 9)]);
    assert_eq!(after(&went[0]).await.unwrap_err(), Lost::Behind(place("m2")));
    assert_eq!(ready(&mut after(&went[1]).await.unwrap()).unwrap(), ["+m2:y@6", "+m2:z@9"]);
}

#[tokio::test]
async fn what_is_told_at_once_is_bounded_and_nothing_is_held_between() {
    const SIZE: usize = 30_000;
    const MOST: usize = PIECE + SIZE + 1000;
    let large = |name: &str, revision: u64| {
        let object = json!({"metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": revision.to_string()},
            "data": {"x": "x".repeat(SIZE)}});
        Entry::new(&kind(), object).unwrap()
    };
    let cache = Arc::new(Cache::new(kind(), Arc::new(Budget::new(64 << 20))));
    let many: Vec<String> = (0..20).map(|number| format!("n{number:02}")).collect();
    cache.expect(&place("m1"));
    cache.replace(&place("m1"), 10, many.iter().map(|name| large(name, 5)).collect()).unwrap();
    let mut watch = from(&cache, Start::Everything).await;
    /// Reads one piece. Returns the number of events, and the bytes of their objects.
    fn piece(watch: &mut Watch) -> (usize, usize) {
        let (mut events, mut bytes) = (0, 0);
        let mut tell = |event: Told, _: &Versions| {
            events += 1;
            bytes += event.new.or(event.old).map_or(0, |entry| entry.size());
        };
        watch.tell_ready(&mut tell).unwrap();
        (events, bytes)
    }
    let all = |watch: &mut Watch, what: &str| {
        let mut told = 0;
        loop {
            let (events, bytes) = piece(watch);
            if events == 0 {
                break;
            }
            assert!(bytes <= MOST, "{what}: {bytes} bytes at once");
            told += events;
        }
        assert_eq!(told, many.len(), "{what}");
    };
    all(&mut watch, "what is there");
    for (number, name) in many.iter().enumerate() {
        cache.put(&place("m1"), large(name, 11 + number as u64)).unwrap();
    }
    all(&mut watch, "what changes");
    let known = Arc::downgrade(&cache.get("a/n19").remove(0).entry);
    cache.forget(&place("m1"));
    let (first, bytes) = piece(&mut watch);
    assert!(bytes <= MOST, "what goes with its place: {bytes} bytes at once");
    // A piece has been sent, and the log drops the rest: nothing else may keep it.
    cache.state.write().log.clear();
    cache.state.write().first += 1000;
    assert!(known.upgrade().is_none() && first < many.len());
    assert_eq!(watch.tell_ready(&mut |_: Told, _: &Versions| {}).unwrap_err(), Lost::Slow);
}
