//! The values of numbers and texts as they are written in an expression.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use crate::value::Value;

/// What a literal is, or why it is none.
type Read = Result<Value, &'static str>;

pub(crate) fn int(sign: &str, text: &str) -> Read {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let value = i64::from_str_radix(&format!("{sign}{digits}"), radix);
    value.map(Value::Int).map_err(|_| "invalid int literal")
}

pub(crate) fn uint(text: &str) -> Read {
    let text = text.strip_suffix(['u', 'U']).unwrap_or(text);
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    u64::from_str_radix(digits, radix).map(Value::Uint).map_err(|_| "invalid uint literal")
}

pub(crate) fn double(sign: &str, text: &str) -> Read {
    match format!("{sign}{text}").parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(Value::Double(value)),
        _ => Err("invalid double literal"),
    }
}

pub(crate) fn text(quoted: &str) -> Read {
    let bytes = unquote(quoted, false)?;
    String::from_utf8(bytes).map(Value::text).map_err(|_| "invalid unicode code point")
}

pub(crate) fn bytes(quoted: &str) -> Read {
    Ok(Value::Bytes(unquote(quoted.strip_prefix(['b', 'B']).unwrap_or(quoted), true)?.into()))
}

fn unquote(quoted: &str, is_bytes: bool) -> Result<Vec<u8>, &'static str> {
    let quoted = quoted.replace("\r\n", "\n").replace('\r', "\n");
    let (raw, quoted) = quoted.strip_prefix(['r', 'R']).map_or((false, quoted.as_str()), |rest| (true, rest));
    let long = quoted.len() >= 6 && (quoted.starts_with("'''") || quoted.starts_with("\"\"\""));
    let quote = if long { 3 } else { 1 };
    let inner = quoted.get(quote..quoted.len().saturating_sub(quote)).ok_or("unable to unescape string")?;
    if raw {
        return Ok(inner.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        let mut put = |c: char| out.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
        if c != '\\' {
            put(c);
            continue;
        }
        // The lexer has seen that escapes are complete.
        let escape = chars.next().ok_or("unable to unescape string")?;
        let plain = match escape {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'x' | 'X' | 'u' | 'U' | '0'..='3' => {
                let (length, radix, first) = match escape {
                    'x' | 'X' => (2, 16, 0),
                    'u' if !is_bytes => (4, 16, 0),
                    'U' if !is_bytes => (8, 16, 0),
                    'u' | 'U' => return Err("unable to unescape string"),
                    digit => (2, 8, digit.to_digit(8).unwrap_or(0)),
                };
                let mut code = first;
                for _ in 0..length {
                    let digit = chars.next().and_then(|c| c.to_digit(radix));
                    code = code.wrapping_mul(radix).wrapping_add(digit.ok_or("unable to unescape string")?);
                }
                if is_bytes {
                    out.push(code as u8);
                } else {
                    put(char::from_u32(code).ok_or("invalid unicode code point")?);
                }
                continue;
            }
            other => other,
        };
        put(plain);
    }
    Ok(out)
}

#[test]
fn escapes_mean_letters_in_texts_and_bytes_in_bytes() {
    assert!(matches!(text(r"'\u00e9\x41\101\n'"), Ok(Value::String(text)) if &*text == "éAA\n"));
    assert!(matches!(bytes(r"b'\xff\377é'"), Ok(Value::Bytes(bytes)) if bytes[..] == [255, 255, 0xc3, 0xa9]));
    assert_eq!(text(r"'\ud800'").unwrap_err(), "invalid unicode code point");
    assert_eq!(bytes(r"b'\u00e9'").unwrap_err(), "unable to unescape string");
    assert!(matches!(int("-", "9223372036854775808"), Ok(Value::Int(i64::MIN))));
}
