//! Affinities over the members of a fleet, for whom strings are numbers: compiling costs a few hash lookups, matching compares
//! numbers only. What an affinity means is in [`placement::affinity`].

use api::policy::ClusterAffinity;
use placement::affinity::{self, Described};
pub use placement::affinity::{cluster_matches, is_wanted};

use crate::fleet::{Fleet, Member};
use crate::symbols::Symbol;

/// A ClusterAffinity, prepared for the members of a fleet.
#[derive(Debug, Clone)]
pub(crate) struct Matcher(affinity::Matcher<Symbol>);

impl Matcher {
    pub(crate) fn new(affinity: &ClusterAffinity, fleet: &Fleet) -> Self {
        // A string that no cluster has used can match none.
        Self(affinity::Matcher::compile(affinity, |text| fleet.symbols().find(text)))
    }

    pub(crate) fn matches(&self, member: &Member, fleet: &Fleet) -> bool {
        self.0.accepts(&(member, fleet))
    }
}

impl Described<Symbol> for (&Member, &Fleet) {
    fn name(&self) -> Symbol {
        self.0.name_symbol
    }

    fn label(&self, key: Symbol) -> Option<Symbol> {
        self.0.label(key)
    }

    fn field(&self, key: Symbol) -> Option<Symbol> {
        self.0.field(key, self.1.symbols())
    }

    fn has_zones(&self) -> bool {
        !self.0.zones.is_empty()
    }

    fn is_in_zone(&self, zone: Symbol) -> bool {
        self.0.zones.contains(&zone)
    }

    fn number(&self, value: Symbol) -> Option<i64> {
        self.1.symbols().text(value).parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::cluster::Cluster;
    use serde_json::{Value, json};

    use super::*;

    /// Both ways to ask give the expected answer.
    fn check(affinity: Value, expected: bool) {
        let cluster: Arc<Cluster> = serde_json::from_value(json!({
            "metadata": {"name": "m1", "labels": {"env": "prod", "nodes": "12"}},
            "spec": {"syncMode": "Push", "provider": "p1", "region": "eu", "zones": ["z1", "z2"]},
        }))
        .map(Arc::new)
        .expect("a cluster");
        let affinity: ClusterAffinity = serde_json::from_value(affinity).expect("an affinity");
        assert_eq!(cluster_matches(&cluster, &affinity), expected, "{affinity:?}");
        let fleet = Fleet::new([cluster]);
        let matcher = Matcher::new(&affinity, &fleet);
        assert_eq!(matcher.matches(fleet.at(0), &fleet), expected, "{affinity:?} in a fleet");
    }

    fn field(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"fieldSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}})
    }

    fn label(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"labelSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}})
    }

    #[test]
    fn names_and_exclusions() {
        check(json!({}), true);
        check(json!({"clusterNames": ["m1", "m2"]}), true);
        check(json!({"clusterNames": ["m2"]}), false);
        check(json!({"clusterNames": ["m1"], "exclude": ["m1"]}), false);
        check(json!({"exclude": ["m2"]}), true);
    }

    #[test]
    fn labels() {
        check(json!({"labelSelector": {"matchLabels": {"env": "prod"}}}), true);
        check(json!({"labelSelector": {"matchLabels": {"env": "dev"}}}), false);
        check(json!({"labelSelector": {}}), true);
        check(label("env", "NotIn", &["dev"]), true);
        check(label("tier", "NotIn", &["dev"]), true);
        check(label("tier", "DoesNotExist", &[]), true);
        check(label("env", "Exists", &[]), true);
    }

    #[test]
    fn fields() {
        check(field("region", "In", &["eu", "us"]), true);
        check(field("region", "NotIn", &["eu"]), false);
        check(field("provider", "Exists", &[]), true);
        check(field("zone", "In", &["z2", "z9"]), true);
        check(field("zone", "NotIn", &["z2"]), false);
        check(field("zone", "Exists", &[]), true);
        check(field("zone", "DoesNotExist", &[]), false);
        check(field("country", "NotIn", &["de"]), true);
    }

    #[test]
    fn what_kubernetes_would_refuse_matches_nothing() {
        check(field("zone", "Gt", &["1"]), false);
        check(field("region", "Like", &["eu"]), false);
        check(field("region", "In", &[]), false);
        check(field("region", "Gt", &["eu"]), false);
        check(label("nodes", "Gt", &["3"]), false);
        check(label("not a key", "DoesNotExist", &[]), false);
        check(label("env", "In", &["not a value"]), false);
    }
}
