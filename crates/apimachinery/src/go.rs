//! How Go prints values. Kubernetes' messages are full of `%q`, `%v` and JSON numbers, and clients match on them.
//!
//! In: strings, floats, JSON values. Out: the text that Go's `strconv` and `fmt` would give.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns the string in double quotes as `%q` prints it.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len().saturating_add(2));
    out.push('"');
    for character in text.chars() {
        escape(character, '"', &mut out);
    }
    out.push('"');
    out
}

/// Returns a byte of bad input as JSON syntax errors name it: `'x'`, `'\''`, `'"'`, `'\n'`.
///
/// The byte is taken for the code point of the same number, as Go does.
pub fn quote_byte(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => r#"'"'"#.to_owned(),
        _ => {
            let mut out = String::from("'");
            escape(char::from(byte), '"', &mut out);
            out.push('\'');
            out
        }
    }
}

fn escape(character: char, quote: char, out: &mut String) {
    match character {
        '\u{7}' => out.push_str(r"\a"),
        '\u{8}' => out.push_str(r"\b"),
        '\u{c}' => out.push_str(r"\f"),
        '\n' => out.push_str(r"\n"),
        '\r' => out.push_str(r"\r"),
        '\t' => out.push_str(r"\t"),
        '\u{b}' => out.push_str(r"\v"),
        '\\' => out.push_str(r"\\"),
        _ if character == quote => {
            out.push('\\');
            out.push(character);
        }
        _ if character < ' ' || character == '\u{7f}' => {
            write!(out, r"\x{:02x}", u32::from(character)).expect("writing to a string cannot fail");
        }
        _ if is_printable(character) => out.push(character),
        _ if u32::from(character) < 0x10000 => {
            write!(out, r"\u{:04x}", u32::from(character)).expect("writing to a string cannot fail");
        }
        _ => write!(out, r"\U{:08x}", u32::from(character)).expect("writing to a string cannot fail"),
    }
}

/// The parts of Unicode that Go refuses to print raw and that occur in practice: controls, odd spaces, formats.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    !character.is_control()
        && !character.is_whitespace()
        && !matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{fffb}')
}

/// Returns a float as Go's JSON encoder prints it: no exponent between 1e-6 and 1e21, no `.0`.
pub fn float(number: f64) -> String {
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let text = format!("{number:e}");
        match text.split_once('e') {
            Some((mantissa, exponent)) if !exponent.starts_with('-') => format!("{mantissa}e+{exponent}"),
            _ => text,
        }
    } else {
        format!("{number}")
    }
}

/// Returns a value as `%v` prints it: `map[a:1 b:[x y]]`, `<nil>`.
pub fn verbose(value: &Value) -> String {
    let mut out = String::new();
    write_verbose(value, &mut out);
    out
}

fn write_verbose(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => match number.as_f64() {
            Some(float_value) if number.is_f64() => out.push_str(&float(float_value)),
            _ => out.push_str(&number.to_string()),
        },
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                write_verbose(item, out);
            }
            out.push(']');
        }
        Value::Object(entries) => {
            out.push_str("map[");
            for (index, (key, item)) in entries.iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                write_verbose(item, out);
            }
            out.push(']');
        }
    }
}

/// Returns the name of the Go type that holds such a value in an untyped object, as type errors print it.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quotes_escape_as_go_does() {
        for (text, quoted) in [
            ("a", r#""a""#),
            ("a\"b\\", r#""a\"b\\""#),
            ("\n\t\u{0}\u{7f}", r#""\n\t\x00\x7f""#),
            ("ü€", "\"ü€\""),
            ("\u{feff}\u{200b}", r#""\ufeff\u200b""#),
            ("\u{a0}", r#""\u00a0""#),
        ] {
            assert_eq!(quote(text), quoted);
        }
        assert_eq!(quote_byte(b'\''), r"'\''");
        assert_eq!(quote_byte(b'"'), r#"'"'"#);
        assert_eq!(quote_byte(b'\n'), r"'\n'");
        assert_eq!(quote_byte(0xef), "'ï'");
    }

    #[test]
    fn floats_print_as_in_go_json() {
        for (number, text) in [
            (1.0, "1"),
            (0.5, "0.5"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1.5e-7, "1.5e-7"),
            (0.000001, "0.000001"),
            (-2.25, "-2.25"),
            (0.0, "0"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn values_print_verbosely_with_sorted_keys() {
        let value = json!({"b": [1, "x", null], "a": {"c": true}});
        assert_eq!(verbose(&value), "map[a:map[c:true] b:[1 x <nil>]]");
    }
}
