//! Checks that an object fits its type: sorts of values, declared fields, unique list items.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Mismatches, Sort, check_scalar, deduce, item_element};
use crate::go;
use crate::server_side_apply::path::PathElement;
use crate::server_side_apply::schema::{List, TypeSchema};

/// Whether associative lists may hold the same item twice: live objects may, applied ones may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicates {
    Allowed,
    Refused,
}

/// Checks a value against a type.
pub fn validate<S: TypeSchema>(schema: &S, value: &Value, duplicates: Duplicates) -> Result<(), Mismatches> {
    let Some((sort, _)) = deduce(schema, Some(value)) else {
        return Err(Mismatches::one("schema error: invalid atom: inlined"));
    };
    match sort {
        Sort::Scalar => match schema.scalar() {
            Some(scalar) => check_scalar(scalar, value, ""),
            None => Ok(()),
        },
        Sort::List => match (schema.list(), value) {
            (_, Value::Null) | (None, _) => Ok(()),
            (Some(list), Value::Array(items)) => validate_items(&list, items, duplicates),
            (Some(_), other) => {
                Err(Mismatches::one(format!("expected list, got &{{{}}}", go::verbose(other))))
            }
        },
        Sort::Map => match value {
            Value::Null => Ok(()),
            Value::Object(entries) => {
                let mut found = Mismatches::default();
                for (key, value) in entries {
                    let element = PathElement::field(key);
                    match schema.member(key) {
                        Some(member) => {
                            if let Err(mismatches) = validate(&member.schema, value, duplicates) {
                                found.add(mismatches.below(&element));
                            }
                        }
                        // Upstream stops at the first undeclared field of an object.
                        None => {
                            found.add(Mismatches::one("field not declared in schema").below(&element));
                            break;
                        }
                    }
                }
                found.into_result(())
            }
            other => Err(Mismatches::one(format!("expected map, got &{{{}}}", go::verbose(other)))),
        },
    }
}

fn validate_items<S: TypeSchema>(
    list: &List<S>,
    items: &[Value],
    duplicates: Duplicates,
) -> Result<(), Mismatches> {
    let mut found = Mismatches::default();
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let element = if matches!(list, List::Atomic(_)) {
            PathElement::Index(index)
        } else {
            match item_element(list, item) {
                Ok(element) => element,
                Err(message) => {
                    found.add(Mismatches::one(format!("element {index}: {message}")));
                    return Err(found);
                }
            }
        };
        if !matches!(list, List::Atomic(_))
            && !seen.insert(element.clone())
            && duplicates == Duplicates::Refused
        {
            found.add(Mismatches::one(format!("duplicate entries for key {element}")));
        }
        if let Some(schema) = list.clone().element()
            && let Err(mismatches) = validate(&schema, item, duplicates)
        {
            found.add(mismatches.below(&element));
        }
    }
    found.into_result(())
}
