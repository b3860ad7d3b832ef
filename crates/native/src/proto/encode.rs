//! JSON trees to protobuf messages, byte for byte as Go writes them: fields by number, maps by key, every field that
//! is not a pointer present.

use apimachinery::gvk::Gvk;
use serde_json::{Map, Value};

use super::wire::{FIXED64, put_bytes, put_int, put_tag};
use super::{Error, MAGIC};
use crate::shape;
use crate::types::{Kind, TypeId};

pub(super) fn envelope(gvk: &Gvk, raw: &[u8]) -> Result<Vec<u8>, Error> {
    let mut type_meta = Vec::new();
    put_bytes(&mut type_meta, 1, gvk.api_version().as_bytes());
    put_bytes(&mut type_meta, 2, gvk.kind.as_bytes());
    let mut out = Vec::with_capacity(raw.len().saturating_add(type_meta.len()).saturating_add(20));
    out.extend_from_slice(MAGIC);
    put_bytes(&mut out, 1, &type_meta);
    put_bytes(&mut out, 2, raw);
    put_bytes(&mut out, 3, b"");
    put_bytes(&mut out, 4, b"");
    Ok(out)
}

pub(super) fn watch_frame(event: &str, enveloped: &[u8]) -> Vec<u8> {
    let mut object = Vec::with_capacity(enveloped.len().saturating_add(8));
    put_bytes(&mut object, 1, enveloped);
    let mut out = vec![0; 4];
    put_bytes(&mut out, 1, event.as_bytes());
    put_bytes(&mut out, 2, &object);
    let length = u32::try_from(out.len().saturating_sub(4)).unwrap_or(u32::MAX);
    if let Some(prefix) = out.first_chunk_mut() {
        *prefix = length.to_be_bytes();
    }
    out
}

/// Writes a type that is a message on the wire.
pub(super) fn message(ty: TypeId, value: &Value) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    match ty.get().kind {
        Kind::Struct => {
            let empty = Map::new();
            let object = match value {
                Value::Object(object) => object,
                Value::Null => &empty,
                other => return Err(mismatch(ty, other)),
            };
            struct_fields(ty, object, &mut out)?;
        }
        Kind::List { elem, message: true } => {
            if let Value::Array(items) = value {
                for item in items {
                    field(1, elem, Some(item), &mut out)?;
                }
            }
        }
        Kind::Pointer(to) => return message(to, value),
        kind => special(kind, ty, value, &mut out)?,
    }
    Ok(out)
}

fn struct_fields(ty: TypeId, object: &Map<String, Value>, out: &mut Vec<u8>) -> Result<(), Error> {
    let mut fields: Vec<_> = ty.get().fields.iter().filter(|field| field.number != 0).collect();
    fields.sort_unstable_by_key(|field| field.number);
    for described in fields {
        if described.inline {
            let mut inner = Vec::new();
            struct_fields(described.ty, object, &mut inner)?;
            put_bytes(out, described.number, &inner);
        } else {
            field(described.number, described.ty, object.get(&*described.name), out).map_err(|error| {
                match error {
                    Error::Mismatch { field, found, expected } => {
                        let field = if field.is_empty() {
                            described.name.to_string()
                        } else {
                            format!("{}.{field}", described.name)
                        };
                        Error::Mismatch { field, found, expected }
                    }
                    other => other,
                }
            })?;
        }
    }
    Ok(())
}

fn field(number: u32, ty: TypeId, value: Option<&Value>, out: &mut Vec<u8>) -> Result<(), Error> {
    let value = value.unwrap_or(&Value::Null);
    match ty.get().kind {
        Kind::Pointer(_) if value.is_null() => {}
        Kind::Pointer(to) => field(number, to, Some(value), out)?,
        Kind::String => match value {
            Value::Null => put_bytes(out, number, b""),
            Value::String(text) => put_bytes(out, number, text.as_bytes()),
            other => return Err(mismatch(ty, other)),
        },
        Kind::Bool => match value {
            Value::Null => put_int(out, number, 0),
            Value::Bool(flag) => put_int(out, number, i64::from(*flag)),
            other => return Err(mismatch(ty, other)),
        },
        Kind::Int32 | Kind::Int64 | Kind::Uint8 => match value {
            Value::Null => put_int(out, number, 0),
            other => put_int(out, number, other.as_i64().ok_or_else(|| mismatch(ty, other))?),
        },
        Kind::Float64 => {
            let float =
                if value.is_null() { 0.0 } else { value.as_f64().ok_or_else(|| mismatch(ty, value))? };
            put_tag(out, number, FIXED64);
            out.extend_from_slice(&float.to_bits().to_le_bytes());
        }
        Kind::Bytes => match value {
            Value::Null => {}
            Value::String(text) => put_bytes(out, number, &shape::base64_decode(text).map_err(Error::Value)?),
            other => return Err(mismatch(ty, other)),
        },
        Kind::List { message: true, .. } if value.is_null() => {}
        Kind::List { elem, message: false } => match value {
            Value::Null => {}
            Value::Array(items) => {
                for item in items {
                    field(number, elem, Some(item), out)?;
                }
            }
            other => return Err(mismatch(ty, other)),
        },
        Kind::Map(elem) => match value {
            Value::Null => {}
            Value::Object(entries) => {
                for (key, item) in entries {
                    let mut entry = Vec::new();
                    put_bytes(&mut entry, 1, key.as_bytes());
                    if matches!(elem.get().kind, Kind::List { .. }) {
                        put_bytes(&mut entry, 2, &message(elem, item)?);
                    } else {
                        field(2, elem, Some(item), &mut entry)?;
                    }
                    put_bytes(out, number, &entry);
                }
            }
            other => return Err(mismatch(ty, other)),
        },
        _ => put_bytes(out, number, &message(ty, value)?),
    }
    Ok(())
}

/// The messages whose JSON form is not an object of their fields.
fn special(kind: Kind, ty: TypeId, value: &Value, out: &mut Vec<u8>) -> Result<(), Error> {
    match (kind, value) {
        (Kind::Time | Kind::MicroTime, Value::Null) => {}
        (Kind::Time, Value::String(text)) => {
            let seconds = shape::time::seconds(text).ok_or_else(|| mismatch(ty, value))?;
            put_int(out, 1, seconds);
            put_int(out, 2, 0);
        }
        (Kind::MicroTime, Value::String(text)) => {
            let (seconds, nanos) = shape::time::micros(text).ok_or_else(|| mismatch(ty, value))?;
            put_int(out, 1, seconds);
            put_int(out, 2, nanos);
        }
        (Kind::Duration, Value::Null) => put_int(out, 1, 0),
        (Kind::Duration, Value::String(text)) => {
            put_int(out, 1, apimachinery::duration::nanos(text).map_err(Error::Value)?);
        }
        (Kind::Quantity, Value::Null) => put_bytes(out, 1, b"0"),
        (Kind::Quantity, Value::String(text)) => put_bytes(out, 1, text.as_bytes()),
        (Kind::IntOrString, Value::Null | Value::Number(_)) => {
            put_int(out, 1, 0);
            put_int(out, 2, value.as_i64().unwrap_or(0));
            put_bytes(out, 3, b"");
        }
        (Kind::IntOrString, Value::String(text)) => {
            put_int(out, 1, 1);
            put_int(out, 2, 0);
            put_bytes(out, 3, text.as_bytes());
        }
        (Kind::RawExtension | Kind::FieldsV1 | Kind::Json, Value::Null) => {}
        (Kind::RawExtension | Kind::FieldsV1 | Kind::Json, any) => {
            put_bytes(out, 1, any.to_string().as_bytes());
        }
        (Kind::SchemaOrArray(_) | Kind::SchemaOrStringArray(_), Value::Null) => {}
        (Kind::SchemaOrArray(schema) | Kind::SchemaOrStringArray(schema), Value::Object(_)) => {
            put_bytes(out, 1, &message(schema, value)?);
        }
        (Kind::SchemaOrArray(schema), Value::Array(items)) => {
            for item in items {
                put_bytes(out, 2, &message(schema, item)?);
            }
        }
        (Kind::SchemaOrStringArray(_), Value::Array(items)) => {
            for item in items {
                put_bytes(out, 2, item.as_str().ok_or_else(|| mismatch(ty, item))?.as_bytes());
            }
        }
        (Kind::SchemaOrBool(_), Value::Null) => put_int(out, 1, 0),
        (Kind::SchemaOrBool(_), Value::Bool(allows)) => put_int(out, 1, i64::from(*allows)),
        (Kind::SchemaOrBool(schema), Value::Object(_)) => {
            put_int(out, 1, 1);
            put_bytes(out, 2, &message(schema, value)?);
        }
        (_, other) => return Err(mismatch(ty, other)),
    }
    Ok(())
}

fn mismatch(ty: TypeId, found: &Value) -> Error {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    Error::Mismatch { field: String::new(), found, expected: ty.get().go.to_string() }
}
