//! Deletes finished Jobs once their time is up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::clock;
use crate::handlers::delete::{DeleteOptions, Preconditions};
use crate::internal::Actor;
use crate::object::{self, Entry};
use crate::server::Server;

pub(super) async fn run(server: Arc<Server>) {
    let actor = Actor::new(&server, "system:serviceaccount:kube-system:ttl-after-finished-controller");
    let Ok(mut watch) = server.store.watch("jobs", server.store.revision()) else { return };
    let mut due: BTreeMap<Box<str>, Timestamp> = BTreeMap::new();
    for entry in server.store.snapshot("jobs").iter() {
        note(&mut due, entry);
    }
    loop {
        let now = Timestamp::now();
        let ripe: Vec<Box<str>> =
            due.iter().filter(|(_, when)| **when <= now).map(|(key, _)| key.clone()).collect();
        for key in ripe {
            due.remove(&key);
            delete(&actor, &key).await;
        }
        let wait = due.values().min().map(|when| {
            let left = when.as_millisecond().saturating_sub(now.as_millisecond());
            Duration::from_millis(u64::try_from(left).unwrap_or(0).saturating_add(1))
        });
        tokio::select! {
            batch = watch.next() => {
                let Ok(batch) = batch else { return };
                for event in batch {
                    match &event.current {
                        Some(entry) => note(&mut due, entry),
                        None => { due.remove(event.name()); }
                    }
                }
            }
            () = async { tokio::time::sleep(wait.unwrap_or_default()).await }, if wait.is_some() => {}
        }
    }
}

fn note(due: &mut BTreeMap<Box<str>, Timestamp>, entry: &Entry) {
    match ends(entry) {
        Some(when) => {
            due.insert(entry.name.clone(), when);
        }
        None => {
            due.remove(&entry.name);
        }
    }
}

/// Returns when a finished Job must be deleted.
fn ends(entry: &Entry) -> Option<Timestamp> {
    if entry.head.deleting {
        return None;
    }
    let job: Value = serde_json::from_slice(&entry.value).ok()?;
    let seconds = job.pointer("/spec/ttlSecondsAfterFinished").and_then(Value::as_i64)?;
    let finished = job.pointer("/status/conditions")?.as_array()?.iter().find(|condition| {
        matches!(condition["type"].as_str(), Some("Complete" | "Failed")) && condition["status"] == "True"
    })?;
    let when: Timestamp = finished["lastTransitionTime"].as_str()?.parse().ok()?;
    Some(clock::after(when, seconds))
}

async fn delete(actor: &Actor, key: &str) {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("batch", "v1", "jobs").cloned() else { return };
    // Read again: the Job may have been replaced since.
    let Some(entry) = server.store.get("jobs", key) else { return };
    if ends(&entry).is_none_or(|when| when > Timestamp::now()) {
        return;
    }
    let (namespace, name) = object::split_key(key);
    let options = DeleteOptions {
        propagation_policy: Some("Foreground".to_owned()),
        preconditions: Some(Preconditions { uid: Some(entry.head.uid.to_string()), resource_version: None }),
        ..DeleteOptions::default()
    };
    if let Err(status) = actor.delete(&kind, namespace, name, &options).await {
        tracing::debug!(object = key, error = %status, "cannot delete a finished Job");
    }
}
