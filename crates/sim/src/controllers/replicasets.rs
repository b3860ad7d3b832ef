//! ReplicaSets and ReplicationControllers: keep the desired number of pods.

use serde_json::{Value, json};

use super::family::{self, Family};
use crate::kinds::Kind;
use crate::objects::{
    Object, annotation, available_at, condition, created, is_active, is_finished, is_ready, number, phase,
    pod_from, stamp, text, time,
};
use crate::plan::{Step, Tell};
use crate::view::View;

/// A reconcile creates at most this many pods, as upstream.
const BURST: usize = 500;

/// Decides about one set; `kind` says which of the two it is.
pub(crate) fn decide(view: &View<'_>, kind: Kind, set: &Value) -> Vec<Step> {
    let source = if kind == Kind::ReplicaSet { "replicaset-controller" } else { "replication-controller" };
    let Family { members: pods, mut steps } = family::gather(view, Kind::Pod, set, None, |_| true);
    let active: Vec<&Value> = pods.iter().filter(|pod| is_active(pod)).collect();
    let wanted = usize::try_from(number(set, "/spec/replicas").unwrap_or(1)).unwrap_or(0);
    if !set.is_deleting() {
        if active.len() < wanted {
            let tell = Tell::new(set, source, "Created pod: {}");
            for _ in 0..(wanted - active.len()).min(BURST) {
                steps.push(Step::Create {
                    kind: Kind::Pod,
                    object: pod_from(set, &set["spec"]["template"]),
                    tell: Some(tell.clone()),
                });
            }
        } else {
            for pod in victims(&active, active.len() - wanted) {
                let mut step = Step::delete(Kind::Pod, pod);
                if let Step::Delete { tell, .. } = &mut step {
                    *tell = Some(Tell::new(set, source, "Deleted pod: {}"));
                }
                steps.push(step);
            }
        }
    }
    let (status, again) = status(view, kind, set, &pods, wanted as i64 - active.len() as i64);
    if status != set["status"] {
        steps.push(Step::status(kind, set, status));
    }
    steps.extend(again);
    steps
}

/// Returns the pods to delete, the least valuable first.
fn victims<'a>(active: &[&'a Value], count: usize) -> Vec<&'a Value> {
    let on_node = |pod: &Value| {
        let node = text(pod, "/spec/nodeName");
        active.iter().filter(|other| is_ready(other) && text(other, "/spec/nodeName") == node).count()
    };
    let mut ranked: Vec<&Value> = active.to_vec();
    ranked.sort_by_cached_key(|pod| {
        let rank = match phase(pod) {
            "Pending" => 0,
            "Running" => 2,
            _ => 1,
        };
        let cost: i64 = annotation(pod, "controller.kubernetes.io/pod-deletion-cost").parse().unwrap_or(0);
        let ready_since = condition(pod, "Ready")
            .map_or(0, |ready| time(ready, "/lastTransitionTime").map_or(0, |moment| moment.as_second()));
        (
            !text(pod, "/spec/nodeName").is_empty(),
            rank,
            is_ready(pod),
            cost,
            std::cmp::Reverse(on_node(pod)),
            std::cmp::Reverse(ready_since),
            std::cmp::Reverse(created(pod).to_owned()),
            pod.name().to_owned(),
        )
    });
    ranked.truncate(count);
    ranked
}

fn status(view: &View<'_>, kind: Kind, set: &Value, pods: &[Value], missing: i64) -> (Value, Option<Step>) {
    let min_ready = number(set, "/spec/minReadySeconds").unwrap_or(0);
    let template = set.pointer("/spec/template/metadata/labels").and_then(Value::as_object);
    let (mut replicas, mut labelled, mut ready, mut available, mut terminating) = (0, 0, 0, 0, 0);
    let mut next: Option<jiff::Timestamp> = None;
    for pod in pods.iter().filter(|pod| !is_finished(pod)) {
        if pod.is_deleting() {
            terminating += 1;
            continue;
        }
        replicas += 1;
        let own = pod.labels();
        if template.into_iter().flatten().all(|(key, value)| own.get(key) == Some(value)) {
            labelled += 1;
        }
        if let Some(moment) = available_at(pod, min_ready) {
            ready += 1;
            if moment <= view.now || min_ready == 0 {
                available += 1;
            } else {
                next = Some(next.map_or(moment, |next| next.min(moment)));
            }
        }
    }
    let mut status = json!({"replicas": replicas, "observedGeneration": set.generation()});
    for (field, count) in
        [("fullyLabeledReplicas", labelled), ("readyReplicas", ready), ("availableReplicas", available)]
    {
        if count > 0 {
            status[field] = json!(count);
        }
    }
    if kind == Kind::ReplicaSet {
        status["terminatingReplicas"] = json!(terminating);
    }
    if let Some(message) = view.failures.get(set.uid()).filter(|_| missing > 0) {
        let old = condition(set, "ReplicaFailure").filter(|old| old["status"] == "True");
        let since = old.map_or_else(|| json!(stamp(view.now)), |old| old["lastTransitionTime"].clone());
        status["conditions"] = json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
            "message": message, "lastTransitionTime": since}]);
    }
    (status, next.map(|next| Step::again_at(next, view.now)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    fn set(replicas: i64) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": "s", "namespace": "d", "uid": "set", "generation": 1},
            "spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": "a"}}, "spec": {}}},
            "status": {"replicas": 0}})
    }

    fn pod(name: &str, node: &str, ready: bool) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "d", "uid": name,
            "labels": {"app": "a"}, "ownerReferences": [{"uid": "set", "controller": true}]},
            "spec": {"nodeName": node}, "status": {"phase": if ready { "Running" } else { "Pending" },
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
    }

    fn deleted(steps: &[Step]) -> Vec<&str> {
        steps
            .iter()
            .filter_map(|step| match step {
                Step::Delete { name, .. } => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn missing_pods_are_created() {
        let steps = with_view(vec![], |view| decide(view, Kind::ReplicaSet, &set(3)));
        assert_eq!(steps.iter().filter(|step| matches!(step, Step::Create { .. })).count(), 3);
    }

    #[test]
    fn pods_worth_least_go_first() {
        let pods = vec![pod("ready", "n", true), pod("unbound", "", false), pod("starting", "n", false)];
        let steps = with_view(pods, |view| decide(view, Kind::ReplicaSet, &set(1)));
        assert_eq!(deleted(&steps), ["unbound", "starting"]);
    }

    #[test]
    fn a_second_look_changes_nothing() {
        let (mut set, pods) = (set(1), vec![pod("ready", "n", true)]);
        let steps = with_view(pods.clone(), |view| decide(view, Kind::ReplicaSet, &set));
        let [Step::Status { status, .. }] = steps.as_slice() else { panic!("{steps:?}") };
        set["status"] = status.clone();
        assert_eq!(with_view(pods, |view| decide(view, Kind::ReplicaSet, &set)), []);
    }
}
