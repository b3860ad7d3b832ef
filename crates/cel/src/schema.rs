//! From JSON to values, with the types and names that a schema gives.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::depth::{MAX_DEPTH, TooDeep};
use serde_json::Value as Json;

use crate::functions::time;
use crate::list::List;
use crate::parser::RESERVED;
use crate::value::{Key, Value};

/// Words of the language that cannot be field names in an expression, besides those kept for later.
const WORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Says whether a word has a meaning of its own in the language.
pub(crate) fn is_reserved(word: &str) -> bool {
    WORDS.contains(&word) || RESERVED.contains(&word)
}

/// Returns how an expression names a field; `None` if it cannot.
pub fn escape(name: &str) -> Option<String> {
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::new();
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("__") {
            out.push_str("__underscores__");
            rest = &rest[2..];
            continue;
        }
        match c {
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => out.push(c),
            _ => return None,
        }
        rest = &rest[c.len_utf8()..];
    }
    (!out.starts_with(|c: char| c.is_ascii_digit())).then_some(out)
}

/// What a document that an expression makes may cost in memory, about as much as a request may carry. Values share
/// their parts, so a short expression can stand for a document of any size.
const MAX_DOCUMENT: usize = 3 * 1024 * 1024;

/// Returns a value as a JSON document.
///
/// *Errors*: names a type that JSON cannot hold; the document nests too deep or is too large.
pub fn to_json(value: &Value) -> Result<Json, String> {
    document(value, 0, &mut MAX_DOCUMENT.clone())
}

/// Returns a value that lies inside of `depth` lists and maps; what it costs is taken from `left`.
fn document(value: &Value, depth: usize, left: &mut usize) -> Result<Json, String> {
    let text = match value {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len() / 3 * 4,
        Value::List(_) | Value::Map(_) | Value::Object(_) if depth >= MAX_DEPTH => {
            return Err(TooDeep.to_string());
        }
        _ => 0,
    };
    let mut charge = |bytes: usize| {
        let rest = left.checked_sub(bytes).ok_or_else(|| "the document is too large".to_owned())?;
        *left = rest;
        Ok::<_, String>(())
    };
    charge(64 + text)?;
    if let Value::Map(map) = value {
        map.keys().try_for_each(|key| if let Key::String(key) = key { charge(key.len()) } else { Ok(()) })?;
    }
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(b) => (*b).into(),
        Value::Int(n) => (*n).into(),
        Value::Uint(n) => (*n).into(),
        // A whole number stays one, as in any JSON document.
        Value::Double(n) if n.fract() == 0.0 && n.abs() < 1e15 => (*n as i64).into(),
        Value::Double(n) => (*n).into(),
        Value::String(text) => (**text).into(),
        Value::Bytes(bytes) => {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD.encode(bytes).into()
        }
        Value::Timestamp(time) => time.to_string().into(),
        Value::Duration(length) => format!("{}s", length.as_secs_f64()).into(),
        Value::List(list) => {
            list.iter().map(|item| document(item, depth + 1, left)).collect::<Result<_, _>>()?
        }
        Value::Map(map) => {
            let mut fields = serde_json::Map::new();
            for (key, value) in map.iter() {
                let Key::String(key) = key else {
                    return Err("a key of a map is not a string".to_owned());
                };
                fields.insert(key.to_string(), document(value, depth + 1, left)?);
            }
            fields.into()
        }
        Value::Object(object) => {
            let mut fields = serde_json::Map::new();
            for (name, value) in &object.fields {
                fields.insert(name.clone(), document(value, depth + 1, left)?);
            }
            fields.into()
        }
        Value::Optional(Some(inner)) => document(inner, depth, left)?,
        Value::Optional(None) => Json::Null,
        other => return Err(format!("a value of type {} has no JSON form", other.type_name())),
    })
}

/// Returns a JSON document as a value, names and numbers as they are.
pub fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(number) => number
            .as_i64()
            .map(Value::Int)
            .or_else(|| number.as_u64().map(Value::Uint))
            .unwrap_or_else(|| Value::Double(number.as_f64().unwrap_or(f64::NAN))),
        Json::String(text) => Value::text(text.as_str()),
        Json::Array(items) => Value::list(items.iter().map(from_json).collect()),
        Json::Object(fields) => Value::Map(Arc::new(
            fields.iter().map(|(key, value)| (Key::String(key.as_str().into()), from_json(value))).collect(),
        )),
    }
}

/// Returns a JSON document as a value of a schema: fields by their escaped names, dates and durations as such.
pub fn from_json_with(json: &Json, schema: &Json) -> Value {
    if schema["x-kubernetes-int-or-string"] == true {
        return from_json(json);
    }
    match json {
        Json::Array(items) => {
            let items = items.iter().map(|item| from_json_with(item, &schema["items"])).collect();
            Value::List(Arc::new(List::of_schema(items, schema)))
        }
        Json::Object(fields) => {
            let properties = schema["properties"].as_object();
            let additional = schema.get("additionalProperties").filter(|value| value.is_object());
            let embedded = schema["x-kubernetes-embedded-resource"] == true;
            let mut map = BTreeMap::new();
            for (name, value) in fields {
                let known = properties.and_then(|properties| properties.get(name));
                match (known, additional) {
                    (Some(schema), _) => {
                        // A field that is null is as good as absent.
                        if let Some(name) = escape(name).filter(|_| !value.is_null()) {
                            map.insert(Key::String(name.into()), from_json_with(value, schema));
                        }
                    }
                    (None, Some(schema)) => {
                        map.insert(Key::String(name.as_str().into()), from_json_with(value, schema));
                    }
                    (None, None) => {
                        let metadata = matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                        let name = if embedded || metadata { escape(name) } else { Some(name.clone()) };
                        if let Some(name) = name {
                            map.insert(Key::String(name.into()), from_json(value));
                        }
                    }
                }
            }
            Value::Map(Arc::new(map))
        }
        Json::String(text) => match schema["format"].as_str() {
            Some("date-time" | "datetime") => {
                time::timestamp(text).unwrap_or_else(|| Value::text(text.as_str()))
            }
            Some("date") => {
                time::timestamp(&format!("{text}T00:00:00Z")).unwrap_or_else(|| Value::text(text.as_str()))
            }
            Some("duration") => time::duration(text).unwrap_or_else(|| Value::text(text.as_str())),
            Some("byte") => {
                use base64::Engine;
                base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .map_or_else(|_| Value::text(text.as_str()), |bytes| Value::Bytes(bytes.into()))
            }
            _ => Value::text(text.as_str()),
        },
        Json::Number(number) if schema["type"] == "number" => {
            Value::Double(number.as_f64().unwrap_or(f64::NAN))
        }
        other => from_json(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_identifiers_are_escaped() {
        assert_eq!(escape("namespace").as_deref(), Some("__namespace__"));
        assert_eq!(escape("a-b.c/d").as_deref(), Some("a__dash__b__dot__c__slash__d"));
        assert_eq!(escape("a__b").as_deref(), Some("a__underscores__b"));
        assert_eq!(escape("a b"), None);
    }
}
