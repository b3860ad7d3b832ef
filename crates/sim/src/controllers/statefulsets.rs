//! StatefulSets: numbered pods, created and updated in order.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::family;
use super::revisions::{self, Revisions};
use crate::kinds::Kind;
use crate::objects::{
    Object, available_at, is_finished, is_ready, label, map_at, number, phase, pod_from, text,
};
use crate::plan::{Step, Tell};
use crate::view::View;

const HASH: &str = "controller.kubernetes.io/hash";
const REVISION: &str = "controller-revision-hash";
const SOURCE: &str = "statefulset-controller";

pub(crate) fn decide(view: &View<'_>, set: &Value) -> Vec<Step> {
    let mut steps = Vec::new();
    let revisions = revisions::sync(view, set, HASH, &mut steps);
    let update = revisions.update.name().to_owned();
    let stored = text(set, "/status/currentRevision");
    let current =
        if revisions.all.iter().any(|revision| revision.name() == stored) { stored } else { &update };
    let named = |pod: &Value| ordinal(set, pod).is_some();
    let family = family::gather(view, Kind::Pod, set, None, named);
    steps.extend(family.steps);
    let pods: BTreeMap<i64, Value> =
        family.members.into_iter().filter_map(|pod| Some((ordinal(set, &pod)?, pod))).collect();
    if !set.is_deleting() {
        steps.extend(next(set, &pods, &revisions, current, &update));
    }
    let (status, again) = status(view, set, &pods, current, &update);
    if status != set["status"] {
        steps.push(Step::status(Kind::StatefulSet, set, status));
    } else {
        let used = |revision: &Value| {
            revision.name() == current || pods.values().any(|pod| label(pod, REVISION) == revision.name())
        };
        steps.extend(revisions::clean_up(set, &revisions, &used));
    }
    steps.extend(again);
    steps
}

fn ordinal(set: &Value, pod: &Value) -> Option<i64> {
    pod.name().strip_prefix(set.name())?.strip_prefix('-')?.parse().ok()
}

fn is_healthy(pod: &Value) -> bool {
    phase(pod) == "Running" && is_ready(pod) && !pod.is_deleting()
}

/// Returns the steps for the pods: create missing ones, then remove extra ones, then update.
fn next(
    set: &Value,
    pods: &BTreeMap<i64, Value>,
    revisions: &Revisions,
    current: &str,
    update: &str,
) -> Vec<Step> {
    let ordered = text(set, "/spec/podManagementPolicy") != "Parallel";
    let first = number(set, "/spec/ordinals/start").unwrap_or(0);
    let wanted = first..first + number(set, "/spec/replicas").unwrap_or(1);
    let rolling = text(set, "/spec/updateStrategy/type") != "OnDelete";
    let partition = number(set, "/spec/updateStrategy/rollingUpdate/partition").unwrap_or(0);
    let mut steps = Vec::new();
    for at in wanted.clone() {
        match pods.get(&at) {
            None => {
                let old = rolling && at < partition && current != update;
                let revision = if old {
                    revisions
                        .all
                        .iter()
                        .find(|revision| revision.name() == current)
                        .unwrap_or(&revisions.update)
                } else {
                    &revisions.update
                };
                steps.extend(create(set, at, revision));
                if ordered {
                    return steps;
                }
            }
            Some(pod) if is_finished(pod) && !pod.is_deleting() => {
                steps.push(delete(set, pod));
                if ordered {
                    return steps;
                }
            }
            Some(pod) if ordered && !is_healthy(pod) => return steps,
            Some(_) => {}
        }
    }
    for (_, pod) in pods.iter().rev().filter(|(at, _)| !wanted.contains(at)) {
        if pod.is_deleting() {
            if ordered {
                return steps;
            }
            continue;
        }
        steps.push(delete(set, pod));
        if ordered {
            return steps;
        }
    }
    if !rolling || !steps.is_empty() {
        return steps;
    }
    for (at, pod) in pods.iter().rev().filter(|(at, _)| wanted.contains(at)) {
        if *at < partition {
            break;
        }
        if label(pod, REVISION) != update && !pod.is_deleting() {
            steps.push(delete(set, pod));
            return steps;
        }
        if !is_healthy(pod) {
            return steps;
        }
    }
    steps
}

fn delete(set: &Value, pod: &Value) -> Step {
    let mut step = Step::delete(Kind::Pod, pod);
    if let Step::Delete { tell, .. } = &mut step {
        let message = format!("delete Pod {{}} in StatefulSet {} successful", set.name());
        *tell = Some(Tell::new(set, SOURCE, &message));
    }
    step
}

/// Returns the steps that create a pod and its claims.
fn create(set: &Value, at: i64, revision: &Value) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut pod = pod_from(set, &revisions::template(revision));
    let own = format!("{}-{at}", set.name());
    pod["metadata"]["name"] = json!(own);
    let labels = map_at(&mut pod["metadata"], "labels");
    labels.insert("statefulset.kubernetes.io/pod-name".to_owned(), json!(own));
    labels.insert("apps.kubernetes.io/pod-index".to_owned(), json!(at.to_string()));
    labels.insert(REVISION.to_owned(), json!(revision.name()));
    pod["spec"]["hostname"] = json!(own);
    if !text(set, "/spec/serviceName").is_empty() {
        pod["spec"]["subdomain"] = set["spec"]["serviceName"].clone();
    }
    for template in crate::objects::list(set, "/spec/volumeClaimTemplates") {
        let claim_name = format!("{}-{own}", template.name());
        let mut claim = template.clone();
        claim["metadata"]["name"] = json!(claim_name);
        claim["metadata"]["namespace"] = json!(set.namespace());
        let selector = set.pointer("/spec/selector/matchLabels").and_then(Value::as_object).cloned();
        map_at(&mut claim["metadata"], "labels").extend(selector.unwrap_or_default());
        if let Some(fields) = claim.as_object_mut() {
            fields.remove("status");
        }
        let message = format!("Create Claim {claim_name} Pod {own} in StatefulSet {} success", set.name());
        steps.push(Step::Create {
            kind: Kind::Claim,
            object: claim,
            tell: Some(Tell::new(set, SOURCE, &message)),
        });
        let volume = json!({"name": template.name(), "persistentVolumeClaim": {"claimName": claim_name}});
        let spec = map_at(&mut pod, "spec");
        let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
        if let Some(volumes) = volumes.as_array_mut() {
            volumes.retain(|each| each["name"] != volume["name"]);
            volumes.push(volume);
        }
    }
    let message = format!("Create Pod {{}} in StatefulSet {} successful", set.name());
    steps.push(Step::Create { kind: Kind::Pod, object: pod, tell: Some(Tell::new(set, SOURCE, &message)) });
    steps
}

fn status(
    view: &View<'_>,
    set: &Value,
    pods: &BTreeMap<i64, Value>,
    current: &str,
    update: &str,
) -> (Value, Option<Step>) {
    let min_ready = number(set, "/spec/minReadySeconds").unwrap_or(0);
    let (mut replicas, mut ready, mut available, mut on_current, mut updated) = (0, 0, 0, 0, 0);
    let mut again = None;
    for pod in pods.values().filter(|pod| !is_finished(pod)) {
        replicas += 1;
        if phase(pod) == "Running" && is_ready(pod) {
            ready += 1;
            match available_at(pod, min_ready) {
                Some(moment) if min_ready > 0 && moment > view.now => {
                    again = Some(Step::again_at(moment, view.now))
                }
                _ => available += 1,
            }
        }
        if pod.is_deleting() {
            continue;
        }
        on_current += i64::from(label(pod, REVISION) == current);
        updated += i64::from(label(pod, REVISION) == update);
    }
    let mut current = current;
    let rolled = text(set, "/spec/updateStrategy/type") != "OnDelete"
        && number(set, "/spec/updateStrategy/rollingUpdate/partition").unwrap_or(0) == 0
        && updated == replicas
        && ready == replicas;
    if rolled {
        on_current = updated;
        current = update;
    }
    let mut status = json!({
        "observedGeneration": set.generation(),
        "replicas": replicas,
        "availableReplicas": available,
        "currentRevision": current,
        "updateRevision": update,
        "collisionCount": number(set, "/status/collisionCount").unwrap_or(0),
    });
    for (field, count) in
        [("readyReplicas", ready), ("currentReplicas", on_current), ("updatedReplicas", updated)]
    {
        if count > 0 {
            status[field] = json!(count);
        }
    }
    (status, again)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    fn set(replicas: i64) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": "d", "uid": "set", "generation": 1},
            "spec": {"replicas": replicas, "serviceName": "db", "template": {"metadata": {}, "spec": {}}}})
    }

    fn pod(at: i64, ready: bool) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("db-{at}"), "namespace": "d",
            "uid": format!("{at}"), "labels": {"controller-revision-hash": "none"},
            "ownerReferences": [{"uid": "set", "controller": true}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
    }

    fn names(steps: &[Step]) -> Vec<String> {
        steps
            .iter()
            .filter_map(|step| match step {
                Step::Create { kind: Kind::Pod, object, .. } => Some(format!("+{}", object.name())),
                Step::Delete { kind: Kind::Pod, name, .. } => Some(format!("-{name}")),
                _ => None,
            })
            .collect()
    }

    fn decided(set: &Value, pods: Vec<Value>) -> Vec<String> {
        names(&with_view(pods, |view| decide(view, set)))
    }

    #[test]
    fn pods_come_one_after_the_other() {
        assert_eq!(decided(&set(3), vec![]), ["+db-0"]);
        assert_eq!(decided(&set(3), vec![pod(0, false)]), Vec::<String>::new());
        assert_eq!(decided(&set(3), vec![pod(0, true)]), ["+db-1"]);
    }

    #[test]
    fn all_at_once_if_the_set_says_so() {
        let mut set = set(2);
        set["spec"]["podManagementPolicy"] = json!("Parallel");
        assert_eq!(decided(&set, vec![]), ["+db-0", "+db-1"]);
    }

    #[test]
    fn the_highest_goes_first() {
        assert_eq!(decided(&set(1), vec![pod(0, true), pod(1, true), pod(2, true)]), ["-db-2"]);
    }

    #[test]
    fn updates_start_at_the_highest_and_stop_at_the_partition() {
        assert_eq!(decided(&set(2), vec![pod(0, true), pod(1, true)]), ["-db-1"]);
        let mut partitioned = set(2);
        partitioned["spec"]["updateStrategy"] = json!({"rollingUpdate": {"partition": 2}});
        assert_eq!(decided(&partitioned, vec![pod(0, true), pod(1, true)]), Vec::<String>::new());
    }
}
