//! Conversion webhooks: objects are stored in one version and seen in every served one.

use std::sync::atomic::Ordering;

use apiserver::Options;
use serde_json::{Value, json};

use crate::support::webhook::Webhook;
use crate::support::{Api, Call};
use crate::{start, start_with};

const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions/turns.example.com";
const V1: &str = "apis/example.com/v1/namespaces/default/turns";
const V2: &str = "apis/example.com/v2/namespaces/default/turns";

fn version(name: &str, field: &str, stored: bool) -> Value {
    json!({"name": name, "served": true, "storage": stored, "selectableFields": [{"jsonPath": format!(".spec.{field}")}],
        "additionalPrinterColumns": [{"name": "Field", "type": "string", "jsonPath": format!(".spec.{field}")}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
            field: {"type": "string"}, "kept": {"type": "integer"}}}}}}})
}

/// The field `spec.old` of v1 is `spec.new` in v2.
fn definition(conversion: &Value, stored: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "turns.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "conversion": conversion,
            "versions": [version("v1", "old", stored == "v1"), version("v2", "new", stored == "v2")],
            "names": {"plural": "turns", "singular": "turn", "kind": "Turn", "listKind": "TurnList"}}})
}

fn by(client: &Value) -> Value {
    json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}})
}

async fn define(api: &Api, conversion: &Value) {
    api.post(DEFINITIONS, &definition(conversion, "v1")).await.expect(201);
    api.until(V2, |answer| answer.code == 200).await;
}

/// Changes a definition and waits until the change is obeyed, which `seen` recognises.
async fn redefine(api: &Api, patch: &Value, path: &str, seen: impl Fn(&crate::support::Answer) -> bool) {
    api.merge(DEFINITION, patch).await.expect(200);
    api.until(path, seen).await;
}

fn turn(version: &str, name: &str, field: &str, value: &str) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": "Turn", "metadata": {"name": name},
        "spec": {field: value, "kept": 1}})
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_seen_in_every_version_and_stored_in_one() {
    let (handle, api) = start().await;
    let hook = Webhook::start().await;
    define(&api, &by(&hook.client("/convert"))).await;
    let created = api.post(V1, &turn("v1", "a", "old", "x")).await.expect(201);
    assert_eq!(created.at("/spec/old"), "x");
    assert_eq!(hook.calls.load(Ordering::SeqCst), 0, "nothing to convert");

    let seen = api.get(&format!("{V2}/a")).await.expect(200).json();
    assert_eq!(seen["apiVersion"], "example.com/v2");
    assert_eq!(seen["spec"], json!({"new": "x", "kept": 1}));
    assert_eq!(seen["metadata"]["uid"].as_str(), Some(created.at("/metadata/uid").as_str()));
    let calls = hook.calls.load(Ordering::SeqCst);
    api.get(&format!("{V2}/a")).await.expect(200);
    assert_eq!(hook.calls.load(Ordering::SeqCst), calls, "what was converted once is remembered");

    // Written in the other version: stored as v1, answered as v2.
    let created = api.post(V2, &turn("v2", "b", "new", "y")).await.expect(201).json();
    assert_eq!((&created["apiVersion"], &created["spec"]["new"]), (&json!("example.com/v2"), &json!("y")));
    assert_eq!(api.get(&format!("{V1}/b")).await.expect(200).at("/spec/old"), "y");
    let changed = api.merge(&format!("{V2}/b"), &json!({"spec": {"new": "z"}})).await.expect(200).json();
    assert_eq!(changed["spec"]["new"], "z");
    let revision = changed["metadata"]["resourceVersion"].clone();
    let same = api.merge(&format!("{V2}/b"), &json!({"spec": {"new": "z"}})).await.expect(200).json();
    assert_eq!(same["metadata"]["resourceVersion"], revision, "what changes nothing writes nothing");

    let list = api.get(V2).await.expect(200).json();
    let names: Vec<&Value> =
        list["items"].as_array().expect("items").iter().map(|item| &item["spec"]["new"]).collect();
    assert_eq!(names, [&json!("x"), &json!("z")]);
    let selected = api.get(&format!("{V2}?fieldSelector=spec.new%3Dz")).await.expect(200).json();
    assert_eq!(selected["items"].as_array().map(Vec::len), Some(1));
    let table = Call::new("GET", V2).accept("application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = api.send(&table).await.expect(200).json();
    assert_eq!(table["rows"][0]["cells"][1], "x");

    let applied = Call::new("PATCH", format!("{V2}/c?fieldManager=m"))
        .json(&turn("v2", "c", "new", "1"))
        .content_type("application/apply-patch+yaml");
    api.send(&applied).await.expect(201);
    let conflict = Call::new("PATCH", format!("{V1}/c?fieldManager=other"))
        .json(&turn("v1", "c", "old", "2"))
        .content_type("application/apply-patch+yaml");
    let refused = api.send(&conflict).await.expect(409);
    assert!(refused.at("/message").ends_with("conflict with \"m\": .spec.new"), "{}", refused.text());

    let deleted = api.delete(&format!("{V2}/a")).await.expect(200);
    assert_eq!(deleted.at("/status"), "Success");
    handle.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_changes_asks_its_webhook_anew() {
    let (handle, api) = start().await;
    let hook = Webhook::start().await;
    define(&api, &by(&hook.client("/convert"))).await;
    api.post(V1, &turn("v1", "a", "old", "x")).await.expect(201);
    api.get(&format!("{V2}/a")).await.expect(200);
    let calls = hook.calls.load(Ordering::SeqCst);
    // There and back: the definition is what it was, the webhook may be another one.
    let discovery = "apis/example.com/v2";
    for (names, shown) in [(json!(["tn"]), true), (Value::Null, false)] {
        let patch = json!({"spec": {"names": {"shortNames": names}}});
        redefine(&api, &patch, discovery, |answer| answer.text().contains("\"tn\"") == shown).await;
    }
    api.get(&format!("{V2}/a")).await.expect(200);
    assert!(hook.calls.load(Ordering::SeqCst) > calls, "what was remembered is forgotten");
    handle.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_the_version_it_asked_for() {
    let (handle, api) = start().await;
    let hook = Webhook::start().await;
    define(&api, &by(&hook.client("/convert"))).await;
    api.post(V1, &turn("v1", "a", "old", "x")).await.expect(201);
    let mut lines = api.open(&format!("{V2}?watch=true")).await;
    let mut selected = api.open(&format!("{V2}?watch=true&fieldSelector=spec.new%3Dy")).await;
    let first = lines.next().await.expect("an event");
    assert_eq!((&first["type"], &first["object"]["spec"]["new"]), (&json!("ADDED"), &json!("x")));
    api.merge(&format!("{V1}/a"), &json!({"spec": {"old": "y"}})).await.expect(200);
    let second = lines.next().await.expect("an event");
    assert_eq!((&second["type"], &second["object"]["spec"]["new"]), (&json!("MODIFIED"), &json!("y")));
    let came = selected.next().await.expect("an event");
    assert_eq!((&came["type"], &came["object"]["apiVersion"]), (&json!("ADDED"), &json!("example.com/v2")));
    api.delete(&format!("{V1}/a")).await.expect(200);
    let last = lines.next().await.expect("an event");
    assert_eq!((&last["type"], &last["object"]["spec"]["new"]), (&json!("DELETED"), &json!("y")));
    handle.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_from_before_a_change_of_the_storage_version_stay_readable() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = || Options { data_dir: Some(dir.path().join("data")), ..Options::default() };
    let (handle, api) = start_with(options()).await;
    let hook = Webhook::start().await;
    define(&api, &by(&hook.client("/convert"))).await;
    api.post(V1, &turn("v1", "a", "old", "x")).await.expect(201);
    api.post(V1, &turn("v1", "b", "old", "y")).await.expect(201);
    let other = definition(&by(&hook.client("/convert")), "v2");
    let versions = json!({"spec": {"versions": other["spec"]["versions"]}});
    redefine(&api, &versions, DEFINITION, |answer| answer.at("/status/storedVersions/1") == "v2").await;
    // Both stored versions in one list, each converted where it has to be.
    let revision = |name: &str| {
        let path = format!("{V1}/{name}");
        let api = api.clone();
        async move { api.get(&path).await.expect(200).at("/metadata/resourceVersion") }
    };
    let before = revision("a").await;
    let touch =
        async || api.merge(&format!("{V1}/a"), &json!({})).await.expect(200).at("/metadata/resourceVersion");
    // The definition says what is stored before it is served like that.
    let mut touched = touch().await;
    for _ in 0..300 {
        if touched == before {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            touched = touch().await;
        }
    }
    assert_ne!(before, touched, "a write that changes nothing moves the object to the new storage version");
    assert_eq!(touch().await, touched, "but only once");
    let check = async |api: &Api| {
        for (path, field) in [(V1, "old"), (V2, "new")] {
            let list = api.get(path).await.expect(200).json();
            assert_eq!(list["items"][0]["spec"][field], "x", "{list}");
            assert_eq!(list["items"][1]["spec"][field], "y", "{list}");
        }
    };
    check(&api).await;
    handle.stop().await;
    let (handle, api) = start_with(options()).await;
    check(&api).await;
    handle.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_fails_fails_the_request_and_nothing_else() {
    let (handle, api) = start().await;
    let hook = Webhook::start().await;
    define(&api, &by(&hook.client("/convert"))).await;
    api.post(V1, &turn("v1", "a", "old", "x")).await.expect(201);
    for (path, words) in [
        ("/convert-refused", "failed: cannot convert that"),
        ("/convert-badly", "returned invalid object: must have the same name: a != renamed"),
        ("/convert-fewer", "returned 0 objects, expected 1"),
    ] {
        let patch = json!({"spec": {"conversion": by(&hook.client(path))}});
        let wanted = format!("conversion webhook for example.com/v1, Kind=Turn {words}");
        redefine(&api, &patch, &format!("{V2}/a"), |answer| {
            answer.code == 500 && answer.at("/message") == wanted
        })
        .await;
        assert_eq!(api.get(V2).await.expect(500).at("/message"), wanted);
        let mut lines = api.open(&format!("{V2}?watch=true")).await;
        let event = lines.next().await.expect("an event");
        assert_eq!((&event["type"], &event["object"]["message"]), (&json!("ERROR"), &json!(wanted)));
        assert_eq!(lines.next().await, None);
        // What needs no conversion goes on.
        api.get(&format!("{V1}/a")).await.expect(200);
        let refused = api.post(V2, &turn("v2", "b", "new", "x")).await.expect(500);
        assert!(refused.at("/message").starts_with("conversion webhook for example.com/v2, Kind=Turn"));
        api.get(&format!("{V1}/b")).await.expect(404);
    }
    handle.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_without_a_webhook_differ_by_name_only() {
    let (handle, api) = start().await;
    define(&api, &json!({"strategy": "None"})).await;
    api.post(V1, &turn("v1", "a", "old", "x")).await.expect(201);
    let seen = api.get(&format!("{V2}/a")).await.expect(200).json();
    assert_eq!(seen["spec"], json!({"kept": 1}), "the schema of v2 does not know the field");
    handle.stop().await;
}
