//! What a ResourceBinding uses, and whether the quotas of its namespace allow a change.
//!
//! In: the binding before and after, the quotas as stored. Out: the quotas to be written with their new usage, or a
//! refusal. Writing them, and trying again when somebody else was faster, is the caller's business.
//!
//! Upstream writes quotas one by one and only then looks at the rest of the binding. Here nothing is charged for a
//! binding that is refused for another reason.

use std::collections::BTreeMap;

use apimachinery::quantity::{Format, Quantity};
use serde_json::Value;

use api::policy::{FederatedResourceQuotaSpec, FederatedResourceQuotaStatus, ResourceList};
use api::work::{Component, ResourceBindingSpec};

use crate::request::{Denial, part};
use crate::resources;

/// A quota whose usage changes: the whole object, with the revision that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    /// The FederatedResourceQuota with the new `status.overallUsed`, to be written through `/status`.
    pub quota: Value,
}

pub(crate) type Usage = BTreeMap<String, Quantity>;

/// Returns how the usage changes, resource by resource; empty if quotas need not be asked.
pub(crate) fn change(old: Option<&ResourceBindingSpec>, new: &ResourceBindingSpec) -> Usage {
    match old {
        None if new.clusters.is_empty() => return Usage::new(),
        Some(old) if !is_relevant(old, new) => return Usage::new(),
        _ => {}
    }
    let mut delta = usage(new);
    for (name, amount) in old.map(usage).unwrap_or_default() {
        *delta.entry(name).or_default() -= amount;
    }
    delta.retain(|_, amount| !amount.is_zero());
    delta
}

/// Charges the quotas of the namespace.
pub(crate) fn charge(delta: &Usage, quotas: &[Value]) -> Result<Vec<Charge>, Denial> {
    let mut charges = Vec::new();
    for quota in quotas {
        let limits = part::<FederatedResourceQuotaSpec>(quota, "spec")?.overall;
        let counted: Vec<_> = delta.iter().filter(|(name, _)| limits.contains_key(*name)).collect();
        if counted.is_empty() {
            continue;
        }
        let mut used = Sum::default();
        for (name, amount) in &part::<FederatedResourceQuotaStatus>(quota, "status")?.overall_used {
            used.add(name, &resources::amount(amount));
        }
        for (name, amount) in counted {
            used.add(name, amount);
        }
        let used = used.list();
        for (name, sum) in &used {
            let Some(limit) = limits.get(name).map(resources::amount) else { continue };
            if *sum > limit {
                let text = |field: &str| quota["metadata"][field].as_str().unwrap_or_default();
                return Err(Denial::quota_exceeded(format!(
                    "FederatedResourceQuota({}/{}) exceeded for resource {name}: requested sum {sum}, limit {limit}.",
                    text("namespace"),
                    text("name"),
                )));
            }
        }
        let mut quota = quota.clone();
        if !quota["status"].is_object() {
            quota["status"] = Value::Object(serde_json::Map::new());
        }
        quota["status"]["overallUsed"] =
            used.iter().map(|(name, sum)| (name.clone(), Value::from(sum.to_string()))).collect();
        charges.push(Charge { quota });
    }
    Ok(charges)
}

/// Says whether anything changed that quotas count.
fn is_relevant(old: &ResourceBindingSpec, new: &ResourceBindingSpec) -> bool {
    let request = |binding: &ResourceBindingSpec| {
        binding.replica_requirements.as_ref().map(|needs| needs.resource_request.clone()).unwrap_or_default()
    };
    let names = |binding: &ResourceBindingSpec| -> Vec<String> {
        let mut names: Vec<_> = binding.clusters.iter().map(|cluster| cluster.name.clone()).collect();
        names.sort();
        names
    };
    let has_components = !old.components.is_empty() || !new.components.is_empty();
    !same(&request(old), &request(new))
        || replicas(old) != replicas(new)
        || (has_components && names(old) != names(new))
        || old.components.len() != new.components.len()
        || old.components.iter().zip(&new.components).any(|(old, new)| differs(old, new))
}

fn differs(old: &Component, new: &Component) -> bool {
    if old.replicas != new.replicas {
        return true;
    }
    match (&old.replica_requirements, &new.replica_requirements) {
        (Some(old), Some(new)) => !same(&old.resource_request, &new.resource_request),
        (None, None) => false,
        _ => true,
    }
}

/// Compares amounts, not texts.
fn same(one: &ResourceList, other: &ResourceList) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|((name, amount), (other_name, other))| {
            name == other_name && resources::amount(amount) == resources::amount(other)
        })
}

fn replicas(binding: &ResourceBindingSpec) -> i64 {
    binding.clusters.iter().map(|cluster| i64::from(cluster.replicas)).sum()
}

/// Returns what a binding uses in all clusters together.
fn usage(binding: &ResourceBindingSpec) -> Usage {
    let mut usage = Usage::new();
    if binding.components.is_empty() {
        let needs = binding.replica_requirements.as_ref().map(|needs| &needs.resource_request);
        let replicas = replicas(binding);
        for (name, amount) in needs.into_iter().flatten() {
            usage.insert(name.clone(), resources::amount(amount).times(replicas));
        }
    } else {
        // Every chosen cluster runs a full set of the components.
        let sets = binding.clusters.len() as i64;
        for component in &binding.components {
            let needs = component.replica_requirements.as_ref().map(|needs| &needs.resource_request);
            for (name, amount) in needs.into_iter().flatten() {
                let total = resources::amount(amount).times(i64::from(component.replicas)).times(sets);
                *usage.entry(name.clone()).or_default() += total;
            }
        }
    }
    usage.retain(|_, amount| !amount.is_zero());
    usage
}

/// A sum in the units in which the quota's status is kept: thousandths of a CPU, whole units of anything else.
#[derive(Default)]
struct Sum(BTreeMap<String, i64>);

impl Sum {
    fn add(&mut self, name: &str, amount: &Quantity) {
        let units = match name {
            "cpu" => amount.milli_value(),
            "memory" | "ephemeral-storage" | "pods" => amount.value(),
            _ if resources::is_scalar(name) => amount.value(),
            // Other names are in no quota's status.
            _ => return,
        };
        let sum = self.0.entry(name.to_owned()).or_default();
        *sum = sum.saturating_add(units);
    }

    /// Returns what is positive; a sum of zero or less is not usage.
    fn list(self) -> Usage {
        self.0
            .into_iter()
            .filter(|(_, units)| *units > 0)
            .map(|(name, units)| {
                let quantity = match name.as_str() {
                    "cpu" => Quantity::from_milli(units, Format::DecimalSi),
                    "memory" | "ephemeral-storage" => Quantity::new(units, Format::BinarySi),
                    _ if name.starts_with("hugepages-") => Quantity::new(units, Format::BinarySi),
                    _ => Quantity::new(units, Format::DecimalSi),
                };
                (name, quantity)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn binding(replicas: &[i32], cpu: &str) -> ResourceBindingSpec {
        let clusters: Vec<Value> = replicas
            .iter()
            .enumerate()
            .map(|(index, replicas)| json!({ "name": format!("m{index}"), "replicas": replicas }))
            .collect();
        serde_json::from_value(json!({
            "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "replicaRequirements": { "resourceRequest": { "cpu": cpu, "memory": "1Gi" } },
            "clusters": clusters,
        }))
        .unwrap()
    }

    fn quota(cpu: &str, used: &str) -> Value {
        json!({
            "metadata": { "namespace": "ns", "name": "q", "resourceVersion": "7" },
            "spec": { "overall": { "cpu": cpu } },
            "status": { "overall": { "cpu": cpu }, "overallUsed": { "cpu": used } },
        })
    }

    #[test]
    fn a_scheduled_binding_is_charged_and_the_rest_of_the_status_stays() {
        let delta = change(None, &binding(&[2, 1], "500m"));
        let charges = charge(&delta, &[quota("10", "1")]).unwrap();
        assert_eq!(charges.len(), 1);
        assert_eq!(
            charges[0].quota["status"],
            json!({ "overall": { "cpu": "10" }, "overallUsed": { "cpu": "2500m" } })
        );
        assert_eq!(charges[0].quota["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn what_exceeds_the_limit_is_refused_with_its_own_reason() {
        let delta = change(None, &binding(&[3], "1"));
        let denial = charge(&delta, &[quota("10", "8")]).unwrap_err();
        assert_eq!((denial.code, denial.reason), (403, Some("QuotaExceeded")));
        assert_eq!(
            denial.message,
            "FederatedResourceQuota(ns/q) exceeded for resource cpu: requested sum 11, limit 10."
        );
    }

    #[test]
    fn less_than_before_gives_back() {
        let delta = change(Some(&binding(&[4], "1")), &binding(&[1], "1"));
        let charges = charge(&delta, &[quota("10", "4")]).unwrap();
        assert_eq!(charges[0].quota["status"]["overallUsed"], json!({ "cpu": "1" }));
        let delta = change(Some(&binding(&[4], "1")), &binding(&[], "1"));
        let charges = charge(&delta, &[quota("10", "4")]).unwrap();
        assert_eq!(charges[0].quota["status"]["overallUsed"], json!({}));
    }

    #[test]
    fn what_quotas_do_not_count_is_not_looked_at() {
        assert!(change(None, &binding(&[], "1")).is_empty(), "not scheduled yet");
        let old = binding(&[2, 1], "1000m");
        assert!(change(Some(&old), &binding(&[1, 2], "1")).is_empty(), "same sum, same amount");
        let other = json!({ "metadata": {}, "spec": { "overall": { "pods": "1" } } });
        let delta = change(None, &binding(&[1], "1"));
        assert_eq!(charge(&delta, &[other]), Ok(Vec::new()));
    }

    #[test]
    fn components_count_once_per_cluster() {
        let mut with = binding(&[0, 0], "9");
        with.components = serde_json::from_value(json!([
            { "name": "a", "replicas": 2, "replicaRequirements": { "resourceRequest": { "cpu": "1" } } },
            { "name": "b", "replicas": 1, "replicaRequirements": { "resourceRequest": { "cpu": "500m" } } },
        ]))
        .unwrap();
        let delta = change(None, &with);
        assert_eq!(delta["cpu"].to_string(), "5");
        let mut elsewhere = with.clone();
        elsewhere.clusters[0].name = "m9".into();
        assert!(change(Some(&with), &elsewhere).is_empty(), "another cluster, the same amount");
    }
}
