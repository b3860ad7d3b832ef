//! Objects between the versions of their kind.
//!
//! Native kinds are converted by tables, custom ones by changing their `apiVersion`, unless their definition names a
//! webhook. What a webhook converted is put back into the form of a stored entry, as if it had been stored in the wanted
//! version: whoever lists, watches, selects or prints needs to know nothing of it. Conversions are remembered, since
//! every watcher of a version asks for the same ones.

mod webhook;

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::head::Head;
use crate::object::{self, Entry};
use crate::registry::{Custom, Kind, Source};
use crate::server::Server;

pub(crate) use webhook::Converter;

/// Objects sent to a webhook at once: few calls for long lists, no document of many megabytes.
const AT_ONCE: usize = 500;
/// Conversions that are remembered; each is as large as the object. When there are more, all are forgotten.
const REMEMBERED: usize = 4096;

/// Which conversion of what: definition as of a revision, object as of a revision, wanted version.
type Key = (Arc<str>, u64, Box<str>, u64, String);

/// What webhooks have converted.
#[derive(Debug, Default)]
pub struct Cache(parking_lot::Mutex<HashMap<Key, Arc<Entry>>>);

impl Cache {
    fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.0.lock().get(key).cloned()
    }

    fn put(&self, key: Key, entry: Arc<Entry>) {
        let mut known = self.0.lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(key, entry);
    }
}

/// Returns an object of one served version in another one of the same kind.
pub(crate) async fn between(
    server: &Arc<Server>,
    from: &Kind,
    to: &Kind,
    mut object: Value,
) -> Result<Value, Status> {
    match &from.source {
        Source::Native => {
            let revision = object.pointer("/metadata/resourceVersion").cloned();
            let mut converted =
                native::convert::convert(object, &from.gvk, &to.gvk).map_err(Status::internal)?;
            if let Some(revision) = revision {
                object::meta_mut(&mut converted).insert("resourceVersion".to_owned(), revision);
            }
            converted["apiVersion"] = json!(to.api_version);
            converted["kind"] = json!(to.gvk.kind);
            Ok(converted)
        }
        Source::Custom(custom) => match &custom.conversion {
            Some(converter) => one(server, converter, object, &to.api_version).await.map_err(failed),
            None => {
                object["apiVersion"] = json!(to.api_version);
                Ok(object)
            }
        },
    }
}

/// Returns entries as if they had been stored in the version of `kind`.
pub(crate) async fn entries(
    server: &Arc<Server>,
    kind: &Kind,
    mut entries: Vec<Arc<Entry>>,
) -> Result<Vec<Arc<Entry>>, Status> {
    let Some((custom, converter)) = converting(kind) else { return Ok(entries) };
    let key = |entry: &Entry| -> Key {
        (
            kind.collection.clone(),
            custom.essence,
            entry.name.clone(),
            entry.modified,
            kind.gvk.version.clone(),
        )
    };
    let mut missing = Vec::new();
    for (index, entry) in entries.iter_mut().enumerate() {
        if stored_api_version(custom, entry) == kind.api_version {
            continue;
        }
        match server.conversions.get(&key(entry)) {
            Some(known) => *entry = known,
            None => missing.push(index),
        }
    }
    for chunk in missing.chunks(AT_ONCE) {
        let objects = chunk.iter().map(|index| stored(kind, custom, &entries[*index])).collect();
        let converted = converter.convert(server, objects, &kind.api_version).await.map_err(failed)?;
        for (index, object) in chunk.iter().zip(converted) {
            let entry = Arc::new(rewritten(kind, &entries[*index], &object));
            server.conversions.put(key(&entries[*index]), entry.clone());
            entries[*index] = entry;
        }
    }
    Ok(entries)
}

/// Returns an entry as if it had been stored in the version of `kind`.
pub(crate) async fn entry(
    server: &Arc<Server>,
    kind: &Kind,
    entry: Arc<Entry>,
) -> Result<Arc<Entry>, Status> {
    if converting(kind).is_none() {
        return Ok(entry);
    }
    let converted = entries(server, kind, vec![entry]).await?;
    Ok(converted.into_iter().next().expect("as many come back as went in"))
}

/// Encodes an object of `kind` for the store, in the version that is stored, and returns with it what a later reader
/// of `kind` gets to see where that is not the object itself.
pub(crate) async fn encode(
    server: &Arc<Server>,
    kind: &Kind,
    object: &Value,
) -> Result<(Bytes, Option<Value>), Status> {
    let Source::Custom(custom) = &kind.source else {
        if kind.storage == kind.gvk {
            return Ok((object::encode(object), None));
        }
        let mut stored = object.clone();
        kind.to_storage(&mut stored);
        return Ok((object::encode(&stored), None));
    };
    let version = kind.storage.api_version();
    // The version of a body that says none is the first that was ever stored.
    let said = (custom.storage_version != custom.first_stored).then_some(version.as_str());
    let Some(converter) = custom.conversion.as_ref().filter(|_| kind.storage != kind.gvk) else {
        return Ok((object::encode_as(object, said), None));
    };
    let stored = one(server, converter, object.clone(), &version).await.map_err(failed)?;
    let mut seen = one(server, converter, stored.clone(), &kind.api_version).await.map_err(failed)?;
    custom.present(&kind.gvk, &mut seen);
    Ok((object::encode_as(&stored, said), Some(seen)))
}

/// Converts while the caller waits: field ownership is computed where nothing can be awaited.
pub(crate) fn waiting(
    server: &Arc<Server>,
    custom: &Custom,
    object: &Value,
    api_version: &str,
) -> Result<Value, String> {
    let mut object = object.clone();
    let Some(converter) = custom.conversion.as_ref().filter(|_| object["apiVersion"] != api_version) else {
        object["apiVersion"] = json!(api_version);
        return Ok(object);
    };
    let runtime = tokio::runtime::Handle::current();
    if runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::CurrentThread {
        return Err("a conversion webhook cannot be waited for on a single thread".to_owned());
    }
    tokio::task::block_in_place(|| runtime.block_on(one(server, converter, object, api_version)))
}

async fn one(
    server: &Arc<Server>,
    converter: &Converter,
    object: Value,
    api_version: &str,
) -> Result<Value, String> {
    let converted = converter.convert(server, vec![object], api_version).await?;
    Ok(converted.into_iter().next().expect("as many come back as went in"))
}

/// Returns how entries of a kind are converted, if a webhook does it.
fn converting(kind: &Kind) -> Option<(&Arc<Custom>, &Converter)> {
    let custom = kind.custom()?;
    Some((custom, custom.conversion.as_ref()?))
}

fn stored_api_version(custom: &Custom, entry: &Entry) -> String {
    match object::stored_version(&entry.value) {
        Some(version) => version.to_owned(),
        None => format!("{}/{}", custom.group, custom.first_stored),
    }
}

fn stored(kind: &Kind, custom: &Custom, entry: &Entry) -> Value {
    object::decode(&stored_api_version(custom, entry), &kind.gvk.kind, entry)
}

fn rewritten(kind: &Kind, entry: &Entry, object: &Value) -> Entry {
    let value = object::encode_as(object, Some(&kind.api_version));
    Entry {
        name: entry.name.clone(),
        created: entry.created,
        modified: entry.modified,
        expires_ms: entry.expires_ms,
        head: <Head as store::Head>::parse(&kind.collection, &entry.name, &value),
        value,
    }
}

fn failed(why: String) -> Status {
    Status::bare_internal(why)
}
