//! Removes the paths of a set from an object, or keeps nothing but them.

use serde_json::{Map, Value};

use super::{Sort, deduce, item_element};
use crate::server_side_apply::path::PathElement;
use crate::server_side_apply::schema::{List, Topology, TypeSchema};
use crate::server_side_apply::set::Set;

/// Returns the value without the paths of the set. Containers that end up empty disappear, as they do upstream.
pub fn remove<S: TypeSchema>(schema: &S, value: &Value, set: &Set) -> Value {
    cut(schema, value, set, Mode::Remove).unwrap_or(Value::Null)
}

/// Returns the part of the value that the set names.
pub fn extract<S: TypeSchema>(schema: &S, value: &Value, set: &Set) -> Value {
    cut(schema, value, set, Mode::Extract).unwrap_or(Value::Null)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Remove,
    Extract,
}

fn cut<S: TypeSchema>(schema: &S, value: &Value, set: &Set, mode: Mode) -> Option<Value> {
    let whole = || (mode == Mode::Extract).then(|| value.clone());
    match deduce(schema, Some(value))?.0 {
        Sort::Scalar => Some(value.clone()),
        Sort::List => {
            let list = schema.list()?;
            let Value::Array(items) = value else { return None };
            if items.is_empty() || matches!(list, List::Atomic(_)) {
                return whole();
            }
            let element_schema = list.clone().element()?;
            let mut kept = Vec::new();
            for item in items {
                let Ok(element) = item_element(&list, item) else {
                    if mode == Mode::Remove {
                        kept.push(item.clone());
                    }
                    continue;
                };
                let named = set.has_element(&element);
                let below = set.below(&element);
                if (mode == Mode::Remove && named) || (mode == Mode::Extract && !named && below.is_none()) {
                    continue;
                }
                match below {
                    Some(below) => kept.extend(cut(&element_schema, item, below, mode)),
                    None => kept.push(item.clone()),
                }
            }
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        Sort::Map => {
            let Value::Object(entries) = value else { return None };
            if entries.is_empty() || schema.map() == Some(Topology::Atomic) {
                return whole();
            }
            let mut kept = Map::new();
            for (key, value) in entries {
                let element = PathElement::field(key);
                let Some(member) = schema.member(key) else {
                    if mode == Mode::Remove {
                        kept.insert(key.clone(), value.clone());
                    }
                    continue;
                };
                if set.has_element(&element) {
                    if mode == Mode::Extract {
                        let below = set.below(&element).cloned().unwrap_or_default();
                        let inner = cut(&member.schema, value, &below, mode);
                        kept.insert(key.clone(), inner.unwrap_or(Value::Null));
                    }
                    continue;
                }
                match (set.below(&element), mode) {
                    (Some(below), _) => {
                        if let Some(rest) = cut(&member.schema, value, below, mode) {
                            kept.insert(key.clone(), rest);
                        }
                    }
                    (None, Mode::Remove) => {
                        kept.insert(key.clone(), value.clone());
                    }
                    (None, Mode::Extract) => {}
                }
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
    }
}
