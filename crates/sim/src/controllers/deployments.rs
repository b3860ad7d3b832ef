//! Deployments: a ReplicaSet per version of the pod template, rolled over as the strategy says.
//!
//! Each pass does what kube-controller-manager does in one: it notes pauses, scales if the desired size changed, or else moves
//! the rollout one step; then it updates the status. The conditions' texts, reasons and order are upstream's.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::family::{self, Family};
use super::rollout::{self, DESIRED, MAX, replicas};
use crate::hash;
use crate::kinds::Kind;
use crate::objects::{
    Object, after, annotation, condition, controlled_by, created, flag, is_finished, list, map_at, number,
    set_condition, stamp, text, time,
};
use crate::plan::Step;
use crate::view::View;

const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
const HASH: &str = "pod-template-hash";
const SOURCE: &str = "deployment-controller";

/// Annotations of a Deployment that its ReplicaSets do not get.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MAX,
    "deprecated.deployment.rollback.to",
];

pub(crate) fn decide(view: &View<'_>, deployment: &Value) -> Vec<Step> {
    let Family { members: mut sets, steps } =
        family::gather(view, Kind::ReplicaSet, deployment, None, |_| true);
    sets.sort_by(|a, b| created(a).cmp(created(b)).then_with(|| a.name().cmp(b.name())));
    let stored = deployment["status"].clone();
    let mut pass = Pass { view, deployment: deployment.clone(), stored, revised: false, sets, steps };
    pass.run();
    pass.steps
}

/// One pass over a Deployment; changes are made here first, so that later steps see them.
struct Pass<'a> {
    view: &'a View<'a>,
    deployment: Value,
    /// The status before the pass.
    stored: Value,
    /// The revision has changed; it is written together with the status.
    revised: bool,
    /// The oldest first.
    sets: Vec<Value>,
    steps: Vec<Step>,
}

impl Pass<'_> {
    fn run(&mut self) {
        if self.deployment.is_deleting() {
            self.plain_status();
            return;
        }
        self.note_pause();
        if flag(&self.deployment, "/spec/paused") {
            let new = self.new_set();
            if let Some(new) = new {
                self.adopt(new);
            }
            self.scale(new);
            self.clean_up(new);
            self.plain_status();
            return;
        }
        if rollout::is_scaling(&self.deployment, &self.sets) {
            let new = self.new_set();
            if let Some(new) = new {
                self.adopt(new);
            }
            self.scale(new);
            self.plain_status();
            return;
        }
        if self.deployment.pointer("/spec/strategy/type").and_then(Value::as_str) == Some("Recreate") {
            self.recreate();
        } else {
            self.roll();
        }
    }

    fn roll(&mut self) {
        let Some(new) = self.new_set_or_create() else { return };
        let together: i64 = self.sets.iter().map(replicas).sum();
        let (own, wanted) = (replicas(&self.sets[new]), replicas(&self.deployment));
        let size = if own > wanted { wanted } else { rollout::grow(&self.deployment, own, together) };
        if self.resize(new, size) {
            self.rollout_status(Some(new));
            return;
        }
        let old: Vec<usize> = (0..self.sets.len()).filter(|index| *index != new).collect();
        let olds: Vec<&Value> = old.iter().map(|index| &self.sets[*index]).collect();
        let sizes = rollout::shrink(&self.deployment, &self.sets[new], &olds);
        let mut changed = false;
        for (index, size) in old.into_iter().zip(sizes) {
            changed |= self.resize(index, size);
        }
        if !changed {
            self.clean_up(Some(new));
        }
        self.rollout_status(Some(new));
    }

    fn recreate(&mut self) {
        let new = self.new_set();
        let old: Vec<usize> = (0..self.sets.len()).filter(|index| Some(*index) != new).collect();
        let mut changed = false;
        for index in &old {
            changed |= self.resize(*index, 0);
        }
        let lives = |set: &Value| {
            let pods = self.view.objects.owned(Kind::Pod, set.namespace(), set.uid());
            pods.iter().any(|pod| !is_finished(pod))
        };
        if changed || old.iter().any(|index| lives(&self.sets[*index])) {
            if let Some(new) = new {
                self.adopt(new);
            }
            self.rollout_status(new);
            return;
        }
        let Some(new) = self.new_set_or_create() else { return };
        self.resize(new, replicas(&self.deployment));
        self.clean_up(Some(new));
        self.rollout_status(Some(new));
    }

    /// Returns the set with the current template.
    fn new_set(&self) -> Option<usize> {
        let wanted = bare(&self.deployment["spec"]["template"]);
        self.sets.iter().position(|set| bare(&set["spec"]["template"]) == wanted)
    }

    fn last_revision(&self, except: Option<usize>) -> i64 {
        let others = self.sets.iter().enumerate().filter(|(index, _)| Some(*index) != except);
        others.map(|(_, set)| revision(set)).max().unwrap_or(0)
    }

    fn new_set_or_create(&mut self) -> Option<usize> {
        if let Some(new) = self.new_set() {
            self.adopt(new);
            return Some(new);
        }
        let deployment = &self.deployment;
        let collisions = number(deployment, "/status/collisionCount").unwrap_or(0);
        let hash = hash::template(&deployment["spec"]["template"], collisions);
        let mut template = deployment["spec"]["template"].clone();
        map_at(&mut template["metadata"], "labels").insert(HASH.to_owned(), json!(hash));
        let mut selector = deployment["spec"]["selector"].clone();
        map_at(&mut selector, "matchLabels").insert(HASH.to_owned(), json!(hash));
        let together: i64 = self.sets.iter().map(replicas).sum();
        let size = rollout::grow(deployment, 0, together);
        let mut set = json!({
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": format!("{}-{hash}", deployment.name()),
                "namespace": deployment.namespace(),
                "labels": template["metadata"]["labels"],
                "ownerReferences": [controlled_by(deployment)],
            },
            "spec": {"replicas": size, "selector": selector, "template": template},
        });
        if let Some(seconds) = number(deployment, "/spec/minReadySeconds").filter(|seconds| *seconds > 0) {
            set["spec"]["minReadySeconds"] = json!(seconds);
        }
        let next = (self.last_revision(None) + 1).to_string();
        annotate(deployment, &mut set, &next);
        let taken = self.view.get(Kind::ReplicaSet, deployment.namespace(), set.name()).is_some();
        if taken {
            // Another owner's set has this name: use another hash next time.
            let mut status = deployment["status"].clone();
            status["collisionCount"] = json!(collisions + 1);
            self.steps.push(Step::status(Kind::Deployment, deployment, status));
            return None;
        }
        self.steps.push(Step::Create { kind: Kind::ReplicaSet, object: set.clone(), tell: None });
        if size > 0 {
            self.tell_scaling(set.name().to_owned(), 0, size);
        }
        self.set_revision(&next);
        let message = format!("Created new replica set {:?}", set.name());
        self.progress("True", "NewReplicaSetCreated", &message);
        // It has no status yet: its first event triggers the next pass.
        self.sets.push(set);
        self.rollout_status(Some(self.sets.len() - 1));
        None
    }

    /// Updates the annotations of the newest set and the Deployment's revision.
    fn adopt(&mut self, new: usize) {
        let next = self.last_revision(Some(new)) + 1;
        let own = revision(&self.sets[new]);
        let revision = own.max(next).to_string();
        let mut set = self.sets[new].clone();
        annotate(&self.deployment, &mut set, &revision);
        let min_ready = number(&self.deployment, "/spec/minReadySeconds").unwrap_or(0);
        if number(&set, "/spec/minReadySeconds").unwrap_or(0) != min_ready {
            set["spec"]["minReadySeconds"] = json!(min_ready);
        }
        if set != self.sets[new] {
            self.update(Kind::ReplicaSet, set.clone());
            self.sets[new] = set;
        }
        self.set_revision(&revision);
    }

    fn set_revision(&mut self, revision: &str) {
        if annotation(&self.deployment, REVISION) == revision {
            return;
        }
        map_at(&mut self.deployment["metadata"], "annotations").insert(REVISION.to_owned(), json!(revision));
        self.revised = true;
    }

    /// Writes an object once per pass: the last state counts.
    fn update(&mut self, kind: Kind, object: Value) {
        let same =
            |step: &Step| matches!(step, Step::Update { object: old, .. } if old.uid() == object.uid());
        self.steps.retain(|step| !same(step));
        self.steps.push(Step::Update { kind, object });
    }

    /// Changes the size of a set; returns whether anything changed.
    fn resize(&mut self, index: usize, size: i64) -> bool {
        let mut set = self.sets[index].clone();
        let before = replicas(&set);
        set["spec"]["replicas"] = json!(size);
        remember_size(&self.deployment, &mut set);
        if set == self.sets[index] {
            return false;
        }
        if before == size {
            // Only the recorded size changed, which upstream writes together with a new size.
            if size > 0 {
                self.update(Kind::ReplicaSet, set.clone());
                self.sets[index] = set;
            }
            return false;
        }
        self.tell_scaling(set.name().to_owned(), before, size);
        self.update(Kind::ReplicaSet, set.clone());
        self.sets[index] = set;
        true
    }

    fn tell_scaling(&mut self, set: String, from: i64, to: i64) {
        let way = if to > from { "up" } else { "down" };
        let message = format!("Scaled {way} replica set {set} from {from} to {to}");
        self.steps.push(Step::event(&self.deployment, SOURCE, "ScalingReplicaSet", message));
    }

    /// Scales without a rollout.
    fn scale(&mut self, new: Option<usize>) {
        let active: Vec<usize> =
            (0..self.sets.len()).filter(|index| replicas(&self.sets[*index]) > 0).collect();
        let wanted = replicas(&self.deployment);
        let single = match active.as_slice() {
            [] => new.or_else(|| self.sets.len().checked_sub(1)),
            [one] => Some(*one),
            _ => None,
        };
        if active.len() <= 1 {
            if let Some(single) = single {
                self.resize(single, wanted);
            }
            return;
        }
        if let Some(new) = new {
            let set = &self.sets[new];
            let saturated = replicas(set) == wanted
                && annotation(set, DESIRED).parse() == Ok(wanted)
                && number(set, "/status/availableReplicas").unwrap_or(0) == wanted;
            if saturated {
                for index in active.into_iter().filter(|index| *index != new) {
                    self.resize(index, 0);
                }
                return;
            }
        }
        // When scaling up, the largest and newest come first; when scaling down, the largest and oldest.
        let together: i64 = active.iter().map(|index| replicas(&self.sets[*index])).sum();
        let up = wanted > 0 && rollout::max_replicas(&self.deployment) > together;
        let mut order = active;
        order.sort_by_key(|index| {
            let age = *index as i64;
            (-replicas(&self.sets[*index]), if up { -age } else { age })
        });
        let sets: Vec<&Value> = order.iter().map(|index| &self.sets[*index]).collect();
        let sizes = rollout::proportional(&self.deployment, &sets);
        for (index, size) in order.into_iter().zip(sizes) {
            self.resize(index, size);
        }
    }

    /// Deletes old sets beyond the history limit, once the rollout is complete.
    fn clean_up(&mut self, new: Option<usize>) {
        let complete = is_complete(&self.deployment, &self.deployment["status"]);
        let limit = number(&self.deployment, "/spec/revisionHistoryLimit").unwrap_or(10).max(0) as usize;
        if !complete {
            return;
        }
        let mut old: Vec<&Value> = self
            .sets
            .iter()
            .enumerate()
            .filter(|(index, set)| Some(*index) != new && !set.is_deleting())
            .map(|(_, set)| set)
            .collect();
        old.sort_by_key(|set| revision(set));
        let surplus = old.len().saturating_sub(limit);
        let idle = |set: &&&Value| {
            replicas(set) == 0
                && number(set, "/status/replicas").unwrap_or(0) == 0
                && set.generation() <= number(set, "/status/observedGeneration").unwrap_or(0)
        };
        let doomed: Vec<Step> =
            old.iter().take(surplus).filter(idle).map(|set| Step::delete(Kind::ReplicaSet, set)).collect();
        self.steps.extend(doomed);
    }

    fn note_pause(&mut self) {
        if deadline(&self.deployment).is_none() {
            return;
        }
        let reason =
            condition(&self.deployment, "Progressing").map_or("", |own| text(own, "/reason")).to_owned();
        if reason == "ProgressDeadlineExceeded" {
            return;
        }
        let paused = flag(&self.deployment, "/spec/paused");
        if paused && reason != "DeploymentPaused" {
            self.progress("Unknown", "DeploymentPaused", "Deployment is paused");
        } else if !paused && reason == "DeploymentPaused" {
            self.progress("Unknown", "DeploymentResumed", "Deployment is resumed");
        } else {
            return;
        }
        self.steps.push(Step::status(Kind::Deployment, &self.deployment, self.deployment["status"].clone()));
    }

    /// Sets the `Progressing` condition.
    fn progress(&mut self, status: &str, reason: &str, message: &str) {
        if deadline(&self.deployment).is_none() {
            return;
        }
        let mut conditions = list(&self.deployment, "/status/conditions").to_vec();
        set_condition(&mut conditions, new_condition("Progressing", status, reason, message, self.view.now));
        map_at(&mut self.deployment, "status").insert("conditions".to_owned(), conditions.into());
    }

    fn plain_status(&mut self) {
        let new = self.new_set();
        let status = self.counts(new);
        self.write_status(status);
    }

    /// Counts pods and decides whether enough are available.
    fn counts(&self, new: Option<usize>) -> Value {
        let sum = |field: &str| -> i64 {
            self.sets.iter().map(|set| number(set, &format!("/status/{field}")).unwrap_or(0)).sum()
        };
        let deployment = &self.deployment;
        let (total, available) = (sum("replicas"), sum("availableReplicas"));
        let wanted = replicas(deployment);
        let updated = new
            .and_then(|new| self.sets.get(new))
            .map_or(0, |set| number(set, "/status/replicas").unwrap_or(0));
        let mut status = json!({"observedGeneration": deployment.generation(),
            "terminatingReplicas": sum("terminatingReplicas")});
        for (field, count) in [
            ("replicas", total),
            ("updatedReplicas", updated),
            ("readyReplicas", sum("readyReplicas")),
            ("availableReplicas", available),
            ("unavailableReplicas", total - available),
            ("collisionCount", number(deployment, "/status/collisionCount").unwrap_or(0)),
        ] {
            if count > 0 {
                status[field] = json!(count);
            }
        }
        let mut conditions = list(deployment, "/status/conditions").to_vec();
        let enough = available >= wanted - rollout::fenceposts(deployment).1;
        let availability = if enough {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        let (value, reason, message) = availability;
        set_condition(&mut conditions, new_condition("Available", value, reason, message, self.view.now));
        status["conditions"] = conditions.into();
        status
    }

    fn rollout_status(&mut self, new: Option<usize>) {
        let mut status = self.counts(new);
        let mut conditions = list(&status, "/conditions").to_vec();
        let current = conditions.iter().find(|each| each["type"] == "Progressing").cloned();
        let deadline = deadline(&self.deployment);
        let done_before = number(&status, "/replicas") == number(&status, "/updatedReplicas")
            && current.as_ref().is_some_and(|own| own["reason"] == "NewReplicaSetAvailable");
        let now = self.view.now;
        match deadline {
            None => conditions.retain(|each| each["type"] != "Progressing"),
            Some(_) if done_before => {}
            Some(deadline) => {
                let what = match new.and_then(|new| self.sets.get(new)) {
                    Some(set) => format!("ReplicaSet {:?}", set.name()),
                    None => format!("Deployment {:?}", self.deployment.name()),
                };
                if is_complete(&self.deployment, &status) {
                    let message = format!("{what} has successfully progressed.");
                    let condition =
                        new_condition("Progressing", "True", "NewReplicaSetAvailable", &message, now);
                    set_condition(&mut conditions, condition);
                } else if is_progressing(&self.deployment["status"], &status) {
                    let message = format!("{what} is progressing.");
                    let mut condition =
                        new_condition("Progressing", "True", "ReplicaSetUpdated", &message, now);
                    if let Some(current) = &current
                        && current["status"] == "True"
                    {
                        condition["lastTransitionTime"] = current["lastTransitionTime"].clone();
                    }
                    conditions.retain(|each| each["type"] != "Progressing");
                    conditions.push(condition);
                } else if let Some(due) = times_out(current.as_ref(), deadline)
                    && due <= now
                {
                    let message = format!("{what} has timed out progressing.");
                    let condition =
                        new_condition("Progressing", "False", "ProgressDeadlineExceeded", &message, now);
                    set_condition(&mut conditions, condition);
                }
            }
        }
        let failure = self.sets.iter().rev().find_map(|set| condition(set, "ReplicaFailure"));
        match failure {
            Some(failure) => {
                let condition = new_condition(
                    "ReplicaFailure",
                    text(failure, "/status"),
                    text(failure, "/reason"),
                    text(failure, "/message"),
                    now,
                );
                set_condition(&mut conditions, condition);
            }
            None => conditions.retain(|each| each["type"] != "ReplicaFailure"),
        }
        status["conditions"] = conditions.into();
        self.write_status(status);
        // A status change triggers the next pass; without one, the deadline must.
        if let Some(deadline) = deadline
            && let Some(due) = times_out(condition(&self.deployment, "Progressing"), deadline)
            && due > now
        {
            self.steps.push(Step::again_at(due, now));
        }
    }

    fn write_status(&mut self, status: Value) {
        self.deployment["status"] = status.clone();
        self.steps.retain(|step| !matches!(step, Step::Status { kind: Kind::Deployment, .. }));
        if status != self.stored || self.revised {
            let mut step = Step::status(Kind::Deployment, &self.deployment, status);
            if let Step::Status { annotations, .. } = &mut step
                && self.revised
            {
                *annotations = self.deployment.pointer("/metadata/annotations").cloned();
            }
            self.steps.push(step);
        }
    }
}

/// Returns the progress deadline; the largest number means none.
fn deadline(deployment: &Value) -> Option<i64> {
    number(deployment, "/spec/progressDeadlineSeconds").filter(|seconds| *seconds != i64::from(i32::MAX))
}

/// A template without the label that distinguishes sets.
fn bare(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH);
    }
    template
}

fn revision(set: &Value) -> i64 {
    annotation(set, REVISION).parse().unwrap_or(0)
}

fn annotate(deployment: &Value, set: &mut Value, revision: &str) {
    let before = annotation(set, REVISION).to_owned();
    let copied =
        deployment.pointer("/metadata/annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    let annotations = map_at(&mut set["metadata"], "annotations");
    for (key, value) in copied {
        if !NOT_COPIED.contains(&key.as_str()) {
            annotations.insert(key, value);
        }
    }
    if before.parse::<i64>().unwrap_or(0) < revision.parse::<i64>().unwrap_or(0) {
        annotations.insert(REVISION.to_owned(), json!(revision));
        if !before.is_empty() {
            let history = annotations.get(HISTORY).and_then(Value::as_str).unwrap_or("");
            let history = if history.is_empty() { before } else { format!("{history},{before}") };
            annotations.insert(HISTORY.to_owned(), json!(history));
        }
    }
    if replicas(set) > 0 || set.uid().is_empty() {
        remember_size(deployment, set);
    }
}

fn remember_size(deployment: &Value, set: &mut Value) {
    let (desired, most) = (replicas(deployment), rollout::max_replicas(deployment));
    let annotations = map_at(&mut set["metadata"], "annotations");
    annotations.insert(DESIRED.to_owned(), json!(desired.to_string()));
    annotations.insert(MAX.to_owned(), json!(most.to_string()));
}

fn new_condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastUpdateTime": stamp(now), "lastTransitionTime": stamp(now)})
}

fn is_complete(deployment: &Value, status: &Value) -> bool {
    let wanted = replicas(deployment);
    let count = |field: &str| number(status, &format!("/{field}")).unwrap_or(0);
    count("updatedReplicas") == wanted
        && count("replicas") == wanted
        && count("availableReplicas") == wanted
        && count("observedGeneration") >= deployment.generation()
}

fn is_progressing(old: &Value, new: &Value) -> bool {
    let count = |status: &Value, field: &str| number(status, &format!("/{field}")).unwrap_or(0);
    let behind = |status: &Value| count(status, "replicas") - count(status, "updatedReplicas");
    count(new, "updatedReplicas") > count(old, "updatedReplicas")
        || behind(new) < behind(old)
        || count(new, "readyReplicas") > count(old, "readyReplicas")
        || count(new, "availableReplicas") > count(old, "availableReplicas")
}

/// Returns when a rollout counts as stuck; `None` if it cannot be.
fn times_out(progressing: Option<&Value>, deadline: i64) -> Option<Timestamp> {
    let progressing = progressing?;
    if matches!(
        text(progressing, "/reason"),
        "NewReplicaSetAvailable" | "ProgressDeadlineExceeded" | "DeploymentPaused"
    ) {
        return None;
    }
    Some(after(time(progressing, "/lastUpdateTime")?, deadline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    fn deployment(image: &str, replicas: i64) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "d", "uid": "dep", "generation": 1},
            "spec": {"replicas": replicas, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10,
                "selector": {"matchLabels": {"app": "web"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"image": image}]}}},
            "status": {}})
    }

    /// Applies steps to a list of objects, as the server would; pods are ready at once.
    fn apply(objects: &mut Vec<Value>, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Create { kind, mut object, .. } => {
                    object["kind"] = json!(kind.name());
                    object["metadata"]["uid"] = json!(object.name());
                    object["metadata"]["creationTimestamp"] = json!(format!("{:03}", objects.len()));
                    objects.push(object);
                }
                Step::Update { object, .. } => {
                    let old = objects.iter_mut().find(|old| old.uid() == object.uid()).expect("exists");
                    let status = old["status"].clone();
                    *old = object;
                    old["status"] = status;
                }
                Step::Status { uid: wanted, status, annotations, .. } => {
                    let old = objects.iter_mut().find(|old| old.uid() == wanted).expect("exists");
                    old["status"] = status;
                    if let Some(annotations) = annotations {
                        old["metadata"]["annotations"] = annotations;
                    }
                }
                Step::Delete { uid: wanted, .. } => objects.retain(|old| old.uid() != wanted),
                _ => {}
            }
        }
        for set in objects.iter_mut().filter(|object| object["kind"] == "ReplicaSet") {
            let size = replicas(set);
            set["status"] = json!({"replicas": size, "readyReplicas": size, "availableReplicas": size});
        }
    }

    fn settle(objects: &mut Vec<Value>) -> Vec<(i64, i64)> {
        let mut sizes = Vec::new();
        for _ in 0..50 {
            let deployment = objects[0].clone();
            let steps = with_view(objects.clone(), |view| decide(view, &deployment));
            if steps.is_empty() {
                return sizes;
            }
            apply(objects, steps);
            let mut sets: Vec<&Value> =
                objects.iter().filter(|object| object["kind"] == "ReplicaSet").collect();
            sets.sort_by_key(|set| revision(set));
            let size = |index: usize| sets.get(index).map_or(0, |set| replicas(set));
            sizes.push((size(0), size(1)));
        }
        panic!("does not settle: {objects:#?}");
    }

    #[test]
    fn a_new_deployment_ends_complete_and_quiet() {
        let mut objects = vec![deployment("a", 3)];
        settle(&mut objects);
        assert_eq!(objects[0]["status"]["availableReplicas"], 3);
        let conditions = list(&objects[0], "/status/conditions");
        let reasons: Vec<_> = conditions.iter().map(|each| text(each, "/reason")).collect();
        assert_eq!(reasons, ["MinimumReplicasAvailable", "NewReplicaSetAvailable"]);
        assert_eq!(annotation(&objects[0], REVISION), "1");
    }

    #[test]
    fn an_update_never_has_fewer_pods_than_wished_and_at_most_one_more() {
        let mut objects = vec![deployment("a", 3)];
        settle(&mut objects);
        objects[0]["spec"]["template"]["spec"]["containers"][0]["image"] = json!("b");
        objects[0]["metadata"]["generation"] = json!(2);
        let sizes = settle(&mut objects);
        assert!(sizes.iter().all(|(old, new)| (3..=4).contains(&(old + new))), "{sizes:?}");
        assert_eq!(sizes.last(), Some(&(0, 3)));
        assert_eq!(annotation(&objects[0], REVISION), "2");
    }

    #[test]
    fn going_back_reuses_the_old_set() {
        let mut objects = vec![deployment("a", 2)];
        settle(&mut objects);
        for image in ["b", "a"] {
            objects[0]["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
            settle(&mut objects);
        }
        let sets: Vec<&Value> = objects.iter().filter(|object| object["kind"] == "ReplicaSet").collect();
        assert_eq!(sets.len(), 2);
        let current = sets.iter().find(|set| replicas(set) == 2).expect("one is active");
        assert_eq!(annotation(current, REVISION), "3");
        assert_eq!(annotation(current, HISTORY), "1");
    }

    #[test]
    fn a_paused_deployment_rolls_nothing_out() {
        let mut paused = deployment("a", 2);
        paused["spec"]["paused"] = json!(true);
        let mut objects = vec![paused];
        settle(&mut objects);
        assert_eq!(objects.len(), 1);
        assert_eq!(text(&objects[0], "/status/conditions/0/reason"), "DeploymentPaused");
    }
}
