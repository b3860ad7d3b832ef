//! Numbers beyond arithmetic.

use std::cmp::Ordering;

use super::{Outcome, bad, ok};
use crate::value::Value;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    let name = name.strip_prefix("math.").filter(|_| target.is_none())?;
    match (name, args) {
        ("greatest" | "least", [Value::List(list)]) => extreme(list, name),
        ("greatest" | "least", values) => extreme(values, name),
        ("ceil", [Value::Double(n)]) => ok(Value::Double(n.ceil())),
        ("floor", [Value::Double(n)]) => ok(Value::Double(n.floor())),
        ("round", [Value::Double(n)]) => ok(Value::Double(n.round())),
        ("trunc", [Value::Double(n)]) => ok(Value::Double(n.trunc())),
        ("abs", [Value::Double(n)]) => ok(Value::Double(n.abs())),
        ("abs", [Value::Int(n)]) => {
            n.checked_abs().map_or_else(|| bad("integer overflow"), |n| ok(Value::Int(n)))
        }
        ("abs", [Value::Uint(n)]) => ok(Value::Uint(*n)),
        ("sign", [Value::Double(n)]) => {
            ok(Value::Double(if *n == 0.0 || n.is_nan() { *n } else { n.signum() }))
        }
        ("sign", [Value::Int(n)]) => ok(Value::Int(n.signum())),
        ("sign", [Value::Uint(n)]) => ok(Value::Uint((*n).min(1))),
        ("isNaN", [Value::Double(n)]) => ok(Value::Bool(n.is_nan())),
        ("isInf", [Value::Double(n)]) => ok(Value::Bool(n.is_infinite())),
        ("isFinite", [Value::Double(n)]) => ok(Value::Bool(n.is_finite())),
        ("sqrt", [Value::Double(n)]) => ok(Value::Double(n.sqrt())),
        ("sqrt", [Value::Int(n)]) => ok(Value::Double((*n as f64).sqrt())),
        ("bitAnd", [Value::Int(a), Value::Int(b)]) => ok(Value::Int(a & b)),
        ("bitOr", [Value::Int(a), Value::Int(b)]) => ok(Value::Int(a | b)),
        ("bitXor", [Value::Int(a), Value::Int(b)]) => ok(Value::Int(a ^ b)),
        ("bitNot", [Value::Int(n)]) => ok(Value::Int(!n)),
        ("bitAnd", [Value::Uint(a), Value::Uint(b)]) => ok(Value::Uint(a & b)),
        ("bitOr", [Value::Uint(a), Value::Uint(b)]) => ok(Value::Uint(a | b)),
        ("bitXor", [Value::Uint(a), Value::Uint(b)]) => ok(Value::Uint(a ^ b)),
        ("bitShiftLeft", [Value::Int(n), Value::Int(by)]) => shift(*by, |by| n.checked_shl(by).unwrap_or(0)),
        ("bitShiftRight", [Value::Int(n), Value::Int(by)]) => {
            shift(*by, |by| (*n as u64).checked_shr(by).unwrap_or(0) as i64)
        }
        _ => None,
    }
}

fn shift(by: i64, run: impl Fn(u32) -> i64) -> Outcome {
    match u32::try_from(by) {
        Ok(by) => ok(Value::Int(run(by))),
        Err(_) => bad(format!("math.bitShift() negative offset: {by}")),
    }
}

fn extreme(values: &[Value], name: &str) -> Outcome {
    let (first, rest) = values.split_first()?;
    let wanted = if name == "greatest" { Ordering::Greater } else { Ordering::Less };
    let mut best = first;
    for value in rest {
        if value.compare(best)? == wanted {
            best = value;
        }
    }
    ok(best.clone())
}
