//! ResourceQuotas: what a namespace uses of what it may use. Counts only; nothing is refused.

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::objects::{is_finished, list, namespace, text};
use crate::plan::Step;
use crate::view::View;

pub(crate) fn decide(view: &View<'_>, quota: &Value) -> Vec<Step> {
    let Some(hard) = quota.pointer("/spec/hard").and_then(Value::as_object) else { return Vec::new() };
    let space = namespace(quota);
    let mut used = BTreeMap::new();
    let pods: Vec<Value> =
        view.objects.list(Kind::Pod, space).into_iter().filter(|pod| !is_finished(pod)).collect();
    for resource in hard.keys() {
        if let Some(amount) = usage(view, space, resource, &pods) {
            used.insert(resource.clone(), json!(amount));
        }
    }
    let status = json!({"hard": hard, "used": used});
    if status == quota["status"] { Vec::new() } else { vec![Step::status(Kind::Quota, quota, status)] }
}

fn usage(view: &View<'_>, space: &str, resource: &str, pods: &[Value]) -> Option<String> {
    let count = |group: &str, plural: &str| Some(view.objects.count(group, plural, space).to_string());
    if let Some(what) = resource.strip_prefix("count/") {
        if what == "pods" {
            return Some(pods.len().to_string());
        }
        let (plural, group) = what.split_once('.').unwrap_or((what, ""));
        return count(group, plural);
    }
    match resource {
        "pods" => Some(pods.len().to_string()),
        "services"
        | "configmaps"
        | "secrets"
        | "persistentvolumeclaims"
        | "replicationcontrollers"
        | "resourcequotas" => count("", resource),
        "services.loadbalancers" | "services.nodeports" => {
            let services = view.objects.list(Kind::Service, space);
            let number: usize = if resource == "services.loadbalancers" {
                services.iter().filter(|service| text(service, "/spec/type") == "LoadBalancer").count()
            } else {
                services
                    .iter()
                    .flat_map(|service| list(service, "/spec/ports"))
                    .filter(|port| port["nodePort"].as_i64().is_some_and(|port| port > 0))
                    .count()
            };
            Some(number.to_string())
        }
        "requests.storage" => {
            let claims = view.objects.list(Kind::Claim, space);
            Some(sum(claims
                .iter()
                .filter_map(|claim| claim.pointer("/spec/resources/requests/storage")?.as_str())))
        }
        _ => {
            let (field, own) = match resource.split_once('.') {
                Some(("requests", own)) => ("requests", own),
                Some(("limits", own)) => ("limits", own),
                _ => ("requests", resource),
            };
            if !matches!(own, "cpu" | "memory" | "ephemeral-storage") {
                return Some("0".to_owned());
            }
            let amounts = pods
                .iter()
                .flat_map(|pod| list(pod, "/spec/containers"))
                .filter_map(|container| container.pointer(&format!("/resources/{field}/{own}"))?.as_str());
            Some(sum(amounts))
        }
    }
}

/// Adds quantities; the sum is printed the way the first one is written.
fn sum<'a>(amounts: impl Iterator<Item = &'a str>) -> String {
    let (mut milli, mut binary) = (0_i64, None);
    for text in amounts {
        if let Ok(quantity) = Quantity::parse(text) {
            milli = milli.saturating_add(quantity.milli_value());
            binary.get_or_insert(quantity.format());
        }
    }
    let whole = Quantity::from_scaled(milli, -3);
    match binary {
        Some(format) => whole.with_format(format).to_string(),
        None => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    #[test]
    fn what_pods_ask_for_is_added_up() {
        let pod = |name: &str, cpu: &str| {
            json!({"kind": "Pod", "metadata": {"name": name, "namespace": "d"},
            "spec": {"containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]}})
        };
        let quota = json!({"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "d"},
            "spec": {"hard": {"pods": "5", "requests.cpu": "2", "memory": "4Gi"}}});
        let steps = with_view(vec![pod("a", "100m"), pod("b", "1")], |view| decide(view, &quota));
        let [Step::Status { status, .. }] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(status["used"], json!({"pods": "2", "requests.cpu": "1100m", "memory": "2Gi"}));
    }
}
