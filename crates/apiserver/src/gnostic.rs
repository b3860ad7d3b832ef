//! Writes the swagger document as gnostic protobuf, which older kubectl and Argo CD request.
//!
//! A table for each message says which JSON key goes into which field. Vendor extensions are written as YAML text. There are
//! tables only for the messages in Kubernetes' documents.

use serde_json::{Map, Value};

/// How the value of a JSON key is written.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Texts,
    Bool,
    Integer,
    Double,
    /// Any JSON, as YAML text in a separate message.
    Any,
    Anys,
    One(&'static Message),
    Many(&'static Message),
    /// An object whose keys become names: `{name: 1, value: 2}` in the given field of a wrapper message.
    Named {
        wrapper_field: u32,
        value: &'static Message,
    },
    /// A message inside another one with this field number.
    Wrapped {
        field: u32,
        message: &'static Message,
    },
    /// A type or a list of types.
    Types,
    Additional,
    Security,
    SecurityDefinitions,
}

/// Returns the fields to descend through and the message that describes the content.
type Choice = fn(&Value) -> (&'static [u32], &'static Message);

struct Message {
    fields: &'static [(&'static str, u32, Kind)],
    /// The field of `x-…` keys; 0 if the message has none.
    extensions: u32,
    /// Chooses the message by the content: parameters and responses.
    choice: Option<Choice>,
}

const fn message(fields: &'static [(&'static str, u32, Kind)], extensions: u32) -> Message {
    Message { fields, extensions, choice: None }
}

static DOCUMENT: Message = message(
    &[
        ("swagger", 1, Kind::Text),
        ("info", 2, Kind::One(&INFO)),
        ("host", 3, Kind::Text),
        ("basePath", 4, Kind::Text),
        ("schemes", 5, Kind::Texts),
        ("consumes", 6, Kind::Texts),
        ("produces", 7, Kind::Texts),
        ("paths", 8, Kind::Named { wrapper_field: 2, value: &PATH }),
        ("definitions", 9, Kind::Named { wrapper_field: 1, value: &SCHEMA }),
        ("parameters", 10, Kind::Named { wrapper_field: 1, value: &PARAMETER }),
        ("security", 12, Kind::Security),
        ("securityDefinitions", 13, Kind::SecurityDefinitions),
    ],
    16,
);

static INFO: Message =
    message(&[("title", 1, Kind::Text), ("version", 2, Kind::Text), ("description", 3, Kind::Text)], 7);

static PATH: Message = message(
    &[
        ("$ref", 1, Kind::Text),
        ("get", 2, Kind::One(&OPERATION)),
        ("put", 3, Kind::One(&OPERATION)),
        ("post", 4, Kind::One(&OPERATION)),
        ("delete", 5, Kind::One(&OPERATION)),
        ("options", 6, Kind::One(&OPERATION)),
        ("head", 7, Kind::One(&OPERATION)),
        ("patch", 8, Kind::One(&OPERATION)),
        ("parameters", 9, Kind::Many(&PARAMETER_ITEM)),
    ],
    10,
);

static OPERATION: Message = message(
    &[
        ("tags", 1, Kind::Texts),
        ("summary", 2, Kind::Text),
        ("description", 3, Kind::Text),
        ("operationId", 5, Kind::Text),
        ("produces", 6, Kind::Texts),
        ("consumes", 7, Kind::Texts),
        ("parameters", 8, Kind::Many(&PARAMETER_ITEM)),
        ("responses", 9, Kind::Named { wrapper_field: 1, value: &RESPONSE_VALUE }),
        ("schemes", 10, Kind::Texts),
        ("deprecated", 11, Kind::Bool),
    ],
    13,
);

static PARAMETER_ITEM: Message = Message { fields: &[], extensions: 0, choice: Some(parameter_item) };
static PARAMETER: Message = Message { fields: &[], extensions: 0, choice: Some(parameter) };
static RESPONSE_VALUE: Message = Message { fields: &[], extensions: 0, choice: Some(response_value) };

fn parameter_item(value: &Value) -> (&'static [u32], &'static Message) {
    if value.get("$ref").is_some() { (&[2], &REFERENCE) } else { (&[1], &PARAMETER) }
}

fn parameter(value: &Value) -> (&'static [u32], &'static Message) {
    match value.get("in").and_then(Value::as_str) {
        Some("body") => (&[1], &BODY_PARAMETER),
        Some("header") => (&[2, 1], &HEADER_PARAMETER),
        Some("path") => (&[2, 4], &HEADER_PARAMETER),
        _ => (&[2, 3], &QUERY_PARAMETER),
    }
}

fn response_value(value: &Value) -> (&'static [u32], &'static Message) {
    if value.get("$ref").is_some() { (&[2], &REFERENCE) } else { (&[1], &RESPONSE) }
}

static REFERENCE: Message = message(&[("$ref", 1, Kind::Text), ("description", 2, Kind::Text)], 0);

static BODY_PARAMETER: Message = message(
    &[
        ("description", 1, Kind::Text),
        ("name", 2, Kind::Text),
        ("in", 3, Kind::Text),
        ("required", 4, Kind::Bool),
        ("schema", 5, Kind::One(&SCHEMA)),
    ],
    6,
);

static HEADER_PARAMETER: Message = message(
    &[
        ("required", 1, Kind::Bool),
        ("in", 2, Kind::Text),
        ("description", 3, Kind::Text),
        ("name", 4, Kind::Text),
        ("type", 5, Kind::Text),
        ("format", 6, Kind::Text),
        ("uniqueItems", 19, Kind::Bool),
    ],
    22,
);

static QUERY_PARAMETER: Message = message(
    &[
        ("required", 1, Kind::Bool),
        ("in", 2, Kind::Text),
        ("description", 3, Kind::Text),
        ("name", 4, Kind::Text),
        ("type", 6, Kind::Text),
        ("format", 7, Kind::Text),
        ("uniqueItems", 20, Kind::Bool),
    ],
    23,
);

static RESPONSE: Message = message(
    &[("description", 1, Kind::Text), ("schema", 2, Kind::Wrapped { field: 1, message: &SCHEMA })],
    5,
);

static SCHEMA: Message = message(
    &[
        ("$ref", 1, Kind::Text),
        ("format", 2, Kind::Text),
        ("title", 3, Kind::Text),
        ("description", 4, Kind::Text),
        ("default", 5, Kind::Any),
        ("multipleOf", 6, Kind::Double),
        ("maximum", 7, Kind::Double),
        ("exclusiveMaximum", 8, Kind::Bool),
        ("minimum", 9, Kind::Double),
        ("exclusiveMinimum", 10, Kind::Bool),
        ("maxLength", 11, Kind::Integer),
        ("minLength", 12, Kind::Integer),
        ("pattern", 13, Kind::Text),
        ("maxItems", 14, Kind::Integer),
        ("minItems", 15, Kind::Integer),
        ("uniqueItems", 16, Kind::Bool),
        ("maxProperties", 17, Kind::Integer),
        ("minProperties", 18, Kind::Integer),
        ("required", 19, Kind::Texts),
        ("enum", 20, Kind::Anys),
        ("additionalProperties", 21, Kind::Additional),
        ("type", 22, Kind::Types),
        ("items", 23, Kind::Wrapped { field: 1, message: &SCHEMA }),
        ("allOf", 24, Kind::Many(&SCHEMA)),
        ("properties", 25, Kind::Named { wrapper_field: 1, value: &SCHEMA }),
        ("example", 30, Kind::Any),
    ],
    31,
);

/// Returns the document as a protobuf message.
pub(crate) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 << 20);
    write(&mut out, &DOCUMENT, document);
    out
}

fn write(out: &mut Vec<u8>, message: &Message, value: &Value) {
    if let Some(choice) = message.choice {
        let (path, chosen) = choice(value);
        let mut inner = Vec::new();
        write(&mut inner, chosen, value);
        for field in path.iter().rev() {
            let mut outer = Vec::with_capacity(inner.len().saturating_add(8));
            bytes(&mut outer, *field, &inner);
            inner = outer;
        }
        out.extend_from_slice(&inner);
        return;
    }
    let empty = Map::new();
    let object = value.as_object().unwrap_or(&empty);
    for (key, number, kind) in message.fields {
        if let Some(value) = object.get(*key) {
            field(out, *number, *kind, value);
        }
    }
    if message.extensions > 0 {
        for (key, value) in object.iter().filter(|(key, _)| key.starts_with("x-")) {
            let mut named = Vec::new();
            bytes(&mut named, 1, key.as_bytes());
            bytes(&mut named, 2, &any(value));
            bytes(out, message.extensions, &named);
        }
    }
}

fn field(out: &mut Vec<u8>, number: u32, kind: Kind, value: &Value) {
    match kind {
        Kind::Text => {
            if let Some(text) = value.as_str() {
                bytes(out, number, text.as_bytes());
            }
        }
        Kind::Texts => texts(out, number, value),
        Kind::Bool => {
            if value.as_bool() == Some(true) {
                tag(out, number, 0);
                out.push(1);
            }
        }
        Kind::Integer => {
            if let Some(integer) = value.as_i64() {
                tag(out, number, 0);
                varint(out, integer.cast_unsigned());
            }
        }
        Kind::Double => {
            if let Some(double) = value.as_f64() {
                tag(out, number, 1);
                out.extend_from_slice(&double.to_le_bytes());
            }
        }
        Kind::Any => bytes(out, number, &any(value)),
        Kind::Anys => {
            for item in value.as_array().into_iter().flatten() {
                bytes(out, number, &any(item));
            }
        }
        Kind::One(message) => bytes(out, number, &encoded(message, value)),
        Kind::Many(message) => {
            for item in value.as_array().into_iter().flatten() {
                bytes(out, number, &encoded(message, item));
            }
        }
        Kind::Named { wrapper_field, value: message } => {
            let mut wrapper = Vec::new();
            for (name, item) in value.as_object().into_iter().flatten() {
                let mut named = Vec::new();
                bytes(&mut named, 1, name.as_bytes());
                bytes(&mut named, 2, &encoded(message, item));
                bytes(&mut wrapper, wrapper_field, &named);
            }
            bytes(out, number, &wrapper);
        }
        Kind::Wrapped { field, message } => {
            let mut wrapper = Vec::new();
            bytes(&mut wrapper, field, &encoded(message, value));
            bytes(out, number, &wrapper);
        }
        Kind::Types => {
            let mut wrapper = Vec::new();
            match value.as_str() {
                Some(text) => bytes(&mut wrapper, 1, text.as_bytes()),
                None => texts(&mut wrapper, 1, value),
            }
            bytes(out, number, &wrapper);
        }
        Kind::Additional => {
            let mut wrapper = Vec::new();
            match value.as_bool() {
                Some(allowed) => {
                    tag(&mut wrapper, 2, 0);
                    wrapper.push(u8::from(allowed));
                }
                None => bytes(&mut wrapper, 1, &encoded(&SCHEMA, value)),
            }
            bytes(out, number, &wrapper);
        }
        Kind::Security => {
            for requirement in value.as_array().into_iter().flatten() {
                let mut wrapper = Vec::new();
                for (name, scopes) in requirement.as_object().into_iter().flatten() {
                    let mut list = Vec::new();
                    texts(&mut list, 1, scopes);
                    let mut named = Vec::new();
                    bytes(&mut named, 1, name.as_bytes());
                    bytes(&mut named, 2, &list);
                    bytes(&mut wrapper, 1, &named);
                }
                bytes(out, number, &wrapper);
            }
        }
        Kind::SecurityDefinitions => {
            let mut wrapper = Vec::new();
            for (name, definition) in value.as_object().into_iter().flatten() {
                // Kubernetes has one, an API key.
                let mut key = Vec::new();
                for (number, field) in [(1, "type"), (2, "name"), (3, "in"), (4, "description")] {
                    if let Some(text) = definition.get(field).and_then(Value::as_str) {
                        bytes(&mut key, number, text.as_bytes());
                    }
                }
                let mut item = Vec::new();
                bytes(&mut item, 2, &key);
                let mut named = Vec::new();
                bytes(&mut named, 1, name.as_bytes());
                bytes(&mut named, 2, &item);
                bytes(&mut wrapper, 1, &named);
            }
            bytes(out, number, &wrapper);
        }
    }
}

fn encoded(message: &Message, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, message, value);
    out
}

fn any(value: &Value) -> Vec<u8> {
    let text = crate::yaml::print(value);
    let mut out = Vec::new();
    bytes(&mut out, 2, text.as_bytes());
    out
}

fn texts(out: &mut Vec<u8>, number: u32, value: &Value) {
    for text in value.as_array().into_iter().flatten().filter_map(Value::as_str) {
        bytes(out, number, text.as_bytes());
    }
}

fn bytes(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    tag(out, number, 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn tag(out: &mut Vec<u8>, number: u32, wire: u32) {
    varint(out, u64::from(number << 3 | wire));
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_is_written_field_by_field() {
        // definitions (9) → named (1) → name "A", value → type (22) → value "object".
        let document = json!({"definitions": {"A": {"type": "object"}}});
        let wanted: &[u8] = &[
            0x4a, 18, 0x0a, 16, 0x0a, 1, b'A', 0x12, 11, 0xb2, 0x01, 8, 0x0a, 6, b'o', b'b', b'j', b'e',
            b'c', b't',
        ];
        assert_eq!(encode(&document), wanted);
    }
}
