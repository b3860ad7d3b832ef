//! HorizontalPodAutoscalers: as many replicas as the load needs.
//!
//! The load is the one that was set for the pods; without one they idle. Only resource metrics are supported. With the default
//! policies, scaling up is not limited, and scaling down waits for the stabilisation window since the last change.

use apimachinery::conditions;
use apimachinery::quantity::Quantity;
use apimachinery::selector::LabelSelector;
use jiff::SignedDuration;
use serde_json::{Value, json};
use workloads::autoscaling::{self, Limit, Pod, Sample, Samples, Settings, Workload};

use crate::kinds::Kind;
use crate::metrics::Usage;
use crate::objects::{Object, is_active, list, number, stamp, text, time};
use crate::plan::Step;
use crate::view::View;

const SOURCE: &str = "horizontal-pod-autoscaler";

pub(crate) fn decide(view: &View<'_>, scaler: &Value) -> Vec<Step> {
    let mut steps = vec![Step::Again(view.delays.autoscale)];
    let space = scaler.namespace();
    let reference = &scaler["spec"]["scaleTargetRef"];
    let kind = Kind::of(text(reference, "/apiVersion"), text(reference, "/kind"));
    let Some(target) = kind.and_then(|kind| Some((kind, view.get(kind, space, text(reference, "/name"))?)))
    else {
        let mut status = status_of(scaler);
        let message = format!(
            "the HPA controller was unable to get the target's current scale: {} {:?} not found",
            text(reference, "/kind"),
            text(reference, "/name")
        );
        condition(view, &mut status, "AbleToScale", "False", "FailedGetScale", &message);
        if status != scaler["status"] {
            steps.push(Step::status(Kind::Autoscaler, scaler, status));
        }
        return steps;
    };
    let (kind, object) = target;
    let Ok(selector) = LabelSelector::from_object(object.pointer("/spec/selector")) else { return steps };
    let mut pods = view.objects.selected(Kind::Pod, space, &selector);
    pods.retain(is_active);
    let usage = Usage::of(view.objects, &view.troubles.loads);
    let current = number(&object, "/spec/replicas").unwrap_or(1);
    let mut status = status_of(scaler);
    condition(
        view,
        &mut status,
        "AbleToScale",
        "True",
        "ReadyForNewScale",
        "recommended size matches current size",
    );
    let (mut desired, mut metrics) = (None, Vec::new());
    for metric in list(scaler, "/spec/metrics") {
        if let Some((wanted, shown)) = judge(&usage, metric, &pods, current, view.now) {
            desired = Some(desired.map_or(wanted, |so_far: i64| so_far.max(wanted)));
            metrics.push(shown);
        }
    }
    status["currentReplicas"] = json!(current);
    let Some(wanted) = desired.filter(|_| current > 0) else {
        let message = if current == 0 {
            "scaling is disabled since the replica count of the target is zero"
        } else {
            "the HPA was unable to compute the replica count: no metric of a kind that is simulated, or no requests"
        };
        let reason = if current == 0 { "ScalingDisabled" } else { "FailedGetResourceMetric" };
        condition(view, &mut status, "ScalingActive", "False", reason, message);
        status["desiredReplicas"] = json!(current);
        if status != scaler["status"] {
            steps.push(Step::status(Kind::Autoscaler, scaler, status));
        }
        return steps;
    };
    status["currentMetrics"] = metrics.into();
    condition(
        view,
        &mut status,
        "ScalingActive",
        "True",
        "ValidMetricFound",
        "the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)",
    );
    let least = number(scaler, "/spec/minReplicas").unwrap_or(1);
    let most = number(scaler, "/spec/maxReplicas").unwrap_or(1);
    let (limited, limit) = autoscaling::limited(wanted, least, most);
    let (value, reason, message) = match limit {
        Limit::TooMany => {
            ("True", "TooManyReplicas", "the desired replica count is more than the maximum replica count")
        }
        Limit::TooFew => {
            ("True", "TooFewReplicas", "the desired replica count is less than the minimum replica count")
        }
        Limit::Within => ("False", "DesiredWithinRange", "the desired count is within the acceptable range"),
    };
    condition(view, &mut status, "ScalingLimited", value, reason, message);
    let window = number(scaler, "/spec/behavior/scaleDown/stabilizationWindowSeconds")
        .unwrap_or(autoscaling::SCALE_DOWN_WINDOW);
    let last = time(scaler, "/status/lastScaleTime").or_else(|| time(scaler, "/metadata/creationTimestamp"));
    let next = autoscaling::next(current, limited, last, window, view.now);
    status["desiredReplicas"] = json!(next);
    if next != current {
        let mut object = object.clone();
        object["spec"]["replicas"] = json!(next);
        steps.push(Step::Update { kind, object });
        status["lastScaleTime"] = json!(stamp(view.now));
        condition(
            view,
            &mut status,
            "AbleToScale",
            "True",
            "SucceededRescale",
            &format!("the HPA controller was able to update the target scale to {next}"),
        );
        let why = if next > current {
            "cpu resource utilization (percentage of request) above target"
        } else {
            "All metrics below target"
        };
        let message = format!("New size: {next}; reason: {why}");
        steps.push(Step::event(scaler, SOURCE, "SuccessfulRescale", message));
    }
    if status != scaler["status"] {
        steps.push(Step::status(Kind::Autoscaler, scaler, status));
    }
    steps
}

fn status_of(scaler: &Value) -> Value {
    let mut status = if scaler["status"].is_object() { scaler["status"].clone() } else { json!({}) };
    status["currentMetrics"] = Value::Null;
    status["desiredReplicas"] = json!(number(scaler, "/status/desiredReplicas").unwrap_or(0));
    status
}

fn condition(view: &View<'_>, status: &mut Value, kind: &str, value: &str, reason: &str, message: &str) {
    conditions::set(status, conditions::condition(kind, value, reason, message), &stamp(view.now));
}

/// Returns the replicas that a metric requires, and the text of its current value.
fn judge(
    usage: &Usage,
    metric: &Value,
    pods: &[Value],
    current: i64,
    now: jiff::Timestamp,
) -> Option<(i64, Value)> {
    if text(metric, "/type") != "Resource" {
        return None;
    }
    let resource = text(metric, "/resource/name");
    let sample = |pod: &Value| {
        let used = usage.pod(pod);
        let thousandths = if resource == "cpu" { used.milli_cpu } else { used.bytes.saturating_mul(1000) };
        let value = i64::try_from(thousandths).unwrap_or(i64::MAX);
        (pod.name().to_owned(), Sample { value, time: now, window: SignedDuration::ZERO })
    };
    let samples: Samples = pods.iter().map(sample).collect();
    let pods: Vec<Pod> = pods.iter().map(Pod::read).collect();
    let workload = Workload { replicas: i32::try_from(current).ok()?, calibration: 1.0, pods: &pods };
    // A load acts immediately, without a warm-up time for pods.
    let settings = Settings {
        cpu_initialization: SignedDuration::ZERO,
        readiness_delay: SignedDuration::ZERO,
        ..Settings::default()
    };
    let proposal = match text(metric, "/resource/target/type") {
        "Utilization" => {
            let target = i32::try_from(number(metric, "/resource/target/averageUtilization")?).ok()?.max(1);
            autoscaling::by_utilization(&workload, samples, resource, None, target, &settings, now)
        }
        _ => {
            let target = Quantity::parse(text(metric, "/resource/target/averageValue")).ok()?;
            let target = target.milli_value().max(1);
            autoscaling::by_average(&workload, samples, resource, target, &settings, now)
        }
    };
    let proposal = proposal.ok()?;
    let mut shown = json!({"averageValue": Quantity::from_scaled(proposal.value, -3).to_string()});
    if let Some(percent) = proposal.utilization {
        shown["averageUtilization"] = json!(percent);
    }
    Some((
        proposal.replicas.into(),
        json!({"type": "Resource", "resource": {"name": resource, "current": shown}}),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trouble::{Load, Troubles};
    use crate::view::fake::with_view;

    fn replicas_at(milli_cpu: u64) -> Vec<i64> {
        let pod = |name: &str| {
            json!({"kind": "Pod", "metadata": {"name": name, "namespace": "d", "labels": {"app": "web"}},
            "spec": {"containers": [{"resources": {"requests": {"cpu": "100m"}}}]}, "status": {"phase": "Running",
                "startTime": "2025-01-01T00:00:00Z", "conditions": [{"type": "Ready", "status": "True",
                "lastTransitionTime": "2025-01-01T00:00:01Z"}]}})
        };
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "d"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}}});
        let scaler = json!({"kind": "HorizontalPodAutoscaler", "metadata": {"name": "web", "namespace": "d",
            "creationTimestamp": "2025-01-01T00:00:00Z"},
            "spec": {"minReplicas": 1, "maxReplicas": 6,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 50}}}]}});
        let mut troubles = Troubles::default();
        let load = Load { selector: "app=web".to_owned(), milli_cpu, memory_mib: 0 };
        troubles.loads.insert(load.selector.clone(), load);
        with_view(vec![pod("a"), pod("b"), deployment], |view| {
            let view = View { troubles: &troubles, ..*view };
            decide(&view, &scaler)
                .iter()
                .filter_map(|step| match step {
                    Step::Update { object, .. } => number(object, "/spec/replicas"),
                    _ => None,
                })
                .collect()
        })
    }

    #[test]
    fn replicas_follow_the_load_within_their_limits() {
        assert_eq!(replicas_at(200), [4]);
        assert_eq!(replicas_at(100), Vec::<i64>::new());
        assert_eq!(replicas_at(10_000), [6]);
        assert_eq!(replicas_at(0), [1]);
    }
}
