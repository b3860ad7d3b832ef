//! How deep an object may nest: one limit and one error for everything that reads, makes or changes objects.
//!
//! Trees are cloned, compared, printed and dropped by recursion, so a value that nests thousands of levels ends the
//! process with a stack overflow. Readers therefore stop at [`MAX_DEPTH`], patches refuse the operation that would go
//! beyond it, and whatever builds trees in another way (expressions, scripts, webhooks) is checked with [`check`] or
//! [`accept`] before anybody else sees the result. Nothing in this file recurses.

use serde_json::Value;

/// How many arrays and objects may lie inside each other, the object itself included.
///
/// Go reads 10,000 levels, on stacks that grow. `serde_json`, which our controllers and every client written in Rust
/// read with, refuses 128. An object must stay readable in whatever carries it: a list adds 2 levels, a watch event
/// 1, an AdmissionReview 2, a ConversionReview 3. That leaves 124; 120 keeps a small reserve. The deepest schemas of
/// custom resources seen in practice nest below 100.
pub const MAX_DEPTH: usize = 120;

/// A value nests deeper than [`MAX_DEPTH`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("exceeded max depth: arrays and objects may nest {MAX_DEPTH} levels")]
pub struct TooDeep;

/// Returns how many arrays and objects lie inside each other: 0 for a scalar, 1 for `{}`.
pub fn depth(value: &Value) -> usize {
    deepest(value, usize::MAX)
}

/// Checks that a value keeps to the limit.
pub fn check(value: &Value) -> Result<(), TooDeep> {
    check_below(0, value)
}

/// Checks that a value keeps to the limit when it is placed inside of `above` arrays and objects.
pub fn check_below(above: usize, value: &Value) -> Result<(), TooDeep> {
    let left = MAX_DEPTH.checked_sub(above).ok_or(TooDeep)?;
    if deepest(value, left) > left { Err(TooDeep) } else { Ok(()) }
}

/// Returns a value that keeps to the limit; one that does not is taken apart, because dropping it would recurse.
pub fn accept(value: Value) -> Result<Value, TooDeep> {
    match check(&value) {
        Ok(()) => Ok(value),
        Err(error) => {
            dismantle(value);
            Err(error)
        }
    }
}

/// Drops a value of any depth.
pub fn dismantle(value: Value) {
    let mut waiting = vec![value];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Array(items) => waiting.extend(items.into_iter().filter(is_container)),
            Value::Object(entries) => waiting.extend(entries.into_values().filter(is_container)),
            _ => {}
        }
    }
}

/// Returns the depth, or the first level beyond `enough`.
fn deepest(value: &Value, enough: usize) -> usize {
    let mut deepest = 0;
    let mut waiting = vec![(value, 1_usize)];
    while let Some((value, level)) = waiting.pop() {
        match value {
            Value::Array(items) => {
                waiting.extend(
                    items
                        .iter()
                        .filter(|item| is_container(item))
                        .map(|item| (item, level.saturating_add(1))),
                );
            }
            Value::Object(entries) => {
                let items = entries.values().filter(|item| is_container(item));
                waiting.extend(items.map(|item| (item, level.saturating_add(1))));
            }
            _ => continue,
        }
        deepest = deepest.max(level);
        if deepest > enough {
            break;
        }
    }
    deepest
}

fn is_container(value: &Value) -> bool {
    matches!(value, Value::Array(_) | Value::Object(_))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!("x"), |inner, _| Value::Array(vec![inner]))
    }

    #[test]
    fn levels_are_counted() {
        for (value, levels) in [
            (json!(1), 0),
            (json!({}), 1),
            (json!([1, {"a": [], "b": 2}]), 3),
            (json!({"a": {"b": {"c": 1}}, "d": []}), 3),
            (nested(500), 500),
        ] {
            assert_eq!(depth(&value), levels);
        }
    }

    #[test]
    fn the_limit_counts_what_lies_around_the_value() {
        assert_eq!(check(&nested(MAX_DEPTH)), Ok(()));
        assert_eq!(check(&nested(MAX_DEPTH + 1)), Err(TooDeep));
        assert_eq!(check_below(4, &nested(MAX_DEPTH - 4)), Ok(()));
        assert_eq!(check_below(4, &nested(MAX_DEPTH - 3)), Err(TooDeep));
        assert_eq!(check_below(MAX_DEPTH, &json!("x")), Ok(()));
        assert_eq!(check_below(MAX_DEPTH + 1, &json!("x")), Err(TooDeep));
    }

    #[test]
    fn finding_1_a_million_levels_are_refused_and_dropped_without_recursion() {
        assert_eq!(accept(nested(1_000_000)), Err(TooDeep));
        let objects = (0..1_000_000)
            .fold(json!(1), |inner, _| Value::Object([("a".to_owned(), inner)].into_iter().collect()));
        assert_eq!(accept(objects), Err(TooDeep));
    }

    #[test]
    fn finding_8_what_is_accepted_can_be_read_back_in_whatever_carries_it() {
        let object = nested(MAX_DEPTH);
        for carrier in [
            json!({"items": [object]}),
            json!({"type": "ADDED", "object": object}),
            json!({"request": {"object": object}}),
            json!({"request": {"objects": [object]}}),
        ] {
            serde_json::from_str::<Value>(&carrier.to_string()).unwrap();
        }
    }
}
