//! What a copy accepts: lists, events and answers to our own writes in every order, memory limits, packing.

use k8s_openapi::api::core::v1::ConfigMap;

use super::follow::{Fit, rest_after};
use super::*;

fn map(name: &str, version: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.metadata.resource_version = Some(version.to_owned());
    map
}

/// A mirror of versions, and the changes its subscriber got: the versions before and after.
fn mirror() -> (Mirror<String>, Arc<Mutex<Vec<String>>>) {
    let (mirror, told) = (Mirror::<String>::default(), Arc::new(Mutex::new(Vec::new())));
    let saying = told.clone();
    mirror.subscribe(move |change| {
        let text = |version: &Option<Arc<String>>| version.as_deref().map_or("-", String::as_str).to_owned();
        saying.lock().push(format!("{}>{}", text(&change.old), text(&change.new)));
    });
    (mirror, told)
}

fn apply(mirror: &Mirror<String>, version: &str) {
    bring(mirror, version, Source::Watch);
}

fn bring(mirror: &Mirror<String>, version: &str, source: Source) {
    let undecoded = serde_json::from_value(serde_json::to_value(map("a", version)).unwrap()).unwrap();
    let convert = |map: ConfigMap| map.metadata.resource_version.unwrap_or_default();
    mirror.apply(&undecoded, convert, source);
}

#[test]
fn an_event_older_than_our_own_write_is_ignored() {
    let (mirror, told) = mirror();
    mirror.put(&Key::new("", "a"), "7", Arc::new("7".to_owned()));
    apply(&mirror, "5");
    apply(&mirror, "7");
    assert_eq!(*told.lock(), ["->7"]);
    apply(&mirror, "8");
    assert_eq!(*told.lock(), ["->7", "7>8"]);
    assert_eq!(mirror.get("", "a").unwrap().as_str(), "8");
}

#[test]
fn a_late_answer_does_not_bring_a_deleted_object_back() {
    let (mirror, told) = mirror();
    let key = Key::new("", "a");
    apply(&mirror, "5");
    mirror.remove(&key, 9);
    mirror.put(&key, "7", Arc::new("7".to_owned()));
    assert_eq!(*told.lock(), ["->5", "5>-"]);
    assert!(mirror.find(&key).is_none());
}

fn list(mirror: &Mirror<String>, version: &str) {
    bring(mirror, version, Source::List { first: false });
}

#[test]
fn finding_25_a_list_with_older_revisions_replaces_what_is_known() {
    let (mirror, told) = mirror();
    let key = Key::new("", "a");
    apply(&mirror, "9");
    mirror.begin_list();
    list(&mirror, "5");
    mirror.end_list();
    assert_eq!(*told.lock(), ["->9", "9>5"]);
    // From here on, the lower revisions count.
    mirror.put(&key, "6", Arc::new("6".to_owned()));
    apply(&mirror, "7");
    assert_eq!(*told.lock(), ["->9", "9>5", "5>6", "6>7"]);
    mirror.remove(&key, 8);
    assert!(mirror.find(&key).is_none());
}

#[test]
fn writes_during_a_list_are_newer_than_the_list() {
    let (mirror, told) = mirror();
    apply(&mirror, "5");
    mirror.begin_list();
    mirror.put(&Key::new("", "a"), "7", Arc::new("7".to_owned()));
    mirror.put(&Key::new("", "b"), "8", Arc::new("8".to_owned()));
    list(&mirror, "5");
    mirror.end_list();
    assert_eq!(*told.lock(), ["->5", "5>7", "->8"]);
    assert!(mirror.get("", "b").is_some(), "made after the list was asked for");
    // A list that shows what is known is not reported.
    mirror.begin_list();
    list(&mirror, "7");
    mirror.end_list();
    assert_eq!(told.lock().len(), 4, "b is gone: {:?}", told.lock());
    assert!(mirror.get("", "b").is_none());
}

#[test]
fn a_subscriber_that_panics_harms_nobody_else() {
    let (mirror, told) = (Mirror::<String>::default(), Arc::new(Mutex::new(0)));
    mirror.subscribe(|_| panic!("on purpose"));
    let counted = told.clone();
    mirror.subscribe(move |_| *counted.lock() += 1);
    apply(&mirror, "5");
    apply(&mirror, "6");
    assert_eq!(*told.lock(), 2);
}

#[test]
fn rests_grow_and_differ() {
    let within = |failures: u32, least: u64, most: u64| {
        let rest = rest_after(failures);
        assert!(rest >= Duration::from_millis(least) && rest <= Duration::from_millis(most), "{rest:?}");
    };
    within(1, 500, 600);
    within(2, 1000, 1200);
    within(20, 30_000, 36_000);
}

#[test]
fn a_copy_keeps_no_more_than_there_is_room_for() {
    let budget = Arc::new(Budget::new(250));
    let mirror = Mirror::<ConfigMap>::packed().within("m1", budget.clone());
    let mut large = map("a", "7");
    large.data = Some([("k".to_owned(), "x".repeat(80))].into());
    mirror.note(large);
    let used = budget.used();
    assert!((125..=250).contains(&used), "{used}");
    let mut other = map("b", "8");
    other.data = Some([("k".to_owned(), "x".repeat(80))].into());
    mirror.note(other);
    assert!(mirror.get("", "b").is_none(), "passed over");
    mirror.remove(&Key::new("", "a"), 9);
    assert_eq!(budget.used(), 0);
}

#[test]
fn the_newer_of_two_answers_stays() {
    let (mirror, told) = mirror();
    let key = Key::new("", "a");
    mirror.put(&key, "7", Arc::new("7".to_owned()));
    mirror.put(&key, "6", Arc::new("6".to_owned()));
    assert_eq!(*told.lock(), ["->7"]);
}

#[test]
fn an_old_deletion_spares_what_was_made_anew() {
    let (mirror, told) = mirror();
    let key = Key::new("", "a");
    mirror.put(&key, "12", Arc::new("12".to_owned()));
    mirror.remove(&key, 9);
    assert_eq!(*told.lock(), ["->12"]);
    assert!(mirror.find(&key).is_some());
}

#[test]
fn a_packed_copy_tells_the_same_as_one_that_keeps_objects_whole() {
    tells_every_change(&Mirror::packed());
    tells_every_change(&Mirror::packed().recalling());
}

fn tells_every_change(mirror: &Mirror<ConfigMap>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let saying = told.clone();
    mirror.subscribe(move |change| {
        saying.lock().push((change.old.as_deref().cloned(), change.new.as_deref().cloned()));
    });
    mirror.note(map("a", "7"));
    mirror.note(map("a", "8"));
    let key = Key::new("", "a");
    assert_eq!(mirror.find(&key).as_deref(), Some(&map("a", "8")));
    mirror.remove(&key, 9);
    let (seven, eight) = (Some(map("a", "7")), Some(map("a", "8")));
    assert_eq!(*told.lock(), [(None, seven.clone()), (seven, eight.clone()), (eight, None)]);
    assert!(mirror.all().is_empty());
    assert!(mirror.find(&key).is_none());
}

#[test]
fn a_recalling_copy_parses_what_was_read_last_only_once() {
    let mirror = Mirror::<ConfigMap>::packed().recalling();
    let key = Key::new("", "a");
    mirror.note(map("a", "7"));
    let found = || mirror.find(&key).expect("it was put in");
    assert!(Arc::ptr_eq(&found(), &found()));
    let seven = found();
    mirror.note(map("a", "8"));
    assert!(!Arc::ptr_eq(&seven, &found()));
    assert_eq!(*found(), map("a", "8"));
    let plain = Mirror::<ConfigMap>::packed();
    plain.note(map("a", "7"));
    assert!(!Arc::ptr_eq(&plain.find(&key).unwrap(), &plain.find(&key).unwrap()), "parsed at every read");
}

#[tokio::test]
async fn finding_16_an_object_of_small_parts_is_passed_over_and_not_taken_for_gone() {
    let object = |owners: usize| -> crate::undecoded::Undecoded {
        let owners = "{},".repeat(owners);
        let text =
            format!(r#"{{"metadata":{{"name":"a","resourceVersion":"9","managedFields":[{owners}{{}}]}}}}"#);
        serde_json::from_str(&text).unwrap()
    };
    let (own, _) = mirror();
    let (mirror, told) = mirror();
    let mirror = mirror.within("m1", Arc::new(Budget::new(1 << 30)));
    assert!(matches!(mirror.fit(&object(1 << 20)).await, Fit::PassOver), "3 MiB that become 700 MiB");
    assert!(
        matches!(own.fit(&object(1 << 20)).await, Fit::Read(None)),
        "our own server has limits of its own"
    );
    assert!(matches!(mirror.fit(&object(100)).await, Fit::Read(None)));
    {
        let first = mirror.fit(&object(1 << 15)).await;
        assert!(matches!(first, Fit::Read(Some(_))), "a heavy one is read alone");
    }
    apply(&mirror, "5");
    mirror.begin_list();
    mirror.show(&Key::of(&object(1)));
    mirror.end_list();
    assert_eq!(*told.lock(), ["->5"], "what was known of it stays");
}
