//! Merges an applied configuration into an object: the right side wins, nothing is removed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Mismatches, Sort, check_scalar, deduce_pair, item_element};
use crate::server_side_apply::path::PathElement;
use crate::server_side_apply::schema::{List, Topology, TypeSchema};

/// Returns the left value with everything that the right one says.
pub fn merge<S: TypeSchema>(schema: &S, left: &Value, right: &Value) -> Result<Value, Mismatches> {
    Ok(pair(schema, Some(left), Some(right))?.unwrap_or_else(|| Value::Object(Map::new())))
}

fn pair<S: TypeSchema>(
    schema: &S,
    left: Option<&Value>,
    right: Option<&Value>,
) -> Result<Option<Value>, Mismatches> {
    let Some((_, sort)) = deduce_pair(schema, left, right) else {
        return Err(Mismatches::one("schema error: invalid atom: inlined"));
    };
    // Where the values are of different sorts, the right one simply replaces the left one.
    let leaf = || right.or(left).cloned();
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
            Ok(leaf())
        }
        Sort::List => {
            let items = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
            let (left_items, right_items) = (items(left), items(right));
            match schema.list() {
                Some(list)
                    if !(matches!(list, List::Atomic(_))
                        || left_items.is_empty() && right_items.is_empty()) =>
                {
                    let merged = merge_lists(&list, &left_items, &right_items)?;
                    Ok((!merged.is_empty()).then_some(Value::Array(merged)))
                }
                _ => Ok(leaf()),
            }
        }
        Sort::Map => {
            let empty = Map::new();
            let left_entries = left.and_then(Value::as_object).unwrap_or(&empty);
            let right_entries = right.and_then(Value::as_object).unwrap_or(&empty);
            if schema.map() == Some(Topology::Atomic) || (left_entries.is_empty() && right_entries.is_empty())
            {
                return Ok(leaf());
            }
            let mut merged = Map::new();
            for (key, value) in left_entries {
                if !right_entries.contains_key(key) {
                    merged.insert(key.clone(), value.clone());
                }
            }
            for (key, value) in right_entries {
                let element = PathElement::field(key);
                let Some(member) = schema.member(key) else {
                    return Err(Mismatches::one("field not declared in schema").below(&element));
                };
                let outcome = pair(&member.schema, left_entries.get(key), Some(value))
                    .map_err(|errors| errors.below(&element))?;
                if let Some(value) = outcome {
                    merged.insert(key.clone(), value);
                }
            }
            Ok((!merged.is_empty()).then_some(Value::Object(merged)))
        }
    }
}

/// Items of both sides follow the right side's order; items of the left side alone stay where they were between
/// them. `[a b c]` merged with `[c a]` is `[b c a]`, with `[d a]` it is `[d a b c]`.
fn merge_lists<S: TypeSchema>(
    list: &List<S>,
    left: &[Value],
    right: &[Value],
) -> Result<Vec<Value>, Mismatches> {
    let Some(schema) = list.clone().element() else { return Ok(right.to_vec()) };
    let mut errors = Mismatches::default();
    let right_elements = elements(list, right, &mut errors);
    let left_elements = elements(list, left, &mut errors);
    let mut in_right: BTreeMap<&PathElement, &Value> = BTreeMap::new();
    for (element, item) in &right_elements {
        if in_right.insert(element, item).is_some() {
            errors.add(Mismatches::one(format!("duplicate entries for key {element}")));
        }
    }
    // Items that occur several times on the left are replaced, not merged.
    let mut in_left: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
    for (element, item) in &left_elements {
        in_left.entry(element).and_modify(|item| *item = None).or_insert(Some(item));
    }
    errors.into_result(())?;

    let null = Value::Null;
    let combine = |element: &PathElement| {
        let before = in_left.get(element).map(|item| item.unwrap_or(&null));
        pair(&schema, before, in_right.get(element).copied()).map_err(|errors| errors.below(element))
    };
    let mut shared =
        right_elements.iter().map(|(element, _)| element).filter(|element| in_left.contains_key(element));
    let mut next_shared = shared.next();
    let mut taken: BTreeSet<&PathElement> = BTreeSet::new();
    let mut merged = Vec::with_capacity(left.len().max(right.len()));
    let (mut at_left, mut at_right) = (0, 0);
    while at_left < left_elements.len() || at_right < right_elements.len() {
        if let (Some((left_element, _)), Some((right_element, _))) =
            (left_elements.get(at_left), right_elements.get(at_right))
        {
            if left_element == right_element {
                taken.insert(right_element);
                merged.extend(combine(right_element)?);
                at_left = at_left.saturating_add(1);
                at_right = at_right.saturating_add(1);
                next_shared = shared.next();
                continue;
            }
            if in_right.contains_key(left_element) && next_shared.is_some_and(|next| next != left_element) {
                // Shared, but its turn comes with the right side.
                at_left = at_left.saturating_add(1);
                continue;
            }
        }
        if let Some((element, item)) = left_elements.get(at_left) {
            if !in_right.contains_key(element) {
                merged.push((*item).clone());
                at_left = at_left.saturating_add(1);
                continue;
            }
            if taken.contains(element) {
                at_left = at_left.saturating_add(1);
            }
        }
        if let Some((element, _)) = right_elements.get(at_right) {
            taken.insert(element);
            merged.extend(combine(element)?);
            at_right = at_right.saturating_add(1);
            if next_shared == Some(element) {
                next_shared = shared.next();
            }
        }
    }
    Ok(merged)
}

fn elements<'a, S: TypeSchema>(
    list: &List<S>,
    items: &'a [Value],
    errors: &mut Mismatches,
) -> Vec<(PathElement, &'a Value)> {
    let mut found = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match item_element(list, item) {
            Ok(element) => found.push((element, item)),
            Err(message) => errors.add(Mismatches::one(format!("element {index}: {message}"))),
        }
    }
    found
}
