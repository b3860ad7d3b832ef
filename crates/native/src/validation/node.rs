//! A read-only cursor into an object tree that is never absent: what is missing reads as Go's zero value.
//!
//! Validators and printers ask many small questions of possibly missing fields; this keeps each at one call.

use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a>(pub(crate) Option<&'a Value>);

impl<'a> From<&'a Value> for Node<'a> {
    fn from(value: &'a Value) -> Self {
        Self(Some(value))
    }
}

impl<'a> Node<'a> {
    /// Returns the field `key`, absent or not.
    pub(crate) fn at(self, key: &str) -> Self {
        Self(self.0.and_then(|value| value.get(key)))
    }

    /// Returns the field at the end of a chain of names.
    pub(crate) fn dig(self, keys: &[&str]) -> Self {
        keys.iter().fold(self, |node, key| node.at(key))
    }

    /// Is there anything but null?
    pub(crate) fn exists(self) -> bool {
        self.0.is_some_and(|value| !value.is_null())
    }

    pub(crate) fn text(self) -> &'a str {
        self.0.and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn opt_text(self) -> Option<&'a str> {
        self.0.and_then(Value::as_str)
    }

    pub(crate) fn int(self) -> i64 {
        self.0.and_then(Value::as_i64).unwrap_or_default()
    }

    pub(crate) fn opt_int(self) -> Option<i64> {
        self.0.and_then(Value::as_i64)
    }

    pub(crate) fn flag(self) -> bool {
        self.0.and_then(Value::as_bool).unwrap_or_default()
    }

    /// Returns the elements of a list; a missing list is empty.
    pub(crate) fn items(self) -> impl ExactSizeIterator<Item = Node<'a>> + DoubleEndedIterator + Clone {
        self.0.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default().iter().map(Node::from)
    }

    /// Returns the elements of a list of texts.
    pub(crate) fn texts(self) -> Vec<&'a str> {
        self.items().map(Node::text).collect()
    }

    pub(crate) fn map(self) -> Option<&'a Map<String, Value>> {
        self.0.and_then(Value::as_object)
    }

    /// Returns the entries of a map in key order; a missing map is empty.
    pub(crate) fn entries(self) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        self.map().into_iter().flatten().map(|(key, value)| (key.as_str(), Node::from(value)))
    }

    /// Returns how many elements, entries or bytes there are.
    pub(crate) fn len(self) -> usize {
        match self.0 {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(entries)) => entries.len(),
            Some(Value::String(text)) => text.len(),
            _ => 0,
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the tree itself, for showing it in an error.
    pub(crate) fn value(self) -> Value {
        self.0.cloned().unwrap_or(Value::Null)
    }
}

/// Compares as Go's semantic equality does: absent, null and empty are one.
pub(crate) fn same(left: Node<'_>, right: Node<'_>) -> bool {
    fn hollow(node: Node<'_>) -> bool {
        match node.0 {
            None | Some(Value::Null) => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(entries)) => entries.values().all(|value| hollow(Node::from(value))),
            _ => false,
        }
    }
    match (left.0, right.0) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            // Each key once: looking at shared ones from both sides would double the work at every level.
            a.iter().all(|(key, value)| same(Node(Some(value)), Node(b.get(key))))
                && b.iter()
                    .filter(|(key, _)| !a.contains_key(*key))
                    .all(|(_, value)| same(Node(None), Node(Some(value))))
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(Node::from(a), Node::from(b)))
        }
        (Some(a), Some(b)) if a == b => true,
        _ => hollow(left) && hollow(right),
    }
}
