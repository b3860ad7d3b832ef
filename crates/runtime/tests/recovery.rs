//! What happens when the server behind a mirror is replaced by an older state of itself, or cannot be reached for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use apiserver::Options;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use kube::runtime::watcher;
use parking_lot::Mutex;
use runtime::{Mirror, Supervisor, Vouched, Witness, Writer};
use serde_json::json;
use testkit::embedded::Embedded;
use testkit::until_true;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

async fn server() -> (Embedded, Client) {
    let server = Embedded::start(Options::default()).await;
    let client = server.client.clone();
    (server, client)
}

/// A client that reaches whichever server stands behind it at the moment.
fn switched(current: &Arc<Mutex<Client>>) -> Client {
    let current = current.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let client = current.lock().clone();
        async move { client.send(request).await }
    });
    Client::new(service, "default")
}

fn map(name: &str, data: &str) -> ConfigMap {
    let map = json!({ "metadata": { "name": name, "namespace": "default" }, "data": { "k": data } });
    serde_json::from_value(map).expect("a map")
}

async fn create(client: &Client, name: &str, data: &str) {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    maps.create(&PostParams::default(), &map(name, data)).await.expect("created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_believes_a_server_that_was_restored_to_an_older_revision() {
    let (before, first) = server().await;
    for number in 0..50 {
        create(&first, &format!("old-{number}"), "x").await;
    }
    create(&first, "kept", "new").await;
    let current = Arc::new(Mutex::new(first));
    let (mirror, supervisor, client) =
        (Arc::new(Mirror::<ConfigMap>::default()), Supervisor::default(), switched(&current));
    let (following, stop, api) =
        (mirror.clone(), supervisor.token().clone(), Api::<ConfigMap>::namespaced(client.clone(), "default"));
    supervisor.keep("mirror", move || {
        let (mirror, stop, api) = (following.clone(), stop.clone(), api.clone());
        async move { mirror.follow(api, watcher::Config::default(), stop, |map| map).await }
    });
    let data = |name: &str| mirror.get("default", name)?.data.as_ref()?.get("k").cloned();
    until_true("the mirror has the first state", || data("kept").as_deref() == Some("new")).await;
    let newest = mirror.newest();

    // The state of a backup: fewer objects, and revisions that begin lower.
    let (after, second) = server().await;
    create(&second, "kept", "old").await;
    *current.lock() = second.clone();
    before.stop().await;
    until_true("the mirror has the restored state", || data("kept").as_deref() == Some("old")).await;
    until_true("what the backup does not have is gone", || data("old-0").is_none()).await;

    // Life goes on at the lower revisions: what we write is known at once, what others write is heard of.
    let writer = Writer::new(client);
    writer.create(&mirror, &map("ours", "1")).await.expect("created");
    assert_eq!(data("ours").as_deref(), Some("1"));
    assert!(mirror.newest() < newest, "{} and {newest}", mirror.newest());
    create(&second, "theirs", "1").await;
    until_true("the mirror hears of others", || data("theirs").as_deref() == Some("1")).await;

    // The writer, on a real server: only what differs, finalizers, deletion of this very object.
    let ours = (*mirror.get("default", "ours").expect("ours")).clone();
    assert!(
        !writer.update_mirrored(&mirror, &ours, &ours, runtime::Guard::Version).await.expect("nothing to do")
    );
    let mut held = ours.clone();
    held.metadata.finalizers = Some(vec!["example.io/first".to_owned(), "example.io/held".to_owned()]);
    assert!(writer.update_mirrored(&mirror, &ours, &held, runtime::Guard::Fields).await.expect("written"));
    let stale =
        writer.update(&ours, &map("ours", "2"), runtime::Guard::Version).await.expect_err("a conflict");
    assert!(stale.is_conflict(), "{stale}");
    let held = (*mirror.get("default", "ours").expect("ours")).clone();
    writer.delete(&held).await.expect("told to go");
    until_true("it waits for its finalizer", || {
        mirror.get("default", "ours").is_some_and(|map| map.metadata.deletion_timestamp.is_some())
    })
    .await;
    let going = (*mirror.get("default", "ours").expect("ours")).clone();
    // The second finalizer comes off the version that the first one left, which the mirror knows at once.
    assert!(writer.release(&mirror, &going, "example.io/first").await.expect("released"));
    let going = (*mirror.get("default", "ours").expect("ours")).clone();
    assert_eq!(going.metadata.finalizers.as_deref(), Some(&["example.io/held".to_owned()][..]));
    assert!(writer.release(&mirror, &going, "example.io/held").await.expect("released"));
    assert!(!writer.release(&mirror, &going, "example.io/held").await.expect("gone is fine"));
    until_true("it is gone", || mirror.get("default", "ours").is_none()).await;
    writer.delete(&going).await.expect("gone is fine");
    let applied = writer.apply("test", &map("applied", "1")).await.expect("applied");
    assert_eq!(applied.data, map("applied", "1").data);
    supervisor.stop().await;
    after.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_is_refused_if_the_object_is_another_or_has_changed() {
    let (server, client) = server().await;
    let (writer, mirror) = (Writer::new(client.clone()), Mirror::<ConfigMap>::default());
    writer.create(&mirror, &map("a", "1")).await.expect("created");
    let first = (*mirror.get("default", "a").expect("the mirror knows it")).clone();
    let wanted = ConfigMap { data: map("a", "2").data, ..first.clone() };
    let changed = writer.update(&first, &wanted, runtime::Guard::Fields).await.expect("written");
    let changed = changed.expect("there was a difference");
    let refused = writer.delete_unchanged(&first).await.expect_err("it has changed");
    assert!(refused.is_conflict(), "{refused}");
    writer.delete_unchanged(&changed).await.expect("it is as it was read");
    writer.delete_unchanged(&changed).await.expect("gone is fine");

    // Another one has its name: the first one is not deleted in its place, whatever the version.
    create(&client, "a", "3").await;
    for refused in [writer.delete(&first).await, writer.delete_unchanged(&changed).await] {
        let refused = refused.expect_err("it is another one");
        assert!(refused.is_conflict(), "{refused}");
    }
    let maps = Api::<ConfigMap>::namespaced(client, "default");
    assert_eq!(maps.get("a").await.expect("it is still there").data, map("a", "3").data);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_are_written_whatever_the_mirror_knows() {
    let (server, client) = server().await;
    let (writer, mirror) = (Writer::new(client.clone()), Mirror::<ConfigMap>::default());
    writer.create(&mirror, &map("a", "1")).await.expect("created");
    let key = runtime::Key::new("default", "a");
    // Somebody else sets a field that the mirror does not have.
    let maps = Api::<ConfigMap>::namespaced(client, "default");
    let theirs = kube::api::Patch::Merge(json!({ "data": { "theirs": "x", "other": "y" } }));
    maps.patch("a", &kube::api::PatchParams::default(), &theirs).await.expect("written");
    let patch = json!({ "data": { "k": "2", "theirs": null } });
    assert!(writer.patch_mirrored(&mirror, &key, patch.clone()).await.expect("written"));
    let known = mirror.find(&key).expect("the mirror knows it").data.clone().unwrap_or_default();
    let pairs: Vec<(&str, &str)> = known.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(pairs, [("k", "2"), ("other", "y")], "and nothing else");
    maps.delete("a", &kube::api::DeleteParams::default()).await.expect("deleted");
    assert!(!writer.patch_mirrored(&mirror, &key, patch).await.expect("gone is fine"));
    assert!(maps.get_opt("a").await.expect("an answer").is_none(), "it is not created");
    server.stop().await;
}

/// A line to a server that can be cut, and counts what is asked over it.
#[derive(Clone, Default)]
struct Line {
    is_cut: Arc<AtomicBool>,
    cut: Arc<Mutex<CancellationToken>>,
    lists: Arc<Mutex<usize>>,
    /// How many requests came while it was cut.
    refused: Arc<Mutex<usize>>,
    /// The revisions at which watches began.
    watches: Arc<Mutex<Vec<String>>>,
}

impl Line {
    fn to(&self, server: Client) -> Client {
        let line = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (line, server) = (line.clone(), server.clone());
            async move {
                if line.is_cut.load(Ordering::SeqCst) {
                    *line.refused.lock() += 1;
                    return Err(BoxError::from("the line is cut"));
                }
                let query = request.uri().query().unwrap_or_default().to_owned();
                match query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")) {
                    Some(revision) if query.contains("watch=true") => {
                        line.watches.lock().push(revision.to_owned())
                    }
                    _ => *line.lists.lock() += 1,
                }
                let (head, body) = server.send(request).await?.into_parts();
                let cut = line.cut.lock().clone();
                let frames = body.into_data_stream().map_ok(http_body::Frame::data);
                let body = StreamBody::new(frames.take_until(cut.cancelled_owned()));
                Ok(http::Response::from_parts(head, body))
            }
        });
        Client::new(service, "default")
    }

    /// Cuts the line, and waits until that is noticed.
    async fn cut(&self) {
        let before = *self.refused.lock();
        self.is_cut.store(true, Ordering::SeqCst);
        std::mem::take(&mut *self.cut.lock()).cancel();
        until_true("the cut is noticed", || *self.refused.lock() > before).await;
    }

    fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

/// Says what a test has it say.
struct Says(Mutex<Vouched>);

impl Witness for Says {
    fn vouch(&self, _: Instant) -> BoxFuture<'_, Vouched> {
        std::future::ready(*self.0.lock()).boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_was_cut_goes_on_where_it_was_if_somebody_vouches_for_the_server() {
    let (server, direct) = server().await;
    let maps = Api::<ConfigMap>::namespaced(direct.clone(), "default");
    create(&direct, "gone", "1").await;
    let (line, supervisor) = (Line::default(), Supervisor::default());
    let (mirror, witness) =
        (Arc::new(Mirror::<ConfigMap>::default()), Arc::new(Says(Mutex::new(Vouched::Nothing))));
    mirror.rely_on(witness.clone());
    let (following, stop) = (mirror.clone(), supervisor.token().clone());
    let api = Api::<ConfigMap>::namespaced(line.to(direct.clone()), "default");
    supervisor.keep("mirror", move || {
        let (mirror, stop, api) = (following.clone(), stop.clone(), api.clone());
        async move { mirror.follow(api, watcher::Config::default(), stop, |map| map).await }
    });
    until_true("the mirror is there", || mirror.get("default", "gone").is_some()).await;
    create(&direct, "first", "1").await;
    until_true("the watch tells of it", || mirror.get("default", "first").is_some()).await;
    let version = |name: &str| mirror.revision("default", name).to_string();
    assert_eq!(*line.lists.lock(), 1);

    // Cut, and back with a witness: what happened meanwhile is told, and nothing is listed.
    let known = version("first");
    *witness.0.lock() = Vouched::Until(u64::MAX);
    line.cut().await;
    create(&direct, "second", "1").await;
    maps.delete("gone", &Default::default()).await.expect("deleted");
    line.mend();
    until_true("what was made is known", || mirror.get("default", "second").is_some()).await;
    until_true("what was deleted is gone", || mirror.get("default", "gone").is_none()).await;
    assert_eq!(*line.lists.lock(), 1, "nothing is listed again");
    assert_eq!(line.watches.lock().last(), Some(&known), "it goes on after what it has seen");

    // Vouched for less than was seen: what is shown again is not told again.
    let told = Arc::new(Mutex::new(Vec::new()));
    let saying = told.clone();
    mirror.subscribe(move |change| saying.lock().push(change.key.name.clone()));
    *witness.0.lock() = Vouched::Until(known.parse().expect("a number"));
    line.cut().await;
    create(&direct, "third", "1").await;
    line.mend();
    until_true("what was made is known", || mirror.get("default", "third").is_some()).await;
    assert_eq!(line.watches.lock().last(), Some(&known), "it goes on where somebody vouches");
    assert_eq!((*line.lists.lock(), told.lock().clone()), (1, vec!["third".to_owned()]));

    // Nobody vouches: everything is listed.
    *witness.0.lock() = Vouched::Nothing;
    line.cut().await;
    create(&direct, "fourth", "1").await;
    line.mend();
    until_true("what was made is known", || mirror.get("default", "fourth").is_some()).await;
    assert_eq!(*line.lists.lock(), 2);

    // The history does not reach back that far: everything is listed.
    *witness.0.lock() = Vouched::Until(1);
    server.handle.server.store.compact(version("fourth").parse().expect("a number"));
    line.cut().await;
    create(&direct, "fifth", "1").await;
    line.mend();
    until_true("what was made is known", || mirror.get("default", "fifth").is_some()).await;
    assert_eq!(*line.lists.lock(), 3);
    supervisor.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_every_watch_at_once_is_not_asked_without_a_pause() {
    let (server, direct) = server().await;
    create(&direct, "first", "1").await;
    let (line, supervisor) = (Line::default(), Supervisor::default());
    let mirror = Arc::new(Mirror::<ConfigMap>::default());
    let (following, stop) = (mirror.clone(), supervisor.token().clone());
    let api = Api::<ConfigMap>::namespaced(line.to(direct.clone()), "default");
    supervisor.keep("mirror", move || {
        let (mirror, stop, api) = (following.clone(), stop.clone(), api.clone());
        async move { mirror.follow(api, watcher::Config::default(), stop, |map| map).await }
    });
    let asked = || line.watches.lock().len();
    until_true("it watches", || asked() == 1).await;

    // From now on a watch is answered and ends before it has told anything.
    line.cut.lock().cancel();
    until_true("the watch is begun anew", || asked() > 1).await;
    let before = asked();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(asked() <= before + 5, "{} times in two seconds", asked() - before);

    *line.cut.lock() = CancellationToken::new();
    create(&direct, "second", "1").await;
    until_true("nothing is lost by it", || mirror.get("default", "second").is_some()).await;
    assert_eq!(*line.lists.lock(), 1);
    supervisor.stop().await;
    server.stop().await;
}
