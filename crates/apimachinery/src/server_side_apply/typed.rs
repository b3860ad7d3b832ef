//! Operations on objects of a known type: check, list the fields, compare, merge, remove, extract.
//!
//! An absent value and an explicit null are different things throughout: null is a value that somebody set.

use serde_json::Value;

use super::path::PathElement;
use super::schema::{List, Scalar, TypeSchema};
use crate::go;
use crate::status::MOST_ERRORS;

mod compare;
mod cut;
mod fields;
mod merge;
mod reconcile;
mod validate;

pub use compare::{Comparison, compare};
pub use cut::{extract, remove};
pub use fields::field_set;
pub use merge::merge;
pub use reconcile::reconcile;
pub use validate::{Duplicates, validate};

/// The bytes that one element may take in the paths of all mismatches.
const MOST_PATHS: usize = 4 << 20;

/// One place where an object does not fit its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    pub path: String,
    pub message: String,
}

/// All places where an object does not fit its type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mismatches(pub Vec<Mismatch>);

impl Mismatches {
    fn one(message: impl Into<String>) -> Self {
        Self(vec![Mismatch { path: String::new(), message: message.into() }])
    }

    /// Puts an element before the paths. Of many below a long one, some are told.
    fn below(mut self, element: &PathElement) -> Self {
        if !self.0.is_empty() {
            let prefix = element.to_string();
            self.0.truncate(MOST_PATHS.checked_div(prefix.len()).unwrap_or(MOST_PATHS).max(1));
            for mismatch in &mut self.0 {
                mismatch.path.insert_str(0, &prefix);
            }
        }
        self
    }

    fn add(&mut self, others: Self) {
        let room = MOST_ERRORS.saturating_sub(self.0.len());
        self.0.extend(others.0.into_iter().take(room));
    }

    fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl std::fmt::Display for Mismatches {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |mismatch: &Mismatch| {
            if mismatch.path.is_empty() {
                mismatch.message.clone()
            } else {
                format!("{}: {}", mismatch.path, mismatch.message)
            }
        };
        match self.0.as_slice() {
            [one] => out.write_str(&show(one)),
            many => {
                out.write_str("errors:")?;
                for mismatch in many {
                    write!(out, "\n  {}", show(mismatch))?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Mismatches {}

/// The sort of type that applies to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Map,
    Scalar,
    List,
}

/// Returns the sort that a value asks for; where the type does not allow it (or the value is null), the type's own
/// first sort, so that the mismatch is reported in its terms. The flag tells whether the choice was forced.
fn deduce<S: TypeSchema>(schema: &S, value: Option<&Value>) -> Option<(Sort, bool)> {
    let (map, scalar, list) = (schema.map().is_some(), schema.scalar().is_some(), schema.list().is_some());
    let sorts = [map, scalar, list].into_iter().filter(|allowed| *allowed).count();
    let asked = match value {
        Some(Value::Object(_)) if map => Some(Sort::Map),
        Some(Value::Array(_)) if list => Some(Sort::List),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) if scalar => Some(Sort::Scalar),
        _ => None,
    };
    if let Some(sort) = asked {
        return Some((sort, true));
    }
    let own = if map {
        Sort::Map
    } else if scalar {
        Sort::Scalar
    } else if list {
        Sort::List
    } else {
        return None;
    };
    Some((own, sorts == 1))
}

/// Returns the sorts to walk for a pair of values: one, or both where they disagree (the second decides).
fn deduce_pair<S: TypeSchema>(
    schema: &S,
    left: Option<&Value>,
    right: Option<&Value>,
) -> Option<(Option<Sort>, Sort)> {
    let left_sort = deduce(schema, left)?;
    let right_sort = deduce(schema, right)?;
    Some(if right.is_none() {
        (None, left_sort.0)
    } else if left.is_none() || left_sort == right_sort {
        (None, right_sort.0)
    } else {
        (Some(left_sort.0), right_sort.0)
    })
}

fn check_scalar(scalar: Scalar, value: &Value, prefix: &str) -> Result<(), Mismatches> {
    let message = match (scalar, value) {
        (_, Value::Null)
        | (Scalar::Numeric, Value::Number(_))
        | (Scalar::String, Value::String(_))
        | (Scalar::Boolean, Value::Bool(_))
        | (Scalar::Any, Value::Number(_) | Value::String(_) | Value::Bool(_)) => return Ok(()),
        (Scalar::Numeric, other) => format!("expected numeric (int or float), got {}", go::type_name(other)),
        // Go prints its wrapper of the value here, and clients have learnt to live with it.
        (Scalar::String, other) => {
            format!("expected string, got &value.valueUnstructured{{Value:{}}}", go::verbose(other))
        }
        (Scalar::Boolean, other) => format!("expected boolean, got &{{{}}}", go::verbose(other)),
        (Scalar::Any, other) => format!("expected any scalar, got &{{{}}}", go::verbose(other)),
    };
    Err(Mismatches::one(format!("{prefix}{message}")))
}

/// Returns the path element of a list item; atomic lists have none.
fn item_element<S: TypeSchema>(list: &List<S>, item: &Value) -> Result<PathElement, String> {
    match list {
        List::Atomic(_) => Err("invalid indexing of non-associative list".to_owned()),
        List::Set(_) => match item {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".to_owned())
            }
            scalar => Ok(PathElement::Value(scalar.clone())),
        },
        List::Map { keys, element } => {
            let entries = match item {
                Value::Object(entries) => entries,
                Value::Null => {
                    return Err("associative list with keys may not have a null element".to_owned());
                }
                _ => return Err("associative list with keys may not have non-map elements".to_owned()),
            };
            let mut found = Vec::with_capacity(keys.len());
            for key in keys {
                match entries.get(key) {
                    Some(value) => found.push((key.clone(), value.clone())),
                    None => {
                        found.extend(element.default_of(key).map(|value| (key.clone(), value)));
                    }
                }
            }
            if found.is_empty() && !keys.is_empty() {
                let quoted: Vec<String> = keys.iter().map(|key| go::quote(key)).collect();
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                    quoted.join(" ")
                ));
            }
            found.sort_by(|left, right| left.0.cmp(&right.0));
            Ok(PathElement::Key(found))
        }
    }
}

#[cfg(test)]
mod tests;
