//! The kubelet: makes bound pods run, finish, crash and end.
//!
//! Statuses look as kwok writes them, since that is what the real test clusters show.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::addresses::listed;
use crate::hash;
use crate::kinds::Kind;
use crate::objects::{Object, is_finished, is_ready, list, phase, stamp, text};
use crate::plan::Step;
use crate::view::View;

/// The stage of a pod's life; the time in a stage decides when the next one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Has no node.
    Waiting,
    /// Has a node and is not running yet.
    Starting,
    Running,
    Crashing,
    /// It has finished or is being deleted.
    Over,
}

pub(crate) fn stage(pod: &Value, failing: bool) -> Stage {
    if text(pod, "/spec/nodeName").is_empty() {
        Stage::Waiting
    } else if is_finished(pod) || pod.is_deleting() {
        Stage::Over
    } else if failing {
        Stage::Crashing
    } else if phase(pod) == "Running" && !is_crashed(pod) && is_ready(pod) {
        Stage::Running
    } else {
        Stage::Starting
    }
}

fn is_crashed(pod: &Value) -> bool {
    list(pod, "/status/containerStatuses").iter().any(|status| status.pointer("/state/waiting").is_some())
}

/// Decides about a pod that has been in its stage for a while. The addresses are for a pod that has none yet.
pub(crate) fn decide(
    view: &View<'_>,
    pod: &Value,
    stage: Stage,
    since: Duration,
    addresses: &[String],
) -> Vec<Step> {
    let node = text(pod, "/spec/nodeName");
    // There is no kubelet left to do anything.
    if view.troubles.nodes.contains(node) {
        return Vec::new();
    }
    if !node.is_empty() && pod.is_deleting() {
        let mut delete = Step::delete(Kind::Pod, pod);
        if let Step::Delete { grace, .. } = &mut delete {
            *grace = Some(0);
        }
        return vec![delete];
    }
    let node = view.get(Kind::Node, "", node).unwrap_or_default();
    let hosts: Vec<String> =
        list(&node, "/status/addresses").iter().map(|one| text(one, "/address").to_owned()).collect();
    let places = Places { hosts: &hosts, addresses };
    match stage {
        Stage::Waiting | Stage::Over => Vec::new(),
        Stage::Starting => {
            // Between one and two times the delay, always the same for the same pod.
            let wanted = view.delays.start
                + view.delays.start.mul_f64(f64::from(hash::number(pod.uid()) % 1000) / 1000.0);
            match wanted.checked_sub(since) {
                Some(left) if !left.is_zero() => vec![Step::Again(left)],
                _ => vec![Step::status(Kind::Pod, pod, running(pod, view.now, &places))],
            }
        }
        Stage::Running => {
            let works = pod.controller().is_some_and(|owner| owner["kind"] == "Job");
            if !works {
                return Vec::new();
            }
            match view.delays.work.checked_sub(since) {
                Some(left) if !left.is_zero() => vec![Step::Again(left)],
                _ => vec![Step::status(Kind::Pod, pod, succeeded(pod, view.now))],
            }
        }
        Stage::Crashing => {
            let once = pod.controller().is_some_and(|owner| owner["kind"] == "Job")
                || text(pod, "/spec/restartPolicy") == "Never";
            if once {
                return match view.delays.start.checked_sub(since) {
                    Some(left) if !left.is_zero() => vec![Step::Again(left)],
                    _ => vec![Step::status(Kind::Pod, pod, failed(pod, view.now, &places))],
                };
            }
            if phase(pod) == "Running" && is_crashed(pod) {
                return Vec::new();
            }
            vec![Step::status(Kind::Pod, pod, crashing(pod, view.now, &places))]
        }
    }
}

/// Addresses of the node and for the pod, the primary one first.
struct Places<'a> {
    hosts: &'a [String],
    addresses: &'a [String],
}

/// The common part of the status of all started pods.
fn base(pod: &Value, now: Timestamp, places: &Places<'_>) -> Value {
    let mut status = pod["status"].clone();
    if !status.is_object() {
        status = json!({});
    }
    let host_network = pod.pointer("/spec/hostNetwork") == Some(&json!(true));
    if text(&status, "/podIP").is_empty() {
        let addresses = if host_network { places.hosts } else { places.addresses };
        status["podIP"] = json!(first(addresses));
        status["podIPs"] = listed(addresses);
    }
    if text(&status, "/startTime").is_empty() {
        status["startTime"] = json!(stamp(now));
    }
    status["hostIP"] = json!(first(places.hosts));
    if places.hosts.len() > 1 {
        status["hostIPs"] = listed(places.hosts);
    }
    let inits: Vec<Value> = list(pod, "/spec/initContainers")
        .iter()
        .map(|container| {
            json!({"name": container["name"], "image": container["image"], "imageID": "", "ready": true,
                "restartCount": 0, "lastState": {}, "state": {"terminated": {"exitCode": 0, "reason": "Completed",
                    "startedAt": stamp(now), "finishedAt": stamp(now)}}})
        })
        .collect();
    if !inits.is_empty() && status.get("initContainerStatuses").is_none() {
        status["initContainerStatuses"] = inits.into();
    }
    status
}

fn first(addresses: &[String]) -> &str {
    addresses.first().map_or("", String::as_str)
}

fn conditions(pod: &Value, ready: bool, now: Timestamp) -> Vec<Value> {
    let make = |kind: &str, up: bool| {
        let status = if up { "True" } else { "False" };
        let old = crate::objects::condition(pod, kind);
        let since = match old {
            Some(old) if old["status"] == status => old["lastTransitionTime"].clone(),
            _ => json!(stamp(now)),
        };
        let mut condition =
            json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": since});
        if !up {
            condition["reason"] = json!("ContainersNotReady");
            condition["message"] = json!(unready(pod));
        }
        condition
    };
    let mut conditions =
        vec![make("Initialized", true), make("Ready", ready), make("ContainersReady", ready)];
    for gate in list(pod, "/spec/readinessGates") {
        conditions.push(make(text(gate, "/conditionType"), true));
    }
    conditions.extend(crate::objects::condition(pod, "PodScheduled").cloned());
    conditions
}

/// `containers with unready status: [a b]`, in a kubelet's words.
fn unready(pod: &Value) -> String {
    let names: Vec<&str> = list(pod, "/spec/containers").iter().map(|each| text(each, "/name")).collect();
    format!("containers with unready status: [{}]", names.join(" "))
}

fn containers(pod: &Value, describe: impl Fn(&Value) -> Value) -> Value {
    list(pod, "/spec/containers")
        .iter()
        .map(|container| {
            let mut status = json!({"name": container["name"], "image": container["image"], "imageID": "",
                "restartCount": 0, "lastState": {}});
            if let (Some(status), Value::Object(more)) = (status.as_object_mut(), describe(container)) {
                status.extend(more);
            }
            status
        })
        .collect()
}

fn running(pod: &Value, now: Timestamp, places: &Places<'_>) -> Value {
    let mut status = base(pod, now, places);
    status["phase"] = json!("Running");
    status["conditions"] = conditions(pod, true, now).into();
    status["containerStatuses"] =
        containers(pod, |_| json!({"ready": true, "state": {"running": {"startedAt": stamp(now)}}}));
    status
}

fn succeeded(pod: &Value, now: Timestamp) -> Value {
    let mut status = pod["status"].clone();
    let started = text(pod, "/status/startTime").to_owned();
    status["phase"] = json!("Succeeded");
    status["containerStatuses"] = containers(pod, |_| {
        json!({"ready": false, "started": false, "state": {"terminated": {"exitCode": 0, "reason": "Completed",
            "startedAt": started, "finishedAt": stamp(now)}}})
    });
    status
}

fn failed(pod: &Value, now: Timestamp, places: &Places<'_>) -> Value {
    let mut status = base(pod, now, places);
    status["phase"] = json!("Failed");
    status["conditions"] = conditions(pod, false, now).into();
    status["containerStatuses"] = containers(pod, |_| {
        json!({"ready": false, "started": false, "state": {"terminated": {"exitCode": 1, "reason": "Error",
            "startedAt": stamp(now), "finishedAt": stamp(now)}}})
    });
    status
}

fn crashing(pod: &Value, now: Timestamp, places: &Places<'_>) -> Value {
    let mut status = base(pod, now, places);
    status["phase"] = json!("Running");
    status["conditions"] = conditions(pod, false, now).into();
    status["containerStatuses"] = containers(pod, |container| {
        let name = text(container, "/name");
        json!({"ready": false, "started": false, "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff",
                "message": format!("back-off 10s restarting failed container={name}")}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error",
                "startedAt": stamp(now), "finishedAt": stamp(now)}}})
    });
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    fn pod(phase: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d", "uid": "1"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": phase}})
    }

    fn status_after(pod: &Value, stage: Stage, since: Duration) -> Option<Value> {
        with_view(vec![], |view| {
            decide(view, pod, stage, since, &["10.0.0.1".to_owned()]).into_iter().find_map(
                |step| match step {
                    Step::Status { status, .. } => Some(json!({"status": status})),
                    _ => None,
                },
            )
        })
    }

    #[test]
    fn a_pod_becomes_ready_after_a_while_and_not_before() {
        let pod = pod("Pending");
        assert_eq!(status_after(&pod, Stage::Starting, Duration::ZERO), None);
        let status = status_after(&pod, Stage::Starting, Duration::from_secs(5)).expect("a status");
        assert!(is_ready(&status));
        assert_eq!(status["status"]["podIP"], "10.0.0.1");
    }

    #[test]
    fn a_pod_has_the_families_of_its_member() {
        let node = json!({"kind": "Node", "metadata": {"name": "n"}, "status": {"addresses": [
            {"type": "InternalIP", "address": "172.16.0.1"}, {"type": "InternalIP", "address": "fd00:172:16::1"}]}});
        let own = ["10.0.0.1".to_owned(), "fd00::1".to_owned()];
        let mut pod = pod("Pending");
        for (host_network, addresses) in
            [(false, ["10.0.0.1", "fd00::1"]), (true, ["172.16.0.1", "fd00:172:16::1"])]
        {
            pod["spec"]["hostNetwork"] = host_network.into();
            let steps = with_view(vec![node.clone()], |view| {
                decide(view, &pod, Stage::Starting, Duration::from_secs(5), &own)
            });
            let [Step::Status { status, .. }] = steps.as_slice() else { panic!("{steps:?}") };
            assert_eq!(status["podIP"], addresses[0]);
            assert_eq!(status["podIPs"], json!([{"ip": addresses[0]}, {"ip": addresses[1]}]));
            assert_eq!(status["hostIP"], "172.16.0.1");
            assert_eq!(status["hostIPs"], json!([{"ip": "172.16.0.1"}, {"ip": "fd00:172:16::1"}]));
        }
    }

    #[test]
    fn only_pods_of_jobs_finish() {
        let mut pod = pod("Running");
        assert_eq!(status_after(&pod, Stage::Running, Duration::from_secs(60)), None);
        pod["metadata"]["ownerReferences"] = json!([{"kind": "Job", "controller": true}]);
        let status = status_after(&pod, Stage::Running, Duration::from_secs(60)).expect("a status");
        assert_eq!(status["status"]["phase"], "Succeeded");
    }

    #[test]
    fn a_crashing_pod_is_not_ready_and_recovers() {
        let pod = pod("Running");
        let status = status_after(&pod, Stage::Crashing, Duration::ZERO).expect("a status");
        assert!(!is_ready(&status));
        let mut crashed = pod;
        crashed["status"] = status["status"].clone();
        assert_eq!(stage(&crashed, false), Stage::Starting);
    }
}
