//! Ownership through the scale subresource: `spec.replicas` there is a field of the parent here.
//!
//! In: the parent's managed fields and, by API version, where its replica count lives. Out: managed fields of the
//! Scale object, and back.

use std::collections::BTreeMap;

use serde_json::Value;

use super::managed::{Managed, Owned};
use super::path::{Path, PathElement};
use super::set::Set;

const SCALE_VERSION: &str = "autoscaling/v1";

fn replicas_in_scale() -> Path {
    vec![PathElement::field("spec"), PathElement::field("replicas")]
}

/// Returns the entries that a Scale object shows: those of the parent that own its replica count.
///
/// `paths` holds the replica path of each served version; versions that are missing are skipped.
pub fn to_scale(parent: Option<&Value>, paths: &BTreeMap<String, Path>) -> Result<Managed, String> {
    let parent = Managed::decode(parent)?;
    let mut scale = Managed::default();
    for (identity, owned) in parent.0 {
        if paths.get(&owned.api_version).is_some_and(|path| owned.set.has(path)) {
            let mut set = Set::new();
            set.insert(&replicas_in_scale());
            scale.0.insert(identity, Owned { set, api_version: SCALE_VERSION.to_owned(), time: owned.time });
        }
    }
    Ok(scale)
}

/// Returns the parent's entries after a write to its scale: the count changes hands, the rest stays.
pub fn scale_to_parent(
    parent: Option<&Value>,
    scale: Option<&Value>,
    paths: &BTreeMap<String, Path>,
    api_version: &str,
) -> Result<Managed, String> {
    let parent = Managed::decode(parent)?;
    let mut scale = Managed::decode(scale)?;
    let mut merged = Managed::default();
    // A new owner has no time, as upstream: only what the parent knows already keeps its own.
    let times: BTreeMap<_, _> =
        parent.0.iter().map(|(identity, owned)| (identity.clone(), owned.time.clone())).collect();
    for (identity, owned) in parent.0 {
        let Some(path) = paths.get(&owned.api_version) else { continue };
        if !owned.set.has(path) || scale.0.remove(&identity).is_some() {
            merged.0.insert(identity, owned);
            continue;
        }
        let mut stolen = Set::new();
        stolen.insert(path);
        let set = owned.set.difference(&stolen);
        if !set.is_empty() {
            merged.0.insert(identity, Owned { set, ..owned });
        }
    }
    let Some(path) = paths.get(api_version) else { return Ok(merged) };
    for (identity, owned) in scale.0 {
        if owned.set.has(&replicas_in_scale()) {
            let mut set = Set::new();
            set.insert(path);
            let time = times.get(&identity).cloned().flatten();
            merged.0.insert(identity, Owned { set, api_version: api_version.to_owned(), time });
        }
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths() -> BTreeMap<String, Path> {
        BTreeMap::from([("apps/v1".to_owned(), replicas_in_scale())])
    }

    fn entries(manager: &str, version: &str, fields: Value) -> Value {
        json!([{
            "manager": manager, "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields,
        }])
    }

    #[test]
    fn only_owners_of_the_count_show_in_the_scale() {
        let parent = entries("a", "apps/v1", json!({"f:spec": {"f:replicas": {}, "f:paused": {}}}));
        let scale = to_scale(Some(&parent), &paths()).unwrap();
        assert_eq!(scale.encode()[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(scale.encode()[0]["apiVersion"], "autoscaling/v1");
        let other = entries("a", "apps/v1", json!({"f:spec": {"f:paused": {}}}));
        assert!(to_scale(Some(&other), &paths()).unwrap().is_empty());
    }

    #[test]
    fn a_write_to_the_scale_takes_the_count() {
        let parent = entries("a", "apps/v1", json!({"f:spec": {"f:replicas": {}, "f:paused": {}}}));
        let mut scale = entries("hpa", "autoscaling/v1", json!({"f:spec": {"f:replicas": {}}}));
        scale[0]["time"] = json!("2026-01-01T00:00:00Z");
        let merged = scale_to_parent(Some(&parent), Some(&scale), &paths(), "apps/v1").unwrap();
        let encoded = merged.encode();
        assert_eq!(encoded[0]["fieldsV1"], json!({"f:spec": {"f:paused": {}}}));
        assert_eq!(encoded[1]["manager"], "hpa");
        assert_eq!(encoded[1]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(encoded[1]["apiVersion"], "apps/v1");
        assert_eq!(encoded[1].get("time"), None);
    }
}
