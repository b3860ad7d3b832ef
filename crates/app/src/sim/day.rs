//! `karmada sim day`: draws what the autoscalers in a file would do over a day.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use api::autoscaling::{CronFederatedHPA, FederatedHPA, MetricSpec};
use apimachinery::quantity::Quantity;
use clap::Args;
use controllers::autoscaling::{Moment, Settings, Workload, preview, zone};
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize as _;
use serde_json::Value;

use crate::chart::Chart;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Show what the autoscalers of a file would do over a day, without running anything.
///
/// The file has a Deployment or another workload with replicas and a pod template, and a FederatedHPA, a CronFederatedHPA or both
/// for it. The controllers' own decisions are taken on a clock of their own, every 15 seconds of it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The file with the workload and its autoscalers.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cpu that the workload needs, as `HOUR=MILLICORES,…`; straight lines lead from one to the next.
    #[arg(long, value_name = "CURVE", default_value = "0=0", value_parser = curve)]
    load: Curve,
    /// How many clusters share the replicas.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    clusters: u16,
    /// The day.
    #[arg(long, value_name = "DATE", default_value = "2026-01-05")]
    date: Date,
    /// The time zone in which the day begins, and that of rules that name none.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    zone: String,
    /// Also draw it into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// How wide the chart in the terminal is, in letters.
    #[arg(long, value_name = "N", default_value_t = 96, value_parser = clap::value_parser!(u16).range(24..=1000))]
    width: u16,
}

/// Hours and the demand at these hours, in order.
#[derive(Debug, Clone, PartialEq)]
struct Curve(Vec<(f64, f64)>);

fn curve(text: &str) -> Result<Curve, String> {
    let point = |part: &str| {
        let (hour, load) = part.split_once('=').ok_or_else(|| format!("{part:?} is not HOUR=MILLICORES"))?;
        let number = |text: &str| text.trim().parse::<f64>().map_err(|_| format!("{text:?} is not a number"));
        let (hour, load) = (number(hour)?, number(load)?);
        if !(0.0..=24.0).contains(&hour) || !(0.0..=1e9).contains(&load) {
            return Err(format!("{part:?} is not within a day, or not a load"));
        }
        Ok((hour, load))
    };
    let mut points = text.split(',').map(point).collect::<Result<Vec<_>, _>>()?;
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    Ok(Curve(points))
}

impl Curve {
    fn at(&self, passed: SignedDuration) -> i64 {
        let hour = passed.as_secs_f64() / 3600.0;
        let after = self.0.iter().find(|(at, _)| *at >= hour);
        let before = self.0.iter().rev().find(|(at, _)| *at <= hour);
        let load = match (before, after) {
            (Some((from, low)), Some((to, high))) if to > from => {
                low + (high - low) * (hour - from) / (to - from)
            }
            (Some((_, load)), _) | (None, Some((_, load))) => *load,
            (None, None) => 0.0,
        };
        load.round() as i64
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let file = &arguments.file;
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut workload = read(&text).with_context(|| format!("{} cannot be foreseen", file.display()))?;
    workload.clusters = arguments.clusters.into();
    let left_out = workload.autoscaler.as_mut().map(leave_out).unwrap_or_default();
    if let Some(schedule) = &mut workload.schedule {
        for rule in &mut schedule.spec.rules {
            rule.time_zone.get_or_insert_with(|| arguments.zone.clone());
        }
    }
    let zone = zone(&arguments.zone).map_err(|error| anyhow!("--zone: {error}"))?;
    let start = arguments.date.to_zoned(zone).context("--date: there is no such day")?.timestamp();
    let moments = preview(workload, &Settings::default(), start, DAY, |passed| arguments.load.at(passed));
    let chart = drawn(&moments, start, arguments.date);
    print!("{}", chart.text(arguments.width.into()));
    if !left_out.is_empty() {
        println!("left out, since only the cpu of whole pods is foreseen: {}", left_out.join(", "));
    }
    if let Some(path) = &arguments.svg {
        write(path, &chart.svg())?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("drawn into {}", path.display());
    Ok(())
}

/// Reads a workload and its autoscalers.
fn read(text: &str) -> anyhow::Result<Workload> {
    let (mut autoscaler, mut schedule, mut scaled) = (None, None, None);
    for document in apimachinery::yaml::read_all(text)? {
        let object = document.value;
        match object["kind"].as_str() {
            Some("FederatedHPA") => autoscaler = Some(FederatedHPA::deserialize(&object)?),
            Some("CronFederatedHPA") => schedule = Some(CronFederatedHPA::deserialize(&object)?),
            _ if object.pointer("/spec/template/spec/containers").is_some() => scaled = Some(object),
            _ => {}
        }
    }
    if autoscaler.is_none() && schedule.is_none() {
        bail!("it has neither a FederatedHPA nor a CronFederatedHPA");
    }
    if autoscaler.as_ref().is_some_and(|autoscaler: &FederatedHPA| autoscaler.spec.metrics.is_empty()) {
        bail!("the FederatedHPA names no metrics; without a server nobody fills them in");
    }
    if autoscaler
        .as_ref()
        .is_some_and(|autoscaler: &FederatedHPA| !autoscaler.spec.metrics.iter().any(is_foreseen))
    {
        bail!("the FederatedHPA has no metric of type Resource for cpu; nothing else can be foreseen");
    }
    let Some(scaled) = scaled else { bail!("it has no workload with a pod template") };
    let containers = scaled.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let cpu = |container: &Value| {
        let request =
            container.pointer("/resources/requests/cpu").or(container.pointer("/resources/limits/cpu"))?;
        Some(Quantity::parse(request.as_str()?).ok()?.milli_value())
    };
    let request: i64 = containers.into_iter().flatten().filter_map(cpu).sum();
    if autoscaler.is_some() && request <= 0 {
        bail!("the containers of the workload request no cpu; an autoscaler by utilisation needs that");
    }
    let replicas = scaled["spec"]["replicas"].as_i64().unwrap_or(1);
    let replicas = i32::try_from(replicas).context("the workload has too many replicas")?;
    Ok(Workload { autoscaler, schedule, replicas, request, clusters: 1 })
}

/// Removes metrics without a given load, and returns their names. They would keep replicas from going down, like any metric that
/// is not available.
fn leave_out(autoscaler: &mut FederatedHPA) -> Vec<String> {
    let metrics = std::mem::take(&mut autoscaler.spec.metrics);
    let (foreseen, others): (Vec<_>, Vec<_>) = metrics.into_iter().partition(is_foreseen);
    autoscaler.spec.metrics = foreseen;
    others.iter().map(named).collect()
}

fn is_foreseen(metric: &MetricSpec) -> bool {
    metric.type_ == "Resource" && metric.resource.as_ref().is_some_and(|source| source.name == "cpu")
}

fn named(metric: &MetricSpec) -> String {
    let name = [
        metric.resource.as_ref().map(|source| source.name.as_str()),
        metric.container_resource.as_ref().map(|source| source.name.as_str()),
        metric.pods.as_ref().map(|source| source.metric.name.as_str()),
        metric.object.as_ref().map(|source| source.metric.name.as_str()),
        metric.external.as_ref().map(|source| source.metric.name.as_str()),
    ];
    format!("{} {}", metric.type_, name.into_iter().flatten().next().unwrap_or_default())
}

fn drawn(moments: &[Moment], start: Timestamp, date: Date) -> Chart {
    let clusters = moments.first().map_or(0, |moment| moment.replicas.len());
    let replicas_in = |index: usize| {
        moments.iter().map(|moment| f64::from(moment.replicas.get(index).copied().unwrap_or(0))).collect()
    };
    let length = moments.last().map_or(0, |last| last.time.duration_since(start).as_secs()).max(1);
    let tick = |hour: i64| ((hour * 3600) as f64 / length as f64, format!("{hour:02}:00"));
    Chart {
        title: format!("Replicas per cluster on {date}, and the load in thousandths of a cpu"),
        ticks: (0..=24).step_by(4).map(tick).collect(),
        areas: (0..clusters).map(|index| (format!("member{}", index + 1), replicas_in(index))).collect(),
        line: Some(("load".to_owned(), moments.iter().map(|moment| moment.load as f64).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_leads_from_point_to_point() {
        let curve = curve("12=200,0=100").expect("a curve");
        let at = |hours: i64| curve.at(SignedDuration::from_hours(hours));
        assert_eq!((at(0), at(6), at(12), at(20)), (100, 150, 200, 200));
        for odd in ["", "8", "x=1", "25=1", "1=-1", "1=NaN"] {
            assert!(super::curve(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn a_file_without_what_is_needed_is_refused() {
        for (text, fault) in [
            ("kind: Deployment", "neither a FederatedHPA"),
            (
                "kind: FederatedHPA\nspec: {scaleTargetRef: {kind: Deployment, name: a}, maxReplicas: 3}",
                "names no metrics",
            ),
            (
                "kind: FederatedHPA\nspec: {scaleTargetRef: {kind: Deployment, name: a}, maxReplicas: 3, metrics: [{type: Resource, \
                 resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]}",
                "no workload",
            ),
        ] {
            let error = read(text).expect_err("it is refused").to_string();
            assert!(error.contains(fault), "{error}");
        }
        let example = include_str!("../../../../examples/autoscaling.yaml");
        let read = read(example).expect("the example");
        assert!(read.autoscaler.is_some() && read.schedule.is_some() && read.request > 0);
    }

    #[test]
    fn only_the_cpu_of_whole_pods_is_foreseen() {
        let metric = |name: &str| {
            format!(
                "{{type: Resource, resource: {{name: {name}, target: {{type: Utilization, averageUtilization: 50}}}}}}"
            )
        };
        let file = |metrics: &str| {
            format!(
                "kind: FederatedHPA\nspec: {{scaleTargetRef: {{kind: Deployment, name: a}}, maxReplicas: 30, metrics: [{metrics}]}}\n\
                 ---\nkind: Deployment\nspec: {{template: {{spec: {{containers: [{{resources: {{requests: {{cpu: 100m}}}}}}]}}}}}}\n"
            )
        };
        let error = read(&file(&metric("memory"))).expect_err("it is refused").to_string();
        assert!(error.contains("nothing else can be foreseen"), "{error}");
        let mut both = read(&file(&format!("{}, {}", metric("memory"), metric("cpu")))).expect("a workload");
        let left_out = both.autoscaler.as_mut().map(leave_out).unwrap_or_default();
        assert_eq!(left_out, ["Resource memory"]);
        let load = |passed: SignedDuration| if passed.as_secs() < 3600 { 1000 } else { 100 };
        let start = "2026-01-05T00:00:00Z".parse().expect("a time");
        let day = preview(both, &Settings::default(), start, Duration::from_secs(7200), load);
        let most = day.iter().map(|moment| moment.replicas[0]).max();
        assert_eq!((most, day.last().map(|moment| moment.replicas[0])), (Some(20), Some(2)), "up, and down");
    }
}
