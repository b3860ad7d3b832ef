//! Conversions against what a stock server answered for the same object in both versions.

use super::*;

fn check(pair: &str) {
    let [old, new]: [Value; 2] = serde_json::from_str(pair).expect("test data is a pair");
    let kind = |object: &Value| {
        Gvk::from_api_version(
            object["apiVersion"].as_str().unwrap_or_default(),
            object["kind"].as_str().unwrap_or_default(),
        )
    };
    let forth = convert(old.clone(), &kind(&old), &kind(&new)).expect("converts");
    // As in Go, a value that v1's annotations cannot leave out comes back as zero (the status has such), and the CPU
    // target, which has a field of its own, comes back last.
    let spec = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Some(metrics) = spec.get_mut("metrics").and_then(Value::as_array_mut) {
            metrics.sort_by_key(Value::to_string);
        }
        spec
    };
    assert_eq!(spec(&forth), spec(&new));
    assert_eq!(forth["metadata"], new["metadata"]);
    let there_and_back = convert(forth, &kind(&new), &kind(&old)).expect("converts");
    assert_eq!(there_and_back["spec"], old["spec"]);
    let back = convert(new.clone(), &kind(&new), &kind(&old)).expect("converts");
    assert_eq!(back, old);
}

#[test]
fn an_autoscaler_with_everything_converts_both_ways() {
    check(include_str!("../../testdata/convert/autoscaler-full.json"));
}

#[test]
fn an_autoscaler_without_metrics_aims_at_eighty_percent() {
    check(include_str!("../../testdata/convert/autoscaler-bare.json"));
}

#[test]
fn the_cpu_target_of_v1_is_a_metric_of_v2() {
    check(include_str!("../../testdata/convert/autoscaler-cpu.json"));
}

#[test]
fn events_convert_between_their_groups() {
    check(include_str!("../../testdata/convert/event-e1.json"));
    check(include_str!("../../testdata/convert/event-e2.json"));
}

#[test]
fn broken_annotations_are_ignored() {
    let v1 = Gvk::new("autoscaling", "v1", "HorizontalPodAutoscaler");
    let v2 = Gvk::new("autoscaling", "v2", "HorizontalPodAutoscaler");
    let object = serde_json::json!({
        "metadata": {"name": "x", "annotations": {
            "autoscaling.alpha.kubernetes.io/metrics": "[{\"type\": 1}]",
            "autoscaling.alpha.kubernetes.io/behavior": "{}",
            "autoscaling.alpha.kubernetes.io/conditions": "no json",
        }},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
    });
    let converted = convert(object, &v1, &v2).expect("converts");
    assert_eq!(converted["spec"]["metrics"].as_array().map(Vec::len), Some(1));
    assert_eq!(converted["spec"].get("behavior"), None);
    assert_eq!(converted["metadata"].get("annotations"), None);
}

#[test]
fn kinds_without_a_conversion_are_refused() {
    let (from, to) = (Gvk::new("", "v1", "Pod"), Gvk::new("apps", "v1", "Deployment"));
    assert!(matches!(convert(Value::Null, &from, &to), Err(Error::NoConversion { .. })));
}

#[test]
fn every_stored_resource_names_an_existing_storage_kind() {
    for resource in crate::resources::all().iter().filter(|resource| resource.is_stored()) {
        let stored = storage_kind(&resource.gvk());
        let home = crate::resources::of_kind(&stored.group, &stored.version, &stored.kind).expect("served");
        assert!(home.storage_version, "{stored}");
        assert_eq!(home.storage, resource.storage);
    }
}
