//! Objects between the versions of their kind.
//!
//! Native kinds are converted by tables, custom ones by changing their `apiVersion`, unless their definition names a webhook. The
//! result of a webhook is brought into the form of a stored entry, as if it had been stored in the requested version. So lists,
//! watches, selectors and tables need no special case. Conversions are cached, since every watcher of a version needs the same
//! ones.

mod webhook;

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::head::Head;
use crate::object::{self, Entry};
use crate::registry::custom::{CONVERTED, UNSETTLED};
use crate::registry::{Custom, Kind, Source};
use crate::server::Server;

pub(crate) use webhook::Converter;
pub use webhook::answered;

/// How many objects are sent to a webhook at once: few calls for long lists, but no document of many megabytes.
const AT_ONCE: usize = 500;
/// How many bytes of objects are sent at once: one of the largest, of 3 MiB, or 500 of 8 KiB.
const BYTES_AT_ONCE: usize = 4 << 20;
/// How many conversions are cached, and how many bytes of them: 4,096 of 16 KiB. When there are more, the cache is emptied.
const REMEMBERED: usize = 4096;
const REMEMBERED_BYTES: usize = 64 << 20;

/// The key of a conversion: definition as served, object at a revision, requested version. A changed definition calls its webhook
/// anew, even if it changed back: the webhook may be a different one by then.
type Key = (Arc<str>, u64, Box<str>, u64, String);

/// The results of webhooks.
#[derive(Debug, Default)]
pub struct Cache(parking_lot::Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    entries: HashMap<Key, Arc<Entry>>,
    /// All that was put in since the cache was empty, also what was replaced.
    bytes: usize,
}

impl Cache {
    fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.0.lock().entries.get(key).cloned()
    }

    fn put(&self, key: Key, entry: Arc<Entry>) {
        let mut known = self.0.lock();
        known.bytes = known.bytes.saturating_add(entry.value.len());
        if known.entries.len() >= REMEMBERED || known.bytes > REMEMBERED_BYTES {
            *known = Known { entries: HashMap::new(), bytes: entry.value.len() };
        }
        known.entries.insert(key, entry);
    }
}

/// Divides objects into portions that are sent at once, in their order.
fn portions(objects: Vec<usize>, length: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let mut portions: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0_usize;
    for object in objects {
        let length = length(object);
        let all = bytes.saturating_add(length);
        match portions.last_mut().filter(|last| last.len() < AT_ONCE && all <= BYTES_AT_ONCE) {
            Some(last) => {
                last.push(object);
                bytes = all;
            }
            None => {
                portions.push(vec![object]);
                bytes = length;
            }
        }
    }
    portions
}

/// Returns an object of one served version in another version of the same kind.
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
                converted.metadata_mut().insert("resourceVersion".to_owned(), revision);
            }
            pointer::set(&mut converted, "apiVersion", json!(to.api_version));
            pointer::set(&mut converted, "kind", json!(to.gvk.kind));
            Ok(converted)
        }
        Source::Custom(custom) => match &custom.conversion {
            Some(converter) => one(server, converter, object, &to.api_version).await.map_err(failed),
            None => {
                pointer::set(&mut object, "apiVersion", json!(to.api_version));
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
            custom.incarnation,
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
    let length = |index: usize| entries.get(index).map_or(0, |entry| entry.value.len());
    for chunk in portions(missing, length) {
        let objects = chunk.iter().filter_map(|index| entries.get(*index));
        let objects = objects.map(|entry| stored(kind, custom, entry));
        let objects = objects.collect::<Result<_, _>>()?;
        let converted = converter.convert(server, objects, &kind.api_version).await.map_err(failed)?;
        for (index, mut object) in chunk.iter().zip(converted) {
            custom.trim(&kind.gvk.version, &mut object);
            let Some(place) = entries.get_mut(*index) else { continue };
            let entry = Arc::new(rewritten(kind, place, &object));
            server.conversions.put(key(place), entry.clone());
            *place = entry;
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

/// An object as it goes into the store.
pub(crate) struct Encoded {
    pub body: Bytes,
    /// What later readers see, if it differs from the object itself.
    pub seen: Option<Value>,
    /// The schema the body was written under, see [`Kind::fingerprint`].
    pub schema: u32,
}

impl Encoded {
    fn plain(body: Bytes, kind: &Kind) -> Self {
        Self { body, seen: None, schema: kind.fingerprint() }
    }
}

/// Encodes an object of `kind` for the store, in the version that is stored.
pub(crate) async fn encode(server: &Arc<Server>, kind: &Kind, object: &Value) -> Result<Encoded, Status> {
    let Source::Custom(custom) = &kind.source else {
        if kind.storage == kind.gvk {
            return Ok(Encoded::plain(object::encode(object), kind));
        }
        let mut stored = object.clone();
        kind.to_storage(&mut stored);
        return Ok(Encoded::plain(object::encode(&stored), kind));
    };
    let version = kind.storage.api_version();
    // The version of a body without a version is the first one that was ever stored.
    let said = (custom.storage_version != custom.first_stored).then_some(version.as_str());
    if kind.storage == kind.gvk || custom.uniform && custom.conversion.is_none() {
        return Ok(Encoded::plain(object::encode_as(object, said), kind));
    }
    let (to, from) = (custom.storage_version.as_str(), kind.gvk.version.as_str());
    let mut stored = match &custom.conversion {
        Some(converter) => one(server, converter, object.clone(), &version).await.map_err(failed)?,
        None => object.clone(),
    };
    custom.trim(to, &mut stored);
    let body = object::encode_as(&stored, said);
    custom.settle(to, &mut stored);
    let mut seen = match &custom.conversion {
        Some(converter) => one(server, converter, stored, &kind.api_version).await.map_err(failed)?,
        None => stored,
    };
    custom.trim(from, &mut seen);
    if seen == *object {
        return Ok(Encoded::plain(body, kind));
    }
    Ok(Encoded { body, seen: Some(seen), schema: UNSETTLED })
}

/// Converts while the caller blocks: field ownership is computed in code that cannot await.
pub(crate) fn waiting(
    server: &Arc<Server>,
    custom: &Custom,
    object: &Value,
    api_version: &str,
) -> Result<Value, String> {
    let mut object = object.clone();
    let Some(converter) = custom.conversion.as_ref().filter(|_| object.api_version() != api_version) else {
        pointer::set(&mut object, "apiVersion", json!(api_version));
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
    format!("{}/{}", custom.group, custom.stored_version(entry))
}

/// Returns an object in its storage version, as it would be read in that version.
fn stored(kind: &Kind, custom: &Custom, entry: &Entry) -> Result<Value, Status> {
    let mut object = object::decode(&stored_api_version(custom, entry), &kind.gvk.kind, entry)?;
    custom.settle(custom.stored_version(entry), &mut object);
    Ok(object)
}

fn rewritten(kind: &Kind, entry: &Entry, object: &Value) -> Entry {
    let value = object::encode_as(object, Some(&kind.api_version));
    let mut head = <Head as store::Head>::parse(&kind.collection, &entry.name, &value);
    head.schema = CONVERTED;
    Entry {
        name: entry.name.clone(),
        created: entry.created,
        modified: entry.modified,
        expires_ms: entry.expires_ms,
        head,
        value,
    }
}

fn failed(why: String) -> Status {
    Status::bare_internal(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_is_bounded_by_objects_and_by_bytes() {
        let sizes = |lengths: &[usize]| -> Vec<usize> {
            let portions = portions((0..lengths.len()).collect(), |index| lengths[index]);
            assert!(portions.concat().into_iter().eq(0..lengths.len()), "each object once, in their order");
            portions.iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[10; 1_001]), [500, 500, 1]);
        let large = 3 << 20;
        assert_eq!(sizes(&[large, 1 << 20, 1, large, large, 5 << 20, 1, 1]), [2, 2, 1, 1, 2]);
    }

    #[test]
    fn finding_16_what_webhooks_converted_is_remembered_up_to_a_number_of_bytes() {
        let cache = Cache::default();
        let entry = |length: usize| {
            Arc::new(Entry {
                name: "n".into(),
                created: 1,
                modified: 1,
                expires_ms: None,
                head: Head::default(),
                value: vec![b'x'; length].into(),
            })
        };
        let key = |number: u64| -> Key { ("c".into(), 1, "n".into(), number, "v1".to_owned()) };
        let held = || cache.0.lock().entries.values().map(|entry| entry.value.len()).sum::<usize>();
        for number in 0..100 {
            cache.put(key(number), entry(3 << 20));
            assert!(held() <= REMEMBERED_BYTES, "{} bytes", held());
            assert!(cache.get(&key(number)).is_some());
        }
        assert!(held() > REMEMBERED_BYTES / 4, "it is of use all the same");
        for number in 0..10_000 {
            cache.put(key(number), entry(1));
        }
        assert!(cache.0.lock().entries.len() <= REMEMBERED);
    }
}
