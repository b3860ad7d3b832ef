//! CustomResourceDefinitions: serves the kinds that they define, writes their conditions, and removes all instances before a
//! definition is removed.
//!
//! A definition is served before its `Established` condition can be read: the registry is swapped first, the condition is written
//! afterwards.
//!
//! Every server on an etcd does this, and each may lag behind the others, or may not have served a definition before it is
//! deleted. So the instances of a dying definition are read from its collection, after memory has caught up, and every write is
//! bound to the object that was read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::conditions;
use apimachinery::crd::{self, Condition, Naming};
use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::bootstrap::ensure;
use crate::clock;
use crate::handlers::delete::{DeleteOptions, Preconditions};
use crate::handlers::write::second;
use crate::internal::Actor;
use crate::object;
use crate::registry::custom::essence;
use crate::registry::{Custom, Definitions, Kind, Registry};
use crate::server::Server;

pub(crate) const COLLECTION: &str = "apiextensions.k8s.io/customresourcedefinitions";
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// How long a definition that is being deleted remains at least, and how often it is checked until it is empty. So the client
/// that deleted it can see the deletion; upstream takes about as long for its round trips.
const REMOVAL: Duration = Duration::from_millis(200);

/// Serves the stored definitions. Called before the server listens, so that no kind is unknown after a restart.
pub(crate) fn load(server: &Server) {
    let mut definitions = Definitions::new();
    for entry in server.store.snapshot(COLLECTION).iter() {
        let Ok(definition) = serde_json::from_slice::<Value>(&entry.value) else { continue };
        if conditions::is_true(&definition, "Established")
            && let Some(custom) = compile(server, &definition)
        {
            definitions.insert(custom.name.as_str().into(), custom);
        }
    }
    if definitions.is_empty() && server.registry.load().definitions().is_empty() {
        return;
    }
    let next = Arc::new(server.registry.load().with_definitions(definitions));
    let before = server.registry.swap(next.clone());
    end_watches(&before, &next);
}

/// Serves a definition from now on, in addition to the served ones.
fn serve(server: &Server, custom: Arc<Custom>) {
    let before = server.registry.rcu(|registry| {
        let mut definitions = registry.definitions().clone();
        definitions.insert(custom.name.as_str().into(), custom.clone());
        registry.with_definitions(definitions)
    });
    end_watches(&before, &server.registry.load());
}

/// Ends watches whose kind is no longer served as before: their clients list again and see the new form.
fn end_watches(before: &Registry, now: &Registry) {
    for (name, custom) in before.definitions() {
        if !now.definitions().get(name).is_some_and(|now| now.serves_like(custom)) {
            custom.retired.cancel();
        }
    }
}

/// Creates or updates the definitions that are built into the server, and waits until they are served.
pub(crate) async fn install(server: &Arc<Server>, wanted: &[Value]) -> Result<(), Status> {
    let actor = Actor::new(server, "system:apiserver");
    try_join_all(wanted.iter().map(|definition| install_one(&actor, definition))).await?;
    let names = Names::load(server);
    // All at once: writes that wait for the disk together cost one sync. Definitions that were not accepted in the first pass
    // because of others may be accepted in the second.
    for _ in 0..2 {
        let stored: Vec<Box<str>> =
            server.store.snapshot(COLLECTION).iter().map(|entry| entry.name.clone()).collect();
        join_all(stored.iter().map(|name| settle(&actor, &names, name))).await;
    }
    Ok(())
}

async fn install_one(actor: &Actor, definition: &Value) -> Result<(), Status> {
    let server = actor.server();
    ensure(actor, "apiextensions.k8s.io", "v1", "customresourcedefinitions", "", definition.clone()).await?;
    let name = definition.name();
    let registry = server.registry.load_full();
    if let (Some(kind), Some(entry)) = (definition_kind(&registry), server.store.get(COLLECTION, name)) {
        let spec = definition.get("spec").cloned().unwrap_or_default();
        let stored = server.read(&kind, &entry)?;
        if !contains(stored.get("spec").unwrap_or(&Value::Null), &spec) {
            actor
                .update(&kind, "", name, "", |old| {
                    let mut new = old.clone();
                    pointer::set(&mut new, "spec", spec.clone());
                    Some(new)
                })
                .await?;
        }
    }
    Ok(())
}

/// Returns whether `stored` contains everything in `wanted`; it may have defaults in addition.
fn contains(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (Value::Object(stored), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| stored.get(key).is_some_and(|have| contains(have, value)))
        }
        (Value::Array(stored), Value::Array(wanted)) => {
            stored.len() == wanted.len()
                && stored.iter().zip(wanted).all(|(have, value)| contains(have, value))
        }
        (stored, wanted) => stored == wanted,
    }
}

pub(super) async fn run(server: Arc<Server>) {
    // Its writes follow from the definitions, and are repeated if they are lost.
    let actor = Actor::new(&server, "system:apiserver").relaxed();
    let Ok(mut watch) = server.store.watch(COLLECTION, server.store.revision()) else { return };
    let names = Names::load(&server);
    for entry in server.store.snapshot(COLLECTION).iter() {
        settle(&actor, &names, &entry.name).await;
    }
    // A definition that is being emptied is checked again until it is empty.
    let mut next_look: Option<Instant> = None;
    loop {
        let waiting = server.store.snapshot(COLLECTION).iter().any(|entry| entry.head.deleting);
        next_look = waiting.then(|| next_look.unwrap_or_else(|| clock::in_future(REMOVAL)));
        let look = async {
            match next_look {
                Some(when) => tokio::time::sleep_until(when).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            batch = watch.next() => {
                let Ok(batch) = batch else { return };
                for event in batch {
                    match &event.current {
                        Some(entry) => settle(&actor, &names, &entry.name).await,
                        None => {
                            if let Some(entry) = &event.previous {
                                forget(&server, &entry.name);
                                names.forget(&entry.name);
                            }
                            // Names are free again that other definitions may wait for.
                            for name in names.unaccepted() {
                                settle(&actor, &names, &name).await;
                            }
                        }
                    }
                }
            }
            () = look => {
                next_look = None;
                for entry in server.store.snapshot(COLLECTION).iter().filter(|entry| entry.head.deleting) {
                    remove(&actor, &entry.name).await;
                }
            }
        }
    }
}

/// Stops serving a definition, unless it is stored again.
fn forget(server: &Server, name: &str) {
    if server.store.get(COLLECTION, name).is_none() {
        withdraw(server, name);
    }
}

fn withdraw(server: &Server, name: &str) {
    let before = server.registry.rcu(|registry| {
        let mut definitions = registry.definitions().clone();
        definitions.remove(name);
        registry.with_definitions(definitions)
    });
    end_watches(&before, &server.registry.load());
}

/// The definition that holds each name. It is updated incrementally, since definitions are large and each would have to be
/// compared with all others.
#[derive(Default)]
struct Names(Mutex<Index>);

#[derive(Default)]
struct Index {
    /// By name of the definition.
    holders: HashMap<Box<str>, Holder>,
    /// The definitions that hold the name; more than one only if a client wrote that into a status.
    given: HashMap<Name, Vec<Box<str>>>,
}

#[derive(Default)]
struct Holder {
    names: Vec<Name>,
    accepted: bool,
}

/// A name within a group.
type Name = (Box<str>, crd::Space, Box<str>);

impl Names {
    /// Reads the accepted names of all stored definitions.
    fn load(server: &Server) -> Self {
        let names = Self::default();
        for entry in server.store.snapshot(COLLECTION).iter() {
            names.note(&serde_json::from_slice(&entry.value).unwrap_or_default());
        }
        names
    }

    /// Updates the names that a definition holds from its status.
    fn note(&self, definition: &Value) {
        let (name, group) = (definition.name(), group(definition));
        let given = crd::accepted_names(definition).into_iter();
        let holder = Holder {
            names: given.map(|(space, name)| (group.into(), space, name.into())).collect(),
            accepted: conditions::is_true(definition, "NamesAccepted"),
        };
        let mut index = self.0.lock();
        index.forget(name);
        for own in &holder.names {
            index.given.entry(own.clone()).or_default().push(name.into());
        }
        index.holders.insert(name.into(), holder);
    }

    fn forget(&self, name: &str) {
        self.0.lock().forget(name);
    }

    /// Returns the definitions that did not get the names that they request.
    fn unaccepted(&self) -> Vec<Box<str>> {
        let index = self.0.lock();
        let waiting = index.holders.iter().filter(|(_, holder)| !holder.accepted);
        waiting.map(|(name, _)| name.clone()).collect()
    }

    /// Decides which names a definition gets, given the other definitions of its group.
    fn decide(&self, definition: &Value) -> Naming {
        let (own, group) = (definition.name(), group(definition));
        let index = self.0.lock();
        crd::decide_names(definition, |space, name| {
            let holders = index.given.get(&(group.into(), space, name.into()));
            holders.is_some_and(|holders| holders.iter().any(|holder| **holder != *own))
        })
    }
}

impl Index {
    fn forget(&mut self, name: &str) {
        for own in self.holders.remove(name).unwrap_or_default().names {
            if let Some(holders) = self.given.get_mut(&own) {
                holders.retain(|holder| **holder != *name);
                if holders.is_empty() {
                    self.given.remove(&own);
                }
            }
        }
    }
}

fn group(definition: &Value) -> &str {
    definition.pointer("/spec/group").and_then(Value::as_str).unwrap_or("")
}

fn definition_kind(registry: &Registry) -> Option<Arc<Kind>> {
    registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions").cloned()
}

/// Returns a definition as stored, and its kind.
fn read(server: &Server, name: &str) -> Option<(Arc<Kind>, Value)> {
    let kind = definition_kind(&server.registry.load())?;
    let entry = server.store.get(COLLECTION, name)?;
    let definition = server.read_or_warn(&kind, &entry)?;
    Some((kind, definition))
}

/// Marks a deleted definition as terminating, and keeps it until its instances are gone.
pub(crate) fn begin_deletion(definition: &mut Value, now: Timestamp) {
    let mut finalizers = definition.finalizers();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
        definition.set_finalizers(finalizers);
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(&mut definition["status"], terminating("True", "InstanceDeletionPending", message), now);
}

fn terminating(status: &'static str, reason: &str, message: &str) -> Condition {
    Condition { kind: "Terminating", status, reason: reason.to_owned(), message: message.to_owned() }
}

/// Updates the registry and a definition's status to match its spec.
async fn settle(actor: &Actor, names: &Names, name: &str) {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = definition_kind(&registry) else { return };
    let Some(entry) = server.store.get(COLLECTION, name) else { return forget(server, name) };
    let Some(definition) = server.read_or_warn(&kind, &entry) else { return };
    if entry.head.deleting {
        return empty(actor, &kind, &definition).await;
    }
    names.note(&definition);
    let naming = names.decide(&definition);
    let convertible = conditions::is_true(&definition, "Established") || has_readable_authority(&definition);
    let accepted = naming.conditions[0].status == "True" && convertible;
    let now = Timestamp::now();
    let with_status = |old: &Value| -> Option<Value> {
        let mut new = old.clone();
        if !new.has_finalizer(FINALIZER) {
            // The status endpoint is used, because it also takes finalizers of native kinds.
            let mut finalizers = new.finalizers();
            finalizers.push(FINALIZER.to_owned());
            new.set_finalizers(finalizers);
        }
        let status = pointer::object_at(&mut new, "status");
        pointer::set(status, "acceptedNames", naming.accepted.clone());
        let [names_accepted, established] = naming.conditions.clone();
        set_condition(status, names_accepted, now);
        // If it is accepted, it is already served when this is written, so no installation is needed.
        let established = match (accepted, convertible) {
            (true, _) => crd::established(),
            (false, true) => established,
            (false, false) => Condition {
                kind: "Established",
                status: "False",
                reason: "InvalidCABundle".to_owned(),
                message: "The conversion webhook CABundle is invalid".to_owned(),
            },
        };
        set_condition(status, established, now);
        if let Some(approval) = crd::approval_condition(old) {
            set_condition(status, approval, now);
        }
        crd::record_storage_version(&mut new);
        (new != *old).then_some(new)
    };
    let served = registry.definitions().get(name);
    let established = accepted || conditions::is_true(&definition, "Established");
    if established {
        let unchanged = served.is_some_and(|custom| custom.essence == essence(&definition));
        if !unchanged && let Some(custom) = compile(server, &definition) {
            serve(server, custom);
        }
    }
    let Some(decided) = with_status(&definition) else { return };
    // The next definition must not get the same names.
    names.note(&decided);
    if let Err(status) = actor.update(&kind, "", name, "status", with_status).await {
        tracing::warn!(object = name, error = %status, "cannot write the status of a definition");
    }
}

/// Returns whether the authority for the conversion webhook, if there is one, can be read. It does not check whether it is the
/// right one.
fn has_readable_authority(definition: &Value) -> bool {
    use base64::Engine;
    use rustls::pki_types::pem::PemObject;
    let bundle = definition.pointer("/spec/conversion/webhook/clientConfig/caBundle");
    let Some(bundle) = bundle.and_then(Value::as_str).filter(|bundle| !bundle.is_empty()) else {
        return true;
    };
    let Ok(pem) = base64::engine::general_purpose::STANDARD.decode(bundle) else { return false };
    let mut certificates = rustls::pki_types::CertificateDer::pem_slice_iter(&pem).flatten();
    certificates.any(|certificate| x509_parser::parse_x509_certificate(&certificate).is_ok())
}

fn compile(server: &Server, definition: &Value) -> Option<Arc<Custom>> {
    let registry = server.registry.load();
    let served = registry.definitions().get(definition.name());
    if let Some(served) = served.filter(|served| served.essence == essence(definition)) {
        return Some(served.clone());
    }
    match Custom::compile(definition) {
        Ok(mut custom) => {
            custom.connects = server.extensions.connects(&custom.name);
            if let Some(served) = served {
                custom.succeed(served);
            }
            Some(Arc::new(custom))
        }
        Err(error) => {
            tracing::error!(%error, "cannot serve a definition");
            None
        }
    }
}

/// Returns the collection of a definition's instances, whether the definition is served or not.
pub(super) fn collection(name: &str) -> String {
    let (plural, group) = name.split_once('.').unwrap_or((name, ""));
    format!("{group}/{plural}")
}

/// Returns the stored instances of a definition, whether it is served or not. A native collection never belongs to a definition,
/// whatever its name is.
fn held(server: &Server, name: &str) -> Vec<Arc<object::Entry>> {
    let collection = collection(name);
    let registry = server.registry.load();
    let native = |kind: &Arc<Kind>| kind.custom().is_none() && *kind.collection == *collection;
    if registry.kinds().any(native) {
        return Vec::new();
    }
    server.store.snapshot(&collection).iter().cloned().collect()
}

/// Returns the instances of a definition, if it is served.
fn instances_of(server: &Server, name: &str) -> Option<Arc<Kind>> {
    let registry = server.registry.load();
    registry.kinds().find(|kind| kind.custom().is_some_and(|custom| custom.name == name)).cloned()
}

/// Deletes the instances of a dying definition.
async fn empty(actor: &Actor, kind: &Arc<Kind>, definition: &Value) {
    let server = actor.server();
    let name = definition.name();
    if !definition.has_finalizer(FINALIZER) {
        return;
    }
    let held = held(server, name);
    let registry = server.registry.load_full();
    let outdated = match registry.definitions().get(name) {
        Some(custom) => !custom.terminating,
        // Another server has served it. Objects of a kind that is not served cannot be deleted.
        None => !held.is_empty(),
    };
    // Serve it as terminating first, so that no new instances are created while the old ones are deleted.
    if outdated && let Some(custom) = compile(server, definition) {
        serve(server, custom);
    }
    let words = "CustomResource deletion is in progress";
    let progress = terminating("True", "InstanceDeletionInProgress", words);
    write_removal(actor, kind, definition, &progress, false).await;
    if let Some(instances) = instances_of(server, name) {
        for entry in &held {
            let (namespace, instance) = object::split_key(&entry.name);
            let uid = Some(entry.head.uid.to_string());
            let preconditions = Some(Preconditions { uid, resource_version: None });
            let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
            // Instances that cannot be deleted now are tried again.
            let _ = actor.delete(&instances, namespace, instance, &options).await;
        }
    }
}

/// Removes a dying definition if it has no instances left; otherwise deletes them again.
async fn remove(actor: &Actor, name: &str) {
    let server = actor.server();
    if let Err(error) = server.store.catch_up().await {
        tracing::debug!(object = name, %error, "cannot see what a definition holds");
        return;
    }
    let Some((kind, definition)) = read(server, name).filter(|(_, found)| found.is_deleting()) else {
        return;
    };
    let (kind, definition) = (&kind, &definition);
    if !held(server, name).is_empty() {
        return empty(actor, kind, definition).await;
    }
    let gone = if conditions::is_true(definition, "Established") {
        terminating("False", "InstanceDeletionCompleted", "removed all instances")
    } else {
        terminating("False", "NeverEstablished", "resource was never established")
    };
    crate::aggregation::local::unregister(actor).await;
    if definition.finalizers() == [FINALIZER] {
        // A client that sees that the definition is gone must not find its kind any more.
        withdraw(server, name);
    }
    write_removal(actor, kind, definition, &gone, true).await;
}

/// Writes the progress of the removal of a definition. When it is complete, our finalizer is removed.
async fn write_removal(
    actor: &Actor,
    kind: &Arc<Kind>,
    definition: &Value,
    condition: &Condition,
    done: bool,
) {
    let (name, now) = (definition.name(), Timestamp::now());
    let result = actor
        .update(kind, "", name, "status", |old| {
            let mut new = old.clone();
            let mut finalizers = new.finalizers();
            let same = old.uid() == definition.uid() && old.is_deleting();
            if !same || !finalizers.iter().any(|own| own == FINALIZER) {
                return None;
            }
            set_condition(pointer::object_at(&mut new, "status"), condition.clone(), now);
            if done {
                finalizers.retain(|own| own != FINALIZER);
                new.set_finalizers(finalizers);
            }
            (new != *old).then_some(new)
        })
        .await;
    if let Err(status) = result {
        tracing::debug!(object = name, error = %status, "cannot finish a definition");
    }
}

fn set_condition(status: &mut Value, wanted: Condition, now: Timestamp) {
    let wanted = conditions::condition(wanted.kind, wanted.status, &wanted.reason, wanted.message);
    conditions::set(status, wanted, &second(now));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition() -> Value {
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "pandas.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "pandas", "singular": "panda", "kind": "Panda", "listKind": "PandaList"}, "versions": [version]}})
    }

    #[tokio::test]
    async fn a_definition_waits_for_its_instances_wherever_they_were_served() {
        let handle = crate::start(crate::Options::default()).await.expect("the server starts");
        let (server, actor) = (&handle.server, Actor::new(&handle.server, "test"));
        let name = "pandas.example.com";
        install(server, &[definition()]).await.expect("it is new");
        let pandas = instances_of(server, name).expect("it is served");
        let held = json!({"apiVersion": "example.com/v1", "kind": "Panda",
            "metadata": {"name": "a", "finalizers": ["example.com/held"]}});
        actor.create(&pandas, "", held).await.expect("it is new");

        // It is deleted before it is served here.
        withdraw(server, name);
        let kind = definition_kind(&server.registry.load()).expect("it is native");
        actor.delete(&kind, "", name, &DeleteOptions::default()).await.expect("it is there");
        remove(&actor, name).await;
        assert!(read(server, name).is_some_and(|(_, found)| found.has_finalizer(FINALIZER)));
        let panda = server.store.get("example.com/pandas", "a").expect("its finalizer holds it");
        assert!(panda.head.deleting, "it is told to go");

        let released = |old: &Value| {
            let mut new = old.clone();
            new.set_finalizers(Vec::new());
            Some(new)
        };
        actor.update(&pandas, "", "a", "", released).await.expect("it is there");
        remove(&actor, name).await;
        assert!(server.store.get(COLLECTION, name).is_none(), "nothing is left of it");
        handle.stop().await;
    }

    #[tokio::test]
    async fn a_definition_that_was_made_anew_is_not_finished_for_the_one_before() {
        let handle = crate::start(crate::Options::default()).await.expect("the server starts");
        let (server, actor) = (&handle.server, Actor::new(&handle.server, "test"));
        install(server, &[definition()]).await.expect("it is new");
        let (kind, new) = read(server, "pandas.example.com").expect("it is there");
        let mut seen = new.clone();
        seen["metadata"]["uid"] = json!("another");
        write_removal(&actor, &kind, &seen, &terminating("False", "Done", ""), true).await;
        let (_, after) = read(server, "pandas.example.com").expect("it is there");
        assert!(after.has_finalizer(FINALIZER));
        handle.stop().await;
    }
}
