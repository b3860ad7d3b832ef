//! Quantities: `1Gi`, `500m`.

use std::cmp::Ordering;

use apimachinery::quantity::Quantity;

use super::{Outcome, bad, ok};
use crate::value::Value;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    match (target, name, args) {
        (None, "isQuantity", [Value::String(text)]) => ok(Value::Bool(Quantity::parse(text).is_ok())),
        (None, "quantity", [Value::String(text)]) => match Quantity::parse(text) {
            Ok(quantity) => ok(Value::Quantity(Box::new(quantity))),
            Err(error) => bad(error.to_string()),
        },
        (None, "sign", [Value::Quantity(own)]) => ok(Value::Int(i64::from(own.sign()))),
        (Some(Value::Quantity(own)), _, _) => on(own, name, args),
        _ => None,
    }
}

fn on(own: &Quantity, name: &str, args: &[Value]) -> Outcome {
    let integer = || own.as_i64();
    match (name, args) {
        ("isInteger", []) => ok(Value::Bool(integer().is_some())),
        ("asInteger", []) => match integer() {
            Some(number) => ok(Value::Int(number)),
            None => bad("cannot convert value to integer"),
        },
        ("asApproximateFloat", []) => ok(Value::Double(own.as_f64())),
        ("compareTo", [Value::Quantity(other)]) => ok(Value::Int(own.cmp(other) as i64)),
        ("isGreaterThan", [Value::Quantity(other)]) => ok(Value::Bool(own.cmp(other) == Ordering::Greater)),
        ("isLessThan", [Value::Quantity(other)]) => ok(Value::Bool(own.cmp(other) == Ordering::Less)),
        ("add", [Value::Quantity(other)]) => ok(Value::Quantity(Box::new(*own + **other))),
        ("sub", [Value::Quantity(other)]) => ok(Value::Quantity(Box::new(*own - **other))),
        ("add", [Value::Int(n)]) => ok(Value::Quantity(Box::new(*own + Quantity::from_scaled(*n, 0)))),
        ("sub", [Value::Int(n)]) => ok(Value::Quantity(Box::new(*own - Quantity::from_scaled(*n, 0)))),
        _ => None,
    }
}
