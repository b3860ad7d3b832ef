//! Signs the `cluster-info` ConfigMap with every bootstrap token that allows it, and deletes expired tokens.
//!
//! Watches: Secrets, the ConfigMap `kube-public/cluster-info`. Writes: the `jws-kubeconfig-<id>` keys of that ConfigMap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::pointer;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::auth::bootstrap_tokens::{PREFIX, Token};
use crate::handlers::delete::DeleteOptions;
use crate::internal::Actor;
use crate::object;
use crate::server::Server;

const CLUSTER_INFO: &str = "kube-public/cluster-info";
const SIGNATURE: &str = "jws-kubeconfig-";

pub(super) async fn run(server: Arc<Server>) {
    let signer = Actor::new(&server, "system:serviceaccount:kube-system:bootstrap-signer");
    let cleaner = Actor::new(&server, "system:serviceaccount:kube-system:token-cleaner");
    let revision = server.store.revision();
    let (Ok(mut secrets), Ok(mut maps)) =
        (server.store.watch("secrets", revision), server.store.watch("configmaps", revision))
    else {
        return;
    };
    loop {
        let now = Timestamp::now();
        let next = clean(&cleaner, now).await;
        sign(&signer, now).await;
        let pause = next.map(|when| {
            let left = when.as_millisecond().saturating_sub(now.as_millisecond());
            Duration::from_millis(u64::try_from(left).unwrap_or(0).saturating_add(1))
        });
        // One deadline for all waits until then: it must not move when something else changes.
        let mut until = std::pin::pin!(tokio::time::sleep(pause.unwrap_or_default()));
        // Waits for a relevant change; other Secrets and ConfigMaps change all the time.
        loop {
            let matters = tokio::select! {
                batch = secrets.next() => match batch {
                    Ok(batch) => batch.iter().any(|event| event.name().starts_with(PREFIX)),
                    Err(_) => return,
                },
                batch = maps.next() => match batch {
                    Ok(batch) => batch.iter().any(|event| event.name() == CLUSTER_INFO),
                    Err(_) => return,
                },
                () = until.as_mut(), if pause.is_some() => true,
            };
            if matters {
                break;
            }
        }
    }
}

fn tokens(server: &Server) -> Vec<(Box<str>, Token)> {
    let secrets = server.store.snapshot("secrets");
    let named = secrets.iter().filter(|entry| entry.name.starts_with(PREFIX) && !entry.head.deleting);
    named.filter_map(|entry| Some((entry.name.clone(), Token::read(&entry.name, &entry.value)?))).collect()
}

/// Deletes expired tokens. Returns when the next one expires.
async fn clean(actor: &Actor, now: Timestamp) -> Option<Timestamp> {
    let server = actor.server();
    let registry = server.registry.load_full();
    let kind = registry.find("", "v1", "secrets").cloned()?;
    let mut next: Option<Timestamp> = None;
    for (key, token) in tokens(server) {
        if token.is_expired(now) {
            let (namespace, name) = object::split_key(&key);
            let _ = actor.delete(&kind, namespace, name, &DeleteOptions::default()).await;
        } else if let Some(expires) = token.expires() {
            next = Some(next.map_or(expires, |known| known.min(expires)));
        }
    }
    next
}

async fn sign(actor: &Actor, now: Timestamp) {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("", "v1", "configmaps").cloned() else { return };
    if server.store.get("configmaps", CLUSTER_INFO).is_none() {
        return;
    }
    let (namespace, name) = object::split_key(CLUSTER_INFO);
    let change = |old: &Value| {
        let kubeconfig = old.pointer("/data/kubeconfig")?.as_str()?;
        let wanted: BTreeMap<String, String> = tokens(server)
            .into_iter()
            .filter(|(_, token)| token.signs && !token.is_expired(now))
            .map(|(_, token)| (format!("{SIGNATURE}{}", token.id), token.sign(kubeconfig)))
            .collect();
        let mut data = old["data"].as_object().cloned().unwrap_or_default();
        data.retain(|key, _| !key.starts_with(SIGNATURE));
        data.extend(wanted.into_iter().map(|(key, value)| (key, json!(value))));
        let mut new = old.clone();
        pointer::set(&mut new, "data", data.into());
        (new != *old).then_some(new)
    };
    if let Err(status) = actor.update(&kind, namespace, name, "", change).await {
        tracing::warn!(error = %status, "cannot sign the cluster information");
    }
}
