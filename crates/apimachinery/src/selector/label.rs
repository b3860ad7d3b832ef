//! Label selectors: the query syntax (`app in (a,b),!debug`) and the `LabelSelector` object.
//!
//! In: text or an object. Out: requirements, checked and ready to match; the errors are upstream's words because
//! they become the 400 answers to list and watch requests.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::field::{self, Errors, Path};
use crate::names;

mod parse;

/// What a requirement says about a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    Equals,
    DoubleEquals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One condition on one label. `values` is sorted and unique; `number` is the bound of `>` and `<`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
    number: i64,
}

/// All requirements must hold. `nothing` marks the selector that matches no object at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

/// The reason a selector was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// Where labels can be looked up.
pub trait Labels {
    fn label(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Labels for Map<String, Value> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

/// A label map as it stands in an object; anything that is not an object has no labels.
impl Labels for Value {
    fn label(&self, key: &str) -> Option<&str> {
        self.as_object()?.label(key)
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Labels for [(K, V)] {
    fn label(&self, key: &str) -> Option<&str> {
        self.iter().find(|(name, _)| name.as_ref() == key).map(|(_, value)| value.as_ref())
    }
}

impl<L: Labels + ?Sized> Labels for Option<&L> {
    fn label(&self, key: &str) -> Option<&str> {
        (*self)?.label(key)
    }
}

impl Requirement {
    /// Returns a checked requirement.
    ///
    /// Errors: the joined field errors, as upstream aggregates them.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, Error> {
        let mut errors = Errors::new();
        let shown = |values: &[String]| Value::from(values.to_vec());
        let complaints = names::qualified_name(key);
        if !complaints.is_empty() {
            errors.push(field::Error::invalid(&Path::new("key"), key, complaints.join("; ")));
        }
        let path = Path::new("values");
        let mut number = 0;
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => errors.push(field::Error::invalid(
                &path,
                shown(&values),
                "for 'in', 'notin' operators, values set can't be empty",
            )),
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                errors.push(field::Error::invalid(
                    &path,
                    shown(&values),
                    "exact-match compatibility requires one single value",
                ));
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                errors.push(field::Error::invalid(
                    &path,
                    shown(&values),
                    "values set must be empty for exists and does not exist",
                ))
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    errors.push(field::Error::invalid(
                        &path,
                        shown(&values),
                        "for 'Gt', 'Lt' operators, exactly one value is required",
                    ));
                }
                for (index, value) in values.iter().enumerate() {
                    match parse_integer(value) {
                        Some(parsed) => number = parsed,
                        None => errors.push(field::Error::invalid(
                            &path.index(index),
                            value.as_str(),
                            "for 'Gt', 'Lt' operators, the value must be an integer",
                        )),
                    }
                }
            }
            _ => {}
        }
        for (index, value) in values.iter().enumerate() {
            let complaints = names::label_value(value);
            if !complaints.is_empty() {
                let path = path.index(index).key(key);
                errors.push(field::Error::invalid(&path, value.as_str(), complaints.join("; ")));
            }
        }
        if errors.is_empty() {
            Ok(Self::unchecked(key, operator, values, number))
        } else {
            Err(Error(field::aggregate(&errors)))
        }
    }

    fn unchecked(key: &str, operator: Operator, mut values: Vec<String>, number: i64) -> Self {
        values.sort_unstable();
        values.dedup();
        Self { key: key.to_owned(), operator, values, number }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Tells whether the labels satisfy this requirement.
    pub fn matches(&self, labels: &(impl Labels + ?Sized)) -> bool {
        let value = labels.label(&self.key);
        match self.operator {
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Equals | Operator::DoubleEquals | Operator::In => {
                value.is_some_and(|value| self.has_value(value))
            }
            Operator::NotEquals | Operator::NotIn => value.is_none_or(|value| !self.has_value(value)),
            Operator::GreaterThan => value.and_then(parse_integer).is_some_and(|value| value > self.number),
            Operator::LessThan => value.and_then(parse_integer).is_some_and(|value| value < self.number),
        }
    }

    fn has_value(&self, value: &str) -> bool {
        match self.values.as_slice() {
            [one] => one == value,
            many => many.binary_search_by(|candidate| candidate.as_str().cmp(value)).is_ok(),
        }
    }
}

/// Go's base-10 integers: an optional sign, digits, 64 bits.
fn parse_integer(text: &str) -> Option<i64> {
    text.parse().ok()
}

impl Selector {
    /// Returns the selector that matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Returns the selector that matches no object.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Parses the query syntax.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self::of(parse::requirements(text)?))
    }

    /// Returns the selector of the given requirements, sorted by key.
    pub fn of(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|left, right| left.key.cmp(&right.key));
        Self { requirements, nothing: false }
    }

    /// Returns the selector that demands exactly these labels, without checking their syntax.
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self::of(
            labels
                .into_iter()
                .map(|(key, value)| Requirement::unchecked(key, Operator::Equals, vec![value.to_owned()], 0))
                .collect(),
        )
    }

    /// Returns the selector that a `LabelSelector` object means: none or null matches nothing, `{}` everything.
    pub fn from_object(selector: Option<&Value>) -> Result<Self, Error> {
        let Some(Value::Object(selector)) = selector else { return Ok(Self::nothing()) };
        let mut requirements = Vec::new();
        if let Some(Value::Object(labels)) = selector.get("matchLabels") {
            for (key, value) in labels {
                let value = value.as_str().unwrap_or_default().to_owned();
                requirements.push(Requirement::new(key, Operator::Equals, vec![value])?);
            }
        }
        if let Some(Value::Array(expressions)) = selector.get("matchExpressions") {
            for expression in expressions {
                let text = |name| expression.get(name).and_then(Value::as_str).unwrap_or_default();
                let operator = match text("operator") {
                    "In" => Operator::In,
                    "NotIn" => Operator::NotIn,
                    "Exists" => Operator::Exists,
                    "DoesNotExist" => Operator::DoesNotExist,
                    other => {
                        return Err(Error(format!(
                            "{} is not a valid label selector operator",
                            crate::go::quote(other)
                        )));
                    }
                };
                requirements.push(Requirement::new(
                    text("key"),
                    operator,
                    strings(expression.get("values")),
                )?);
            }
        }
        Ok(Self::of(requirements))
    }

    /// Tells whether labels match.
    pub fn matches(&self, labels: &(impl Labels + ?Sized)) -> bool {
        !self.nothing && self.requirements.iter().all(|requirement| requirement.matches(labels))
    }

    /// True when every object matches.
    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Returns the one value that the selector demands of a label, if it demands one.
    pub fn required_value(&self, key: &str) -> Option<&str> {
        let requirement = self.requirements.iter().find(|requirement| requirement.key == key)?;
        match (requirement.operator, requirement.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [one]) => Some(one),
            _ => None,
        }
    }
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let items = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Checks a `LabelSelector` object as validation does: operators, keys, values.
pub fn validate_object(selector: &Value, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if let Some(Value::Object(labels)) = selector.get("matchLabels") {
        let path = path.child("matchLabels");
        for (key, value) in labels {
            for complaint in names::qualified_name(key) {
                errors.push(field::Error::invalid(&path, key.as_str(), complaint));
            }
            for complaint in names::label_value(value.as_str().unwrap_or_default()) {
                errors.push(field::Error::invalid(&path, value.clone(), complaint));
            }
        }
    }
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).map(Vec::as_slice);
    for (index, expression) in expressions.unwrap_or_default().iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let text = |name| expression.get(name).and_then(Value::as_str).unwrap_or_default();
        let values = strings(expression.get("values"));
        match text("operator") {
            "In" | "NotIn" if values.is_empty() => errors.push(field::Error::required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(field::Error::forbidden(
                &path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(field::Error::invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            )),
        }
        for complaint in names::qualified_name(text("key")) {
            errors.push(field::Error::invalid(&path.child("key"), text("key"), complaint));
        }
        for (position, value) in values.iter().enumerate() {
            for complaint in names::label_value(value) {
                let path = path.child("values").index(position);
                errors.push(field::Error::invalid(&path, value.as_str(), complaint));
            }
        }
    }
    errors
}

impl fmt::Display for Requirement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.join(",");
        let key = &self.key;
        match self.operator {
            Operator::Exists => write!(out, "{key}"),
            Operator::DoesNotExist => write!(out, "!{key}"),
            Operator::Equals => write!(out, "{key}={values}"),
            Operator::DoubleEquals => write!(out, "{key}=={values}"),
            Operator::NotEquals => write!(out, "{key}!={values}"),
            Operator::In => write!(out, "{key} in ({values})"),
            Operator::NotIn => write!(out, "{key} notin ({values})"),
            Operator::GreaterThan => write!(out, "{key}>{values}"),
            Operator::LessThan => write!(out, "{key}<{values}"),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                out.write_str(",")?;
            }
            requirement.fmt(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn selector(text: &str) -> Selector {
        Selector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn requirements_match_as_documented() {
        let labels = json!({"app": "web", "tier": "", "n": "5"});
        for (text, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("!debug", true),
            ("debug", false),
            ("app=web", true),
            ("app==web", true),
            ("app=db", false),
            ("app!=db", true),
            ("debug!=x", true),
            ("app in (db,web)", true),
            ("app in (db)", false),
            ("app notin (db)", true),
            ("debug notin (x)", true),
            ("tier=", true),
            ("tier in ()", true),
            ("tier in (,x)", true),
            ("n>4", true),
            ("n<5", false),
            ("n<6,app=web", true),
            ("app>1", false),
            (" app = web , tier ", true),
            ("app=web,debug", false),
        ] {
            assert_eq!(selector(text).matches(&labels), expected, "{text}");
        }
    }

    #[test]
    fn selectors_print_sorted_by_key() {
        for (text, printed) in [
            ("b,a", "a,b"),
            ("x in (c,a,b)", "x in (a,b,c)"),
            ("x notin ()", "x notin ()"),
            ("x==1,!y,z!=2,a>1,b<2", "a>1,b<2,x==1,!y,z!=2"),
            ("in in (in,notin)", "in in (in,notin)"),
        ] {
            assert_eq!(selector(text).to_string(), printed);
        }
    }

    #[test]
    fn objects_become_selectors() {
        let object = json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["b", "a"]}, {"key": "x", "operator": "Exists"}],
        });
        let made = Selector::from_object(Some(&object)).unwrap();
        assert_eq!(made.to_string(), "app=web,tier in (a,b),x");
        assert_eq!(made.required_value("app"), Some("web"));
        assert!(Selector::from_object(Some(&json!({}))).unwrap().is_everything());
        assert!(Selector::from_object(None).unwrap().is_nothing());
        assert!(!Selector::nothing().matches(&json!({})));
        let bad = json!({"matchExpressions": [{"key": "a", "operator": "Like"}]});
        assert_eq!(
            Selector::from_object(Some(&bad)).unwrap_err().to_string(),
            r#""Like" is not a valid label selector operator"#
        );
    }

    #[test]
    fn validation_names_the_wrong_part() {
        let object = json!({"matchExpressions": [
            {"key": "a", "operator": "In"},
            {"key": "a", "operator": "Exists", "values": ["x"]},
            {"key": "a", "operator": "Like"},
        ]});
        let errors = validate_object(&object, &Path::new("spec").child("selector"));
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                "spec.selector.matchExpressions[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                r#"spec.selector.matchExpressions[2].operator: Invalid value: "Like": not a valid selector operator"#,
            ]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn printing_and_parsing_is_the_identity(
            keys in proptest::collection::btree_map("[a-z]{1,4}", (0usize..7, proptest::collection::vec("[a-z0-9]{0,3}", 1..3)), 0..4)
        ) {
            let requirements = keys.into_iter().map(|(key, (operator, mut values))| {
                let operator = [Operator::Exists, Operator::DoesNotExist, Operator::Equals, Operator::NotEquals, Operator::In, Operator::NotIn, Operator::DoubleEquals][operator];
                match operator {
                    Operator::Exists | Operator::DoesNotExist => values.clear(),
                    Operator::In | Operator::NotIn => {}
                    _ => values.truncate(1),
                }
                Requirement::new(&key, operator, values).unwrap()
            }).collect();
            let made = Selector::of(requirements);
            prop_assert_eq!(Selector::parse(&made.to_string()).unwrap(), made);
        }
    }
}
