//! The OpenAPI documents of a stock server, as recorded.
//!
//! They stay compressed in memory (0.7 MB for 9 MB of text) and are unpacked per request; while somebody holds a
//! document, others get the same copy. Merging custom resources into them is the server's business: it takes the
//! bytes, or a tree parsed from them, and adds its own.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use crate::data;

mod documents;

/// A document's JSON text.
pub type Document = Arc<[u8]>;

/// Returns the swagger 2.0 document.
pub fn v2() -> Document {
    unpacked("", data::OPENAPI_V2)
}

/// Returns the document of one path of the v3 index, such as `api/v1` or `apis/apps/v1`.
pub fn v3(path: &str) -> Option<Document> {
    let at = documents::DOCUMENTS.binary_search_by(|(known, _)| (*known).cmp(path)).ok()?;
    let (path, packed) = documents::DOCUMENTS[at];
    Some(unpacked(path, packed))
}

/// Returns the paths of the v3 index, sorted.
pub fn v3_paths() -> impl Iterator<Item = &'static str> {
    documents::DOCUMENTS.iter().map(|(path, _)| *path)
}

/// Protects the documents in use, by path; the empty path is v2. Held only to look up and to store, never while
/// unpacking, so that two first readers may both unpack.
static IN_USE: LazyLock<Mutex<InUse>> = LazyLock::new(Mutex::default);

type InUse = HashMap<&'static str, Weak<[u8]>>;

fn unpacked(path: &'static str, packed: &'static [u8]) -> Document {
    let found = {
        let guard = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        guard.get(path).and_then(Weak::upgrade)
    };
    if let Some(document) = found {
        return document;
    }
    let document: Document = data::unpack(packed).into();
    let mut guard = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    guard.insert(path, Arc::downgrade(&document));
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_recorded_document_unpacks_to_json() {
        let mut count = 0;
        for path in v3_paths() {
            let document: Value = serde_json::from_slice(&v3(path).expect("listed")).expect("JSON");
            assert_eq!(document["openapi"], "3.0.0", "{path}");
            count += 1;
        }
        assert!(count > 40, "only {count} documents");
        let v2: Value = serde_json::from_slice(&v2()).expect("JSON");
        assert_eq!(v2["swagger"], "2.0");
    }

    #[test]
    fn every_served_group_version_has_a_document() {
        for resource in crate::resources::all() {
            let path = if resource.group.is_empty() {
                format!("api/{}", resource.version)
            } else {
                format!("apis/{}/{}", resource.group, resource.version)
            };
            assert!(v3(&path).is_some(), "{path}");
        }
        assert!(v3("apis/nothing/v1").is_none());
    }

    #[test]
    fn a_document_in_use_is_shared() {
        let first = v3("apis/batch/v1").expect("recorded");
        let second = v3("apis/batch/v1").expect("recorded");
        assert!(Arc::ptr_eq(&first, &second));
    }
}
