//! What Kubernetes' own suites have found missing once: each as small as it can be told.

use apiserver::{Options, Profile};
use serde_json::{Value, json};

use crate::support::Call;
use crate::{start, start_with};

const DEPLOYMENTS: &str = "apis/apps/v1/namespaces/default/deployments";

#[tokio::test]
async fn faults_of_a_typed_object_come_in_the_order_of_the_document() {
    let (handle, api) = start().await;
    let body = r#"{"metadata": {"name": "d"}, "spec": {"zz": 1, "replicas": 2, "replicas": 3, "aa": 1}}"#;
    let mut call = Call::new("POST", format!("{DEPLOYMENTS}?fieldValidation=Strict"));
    call.body = Some(body.as_bytes().to_vec());
    let message = api.send(&call).await.expect(400).at("/message");
    let faults = r#"unknown field "spec.zz", duplicate field "spec.replicas", unknown field "spec.aa""#;
    assert!(message.ends_with(&format!("strict decoding error: {faults}")), "{message}");
    handle.stop().await;
}

#[tokio::test]
async fn the_published_authority_is_put_right_when_somebody_changes_it() {
    let (handle, api) = start_with(Options { profile: Profile::Member, ..Options::default() }).await;
    let map = "api/v1/namespaces/default/configmaps/kube-root-ca.crt";
    let is_ours = |body: &Value| body["data"]["ca.crt"].as_str().is_some_and(|text| text.contains("BEGIN"));
    api.until(map, |answer| answer.code == 200 && is_ours(&answer.json())).await;
    api.merge(map, &json!({"data": {"ca.crt": "another", "more": "x"}})).await.expect(200);
    api.until(map, |answer| is_ours(&answer.json()) && answer.json()["data"].get("more").is_none()).await;
    handle.stop().await;
}

#[tokio::test]
async fn the_range_of_service_addresses_is_told() {
    let (handle, api) = start().await;
    let range = api.get("apis/networking.k8s.io/v1/servicecidrs/kubernetes").await.expect(200).json();
    assert_eq!(range["spec"]["cidrs"], json!(["10.96.0.0/12"]));
    assert_eq!(range["status"]["conditions"][0]["status"], "True");
    handle.stop().await;
}

#[tokio::test]
async fn an_apply_of_a_status_owns_no_metadata_of_newer_kinds() {
    let (handle, api) = start().await;
    let path = "apis/storage.k8s.io/v1/volumeattachments";
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a"},
        "spec": {"attacher": "x", "nodeName": "n", "source": {"persistentVolumeName": "v"}}});
    api.post(path, &object).await.expect(201);
    let status = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": "a", "labels": {"l": "v"}}, "status": {"attached": true}});
    let mut call = Call::new("PATCH", format!("{path}/a/status?fieldManager=m")).json(&status);
    call.content_type = "application/apply-patch+yaml".to_owned();
    let applied = api.send(&call).await.expect(200).json();
    assert_eq!(applied["metadata"]["labels"], Value::Null);
    let managers = applied["metadata"]["managedFields"].as_array().expect("managed");
    let own = managers.iter().find(|entry| entry["manager"] == "m").expect("owns the status");
    assert_eq!(own["fieldsV1"], json!({"f:status": {"f:attached": {}}}));
    handle.stop().await;
}

#[tokio::test]
async fn swagger_says_nothing_about_fields_where_anything_goes() {
    let (handle, api) = start().await;
    let definition = json!({"metadata": {"name": "bags.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"plural": "bags", "singular": "bag", "kind": "Bag", "listKind": "BagList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    api.post("apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    api.until("apis/example.com/v1/bags", |answer| answer.code == 200).await;
    let schema = api.get("openapi/v2").await.expect(200).json()["definitions"]["com.example.v1.Bag"].clone();
    assert_eq!((&schema["type"], schema.get("properties")), (&json!("object"), None));
    handle.stop().await;
}

#[tokio::test]
async fn an_address_is_named_by_itself() {
    let (handle, api) = start().await;
    let address = |name: &str| {
        json!({"metadata": {"name": name},
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "s"}}})
    };
    let path = "apis/networking.k8s.io/v1/ipaddresses";
    api.post(path, &address("fe80::42:1dff:fe84:f9e2")).await.expect(201);
    let message = api.post(path, &address("fe80:0::1")).await.expect(422).at("/message");
    assert!(message.contains(r#"must be in canonical form ("fe80::1")"#), "{message}");
    handle.stop().await;
}

#[tokio::test]
async fn a_component_can_be_asked_for_by_name() {
    let (handle, api) = start().await;
    let store = api.get("api/v1/componentstatuses/etcd-0").await.expect(200);
    assert_eq!(store.at("/conditions/0/status"), "True");
    api.get("api/v1/componentstatuses/nobody").await.expect(404);
    handle.stop().await;
}

const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(group: &str, plural: &str, kind: &str) -> Value {
    json!({"metadata": {"name": format!("{plural}.{group}")}, "spec": {"group": group, "scope": "Namespaced",
        "names": {"plural": plural, "kind": kind},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
}

/// Returns status and reason of a condition.
fn condition(crd: &Value, kind: &str) -> (String, String) {
    let conditions = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

#[tokio::test]
async fn names_are_accepted_when_whoever_held_them_is_gone() {
    let (handle, api) = start().await;
    api.post(DEFINITIONS, &definition("example.com", "firsts", "Thing")).await.expect(201);
    api.until("apis/example.com/v1/firsts", |answer| answer.code == 200).await;
    api.post(DEFINITIONS, &definition("example.com", "seconds", "Thing")).await.expect(201);
    let second = format!("{DEFINITIONS}/seconds.example.com");
    let accepted = |answer: &crate::support::Answer| condition(&answer.json(), "NamesAccepted").0;
    api.until(&second, |answer| accepted(answer) == "False").await;
    api.send(&Call::new("DELETE", format!("{DEFINITIONS}/firsts.example.com"))).await.expect(200);
    api.until(&second, |answer| accepted(answer) == "True").await;
    handle.stop().await;
}

#[tokio::test]
async fn a_definition_whose_converter_cannot_be_trusted_is_not_established() {
    let (handle, api) = start().await;
    let mut crd = definition("example.com", "bags", "Bag");
    crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"caBundle": "bm90IGEgY2VydGlmaWNhdGU=", "service": {"namespace": "default", "name": "x"}}}});
    api.post(DEFINITIONS, &crd).await.expect(201);
    let refused = ("False".to_owned(), "InvalidCABundle".to_owned());
    api.until(&format!("{DEFINITIONS}/bags.example.com"), |answer| {
        condition(&answer.json(), "Established") == refused
    })
    .await;
    handle.stop().await;
}

#[tokio::test]
async fn a_definition_in_a_group_of_kubernetes_tells_whether_it_was_approved() {
    let (handle, api) = start().await;
    let mut crd = definition("sigs.k8s.io", "bags", "Bag");
    crd["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "https://example.com/review"});
    api.post(DEFINITIONS, &crd).await.expect(201);
    let approved = ("True".to_owned(), "ApprovedAnnotation".to_owned());
    api.until(&format!("{DEFINITIONS}/bags.sigs.k8s.io"), |answer| {
        condition(&answer.json(), "KubernetesAPIApprovalPolicyConformant") == approved
    })
    .await;
    handle.stop().await;
}
