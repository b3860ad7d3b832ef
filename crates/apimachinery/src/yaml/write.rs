//! Writes YAML as kubectl and the API servers print it.
//!
//! In: a JSON value. Out: block style, lists at the level of their key, one line per scalar however long, `|` for
//! texts of several lines, quotes only where a reader would see something else: the rules of the emitter behind
//! `sigs.k8s.io/yaml`, so that scripts that read a field with `grep` and `awk` read ours as well.

use serde_json::Value;

use super::scalar::Scalar;

/// Returns the document's text, which ends with a line break.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => object(&mut out, map, 0, false),
        Value::Array(items) if !items.is_empty() => list(&mut out, items, 0, false),
        other => {
            leaf(&mut out, other, 0);
            out.push('\n');
        }
    }
    out
}

fn indent(out: &mut String, level: usize) {
    out.extend(std::iter::repeat_n(' ', level));
}

/// `inline`: the first line already has its indentation, behind a dash.
fn object(out: &mut String, map: &serde_json::Map<String, Value>, level: usize, mut inline: bool) {
    let mut keys: Vec<_> = map.iter().collect();
    keys.sort_by_key(|(key, _)| key.as_str());
    for (key, value) in keys {
        if !std::mem::take(&mut inline) {
            indent(out, level);
        }
        let key = string(key, level, true);
        out.push_str(&key);
        out.push(':');
        match value {
            Value::Object(map) if !map.is_empty() => {
                out.push('\n');
                object(out, map, level.saturating_add(2), false);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                list(out, items, level, false);
            }
            other => {
                out.push(' ');
                leaf(out, other, level);
                out.push('\n');
            }
        }
    }
}

fn list(out: &mut String, items: &[Value], level: usize, mut inline: bool) {
    for item in items {
        if !std::mem::take(&mut inline) {
            indent(out, level);
        }
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => object(out, map, level.saturating_add(2), true),
            Value::Array(items) if !items.is_empty() => list(out, items, level.saturating_add(2), true),
            other => {
                leaf(out, other, level);
                out.push('\n');
            }
        }
    }
}

fn leaf(out: &mut String, value: &Value, level: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(_) => out.push_str(&crate::json::write(value)),
        Value::String(text) => out.push_str(&string(text, level, false)),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
    }
}

/// What a text allows, found in one pass.
struct Shape {
    plain: bool,
    single: bool,
    block: bool,
}

fn shape(text: &str) -> Shape {
    let mut characters = text.chars().peekable();
    let blank = |c: Option<char>| c.is_none_or(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
    let breaks = |c: char| c == '\n';
    let mut plain = !text.starts_with("---") && !text.starts_with("...");
    let (mut space_break, mut break_space, mut special) = (false, false, false);
    let mut previous = None;
    while let Some(c) = characters.next() {
        let next_blank = blank(characters.peek().copied());
        if previous.is_none() {
            let indicator = matches!(
                c,
                '#' | ','
                    | '['
                    | ']'
                    | '{'
                    | '}'
                    | '&'
                    | '*'
                    | '!'
                    | '|'
                    | '>'
                    | '\''
                    | '"'
                    | '%'
                    | '@'
                    | '`'
            );
            plain &= !(indicator || matches!(c, '?' | ':' | '-') && next_blank);
        } else {
            plain &= !(c == ':' && next_blank);
            plain &= !(c == '#' && blank(previous));
        }
        // Other line breaks would be read as this one.
        special |= !breaks(c) && (c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}'));
        plain &= !breaks(c);
        space_break |= previous == Some(' ') && breaks(c);
        break_space |= previous.is_some_and(breaks) && c == ' ';
        previous = Some(c);
    }
    let previous_space = previous == Some(' ');
    let ends_blank = text.starts_with(' ') || previous_space;
    Shape {
        plain: plain && !ends_blank && !special,
        single: !break_space && !space_break && !special,
        block: !previous_space && !space_break && !special,
    }
}

fn string(text: &str, level: usize, key: bool) -> String {
    let shape = shape(text);
    let several_lines = text.contains('\n');
    if several_lines && shape.block && !key {
        return literal(text, level);
    }
    // What a plain scalar would say is not this text: a number, a truth, nothing at all, or sexagesimal digits.
    let misread = !matches!(Scalar::new(text, true, None).to_value(), Ok(Value::String(read)) if read == text)
        || base60(text)
        || timestamp(text);
    if several_lines || misread || !shape.single {
        return quoted(text);
    }
    if shape.plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "''")) }
}

/// YAML 1.1 reads `1:20` as 80.
fn base60(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    digits.contains(':')
        && digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || matches!(c, ':' | '_' | '.'))
}

/// YAML 1.1 has dates and times: `2026-01-31`, `2026-01-31T10:00:00Z`.
fn timestamp(text: &str) -> bool {
    let number = |part: Option<&str>, most: usize| {
        part.is_some_and(|part| (1..=most).contains(&part.len()) && part.bytes().all(|c| c.is_ascii_digit()))
    };
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let year = parts.next();
    let day = year.is_some_and(|year| year.len() == 4)
        && number(year, 4)
        && number(parts.next(), 2)
        && number(parts.next(), 2);
    if !day || parts.next().is_some() {
        return false;
    }
    let Some(time) = time else { return true };
    let clock = time.split(['Z', '+', '-']).next().unwrap_or(time);
    let mut parts = clock.split('.').next().unwrap_or("").split(':');
    number(parts.next(), 2) && number(parts.next(), 2) && number(parts.next(), 2) && parts.next().is_none()
}

fn literal(text: &str, level: usize) -> String {
    let mut out = String::from("|");
    if text.starts_with([' ', '\n']) {
        out.push('2');
    }
    if !text.ends_with('\n') {
        out.push('-');
    } else if text == "\n" || text.ends_with("\n\n") {
        out.push('+');
    }
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            indent(&mut out, level.saturating_add(2));
            out.push_str(line);
        }
    }
    out
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\0' => out.push_str("\\0"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\u{1b}' => out.push_str("\\e"),
            '\u{85}' => out.push_str("\\N"),
            '\u{2028}' => out.push_str("\\L"),
            '\u{2029}' => out.push_str("\\P"),
            '\u{feff}' => out.push_str("\\uFEFF"),
            c if c.is_control() => out.push_str(&format!("\\x{:02X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_look_as_kubectl_prints_them() {
        let document = json!({
            "kind": "ConfigMap", "data": {"a": "x\ny\n", "b": "x\ny", "c": "x\n\n", "tab": "a\tb\n"},
            "list": [{"name": "a", "ports": [80, "81"]}, [1, [2]], "x: y", "- z", "", "true", "1e3", "1:20", "2026-01-31T10:00:00Z", "2026-01-31", "2026-x", "#x", "it's"],
            "empty": [{}, [], null], "on": "yes", "1": "é",
        });
        let text = "\"1\": é\ndata:\n  a: |\n    x\n    y\n  b: |-\n    x\n    y\n  c: |+\n    x\n\n  tab: \"a\\tb\\n\"\n\
            empty:\n- {}\n- []\n- null\nkind: ConfigMap\nlist:\n- name: a\n  ports:\n  - 80\n  - \"81\"\n- - 1\n  - - 2\n\
            - 'x: y'\n- '- z'\n- \"\"\n- \"true\"\n- \"1e3\"\n- \"1:20\"\n- \"2026-01-31T10:00:00Z\"\n- \"2026-01-31\"\n- 2026-x\n- '#x'\n- it's\n\"on\": \"yes\"\n";
        assert_eq!(write(&document), text);
    }

    #[test]
    fn a_long_value_stays_on_one_line() {
        let long = "QUJD".repeat(500);
        assert_eq!(write(&json!({"data": long})), format!("data: {long}\n"));
        let words = "a b ".repeat(200) + "c";
        assert_eq!(write(&json!({"data": words})), format!("data: {words}\n"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(texts in proptest::collection::vec(".{0,12}|[ \n\t:#a'\"-]{0,8}", 1..4)) {
            let value = json!({"x": texts, "y": {(texts[0].clone()): [[texts[0].clone()]]}});
            let text = write(&value);
            let read = crate::yaml::read(&text);
            prop_assert_eq!(read.map(|document| document.value), Ok(value), "{}", text);
        }
    }
}
