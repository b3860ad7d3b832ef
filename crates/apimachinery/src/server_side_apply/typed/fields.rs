//! Lists the paths that an object mentions: leaves, list items, entries of free maps.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Sort, deduce, item_element};
use crate::server_side_apply::path::PathElement;
use crate::server_side_apply::schema::{List, Topology, TypeSchema};
use crate::server_side_apply::set::{Node, Set};

/// Returns the set of paths that a value of the given type owns when it is applied.
pub fn field_set<S: TypeSchema>(schema: &S, value: &Value) -> Set {
    // The whole object is owned by nobody.
    let mut root = Node::default();
    walk(schema, value, &mut root);
    root.below
}

fn walk<S: TypeSchema>(schema: &S, value: &Value, node: &mut Node) {
    let Some((sort, _)) = deduce(schema, Some(value)) else { return };
    match sort {
        Sort::Scalar => node.member = true,
        Sort::List => match (schema.list(), value) {
            (Some(List::Atomic(_)), _) => node.member = true,
            (Some(list), Value::Array(items)) => walk_items(&list, items, node),
            _ => {}
        },
        Sort::Map => {
            if schema.map() == Some(Topology::Atomic) {
                node.member = true;
                return;
            }
            let Value::Object(entries) = value else { return };
            for (key, value) in entries {
                let Some(member) = schema.member(key) else { continue };
                let mut child = Node::default();
                walk(&member.schema, value, &mut child);
                let hollow = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                child.member |= hollow || !member.declared;
                node.below.put(&PathElement::field(key), child);
            }
        }
    }
}

/// An item that occurs several times is owned as a whole, since its fields cannot be told apart.
fn walk_items<S: TypeSchema>(list: &List<S>, items: &[Value], node: &mut Node) {
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
        let mut child = Node { member: true, ..Node::default() };
        if !repeated.contains(element)
            && let Some(schema) = list.clone().element()
        {
            walk(&schema, item, &mut child);
        }
        node.below.put(element, child);
    }
}
