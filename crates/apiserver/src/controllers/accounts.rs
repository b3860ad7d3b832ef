//! Service accounts: tokens in Secrets that ask for one, and, in a member, a default account and the cluster's CA in
//! every namespace.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use base64::Engine;
use serde_json::{Value, json};

use crate::bootstrap::ensure;
use crate::handlers::delete::{DeleteOptions, Preconditions};
use crate::internal::Actor;
use crate::object::{self, Entry};
use crate::options::Profile;
use crate::server::Server;

const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";
const ROOT_CA: &str = "kube-root-ca.crt";
pub(crate) const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";

pub(super) async fn run(server: Arc<Server>) {
    let actor = Actor::new(&server, "system:serviceaccount:kube-system:token-controller");
    let Ok(mut watch) = server.store.watch_all(server.store.revision()) else { return };
    for entry in server.store.snapshot("namespaces").iter() {
        create_member_defaults(&actor, &entry.name).await;
    }
    for entry in server.store.snapshot("secrets").iter() {
        fill(&actor, entry).await;
    }
    loop {
        let Ok(batch) = watch.next().await else { return };
        for event in batch {
            match (&*event.collection, &event.current) {
                ("namespaces", Some(entry)) if event.is_create() && !entry.head.deleting => {
                    create_member_defaults(&actor, event.name()).await;
                }
                ("secrets", Some(entry)) => fill(&actor, entry).await,
                ("serviceaccounts", _) => {
                    // When an account is created or deleted, the Secrets of its namespace are reconciled.
                    let (namespace, account) = object::split_key(event.name());
                    if event.current.is_none() || event.is_create() {
                        revisit(&actor, namespace).await;
                    }
                    if event.is_delete() && account == "default" {
                        create_member_defaults(&actor, namespace).await;
                    }
                }
                // A user may have deleted it, or changed it to an authority that clients must not trust.
                ("configmaps", _) if event.name().ends_with("/kube-root-ca.crt") => {
                    create_member_defaults(&actor, object::split_key(event.name()).0).await;
                }
                _ => {}
            }
        }
    }
}

/// Creates the objects that every namespace of a member has.
async fn create_member_defaults(actor: &Actor, namespace: &str) {
    let server = actor.server();
    if server.profile != Profile::Member
        || server.store.get("namespaces", namespace).is_none_or(|entry| entry.head.deleting)
    {
        return;
    }
    let account = json!({"metadata": {"name": "default", "namespace": namespace}});
    if let Err(status) = ensure(actor, "", "v1", "serviceaccounts", namespace, account).await {
        tracing::debug!(namespace, error = %status, "cannot create the defaults of a namespace");
    }
    if let Err(status) = publish_ca(actor, namespace).await {
        tracing::debug!(namespace, error = %status, "cannot publish the authority in a namespace");
    }
}

/// Ensures that a namespace has a ConfigMap with the authority that verifies this server, and nothing else under its name.
async fn publish_ca(actor: &Actor, namespace: &str) -> Result<(), Status> {
    let server = actor.server();
    let data = json!({"ca.crt": server.signer.pair().cert});
    let published = server.store.get("configmaps", &object::join_key(namespace, ROOT_CA));
    let Some(published) = published else {
        let ca = json!({
            "metadata": {"name": ROOT_CA, "namespace": namespace, "annotations": {
                "kubernetes.io/description": "Holds the certificate authority that verifies this cluster's API server."}},
            "data": data,
        });
        return ensure(actor, "", "v1", "configmaps", namespace, ca).await;
    };
    let current: Value = serde_json::from_slice(&published.value).unwrap_or_default();
    let registry = server.registry.load_full();
    let (false, Some(kind)) = (current.get("data") == Some(&data), registry.find("", "v1", "configmaps"))
    else {
        return Ok(());
    };
    let change = |old: &Value| {
        let mut new = old.clone();
        pointer::set(&mut new, "data", data.clone());
        (new != *old).then_some(new)
    };
    actor.update(kind, namespace, ROOT_CA, "", change).await.map(|_| ())
}

async fn revisit(actor: &Actor, namespace: &str) {
    let prefix = format!("{namespace}/");
    let snapshot = actor.server().store.snapshot("secrets");
    let entries: Vec<Arc<Entry>> = snapshot
        .range(std::ops::Bound::Included(&prefix), std::ops::Bound::Unbounded)
        .take_while(|entry| entry.name.starts_with(&prefix))
        .cloned()
        .collect();
    for entry in entries {
        fill(actor, &entry).await;
    }
}

/// Puts a token into a Secret that requests one; deletes a Secret whose account is gone.
async fn fill(actor: &Actor, entry: &Arc<Entry>) {
    let server = actor.server();
    let Ok(secret) = serde_json::from_slice::<Value>(&entry.value) else { return };
    if secret.get("type").and_then(Value::as_str) != Some(TOKEN_TYPE) || entry.head.deleting {
        return;
    }
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("", "v1", "secrets").cloned() else { return };
    let (namespace, name) = object::split_key(&entry.name);
    let annotation = |key: &str| {
        let annotations = secret.pointer("/metadata/annotations");
        annotations.and_then(|all| all.get(key)).and_then(Value::as_str).unwrap_or("").to_owned()
    };
    let account_name = annotation(NAME);
    let account = server.store.get("serviceaccounts", &object::join_key(namespace, &account_name));
    let wanted_uid = annotation(UID);
    let Some(account) = account.filter(|account| wanted_uid.is_empty() || *account.head.uid == *wanted_uid)
    else {
        let options = DeleteOptions {
            preconditions: Some(Preconditions {
                uid: Some(entry.head.uid.to_string()),
                resource_version: None,
            }),
            ..DeleteOptions::default()
        };
        if let Err(status) = actor.delete(&kind, namespace, name, &options).await {
            tracing::debug!(object = %entry.name, error = %status, "cannot remove the token of a missing account");
        }
        return;
    };
    let has = |key: &str| {
        secret.pointer(&format!("/data/{key}")).and_then(Value::as_str).is_some_and(|v| !v.is_empty())
    };
    if has("token") && has("ca.crt") && has("namespace") && !wanted_uid.is_empty() {
        return;
    }
    let uid = account.head.uid.to_string();
    let token = match server.tokens.sign_legacy(namespace, &account_name, &uid, name) {
        Ok(token) => token,
        Err(error) => {
            tracing::error!(%error, "cannot sign a service account token");
            return;
        }
    };
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let ca = server.signer.pair().cert.clone();
    let result = actor
        .update(&kind, namespace, name, "", |old| {
            let mut new = old.clone();
            let data = pointer::object_at(&mut new, "data");
            for (key, text) in [("token", token.as_str()), ("ca.crt", &ca), ("namespace", namespace)] {
                if data.get(key).is_none() {
                    pointer::set(data, key, json!(encode(text)));
                }
            }
            let metadata = new.metadata_mut();
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            pointer::set(annotations, UID, json!(uid));
            Some(new)
        })
        .await;
    if let Err(status) = result {
        tracing::debug!(object = %entry.name, error = %status, "cannot fill in a token");
    }
}
