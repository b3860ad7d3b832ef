//! Keeps an APIService for each of our own group versions, as clients and the original aggregator expect.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::pointer;
use futures::future::join_all;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::COLLECTION;
use crate::controllers::definitions;
use crate::handlers::delete::{DeleteOptions, Preconditions};
use crate::internal::Actor;
use crate::registry::Kind;
use crate::server::Server;

const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Creates missing APIServices and removes those whose group version is gone.
pub(super) async fn register(actor: &Actor) {
    let server = actor.server();
    let Some(kind) = kind(server) else { return };
    let wanted = wanted(server);
    let snapshot = server.store.snapshot(COLLECTION);
    let missing = wanted.iter().filter(|(name, _)| snapshot.get(name).is_none());
    // All at once: writes that wait for the disk together cost one sync.
    let created = join_all(missing.map(|(_, service)| actor.create(&kind, "", service.clone()))).await;
    for status in created.into_iter().filter_map(Result::err).filter(|status| status.code != 409) {
        tracing::warn!(error = %status, "cannot register a group of our own");
    }
    unregister(actor).await;
    let now = Timestamp::now();
    for entry in server.store.snapshot(COLLECTION).iter() {
        let Some(service) = server.read_or_warn(&kind, entry) else { continue };
        if service.pointer("/spec/service").is_some_and(Value::is_object) {
            continue;
        }
        let message = "Local APIServices are always available";
        let condition = super::availability::Condition::new(true, "Local", message);
        let change = |old: &Value| condition.written_to(old, now);
        if change(&service).is_some() {
            let _ = actor.update(&kind, "", service.name(), "status", change).await;
        }
    }
}

/// Returns the input for our own APIServices: the served group versions, and which definitions are being deleted.
pub(super) fn groups(server: &Server) -> Vec<String> {
    let registry = server.registry.load();
    let versions = registry
        .groups()
        .iter()
        .flat_map(|group| group.versions.iter().map(|version| format!("{}/{version}", group.name)));
    let definitions = server.store.snapshot(definitions::COLLECTION);
    let going = definitions.iter().filter(|entry| entry.head.deleting).map(|entry| entry.name.to_string());
    versions.chain(going).collect()
}

fn kind(server: &Server) -> Option<Arc<Kind>> {
    server.registry.load().find("apiregistration.k8s.io", "v1", "apiservices").cloned()
}

/// Removes the APIServices of definitions that are gone or about to go. This happens before the definition is removed, so that a
/// client that sees that the group is no longer served may register it for another server.
pub(crate) async fn unregister(actor: &Actor) {
    let server = actor.server();
    let Some(kind) = kind(server) else { return };
    let wanted = wanted(server);
    for entry in server.store.snapshot(COLLECTION).iter() {
        if entry.head.label(AUTOMANAGED) != Some("true") || wanted.contains_key(&*entry.name) {
            continue;
        }
        let Some(service) = server.read_or_warn(&kind, entry) else { continue };
        if !service.pointer("/spec/service").is_some_and(Value::is_object) {
            // An APIService with the same name that belongs to someone else is left alone.
            let uid = Some(service.uid().to_owned());
            let options = DeleteOptions {
                preconditions: Some(Preconditions { uid, resource_version: None }),
                ..DeleteOptions::default()
            };
            let _ = actor.delete(&kind, "", &entry.name, &options).await;
        }
    }
}

fn wanted(server: &Server) -> BTreeMap<String, Value> {
    let registry = server.registry.load_full();
    // A definition that is being deleted and has no instances left counts as gone.
    let stays = |kind: &Kind| {
        let Some(custom) = kind.custom() else { return true };
        let stored = server.store.get(definitions::COLLECTION, &custom.name);
        stored
            .is_some_and(|entry| !entry.head.deleting || !server.store.snapshot(&kind.collection).is_empty())
    };
    let mut wanted = BTreeMap::new();
    for group in registry.groups() {
        // The aggregator does not register itself.
        if group.name == "apiregistration.k8s.io" {
            continue;
        }
        for version in &group.versions {
            let mut kinds = registry.kinds_of(&group.name, version);
            kinds.retain(|kind| stays(kind));
            if kinds.is_empty() {
                continue;
            }
            // In addition to the kinds of definitions, an extension may serve some of its own.
            let custom = kinds.iter().any(|kind| kind.is_custom());
            let (label, group_priority, version_priority) = if custom {
                ("true", 1000, 100)
            } else {
                ("onstart", group.priority, version_priority(&group.name, version))
            };
            let name = format!("{version}.{}", group.name);
            let mut spec = json!({"version": version, "groupPriorityMinimum": group_priority, "versionPriority": version_priority});
            if !group.name.is_empty() {
                pointer::set(&mut spec, "group", json!(group.name));
            }
            let service = json!({"metadata": {"name": name, "labels": {AUTOMANAGED: label}}, "spec": spec});
            wanted.insert(name, service);
        }
    }
    wanted
}

fn version_priority(group: &str, version: &str) -> i32 {
    match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("resource.k8s.io" | "flowcontrol.apiserver.k8s.io", "v1") => 21,
        _ => 15,
    }
}
