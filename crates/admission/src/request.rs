//! What admission is asked, what it may use, and how it says no.

use apimachinery::field::{self, Errors, Path};
use apimachinery::object::Object as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use api::features::Features;
use api::go_json;
use api::wire::Wire;

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

/// What mutation may use besides the object.
pub struct Means<'a> {
    /// How the rules are set.
    pub settings: &'a Settings,
    /// The time of the write.
    pub now: Timestamp,
    /// Returns a new random UUID each time it is called; permanent IDs are made of them.
    pub fresh_id: &'a mut dyn FnMut() -> String,
    /// What the user is told although the write is accepted; rules add to it.
    pub warnings: Vec<String>,
}

/// Why a write is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Denial {
    /// The HTTP status code.
    pub code: u16,
    /// The reason for programs; errors of the request itself have none.
    pub reason: Option<&'static str>,
    /// The reason for humans.
    pub message: String,
    /// What is wrong field by field, for the kinds whose refusals carry causes.
    pub causes: Errors,
}

impl Denial {
    /// Returns the refusal of a write that breaks a rule.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { code: 403, reason: Some("Forbidden"), message: message.into(), causes: Errors::new() }
    }

    /// Returns the refusal of a binding that does not fit into a quota. The scheduler knows it by its reason.
    pub fn quota_exceeded(message: impl Into<String>) -> Self {
        Self { reason: Some("QuotaExceeded"), ..Self::forbidden(message) }
    }

    /// Returns the refusal of an object with faults in its fields, as an API server words it.
    pub fn invalid(errors: Errors) -> Self {
        let message = field::aggregate(&errors);
        Self { code: 422, reason: Some("Invalid"), message, causes: errors }
    }

    /// Returns the answer when the rules themselves could not be applied.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: 500, reason: None, message: message.into(), causes: Errors::new() }
    }

    /// Returns the refusal of an object that cannot be read.
    pub fn unreadable(message: impl Into<String>) -> Self {
        Self { code: 400, reason: None, message: message.into(), causes: Errors::new() }
    }
}

/// Refuses if there are errors.
pub(crate) fn deny_if_any(errors: &[field::Error]) -> Result<(), Denial> {
    if errors.is_empty() { Ok(()) } else { Err(Denial::forbidden(field::aggregate(errors))) }
}

/// Returns an error if a list has more items than a limit of ours allows. Objects that were stored before the limit came may be longer:
/// a write that leaves their spec as it is passes, so that labels and finalizers can change and such an object can be deleted.
pub(crate) fn too_many(
    request: &Request<'_>,
    object: &Value,
    path: &Path,
    count: usize,
    most: usize,
) -> Option<field::Error> {
    if count <= most || request.old.is_some_and(|old| old.get("spec") == object.get("spec")) {
        return None;
    }
    Some(field::Error::too_many(path, count, most))
}

/// Reads a part of an object, `spec` or `status`; what is missing reads as the zero value.
pub(crate) fn part<T: DeserializeOwned + Default>(object: &Value, name: &str) -> Result<T, Denial> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(part) => {
            T::deserialize(part).map_err(|error| Denial::unreadable(format!("cannot read {name}: {error}")))
        }
    }
}

/// Reads the spec of an object.
pub(crate) fn spec<T: DeserializeOwned + Default>(object: &Value) -> Result<T, Denial> {
    part(object, "spec")
}

/// Writes the spec of an object back, as Go would: the whole of it, empty structs included.
pub(crate) fn set_spec(object: &mut Value, spec: &impl Serialize) {
    object["spec"] = encode(spec);
}

/// As [`set_spec`]; these required lists become null where they were not written, which the schema then refuses.
pub(crate) fn set_spec_with(object: &mut Value, spec: &impl Serialize, required_lists: &[&str]) {
    let written: Vec<bool> =
        required_lists.iter().map(|list| object["spec"].get(list).is_some_and(Value::is_array)).collect();
    set_spec(object, spec);
    for (list, written) in required_lists.iter().zip(written) {
        if !written && let Some(spec) = object["spec"].as_object_mut() {
            spec.insert((*list).to_owned(), Value::Null);
        }
    }
}

/// Returns the JSON form of a value.
pub(crate) fn encode(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("API types have string keys only")
}

/// Returns an error that shows a whole struct or list as Go's encoder prints it: fields in the order of their
/// declaration, not of their names.
pub(crate) fn invalid(path: &Path, value: &impl Wire, detail: impl Into<String>) -> field::Error {
    field::Error::invalid(path, Value::Null, detail).showing(go_json(value))
}

/// Returns the value of a label.
pub(crate) fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

/// Sets a label, keeping everything else in the metadata as it is.
pub(crate) fn set_label(object: &mut Value, key: &str, value: String) {
    object.set_label(key, &value);
}

/// Adds a finalizer unless it is there.
pub(crate) fn add_finalizer(object: &mut Value, finalizer: &str) {
    let finalizers = object.metadata_mut().entry("finalizers").or_insert(Value::Null);
    match finalizers.as_array_mut() {
        Some(list) if list.iter().any(|entry| entry == finalizer) => {}
        Some(list) => list.push(finalizer.into()),
        None => *finalizers = Value::Array(vec![finalizer.into()]),
    }
}

/// Writes an amount as Go does after reading it: `1000m` becomes `1`.
pub(crate) fn canonical(amount: &mut Quantity) {
    if let Ok(quantity) = apimachinery::quantity::Quantity::parse(&amount.0) {
        amount.0 = quantity.to_string();
    }
}

/// What a test gives to mutation: default settings, the beginning of time.
#[cfg(test)]
pub(crate) fn means(fresh_id: &mut dyn FnMut() -> String) -> Means<'_> {
    static SETTINGS: std::sync::LazyLock<Settings> = std::sync::LazyLock::new(Settings::default);
    Means { settings: &SETTINGS, now: Timestamp::UNIX_EPOCH, fresh_id, warnings: Vec::new() }
}
