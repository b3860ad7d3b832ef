//! The garbage collector: deletes owned objects when their owners are gone.
//!
//! The graph is built only from the heads of stored objects. Before anything is deleted, the live owner is looked up again, and
//! the deletion is bound to the version that was checked. An object that was merely not seen never counts as gone, and an object
//! that lost or changed its owners meanwhile is checked again.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::handlers::delete::{DeleteOptions, Preconditions};
use crate::head::Owner;
use crate::internal::Actor;
use crate::object::{self, Entry};
use crate::registry::{Kind, Registry};
use crate::server::Server;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Where an object is stored.
type Place = (Arc<str>, Box<str>);

#[derive(Default)]
struct Graph {
    /// By uid.
    places: HashMap<Box<str>, Place>,
    /// Uids of the dependents of a uid.
    dependents: HashMap<Box<str>, BTreeSet<Box<str>>>,
    owners: HashMap<Box<str>, Box<[Owner]>>,
}

impl Graph {
    fn put(&mut self, collection: &Arc<str>, entry: &Entry) {
        let uid = entry.head.uid.clone();
        if uid.is_empty() {
            return;
        }
        // Most objects own nothing and have no owner; they cost one entry.
        self.places.insert(uid.clone(), (collection.clone(), entry.name.clone()));
        let before = self.owners.remove(&uid).unwrap_or_default();
        if !before.is_empty() {
            let now: HashSet<&str> = entry.head.owners.iter().map(|owner| &*owner.uid).collect();
            for owner in before.iter().filter(|owner| !now.contains(&*owner.uid)) {
                self.forget(&owner.uid, &uid);
            }
        }
        for owner in &entry.head.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        if !entry.head.owners.is_empty() {
            self.owners.insert(uid, entry.head.owners.clone());
        }
    }

    /// Returns the dependents and owners of a deleted object.
    fn remove(&mut self, uid: &str) -> (Vec<Box<str>>, Vec<Box<str>>) {
        self.places.remove(uid);
        let owners = self.owners.remove(uid).unwrap_or_default();
        for owner in &owners {
            self.forget(&owner.uid, uid);
        }
        let dependents =
            self.dependents.get(uid).map(|uids| uids.iter().cloned().collect()).unwrap_or_default();
        (dependents, owners.iter().map(|owner| owner.uid.clone()).collect())
    }

    /// Removes a dependent from its owner. Clients can name any owner, so an owner without dependents leaves no entry.
    fn forget(&mut self, owner: &str, dependent: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    fn dependents_of(&self, uid: &str) -> Vec<Box<str>> {
        self.dependents.get(uid).map(|uids| uids.iter().cloned().collect()).unwrap_or_default()
    }
}

/// Objects that could not be collected: how often, and when to try again. Changes by other clients do not move that time forward.
/// Otherwise a client with many undeletable objects would cause an attempt for all of them at every write to the store.
#[derive(Default)]
struct Retries(HashMap<Box<str>, (u32, Instant)>);

impl Retries {
    fn failed(&mut self, uid: Box<str>, now: Instant) {
        let (count, due) = self.0.entry(uid).or_insert((0, now));
        *count = count.saturating_add(1);
        let wait = Duration::from_millis(50u64 << (*count).min(10));
        *due = now.checked_add(wait).unwrap_or(now);
    }

    fn succeeded(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, due)| *due).min()
    }

    fn due(&self, now: Instant) -> Vec<Box<str>> {
        self.0.iter().filter(|(_, (_, due))| *due <= now).map(|(uid, _)| uid.clone()).collect()
    }
}

pub(super) async fn run(server: Arc<Server>) {
    let collector = Collector {
        actor: Actor::new(&server, "system:serviceaccount:kube-system:generic-garbage-collector").relaxed(),
    };
    let Ok(mut watch) = server.store.watch_all(server.store.revision()) else { return };
    let mut graph = Graph::default();
    let mut work: VecDeque<Box<str>> = VecDeque::new();
    for (collection, _) in server.store.collections() {
        if &*collection == "events" {
            continue;
        }
        for entry in server.store.snapshot(&collection).iter() {
            graph.put(&collection, entry);
            if !entry.head.owners.is_empty() || (entry.head.deleting && entry.head.finalizers) {
                work.push_back(entry.head.uid.clone());
            }
        }
    }
    let mut retries = Retries::default();
    loop {
        let mut seen: HashSet<Box<str>> = HashSet::new();
        while let Some(uid) = work.pop_front() {
            if !seen.insert(uid.clone()) {
                continue;
            }
            match collector.process(&graph, &uid).await {
                Ok(()) => retries.succeeded(&uid),
                Err(error) => {
                    tracing::debug!(%uid, %error, "will try again to collect");
                    retries.failed(uid, Instant::now());
                }
            }
        }
        let next = retries.next();
        let batch = tokio::select! {
            batch = watch.next() => batch,
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                work.extend(retries.due(Instant::now()));
                continue;
            }
        };
        let Ok(batch) = batch else { return };
        for event in batch {
            if &*event.collection == "events" {
                continue;
            }
            match (&event.current, &event.previous) {
                (Some(entry), _) => {
                    graph.put(&event.collection, entry);
                    let uid = &entry.head.uid;
                    if !entry.head.owners.is_empty() || (entry.head.deleting && entry.head.finalizers) {
                        work.push_back(uid.clone());
                    }
                    // A dependent that no longer blocks may release its owners.
                    if let Some(previous) = &event.previous {
                        work.extend(previous.head.owners.iter().map(|owner| owner.uid.clone()));
                    }
                }
                (None, Some(previous)) => {
                    let (dependents, owners) = graph.remove(&previous.head.uid);
                    work.extend(dependents);
                    work.extend(owners);
                }
                (None, None) => {}
            }
        }
    }
}

struct Collector {
    actor: Actor,
}

/// The state of an owner.
enum State {
    Solid,
    Absent,
    /// It is being deleted and waits for its dependents.
    Waiting,
}

impl Collector {
    fn server(&self) -> &Arc<Server> {
        self.actor.server()
    }

    /// Checks one object: does it wait for its dependents, and do its owners still exist?
    async fn process(&self, graph: &Graph, uid: &str) -> Result<(), String> {
        let Some((collection, name)) = graph.places.get(uid) else { return Ok(()) };
        let Some(entry) = self.server().store.get(collection, name).filter(|entry| *entry.head.uid == *uid)
        else {
            return Ok(());
        };
        let registry = self.server().registry.load_full();
        let Some(kind) = kind_of(&registry, collection) else { return Ok(()) };
        if entry.head.deleting && entry.head.finalizers {
            let finalizers = self.finalizers(&kind, &entry)?;
            if finalizers.iter().any(|finalizer| finalizer == ORPHAN) {
                return self.orphan_dependents(graph, &registry, &kind, &entry).await;
            }
            if finalizers.iter().any(|finalizer| finalizer == FOREGROUND) {
                self.delete_in_foreground(graph, &registry, &kind, &entry).await?;
            }
        }
        if entry.head.owners.is_empty() {
            return Ok(());
        }
        self.check_owners(graph, &registry, &kind, &entry).await
    }

    async fn check_owners(
        &self,
        graph: &Graph,
        registry: &Registry,
        kind: &Arc<Kind>,
        entry: &Arc<Entry>,
    ) -> Result<(), String> {
        let (namespace, name) = object::split_key(&entry.name);
        let mut gone: Vec<Box<str>> = Vec::new();
        let mut waiting: Vec<Box<str>> = Vec::new();
        let mut solid = false;
        for owner in &entry.head.owners {
            match self.state(registry, namespace, owner) {
                Some(State::Solid) => solid = true,
                Some(State::Absent) => gone.push(owner.uid.clone()),
                Some(State::Waiting) => waiting.push(owner.uid.clone()),
                // The kind is not served now, so the owner's state is unknown and nothing happens.
                None => return Ok(()),
            }
        }
        if gone.is_empty() && waiting.is_empty() {
            return Ok(());
        }
        let uid = entry.head.uid.to_string();
        if solid {
            let dead: Vec<Box<str>> = gone.into_iter().chain(waiting).collect();
            return self.drop_owners(kind, namespace, name, &uid, &dead).await;
        }
        if entry.head.deleting && entry.head.finalizers {
            return Ok(());
        }
        let has_dependents = !graph.dependents_of(&entry.head.uid).is_empty();
        let policy = if !waiting.is_empty() && has_dependents {
            self.break_cycle(graph, registry, entry).await?;
            "Foreground"
        } else {
            let finalizers = self.finalizers(kind, entry)?;
            if finalizers.iter().any(|finalizer| finalizer == ORPHAN) {
                "Orphan"
            } else if finalizers.iter().any(|finalizer| finalizer == FOREGROUND) {
                "Foreground"
            } else {
                "Background"
            }
        };
        self.delete(kind, entry, policy).await
    }

    /// A dependent that itself waits for this object must not block it: remove its block.
    async fn break_cycle(&self, graph: &Graph, registry: &Registry, entry: &Entry) -> Result<(), String> {
        for dependent in graph.dependents_of(&entry.head.uid) {
            let Some((kind, found)) = self.find(graph, registry, &dependent) else { continue };
            let waits =
                found.head.deleting && self.finalizers(&kind, &found)?.iter().any(|f| f == FOREGROUND);
            if waits {
                let (namespace, name) = object::split_key(&found.name);
                self.edit_owners(&kind, namespace, name, &dependent, |owners| {
                    for owner in owners.iter_mut() {
                        if owner["uid"].as_str() == Some(&*entry.head.uid) {
                            owner["blockOwnerDeletion"] = json!(false);
                        }
                    }
                })
                .await?;
            }
        }
        Ok(())
    }

    fn state(&self, registry: &Registry, namespace: &str, owner: &Owner) -> Option<State> {
        let gvk = apimachinery::gvk::Gvk::from_api_version(&owner.api_version, &owner.kind);
        if registry.remotes().iter().any(|remote| remote.group == gvk.group) {
            // Another server stores it: its absence here means nothing.
            return None;
        }
        let kind = registry.find_kind(&gvk.group, &gvk.version, &gvk.kind).or_else(|| {
            registry.kinds().find(|kind| kind.gvk.group == gvk.group && kind.gvk.kind == gvk.kind)
        })?;
        if kind.namespaced && namespace.is_empty() {
            // A cluster-scoped object cannot belong to a namespaced one; upstream reports this and leaves the object alone.
            return None;
        }
        let key = object::join_key(if kind.namespaced { namespace } else { "" }, &owner.name);
        let Some(entry) =
            self.server().store.get(&kind.collection, &key).filter(|entry| entry.head.uid == owner.uid)
        else {
            return Some(State::Absent);
        };
        // If an owner cannot be read, its state is unknown, so nothing happens.
        let waits = entry.head.deleting
            && entry.head.finalizers
            && self.finalizers(kind, &entry).ok()?.iter().any(|f| f == FOREGROUND);
        Some(if waits { State::Waiting } else { State::Solid })
    }

    fn finalizers(&self, kind: &Kind, entry: &Entry) -> Result<Vec<String>, String> {
        let object = self.server().read(kind, entry).map_err(|status| status.message)?;
        Ok(object.finalizers())
    }

    fn find(&self, graph: &Graph, registry: &Registry, uid: &str) -> Option<(Arc<Kind>, Arc<Entry>)> {
        let (collection, name) = graph.places.get(uid)?;
        let entry = self.server().store.get(collection, name).filter(|entry| *entry.head.uid == *uid)?;
        Some((kind_of(registry, collection)?, entry))
    }

    /// Removes the owner from its dependents, then releases it.
    async fn orphan_dependents(
        &self,
        graph: &Graph,
        registry: &Registry,
        kind: &Arc<Kind>,
        owner: &Entry,
    ) -> Result<(), String> {
        for dependent in graph.dependents_of(&owner.head.uid) {
            let Some((kind, entry)) = self.find(graph, registry, &dependent) else { continue };
            let (namespace, name) = object::split_key(&entry.name);
            self.drop_owners(&kind, namespace, name, &dependent, std::slice::from_ref(&owner.head.uid))
                .await?;
        }
        self.remove_finalizer(kind, owner, ORPHAN).await
    }

    /// Deletes the dependents; the owner is released when no blocking one is left.
    async fn delete_in_foreground(
        &self,
        graph: &Graph,
        registry: &Registry,
        kind: &Arc<Kind>,
        owner: &Entry,
    ) -> Result<(), String> {
        let mut blocking = false;
        for dependent in graph.dependents_of(&owner.head.uid) {
            let Some((kind, entry)) = self.find(graph, registry, &dependent) else { continue };
            blocking |=
                entry.head.owners.iter().any(|known| known.uid == owner.head.uid && known.block_deletion);
            if !entry.head.deleting {
                Box::pin(self.check_owners(graph, registry, &kind, &entry)).await?;
            }
            let _ = kind;
        }
        let still = blocking
            && graph.dependents_of(&owner.head.uid).iter().any(|dependent| {
                self.find(graph, registry, dependent).is_some_and(|(_, entry)| {
                    entry.head.owners.iter().any(|known| known.uid == owner.head.uid && known.block_deletion)
                })
            });
        if still {
            return Ok(());
        }
        self.remove_finalizer(kind, owner, FOREGROUND).await
    }

    async fn remove_finalizer(&self, kind: &Arc<Kind>, entry: &Entry, finalizer: &str) -> Result<(), String> {
        let (namespace, name) = object::split_key(&entry.name);
        let uid = entry.head.uid.to_string();
        let result = self
            .actor
            .update(kind, namespace, name, "", |old| {
                if old.uid() != uid {
                    return None;
                }
                let mut new = old.clone();
                let finalizers = old.finalizers().into_iter().filter(|own| own != finalizer).collect();
                new.set_finalizers(finalizers);
                Some(new)
            })
            .await;
        ignore_missing(result.map(|_| ()))
    }

    async fn drop_owners(
        &self,
        kind: &Arc<Kind>,
        namespace: &str,
        name: &str,
        uid: &str,
        dead: &[Box<str>],
    ) -> Result<(), String> {
        let dead: HashSet<&str> = dead.iter().map(|uid| &**uid).collect();
        self.edit_owners(kind, namespace, name, uid, |owners| {
            owners.retain(|owner| !owner["uid"].as_str().is_some_and(|uid| dead.contains(uid)));
        })
        .await
    }

    async fn edit_owners(
        &self,
        kind: &Arc<Kind>,
        namespace: &str,
        name: &str,
        uid: &str,
        edit: impl Fn(&mut Vec<Value>) + Send + Sync,
    ) -> Result<(), String> {
        let result = self
            .actor
            .update(kind, namespace, name, "", |old| {
                if old.uid() != uid {
                    return None;
                }
                let mut new = old.clone();
                let metadata = new.metadata_mut();
                if let Some(Value::Array(owners)) = metadata.get_mut("ownerReferences") {
                    edit(owners);
                    if owners.is_empty() {
                        metadata.remove("ownerReferences");
                    }
                }
                Some(new)
            })
            .await;
        ignore_missing(result.map(|_| ()))
    }

    /// Deletes the object that was checked. A conflict is an error: the object must be checked again.
    async fn delete(&self, kind: &Arc<Kind>, entry: &Entry, policy: &str) -> Result<(), String> {
        let (namespace, name) = object::split_key(&entry.name);
        let options = DeleteOptions {
            propagation_policy: Some(policy.to_owned()),
            preconditions: Some(Preconditions {
                uid: Some(entry.head.uid.to_string()),
                resource_version: Some(entry.modified.to_string()),
            }),
            ..DeleteOptions::default()
        };
        let result = self.actor.delete(kind, namespace, name, &options).await;
        ignore_missing(result.map(|_| ()))
    }
}

fn ignore_missing(result: Result<(), apimachinery::status::Status>) -> Result<(), String> {
    match result {
        Err(status) if status.code == 404 => Ok(()),
        other => other.map_err(|status| status.message),
    }
}

fn kind_of(registry: &Registry, collection: &str) -> Option<Arc<Kind>> {
    let mut kinds = registry.kinds().filter(|kind| &*kind.collection == collection && !kind.rules.computed);
    let first = kinds.next()?;
    if first.gvk == first.storage {
        return Some(first.clone());
    }
    Some(kinds.find(|kind| kind.gvk == kind.storage).unwrap_or(first).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_has_lost_its_owners_meanwhile_is_not_deleted() {
        let options = crate::Options { collect_garbage: false, ..crate::Options::default() };
        let handle = crate::start(options).await.expect("the server starts");
        let server = &handle.server;
        let collector = Collector { actor: Actor::new(server, "test") };
        let registry = server.registry.load_full();
        let kind = registry.find("", "v1", "configmaps").expect("it is native");
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "default", "ownerReferences": [owner]}});
        collector.actor.create(kind, "default", map).await.expect("it is new");
        let seen = server.store.get("configmaps", "default/a").expect("it is there");
        collector.drop_owners(kind, "default", "a", &seen.head.uid, &["gone".into()]).await.expect("changed");

        let refused = collector.delete(kind, &seen, "Background").await;
        let now = server.store.get("configmaps", "default/a").expect("nobody owns it any more");
        assert!(refused.is_err(), "it is looked at again");
        let mut graph = Graph::default();
        graph.put(&kind.collection, &now);
        assert_eq!(collector.process(&graph, &now.head.uid).await, Ok(()));
        collector.delete(kind, &now, "Background").await.expect("this is what is there");
        assert!(server.store.get("configmaps", "default/a").is_none());
        handle.stop().await;
    }

    fn entry(uid: &str, owners: &[&str]) -> Entry {
        let owner = |uid: &&str| json!({"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": uid});
        let owners: Vec<Value> = owners.iter().map(owner).collect();
        let value =
            bytes::Bytes::from(json!({"metadata": {"uid": uid, "ownerReferences": owners}}).to_string());
        let head = <crate::head::Head as store::Head>::parse("configmaps", "default/a", &value);
        Entry { name: "default/a".into(), created: 1, modified: 1, expires_ms: None, value, head }
    }

    #[test]
    fn nothing_stays_of_owners_that_were_made_up() {
        let (collection, mut graph) = ("configmaps".into(), Graph::default());
        for owners in [["one", "two"], ["two", "three"], ["four", "four"]] {
            graph.put(&collection, &entry("a", &owners));
        }
        assert_eq!(graph.dependents.keys().map(|uid| &**uid).collect::<Vec<_>>(), ["four"]);
        graph.put(&collection, &entry("a", &[]));
        assert!(graph.dependents.is_empty() && graph.owners.is_empty(), "{:?}", graph.dependents);
    }

    #[test]
    fn what_cannot_be_collected_is_tried_again_in_its_own_time() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        retries.failed("a".into(), now);
        assert!(retries.due(now).is_empty(), "others may change what they like meanwhile");
        let first = retries.next().expect("it waits");
        assert_eq!(retries.due(first), vec![Box::<str>::from("a")]);
        (0..20).for_each(|_| retries.failed("a".into(), now));
        assert_eq!(retries.next(), Some(now + Duration::from_millis(50 << 10)));
        retries.succeeded("a");
        assert_eq!(retries.next(), None);
    }
}
