//! What a YAML scalar means.
//!
//! Plain scalars are resolved by the YAML 1.1 table that go-yaml v2 implements; quoted ones are strings; an explicit
//! tag (`!!str`, `!!int`, …) overrides the guess.

use std::num::IntErrorKind;

use granit_parser::Tag;
use serde_json::Value;

use super::Error;
use crate::json::from_float;

/// A scalar before resolution: most are keys or values that are looked at once.
pub(super) struct Scalar {
    text: String,
    plain: bool,
    tag: Option<String>,
}

impl Scalar {
    pub(super) fn new(text: &str, plain: bool, tag: Option<&Tag>) -> Self {
        let tag = tag.map(|tag| tag.core_suffix().map_or_else(|| tag.to_string(), str::to_owned));
        Self { text: text.to_owned(), plain, tag }
    }

    /// Returns the bytes of the text.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// True for the `<<` key.
    pub(super) fn is_merge(&self) -> bool {
        self.text == "<<" && (self.plain && self.tag.is_none() || self.tag.as_deref() == Some("merge"))
    }

    pub(super) fn to_value(&self) -> Result<Value, Error> {
        match self.tag.as_deref() {
            None if !self.plain => Ok(Value::String(self.text.clone())),
            None => resolve(&self.text),
            Some(tag @ ("bool" | "int" | "float" | "null")) => {
                let value = resolve(&self.text)?;
                let fits = match tag {
                    "bool" => value.is_boolean(),
                    "null" => value.is_null(),
                    "int" => value.is_i64() || value.is_u64(),
                    _ => value.is_number(),
                };
                if fits {
                    Ok(value)
                } else {
                    Err(Error::Content(format!("cannot decode `{}` as a !!{tag}", self.text)))
                }
            }
            // Anything else, `!!str` and `!!binary` included, is taken as text.
            Some(_) => Ok(Value::String(self.text.clone())),
        }
    }
}

fn resolve(text: &str) -> Result<Value, Error> {
    Ok(match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        ".nan" | ".NaN" | ".NAN" => return Err(Error::Number("NaN".to_owned())),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Err(Error::Number("+Inf".to_owned()));
        }
        "-.inf" | "-.Inf" | "-.INF" => return Err(Error::Number("-Inf".to_owned())),
        _ => match text.as_bytes().first() {
            Some(b'+' | b'-' | b'0'..=b'9' | b'.') => {
                number(text).unwrap_or_else(|| Value::String(text.to_owned()))
            }
            _ => Value::String(text.to_owned()),
        },
    })
}

/// Integers in every base Go knows, then floats; underscores between digits are ignored.
fn number(text: &str) -> Option<Value> {
    let plain = if text.starts_with('.') { text.to_owned() } else { text.replace('_', "") };
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    if !text.starts_with('.')
        && let Some(integer) = integer(digits, negative)
    {
        return Some(integer);
    }
    if !is_float(digits) {
        return None;
    }
    let float: f64 = plain.parse().ok()?;
    from_float(float).map(Value::Number)
}

fn integer(digits: &str, negative: bool) -> Option<Value> {
    let (digits, base) = match digits.split_at_checked(2) {
        Some(("0x" | "0X", digits)) => (digits, 16),
        Some(("0o" | "0O", digits)) => (digits, 8),
        Some(("0b" | "0B", digits)) => (digits, 2),
        _ => match digits.strip_prefix('0') {
            Some(octal) if !octal.is_empty() => (octal, 8),
            _ => (digits, 10),
        },
    };
    if digits.is_empty() || digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = match u64::from_str_radix(digits, base) {
        Ok(magnitude) => magnitude,
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => return None,
        Err(_) => return None,
    };
    if negative {
        let limit = 1u64 << 63;
        return (magnitude <= limit).then(|| Value::from((magnitude as i64).wrapping_neg()));
    }
    Some(match i64::try_from(magnitude) {
        Ok(value) => Value::from(value),
        // JSON numbers beyond 64 bits signed are floats to the API.
        Err(_) => Value::Number(from_float(magnitude as f64)?),
    })
}

/// `(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        Some((whole, fraction)) => {
            all_digits(whole) && all_digits(fraction) && !(whole.is_empty() && fraction.is_empty())
        }
        None => !mantissa.is_empty() && all_digits(mantissa),
    };
    let exponent_fits = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && all_digits(digits)
    });
    mantissa_fits && exponent_fits
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_scalars_mean_what_yaml_1_1_says() {
        for (text, value) in [
            ("yes", json!(true)),
            ("y", json!(true)),
            ("Off", json!(false)),
            ("N", json!(false)),
            ("null", json!(null)),
            ("~", json!(null)),
            ("", json!(null)),
            ("1", json!(1)),
            ("-1", json!(-1)),
            ("+1", json!(1)),
            ("0644", json!(420)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("-0x10", json!(-16)),
            ("0b101", json!(5)),
            ("1_000", json!(1000)),
            ("08", json!(8)),
            ("0.5", json!(0.5)),
            (".5", json!(0.5)),
            ("5.", json!(5)),
            ("1e3", json!(1000)),
            ("1.5e-3", json!(0.0015)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("9223372036854775808", json!(9223372036854775808.0)),
            ("2024-01-02", json!("2024-01-02")),
            ("2024-01-02T03:04:05Z", json!("2024-01-02T03:04:05Z")),
            ("1.2.3", json!("1.2.3")),
            ("10.0.0.1", json!("10.0.0.1")),
            ("1:20", json!("1:20")),
            ("1Gi", json!("1Gi")),
            ("-", json!("-")),
            ("-x", json!("-x")),
            ("nope", json!("nope")),
            ("tRue", json!("tRue")),
            ("0x", json!("0x")),
            ("e3", json!("e3")),
            (".", json!(".")),
        ] {
            assert_eq!(
                Scalar { text: text.to_owned(), plain: true, tag: None }.to_value(),
                Ok(value),
                "{text:?}"
            );
        }
    }

    #[test]
    fn quoted_and_tagged_scalars_keep_their_type() {
        let scalar = |text: &str, plain: bool, tag: Option<&str>| {
            Scalar { text: text.to_owned(), plain, tag: tag.map(str::to_owned) }.to_value()
        };
        assert_eq!(scalar("yes", false, None), Ok(json!("yes")));
        assert_eq!(scalar("1", true, Some("str")), Ok(json!("1")));
        assert_eq!(scalar("1", false, Some("int")), Ok(json!(1)));
        assert!(scalar("x", true, Some("int")).is_err());
        assert!(scalar(".nan", true, None).is_err());
    }
}
