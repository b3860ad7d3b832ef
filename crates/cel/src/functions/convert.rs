//! Conversions between types.

use base64::Engine;

use super::{Outcome, bad, ok, time};
use crate::value::Value;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    if target.is_some() {
        return None;
    }
    match (name, args) {
        ("int", [value]) => int(value),
        ("uint", [value]) => uint(value),
        ("double", [value]) => match value {
            Value::Double(_) => ok(value.clone()),
            Value::Int(n) => ok(Value::Double(*n as f64)),
            Value::Uint(n) => ok(Value::Double(*n as f64)),
            Value::String(text) => match text.parse() {
                Ok(number) => ok(Value::Double(number)),
                Err(_) => bad(format!("strconv.ParseFloat: parsing {text:?}: invalid syntax")),
            },
            _ => None,
        },
        ("bool", [value]) => match value {
            Value::Bool(_) => ok(value.clone()),
            Value::String(text) => match &**text {
                "1" | "t" | "true" | "T" | "True" | "TRUE" => ok(Value::Bool(true)),
                "0" | "f" | "false" | "F" | "False" | "FALSE" => ok(Value::Bool(false)),
                _ => bad(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
            },
            _ => None,
        },
        ("string", [Value::Bytes(bytes)]) => match std::str::from_utf8(bytes) {
            Ok(text) => ok(Value::text(text)),
            Err(_) => bad("invalid UTF-8 in bytes, cannot convert to string"),
        },
        ("string", [Value::Double(number)]) => ok(Value::text(shortest(*number))),
        ("string", [value]) => match value {
            Value::List(_) | Value::Map(_) | Value::Optional(_) | Value::Null => None,
            value => ok(Value::text(show(value))),
        },
        ("bytes", [Value::Bytes(_)]) => ok(args[0].clone()),
        ("bytes", [Value::String(text)]) => ok(Value::Bytes(text.as_bytes().into())),
        ("type", [value]) => ok(Value::Type(value.type_name())),
        ("jsonpatch.escapeKey", [Value::String(text)]) => {
            ok(Value::text(text.replace('~', "~0").replace('/', "~1")))
        }
        ("base64.encode", [Value::Bytes(bytes)]) => {
            ok(Value::text(base64::engine::general_purpose::STANDARD.encode(bytes)))
        }
        ("base64.decode", [Value::String(text)]) => {
            let engine = base64::engine::general_purpose::STANDARD;
            let padded = engine.decode(&**text);
            match padded.or_else(|_| base64::engine::general_purpose::STANDARD_NO_PAD.decode(&**text)) {
                Ok(bytes) => ok(Value::Bytes(bytes.into())),
                Err(_) => bad("illegal base64 data"),
            }
        }
        _ => None,
    }
}

fn int(value: &Value) -> Outcome {
    match value {
        Value::Int(_) => ok(value.clone()),
        Value::Uint(n) => i64::try_from(*n).map_or_else(|_| bad("integer overflow"), |n| ok(Value::Int(n))),
        Value::Double(n) if n.is_finite() && n.abs() < 9.2e18 => ok(Value::Int(*n as i64)),
        Value::Double(_) => bad("integer overflow"),
        Value::String(text) => match text.parse() {
            Ok(number) => ok(Value::Int(number)),
            Err(_) => bad(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")),
        },
        Value::Timestamp(when) => ok(Value::Int(when.as_second())),
        Value::Duration(length) => ok(Value::Int(i64::try_from(length.as_nanos()).unwrap_or(i64::MAX))),
        _ => None,
    }
}

fn uint(value: &Value) -> Outcome {
    match value {
        Value::Uint(_) => ok(value.clone()),
        Value::Int(n) => {
            u64::try_from(*n).map_or_else(|_| bad("unsigned integer overflow"), |n| ok(Value::Uint(n)))
        }
        Value::Double(n) if *n >= 0.0 && *n < 1.8e19 => ok(Value::Uint(*n as u64)),
        Value::Double(_) => bad("unsigned integer overflow"),
        Value::String(text) => match text.parse() {
            Ok(number) => ok(Value::Uint(number)),
            Err(_) => bad(format!("strconv.ParseUint: parsing {text:?}: invalid syntax")),
        },
        _ => None,
    }
}

/// Prints a number with as few digits as it takes, with an exponent where Go writes one (`%g`).
fn shortest(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

/// Prints a value as `%s` does, and `string()` but for numbers with a fraction.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => n.to_string(),
        Value::Double(n) => apimachinery::go::float(*n),
        Value::String(text) => text.to_string(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Timestamp(when) => when.to_string(),
        Value::Duration(length) => time::show(*length),
        Value::Type(name) => (*name).to_owned(),
        Value::List(list) => format!("[{}]", list.iter().map(show).collect::<Vec<_>>().join(", ")),
        Value::Map(map) => {
            let entries: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", show(&key.to_value()), show(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Quantity(quantity) => quantity.to_string(),
        Value::Ip(ip) => ip.to_string(),
        Value::Cidr(cidr) => cidr.to_string(),
        Value::Url(url) => url.text.clone(),
        Value::Semver(version) => version.to_string(),
        Value::Format(name) => (*name).to_owned(),
        Value::Optional(Some(value)) => show(value),
        Value::Optional(None) => "optional.none()".to_owned(),
        Value::Authorizer(_) | Value::Decision(..) | Value::Lazy(_) | Value::Object(_) => String::new(),
    }
}
