//! What ResourceBindings use, and whether the quotas of their namespace allow a change.
//!
//! In: the binding before and after, the quotas as stored. Out: the quotas to be written with their new usage, or a
//! refusal. Writing them, and trying again when somebody else was faster, is the caller's business.
//!
//! Upstream writes quotas one by one and only then looks at the rest of the binding. Here nothing is charged for a
//! binding that is refused for another reason. Amounts are exact: upstream adds whole units (thousandths of a CPU), so that
//! what it charges bit by bit is more than what it counts afterwards. And upstream refuses whatever leaves a quota
//! exceeded, also if it uses less than before; here only a resource of which more is used can be refused.

use std::collections::BTreeMap;

use apimachinery::object::{self, Object as _};
use apimachinery::quantity::{Format, Quantity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
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

/// Adds an amount to a sum.
#[expect(clippy::arithmetic_side_effects, reason = "amounts saturate")]
pub(crate) fn add(sum: &mut Quantity, amount: Quantity) {
    *sum += amount;
}

/// Returns how the usage changes, resource by resource; empty if quotas need not be asked. Without a new version the binding is
/// gone.
pub(crate) fn change(old: Option<&ResourceBindingSpec>, new: Option<&ResourceBindingSpec>) -> Usage {
    match (old, new) {
        (None, Some(new)) if new.clusters.is_empty() => return Usage::new(),
        (Some(old), Some(new)) if !is_relevant(old, new) => return Usage::new(),
        _ => {}
    }
    let mut delta = new.map(usage).unwrap_or_default();
    for (name, amount) in old.map(usage).unwrap_or_default() {
        add(delta.entry(name).or_default(), amount.negated());
    }
    delta.retain(|_, amount| !amount.is_zero());
    delta
}

/// Charges the quotas of the namespace.
///
/// A quota that is new or was changed has not been counted yet: what it says of its usage means nothing. `counted` is what all
/// bindings of the namespace use, without the change; it is asked for only then.
pub(crate) fn charge(delta: &Usage, quotas: &[Value], counted: &Usage) -> Result<Vec<Charge>, Denial> {
    let mut charges = Vec::new();
    for quota in quotas {
        let limits = part::<FederatedResourceQuotaSpec>(quota, "spec")?.overall;
        let changes: Vec<_> = delta.iter().filter(|(name, _)| limits.contains_key(*name)).collect();
        if changes.is_empty() {
            continue;
        }
        let status = part::<FederatedResourceQuotaStatus>(quota, "status")?;
        let is_counted = same(&status.overall, &limits);
        let mut used = if is_counted { amounts(&status.overall_used) } else { counted.clone() };
        used.retain(|name, _| limits.contains_key(name));
        for (name, change) in changes {
            let sum = used.entry(name.clone()).or_default();
            add(sum, *change);
            let Some(limit) = limits.get(name).map(resources::amount) else { continue };
            if change.sign() > 0 && *sum > limit {
                let text = |field: &str| quota.meta(field);
                return Err(Denial::quota_exceeded(format!(
                    "FederatedResourceQuota({}/{}) exceeded for resource {name}: requested sum {}, limit {limit}.",
                    text("namespace"),
                    text("name"),
                    formatted(name, *sum),
                )));
            }
        }
        let mut quota = quota.clone();
        let overall = quota.pointer("/spec/overall").cloned().unwrap_or_default();
        let overall_used = list(&used).into_iter().map(|(name, sum)| (name, Value::from(sum.0))).collect();
        let status = object::child(object::fields(&mut quota), "status");
        if !is_counted {
            status.insert("overall".to_owned(), overall);
        }
        status.insert("overallUsed".to_owned(), overall_used);
        charges.push(Charge { quota });
    }
    Ok(charges)
}

/// Says whether the status of a quota tells of the limits that it has.
pub(crate) fn is_counted(quota: &Value) -> bool {
    let limits = part::<FederatedResourceQuotaSpec>(quota, "spec").map(|spec| spec.overall);
    let known = part::<FederatedResourceQuotaStatus>(quota, "status").map(|status| status.overall);
    matches!((limits, known), (Ok(limits), Ok(known)) if same(&limits, &known))
}

/// Returns what bindings use together.
pub(crate) fn total<'a>(bindings: impl IntoIterator<Item = &'a ResourceBindingSpec>) -> Usage {
    let mut total = Usage::new();
    for (name, amount) in bindings.into_iter().flat_map(usage) {
        add(total.entry(name).or_default(), amount);
    }
    total
}

/// Returns what bindings use together of the resources that a quota limits, as its status tells it.
pub fn used<'a>(
    limits: &ResourceList,
    bindings: impl IntoIterator<Item = &'a ResourceBindingSpec>,
) -> ResourceList {
    let mut used = total(bindings);
    used.retain(|name, _| limits.contains_key(name));
    list(&used)
}

/// Says whether a change of a binding matters to quotas. A missing version means that the binding is new, or gone.
pub fn differs(old: Option<&ResourceBindingSpec>, new: Option<&ResourceBindingSpec>) -> bool {
    !change(old, new).is_empty()
}

/// Says whether two lists name the same amounts, however they write them.
pub fn same(one: &ResourceList, other: &ResourceList) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|((name, amount), (other_name, other))| {
            name == other_name && resources::amount(amount) == resources::amount(other)
        })
}

/// Adds up lists of amounts.
pub fn sum<'a>(lists: impl IntoIterator<Item = &'a ResourceList>) -> ResourceList {
    let mut total = Usage::new();
    for (name, amount) in lists.into_iter().flatten() {
        add(total.entry(name.clone()).or_default(), resources::amount(amount));
    }
    total.into_iter().map(|(name, amount)| (name, Amount(amount.to_string()))).collect()
}

fn amounts(list: &ResourceList) -> Usage {
    list.iter().map(|(name, amount)| (name.clone(), resources::amount(amount))).collect()
}

/// Returns what is positive; a sum of zero or less is not usage.
fn list(used: &Usage) -> ResourceList {
    used.iter()
        .filter(|(_, amount)| amount.sign() > 0)
        .map(|(name, amount)| (name.clone(), Amount(formatted(name, *amount).to_string())))
        .collect()
}

/// Returns an amount as a quota's status writes it: bytes in powers of two, if they are whole.
fn formatted(name: &str, amount: Quantity) -> Quantity {
    let bytes = matches!(name, "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    let binary = bytes && amount.as_i64().is_some();
    amount.with_format(if binary { Format::BinarySi } else { Format::DecimalSi })
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
        || old.components.iter().zip(&new.components).any(|(old, new)| component_differs(old, new))
}

fn component_differs(old: &Component, new: &Component) -> bool {
    if old.replicas != new.replicas {
        return true;
    }
    match (&old.replica_requirements, &new.replica_requirements) {
        (Some(old), Some(new)) => !same(&old.resource_request, &new.resource_request),
        (None, None) => false,
        _ => true,
    }
}

fn replicas(binding: &ResourceBindingSpec) -> i64 {
    binding.clusters.iter().map(|cluster| i64::from(cluster.replicas.max(0))).sum()
}

/// Returns what a replica asks for. Nobody uses less than nothing: that would be room for others, which nobody has.
fn asked(amount: &Amount) -> Quantity {
    Some(resources::amount(amount)).filter(|amount| amount.sign() > 0).unwrap_or_default()
}

/// Returns what a binding uses in all clusters together.
fn usage(binding: &ResourceBindingSpec) -> Usage {
    let mut usage = Usage::new();
    if binding.components.is_empty() {
        let needs = binding.replica_requirements.as_ref().map(|needs| &needs.resource_request);
        let replicas = replicas(binding);
        for (name, amount) in needs.into_iter().flatten() {
            usage.insert(name.clone(), asked(amount).times(replicas));
        }
    } else {
        // Every chosen cluster runs a full set of the components.
        let sets = binding.clusters.len() as i64;
        for component in &binding.components {
            let needs = component.replica_requirements.as_ref().map(|needs| &needs.resource_request);
            for (name, amount) in needs.into_iter().flatten() {
                let total = asked(amount).times(i64::from(component.replicas.max(0))).times(sets);
                add(usage.entry(name.clone()).or_default(), total);
            }
        }
    }
    usage.retain(|_, amount| !amount.is_zero());
    usage
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
        let delta = change(None, Some(&binding(&[2, 1], "500m")));
        let charges = charge(&delta, &[quota("10", "1")], &Usage::new()).unwrap();
        assert_eq!(charges.len(), 1);
        assert_eq!(
            charges[0].quota["status"],
            json!({ "overall": { "cpu": "10" }, "overallUsed": { "cpu": "2500m" } })
        );
        assert_eq!(charges[0].quota["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn what_exceeds_the_limit_is_refused_with_its_own_reason() {
        let delta = change(None, Some(&binding(&[3], "1")));
        let denial = charge(&delta, &[quota("10", "8")], &Usage::new()).unwrap_err();
        assert_eq!((denial.code, denial.reason), (403, Some("QuotaExceeded")));
        assert_eq!(
            denial.message,
            "FederatedResourceQuota(ns/q) exceeded for resource cpu: requested sum 11, limit 10."
        );
    }

    #[test]
    fn less_than_before_gives_back() {
        let delta = change(Some(&binding(&[4], "1")), Some(&binding(&[1], "1")));
        let charges = charge(&delta, &[quota("10", "4")], &Usage::new()).unwrap();
        assert_eq!(charges[0].quota["status"]["overallUsed"], json!({ "cpu": "1" }));
        let delta = change(Some(&binding(&[4], "1")), Some(&binding(&[], "1")));
        let charges = charge(&delta, &[quota("10", "4")], &Usage::new()).unwrap();
        assert_eq!(charges[0].quota["status"]["overallUsed"], json!({}));
    }

    #[test]
    fn what_quotas_do_not_count_is_not_looked_at() {
        assert!(change(None, Some(&binding(&[], "1"))).is_empty(), "not scheduled yet");
        let old = binding(&[2, 1], "1000m");
        assert!(change(Some(&old), Some(&binding(&[1, 2], "1"))).is_empty(), "same sum, same amount");
        let other = json!({ "metadata": {}, "spec": { "overall": { "pods": "1" } } });
        let delta = change(None, Some(&binding(&[1], "1")));
        assert_eq!(charge(&delta, &[other], &Usage::new()), Ok(Vec::new()));
    }

    #[test]
    fn components_count_once_per_cluster() {
        let mut with = binding(&[0, 0], "9");
        with.components = serde_json::from_value(json!([
            { "name": "a", "replicas": 2, "replicaRequirements": { "resourceRequest": { "cpu": "1" } } },
            { "name": "b", "replicas": 1, "replicaRequirements": { "resourceRequest": { "cpu": "500m" } } },
        ]))
        .unwrap();
        let delta = change(None, Some(&with));
        assert_eq!(delta["cpu"].to_string(), "5");
        let mut elsewhere = with.clone();
        elsewhere.clusters[0].name = "m9".into();
        assert!(change(Some(&with), Some(&elsewhere)).is_empty(), "another cluster, the same amount");
    }

    #[test]
    fn nobody_uses_less_than_nothing() {
        let component = |name: &str, replicas: i32, cpu: &str| {
            let needs = json!({ "resourceRequest": { "cpu": cpu } });
            serde_json::from_value::<Component>(
                json!({ "name": name, "replicas": replicas, "replicaRequirements": needs }),
            )
            .unwrap()
        };
        let mut with = binding(&[0], "1");
        with.components = vec![component("a", 2, "1"), component("b", 1, "-100"), component("c", -3, "1")];
        assert_eq!(change(None, Some(&with))["cpu"].to_string(), "2");
        assert!(!change(None, Some(&binding(&[2], "-100"))).contains_key("cpu"));
        assert_eq!(change(None, Some(&binding(&[2, -2], "1")))["cpu"].to_string(), "2");
        let limits: ResourceList = serde_json::from_value(json!({ "cpu": "10" })).unwrap();
        let used = used(&limits, [&binding(&[2], "-100"), &binding(&[3], "1")]);
        assert_eq!(serde_json::to_value(used).unwrap(), json!({ "cpu": "3" }));
    }

    #[test]
    fn a_binding_that_goes_gives_back_all_it_used() {
        let delta = change(Some(&binding(&[3], "1")), None);
        let charges = charge(&delta, &[quota("10", "4")], &Usage::new()).unwrap();
        assert_eq!(charges[0].quota["status"]["overallUsed"], json!({ "cpu": "1" }));
        assert!(change(Some(&binding(&[], "1")), None).is_empty(), "it used nothing");
    }

    #[test]
    fn a_binding_that_uses_less_is_accepted_although_the_quota_stays_exceeded() {
        let delta = change(Some(&binding(&[4], "1")), Some(&binding(&[3], "1")));
        let charges = charge(&delta, &[quota("2", "8")], &Usage::new()).unwrap();
        assert_eq!(charges[0].quota["status"]["overallUsed"], json!({ "cpu": "7" }));
    }

    #[test]
    fn a_quota_that_was_not_counted_yet_starts_from_what_exists() {
        let exists = total([&binding(&[4], "1"), &binding(&[2, 1], "500m")]);
        let mut new = quota("6", "0");
        new["status"] = json!({});
        let delta = change(None, Some(&binding(&[1], "1")));
        let denial = charge(&delta, std::slice::from_ref(&new), &exists).unwrap_err();
        assert!(denial.message.ends_with("requested sum 6500m, limit 6."), "{}", denial.message);
        let delta = change(None, Some(&binding(&[1], "500m")));
        let charges = charge(&delta, &[new], &exists).unwrap();
        assert_eq!(
            charges[0].quota["status"],
            json!({ "overall": { "cpu": "6" }, "overallUsed": { "cpu": "6" } })
        );
    }

    #[test]
    fn amounts_are_exact() {
        let tiny = binding(&[3], "100u");
        let delta = change(None, Some(&tiny));
        let charges = charge(&delta, &[quota("1", "0")], &Usage::new()).unwrap();
        assert_eq!(charges[0].quota["status"]["overallUsed"], json!({ "cpu": "300u" }));
        let limits: ResourceList = serde_json::from_value(json!({ "cpu": "1", "memory": "1Gi" })).unwrap();
        let used = used(&limits, [&tiny, &binding(&[1], "0")]);
        assert_eq!(serde_json::to_value(used).unwrap(), json!({ "cpu": "300u", "memory": "4Gi" }));
    }
}
