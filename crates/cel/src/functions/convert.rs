//! Conversions between types, and how values are shown.

use super::{Outcome, bad, ok, time};
use crate::value::Value;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    let (None, [value]) = (target, args) else { return None };
    let unable = |to: &str| bad(format!("type conversion error from '{}' to '{to}'", value.type_name()));
    match (name, value) {
        ("int", Value::Int(_)) | ("uint", Value::Uint(_)) | ("double", Value::Double(_)) => ok(value.clone()),
        ("bool", Value::Bool(_)) | ("string", Value::String(_)) | ("bytes", Value::Bytes(_)) => {
            ok(value.clone())
        }
        ("timestamp", Value::Timestamp(_)) | ("duration", Value::Duration(_)) => ok(value.clone()),
        ("int", _) => int(value, &unable),
        ("uint", _) => uint(value, &unable),
        ("double", Value::Int(n)) => ok(Value::Double(*n as f64)),
        ("double", Value::Uint(n)) => ok(Value::Double(*n as f64)),
        ("double", Value::String(text)) => {
            // What is too large for a number is an error, unless it says so itself.
            let number = text
                .parse::<f64>()
                .ok()
                .filter(|n| n.is_finite() || !text.contains(|c: char| c.is_ascii_digit()));
            number.map_or_else(|| unable("double"), |n| ok(Value::Double(n)))
        }
        ("bool", Value::String(text)) => match &**text {
            "1" | "t" | "true" | "T" | "True" | "TRUE" => ok(Value::Bool(true)),
            "0" | "f" | "false" | "F" | "False" | "FALSE" => ok(Value::Bool(false)),
            _ => unable("bool"),
        },
        ("string", Value::Bytes(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => ok(Value::text(text)),
            Err(_) => bad("invalid UTF-8 in bytes, cannot convert to string"),
        },
        ("string", value) => string(value).map(|text| Ok(Value::text(text))),
        ("bytes", Value::String(text)) => ok(Value::Bytes(text.as_bytes().into())),
        ("timestamp", Value::Int(seconds)) => match time::of_seconds(*seconds) {
            Some(when) => ok(when),
            None => bad("timestamp overflow"),
        },
        ("timestamp", Value::String(text)) => match time::timestamp(text) {
            Some(when) => ok(when),
            None => unable("google.protobuf.Timestamp"),
        },
        ("duration", Value::String(text)) => match time::duration(text) {
            Some(length) => ok(length),
            None => unable("google.protobuf.Duration"),
        },
        ("duration", Value::Int(_)) => unable("google.protobuf.Duration"),
        ("type", value) => ok(Value::Type(value.type_name().into())),
        ("jsonpatch.escapeKey", Value::String(text)) => {
            ok(Value::text(text.replace('~', "~0").replace('/', "~1")))
        }
        _ => None,
    }
}

fn int(value: &Value, unable: &dyn Fn(&str) -> Outcome) -> Outcome {
    match value {
        Value::Uint(n) => i64::try_from(*n).map_or_else(|_| bad("integer overflow"), |n| ok(Value::Int(n))),
        // The largest number has no exact counterpart among those with a fraction.
        Value::Double(n) if *n > -9_223_372_036_854_775_808.0 && *n < 9_223_372_036_854_775_808.0 => {
            ok(Value::Int(*n as i64))
        }
        Value::Double(_) => bad("integer overflow"),
        Value::String(text) => text.parse().map_or_else(|_| unable("int"), |n| ok(Value::Int(n))),
        Value::Timestamp(when) => ok(Value::Int(when.as_second())),
        Value::Duration(length) => ok(Value::Int(i64::try_from(length.as_nanos()).unwrap_or(i64::MAX))),
        _ => None,
    }
}

fn uint(value: &Value, unable: &dyn Fn(&str) -> Outcome) -> Outcome {
    match value {
        Value::Int(n) => {
            u64::try_from(*n).map_or_else(|_| bad("unsigned integer overflow"), |n| ok(Value::Uint(n)))
        }
        Value::Double(n) if *n >= 0.0 && *n < 18_446_744_073_709_551_616.0 => ok(Value::Uint(*n as u64)),
        Value::Double(_) => bad("unsigned integer overflow"),
        Value::String(text) if text.starts_with('+') => unable("uint"),
        Value::String(text) => text.parse().map_or_else(|_| unable("uint"), |n| ok(Value::Uint(n))),
        _ => None,
    }
}

/// Returns a value as `string()` does; `None` for what has no such form.
pub(crate) fn string(value: &Value) -> Option<String> {
    Some(match value {
        Value::Bool(value) => value.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => n.to_string(),
        Value::Double(n) => shortest(*n, 6),
        Value::String(text) => text.to_string(),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.to_owned(),
        Value::Timestamp(when) => when.to_string(),
        Value::Duration(length) => time::show(*length),
        Value::Ip(ip) => ip.to_string(),
        Value::Cidr(cidr) => cidr.to_string(),
        _ => return None,
    })
}

/// Prints a number with as few digits as it takes; from so many digits before the point on it has an exponent. Go's `%g` begins
/// with that at 6, its `%v` at 21.
fn shortest(number: f64, most: i32) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..most).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

/// Shows a value in an error, as Go prints it.
pub(crate) fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Type(name) => name.to_string(),
        Value::List(list) => format!("[{}]", list.iter().map(go_value).collect::<Vec<_>>().join(", ")),
        Value::Map(map) => {
            let entries: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", go_value(&key.to_value()), go_value(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Optional(Some(inner)) => format!("optional({})", go_value(inner)),
        Value::Optional(None) => "optional.none()".to_owned(),
        Value::Double(n) => shortest(*n, 21),
        other => string(other).unwrap_or_default(),
    }
}

/// Returns what Go calls the type that holds a value.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Duration(_) => "types.Duration",
        Value::Optional(_) => "*types.Optional",
        Value::Type(_) => "*types.Type",
        Value::List(_) => "*types.baseList",
        Value::Map(_) => "*types.baseMap",
        Value::Quantity(_) => "cel.Quantity",
        Value::Ip(_) => "cel.IP",
        Value::Cidr(_) => "cel.CIDR",
        Value::Url(_) => "cel.URL",
        Value::Semver(_) => "cel.Semver",
        Value::Format(_) => "cel.Format",
        _ => "ref.Val",
    }
}
