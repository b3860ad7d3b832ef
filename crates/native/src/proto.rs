//! Kubernetes' protobuf form of native objects: an envelope that names the type, around the kind's own message.
//!
//! The transcoder is driven by the type table and works on the same JSON trees as everything else; what it decodes is
//! in Go shape already. The trap is the difference between zero and absent: Go writes every field that is not a
//! pointer, zero or not, and JSON's `omitempty` drops zeros again, while a pointer to zero means something. Only the
//! Go types tell the two apart, which is why the table comes from them and not from the `.proto` files.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use apimachinery::depth::{self, TooDeep};
use apimachinery::gvk::Gvk;
use serde_json::Value;

use crate::{shape, types};

mod decode;
mod encode;
mod wire;

/// The first bytes of every enveloped object.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// The media type of enveloped objects.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Reads an enveloped object; the result carries `apiVersion` and `kind` and is in Go shape.
///
/// # Errors
/// If the bytes are not an envelope, name a kind without a table, or break off.
pub fn decode(bytes: &[u8]) -> Result<(Gvk, Value), Error> {
    decode_as(bytes, None)
}

/// Reads an enveloped object; `default` stands in for what the envelope leaves unsaid about the type.
///
/// # Errors
/// As [`decode`].
pub fn decode_as(bytes: &[u8], default: Option<&Gvk>) -> Result<(Gvk, Value), Error> {
    let (gvk, value) = decode_inside(bytes, default, 0)?;
    Ok((gvk, depth::accept(value)?))
}

/// As [`decode_as`], for an envelope that lies inside of `depth` messages.
fn decode_inside(bytes: &[u8], default: Option<&Gvk>, depth: usize) -> Result<(Gvk, Value), Error> {
    let envelope = decode::envelope(bytes)?;
    let mut gvk = Gvk::from_api_version(&envelope.api_version, &envelope.kind);
    if let Some(default) = default {
        if gvk.kind.is_empty() {
            gvk.kind.clone_from(&default.kind);
        }
        if gvk.version.is_empty() {
            gvk.version.clone_from(&default.version);
            gvk.group.clone_from(&default.group);
        }
    }
    let ty = types::for_kind(&gvk.group, &gvk.version, &gvk.kind)
        .ok_or_else(|| Error::UnknownKind(gvk.clone()))?;
    let mut value = decode::message(ty, envelope.raw, depth)?;
    shape::name_claim_templates(&gvk, &mut value);
    if let Value::Object(object) = &mut value {
        object.insert("apiVersion".into(), Value::String(gvk.api_version()));
        object.insert("kind".into(), Value::String(gvk.kind.clone()));
    }
    Ok((gvk, value))
}

/// Returns the type an envelope names without reading the object.
///
/// # Errors
/// If the bytes are not an envelope.
pub fn peek(bytes: &[u8]) -> Result<Gvk, Error> {
    let envelope = decode::envelope(bytes)?;
    Ok(Gvk::from_api_version(&envelope.api_version, &envelope.kind))
}

/// Writes an object, a list of a native kind, a `Status` or a `PartialObjectMetadata(List)` as an enveloped message.
///
/// # Errors
/// If the kind has no table or a value does not have the type of its field.
pub fn encode(gvk: &Gvk, value: &Value) -> Result<Vec<u8>, Error> {
    // What stands for objects is the same in both of its versions.
    let version = if gvk.group == "meta.k8s.io" { "v1" } else { &gvk.version };
    let ty =
        types::for_kind(&gvk.group, version, &gvk.kind).ok_or_else(|| Error::UnknownKind(gvk.clone()))?;
    encode::envelope(gvk, &encode::message(ty, value)?)
}

/// Writes one frame of a watch: the length, then the event around an already enveloped object.
pub fn watch_frame(event: &str, enveloped: &[u8]) -> Vec<u8> {
    encode::watch_frame(event, enveloped)
}

/// Tells whether bytes look like an enveloped object, as the store does when it reads a value.
pub fn is_enveloped(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Why bytes cannot be read or an object cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoEnvelope,
    #[error("no kind {:?} is registered for version {:?}", .0.kind, .0.api_version())]
    UnknownKind(Gvk),
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WireType { wire: u8, field: String },
    #[error("proto: illegal tag {0}")]
    Tag(u64),
    #[error(transparent)]
    Depth(#[from] TooDeep),
    /// A value whose own parser refuses it: quantities, embedded JSON.
    #[error("{0}")]
    Value(String),
    #[error("field {field} holds {found}, which is not a {expected}")]
    Mismatch { field: String, found: &'static str, expected: String },
}
