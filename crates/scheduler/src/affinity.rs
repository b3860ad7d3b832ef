//! Tells which clusters a ClusterAffinity means.
//!
//! In: a ClusterAffinity as users write it. Out: a matcher over the members of a fleet. Compiling costs a few hash
//! lookups, matching compares numbers only.
//!
//! `exclude` wins; then labels, fields and names that are given must all match; nothing given means every cluster. A
//! selector that Kubernetes would refuse (a bad key or value, an operator with the wrong number of values) matches
//! nothing, because upstream treats the error as "no".

use api::policy::ClusterAffinity;
use apimachinery::names;
use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::fleet::{Fleet, Member};
use crate::symbols::{Symbol, Symbols};

/// A ClusterAffinity, prepared for one fleet.
#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    exclude: Vec<Symbol>,
    labels: Requirements,
    zones: Vec<ZoneRequirement>,
    fields: Requirements,
    /// `None` means any name.
    names: Option<Vec<Symbol>>,
}

impl Matcher {
    pub(crate) fn new(affinity: &ClusterAffinity, fleet: &Fleet) -> Self {
        let symbols = fleet.symbols();
        let known = |names: &[String]| -> Vec<Symbol> {
            let mut found: Vec<Symbol> = names.iter().filter_map(|name| symbols.find(name)).collect();
            found.sort_unstable();
            found
        };
        let expressions = affinity
            .field_selector
            .as_ref()
            .map(|selector| selector.match_expressions.as_slice())
            .unwrap_or_default();
        let (zones, fields): (Vec<_>, Vec<_>) =
            expressions.iter().partition(|expression| expression.key == "zone");
        Self {
            exclude: known(&affinity.exclude),
            labels: affinity
                .label_selector
                .as_ref()
                .map_or_else(Requirements::any, |selector| Requirements::of_labels(selector, symbols)),
            zones: zones.into_iter().map(|expression| ZoneRequirement::new(expression, symbols)).collect(),
            fields: Requirements::of_fields(&fields, symbols),
            names: (!affinity.cluster_names.is_empty()).then(|| known(&affinity.cluster_names)),
        }
    }

    pub(crate) fn matches(&self, member: &Member, fleet: &Fleet) -> bool {
        let symbols = fleet.symbols();
        self.exclude.binary_search(&member.name_symbol).is_err()
            && self.names.as_ref().is_none_or(|names| names.binary_search(&member.name_symbol).is_ok())
            && self.labels.match_all(symbols, |key| member.label(key))
            && self.zones.iter().all(|zone| zone.matches(&member.zones))
            && self.fields.match_all(symbols, |key| member.field(key, symbols))
    }
}

/// Requirements that must all hold.
#[derive(Debug, Clone)]
enum Requirements {
    All(Vec<Requirement>),
    /// Something about them is invalid: nothing matches.
    Invalid,
}

#[derive(Debug, Clone)]
struct Requirement {
    /// `None` means that no cluster has such a key.
    key: Option<Symbol>,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    In(Vec<Symbol>),
    NotIn(Vec<Symbol>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

impl Requirements {
    fn any() -> Self {
        Self::All(Vec::new())
    }

    fn of_labels(selector: &LabelSelector, symbols: &Symbols) -> Self {
        let pairs = selector.match_labels.iter().flatten();
        let equal =
            pairs.map(|(key, value)| Requirement::new(key, "In", std::slice::from_ref(value), symbols));
        let expressions = selector.match_expressions.iter().flatten().map(|expression| {
            let values = expression.values.as_deref().unwrap_or_default();
            match expression.operator.as_str() {
                operator @ ("In" | "NotIn" | "Exists" | "DoesNotExist") => {
                    Requirement::new(&expression.key, operator, values, symbols)
                }
                _ => None,
            }
        });
        Self::collect(equal.chain(expressions))
    }

    fn of_fields(expressions: &[&NodeSelectorRequirement], symbols: &Symbols) -> Self {
        Self::collect(expressions.iter().map(|expression| {
            let values = expression.values.as_deref().unwrap_or_default();
            Requirement::new(&expression.key, &expression.operator, values, symbols)
        }))
    }

    fn collect(requirements: impl Iterator<Item = Option<Requirement>>) -> Self {
        requirements.collect::<Option<Vec<_>>>().map_or(Self::Invalid, Self::All)
    }

    fn match_all(&self, symbols: &Symbols, value_of: impl Fn(Symbol) -> Option<Symbol>) -> bool {
        match self {
            Self::Invalid => false,
            Self::All(requirements) => requirements
                .iter()
                .all(|requirement| requirement.test.holds(requirement.key.and_then(&value_of), symbols)),
        }
    }
}

impl Requirement {
    /// Returns `None` when Kubernetes would refuse the requirement.
    fn new(key: &str, operator: &str, values: &[String], symbols: &Symbols) -> Option<Self> {
        if !names::qualified_name(key).is_empty()
            || !values.iter().all(|value| names::label_value(value).is_empty())
        {
            return None;
        }
        let known = || {
            let mut found: Vec<Symbol> = values.iter().filter_map(|value| symbols.find(value)).collect();
            found.sort_unstable();
            found
        };
        let bound = || if let [value] = values { value.parse::<i64>().ok() } else { None };
        let test = match operator {
            "In" if !values.is_empty() => Test::In(known()),
            "NotIn" if !values.is_empty() => Test::NotIn(known()),
            "Exists" if values.is_empty() => Test::Exists,
            "DoesNotExist" if values.is_empty() => Test::DoesNotExist,
            "Gt" => Test::GreaterThan(bound()?),
            "Lt" => Test::LessThan(bound()?),
            _ => return None,
        };
        Some(Self { key: symbols.find(key), test })
    }
}

impl Test {
    fn holds(&self, value: Option<Symbol>, symbols: &Symbols) -> bool {
        let number = || value.and_then(|value| symbols.text(value).parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|value| values.binary_search(&value).is_ok()),
            Self::NotIn(values) => value.is_none_or(|value| values.binary_search(&value).is_err()),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Self::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// A requirement on the list of zones, which upstream treats apart: it compares sets and checks no syntax.
#[derive(Debug, Clone)]
enum ZoneRequirement {
    In(Vec<Symbol>),
    NotIn(Vec<Symbol>),
    Exists,
    DoesNotExist,
    Never,
}

impl ZoneRequirement {
    fn new(expression: &NodeSelectorRequirement, symbols: &Symbols) -> Self {
        let values = expression.values.iter().flatten();
        let known = || values.filter_map(|value| symbols.find(value)).collect();
        match expression.operator.as_str() {
            "In" => Self::In(known()),
            "NotIn" => Self::NotIn(known()),
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            _ => Self::Never,
        }
    }

    fn matches(&self, zones: &[Symbol]) -> bool {
        let overlap = |values: &[Symbol]| zones.iter().any(|zone| values.contains(zone));
        match self {
            Self::In(values) => overlap(values),
            Self::NotIn(values) => !overlap(values),
            Self::Exists => !zones.is_empty(),
            Self::DoesNotExist => zones.is_empty(),
            Self::Never => false,
        }
    }
}
