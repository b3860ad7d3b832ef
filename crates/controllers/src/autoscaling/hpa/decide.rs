//! Decides for a FederatedHPA: from the scales, pods and metrics of all clusters to a number of replicas and
//! a status.

use std::collections::BTreeMap;
use std::time::Duration;

use api::autoscaling::{
    ContainerResourceMetricStatus, FederatedHPA, HPABehavior, HPACondition, HPAScalingRules, HPAStatus,
    MetricIdentifier, MetricSpec, MetricStatus, MetricValueStatus, ObjectMetricStatus, PodsMetricStatus,
    ResourceMetricStatus,
};
use api::conditions::federated_hpa as conditions;
use api::events;
use apimachinery::quantity::Quantity;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use propagation::status::whole_seconds;
use workloads::autoscaling::{
    self as arithmetic, Behavior, Bounds, History, Phase, Pod, Policy, Proposal, Rules, Sample, Samples,
    Select, Workload,
};

use super::super::Settings;
use super::super::scale::Scale;
use super::super::settings::signed;

/// The first wait after something went wrong.
pub(in crate::autoscaling) const FIRST_WAIT: Duration = Duration::from_secs(1);

/// What is known of an autoscaler and its target.
pub(crate) struct View {
    pub(in crate::autoscaling) scaler: std::sync::Arc<FederatedHPA>,
    pub(in crate::autoscaling) target: Result<Target, Fault>,
    /// Recent recommendations and scalings; nothing at the first reconcile.
    pub(in crate::autoscaling) history: Option<History>,
    pub(in crate::autoscaling) settings: Settings,
}

/// What is scaled, over all clusters.
#[derive(Debug, Default)]
pub(in crate::autoscaling) struct Target {
    /// The scale of the template, as it was read.
    pub(in crate::autoscaling) template: Scale,
    /// The replicas of the template.
    pub(in crate::autoscaling) replicas: i32,
    /// The replicas that members should have, together.
    pub(in crate::autoscaling) wanted: i32,
    /// The replicas that members have, together.
    pub(in crate::autoscaling) running: i32,
    pub(in crate::autoscaling) selector: String,
    /// What is wrong with the selectors of single members, with the reason of the event.
    pub(in crate::autoscaling) faults: Vec<(&'static str, String)>,
    /// Pods of all clusters, named by cluster and name.
    pub(in crate::autoscaling) pods: Vec<Pod>,
    /// All autoscalers that select these pods, by name and namespace.
    pub(in crate::autoscaling) scalers: Vec<(String, String)>,
    /// What was measured for each metric; empty if no metric was read.
    pub(in crate::autoscaling) measured: Vec<Result<Measured, String>>,
}

/// What was measured for a metric, in thousandths.
#[derive(Debug, Clone)]
pub(in crate::autoscaling) enum Measured {
    Pods(Samples),
    Value(i64),
}

/// Why there is nothing to scale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::autoscaling) struct Fault {
    pub(in crate::autoscaling) event: &'static str,
    pub(in crate::autoscaling) condition: &'static str,
    /// What could not be done.
    pub(in crate::autoscaling) what: &'static str,
    pub(in crate::autoscaling) error: String,
}

/// What is to be done, and why.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// The replicas of the template, and why, if they change.
    pub(in crate::autoscaling) rescale: Option<(i32, String)>,
    /// Whether the change is written. As upstream, a scale without replicas is not given any, and the change is told all the same.
    pub(in crate::autoscaling) is_written: bool,
    /// The status, if the change succeeds.
    pub(in crate::autoscaling) status: HPAStatus,
    pub(in crate::autoscaling) history: Option<History>,
    pub(in crate::autoscaling) events: Vec<(&'static str, String)>,
    /// Why nothing more could be done.
    pub(in crate::autoscaling) error: Option<String>,
}

impl View {
    fn bounds(&self) -> Bounds {
        let spec = &self.scaler.spec;
        Bounds { least: spec.min_replicas.unwrap_or(1), most: spec.max_replicas }
    }

    /// Returns whether metrics decide, which they do within the limits.
    pub(in crate::autoscaling) fn asks_metrics(scaler: &FederatedHPA, replicas: i32) -> bool {
        replicas <= scaler.spec.max_replicas && replicas >= scaler.spec.min_replicas.unwrap_or(1)
    }
}

pub(in crate::autoscaling) fn decide(view: &View, now: Timestamp) -> Plan {
    let mut plan = Plan { status: view.scaler.status.clone(), ..Plan::default() };
    let target = match &view.target {
        Ok(target) => target,
        Err(fault) => {
            let message = format!("the HPA controller was unable to {}: {}", fault.what, fault.error);
            plan.condition(conditions::ABLE_TO_SCALE, false, fault.condition, message, now);
            plan.events.push((fault.event, fault.error.clone()));
            plan.error = Some(fault.error.clone());
            plan.history.clone_from(&view.history);
            return plan;
        }
    };
    for (event, fault) in &target.faults {
        let message = if *event == events::SELECTOR_REQUIRED {
            "the HPA target's scale is missing a selector".to_owned()
        } else {
            fault.clone()
        };
        plan.condition(conditions::SCALING_ACTIVE, false, conditions::REASON_INVALID_SELECTOR, message, now);
        plan.events.push((event, fault.clone()));
    }
    let got = "the HPA controller was able to get the target's current scale";
    plan.condition(conditions::ABLE_TO_SCALE, true, conditions::REASON_SUCCEEDED_GET_SCALE, got, now);
    let (current, bounds) = (target.replicas, view.bounds());
    let mut history = view.history.clone().unwrap_or_else(|| History::since(current, now));
    let mut metrics = None;
    let (desired, reason) = if current > bounds.most {
        (bounds.most, "Current number of replicas above Spec.MaxReplicas".to_owned())
    } else if current < bounds.least {
        (bounds.least, "Current number of replicas below Spec.MinReplicas".to_owned())
    } else {
        let (wish, metric) = match by_metrics(view, target, &mut plan, now) {
            Ok(wish) => wish,
            Err(error) => {
                plan.status = recreated(&plan.status, current, plan.status.desired_replicas);
                plan.events.push((events::FAILED_COMPUTE_METRICS_REPLICAS, error.clone()));
                plan.error = Some(error);
                plan.history = Some(history);
                return plan;
            }
        };
        metrics = plan.status.current_metrics.take();
        // If a metric asks for zero, that counts as no recommendation.
        let wish = wish.max(0);
        let reason = match wish {
            wish if wish > current => format!("{metric} above target"),
            wish if wish < current => "All metrics below target".to_owned(),
            _ => String::new(),
        };
        let verdict = match behavior(view) {
            None => {
                let window = signed(view.settings.downscale_stabilization);
                arithmetic::plain(&mut history, current, wish, bounds, window, now)
            }
            Some(behavior) => arithmetic::behaving(&mut history, current, wish, bounds, &behavior, now),
        };
        let (reason_able, message) = verdict.stabilized;
        plan.condition(conditions::ABLE_TO_SCALE, true, reason_able, message, now);
        let (reason_limit, message) = verdict.limit;
        plan.condition(conditions::SCALING_LIMITED, verdict.limited, reason_limit, message, now);
        (verdict.replicas, reason)
    };
    plan.status = recreated(&plan.status, current, desired);
    plan.status.current_metrics = metrics;
    if desired != current {
        let message = format!("the HPA controller was able to update the target scale to {desired}");
        plan.condition(conditions::ABLE_TO_SCALE, true, conditions::REASON_SUCCEEDED_RESCALE, message, now);
        plan.status.last_scale_time = Some(Time(whole_seconds(now)));
        plan.rescale = Some((desired, reason));
        plan.is_written = target.template.wanted.is_some();
    }
    plan.history = Some(history);
    plan
}

/// Returns the status if the change that was planned is refused.
pub(in crate::autoscaling) fn refused(view: &View, plan: &Plan, error: &str, now: Timestamp) -> HPAStatus {
    let old = &view.scaler.status;
    let mut plan = Plan { status: plan.status.clone(), ..Plan::default() };
    plan.status.last_scale_time.clone_from(&old.last_scale_time);
    plan.status.desired_replicas = old.desired_replicas;
    plan.status.current_metrics.clone_from(&old.current_metrics);
    let message = format!("the HPA controller was unable to update the target scale: {error}");
    plan.condition(conditions::ABLE_TO_SCALE, false, conditions::REASON_FAILED_UPDATE_SCALE, message, now);
    plan.status
}

/// Notes that the change that was planned was made.
pub(in crate::autoscaling) fn scaled(view: &View, history: &mut History, replicas: i32, now: Timestamp) {
    let current = view.target.as_ref().map_or(replicas, |target| target.replicas);
    history.scaled(behavior(view).as_ref(), current, replicas, now);
}

/// Returns how long to wait after something went wrong, as often in a row before as `failures` says. It doubles up to the period.
pub(in crate::autoscaling) fn pause(failures: u32, period: Duration) -> Duration {
    FIRST_WAIT.saturating_mul(2_u32.saturating_pow(failures)).min(period)
}

/// Returns the status with these replicas; it does not contain the generation, as upstream.
fn recreated(old: &HPAStatus, current: i32, desired: i32) -> HPAStatus {
    HPAStatus {
        observed_generation: None,
        current_replicas: current,
        desired_replicas: desired,
        ..old.clone()
    }
}

impl Plan {
    fn condition(
        &mut self,
        kind: &str,
        status: bool,
        reason: &str,
        message: impl Into<String>,
        now: Timestamp,
    ) {
        let conditions = &mut self.status.conditions;
        let index = conditions.iter().position(|known| known.type_ == kind).unwrap_or_else(|| {
            conditions.push(HPACondition { type_: kind.to_owned(), ..HPACondition::default() });
            conditions.len() - 1
        });
        let condition = &mut conditions[index];
        let status = if status { "True" } else { "False" };
        if condition.status != status {
            condition.last_transition_time = Some(Time(whole_seconds(now)));
        }
        condition.status = status.to_owned();
        condition.reason = reason.to_owned();
        condition.message = message.into();
    }
}

/// Returns the most replicas that a metric asks for, and its name; the error is final.
fn by_metrics(
    view: &View,
    target: &Target,
    plan: &mut Plan,
    now: Timestamp,
) -> Result<(i32, String), String> {
    if target.scalers.len() > 1 {
        let keys: Vec<String> =
            target.scalers.iter().map(|(name, space)| format!("{{{name} {space}}}")).collect();
        let selector = &target.selector;
        let error =
            format!("pods by selector {selector} are controlled by multiple HPAs: [{}]", keys.join(" "));
        plan.events.push((events::AMBIGUOUS_SELECTOR, error.clone()));
        let reason = conditions::REASON_AMBIGUOUS_SELECTOR;
        plan.condition(conditions::SCALING_ACTIVE, false, reason, error.clone(), now);
        return Err(error);
    }
    let specs = &view.scaler.spec.metrics;
    let mut most: Option<(i32, String)> = None;
    let mut first: Option<(Refusal, usize)> = None;
    let mut shown = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let measured =
            target.measured.get(index).cloned().unwrap_or_else(|| Err("nothing was measured".to_owned()));
        match by_metric(view, target, spec, measured, now) {
            Ok((proposal, name, status)) => {
                shown.push(status);
                if most.as_ref().is_none_or(|(most, _)| *most == 0 || proposal.replicas > *most) {
                    most = Some((proposal.replicas, name));
                }
            }
            Err(refusal) => {
                // As in upstream, a metric that cannot be read is shown as one without a source.
                shown.push(MetricStatus::default());
                plan.events.push((refusal.reason, refusal.condition.clone()));
                match &mut first {
                    Some((_, count)) => *count += 1,
                    None => first = Some((refusal, 1)),
                }
            }
        }
    }
    let error = first.as_ref().map(|(refusal, count)| {
        let all = specs.len();
        format!("invalid metrics ({count} invalid out of {all}), first error is: {}", refusal.error)
    });
    let wish = most.as_ref().map_or(0, |(most, _)| *most);
    if let (Some((refusal, count)), Some(error)) = (&first, &error)
        && (*count >= specs.len() || wish < target.replicas)
    {
        let message = format!("the HPA was unable to compute the replica count: {}", refusal.condition);
        plan.condition(conditions::SCALING_ACTIVE, false, refusal.reason, message, now);
        return Err(error.clone());
    }
    let (wish, name) = most.unwrap_or_default();
    let message = format!("the HPA was able to successfully calculate a replica count from {name}");
    plan.condition(conditions::SCALING_ACTIVE, true, conditions::REASON_VALID_METRIC_FOUND, message, now);
    plan.status.current_metrics = Some(shown);
    plan.error = error;
    Ok((wish, name))
}

/// Why a metric gives no recommendation.
struct Refusal {
    reason: &'static str,
    /// What condition and event say.
    condition: String,
    /// What the error of all metrics says.
    error: String,
}

type Judged = Result<(Proposal, String, MetricStatus), Refusal>;

fn by_metric(
    view: &View,
    target: &Target,
    spec: &MetricSpec,
    measured: Result<Measured, String>,
    now: Timestamp,
) -> Judged {
    let settings = view.settings.arithmetic();
    let calibration = f64::from(target.wanted) / f64::from(target.replicas);
    let workload = Workload { replicas: target.replicas, calibration, pods: &target.pods };
    match (spec.type_.as_str(), spec) {
        ("Resource", MetricSpec { resource: Some(source), .. }) => {
            let judged = resource(&workload, &source.name, None, &source.target, measured, &settings, now);
            let reason = conditions::REASON_FAILED_GET_RESOURCE_METRIC;
            let (proposal, percent) = judged.map_err(|error| Refusal {
                reason,
                error: format!("failed to get {} resource metric value: {error}", source.name),
                condition: error,
            })?;
            let status = MetricStatus {
                type_: spec.type_.clone(),
                resource: Some(ResourceMetricStatus {
                    name: source.name.clone(),
                    current: current(&proposal),
                }),
                ..MetricStatus::default()
            };
            let name = if percent { "resource utilization (percentage of request)" } else { "resource" };
            Ok((proposal, format!("{} {name}", source.name), status))
        }
        ("ContainerResource", MetricSpec { container_resource: Some(source), .. }) => {
            let container = Some(source.container.as_str());
            let judged =
                resource(&workload, &source.name, container, &source.target, measured, &settings, now);
            let (proposal, percent) = judged.map_err(|error| Refusal {
                reason: conditions::REASON_FAILED_GET_CONTAINER_RESOURCE_METRIC,
                error: format!("failed to get {} container metric value: {error}", source.container),
                condition: error,
            })?;
            let status = MetricStatus {
                type_: spec.type_.clone(),
                container_resource: Some(ContainerResourceMetricStatus {
                    name: source.name.clone(),
                    container: source.container.clone(),
                    current: current(&proposal),
                }),
                ..MetricStatus::default()
            };
            let name =
                if percent { "container resource utilization (percentage of request)" } else { "resource" };
            Ok((proposal, format!("{} {name}", source.name), status))
        }
        ("Pods", MetricSpec { pods: Some(source), .. }) => {
            let name = &source.metric.name;
            let refuse = |error: String| Refusal {
                reason: conditions::REASON_FAILED_GET_PODS_METRIC,
                error: format!("failed to get pods metric value: {error}"),
                condition: error,
            };
            let samples = match measured {
                Ok(Measured::Pods(samples)) => by_pod(samples, &target.pods),
                Ok(Measured::Value(_)) => Samples::new(),
                Err(error) => return Err(refuse(format!("unable to get metric {name}: {error}"))),
            };
            let goal = milli(source.target.average_value.as_ref()).unwrap_or(0);
            let proposal =
                arithmetic::by_average(&workload, samples, "", goal, &settings, now).map_err(refuse)?;
            let status = MetricStatus {
                type_: spec.type_.clone(),
                pods: Some(PodsMetricStatus { metric: source.metric.clone(), current: current(&proposal) }),
                ..MetricStatus::default()
            };
            Ok((proposal, format!("pods metric {name}"), status))
        }
        ("Object", MetricSpec { object: Some(source), .. }) => {
            let (metric, object) = (&source.metric, &source.described_object);
            let refuse = |condition: String, error: String| Refusal {
                reason: conditions::REASON_FAILED_GET_OBJECT_METRIC,
                error: format!("failed to get object metric value: {error}"),
                condition,
            };
            let space = view.scaler.metadata.namespace.as_deref().unwrap_or("");
            let unable = |error: String| {
                format!(
                    "unable to get metric {}: {error} on {} {space}/{}",
                    metric.name, object.kind, object.name
                )
            };
            let status = |current: MetricValueStatus, object| MetricStatus {
                type_: spec.type_.clone(),
                object: Some(ObjectMetricStatus {
                    metric: metric.clone(),
                    current,
                    described_object: object,
                }),
                ..MetricStatus::default()
            };
            match source.target.type_.as_str() {
                "Value" => {
                    let value =
                        value(measured).map_err(|error| refuse(unable(error.clone()), unable(error)))?;
                    let goal = milli(source.target.value.as_ref()).unwrap_or(0);
                    let proposal = arithmetic::by_value(&workload, value, goal, &settings)
                        .map_err(|error| refuse(error.clone(), error))?;
                    let shown = MetricValueStatus {
                        value: Some(amount(proposal.value)),
                        ..MetricValueStatus::default()
                    };
                    let name = format!("{} metric {}", object.kind, metric.name);
                    Ok((proposal, name, status(shown, object.clone())))
                }
                "AverageValue" => {
                    let value = value(measured).map_err(|error| {
                        let condition = unable(error);
                        let error = format!("failed to get {} object metric: {condition}", metric.name);
                        refuse(condition, error)
                    })?;
                    let goal = milli(source.target.average_value.as_ref()).unwrap_or(0);
                    let proposal = arithmetic::by_share(&workload, target.running, value, goal, &settings);
                    Ok((proposal, external_name(metric), status(current(&proposal), object.clone())))
                }
                _ => {
                    let error = "invalid object metric source: neither a value target nor an average value target was set";
                    Err(refuse(error.to_owned(), error.to_owned()))
                }
            }
        }
        ("External", MetricSpec { external: Some(source), .. }) => {
            let metric = &source.metric;
            let refuse = |error: String| Refusal {
                reason: "FailedGetExternalMetric",
                error: format!("failed to get {} external metric value: {error}", metric.name),
                condition: error,
            };
            let value = value(measured).map_err(|error| {
                let space = view.scaler.metadata.namespace.as_deref().unwrap_or("");
                let shown = selector(metric.selector.as_ref());
                refuse(format!("unable to get external metric {space}/{}/{shown}: {error}", metric.name))
            })?;
            let (proposal, shown) = match (&source.target.average_value, &source.target.value) {
                (Some(_), _) => {
                    let goal = milli(source.target.average_value.as_ref()).unwrap_or(0);
                    let proposal = arithmetic::by_share(&workload, target.running, value, goal, &settings);
                    (proposal, current(&proposal))
                }
                (None, Some(_)) => {
                    let goal = milli(source.target.value.as_ref()).unwrap_or(0);
                    let proposal = arithmetic::by_value(&workload, value, goal, &settings).map_err(refuse)?;
                    (
                        proposal,
                        MetricValueStatus {
                            value: Some(amount(proposal.value)),
                            ..MetricValueStatus::default()
                        },
                    )
                }
                (None, None) => {
                    let error = "invalid external metric source: neither a value target nor an average value target was set";
                    return Err(refuse(error.to_owned()));
                }
            };
            let status = MetricStatus {
                type_: spec.type_.clone(),
                external: Some(PodsMetricStatus { metric: metric.clone(), current: shown }),
                ..MetricStatus::default()
            };
            Ok((proposal, external_name(metric), status))
        }
        (kind, _) => {
            let error = format!("unknown metric source type {kind:?}");
            Err(Refusal {
                reason: conditions::REASON_INVALID_METRIC_SOURCE_TYPE,
                condition: error.clone(),
                error,
            })
        }
    }
}

/// Returns what a resource asks for, and whether its target is in percent.
fn resource(
    workload: &Workload<'_>,
    name: &str,
    container: Option<&str>,
    target: &api::autoscaling::MetricTarget,
    measured: Result<Measured, String>,
    settings: &arithmetic::Settings,
    now: Timestamp,
) -> Result<(Proposal, bool), String> {
    let samples = match measured {
        Ok(Measured::Pods(samples)) => Ok(samples),
        Ok(Measured::Value(_)) => Ok(Samples::new()),
        Err(error) => Err(format!("unable to get metrics for resource {name}: {error}")),
    };
    let unable = |error: String| format!("failed to get {name} utilization: {error}");
    if let Some(goal) = milli(target.average_value.as_ref()) {
        let proposal = samples
            .and_then(|samples| arithmetic::by_average(workload, samples, name, goal, settings, now))
            .map_err(unable)?;
        return Ok((proposal, false));
    }
    let Some(goal) = target.average_utilization else {
        let error = "invalid resource metric source: neither an average utilization target nor an average value target was set";
        return Err(error.to_owned());
    };
    let proposal = samples
        .and_then(|samples| {
            arithmetic::by_utilization(workload, samples, name, container, goal, settings, now)
        })
        .map_err(unable)?;
    Ok((proposal, true))
}

fn value(measured: Result<Measured, String>) -> Result<i64, String> {
    match measured? {
        Measured::Value(value) => Ok(value),
        Measured::Pods(_) => Err("no metrics returned from custom metrics API".to_owned()),
    }
}

/// Returns the samples of a custom metric by pod. They come without their cluster: where several clusters have a pod of one name,
/// the control plane has added up what they say, and each pod gets its part.
fn by_pod(mut samples: Samples, pods: &[Pod]) -> Samples {
    let mut copies: BTreeMap<&str, i64> = BTreeMap::new();
    for pod in pods {
        // One that waits or has failed has said nothing.
        let tells = !matches!(pod.phase, Phase::Pending | Phase::Failed);
        *copies.entry(without_cluster(pod)).or_default() += i64::from(tells);
    }
    let mut each = Samples::new();
    for pod in pods {
        let name = without_cluster(pod);
        if let (Some(sample), Some(copies)) = (samples.get(name), copies.get(name)) {
            each.insert(pod.name.clone(), Sample { value: sample.value / (*copies).max(1), ..*sample });
        }
    }
    // As upstream, samples of pods that nobody knows count, too.
    samples.retain(|name, _| !copies.contains_key(name.as_str()));
    each.extend(samples);
    each
}

fn without_cluster(pod: &Pod) -> &str {
    pod.name.rsplit_once('/').map_or(pod.name.as_str(), |(_, name)| name)
}

fn milli(amount: Option<&Amount>) -> Option<i64> {
    Some(Quantity::parse(&amount?.0).ok()?.milli_value())
}

fn amount(milli: i64) -> Amount {
    Amount(Quantity::from_scaled(milli, -3).to_string())
}

fn current(proposal: &Proposal) -> MetricValueStatus {
    MetricValueStatus {
        average_value: Some(amount(proposal.value)),
        average_utilization: proposal.utilization,
        value: None,
    }
}

fn external_name(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, selector(metric.selector.as_ref()))
}

/// Returns a selector as Go prints it.
fn selector(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels = selector.match_labels.iter().flatten().map(|(name, value)| format!("{name}: {value},"));
    let terms = selector.match_expressions.iter().flatten().map(|term| {
        let values = term.values.as_deref().unwrap_or_default().join(" ");
        format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", term.key, term.operator)
    });
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{}}},MatchExpressions:[]LabelSelectorRequirement{{{}}},}}",
        labels.collect::<String>(),
        terms.collect::<String>()
    )
}

/// Returns how fast an autoscaler may scale, if it says so.
fn behavior(view: &View) -> Option<Behavior> {
    let HPABehavior { scale_up, scale_down } = view.scaler.spec.behavior.as_ref()?;
    let window = i64::try_from(view.settings.downscale_stabilization.as_secs()).unwrap_or(i64::MAX);
    Some(Behavior { up: rules(scale_up.as_ref(), 0), down: rules(scale_down.as_ref(), window) })
}

/// Admission fills in missing fields; an object that was written without admission has no limits.
fn rules(rules: Option<&HPAScalingRules>, window: i64) -> Rules {
    let free =
        || vec![Policy { amount: arithmetic::Amount::Percent(100), period: SignedDuration::from_secs(15) }];
    let Some(rules) = rules else {
        return Rules { window: SignedDuration::from_secs(window), select: Select::Max, policies: free() };
    };
    let policies = rules.policies.iter().map(|policy| Policy {
        amount: match policy.type_.as_str() {
            "Percent" => arithmetic::Amount::Percent(policy.value),
            _ => arithmetic::Amount::Pods(policy.value),
        },
        period: SignedDuration::from_secs(policy.period_seconds.into()),
    });
    Rules {
        window: SignedDuration::from_secs(rules.stabilization_window_seconds.map_or(window, i64::from)),
        select: match rules.select_policy.as_deref() {
            Some("Disabled") => Select::Disabled,
            Some("Min") => Select::Min,
            _ => Select::Max,
        },
        policies: policies.collect(),
    }
}
