//! Empties namespaces that are being deleted, then removes them.
//!
//! After a short grace period, pods are deleted first, then everything else. Objects with finalizers are waited for; the
//! namespace's conditions say what is left. Watches: everything, for objects that disappear from a dying namespace.
//!
//! Every server on an etcd does this, and each may lag behind the others. So memory catches up before a namespace is checked, and
//! every write is bound to the namespace or object that was read: by the time it arrives, another server may have removed the
//! namespace and a client may have created it again. Nothing is created in it meanwhile; see [`crate::handlers::together`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::conditions;
use apimachinery::object::Object;
use apimachinery::pointer;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::definitions;
use crate::clock;
use crate::handlers::delete::{DeleteOptions, Preconditions};
use crate::handlers::write::second;
use crate::head::Head;
use crate::internal::Actor;
use crate::object;
use crate::registry::Kind;
use crate::server::Server;

/// The names of the service account and the root certificate that every namespace of a member has.
const FURNITURE: [(&str, &str); 2] = [("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")];
/// The pause before the next attempt to empty a namespace after a failure.
const RETRY: Duration = Duration::from_millis(100);

/// Follows the store. Objects in a deleted namespace are left alone for `grace`, so that clients that read them once more find
/// them, as on other servers. An empty namespace is removed at once.
pub(super) async fn run(server: Arc<Server>, grace: Duration) {
    let actor = Actor::new(&server, "system:serviceaccount:kube-system:namespace-controller");
    let after = server.store.revision();
    let Ok(mut watch) = server.store.watch_all(after) else { return };
    let deleting = server.store.snapshot("namespaces");
    let deleting = deleting.iter().filter(|entry| entry.head.deleting).map(|entry| entry.name.to_string());
    // For namespaces that were being deleted before the start, the grace period is over.
    let mut dying: BTreeMap<String, Instant> = deleting.map(|name| (name, Instant::now())).collect();
    let mut work: BTreeSet<String> = dying.keys().cloned().collect();
    loop {
        let now = Instant::now();
        let waits = |name: &String| dying.get(name).is_some_and(|from| *from > now);
        let (mut later, due): (BTreeSet<String>, BTreeSet<String>) = work.into_iter().partition(waits);
        for namespace in due {
            match empty(&actor, &namespace).await {
                Progress::Gone => {
                    dying.remove(&namespace);
                }
                Progress::Waiting => {}
                Progress::Again => {
                    dying.insert(namespace.clone(), clock::in_future(RETRY));
                    later.insert(namespace);
                }
            }
        }
        work = later;
        let next = work.iter().filter_map(|name| dying.get(name)).min().copied();
        let batch = tokio::select! {
            batch = watch.next() => batch,
            () = async { tokio::time::sleep_until(next.unwrap_or(now)).await }, if next.is_some() => continue,
        };
        let Ok(batch) = batch else { return };
        for event in batch {
            if &*event.collection == "namespaces" {
                match &event.current {
                    Some(entry) if entry.head.deleting => {
                        let name = entry.name.to_string();
                        if !dying.contains_key(&name) {
                            let wait = if holds_anything(&server, &name) { grace } else { Duration::ZERO };
                            dying.insert(name.clone(), clock::in_future(wait));
                        }
                        work.insert(name);
                    }
                    Some(_) => {}
                    None => {
                        dying.remove(event.name());
                    }
                }
            } else {
                let (namespace, _) = object::split_key(event.name());
                if dying.contains_key(namespace) {
                    work.insert(namespace.to_owned());
                }
            }
        }
    }
}

/// Returns the entries of a collection that are in a namespace.
fn within<'a>(
    snapshot: &'a store::Snapshot<Head>,
    prefix: &'a str,
) -> impl Iterator<Item = &'a Arc<object::Entry>> {
    let entries = snapshot.range(std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded);
    entries.take_while(move |entry| entry.name.starts_with(prefix))
}

/// Returns whether a namespace contains any objects besides those that every namespace has.
fn holds_anything(server: &Server, namespace: &str) -> bool {
    let prefix = format!("{namespace}/");
    let kinds = server.registry.load().stored_kinds();
    kinds.iter().filter(|kind| kind.namespaced).any(|kind| {
        let snapshot = server.store.snapshot(&kind.collection);
        within(&snapshot, &prefix)
            .any(|entry| !FURNITURE.contains(&(&*kind.collection, object::split_key(&entry.name).1)))
    })
}

enum Progress {
    Gone,
    /// Something must disappear first; its event wakes this controller.
    Waiting,
    Again,
}

/// One pass over a dying namespace.
async fn empty(actor: &Actor, namespace: &str) -> Progress {
    let server = actor.server();
    if let Err(error) = server.store.catch_up().await {
        tracing::debug!(namespace, %error, "cannot see what is in a namespace");
        return Progress::Again;
    }
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("", "v1", "namespaces").cloned() else { return Progress::Gone };
    let uid = match server.store.get("namespaces", namespace) {
        Some(entry) if entry.head.deleting => entry.head.uid.clone(),
        _ => return Progress::Gone,
    };
    let mut kinds: Vec<Arc<Kind>> =
        registry.stored_kinds().into_iter().filter(|kind| kind.namespaced && kind.allows("delete")).collect();
    // Pods may need the other objects while they end.
    kinds.sort_by_key(|kind| &*kind.collection != "pods");
    let mut left = Left::default();
    for kind in &kinds {
        if &*kind.collection != "pods" && left.total > 0 && left.pods {
            break;
        }
        let snapshot = server.store.snapshot(&kind.collection);
        let prefix = format!("{namespace}/");
        let entries: Vec<_> = within(&snapshot, &prefix).cloned().collect();
        delete_all(actor, kind, &entries, &mut left).await;
    }
    if let Some(collection) = unserved(server, &kinds, namespace) {
        left.failed.get_or_insert(format!("{collection} is not served yet"));
    }
    if left.total > 0 || left.failed.is_some() {
        let (conditions, now) = (left.conditions(), Timestamp::now());
        let change = |old: &Value| is_dying(old, &uid).then(|| with_conditions(old, &conditions, now));
        let result = actor.update(&kind, "", namespace, "status", change).await;
        if let Err(status) = result {
            tracing::debug!(namespace, error = %status, "cannot report what is left");
        }
        return if left.failed.is_some() { Progress::Again } else { Progress::Waiting };
    }
    let finished = actor.update(&kind, "", namespace, "finalize", |old| finalized(old, &uid)).await;
    match finished {
        Ok(_) => Progress::Gone,
        Err(status) if status.code == 404 => Progress::Gone,
        Err(status) => {
            tracing::warn!(namespace, error = %status, "cannot finish a namespace");
            Progress::Again
        }
    }
}

/// Returns a namespace without this controller's finalizer, if it is the dying one that was read.
fn finalized(old: &Value, uid: &str) -> Option<Value> {
    is_dying(old, uid).then(|| {
        let mut new = old.clone();
        if let Some(Value::Array(finalizers)) = new.pointer_mut("/spec/finalizers") {
            finalizers.retain(|finalizer| finalizer != "kubernetes");
        }
        new
    })
}

fn is_dying(namespace: &Value, uid: &str) -> bool {
    namespace.uid() == uid && namespace.is_deleting()
}

/// Returns a collection with objects in a namespace if its definition is served by another server, but not yet by this one.
fn unserved(server: &Server, kinds: &[Arc<Kind>], namespace: &str) -> Option<String> {
    let prefix = format!("{namespace}/");
    server.store.snapshot(definitions::COLLECTION).iter().find_map(|definition| {
        let collection = definitions::collection(&definition.name);
        let held = within(&server.store.snapshot(&collection), &prefix).next().is_some();
        let served = || kinds.iter().any(|kind| *kind.collection == *collection);
        (held && !served()).then_some(collection)
    })
}

/// Deletes exactly these objects.
async fn delete_all(actor: &Actor, kind: &Arc<Kind>, entries: &[Arc<object::Entry>], left: &mut Left) {
    let server = actor.server();
    for entry in entries {
        let (namespace, name) = object::split_key(&entry.name);
        let uid = Some(entry.head.uid.to_string());
        let options = DeleteOptions {
            propagation_policy: Some("Background".to_owned()),
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteOptions::default()
        };
        match actor.delete(kind, namespace, name, &options).await {
            Err(status) if status.code == 404 => {}
            Err(status) => {
                left.failed.get_or_insert(status.message);
                left.add(kind, &[]);
            }
            Ok(deleted) => {
                if server.store.get(&kind.collection, &entry.name).is_some() {
                    left.add(kind, &deleted.object().finalizers());
                }
            }
        }
    }
}

/// What is still in a namespace.
#[derive(Default)]
struct Left {
    total: usize,
    pods: bool,
    resources: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
    failed: Option<String>,
}

impl Left {
    fn add(&mut self, kind: &Kind, finalizers: &[String]) {
        self.total = self.total.saturating_add(1);
        self.pods |= &*kind.collection == "pods";
        let resource = format!("{}.{}", kind.resource.resource, kind.resource.group);
        let count = |counts: &mut BTreeMap<String, usize>, what: String| {
            let known = counts.entry(what).or_default();
            *known = known.saturating_add(1);
        };
        count(&mut self.resources, resource);
        for finalizer in finalizers {
            count(&mut self.finalizers, finalizer.clone());
        }
    }

    fn conditions(&self) -> Vec<Value> {
        let condition = |kind: &str, status: bool, reason: &str, message: String| {
            conditions::condition(kind, if status { "True" } else { "False" }, reason, message)
        };
        let join = |counts: &BTreeMap<String, usize>, words: &str| {
            let parts: Vec<String> = counts
                .iter()
                .map(|(what, count)| format!("{what} {words} {count} resource instances"))
                .collect();
            parts.join(", ")
        };
        let mut conditions = vec![
            condition(
                "NamespaceDeletionDiscoveryFailure",
                false,
                "ResourcesDiscovered",
                "All resources successfully discovered".to_owned(),
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                false,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed".to_owned(),
            ),
        ];
        conditions.push(match &self.failed {
            Some(why) => condition(
                "NamespaceDeletionContentFailure",
                true,
                "ContentDeletionFailed",
                format!("Failed to delete all resource types, 1 remaining: {why}"),
            ),
            None => condition(
                "NamespaceDeletionContentFailure",
                false,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization".to_owned(),
            ),
        });
        conditions.push(condition(
            "NamespaceContentRemaining",
            true,
            "SomeResourcesRemain",
            format!("Some resources are remaining: {}", join(&self.resources, "has")),
        ));
        conditions.push(if self.finalizers.is_empty() {
            condition(
                "NamespaceFinalizersRemaining",
                false,
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished".to_owned(),
            )
        } else {
            condition(
                "NamespaceFinalizersRemaining",
                true,
                "SomeFinalizersRemain",
                format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    join(&self.finalizers, "in")
                ),
            )
        });
        conditions
    }
}

/// Sets conditions, and keeps the time of those whose status does not change.
fn with_conditions(old: &Value, conditions: &[Value], now: Timestamp) -> Value {
    let mut new = old.clone();
    for condition in conditions {
        conditions::set(pointer::object_at(&mut new, "status"), condition.clone(), &second(now));
    }
    new
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_dying_namespace_that_was_seen_is_let_go() {
        let namespace = |uid: &str, deleted: Option<&str>| {
            json!({"metadata": {"name": "n", "uid": uid, "deletionTimestamp": deleted},
                "spec": {"finalizers": ["kubernetes", "mine"]}})
        };
        let dying = Some("2026-01-01T00:00:00Z");
        let finalizers = |old: Value| finalized(&old, "1").map(|new| new["spec"]["finalizers"].clone());
        assert_eq!(finalizers(namespace("1", dying)), Some(json!(["mine"])));
        assert_eq!(finalizers(namespace("1", None)), None);
        assert_eq!(finalizers(namespace("2", None)), None, "made anew");
        assert_eq!(finalizers(namespace("2", dying)), None, "made anew and deleted again");
    }

    #[tokio::test]
    async fn what_was_made_anew_does_not_go_with_what_was_seen() {
        let handle = crate::start(crate::Options::default()).await.expect("the server starts");
        let (server, actor) = (&handle.server, Actor::new(&handle.server, "test"));
        let registry = server.registry.load_full();
        let kind = registry.find("", "v1", "configmaps").expect("it is native");
        let create = async || {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}});
            actor.create(kind, "default", map).await.expect("it is new").uid().to_owned()
        };
        create().await;
        let seen = server.store.get("configmaps", "default/a").expect("it is there");
        actor.delete(kind, "default", "a", &DeleteOptions::default()).await.expect("it is there");
        let new = create().await;
        let mut left = Left::default();
        delete_all(&actor, kind, &[seen], &mut left).await;
        let there = server.store.get("configmaps", "default/a").expect("nobody has asked for its deletion");
        assert_eq!(*there.head.uid, *new);
        assert!(left.failed.is_some(), "it is looked at again");
        handle.stop().await;
    }
}
