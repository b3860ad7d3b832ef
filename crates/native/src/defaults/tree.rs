//! Small mutations of object trees, in the vocabulary of defaulting: "if it is missing, put this there".
//!
//! Two notions of missing exist, because Go has two: a pointer field is missing when it is absent, a plain
//! scalar also when it holds its zero value.

use serde_json::{Map, Value};

pub(crate) type Object = Map<String, Value>;

fn is_absent(value: Option<&Value>) -> bool {
    matches!(value, None | Some(Value::Null))
}

fn is_zero(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

/// Fills a pointer field: an explicit value, even a zero one, stays.
pub(crate) fn put(object: &mut Object, key: &str, value: impl Into<Value>) {
    if is_absent(object.get(key)) {
        object.insert(key.to_owned(), value.into());
    }
}

/// Fills a plain scalar: its zero value counts as missing.
pub(crate) fn put_nonzero(object: &mut Object, key: &str, value: impl Into<Value>) {
    if is_zero(object.get(key)) {
        object.insert(key.to_owned(), value.into());
    }
}

/// Returns the object below `key`, if there is one.
pub(crate) fn below<'a>(object: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    object.get_mut(key).and_then(Value::as_object_mut)
}

/// Returns the object below `key`, creating an empty one where nothing is; `None` if something else is there.
pub(crate) fn ensure<'a>(object: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    put(object, key, Object::new());
    below(object, key)
}

/// Calls `visit` for every object in the list below `key`.
pub(crate) fn each(object: &mut Object, key: &str, mut visit: impl FnMut(&mut Object)) {
    if let Some(items) = object.get_mut(key).and_then(Value::as_array_mut) {
        items.iter_mut().filter_map(Value::as_object_mut).for_each(&mut visit);
    }
}

/// Returns the text below `key`; missing is the empty text, as in Go.
pub(crate) fn text<'a>(object: &'a Object, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Is there a list, map or text below `key` that is not empty?
pub(crate) fn has_items(object: &Object, key: &str) -> bool {
    match object.get(key) {
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(entries)) => !entries.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        _ => false,
    }
}

pub(crate) fn is_set(object: &Object, key: &str) -> bool {
    !is_absent(object.get(key))
}
