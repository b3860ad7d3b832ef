//! How an object is laid out in the store, and how it is put together again for clients.
//!
//! The stored body is compact JSON without `apiVersion`, `kind` and `metadata.resourceVersion`, and with
//! `metadata` first: `{"metadata":{…},"data":{…}}`. So every answer is a short prefix, which names the kind and
//! the revision, followed by a slice of the stored bytes. Nothing is parsed to serve a read, and the same bytes
//! serve every version of a kind that differs in nothing but its `apiVersion`.
//!
//! A custom kind whose storage version has changed has objects of several versions in its collection. Those that were not written
//! in the first version start with their version: `{"apiVersion":"g/v2","metadata":{…},…}`.

use apimachinery::status::Status;
use bytes::Bytes;
use serde_json::{Map, Value};

use crate::head::Head;

/// The start of a stored body; the rest of the metadata follows.
const BODY_START: &[u8] = b"{\"metadata\":{";
/// The start of a body with its version. No version has a character that JSON escapes.
const VERSION_START: &[u8] = b"{\"apiVersion\":\"";

pub(crate) type Entry = store::Entry<Head>;

/// Splits a name in a collection into namespace and name; cluster-scoped names have no slash.
pub(crate) fn split_key(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

/// Joins namespace and name into the name in a collection.
pub(crate) fn join_key(namespace: &str, name: &str) -> Box<str> {
    if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into_boxed_str() }
}

/// Encodes an object for the store. Assumes that `metadata` is an object with at least one field besides the revision, which
/// holds for every object with a name.
pub(crate) fn encode(object: &Value) -> Bytes {
    encode_as(object, None)
}

/// Encodes an object, with its version if one is given.
pub(crate) fn encode_as(object: &Value, api_version: Option<&str>) -> Bytes {
    let mut out = Vec::with_capacity(4096);
    match api_version {
        Some(version) => {
            out.extend_from_slice(VERSION_START);
            out.extend_from_slice(version.as_bytes());
            out.extend_from_slice(b"\",\"metadata\":{");
        }
        None => out.extend_from_slice(BODY_START),
    }
    let mut first = true;
    if let Some(metadata) = object.get("metadata").and_then(Value::as_object) {
        for (key, value) in metadata {
            if key != "resourceVersion" {
                write_member(&mut out, &mut first, key, value);
            }
        }
    }
    out.push(b'}');
    first = false;
    if let Some(fields) = object.as_object() {
        for (key, value) in fields {
            if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                write_member(&mut out, &mut first, key, value);
            }
        }
    }
    out.push(b'}');
    // A copy of the right size: an allocator may leave a block in place when it only shrinks.
    Bytes::copy_from_slice(&out)
}

fn write_member(out: &mut Vec<u8>, first: &mut bool, key: &str, value: &Value) {
    if !*first {
        out.push(b',');
    }
    *first = false;
    serde_json::to_writer(&mut *out, key).expect("a string can be written to memory");
    out.push(b':');
    serde_json::to_writer(&mut *out, value).expect("a tree can be written to memory");
}

/// Writes the object as clients see it: with kind, version and revision.
pub(crate) fn write_full(out: &mut Vec<u8>, api_version: &str, kind: &str, entry: &Entry, revision: u64) {
    out.extend_from_slice(b"{\"kind\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"apiVersion\":\"");
    out.extend_from_slice(api_version.as_bytes());
    out.extend_from_slice(b"\",\"metadata\":{\"resourceVersion\":\"");
    write_rest(out, entry, revision);
}

/// Writes the object as an item of a native list: without kind and version.
pub(crate) fn write_bare(out: &mut Vec<u8>, entry: &Entry, revision: u64) {
    out.extend_from_slice(b"{\"metadata\":{\"resourceVersion\":\"");
    write_rest(out, entry, revision);
}

fn write_rest(out: &mut Vec<u8>, entry: &Entry, revision: u64) {
    let mut buffer = itoa::Buffer::new();
    out.extend_from_slice(buffer.format(revision).as_bytes());
    out.push(b'"');
    const AROUND_VERSION: usize = VERSION_START.len() + 1 + BODY_START.len();
    let start = match stored_version(&entry.value) {
        // Behind the version come its quote and the comma, then the usual start without its brace.
        Some(version) => AROUND_VERSION.saturating_add(version.len()),
        None => BODY_START.len(),
    };
    let rest = entry.value.get(start..).unwrap_or(b"}}");
    if rest.first() != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(rest);
}

/// Returns the version in a stored body.
pub(crate) fn stored_version(body: &[u8]) -> Option<&str> {
    let rest = body.strip_prefix(VERSION_START)?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

/// Parses a stored body into a tree with kind, version and revision.
///
/// Every accepted object can be read: stored objects nest less deeply than `serde_json` reads. An unreadable body was damaged on
/// disk, or written by an earlier release that did not check the depth. It must not be treated as an object without content: that
/// one would have no finalizers.
pub(crate) fn decode(api_version: &str, kind: &str, entry: &Entry) -> Result<Value, Status> {
    let unreadable = |why: String| {
        Status::internal(format!(
            "the stored {kind} {:?} cannot be read: {why}; it can only be deleted, with ignoreStoreReadErrorWithClusterBreakingPotential",
            entry.name
        ))
    };
    let mut object: Value =
        serde_json::from_slice(&entry.value).map_err(|error| unreadable(error.to_string()))?;
    if !object.is_object() {
        return Err(unreadable("it is not an object".to_owned()));
    }
    stamp(&mut object, api_version, kind, Some(entry.modified));
    Ok(object)
}

/// Returns whether [`decode`] can read a stored body.
pub(crate) fn is_readable(entry: &Entry) -> bool {
    decode("", "", entry).is_ok()
}

/// Sets kind, version and revision (or removes the revision).
pub(crate) fn stamp(object: &mut Value, api_version: &str, kind: &str, revision: Option<u64>) {
    let Some(fields) = object.as_object_mut() else { return };
    fields.insert("apiVersion".to_owned(), Value::String(api_version.to_owned()));
    fields.insert("kind".to_owned(), Value::String(kind.to_owned()));
    let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if let Some(metadata) = metadata.as_object_mut() {
        match revision {
            Some(revision) => {
                metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
            }
            None => {
                metadata.remove("resourceVersion");
            }
        }
    }
}

/// Writes metadata with its fields in Go's order.
pub(crate) fn metadata_in_order(metadata: &Value) -> String {
    const FIELDS: [&str; 15] = [
        "name",
        "generateName",
        "namespace",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ];
    const OWNER: [&str; 6] = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    const MANAGER: [&str; 7] =
        ["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];
    fn ordered(object: &Value, fields: &[&str], print: impl Fn(&str, &Value) -> String) -> String {
        let known = fields.iter().filter_map(|name| Some((name, object.get(*name)?)));
        let parts: Vec<String> =
            known.map(|(name, value)| format!("\"{name}\":{}", print(name, value))).collect();
        format!("{{{}}}", parts.join(","))
    }
    ordered(metadata, &FIELDS, |name, value| {
        let items: &[&str] = match name {
            "ownerReferences" => &OWNER,
            "managedFields" => &MANAGER,
            _ => return value.to_string(),
        };
        let list = value.as_array().into_iter().flatten();
        let list: Vec<String> = list.map(|item| ordered(item, items, |_, value| value.to_string())).collect();
        format!("[{}]", list.join(","))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(object: &Value, revision: u64) -> Entry {
        let value = encode(object);
        Entry {
            name: "a".into(),
            created: 1,
            modified: revision,
            expires_ms: None,
            head: Head::default(),
            value,
        }
    }

    #[test]
    fn an_object_survives_the_store() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"},
            "metadata": {"name": "a", "resourceVersion": "7", "uid": "u"}});
        let entry = entry(&object, 7);
        assert_eq!(&entry.value[..], br#"{"metadata":{"name":"a","uid":"u"},"data":{"k":"v"}}"#);
        assert_eq!(decode("v1", "ConfigMap", &entry).unwrap(), object);
        let mut out = Vec::new();
        write_full(&mut out, "v1", "ConfigMap", &entry, 7);
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), object);
    }

    #[test]
    fn finding_8_a_body_that_cannot_be_read_is_an_error_and_no_empty_object() {
        let mut entry = entry(&json!({"metadata": {"name": "a", "finalizers": ["x/y"]}}), 7);
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        for body in [
            format!("{{\"metadata\":{{\"finalizers\":[\"x/y\"]}},\"spec\":{deep}}}"),
            "{".to_owned(),
            "3".to_owned(),
        ] {
            entry.value = body.into();
            let status = decode("v1", "ConfigMap", &entry).unwrap_err();
            assert_eq!(status.code, 500);
            assert!(
                status.message.contains("the stored ConfigMap \"a\" cannot be read"),
                "{}",
                status.message
            );
        }
    }

    #[test]
    fn finding_8_what_may_be_stored_can_be_read() {
        let levels = apimachinery::depth::MAX_DEPTH - 2;
        let deep = (1..levels).fold(json!([]), |inner, _| json!([inner]));
        let object = json!({"apiVersion": "g/v1", "kind": "A", "metadata": {"name": "a", "resourceVersion": "7"}, "spec": {"x": deep}});
        assert_eq!(apimachinery::depth::depth(&object), apimachinery::depth::MAX_DEPTH);
        assert_eq!(decode("g/v1", "A", &entry(&object, 7)).unwrap(), object);
    }

    #[test]
    fn a_body_may_say_its_version_and_is_served_without_it() {
        let object = json!({"apiVersion": "g/v2", "kind": "A", "spec": {"x": 1},
            "metadata": {"name": "a", "resourceVersion": "7", "uid": "u"}});
        let mut entry = entry(&object, 7);
        assert_eq!(stored_version(&entry.value), None);
        entry.value = encode_as(&object, Some("g/v2"));
        assert_eq!(stored_version(&entry.value), Some("g/v2"));
        assert_eq!(decode("g/v2", "A", &entry).unwrap(), object);
        let mut out = Vec::new();
        write_full(&mut out, "g/v2", "A", &entry, 7);
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), object);
        assert_eq!(String::from_utf8(out).unwrap().matches("apiVersion").count(), 1);
    }

    #[test]
    fn empty_metadata_gives_valid_json() {
        let entry = entry(&json!({"metadata": {}}), 3);
        let mut out = Vec::new();
        write_bare(&mut out, &entry, 3);
        assert_eq!(
            serde_json::from_slice::<Value>(&out).unwrap(),
            json!({"metadata": {"resourceVersion": "3"}})
        );
    }
}
