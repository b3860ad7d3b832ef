//! Gives a native object the form it has after Go decoded it into its struct and printed it again.
//!
//! In: the tree a client sent. Out: the same tree without unknown fields, nulls and empty values that Go would not
//! print, with the structs Go always prints, with canonical quantities and times. Everything that compares objects
//! (no-op detection, managed fields, generation) relies on it.
//!
//! Decoding errors carry Go's words, since clients show them. Two details of Go's decoder matter: a value of the wrong
//! type is remembered and decoding goes on (the first such error is reported at the end), while a value that a
//! type's own parser refuses (times, quantities, durations) ends decoding at once. Go reads keys in the order of
//! the document, we in the order of the alphabet, so with several errors in one body another one may come first.

use apimachinery::depth::TooDeep;
use apimachinery::gvk::Gvk;
use serde_json::{Map, Value};

use crate::types::{self, Field, Kind, Type, TypeId};

mod empty;
mod literal;
pub mod time;

pub use empty::{empty_lists, hide_empty, show_empty};
pub use literal::base64_decode;
pub(crate) use literal::{float, round_to_milli};

/// Rewrites `value` as Go would print it after decoding it into the kind's struct; returns the paths of unknown
/// fields (`spec.foo`, `spec.containers[0].bar`), which are dropped. At most 100 are listed, as in Go.
///
/// # Errors
/// The text that Go's decoder gives for the first value it cannot take; `value` is then unspecified.
pub fn canonicalise(gvk: &Gvk, value: &mut Value) -> Result<Vec<String>, DecodeError> {
    let ty = types::for_kind(&gvk.group, &gvk.version, &gvk.kind)
        .ok_or_else(|| DecodeError::UnknownKind(gvk.clone()))?;
    // These two groups are stored as JSON, which keeps the difference between an empty and an absent list;
    // all others pass through protobuf, which does not.
    let keep_empty = matches!(&*gvk.group, "apiextensions.k8s.io" | "apiregistration.k8s.io");
    let mut decoder = Decoder { keep_empty, ..Decoder::default() };
    decoder.run(ty, value).map_err(|error| DecodeError::Mismatch(error.to_string()))?;
    name_claim_templates(gvk, value);
    Ok(decoder.unknown)
}

/// Rewrites a value of a type that is not a kind.
pub(crate) fn canonicalise_type(ty: TypeId, value: &mut Value) -> Result<(), DecodeError> {
    Decoder::default().run(ty, value).map_err(|error| DecodeError::Mismatch(error.to_string()))
}

/// Restores the one inner type that Kubernetes prints: its conversion names the claim templates of stateful sets.
pub(crate) fn name_claim_templates(gvk: &Gvk, value: &mut Value) {
    let name = |set: &mut Value| {
        let templates = set.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut);
        for template in templates.into_iter().flatten().filter_map(Value::as_object_mut) {
            template.insert("apiVersion".into(), "v1".into());
            template.insert("kind".into(), "PersistentVolumeClaim".into());
        }
    };
    match (&*gvk.group, &*gvk.kind) {
        ("apps", "StatefulSet") => name(value),
        ("apps", "StatefulSetList") => {
            value.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(name);
        }
        _ => {}
    }
}

/// Why an object cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("no kind {:?} is registered for version {:?}", .0.kind, .0.api_version())]
    UnknownKind(Gvk),
    /// Go's own words.
    #[error("{0}")]
    Mismatch(String),
}

impl DecodeError {
    /// Returns the message kube-apiserver puts around a decoding error.
    pub fn for_request(&self, gvk: &Gvk) -> String {
        format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {self}",
            kind = gvk.kind,
            version = gvk.version
        )
    }
}

/// A decoding error while its place may still be completed by the surrounding decoder.
#[derive(Debug, Clone)]
enum Refusal {
    /// Go's `UnmarshalTypeError`.
    Type {
        value: String,
        go: String,
        owner: String,
        path: String,
    },
    Text(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => out.write_str(text),
            Self::Type { value, go, owner, path } if owner.is_empty() && path.is_empty() => {
                write!(out, "json: cannot unmarshal {value} into Go value of type {go}")
            }
            Self::Type { value, go, owner, path } => {
                write!(out, "json: cannot unmarshal {value} into Go struct field {owner}.{path} of type {go}")
            }
        }
    }
}

/// As many unknown fields as Go remembers.
const MAX_UNKNOWN: usize = 100;

/// The bytes of their paths. A path repeats all keys above, and those of maps are as long as the client likes.
const MAX_UNKNOWN_BYTES: usize = 4 << 20;

/// Only CRD schemas nest without end. Whatever was read keeps to the limit for all objects; pointers count twice here.
const MAX_DEPTH: usize = 2 * apimachinery::depth::MAX_DEPTH;

#[derive(Default)]
struct Decoder {
    keep_empty: bool,
    depth: usize,
    /// The first value of a wrong type.
    saved: Option<Refusal>,
    unknown: Vec<String>,
    /// Of all paths of unknown fields.
    unknown_bytes: usize,
    /// Where we are, as unknown fields are reported: `spec.containers[0]`.
    strict_path: String,
    /// Where we are, as type errors are reported: struct fields only, with the Go names of inlined structs.
    field_path: Vec<&'static str>,
    /// The struct whose field is being decoded.
    owner: Option<&'static Type>,
}

impl Decoder {
    fn run(&mut self, ty: TypeId, value: &mut Value) -> Result<(), Refusal> {
        self.decode(ty, value).map_err(|refusal| self.placed(refusal))?;
        self.saved.take().map_or(Ok(()), Err)
    }

    /// Adds the current place to a type error, in front of what an inner decoder wrote.
    fn placed(&self, refusal: Refusal) -> Refusal {
        match (refusal, self.owner) {
            (Refusal::Type { value, go, path, .. }, Some(owner)) => {
                let mut full = self.field_path.join(".");
                if !path.is_empty() {
                    full.push('.');
                    full.push_str(&path);
                }
                Refusal::Type { value, go, owner: owner.short_name().to_owned(), path: full }
            }
            (refusal, _) => refusal,
        }
    }

    /// Remembers a value of the wrong type, unless an earlier one is remembered, and takes the zero value instead.
    fn mismatch(&mut self, ty: TypeId, value: &mut Value, what: String) {
        if self.saved.is_none() {
            let refusal = Refusal::Type {
                value: what,
                go: ty.get().go.clone().into(),
                owner: String::new(),
                path: String::new(),
            };
            self.saved = Some(self.placed(refusal));
        }
        *value = zero(ty);
    }

    /// Rewrites a value of the given type. `Err` ends decoding.
    fn decode(&mut self, ty: TypeId, value: &mut Value) -> Result<(), Refusal> {
        if self.depth > MAX_DEPTH {
            return Err(Refusal::Text(TooDeep.to_string()));
        }
        self.depth += 1;
        let result = self.decode_type(ty, value);
        self.depth -= 1;
        result
    }

    fn decode_type(&mut self, ty: TypeId, value: &mut Value) -> Result<(), Refusal> {
        let described = ty.get();
        match described.kind {
            Kind::Pointer(to) => match value {
                Value::Null => Ok(()),
                _ => self.decode(to, value),
            },
            Kind::Struct => self.decode_struct(ty, described, value),
            Kind::List { elem, .. } => self.decode_list(ty, elem, value),
            Kind::Map(elem) => self.decode_map(ty, elem, value),
            Kind::String
            | Kind::Bool
            | Kind::Int32
            | Kind::Int64
            | Kind::Uint8
            | Kind::Float64
            | Kind::Bytes => {
                match literal::scalar(described.kind, value) {
                    Ok(()) => {}
                    Err(literal::Wrong::Type(what)) => self.mismatch(ty, value, what),
                    Err(literal::Wrong::Text(text)) => {
                        self.saved.get_or_insert(Refusal::Text(text));
                        *value = zero(ty);
                    }
                }
                Ok(())
            }
            Kind::RawExtension | Kind::FieldsV1 | Kind::Json => Ok(()),
            Kind::SchemaOrArray(schema) => {
                self.decode_schema_or(schema, value, |inner, schema, value| match value {
                    Value::Object(_) => inner.run(schema, value),
                    Value::Array(items) if items.is_empty() => {
                        *value = Value::Null;
                        Ok(())
                    }
                    Value::Array(_) => inner.list_of_schemas(schema, value),
                    _ => {
                        *value = Value::Null;
                        Ok(())
                    }
                })
            }
            Kind::SchemaOrStringArray(schema) => {
                self.decode_schema_or(schema, value, |inner, schema, value| match value {
                    Value::Object(_) => inner.run(schema, value),
                    Value::Array(items) if !items.is_empty() => inner.list_of_strings(value),
                    _ => {
                        *value = Value::Null;
                        Ok(())
                    }
                })
            }
            Kind::SchemaOrBool(schema) => {
                self.decode_schema_or(schema, value, |inner, schema, value| match value {
                    Value::Object(_) => inner.run(schema, value),
                    Value::Bool(_) => Ok(()),
                    _ => Err(Refusal::Text("boolean or JSON schema expected".into())),
                })
            }
            Kind::Time | Kind::MicroTime | Kind::Duration | Kind::Quantity | Kind::IntOrString => {
                literal::special(described.kind, value).map_err(|wrong| match wrong {
                    literal::Wrong::Type(what) => {
                        let go = if described.kind == Kind::IntOrString { "int32" } else { "string" };
                        Refusal::Type {
                            value: what,
                            go: go.into(),
                            owner: String::new(),
                            path: String::new(),
                        }
                    }
                    literal::Wrong::Text(text) => Refusal::Text(text),
                })
            }
        }
    }

    /// Decodes a union of CRD schemas. Its parser is a decoder of its own, which does not report unknown fields.
    fn decode_schema_or(
        &mut self,
        schema: TypeId,
        value: &mut Value,
        with: impl FnOnce(&mut Self, TypeId, &mut Value) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut inner = Self { keep_empty: self.keep_empty, depth: self.depth, ..Self::default() };
        with(&mut inner, schema, value)
    }

    fn list_of_schemas(&mut self, schema: TypeId, value: &mut Value) -> Result<(), Refusal> {
        if let Value::Array(items) = value {
            for item in items {
                self.decode(schema, item).map_err(|refusal| self.placed(refusal))?;
            }
        }
        self.saved.take().map_or(Ok(()), Err)
    }

    fn list_of_strings(&mut self, value: &mut Value) -> Result<(), Refusal> {
        if let Value::Array(items) = value {
            for item in items {
                if let Err(literal::Wrong::Type(value)) = literal::scalar(Kind::String, item) {
                    let go = "string".to_owned();
                    return Err(Refusal::Type { value, go, owner: String::new(), path: String::new() });
                }
            }
        }
        Ok(())
    }

    fn decode_list(&mut self, ty: TypeId, elem: TypeId, value: &mut Value) -> Result<(), Refusal> {
        match value {
            Value::Null => {}
            Value::Array(items) if items.is_empty() => {
                if !self.keep_empty {
                    *value = Value::Null;
                }
            }
            Value::Array(items) => {
                let length = self.strict_path.len();
                for (at, item) in items.iter_mut().enumerate() {
                    use std::fmt::Write as _;
                    write!(self.strict_path, "[{at}]").expect("writing to a string succeeds");
                    self.decode(elem, item)?;
                    self.strict_path.truncate(length);
                }
            }
            _ => {
                let what = literal::json_type(value);
                self.mismatch(ty, value, what);
            }
        }
        Ok(())
    }

    fn decode_map(&mut self, ty: TypeId, elem: TypeId, value: &mut Value) -> Result<(), Refusal> {
        match value {
            Value::Null => {}
            Value::Object(entries) if entries.is_empty() => {
                if !self.keep_empty {
                    *value = Value::Null;
                }
            }
            Value::Object(entries) => {
                let round = elem.get().kind == Kind::Quantity && &*ty.get().go == "v1.ResourceList";
                let length = self.strict_path.len();
                for (key, item) in entries {
                    self.enter(key);
                    self.decode(elem, item)?;
                    if elem.get().kind == Kind::Bytes && item.is_null() {
                        // Protobuf has no absent map value.
                        *item = Value::String(String::new());
                    }
                    if round {
                        round_to_milli(item);
                    }
                    self.strict_path.truncate(length);
                }
            }
            _ => {
                let what = literal::json_type(value);
                self.mismatch(ty, value, what);
            }
        }
        Ok(())
    }

    fn enter(&mut self, key: &str) {
        if !self.strict_path.is_empty() {
            self.strict_path.push('.');
        }
        self.strict_path.push_str(key);
    }

    fn decode_struct(
        &mut self,
        ty: TypeId,
        described: &'static Type,
        value: &mut Value,
    ) -> Result<(), Refusal> {
        let mut given = match value {
            Value::Null => Map::new(),
            Value::Object(given) => std::mem::take(given),
            _ => {
                let what = literal::json_type(value);
                self.mismatch(ty, value, what);
                return Ok(());
            }
        };
        let strict_length = self.strict_path.len();
        let field_length = self.field_path.len();
        let outer = self.owner;
        let nested = outer.is_some();
        let mut printed = Map::new();
        // Both sides are sorted by name, so that one pass over the struct finds every field; what is left is unknown.
        for member in described.members() {
            let field = member.field();
            let Some(mut inner) = given.remove(&*field.name) else {
                if let Some(always) = printed_zero(field) {
                    printed.insert(field.name.to_string(), always);
                }
                continue;
            };
            self.enter(&field.name);
            self.field_path.extend(member.through.iter().map(|name| &**name));
            self.field_path.push(&field.name);
            self.owner = Some(described);
            self.decode(field.ty, &mut inner)?;
            self.owner = outer;
            self.field_path.truncate(field_length);
            self.strict_path.truncate(strict_length);
            // The type of an inner object (in a claim template, say) does not survive protobuf, where it has no number.
            let lost = nested && !member.on_wire && !self.keep_empty;
            if !lost && !is_omitted(field, &inner) {
                printed.insert(field.name.to_string(), inner);
            }
        }
        for key in given.keys() {
            if self.unknown.len() < MAX_UNKNOWN && self.unknown_bytes <= MAX_UNKNOWN_BYTES {
                let path = if self.strict_path.is_empty() {
                    key.clone()
                } else {
                    format!("{}.{key}", self.strict_path)
                };
                self.unknown_bytes = self.unknown_bytes.saturating_add(path.len());
                self.unknown.push(path);
            }
        }
        *value = Value::Object(printed);
        Ok(())
    }
}

/// Returns what Go prints for an absent field, if it prints anything.
pub(crate) fn printed_zero(field: &Field) -> Option<Value> {
    let kind = field.ty.get().kind;
    let is_empty = field.omit_empty && has_empty_form(kind);
    if is_empty || field.omit_zero { None } else { Some(zero(field.ty)) }
}

/// Tells whether Go leaves the field out; `value` is in printed form.
pub(crate) fn is_omitted(field: &Field, value: &Value) -> bool {
    let kind = field.ty.get().kind;
    let empty = match kind {
        // A pointer to zero is something.
        Kind::Pointer(_) => value.is_null(),
        Kind::Map(_) => value.as_object().is_none_or(Map::is_empty),
        kind => has_empty_form(kind) && is_empty(value),
    };
    (field.omit_empty && empty) || (field.omit_zero && is_zero(field.ty, value))
}

/// Tells whether `omitempty` can ever apply; Go never omits structs for it, among them times and quantities.
fn has_empty_form(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::String
            | Kind::Bool
            | Kind::Int32
            | Kind::Int64
            | Kind::Uint8
            | Kind::Float64
            | Kind::Bytes
            | Kind::Pointer(_)
            | Kind::List { .. }
            | Kind::Map(_)
    )
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => false,
    }
}

/// Tells whether a printed value is Go's zero value of its type.
fn is_zero(ty: TypeId, value: &Value) -> bool {
    match ty.get().kind {
        Kind::Pointer(_) | Kind::List { .. } | Kind::Map(_) => value.is_null(),
        _ => *value == zero(ty),
    }
}

/// Returns Go's zero value of a type in printed form.
pub(crate) fn zero(ty: TypeId) -> Value {
    match ty.get().kind {
        Kind::String => Value::String(String::new()),
        Kind::Bool | Kind::SchemaOrBool(_) => Value::Bool(false),
        Kind::Int32 | Kind::Int64 | Kind::Uint8 | Kind::Float64 | Kind::IntOrString => Value::from(0),
        Kind::Duration => Value::String("0s".into()),
        Kind::Quantity => Value::String("0".into()),
        Kind::Bytes
        | Kind::Pointer(_)
        | Kind::List { .. }
        | Kind::Map(_)
        | Kind::Time
        | Kind::MicroTime
        | Kind::RawExtension
        | Kind::FieldsV1
        | Kind::Json
        | Kind::SchemaOrArray(_)
        | Kind::SchemaOrStringArray(_) => Value::Null,
        Kind::Struct => {
            let fields = ty.get().members().iter().map(|member| member.field());
            Value::Object(
                fields.filter_map(|field| Some((field.name.to_string(), printed_zero(field)?))).collect(),
            )
        }
    }
}

#[cfg(test)]
mod tests;
