//! The part of `metadata` that belongs to the server, for native kinds and custom resources alike.

use jiff::Timestamp;
use serde_json::Value;

use crate::defaults::tree::{Object, ensure, text};

/// Prints a time as Kubernetes stores it: whole seconds, UTC.
pub(super) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Sets uid and creation time of a new object and wipes what only the server may set. `resourceVersion` is
/// the caller's to refuse, `managedFields` and `name` are its to compute.
pub fn for_create(object: &mut Value, uid: &str, now: Timestamp) {
    let Some(metadata) = object.as_object_mut().and_then(|root| ensure(root, "metadata")) else { return };
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(field);
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), seconds(now).into());
}

/// Restores what an update may leave out or must not change silently.
///
/// A given uid or grace period stays, so that validation can refuse one that differs.
pub fn for_update(object: &mut Value, old: &Value) {
    let Some(metadata) = object.as_object_mut().and_then(|root| ensure(root, "metadata")) else { return };
    let stored = old.get("metadata").and_then(Value::as_object);
    let stored =
        |field: &str| stored.and_then(|metadata| metadata.get(field)).filter(|value| !value.is_null());
    metadata.remove("selfLink");
    set(metadata, "generation", stored("generation"));
    if text(metadata, "uid").is_empty() {
        set(metadata, "uid", stored("uid"));
    }
    if let Some(created) = stored("creationTimestamp") {
        set(metadata, "creationTimestamp", Some(created));
    }
    if let Some(deleted) = stored("deletionTimestamp") {
        set(metadata, "deletionTimestamp", Some(deleted));
    }
    if metadata.get("deletionGracePeriodSeconds").is_none_or(Value::is_null) {
        set(metadata, "deletionGracePeriodSeconds", stored("deletionGracePeriodSeconds"));
    }
}

fn set(metadata: &mut Object, field: &str, value: Option<&Value>) {
    match value {
        Some(value) => metadata.insert(field.to_owned(), value.clone()),
        None => metadata.remove(field),
    };
}
