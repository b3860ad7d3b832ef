//! From a text to the terms of a query.
//!
//! A term is `field:pattern` (or `field=pattern`), `field!=pattern`, or for `age` a comparison. Patterns may contain `*` and `?`;
//! several of them, separated by commas, match if any of them does. A word without a field is searched in names. Quotes keep
//! spaces together.

use std::cell::Cell;
use std::time::Duration;

/// The longest accepted query.
const LONGEST: usize = 4096;
/// The names of the fields, for the message about a misspelt one.
const FIELDS: &str = "kind, cluster, namespace, name, status, image, node, label, age";

/// Why a query cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unknown field {0:?} in the query; these exist: {FIELDS}")]
    Field(String),
    #[error("{0:?} has no value; write {0}:VALUE")]
    Value(String),
    #[error("{0:?} is not an age; write a number and a unit, such as 90s, 5m, 1h or 2d")]
    Age(String),
    #[error("{field} cannot be compared with {operator}; write {field}:VALUE or {field}!=VALUE")]
    Operator { field: String, operator: &'static str },
    #[error("age needs a comparison; write age<1h or age>1h")]
    AgeOperator,
    #[error("a quote is not closed in {0:?}")]
    Quote(String),
    #[error("the query is longer than {LONGEST} characters")]
    Long,
}

/// The fields of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Kind,
    Cluster,
    Namespace,
    Name,
    Status,
    Image,
    Node,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub(super) what: What,
    pub(super) not: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Matches(Field, Vec<String>),
    /// A label, and the patterns for its value; without patterns, it only has to exist.
    Label(String, Vec<String>),
    Younger {
        than: Duration,
        or_as_old: bool,
    },
}

/// Terms that must all hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    pub(super) terms: Vec<Term>,
}

impl Query {
    /// Parses a query; an empty one matches everything.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > LONGEST {
            return Err(Error::Long);
        }
        let terms = words(text)?.iter().map(|word| term(word)).collect::<Result<_, _>>()?;
        Ok(Self { terms })
    }

    /// Returns the namespace of the query, if it names exactly one.
    pub fn namespace(&self) -> Option<&str> {
        self.terms.iter().find_map(|term| match &term.what {
            What::Matches(Field::Namespace, patterns) if !term.not => match patterns.as_slice() {
                [one] if !one.contains(['*', '?']) => Some(one.as_str()),
                _ => None,
            },
            _ => None,
        })
    }

    /// Returns whether the query includes a kind, by any of its names.
    pub fn wants_kind(&self, kind: &crate::Kind, names: &[String]) -> bool {
        let own =
            [kind.kind.to_lowercase(), kind.plural.to_lowercase(), format!("{}.{}", kind.plural, kind.group)];
        let effort = Effort::new(u64::MAX);
        self.matches(Field::Kind, |pattern| {
            let pattern = pattern.to_lowercase();
            own.iter().chain(names).any(|name| glob(&pattern, name, &effort))
        })
    }

    pub fn wants_cluster(&self, cluster: &str) -> bool {
        let effort = Effort::new(u64::MAX);
        self.matches(Field::Cluster, |pattern| glob(pattern, cluster, &effort))
    }

    fn matches(&self, field: Field, fits: impl Fn(&str) -> bool) -> bool {
        self.terms.iter().all(|term| match &term.what {
            What::Matches(own, patterns) if *own == field => {
                patterns.iter().any(|pattern| fits(pattern)) != term.not
            }
            _ => true,
        })
    }
}

/// How much may still be compared to answer a query. Texts of members have any length, and a pattern with stars costs up to its own
/// length times that of the text.
#[derive(Debug)]
pub(super) struct Effort(Cell<u64>);

impl Effort {
    pub(super) fn new(steps: u64) -> Self {
        Self(Cell::new(steps))
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// Says whether a text fits a pattern in which `*` stands for anything and `?` for one character. Nothing fits once the effort is spent.
pub(super) fn glob(pattern: &str, text: &str, effort: &Effort) -> bool {
    let (mut left, mut pattern, mut text) = (effort.0.get(), pattern.chars(), text.chars());
    // What follows the last star, and where it was tried.
    let mut star = None;
    let fits = loop {
        left = left.saturating_sub(1);
        if left == 0 {
            break false;
        }
        let Some(letter) = text.clone().next() else { break pattern.all(|wanted| wanted == '*') };
        match pattern.next() {
            Some('*') => star = Some((pattern.clone(), text.clone())),
            Some(wanted) if wanted == '?' || wanted == letter => {
                text.next();
            }
            // The last star takes one character more.
            _ => match &mut star {
                Some((after, from)) => {
                    from.next();
                    (pattern, text) = (after.clone(), from.clone());
                }
                None => break false,
            },
        }
    };
    effort.0.set(left);
    fits
}

/// Splits a text at spaces outside of quotes.
fn words(text: &str) -> Result<Vec<String>, Error> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            letter if letter.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            letter => word.push(letter),
        }
    }
    if quoted {
        return Err(Error::Quote(text.to_owned()));
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

fn term(word: &str) -> Result<Term, Error> {
    let Some(at) = word.find([':', '=', '!', '<', '>']) else {
        let pattern = if word.contains(['*', '?']) { word.to_owned() } else { format!("*{word}*") };
        return Ok(Term { what: What::Matches(Field::Name, vec![pattern]), not: false });
    };
    let (name, rest) = word.split_at(at);
    let operators = ["!=", "!:", "<=", ">=", "<", ">", ":", "="];
    let found = operators.into_iter().find_map(|operator| Some((operator, rest.strip_prefix(operator)?)));
    let (operator, value) = found.ok_or_else(|| Error::Value(name.to_owned()))?;
    let not = operator.starts_with('!');
    if value.is_empty() {
        return Err(Error::Value(name.to_owned()));
    }
    let name = name.to_lowercase();
    if name == "age" {
        let than = age(value).ok_or_else(|| Error::Age(value.to_owned()))?;
        let (or_as_old, not) = match operator {
            "<" => (false, false),
            "<=" => (true, false),
            ">" => (true, true),
            ">=" => (false, true),
            _ => return Err(Error::AgeOperator),
        };
        return Ok(Term { what: What::Younger { than, or_as_old }, not });
    }
    if operator.starts_with(['<', '>']) {
        return Err(Error::Operator { field: name, operator });
    }
    let patterns =
        |value: &str| value.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if matches!(name.as_str(), "label" | "labels" | "l") {
        let (key, values) =
            value.split_once('=').map_or((value, Vec::new()), |(key, value)| (key, patterns(value)));
        return Ok(Term { what: What::Label(key.to_owned(), values), not });
    }
    let field = match name.as_str() {
        "kind" | "k" => Field::Kind,
        "cluster" | "c" => Field::Cluster,
        "namespace" | "ns" | "n" => Field::Namespace,
        "name" => Field::Name,
        "status" | "phase" | "reason" => Field::Status,
        "image" => Field::Image,
        "node" => Field::Node,
        _ => return Err(Error::Field(name)),
    };
    Ok(Term { what: What::Matches(field, patterns(value)), not })
}

fn age(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        "w" => 7 * 24 * 3600,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("eu-*", "eu-west", true),
            ("eu-*", "neu-west", false),
            ("*:v2", "registry:5000/nginx:v2", true),
            ("*:v2", "nginx:v20", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxaxxbxx", true),
            ("", "", true),
            ("*", "", true),
            ("**", "x", true),
            ("ü*", "über", true),
        ] {
            assert_eq!(glob(pattern, text, &Effort::new(1_000)), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn nothing_fits_once_the_effort_is_spent() {
        let effort = Effort::new(1_000);
        assert!(!glob(&format!("*{}b", "a".repeat(100)), &"a".repeat(10_000), &effort));
        assert!(effort.is_spent());
        assert!(!glob("a", "a", &effort));
    }

    #[test]
    fn a_query_is_read_term_by_term() {
        let query = Query::parse(r#"kind:pod status!=Running image:*:v2 label:app=web,api age<1h "my name""#)
            .unwrap();
        let patterns = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let matches = |field, all: &[&str], not| Term { what: What::Matches(field, patterns(all)), not };
        assert_eq!(
            query.terms,
            [
                matches(Field::Kind, &["pod"], false),
                matches(Field::Status, &["Running"], true),
                matches(Field::Image, &["*:v2"], false),
                Term { what: What::Label("app".to_owned(), patterns(&["web", "api"])), not: false },
                Term {
                    what: What::Younger { than: Duration::from_secs(3600), or_as_old: false },
                    not: false
                },
                matches(Field::Name, &["*my name*"], false),
            ]
        );
        assert_eq!(Query::parse("ns:shop").unwrap().namespace(), Some("shop"));
        assert_eq!(Query::parse("ns:shop,bank").unwrap().namespace(), None);
        assert_eq!(Query::parse("ns!=shop").unwrap().namespace(), None);
    }

    #[test]
    fn a_mistake_is_named_with_the_way_out() {
        let error = |text: &str| Query::parse(text).unwrap_err().to_string();
        assert!(
            error("imge:x").contains("unknown field \"imge\"") && error("imge:x").contains("image, node")
        );
        assert!(error("kind:").contains("kind:VALUE"));
        assert!(error("age:1h").contains("age<1h"));
        assert!(error("age<soon").contains("\"soon\" is not an age"));
        assert!(error("name<x").contains("name:VALUE"));
        assert!(error("\"a").contains("quote"));
        assert!(error(&"a".repeat(5000)).contains("4096"));
    }
}
