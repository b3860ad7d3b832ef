//! Semantic versions.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::{Outcome, bad, ok};
use crate::value::Value;

/// `major.minor.patch[-pre][+build]`.
#[derive(Debug)]
pub struct Version {
    numbers: [u64; 3],
    pre: Vec<String>,
    build: String,
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let (rest, build) = text.split_once('+').unwrap_or((text, ""));
        let (core, pre) = rest.split_once('-').unwrap_or((rest, ""));
        let number = |part: &str| {
            let leading = part.len() > 1 && part.starts_with('0');
            if leading || !part.bytes().all(|byte| byte.is_ascii_digit()) { None } else { part.parse().ok() }
        };
        let parts: Vec<u64> = core.split('.').map(number).collect::<Option<_>>()?;
        let numbers = <[u64; 3]>::try_from(parts).ok()?;
        let word = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let pre: Vec<String> =
            if pre.is_empty() { Vec::new() } else { pre.split('.').map(str::to_owned).collect() };
        let sound = pre.iter().all(|part| word(part))
            && (build.is_empty() || build.split('.').all(word))
            && rest.contains('-') != pre.is_empty();
        sound.then(|| Self { numbers, pre, build: build.to_owned() })
    }

    /// Lets a `v` and leading zeros pass and fills in what is missing.
    fn parse_leniently(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let end = text.find(['-', '+']).unwrap_or(text.len());
        let mut parts: Vec<&str> = text[..end].split('.').collect();
        if parts.len() > 3 {
            return None;
        }
        parts.resize(3, "0");
        let parts: Vec<String> = parts
            .into_iter()
            .map(|part| {
                let plain = part.trim_start_matches('0');
                if plain.is_empty() && !part.is_empty() { "0".to_owned() } else { plain.to_owned() }
            })
            .collect();
        Self::parse(&format!("{}{}", parts.join("."), &text[end..]))
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                for (a, b) in self.pre.iter().zip(&other.pre) {
                    let order = match (a.parse::<u64>(), b.parse::<u64>()) {
                        (Ok(a), Ok(b)) => a.cmp(&b),
                        (Ok(_), Err(_)) => Ordering::Less,
                        (Err(_), Ok(_)) => Ordering::Greater,
                        (Err(_), Err(_)) => a.cmp(b),
                    };
                    if order != Ordering::Equal {
                        return order;
                    }
                }
                self.pre.len().cmp(&other.pre.len())
            }
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(out, "{major}.{minor}.{patch}")?;
        if !self.pre.is_empty() {
            write!(out, "-{}", self.pre.join("."))?;
        }
        if !self.build.is_empty() {
            write!(out, "+{}", self.build)?;
        }
        Ok(())
    }
}

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    let read = |text: &str, lenient: bool| {
        if lenient { Version::parse_leniently(text) } else { Version::parse(text) }
    };
    match (target, name, args) {
        (None, "isSemver", [Value::String(text)]) => ok(Value::Bool(read(text, false).is_some())),
        (None, "isSemver", [Value::String(text), Value::Bool(lenient)]) => {
            ok(Value::Bool(read(text, *lenient).is_some()))
        }
        (None, "semver", [Value::String(text), rest @ ..]) => {
            let lenient = matches!(rest, [Value::Bool(true)]);
            match read(text, lenient) {
                Some(version) => ok(Value::Semver(Arc::new(version))),
                None => bad("semver parse error"),
            }
        }
        (Some(Value::Semver(own)), _, []) => {
            let at = match name {
                "major" => 0,
                "minor" => 1,
                "patch" => 2,
                _ => return None,
            };
            ok(Value::Int(i64::try_from(own.numbers[at]).unwrap_or(i64::MAX)))
        }
        (Some(Value::Semver(own)), _, [Value::Semver(other)]) => match name {
            "compareTo" => ok(Value::Int(own.compare(other) as i64)),
            "isGreaterThan" => ok(Value::Bool(own.compare(other) == Ordering::Greater)),
            "isLessThan" => ok(Value::Bool(own.compare(other) == Ordering::Less)),
            _ => None,
        },
        _ => None,
    }
}
