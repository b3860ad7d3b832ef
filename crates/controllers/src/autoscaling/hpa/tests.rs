//! What a FederatedHPA decides, case by case. The arithmetic itself has its cases in `workloads::autoscaling`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use workloads::autoscaling::{Container, Phase, Ready, Sample, Samples};

use super::decide::{decide, pause, refused, scaled};
use super::*;
use crate::autoscaling::Settings;
use crate::fixtures::{at, half_past, merged, read};

const NOW: i64 = 100_000;

fn scaler(otherwise: Value) -> Arc<FederatedHPA> {
    let base = json!({
        "metadata": { "name": "h", "namespace": "n" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "minReplicas": 1, "maxReplicas": 20,
            "metrics": [{ "type": "Resource", "resource": { "name": "cpu",
                "target": { "type": "Utilization", "averageUtilization": 50 } } }],
        },
    });
    Arc::new(read(merged(base, otherwise)))
}

fn pod(cluster: &str, name: &str) -> Pod {
    Pod {
        name: metrics::name(cluster, name),
        phase: Phase::Running,
        ready: Some(Ready { status: Some(true), since: Some(at(1)) }),
        started: Some(at(1)),
        containers: vec![Container { name: "c".to_owned(), requests: [("cpu".to_owned(), 100)].into() }],
        ..Pod::default()
    }
}

fn sample(value: i64) -> Sample {
    Sample { value, time: at(NOW), window: jiff::SignedDuration::from_secs(15) }
}

/// `count` pods in two clusters; each uses so many thousandths of a cpu.
fn target(replicas: i32, wanted: i32, used: &[i64]) -> Target {
    let place = |index: usize| (if index.is_multiple_of(2) { "m1" } else { "m2" }, format!("p{}", index / 2));
    let pods = (0..used.len()).map(|index| {
        let (cluster, name) = place(index);
        pod(cluster, &name)
    });
    let samples: Samples = used
        .iter()
        .enumerate()
        .map(|(index, value)| {
            let (cluster, name) = place(index);
            (metrics::name(cluster, &name), sample(*value))
        })
        .collect();
    Target {
        replicas,
        wanted,
        running: wanted,
        selector: "app=web".to_owned(),
        pods: pods.collect(),
        scalers: vec![("h".to_owned(), "n".to_owned())],
        measured: vec![Ok(Measured::Pods(samples))],
        ..Target::default()
    }
}

fn view(otherwise: Value, target: Target) -> View {
    View { scaler: scaler(otherwise), target: Ok(target), history: None, settings: Settings::default() }
}

/// Returns the conditions as `type=status reason`.
fn told(plan: &Plan) -> Vec<String> {
    let one = |it: &api::autoscaling::HPACondition| format!("{}={} {}", it.type_, it.status, it.reason);
    plan.status.conditions.iter().map(one).collect()
}

#[test]
fn the_load_of_all_clusters_decides() {
    for (name, target, rescale) in [
        ("twice the load, divided", target(4, 4, &[100; 4]), Some(8)),
        ("twice the load, duplicated in two clusters", target(2, 4, &[100; 4]), Some(4)),
        ("all is well", target(4, 4, &[50; 4]), None),
        ("one cluster is idle", target(4, 4, &[100, 0, 100, 0]), None),
        ("nothing is used", target(4, 4, &[0; 4]), None),
        ("more than allowed at once", target(4, 4, &[1000; 4]), Some(8)),
    ] {
        let plan = decide(&view(json!({}), target), at(NOW));
        assert_eq!(plan.rescale.as_ref().map(|(replicas, _)| *replicas), rescale, "{name}");
        assert_eq!(plan.error, None, "{name}");
        assert_eq!(plan.status.last_scale_time.is_some(), rescale.is_some(), "{name}");
    }
}

#[test]
fn a_rescale_is_explained() {
    let plan = decide(&view(json!({}), target(4, 4, &[100; 4])), at(NOW));
    assert_eq!(
        plan.rescale,
        Some((8, "cpu resource utilization (percentage of request) above target".to_owned()))
    );
    let able = "AbleToScale=True SucceededRescale";
    assert_eq!(
        told(&plan),
        [able, "ScalingActive=True ValidMetricFound", "ScalingLimited=False DesiredWithinRange"]
    );
    assert_eq!((plan.status.current_replicas, plan.status.desired_replicas), (4, 8));
    let metric = serde_json::to_value(plan.status.current_metrics.as_ref().unwrap()).unwrap();
    let current = json!({ "averageUtilization": 100, "averageValue": "100m" });
    assert_eq!(metric, json!([{ "type": "Resource", "resource": { "name": "cpu", "current": current } }]));
    let failed = refused(&view(json!({}), target(4, 4, &[100; 4])), &plan, "no", at(NOW));
    assert_eq!(failed.conditions[0].reason, "FailedUpdateScale");
    assert_eq!(failed.conditions[0].message, "the HPA controller was unable to update the target scale: no");
}

#[test]
fn a_change_that_is_refused_leaves_what_the_status_said_of_the_last_one() {
    let old = json!({ "status": {
        "currentReplicas": 3, "desiredReplicas": 3, "lastScaleTime": "1970-01-01T00:00:05Z",
        "currentMetrics": [{ "type": "Resource" }],
    } });
    let view = view(old, target(4, 4, &[100; 4]));
    let plan = decide(&view, at(NOW));
    let failed = refused(&view, &plan, "no", at(NOW));
    let known = &view.scaler.status;
    assert_eq!(failed.last_scale_time, Some(Time(at(5))));
    assert_eq!(failed.current_metrics, known.current_metrics);
    assert_eq!((failed.current_replicas, failed.desired_replicas), (4, 3));
    assert_ne!(plan.status.current_metrics, known.current_metrics, "the plan says what is measured now");
}

#[test]
fn times_have_whole_seconds() {
    let plan = decide(&view(json!({}), target(4, 4, &[100; 4])), half_past(NOW));
    assert_eq!(plan.status.last_scale_time, Some(Time(at(NOW))));
    let times = plan.status.conditions.iter().map(|it| it.last_transition_time.clone());
    assert_eq!(times.collect::<Vec<_>>(), vec![Some(Time(at(NOW))); 3]);
}

#[test]
fn going_down_waits_for_its_window() {
    let mut view = view(json!({}), target(4, 4, &[10; 4]));
    let first = decide(&view, at(NOW));
    assert_eq!(
        (first.rescale.as_ref(), first.status.conditions[0].reason.as_str()),
        (None, "ScaleDownStabilized")
    );
    view.history = first.history;
    assert_eq!(decide(&view, at(NOW + 300)).rescale, None);
    let later = decide(&view, at(NOW + 301));
    assert_eq!(later.rescale, Some((1, "All metrics below target".to_owned())));
}

#[test]
fn a_behaviour_is_followed() {
    let up = json!({ "spec": { "behavior": { "scaleUp": { "stabilizationWindowSeconds": 0, "selectPolicy": "Max",
        "policies": [{ "type": "Pods", "value": 1, "periodSeconds": 60 }] }, "scaleDown": {
        "selectPolicy": "Disabled", "policies": [{ "type": "Percent", "value": 100, "periodSeconds": 15 }] } } } });
    let mut slow = view(up.clone(), target(4, 4, &[100; 4]));
    let plan = decide(&slow, at(NOW));
    assert_eq!(plan.rescale.as_ref().map(|(replicas, _)| *replicas), Some(5));
    assert_eq!(told(&plan)[2], "ScalingLimited=True ScaleUpLimit");
    let mut history = plan.history.expect("a history");
    scaled(&slow, &mut history, 5, at(NOW));
    slow.history = Some(history.clone());
    slow.target = Ok(target(5, 5, &[100; 5]));
    assert_eq!(decide(&slow, at(NOW + 59)).rescale, None, "one a minute");
    assert!(decide(&slow, at(NOW + 60)).rescale.is_some());
    let mut never = view(up, target(4, 4, &[10; 4]));
    never.history = Some(History::since(4, at(0)));
    assert_eq!(decide(&never, at(NOW)).rescale, None);
}

#[test]
fn limits_count_before_metrics() {
    let limits = |least: i32, most: i32| json!({ "spec": { "minReplicas": least, "maxReplicas": most } });
    let above = decide(&view(limits(1, 1), target(3, 3, &[])), at(NOW));
    assert_eq!(above.rescale, Some((1, "Current number of replicas above Spec.MaxReplicas".to_owned())));
    let below = decide(&view(limits(2, 100), target(1, 1, &[])), at(NOW));
    assert_eq!(below.rescale, Some((2, "Current number of replicas below Spec.MinReplicas".to_owned())));
    assert_eq!(told(&below), ["AbleToScale=True SucceededRescale"]);
    let asks = |otherwise: Value, replicas: i32| View::asks_metrics(&scaler(otherwise), replicas);
    assert_eq!(
        [1, 2, 99, 100, 101].map(|replicas| asks(limits(2, 100), replicas)),
        [false, true, true, true, false]
    );
    let unsaid = || json!({ "spec": { "minReplicas": null } });
    assert_eq!([0, 1].map(|replicas| asks(unsaid(), replicas)), [false, true], "one is the least by default");
    assert_eq!(
        decide(&view(unsaid(), target(0, 0, &[])), at(NOW)).rescale.map(|(replicas, _)| replicas),
        Some(1)
    );
}

#[test]
fn metrics_that_cannot_be_had_are_told() {
    let mut none = target(4, 4, &[100; 4]);
    none.measured = vec![Err("no metrics returned from resource metrics API".to_owned())];
    let mut view = view(json!({}), none);
    view.history = Some(History::since(4, at(0)));
    let plan = decide(&view, at(NOW));
    let why = "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API";
    assert_eq!(plan.rescale, None);
    assert_eq!(told(&plan)[1], "ScalingActive=False FailedGetResourceMetric");
    assert_eq!(
        plan.status.conditions[1].message,
        format!("the HPA was unable to compute the replica count: {why}")
    );
    let all = format!(
        "invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: {why}"
    );
    assert_eq!(
        plan.events,
        [("FailedGetResourceMetric", why.to_owned()), ("FailedComputeMetricsReplicas", all.clone())]
    );
    assert_eq!(plan.error, Some(all));
    assert_eq!(plan.status.current_replicas, 4);
    assert_eq!(plan.history, view.history, "what was recommended before still counts");
}

#[test]
fn one_bad_metric_stops_going_down_but_not_up() {
    let memory = json!({ "type": "Resource", "resource": { "name": "memory",
        "target": { "type": "AverageValue", "averageValue": "1Gi" } } });
    let two = json!({ "spec": { "metrics": [
        { "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } } },
        memory,
    ] } });
    let (active, inactive) =
        ("ScalingActive=True ValidMetricFound", "ScalingActive=False FailedGetResourceMetric");
    for (used, rescale, told_of_metrics) in [(100, Some(8), active), (50, None, active), (10, None, inactive)]
    {
        let mut both = target(4, 4, &[used; 4]);
        both.measured.push(Err("gone".to_owned()));
        let mut view = view(two.clone(), both);
        view.history = Some(History::default());
        let plan = decide(&view, at(NOW));
        assert_eq!(plan.rescale.as_ref().map(|(replicas, _)| *replicas), rescale, "{used}");
        assert_eq!(told(&plan)[1], told_of_metrics, "{used}");
        assert!(
            plan.error
                .as_ref()
                .is_some_and(|error| error.starts_with("invalid metrics (1 invalid out of 2)"))
        );
    }
}

#[test]
fn each_source_has_its_name() {
    let metric = |source: Value| json!({ "spec": { "metrics": [source] } });
    let object =
        json!({ "describedObject": { "kind": "Ingress", "name": "i" }, "metric": { "name": "hits" } });
    let with = |base: &Value, target: Value| merged(base.clone(), json!({ "target": target }));
    // Of two clusters together: each has a pod of that name.
    let bare: Samples = [("p0".to_owned(), sample(200_000)), ("p1".to_owned(), sample(200_000))].into();
    for (name, source, measured, rescale) in [
        (
            "cpu resource",
            json!({ "type": "Resource", "resource": { "name": "cpu", "target": { "type": "AverageValue", "averageValue": "50m" } } }),
            Measured::Pods(
                target(4, 4, &[100; 4])
                    .measured
                    .remove(0)
                    .map(|it| match it {
                        Measured::Pods(it) => it,
                        Measured::Value(_) => Samples::new(),
                    })
                    .unwrap(),
            ),
            8,
        ),
        (
            "pods metric hits",
            json!({ "type": "Pods", "pods": { "metric": { "name": "hits" }, "target": { "type": "AverageValue", "averageValue": "50" } } }),
            Measured::Pods(bare),
            8,
        ),
        (
            "Ingress metric hits",
            json!({ "type": "Object", "object": with(&object, json!({ "type": "Value", "value": "50" })) }),
            Measured::Value(100_000),
            8,
        ),
        (
            "external metric hits(nil)",
            json!({ "type": "Object", "object": with(&object, json!({ "type": "AverageValue", "averageValue": "50" })) }),
            Measured::Value(400_000),
            8,
        ),
        (
            "external metric hits(&LabelSelector{MatchLabels:map[string]string{q: a,},MatchExpressions:[]LabelSelectorRequirement{},})",
            json!({ "type": "External", "external": { "metric": { "name": "hits", "selector": { "matchLabels": { "q": "a" } } },
                "target": { "type": "AverageValue", "averageValue": "50" } } }),
            Measured::Value(400_000),
            8,
        ),
    ] {
        let mut target = target(4, 4, &[100; 4]);
        target.measured = vec![Ok(measured)];
        let plan = decide(&view(metric(source), target), at(NOW));
        assert_eq!(plan.rescale, Some((rescale, format!("{name} above target"))), "{name}: {:?}", plan.error);
    }
    let odd = decide(&view(metric(json!({ "type": "Odd" })), target(4, 4, &[100; 4])), at(NOW));
    assert_eq!(told(&odd)[1], "ScalingActive=False InvalidMetricSourceType");
}

#[test]
fn a_custom_metric_of_pods_of_one_name_is_their_sum() {
    let hits = json!({ "spec": { "metrics": [{ "type": "Pods", "pods": {
        "metric": { "name": "hits" }, "target": { "type": "AverageValue", "averageValue": "50" } } }] } });
    let decided = |samples: &[(&str, i64)], change: &dyn Fn(&mut Target)| {
        let samples = samples.iter().map(|(name, hits)| ((*name).to_owned(), sample(hits * 1000)));
        let mut copies = target(2, 4, &[0; 4]);
        copies.measured = vec![Ok(Measured::Pods(samples.collect()))];
        change(&mut copies);
        let plan = decide(&view(hits.clone(), copies), at(NOW));
        let metrics = serde_json::to_value(&plan.status.current_metrics).unwrap();
        let average = metrics[0]["pods"]["current"]["averageValue"].as_str().map(str::to_owned);
        (plan.rescale.map(|(replicas, _)| replicas), average.unwrap_or_default())
    };
    let same = |_: &mut Target| {};
    let shown = |average: &str| average.to_owned();
    let right = [("p0", 100), ("p1", 100)];
    assert_eq!(decided(&right, &same), (None, shown("50")), "each has as much as it should");
    assert_eq!(decided(&[("p0", 200), ("p1", 200)], &same), (Some(4), shown("100")));
    let waits = |target: &mut Target| target.pods[1].phase = Phase::Pending;
    assert_eq!(decided(&[("p0", 50), ("p1", 100)], &waits), (None, shown("50")), "m2/p0 has said nothing");
    let alone = |target: &mut Target| target.pods.truncate(3);
    assert_eq!(decided(&[("p0", 100), ("p1", 50)], &alone), (None, shown("50")), "m1/p1 has no copy");
    let odd = [("p0", 100), ("p1", 100), ("elsewhere", 300)];
    assert_eq!(decided(&odd, &same), (Some(4), shown("100")), "as upstream, one that is not known counts");
}

#[test]
fn a_scale_without_replicas_is_not_written() {
    let least = json!({ "spec": { "minReplicas": 2, "maxReplicas": 100 } });
    for (name, replicas, wanted, planned, written) in [
        ("it has replicas", 1, Some(1), true, true),
        ("it has none, as it says", 0, Some(0), true, true),
        ("it does not say how many", 0, None, true, false),
        ("nothing changes", 2, Some(2), false, false),
    ] {
        let mut target = target(replicas, 2, &[50, 50]);
        target.template.wanted = wanted;
        let plan = decide(&view(least.clone(), target), at(NOW));
        assert_eq!((plan.rescale.is_some(), plan.is_written), (planned, written), "{name}");
    }
}

#[test]
fn how_long_a_failure_is_waited_for() {
    let seconds = std::time::Duration::from_secs;
    let hour = 3600;
    for (failures, period, expected) in
        [(0, 15, 1), (1, 15, 2), (3, 15, 8), (4, 15, 15), (16, 15, 15), (11, hour, 2048), (12, hour, hour)]
    {
        assert_eq!(pause(failures, seconds(period)), seconds(expected), "{failures}");
    }
    assert_eq!(pause(u32::MAX, seconds(hour)), seconds(hour), "it does not overflow");
    assert_eq!(pause(0, std::time::Duration::ZERO), std::time::Duration::ZERO);
}

#[test]
fn several_autoscalers_for_the_same_pods_do_nothing() {
    let mut both = target(4, 4, &[100; 4]);
    both.scalers.push(("other".to_owned(), "n".to_owned()));
    let plan = decide(&view(json!({}), both), at(NOW));
    assert_eq!((&plan.rescale, told(&plan)[1].as_str()), (&None, "ScalingActive=False AmbiguousSelector"));
    let why = "pods by selector app=web are controlled by multiple HPAs: [{h n} {other n}]";
    assert_eq!(plan.error.as_deref(), Some(why));
    let failed = ("FailedComputeMetricsReplicas", why.to_owned());
    assert_eq!(plan.events, [("AmbiguousSelector", why.to_owned()), failed]);
}

#[test]
fn what_cannot_be_found_is_told() {
    let fault = Fault {
        event: "FailedGetBindings",
        condition: "FailedGetBinding",
        what: "get it",
        error: "no".to_owned(),
    };
    let history = Some(History::since(4, at(0)));
    let unknown = View { target: Err(fault), history, ..view(json!({}), Target::default()) };
    let plan = decide(&unknown, at(NOW));
    assert_eq!(plan.error.as_deref(), Some("no"));
    assert_eq!(plan.history, unknown.history, "what was recommended before still counts");
    assert_eq!(told(&plan), ["AbleToScale=False FailedGetBinding"]);
    assert_eq!(plan.status.conditions[0].message, "the HPA controller was unable to get it: no");
    assert_eq!(plan.events, [("FailedGetBindings", "no".to_owned())]);
    let mut missing = target(4, 4, &[100; 4]);
    missing.faults.push(("SelectorRequired", "selector is required".to_owned()));
    let plan = decide(&view(json!({}), missing), at(NOW));
    assert_eq!(plan.events[0], ("SelectorRequired", "selector is required".to_owned()));
}

#[test]
fn the_time_of_a_condition_is_that_of_its_last_change() {
    let first = decide(&view(json!({}), target(4, 4, &[50; 4])), at(NOW));
    let mut second = view(json!({}), target(4, 4, &[50; 4]));
    let mut known = second.scaler.as_ref().clone();
    known.status = first.status.clone();
    second.scaler = Arc::new(known);
    assert_eq!(decide(&second, at(NOW + 15)).status, first.status, "nothing changes, so nothing is written");
}

#[test]
fn the_scale_of_common_kinds_is_read_from_the_object() {
    let object = json!({ "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "web", "tier": "a" } } },
        "status": { "replicas": 2 } });
    let scale = scale_of(&object);
    assert_eq!((scale.wanted, scale.running, scale.selector.as_str()), (Some(3), 2, "app=web,tier=a"));
    assert_eq!(scale_of(&json!({ "spec": {} })).selector, "", "nothing is selected without a selector");
}

/// One metric of each kind, by its type.
fn source(kind: &str, goal: Value) -> Value {
    let object = json!({ "kind": "Ingress", "name": "i" });
    match kind {
        "Resource" => json!({ "type": kind, "resource": { "name": "cpu", "target": goal } }),
        "ContainerResource" => {
            json!({ "type": kind, "containerResource": { "name": "cpu", "container": "c", "target": goal } })
        }
        "Pods" => json!({ "type": kind, "pods": { "metric": { "name": "hits" }, "target": goal } }),
        "Object" => {
            json!({ "type": kind, "object": { "describedObject": object, "metric": { "name": "hits" }, "target": goal } })
        }
        "External" => json!({ "type": kind, "external": { "metric": { "name": "hits" }, "target": goal } }),
        odd => json!({ "type": odd }),
    }
}

fn with_metrics(metrics: &[Value]) -> Value {
    json!({ "spec": { "metrics": metrics } })
}

#[test]
fn what_is_told_of_a_metric_that_cannot_be_used() {
    let value = || json!({ "type": "Value", "value": "50" });
    let average = || json!({ "type": "AverageValue", "averageValue": "50" });
    let percent = || json!({ "type": "Utilization", "averageUtilization": 50 });
    let none = || json!({ "type": "Utilization" });
    let lacking = |source: &str| {
        format!("invalid {source} metric source: neither a value target nor an average value target was set")
    };
    let gone = || Some(Err("gone".to_owned()));
    let cpu = "failed to get cpu utilization: unable to get metrics for resource cpu: gone";
    let on_object = |why: &str| format!("unable to get metric hits: {why} on Ingress n/i");
    let external = "unable to get external metric n/hits/nil: gone";
    let no_custom = "no metrics returned from custom metrics API";
    let untargeted = "invalid resource metric source: neither an average utilization target nor an average value target was set";
    let unknown = "unknown metric source type \"Odd\"";
    // Type, target, what was measured; then: reason, what the condition says, and what the error says before that.
    for (kind, goal, measured, reason, condition, before) in [
        (
            "Resource",
            percent(),
            gone(),
            "FailedGetResourceMetric",
            cpu.to_owned(),
            "failed to get cpu resource metric value: ",
        ),
        (
            "Resource",
            none(),
            gone(),
            "FailedGetResourceMetric",
            untargeted.to_owned(),
            "failed to get cpu resource metric value: ",
        ),
        (
            "Resource",
            percent(),
            None,
            "FailedGetResourceMetric",
            cpu.replace("gone", "nothing was measured"),
            "failed to get cpu resource metric value: ",
        ),
        (
            "ContainerResource",
            percent(),
            gone(),
            "FailedGetContainerResourceMetric",
            cpu.to_owned(),
            "failed to get c container metric value: ",
        ),
        (
            "Pods",
            average(),
            gone(),
            "FailedGetPodsMetric",
            "unable to get metric hits: gone".to_owned(),
            "failed to get pods metric value: ",
        ),
        (
            "Object",
            value(),
            gone(),
            "FailedGetObjectMetric",
            on_object("gone"),
            "failed to get object metric value: ",
        ),
        (
            "Object",
            value(),
            Some(Ok(Measured::Pods(Samples::new()))),
            "FailedGetObjectMetric",
            on_object(no_custom),
            "failed to get object metric value: ",
        ),
        (
            "Object",
            average(),
            gone(),
            "FailedGetObjectMetric",
            on_object("gone"),
            "failed to get object metric value: failed to get hits object metric: ",
        ),
        (
            "Object",
            none(),
            gone(),
            "FailedGetObjectMetric",
            lacking("object"),
            "failed to get object metric value: ",
        ),
        (
            "External",
            value(),
            gone(),
            "FailedGetExternalMetric",
            external.to_owned(),
            "failed to get hits external metric value: ",
        ),
        (
            "External",
            none(),
            Some(Ok(Measured::Value(1))),
            "FailedGetExternalMetric",
            lacking("external"),
            "failed to get hits external metric value: ",
        ),
        ("Odd", none(), gone(), "InvalidMetricSourceType", unknown.to_owned(), ""),
    ] {
        let mut target = target(4, 4, &[100; 4]);
        target.measured = measured.into_iter().collect();
        let plan = decide(&view(with_metrics(&[source(kind, goal)]), target), at(NOW));
        assert_eq!(told(&plan)[1], format!("ScalingActive=False {reason}"), "{kind}");
        let message = format!("the HPA was unable to compute the replica count: {condition}");
        assert_eq!(plan.status.conditions[1].message, message, "{kind}");
        assert_eq!(plan.events[0], (reason, condition.clone()), "{kind}");
        let error = format!("invalid metrics (1 invalid out of 1), first error is: {before}{condition}");
        assert_eq!(plan.error, Some(error), "{kind}");
    }
}

#[test]
fn what_is_measured_is_in_the_status() {
    let (value, average) =
        (json!({ "type": "Value", "value": "50" }), json!({ "type": "AverageValue", "averageValue": "50" }));
    let percent = json!({ "type": "Utilization", "averageUtilization": 50 });
    let pods = || target(4, 4, &[100; 4]).measured.remove(0).expect("samples");
    let (metric, object) = (json!({ "name": "hits" }), json!({ "kind": "Ingress", "name": "i" }));
    for (kind, goal, measured, name, expected) in [
        (
            "ContainerResource",
            &percent,
            pods(),
            "cpu container resource utilization (percentage of request)",
            json!({ "type": "ContainerResource", "containerResource": {
                "name": "cpu", "container": "c", "current": { "averageUtilization": 100, "averageValue": "100m" } } }),
        ),
        (
            "ContainerResource",
            &json!({ "type": "AverageValue", "averageValue": "50m" }),
            pods(),
            "cpu resource",
            json!({ "type": "ContainerResource", "containerResource": {
                "name": "cpu", "container": "c", "current": { "averageValue": "100m" } } }),
        ),
        (
            "Object",
            &value,
            Measured::Value(100_000),
            "Ingress metric hits",
            json!({ "type": "Object", "object": { "metric": metric, "describedObject": object, "current": { "value": "100" } } }),
        ),
        (
            "Object",
            &average,
            Measured::Value(400_000),
            "external metric hits(nil)",
            json!({ "type": "Object", "object": { "metric": metric, "describedObject": object, "current": { "averageValue": "100" } } }),
        ),
        (
            "External",
            &value,
            Measured::Value(100_000),
            "external metric hits(nil)",
            json!({ "type": "External", "external": { "metric": metric, "current": { "value": "100" } } }),
        ),
        (
            "External",
            &average,
            Measured::Value(400_000),
            "external metric hits(nil)",
            json!({ "type": "External", "external": { "metric": metric, "current": { "averageValue": "100" } } }),
        ),
    ] {
        let mut target = target(4, 4, &[100; 4]);
        target.measured = vec![Ok(measured)];
        let plan = decide(&view(with_metrics(&[source(kind, goal.clone())]), target), at(NOW));
        assert_eq!(plan.rescale, Some((8, format!("{name} above target"))), "{kind}: {:?}", plan.error);
        assert_eq!(json!(plan.status.current_metrics), json!([expected]), "{kind}");
        let message = format!("the HPA was able to successfully calculate a replica count from {name}");
        assert_eq!(plan.status.conditions[1].message, message, "{kind}");
    }
}

#[test]
fn a_selector_of_a_metric_is_shown_as_go_prints_it() {
    let selector = json!({ "matchExpressions": [
        { "key": "q", "operator": "In", "values": ["a", "b"] }, { "key": "r", "operator": "Exists" },
    ] });
    let source = json!({ "type": "External", "external": {
        "metric": { "name": "hits", "selector": selector }, "target": { "type": "Value", "value": "50" } } });
    let mut target = target(4, 4, &[100; 4]);
    target.measured = vec![Ok(Measured::Value(100_000))];
    let plan = decide(&view(with_metrics(&[source]), target), at(NOW));
    let shown = "&LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement{\
        LabelSelectorRequirement{Key:q,Operator:In,Values:[a b],},LabelSelectorRequirement{Key:r,Operator:Exists,Values:[],},},}";
    assert_eq!(plan.rescale, Some((8, format!("external metric hits({shown}) above target"))));
}

#[test]
fn metrics_that_all_ask_for_nothing_are_told_of_by_the_last_one() {
    let named = |name: &str| json!({ "type": "External", "external": { "metric": { "name": name }, "target": { "type": "Value", "value": "50" } } });
    let mut idle = target(4, 4, &[100; 4]);
    idle.measured = vec![Ok(Measured::Value(0)), Ok(Measured::Value(0))];
    let plan = decide(&view(with_metrics(&[named("a"), named("b")]), idle), at(NOW));
    let told = "the HPA was able to successfully calculate a replica count from external metric b(nil)";
    assert_eq!(plan.status.conditions[1].message, told, "as upstream");
}

#[test]
fn a_workload_without_replicas_whose_metrics_cannot_be_had_is_told() {
    let mut none = target(0, 0, &[]);
    none.measured = vec![Err("gone".to_owned())];
    let plan = decide(&view(json!({ "spec": { "minReplicas": 0 } }), none), at(NOW));
    assert_eq!((plan.rescale.is_none(), plan.error.is_some()), (true, true));
    assert_eq!(told(&plan)[1], "ScalingActive=False FailedGetResourceMetric");
}

#[test]
fn selectors_that_cannot_be_used_are_told() {
    let faults = [
        ("SelectorRequired", "selector is required", "the HPA target's scale is missing a selector"),
        ("InvalidSelector", "no selector", "no selector"),
    ];
    for (event, fault, told_of) in faults {
        let mut above = target(3, 3, &[]);
        above.faults.push((event, fault.to_owned()));
        let plan = decide(&view(json!({ "spec": { "maxReplicas": 1 } }), above), at(NOW));
        assert_eq!(told(&plan), ["ScalingActive=False InvalidSelector", "AbleToScale=True SucceededRescale"]);
        assert_eq!(plan.status.conditions[0].message, told_of);
        assert_eq!(plan.events, [(event, fault.to_owned())]);
    }
}

#[test]
fn what_was_recommended_a_moment_ago_counts_although_all_is_well_now() {
    let more = decide(&view(json!({}), target(8, 8, &[50; 8])), at(NOW));
    let mut well = view(json!({}), target(4, 4, &[50; 4]));
    well.history = more.history;
    let plan = decide(&well, at(NOW + 10));
    assert_eq!(plan.rescale, Some((8, String::new())), "no metric is above its target or below it");
}

#[test]
fn a_direction_without_rules_has_those_of_admission() {
    let up_only = json!({ "spec": { "behavior": { "scaleUp": { "policies": [
        { "type": "Pods", "value": 1, "periodSeconds": 60 }] } } } });
    let mut idle = view(up_only, target(4, 4, &[0; 4]));
    idle.history = decide(&idle, at(NOW)).history;
    assert_eq!(decide(&idle, at(NOW + 299)).rescale, None, "five minutes");
    let plan = decide(&idle, at(NOW + 301));
    assert_eq!(plan.rescale.map(|(replicas, _)| replicas), Some(1), "as many as there are");
    let down_only = json!({ "spec": { "behavior": { "scaleDown": { "policies": [
        { "type": "Pods", "value": 1, "periodSeconds": 60 }] } } } });
    let plan = decide(&view(down_only, target(4, 4, &[1000; 4])), at(NOW));
    assert_eq!(plan.rescale.map(|(replicas, _)| replicas), Some(8), "twice as many at once");
}
