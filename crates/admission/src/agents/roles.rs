//! The roles that `register` writes for a new agent: upstream's, and the right to patch where upstream's agent only updates.
//!
//! On our server they make an agent known, and its rights are those of `rights`. On a stock kube-apiserver they are all the
//! rights it has.

use api::names::execution_space;
use serde_json::{Value, json};

use super::{AGENT_PREFIX, secrets_of};

const API: &str = "rbac.authorization.k8s.io";

/// Returns the roles and bindings of a new agent, in the order in which they are written.
pub fn roles(cluster: &str, namespace: &str) -> Vec<Value> {
    let space = execution_space(cluster);
    let all = format!("system:karmada:{cluster}:agent");
    let (secret, work) = (format!("{all}-secret"), format!("{all}-work"));
    vec![
        object("ClusterRole", &all, "", json!({ "rules": cluster_rules(cluster) })),
        binding("ClusterRole", &all, "", cluster),
        object("Role", &secret, namespace, json!({ "rules": secret_rules(cluster) })),
        binding("Role", &secret, namespace, cluster),
        object("Role", &work, &space, json!({ "rules": work_rules() })),
        binding("Role", &work, &space, cluster),
    ]
}

fn object(kind: &str, name: &str, namespace: &str, mut rest: Value) -> Value {
    let metadata = match namespace {
        "" => json!({ "name": name }),
        _ => json!({ "name": name, "namespace": namespace }),
    };
    if let Some(fields) = rest.as_object_mut() {
        fields.insert("apiVersion".to_owned(), format!("{API}/v1").into());
        fields.insert("kind".to_owned(), kind.into());
        fields.insert("metadata".to_owned(), metadata);
    }
    rest
}

fn binding(role: &str, name: &str, namespace: &str, cluster: &str) -> Value {
    let kind = format!("{role}Binding");
    object(&kind, name, namespace, json!({ "roleRef": role_ref(role, name), "subjects": subjects(cluster) }))
}

pub(super) fn role_ref(kind: &str, name: &str) -> Value {
    json!({ "apiGroup": API, "kind": kind, "name": name })
}

pub(super) fn subjects(cluster: &str) -> Value {
    json!([{ "apiGroup": API, "kind": "User", "name": format!("{AGENT_PREFIX}{cluster}") }])
}

pub(super) fn cluster_rules(cluster: &str) -> Value {
    json!([
        { "apiGroups": ["cluster.karmada.io"], "resources": ["clusters"], "resourceNames": [cluster],
          "verbs": ["get", "delete", "update", "patch"] },
        { "apiGroups": ["cluster.karmada.io"], "resources": ["clusters"], "verbs": ["create", "list", "watch"] },
        { "apiGroups": ["cluster.karmada.io"], "resources": ["clusters/status"], "resourceNames": [cluster],
          "verbs": ["update", "patch"] },
        { "apiGroups": ["cluster.karmada.io"], "resources": ["clusters/tunnel"], "resourceNames": [cluster],
          "verbs": ["get", "create"] },
        { "apiGroups": ["config.karmada.io"],
          "resources": ["resourceinterpreterwebhookconfigurations", "resourceinterpretercustomizations"],
          "verbs": ["get", "list", "watch"] },
        { "apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"] },
        { "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
          "verbs": ["get", "create"] },
        { "apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"] },
        { "apiGroups": [""], "resources": ["events"], "verbs": ["patch", "create", "update"] },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["patch", "create", "update"] },
    ])
}

pub(super) fn secret_rules(cluster: &str) -> Value {
    json!([
        { "apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets_of(cluster),
          "verbs": ["get", "patch"] },
        { "apiGroups": [""], "resources": ["secrets"], "verbs": ["create"] },
    ])
}

pub(super) fn work_rules() -> Value {
    json!([
        { "apiGroups": ["work.karmada.io"], "resources": ["works"],
          "verbs": ["get", "create", "list", "watch", "update", "patch", "delete"] },
        { "apiGroups": ["work.karmada.io"], "resources": ["works/status"], "verbs": ["patch", "update"] },
    ])
}
