//! Resource lists: amounts are kept to a thousandth, and pod-level amounts follow from the containers'.

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;
use serde_json::Value;

use super::tree::{Object, below, ensure, has_items, is_set};

/// A thousandth: finer amounts are rounded up.
const MILLI: i32 = -3;

/// Rounds the amounts of the named resource lists up to a thousandth.
pub(super) fn round(owner: &mut Object, lists: &[&str]) {
    for list in lists {
        let Some(amounts) = below(owner, list) else { continue };
        for amount in amounts.values_mut() {
            if let Some(quantity) = amount.as_str().and_then(|text| text.parse::<Quantity>().ok()) {
                let rounded = quantity.round_up(MILLI).to_string();
                if amount.as_str() != Some(rounded.as_str()) {
                    *amount = Value::String(rounded);
                }
            }
        }
    }
}

/// Fills `spec.resources` of a Pod that sets part of it: requests from the containers' sum, else from the
/// pod's own limits; hugepage limits from the containers' sum.
pub(super) fn pod_level(spec: &mut Object) {
    let Some(resources) = spec.get("resources").and_then(Value::as_object) else { return };
    let (limited, requested) = (has_items(resources, "limits"), has_items(resources, "requests"));
    if !limited && !requested {
        return;
    }
    let (limits, requests) = (aggregate(spec, "limits"), aggregate(spec, "requests"));
    let Some(resources) = below(spec, "resources") else { return };
    for (name, amount) in limits.iter().filter(|(name, _)| name.starts_with("hugepages-")) {
        let asked = below(resources, "requests").is_some_and(|requests| is_set(requests, name));
        if !asked && let Some(limits) = ensure(resources, "limits") {
            limits.entry(name.clone()).or_insert_with(|| amount.to_string().into());
        }
    }
    let Some(pod_limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    if pod_limits.is_empty() {
        return;
    }
    let Some(pod_requests) = ensure(resources, "requests") else { return };
    for (name, amount) in requests.iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")) {
        pod_requests.entry(name.clone()).or_insert_with(|| amount.to_string().into());
    }
    for (name, amount) in pod_limits {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            pod_requests.entry(name).or_insert(amount);
        }
    }
    if pod_requests.is_empty() {
        resources.remove("requests");
    }
}

type Amounts = BTreeMap<String, Quantity>;

/// What the containers need at once: all regular and restartable init containers together, or the hungriest
/// moment of initialisation, whichever is more.
fn aggregate(spec: &Object, list: &str) -> Amounts {
    let amounts = |container: &Value| -> Amounts {
        let entries = container.get("resources").and_then(|resources| resources.get(list)?.as_object());
        let entries = entries.into_iter().flatten();
        entries.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.parse().ok()?))).collect()
    };
    let containers = |key: &str| spec.get(key).and_then(Value::as_array).into_iter().flatten();

    let mut running = Amounts::new();
    for container in containers("containers") {
        add(&mut running, &amounts(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in containers("initContainers") {
        let own = amounts(container);
        if container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
            add(&mut running, &own);
            add(&mut sidecars, &own);
            at_least(&mut peak, &sidecars);
        } else {
            let mut moment = sidecars.clone();
            add(&mut moment, &own);
            at_least(&mut peak, &moment);
        }
    }
    at_least(&mut running, &peak);
    running
}

#[expect(clippy::arithmetic_side_effects, reason = "amounts saturate")]
fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *total.entry(name.clone()).or_insert_with(|| Quantity::ZERO.with_format(amount.format())) += *amount;
    }
}

fn at_least(total: &mut Amounts, floor: &Amounts) {
    for (name, amount) in floor {
        let entry = total.entry(name.clone()).or_insert(*amount);
        if *entry < *amount {
            *entry = *amount;
        }
    }
}
