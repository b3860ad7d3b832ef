//! KYAML: YAML with brackets, in which indentation has no meaning and every string is quoted. kubectl supports it since 1.34.
//!
//! In: an object. Out: one document, starting with `---`. Keys are unquoted if every YAML reader takes them for strings, lists of
//! objects and of lists share their brackets with their content (`[{`), and strings of several lines are folded, one line each.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns whether the environment allows the format, as for kubectl.
pub(super) fn allowed() -> bool {
    std::env::var("KUBECTL_KYAML").map_or(true, |value| !value.eq_ignore_ascii_case("false"))
}

/// Writes a document.
pub(crate) fn write(value: &Value) -> String {
    let mut out = String::from("---\n");
    node(value, 0, &mut out);
    out.push('\n');
    out
}

fn node(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push_str("{\n");
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            for (key, value) in entries {
                indent(depth + 1, out);
                if is_plain(key) {
                    out.push_str(key);
                } else {
                    one_line(key, out);
                }
                out.push_str(": ");
                node(value, depth + 1, out);
                out.push_str(",\n");
            }
            indent(depth, out);
            out.push('}');
        }
        Value::Array(items) if !items.is_empty() => {
            if items.iter().all(|item| item.is_object() || item.is_array()) {
                for (place, item) in items.iter().enumerate() {
                    out.push_str(if place == 0 { "[" } else { ", " });
                    node(item, depth, out);
                }
            } else {
                out.push_str("[\n");
                for item in items {
                    indent(depth + 1, out);
                    node(item, depth + 1, out);
                    out.push_str(",\n");
                }
                indent(depth, out);
            }
            out.push(']');
        }
        Value::String(text) if text.contains('\n') => lines(text, depth + 1, out),
        Value::String(text) => quoted(text, out),
        // Numbers, booleans, null, and empty values are as in JSON.
        other => out.push_str(&other.to_string()),
    }
}

fn indent(depth: usize, out: &mut String) {
    (0..depth).for_each(|_| out.push_str("  "));
}

/// A string of one line; a tab stays a tab.
fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        if character == '\t' { out.push('\t') } else { escape(character, out) }
    }
    out.push('"');
}

/// A quoted key, which stays on its line.
fn one_line(text: &str, out: &mut String) {
    out.push('"');
    text.chars().for_each(|character| escape(character, out));
    out.push('"');
}

/// A string of several lines, each on its own. Readers drop leading blanks of a line, so the first significant one is escaped;
/// other lines get an additional blank, so that all of them are aligned.
fn lines(text: &str, depth: usize, out: &mut String) {
    out.push_str("\"\\\n");
    for line in text.split_inclusive('\n') {
        indent(depth, out);
        let blank = line.starts_with([' ', '\t']);
        out.push(if blank { '\\' } else { ' ' });
        for character in line.chars() {
            match character {
                '\n' => out.push_str("\\n"),
                '\t' => out.push('\t'),
                other => escape(other, out),
            }
        }
        out.push_str("\\\n");
    }
    indent(depth, out);
    out.push('"');
}

fn escape(character: char, out: &mut String) {
    let short = match character {
        '"' => r#"\""#,
        '\\' => r"\\",
        '\u{7}' => r"\a",
        '\u{8}' => r"\b",
        '\u{c}' => r"\f",
        '\n' => r"\n",
        '\r' => r"\r",
        '\t' => r"\t",
        '\u{b}' => r"\v",
        '\0' => r"\0",
        '\u{1b}' => r"\e",
        '\u{85}' => r"\N",
        '\u{a0}' => r"\_",
        '\u{2028}' => r"\L",
        '\u{2029}' => r"\P",
        other if is_printable(other) => {
            out.push(other);
            return;
        }
        _ => {
            let code = u32::from(character);
            let _ = match code {
                0..0x20 | 0x7f => write!(out, r"\x{code:02x}"),
                0x20..0x1_0000 => write!(out, r"\u{code:04x}"),
                _ => write!(out, r"\U{code:08x}"),
            };
            return;
        }
    };
    out.push_str(short);
}

fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    // Go's `%q` escapes exactly the characters that Go does not print.
    apimachinery::go::quote(character.encode_utf8(&mut [0; 4])).chars().nth(1) == Some(character)
}

/// Returns whether a key needs no quotes: letters and digits, with `-`, `.` and `/` inside, and nothing that some reader takes
/// for a number, a boolean, a date or null.
fn is_plain(key: &str) -> bool {
    let last = key.chars().count().saturating_sub(1);
    let fits = |(place, character): (usize, char)| {
        character.is_alphabetic()
            || character.is_numeric()
            || character == '_'
            || (place > 0 && place < last && matches!(character, '-' | '.' | '/'))
    };
    !key.is_empty() && key.chars().enumerate().all(fits) && !means_something_else(key)
}

fn means_something_else(key: &str) -> bool {
    const WORDS: [&str; 12] =
        ["null", "true", "false", "t", "f", "y", "yes", "n", "no", "on", "off", "infinity"];
    let lower = key.to_ascii_lowercase();
    WORDS.contains(&lower.as_str()) || is_number(&lower.replace('_', "")) || is_date(key)
}

/// In lower case: decimal, with a fraction or an exponent, or with the prefix of another base; also `inf` and `nan`.
fn is_number(text: &str) -> bool {
    for (prefix, base) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return i64::from_str_radix(digits, base).is_ok() || (base == 16 && is_hexadecimal_float(digits));
        }
    }
    match text.parse::<f64>() {
        Ok(number) => number.is_finite() || matches!(text, "inf" | "nan"),
        Err(_) => false,
    }
}

/// `1p5`, `a.8p-2`: a hexadecimal mantissa and a power of two.
fn is_hexadecimal_float(text: &str) -> bool {
    let Some((mantissa, power)) = text.split_once('p') else { return false };
    let digits = mantissa.replacen('.', "", 1);
    !digits.is_empty()
        && digits.chars().all(|digit| digit.is_ascii_hexdigit())
        && power.parse::<i32>().is_ok_and(|power| power.abs() < 1000)
}

/// `2026-7-29`
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return false };
    let digits = |part: &str, most: usize| {
        let fits = (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        if fits { part.parse::<u32>().ok() } else { None }
    };
    let (Some(number), Some(month), Some(day)) = (digits(year, 4), digits(month, 2), digits(day, 2)) else {
        return false;
    };
    let leap = number % 4 == 0 && (number % 100 != 0 || number % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    year.len() == 4 && (1..=days).contains(&day)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_have_brackets_and_commas_and_lists_of_objects_share_them() {
        let object = json!({
            "b": [{"name": "x", "count": 1}, {"name": "y"}],
            "a": ["one", {"two": 2}, null, true, 1.5],
            "c": {}, "d": [], "e": [[1], [2]],
        });
        let expected = "---\n{\n  a: [\n    \"one\",\n    {\n      two: 2,\n    },\n    null,\n    true,\n    1.5,\n  ],\n  \
                        b: [{\n    count: 1,\n    name: \"x\",\n  }, {\n    name: \"y\",\n  }],\n  c: {},\n  d: [],\n  \
                        e: [[\n    1,\n  ], [\n    2,\n  ]],\n}\n";
        assert_eq!(write(&object), expected);
    }

    #[test]
    fn strings_of_several_lines_are_folded() {
        let object = json!({"text": "one\n  two\n\nthree", "end": "a\n", "tab": "a\tb"});
        let expected = "---\n{\n  end: \"\\\n     a\\n\\\n    \",\n  tab: \"a\tb\",\n  \
                        text: \"\\\n     one\\n\\\n    \\  two\\n\\\n     \\n\\\n     three\\\n    \",\n}\n";
        assert_eq!(write(&object), expected);
    }

    #[test]
    fn ambiguous_keys_are_quoted() {
        for plain in
            ["apps/v1", "app.kubernetes.io/name", "a_b", "v1", "2026-13-01", "1.2.3", "0xg", "1e999", "ключ"]
        {
            assert!(is_plain(plain), "{plain}");
        }
        for other in [
            "",
            "no",
            "Yes",
            "TRUE",
            "t",
            "null",
            "1",
            "0x1f",
            "0x1p5",
            "1_000",
            "1e3",
            "1.5",
            "nan",
            "inf",
            "Infinity",
            "2026-07-29",
            "2024-2-29",
            "-a",
            "a-",
            ".a",
            "a b",
            "a:b",
            "~",
        ] {
            assert!(!is_plain(other), "{other}");
        }
    }

    #[test]
    fn characters_that_cannot_be_seen_are_escaped() {
        let text = "\u{0}\u{1b}\u{1}\u{7f}\u{85}\u{a0}\u{2028}\u{200b}\u{feff}\"\\é";
        let expected = "---\n\"\\0\\e\\x01\\x7f\\N\\_\\L\\u200b\\ufeff\\\"\\\\é\"\n";
        assert_eq!(write(&json!(text)), expected);
    }

    #[test]
    fn it_is_yaml() {
        let object = json!({"no": " x\n\ty\n", "list": [[], {"a": "b: c"}], "n": -3});
        let read: Value = apimachinery::yaml::from_str(&write(&object)).expect("YAML");
        assert_eq!(read, object);
    }
}
