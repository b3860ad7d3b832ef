//! Text: the standard functions, the strings library, regular expressions.

use regex::Regex;

use super::{Outcome, bad, format, int, ok};
use crate::value::Value;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    if let (None, "matches", [Value::String(text), Value::String(pattern)]) = (target, name, args) {
        return matches(text, pattern);
    }
    if let (None, "strings.quote", [Value::String(text)]) = (target, name, args) {
        return ok(Value::text(quote(text)));
    }
    let Some(Value::String(text)) = target else { return None };
    let letters = || text.chars().collect::<Vec<char>>();
    match (name, args) {
        ("contains", [Value::String(part)]) => ok(Value::Bool(text.contains(&**part))),
        ("startsWith", [Value::String(part)]) => ok(Value::Bool(text.starts_with(&**part))),
        ("endsWith", [Value::String(part)]) => ok(Value::Bool(text.ends_with(&**part))),
        ("matches", [Value::String(pattern)]) => matches(text, pattern),
        ("find", [Value::String(pattern)]) => {
            with(pattern, |regex| Value::text(regex.find(text).map_or("", |found| found.as_str())))
        }
        ("findAll", [Value::String(pattern)]) => find_all(text, pattern, usize::MAX),
        ("findAll", [Value::String(pattern), Value::Int(limit)]) => {
            find_all(text, pattern, usize::try_from(*limit).unwrap_or(usize::MAX))
        }
        ("charAt", [Value::Int(at)]) => {
            let letters = letters();
            match usize::try_from(*at) {
                Ok(at) if at == letters.len() => ok(Value::text("")),
                Ok(at) if at < letters.len() => ok(Value::text(letters[at].to_string())),
                _ => bad(format!("index out of range: {at}")),
            }
        }
        ("indexOf", [Value::String(part)]) => index_of(&letters(), part, 0),
        ("indexOf", [Value::String(part), Value::Int(from)]) => index_of(&letters(), part, *from),
        ("lastIndexOf", [Value::String(part)]) if part.is_empty() => ok(int(letters().len())),
        ("lastIndexOf", [Value::String(part)]) if text.len() < part.len() => ok(Value::Int(-1)),
        ("lastIndexOf", [Value::String(part)]) => {
            let letters = letters();
            last_index(&letters, part, i64::try_from(letters.len()).unwrap_or(i64::MAX) - 1)
        }
        ("lastIndexOf", [Value::String(part), Value::Int(from)]) => last_index(&letters(), part, *from),
        ("lowerAscii", []) => ok(Value::text(text.to_ascii_lowercase())),
        ("upperAscii", []) => ok(Value::text(text.to_ascii_uppercase())),
        ("trim", []) => ok(Value::text(text.trim())),
        ("replace", [Value::String(old), Value::String(new)]) => ok(Value::text(text.replace(&**old, new))),
        ("replace", [Value::String(old), Value::String(new), Value::Int(limit)]) => {
            ok(Value::text(match usize::try_from(*limit) {
                Ok(limit) => text.replacen(&**old, new, limit),
                Err(_) => text.replace(&**old, new),
            }))
        }
        ("split", [Value::String(by)]) => ok(split(text, by, -1)),
        ("split", [Value::String(by), Value::Int(limit)]) => ok(split(text, by, *limit)),
        ("substring", [Value::Int(from)]) => substring(&letters(), *from, None),
        ("substring", [Value::Int(from), Value::Int(to)]) => substring(&letters(), *from, Some(*to)),
        ("format", [Value::List(values)]) => {
            Some(format::format(text, values).map(Value::text).map_err(crate::EvalError))
        }
        _ => None,
    }
}

/// Compiles a pattern, with a limit to what that may cost.
///
/// *Errors*: says what is wrong, as far as we know Go's words for it.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    regex::RegexBuilder::new(pattern).size_limit(1 << 20).build().map_err(|error| {
        let text = error.to_string();
        let kinds = [
            ("unclosed character class", "missing closing ]"),
            ("unclosed group", "missing closing )"),
            ("unopened group", "unexpected )"),
            ("repetition operator missing", "missing argument to repetition operator"),
            ("incomplete escape sequence", "trailing backslash at end of expression"),
            ("unrecognized escape sequence", "invalid escape sequence"),
            ("invalid character class range", "invalid character class range"),
            ("look-around", "invalid or unsupported Perl syntax"),
        ];
        let (_, kind) =
            kinds.into_iter().find(|(ours, _)| text.contains(ours)).unwrap_or(("", "invalid pattern"));
        let part = match kind {
            "trailing backslash at end of expression" => String::new(),
            "missing closing ]" => format!(": `{}`", &pattern[pattern.rfind('[').unwrap_or(0)..]),
            "missing argument to repetition operator" => {
                let sign = pattern.chars().find(|c| matches!(c, '*' | '+' | '?')).unwrap_or('*');
                format!(": `{sign}`")
            }
            "invalid escape sequence" => {
                let at = pattern.find('\\').unwrap_or(0);
                format!(": `{}`", pattern[at..].chars().take(2).collect::<String>())
            }
            "invalid or unsupported Perl syntax" => {
                let at = pattern.find("(?").unwrap_or(0);
                format!(": `{}`", pattern[at..].chars().take(3).collect::<String>())
            }
            _ => format!(": `{pattern}`"),
        };
        format!("error parsing regexp: {kind}{part}")
    })
}

fn with(pattern: &str, use_it: impl FnOnce(&Regex) -> Value) -> Outcome {
    match compile(pattern) {
        Ok(regex) => ok(use_it(&regex)),
        Err(why) => bad(format!("Illegal regex: {why}")),
    }
}

fn matches(text: &str, pattern: &str) -> Outcome {
    match compile(pattern) {
        Ok(regex) => ok(Value::Bool(regex.is_match(text))),
        Err(why) => bad(why),
    }
}

fn find_all(text: &str, pattern: &str, limit: usize) -> Outcome {
    with(pattern, |regex| {
        Value::list(regex.find_iter(text).take(limit).map(|found| Value::text(found.as_str())).collect())
    })
}

fn index_of(letters: &[char], part: &str, from: i64) -> Outcome {
    if part.is_empty() {
        return ok(Value::Int(from));
    }
    let Ok(start) = usize::try_from(from) else { return bad(format!("index out of range: {from}")) };
    let part: Vec<char> = part.chars().collect();
    let found = (start..letters.len()).find(|at| letters[*at..].starts_with(&part));
    ok(found.map_or(Value::Int(-1), int))
}

fn last_index(letters: &[char], part: &str, from: i64) -> Outcome {
    if part.is_empty() {
        return ok(Value::Int(from));
    }
    let Ok(start) = usize::try_from(from) else { return bad(format!("index out of range: {from}")) };
    if start >= letters.len() {
        return ok(Value::Int(-1));
    }
    let part: Vec<char> = part.chars().collect();
    let found = (0..=start).rev().find(|at| letters[*at..].starts_with(&part));
    ok(found.map_or(Value::Int(-1), int))
}

fn split(text: &str, by: &str, limit: i64) -> Value {
    let parts: Vec<String> = if by.is_empty() {
        text.chars().map(String::from).collect()
    } else {
        text.split(by).map(str::to_owned).collect()
    };
    let list = |parts: Vec<String>| Value::list(parts.into_iter().map(Value::text).collect());
    match usize::try_from(limit) {
        Err(_) => list(parts),
        Ok(0) => Value::list(Vec::new()),
        Ok(limit) if parts.len() <= limit => list(parts),
        Ok(limit) => {
            let mut kept = parts[..limit - 1].to_vec();
            kept.push(parts[limit - 1..].join(by));
            list(kept)
        }
    }
}

fn substring(letters: &[char], from: i64, to: Option<i64>) -> Outcome {
    let length = i64::try_from(letters.len()).unwrap_or(i64::MAX);
    if let Some(to) = to
        && from > to
    {
        return bad(format!("invalid substring range. start: {from}, end: {to}"));
    }
    let to = to.unwrap_or(length);
    if from < 0 || from > length {
        return bad(format!("index out of range: {from}"));
    }
    if to < 0 || to > length {
        return bad(format!("index out of range: {to}"));
    }
    ok(Value::text(letters[from as usize..to as usize].iter().collect::<String>()))
}

/// Writes a text as it would be written in an expression.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
