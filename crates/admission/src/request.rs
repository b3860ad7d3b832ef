//! What admission is asked, what it may use, and how it says no.

use apimachinery::field;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use api::features::Features;

/// What is about to happen to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is created.
    Create,
    /// It is replaced or patched.
    Update,
    /// It is deleted.
    Delete,
}

/// A write that wants to be admitted. Status writes never come here.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is about to happen.
    pub operation: Operation,
    /// The API group of the object.
    pub group: &'a str,
    /// The version in which the object is written.
    pub version: &'a str,
    /// The kind of the object.
    pub kind: &'a str,
    /// The namespace of the request; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// The stored object, for updates and deletions.
    pub old: Option<&'a Value>,
}

/// How the rules are set.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The features that are on.
    pub features: Features,
    /// Whether a ClusterTaintPolicy may set taints that drive workloads away.
    pub allow_no_execute_taint_policy: bool,
}

/// Why a write is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The HTTP status code.
    pub code: u16,
    /// The reason for programs; errors of the request itself have none.
    pub reason: Option<&'static str>,
    /// The reason for humans.
    pub message: String,
}

impl Denial {
    /// Returns the refusal of a write that breaks a rule.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { code: 403, reason: Some("Forbidden"), message: message.into() }
    }

    /// Returns the refusal of an object that cannot be read.
    pub fn unreadable(message: impl Into<String>) -> Self {
        Self { code: 400, reason: None, message: message.into() }
    }
}

/// Refuses if there are errors.
pub(crate) fn deny_if_any(errors: &[field::Error]) -> Result<(), Denial> {
    if errors.is_empty() { Ok(()) } else { Err(Denial::forbidden(field::aggregate(errors))) }
}

/// Reads the spec of an object.
pub(crate) fn spec<T: DeserializeOwned + Default>(object: &Value) -> Result<T, Denial> {
    match object.get("spec") {
        None | Some(Value::Null) => Ok(T::default()),
        Some(spec) => {
            T::deserialize(spec).map_err(|error| Denial::unreadable(format!("cannot read spec: {error}")))
        }
    }
}

/// Writes the spec of an object back, as Go would: the whole of it, empty structs included.
pub(crate) fn set_spec(object: &mut Value, spec: &impl Serialize) {
    object["spec"] = encode(spec);
}

/// Returns the JSON form of a value, for objects and error messages.
pub(crate) fn encode(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("API types have string keys only")
}

/// Returns the value of a label.
pub(crate) fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

/// Sets a label, keeping everything else in the metadata as it is.
pub(crate) fn set_label(object: &mut Value, key: &str, value: String) {
    let labels = &mut object["metadata"]["labels"];
    if !labels.is_object() {
        *labels = Value::Object(Map::new());
    }
    labels[key] = value.into();
}

/// Adds a finalizer unless it is there.
pub(crate) fn add_finalizer(object: &mut Value, finalizer: &str) {
    let finalizers = &mut object["metadata"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(list) if list.iter().any(|entry| entry == finalizer) => {}
        Some(list) => list.push(finalizer.into()),
        None => *finalizers = Value::Array(vec![finalizer.into()]),
    }
}
