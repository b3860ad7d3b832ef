//! The metadata that every Kubernetes object has, on a JSON tree: one trait for reading and for changing it.
//!
//! Absent text is the empty string, as in Go. What has the wrong type counts as absent; whoever has to refuse it validates.

use serde_json::{Map, Value};

use crate::gvk::Gvk;

/// An object of any kind.
pub trait Object {
    fn api_version(&self) -> &str;
    fn kind(&self) -> &str;
    /// Returns a text in the metadata by the name of its field.
    fn meta(&self, field: &str) -> &str;
    fn generation(&self) -> i64;
    fn is_deleting(&self) -> bool;
    /// Returns the label map, `null` when there is none.
    fn labels(&self) -> &Value;
    fn annotations(&self) -> &Value;
    fn finalizers(&self) -> Vec<String>;
    fn has_finalizer(&self, finalizer: &str) -> bool;
    fn owner_references(&self) -> &[Value];
    /// Returns the metadata for writing. What is not an object becomes one, and so does its metadata.
    fn metadata_mut(&mut self) -> &mut Map<String, Value>;
    fn set_label(&mut self, key: &str, value: &str);
    fn set_annotation(&mut self, key: &str, value: &str);
    /// Removes a label and returns whether it was there. An emptied map disappears: Kubernetes does not tell an empty one from a
    /// missing one.
    fn remove_label(&mut self, key: &str) -> bool;
    /// As [`Object::remove_label`].
    fn remove_annotation(&mut self, key: &str) -> bool;

    fn name(&self) -> &str {
        self.meta("name")
    }

    fn namespace(&self) -> &str {
        self.meta("namespace")
    }

    fn uid(&self) -> &str {
        self.meta("uid")
    }

    fn resource_version(&self) -> &str {
        self.meta("resourceVersion")
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels().get(key)?.as_str()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations().get(key)?.as_str()
    }

    /// Replaces the finalizers; an empty list removes the field.
    fn set_finalizers(&mut self, finalizers: Vec<String>) {
        let metadata = self.metadata_mut();
        if finalizers.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".to_owned(), finalizers.into());
        }
    }

    /// Returns the owner that controls this object.
    fn controller(&self) -> Option<&Value> {
        self.owner_references().iter().find(|owner| owner["controller"] == true)
    }

    fn gvk(&self) -> Gvk {
        Gvk::from_api_version(self.api_version(), self.kind())
    }

    /// Returns `Kind namespace/name` for messages.
    fn describe(&self) -> String {
        match self.namespace() {
            "" => format!("{} {}", self.kind(), self.name()),
            namespace => format!("{} {namespace}/{}", self.kind(), self.name()),
        }
    }
}

const NULL: &Value = &Value::Null;

impl Object for Value {
    fn api_version(&self) -> &str {
        self["apiVersion"].as_str().unwrap_or("")
    }

    fn kind(&self) -> &str {
        self["kind"].as_str().unwrap_or("")
    }

    fn meta(&self, field: &str) -> &str {
        self["metadata"].get(field).and_then(Self::as_str).unwrap_or("")
    }

    fn generation(&self) -> i64 {
        self["metadata"].get("generation").and_then(Self::as_i64).unwrap_or(0)
    }

    fn is_deleting(&self) -> bool {
        !self.meta("deletionTimestamp").is_empty()
    }

    fn labels(&self) -> &Value {
        self["metadata"].get("labels").unwrap_or(NULL)
    }

    fn annotations(&self) -> &Value {
        self["metadata"].get("annotations").unwrap_or(NULL)
    }

    fn finalizers(&self) -> Vec<String> {
        let list = self["metadata"].get("finalizers").and_then(Self::as_array).into_iter().flatten();
        list.filter_map(Self::as_str).map(str::to_owned).collect()
    }

    fn has_finalizer(&self, finalizer: &str) -> bool {
        self["metadata"]
            .get("finalizers")
            .and_then(Self::as_array)
            .into_iter()
            .flatten()
            .any(|own| own == finalizer)
    }

    fn owner_references(&self) -> &[Value] {
        self["metadata"]
            .get("ownerReferences")
            .and_then(Self::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        child(fields(self), "metadata")
    }

    fn set_label(&mut self, key: &str, value: &str) {
        child(self.metadata_mut(), "labels").insert(key.to_owned(), value.into());
    }

    fn set_annotation(&mut self, key: &str, value: &str) {
        child(self.metadata_mut(), "annotations").insert(key.to_owned(), value.into());
    }

    fn remove_label(&mut self, key: &str) -> bool {
        remove(self, "labels", key)
    }

    fn remove_annotation(&mut self, key: &str) -> bool {
        remove(self, "annotations", key)
    }
}

fn remove(object: &mut Value, section: &str, key: &str) -> bool {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return false };
    let Some(Value::Object(entries)) = metadata.get_mut(section) else { return false };
    let removed = entries.remove(key).is_some();
    if removed && entries.is_empty() {
        metadata.remove(section);
    }
    removed
}

/// Returns the fields of a value, which becomes an object if it is none.
pub fn fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object above")
}

/// Returns the fields of a part, which becomes an object if it is none.
pub fn child<'a>(parent: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    fields(parent.entry(name).or_insert(Value::Null))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn accessors_read_metadata() {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
            "name": "a", "namespace": "n", "uid": "u", "generation": 3, "labels": {"l": "1"}, "finalizers": ["f"],
            "ownerReferences": [{"uid": "x"}, {"uid": "y", "controller": true}],
        }});
        assert_eq!(
            (object.name(), object.namespace(), object.uid(), object.generation()),
            ("a", "n", "u", 3)
        );
        assert_eq!(object.label("l"), Some("1"));
        assert_eq!(object.annotation("l"), None);
        assert_eq!(object.finalizers(), ["f"]);
        assert!(object.has_finalizer("f") && !object.has_finalizer("g"));
        assert_eq!(object.controller().unwrap()["uid"], "y");
        assert!(!object.is_deleting());
        assert_eq!(object.gvk(), Gvk::new("apps", "v1", "Deployment"));
        assert_eq!(object.describe(), "Deployment n/a");
        assert_eq!(json!({"kind": "Node", "metadata": {"name": "a"}}).describe(), "Node a");
    }

    #[test]
    fn what_is_no_object_has_no_metadata() {
        for nothing in [json!(null), json!(3), json!([]), json!({"metadata": "x"})] {
            assert_eq!(nothing.name(), "");
            assert_eq!(nothing.labels(), &Value::Null);
            assert_eq!(nothing.label("l"), None);
            assert_eq!(nothing.finalizers(), Vec::<String>::new());
            assert!(nothing.owner_references().is_empty());
        }
    }

    #[test]
    fn maps_appear_and_disappear_as_needed() {
        let mut object = json!({});
        object.set_label("a", "1");
        object.set_annotation("b", "2");
        object.set_finalizers(vec!["f".to_owned()]);
        assert_eq!(
            object,
            json!({"metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}, "finalizers": ["f"]}})
        );
        assert!(object.remove_label("a") && !object.remove_label("a"));
        assert!(object.remove_annotation("b"));
        object.set_finalizers(Vec::new());
        assert_eq!(object, json!({"metadata": {}}));
    }
}
