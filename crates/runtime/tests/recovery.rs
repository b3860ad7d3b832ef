//! What happens when the server behind a mirror is replaced by an older state of itself.

use std::sync::Arc;

use apiserver::Options;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use kube::runtime::watcher;
use parking_lot::Mutex;
use runtime::{Mirror, Supervisor, Writer};
use serde_json::json;
use testkit::embedded::Embedded;
use testkit::until_some;

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

async fn until(what: &str, condition: impl Fn() -> bool) {
    until_some(what, async || condition().then_some(())).await;
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
    until("the mirror has the first state", || data("kept").as_deref() == Some("new")).await;
    let newest = mirror.newest();

    // The state of a backup: fewer objects, and revisions that begin lower.
    let (after, second) = server().await;
    create(&second, "kept", "old").await;
    *current.lock() = second.clone();
    before.stop().await;
    until("the mirror has the restored state", || data("kept").as_deref() == Some("old")).await;
    until("what the backup does not have is gone", || data("old-0").is_none()).await;

    // Life goes on at the lower revisions: what we write is known at once, what others write is heard of.
    let writer = Writer::new(client);
    writer.create(&mirror, &map("ours", "1")).await.expect("created");
    assert_eq!(data("ours").as_deref(), Some("1"));
    assert!(mirror.newest() < newest, "{} and {newest}", mirror.newest());
    create(&second, "theirs", "1").await;
    until("the mirror hears of others", || data("theirs").as_deref() == Some("1")).await;

    // The writer, on a real server: only what differs, finalizers, deletion of this very object.
    let ours = (*mirror.get("default", "ours").expect("ours")).clone();
    assert!(
        !writer.update_mirrored(&mirror, &ours, &ours, runtime::Guard::Version).await.expect("nothing to do")
    );
    let mut held = ours.clone();
    held.metadata.finalizers = Some(vec!["example.io/held".to_owned()]);
    assert!(writer.update_mirrored(&mirror, &ours, &held, runtime::Guard::Fields).await.expect("written"));
    let stale =
        writer.update(&ours, &map("ours", "2"), runtime::Guard::Version).await.expect_err("a conflict");
    assert!(stale.is_conflict(), "{stale}");
    let held = (*mirror.get("default", "ours").expect("ours")).clone();
    writer.delete(&held).await.expect("told to go");
    until("it waits for its finalizer", || {
        mirror.get("default", "ours").is_some_and(|map| map.metadata.deletion_timestamp.is_some())
    })
    .await;
    let going = (*mirror.get("default", "ours").expect("ours")).clone();
    assert!(writer.release(&going, "example.io/held").await.expect("released"));
    assert!(!writer.release(&going, "example.io/held").await.expect("gone is fine"));
    until("it is gone", || mirror.get("default", "ours").is_none()).await;
    writer.delete(&going).await.expect("gone is fine");
    let applied = writer.apply("test", &map("applied", "1")).await.expect("applied");
    assert_eq!(applied.data, map("applied", "1").data);
    supervisor.stop().await;
    after.stop().await;
}
