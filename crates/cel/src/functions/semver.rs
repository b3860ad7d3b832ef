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
    /// Reads a version.
    ///
    /// *Errors*: says what is wrong, in the words of the library that Kubernetes uses.
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts[..] else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let number = |part: &str, title: &str| {
            if !digits(part) {
                let name = title.to_lowercase();
                return Err(format!("Invalid character(s) found in {name} number {part:?}"));
            }
            if part.len() > 1 && part.starts_with('0') {
                return Err(format!("{title} number must not contain leading zeroes {part:?}"));
            }
            part.parse::<u64>().map_err(|_| format!("strconv.ParseUint: parsing {part:?}: invalid syntax"))
        };
        let (major, minor) = (number(major, "Major")?, number(minor, "Minor")?);
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, pre) = rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        let numbers = [major, minor, number(patch, "Patch")?];
        let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let pre: Vec<String> = pre.map(|pre| pre.split('.').map(str::to_owned).collect()).unwrap_or_default();
        for part in &pre {
            if part.is_empty() {
                return Err("Prerelease is empty".to_owned());
            }
            if digits(part) && part.len() > 1 && part.starts_with('0') {
                return Err(format!("Numeric PreRelease version must not contain leading zeroes {part:?}"));
            }
            if !plain(part) {
                return Err(format!("Invalid character(s) found in prerelease {part:?}"));
            }
        }
        for part in build.iter().flat_map(|build| build.split('.')) {
            if part.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !plain(part) {
                return Err(format!("Invalid character(s) found in build meta data {part:?}"));
            }
        }
        Ok(Self { numbers, pre, build: build.unwrap_or("").to_owned() })
    }

    /// Lets a `v` and leading zeros pass and fills in what is missing.
    fn parse_leniently(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
        for part in parts.iter_mut().filter(|part| part.len() > 1) {
            let plain = part.trim_start_matches('0');
            let missing = if plain.starts_with(|c: char| c.is_ascii_digit()) { "" } else { "0" };
            *part = format!("{missing}{plain}");
        }
        if parts.len() < 3 {
            if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
                return Err("short version cannot contain PreRelease/Build meta data".to_owned());
            }
            parts.resize(3, "0".to_owned());
        }
        Self::parse(&parts.join("."))
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
        (None, "isSemver", [Value::String(text)]) => ok(Value::Bool(read(text, false).is_ok())),
        (None, "isSemver", [Value::String(text), Value::Bool(lenient)]) => {
            ok(Value::Bool(read(text, *lenient).is_ok()))
        }
        (None, "semver", [Value::String(text), rest @ ..]) => {
            let lenient = matches!(rest, [Value::Bool(true)]);
            match read(text, lenient) {
                Ok(version) => ok(Value::Semver(Arc::new(version))),
                Err(why) => bad(why),
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
