//! The JSON printer: compact or indented, numbers as Go prints them, keys in order.

use serde_json::Value;

use crate::go;

/// Returns the compact text.
pub fn write(value: &Value) -> String {
    let mut out = String::with_capacity(128);
    write_into(value, &mut out);
    out
}

/// Returns the text indented by two blanks, as `?pretty=1` prints it.
pub fn write_pretty(value: &Value) -> String {
    let mut out = String::with_capacity(256);
    write_indented(value, 0, &mut out);
    out
}

fn write_into(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_into(item, out);
            }
            out.push(']');
        }
        Value::Object(entries) => {
            out.push('{');
            for (index, (key, item)) in entries.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write_into(item, out);
            }
            out.push('}');
        }
        scalar => write_scalar(scalar, out),
    }
}

fn write_indented(value: &Value, level: usize, out: &mut String) {
    let line = |level: usize, out: &mut String| {
        out.push('\n');
        for _ in 0..level {
            out.push_str("  ");
        }
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                line(level.saturating_add(1), out);
                write_indented(item, level.saturating_add(1), out);
            }
            line(level, out);
            out.push(']');
        }
        Value::Object(entries) if !entries.is_empty() => {
            out.push('{');
            for (index, (key, item)) in entries.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                line(level.saturating_add(1), out);
                write_string(key, out);
                out.push_str(": ");
                write_indented(item, level.saturating_add(1), out);
            }
            line(level, out);
            out.push('}');
        }
        other => write_into(other, out),
    }
}

fn write_scalar(value: &Value, out: &mut String) {
    match value {
        Value::Number(number) if number.is_f64() => {
            out.push_str(&go::float(number.as_f64().expect("the number is a float")));
        }
        Value::String(text) => write_string(text, out),
        other => out.push_str(&other.to_string()),
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut start = 0;
    for (index, byte) in text.bytes().enumerate() {
        let escaped: &str = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0x08 => "\\b",
            0x0c => "\\f",
            0..=0x1f => {
                out.push_str(&text[start..index]);
                out.push_str(&format!("\\u{byte:04x}"));
                start = index.saturating_add(1);
                continue;
            }
            _ => continue,
        };
        out.push_str(&text[start..index]);
        out.push_str(escaped);
        start = index.saturating_add(1);
    }
    out.push_str(&text[start..]);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_without_fraction_print_as_integers() {
        assert_eq!(write(&json!([1.0, 1e20, 2.5, 1e21])), "[1,100000000000000000000,2.5,1e+21]");
    }

    #[test]
    fn strings_are_escaped() {
        assert_eq!(write(&json!({"a\"": "x\n\u{1}é"})), "{\"a\\\"\":\"x\\n\\u0001é\"}");
    }

    #[test]
    fn indented_text_matches_serde_json() {
        let value = json!({"a": [1, {"b": []}], "c": {}, "d": "x"});
        assert_eq!(write_pretty(&value), serde_json::to_string_pretty(&value).unwrap());
    }
}
