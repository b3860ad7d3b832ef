//! Empties namespaces that are being deleted, then lets them go.
//!
//! After a short grace pods go first, then everything else. What is held by finalizers is waited for; the namespace's conditions say
//! what is left. Watches: everything, for what disappears from a dying namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::conditions;
use apimachinery::object::Object;
use apimachinery::pointer;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::clock;
use crate::handlers::delete::DeleteOptions;
use crate::handlers::write::second;
use crate::head::Head;
use crate::internal::Actor;
use crate::object;
use crate::registry::Kind;
use crate::server::Server;

/// What a service account or the root certificate of a namespace is called that every namespace of a member has.
const FURNITURE: [(&str, &str); 2] = [("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")];
/// Between two tries to empty a namespace when something failed.
const RETRY: Duration = Duration::from_millis(100);

/// Follows the store. What is in a namespace is left alone for `grace` after the deletion, so that clients that look at it
/// once more find it, as they do elsewhere. A namespace that holds nothing goes at once.
pub(super) async fn run(server: Arc<Server>, grace: Duration) {
    let actor = Actor::new(&server, "system:serviceaccount:kube-system:namespace-controller");
    let after = server.store.revision();
    let Ok(mut watch) = server.store.watch_all(after) else { return };
    let deleting = server.store.snapshot("namespaces");
    let deleting = deleting.iter().filter(|entry| entry.head.deleting).map(|entry| entry.name.to_string());
    // Whatever grace those had that were being deleted before the start, it is over.
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

/// Returns whether a namespace holds anything but what every namespace has.
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
    /// Something has to disappear first; its event wakes us.
    Waiting,
    Again,
}

/// One pass over a dying namespace.
async fn empty(actor: &Actor, namespace: &str) -> Progress {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("", "v1", "namespaces").cloned() else { return Progress::Gone };
    match server.store.get("namespaces", namespace) {
        Some(entry) if entry.head.deleting => {}
        _ => return Progress::Gone,
    }
    let mut kinds: Vec<Arc<Kind>> =
        registry.stored_kinds().into_iter().filter(|kind| kind.namespaced && kind.allows("delete")).collect();
    // Pods may depend on what else is there while they end.
    kinds.sort_by_key(|kind| &*kind.collection != "pods");
    let mut left = Left::default();
    for kind in &kinds {
        if &*kind.collection != "pods" && left.total > 0 && left.pods {
            break;
        }
        delete_all(actor, kind, namespace, &mut left).await;
    }
    if left.total > 0 || left.failed.is_some() {
        let (conditions, now) = (left.conditions(), Timestamp::now());
        let change = |old: &Value| Some(with_conditions(old, &conditions, now));
        let result = actor.update(&kind, "", namespace, "status", change).await;
        if let Err(status) = result {
            tracing::debug!(namespace, error = %status, "cannot report what is left");
        }
        return if left.failed.is_some() { Progress::Again } else { Progress::Waiting };
    }
    let finished = actor
        .update(&kind, "", namespace, "finalize", |old| {
            let mut new = old.clone();
            if let Some(Value::Array(finalizers)) = new.pointer_mut("/spec/finalizers") {
                finalizers.retain(|finalizer| finalizer != "kubernetes");
            }
            Some(new)
        })
        .await;
    match finished {
        Ok(_) => Progress::Gone,
        Err(status) if status.code == 404 => Progress::Gone,
        Err(status) => {
            tracing::warn!(namespace, error = %status, "cannot finish a namespace");
            Progress::Again
        }
    }
}

async fn delete_all(actor: &Actor, kind: &Arc<Kind>, namespace: &str, left: &mut Left) {
    let server = actor.server();
    let prefix = format!("{namespace}/");
    let snapshot = server.store.snapshot(&kind.collection);
    let entries: Vec<_> = within(&snapshot, &prefix).cloned().collect();
    let options =
        DeleteOptions { propagation_policy: Some("Background".to_owned()), ..DeleteOptions::default() };
    for entry in entries {
        let (_, name) = object::split_key(&entry.name);
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

/// Sets conditions, keeping the time of those whose status is the same as before.
fn with_conditions(old: &Value, conditions: &[Value], now: Timestamp) -> Value {
    let mut new = old.clone();
    for condition in conditions {
        conditions::set(pointer::object_at(&mut new, "status"), condition.clone(), &second(now));
    }
    new
}
