//! Watches: complete, in order, resumable, and honest when they cannot be.

use serde_json::{Value, json};

use crate::start;
use crate::support::Api;

const MAPS: &str = "api/v1/namespaces/default/configmaps";
/// Events of other writers, such as the root certificates of namespaces, are kept out.
const OURS: &str = "labelSelector=test%3Dwatch";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"test": "watch"}}})
}

async fn create(api: &Api, name: &str) -> String {
    api.post(MAPS, &map(name)).await.expect(201).at("/metadata/resourceVersion")
}

#[tokio::test]
async fn a_watch_from_a_revision_shows_every_later_change_once_and_in_order() {
    let (handle, api) = start().await;
    let from = create(&api, "a").await;
    let mut watch = api.open(&format!("{MAPS}?watch=1&{OURS}&resourceVersion={from}")).await;
    create(&api, "b").await;
    api.merge(&format!("{MAPS}/a"), &json!({"data": {"k": "v"}})).await.expect(200);
    api.delete(&format!("{MAPS}/b")).await.expect(200);
    let mut last: u64 = from.parse().expect("revisions are numbers");
    for (kind, name) in [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")] {
        let event = watch.next().await.expect("an event");
        assert_eq!(
            (event["type"].as_str(), event["object"]["metadata"]["name"].as_str()),
            (Some(kind), Some(name))
        );
        let version = event["object"]["metadata"]["resourceVersion"].as_str().expect("a version");
        let version: u64 = version.parse().expect("revisions are numbers");
        assert!(version > last, "{version} after {last}");
        last = version;
    }
    handle.stop().await;
}

#[tokio::test]
async fn many_watches_of_one_kind_take_turns_and_miss_nothing() {
    let (handle, api) = start().await;
    let from = create(&api, "first").await;
    let mut watches = Vec::new();
    for _ in 0..30 {
        watches.push(api.open(&format!("{MAPS}?watch=1&{OURS}&resourceVersion={from}")).await);
    }
    let names: Vec<String> = (0..40).map(|number| format!("map-{number}")).collect();
    for name in &names {
        create(&api, name).await;
    }
    for watch in &mut watches {
        for name in &names {
            let event = watch.next().await.expect("an event");
            assert_eq!(event["object"]["metadata"]["name"], **name);
        }
    }
    handle.stop().await;
}

#[tokio::test]
async fn initial_events_end_with_a_marked_bookmark_and_the_stream_goes_on() {
    let (handle, api) = start().await;
    create(&api, "a").await;
    create(&api, "b").await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = api.open(&format!("{MAPS}?{query}&{OURS}")).await;
    assert_eq!(watch.step().await, ("ADDED".to_owned(), "a".to_owned()));
    assert_eq!(watch.step().await, ("ADDED".to_owned(), "b".to_owned()));
    let mark = watch.next().await.expect("a bookmark");
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    // What the bookmark says is enough to resume: nothing is repeated, nothing is missed.
    let from = mark["object"]["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    create(&api, "c").await;
    assert_eq!(watch.step().await, ("ADDED".to_owned(), "c".to_owned()));
    let mut resumed = api.open(&format!("{MAPS}?watch=1&{OURS}&resourceVersion={from}")).await;
    assert_eq!(resumed.step().await, ("ADDED".to_owned(), "c".to_owned()));
    handle.stop().await;
}

#[tokio::test]
async fn a_watch_that_ends_by_its_timeout_says_before_how_far_it_came() {
    let (handle, api) = start().await;
    let from = create(&api, "a").await;
    // Two seconds before the end comes the last bookmark, so a watch of three seconds has one.
    let query = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={from}");
    let mut watch = api.open(&format!("{MAPS}?{query}&{OURS}")).await;
    let mark = watch.next().await.expect("a bookmark");
    assert_eq!(mark["type"], "BOOKMARK");
    assert!(mark["object"]["metadata"].get("annotations").is_none());
    assert!(watch.next().await.is_none(), "then it ends");
    handle.stop().await;
}

#[tokio::test]
async fn objects_come_into_a_selection_and_leave_it() {
    let (handle, api) = start().await;
    let from = create(&api, "a").await;
    let mut watch =
        api.open(&format!("{MAPS}?watch=1&labelSelector=colour%3Dred&resourceVersion={from}")).await;
    let colour = |colour: Value| json!({"metadata": {"labels": {"colour": colour}}});
    let path = format!("{MAPS}/a");
    api.merge(&path, &colour("blue".into())).await.expect(200);
    api.merge(&path, &colour("red".into())).await.expect(200);
    api.merge(&path, &json!({"data": {"k": "v"}})).await.expect(200);
    let left = api.merge(&path, &colour(Value::Null)).await.expect(200).at("/metadata/resourceVersion");
    assert_eq!(watch.step().await.0, "ADDED");
    assert_eq!(watch.step().await.0, "MODIFIED");
    let gone = watch.next().await.expect("an event");
    assert_eq!(gone["type"], "DELETED");
    // The object as it was when it was last selected, at the revision at which it left.
    assert_eq!(gone["object"]["metadata"]["labels"]["colour"], "red");
    assert_eq!(gone["object"]["metadata"]["resourceVersion"], left.as_str());
    handle.stop().await;
}

#[tokio::test]
async fn a_watch_from_a_forgotten_revision_is_told_so_inside_the_stream() {
    let (handle, api) = start().await;
    let old = create(&api, "a").await;
    create(&api, "b").await;
    create(&api, "c").await;
    handle.server.store.compact(handle.server.store.revision());
    let mut watch = api.open(&format!("{MAPS}?watch=1&resourceVersion={old}")).await;
    assert_eq!(watch.code, 200);
    let error = watch.next().await.expect("an event");
    assert_eq!(error["type"], "ERROR");
    assert_eq!(error["object"]["code"], 410);
    assert_eq!(error["object"]["reason"], "Expired");
    assert!(watch.next().await.is_none(), "nothing follows");
    let exact = api.get(&format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact")).await;
    assert_eq!(exact.expect(410).at("/reason"), "Expired");
    handle.stop().await;
}

#[tokio::test]
async fn finding_12_a_watch_from_a_revision_that_the_store_has_not_reached_is_told_to_list_again() {
    let (handle, api) = start().await;
    create(&api, "a").await;
    let mut watch = api.open(&format!("{MAPS}?watch=1&resourceVersion=1000000000000")).await;
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{event}");
    assert_eq!(event["object"]["reason"], "Expired");
    assert!(watch.next().await.is_none(), "the stream ends");
    // The list that follows names the revision first and is refused as well, which makes clients forget it.
    let once = Api::without_retries(&handle.kubeconfig).await;
    let list = once.get(&format!("{MAPS}?resourceVersion=1000000000000")).await.expect(504);
    assert_eq!(list.json()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    handle.stop().await;
}
