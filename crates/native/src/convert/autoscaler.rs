//! Autoscalers: v1 knows the CPU target alone; all other metrics, the behaviour and the conditions are carried in
//! annotations, as text that Go's encoder wrote. We write the same text, since clients compare annotations.

use serde_json::{Map, Value, json};

use crate::shape;
use crate::types::{self, Kind, TypeId};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// All annotations that conversion owns; the last two are of earlier servers.
const OWN: &[&str] = &[
    METRICS,
    CURRENT_METRICS,
    CONDITIONS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// The target of an autoscaler that names no metric.
const DEFAULT_CPU_UTILIZATION: i32 = 80;

pub(super) fn to_v1(object: &mut Value) {
    drop_annotations(object);
    let spec = taken(object, "spec");
    let status = taken(object, "status");
    let metrics = list(&spec, "metrics");
    let conditions = list(&status, "conditions");
    let current = list(&status, "currentMetrics");

    let mut new_spec = picked(&spec, &["scaleTargetRef", "minReplicas", "maxReplicas"]);
    if let Some(target) = metrics.iter().find_map(cpu_utilization) {
        new_spec.insert("targetCPUUtilizationPercentage".into(), target.clone());
    }
    let mut new_status =
        picked(&status, &["observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas"]);
    let cpu_now = |metric: &&Value| metric["type"] == "Resource" && metric["resource"]["name"] == "cpu";
    let mut now =
        current.iter().filter(cpu_now).filter_map(|m| m["resource"]["current"].get("averageUtilization"));
    if let Some(percentage) = now.next_back() {
        new_status.insert("currentCPUUtilizationPercentage".into(), percentage.clone());
    }
    object["spec"] = Value::Object(new_spec);
    object["status"] = Value::Object(new_status);

    let others: Vec<_> =
        metrics.iter().filter(|metric| cpu_utilization(metric).is_none()).map(spec_to_v1).collect();
    if !others.is_empty() {
        annotate(object, METRICS, go_list("MetricSpec", others));
    }
    if !current.is_empty() {
        annotate(
            object,
            CURRENT_METRICS,
            go_list("MetricStatus", current.iter().map(status_to_v1).collect()),
        );
    }
    if let Some(behavior) = spec.get("behavior").filter(|behavior| behavior.is_object()) {
        annotate(object, BEHAVIOR, behavior_text(behavior));
    }
    if !conditions.is_empty() {
        annotate(object, CONDITIONS, go_list("HorizontalPodAutoscalerCondition", conditions));
    }
}

/// Takes out of the metadata of v1 what only conversion wrote there.
pub fn hide_annotations(metadata: &mut Value) {
    let Some(fields) = metadata.as_object_mut() else { return };
    let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.retain(|name, _| !OWN.contains(&name.as_str()));
    if annotations.is_empty() {
        fields.remove("annotations");
    }
}

/// Puts back those annotations of v1 that are part of the status: writers of the object do not write them.
pub(crate) fn restore_status_annotations(new: &mut Map<String, Value>, old: &Value) {
    for name in [CURRENT_METRICS, CONDITIONS] {
        let stored = old.pointer("/metadata/annotations").and_then(|annotations| annotations.get(name));
        let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        match stored {
            Some(text) => {
                let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
                annotations[name] = text.clone();
            }
            None => {
                if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                    annotations.remove(name);
                    if annotations.is_empty() {
                        metadata.remove("annotations");
                    }
                }
            }
        }
    }
}

pub(super) fn to_v2(object: &mut Value) {
    let annotation = |object: &Value, name: &str| -> Option<Value> {
        serde_json::from_str(object["metadata"]["annotations"].get(name)?.as_str()?).ok()
    };
    let typed_list = |object: &Value, name: &str, ty: &str| -> Option<Vec<Value>> {
        let Value::Array(mut items) = annotation(object, name)? else { return None };
        let ty = part(ty);
        // Text that does not decode is ignored, as if it were not there.
        items.iter_mut().try_for_each(|item| shape::canonicalise_type(ty, item)).ok()?;
        Some(items)
    };
    let spec = taken(object, "spec");
    let status = taken(object, "status");
    let mut new_spec = picked(&spec, &["scaleTargetRef", "minReplicas", "maxReplicas"]);
    let mut new_status =
        picked(&status, &["observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas"]);

    let mut metrics: Vec<Value> =
        typed_list(object, METRICS, "MetricSpec").unwrap_or_default().iter().map(spec_to_v2).collect();
    if let Some(target) = spec.get("targetCPUUtilizationPercentage").filter(|target| !target.is_null()) {
        metrics.push(cpu_target(target.clone()));
    }
    if metrics.is_empty() {
        metrics.push(cpu_target(DEFAULT_CPU_UTILIZATION.into()));
    }
    new_spec.insert("metrics".into(), Value::Array(metrics));
    if let Some(behavior) = annotation(object, BEHAVIOR).as_ref().and_then(behavior_from) {
        new_spec.insert("behavior".into(), behavior);
    }

    if let Some(current) = typed_list(object, CURRENT_METRICS, "MetricStatus") {
        new_status.insert("currentMetrics".into(), current.iter().map(status_to_v2).collect());
    } else if let Some(now) = status.get("currentCPUUtilizationPercentage").filter(|now| !now.is_null()) {
        let metric =
            json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": now}}});
        new_status.insert("currentMetrics".into(), json!([metric]));
    }
    if let Some(conditions) = typed_list(object, CONDITIONS, "HorizontalPodAutoscalerCondition") {
        new_status.insert("conditions".into(), Value::Array(conditions));
    }
    object["spec"] = Value::Object(new_spec);
    object["status"] = Value::Object(new_status);
    drop_annotations(object);
}

/// Returns the utilisation target if the metric is one that v1 has a field for.
fn cpu_utilization(metric: &Value) -> Option<&Value> {
    let is_cpu = metric["type"] == "Resource" && metric["resource"]["name"] == "cpu";
    metric["resource"]["target"].get("averageUtilization").filter(|target| is_cpu && !target.is_null())
}

fn cpu_target(percentage: Value) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": percentage});
    json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
}

fn spec_to_v1(metric: &Value) -> Value {
    metric_with(metric, |source, from| {
        let target = &from["target"];
        match source {
            "object" => json!({
                "target": from["describedObject"], "metricName": from["metric"]["name"], "selector": from["metric"]["selector"],
                "targetValue": target["value"], "averageValue": target["averageValue"],
            }),
            "pods" => json!({
                "metricName": from["metric"]["name"], "selector": from["metric"]["selector"],
                "targetAverageValue": target["averageValue"],
            }),
            "external" => json!({
                "metricName": from["metric"]["name"], "metricSelector": from["metric"]["selector"],
                "targetValue": target["value"], "targetAverageValue": target["averageValue"],
            }),
            _ => json!({
                "name": from["name"], "container": from["container"],
                "targetAverageUtilization": target["averageUtilization"], "targetAverageValue": target["averageValue"],
            }),
        }
    })
}

fn spec_to_v2(metric: &Value) -> Value {
    metric_with(metric, |source, from| match source {
        "object" => {
            // v1 cannot leave its value out and prints "0", which v2 would refuse beside an average.
            let average = &from["averageValue"];
            let value = if average.is_null() || from["targetValue"] != "0" {
                from["targetValue"].clone()
            } else {
                Value::Null
            };
            let kind = if average.is_null() { "Value" } else { "AverageValue" };
            json!({
                "describedObject": from["target"],
                "metric": {"name": from["metricName"], "selector": from["selector"]},
                "target": {"type": kind, "value": value, "averageValue": average},
            })
        }
        "pods" => json!({
            "metric": {"name": from["metricName"], "selector": from["selector"]},
            "target": {"type": "AverageValue", "averageValue": from["targetAverageValue"]},
        }),
        "external" => {
            let kind = if from["targetValue"].is_null() { "AverageValue" } else { "Value" };
            json!({
                "metric": {"name": from["metricName"], "selector": from["metricSelector"]},
                "target": {"type": kind, "value": from["targetValue"], "averageValue": from["targetAverageValue"]},
            })
        }
        _ => {
            let utilization = &from["targetAverageUtilization"];
            let kind = if utilization.is_null() { "AverageValue" } else { "Utilization" };
            let target = json!({
                "type": kind, "averageUtilization": utilization, "averageValue": from["targetAverageValue"],
            });
            resource(source, from, "target", target)
        }
    })
}

fn status_to_v1(metric: &Value) -> Value {
    metric_with(metric, |source, from| {
        let current = &from["current"];
        match source {
            "object" => json!({
                "target": from["describedObject"], "metricName": from["metric"]["name"], "selector": from["metric"]["selector"],
                "currentValue": current["value"], "averageValue": current["averageValue"],
            }),
            "pods" => json!({
                "metricName": from["metric"]["name"], "selector": from["metric"]["selector"],
                "currentAverageValue": current["averageValue"],
            }),
            "external" => json!({
                "metricName": from["metric"]["name"], "metricSelector": from["metric"]["selector"],
                "currentValue": current["value"], "currentAverageValue": current["averageValue"],
            }),
            _ => json!({
                "name": from["name"], "container": from["container"],
                "currentAverageUtilization": current["averageUtilization"], "currentAverageValue": current["averageValue"],
            }),
        }
    })
}

fn status_to_v2(metric: &Value) -> Value {
    metric_with(metric, |source, from| match source {
        "object" => json!({
            "describedObject": from["target"],
            "metric": {"name": from["metricName"], "selector": from["selector"]},
            "current": {"value": from["currentValue"], "averageValue": from["averageValue"]},
        }),
        "pods" => json!({
            "metric": {"name": from["metricName"], "selector": from["selector"]},
            "current": {"averageValue": from["currentAverageValue"]},
        }),
        "external" => json!({
            "metric": {"name": from["metricName"], "selector": from["metricSelector"]},
            "current": {"value": from["currentValue"], "averageValue": from["currentAverageValue"]},
        }),
        _ => {
            let current = json!({
                "averageUtilization": from["currentAverageUtilization"], "averageValue": from["currentAverageValue"],
            });
            resource(source, from, "current", current)
        }
    })
}

/// The two resource sources differ by the container's name alone.
fn resource(source: &str, from: &Value, name: &str, value: Value) -> Value {
    let mut result = json!({"name": from["name"], name: value});
    if source == "containerResource" {
        result["container"] = from["container"].clone();
    }
    result
}

/// Rewrites each source that a metric has (a good one has the one that its type names).
fn metric_with(metric: &Value, rewrite: impl Fn(&str, &Value) -> Value) -> Value {
    let mut result = json!({"type": metric["type"]});
    for source in ["object", "pods", "resource", "containerResource", "external"] {
        if let Some(from) = metric.get(source).filter(|from| !from.is_null()) {
            let mut rewritten = rewrite(source, from);
            if source == "resource"
                && let Some(fields) = rewritten.as_object_mut()
            {
                fields.remove("container");
            }
            result[source] = rewritten;
        }
    }
    result
}

/// The behaviour is written by Go's internal type, which has no JSON names: the names of its fields appear.
fn behavior_text(behavior: &Value) -> String {
    let rules = |direction: &str| -> String {
        let Some(rules) = behavior.get(direction).filter(|rules| rules.is_object()) else {
            return "null".into();
        };
        let policies = match rules.get("policies").and_then(Value::as_array) {
            None => "null".to_owned(),
            Some(policies) => {
                let one = |policy: &Value| {
                    format!(
                        r#"{{"Type":{},"Value":{},"PeriodSeconds":{}}}"#,
                        policy["type"], policy["value"], policy["periodSeconds"]
                    )
                };
                format!("[{}]", policies.iter().map(one).collect::<Vec<_>>().join(","))
            }
        };
        format!(
            r#"{{"StabilizationWindowSeconds":{},"SelectPolicy":{},"Policies":{policies},"Tolerance":{}}}"#,
            rules["stabilizationWindowSeconds"], rules["selectPolicy"], rules["tolerance"]
        )
    };
    format!(r#"{{"ScaleUp":{},"ScaleDown":{}}}"#, rules("scaleUp"), rules("scaleDown"))
}

/// Reads the behaviour back; Go's decoder takes the names in any case.
fn behavior_from(text: &Value) -> Option<Value> {
    fn get<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
        let (_, value) = object.as_object()?.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        (!value.is_null()).then_some(value)
    }
    fn renamed(object: &Value, names: &[&str]) -> Map<String, Value> {
        names.iter().filter_map(|name| Some(((*name).to_owned(), get(object, name)?.clone()))).collect()
    }
    let mut behavior = Map::new();
    for direction in ["scaleUp", "scaleDown"] {
        let Some(rules) = get(text, direction) else { continue };
        let mut new = renamed(rules, &["stabilizationWindowSeconds", "selectPolicy", "tolerance"]);
        if let Some(Value::Array(policies)) = get(rules, "policies") {
            let policies = policies
                .iter()
                .map(|policy| Value::Object(renamed(policy, &["type", "value", "periodSeconds"])));
            new.insert("policies".into(), policies.collect());
        }
        behavior.insert(direction.into(), Value::Object(new));
    }
    (!behavior.is_empty()).then_some(Value::Object(behavior))
}

fn part(name: &str) -> TypeId {
    types::for_kind("autoscaling", "v1", name).expect("the generator adds the annotated types")
}

/// Prints a list as Go prints a slice of the named type.
fn go_list(name: &str, items: Vec<Value>) -> String {
    let ty = part(name);
    let texts = items.into_iter().map(|mut item| {
        shape::canonicalise_type(ty, &mut item).expect("built from a decoded object");
        let mut text = String::new();
        go_text(ty, &item, &mut text);
        text
    });
    format!("[{}]", texts.collect::<Vec<_>>().join(","))
}

/// Prints a value with fields in Go's order and Go's escapes.
fn go_text(ty: TypeId, value: &Value, out: &mut String) {
    match (ty.get().kind, value) {
        (Kind::Pointer(to), value) => go_text(to, value, out),
        (Kind::Struct, Value::Object(object)) => {
            out.push('{');
            let mut first = true;
            for field in &ty.get().fields {
                let Some(value) = object.get(&*field.name) else { continue };
                if !std::mem::take(&mut first) {
                    out.push(',');
                }
                out.push_str(&format!("\"{}\":", field.name));
                go_text(field.ty, value, out);
            }
            out.push('}');
        }
        (Kind::List { elem, .. }, Value::Array(items)) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                go_text(elem, item, out);
            }
            out.push(']');
        }
        (_, value) => {
            // The only characters that Go escapes and we would not, all of which stand in strings.
            for c in value.to_string().chars() {
                match c {
                    '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                        out.push_str(&format!("\\u{:04x}", u32::from(c)))
                    }
                    c => out.push(c),
                }
            }
        }
    }
}

fn taken(object: &mut Value, name: &str) -> Value {
    object.get_mut(name).map(Value::take).unwrap_or_default()
}

fn picked(from: &Value, names: &[&str]) -> Map<String, Value> {
    names.iter().filter_map(|name| Some(((*name).to_owned(), from.get(name)?.clone()))).collect()
}

fn list(from: &Value, name: &str) -> Vec<Value> {
    from.get(name).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn annotate(object: &mut Value, name: &str, text: String) {
    object["metadata"]["annotations"][name] = Value::String(text);
}

fn drop_annotations(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.retain(|name, _| !OWN.contains(&name.as_str()));
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
}
