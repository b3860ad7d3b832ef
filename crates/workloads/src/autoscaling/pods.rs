//! What counts of a pod when a workload is scaled, and which pods count.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::quantity::Quantity;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Settings;

/// What counts of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// By which its metrics are found.
    pub name: String,
    pub deleting: bool,
    pub phase: Phase,
    pub ready: Option<Ready>,
    pub started: Option<Timestamp>,
    pub containers: Vec<Container>,
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    Failed,
    /// Succeeded, or not known.
    #[default]
    Other,
}

/// The condition `Ready` of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// `True`, `False`, or nothing that is known.
    pub status: Option<bool>,
    pub since: Option<Timestamp>,
}

/// A container and what it asks for, in thousandths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    pub requests: BTreeMap<String, i64>,
}

impl Pod {
    /// Reads a pod; what cannot be read is left out.
    pub fn read(pod: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let time = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
        let each = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let conditions = each(&pod["status"]["conditions"]);
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready").map(|condition| Ready {
            status: match condition["status"].as_str() {
                Some("True") => Some(true),
                Some("False") => Some(false),
                _ => None,
            },
            since: time(&condition["lastTransitionTime"]),
        });
        let container = |container: &Value| {
            let requests = container["resources"]["requests"].as_object().into_iter().flatten();
            let milli = |amount: &Value| Some(Quantity::parse(amount.as_str()?).ok()?.milli_value());
            Container {
                name: text(&container["name"]),
                requests: requests
                    .filter_map(|(name, amount)| Some((name.clone(), milli(amount)?)))
                    .collect(),
            }
        };
        Self {
            name: text(&pod["metadata"]["name"]),
            deleting: !pod["metadata"]["deletionTimestamp"].is_null(),
            phase: match pod["status"]["phase"].as_str() {
                Some("Pending") => Phase::Pending,
                Some("Running") => Phase::Running,
                Some("Failed") => Phase::Failed,
                _ => Phase::Other,
            },
            ready,
            started: time(&pod["status"]["startTime"]),
            containers: each(&pod["spec"]["containers"]).iter().map(container).collect(),
        }
    }

    fn is_serving(&self) -> bool {
        self.phase == Phase::Running && self.ready.is_some_and(|ready| ready.status == Some(true))
    }
}

/// A measured value of a pod, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    pub value: i64,
    pub time: Timestamp,
    /// Over which time it was measured.
    pub window: SignedDuration,
}

/// The samples by the name of the pod.
pub type Samples = BTreeMap<String, Sample>;

/// The pods of a workload by how far they count.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Groups<'a> {
    pub(super) ready: usize,
    /// They count with nothing when replicas are added, and not at all otherwise.
    pub(super) unready: BTreeSet<&'a str>,
    /// They count with a guess.
    pub(super) missing: BTreeSet<&'a str>,
    /// On their way out.
    pub(super) ignored: BTreeSet<&'a str>,
}

impl<'a> Groups<'a> {
    pub(super) fn of(
        pods: &'a [Pod],
        samples: &Samples,
        resource: &str,
        settings: &Settings,
        now: Timestamp,
    ) -> Self {
        let mut groups = Self::default();
        for pod in pods {
            let name = pod.name.as_str();
            if pod.deleting || pod.phase == Phase::Failed {
                groups.ignored.insert(name);
            } else if pod.phase == Phase::Pending {
                groups.unready.insert(name);
            } else if let Some(sample) = samples.get(name) {
                if resource == "cpu" && is_warming_up(pod, sample, settings, now) {
                    groups.unready.insert(name);
                } else {
                    groups.ready += 1;
                }
            } else {
                groups.missing.insert(name);
            }
        }
        groups
    }
}

/// Returns whether the cpu that a pod uses says nothing about the load yet: it starts, or has never been ready.
fn is_warming_up(pod: &Pod, sample: &Sample, settings: &Settings, now: Timestamp) -> bool {
    let (Some(ready), Some(started)) = (pod.ready, pod.started) else { return true };
    let since = ready.since.unwrap_or(Timestamp::UNIX_EPOCH);
    let later = |time: Timestamp, by: SignedDuration| time.saturating_add(by).unwrap_or(Timestamp::MAX);
    let unready = ready.status == Some(false);
    if later(started, settings.cpu_initialization) > now {
        unready || sample.time < later(since, sample.window)
    } else {
        unready && later(started, settings.readiness_delay) > since
    }
}

/// Returns how many pods serve.
pub(super) fn serving(pods: &[Pod]) -> Result<usize, String> {
    if pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    Ok(pods.iter().filter(|pod| pod.is_serving()).count())
}

pub(super) const NO_PODS: &str = "no pods returned by selector while calculating replica count";

/// Returns what each pod asks for of a resource, in all containers or in one.
pub(super) fn requests<'a>(
    pods: &'a [Pod],
    container: Option<&str>,
    resource: &str,
) -> Result<BTreeMap<&'a str, i64>, String> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let counted = pod.containers.iter().filter(|one| container.is_none_or(|name| name == one.name));
        let mut sum = 0_i64;
        for one in counted {
            let request = one.requests.get(resource).ok_or_else(|| {
                format!("missing request for {resource} in container {} of Pod {}", one.name, pod.name)
            })?;
            sum = sum.saturating_add(*request);
        }
        all.insert(pod.name.as_str(), sum);
    }
    Ok(all)
}
