//! Text: the standard functions, the strings library, regular expressions.

use regex::Regex;

use super::convert::show;
use super::{Outcome, bad, int, ok};
use crate::value::Value;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    if let (None, "matches", [Value::String(text), Value::String(pattern)]) = (target, name, args) {
        return matches(text, pattern);
    }
    if let (None, "strings.quote", [Value::String(text)]) = (target, name, args) {
        return ok(Value::text(apimachinery::go::quote(text)));
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
        ("indexOf", [Value::String(part)]) => ok(index_of(&letters(), part, 0)),
        ("indexOf", [Value::String(part), Value::Int(from)]) => match usize::try_from(*from) {
            Ok(start) if start <= letters().len() => ok(index_of(&letters(), part, start)),
            _ => bad(format!("index out of range: {from}")),
        },
        ("lastIndexOf", [Value::String(part)]) => {
            let (letters, part) = (letters(), part.chars().collect::<Vec<_>>());
            ok(last_index(&letters, &part, letters.len()))
        }
        ("lastIndexOf", [Value::String(part), Value::Int(from)]) => {
            let (letters, part) = (letters(), part.chars().collect::<Vec<_>>());
            match usize::try_from(*from) {
                Ok(from) if from <= letters.len() => ok(last_index(&letters, &part, from)),
                _ => bad(format!("index out of range: {from}")),
            }
        }
        ("lowerAscii", []) => ok(Value::text(text.to_ascii_lowercase())),
        ("upperAscii", []) => ok(Value::text(text.to_ascii_uppercase())),
        ("trim", []) => ok(Value::text(text.trim())),
        ("reverse", []) => ok(Value::text(text.chars().rev().collect::<String>())),
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
        ("format", [Value::List(values)]) => format(text, values),
        _ => None,
    }
}

/// Limits what a pattern may cost to compile.
fn with(pattern: &str, use_it: impl FnOnce(&Regex) -> Value) -> Outcome {
    match regex::RegexBuilder::new(pattern).size_limit(1 << 20).build() {
        Ok(regex) => ok(use_it(&regex)),
        Err(_) => bad(format!("error parsing regexp: invalid pattern: `{pattern}`")),
    }
}

fn matches(text: &str, pattern: &str) -> Outcome {
    with(pattern, |regex| Value::Bool(regex.is_match(text)))
}

fn find_all(text: &str, pattern: &str, limit: usize) -> Outcome {
    with(pattern, |regex| {
        Value::list(regex.find_iter(text).take(limit).map(|found| Value::text(found.as_str())).collect())
    })
}

fn index_of(letters: &[char], part: &str, from: usize) -> Value {
    let part: Vec<char> = part.chars().collect();
    if part.is_empty() {
        return int(from);
    }
    let found = (from..letters.len()).find(|at| letters[*at..].starts_with(&part));
    found.map_or(Value::Int(-1), int)
}

fn last_index(letters: &[char], part: &[char], from: usize) -> Value {
    let found = (0..=from.min(letters.len())).rev().find(|at| letters[*at..].starts_with(part));
    found.map_or(Value::Int(-1), int)
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
    let to = to.unwrap_or(length);
    if from < 0 || from > length {
        return bad(format!("index out of range: {from}"));
    }
    if to < 0 || to > length {
        return bad(format!("index out of range: {to}"));
    }
    if from > to {
        return bad(format!("invalid substring range. start: {from}, end: {to}"));
    }
    ok(Value::text(letters[from as usize..to as usize].iter().collect::<String>()))
}

fn format(text: &str, values: &[Value]) -> Outcome {
    let mut out = String::new();
    let mut values = values.iter();
    let mut chars = text.chars().peekable();
    let mut used = 0;
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.peek() == Some(&'%') {
            chars.next();
            out.push('%');
            continue;
        }
        let mut precision: Option<usize> = None;
        if chars.peek() == Some(&'.') {
            chars.next();
            let mut digits = String::new();
            while let Some(digit) = chars.peek().filter(|c| c.is_ascii_digit()) {
                digits.push(*digit);
                chars.next();
            }
            precision = digits.parse().ok();
        }
        let Some(verb) = chars.next() else { return bad("unexpected end of string") };
        let Some(value) = values.next() else { return bad(format!("index {used} out of range")) };
        used += 1;
        let shown = match (verb, value) {
            ('s', value) => show(value),
            ('d', Value::Int(_) | Value::Uint(_)) => show(value),
            ('d', Value::Double(n)) if !n.is_finite() => show(value),
            ('f', Value::Double(n)) => format!("{n:.*}", precision.unwrap_or(6)),
            ('f', Value::Int(n)) => format!("{:.*}", precision.unwrap_or(6), *n as f64),
            ('e', Value::Double(n)) => exponent(*n, precision.unwrap_or(6)),
            ('e', Value::Int(n)) => exponent(*n as f64, precision.unwrap_or(6)),
            ('b', Value::Int(n)) => {
                if *n < 0 {
                    format!("-{:b}", n.unsigned_abs())
                } else {
                    format!("{n:b}")
                }
            }
            ('b', Value::Uint(n)) => format!("{n:b}"),
            ('b', Value::Bool(b)) => u8::from(*b).to_string(),
            ('o', Value::Int(n)) => {
                if *n < 0 {
                    format!("-{:o}", n.unsigned_abs())
                } else {
                    format!("{n:o}")
                }
            }
            ('o', Value::Uint(n)) => format!("{n:o}"),
            ('x', Value::Int(n)) => {
                if *n < 0 {
                    format!("-{:x}", n.unsigned_abs())
                } else {
                    format!("{n:x}")
                }
            }
            ('X', Value::Int(n)) => {
                if *n < 0 {
                    format!("-{:X}", n.unsigned_abs())
                } else {
                    format!("{n:X}")
                }
            }
            ('x', Value::Uint(n)) => format!("{n:x}"),
            ('X', Value::Uint(n)) => format!("{n:X}"),
            ('x', Value::String(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
            ('X', Value::String(text)) => text.bytes().map(|byte| format!("{byte:02X}")).collect(),
            ('x', Value::Bytes(bytes)) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            ('X', Value::Bytes(bytes)) => bytes.iter().map(|byte| format!("{byte:02X}")).collect(),
            ('d' | 'f' | 'e' | 'b' | 'o' | 'x' | 'X', _) => {
                return bad(format!(
                    "error during formatting: no formatting clause for {}",
                    value.type_name()
                ));
            }
            (other, _) => {
                return bad(format!(
                    "could not parse formatting clause: unrecognized formatting clause \"{other}\""
                ));
            }
        };
        out.push_str(&shown);
    }
    ok(Value::text(out))
}

fn exponent(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
            format!("{digits}e{sign}{power:0>2}")
        }
        None => text,
    }
}
