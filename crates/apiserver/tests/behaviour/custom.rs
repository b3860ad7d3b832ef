//! Kinds that are defined while the server runs.

use serde_json::{Value, json};

use crate::start;
use crate::support::Answer;

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
    // Who has seen "Established" finds the kind at once: in discovery, in the schemas, and in the store.
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

#[tokio::test]
async fn what_is_built_in_counts_more_than_a_definition() {
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
