//! How many replicas the ResourceQuotas of a namespace allow. Pure.
//!
//! Only CPU, memory and extended resources count, and only scopes that name a priority class can apply: as upstream's plug-in
//! `ResourceQuotaEstimator`.

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;

use crate::room::is_extended;

/// What the quotas are asked about: so many replicas, each with these needs.
#[derive(Debug, Clone, Default)]
pub struct Need {
    pub replicas: i64,
    /// Absent where nothing is said about the replicas: such a part matches no quota with scopes.
    pub request: Option<BTreeMap<String, String>>,
    pub priority_class: String,
}

/// Amounts by resource: CPU in thousandths, everything else in whole units.
type Amounts = BTreeMap<String, i64>;

fn amount(name: &str, text: &str) -> Option<i64> {
    let quantity = Quantity::parse(text).ok()?;
    Some(if name == "cpu" { quantity.milli_value() } else { quantity.value() })
}

fn counts(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_extended(name)
}

/// Returns how many times all needs together fit into the quotas; nothing if no quota limits them. `assumed` are workloads of
/// the namespace that are on their way.
pub fn allowed(quotas: &[&core::ResourceQuota], needs: &[Need], assumed: &[Need]) -> Option<i64> {
    quotas.iter().filter_map(|quota| within(quota, needs, assumed)).min()
}

fn within(quota: &core::ResourceQuota, needs: &[Need], assumed: &[Need]) -> Option<i64> {
    let selectors = selectors(quota);
    let matched = |all: &[Need]| -> Vec<Need> {
        all.iter().filter(|need| applies(&selectors, need)).cloned().collect()
    };
    let needs = matched(needs);
    if needs.is_empty() {
        return None;
    }
    let mut free = free(quota);
    for (name, taken) in sum(&matched(assumed)) {
        if let Some(free) = free.get_mut(&name) {
            *free = free.saturating_sub(taken).max(0);
        }
    }
    let fits = sum(&needs).into_iter().filter(|(_, amount)| *amount > 0);
    let fits = fits.filter_map(|(name, amount)| free.get(&name)?.checked_div(amount));
    fits.min().filter(|fit| *fit <= i64::from(i32::MAX))
}

fn sum(needs: &[Need]) -> Amounts {
    let mut sum = Amounts::new();
    for need in needs {
        for (name, text) in need.request.iter().flatten().filter(|(name, _)| counts(name)) {
            let own = amount(name, text).unwrap_or(0).saturating_mul(need.replicas);
            let all = sum.entry(name.clone()).or_default();
            *all = all.saturating_add(own);
        }
    }
    sum
}

/// Returns what is left of a quota: of a plain name and one that begins with `requests.`, the latter counts.
fn free(quota: &core::ResourceQuota) -> Amounts {
    let status = quota.status.as_ref();
    let (hard, used) =
        (status.and_then(|status| status.hard.as_ref()), status.and_then(|status| status.used.as_ref()));
    let mut free = Amounts::new();
    for prefixed in [false, true] {
        for (key, hard) in hard.into_iter().flatten() {
            let name = match key.strip_prefix("requests.") {
                Some(name) if prefixed => name,
                None if !prefixed => key.as_str(),
                _ => continue,
            };
            let used = used.and_then(|used| used.get(key));
            let left =
                used.and_then(|used| Some(amount(name, &hard.0)?.saturating_sub(amount(name, &used.0)?)));
            if let Some(left) = left.filter(|_| counts(name)) {
                free.insert(name.to_owned(), left.max(0));
            }
        }
    }
    free
}

fn selectors(quota: &core::ResourceQuota) -> Vec<core::ScopedResourceSelectorRequirement> {
    let Some(spec) = &quota.spec else { return Vec::new() };
    let scopes = spec.scopes.iter().flatten().map(|scope| core::ScopedResourceSelectorRequirement {
        scope_name: scope.clone(),
        operator: "Exists".to_owned(),
        values: None,
    });
    let selector =
        spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
    scopes.chain(selector.cloned()).collect()
}

fn applies(selectors: &[core::ScopedResourceSelectorRequirement], need: &Need) -> bool {
    if selectors.is_empty() {
        return true;
    }
    let class = need.priority_class.as_str();
    let matches = |selector: &core::ScopedResourceSelectorRequirement| {
        let listed = || selector.values.iter().flatten().any(|value| value == class);
        selector.scope_name == "PriorityClass"
            && match selector.operator.as_str() {
                "Exists" => !class.is_empty(),
                "In" => !class.is_empty() && listed(),
                "NotIn" => class.is_empty() || !listed(),
                "DoesNotExist" => class.is_empty(),
                _ => false,
            }
    };
    need.request.is_some() && selectors.iter().any(matches)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn quota(hard: Value, used: Value, spec: Value) -> core::ResourceQuota {
        let quota = json!({ "spec": spec, "status": { "hard": hard, "used": used } });
        serde_json::from_value(quota).expect("a quota")
    }

    fn need(replicas: i64, request: Value, class: &str) -> Need {
        Need {
            replicas,
            request: Some(serde_json::from_value(request).expect("a request")),
            priority_class: class.to_owned(),
        }
    }

    #[test]
    fn what_quotas_allow() {
        let cpu = |hard: &str, used: &str| quota(json!({ "cpu": hard }), json!({ "cpu": used }), json!({}));
        let half = || need(1, json!({ "cpu": "500m" }), "");
        let both = quota(
            json!({ "cpu": "100", "requests.cpu": "2" }),
            json!({ "cpu": "0", "requests.cpu": "1" }),
            json!({}),
        );
        let limits = quota(
            json!({ "limits.cpu": "1", "pods": "1" }),
            json!({ "limits.cpu": "0", "pods": "0" }),
            json!({}),
        );
        let gpu = quota(
            json!({ "requests.example.com/gpu": "4" }),
            json!({ "requests.example.com/gpu": "1" }),
            json!({}),
        );
        let unknown = quota(json!({ "cpu": "1" }), json!({}), json!({}));
        let absurd = quota(
            json!({ "memory": "9223372036854775807" }),
            json!({ "memory": "-9223372036854775808" }),
            json!({}),
        );
        let cases = [
            ("a member says anything", vec![absurd], need(1, json!({ "memory": "1Gi" }), ""), None),
            ("what is left", vec![cpu("4", "1")], half(), Some(6)),
            ("the smallest", vec![cpu("4", "1"), cpu("2", "1")], half(), Some(2)),
            ("nothing is left", vec![cpu("1", "2")], half(), Some(0)),
            ("no quota", vec![], half(), None),
            ("requests win", vec![both], half(), Some(2)),
            ("limits and pods do not count", vec![limits], half(), None),
            ("extended resources", vec![gpu], need(1, json!({ "example.com/gpu": "1" }), ""), Some(3)),
            (
                "another resource is asked for",
                vec![cpu("4", "1")],
                need(1, json!({ "memory": "1Gi" }), ""),
                None,
            ),
            ("nothing is asked for", vec![cpu("4", "1")], need(1, json!({}), ""), None),
            ("nobody knows what is used", vec![unknown], half(), None),
            (
                "more than anybody can count",
                vec![cpu("9000000000", "0")],
                need(1, json!({ "cpu": "1m" }), ""),
                None,
            ),
            ("several replicas at once", vec![cpu("4", "1")], need(3, json!({ "cpu": "500m" }), ""), Some(2)),
        ];
        for (name, quotas, need, expected) in cases {
            assert_eq!(allowed(&quotas.iter().collect::<Vec<_>>(), &[need], &[]), expected, "{name}");
        }
        let assumed = need(2, json!({ "cpu": "500m" }), "");
        assert_eq!(allowed(&[&cpu("4", "1")], &[half()], &[assumed]), Some(4));
        let many = need(9, json!({ "cpu": "1" }), "");
        assert_eq!(allowed(&[&cpu("4", "1")], &[half()], &[many]), Some(0));
    }

    #[test]
    fn which_quotas_apply() {
        let scoped = |spec: Value| quota(json!({ "cpu": "1" }), json!({ "cpu": "0" }), spec);
        let by = |operator: &str, values: Value| {
            let one = json!({ "scopeName": "PriorityClass", "operator": operator, "values": values });
            scoped(json!({ "scopeSelector": { "matchExpressions": [one] } }))
        };
        let cases = [
            ("by scope", scoped(json!({ "scopes": ["PriorityClass"] })), "high", true),
            ("by scope, without a class", scoped(json!({ "scopes": ["PriorityClass"] })), "", false),
            ("another scope", scoped(json!({ "scopes": ["Terminating"] })), "high", false),
            ("any of them", scoped(json!({ "scopes": ["Terminating", "PriorityClass"] })), "high", true),
            ("in", by("In", json!(["high"])), "high", true),
            ("in others", by("In", json!(["low"])), "high", false),
            ("not in", by("NotIn", json!(["high"])), "high", false),
            ("not in, without a class", by("NotIn", json!(["high"])), "", true),
            ("does not exist", by("DoesNotExist", json!([])), "", true),
            ("does not exist, with a class", by("DoesNotExist", json!([])), "high", false),
        ];
        for (name, quota, class, expected) in cases {
            let fits = allowed(&[&quota], &[need(1, json!({ "cpu": "500m" }), class)], &[]);
            assert_eq!(fits, expected.then_some(2), "{name}");
        }
        let silent = Need { replicas: 1, ..Need::default() };
        assert_eq!(allowed(&[&by("DoesNotExist", json!([]))], &[silent], &[]), None);
    }
}
