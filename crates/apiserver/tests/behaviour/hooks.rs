//! Admission webhooks, without kube-apiserver beside: that they are asked from the moment their configuration is
//! acknowledged, and that a broken one can be removed.

use std::sync::atomic::Ordering;

use apiserver::Options;
use serde_json::{Value, json};

use crate::support::Api;
use crate::support::webhook::Webhook;
use crate::{start, start_with};

const MUTATING: &str = "apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const MAPS: &str = "api/v1/namespaces/default/configmaps";

fn configuration(kind: &str, client: &Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "test"}, "webhooks": [{
        "name": "hook.example.com", "clientConfig": client, "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}]})
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

#[tokio::test]
async fn a_webhook_is_asked_from_the_moment_it_is_configured() {
    let (handle, api) = start().await;
    let hook = Webhook::start().await;
    api.post(MUTATING, &configuration("MutatingWebhookConfiguration", &hook.client("/label")))
        .await
        .expect(201);
    let created = api.post(MAPS, &map("a")).await.expect(201);
    assert_eq!(created.at("/metadata/labels/by"), "hook");
    api.delete(&format!("{MUTATING}/test")).await.expect(200);
    let created = api.post(MAPS, &map("b")).await.expect(201);
    assert_eq!(created.at("/metadata/labels"), "");
    assert_eq!(hook.calls.load(Ordering::SeqCst), 1);
    handle.stop().await;
}

#[tokio::test]
async fn a_broken_webhook_does_not_lock_anybody_out() {
    let (handle, api) = start().await;
    let nowhere = json!({"url": "https://127.0.0.1:1/"});
    let mut all = configuration("ValidatingWebhookConfiguration", &nowhere);
    all["webhooks"][0]["rules"] =
        json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]);
    api.post(VALIDATING, &all).await.expect(201);
    let refused = api.post(MAPS, &map("a")).await.expect(500);
    assert!(
        refused.at("/message").starts_with("Internal error occurred: failed calling webhook"),
        "{}",
        refused.text()
    );
    api.delete(&format!("{VALIDATING}/test")).await.expect(200);
    api.post(MAPS, &map("a")).await.expect(201);
    handle.stop().await;
}

#[tokio::test]
async fn a_request_that_waits_for_a_webhook_ends_when_its_own_time_is_up() {
    let (handle, api) = start().await;
    let hook = Webhook::start().await;
    let mut slow = configuration("MutatingWebhookConfiguration", &hook.client("/slow"));
    slow["webhooks"][0]["failurePolicy"] = json!("Ignore");
    slow["webhooks"][0]["timeoutSeconds"] = json!(30);
    api.post(MUTATING, &slow).await.expect(201);
    // This client would try again by itself.
    let once = Api::without_retries(&handle.kubeconfig).await;
    let late = once.post(&format!("{MAPS}?timeout=1s"), &map("a")).await.expect(504);
    assert!(late.text().contains("did not complete within the allotted timeout"), "{}", late.text());
    api.get(&format!("{MAPS}/a")).await.expect(404);
    handle.stop().await;
}

#[tokio::test]
async fn a_webhook_cannot_spoil_the_record_of_who_owns_what() {
    let (handle, api) = start().await;
    let hook = Webhook::start().await;
    api.post(MUTATING, &configuration("MutatingWebhookConfiguration", &hook.client("/disown")))
        .await
        .expect(201);
    let created = api.post(MAPS, &map("a")).await.expect(201);
    assert_eq!(created.at("/metadata/managedFields/0/fieldsType"), "FieldsV1");
    let warning = created.headers.get("warning").expect("a warning").to_str().expect("readable");
    assert!(warning.contains("missing fieldsType in managed fields entry 0"), "{warning}");
    handle.stop().await;
}

#[tokio::test]
async fn conditions_are_about_the_version_that_a_webhook_wants() {
    let (handle, api) = start().await;
    let hook = Webhook::start().await;
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pandas.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "pandas", "kind": "Panda"}, "versions": [version("v1", true), version("v2", false)]}});
    api.post("apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    api.until("apis/example.com/v2/pandas", |answer| answer.code == 200).await;
    let mut wants_v2 = configuration("ValidatingWebhookConfiguration", &hook.client("/deny"));
    wants_v2["webhooks"][0]["rules"] = json!([{"operations": ["CREATE"], "apiGroups": ["example.com"],
        "apiVersions": ["v2"], "resources": ["pandas"]}]);
    wants_v2["webhooks"][0]["matchConditions"] =
        json!([{"name": "v2", "expression": "object.apiVersion == 'example.com/v2'"}]);
    api.post(VALIDATING, &wants_v2).await.expect(201);
    let panda = json!({"apiVersion": "example.com/v1", "kind": "Panda", "metadata": {"name": "a"}});
    api.post("apis/example.com/v1/pandas", &panda).await.expect(400);
    assert_eq!(hook.calls.load(Ordering::SeqCst), 1);
    handle.stop().await;
}

#[tokio::test]
async fn a_server_starts_again_in_spite_of_a_broken_webhook() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = || Options { data_dir: Some(dir.path().to_owned()), ..Options::default() };
    let (handle, api) = start_with(options()).await;
    let mut all = configuration("ValidatingWebhookConfiguration", &json!({"url": "https://127.0.0.1:1/"}));
    all["webhooks"][0]["rules"] =
        json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    api.post(VALIDATING, &all).await.expect(201);
    handle.stop().await;
    let (handle, api) = start_with(options()).await;
    api.post(MAPS, &map("a")).await.expect(500);
    handle.stop().await;
}
