//! Lists and sets.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Outcome, bad, convert, int, ok};
use crate::EvalError;
use crate::value::{Key, Value};

/// The longest list of numbers: one evaluation cannot pay for more.
const MAX_RANGE: i64 = 1_000_001;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    if target.is_none() {
        return match (name, args) {
            ("sets.contains", [Value::List(a), Value::List(b)]) => ok(Value::Bool(holds(a, b))),
            ("sets.equivalent", [Value::List(a), Value::List(b)]) => {
                ok(Value::Bool(holds(a, b) && holds(b, a)))
            }
            ("sets.intersects", [Value::List(a), Value::List(b)]) => {
                ok(Value::Bool(a.iter().any(|item| b.iter().any(|other| other.equals(item)))))
            }
            // More than a budget can pay for is not made at all.
            ("lists.range", [Value::Int(n)]) => {
                ok(Value::list((0..(*n).clamp(0, MAX_RANGE)).map(Value::Int).collect()))
            }
            ("optional.unwrap", [Value::List(list)]) => unwrapped(list),
            _ => None,
        };
    }
    let Some(Value::List(list)) = target else { return None };
    match (name, args) {
        ("isSorted", []) if comparable(list) => {
            let sorted = !list.windows(2).any(|pair| pair[0].compare(&pair[1]) == Some(Ordering::Greater));
            ok(Value::Bool(sorted))
        }
        ("sum", []) => sum(list),
        ("min", []) if comparable(list) => extreme(list, "min", Ordering::Greater),
        ("max", []) if comparable(list) => extreme(list, "max", Ordering::Less),
        ("indexOf", [value]) => {
            ok(list.iter().position(|item| item.equals(value)).map_or(Value::Int(-1), int))
        }
        ("lastIndexOf", [value]) => {
            ok(list.iter().rposition(|item| item.equals(value)).map_or(Value::Int(-1), int))
        }
        ("join", []) => join(list, ""),
        ("join", [Value::String(by)]) => join(list, by),
        ("reverse", []) => ok(Value::list(list.iter().rev().cloned().collect())),
        ("flatten", []) => ok(Value::list(flatten(list, 1))),
        ("flatten", [Value::Int(depth)]) if *depth >= 0 => ok(Value::list(flatten(list, *depth))),
        ("flatten", [Value::Int(_)]) => bad("level must be non-negative"),
        ("slice", [Value::Int(from), Value::Int(to)]) => {
            let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
            if *from < 0 || *to < 0 {
                return bad(format!("cannot slice({from}, {to}), negative indexes not supported"));
            }
            if from > to {
                return bad(format!(
                    "cannot slice({from}, {to}), start index must be less than or equal to end index"
                ));
            }
            if *to > length {
                return bad(format!("cannot slice({from}, {to}), list is length {length}"));
            }
            ok(Value::list(list[*from as usize..*to as usize].to_vec()))
        }
        ("distinct", []) => {
            let mut kept: Vec<Value> = Vec::new();
            for item in list.iter() {
                if !kept.iter().any(|known| known.equals(item)) {
                    kept.push(item.clone());
                }
            }
            ok(Value::list(kept))
        }
        ("sort", []) => sorted(list, list),
        ("@sortByAssociatedKeys", [Value::List(keys)]) => sorted(list, keys),
        ("unwrapOpt", []) => unwrapped(list),
        ("first", []) => ok(Value::Optional(list.first().cloned().map(Box::new))),
        ("last", []) => ok(Value::Optional(list.last().cloned().map(Box::new))),
        _ => None,
    }
}

fn holds(all: &[Value], some: &[Value]) -> bool {
    some.iter().all(|item| all.iter().any(|known| known.equals(item)))
}

fn flatten(list: &[Value], depth: i64) -> Vec<Value> {
    let mut out = Vec::new();
    for item in list {
        match item {
            Value::List(inner) if depth > 0 => out.extend(flatten(inner, depth - 1)),
            item => out.push(item.clone()),
        }
    }
    out
}

fn join(list: &[Value], by: &str) -> Outcome {
    let mut out = String::new();
    for (at, item) in list.iter().enumerate() {
        let Value::String(text) = item else {
            // The first item decides which function it is.
            return if at == 0 {
                None
            } else {
                bad(format!("join: invalid input: {}", convert::go_value(item)))
            };
        };
        if at > 0 {
            out.push_str(by);
        }
        out.push_str(text);
    }
    ok(Value::text(out))
}

fn sum(list: &[Value]) -> Outcome {
    let Some((first, rest)) = list.split_first() else { return ok(Value::Int(0)) };
    if !first.is_number() && !matches!(first, Value::Duration(_)) {
        return None;
    }
    let mut total = first.clone();
    for item in rest {
        match super::operators::call(None, "_+_", &[total, item.clone()]) {
            Some(Ok(value)) => total = value,
            // An error is not a summand, and upstream says no more than that.
            _ => return bad("no such overload"),
        }
    }
    ok(total)
}

/// Returns the sum of nothing, which is of the type that was declared.
pub(crate) fn empty_sum(overload: &str) -> Value {
    match overload {
        "list_uint_sum_uint" => Value::Uint(0),
        "list_double_sum_double" => Value::Double(0.0),
        "list_duration_sum_duration" => Value::Duration(jiff::SignedDuration::ZERO),
        _ => Value::Int(0),
    }
}

/// The first item decides whether a function is about a list.
fn comparable(list: &[Value]) -> bool {
    list.first().is_none_or(|first| first.compare(first).is_some() || matches!(first, Value::Double(_)))
}

fn extreme(list: &[Value], name: &str, worse: Ordering) -> Outcome {
    let Some((first, rest)) = list.split_first() else { return bad(format!("{name} called on empty list")) };
    let best =
        rest.iter().fold(first, |best, item| if best.compare(item) == Some(worse) { item } else { best });
    ok(best.clone())
}

fn sorted(list: &[Value], keys: &[Value]) -> Outcome {
    let Some(first) = keys.first() else { return ok(Value::list(list.to_vec())) };
    if !comparable(keys) {
        return bad("list elements must be comparable");
    }
    if keys.len() > 1 && keys.iter().any(|key| key.type_name() != first.type_name()) {
        return bad("list elements must have the same type");
    }
    let mut order: Vec<usize> = (0..list.len()).collect();
    order.sort_by(|a, b| keys[*a].compare(&keys[*b]).unwrap_or(Ordering::Equal));
    ok(Value::list(order.into_iter().map(|at| list[at].clone()).collect()))
}

fn unwrapped(list: &[Value]) -> Outcome {
    let mut values = Vec::new();
    for item in list {
        match item {
            Value::Optional(inner) => values.extend(inner.as_deref().cloned()),
            other => return bad(format!("value {} is not optional", convert::go_value(other))),
        }
    }
    ok(Value::list(values))
}

/// Adds to a list or map, without a copy if nobody else has it.
pub(crate) fn grown(collected: Value, function: &str, mut more: Vec<Value>) -> Result<Value, EvalError> {
    match (collected, function, more.len()) {
        (Value::List(mut list), "_+_", 1) => {
            let Some(Value::List(items)) = more.pop() else {
                return Err(EvalError("no such overload".to_owned()));
            };
            Arc::make_mut(&mut list).extend(items.iter().cloned());
            Ok(Value::List(list))
        }
        (Value::Map(mut map), "cel.@mapInsert", 1 | 2) => {
            let entries = match (more.pop(), more.pop()) {
                (Some(Value::Map(entries)), None) => {
                    entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
                }
                (Some(value), Some(key)) => Key::of(&key).map(|key| vec![(key, value)]).unwrap_or_default(),
                _ => Vec::new(),
            };
            let target = Arc::make_mut(&mut map);
            for (key, value) in entries {
                if target.contains_key(&key) {
                    let shown = convert::go_value(&key.to_value());
                    return Err(EvalError(format!("insert failed: key {shown} already exists")));
                }
                target.insert(key, value);
            }
            Ok(Value::Map(map))
        }
        _ => Err(EvalError("no such overload".to_owned())),
    }
}
