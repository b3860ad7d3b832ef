//! CustomResourceDefinitions: serves what they define, says so in their conditions, and removes all instances before
//! one goes.
//!
//! A definition is served from the moment its `Established` condition can be read: the registry is swapped first,
//! the condition written after.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::crd::{self, Condition, Naming};
use apimachinery::status::Status;
use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::bootstrap::ensure;
use crate::handlers::delete::DeleteOptions;
use crate::handlers::write::second;
use crate::internal::Actor;
use crate::object;
use crate::registry::custom::essence;
use crate::registry::{Custom, Kind, Registry};
use crate::server::Server;

pub(crate) const COLLECTION: &str = "apiextensions.k8s.io/customresourcedefinitions";
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Serves what is stored. Called before the server listens, so that nothing is unknown for a moment after a restart.
pub(crate) fn load(server: &Server) {
    let mut definitions = HashMap::new();
    for entry in server.store.snapshot(COLLECTION).iter() {
        let Ok(definition) = serde_json::from_slice::<Value>(&entry.value) else { continue };
        if crd::is_true(&definition, "Established")
            && let Some(custom) = compile(server, &definition)
        {
            definitions.insert(custom.name.clone(), custom);
        }
    }
    if definitions.is_empty() && server.registry.load().definitions().is_empty() {
        return;
    }
    let next = server.registry.load().with_definitions(definitions);
    server.registry.store(Arc::new(next));
}

/// Serves a definition from now on, beside those that are served already.
fn serve(server: &Server, custom: Arc<Custom>) {
    server.registry.rcu(|registry| {
        let mut definitions = registry.definitions().clone();
        definitions.insert(custom.name.clone(), custom.clone());
        registry.with_definitions(definitions)
    });
}

/// Creates or updates the definitions that come with the server, and waits until they are served.
pub(crate) async fn install(server: &Arc<Server>, wanted: &[Value]) -> Result<(), Status> {
    let actor = Actor::new(server, "system:apiserver");
    try_join_all(wanted.iter().map(|definition| install_one(&actor, definition))).await?;
    // All together: writes that wait for the disk together cost one sync. What was not accepted because of another one
    // in the first pass may be in the second.
    for _ in 0..2 {
        let names: Vec<Box<str>> =
            server.store.snapshot(COLLECTION).iter().map(|entry| entry.name.clone()).collect();
        join_all(names.iter().map(|name| settle(&actor, name))).await;
    }
    Ok(())
}

async fn install_one(actor: &Actor, definition: &Value) -> Result<(), Status> {
    let server = actor.server();
    ensure(actor, "apiextensions.k8s.io", "v1", "customresourcedefinitions", "", definition.clone()).await?;
    let name = object::meta_str(definition, "name");
    let registry = server.registry.load_full();
    if let (Some(kind), Some(entry)) = (definition_kind(&registry), server.store.get(COLLECTION, name)) {
        let spec = definition.get("spec").cloned().unwrap_or_default();
        let stored = server.read(&kind, &entry);
        if !contains(&stored["spec"], &spec) {
            actor
                .update(&kind, "", name, "", |old| {
                    let mut new = old.clone();
                    new["spec"] = spec.clone();
                    Some(new)
                })
                .await?;
        }
    }
    Ok(())
}

/// Says whether everything in `wanted` stands in `stored`, which may have defaults besides.
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
    let actor = Actor::new(&server, "system:apiserver");
    let Ok(mut watch) = server.store.watch(COLLECTION, server.store.revision()) else { return };
    for entry in server.store.snapshot(COLLECTION).iter() {
        settle(&actor, &entry.name).await;
    }
    // A definition that is being emptied is looked at again until it is empty.
    loop {
        let waiting = server.store.snapshot(COLLECTION).iter().any(|entry| entry.head.deleting);
        tokio::select! {
            batch = watch.next() => {
                let Ok(batch) = batch else { return };
                for event in batch {
                    match &event.current {
                        Some(entry) => settle(&actor, &entry.name).await,
                        None => {
                            load(&server);
                            // Names are free again that others may have waited for.
                            for name in unaccepted(&server) {
                                settle(&actor, &name).await;
                            }
                        }
                    }
                }
            }
            () = tokio::time::sleep(std::time::Duration::from_millis(200)), if waiting => {
                for entry in server.store.snapshot(COLLECTION).iter().filter(|entry| entry.head.deleting) {
                    settle(&actor, &entry.name).await;
                }
            }
        }
    }
}

fn unaccepted(server: &Server) -> Vec<Box<str>> {
    let definitions = server.store.snapshot(COLLECTION);
    let waits = |value: &[u8]| {
        serde_json::from_slice::<Value>(value).is_ok_and(|crd| !crd::is_true(&crd, "NamesAccepted"))
    };
    definitions.iter().filter(|entry| waits(&entry.value)).map(|entry| entry.name.clone()).collect()
}

fn definition_kind(registry: &Registry) -> Option<Arc<Kind>> {
    registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions").cloned()
}

/// Brings what is served and what a definition's status says into step with its spec.
async fn settle(actor: &Actor, name: &str) {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = definition_kind(&registry) else { return };
    let Some(entry) = server.store.get(COLLECTION, name) else { return load(server) };
    let definition = server.read(&kind, &entry);
    if entry.head.deleting {
        return remove(actor, &kind, &definition).await;
    }
    let naming = names_of(server, &definition);
    let convertible = crd::is_true(&definition, "Established") || has_readable_authority(&definition);
    let accepted = naming.conditions[0].status == "True" && convertible;
    let now = Timestamp::now();
    let with_status = |old: &Value| -> Option<Value> {
        let mut new = old.clone();
        if !object::finalizers(&new).iter().any(|finalizer| finalizer == FINALIZER) {
            // Written through the status endpoint, which takes finalizers of native kinds.
            let mut finalizers = object::finalizers(&new);
            finalizers.push(FINALIZER.to_owned());
            object::set_finalizers(&mut new, finalizers);
        }
        let status = &mut new["status"];
        status["acceptedNames"] = naming.accepted.clone();
        let [names_accepted, established] = naming.conditions.clone();
        set_condition(status, names_accepted, now);
        // If accepted, it is served by the time this is written, so that there is nothing to install.
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
    let established = accepted || crd::is_true(&definition, "Established");
    if established {
        let unchanged = served.is_some_and(|custom| custom.essence == essence(&definition));
        if !unchanged && let Some(custom) = compile(server, &definition) {
            serve(server, custom);
        }
    }
    if with_status(&definition).is_some()
        && let Err(status) = actor.update(&kind, "", name, "status", with_status).await
    {
        tracing::warn!(object = name, error = %status, "cannot write the status of a definition");
    }
}

/// Says whether the authority for the conversion webhook, if there is one, can be read. It is not asked whether it is
/// the right one.
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
    match Custom::compile(definition) {
        Ok(mut custom) => {
            custom.connects = server.extensions.connects(&custom.name);
            Some(Arc::new(custom))
        }
        Err(error) => {
            tracing::error!(%error, "cannot serve a definition");
            None
        }
    }
}

/// Deletes the instances of a dying definition; lets it go when none is left.
async fn remove(actor: &Actor, kind: &Arc<Kind>, definition: &Value) {
    let server = actor.server();
    let name = object::meta_str(definition, "name").to_owned();
    if !object::finalizers(definition).iter().any(|finalizer| finalizer == FINALIZER) {
        return;
    }
    let registry = server.registry.load_full();
    // Serve it as terminating first, so that nothing new comes while the old goes.
    if registry.definitions().get(&name).is_some_and(|custom| !custom.terminating)
        && let Some(custom) = compile(server, definition)
    {
        serve(server, custom);
    }
    let registry = server.registry.load_full();
    let instances =
        registry.kinds().find(|kind| kind.custom().is_some_and(|custom| custom.name == name)).cloned();
    let mut left = 0;
    if let Some(instances) = &instances {
        for entry in server.store.snapshot(&instances.collection).iter() {
            let (namespace, instance) = object::split_key(&entry.name);
            let _ = actor.delete(instances, namespace, instance, &DeleteOptions::default()).await;
        }
        left = server.store.snapshot(&instances.collection).len();
    }
    let now = Timestamp::now();
    let finished = left == 0;
    if finished {
        crate::aggregation::local::unregister(actor).await;
    }
    let result = actor
        .update(kind, "", &name, "status", |old| {
            let mut new = old.clone();
            let (status, reason, message) = if finished {
                ("False", "InstanceDeletionCompleted", "removed all instances")
            } else {
                ("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
            };
            let terminating = Condition {
                kind: "Terminating",
                status,
                reason: reason.to_owned(),
                message: message.to_owned(),
            };
            set_condition(&mut new["status"], terminating, now);
            if finished {
                let finalizers =
                    object::finalizers(&new).into_iter().filter(|own| own != FINALIZER).collect();
                object::set_finalizers(&mut new, finalizers);
            }
            (new != *old).then_some(new)
        })
        .await;
    if let Err(status) = result {
        tracing::debug!(object = name, error = %status, "cannot finish a definition");
    }
    if finished {
        load(server);
    }
}

/// Decides which names a definition gets, beside the other ones of its group.
fn names_of(server: &Server, definition: &Value) -> Naming {
    let name = object::meta_str(definition, "name");
    let group = definition.pointer("/spec/group");
    let others: Vec<Value> = server
        .store
        .snapshot(COLLECTION)
        .iter()
        .filter(|entry| &*entry.name != name)
        .filter_map(|entry| serde_json::from_slice::<Value>(&entry.value).ok())
        .filter(|other| other.pointer("/spec/group") == group)
        .collect();
    crd::decide_names(definition, &others.iter().collect::<Vec<_>>(), &[], &[])
}

/// Sets a condition; the time moves only when the status does.
fn set_condition(status: &mut Value, wanted: Condition, now: Timestamp) {
    let mut wanted = json!({
        "type": wanted.kind,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": second(now),
    });
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(list) = status["conditions"].as_array_mut() else { return };
    match list.iter_mut().find(|known| known["type"] == wanted["type"]) {
        Some(known) => {
            if known["status"] == wanted["status"] {
                wanted["lastTransitionTime"] = known["lastTransitionTime"].clone();
            }
            *known = wanted;
        }
        None => list.push(wanted),
    }
}
