//! Compares two objects of one type and tells which paths were removed, modified and added.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Mismatches, Sort, check_scalar, deduce_pair, item_element};
use crate::server_side_apply::path::PathElement;
use crate::server_side_apply::schema::{List, Topology, TypeSchema};
use crate::server_side_apply::set::{Node, Set};

/// The difference from left to right; no path is in two of the sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    pub removed: Set,
    pub modified: Set,
    pub added: Set,
}

impl Comparison {
    pub fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Drops everything at or below the given paths.
    pub fn without(self, paths: &Set) -> Self {
        Self {
            removed: self.removed.recursive_difference(paths),
            modified: self.modified.recursive_difference(paths),
            added: self.added.recursive_difference(paths),
        }
    }
}

/// Compares two values of the given type.
pub fn compare<S: TypeSchema>(schema: &S, left: &Value, right: &Value) -> Result<Comparison, Mismatches> {
    let mut walker = Walker::default();
    walker.pair(schema, Some(left), Some(right))?;
    // The whole object is neither removed nor added.
    let Walker { removed, modified, added } = walker;
    Ok(Comparison { removed: removed.below, modified: modified.below, added: added.below })
}

/// What was found at the place that is being compared, and below it.
#[derive(Default)]
struct Walker {
    removed: Node,
    modified: Node,
    added: Node,
}

impl Walker {
    fn pair<S: TypeSchema>(
        &mut self,
        schema: &S,
        left: Option<&Value>,
        right: Option<&Value>,
    ) -> Result<(), Mismatches> {
        let Some((first, second)) = deduce_pair(schema, left, right) else {
            return Err(Mismatches::one("schema error: invalid atom: inlined"));
        };
        if let Some(first) = first {
            self.sort(first, schema, left, right)?;
        }
        let leaf = self.sort(second, schema, left, right)?;
        if !leaf {
            match (left, right) {
                (None, _) => self.added.member = true,
                (_, None) => self.removed.member = true,
                _ => {}
            }
        }
        Ok(())
    }

    /// Walks the pair as one sort of value; returns whether it was a leaf.
    fn sort<S: TypeSchema>(
        &mut self,
        sort: Sort,
        schema: &S,
        left: Option<&Value>,
        right: Option<&Value>,
    ) -> Result<bool, Mismatches> {
        match sort {
            Sort::Scalar => {
                if let Some(scalar) = schema.scalar() {
                    let check = |value: Option<&Value>, prefix| {
                        value.map_or(Ok(()), |value| check_scalar(scalar, value, prefix))
                    };
                    if let (Err(mut errors), Err(others)) = (check(left, "lhs: "), check(right, "rhs: ")) {
                        errors.add(others);
                        return Err(errors);
                    }
                }
                self.leaf(left, right);
                Ok(true)
            }
            Sort::List => {
                let (left_items, right_items) = (items(left), items(right));
                match schema.list() {
                    Some(list)
                        if !(matches!(list, List::Atomic(_))
                            || left_items.is_empty() && right_items.is_empty()) =>
                    {
                        self.lists(&list, left_items, right_items)?;
                        Ok(false)
                    }
                    _ => {
                        self.leaf(left, right);
                        Ok(true)
                    }
                }
            }
            Sort::Map => {
                let empty = Map::new();
                let left_entries = left.and_then(Value::as_object).unwrap_or(&empty);
                let right_entries = right.and_then(Value::as_object).unwrap_or(&empty);
                if schema.map() == Some(Topology::Atomic)
                    || (left_entries.is_empty() && right_entries.is_empty())
                {
                    self.leaf(left, right);
                    return Ok(true);
                }
                let keys: BTreeSet<&String> = left_entries.keys().chain(right_entries.keys()).collect();
                for key in keys {
                    let element = PathElement::field(key);
                    let Some(member) = schema.member(key) else {
                        return Err(Mismatches::one("field not declared in schema").below(&element));
                    };
                    self.child(&element, &member.schema, left_entries.get(key), right_entries.get(key))?;
                }
                Ok(false)
            }
        }
    }

    fn child<S: TypeSchema>(
        &mut self,
        element: &PathElement,
        schema: &S,
        left: Option<&Value>,
        right: Option<&Value>,
    ) -> Result<(), Mismatches> {
        let mut inner = Self::default();
        inner.pair(schema, left, right).map_err(|errors| errors.below(element))?;
        self.removed.below.put(element, inner.removed);
        self.modified.below.put(element, inner.modified);
        self.added.below.put(element, inner.added);
        Ok(())
    }

    fn leaf(&mut self, left: Option<&Value>, right: Option<&Value>) {
        match (left, right) {
            (None, _) => self.added.member = true,
            (_, None) => self.removed.member = true,
            (left, right) if left != right => self.modified.member = true,
            _ => {}
        }
    }

    fn lists<S: TypeSchema>(
        &mut self,
        list: &List<S>,
        left: &[Value],
        right: &[Value],
    ) -> Result<(), Mismatches> {
        let left = index(list, left)?;
        let right = index(list, right)?;
        let Some(schema) = list.clone().element() else { return Ok(()) };
        let elements: BTreeSet<&PathElement> = left.keys().chain(right.keys()).collect();
        let none = Vec::new();
        for element in elements {
            let before = left.get(element).unwrap_or(&none).as_slice();
            let after = right.get(element).unwrap_or(&none).as_slice();
            match (before, after) {
                ([] | [_], [] | [_]) => {
                    self.child(element, &schema, before.first().copied(), after.first().copied())?;
                }
                // Repeated items are compared as one value; where repetition starts or ends, the marker moves.
                ([_, _, ..], [_, _, ..]) => {
                    if before != after {
                        mark(&mut self.modified, element);
                    }
                }
                ([_, _, ..], rest) => {
                    if let [one] = rest {
                        self.child(element, &schema, None, Some(one))?;
                    }
                    mark(&mut self.removed, element);
                }
                (rest, _) => {
                    if let [one] = rest {
                        self.child(element, &schema, Some(one), None)?;
                    }
                    mark(&mut self.added, element);
                }
            }
        }
        Ok(())
    }
}

fn mark(node: &mut Node, element: &PathElement) {
    node.below.put(element, Node { member: true, ..Node::default() });
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn index<'a, S: TypeSchema>(
    list: &List<S>,
    items: &'a [Value],
) -> Result<BTreeMap<PathElement, Vec<&'a Value>>, Mismatches> {
    let mut found: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
    for (position, item) in items.iter().enumerate() {
        let element = item_element(list, item)
            .map_err(|message| Mismatches::one(format!("element {position}: {message}")))?;
        found.entry(element).or_default().push(item);
    }
    Ok(found)
}
