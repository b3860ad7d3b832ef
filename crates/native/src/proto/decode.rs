//! Protobuf messages to JSON trees in Go shape.

use std::borrow::Cow;

use apimachinery::depth::{MAX_DEPTH, TooDeep};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::wire::{Raw, Reader};
use super::{Error, MAGIC};
use crate::shape;
use crate::types::{Field, Kind, TypeId};

/// What the envelope says.
pub(super) struct Envelope<'a> {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) raw: &'a [u8],
}

pub(super) fn envelope(bytes: &[u8]) -> Result<Envelope<'_>, Error> {
    let body = bytes.strip_prefix(MAGIC).ok_or(Error::NoEnvelope)?;
    let mut envelope = Envelope { api_version: String::new(), kind: String::new(), raw: &[] };
    let mut reader = Reader::new(body);
    while let Some(field) = reader.next()? {
        match field {
            (1, Raw::Bytes(type_meta)) => {
                let mut reader = Reader::new(type_meta);
                while let Some(field) = reader.next()? {
                    match field {
                        (1, Raw::Bytes(text)) => envelope.api_version = text_of(text).into_owned(),
                        (2, Raw::Bytes(text)) => envelope.kind = text_of(text).into_owned(),
                        _ => {}
                    }
                }
            }
            (2, Raw::Bytes(raw)) => envelope.raw = raw,
            _ => {}
        }
    }
    Ok(envelope)
}

/// Reads a message that lies inside of `depth` others.
pub(super) fn message(ty: TypeId, bytes: &[u8], depth: usize) -> Result<Value, Error> {
    value_of_message(ty, bytes, depth)
}

/// Go does not check its strings; its JSON shows broken ones with replacement characters.
fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Reads a type that is a message on the wire.
fn value_of_message(ty: TypeId, bytes: &[u8], depth: usize) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(TooDeep.into());
    }
    match ty.get().kind {
        Kind::Struct => {
            let mut object = Map::new();
            struct_fields(ty, bytes, &mut object, depth)?;
            for member in ty.get().members() {
                let field = member.field();
                match object.get(&*field.name) {
                    Some(value) if shape::is_omitted(field, value) => {
                        object.remove(&*field.name);
                    }
                    Some(_) => {}
                    None => {
                        if let Some(always) = shape::printed_zero(field) {
                            object.insert(field.name.to_string(), always);
                        }
                    }
                }
            }
            Ok(Value::Object(object))
        }
        Kind::List { elem, message: true } => {
            let mut items = Vec::new();
            let mut reader = Reader::new(bytes);
            while let Some((number, raw)) = reader.next()? {
                if number == 1 {
                    items.push(singular(elem, raw, "items", depth)?);
                }
            }
            Ok(if items.is_empty() { Value::Null } else { Value::Array(items) })
        }
        Kind::Pointer(to) => value_of_message(to, bytes, depth),
        kind => special(kind, bytes, depth),
    }
}

/// Reads the fields of a struct into `object`; inlined structs are messages here, but share the object.
fn struct_fields(
    ty: TypeId,
    bytes: &[u8],
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(TooDeep.into());
    }
    let described = ty.get();
    let mut reader = Reader::new(bytes);
    while let Some((number, raw)) = reader.next()? {
        // Unknown numbers are fields of later versions; they are dropped, as in Go.
        let Some(field) = described.fields.iter().find(|field| field.number == number) else { continue };
        if field.inline {
            let Raw::Bytes(inner) = raw else { return Err(wrong_wire(raw, &field.go_name)) };
            struct_fields(field.ty, inner, object, depth.saturating_add(1))?;
            continue;
        }
        read_field(field, raw, object, depth)?;
    }
    Ok(())
}

fn read_field(
    field: &Field,
    raw: Raw<'_>,
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), Error> {
    match field.ty.get().kind {
        Kind::List { elem, message: false } => {
            let slot = object.entry(&*field.name).or_insert_with(|| Value::Array(Vec::new()));
            let Value::Array(items) = slot else { unreachable!("only this branch writes the field") };
            match (elem.get().kind, raw) {
                // Numbers may come packed, though Go does not write them so.
                (Kind::Int32 | Kind::Int64 | Kind::Bool, Raw::Bytes(packed)) => {
                    let mut reader = Reader::new(packed);
                    while !reader.is_empty() {
                        let number = reader.varint()?;
                        items.push(singular(elem, Raw::Varint(number), &field.name, depth)?);
                    }
                }
                _ => items.push(singular(elem, raw, &field.name, depth)?),
            }
        }
        Kind::Map(elem) => {
            let slot = object.entry(&*field.name).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(entries) = slot else { unreachable!("only this branch writes the field") };
            let Raw::Bytes(entry) = raw else { return Err(wrong_wire(raw, &field.name)) };
            let mut key = String::new();
            let mut value = None;
            let mut reader = Reader::new(entry);
            while let Some((number, raw)) = reader.next()? {
                match (number, raw) {
                    (1, Raw::Bytes(text)) => key = text_of(text).into_owned(),
                    (2, raw) => value = Some(singular(elem, raw, &field.name, depth)?),
                    _ => {}
                }
            }
            let mut value = match (value, elem.get().kind) {
                (Some(value), _) => value,
                (None, Kind::Bytes) => Value::String(String::new()),
                (None, _) => shape::zero(elem),
            };
            if &*field.ty.get().go == "v1.ResourceList" {
                shape::round_to_milli(&mut value);
            }
            entries.insert(key, value);
        }
        _ => {
            let value = singular(field.ty, raw, &field.name, depth)?;
            object.insert(field.name.to_string(), value);
        }
    }
    Ok(())
}

fn singular(ty: TypeId, raw: Raw<'_>, field: &str, depth: usize) -> Result<Value, Error> {
    match (ty.get().kind, raw) {
        (Kind::Pointer(to), raw) => singular(to, raw, field, depth),
        (Kind::String, Raw::Bytes(text)) => Ok(Value::String(text_of(text).into_owned())),
        (Kind::Bytes, Raw::Bytes(bytes)) => Ok(Value::String(STANDARD.encode(bytes))),
        (Kind::Bool, Raw::Varint(number)) => Ok(Value::Bool(number != 0)),
        (Kind::Int32, Raw::Varint(number)) => Ok(Value::from(number as i32)),
        (Kind::Int64, Raw::Varint(number)) => Ok(Value::from(number as i64)),
        (Kind::Uint8, Raw::Varint(number)) => Ok(Value::from(number as u8)),
        (Kind::Float64, Raw::Fixed64(bits)) => Ok(shape::float(f64::from_bits(bits))),
        (
            Kind::String | Kind::Bytes | Kind::Bool | Kind::Int32 | Kind::Int64 | Kind::Uint8 | Kind::Float64,
            raw,
        ) => Err(wrong_wire(raw, field)),
        (_, Raw::Bytes(bytes)) => value_of_message(ty, bytes, depth.saturating_add(1)),
        (_, raw) => Err(wrong_wire(raw, field)),
    }
}

fn wrong_wire(raw: Raw<'_>, field: &str) -> Error {
    Error::WireType { wire: raw.wire(), field: field.to_owned() }
}

/// The messages whose JSON form is not an object of their fields.
fn special(kind: Kind, bytes: &[u8], depth: usize) -> Result<Value, Error> {
    let mut reader = Reader::new(bytes);
    let (mut first, mut second, mut third) = (0_i64, 0_i64, String::new());
    let mut payload: Option<&[u8]> = None;
    match kind {
        Kind::Time | Kind::MicroTime if bytes.is_empty() => Ok(Value::Null),
        Kind::Time | Kind::MicroTime | Kind::Duration | Kind::IntOrString => {
            while let Some(field) = reader.next()? {
                match field {
                    (1, Raw::Varint(number)) => first = number as i64,
                    (2, Raw::Varint(number)) => second = i64::from(number as i32),
                    (3, Raw::Bytes(text)) => third = text_of(text).into_owned(),
                    _ => {}
                }
            }
            Ok(match kind {
                Kind::Time => shape::time::print_seconds(first, 0),
                Kind::MicroTime => shape::time::print_micros(first, second),
                Kind::Duration => Value::String(apimachinery::duration::text(first)),
                _ if first == 0 => Value::from(second),
                _ => Value::String(third),
            })
        }
        Kind::Quantity => {
            while let Some(field) = reader.next()? {
                if let (1, Raw::Bytes(text)) = field {
                    payload = Some(text);
                }
            }
            let text = text_of(payload.unwrap_or(b"0"));
            let canonical = apimachinery::quantity::Quantity::canonical(&text);
            Ok(Value::String(canonical.map_err(|error| Error::Value(error.to_string()))?))
        }
        Kind::RawExtension | Kind::FieldsV1 | Kind::Json => {
            while let Some(field) = reader.next()? {
                if let (1, Raw::Bytes(raw)) = field {
                    payload = Some(raw);
                }
            }
            match payload {
                None | Some([]) => Ok(Value::Null),
                Some(raw) if raw.starts_with(MAGIC) && kind == Kind::RawExtension => {
                    super::decode_inside(raw, None, depth.saturating_add(1)).map(|(_, value)| value)
                }
                Some(raw) => {
                    apimachinery::json::read_value(raw).map_err(|error| Error::Value(error.to_string()))
                }
            }
        }
        Kind::SchemaOrArray(schema) | Kind::SchemaOrStringArray(schema) => {
            let mut one = Value::Null;
            let mut many = Vec::new();
            while let Some(field) = reader.next()? {
                match field {
                    (1, Raw::Bytes(inner)) => one = value_of_message(schema, inner, depth.saturating_add(1))?,
                    (2, Raw::Bytes(inner)) if matches!(kind, Kind::SchemaOrArray(_)) => {
                        many.push(value_of_message(schema, inner, depth.saturating_add(1))?);
                    }
                    (2, Raw::Bytes(inner)) => many.push(Value::String(text_of(inner).into_owned())),
                    _ => {}
                }
            }
            Ok(if many.is_empty() { one } else { Value::Array(many) })
        }
        Kind::SchemaOrBool(schema) => {
            let mut found = Value::Bool(false);
            while let Some(field) = reader.next()? {
                match field {
                    (1, Raw::Varint(number)) if !found.is_object() => found = Value::Bool(number != 0),
                    (2, Raw::Bytes(inner)) => {
                        found = value_of_message(schema, inner, depth.saturating_add(1))?
                    }
                    _ => {}
                }
            }
            Ok(found)
        }
        _ => unreachable!("scalars, lists and maps are not messages"),
    }
}
