//! Made-up histories: a good one, and one for each thing that can be wrong.

use super::*;

fn fields(text: &str) -> Fields {
    text.split_whitespace()
        .map(|pair| pair.split_once('=').expect("FIELD=VALUE"))
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .collect()
}

fn version(uid: &str, revision: Revision, text: &str) -> Version {
    Version { uid: uid.to_owned(), revision, fields: fields(text) }
}

/// `a` is made, patched, updated and deleted; `b` is made.
fn changes() -> Vec<Change> {
    let change = |revision, name: &str, now| Change { revision, name: name.to_owned(), now };
    vec![
        change(10, "a", Some(version("u1", 10, "v=1"))),
        change(12, "a", Some(version("u1", 12, "v=1 p=2"))),
        change(15, "a", Some(version("u1", 15, "v=3"))),
        change(20, "b", Some(version("u2", 20, "v=4"))),
        change(25, "a", None),
    ]
}

fn operation(times: (u64, u64), request: Request, outcome: Outcome) -> Operation {
    Operation { client: 0, server: (0, 1), invoked: times.0, completed: times.1, request, outcome }
}

fn create(times: (u64, u64), name: &str, text: &str, outcome: Outcome) -> Operation {
    operation(times, Request::Create { name: name.to_owned(), fields: fields(text) }, outcome)
}

fn update(times: (u64, u64), text: &str, expected: Option<Revision>, outcome: Outcome) -> Operation {
    operation(times, Request::Update { name: "a".to_owned(), fields: fields(text), expected }, outcome)
}

fn get(times: (u64, u64), name: &str, outcome: Outcome) -> Operation {
    operation(times, Request::Get { name: name.to_owned(), freshness: Freshness::Newest }, outcome)
}

fn delete(times: (u64, u64), outcome: Outcome) -> Operation {
    operation(times, Request::Delete { name: "a".to_owned(), expected: None }, outcome)
}

fn list(
    times: (u64, u64),
    freshness: Freshness,
    revision: Revision,
    objects: &[(&str, Version)],
) -> Operation {
    let objects = objects.iter().map(|(name, version)| ((*name).to_owned(), version.clone())).collect();
    operation(times, Request::List { freshness }, Outcome::List { revision, objects })
}

/// The writes that made the changes, one after the other.
fn writes() -> Vec<Operation> {
    let patch = Request::Patch { name: "a".to_owned(), field: "p".to_owned(), value: "2".to_owned() };
    vec![
        create((0, 10), "a", "v=1", Outcome::Object(version("u1", 10, "v=1"))),
        operation((20, 30), patch, Outcome::Object(version("u1", 12, "v=1 p=2"))),
        update((40, 50), "v=3", Some(12), Outcome::Object(version("u1", 15, "v=3"))),
        create((60, 70), "b", "v=4", Outcome::Object(version("u2", 20, "v=4"))),
        delete((80, 90), Outcome::Deleted { uid: "u1".to_owned() }),
    ]
}

fn full_watch() -> Vec<Shown> {
    vec![
        Shown::Added("a".to_owned(), version("u1", 10, "v=1")),
        Shown::Modified("a".to_owned(), version("u1", 12, "v=1 p=2")),
        Shown::Bookmark(14),
        Shown::Modified("a".to_owned(), version("u1", 15, "v=3")),
        Shown::Added("b".to_owned(), version("u2", 20, "v=4")),
        Shown::Deleted("a".to_owned(), version("u1", 25, "v=3")),
        Shown::Bookmark(40),
    ]
}

fn with(operations: Vec<Operation>) -> History {
    History {
        changes: changes(),
        operations: writes().into_iter().chain(operations).collect(),
        watches: Vec::new(),
        compacted: 11,
    }
}

fn watching(from: Revision, shown: Vec<Shown>) -> History {
    History { watches: vec![Watch { client: 1, server: (0, 1), from, shown }], ..with(Vec::new()) }
}

/// The kinds of violations that are found.
fn found(history: &History) -> Vec<String> {
    let name = |violation: &Violation| violation.to_string().split('(').next().unwrap_or("").to_owned();
    judge(history).iter().map(name).collect()
}

#[test]
fn a_history_of_one_store_is_found_good() {
    let b = ("b", version("u2", 20, "v=4"));
    let a3 = ("a", version("u1", 15, "v=3"));
    let good = vec![
        get((11, 12), "a", Outcome::Object(version("u1", 10, "v=1"))),
        // Beside the update: before it or after it.
        get((41, 49), "a", Outcome::Object(version("u1", 12, "v=1 p=2"))),
        get((41, 49), "a", Outcome::Object(version("u1", 15, "v=3"))),
        get((91, 92), "a", Outcome::NotFound),
        list((71, 72), Freshness::Newest, 21, &[a3.clone(), b.clone()]),
        list((93, 94), Freshness::Any, 25, std::slice::from_ref(&b)),
        list((95, 96), Freshness::NotOlderThan(20), 26, std::slice::from_ref(&b)),
        list((97, 98), Freshness::Exactly(20), 20, &[a3, b]),
        operation((97, 98), Request::List { freshness: Freshness::Exactly(3) }, Outcome::Expired),
        create((51, 52), "a", "v=no", Outcome::AlreadyExists),
        update((51, 52), "v=never", Some(12), Outcome::Conflict),
        update((93, 94), "v=late", None, Outcome::NotFound),
        create((95, 96), "c", "v=lost", Outcome::Unknown("cut off".to_owned())),
        delete((95, 96), Outcome::NotFound),
    ];
    assert_eq!(found(&with(good)), [""; 0]);
    for from in 0..30 {
        let rest: Vec<Shown> = full_watch()
            .into_iter()
            .filter(|shown| match shown {
                Shown::Added(_, version) | Shown::Modified(_, version) | Shown::Deleted(_, version) => {
                    version.revision > from
                }
                _ => true,
            })
            .collect();
        assert_eq!(found(&watching(from, rest)), [""; 0], "from {from}");
    }
    assert_eq!(found(&watching(5, vec![Shown::Expired])), [""; 0], "that is compacted");
}

#[test]
fn a_write_without_an_answer_may_have_happened_later_or_never() {
    let mut history = with(Vec::new());
    for operation in &mut history.operations {
        if matches!(operation.request, Request::Update { .. }) {
            operation.outcome = Outcome::Unknown("cut off".to_owned());
        }
    }
    assert_eq!(found(&history), [""; 0]);
    // But not before it began.
    history.operations.push(get((31, 32), "a", Outcome::Object(version("u1", 15, "v=3"))));
    assert!(found(&history).contains(&"RevisionWentBack".to_owned()), "{:?}", judge(&history));
}

#[test]
fn a_stale_read_is_found() {
    let old = get((51, 52), "a", Outcome::Object(version("u1", 12, "v=1 p=2")));
    assert_eq!(found(&with(vec![old])), ["StaleRead"]);
    assert_eq!(found(&with(vec![get((51, 52), "a", Outcome::NotFound)])), ["RevisionWentBack"; 2]);
    assert_eq!(found(&with(vec![get((91, 92), "b", Outcome::NotFound)])), ["StaleRead"]);
    let gone = get((91, 92), "a", Outcome::Object(version("u1", 15, "v=3")));
    assert_eq!(found(&with(vec![gone])), ["StaleRead"]);
    // Of two reads, the second one must not be older, whatever the writes say.
    let two = vec![
        get((41, 43), "a", Outcome::Object(version("u1", 15, "v=3"))),
        get((44, 46), "a", Outcome::Object(version("u1", 12, "v=1 p=2"))),
    ];
    assert_eq!(found(&with(two)), ["StaleRead"]);
}

#[test]
fn a_list_that_misses_an_acknowledged_write_is_found() {
    let a3 = ("a", version("u1", 15, "v=3"));
    let old = list((71, 72), Freshness::Newest, 16, std::slice::from_ref(&a3));
    assert_eq!(found(&with(vec![old])), ["StaleRead"]);
    let short = list((71, 72), Freshness::Newest, 20, std::slice::from_ref(&a3));
    assert_eq!(found(&with(vec![short])), ["Phantom"]);
    let older_than_asked = list((71, 72), Freshness::NotOlderThan(17), 16, &[a3]);
    assert_eq!(found(&with(vec![older_than_asked])), ["StaleRead"]);
}

#[test]
fn a_lost_update_is_found() {
    // An update on top of revision 10 that went over the patch at 12.
    let mut history = with(Vec::new());
    if let Request::Update { expected, .. } = &mut history.operations[2].request {
        *expected = Some(10);
    }
    assert_eq!(found(&history), ["LostUpdate"]);
    // A patch that took a field away.
    let mut history = with(Vec::new());
    history.changes[1].now = Some(version("u1", 12, "p=2"));
    history.operations[1].outcome = Outcome::Object(version("u1", 12, "p=2"));
    assert!(found(&history).contains(&"LostUpdate".to_owned()), "{:?}", judge(&history));
}

#[test]
fn an_acknowledged_write_that_is_not_there_is_found() {
    let lost = create((95, 96), "c", "v=9", Outcome::Object(version("u9", 30, "v=9")));
    assert_eq!(found(&with(vec![lost])), ["LostWrite"]);
    let kept = delete((95, 96), Outcome::Deleted { uid: "u2".to_owned() });
    assert_eq!(found(&with(vec![kept])), ["LostWrite"]);
}

#[test]
fn a_refused_write_that_was_made_is_found() {
    let mut history = with(Vec::new());
    history.operations[3].outcome = Outcome::AlreadyExists;
    let found = found(&history);
    assert!(found.contains(&"UnexplainedChange".to_owned()), "{found:?}");
}

#[test]
fn a_write_that_was_made_twice_is_found() {
    let mut history = with(Vec::new());
    history.changes.push(Change { revision: 30, name: "a".to_owned(), now: Some(version("u3", 30, "v=1")) });
    assert_eq!(found(&history), ["UnexplainedChange"]);
    // Two are told that they deleted the same one.
    let twice = delete((81, 89), Outcome::Deleted { uid: "u1".to_owned() });
    assert_eq!(found(&with(vec![twice])), ["UnexplainedChange"]);
}

#[test]
fn a_refusal_without_a_reason_is_found() {
    let wrong = [
        create((91, 92), "c", "v=9", Outcome::AlreadyExists),
        update((91, 92), "v=9", Some(15), Outcome::AlreadyExists),
        operation(
            (91, 92),
            Request::Patch { name: "b".to_owned(), field: "p".to_owned(), value: "9".to_owned() },
            Outcome::NotFound,
        ),
    ];
    for wrong in wrong {
        assert_eq!(found(&with(vec![wrong.clone()])), ["UnjustifiedRefusal"], "{wrong:?}");
    }
    // A conflict with the newest revision.
    let mut history = with(Vec::new());
    let newest = Request::Update { name: "b".to_owned(), fields: fields("v=9"), expected: Some(20) };
    history.operations.push(operation((91, 92), newest, Outcome::Conflict));
    assert_eq!(found(&history), ["UnjustifiedRefusal"]);
}

#[test]
fn a_revision_that_goes_back_is_found() {
    // A write that is answered with an older revision than one that was answered before it began.
    let mut history = with(Vec::new());
    history.operations[3].invoked = 92;
    history.operations[3].completed = 93;
    assert_eq!(found(&history), ["RevisionWentBack"]);
    // A server whose view gets older.
    let b = ("b", version("u2", 20, "v=4"));
    let a3 = ("a", version("u1", 15, "v=3"));
    let back = vec![
        list((91, 92), Freshness::Any, 25, std::slice::from_ref(&b)),
        list((93, 94), Freshness::Any, 21, &[a3, b]),
    ];
    assert_eq!(found(&with(back)), ["RevisionWentBack"]);
}

#[test]
fn a_gap_in_a_watch_is_found() {
    for missing in [1, 3, 4] {
        let mut shown = full_watch();
        shown.remove(missing);
        assert_eq!(found(&watching(5, shown)), ["WatchGap"], "without {missing}");
    }
    assert_eq!(found(&watching(16, vec![Shown::Bookmark(20)])), ["WatchGap"]);
}

#[test]
fn a_repetition_in_a_watch_is_found() {
    for repeated in [0, 1, 3, 4, 5] {
        let mut shown = full_watch();
        let again = shown[repeated].clone();
        shown.insert(repeated + 1, again);
        assert_eq!(found(&watching(5, shown)), ["WatchRepetition"], "{repeated} twice");
    }
    assert_eq!(found(&watching(12, full_watch())), ["WatchRepetition"], "from before its start");
}

#[test]
fn a_watch_that_shows_something_else_is_found() {
    let swap = |at: usize, with: Shown| {
        let mut shown = full_watch();
        shown[at] = with;
        found(&watching(5, shown))
    };
    let a = |revision, text| version("u1", revision, text);
    assert_eq!(swap(1, Shown::Added("a".to_owned(), a(12, "v=1 p=2"))), ["WatchWrong"], "its type");
    assert_eq!(swap(1, Shown::Modified("a".to_owned(), a(12, "v=1"))), ["WatchWrong"], "its content");
    assert_eq!(swap(5, Shown::Deleted("a".to_owned(), a(25, "v=1"))), ["WatchWrong"], "the last state");
    assert_eq!(swap(1, Shown::Modified("a".to_owned(), a(11, "v=1"))), ["WatchWrong"], "nothing at 11");
}

#[test]
fn a_watch_that_is_lost_without_need_is_found() {
    let mut shown = full_watch();
    shown.truncate(2);
    shown.push(Shown::Expired);
    assert_eq!(found(&watching(5, shown)), ["WatchLost"], "at 12, and 11 is compacted");
}
