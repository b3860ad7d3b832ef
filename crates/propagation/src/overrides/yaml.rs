//! Writes YAML exactly as the Go library does that Karmada uses to write embedded documents back.
//!
//! Block style, two spaces, list items not indented below their key, keys in natural order (`a2` before `a10`),
//! long text wrapped at the first space after column 80. Quotes only where the text would otherwise be read as
//! something else.

use std::cmp::Ordering;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Number, Value};

const WIDTH: usize = 80;

/// Keys up to this many bytes stand before their colon, by the YAML specification's rule for implicit keys.
const SIMPLE_KEY_LENGTH: usize = 128;

pub(super) fn write(value: &Value) -> String {
    let mut writer = Writer { out: String::new(), column: 0 };
    match value {
        Value::Object(map) if !map.is_empty() => writer.mapping(map, 0, true),
        Value::Array(items) if !items.is_empty() => writer.sequence(items, 0, true),
        scalar => {
            writer.scalar(scalar, 2);
            writer.line_break();
        }
    }
    writer.out
}

struct Writer {
    out: String,
    column: usize,
}

impl Writer {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
        self.column = self.column.saturating_add(text.chars().count());
    }

    fn line_break(&mut self) {
        if !self.out.ends_with('\n') {
            self.out.push('\n');
        }
        self.column = 0;
    }

    fn indent(&mut self, spaces: usize) {
        for _ in 0..spaces {
            self.put(" ");
        }
    }

    /// `fresh` tells whether the first entry starts a line of its own or continues after `- `.
    fn mapping(&mut self, map: &Map<String, Value>, indent: usize, fresh: bool) {
        for (index, key) in sorted(map.keys().collect()).into_iter().enumerate() {
            if fresh || index > 0 {
                self.indent(indent);
            }
            // A key of several lines, or a very long one, cannot stand before a colon on its line.
            if key.contains('\n') || key.len() > SIMPLE_KEY_LENGTH {
                self.put("? ");
                self.text(key, indent.saturating_add(2), false);
                self.line_break();
                self.indent(indent);
                self.put(": ");
                self.item(&map[key], indent.saturating_add(2));
                continue;
            }
            self.text(key, indent.saturating_add(2), true);
            self.put(":");
            match &map[key] {
                Value::Object(inner) if !inner.is_empty() => {
                    self.line_break();
                    self.mapping(inner, indent.saturating_add(2), true);
                }
                Value::Array(items) if !items.is_empty() => {
                    self.line_break();
                    self.sequence(items, indent, true);
                }
                scalar => {
                    self.put(" ");
                    self.scalar(scalar, indent.saturating_add(2));
                    self.line_break();
                }
            }
        }
    }

    fn sequence(&mut self, items: &[Value], indent: usize, fresh: bool) {
        for (index, item) in items.iter().enumerate() {
            if fresh || index > 0 {
                self.indent(indent);
            }
            self.put("- ");
            self.item(item, indent.saturating_add(2));
        }
    }

    /// Writes what follows an indicator on the same line.
    fn item(&mut self, item: &Value, indent: usize) {
        match item {
            Value::Object(map) if !map.is_empty() => self.mapping(map, indent, false),
            Value::Array(inner) if !inner.is_empty() => self.sequence(inner, indent, false),
            scalar => {
                self.scalar(scalar, indent);
                self.line_break();
            }
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Null => self.put("null"),
            Value::Bool(value) => self.put(if *value { "true" } else { "false" }),
            Value::Number(number) => self.put(&number_text(number)),
            Value::String(text) => self.text(text, indent, false),
            Value::Array(_) => self.put("[]"),
            Value::Object(_) => self.put("{}"),
        }
    }

    fn text(&mut self, text: &str, indent: usize, key: bool) {
        let shape = Shape::of(text);
        if text.contains('\n') {
            return if shape.block_allowed && !key {
                self.literal(text, indent)
            } else {
                self.double_quoted(text, indent, key)
            };
        }
        if !resolves_to_text(text) {
            return self.double_quoted(text, indent, key);
        }
        if shape.plain_allowed {
            self.folded(text, indent, key, |character, out| out.push(character));
        } else if shape.single_quoted_allowed {
            self.put("'");
            self.folded(text, indent, key, |character, out| {
                if character == '\'' {
                    out.push('\'');
                }
                out.push(character);
            });
            self.put("'");
        } else {
            self.double_quoted(text, indent, key);
        }
    }

    /// Writes text, breaking the line instead of a single space once past the width.
    fn folded(&mut self, text: &str, indent: usize, key: bool, write: impl Fn(char, &mut String)) {
        let characters: Vec<char> = text.chars().collect();
        let mut after_space = false;
        for (index, character) in characters.iter().enumerate() {
            let next_is_space = characters.get(index.saturating_add(1)).is_none_or(|next| *next == ' ');
            if *character == ' ' {
                if !key && !after_space && self.column > WIDTH && index > 0 && !next_is_space {
                    self.line_break();
                    self.indent(indent);
                } else {
                    self.put(" ");
                }
                after_space = true;
            } else {
                let before = self.out.len();
                write(*character, &mut self.out);
                self.column = self.column.saturating_add(self.out[before..].chars().count());
                after_space = false;
            }
        }
    }

    fn double_quoted(&mut self, text: &str, indent: usize, key: bool) {
        self.put("\"");
        let characters: Vec<char> = text.chars().collect();
        let mut after_space = false;
        for (index, character) in characters.iter().enumerate() {
            if *character == ' ' {
                let next = characters.get(index.saturating_add(1)).filter(|_| index > 0);
                if !key
                    && !after_space
                    && self.column > WIDTH
                    && let Some(next) = next
                {
                    self.line_break();
                    self.indent(indent);
                    if *next == ' ' {
                        self.put("\\");
                    }
                } else {
                    self.put(" ");
                }
                after_space = true;
                continue;
            }
            after_space = false;
            match character {
                '"' => self.put("\\\""),
                '\\' => self.put("\\\\"),
                '\0' => self.put("\\0"),
                '\u{7}' => self.put("\\a"),
                '\u{8}' => self.put("\\b"),
                '\t' => self.put("\\t"),
                '\n' => self.put("\\n"),
                '\u{b}' => self.put("\\v"),
                '\u{c}' => self.put("\\f"),
                '\r' => self.put("\\r"),
                '\u{1b}' => self.put("\\e"),
                '\u{85}' => self.put("\\N"),
                '\u{a0}' => self.put("\\_"),
                '\u{2028}' => self.put("\\L"),
                '\u{2029}' => self.put("\\P"),
                other if is_printable(*other) => self.put(other.encode_utf8(&mut [0; 4])),
                other => {
                    let code = u32::from(*other);
                    let escaped = match code {
                        0..=0xff => format!("\\x{code:02X}"),
                        0x100..=0xffff => format!("\\u{code:04X}"),
                        _ => format!("\\U{code:08X}"),
                    };
                    self.put(&escaped);
                }
            }
        }
        self.put("\"");
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.put("|");
        // Leading blanks would be taken for indentation.
        if text.starts_with([' ', '\n']) {
            self.put("2");
        }
        if !text.ends_with('\n') {
            self.put("-");
        } else if text == "\n" || text.ends_with("\n\n") {
            self.put("+");
        }
        self.out.push('\n');
        self.column = 0;
        let body = text.strip_suffix('\n').unwrap_or(text);
        for line in body.split('\n') {
            if !line.is_empty() {
                self.indent(indent);
                self.put(line);
            }
            self.out.push('\n');
            self.column = 0;
        }
    }
}

/// What a text allows, by the characters in it.
struct Shape {
    plain_allowed: bool,
    single_quoted_allowed: bool,
    block_allowed: bool,
}

impl Shape {
    fn of(text: &str) -> Self {
        let characters: Vec<char> = text.chars().collect();
        let blank =
            |character: Option<&char>| character.is_none_or(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let mut special = false;
        let mut line_breaks = false;
        let (mut break_space, mut space_break) = (false, false);
        for (index, character) in characters.iter().enumerate() {
            let previous = index.checked_sub(1).and_then(|index| characters.get(index));
            let next = characters.get(index.saturating_add(1));
            indicators |= match character {
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                | '`'
                    if index == 0 =>
                {
                    true
                }
                '?' | '-' if index == 0 => blank(next),
                ':' => blank(next),
                '#' => blank(previous),
                _ => false,
            };
            match character {
                '\n' => {
                    line_breaks = true;
                    space_break |= previous == Some(&' ');
                }
                ' ' => break_space |= previous == Some(&'\n'),
                other => special |= !is_printable(*other),
            }
        }
        let blank_edges = text.starts_with([' ', '\n']) || text.ends_with([' ', '\n']);
        let distorted = special || space_break;
        Self {
            plain_allowed: !(indicators || blank_edges || line_breaks || distorted || break_space),
            single_quoted_allowed: !(distorted || break_space),
            block_allowed: !(distorted || text.ends_with(' ')),
        }
    }
}

fn is_printable(character: char) -> bool {
    matches!(character, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
        && character != '\u{feff}'
}

// Sexagesimal numbers and times: YAML 1.1 readers elsewhere take them for numbers.
static AMBIGUOUS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^(?:[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?",
        r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}",
        r"(?:(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?)?",
        r")$",
    ))
    .expect("the pattern is valid")
});

/// Returns whether unquoted text would be read back as the same text.
fn resolves_to_text(text: &str) -> bool {
    if text.is_empty() || AMBIGUOUS.is_match(text) {
        return false;
    }
    // Only words and numbers have another meaning; anything with an indicator is quoted for that reason alone.
    if !Shape::of(text).plain_allowed {
        return true;
    }
    match apimachinery::yaml::read(text) {
        Ok(document) => document.value.is_string(),
        Err(_) => true,
    }
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if !number.is_i64() && !number.is_u64() => float_text(float),
        _ => number.to_string(),
    }
}

/// The shortest text of a float, with an exponent below 1e-4 and from 1e6 on.
fn float_text(float: f64) -> String {
    let scientific = format!("{float:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) || float == 0.0 {
        return format!("{float}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Sorts keys as the Go library does.
///
/// Its comparison is not transitive (`a2` < `a10` < `a1b` < `a2`), which the standard sort may answer with a
/// panic; merging never does.
fn sorted(mut keys: Vec<&String>) -> Vec<&String> {
    if keys.len() < 2 {
        return keys;
    }
    let right = sorted(keys.split_off(keys.len() / 2));
    let left = sorted(keys);
    let mut merged = Vec::with_capacity(left.len().saturating_add(right.len()));
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(first), Some(second)) = (left.peek(), right.peek()) {
        let next = if natural_order(first, second).is_le() { left.next() } else { right.next() };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    merged
}

/// Numbers within keys count by value, and letters come after everything else.
fn natural_order(left: &str, right: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    for (index, (&x, &y)) in a.iter().zip(&b).enumerate() {
        if x == y {
            continue;
        }
        match (x.is_alphabetic(), y.is_alphabetic()) {
            (true, true) => return x.cmp(&y),
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) => {}
        }
        // A leading zero only counts as one if no other digit came before it.
        let significant = (x == '0' || y == '0')
            && a.iter().take(index).rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
        let start = i64::from(significant);
        let (x_value, x_end) = digits_from(&a, index, start);
        let (y_value, y_end) = digits_from(&b, index, start);
        return x_value.cmp(&y_value).then(x_end.cmp(&y_end)).then(x.cmp(&y));
    }
    a.len().cmp(&b.len())
}

fn digits_from(text: &[char], from: usize, start: i64) -> (i64, usize) {
    let mut value = start;
    let mut end = from;
    while let Some(digit) = text.get(end).and_then(|c| c.to_digit(10)) {
        value = value.wrapping_mul(10).wrapping_add(i64::from(digit));
        end = end.saturating_add(1);
    }
    (value, end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(value: Value, expected: &str) {
        assert_eq!(write(&value), expected);
        let read = apimachinery::yaml::read(expected).expect("our YAML is readable").value;
        assert_eq!(read, value, "{expected}");
    }

    #[test]
    fn structure() {
        check(json!({"b": 1, "a": [2], "c": true}), "a:\n- 2\nb: 1\nc: true\n");
        check(
            json!({"a": {"b": [{"x": 1, "y": [1, 2]}, {}, []], "c": null}}),
            "a:\n  b:\n  - x: 1\n    \"y\":\n    - 1\n    - 2\n  - {}\n  - []\n  c: null\n",
        );
        check(json!([[1, 2], "x"]), "- - 1\n  - 2\n- x\n");
        check(json!({"a10": 1, "a2": 2, "A": 3, "a-b": 4}), "A: 3\na-b: 4\na2: 2\na10: 1\n");
        check(json!({}), "{}\n");
    }

    #[test]
    fn quotes_only_where_needed() {
        check(
            json!({"a": "true", "b": "12", "c": "", "d": "x: y", "e": "x:y", "f": " x", "g": "it's", "h": "- x", "i": "null"}),
            "a: \"true\"\nb: \"12\"\nc: \"\"\nd: 'x: y'\ne: x:y\nf: ' x'\ng: it's\nh: '- x'\ni: \"null\"\n",
        );
        check(
            json!({"a": "'q'", "b": "x #y", "c": "a\tb", "d": "1:20", "e": "2026-01-02"}),
            "a: '''q'''\nb: 'x #y'\nc: \"a\\tb\"\nd: \"1:20\"\ne: \"2026-01-02\"\n",
        );
    }

    #[test]
    fn text_with_lines_is_a_block() {
        check(
            json!({"a": "x\ny\n", "b": "x\ny", "c": "x\n\n"}),
            "a: |\n  x\n  y\nb: |-\n  x\n  y\nc: |+\n  x\n\n",
        );
        check(json!({"l": ["x\n  y\n"]}), "l:\n- |\n  x\n    y\n");
    }

    #[test]
    fn long_text_is_wrapped_after_column_80() {
        let words = ["abcdefghi"; 12].join(" ");
        let expected = format!("k: {}\n  {}\n", ["abcdefghi"; 8].join(" "), ["abcdefghi"; 4].join(" "));
        check(json!({"k": words}), &expected);
    }

    /// The cases were written by the Go library itself.
    #[test]
    fn the_go_library_writes_the_same() {
        let cases: Value =
            serde_json::from_str(include_str!("../../testdata/yaml/written-by-go.json")).expect("cases");
        let mut differences = Vec::new();
        for case in cases.as_array().expect("a list") {
            let written = write(&case["value"]);
            if case["yaml"] != *written {
                let expected = case["yaml"].as_str().expect("text");
                differences.push(format!("expected\n{expected}\ngot\n{written}"));
            }
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    #[test]
    fn floats_are_written_in_their_shortest_form() {
        assert_eq!(float_text(1.5), "1.5");
        assert_eq!(float_text(1_500_000.0), "1.5e+06");
        assert_eq!(float_text(0.00001), "1e-05");
        assert_eq!(float_text(123_456.5), "123456.5");
    }
}
