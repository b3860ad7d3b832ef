//! Small accessors for object metadata.

use serde_json::{Map, Value};

/// Returns a text below `metadata`, empty if absent.
fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get("metadata").and_then(|metadata| metadata.get(name)).and_then(Value::as_str).unwrap_or_default()
}

pub fn name(object: &Value) -> &str {
    text(object, "name")
}

pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

pub fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

pub fn generation(object: &Value) -> i64 {
    object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0)
}

/// Returns the time of deletion if the object is being deleted.
pub fn deletion_timestamp(object: &Value) -> Option<&str> {
    object.pointer("/metadata/deletionTimestamp")?.as_str()
}

pub fn is_deleting(object: &Value) -> bool {
    deletion_timestamp(object).is_some()
}

pub fn labels(object: &Value) -> Option<&Map<String, Value>> {
    object.pointer("/metadata/labels")?.as_object()
}

pub fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    object.pointer("/metadata/annotations")?.as_object()
}

pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    labels(object)?.get(key)?.as_str()
}

pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    annotations(object)?.get(key)?.as_str()
}

pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

pub fn owner_references(object: &Value) -> &[Value] {
    let list = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

/// Returns the owner reference that is marked as controller.
pub fn controller_of(object: &Value) -> Option<&Value> {
    owner_references(object).iter().find(|owner| owner.get("controller") == Some(&Value::Bool(true)))
}

/// Returns `metadata` for writing, created if it is not there. A value that is no object becomes one.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_object(as_object(object), "metadata")
}

/// Sets a label.
pub fn set_label(object: &mut Value, key: &str, value: &str) {
    child_object(metadata_mut(object), "labels").insert(key.to_owned(), Value::from(value));
}

/// Sets an annotation.
pub fn set_annotation(object: &mut Value, key: &str, value: &str) {
    child_object(metadata_mut(object), "annotations").insert(key.to_owned(), Value::from(value));
}

/// Removes a label; an empty label map goes with it.
pub fn remove_label(object: &mut Value, key: &str) {
    remove_entry(object, "labels", key);
}

/// Removes an annotation; an empty annotation map goes with it.
pub fn remove_annotation(object: &mut Value, key: &str) {
    remove_entry(object, "annotations", key);
}

fn remove_entry(object: &mut Value, map: &str, key: &str) {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    if let Some(Value::Object(entries)) = metadata.get_mut(map) {
        entries.remove(key);
        if entries.is_empty() {
            metadata.remove(map);
        }
    }
}

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object above")
}

fn child_object<'a>(parent: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    as_object(parent.entry(name).or_insert(Value::Null))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn accessors_read_metadata() {
        let object = json!({"metadata": {
            "name": "a", "namespace": "n", "uid": "u", "generation": 3, "labels": {"l": "1"}, "finalizers": ["f"],
            "ownerReferences": [{"uid": "x"}, {"uid": "y", "controller": true}],
        }});
        assert_eq!(
            (name(&object), namespace(&object), uid(&object), generation(&object)),
            ("a", "n", "u", 3)
        );
        assert_eq!(label(&object, "l"), Some("1"));
        assert_eq!(annotation(&object, "l"), None);
        assert_eq!(finalizers(&object).collect::<Vec<_>>(), ["f"]);
        assert_eq!(controller_of(&object).unwrap()["uid"], "y");
        assert!(!is_deleting(&object));
        assert_eq!(name(&json!(null)), "");
    }

    #[test]
    fn maps_appear_and_disappear_as_needed() {
        let mut object = json!({});
        set_label(&mut object, "a", "1");
        set_annotation(&mut object, "b", "2");
        assert_eq!(object, json!({"metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}}}));
        remove_label(&mut object, "a");
        remove_annotation(&mut object, "b");
        assert_eq!(object, json!({"metadata": {}}));
    }
}
