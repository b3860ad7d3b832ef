//! Arithmetic, comparison, membership, optional values.

use std::cmp::Ordering;

use super::{Outcome, bad, int, ok};
use crate::value::{Key, Value};

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    match (target, name, args) {
        (None, "!_", [Value::Bool(value)]) => ok(Value::Bool(!value)),
        (None, "-_", [value]) => negate(value),
        (None, "_<_", [a, b]) => order(a, b, |order| order == Ordering::Less),
        (None, "_<=_", [a, b]) => order(a, b, |order| order != Ordering::Greater),
        (None, "_>_", [a, b]) => order(a, b, |order| order == Ordering::Greater),
        (None, "_>=_", [a, b]) => order(a, b, |order| order != Ordering::Less),
        (None, "@in", [value, Value::List(list)]) => {
            ok(Value::Bool(list.iter().any(|item| item.equals(value))))
        }
        (None, "@in", [value, Value::Map(map)]) => {
            ok(Value::Bool(Key::of(value).is_some_and(|key| map.contains_key(&key))))
        }
        (None, "_+_" | "_-_" | "_*_" | "_/_" | "_%_", [a, b]) => arithmetic(name, a, b),
        (None, "size", [value]) | (Some(value), "size", []) => size(value),
        (None, "dyn", [value]) => ok(value.clone()),
        (None, "optional.of", [value]) => ok(Value::some(value.clone())),
        (None, "optional.none", []) => ok(Value::Optional(None)),
        (None, "optional.ofNonZeroValue", [value]) => {
            ok(if is_zero(value) { Value::Optional(None) } else { Value::some(value.clone()) })
        }
        (None, "cel.@mapInsert", [map, ..]) => {
            Some(super::lists::grown(map.clone(), name, args[1..].to_vec()))
        }
        (Some(Value::Optional(inner)), "hasValue", []) => ok(Value::Bool(inner.is_some())),
        (Some(Value::Optional(inner)), "value", []) => match inner {
            Some(value) => ok((**value).clone()),
            None => bad("optional.none() dereference"),
        },
        (Some(Value::Decision(allowed, reason)), _, []) => {
            super::authorizer::decision(*allowed, reason, name).map(Ok)
        }
        _ => None,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(value) => !value,
        Value::Int(n) => *n == 0,
        Value::Uint(n) => *n == 0,
        Value::Double(n) => *n == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Duration(length) => length.is_zero(),
        _ => false,
    }
}

fn negate(value: &Value) -> Outcome {
    match value {
        Value::Int(n) => n.checked_neg().map_or_else(|| bad("integer overflow"), |n| ok(Value::Int(n))),
        Value::Double(n) => ok(Value::Double(-n)),
        Value::Duration(d) => ok(Value::Duration(-*d)),
        _ => None,
    }
}

fn order(a: &Value, b: &Value, wanted: fn(Ordering) -> bool) -> Outcome {
    if a.is_number() && b.is_number() {
        return ok(Value::Bool(a.compare(b).is_some_and(wanted)));
    }
    a.compare(b).map(|order| Ok(Value::Bool(wanted(order))))
}

fn size(value: &Value) -> Outcome {
    match value {
        Value::String(text) => ok(int(text.chars().count())),
        Value::Bytes(bytes) => ok(int(bytes.len())),
        Value::List(list) => ok(int(list.len())),
        Value::Map(map) => ok(int(map.len())),
        _ => None,
    }
}

fn arithmetic(name: &str, a: &Value, b: &Value) -> Outcome {
    let whole = |result: Option<i64>| result.map_or_else(|| bad("integer overflow"), |n| ok(Value::Int(n)));
    let unsigned =
        |result: Option<u64>| result.map_or_else(|| bad("unsigned integer overflow"), |n| ok(Value::Uint(n)));
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => match name {
            "_+_" => whole(a.checked_add(*b)),
            "_-_" => whole(a.checked_sub(*b)),
            "_*_" => whole(a.checked_mul(*b)),
            "_/_" if *b == 0 => bad("division by zero"),
            "_%_" if *b == 0 => bad("modulus by zero"),
            "_/_" => whole(a.checked_div(*b)),
            _ => whole(a.checked_rem(*b)),
        },
        (Value::Uint(a), Value::Uint(b)) => match name {
            "_+_" => unsigned(a.checked_add(*b)),
            "_-_" => unsigned(a.checked_sub(*b)),
            "_*_" => unsigned(a.checked_mul(*b)),
            "_/_" if *b == 0 => bad("division by zero"),
            "_%_" if *b == 0 => bad("modulus by zero"),
            "_/_" => unsigned(a.checked_div(*b)),
            _ => unsigned(a.checked_rem(*b)),
        },
        (Value::Double(a), Value::Double(b)) => match name {
            "_+_" => ok(Value::Double(a + b)),
            "_-_" => ok(Value::Double(a - b)),
            "_*_" => ok(Value::Double(a * b)),
            "_/_" => ok(Value::Double(a / b)),
            _ => None,
        },
        (Value::String(a), Value::String(b)) if name == "_+_" => ok(Value::text(format!("{a}{b}"))),
        (Value::Bytes(a), Value::Bytes(b)) if name == "_+_" => {
            ok(Value::Bytes([&a[..], &b[..]].concat().into()))
        }
        (Value::List(a), Value::List(b)) if name == "_+_" => ok(Value::List(std::sync::Arc::new(a.plus(b)))),
        (Value::Timestamp(t), Value::Duration(d)) | (Value::Duration(d), Value::Timestamp(t))
            if name == "_+_" =>
        {
            super::time::within(t.checked_add(*d))
        }
        (Value::Timestamp(t), Value::Duration(d)) if name == "_-_" => super::time::within(t.checked_sub(*d)),
        (Value::Timestamp(a), Value::Timestamp(b)) if name == "_-_" => {
            super::time::length(Some(a.duration_since(*b)))
        }
        (Value::Duration(a), Value::Duration(b)) => {
            let result = match name {
                "_+_" => a.checked_add(*b),
                "_-_" => a.checked_sub(*b),
                _ => return None,
            };
            super::time::length(result)
        }
        _ => None,
    }
}
