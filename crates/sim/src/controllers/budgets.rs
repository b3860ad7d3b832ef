//! PodDisruptionBudgets: how many pods may be missing.

use std::collections::BTreeMap;

use apimachinery::selector::LabelSelector;
use serde_json::{Map, Value, json};

use crate::kinds::Kind;
use crate::objects::{Object, after, condition, int_or_percent, is_ready, number, phase, stamp, text};
use crate::plan::Step;
use crate::view::View;

pub(crate) fn decide(view: &View<'_>, budget: &Value) -> Vec<Step> {
    let Ok(selector) = LabelSelector::from_object(budget.pointer("/spec/selector")) else {
        return Vec::new();
    };
    let mut pods = view.objects.selected(Kind::Pod, budget.namespace(), &selector);
    pods.retain(|pod| matches!(phase(pod), "Pending" | "Running"));
    let most_missing = budget.pointer("/spec/maxUnavailable");
    let least = budget.pointer("/spec/minAvailable");
    let relative = least.is_some_and(Value::is_string) || most_missing.is_some();
    let expected = if relative { expected(view, &pods) } else { pods.len() as i64 };
    let desired = match (most_missing, least) {
        (Some(missing), _) => (expected - int_or_percent(Some(missing), expected, true).unwrap_or(0)).max(0),
        (None, Some(least)) => int_or_percent(Some(least), expected, true).unwrap_or(0),
        (None, None) => 0,
    };
    let (disrupted, again) = disrupted(view, budget, &pods);
    let is_healthy =
        |pod: &&Value| is_ready(pod) && !pod.is_deleting() && !disrupted.contains_key(pod.name());
    let healthy = pods.iter().filter(is_healthy).count() as i64;
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let (value, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let since = match condition(budget, "DisruptionAllowed") {
        Some(old) if old["status"] == value => old["lastTransitionTime"].clone(),
        _ => json!(stamp(view.now)),
    };
    let mut status = json!({
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
        "expectedPods": expected,
        "observedGeneration": budget.generation(),
        "conditions": [{"type": "DisruptionAllowed", "status": value, "reason": reason, "message": "",
            "observedGeneration": budget.generation(), "lastTransitionTime": since}],
    });
    if !disrupted.is_empty() {
        status["disruptedPods"] = disrupted.into();
    }
    let mut steps: Vec<Step> = again.into_iter().collect();
    if status != budget["status"] {
        steps.push(Step::status(Kind::DisruptionBudget, budget, status));
    }
    steps
}

/// Returns the pods whose eviction was granted but has not begun, and when to check them again. A pod that still exists after two
/// minutes was not evicted after all.
fn disrupted(view: &View<'_>, budget: &Value, pods: &[Value]) -> (Map<String, Value>, Option<Step>) {
    let granted = budget.pointer("/status/disruptedPods").and_then(Value::as_object);
    let mut left = Map::new();
    let mut again = None;
    for (pod, since) in granted.into_iter().flatten() {
        let waits = pods.iter().any(|other| other.name() == pod && !other.is_deleting());
        let Some(until) = since.as_str().and_then(|since| since.parse().ok()).map(|since| after(since, 120))
        else {
            continue;
        };
        if waits && until > view.now {
            left.insert(pod.clone(), since.clone());
            again = Some(Step::again_at(until, view.now));
        }
    }
    (left, again)
}

/// Returns how many pods their controllers want in total.
fn expected(view: &View<'_>, pods: &[Value]) -> i64 {
    let mut desired: BTreeMap<String, i64> = BTreeMap::new();
    let mut loose = 0;
    for pod in pods {
        let Some(owner) = pod.controller() else {
            loose += 1;
            continue;
        };
        let Some(kind) = Kind::of(text(owner, "/apiVersion"), text(owner, "/kind")) else { continue };
        let Some(mut controller) = view.get(kind, pod.namespace(), text(owner, "/name")) else { continue };
        if let Some(above) = controller.controller()
            && let Some(deployment) = view.get(Kind::Deployment, pod.namespace(), text(above, "/name"))
        {
            controller = deployment;
        }
        let replicas = number(&controller, "/spec/replicas").unwrap_or(1);
        desired.insert(controller.uid().to_owned(), replicas);
    }
    loose + desired.values().sum::<i64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    #[test]
    fn pods_above_the_minimum_may_be_evicted() {
        let pod = |name: &str, ready: &str| {
            json!({"kind": "Pod", "metadata": {"name": name, "namespace": "d", "labels": {"a": "b"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}})
        };
        let budget = json!({"kind": "PodDisruptionBudget", "metadata": {"name": "p", "namespace": "d", "generation": 1},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}});
        let pods = vec![pod("1", "True"), pod("2", "True"), pod("3", "False")];
        let steps = with_view(pods, |view| decide(view, &budget));
        let [Step::Status { status, .. }] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(status["disruptionsAllowed"], 1);
        assert_eq!(status["currentHealthy"], 2);
    }
}
