//! Tells which clusters a ClusterAffinity means.
//!
//! In: a ClusterAffinity as users write it. Out: whether it means a cluster ([`cluster_matches`]), or a [`Matcher`] for many
//! clusters, whatever represents their strings: for the scheduler's fleet they are numbers. The tests in the scheduler's
//! `affinity` ask in both ways.
//!
//! `exclude` wins; then labels, fields and names that are given must all match; nothing given means every cluster. A
//! selector that Kubernetes would refuse (a bad key or value, an operator with the wrong number of values) matches
//! nothing, because upstream treats the error as "no".

use api::cluster::Cluster;
use api::policy::{ClusterAffinity, Placement, SpreadFieldValue};
use apimachinery::names;
use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Tells whether the affinity means this cluster.
pub fn cluster_matches(cluster: &Cluster, affinity: &ClusterAffinity) -> bool {
    Matcher::compile(affinity, Some).accepts(&cluster)
}

/// Tells whether a placement wants this cluster, as far as users decide that: by affinities, one of them is enough, and by
/// the properties that spread constraints need. Whether the cluster can be used now does not count.
pub fn is_wanted(cluster: &Cluster, placement: &Placement) -> bool {
    let matches = |affinity: &ClusterAffinity| cluster_matches(cluster, affinity);
    let meant = match &placement.cluster_affinity {
        Some(affinity) => matches(affinity),
        None if placement.cluster_affinities.is_empty() => true,
        None => placement.cluster_affinities.iter().any(|term| {
            matches(&term.affinity)
                || term.overflow_affinities.iter().any(|overflow| matches(&overflow.affinity))
        }),
    };
    let spec = &cluster.spec;
    meant
        && placement.spread_constraints.iter().all(|constraint| match &constraint.spread_by_field {
            Some(SpreadFieldValue::Provider) => !spec.provider.is_empty(),
            Some(SpreadFieldValue::Region) => !spec.region.is_empty(),
            Some(SpreadFieldValue::Zone) => !spec.zones.is_empty(),
            Some(SpreadFieldValue::Cluster | SpreadFieldValue::Other(_)) | None => true,
        })
}

/// A ClusterAffinity, prepared for clusters whose strings are represented by `T`.
#[derive(Debug, Clone)]
pub struct Matcher<T> {
    exclude: Vec<T>,
    labels: Requirements<T>,
    zones: Vec<ZoneRequirement<T>>,
    fields: Requirements<T>,
    /// `None` means any name.
    names: Option<Vec<T>>,
}

/// What affinities look at in a cluster.
pub trait Described<T> {
    fn name(&self) -> T;
    fn label(&self, key: T) -> Option<T>;
    /// The provider or the region; empty ones are absent.
    fn field(&self, key: T) -> Option<T>;
    fn has_zones(&self) -> bool;
    fn is_in_zone(&self, zone: T) -> bool;
    fn number(&self, value: T) -> Option<i64>;
}

impl<T: Copy + Ord> Matcher<T> {
    /// Prepares an affinity. `find` tells how a text is represented, `None` for one that no cluster has.
    pub fn compile<'a>(affinity: &'a ClusterAffinity, find: impl Fn(&'a str) -> Option<T>) -> Self {
        let known = |names: &'a [String]| sorted(names.iter().filter_map(|name| find(name)));
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
                .map_or_else(Requirements::any, |selector| Requirements::of_labels(selector, &find)),
            zones: zones.into_iter().map(|expression| ZoneRequirement::new(expression, &find)).collect(),
            fields: Requirements::of_fields(fields, &find),
            names: (!affinity.cluster_names.is_empty()).then(|| known(&affinity.cluster_names)),
        }
    }

    /// Tells whether the affinity means a cluster.
    pub fn accepts(&self, cluster: &impl Described<T>) -> bool {
        let name = cluster.name();
        self.exclude.binary_search(&name).is_err()
            && self.names.as_ref().is_none_or(|names| names.binary_search(&name).is_ok())
            && self.labels.match_all(|key| cluster.label(key), |value| cluster.number(value))
            && self.zones.iter().all(|zone| zone.matches(cluster))
            && self.fields.match_all(|key| cluster.field(key), |value| cluster.number(value))
    }
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all
}

impl<'a> Described<&'a str> for &'a Cluster {
    fn name(&self) -> &'a str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn label(&self, key: &'a str) -> Option<&'a str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    fn field(&self, key: &'a str) -> Option<&'a str> {
        let value = match key {
            "provider" => &self.spec.provider,
            "region" => &self.spec.region,
            _ => return None,
        };
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    fn has_zones(&self) -> bool {
        !self.spec.zones.is_empty()
    }

    fn is_in_zone(&self, zone: &'a str) -> bool {
        self.spec.zones.iter().any(|one| one == zone)
    }

    fn number(&self, value: &'a str) -> Option<i64> {
        value.parse().ok()
    }
}

/// Requirements that must all hold.
#[derive(Debug, Clone)]
enum Requirements<T> {
    All(Vec<Requirement<T>>),
    /// Something about them is invalid: nothing matches.
    Invalid,
}

#[derive(Debug, Clone)]
struct Requirement<T> {
    /// `None` means that no cluster has such a key.
    key: Option<T>,
    test: Test<T>,
}

#[derive(Debug, Clone)]
enum Test<T> {
    In(Vec<T>),
    NotIn(Vec<T>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

impl<T: Copy + Ord> Requirements<T> {
    fn any() -> Self {
        Self::All(Vec::new())
    }

    fn of_labels<'a>(selector: &'a LabelSelector, find: &impl Fn(&'a str) -> Option<T>) -> Self {
        let pairs = selector.match_labels.iter().flatten();
        let equal = pairs.map(|(key, value)| Requirement::new(key, "In", std::slice::from_ref(value), find));
        let expressions = selector.match_expressions.iter().flatten().map(|expression| {
            let values = expression.values.as_deref().unwrap_or_default();
            match expression.operator.as_str() {
                operator @ ("In" | "NotIn" | "Exists" | "DoesNotExist") => {
                    Requirement::new(&expression.key, operator, values, find)
                }
                _ => None,
            }
        });
        Self::collect(equal.chain(expressions))
    }

    fn of_fields<'a>(
        expressions: Vec<&'a NodeSelectorRequirement>,
        find: &impl Fn(&'a str) -> Option<T>,
    ) -> Self {
        Self::collect(expressions.into_iter().map(|expression| {
            let values = expression.values.as_deref().unwrap_or_default();
            Requirement::new(&expression.key, &expression.operator, values, find)
        }))
    }

    fn collect(requirements: impl Iterator<Item = Option<Requirement<T>>>) -> Self {
        requirements.collect::<Option<Vec<_>>>().map_or(Self::Invalid, Self::All)
    }

    fn match_all(&self, value_of: impl Fn(T) -> Option<T>, number: impl Fn(T) -> Option<i64>) -> bool {
        match self {
            Self::Invalid => false,
            Self::All(requirements) => requirements
                .iter()
                .all(|requirement| requirement.test.holds(requirement.key.and_then(&value_of), &number)),
        }
    }
}

impl<T: Copy + Ord> Requirement<T> {
    /// Returns `None` when Kubernetes would refuse the requirement.
    fn new<'a>(
        key: &'a str,
        operator: &str,
        values: &'a [String],
        find: &impl Fn(&'a str) -> Option<T>,
    ) -> Option<Self> {
        if !names::qualified_name(key).is_empty()
            || !values.iter().all(|value| names::label_value(value).is_empty())
        {
            return None;
        }
        let known = || sorted(values.iter().filter_map(|value| find(value)));
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
        Some(Self { key: find(key), test })
    }
}

impl<T: Copy + Ord> Test<T> {
    fn holds(&self, value: Option<T>, number: impl Fn(T) -> Option<i64>) -> bool {
        match self {
            Self::In(values) => value.is_some_and(|value| values.binary_search(&value).is_ok()),
            Self::NotIn(values) => value.is_none_or(|value| values.binary_search(&value).is_err()),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::GreaterThan(bound) => value.and_then(number).is_some_and(|number| number > *bound),
            Self::LessThan(bound) => value.and_then(number).is_some_and(|number| number < *bound),
        }
    }
}

/// A requirement on the list of zones, which upstream treats apart: it compares sets and checks no syntax.
#[derive(Debug, Clone)]
enum ZoneRequirement<T> {
    In(Vec<T>),
    NotIn(Vec<T>),
    Exists,
    DoesNotExist,
    Never,
}

impl<T: Copy> ZoneRequirement<T> {
    fn new<'a>(expression: &'a NodeSelectorRequirement, find: &impl Fn(&'a str) -> Option<T>) -> Self {
        let values = expression.values.iter().flatten();
        let known = || values.filter_map(|value| find(value)).collect();
        match expression.operator.as_str() {
            "In" => Self::In(known()),
            "NotIn" => Self::NotIn(known()),
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            _ => Self::Never,
        }
    }

    fn matches(&self, cluster: &impl Described<T>) -> bool {
        let overlap = |zones: &[T]| zones.iter().any(|zone| cluster.is_in_zone(*zone));
        match self {
            Self::In(zones) => overlap(zones),
            Self::NotIn(zones) => !overlap(zones),
            Self::Exists => cluster.has_zones(),
            Self::DoesNotExist => !cluster.has_zones(),
            Self::Never => false,
        }
    }
}
