//! Reading and marking the metadata of an object of any kind.

use std::collections::BTreeMap;

use api::work::ObjectReference;
use apimachinery::gvk::Gvk;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value};

/// The metadata every Kubernetes object has, on a JSON tree. Absent text is the empty string, as in Go.
pub trait Object {
    fn api_version(&self) -> &str;
    fn kind(&self) -> &str;
    fn name(&self) -> &str;
    fn namespace(&self) -> &str;
    fn uid(&self) -> &str;
    fn resource_version(&self) -> &str;
    fn generation(&self) -> i64;
    fn is_deleting(&self) -> bool;
    fn label(&self, key: &str) -> Option<&str>;
    fn annotation(&self, key: &str) -> Option<&str>;
    /// Returns the label map, `null` when there is none.
    fn labels(&self) -> &Value;
    fn annotations(&self) -> &Value;
    fn set_label(&mut self, key: &str, value: &str);
    fn set_annotation(&mut self, key: &str, value: &str);
    /// Removes a label and returns whether it was there.
    fn remove_label(&mut self, key: &str) -> bool;
    fn remove_annotation(&mut self, key: &str) -> bool;
    fn gvk(&self) -> Gvk;
    fn reference(&self) -> ObjectReference;
    /// Returns the owner reference that makes this object the controller of another.
    fn controller_reference(&self) -> OwnerReference;
    /// Returns `Kind namespace/name` for messages.
    fn describe(&self) -> String;
}

const NULL: Value = Value::Null;

fn text<'a>(object: &'a Value, section: Option<&str>, field: &str) -> &'a str {
    let holder = match section {
        Some(section) => &object[section],
        None => object,
    };
    holder[field].as_str().unwrap_or("")
}

fn set(object: &mut Value, section: &str, key: &str, value: &str) {
    let Value::Object(root) = object else { return };
    let metadata = root.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(metadata) = metadata else { return };
    let entries = metadata.entry(section).or_insert(Value::Null);
    if !entries.is_object() {
        *entries = Value::Object(Map::new());
    }
    if let Value::Object(entries) = entries {
        entries.insert(key.to_owned(), value.into());
    }
}

/// An emptied map disappears: Kubernetes does not tell an empty one from a missing one.
fn remove(object: &mut Value, section: &str, key: &str) -> bool {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return false };
    let Some(Value::Object(entries)) = metadata.get_mut(section) else { return false };
    let removed = entries.remove(key).is_some();
    if removed && entries.is_empty() {
        metadata.remove(section);
    }
    removed
}

impl Object for Value {
    fn api_version(&self) -> &str {
        text(self, None, "apiVersion")
    }

    fn kind(&self) -> &str {
        text(self, None, "kind")
    }

    fn name(&self) -> &str {
        text(self, Some("metadata"), "name")
    }

    fn namespace(&self) -> &str {
        text(self, Some("metadata"), "namespace")
    }

    fn uid(&self) -> &str {
        text(self, Some("metadata"), "uid")
    }

    fn resource_version(&self) -> &str {
        text(self, Some("metadata"), "resourceVersion")
    }

    fn generation(&self) -> i64 {
        self["metadata"]["generation"].as_i64().unwrap_or(0)
    }

    fn is_deleting(&self) -> bool {
        !self["metadata"]["deletionTimestamp"].is_null()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self["metadata"]["labels"][key].as_str()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self["metadata"]["annotations"][key].as_str()
    }

    fn labels(&self) -> &Value {
        self.get("metadata").and_then(|metadata| metadata.get("labels")).unwrap_or(&NULL)
    }

    fn annotations(&self) -> &Value {
        self.get("metadata").and_then(|metadata| metadata.get("annotations")).unwrap_or(&NULL)
    }

    fn set_label(&mut self, key: &str, value: &str) {
        set(self, "labels", key, value);
    }

    fn set_annotation(&mut self, key: &str, value: &str) {
        set(self, "annotations", key, value);
    }

    fn remove_label(&mut self, key: &str) -> bool {
        remove(self, "labels", key)
    }

    fn remove_annotation(&mut self, key: &str) -> bool {
        remove(self, "annotations", key)
    }

    fn gvk(&self) -> Gvk {
        Gvk::from_api_version(self.api_version(), self.kind())
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: self.api_version().into(),
            kind: self.kind().into(),
            namespace: self.namespace().into(),
            name: self.name().into(),
            uid: self.uid().into(),
            resource_version: self.resource_version().into(),
        }
    }

    fn controller_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version().into(),
            kind: self.kind().into(),
            name: self.name().into(),
            uid: self.uid().into(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    fn describe(&self) -> String {
        format!("{} {}", self.kind(), api::names::namespaced_key(self.namespace(), self.name()))
    }
}

/// Merges `more` over `existing` and returns whether anything changed.
pub(crate) fn merge(
    existing: &mut Option<BTreeMap<String, String>>,
    more: &BTreeMap<String, String>,
) -> bool {
    let mut changed = false;
    for (key, value) in more {
        let entries = existing.get_or_insert_default();
        if entries.get(key) != Some(value) {
            entries.insert(key.clone(), value.clone());
            changed = true;
        }
    }
    changed
}
