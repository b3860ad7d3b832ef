//! Steps into an object, as ownership sees them: fields, list items by key, set members, positions.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

use crate::go;
use crate::json;

/// One step. The order (fields, keys, values, positions) is the order in which owned paths are listed.
#[derive(Debug, Clone)]
pub enum PathElement {
    Field(String),
    /// An item of an associative list: its key fields, sorted by name.
    Key(Vec<(String, Value)>),
    /// A member of a set.
    Value(Value),
    Index(usize),
}

/// A place in an object.
pub type Path = Vec<PathElement>;

impl PathElement {
    pub fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// Returns about how many bytes the element takes.
    pub(super) fn weight(&self) -> usize {
        let text = |value: &Value| value.as_str().map_or(8, str::len);
        let bytes = match self {
            Self::Field(name) => name.len(),
            Self::Key(fields) => {
                fields.iter().map(|(name, value)| name.len().saturating_add(text(value))).sum()
            }
            Self::Value(value) => text(value),
            Self::Index(_) => 0,
        };
        bytes.saturating_add(16)
    }

    /// Parses the `FieldsV1` form: `f:name`, `k:{"name":"x"}`, `v:"x"`, `i:0`.
    ///
    /// `Ok(None)` is an element of a type this version does not know, which readers skip.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let (kind, body) = match text.as_bytes() {
            [kind, b':', ..] => (*kind, &text[2..]),
            [_, _, ..] => return Err(format!("missing colon: {text}")),
            _ => return Err("key must be 2 characters long:".to_owned()),
        };
        let read = |body: &str| json::read_value(body.as_bytes()).map_err(|error| error.to_string());
        Ok(Some(match kind {
            b'f' => Self::Field(body.to_owned()),
            b'v' => Self::Value(read(body)?),
            b'k' => match read(body)? {
                Value::Object(fields) => Self::Key(fields.into_iter().collect()),
                other => return Err(format!("expected an object as list key, got {other}")),
            },
            b'i' => Self::Index(body.parse().map_err(|_| format!("invalid index {body}"))?),
            _ => return Ok(None),
        }))
    }

    /// Prints the `FieldsV1` form.
    pub fn print(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let fields: Map<String, Value> = fields.iter().cloned().collect();
                format!("k:{}", json::write(&Value::Object(fields)))
            }
            Self::Value(value) => format!("v:{}", json::write(value)),
            Self::Index(index) => format!("i:{index}"),
        }
    }
}

/// As conflicts name places: `.spec.ports[port=80]`, `[="x"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(out, ".{name}"),
            Self::Key(fields) => {
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{name}={}", show(value))).collect();
                write!(out, "[{}]", fields.join(","))
            }
            Self::Value(value) => write!(out, "[={}]", show(value)),
            Self::Index(index) => write!(out, "[{index}]"),
        }
    }
}

/// Prints a whole path.
pub(crate) fn print_path(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => go::quote(text),
        other => json::write(other),
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(left), Self::Field(right)) => left.cmp(right),
            (Self::Key(left), Self::Key(right)) => {
                let pairs =
                    left.iter().zip(right).map(|((left_name, left_value), (right_name, right_value))| {
                        left_name.cmp(right_name).then_with(|| compare_values(left_value, right_value))
                    });
                let first = pairs.into_iter().find(|order| *order != Ordering::Equal);
                first.unwrap_or_else(|| left.len().cmp(&right.len()))
            }
            (Self::Value(left), Self::Value(right)) => compare_values(left, right),
            (Self::Index(left), Self::Index(right)) => left.cmp(right),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PathElement {
    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

/// A total order on values: numbers, strings, booleans, lists, objects, null.
fn compare_values(left: &Value, right: &Value) -> Ordering {
    fn rank(value: &Value) -> u8 {
        match value {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => {
                let (left, right) = (left.as_f64().unwrap_or(0.0), right.as_f64().unwrap_or(0.0));
                left.total_cmp(&right)
            }
        },
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => {
            let pairs = left.iter().zip(right).map(|(left, right)| compare_values(left, right));
            let first = pairs.into_iter().find(|order| *order != Ordering::Equal);
            first.unwrap_or_else(|| left.len().cmp(&right.len()))
        }
        (Value::Object(left), Value::Object(right)) => {
            let pairs = left.iter().zip(right).map(|((left_key, left), (right_key, right))| {
                left_key.cmp(right_key).then_with(|| compare_values(left, right))
            });
            let first = pairs.into_iter().find(|order| *order != Ordering::Equal);
            first.unwrap_or_else(|| left.len().cmp(&right.len()))
        }
        _ => rank(left).cmp(&rank(right)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_survive_printing_and_parsing() {
        for text in [
            "f:spec",
            "f:a.b/c",
            r#"k:{"containerPort":80,"protocol":"TCP"}"#,
            r#"v:"x""#,
            "v:1",
            "v:true",
            "i:3",
        ] {
            assert_eq!(PathElement::parse(text).unwrap().unwrap().print(), text);
        }
        assert_eq!(PathElement::parse("x:1"), Ok(None));
        assert!(PathElement::parse("f").is_err());
        assert!(PathElement::parse("fx").is_err());
        assert!(PathElement::parse("k:1").is_err());
        assert!(PathElement::parse("v:{").is_err());
    }

    #[test]
    fn paths_print_as_conflicts_show_them() {
        let path = [
            PathElement::field("spec"),
            PathElement::field("ports"),
            PathElement::Key(vec![("port".to_owned(), json!(80)), ("protocol".to_owned(), json!("TCP"))]),
            PathElement::Value(json!("x")),
            PathElement::Index(1),
        ];
        assert_eq!(print_path(&path), r#".spec.ports[port=80,protocol="TCP"][="x"][1]"#);
    }
}
