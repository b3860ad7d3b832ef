//! DaemonSets: one pod on every suitable node.

use serde_json::{Value, json};
use workloads::nodes::{Node, tolerates, wants_node};

use super::family;
use super::revisions;
use crate::kinds::Kind;
use crate::objects::{
    Object, available_at, int_or_percent, is_finished, is_ready, label, list, map_at, number, pod_from, text,
};
use crate::plan::{Step, Tell};
use crate::view::View;

const HASH: &str = "controller-revision-hash";
const SOURCE: &str = "daemonset-controller";

pub(crate) fn decide(view: &View<'_>, set: &Value) -> Vec<Step> {
    let mut steps = Vec::new();
    let revisions = revisions::sync(view, set, HASH, &mut steps);
    let family = family::gather(view, Kind::Pod, set, None, |_| true);
    steps.extend(family.steps);
    let pods = family.members;
    let nodes = view.objects.list(Kind::Node, "");
    let min_ready = number(set, "/spec/minReadySeconds").unwrap_or(0);
    let mut count = Count::default();
    let mut old_unavailable = Vec::new();
    let mut old_available = Vec::new();
    let mut unavailable = 0;
    let mut again = None;
    for node in &nodes {
        let on_node: Vec<&Value> = pods.iter().filter(|pod| target(pod) == node.name()).collect();
        let (run, stay) = wanted(set, node);
        let live: Vec<&&Value> = on_node.iter().filter(|pod| !pod.is_deleting()).collect();
        if !run {
            count.misscheduled += i64::from(!on_node.is_empty());
            if !stay && !set.is_deleting() {
                steps.extend(live.iter().map(|pod| delete(set, pod)));
            }
            continue;
        }
        count.desired += 1;
        let finished = live.iter().find(|pod| is_finished(pod));
        if set.is_deleting() {
            // Its pods are garbage-collected with it.
        } else if let Some(finished) = finished {
            steps.push(delete(set, finished));
        } else if on_node.is_empty() {
            steps.push(create(set, node, &revisions.hash));
        }
        let Some(pod) = live.first() else {
            unavailable += 1;
            continue;
        };
        count.scheduled += 1;
        let moment = available_at(pod, min_ready);
        let available = moment.is_some_and(|moment| min_ready == 0 || moment <= view.now);
        if let Some(moment) = moment.filter(|moment| min_ready > 0 && *moment > view.now) {
            again = Some(Step::again_at(moment, view.now));
        }
        count.ready += i64::from(is_ready(pod));
        count.available += i64::from(available);
        let updated = label(pod, HASH) == revisions.hash;
        count.updated += i64::from(updated);
        unavailable += i64::from(!available);
        if !updated {
            if available { old_available.push(**pod) } else { old_unavailable.push(**pod) }
        }
    }
    let rolling = text(set, "/spec/updateStrategy/type") != "OnDelete";
    if rolling && !set.is_deleting() {
        let field = set.pointer("/spec/updateStrategy/rollingUpdate/maxUnavailable");
        let most = int_or_percent(field, count.desired, true).unwrap_or(1).max(1);
        let room = usize::try_from(most - unavailable).unwrap_or(0);
        // A pod that does not work anyway can be deleted immediately.
        let doomed = old_unavailable.into_iter().chain(old_available.into_iter().take(room));
        steps.extend(doomed.map(|pod| delete(set, pod)));
    }
    let status = count.status(set);
    if status != set["status"] {
        steps.push(Step::status(Kind::DaemonSet, set, status));
    } else {
        let used = |revision: &Value| {
            let hash = revision.name().rsplit('-').next().unwrap_or("");
            pods.iter().any(|pod| label(pod, HASH) == hash)
        };
        steps.extend(revisions::clean_up(set, &revisions, &used));
    }
    steps.extend(again);
    steps
}

#[derive(Default)]
struct Count {
    desired: i64,
    scheduled: i64,
    misscheduled: i64,
    ready: i64,
    available: i64,
    updated: i64,
}

impl Count {
    fn status(&self, set: &Value) -> Value {
        let mut status = json!({
            "currentNumberScheduled": self.scheduled,
            "desiredNumberScheduled": self.desired,
            "numberMisscheduled": self.misscheduled,
            "numberReady": self.ready,
            "observedGeneration": set.generation(),
        });
        for (field, count) in [
            ("updatedNumberScheduled", self.updated),
            ("numberAvailable", self.available),
            ("numberUnavailable", self.desired - self.available),
        ] {
            if count > 0 {
                status[field] = json!(count);
            }
        }
        status
    }
}

/// Returns the node of a pod, or the one for which it is intended.
fn target(pod: &Value) -> &str {
    match text(pod, "/spec/nodeName") {
        "" => {
            let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
            list(pod, terms)
                .iter()
                .flat_map(|term| list(term, "/matchFields"))
                .find_map(|field| list(field, "/values").first()?.as_str())
                .unwrap_or("")
        }
        node => node,
    }
}

const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

fn pod_for(set: &Value) -> Value {
    let mut pod = pod_from(set, &set["spec"]["template"]);
    let mut tolerations = list(&pod, "/spec/tolerations").to_vec();
    let mut add = |key: &str, effect: &str| {
        if !tolerations
            .iter()
            .any(|own| own["key"] == key && own["effect"] == effect && own["operator"] == "Exists")
        {
            tolerations.push(json!({"key": key, "operator": "Exists", "effect": effect}));
        }
    };
    for (key, effect) in TOLERATED {
        add(key, effect);
    }
    if crate::objects::flag(&pod, "/spec/hostNetwork") {
        add("node.kubernetes.io/network-unavailable", "NoSchedule");
    }
    map_at(&mut pod, "spec").insert("tolerations".to_owned(), tolerations.into());
    pod
}

/// Returns whether a pod should be on a node, and whether an existing one may stay.
fn wanted(set: &Value, node: &Value) -> (bool, bool) {
    let pod = pod_for(set);
    if !wants_node(&pod, &Node::read(node)) {
        return (false, false);
    }
    let bears = |effect: &str| {
        list(node, "/spec/taints")
            .iter()
            .filter(|taint| taint["effect"] == effect)
            .all(|taint| tolerates(&pod, taint).is_some())
    };
    // A new node is not ready for a moment, which either form of the taint says.
    let stay = bears("NoExecute");
    (stay && bears("NoSchedule"), stay)
}

fn create(set: &Value, node: &Value, hash: &str) -> Step {
    let mut pod = pod_for(set);
    let labels = map_at(&mut pod["metadata"], "labels");
    labels.insert(HASH.to_owned(), json!(hash));
    let template_generation =
        match crate::objects::annotation(set, "deprecated.daemonset.template.generation") {
            "" => set.generation().to_string(),
            text => text.to_owned(),
        };
    labels.insert("pod-template-generation".to_owned(), json!(template_generation));
    let terms =
        json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.name()]}]}]);
    let affinity = map_at(&mut pod["spec"], "affinity");
    let node_affinity = affinity.entry("nodeAffinity").or_insert_with(|| json!({}));
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = json!({"nodeSelectorTerms": terms});
    Step::Create { kind: Kind::Pod, object: pod, tell: Some(Tell::new(set, SOURCE, "Created pod: {}")) }
}

fn delete(set: &Value, pod: &Value) -> Step {
    let mut step = Step::delete(Kind::Pod, pod);
    if let Step::Delete { tell, .. } = &mut step {
        *tell = Some(Tell::new(set, SOURCE, "Deleted pod: {}"));
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    fn set() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "ds", "namespace": "d", "uid": "set", "generation": 1},
            "spec": {"template": {"metadata": {}, "spec": {}}}})
    }

    fn node(name: &str, taints: Value) -> Value {
        json!({"kind": "Node", "metadata": {"name": name, "labels": {}}, "spec": {"taints": taints}})
    }

    #[test]
    fn every_node_that_takes_it_gets_one() {
        let nodes = vec![
            node("a", json!([])),
            node("b", json!([{"key": "k", "effect": "NoSchedule"}])),
            node("c", json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])),
        ];
        let steps = with_view(nodes, |view| decide(view, &set()));
        let made: Vec<String> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Create { kind: Kind::Pod, object, .. } => Some(target(object).to_owned()),
                _ => None,
            })
            .collect();
        assert_eq!(made, ["a", "c"]);
    }
}
