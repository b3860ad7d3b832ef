//! Kinds that are defined while the server runs.

use serde_json::{Value, json};

use crate::start;
use crate::support::{Answer, Call};

const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "apis/example.com/v1/namespaces/default/widgets";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "size": {"type": "integer", "minimum": 1, "default": 3},
                    "colour": {"type": "string", "enum": ["red", "blue"]},
                }}}}},
                "subresources": {"status": {}},
            }],
        },
    })
}

fn established(answer: &Answer) -> bool {
    let conditions = answer.json()["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

#[tokio::test]
async fn a_definition_brings_its_kind_and_takes_it_along() {
    let (handle, api) = start().await;
    api.get(WIDGETS).await.expect(404);
    api.post(DEFINITIONS, &definition()).await.expect(201);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    api.until(&path, established).await;
    // After "Established" the kind is there at once: in discovery, in the schemas, and in the store.
    let resources = api.get("apis/example.com/v1").await.expect(200).json();
    assert_eq!(resources["resources"][0]["name"], "widgets");
    assert!(api.get("openapi/v3").await.expect(200).text().contains("apis/example.com/v1"));

    let created = api
        .post(
            WIDGETS,
            &json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
            "spec": {"colour": "red", "nonsense": 1}}),
        )
        .await
        .expect(201)
        .json();
    assert_eq!(created["spec"], json!({"colour": "red", "size": 3}), "pruned and defaulted");
    let wrong = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "z"},
        "spec": {"size": 0, "colour": "green"}});
    let refused = api.post(WIDGETS, &wrong).await.expect(422);
    for part in ["spec.size", "spec.colour"] {
        assert!(refused.at("/message").contains(part), "{}", refused.text());
    }

    api.delete(&path).await.expect(200);
    api.until(&path, |answer| answer.code == 404).await;
    api.get(WIDGETS).await.expect(404);
    // The objects went too: a definition of the same name starts empty.
    api.post(DEFINITIONS, &definition()).await.expect(201);
    api.until(&path, established).await;
    assert_eq!(api.get(WIDGETS).await.expect(200).json()["items"], json!([]));
    handle.stop().await;
}

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let (handle, api) = start().await;
    api.post(DEFINITIONS, &definition()).await.expect(201);
    api.until(&format!("{DEFINITIONS}/widgets.example.com"), established).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 5}});
    api.post(WIDGETS, &widget).await.expect(201);
    let path = format!("{WIDGETS}/w");
    let through_status =
        api.merge(&format!("{path}/status"), &json!({"spec": {"size": 9}})).await.expect(200).json();
    assert_eq!(
        (&through_status["spec"]["size"], &through_status["metadata"]["generation"]),
        (&json!(5), &json!(1))
    );
    let through_spec = api.merge(&path, &json!({"spec": {"size": 9}})).await.expect(200).json();
    assert_eq!(
        (&through_spec["spec"]["size"], &through_spec["metadata"]["generation"]),
        (&json!(9), &json!(2))
    );
    handle.stop().await;
}

/// Two versions with a default each; the second one is stored and not served.
fn two_versions() -> Value {
    let version = |name: &str, stored: bool| {
        let own = json!({"type": "string", "default": name});
        let mut properties = json!({"v1": {"type": "string"}, "v2": {"type": "string"}});
        properties[name] = own;
        json!({"name": name, "served": !stored, "storage": stored,
            "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object", "properties": properties}}}}})
    };
    let mut definition = definition();
    definition["spec"]["versions"] = json!([version("v1", false), version("v2", true)]);
    definition
}

#[tokio::test]
async fn an_object_is_read_with_the_defaults_of_the_stored_version() {
    let (handle, api) = start().await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    api.post(DEFINITIONS, &two_versions()).await.expect(201);
    api.until(&path, established).await;
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {}});
    let own = format!("{WIDGETS}/w");
    // The default of the version it was sent in, and of the one it is stored in.
    let both = json!({"v1": "v1", "v2": "v2"});
    assert_eq!(api.post(WIDGETS, &widget).await.expect(201).json()["spec"], both);
    assert_eq!(api.get(&own).await.expect(200).json()["spec"], both);
    assert_eq!(api.get(WIDGETS).await.expect(200).json()["items"][0]["spec"], both);
    // The former is in the store, the latter comes and goes with the schema.
    let gone = json!([{"op": "remove", "path":
        "/spec/versions/1/schema/openAPIV3Schema/properties/spec/properties/v2/default"}]);
    let patch = Call::new("PATCH", &path).json(&gone).content_type("application/json-patch+json");
    api.send(&patch).await.expect(200);
    api.until(&own, |answer| answer.json()["spec"] == json!({"v1": "v1"})).await;
    handle.stop().await;
}

#[tokio::test]
async fn watches_end_when_their_definition_changes() {
    let (handle, api) = start().await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    api.post(DEFINITIONS, &definition()).await.expect(201);
    api.until(&path, established).await;
    let mut watch = api.open(&format!("{WIDGETS}?watch=1")).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    api.post(WIDGETS, &widget).await.expect(201);
    assert_eq!(watch.step().await, ("ADDED".to_owned(), "w".to_owned()));
    // A label says nothing about how the kind is served.
    api.merge(&path, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    api.merge(&format!("{WIDGETS}/w"), &json!({"spec": {"size": 4}})).await.expect(200);
    assert_eq!(watch.step().await, ("MODIFIED".to_owned(), "w".to_owned()));
    api.merge(&path, &json!({"spec": {"names": {"shortNames": ["wd"]}}})).await.expect(200);
    assert_eq!(watch.next().await, None);
    // When a definition goes, what becomes of its objects is told before the end.
    let mut watch = api.open(&format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watch.step().await, ("ADDED".to_owned(), "w".to_owned()));
    api.delete(&path).await.expect(200);
    assert_eq!(watch.step().await, ("DELETED".to_owned(), "w".to_owned()));
    assert_eq!(watch.next().await, None);
    handle.stop().await;
}

#[tokio::test]
async fn a_definition_says_that_it_goes_and_takes_nothing_new() {
    let (handle, api) = start().await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let mut held = definition();
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    api.post(DEFINITIONS, &held).await.expect(201);
    api.until(&path, established).await;
    let deleted = api.delete(&path).await.expect(200).json();
    let conditions = deleted["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let terminating = conditions.iter().find(|condition| condition["type"] == "Terminating");
    assert_eq!(terminating.map(|condition| &condition["status"]), Some(&json!("True")), "{deleted}");
    api.until(&path, |answer| answer.text().contains("InstanceDeletionCompleted")).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let refused = api.post(WIDGETS, &widget).await.expect(403);
    assert!(refused.at("/message").contains("custom resource definition is terminating"));
    handle.stop().await;
}

#[tokio::test]
async fn the_scale_of_a_custom_resource_is_checked_and_owned_as_upstream() {
    let (handle, api) = start().await;
    let mut scalable = definition();
    let count = json!({"type": "object", "properties": {"size": {"type": "integer"}}});
    scalable["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] =
        json!({"spec": count, "status": count});
    scalable["spec"]["versions"][0]["subresources"] = json!({"status": {},
        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}});
    api.post(DEFINITIONS, &scalable).await.expect(201);
    api.until(&format!("{DEFINITIONS}/widgets.example.com"), established).await;
    let widget = |size: i64| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"size": size}})
    };
    for (size, words) in [
        (3_000_000_000, "should be less than or equal to 2147483647"),
        (-1, "should be a non-negative integer"),
    ] {
        let refused = api.post(WIDGETS, &widget(size)).await.expect(422);
        assert_eq!(
            refused.at("/message"),
            format!("Widget.example.com \"w\" is invalid: .spec.size: Invalid value: {size}: {words}")
        );
    }
    api.post(WIDGETS, &widget(1)).await.expect(201);
    let own = format!("{WIDGETS}/w");
    let wrong = api.merge(&format!("{own}/status"), &json!({"status": {"size": "x"}})).await.expect(422);
    assert_eq!(
        wrong.at("/message"),
        "Widget.example.com \"w\" is invalid: [status.size: Invalid value: \"string\": size in body must be of type \
         integer: \"string\", .status.size: Invalid value: 0: .status.size accessor error: x is of the type string, \
         expected int64]"
    );
    api.merge(&format!("{own}/scale?fieldManager=scaler"), &json!({"spec": {"replicas": 5}}))
        .await
        .expect(200);
    let managed = api.get(&own).await.expect(200).json()["metadata"]["managedFields"].clone();
    assert_eq!(
        managed[0],
        json!({"manager": "scaler", "operation": "Update", "apiVersion": "example.com/v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:size": {}}}, "subresource": "scale"})
    );
    handle.stop().await;
}

#[tokio::test]
async fn an_object_of_another_kind_or_place_is_refused() {
    let (handle, api) = start().await;
    api.post(DEFINITIONS, &definition()).await.expect(201);
    api.until(&format!("{DEFINITIONS}/widgets.example.com"), established).await;
    let mut widget = json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "w"}});
    let words = "Gadget.example.com \"w\" is invalid: kind: Invalid value: \"Gadget\": must be Widget";
    assert_eq!(api.post(WIDGETS, &widget).await.expect(422).at("/message"), words);
    widget["kind"] = json!("Widget");
    // No namespace, no such collection.
    api.post("apis/example.com/v1/widgets", &widget).await.expect(404);
    api.post(WIDGETS, &widget).await.expect(201);
    let renamed = api.merge(&format!("{WIDGETS}/w"), &json!({"kind": "Gadget"})).await.expect(422);
    assert_eq!(renamed.at("/message"), words);
    handle.stop().await;
}

#[tokio::test]
async fn a_null_that_is_applied_is_meant() {
    let (handle, api) = start().await;
    api.post(DEFINITIONS, &definition()).await.expect(201);
    api.until(&format!("{DEFINITIONS}/widgets.example.com"), established).await;
    let widget = |spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec});
    let own = format!("{WIDGETS}/w");
    let apply = |spec: Value| {
        let call = Call::new("PATCH", format!("{own}?fieldManager=me")).json(&widget(spec));
        call.content_type("application/apply-patch+yaml")
    };
    api.send(&apply(json!({"colour": "red"}))).await.expect(201);
    let refused = api.send(&apply(json!({"colour": null}))).await.expect(422);
    assert!(refused.at("/message").contains("must be of type string"), "{}", refused.text());
    // Elsewhere it is nothing.
    api.merge(&own, &json!({"spec": {"colour": null}})).await.expect(200);
    handle.stop().await;
}

#[tokio::test]
async fn built_in_kinds_take_precedence_over_definitions() {
    let (handle, api) = start().await;
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "bars.apiextensions.k8s.io", "annotations": {"api-approved.kubernetes.io": "https://example.com/1"}},
        "spec": {"group": "apiextensions.k8s.io", "scope": "Cluster", "names": {"plural": "bars", "kind": "Bar"},
            "versions": [version("v1", true), version("vfake", false)]}});
    api.post(DEFINITIONS, &definition).await.expect(201);
    api.until("apis/apiextensions.k8s.io/vfake/bars", |answer| answer.code == 200).await;
    api.get("apis/apiextensions.k8s.io/v1/bars").await.expect(404);
    let resources = api.get("apis/apiextensions.k8s.io/v1").await.expect(200).text();
    assert!(resources.contains("customresourcedefinitions") && !resources.contains("bars"), "{resources}");
    handle.stop().await;
}

#[tokio::test]
async fn the_scale_of_a_custom_kind_is_described_as_a_scale() {
    let (handle, api) = start().await;
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "bars.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "bars", "kind": "Bar"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
                    "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}}}}]}});
    api.post(DEFINITIONS, &definition).await.expect(201);
    api.until("apis/example.com/v1/bars", |answer| answer.code == 200).await;
    let document = api.get("openapi/v3/apis/example.com/v1").await.expect(200).json();
    let scale = "io.k8s.api.autoscaling.v1.Scale";
    assert!(document["components"]["schemas"][scale].is_object());
    let put = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/bars/{name}/scale"]["put"];
    assert_eq!(put["x-kubernetes-group-version-kind"]["kind"], "Scale");
    let answer = &put["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(answer, &json!(format!("#/components/schemas/{scale}")));
    handle.stop().await;
}
