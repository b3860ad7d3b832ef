//! Strategic merge patch: a merge patch that knows which lists are maps in disguise.
//!
//! In: an object, a patch, and a [`Schema`] that tells for each field how lists merge. Out: the merged object.
//!
//! Directives inside the patch steer the merge: `$patch: replace|delete` on a map or list element,
//! `$deleteFromPrimitiveList/<field>` for sets of scalars, `$setElementOrder/<field>` for the order of merged
//! lists, `$retainKeys` for unions. The order rules are upstream's: items named by the patch follow the order of
//! `$setElementOrder` or else of the patch; items only the server has keep their order and are woven in between.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::go;

mod order;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const ELEMENT_ORDER: &str = "$setElementOrder";

/// Knowledge about a type, handed in by whoever owns the type tables. Handles are cheap to clone.
pub trait Schema: Clone {
    /// Returns what is known about a field of this object, `None` if the type has no such field.
    fn field(&self, name: &str) -> Option<Field<Self>>;
}

/// How one field merges.
#[derive(Debug, Clone)]
pub struct Field<S> {
    /// The type of the field's value; of its elements if the field is a list. `None`: nothing is known below.
    pub schema: Option<S>,
    pub strategy: Strategy,
    /// The key that identifies the elements of a merged list of objects.
    pub merge_key: Option<String>,
}

/// The `patchStrategy` of a field; `retainKeys` needs no mention, its directive speaks for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Objects merge, lists are replaced.
    #[default]
    Default,
    /// Lists merge too.
    Merge,
    /// Objects are replaced as well.
    Replace,
}

/// Why a patch was refused; [`Error::code`] tells the HTTP status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    #[error("invalid patch format of setElementOrder list")]
    ElementOrder,
    #[error("lists of lists are not supported")]
    ListOfLists,
    #[error("{0}")]
    Other(String),
}

impl Error {
    pub fn code(&self) -> u16 {
        match self {
            Self::PrimitiveList | Self::RetainKeys | Self::ElementOrder => 400,
            Self::ListOfLists => 422,
            Self::Other(_) => 500,
        }
    }

    fn no_merge_key(item: &Map<String, Value>, key: &str) -> Self {
        let shown = go::verbose(&Value::Object(item.clone()));
        Self::Other(format!("map: {shown} does not contain declared merge key: {key}"))
    }

    fn bad_type(expected: &str, actual: &Value) -> Self {
        Self::Other(format!("expected a {expected}, but received a {}", go::type_name(actual)))
    }

    fn bad_directive(directive: &Value, item: &Map<String, Value>) -> Self {
        let item = go::verbose(&Value::Object(item.clone()));
        // As Go prints what is not text where it expects one.
        let directive = match directive {
            Value::Number(number) if number.is_f64() => format!("%!s(float64={number})"),
            Value::Number(number) => format!("%!s(int64={number})"),
            Value::Bool(flag) => format!("%!s(bool={flag})"),
            other => go::verbose(other),
        };
        Self::Other(format!("unknown patch type: {directive} in map: {item}"))
    }
}

/// Applies a patch to an object of the given type.
pub fn apply<S: Schema>(
    original: &Map<String, Value>,
    patch: &Map<String, Value>,
    schema: &S,
) -> Result<Map<String, Value>, Error> {
    merge_map(original.clone(), patch.clone(), Some(schema))
}

fn merge_map<S: Schema>(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    schema: Option<&S>,
) -> Result<Map<String, Value>, Error> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Map::new()),
            _ => Err(Error::bad_directive(directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(&mut original, &mut patch, schema)?;
    for (patch_key, value) in patch {
        let delete_list = patch_key.starts_with(DELETE_FROM_LIST);
        let key =
            if delete_list { directive_target(&patch_key, DELETE_FROM_LIST)?.to_owned() } else { patch_key };
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let Some(present) = original.get_mut(&key) else {
            if !delete_list && let Some(value) = cleaned(value) {
                original.insert(key, value);
            }
            continue;
        };
        match (present, value) {
            (Value::Object(present), Value::Object(value)) => {
                let field = lookup(schema, &key)?;
                let merged = if field.strategy == Strategy::Replace {
                    value
                } else {
                    merge_map(std::mem::take(present), value, field.schema.as_ref())?
                };
                *present = merged;
            }
            (Value::Array(present), Value::Array(value)) => {
                let field = lookup(schema, &key)?;
                if field.strategy == Strategy::Merge || delete_list {
                    *present = merge_list(std::mem::take(present), value, &field, delete_list)?;
                } else {
                    *present = value;
                }
            }
            (_, value) => {
                if delete_list {
                    continue;
                }
                match cleaned(value) {
                    Some(value) => original.insert(key, value),
                    None => original.remove(&key),
                };
            }
        }
    }
    Ok(original)
}

/// Below an unknown type everything merges by default; a known type must have the field.
fn lookup<S: Schema>(schema: Option<&S>, key: &str) -> Result<Field<S>, Error> {
    match schema {
        None => Ok(Field { schema: None, strategy: Strategy::Default, merge_key: None }),
        Some(schema) => schema
            .field(key)
            .ok_or_else(|| Error::Other(format!("unable to find api field {}", go::quote(key)))),
    }
}

/// Takes a value that has no counterpart: nulls inside mean nothing then, and directives must not be stored.
fn cleaned(value: Value) -> Option<Value> {
    fn without_nulls(value: &mut Value) {
        match value {
            Value::Object(entries) => {
                entries.retain(|_, item| !item.is_null());
                entries.values_mut().for_each(without_nulls);
            }
            Value::Array(items) => items.iter_mut().for_each(without_nulls),
            _ => {}
        }
    }
    fn without_directives(value: Value) -> Option<Value> {
        match value {
            Value::Object(entries) => {
                if entries.contains_key(DIRECTIVE) {
                    return None;
                }
                let kept =
                    entries.into_iter().filter_map(|(key, item)| Some((key, without_directives(item)?)));
                Some(Value::Object(kept.collect()))
            }
            Value::Array(items) => {
                Some(Value::Array(items.into_iter().filter_map(without_directives).collect()))
            }
            scalar => Some(scalar),
        }
    }
    let mut value = value;
    without_nulls(&mut value);
    without_directives(value)
}

/// `$retainKeys` lists the keys that survive; the patch may not mention others.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), Error> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(retained) = directive else { return Err(Error::RetainKeys) };
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let retains = |key: &str| retained.contains(key);
    for (key, value) in patch.iter() {
        let exempt = value.is_null() || key.starts_with(DELETE_FROM_LIST) || key.starts_with(ELEMENT_ORDER);
        if !exempt && !retains(key) {
            return Err(Error::RetainKeys);
        }
    }
    original.retain(|key, _| retains(key));
    Ok(())
}

fn directive_target<'a>(key: &'a str, prefix: &str) -> Result<&'a str, Error> {
    match key.split_once('/') {
        Some((head, target)) if head == prefix => Ok(target),
        _ if prefix == DELETE_FROM_LIST => Err(Error::PrimitiveList),
        _ => Err(Error::ElementOrder),
    }
}

/// Handles the lists whose order the patch sets, and takes them out of the patch.
fn merge_ordered_lists<S: Schema>(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Option<&S>,
) -> Result<(), Error> {
    let directives: Vec<String> =
        patch.keys().filter(|key| key.starts_with(ELEMENT_ORDER)).cloned().collect();
    for directive in directives {
        let wanted = match patch.remove(&directive) {
            Some(Value::Array(wanted)) => wanted,
            Some(other) => return Err(Error::bad_type("[]interface {}", &other)),
            None => continue,
        };
        let key = directive_target(&directive, ELEMENT_ORDER)?;
        let list = |value: Option<&Value>| match value {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items.clone())),
            Some(other) => Err(Error::bad_type("[]interface {}", other)),
        };
        let present = list(original.get(key))?;
        let patched = list(patch.get(key))?;
        let field = lookup(schema, key)?;
        let merge_key = field.merge_key.as_deref();
        order::check_subsequence(patched.as_deref().unwrap_or_default(), &wanted, merge_key)?;
        let merged = match (&present, &patched) {
            (None, None) => continue,
            (Some(present), None) => present.clone(),
            (None, Some(patched)) => match cleaned(Value::Array(patched.clone())) {
                Some(Value::Array(items)) => items,
                _ => continue,
            },
            (Some(present), Some(patched)) if field.strategy == Strategy::Merge => {
                merge_list(present.clone(), patched.clone(), &field, false)?
            }
            (Some(_), Some(patched)) => patched.clone(),
        };
        let server = present.unwrap_or_default();
        element_kind(&server, patched.as_deref().unwrap_or_default())?;
        let (named, others) = order::partition(merged, &wanted, merge_key)?;
        original.insert(
            key.to_owned(),
            Value::Array(order::arrange(named, others, &wanted, &server, merge_key)?),
        );
        patch.remove(key);
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ElementKind {
    Objects,
    Scalars,
}

/// Merged lists hold one type of element, and that is not a list.
fn element_kind(original: &[Value], patch: &[Value]) -> Result<ElementKind, Error> {
    let mut elements = original.iter().chain(patch);
    let Some(first) = elements.next() else {
        return Err(Error::Other("no elements in any of the given slices".to_owned()));
    };
    if first.is_array() {
        return Err(Error::ListOfLists);
    }
    let name = go::type_name(first);
    if elements.any(|element| go::type_name(element) != name) {
        let lists = Value::Array(vec![Value::Array(original.to_vec()), Value::Array(patch.to_vec())]);
        return Err(Error::Other(format!("list element types are not identical: {}", go::verbose(&lists))));
    }
    Ok(if first.is_object() { ElementKind::Objects } else { ElementKind::Scalars })
}

fn merge_list<S: Schema>(
    original: Vec<Value>,
    patch: Vec<Value>,
    field: &Field<S>,
    delete_list: bool,
) -> Result<Vec<Value>, Error> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    if element_kind(&original, &patch)? == ElementKind::Scalars {
        if delete_list {
            let gone: HashSet<&Value> = patch.iter().collect();
            return Ok(original.into_iter().filter(|item| !gone.contains(item)).collect());
        }
        let merged = order::united(&original, &patch);
        let (named, others) = order::partition(merged, &patch, None)?;
        return order::arrange(named, others, &patch, &original, None);
    }
    let Some(key) = field.merge_key.as_deref() else {
        return Err(Error::Other("cannot merge lists without merge key for struct".to_owned()));
    };
    let (original, patch) = apply_element_directives(original, patch, key)?;
    let mut merged = original.clone();
    let mut places: HashMap<&Value, usize> = HashMap::with_capacity(original.len());
    for (place, item) in original.iter().enumerate() {
        if let Some(value) = item.get(key) {
            places.entry(value).or_insert(place);
        }
    }
    for item in &patch {
        let Value::Object(entries) = item else {
            return Err(Error::bad_type("map[string]interface {}", item));
        };
        let value = entries.get(key).ok_or_else(|| Error::no_merge_key(entries, key))?;
        match places.get(value).and_then(|place| merged.get_mut(*place)) {
            Some(present) => {
                let Value::Object(present) = present else { unreachable!("elements are objects") };
                *present = merge_map(std::mem::take(present), entries.clone(), field.schema.as_ref())?;
            }
            None => {
                places.insert(value, merged.len());
                merged.push(item.clone());
            }
        }
    }
    let (named, others) = order::partition(merged, &patch, Some(key))?;
    order::arrange(named, others, &patch, &original, Some(key))
}

/// Carries out `$patch` elements of a list and returns the two lists without them.
fn apply_element_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut replace = false;
    let mut gone: HashSet<Value> = HashSet::new();
    for item in patch {
        let Value::Object(entries) = &item else {
            return Err(Error::bad_type("map[string]interface {}", &item));
        };
        let Some(directive) = entries.get(DIRECTIVE) else {
            plain.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let value = entries.get(key).ok_or_else(|| Error::no_merge_key(entries, key))?;
                gone.insert(value.clone());
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(Error::Other("merging lists cannot yet be specified in the patch".to_owned()));
            }
            _ => return Err(Error::bad_directive(directive, entries)),
        }
    }
    original.retain(|candidate| !candidate.get(key).is_some_and(|value| gone.contains(value)));
    Ok(if replace { (plain, Vec::new()) } else { (original, plain) })
}

#[cfg(test)]
mod tests;
