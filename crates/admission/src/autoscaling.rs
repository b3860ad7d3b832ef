//! FederatedHPA: the defaults and rules of a HorizontalPodAutoscaler, as Karmada keeps them.
//!
//! Two differences to Kubernetes' own rules matter: external metrics are not a source, and behaviour is rebuilt from
//! defaults, whereby a `tolerance` is lost.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use serde_json::Value;

use api::autoscaling::{
    ContainerResourceMetricSource, CrossVersionObjectReference, FederatedHPASpec, HPABehavior,
    HPAScalingPolicy, HPAScalingRules, HPAStatus, MetricIdentifier, MetricSpec, MetricTarget,
    ResourceMetricSource,
};

use crate::request::{Denial, Request, canonical, deny_if_any, part, set_spec, spec, too_many};
use crate::{metadata, resources};

const DEFAULT_CPU_UTILIZATION: i32 = 80;
/// Longest period of a scaling policy, in seconds.
const PERIOD_MAX: i32 = 1800;
/// Longest time that earlier recommendations are remembered, in seconds.
const WINDOW_MAX: i32 = 3600;

/// So many metrics may one autoscaler ask for; each is a request to members. Users have a handful.
const METRICS_MAX: usize = 100;

const SOURCES: [&str; 4] = ["ContainerResource", "Object", "Pods", "Resource"];

pub(crate) fn mutate(object: &mut Value) -> Result<(), Denial> {
    let mut scaler: FederatedHPASpec = spec(object)?;
    scaler.min_replicas.get_or_insert(1);
    if scaler.metrics.is_empty() {
        scaler.metrics.push(default_metric());
    }
    for target in scaler.metrics.iter_mut().flat_map(targets) {
        for amount in [&mut target.value, &mut target.average_value].into_iter().flatten() {
            canonical(amount);
        }
    }
    if let Some(behavior) = &mut scaler.behavior {
        // An empty list was written on purpose and is refused later; a missing one gets the default.
        let written = |direction: &str| {
            let given = object["spec"].get("behavior").and_then(|behavior| behavior.get(direction));
            given.and_then(|given| given.get("policies")).is_some_and(Value::is_array)
        };
        behavior.scale_up = Some(rebuilt(default_scale_up(), behavior.scale_up.take(), written("scaleUp")));
        behavior.scale_down =
            Some(rebuilt(default_scale_down(), behavior.scale_down.take(), written("scaleDown")));
    }
    set_spec(object, &scaler);
    Ok(())
}

fn default_metric() -> MetricSpec {
    MetricSpec {
        type_: "Resource".to_owned(),
        resource: Some(ResourceMetricSource {
            name: "cpu".to_owned(),
            target: MetricTarget {
                type_: "Utilization".to_owned(),
                average_utilization: Some(DEFAULT_CPU_UTILIZATION),
                ..MetricTarget::default()
            },
        }),
        ..MetricSpec::default()
    }
}

fn targets(metric: &mut MetricSpec) -> impl Iterator<Item = &mut MetricTarget> {
    let MetricSpec { object, pods, resource, container_resource, external, .. } = metric;
    [
        object.as_mut().map(|source| &mut source.target),
        pods.as_mut().map(|source| &mut source.target),
        resource.as_mut().map(|source| &mut source.target),
        container_resource.as_mut().map(|source| &mut source.target),
        external.as_mut().map(|source| &mut source.target),
    ]
    .into_iter()
    .flatten()
}

fn default_scale_up() -> HPAScalingRules {
    HPAScalingRules {
        stabilization_window_seconds: Some(0),
        select_policy: Some("Max".to_owned()),
        policies: vec![policy("Pods", 4), policy("Percent", 100)],
        tolerance: None,
    }
}

fn default_scale_down() -> HPAScalingRules {
    HPAScalingRules {
        stabilization_window_seconds: None,
        select_policy: Some("Max".to_owned()),
        policies: vec![policy("Percent", 100)],
        tolerance: None,
    }
}

fn policy(type_: &str, value: i32) -> HPAScalingPolicy {
    HPAScalingPolicy { type_: type_.to_owned(), value, period_seconds: 15 }
}

fn rebuilt(
    mut rules: HPAScalingRules,
    wanted: Option<HPAScalingRules>,
    policies_written: bool,
) -> HPAScalingRules {
    let Some(wanted) = wanted else { return rules };
    if wanted.select_policy.is_some() {
        rules.select_policy = wanted.select_policy;
    }
    if wanted.stabilization_window_seconds.is_some() {
        rules.stabilization_window_seconds = wanted.stabilization_window_seconds;
    }
    if policies_written {
        rules.policies = wanted.policies;
    }
    rules
}

pub(crate) fn validate(request: &Request<'_>, object: &Value) -> Result<(), Denial> {
    let scaler: FederatedHPASpec = spec(object)?;
    let path = Path::new("spec");
    let metrics = too_many(request, object, &path.child("metrics"), scaler.metrics.len(), METRICS_MAX);
    deny_if_any(metrics.as_slice())?;
    let mut errors = metadata::namespaced(object);
    errors.extend(check(&scaler, &path));
    let status: HPAStatus = part(object, "status")?;
    for (field, replicas) in
        [("currentReplicas", status.current_replicas), ("desiredReplicas", status.desired_replicas)]
    {
        if replicas < 0 {
            let at = Path::new("status").child(field);
            errors.push(Error::invalid(&at, replicas, "must be greater than or equal to 0"));
        }
    }
    deny_if_any(&errors)
}

fn check(scaler: &FederatedHPASpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let (least, most) = (scaler.min_replicas, scaler.max_replicas);
    if let Some(least @ ..1) = least {
        let fault = "must be greater than or equal to 1";
        errors.push(Error::invalid(&path.child("minReplicas"), least, fault));
    }
    if most < 1 {
        errors.push(Error::invalid(&path.child("maxReplicas"), most, "must be greater than 0"));
    }
    if least.is_some_and(|least| most < least) {
        let fault = "must be greater than or equal to `minReplicas`";
        errors.push(Error::invalid(&path.child("maxReplicas"), most, fault));
    }
    errors.extend(reference(&scaler.scale_target_ref, &path.child("scaleTargetRef")));
    for (index, metric) in scaler.metrics.iter().enumerate() {
        errors.extend(check_metric(metric, &path.child("metrics").index(index)));
    }
    if let Some(HPABehavior { scale_up, scale_down }) = &scaler.behavior {
        let path = path.child("behavior");
        for (field, rules) in [("scaleUp", scale_up), ("scaleDown", scale_down)] {
            if let Some(rules) = rules {
                errors.extend(check_rules(rules, &path.child(field)));
            }
        }
    }
    errors
}

/// Returns what is wrong with a reference to an object that can be scaled or measured.
pub(crate) fn reference(target: &CrossVersionObjectReference, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, value) in [("kind", target.kind.as_str()), ("name", target.name.as_str())] {
        let at = path.child(field);
        if value.is_empty() {
            errors.push(Error::required(&at, ""));
        }
        errors.extend(segment(value).into_iter().map(|fault| Error::invalid(&at, value, fault)));
    }
    errors
}

fn check_metric(metric: &MetricSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let kind = metric.type_.as_str();
    if kind.is_empty() {
        errors.push(Error::required(&path.child("type"), "must specify a metric source type"));
    }
    let unknown = || Error::not_supported(&path.child("type"), kind, &SOURCES);
    if !SOURCES.contains(&kind) {
        errors.push(unknown());
    }
    let present: Vec<(&str, Errors)> = [
        metric.object.as_ref().map(|source| {
            let at = path.child("object");
            let mut errors = reference(&source.described_object, &at.child("describedObject"));
            errors.extend(identifier(&source.metric, &at.child("metric")));
            errors.extend(check_target(&source.target, &at.child("target")));
            if source.target.value.is_none() && source.target.average_value.is_none() {
                let at = at.child("target").child("averageValue");
                errors.push(Error::required(&at, "must set either a target value or averageValue"));
            }
            ("object", errors)
        }),
        metric.pods.as_ref().map(|source| {
            let at = path.child("pods");
            let mut errors = identifier(&source.metric, &at.child("metric"));
            errors.extend(check_target(&source.target, &at.child("target")));
            if source.target.average_value.is_none() {
                let at = at.child("target").child("averageValue");
                errors.push(Error::required(&at, "must specify a positive target averageValue"));
            }
            ("pods", errors)
        }),
        metric.resource.as_ref().map(|source| {
            let at = path.child("resource");
            let mut errors = Errors::new();
            if source.name.is_empty() {
                errors.push(Error::required(&at.child("name"), "must specify a resource name"));
            }
            errors.extend(resource_target(&source.target, &at.child("target")));
            ("resource", errors)
        }),
        metric.container_resource.as_ref().map(|source| {
            let at = path.child("containerResource");
            ("containerResource", container_resource(source, &at))
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    // Only the first source is looked into: which one was meant is unclear otherwise.
    errors.extend(present.first().map(|(_, errors)| errors.clone()).unwrap_or_default());
    let expected = match kind {
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => "",
    };
    if expected.is_empty() {
        errors.push(unknown());
    } else if !present.iter().any(|(source, _)| *source == expected) {
        let fault = "must populate information for the given metric source";
        errors.push(Error::required(&path.child(expected), fault));
    }
    if present.len() != 1 {
        for (source, _) in present.iter().filter(|(source, _)| *source != expected) {
            let fault = "must populate the given metric source only";
            errors.push(Error::forbidden(&path.child(source), fault));
        }
    }
    errors
}

fn container_resource(source: &ContainerResourceMetricSource, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let (name, at) = (source.name.as_str(), path.child("name"));
    if name.is_empty() {
        errors.push(Error::required(&at, "must specify a resource name"));
    } else {
        let faults = names::qualified_name(name);
        let mut complain = |fault: &str| errors.push(Error::invalid(&at, name, fault));
        faults.iter().for_each(|fault| complain(fault));
        if !name.contains('/') {
            if faults.is_empty() && !resources::is_standard(name) {
                complain("must be a standard resource type or fully qualified");
            }
            if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with("hugepages-") {
                complain("must be a standard resource for containers");
            }
        } else if !resources::is_prefixed_native(name) && !resources::is_extended(name) {
            complain("doesn't follow extended resource name standard");
        }
    }
    let (container, at) = (source.container.as_str(), path.child("container"));
    if container.is_empty() {
        errors.push(Error::required(&at, "must specify a container"));
    } else {
        let faults = names::dns1123_label(container);
        errors.extend(faults.into_iter().map(|fault| Error::invalid(&at, container, fault)));
    }
    errors.extend(resource_target(&source.target, &path.child("target")));
    errors
}

fn identifier(metric: &MetricIdentifier, path: &Path) -> Errors {
    let (name, at) = (metric.name.as_str(), path.child("name"));
    if name.is_empty() {
        return vec![Error::required(&at, "must specify a metric name")];
    }
    segment(name).into_iter().map(|fault| Error::invalid(&at, name, fault)).collect()
}

/// Returns what is wrong with a name that controllers write into a path. Upstream's client escapes the characters that end a path; ours
/// does not, and no object has them in its name.
fn segment(value: &str) -> Vec<String> {
    let mut faults = names::path_segment(value);
    if faults.is_empty() && !names::is_path_segment(value) {
        faults.push("may not contain '?', '#' or '\\'".to_owned());
    }
    faults
}

/// The target of a resource is either an amount or a share of the request.
fn resource_target(target: &MetricTarget, path: &Path) -> Errors {
    let mut errors = check_target(target, path);
    match (target.average_utilization, &target.average_value) {
        (None, None) => errors.push(Error::required(
            &path.child("averageUtilization"),
            "must set either a target raw value or a target utilization",
        )),
        (Some(_), Some(_)) => errors.push(Error::forbidden(
            &path.child("averageValue"),
            "may not set both a target raw value and a target utilization",
        )),
        _ => {}
    }
    errors
}

fn check_target(target: &MetricTarget, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let kind = target.type_.as_str();
    if kind.is_empty() {
        errors.push(Error::required(&path.child("type"), "must specify a metric target type"));
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let fault = "must be either Utilization, Value, or AverageValue";
        errors.push(Error::invalid(&path.child("type"), kind, fault));
    }
    for (field, amount) in [("value", &target.value), ("averageValue", &target.average_value)] {
        if let Some(amount) = amount.as_ref().map(resources::amount)
            && amount.sign() != 1
        {
            errors.push(Error::invalid(&path.child(field), amount.to_string(), "must be positive"));
        }
    }
    if let Some(percent @ ..1) = target.average_utilization {
        errors.push(Error::invalid(&path.child("averageUtilization"), percent, "must be greater than 0"));
    }
    errors
}

fn check_rules(rules: &HPAScalingRules, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let at = path.child("stabilizationWindowSeconds");
    match rules.stabilization_window_seconds {
        Some(seconds @ ..0) => {
            errors.push(Error::invalid(&at, seconds, "must be greater than or equal to zero"));
        }
        Some(seconds) if seconds > WINDOW_MAX => {
            let fault = format!("must be less than or equal to {WINDOW_MAX}");
            errors.push(Error::invalid(&at, seconds, fault));
        }
        _ => {}
    }
    let known = ["Disabled", "Max", "Min"];
    if let Some(select) = rules.select_policy.as_deref()
        && !known.contains(&select)
    {
        errors.push(Error::not_supported(&path.child("selectPolicy"), select, &known));
    }
    let path = path.child("policies");
    if rules.policies.is_empty() {
        errors.push(Error::required(&path, "must specify at least one Policy"));
    }
    for (index, policy) in rules.policies.iter().enumerate() {
        let path = path.index(index);
        if !matches!(policy.type_.as_str(), "Pods" | "Percent") {
            let known = ["Percent", "Pods"];
            errors.push(Error::not_supported(&path.child("type"), policy.type_.as_str(), &known));
        }
        for (field, number) in [("value", policy.value), ("periodSeconds", policy.period_seconds)] {
            if number <= 0 {
                errors.push(Error::invalid(&path.child(field), number, "must be greater than zero"));
            }
        }
        if policy.period_seconds > PERIOD_MAX {
            let fault = format!("must be less than or equal to {PERIOD_MAX}");
            errors.push(Error::invalid(&path.child("periodSeconds"), policy.period_seconds, fault));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mutated(spec: Value) -> Value {
        let mut object = json!({ "metadata": { "name": "h", "namespace": "ns" }, "spec": spec });
        mutate(&mut object).unwrap();
        object["spec"].take()
    }

    fn faults(spec: Value) -> Vec<String> {
        check(&serde_json::from_value(spec).unwrap(), &Path::new("spec"))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn finding_25_what_is_scaled_is_not_named_by_a_path() {
        for (name, fault) in [
            ("?watch=true", "may not contain '?', '#' or '\\'"),
            ("a#", "may not contain '?', '#' or '\\'"),
            ("a/b", "may not contain '/'"),
        ] {
            let target = json!({ "kind": "Deployment", "name": name });
            let found = faults(json!({ "scaleTargetRef": target, "maxReplicas": 3 }));
            assert!(
                found.len() == 1
                    && found[0].starts_with("spec.scaleTargetRef.name: ")
                    && found[0].ends_with(fault),
                "{name}: {found:?}"
            );
        }
    }

    #[test]
    fn a_minimal_autoscaler_watches_the_cpu() {
        let spec =
            mutated(json!({ "scaleTargetRef": { "kind": "Deployment", "name": "web" }, "maxReplicas": 3 }));
        assert_eq!(spec["minReplicas"], 1);
        assert_eq!(
            spec["metrics"],
            json!([{ "type": "Resource", "resource": {
                "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 },
            } }])
        );
        assert!(spec.get("behavior").is_none());
    }

    #[test]
    fn behaviour_is_rebuilt_in_both_directions_and_loses_its_tolerance() {
        let spec = mutated(json!({
            "scaleTargetRef": { "kind": "Deployment", "name": "web" }, "maxReplicas": 3,
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 60, "tolerance": "100m" } },
        }));
        assert_eq!(
            spec["behavior"],
            json!({
                "scaleUp": {
                    "stabilizationWindowSeconds": 0, "selectPolicy": "Max",
                    "policies": [
                        { "type": "Pods", "value": 4, "periodSeconds": 15 },
                        { "type": "Percent", "value": 100, "periodSeconds": 15 },
                    ],
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": 60, "selectPolicy": "Max",
                    "policies": [{ "type": "Percent", "value": 100, "periodSeconds": 15 }],
                },
            })
        );
    }

    #[test]
    fn an_external_metric_is_no_source() {
        let found = faults(json!({
            "scaleTargetRef": { "kind": "Deployment", "name": "web" }, "maxReplicas": 3,
            "metrics": [{ "type": "External", "external": {
                "metric": { "name": "queue" }, "target": { "type": "Value", "value": "1" },
            } }],
        }));
        let unsupported = "spec.metrics[0].type: Unsupported value: \"External\": supported values: \
                           \"ContainerResource\", \"Object\", \"Pods\", \"Resource\"";
        assert_eq!(found, [unsupported, unsupported], "reported twice, shown once");
    }

    #[test]
    fn replicas_reference_and_policies_are_checked_in_order() {
        let found = faults(json!({
            "scaleTargetRef": { "kind": "", "name": "a/b" }, "minReplicas": 0, "maxReplicas": -1,
            "behavior": { "scaleUp": {
                "stabilizationWindowSeconds": 3601, "selectPolicy": "Most",
                "policies": [{ "type": "Nodes", "value": 0, "periodSeconds": 1801 }],
            } },
        }));
        assert_eq!(
            found,
            [
                "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
                "spec.maxReplicas: Invalid value: -1: must be greater than 0",
                "spec.maxReplicas: Invalid value: -1: must be greater than or equal to `minReplicas`",
                "spec.scaleTargetRef.kind: Required value",
                "spec.scaleTargetRef.name: Invalid value: \"a/b\": may not contain '/'",
                "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to \
                 3600",
                "spec.behavior.scaleUp.selectPolicy: Unsupported value: \"Most\": supported values: \"Disabled\", \
                 \"Max\", \"Min\"",
                "spec.behavior.scaleUp.policies[0].type: Unsupported value: \"Nodes\": supported values: \"Percent\", \
                 \"Pods\"",
                "spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero",
                "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to \
                 1800",
            ]
        );
    }

    #[test]
    fn finding_25_there_are_only_so_many_metrics() {
        let object = |count: usize| {
            let metrics = vec![
                json!({ "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } } });
                count
            ];
            let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
            json!({
                "metadata": { "name": "s", "namespace": "ns" },
                "spec": { "maxReplicas": 3, "scaleTargetRef": target, "metrics": metrics },
            })
        };
        let judge = |old: Option<&Value>, object: &Value| {
            let request = Request {
                operation: crate::Operation::Update,
                group: "autoscaling.karmada.io",
                version: "v1alpha1",
                kind: "FederatedHPA",
                namespace: "ns",
                old,
            };
            validate(&request, object).map_err(|denial| denial.message)
        };
        assert_eq!(judge(None, &object(METRICS_MAX)), Ok(()));
        let (long, most) = (object(METRICS_MAX + 1), METRICS_MAX);
        let message = format!("spec.metrics: Too many: {}: must have at most {most} items", most + 1);
        assert_eq!(judge(None, &long), Err(message.clone()));
        assert_eq!(judge(Some(&object(1)), &long), Err(message));
        assert_eq!(judge(Some(&long), &long), Ok(()), "it was stored before, and is not changed");
    }
}
