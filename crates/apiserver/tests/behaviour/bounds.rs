//! Objects that nest too deep, unfold too far, or lie unreadable in the store.

use apimachinery::depth::{self, MAX_DEPTH};
use apiserver::Handle;
use apiserver::head::Head;
use serde_json::{Value, json};

use crate::start;
use crate::support::{Answer, Api, Call};

const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BOXES: &str = "apis/example.com/v1/namespaces/default/boxes";
const MESSAGE: &str = "exceeded max depth: arrays and objects may nest 120 levels";

/// A server that serves boxes: objects with anything inside, and a number of replicas.
async fn with_boxes() -> (Handle, Api) {
    let (handle, api) = start().await;
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "boxes.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "boxes", "singular": "box", "kind": "Box", "listKind": "BoxList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.size.wanted", "statusReplicasPath": ".status.size"},
                },
            }],
        },
    });
    api.post(DEFINITIONS, &definition).await.expect(201);
    let established = |answer: &Answer| {
        let conditions = answer.json()["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Established" && condition["status"] == "True")
    };
    api.until(&format!("{DEFINITIONS}/boxes.example.com"), established).await;
    (handle, api)
}

fn nested(levels: usize) -> Value {
    (1..levels).fold(json!([]), |inner, _| json!([inner]))
}

fn a_box(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Box", "metadata": {"name": name}, "spec": spec})
}

fn json_patch(path: &str, operations: &Value) -> Call {
    Call::new("PATCH", path).content_type("application/json-patch+json").json(operations)
}

#[tokio::test]
async fn finding_1_no_way_of_writing_makes_an_object_deeper_than_the_limit() {
    let (handle, api) = with_boxes().await;
    let path = format!("{BOXES}/a");
    api.post(BOXES, &a_box("a", json!({"a": nested(100)}))).await.expect(201);

    // The whole into its own innermost array, again and again: 128,000 levels if nobody stops it.
    let mut levels = 100;
    let mut copies = Vec::new();
    for _ in 0..10 {
        let innermost = format!("/spec/a{}/-", "/0".repeat(levels - 1));
        copies.push(json!({"op": "copy", "from": "/spec/a", "path": innermost}));
        levels *= 2;
    }
    let refused = api.send(&json_patch(&path, &Value::Array(copies))).await.expect(422);
    assert!(refused.at("/message").contains(MESSAGE), "{}", refused.at("/message"));

    let too_deep = json!({"spec": {"b": nested(MAX_DEPTH)}});
    let refused = api.merge(&path, &too_deep).await.expect(400);
    assert!(refused.at("/message").contains(MESSAGE), "{}", refused.at("/message"));
    let apply = format!("{path}?fieldManager=test&force=true");
    let apply = Call::new("PATCH", apply).content_type("application/apply-patch+yaml");
    let refused = api.send(&apply.json(&a_box("a", too_deep["spec"].clone()))).await.expect(400);
    assert!(refused.at("/message").contains(MESSAGE), "{}", refused.at("/message"));
    for content_type in ["application/json", "application/yaml"] {
        let create = Call::new("POST", BOXES).content_type(content_type);
        let refused = api.send(&create.json(&a_box("b", too_deep["spec"].clone()))).await.expect(400);
        assert!(refused.at("/message").contains(MESSAGE), "{}", refused.at("/message"));
    }
    // Just fits when it is read; the record of who owns which field goes beyond.
    let tracked = (0..MAX_DEPTH - 2).fold(json!(1), |inner, _| json!({"a": inner}));
    let refused = api.post(BOXES, &a_box("c", tracked)).await.expect(400);
    assert_eq!(refused.at("/message"), MESSAGE);

    let stored = api.get(&path).await.expect(200).json();
    assert_eq!(stored["spec"], json!({"a": nested(100)}));
    handle.stop().await;
}

#[tokio::test]
async fn finding_8_what_was_accepted_can_be_read_changed_and_deleted() {
    let (handle, api) = with_boxes().await;
    let path = format!("{BOXES}/a");
    let mut deep = a_box("a", json!({"a": nested(MAX_DEPTH - 2)}));
    deep["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(depth::depth(&deep), MAX_DEPTH);
    api.post(BOXES, &deep).await.expect(201);
    api.merge(&path, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    let labels = json!([{"op": "add", "path": "/metadata/labels/c", "value": "d"}]);
    api.send(&json_patch(&path, &labels)).await.expect(200);
    for accept in ["application/json;as=Table;v=v1;g=meta.k8s.io", "application/yaml"] {
        api.send(&Call::new("GET", BOXES).accept(accept)).await.expect(200);
    }
    // The finalizer holds it.
    api.delete(&path).await.expect(200);
    let held = api.get(&path).await.expect(200).json();
    assert!(held["metadata"]["deletionTimestamp"].is_string(), "{}", held["metadata"]);
    api.merge(&path, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    api.get(&path).await.expect(404);
    handle.stop().await;
}

/// Puts bytes into the store behind the back of the server, as an earlier release may have left them.
async fn leave(handle: &Handle, key: &str, body: String) {
    let head = <Head as store::Head>::parse("example.com/boxes", key, body.as_bytes());
    let collection =
        handle.server.registry.load().find("example.com", "v1", "boxes").unwrap().collection.clone();
    let write = store::Write {
        collection,
        name: key.into(),
        expect: store::Expect::Absent,
        change: store::Change::Put { value: body.into(), head },
        durability: store::Durability::Buffered,
        ttl: None,
    };
    assert!(handle.server.store.commit(write).await.is_ok());
}

#[tokio::test]
async fn finding_8_an_object_that_cannot_be_read_is_an_error_and_keeps_its_finalizers() {
    let (handle, api) = with_boxes().await;
    let path = format!("{BOXES}/deep");
    let levels = 20_000;
    let value = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let metadata = r#"{"name":"deep","namespace":"default","uid":"1-2-3","finalizers":["example.com/hold"]}"#;
    leave(&handle, "default/deep", format!("{{\"metadata\":{metadata},\"spec\":{{\"a\":{value}}}}}")).await;
    api.post(BOXES, &a_box("fine", json!({}))).await.expect(201);

    let delete = Call::new("DELETE", &path);
    let merge = Call::new("PATCH", &path)
        .content_type("application/merge-patch+json")
        .json(&json!({"spec": {"b": 1}}));
    let yaml = Call::new("GET", &path).accept("application/yaml");
    let table = Call::new("GET", BOXES).accept("application/json;as=Table;v=v1;g=meta.k8s.io");
    for call in [&delete, &merge, &yaml, &table] {
        let refused = api.send(call).await.expect(500);
        // Told in the form that was asked for.
        assert!(refused.text().contains("cannot be read: recursion limit exceeded"), "{}", refused.text());
    }
    // It is still there, and the others are served.
    assert!(api.get(&path).await.expect(200).text().contains("example.com/hold"));
    api.get(&format!("{BOXES}/fine")).await.expect(200);

    let unsafe_delete = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true});
    api.send(&Call::new("DELETE", &path).json(&unsafe_delete)).await.expect(200);
    api.get(&path).await.expect(404);
    handle.stop().await;
}

#[tokio::test]
async fn finding_2_a_yaml_bomb_of_bytes_is_refused() {
    let (handle, api) = start().await;
    let review = format!(
        "apiVersion: authentication.k8s.io/v1\nkind: SelfSubjectReview\nmetadata:\n  annotations:\n    a: &a {}\n    b: [{}]\n",
        "x".repeat(1024 * 1024),
        vec!["*a"; 300_000].join(","),
    );
    let path = "apis/authentication.k8s.io/v1/selfsubjectreviews";
    let refused =
        api.send(&Call::new("POST", path).content_type("application/yaml").raw(review)).await.expect(400);
    assert!(refused.at("/message").contains("excessive aliasing"), "{:.300}", refused.at("/message"));
    handle.stop().await;
}

#[tokio::test]
async fn finding_20_a_custom_resource_without_replicas_can_be_scaled() {
    let (handle, api) = with_boxes().await;
    let replace = |name: &str, replicas: i64| {
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name, "namespace": "default"},
            "spec": {"replicas": replicas}})
    };
    for (name, spec) in [("none", json!({})), ("other", json!({"size": {"x": 1}})), ("put", json!({}))] {
        api.post(BOXES, &a_box(name, spec)).await.expect(201);
        let scale = format!("{BOXES}/{name}/scale");
        let missing = api.get(&scale).await.expect(500);
        assert_eq!(
            missing.at("/message"),
            "Internal error occurred: the spec replicas field \".spec.size.wanted\" does not exist"
        );
        // What does not set the number is refused.
        let empty = api.merge(&scale, &json!({"metadata": {"labels": {}}})).await.expect(400);
        assert_eq!(empty.at("/message"), "the spec replicas field \".spec.size.wanted\" cannot be empty");
        let answer = if name == "put" {
            api.put(&scale, &replace(name, 3)).await
        } else {
            // As `kubectl scale` does it.
            api.merge(&scale, &json!({"spec": {"replicas": 3}})).await
        };
        let answer = answer.expect(200).json();
        assert_eq!((&answer["spec"], &answer["status"]), (&json!({"replicas": 3}), &json!({"replicas": 0})));
        let stored = api.get(&format!("{BOXES}/{name}")).await.expect(200).json();
        assert_eq!(stored["spec"]["size"]["wanted"], 3);
        assert_eq!(api.get(&scale).await.expect(200).json()["spec"]["replicas"], 3);
    }
    // A PUT that says nothing means zero, and the resource's own rules refuse what is negative.
    api.post(BOXES, &a_box("zero", json!({}))).await.expect(201);
    api.put(&format!("{BOXES}/zero/scale"), &replace("zero", 0)).await.expect(200);
    assert_eq!(
        api.get(&format!("{BOXES}/zero")).await.expect(200).json()["spec"],
        json!({"size": {"wanted": 0}})
    );
    let negative = api.put(&format!("{BOXES}/zero/scale"), &replace("zero", -1)).await.expect(422);
    assert_eq!(
        negative.at("/message"),
        "Box.example.com \"zero\" is invalid: .spec.size.wanted: Invalid value: -1: should be a non-negative integer"
    );
    handle.stop().await;
}
