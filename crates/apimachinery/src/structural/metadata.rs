//! Object metadata inside custom resources: at the root and in embedded objects.
//!
//! The schema of `metadata` is the server's, not the CRD's: unknown fields are dropped, wrong types are refused (or
//! dropped when reading old objects), empty values disappear.

use serde_json::{Map, Value};

use super::{NodeId, Schema};
use crate::field::{Complaints, Error, Errors, Path, Trail};
use crate::names;

/// The bytes of paths of unknown fields that are told, as when pruning.
const MOST_PATHS: usize = 4 << 20;

/// The paths of unknown fields, as many as are told.
#[derive(Default)]
struct Unknown {
    paths: Vec<String>,
    bytes: usize,
}

impl Unknown {
    fn note(&mut self, place: &Trail<'_>) {
        if self.bytes <= MOST_PATHS {
            let path = place.to_string();
            self.bytes = self.bytes.saturating_add(path.len());
            self.paths.push(path);
        }
    }
}

fn path_of(place: &Trail<'_>) -> Path {
    Path::new(&place.to_string())
}

/// What to do with metadata fields of a wrong type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    Refuse,
    Drop,
}

impl Schema {
    /// Checks and cleans the metadata of an object and of objects embedded in it.
    ///
    /// Returns the paths of unknown metadata fields, sorted.
    pub fn coerce_metadata(&self, object: &mut Value, malformed: Malformed) -> Result<Vec<String>, Error> {
        let mut unknown = Unknown::default();
        self.coerce(object, Some(0), true, &Trail::Root, malformed, &mut unknown)?;
        unknown.paths.sort_unstable();
        Ok(unknown.paths)
    }

    /// Checks and cleans the metadata of a value of a level of the schema, which may be an object with metadata of its own.
    pub(super) fn coerce_part(
        &self,
        value: &mut Value,
        id: NodeId,
        is_object: bool,
        malformed: Malformed,
    ) -> Result<(), Error> {
        self.coerce(value, Some(id), is_object, &Trail::Root, malformed, &mut Unknown::default())
    }

    fn coerce(
        &self,
        value: &mut Value,
        id: Option<NodeId>,
        is_object_root: bool,
        path: &Trail<'_>,
        malformed: Malformed,
        unknown: &mut Unknown,
    ) -> Result<(), Error> {
        let node = id.map(|id| self.node(id));
        let embedded = is_object_root || node.is_some_and(|node| node.embedded);
        match value {
            Value::Object(entries) => {
                if embedded {
                    for name in ["apiVersion", "kind"] {
                        match (entries.get(name), malformed) {
                            (None | Some(Value::String(_)), _) => {}
                            (Some(_), Malformed::Drop) => {
                                entries.remove(name);
                            }
                            (Some(value), Malformed::Refuse) => {
                                let at = path_of(&Trail::Field(path, name));
                                return Err(Error::invalid(&at, value.clone(), "must be a string"));
                            }
                        }
                    }
                    if let Some(metadata) = entries.get_mut("metadata") {
                        let path = Trail::Field(path, "metadata");
                        clean(metadata, &path, malformed, unknown)
                            .map_err(|message| Error::invalid(&path_of(&path), metadata.clone(), message))?;
                    }
                }
                let Some(node) = node else { return Ok(()) };
                for (name, value) in entries.iter_mut() {
                    if embedded && name == "metadata" {
                        continue;
                    }
                    if let Some(property) = node.property(name) {
                        self.coerce(
                            value,
                            Some(property),
                            false,
                            &Trail::Field(path, name),
                            malformed,
                            unknown,
                        )?;
                    } else if let Some(field) = node.field(name) {
                        self.coerce(value, Some(field), false, &Trail::Key(path, name), malformed, unknown)?;
                    }
                }
                Ok(())
            }
            Value::Array(items) => {
                let Some(item) = node.and_then(|node| node.items) else { return Ok(()) };
                for (index, value) in items.iter_mut().enumerate() {
                    self.coerce(value, Some(item), false, &Trail::Item(path, index), malformed, unknown)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks embedded objects: `apiVersion` and `kind` present, metadata valid. The root is checked elsewhere.
    pub fn validate_embedded(&self, object: &Value) -> Errors {
        let mut complaints = Complaints::default();
        self.embedded(object, 0, &Trail::Root, &mut complaints);
        complaints.errors
    }

    fn embedded(&self, value: &Value, id: NodeId, path: &Trail<'_>, complaints: &mut Complaints) {
        let node = self.node(id);
        match value {
            Value::Object(entries) => {
                if node.embedded {
                    check_embedded(entries, path, complaints);
                }
                for (name, value) in entries {
                    if let Some(property) = node.property(name) {
                        self.embedded(value, property, &Trail::Field(path, name), complaints);
                    } else if let Some(field) = node.field(name) {
                        self.embedded(value, field, &Trail::Key(path, name), complaints);
                    }
                }
            }
            Value::Array(items) => {
                let Some(item) = node.items else { return };
                for (index, value) in items.iter().enumerate() {
                    self.embedded(value, item, &Trail::Item(path, index), complaints);
                }
            }
            _ => {}
        }
    }
}

fn check_embedded(entries: &Map<String, Value>, path: &Trail<'_>, complaints: &mut Complaints) {
    let at = Trail::Field(path, "apiVersion");
    match entries.get("apiVersion") {
        None => complaints.tell(&at, |at| Error::required(at, "")),
        Some(Value::String(version)) if version.is_empty() => {
            complaints.tell(&at, |at| Error::invalid(at, "", "must not be empty"));
        }
        Some(Value::String(version)) if version.matches('/').count() > 1 => complaints.tell(&at, |at| {
            Error::invalid(at, version.as_str(), format!("unexpected GroupVersion string: {version}"))
        }),
        Some(Value::String(_)) => {}
        Some(other) => complaints.tell(&at, |at| Error::invalid(at, other.clone(), "must be a string")),
    }
    let at = Trail::Field(path, "kind");
    match entries.get("kind") {
        None => complaints.tell(&at, |at| Error::required(at, "")),
        Some(Value::String(kind)) if kind.is_empty() => {
            complaints.tell(&at, |at| Error::invalid(at, "", "must not be empty"));
        }
        Some(Value::String(kind)) => {
            let words = names::dns1035_label(&kind.to_lowercase());
            if !words.is_empty() {
                let words = format!("may have mixed case, but should otherwise match: {}", words.join(","));
                complaints.tell(&at, |at| Error::invalid(at, kind.as_str(), words));
            }
        }
        Some(other) => complaints.tell(&at, |at| Error::invalid(at, other.clone(), "must be a string")),
    }
    let Some(Value::Object(metadata)) = entries.get("metadata") else { return };
    let path = Trail::Field(path, "metadata");
    if let Some(Value::String(name)) = metadata.get("name") {
        for words in names::path_segment(name) {
            complaints.tell(&Trail::Field(&path, "name"), |at| Error::invalid(at, name.as_str(), words));
        }
    }
    if let Some(Value::Object(labels)) = metadata.get("labels") {
        let at = Trail::Field(&path, "labels");
        for (key, value) in labels {
            for words in names::qualified_name(key) {
                complaints.tell(&at, |at| Error::invalid(at, key.as_str(), words));
            }
            for words in names::label_value(value.as_str().unwrap_or_default()) {
                complaints.tell(&at, |at| Error::invalid(at, value.clone(), words));
            }
        }
    }
    if let Some(Value::Object(annotations)) = metadata.get("annotations") {
        let at = Trail::Field(&path, "annotations");
        for key in annotations.keys() {
            for words in names::qualified_name(&key.to_lowercase()) {
                complaints.tell(&at, |at| Error::invalid(at, key.as_str(), words));
            }
        }
    }
}

/// The sorts of values in ObjectMeta.
#[derive(Clone, Copy)]
enum Sort {
    Text,
    Integer,
    Time,
    TextMap,
    TextList,
    Owners,
    Managed,
}

fn sort_of(name: &str) -> Option<Sort> {
    Some(match name {
        "name" | "generateName" | "namespace" | "selfLink" | "uid" | "resourceVersion" => Sort::Text,
        "generation" | "deletionGracePeriodSeconds" => Sort::Integer,
        "creationTimestamp" | "deletionTimestamp" => Sort::Time,
        "labels" | "annotations" => Sort::TextMap,
        "finalizers" => Sort::TextList,
        "ownerReferences" => Sort::Owners,
        "managedFields" => Sort::Managed,
        _ => return None,
    })
}

fn clean(
    metadata: &mut Value,
    path: &Trail<'_>,
    malformed: Malformed,
    unknown: &mut Unknown,
) -> Result<(), String> {
    let Value::Object(fields) = metadata else {
        return Err(mismatch(metadata, "", "v1.ObjectMeta"));
    };
    let mut problem = None;
    fields.retain(|name, value| {
        let Some(sort) = sort_of(name) else {
            unknown.note(&Trail::Field(path, name));
            return false;
        };
        match clean_field(name, sort, value, path, unknown) {
            Ok(keep) => keep,
            Err(message) => {
                if malformed == Malformed::Refuse && problem.is_none() {
                    problem = Some(message);
                    return true;
                }
                false
            }
        }
    });
    problem.map_or(Ok(()), Err)
}

/// Returns whether the field stays; empty values go.
fn clean_field(
    name: &str,
    sort: Sort,
    value: &mut Value,
    path: &Trail<'_>,
    unknown: &mut Unknown,
) -> Result<bool, String> {
    if value.is_null() {
        return Ok(false);
    }
    let wrong = |value: &Value, kind: &str| mismatch(value, name, kind);
    match (sort, &mut *value) {
        (Sort::Text, Value::String(text)) => Ok(!text.is_empty()),
        (Sort::Text, other) => Err(wrong(other, "string")),
        (Sort::Integer, Value::Number(number)) if number.is_i64() => {
            Ok(name == "deletionGracePeriodSeconds" || number.as_i64() != Some(0))
        }
        (Sort::Integer, other) => Err(wrong(other, "int64")),
        (Sort::Time, Value::String(text)) => {
            if super::formats::accepts("date-time", text) {
                Ok(true)
            } else {
                Err(format!(
                    "parsing time {} as \"2006-01-02T15:04:05Z07:00\": cannot parse {} as \"2006\"",
                    crate::go::quote(text),
                    crate::go::quote(text)
                ))
            }
        }
        (Sort::Time, other) => Err(wrong(other, "string")),
        (Sort::TextMap, Value::Object(entries)) => {
            for value in entries.values_mut() {
                match value {
                    Value::String(_) => {}
                    Value::Null => *value = Value::String(String::new()),
                    other => return Err(wrong(other, "string")),
                }
            }
            Ok(!entries.is_empty())
        }
        (Sort::TextMap, other) => Err(wrong(other, "map[string]string")),
        (Sort::TextList, Value::Array(items)) => {
            if let Some(odd) = items.iter().find(|item| !item.is_string()) {
                return Err(wrong(odd, "string"));
            }
            Ok(!items.is_empty())
        }
        (Sort::TextList, other) => Err(wrong(other, "[]string")),
        (Sort::Owners, Value::Array(items)) => {
            let list = Trail::Field(path, name);
            for (index, item) in items.iter_mut().enumerate() {
                clean_owner(item, &Trail::Item(&list, index), unknown)?;
            }
            Ok(!items.is_empty())
        }
        (Sort::Owners, other) => Err(wrong(other, "[]v1.OwnerReference")),
        (Sort::Managed, Value::Array(items)) => Ok(!items.is_empty()),
        (Sort::Managed, other) => Err(wrong(other, "[]v1.ManagedFieldsEntry")),
    }
}

fn clean_owner(owner: &mut Value, path: &Trail<'_>, unknown: &mut Unknown) -> Result<(), String> {
    let Value::Object(fields) = owner else {
        return Err(mismatch(owner, "ownerReferences", "v1.OwnerReference"));
    };
    let mut problem = None;
    fields.retain(|name, value| match (name.as_str(), &*value) {
        ("apiVersion" | "kind" | "name" | "uid", Value::String(_))
        | ("controller" | "blockOwnerDeletion", Value::Bool(_)) => true,
        ("apiVersion" | "kind" | "name" | "uid" | "controller" | "blockOwnerDeletion", Value::Null) => false,
        ("apiVersion" | "kind" | "name" | "uid", other) => {
            problem = Some(mismatch(other, &format!("ownerReferences.{name}"), "string"));
            true
        }
        ("controller" | "blockOwnerDeletion", other) => {
            problem = Some(mismatch(other, &format!("ownerReferences.{name}"), "bool"));
            true
        }
        _ => {
            unknown.note(&Trail::Field(path, name));
            false
        }
    });
    for name in ["apiVersion", "kind", "name", "uid"] {
        fields.entry(name).or_insert_with(|| Value::String(String::new()));
    }
    problem.map_or(Ok(()), Err)
}

fn mismatch(value: &Value, field: &str, wanted: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if field.is_empty() {
        format!("json: cannot unmarshal {found} into Go value of type {wanted}")
    } else {
        format!("json: cannot unmarshal {found} into Go struct field ObjectMeta.{field} of type {wanted}")
    }
}
