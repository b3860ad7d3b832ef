//! Admission webhooks, without kube-apiserver beside: that they are asked from the moment their configuration is
//! acknowledged, and that a broken one can be removed.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::start;
use crate::support::webhook::Webhook;

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
