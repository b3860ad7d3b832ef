//! How objects name each other in what we write: references of bindings and owners.

use std::collections::BTreeMap;

use api::work::ObjectReference;
use apimachinery::object::Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;

/// References to an object.
pub trait Reference {
    fn reference(&self) -> ObjectReference;
    /// Returns the owner reference that makes this object the controller of another.
    fn controller_reference(&self) -> OwnerReference;
}

impl Reference for Value {
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
