//! A JSON document that keeps the order of its members and the spelling of its numbers.
//!
//! Embedded documents belong to the user: a patch must not reorder them or turn `1.0` into `1`. Whitespace goes,
//! and the characters that Go escapes for the sake of HTML are escaped.

use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::patch::Tree;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Document {
    /// The text of a string, number, boolean or null.
    Scalar(String),
    Array(Vec<Document>),
    Object(Vec<(String, Document)>),
}

impl Document {
    pub(super) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let raw: &RawValue = serde_json::from_str(text)?;
        Self::from_raw(raw)
    }

    fn from_raw(raw: &RawValue) -> Result<Self, serde_json::Error> {
        let text = raw.get();
        Ok(match text.as_bytes().first() {
            Some(b'{') => {
                let Members(members) = serde_json::from_str(text)?;
                let mut object = Self::Object(Vec::new());
                for (key, value) in members {
                    let value = Self::from_raw(&value)?;
                    object.insert(&key, value);
                }
                object
            }
            Some(b'[') => {
                let items: Vec<Box<RawValue>> = serde_json::from_str(text)?;
                Self::Array(items.iter().map(|item| Self::from_raw(item)).collect::<Result<_, _>>()?)
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

    fn member(&mut self, key: &str) -> Option<&mut Self> {
        match self {
            Self::Object(members) => members.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    fn insert(&mut self, key: &str, value: Self) {
        if let Some(member) = self.member(key) {
            *member = value;
        } else if let Self::Object(members) = self {
            members.push((key.to_owned(), value));
        }
    }

    fn remove(&mut self, key: &str) -> bool {
        let Self::Object(members) = self else { return false };
        let before = members.len();
        members.retain(|(name, _)| name != key);
        members.len() < before
    }

    fn items(&mut self) -> Option<&mut Vec<Self>> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }
}

struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
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
}
