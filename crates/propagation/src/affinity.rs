//! Whether a cluster affinity picks a cluster.

use api::cluster::Cluster;
use api::policy::ClusterAffinity;
use apimachinery::selector::LabelSelector;
use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use serde_json::json;

/// Returns whether the cluster meets every given part of the affinity; one with no parts picks all clusters.
pub fn cluster_matches(cluster: &Cluster, affinity: &ClusterAffinity) -> bool {
    let name = cluster.metadata.name.as_deref().unwrap_or("");
    if affinity.exclude.iter().any(|excluded| excluded == name) {
        return false;
    }
    if let Some(selector) = &affinity.label_selector {
        let labels = cluster.metadata.labels.clone().unwrap_or_default();
        let matches = serde_json::to_value(selector)
            .ok()
            .and_then(|selector| LabelSelector::from_object(Some(&selector)).ok())
            .is_some_and(|selector| selector.matches(&labels));
        if !matches {
            return false;
        }
    }
    if let Some(fields) = &affinity.field_selector
        && !fields_match(cluster, &fields.match_expressions)
    {
        return false;
    }
    affinity.cluster_names.is_empty() || affinity.cluster_names.iter().any(|wanted| wanted == name)
}

/// Zones are a list and have set semantics; provider and region are single values and behave like labels.
fn fields_match(cluster: &Cluster, expressions: &[NodeSelectorRequirement]) -> bool {
    let fields: Vec<(&str, &str)> =
        [("provider", cluster.spec.provider.as_str()), ("region", cluster.spec.region.as_str())]
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .collect();
    expressions.iter().all(|expression| match expression.key.as_str() {
        "zone" => zones_match(&cluster.spec.zones, expression),
        _ => single_value_matches(&fields, expression),
    })
}

fn zones_match(zones: &[String], expression: &NodeSelectorRequirement) -> bool {
    let values = expression.values.as_deref().unwrap_or_default();
    let overlap = zones.iter().any(|zone| values.contains(zone));
    match expression.operator.as_str() {
        "In" => overlap,
        "NotIn" => !overlap,
        "Exists" => !zones.is_empty(),
        "DoesNotExist" => zones.is_empty(),
        _ => false,
    }
}

fn single_value_matches(fields: &[(&str, &str)], expression: &NodeSelectorRequirement) -> bool {
    let values = expression.values.as_deref().unwrap_or_default();
    let value = fields.iter().find(|(key, _)| *key == expression.key).map(|(_, value)| *value);
    match expression.operator.as_str() {
        "Gt" | "Lt" => {
            let [limit] = values else { return false };
            let (Some(Ok(value)), Ok(limit)) = (value.map(str::parse::<i64>), limit.parse::<i64>()) else {
                return false;
            };
            if expression.operator == "Gt" { value > limit } else { value < limit }
        }
        operator => {
            let expression = json!({"key": expression.key, "operator": operator, "values": values});
            LabelSelector::from_object(Some(&json!({"matchExpressions": [expression]})))
                .is_ok_and(|selector| selector.matches(fields))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn check(affinity: Value, expected: bool) {
        let cluster: Cluster = serde_json::from_value(json!({
            "metadata": {"name": "m1", "labels": {"env": "prod"}},
            "spec": {"syncMode": "Push", "provider": "p1", "region": "eu", "zones": ["z1", "z2"]},
        }))
        .expect("a cluster");
        let affinity: ClusterAffinity = serde_json::from_value(affinity).expect("an affinity");
        assert_eq!(cluster_matches(&cluster, &affinity), expected, "{affinity:?}");
    }

    fn field(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"fieldSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}})
    }

    #[test]
    fn names_and_exclusions() {
        check(json!({}), true);
        check(json!({"clusterNames": ["m1", "m2"]}), true);
        check(json!({"clusterNames": ["m2"]}), false);
        check(json!({"clusterNames": ["m1"], "exclude": ["m1"]}), false);
    }

    #[test]
    fn labels() {
        check(json!({"labelSelector": {"matchLabels": {"env": "prod"}}}), true);
        check(json!({"labelSelector": {"matchLabels": {"env": "dev"}}}), false);
        check(json!({"labelSelector": {}}), true);
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
        check(field("zone", "Gt", &["1"]), false);
        check(field("region", "Like", &["eu"]), false);
    }
}
