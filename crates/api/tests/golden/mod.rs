//! Files that hold the expected output, reviewed as diffs. `UPDATE_GOLDEN=1` rewrites them.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

/// Compares a file, given relative to the crate, with what it should hold.
pub(crate) fn check(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, expected).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    if found != expected {
        let line = found.lines().zip(expected.lines()).take_while(|(left, right)| left == right).count();
        panic!(
            "{path} is out of date from line {} on: {:?} should be {:?}\nhint: UPDATE_GOLDEN=1 cargo test -p api rewrites it",
            line + 1,
            found.lines().nth(line),
            expected.lines().nth(line),
        );
    }
}

/// Writes block-style YAML with sorted keys, so that diffs stay line by line whatever library versions come.
#[allow(dead_code, reason = "each test binary uses a part of this module")]
pub(crate) fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    write_block(value, 0, &mut out);
    out
}

fn write_block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                write!(out, "{:indent$}{}:", "", scalar(&Value::from(key.as_str()))).unwrap();
                write_inline(field, indent + 2, out);
            }
        }
        Value::Array(items) => {
            for item in items {
                match item {
                    Value::Object(fields) if !fields.is_empty() => {
                        let mut block = String::new();
                        write_block(item, indent + 2, &mut block);
                        write!(out, "{:indent$}- {}", "", &block[indent + 2..]).unwrap();
                    }
                    item => writeln!(out, "{:indent$}- {}", "", scalar(item)).unwrap(),
                }
            }
        }
        other => writeln!(out, "{}", scalar(other)).unwrap(),
    }
}

fn write_inline(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            out.push('\n');
            write_block(value, indent, out);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            write_block(value, indent - 2, out);
        }
        other => writeln!(out, " {}", scalar(other)).unwrap(),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        Value::Object(_) => "{}".into(),
        Value::Array(_) => "[]".into(),
        other => other.to_string(),
    }
}

/// Says whether YAML reads the text as a string without quotes. Errs towards quoting.
fn is_plain(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.' || c == '/');
    let reserved =
        matches!(text.to_lowercase().as_str(), "true" | "false" | "null" | "yes" | "no" | "on" | "off");
    starts_well && !reserved && !text.contains(": ") && !text.contains(" #") && !text.ends_with(':')
}
