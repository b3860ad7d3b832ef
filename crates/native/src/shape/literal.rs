//! Scalars and the types with a parser of their own: what they accept, how they print, what they say otherwise.

use apimachinery::duration;
use apimachinery::quantity::Quantity;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Number, Value};

use super::time;
use crate::types::Kind;

/// Why a literal is refused.
#[derive(Debug, PartialEq)]
pub(super) enum Wrong {
    /// A value of another JSON type, in the words of Go's decoder: `string`, `number 1.5`, `object`.
    Type(String),
    /// A sentence of the type's own parser.
    Text(String),
}

/// Returns how Go's decoder names the type of a value.
pub(super) fn json_type(value: &Value) -> String {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    name.to_owned()
}

/// Rewrites a scalar; null leaves it at its zero value, as Go ignores it.
pub(super) fn scalar(kind: Kind, value: &mut Value) -> Result<(), Wrong> {
    match (kind, &*value) {
        (Kind::String, Value::String(_)) | (Kind::Bool, Value::Bool(_)) | (Kind::Bytes, Value::Null) => {
            Ok(())
        }
        (Kind::String, Value::Null) => set(value, String::new()),
        (Kind::Bool, Value::Null) => set(value, false),
        (Kind::Int32 | Kind::Int64 | Kind::Uint8 | Kind::Float64, Value::Null) => set(value, 0),
        (Kind::Int32, Value::Number(number)) => integer(number, i32::MIN.into(), i32::MAX.into()),
        (Kind::Int64, Value::Number(number)) => integer(number, i64::MIN, i64::MAX),
        (Kind::Uint8, Value::Number(number)) => integer(number, 0, u8::MAX.into()),
        (Kind::Float64, Value::Number(number)) => {
            let printed = number
                .as_f64()
                .filter(|_| number.is_f64())
                .map_or_else(|| Value::Number(number.clone()), float);
            set(value, printed)
        }
        (Kind::Bytes, Value::String(text)) => {
            let bytes = base64_decode(text).map_err(Wrong::Text)?;
            set(value, STANDARD.encode(bytes))
        }
        // Go reads byte slices from arrays of numbers, too.
        (Kind::Bytes, Value::Array(items)) => {
            let bytes: Option<Vec<u8>> =
                items.iter().map(|item| item.as_u64().and_then(|byte| u8::try_from(byte).ok())).collect();
            match bytes {
                Some(bytes) => set(value, STANDARD.encode(bytes)),
                None => Err(Wrong::Type("array".into())),
            }
        }
        (_, other) => Err(Wrong::Type(json_type(other))),
    }
}

fn set(value: &mut Value, new: impl Into<Value>) -> Result<(), Wrong> {
    *value = new.into();
    Ok(())
}

fn integer(number: &Number, least: i64, most: i64) -> Result<(), Wrong> {
    match number.as_i64() {
        Some(integer) if (least..=most).contains(&integer) => Ok(()),
        _ => Err(Wrong::Type(format!("number {}", number_text(number)))),
    }
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => apimachinery::go::float(float),
        _ => number.to_string(),
    }
}

/// Returns a float as Go prints it: without a fraction if it has none.
pub(crate) fn float(float: f64) -> Value {
    // 2^53: up to here every integral float is exactly an integer.
    if float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0 {
        Value::from(float as i64)
    } else {
        Value::from(float)
    }
}

/// Rewrites times, durations, quantities and int-or-strings. Type errors name the type that the parser reads first.
pub(super) fn special(kind: Kind, value: &mut Value) -> Result<(), Wrong> {
    match (kind, &*value) {
        (Kind::Time | Kind::MicroTime, Value::Null) => Ok(()),
        (Kind::Time, Value::String(text)) => {
            let printed = time::canonical_seconds(text).map_err(Wrong::Text)?;
            set(value, printed)
        }
        (Kind::MicroTime, Value::String(text)) => {
            let printed = time::canonical_micros(text).map_err(Wrong::Text)?;
            set(value, printed)
        }
        (Kind::Duration, Value::Null) => Err(Wrong::Text("time: invalid duration \"\"".into())),
        (Kind::Duration, Value::String(text)) => {
            let nanos = duration::nanos(text).map_err(Wrong::Text)?;
            set(value, duration::text(nanos))
        }
        (Kind::Quantity, Value::Null) => set(value, "0"),
        (Kind::Quantity, given) => {
            let text = match given {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                other => other.to_string(),
            };
            let canonical =
                Quantity::canonical(text.trim()).map_err(|error| Wrong::Text(error.to_string()))?;
            set(value, canonical)
        }
        (Kind::IntOrString, Value::String(_)) => Ok(()),
        (Kind::IntOrString, Value::Null) => set(value, 0),
        (Kind::IntOrString, Value::Number(number)) => integer(number, i32::MIN.into(), i32::MAX.into()),
        (_, other) => Err(Wrong::Type(json_type(other))),
    }
}

/// Rounds a canonical quantity up to whole thousandths, as resource lists do.
pub(crate) fn round_to_milli(value: &mut Value) {
    let Value::String(text) = value else { return };
    // Only these suffixes can be finer than a thousandth; everything else is whole already.
    let fine = text.ends_with(['n', 'u']) || text.contains('e');
    if fine && let Ok(quantity) = Quantity::parse(text) {
        *value = Value::String(quantity.round_up(-3).to_string());
    }
}

/// Decodes standard base64 as Go does: line breaks are skipped, padding is required.
///
/// # Errors
/// Go's sentence, which names the byte where the text goes wrong.
pub fn base64_decode(text: &str) -> Result<Vec<u8>, String> {
    let clean: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    STANDARD
        .decode(&clean)
        .map_err(|_| format!("illegal base64 data at input byte {}", corrupt_at(text.as_bytes())))
}

/// Returns where Go's decoder stops. It reads groups of four and reports the offending byte of the group, the position
/// after which padding is wrong, or the start of the incomplete last group.
fn corrupt_at(text: &[u8]) -> usize {
    let skip = |mut at: usize| {
        while at < text.len() && matches!(text[at], b'\r' | b'\n') {
            at += 1;
        }
        at
    };
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut at = 0;
    loop {
        let mut filled = 0;
        while filled < 4 {
            at = skip(at);
            if at == text.len() {
                return at - filled.min(at);
            }
            let byte = text[at];
            at += 1;
            if is_digit(byte) {
                filled += 1;
                continue;
            }
            if byte != b'=' {
                return at - 1;
            }
            match filled {
                0 | 1 => return at - 1,
                2 => {
                    at = skip(at);
                    if at == text.len() {
                        return text.len();
                    }
                    if text[at] != b'=' {
                        return at - 1;
                    }
                    at += 1;
                }
                _ => {}
            }
            at = skip(at);
            // Bytes after the padding.
            return at;
        }
    }
}
