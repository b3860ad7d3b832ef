//! Lists the paths that an object mentions: leaves, list items, entries of free maps.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Sort, deduce, item_element};
use crate::server_side_apply::path::{Path, PathElement};
use crate::server_side_apply::schema::{List, Topology, TypeSchema};
use crate::server_side_apply::set::Set;

/// Returns the set of paths that a value of the given type owns when it is applied.
pub fn field_set<S: TypeSchema>(schema: &S, value: &Value) -> Set {
    let mut set = Set::new();
    walk(schema, value, &mut Vec::new(), &mut set);
    set
}

fn walk<S: TypeSchema>(schema: &S, value: &Value, path: &mut Path, set: &mut Set) {
    let Some((sort, _)) = deduce(schema, Some(value)) else { return };
    match sort {
        Sort::Scalar => set.insert(path),
        Sort::List => match (schema.list(), value) {
            (Some(List::Atomic(_)), _) => set.insert(path),
            (Some(list), Value::Array(items)) => walk_items(&list, items, path, set),
            _ => {}
        },
        Sort::Map => {
            if schema.map() == Some(Topology::Atomic) {
                set.insert(path);
                return;
            }
            let Value::Object(entries) = value else { return };
            for (key, value) in entries {
                let Some(member) = schema.member(key) else { continue };
                path.push(PathElement::field(key));
                walk(&member.schema, value, path, set);
                let hollow = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                if hollow || !member.declared {
                    set.insert(path);
                }
                path.pop();
            }
        }
    }
}

/// An item that occurs several times is owned as a whole, since its fields cannot be told apart.
fn walk_items<S: TypeSchema>(list: &List<S>, items: &[Value], path: &mut Path, set: &mut Set) {
    let mut seen = BTreeSet::new();
    let mut repeated = BTreeSet::new();
    let elements: Vec<Option<PathElement>> = items.iter().map(|item| item_element(list, item).ok()).collect();
    for element in elements.iter().flatten() {
        if !seen.insert(element) {
            repeated.insert(element);
        }
    }
    for (element, item) in elements.iter().zip(items) {
        let Some(element) = element else { continue };
        path.push(element.clone());
        set.insert(path);
        if !repeated.contains(element)
            && let Some(schema) = list.clone().element()
        {
            walk(&schema, item, path, set);
        }
        path.pop();
    }
}
