//! A JSON document that keeps the order of its members and the spelling of its numbers.
//!
//! Embedded documents belong to the user: a patch must not reorder them or turn `1.0` into `1`. Whitespace goes,
//! and the characters that Go escapes for the sake of HTML are escaped. It nests no deeper than any other object.

use std::fmt;

use apimachinery::depth::{MAX_DEPTH, TooDeep};
use apimachinery::patch::json::Tree;
use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Document {
    /// The text of a string, number, boolean or null.
    Scalar(String),
    Array(Vec<Document>),
    Object(IndexMap<String, Document>),
}

impl Document {
    pub(super) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let raw: &RawValue = serde_json::from_str(text)?;
        Self::from_raw(raw, 0)
    }

    /// Reads a value that lies inside of `depth` others.
    fn from_raw(raw: &RawValue, depth: usize) -> Result<Self, serde_json::Error> {
        let text = raw.get();
        if text.starts_with(['{', '[']) && depth >= MAX_DEPTH {
            return Err(serde_json::Error::custom(TooDeep));
        }
        Ok(match text.as_bytes().first() {
            Some(b'{') => {
                let Members(members) = serde_json::from_str(text)?;
                let mut object = IndexMap::with_capacity(members.len());
                for (key, value) in members {
                    object.insert(key, Self::from_raw(value, depth.saturating_add(1))?);
                }
                Self::Object(object)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text)?;
                let items = items.into_iter().map(|item| Self::from_raw(item, depth.saturating_add(1)));
                Self::Array(items.collect::<Result<_, _>>()?)
            }
            _ => Self::Scalar(text.to_owned()),
        })
    }

    pub(super) fn print(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Scalar(text) => escape(text, out),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (index, (key, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    out.push_str(&quote(key));
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// Returns the text as a JSON string in Go's spelling.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::new();
    escape(&Value::from(text).to_string(), &mut out);
    out
}

fn escape(json: &str, out: &mut String) {
    for character in json.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            other => out.push(other),
        }
    }
}

impl Tree for Document {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Array(items) => Self::Array(items.iter().map(Self::from_value).collect()),
            Value::Object(map) => {
                Self::Object(map.iter().map(|(key, value)| (key.clone(), Self::from_value(value))).collect())
            }
            scalar => Self::Scalar(scalar.to_string()),
        }
    }

    fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    fn member(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.get(key),
            _ => None,
        }
    }

    fn member_mut(&mut self, key: &str) -> Option<&mut Self> {
        match self {
            Self::Object(members) => members.get_mut(key),
            _ => None,
        }
    }

    fn insert(&mut self, key: String, value: Self) {
        if let Self::Object(members) = self {
            members.insert(key, value);
        }
    }

    fn remove(&mut self, key: &str) -> Option<Self> {
        match self {
            Self::Object(members) => members.shift_remove(key),
            _ => None,
        }
    }

    fn shifted_without(&self, key: &str) -> usize {
        match self {
            Self::Object(members) => {
                members.get_index_of(key).map_or(0, |index| members.len().saturating_sub(index))
            }
            _ => 0,
        }
    }

    fn items(&self) -> Option<&Vec<Self>> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    fn items_mut(&mut self) -> Option<&mut Vec<Self>> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    // The reader and the patch keep documents within the limit, so these may recurse.
    fn depth(&self) -> usize {
        match self {
            Self::Scalar(_) => 0,
            Self::Array(items) => items.iter().map(Self::depth).max().unwrap_or(0).saturating_add(1),
            Self::Object(members) => members.values().map(Self::depth).max().unwrap_or(0).saturating_add(1),
        }
    }

    fn size(&self) -> usize {
        self.print().len()
    }
}

/// The members of an object in their order, their values not parsed yet.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_numbers_survive_and_whitespace_goes() {
        let text = "{ \"b\" : 1.0,\n \"a\": [ 1e3 , \"<&>\", null, {} ], \"b\": 2 }";
        let document = Document::parse(text).expect("valid JSON");
        assert_eq!(document.print(), r#"{"b":2,"a":[1e3,"\u003c\u0026\u003e",null,{}]}"#);
        assert!(Document::parse("{").is_err());
    }

    #[test]
    fn finding_1_an_embedded_document_keeps_to_the_depth_of_objects() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(Document::parse(&nested(MAX_DEPTH)).expect("fits").depth(), MAX_DEPTH);
        let error = Document::parse(&nested(100_000)).unwrap_err();
        assert!(error.to_string().starts_with("exceeded max depth"), "{error}");
    }
}
