//! What one replica of a pod template asks of a cluster.
//!
//! Resources: the sum over the containers, but at least what the greediest init container takes, plus the
//! pod's overhead; limits stand in for missing requests. Each addend is rounded up before adding, to whole
//! milli-units of CPU and to whole units of everything else, as Karmada does.

use std::collections::BTreeMap;

use api::work::{NodeClaim, ReplicaRequirements};
use apimachinery::quantity::{Format, Quantity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::{Map, Value, json};

use crate::fields;
use crate::{Error, Result};

/// Whether the class of its priority is one of the needs of a pod. Some quotas count only for pods of a class, so it is where
/// quotas are estimated (the gate ResourceQuotaEstimate).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PriorityClass {
    #[default]
    Ignored,
    Needed,
}

/// Returns what a replica of the pod `spec` needs, `None` when it needs nothing in particular: the class alone does not count.
pub fn requirements(spec: &Value, class: PriorityClass) -> Result<Option<ReplicaRequirements>> {
    let node_claim = node_claim(spec)?;
    let resource_request = resource_request(spec)?;
    if node_claim.is_none() && resource_request.is_empty() {
        return Ok(None);
    }
    let priority_class_name = match class {
        PriorityClass::Ignored => String::new(),
        PriorityClass::Needed => fields::text(spec, &["priorityClassName"])?.to_owned(),
    };
    Ok(Some(ReplicaRequirements {
        node_claim,
        resource_request,
        priority_class_name,
        ..ReplicaRequirements::default()
    }))
}

fn node_claim(spec: &Value) -> Result<Option<NodeClaim>> {
    let mut claim = Map::new();
    let affinity = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    if let Some(required) = fields::map(spec, &affinity)? {
        claim.insert("hardNodeAffinity".into(), Value::Object(required.clone()));
    }
    // An empty but present selector still makes a claim, though the empty map itself is not written.
    let selector = fields::map(spec, &["nodeSelector"])?;
    if let Some(selector) = selector
        && !selector.is_empty()
    {
        claim.insert("nodeSelector".into(), Value::Object(selector.clone()));
    }
    let tolerations = fields::list(spec, &["tolerations"])?;
    if !tolerations.is_empty() {
        claim.insert("tolerations".into(), json!(tolerations));
    }
    if selector.is_none() && claim.is_empty() {
        return Ok(None);
    }
    serde_json::from_value(Value::Object(claim))
        .map(Some)
        .map_err(|error| Error::NodeClaim(error.to_string()))
}

/// Amounts by resource: milli-units for CPU, whole units for all others.
type Amounts = BTreeMap<String, i64>;

fn resource_request(spec: &Value) -> Result<BTreeMap<String, Text>> {
    let mut total = Amounts::new();
    for container in fields::list(spec, &["containers"])? {
        add(&mut total, requests(container)?);
    }
    for container in fields::list(spec, &["initContainers"])? {
        for (name, amount) in requests(container)? {
            let current = total.entry(name).or_default();
            *current = (*current).max(amount);
        }
    }
    add(&mut total, amounts(spec, &["overhead"])?);

    Ok(total
        .into_iter()
        .filter(|(_, amount)| *amount > 0)
        .map(|(name, amount)| {
            let quantity = match name.as_str() {
                "cpu" => Quantity::from_milli(amount, Format::DecimalSi),
                "memory" | "ephemeral-storage" => Quantity::new(amount, Format::BinarySi),
                other if other.starts_with("hugepages-") => Quantity::new(amount, Format::BinarySi),
                _ => Quantity::new(amount, Format::DecimalSi),
            };
            (name, Text(quantity.to_string()))
        })
        .collect())
}

fn add(total: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        let current = total.entry(name).or_default();
        *current = current.saturating_add(amount);
    }
}

/// Returns a container's requests, with limits standing in for those that are missing.
fn requests(container: &Value) -> Result<Amounts> {
    let mut requests = amounts(container, &["resources", "requests"])?;
    for (name, amount) in amounts(container, &["resources", "limits"])? {
        requests.entry(name).or_insert(amount);
    }
    Ok(requests)
}

fn amounts(object: &Value, path: &[&str]) -> Result<Amounts> {
    let mut amounts = Amounts::new();
    for (name, value) in fields::map(object, path)?.into_iter().flatten() {
        if !is_counted(name) {
            continue;
        }
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let quantity = Quantity::parse(&text).map_err(|_| Error::Quantity {
            path: format!("{}.{name}", path.join(".")),
            value: text.clone(),
        })?;
        let amount = if name == "cpu" { quantity.milli_value() } else { quantity.value() };
        amounts.insert(name.clone(), amount);
    }
    Ok(amounts)
}

fn is_counted(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage" | "pods")
        || name.starts_with("hugepages-")
        || name.starts_with("attachable-volumes-")
        || name.contains("kubernetes.io/")
        || is_extended(name)
}

/// Extended resources have a domain of their own (`nvidia.com/gpu`); `requests.` is the quota's way to name them.
fn is_extended(name: &str) -> bool {
    if name.starts_with("requests.") {
        return false;
    }
    let Some((domain, resource)) = name.split_once('/') else { return false };
    let qualified = |text: &str, max: usize| {
        !text.is_empty()
            && text.len() <= max
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.ends_with(|last: char| last.is_ascii_alphanumeric())
            && text.chars().all(|any| any.is_ascii_alphanumeric() || matches!(any, '-' | '_' | '.'))
    };
    // The quota name `requests.<domain>` must fit a DNS subdomain, which leaves 253 - 9 characters.
    qualified(resource, 63)
        && qualified(domain, 244)
        && !domain.contains('_')
        && domain == domain.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: Value, expected: Value) {
        let requirements = requirements(&spec, PriorityClass::Ignored).expect("the pod spec is well-formed");
        assert_eq!(serde_json::to_value(requirements).expect("requirements are plain data"), expected);
    }

    #[test]
    fn nothing_asked_is_no_requirement() {
        check(json!({"containers": [{"name": "a"}]}), Value::Null);
        check(
            json!({"containers": [{"resources": {"requests": {"cpu": "0"}}}], "tolerations": []}),
            Value::Null,
        );
    }

    #[test]
    fn an_empty_node_selector_still_claims() {
        check(json!({"nodeSelector": {}}), json!({"nodeClaim": {}}));
    }

    #[test]
    fn containers_add_up_and_limits_stand_in_for_missing_requests() {
        check(
            json!({"containers": [
                {"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "2", "memory": "1Gi"}}},
                {"resources": {"requests": {"cpu": "0.25", "memory": "512Mi", "nvidia.com/gpu": 1}}},
            ]}),
            json!({"resourceRequest": {"cpu": "350m", "memory": "1536Mi", "nvidia.com/gpu": "1"}}),
        );
    }

    #[test]
    fn the_greediest_init_container_counts_and_the_overhead_comes_on_top() {
        check(
            json!({
                "containers": [{"resources": {"requests": {"cpu": "1", "memory": "100Mi"}}}],
                "initContainers": [
                    {"resources": {"requests": {"cpu": "3"}}},
                    {"resources": {"limits": {"cpu": "2", "memory": "50Mi"}}},
                ],
                "overhead": {"cpu": "250m"},
            }),
            json!({"resourceRequest": {"cpu": "3250m", "memory": "100Mi"}}),
        );
    }

    #[test]
    fn every_addend_is_rounded_up_before_adding() {
        check(
            json!({"containers": [
                {"resources": {"requests": {"cpu": "100u", "memory": "100m"}}},
                {"resources": {"requests": {"cpu": "100u", "memory": "100m"}}},
            ]}),
            json!({"resourceRequest": {"cpu": "2m", "memory": "2"}}),
        );
    }

    #[test]
    fn only_known_and_extended_resources_are_counted() {
        check(
            json!({"containers": [{"resources": {"requests": {
                "hugepages-2Mi": "4Mi", "attachable-volumes-aws-ebs": "3", "storage": "1Gi",
                "requests.cpu": "1", "requests.nvidia.com/gpu": "1", "example.com/fpga": "2",
            }}}]}),
            json!({"resourceRequest": {
                "hugepages-2Mi": "4Mi", "attachable-volumes-aws-ebs": "3", "example.com/fpga": "2",
            }}),
        );
    }

    #[test]
    fn where_a_pod_may_run_becomes_the_node_claim() {
        let required =
            json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "Exists"}]}]});
        check(
            json!({
                "nodeSelector": {"disk": "ssd"},
                "tolerations": [{"key": "k", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            }),
            json!({"nodeClaim": {
                "nodeSelector": {"disk": "ssd"},
                "tolerations": [{"key": "k", "operator": "Exists"}],
                "hardNodeAffinity": required,
            }}),
        );
    }

    #[test]
    fn the_priority_class_is_one_of_the_needs_where_it_counts_and_there_are_others() {
        let needy = json!({"priorityClassName": "high", "nodeSelector": {"disk": "ssd"}});
        let modest = json!({"priorityClassName": "high"});
        for (spec, class, expected) in [
            (&needy, PriorityClass::Needed, Some("high")),
            (&needy, PriorityClass::Ignored, Some("")),
            (&modest, PriorityClass::Needed, None),
        ] {
            let found = requirements(spec, class).expect("the pod spec is well-formed");
            let name = found.as_ref().map(|found| found.priority_class_name.as_str());
            assert_eq!(name, expected, "{spec} {class:?}");
        }
    }

    #[test]
    fn an_unreadable_quantity_is_an_error() {
        let spec = json!({"containers": [{"resources": {"requests": {"cpu": "many"}}}]});
        assert_eq!(
            requirements(&spec, PriorityClass::Ignored).map_err(|error| error.to_string()),
            Err("invalid quantity \"many\" at .resources.requests.cpu".into())
        );
    }
}
