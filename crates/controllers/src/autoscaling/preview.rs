//! Previews autoscalers: runs the controllers' own decision code on a given clock and load.
//!
//! In: a FederatedHPA and a CronFederatedHPA for one workload, what one pod asks for, the cpu that the
//! workload needs at each moment, the clusters that share its replicas. Out: replicas per cluster at each
//! step. It makes no requests and writes nothing.
//!
//! It assumes that pods start within [`START`], share the load evenly, and are divided evenly among the
//! clusters. It does not simulate anything else that a cluster or a scheduler might do.

use std::sync::Arc;
use std::time::Duration;

use api::autoscaling::{CronFederatedHPA, FederatedHPA};
use jiff::{SignedDuration, Timestamp};
use workloads::autoscaling::{Container, History, Phase, Pod, Ready, Sample, Samples};

use super::hpa::decide::{self, Measured, Target, View};
use super::settings::signed;
use super::{Settings, cron};

/// How long a pod takes to become ready.
pub const START: SignedDuration = SignedDuration::from_secs(20);
/// Over which time cpu is measured.
const WINDOW: SignedDuration = SignedDuration::from_secs(15);

/// The input of a preview.
#[derive(Debug, Clone)]
pub struct Workload {
    pub autoscaler: Option<FederatedHPA>,
    pub schedule: Option<CronFederatedHPA>,
    /// Replicas at the beginning.
    pub replicas: i32,
    /// What one pod asks for, in thousandths of a cpu.
    pub request: i64,
    /// How many clusters share the replicas.
    pub clusters: usize,
}

/// A moment of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    pub time: Timestamp,
    /// What the workload needs, in thousandths of a cpu.
    pub load: i64,
    pub replicas: Vec<i32>,
}

/// Computes the replicas from `start` on for the given time, at each sync period.
pub fn preview(
    mut workload: Workload,
    settings: &Settings,
    start: Timestamp,
    length: Duration,
    load: impl Fn(SignedDuration) -> i64,
) -> Vec<Moment> {
    let period = signed(settings.sync_period).max(SignedDuration::from_secs(1));
    let (mut known, mut history) = (cron::Known::default(), None::<History>);
    let mut born =
        vec![start.saturating_sub(SignedDuration::from_hours(1)).unwrap_or(start); count(workload.replicas)];
    let (mut moments, mut passed) = (Vec::new(), SignedDuration::ZERO);
    while passed <= signed(length) {
        let Ok(now) = start.checked_add(passed) else { break };
        known = follow_schedule(&mut workload, known, now);
        let needed = load(passed).max(0);
        if let Some(autoscaler) = workload.autoscaler.clone() {
            let seen = View {
                target: Ok(target(&autoscaler, &workload, &born, needed, now)),
                scaler: Arc::new(autoscaler),
                history: history.take(),
                settings: settings.clone(),
            };
            let mut plan = decide::decide(&seen, now);
            if let (Some((replicas, _)), Some(history)) = (&plan.rescale, &mut plan.history) {
                workload.replicas = *replicas;
                decide::scaled(&seen, history, *replicas, now);
            }
            history = plan.history;
        }
        born.resize(count(workload.replicas), now);
        moments.push(Moment {
            time: now,
            load: needed,
            replicas: shares(workload.replicas, workload.clusters),
        });
        passed = passed.saturating_add(period);
    }
    moments
}

/// Does what the schedule asks for at this moment.
fn follow_schedule(workload: &mut Workload, known: cron::Known, now: Timestamp) -> cron::Known {
    let Some(schedule) = &workload.schedule else { return known };
    let plan = cron::decide(&cron::View::new(Arc::new(schedule.clone()), known), now);
    for cron::Due { rule, .. } in &plan.due {
        workload.replicas = rule.target_replicas.unwrap_or(workload.replicas);
        if let Some(autoscaler) = &mut workload.autoscaler {
            let spec = &mut autoscaler.spec;
            spec.min_replicas = rule.target_min_replicas.or(spec.min_replicas);
            spec.max_replicas = rule.target_max_replicas.unwrap_or(spec.max_replicas);
        }
    }
    plan.known
}

/// Returns what the autoscaler sees: pods that are ready share the load.
fn target(
    autoscaler: &FederatedHPA,
    workload: &Workload,
    born: &[Timestamp],
    load: i64,
    now: Timestamp,
) -> Target {
    let ready = |born: Timestamp| born.saturating_add(START).unwrap_or(Timestamp::MAX);
    let serving = born.iter().filter(|born| ready(**born) <= now).count().max(1);
    let share = load / i64::try_from(serving).unwrap_or(1);
    let (mut pods, mut samples) = (Vec::new(), Samples::new());
    for (index, born) in born.iter().enumerate() {
        let (name, serves) = (format!("p{index}"), ready(*born) <= now);
        let requests = [("cpu".to_owned(), workload.request)].into();
        pods.push(Pod {
            name: name.clone(),
            phase: Phase::Running,
            ready: Some(Ready {
                status: Some(serves),
                since: Some(if serves { ready(*born) } else { *born }),
            }),
            started: Some(*born),
            containers: vec![Container { name: "c".to_owned(), requests }],
            ..Pod::default()
        });
        let value = if serves { share } else { 0 };
        samples.insert(name, Sample { value, time: now, window: WINDOW });
    }
    let replicas = workload.replicas;
    Target {
        replicas,
        wanted: replicas,
        running: replicas,
        measured: autoscaler.spec.metrics.iter().map(|_| Ok(Measured::Pods(samples.clone()))).collect(),
        pods,
        ..Target::default()
    }
}

fn shares(replicas: i32, clusters: usize) -> Vec<i32> {
    let clusters = i32::try_from(clusters.max(1)).unwrap_or(1);
    (0..clusters).map(|index| replicas / clusters + i32::from(index < replicas % clusters)).collect()
}

fn count(replicas: i32) -> usize {
    usize::try_from(replicas).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::read;

    fn workload() -> Workload {
        let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
        Workload {
            autoscaler: Some(read(json!({ "metadata": { "name": "h" }, "spec": { "scaleTargetRef": target,
                "minReplicas": 2, "maxReplicas": 30, "metrics": [{ "type": "Resource", "resource": { "name": "cpu",
                "target": { "type": "Utilization", "averageUtilization": 50 } } }] } }))),
            schedule: Some(read(json!({ "metadata": { "name": "c" }, "spec": {
                "scaleTargetRef": { "apiVersion": "autoscaling.karmada.io/v1alpha1", "kind": "FederatedHPA", "name": "h" },
                "rules": [
                    { "name": "day", "schedule": "0 8 * * *", "timeZone": "UTC", "targetMinReplicas": 6 },
                    { "name": "night", "schedule": "0 20 * * *", "timeZone": "UTC", "targetMinReplicas": 2 },
                ] } }))),
            replicas: 2,
            request: 100,
            clusters: 3,
        }
    }

    #[test]
    fn a_day_of_a_schedule_and_a_load() {
        let start = "2026-01-05T00:00:00Z".parse().expect("a time");
        let load =
            |passed: SignedDuration| if (43_200..46_800).contains(&passed.as_secs()) { 1000 } else { 0 };
        let day = preview(workload(), &Settings::default(), start, Duration::from_secs(86_400), load);
        let at = |hour: i64, minute: i64| {
            let index = usize::try_from((hour * 60 + minute) * 4).expect("an index");
            (day[index].replicas.iter().sum::<i32>(), day[index].replicas.clone())
        };
        assert_eq!(day.len(), 5761, "every fifteen seconds");
        assert_eq!(at(7, 59), (2, vec![1, 1, 0]));
        assert_eq!(at(8, 1), (6, vec![2, 2, 2]), "the schedule raises the limit");
        assert_eq!(at(12, 30), (20, vec![7, 7, 6]), "1000m at half of 100m each");
        assert_eq!(at(13, 4), (20, vec![7, 7, 6]), "going down waits");
        assert_eq!(at(13, 10), (6, vec![2, 2, 2]));
        assert_eq!(at(20, 10), (2, vec![1, 1, 0]), "night");
    }
}
