//! Reading and writing fields of an object by path, with Kubernetes' idea of what a type error is.
//!
//! A missing parent means "absent"; a parent or value of another type is an error, never a silent default,
//! because the caller would otherwise act on a replica count of zero that nobody wrote.

use serde_json::{Map, Value};

use crate::{Error, Result};

pub(crate) fn wrong_type(path: &[&str], found: &Value, expected: &'static str) -> Error {
    let mut text = found.to_string();
    if text.len() > 80 {
        let cut = (0..=80).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(cut);
        text.push('…');
    }
    Error::WrongType { path: path.join("."), found: text, expected }
}

/// Returns the value at `path`; absent and `null` parents give `None`, a scalar parent is an error.
pub(crate) fn get<'a>(object: &'a Value, path: &[&str]) -> Result<Option<&'a Value>> {
    let mut current = object;
    for (depth, key) in path.iter().enumerate() {
        current = match current {
            Value::Object(map) => match map.get(*key) {
                Some(value) => value,
                None => return Ok(None),
            },
            Value::Null => return Ok(None),
            other => return Err(wrong_type(&path[..depth], other, "map[string]interface {}")),
        };
    }
    Ok(Some(current))
}

/// As [`get`], with an explicit `null` counting as absent.
pub(crate) fn present<'a>(object: &'a Value, path: &[&str]) -> Result<Option<&'a Value>> {
    Ok(get(object, path)?.filter(|value| !value.is_null()))
}

pub(crate) fn int(object: &Value, path: &[&str]) -> Result<Option<i64>> {
    match present(object, path)? {
        None => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| wrong_type(path, value, "int64")),
    }
}

/// Returns the integer at `path`, 0 when absent: the zero value that Go's typed objects have.
pub(crate) fn count(object: &Value, path: &[&str]) -> Result<i64> {
    Ok(int(object, path)?.unwrap_or(0))
}

pub(crate) fn string<'a>(object: &'a Value, path: &[&str]) -> Result<Option<&'a str>> {
    match present(object, path)? {
        None => Ok(None),
        Some(value) => value.as_str().map(Some).ok_or_else(|| wrong_type(path, value, "string")),
    }
}

pub(crate) fn text<'a>(object: &'a Value, path: &[&str]) -> Result<&'a str> {
    Ok(string(object, path)?.unwrap_or(""))
}

pub(crate) fn boolean(object: &Value, path: &[&str]) -> Result<Option<bool>> {
    match present(object, path)? {
        None => Ok(None),
        Some(value) => value.as_bool().map(Some).ok_or_else(|| wrong_type(path, value, "bool")),
    }
}

/// Returns the list at `path`, empty when absent.
pub(crate) fn list<'a>(object: &'a Value, path: &[&str]) -> Result<&'a [Value]> {
    match present(object, path)? {
        None => Ok(&[]),
        Some(value) => {
            value.as_array().map(Vec::as_slice).ok_or_else(|| wrong_type(path, value, "[]interface {}"))
        }
    }
}

pub(crate) fn map<'a>(object: &'a Value, path: &[&str]) -> Result<Option<&'a Map<String, Value>>> {
    match present(object, path)? {
        None => Ok(None),
        Some(value) => {
            value.as_object().map(Some).ok_or_else(|| wrong_type(path, value, "map[string]interface {}"))
        }
    }
}

/// Sets the value at `path`, creating missing parents; a parent that is not a map is an error.
pub(crate) fn set(object: &mut Value, path: &[&str], value: Value) -> Result<()> {
    let (last, parents) = path.split_last().expect("a path names at least one field");
    let mut current = object;
    for (depth, key) in parents.iter().enumerate() {
        if current.is_null() {
            *current = Value::Object(Map::new());
        }
        current = match current {
            Value::Object(map) => map.entry(*key).or_insert_with(|| Value::Object(Map::new())),
            other => return Err(wrong_type(&path[..depth], other, "map[string]interface {}")),
        };
    }
    if current.is_null() {
        *current = Value::Object(Map::new());
    }
    match current {
        Value::Object(map) => {
            map.insert((*last).to_owned(), value);
            Ok(())
        }
        other => Err(wrong_type(parents, other, "map[string]interface {}")),
    }
}

/// Removes the field at `path` if it and all its parents exist.
pub(crate) fn remove(object: &mut Value, path: &[&str]) {
    let (last, parents) = path.split_last().expect("a path names at least one field");
    let mut current = object;
    for key in parents {
        match current.get_mut(*key) {
            Some(next) => current = next,
            None => return,
        }
    }
    if let Value::Object(map) = current {
        map.remove(*last);
    }
}

pub(crate) fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or("")
}

pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or("")
}

pub(crate) fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or("")
}
