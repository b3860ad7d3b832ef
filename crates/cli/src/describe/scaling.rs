//! Autoscalers and persistent volume claims.

use serde_json::Value;

use super::words::{Page, each, shown, text, time};

pub(super) fn autoscaler(page: &mut Page, object: &Value) {
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    page.pair(0, "Name", text(&metadata["name"]));
    page.pair(0, "Namespace", text(&metadata["namespace"]));
    page.labels("Labels", &metadata["labels"]);
    page.annotations("Annotations", &metadata["annotations"]);
    page.pair(0, "CreationTimestamp", time(&metadata["creationTimestamp"]));
    let target = &spec["scaleTargetRef"];
    page.pair(0, "Reference", format!("{}/{}", text(&target["kind"]), text(&target["name"])));
    page.pair(0, "Metrics", "( current / target )");
    for (place, metric) in each(&spec["metrics"]).enumerate() {
        page.line(1, metric_line(metric, &status["currentMetrics"][place]));
    }
    page.pair(0, "Min replicas", shown(&spec["minReplicas"], "<unset>"));
    page.pair(0, "Max replicas", shown(&spec["maxReplicas"], "0"));
    if spec["behavior"].is_object() {
        page.line(0, "Behavior:");
        direction(page, "Scale Up", &spec["behavior"]["scaleUp"]);
        direction(page, "Scale Down", &spec["behavior"]["scaleDown"]);
    }
    page.pair(
        0,
        &format!("{} pods", text(&target["kind"])),
        format!(
            "{} current / {} desired",
            shown(&status["currentReplicas"], "0"),
            shown(&status["desiredReplicas"], "0")
        ),
    );
    if each(&status["conditions"]).next().is_some() {
        page.line(0, "Conditions:");
        page.line(1, "Type\tStatus\tReason\tMessage");
        page.line(1, "----\t------\t------\t-------");
    }
    for condition in each(&status["conditions"]) {
        let cells = ["type", "status", "reason", "message"].map(|key| text(&condition[key]));
        page.line(1, cells.join("\t"));
    }
}

/// A metric: its name, its current value, and its target.
fn metric_line(metric: &Value, now: &Value) -> String {
    const UNKNOWN: &str = "<unknown>";
    let kind = text(&metric["type"]);
    let key = match kind.as_str() {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return format!("<unknown metric type {}>", apimachinery::go::quote(&kind)),
    };
    let (wanted, now) = (&metric[key], &now[key]["current"]);
    let target = &wanted["target"];
    let name = text(&wanted["metric"]["name"]);
    let value = |key: &str| format!("{} / {}", shown(&now[key], UNKNOWN), shown(&target[key], "<nil>"));
    match key {
        "pods" => format!("{} on pods:\t{}", apimachinery::go::quote(&name), value("averageValue")),
        "external" | "object" => {
            let average = if key == "object" {
                target["type"] == "AverageValue"
            } else {
                target["averageValue"].is_string()
            };
            let title = if key == "object" {
                let described = &wanted["describedObject"];
                format!("\"{name}\" on {}/{}", text(&described["kind"]), text(&described["name"]))
            } else {
                apimachinery::go::quote(&name)
            };
            if average {
                format!("{title} (target average value):\t{}", value("averageValue"))
            } else {
                format!("{title} (target value):\t{}", value("value"))
            }
        }
        _ => {
            let whose = match text(&wanted["container"]).as_str() {
                "" => String::new(),
                container => format!(" of container \"{container}\""),
            };
            let title = format!("resource {}{whose} on pods", text(&wanted["name"]));
            if target["averageValue"].is_string() {
                return format!("{title}:\t{}", value("averageValue"));
            }
            let percent = |value: &Value| value.as_i64().map(|number| format!("{number}%"));
            let current = percent(&now["averageUtilization"])
                .map_or(UNKNOWN.to_owned(), |used| format!("{used} ({})", shown(&now["averageValue"], "0")));
            let wanted = percent(&target["averageUtilization"]).unwrap_or_else(|| "<auto>".to_owned());
            format!("{title}  (as a percentage of request):\t{current} / {wanted}")
        }
    }
}

fn direction(page: &mut Page, title: &str, rules: &Value) {
    if !rules.is_object() {
        return;
    }
    page.line(1, format!("{title}:"));
    if let Some(seconds) = rules["stabilizationWindowSeconds"].as_i64() {
        page.line(2, format!("Stabilization Window: {seconds} seconds"));
    }
    if each(&rules["policies"]).next().is_none() {
        return;
    }
    page.line(2, format!("Select Policy: {}", shown(&rules["selectPolicy"], "Max")));
    page.line(2, "Policies:");
    for policy in each(&rules["policies"]) {
        page.line(
            3,
            format!(
                "- Type: {}\tValue: {}\tPeriod: {} seconds",
                text(&policy["type"]),
                shown(&policy["value"], "0"),
                shown(&policy["periodSeconds"], "0")
            ),
        );
    }
}

pub(super) fn claim(page: &mut Page, object: &Value, users: &[Value]) {
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    page.pair(0, "Name", text(&metadata["name"]));
    page.pair(0, "Namespace", text(&metadata["namespace"]));
    let old = &metadata["annotations"]["volume.beta.kubernetes.io/storage-class"];
    page.pair(0, "StorageClass", shown(if old.is_string() { old } else { &spec["storageClassName"] }, ""));
    match metadata["deletionTimestamp"].as_str() {
        Some(since) => {
            let lasts = super::events::age(since, jiff::Timestamp::now());
            page.pair(0, "Status", format!("Terminating (lasts {lasts})"));
        }
        None => page.pair(0, "Status", text(&status["phase"])),
    }
    page.pair(0, "Volume", text(&spec["volumeName"]));
    page.labels("Labels", &metadata["labels"]);
    page.annotations("Annotations", &metadata["annotations"]);
    let finalizers: Vec<String> = each(&metadata["finalizers"]).map(text).collect();
    page.pair(0, "Finalizers", format!("[{}]", finalizers.join(" ")));
    let bound = spec["volumeName"].as_str().is_some_and(|name| !name.is_empty());
    let modes: Vec<&str> = each(&status["accessModes"])
        .filter(|_| bound)
        .map(|mode| match mode.as_str().unwrap_or("") {
            "ReadWriteOnce" => "RWO",
            "ReadOnlyMany" => "ROX",
            "ReadWriteMany" => "RWX",
            "ReadWriteOncePod" => "RWOP",
            other => other,
        })
        .collect();
    let capacity = if bound { shown(&status["capacity"]["storage"], "0") } else { String::new() };
    page.pair(0, "Capacity", capacity);
    page.pair(0, "Access Modes", modes.join(","));
    if let Some(mode) = spec["volumeMode"].as_str() {
        page.pair(0, "VolumeMode", mode);
    }
    let source = &spec["dataSource"];
    if source.is_object() {
        page.line(0, "DataSource:");
        if let Some(group) = source["apiGroup"].as_str() {
            page.pair(1, "APIGroup", group);
        }
        page.pair(1, "Kind", text(&source["kind"]));
        page.pair(1, "Name", text(&source["name"]));
    }
    let users: Vec<String> = users.iter().map(|pod| text(&pod["metadata"]["name"])).collect();
    page.list("Used By", &users);
    if each(&status["conditions"]).next().is_some() {
        page.line(0, "Conditions:");
        page.line(1, "Type\tStatus\tLastProbeTime\tLastTransitionTime\tReason\tMessage");
        page.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
    }
    for condition in each(&status["conditions"]) {
        page.line(
            1,
            format!(
                "{} \t{} \t{} \t{} \t{} \t{}",
                text(&condition["type"]),
                text(&condition["status"]),
                time(&condition["lastProbeTime"]),
                time(&condition["lastTransitionTime"]),
                text(&condition["reason"]),
                text(&condition["message"])
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metrics_are_told_as_they_are_and_as_they_should_be() {
        for (metric, now, line) in [
            (
                json!({"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 60}}}),
                json!({"resource": {"current": {"averageUtilization": 30, "averageValue": "15m"}}}),
                "resource cpu on pods  (as a percentage of request):\t30% (15m) / 60%",
            ),
            (
                json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "web", "target": {"averageValue": "1"}}}),
                Value::Null,
                "resource cpu of container \"web\" on pods:\t<unknown> / 1",
            ),
            (
                json!({"type": "Pods", "pods": {"metric": {"name": "hits"}, "target": {"averageValue": "5"}}}),
                json!({"pods": {"current": {"averageValue": "2"}}}),
                "\"hits\" on pods:\t2 / 5",
            ),
            (
                json!({"type": "Object", "object": {"metric": {"name": "hits"}, "describedObject": {"kind": "Ingress", "name": "i"},
                    "target": {"type": "Value", "value": "5"}}}),
                Value::Null,
                "\"hits\" on Ingress/i (target value):\t<unknown> / 5",
            ),
            (
                json!({"type": "External", "external": {"metric": {"name": "queue"}, "target": {"averageValue": "5"}}}),
                Value::Null,
                "\"queue\" (target average value):\t<unknown> / 5",
            ),
            (json!({"type": "X"}), Value::Null, "<unknown metric type \"X\">"),
        ] {
            assert_eq!(metric_line(&metric, &now), line);
        }
    }

    #[test]
    fn a_claim_that_is_bound_has_a_size() {
        let object = json!({"metadata": {"name": "disk", "finalizers": ["a", "b"]}, "spec": {"volumeName": "v", "volumeMode": "Block"},
            "status": {"phase": "Bound", "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}});
        let mut page = Page::default();
        claim(&mut page, &object, &[json!({"metadata": {"name": "p"}})]);
        let text = page.finish();
        for line in [
            "Finalizers:    [a b]\n",
            "Capacity:      5Gi\n",
            "Access Modes:  RWO,ROX\n",
            "Used By:       p\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
