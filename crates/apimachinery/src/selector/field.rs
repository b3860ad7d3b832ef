//! Field selectors: `metadata.name=x,status.phase!=Running`.
//!
//! In: the query string. Out: terms that a caller resolves against an object. Which fields exist is the caller's
//! business: [`Selector::transform`] lets it refuse or rename them.

use std::fmt;

/// Why a field selector cannot be read; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("invalid selector: '{selector}'; can't understand '{part}'")]
    Term { selector: String, part: String },
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// Upstream prints the character's number.
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub field: String,
    pub value: String,
    /// True for `!=`.
    pub negated: bool,
}

/// All terms must hold; no terms match everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    terms: Vec<Term>,
}

impl Selector {
    /// Returns the selector that matches everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Parses the query string.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts {
            if part.is_empty() {
                continue;
            }
            let Some((field, negated, value)) = split_term(part) else {
                return Err(Error::Term { selector: text.to_owned(), part: part.to_owned() });
            };
            terms.push(Term { field: field.to_owned(), value: unescape(value)?, negated });
        }
        Ok(Self { terms })
    }

    /// Returns the selector that demands one value of one field.
    pub fn equal(field: &str, value: &str) -> Self {
        Self { terms: vec![Term { field: field.to_owned(), value: value.to_owned(), negated: false }] }
    }

    /// Returns the selector that demands one more value.
    pub fn and(mut self, field: &str, value: &str) -> Self {
        self.terms.extend(Self::equal(field, value).terms);
        self
    }

    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Rewrites or refuses each term; a term whose field becomes empty is dropped.
    pub fn transform<E>(
        self,
        mut rule: impl FnMut(&str, &str) -> Result<(String, String), E>,
    ) -> Result<Self, E> {
        let mut terms = Vec::with_capacity(self.terms.len());
        for term in self.terms {
            let (field, value) = rule(&term.field, &term.value)?;
            if !(field.is_empty() && value.is_empty()) {
                terms.push(Term { field, value, negated: term.negated });
            }
        }
        Ok(Self { terms })
    }

    /// Tells whether an object matches; `get` returns the field's value, the empty string if it is absent.
    pub fn matches<'a>(&self, mut get: impl FnMut(&str) -> std::borrow::Cow<'a, str>) -> bool {
        self.terms.iter().all(|term| (get(&term.field) == term.value.as_str()) != term.negated)
    }

    /// Returns the value that the selector demands of a field, if it demands one.
    pub fn required_value(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.field == field && !term.negated).map(|term| term.value.as_str())
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            if index > 0 {
                out.write_str(",")?;
            }
            let operator = if term.negated { "!=" } else { "=" };
            write!(out, "{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

/// Returns a value with the characters escaped that mean something in a field selector.
pub fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

fn unescape(value: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                Some(other) => return Err(Error::Escape(format!("\\{other}"))),
                None => return Err(Error::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(Error::Unescaped(character)),
            _ => out.push(character),
        }
    }
    Ok(out)
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (index, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..index]);
                start = index.saturating_add(1);
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// The field has no escapes, so the first operator ends it.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    for (index, _) in term.char_indices() {
        let rest = &term[index..];
        for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
            if let Some(value) = rest.strip_prefix(operator) {
                return Some((&term[..index], negated, value));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    fn matches(selector: &str, fields: &[(&str, &str)]) -> bool {
        Selector::parse(selector).unwrap().matches(|field| {
            fields
                .iter()
                .find(|(name, _)| *name == field)
                .map_or(Cow::Borrowed(""), |(_, value)| Cow::Owned((*value).to_owned()))
        })
    }

    #[test]
    fn every_term_must_hold() {
        let fields = [("a", "1"), ("b", "2")];
        for (selector, expected) in [
            ("", true),
            ("a=1", true),
            ("a==1", true),
            ("a!=1", false),
            ("a!=2", true),
            ("a=1,b=2", true),
            ("a=1,b=3", false),
            ("c=", true),
            ("c!=", false),
            (",a=1,", true),
        ] {
            assert_eq!(matches(selector, &fields), expected, "{selector}");
        }
    }

    #[test]
    fn special_characters_are_escaped() {
        assert!(matches(r"a=x\,y\=z\\", &[("a", r"x,y=z\")]));
        let selector = Selector::equal("a", r"x,y=z\");
        assert_eq!(selector.to_string(), r"a=x\,y\=z\\");
    }

    #[test]
    fn unreadable_selectors_say_why() {
        for (text, message) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            ("a=1,b", "invalid selector: 'a=1,b'; can't understand 'b'"),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            ("a=\\", "invalid field selector: invalid escape sequence: \\"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ] {
            assert_eq!(Selector::parse(text).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn transform_renames_and_refuses() {
        let selector = Selector::parse("spec.host=n1").unwrap();
        let renamed = selector
            .transform(|field, value| match field {
                "spec.host" => Ok(("spec.nodeName".to_owned(), value.to_owned())),
                other => Err(format!("field label not supported: {other}")),
            })
            .unwrap();
        assert_eq!(renamed.required_value("spec.nodeName"), Some("n1"));
        let refused = Selector::parse("x=1").unwrap().transform(|field, _| Err(field.to_owned()));
        assert_eq!(refused, Err("x".to_owned()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn any_value_survives_printing_and_parsing(value in ".*") {
            let selector = Selector::equal("metadata.name", &value);
            prop_assert_eq!(Selector::parse(&selector.to_string()).unwrap(), selector);
        }
    }
}
