//! How objects end, what goes with them, and what outlives the process.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use apiserver::auth::User;
use apiserver::auth::bounds::{Bounds, Reach};
use apiserver::auth::rbac::Attributes;
use apiserver::{Options, Server};
use serde_json::{Value, json};

use crate::support::{Api, Call};
use crate::{start, start_with};

const MAPS: &str = "api/v1/namespaces/default/configmaps";

fn map(name: &str, metadata: Value) -> Value {
    let mut object = json!({"metadata": metadata});
    object["metadata"]["name"] = name.into();
    object
}

fn owned_by(name: &str, uid: &str) -> Value {
    json!({"ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": true}
    ]})
}

async fn owner_and_dependent(api: &Api) {
    let uid = api.post(MAPS, &map("owner", json!({}))).await.expect(201).at("/metadata/uid");
    api.post(MAPS, &map("dependent", owned_by("owner", &uid))).await.expect(201);
}

async fn delete(api: &Api, policy: &str) {
    let options = json!({"propagationPolicy": policy});
    api.send(&Call::new("DELETE", format!("{MAPS}/owner")).json(&options)).await.expect(200);
}

#[tokio::test]
async fn dependents_go_after_their_owner_in_the_background() {
    let (handle, api) = start().await;
    owner_and_dependent(&api).await;
    delete(&api, "Background").await;
    api.get(&format!("{MAPS}/owner")).await.expect(404);
    api.until(&format!("{MAPS}/dependent"), |answer| answer.code == 404).await;
    handle.stop().await;
}

#[tokio::test]
async fn an_owner_that_is_deleted_in_the_foreground_waits_for_its_dependents() {
    let (handle, api) = start().await;
    owner_and_dependent(&api).await;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    api.merge(&format!("{MAPS}/dependent"), &hold).await.expect(200);
    delete(&api, "Foreground").await;
    // The dependent is being deleted, and as long as it is held, so is the owner.
    let deleting = |answer: &crate::support::Answer| !answer.at("/metadata/deletionTimestamp").is_empty();
    api.until(&format!("{MAPS}/dependent"), deleting).await;
    let owner = api.get(&format!("{MAPS}/owner")).await.expect(200);
    assert_eq!(owner.json()["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    api.merge(&format!("{MAPS}/dependent"), &json!({"metadata": {"finalizers": null}})).await.expect(200);
    api.until(&format!("{MAPS}/owner"), |answer| answer.code == 404).await;
    api.get(&format!("{MAPS}/dependent")).await.expect(404);
    handle.stop().await;
}

#[tokio::test]
async fn orphans_stay_and_forget_their_owner() {
    let (handle, api) = start().await;
    owner_and_dependent(&api).await;
    delete(&api, "Orphan").await;
    api.until(&format!("{MAPS}/owner"), |answer| answer.code == 404).await;
    let orphan = api.get(&format!("{MAPS}/dependent")).await.expect(200);
    assert!(orphan.json()["metadata"].get("ownerReferences").is_none());
    handle.stop().await;
}

#[tokio::test]
async fn a_deleted_namespace_takes_everything_in_it_along() {
    let (handle, api) = start().await;
    api.post("api/v1/namespaces", &map("team", json!({}))).await.expect(201);
    let held = map("held", json!({"finalizers": ["example.com/hold"]}));
    api.post("api/v1/namespaces/team/configmaps", &held).await.expect(201);
    api.post("api/v1/namespaces/team/secrets", &map("s", json!({}))).await.expect(201);
    let deleted = api.delete("api/v1/namespaces/team").await.expect(200);
    assert_eq!(deleted.at("/status/phase"), "Terminating");
    api.until("api/v1/namespaces/team/secrets/s", |answer| answer.code == 404).await;
    // While something is held, the namespace stays and takes nothing new.
    let late = api.post("api/v1/namespaces/team/configmaps", &map("late", json!({}))).await.expect(403);
    assert!(late.at("/message").contains("because it is being terminated"), "{}", late.text());
    api.get("api/v1/namespaces/team").await.expect(200);
    let path = "api/v1/namespaces/team/configmaps/held";
    api.merge(path, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    api.until("api/v1/namespaces/team", |answer| answer.code == 404).await;
    api.get(path).await.expect(404);
    handle.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_objects_and_revisions_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = || Options { data_dir: Some(folder.path().join("data")), ..Options::default() };
    let (handle, api) = start_with(options()).await;
    let before = api.post(MAPS, &map("kept", json!({}))).await.expect(201);
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let services = "api/v1/namespaces/default/services";
    let address = api.post(services, &service).await.expect(201).at("/spec/clusterIP");
    handle.stop().await;

    let (handle, api) = start_with(options()).await;
    let after = api.get(&format!("{MAPS}/kept")).await.expect(200);
    assert_eq!(after.json(), before.json());
    let revision = |text: String| text.parse::<u64>().expect("revisions are numbers");
    let new = api.post(MAPS, &map("new", json!({}))).await.expect(201);
    assert!(revision(new.at("/metadata/resourceVersion")) > revision(before.at("/metadata/resourceVersion")));
    // The addresses that were given out before are still taken.
    let mut taken = service.clone();
    taken["metadata"]["name"] = "other".into();
    taken["spec"]["clusterIP"] = address.into();
    let refused = api.post(services, &taken).await.expect(422);
    assert!(refused.at("/message").contains("provided IP is already allocated"), "{}", refused.text());
    handle.stop().await;
}

#[tokio::test]
async fn services_get_addresses_of_their_own() {
    let (handle, api) = start().await;
    let services = "api/v1/namespaces/default/services";
    let mut addresses = std::collections::BTreeSet::new();
    for number in 0..20 {
        let service = json!({"metadata": {"name": format!("s{number}")}, "spec": {"ports": [{"port": 80}]}});
        let address = api.post(services, &service).await.expect(201).at("/spec/clusterIP");
        assert!(address.parse::<std::net::Ipv4Addr>().is_ok(), "{address}");
        assert!(addresses.insert(address.clone()), "{address} was given twice");
    }
    handle.stop().await;
}

#[tokio::test]
async fn a_body_of_more_than_three_megabytes_is_refused() {
    let (handle, api) = start().await;
    let mut object = map("big", json!({}));
    object["data"] = json!({"k": "x".repeat(3 * 1024 * 1024)});
    let refused = api.post(MAPS, &object).await.expect(413);
    assert_eq!(refused.at("/reason"), "RequestEntityTooLarge");
    api.get(&format!("{MAPS}/big")).await.expect(404);
    handle.stop().await;
}

#[tokio::test]
async fn a_port_that_is_about_to_be_free_is_waited_for() {
    let predecessor = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let bind = predecessor.local_addr().expect("an address");
    let starting = tokio::spawn(apiserver::start(Options { bind, ..Default::default() }));
    // It may or may not have tried once by now; if it has, that must not have been the end.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    drop(predecessor);
    let handle = starting.await.expect("it does not panic").expect("the server starts");
    assert_eq!(handle.address, bind);
    handle.stop().await;
}

#[tokio::test]
async fn a_port_that_stays_taken_is_an_error_that_names_it() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let bind = other.local_addr().expect("an address");
    let error = apiserver::start(Options { bind, ..Default::default() }).await.expect_err("it is taken");
    let words = error.to_string();
    assert!(words.contains(&bind.to_string()) && words.contains("in use"), "{words}");
}

/// Notes whether anything had been written when it got to know the server.
#[derive(Default)]
struct Early(OnceLock<bool>);

impl Bounds for Early {
    fn connect(&self, server: &Arc<Server>) {
        self.0.set(server.ready.bootstrapped.load(Ordering::Acquire)).expect("once");
    }

    fn bound(
        &self,
        _: &User,
        _: &Attributes<'_>,
        _: &dyn Fn(&Attributes<'_>) -> bool,
    ) -> Option<Result<Reach, String>> {
        None
    }
}

#[tokio::test]
async fn who_bounds_rights_knows_the_server_before_anybody_is_answered() {
    let bounds = Arc::new(Early::default());
    let (handle, _) = start_with(Options { bounds: Some(bounds.clone()), ..Default::default() }).await;
    assert_eq!(bounds.0.get(), Some(&false));
    handle.stop().await;
}
