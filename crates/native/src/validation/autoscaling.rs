//! Autoscalers.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::{self, complaints};
use super::node::Node;

pub(super) fn autoscaler(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let (least, most) = (spec.at("minReplicas").opt_int(), spec.at("maxReplicas").int());
    if let Some(least @ ..=0) = least {
        errors.push(Error::invalid(&path.child("minReplicas"), least, "must be greater than or equal to 1"));
    }
    let at = path.child("maxReplicas");
    if most == 0 {
        errors.push(Error::required(&at, "must be set and greater than 0"));
    } else if most < 0 {
        errors.push(Error::invalid(&at, most, "must be greater than or equal to 1"));
    }
    if least.is_some_and(|least| most < least) {
        errors.push(Error::invalid(&at, most, "must be greater than or equal to `minReplicas`"));
    }
    reference(errors, spec.at("scaleTargetRef"), &path.child("scaleTargetRef"));
    let at = path.child("targetCPUUtilizationPercentage");
    if let Some(percent @ ..=0) = spec.at("targetCPUUtilizationPercentage").opt_int() {
        errors.push(Error::invalid(&at, percent, check::POSITIVE));
    }
    for (index, metric) in spec.at("metrics").items().enumerate() {
        metric_spec(errors, metric, &path.child("metrics").index(index));
    }
    for direction in ["scaleUp", "scaleDown"] {
        let rules = spec.at("behavior").at(direction);
        if rules.exists() {
            scaling_rules(errors, rules, &path.child("behavior").child(direction));
        }
    }
}

fn reference(errors: &mut Errors, target: Node<'_>, path: &Path) {
    for field in ["kind", "name"] {
        let value = target.at(field).text();
        if value.is_empty() {
            errors.push(Error::required(&path.child(field), ""));
        } else {
            complaints(errors, &path.child(field), value, names::path_segment(value));
        }
    }
    let version = target.at("apiVersion").text();
    if version.split_once('/').is_none_or(|(group, _)| group.is_empty()) {
        let at = path.child("apiVersion");
        errors.push(Error::invalid(&at, version, "apiVersion must specify API group"));
    }
}

const METRIC_TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

fn metric_spec(errors: &mut Errors, metric: Node<'_>, path: &Path) {
    let kind = metric.at("type").text();
    if kind.is_empty() {
        errors.push(Error::required(&path.child("type"), "must specify a metric source type"));
    }
    if !METRIC_TYPES.contains(&kind) {
        errors.push(Error::not_supported(&path.child("type"), kind, &METRIC_TYPES));
    }
    let sources = ["object", "external", "pods", "resource", "containerResource"];
    let present: Vec<&str> = sources.into_iter().filter(|source| metric.at(source).exists()).collect();
    if let Some(first) = present.first() {
        metric_source(errors, first, metric.at(first), &path.child(first));
    }
    let expected = match kind {
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        "External" => "external",
        "ContainerResource" => "containerResource",
        _ => {
            errors.push(Error::not_supported(&path.child("type"), kind, &METRIC_TYPES));
            return;
        }
    };
    if !present.contains(&expected) {
        let text = "must populate information for the given metric source";
        errors.push(Error::required(&path.child(expected), text));
    }
    if present.len() != 1 {
        for source in present.into_iter().filter(|source| *source != expected) {
            errors.push(Error::forbidden(&path.child(source), "must populate the given metric source only"));
        }
    }
}

fn metric_source(errors: &mut Errors, kind: &str, source: Node<'_>, path: &Path) {
    let (target, at) = (source.at("target"), path.child("target"));
    if kind == "object" {
        reference(errors, source.at("describedObject"), &path.child("describedObject"));
    }
    if matches!(kind, "object" | "external" | "pods") {
        let name = source.dig(&["metric", "name"]).text();
        let at = path.child("metric").child("name");
        if name.is_empty() {
            errors.push(Error::required(&at, "must specify a metric name"));
        } else {
            complaints(errors, &at, name, names::path_segment(name));
        }
    } else if source.at("name").is_empty() {
        errors.push(Error::required(&path.child("name"), "must specify a resource name"));
    }
    if kind == "containerResource" && source.at("container").is_empty() {
        errors.push(Error::required(&path.child("container"), "must specify a container"));
    }
    metric_target(errors, target, &at);
    let (value, average, utilization) = (
        target.at("value").exists(),
        target.at("averageValue").exists(),
        target.at("averageUtilization").exists(),
    );
    let required = |field: &str, text: &str| Error::required(&at.child(field), text);
    match kind {
        "object" if !value && !average => {
            errors.push(required("averageValue", "must set either a target value or averageValue"));
        }
        "external" if !value && !average => errors
            .push(required("averageValue", "must set either a target value for metric or a per-pod target")),
        "external" if value && average => {
            let text = "may not set both a target value for metric and a per-pod target";
            errors.push(Error::forbidden(&at.child("value"), text));
        }
        "pods" if !average => {
            errors.push(required("averageValue", "must specify a positive target averageValue"));
        }
        "resource" | "containerResource" if !utilization && !average => errors.push(required(
            "averageUtilization",
            "must set either a target raw value or a target utilization",
        )),
        "resource" | "containerResource" if utilization && average => {
            let text = "may not set both a target raw value and a target utilization";
            errors.push(Error::forbidden(&at.child("averageValue"), text));
        }
        _ => {}
    }
}

fn metric_target(errors: &mut Errors, target: Node<'_>, path: &Path) {
    let kind = target.at("type").text();
    if kind.is_empty() {
        errors.push(Error::required(&path.child("type"), "must specify a metric target type"));
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let text = "must be either Utilization, Value, or AverageValue";
        errors.push(Error::invalid(&path.child("type"), kind, text));
    }
    for field in ["value", "averageValue"] {
        let amount = target.at(field);
        if amount.exists() && check::quantity(amount).sign() != 1 {
            errors.push(Error::invalid(&path.child(field), amount.text(), "must be positive"));
        }
    }
    if let Some(percent @ ..=0) = target.at("averageUtilization").opt_int() {
        errors.push(Error::invalid(&path.child("averageUtilization"), percent, check::POSITIVE));
    }
}

fn scaling_rules(errors: &mut Errors, rules: Node<'_>, path: &Path) {
    let at = path.child("stabilizationWindowSeconds");
    match rules.at("stabilizationWindowSeconds").opt_int() {
        Some(seconds @ ..0) => {
            errors.push(Error::invalid(&at, seconds, "must be greater than or equal to zero"))
        }
        Some(seconds @ 3601..) => {
            errors.push(Error::invalid(&at, seconds, "must be less than or equal to 3600"))
        }
        _ => {}
    }
    check::optional_enum(
        errors,
        &path.child("selectPolicy"),
        rules.at("selectPolicy"),
        &["Disabled", "Max", "Min"],
    );
    let path = path.child("policies");
    if rules.at("policies").is_empty() {
        errors.push(Error::required(&path, "must specify at least one Policy"));
    }
    for (index, policy) in rules.at("policies").items().enumerate() {
        let path = path.index(index);
        let kind = policy.at("type").text();
        if !matches!(kind, "Percent" | "Pods") {
            errors.push(Error::not_supported(&path.child("type"), kind, &["Percent", "Pods"]));
        }
        for field in ["value", "periodSeconds"] {
            let number = policy.at(field).int();
            if number <= 0 {
                errors.push(Error::invalid(&path.child(field), number, "must be greater than zero"));
            }
        }
        let seconds = policy.at("periodSeconds").int();
        if seconds > 1800 {
            let at = path.child("periodSeconds");
            errors.push(Error::invalid(&at, seconds, "must be less than or equal to 1800"));
        }
    }
}
