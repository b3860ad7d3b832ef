//! Lists and sets.

use std::cmp::Ordering;

use super::{Outcome, bad, int, ok};
use crate::value::Value;

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
            ("lists.range", [Value::Int(n)]) => {
                ok(Value::list((0..(*n).clamp(0, 100_000)).map(Value::Int).collect()))
            }
            _ => None,
        };
    }
    let Some(Value::List(list)) = target else { return None };
    match (name, args) {
        ("isSorted", []) => {
            let sorted = list.windows(2).all(|pair| pair[0].compare(&pair[1]).is_some_and(Ordering::is_le));
            ok(Value::Bool(sorted))
        }
        ("sum", []) => sum(list),
        ("min", []) => extreme(list, "min", Ordering::is_lt),
        ("max", []) => extreme(list, "max", Ordering::is_gt),
        ("indexOf", [value]) => {
            ok(list.iter().position(|item| item.equals(value)).map_or(Value::Int(-1), int))
        }
        ("lastIndexOf", [value]) => {
            ok(list.iter().rposition(|item| item.equals(value)).map_or(Value::Int(-1), int))
        }
        ("includes", [value]) => ok(Value::Bool(list.iter().any(|item| item.equals(value)))),
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
        ("sort", []) => {
            let mut sorted = list.to_vec();
            if sorted.iter().any(|item| item.compare(item).is_none()) {
                return bad("list elements must be comparable");
            }
            sorted.sort_by(|a, b| a.compare(b).unwrap_or(Ordering::Equal));
            ok(Value::list(sorted))
        }
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
    let texts: Option<Vec<&str>> =
        list.iter().map(|item| if let Value::String(text) = item { Some(&**text) } else { None }).collect();
    texts.map(|texts| Ok(Value::text(texts.join(by))))
}

fn sum(list: &[Value]) -> Outcome {
    let Some((first, rest)) = list.split_first() else { return ok(Value::Int(0)) };
    let mut total = first.clone();
    for item in rest {
        match super::operators::call(None, "_+_", &[total, item.clone()]) {
            Some(Ok(value)) => total = value,
            other => return other,
        }
    }
    ok(total)
}

fn extreme(list: &[Value], name: &str, better: fn(Ordering) -> bool) -> Outcome {
    let Some((first, rest)) = list.split_first() else { return bad(format!("{name} called on empty list")) };
    let mut best = first;
    for item in rest {
        if better(item.compare(best)?) {
            best = item;
        }
    }
    ok(best.clone())
}
