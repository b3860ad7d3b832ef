//! From a metric to a number of replicas.
//!
//! The rules of a HorizontalPodAutoscaler, for a workload that may run in several clusters: metrics and pods are those of all of them,
//! `calibration` is how many replicas run for each one of the template (1 where they are divided, the number of clusters where they
//! are duplicated), and the answer counts replicas of the template.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::Settings;
use super::pods::{Groups, NO_PODS, Pod, Sample, Samples, requests, serving};

/// What is scaled.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// The replicas of the template.
    pub replicas: i32,
    /// How many replicas run for each one of the template.
    pub calibration: f64,
    pub pods: &'a [Pod],
}

/// What a metric asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// Replicas of the template.
    pub replicas: i32,
    /// The average of the pods that count, or the value of the metric, in thousandths.
    pub value: i64,
    /// In percent of what the pods ask for; only for targets in percent.
    pub utilization: Option<i32>,
}

/// Returns the replicas at which the pods use a resource to `target` percent of what they ask for.
pub fn by_utilization(
    workload: &Workload<'_>,
    mut samples: Samples,
    resource: &str,
    container: Option<&str>,
    target: i32,
    settings: &Settings,
    now: Timestamp,
) -> Result<Proposal, String> {
    if workload.pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let groups = Groups::of(workload.pods, &samples, resource, settings, now);
    samples
        .retain(|name, _| !groups.ignored.contains(name.as_str()) && !groups.unready.contains(name.as_str()));
    let asked = requests(workload.pods, container, resource)?;
    if samples.is_empty() {
        return Err(NO_SAMPLES.to_owned());
    }
    let (ratio, utilization, value) = utilization(&samples, &asked, target)?;
    let missing = |name: &str| {
        let percent = i64::from(target.max(100));
        asked.get(name).copied().unwrap_or(0).saturating_mul(percent) / 100
    };
    let again =
        |samples: &Samples| super::replicas::utilization(samples, &asked, target).map(|(ratio, ..)| ratio);
    let replicas = settle(workload, samples, &groups, ratio, missing, again, settings.tolerance)?;
    Ok(Proposal { replicas, value, utilization: Some(utilization) })
}

/// Returns the replicas at which the average of the pods is `target`.
pub fn by_average(
    workload: &Workload<'_>,
    mut samples: Samples,
    resource: &str,
    target: i64,
    settings: &Settings,
    now: Timestamp,
) -> Result<Proposal, String> {
    if workload.pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let groups = Groups::of(workload.pods, &samples, resource, settings, now);
    samples
        .retain(|name, _| !groups.ignored.contains(name.as_str()) && !groups.unready.contains(name.as_str()));
    if samples.is_empty() {
        return Err(NO_SAMPLES.to_owned());
    }
    let (ratio, value) = average(&samples, target);
    let again = |samples: &Samples| Ok(average(samples, target).0);
    let replicas = settle(workload, samples, &groups, ratio, |_| target, again, settings.tolerance)?;
    Ok(Proposal { replicas, value, utilization: None })
}

/// Returns the replicas at which a value that all pods share is `target`.
pub fn by_value(
    workload: &Workload<'_>,
    value: i64,
    target: i64,
    settings: &Settings,
) -> Result<Proposal, String> {
    let ratio = value as f64 / target as f64;
    let replicas = if workload.replicas == 0 {
        ceil(ratio)
    } else if is_close(ratio, settings.tolerance) {
        workload.replicas
    } else {
        let ready =
            serving(workload.pods).map_err(|error| format!("unable to calculate ready pods: {error}"))?;
        ceil(ratio * ready as f64 / workload.calibration)
    };
    Ok(Proposal { replicas, value, utilization: None })
}

/// Returns the replicas at which each of them has `target` of a value that all pods share. `running` replicas do now, in all
/// clusters.
///
/// Karmada divides the result by the calibration twice, so that a duplicated workload gets too few replicas; here it is divided
/// once.
pub fn by_share(
    workload: &Workload<'_>,
    running: i32,
    value: i64,
    target: i64,
    settings: &Settings,
) -> Proposal {
    let ratio = value as f64 / (target as f64 * f64::from(running));
    let wanted =
        if is_close(ratio, settings.tolerance) { f64::from(running) } else { value as f64 / target as f64 };
    let share = (value as f64 / f64::from(running)).ceil() as i64;
    Proposal { replicas: ceil(wanted / workload.calibration), value: share, utilization: None }
}

const NO_SAMPLES: &str = "did not receive metrics for any ready pods";

/// Fills in what is not known, against the direction in which the known pods point, and looks whether the direction stays.
fn settle(
    workload: &Workload<'_>,
    mut samples: Samples,
    groups: &Groups<'_>,
    ratio: f64,
    missing: impl Fn(&str) -> i64,
    again: impl Fn(&Samples) -> Result<f64, String>,
    tolerance: f64,
) -> Result<i32, String> {
    let unready_count = ratio > 1.0 && !groups.unready.is_empty();
    if !unready_count && groups.missing.is_empty() {
        return Ok(if is_close(ratio, tolerance) {
            workload.replicas
        } else {
            ceil(ratio * groups.ready as f64 / workload.calibration)
        });
    }
    let guess =
        |value: i64| Sample { value, time: Timestamp::UNIX_EPOCH, window: jiff::SignedDuration::ZERO };
    if ratio < 1.0 {
        samples.extend(groups.missing.iter().map(|name| ((*name).to_owned(), guess(missing(name)))));
    } else if ratio > 1.0 {
        samples.extend(groups.missing.iter().map(|name| ((*name).to_owned(), guess(0))));
    }
    if unready_count {
        samples.extend(groups.unready.iter().map(|name| ((*name).to_owned(), guess(0))));
    }
    let new = again(&samples)?;
    if is_close(new, tolerance) || (ratio < 1.0 && new > 1.0) || (ratio > 1.0 && new < 1.0) {
        return Ok(workload.replicas);
    }
    let replicas = ceil(new * samples.len() as f64 / workload.calibration);
    let turned = (new < 1.0 && replicas > workload.replicas) || (new > 1.0 && replicas < workload.replicas);
    Ok(if turned { workload.replicas } else { replicas })
}

/// Returns the ratio to the target, the use in percent, and the average use.
fn utilization(
    samples: &Samples,
    asked: &BTreeMap<&str, i64>,
    target: i32,
) -> Result<(f64, i32, i64), String> {
    let (mut used, mut total, mut count) = (0_i64, 0_i64, 0_i64);
    for (name, sample) in samples {
        let Some(request) = asked.get(name.as_str()) else { continue };
        used = used.saturating_add(sample.value);
        total = total.saturating_add(*request);
        count += 1;
    }
    if total == 0 {
        return Err("no metrics returned matched known pods".to_owned());
    }
    let percent = i32::try_from(used.saturating_mul(100) / total).unwrap_or(i32::MAX);
    Ok((f64::from(percent) / f64::from(target), percent, used / count))
}

fn average(samples: &Samples, target: i64) -> (f64, i64) {
    let total = samples.values().fold(0_i64, |sum, sample| sum.saturating_add(sample.value));
    let average = total / i64::try_from(samples.len()).unwrap_or(i64::MAX).max(1);
    (average as f64 / target as f64, average)
}

fn is_close(ratio: f64, tolerance: f64) -> bool {
    (1.0 - ratio).abs() <= tolerance
}

fn ceil(replicas: f64) -> i32 {
    replicas.ceil() as i32
}
