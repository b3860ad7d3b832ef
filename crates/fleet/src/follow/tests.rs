//! Which answers of a member are believed, tested with scripted answers.

use std::collections::VecDeque;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use runtime::room::{Budget, TooLarge};
use serde_json::json;

use super::*;
use crate::cache::Take;
use crate::plan::Kind;

/// The events of a watch until it ends.
type Told = Vec<Result<Event, Error>>;

/// The member's answers, in order; after the last one, it does not answer.
#[derive(Default)]
struct Script {
    lists: Mutex<VecDeque<Result<Page, Error>>>,
    watches: Mutex<VecDeque<Result<Told, Error>>>,
    /// The requests that it got.
    asked: Mutex<Vec<String>>,
}

impl Source for Arc<Script> {
    fn list(&self, limit: u32, next: &str) -> BoxFuture<'_, Result<Page, Error>> {
        self.asked.lock().push(format!("list {limit} {next}").trim_end().to_owned());
        let answer = self.lists.lock().pop_front();
        Box::pin(async move {
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        })
    }

    fn watch(&self, after: u64, _: u64) -> BoxFuture<'_, Result<Events, Error>> {
        self.asked.lock().push(format!("watch {after}"));
        let answer = self.watches.lock().pop_front();
        Box::pin(async move {
            match answer {
                Some(Ok(events)) => Ok(futures::stream::iter(events).boxed()),
                Some(Err(error)) => Err(error),
                None => Ok(futures::stream::pending().boxed()),
            }
        })
    }
}

fn object(name: &str, revision: u64) -> Value {
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": revision.to_string()}})
}

fn page(version: u64, objects: &[(&str, u64)]) -> Result<Page, Error> {
    let items = objects.iter().map(|(name, revision)| object(name, *revision)).collect();
    Ok(Page { version, next: String::new(), items })
}

fn gone() -> Error {
    Error::Unreachable("connection refused".to_owned())
}

struct Stage {
    script: Arc<Script>,
    cache: Arc<Cache>,
    stop: CancellationToken,
}

impl Stage {
    fn new() -> Self {
        let kind = Kind::test("", "v1", "ConfigMap", "configmaps");
        let cache = Arc::new(Cache::new(kind, Arc::new(Budget::new(1 << 20))));
        cache.expect(&Place::cluster("m1"));
        Self { script: Arc::default(), cache, stop: CancellationToken::new() }
    }

    fn list(self, answer: Result<Page, Error>) -> Self {
        self.script.lists.lock().push_back(answer);
        self
    }

    fn watch(self, events: Vec<Result<Event, Error>>) -> Self {
        self.script.watches.lock().push_back(Ok(events));
        self
    }

    fn follower(&self) -> Follower {
        let backoff =
            Backoff { first_rest: Duration::from_millis(1), longest_rest: Duration::from_millis(2) };
        let source = Box::new(self.script.clone());
        Follower { cache: self.cache.clone(), place: Place::cluster("m1"), source, backoff }
    }

    /// Runs until the member has no more answers. Returns the known state and the requests.
    async fn play(&self) -> (String, Vec<String>) {
        let follower = self.follower();
        let stop = self.stop.clone();
        let running = tokio::spawn(async move { follower.run(&stop).await });
        // Time is paused: this passes only when nothing else can happen, except when a member does not answer.
        tokio::time::sleep(SLOW / 2).await;
        self.stop.cancel();
        running.await.unwrap();
        let found = self.cache.list("", None, |_, _| Take::Yes).found;
        let known = found.iter().map(|found| format!("{}@{}", found.entry.key(), found.entry.revision));
        (known.collect::<Vec<_>>().join(" "), self.script.asked.lock().clone())
    }

    fn stale(&self) -> Option<String> {
        self.cache.places().into_iter().find_map(|(_, _, stale)| stale.map(|stale| stale.why))
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_or_breaks_is_resumed_and_nothing_is_listed_again() {
    let stage = Stage::new()
        .list(page(10, &[("x", 5)]))
        .watch(vec![Ok(Event::Put(object("x", 11)))])
        .watch(vec![Ok(Event::Progress(15)), Err(gone())])
        .list(page(16, &[("x", 11)]))
        .watch(vec![Ok(Event::Gone(object("x", 17))), Ok(Event::Put(object("y", 18)))]);
    let (known, asked) = stage.play().await;
    assert_eq!(known, "y@18");
    assert_eq!(asked, ["list 500", "watch 10", "watch 11", "list 1", "watch 15", "watch 18"]);
    assert_eq!(stage.stale(), None);
}

#[tokio::test(start_paused = true)]
async fn when_the_history_is_gone_the_list_becomes_changes() {
    let stage = Stage::new()
        .list(page(10, &[("x", 5), ("y", 6)]))
        .watch(vec![Err(Error::Expired)])
        .list(page(50, &[("x", 5), ("z", 44)]));
    let mut watch = crate::Watch::begin(&stage.cache, crate::Start::Everything).await.unwrap();
    let (known, asked) = stage.play().await;
    assert_eq!((known.as_str(), asked.last().unwrap().as_str()), ("x@5 z@44", "watch 50"));
    let mut told = Vec::new();
    while watch
        .tell_ready(&mut |event: crate::watch::Told, _: &crate::Versions| {
            let entry = event.new.as_ref().or(event.old.as_ref()).unwrap();
            told.push(format!("{}{}", if event.new.is_some() { "+" } else { "-" }, entry.key()));
        })
        .unwrap()
    {}
    // The reader starts from the current state of the place: no event is repeated, none is left out.
    assert_eq!(told, ["+x", "+z"]);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_dies_keeps_its_objects_which_are_marked() {
    let stage =
        Stage::new().list(page(10, &[("x", 5)])).watch(vec![Err(gone())]).list(Err(gone())).list(Err(gone()));
    let (known, _) = stage.play().await;
    assert_eq!(known, "x@5");
    assert_eq!(stage.stale().as_deref(), Some("it cannot be reached: connection refused"));
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_in_place_of_objects_is_believed_the_second_time() {
    let start = || Stage::new().list(page(10, &[("x", 5)])).watch(vec![Err(Error::Expired)]);
    let lying = start().list(page(20, &[])).list(page(21, &[("x", 5)]));
    assert_eq!(lying.play().await.0, "x@5");
    let honest = start().list(page(20, &[])).list(page(21, &[]));
    assert_eq!(honest.play().await.0, "");
}

#[tokio::test(start_paused = true)]
async fn an_older_version_is_believed_when_the_member_insists() {
    let start = || {
        Stage::new()
            .list(page(10, &[("x", 5)]))
            .watch(vec![Err(Error::Expired)])
            .list(page(3, &[]))
            .list(page(3, &[]))
    };
    let lagging = start().list(page(12, &[("x", 5), ("y", 11)]));
    assert_eq!(lagging.play().await.0, "x@5 y@11");
    let restored = start();
    for _ in 0..4 {
        restored.script.lists.lock().push_back(page(3, &[("old", 2)]));
    }
    assert_eq!(restored.play().await.0, "old@2");
    let bookmark = Stage::new()
        .list(page(10, &[("x", 5)]))
        .watch(vec![Ok(Event::Progress(4))])
        .list(page(12, &[("x", 5)]));
    let (known, asked) = bookmark.play().await;
    assert_eq!((known.as_str(), asked.last().unwrap().as_str()), ("x@5", "watch 12"));
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_too_large_is_asked_for_with_fewer_objects() {
    let large = || {
        Err(Error::TooLarge(TooLarge { cluster: "m1".to_owned(), what: "a page of a list", limit: 32 << 20 }))
    };
    let first =
        Ok(Page { version: 10, next: "token".to_owned(), items: [object("x", 5)].into_iter().collect() });
    let stage = Stage::new().list(large()).list(large()).list(first).list(page(11, &[("y", 6)]));
    let (known, asked) = stage.play().await;
    assert_eq!(known, "x@5 y@6");
    assert_eq!(asked, ["list 500", "list 125", "list 31", "list 31 token", "watch 10"]);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_costs_itself_or_a_list_but_not_the_cache() {
    let objects = [object("x", 5), json!({"metadata": {"name": "a/b", "resourceVersion": "9"}})];
    let odd = Ok(Page { version: 10, next: String::new(), items: objects.into_iter().collect() });
    let stage = Stage::new()
        .list(odd)
        .watch(vec![Ok(Event::Put(json!({"metadata": {}})))])
        .list(page(12, &[("x", 5)]));
    let (known, asked) = stage.play().await;
    assert_eq!(known, "x@5");
    assert_eq!(asked, ["list 500", "watch 10", "list 500", "watch 12"]);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_does_not_answer_is_marked_while_it_is_waited_for() {
    let stage = Stage::new().list(page(10, &[("x", 5)])).watch(vec![Err(gone())]);
    let running = tokio::time::timeout(2 * SLOW, stage.follower().run(&stage.stop)).await;
    assert!(running.is_err());
    // The short list after the failure is never answered.
    assert_eq!(stage.script.asked.lock().last().unwrap(), "list 1");
    assert_eq!(stage.stale().as_deref(), Some("it does not answer within 5 s"));
}

#[tokio::test(start_paused = true)]
async fn a_member_that_falls_silent_is_asked_and_marked_within_two_minutes() {
    // Its watch stays open and silent, and no other request is answered either: the packets are dropped.
    let stage = Stage::new().list(page(10, &[("x", 5)]));
    let running = tokio::time::timeout(Duration::from_secs(120), stage.follower().run(&stage.stop)).await;
    assert!(running.is_err());
    assert_eq!(*stage.script.asked.lock(), ["list 500", "watch 10", "list 1"]);
    assert_eq!(stage.stale().as_deref(), Some("it does not answer within 5 s"));
    // A member that answers, and merely has no events, is not marked.
    let stage = Stage::new().list(page(10, &[("x", 5)])).list(page(10, &[("x", 5)]));
    let running = tokio::time::timeout(Duration::from_secs(120), stage.follower().run(&stage.stop)).await;
    assert!(running.is_err());
    assert_eq!(*stage.script.asked.lock(), ["list 500", "watch 10", "list 1", "watch 10"]);
    assert_eq!(stage.stale(), None);
}

#[tokio::test(start_paused = true)]
async fn objects_need_room_before_they_are_in_the_cache() {
    let large = |name: &str| {
        let mut object = object(name, 5);
        object["data"] = json!({"a": "x".repeat(400 << 10)});
        object
    };
    let first = |next: &str| Page {
        version: 10,
        next: next.to_owned(),
        items: ["a", "b"].map(large).into_iter().collect(),
    };
    let stage = Stage::new().list(Ok(first("token")));
    let follower = stage.follower();
    // It waits for the second page.
    let reading = tokio::time::timeout(Duration::from_secs(1), follower.run(&stage.stop)).await;
    assert!(reading.is_err());
    assert_eq!(stage.cache.budget.used(), 0, "what was given up is given back");
    let third = Page { version: 10, next: String::new(), items: [large("c")].into_iter().collect() };
    let stage = Stage::new().list(Ok(first("token"))).list(Ok(third));
    let (known, _) = stage.play().await;
    assert_eq!(known, "");
    assert_eq!(stage.stale().as_deref(), Some("the caches are full: they may hold 1 MiB"));
    // Known objects are not read a second time: the same list again needs no room.
    let again = Ok(first(""));
    let stage = Stage::new().list(Ok(first(""))).watch(vec![Err(Error::Expired)]).list(again);
    assert_eq!(stage.play().await.0, "a@5 b@5");
    assert_eq!(stage.stale(), None);
}
