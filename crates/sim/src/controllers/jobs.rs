//! Jobs: pods that end, counted until enough have succeeded or too many failed.
//!
//! A finished pod keeps a finalizer until it has been counted, as upstream; the count and the release are two writes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::family::{self, Family};
use crate::kinds::Kind;
use crate::objects::{
    Object, after, annotation, condition, flag, is_active, is_finished, is_ready, is_true, list, map_at,
    number, phase, pod_from, stamp, text, time,
};
use crate::plan::{Step, Tell};
use crate::view::View;

const TRACKING: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const SOURCE: &str = "job-controller";

pub(crate) fn decide(view: &View<'_>, job: &Value) -> Vec<Step> {
    let Family { members: pods, mut steps } = family::gather(view, Kind::Pod, job, Some(TRACKING), |_| true);
    let over = is_true(job, "Complete") || is_true(job, "Failed");
    if over || job.is_deleting() {
        steps.extend(pods.iter().filter(|pod| pod.has_finalizer(TRACKING)).map(release));
        return steps;
    }
    let mut pass = Pass { view, job, status: job["status"].clone(), steps };
    pass.run(&pods);
    pass.steps
}

/// Releases the pods of a deleted Job.
pub(crate) fn abandoned(view: &View<'_>, space: &str, job: &str) -> Vec<Step> {
    let pods = view.objects.list(Kind::Pod, space);
    let is_left = |pod: &&Value| {
        pod.has_finalizer(TRACKING)
            && pod.controller().is_some_and(|owner| owner["kind"] == "Job" && owner["name"] == job)
    };
    pods.iter().filter(is_left).map(release).collect()
}

struct Pass<'a> {
    view: &'a View<'a>,
    job: &'a Value,
    status: Value,
    steps: Vec<Step>,
}

impl Pass<'_> {
    fn run(&mut self, pods: &[Value]) {
        let (job, now) = (self.job, self.view.now);
        let suspended = flag(job, "/spec/suspend");
        if !self.status.is_object() {
            self.status = json!({});
        }
        if text(&self.status, "/startTime").is_empty() && !suspended {
            self.status["startTime"] = json!(stamp(now));
        }
        let fresh: Vec<&Value> = pods
            .iter()
            .filter(|pod| pod.has_finalizer(TRACKING) && (is_finished(pod) || pod.is_deleting()))
            .collect();
        let indexed = text(job, "/spec/completionMode") == "Indexed";
        let mut indexes = read_indexes(text(&self.status, "/completedIndexes"));
        let mut succeeded = number(&self.status, "/succeeded").unwrap_or(0);
        let mut failed = number(&self.status, "/failed").unwrap_or(0);
        for pod in &fresh {
            match phase(pod) {
                "Succeeded" if indexed => {
                    indexes.extend(index(pod));
                }
                "Succeeded" => succeeded += 1,
                _ => failed += 1,
            }
        }
        if indexed {
            succeeded = indexes.len() as i64;
        }
        let active: Vec<&Value> = pods.iter().filter(|pod| is_active(pod)).collect();
        let verdict = self.verdict(succeeded, failed, active.len() as i64);
        let running = match verdict {
            Some(verdict) => {
                for pod in &active {
                    self.steps.push(self.delete(pod));
                }
                if !verdict.success {
                    // Pods that were still running count as failed, too.
                    failed += active.len() as i64;
                }
                self.conclude(&verdict);
                0
            }
            None => {
                self.suspension(suspended);
                self.adjust(&active, &indexes, succeeded, suspended)
            }
        };
        let mut set = |field: &str, count: i64| match count {
            0 => {
                map_at_root(&mut self.status).remove(field);
            }
            count => self.status[field] = json!(count),
        };
        set("active", running);
        set("succeeded", succeeded);
        set("failed", failed);
        if indexed && !indexes.is_empty() {
            self.status["completedIndexes"] = json!(print_indexes(&indexes));
        }
        let over = list(&self.status, "/conditions")
            .iter()
            .any(|each| each["type"] == "Complete" || each["type"] == "Failed");
        let ready = active.iter().filter(|pod| is_ready(pod)).count();
        self.status["ready"] = json!(if over { 0 } else { ready });
        let terminating = pods.iter().filter(|pod| pod.is_deleting() && !is_finished(pod)).count();
        self.status["terminating"] = json!(terminating);
        self.status["uncountedTerminatedPods"] = json!({});
        if self.status != job["status"] {
            self.steps.push(Step::status(Kind::Job, job, self.status.clone()));
        }
        self.steps.extend(fresh.into_iter().map(release));
    }

    /// Returns how the Job ends, if it does now: condition, reason, message.
    fn verdict(&mut self, succeeded: i64, failed: i64, active: i64) -> Option<Verdict> {
        let job = self.job;
        if let (Some(seconds), Some(start)) =
            (number(job, "/spec/activeDeadlineSeconds"), time(&self.status, "/startTime"))
            && !flag(job, "/spec/suspend")
        {
            let due = after(start, seconds);
            if due <= self.view.now {
                return Some(Verdict::failed(
                    "DeadlineExceeded",
                    "Job was active longer than specified deadline",
                ));
            }
            self.steps.push(Step::again_at(due, self.view.now));
        }
        if failed > number(job, "/spec/backoffLimit").unwrap_or(6) {
            return Some(Verdict::failed(
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            ));
        }
        let complete = match number(job, "/spec/completions") {
            Some(completions) => succeeded >= completions,
            // A work queue is done when one pod has succeeded and none is running.
            None => succeeded > 0 && active == 0,
        };
        complete.then_some(Verdict {
            success: true,
            reason: "CompletionsReached",
            message: "Reached expected number of succeeded pods",
        })
    }

    fn conclude(&mut self, verdict: &Verdict) {
        let now = stamp(self.view.now);
        let kinds =
            if verdict.success { ["SuccessCriteriaMet", "Complete"] } else { ["FailureTarget", "Failed"] };
        let mut conditions = list(&self.status, "/conditions").to_vec();
        for kind in kinds {
            conditions.push(json!({"type": kind, "status": "True", "reason": verdict.reason,
                "message": verdict.message, "lastProbeTime": now, "lastTransitionTime": now}));
        }
        self.status["conditions"] = conditions.into();
        if verdict.success {
            self.status["completionTime"] = json!(now);
            self.steps.push(Step::event(self.job, SOURCE, "Completed", "Job completed".to_owned()));
        } else {
            self.steps.push(Step::warning(self.job, SOURCE, verdict.reason, verdict.message.to_owned()));
        }
    }

    fn suspension(&mut self, suspended: bool) {
        let was = condition(self.job, "Suspended").map(|own| own["status"] == "True");
        if was.unwrap_or(false) == suspended {
            return;
        }
        let now = stamp(self.view.now);
        let (status, reason, message) = if suspended {
            ("True", "JobSuspended", "Job suspended")
        } else {
            ("False", "JobResumed", "Job resumed")
        };
        let mut conditions = list(&self.status, "/conditions").to_vec();
        conditions.retain(|each| each["type"] != "Suspended");
        conditions.push(json!({"type": "Suspended", "status": status, "reason": reason, "message": message,
            "lastProbeTime": now, "lastTransitionTime": now}));
        self.status["conditions"] = conditions.into();
        if suspended {
            map_at_root(&mut self.status).remove("startTime");
        } else {
            self.status["startTime"] = json!(now);
        }
        let event = if suspended { "Suspended" } else { "Resumed" };
        self.steps.push(Step::event(self.job, SOURCE, event, message.to_owned()));
    }

    /// Creates or deletes pods until the desired number is active; returns that number.
    fn adjust(&mut self, active: &[&Value], done: &BTreeSet<i64>, succeeded: i64, suspended: bool) -> i64 {
        let job = self.job;
        let parallelism = number(job, "/spec/parallelism").unwrap_or(1);
        let running = active.len() as i64;
        let wanted = if suspended {
            0
        } else {
            match number(job, "/spec/completions") {
                Some(completions) => parallelism.min(completions - succeeded).max(0),
                None if succeeded > 0 => running.min(parallelism),
                None => parallelism,
            }
        };
        if running > wanted {
            let mut surplus: Vec<&&Value> = active.iter().collect();
            surplus.sort_by_key(|pod| (is_ready(pod), std::cmp::Reverse(pod.name().to_owned())));
            for pod in surplus.into_iter().take((running - wanted) as usize) {
                self.steps.push(self.delete(pod));
            }
            return wanted;
        }
        let indexed = text(job, "/spec/completionMode") == "Indexed";
        let taken: BTreeSet<i64> = active.iter().filter_map(|pod| index(pod)).collect();
        let mut free = (0..number(job, "/spec/completions").unwrap_or(0))
            .filter(|at| !done.contains(at) && !taken.contains(at));
        for _ in running..wanted {
            let at = if indexed { free.next() } else { None };
            if indexed && at.is_none() {
                break;
            }
            self.steps.push(create(job, at));
        }
        wanted
    }

    fn delete(&self, pod: &Value) -> Step {
        let mut step = Step::delete(Kind::Pod, pod);
        if let Step::Delete { tell, .. } = &mut step {
            *tell = Some(Tell::new(self.job, SOURCE, "Deleted pod: {}"));
        }
        step
    }
}

struct Verdict {
    success: bool,
    reason: &'static str,
    message: &'static str,
}

impl Verdict {
    fn failed(reason: &'static str, message: &'static str) -> Self {
        Self { success: false, reason, message }
    }
}

fn map_at_root(value: &mut Value) -> &mut serde_json::Map<String, Value> {
    value.as_object_mut().expect("a status is an object")
}

fn create(job: &Value, at: Option<i64>) -> Step {
    let mut pod = pod_from(job, &job["spec"]["template"]);
    pod["metadata"]["finalizers"] = json!([TRACKING]);
    if let Some(at) = at {
        let text = at.to_string();
        map_at(&mut pod["metadata"], "annotations").insert(INDEX.to_owned(), json!(text));
        map_at(&mut pod["metadata"], "labels").insert(INDEX.to_owned(), json!(text));
        pod["metadata"]["generateName"] = json!(format!("{}-{at}-", job.name()));
        pod["spec"]["hostname"] = json!(format!("{}-{at}", job.name()));
        let field = format!("metadata.labels['{INDEX}']");
        let variable = json!({"name": "JOB_COMPLETION_INDEX",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}});
        for containers in ["initContainers", "containers"] {
            for container in pod["spec"][containers].as_array_mut().into_iter().flatten() {
                let fields = container.as_object_mut().expect("containers are objects");
                let env = fields.entry("env").or_insert_with(|| json!([]));
                if let Some(env) = env.as_array_mut() {
                    env.push(variable.clone());
                }
            }
        }
    }
    Step::Create { kind: Kind::Pod, object: pod, tell: Some(Tell::new(job, SOURCE, "Created pod: {}")) }
}

/// Releases a pod that has been counted.
fn release(pod: &Value) -> Step {
    let mut pod = pod.clone();
    let rest: Vec<Value> =
        list(&pod, "/metadata/finalizers").iter().filter(|own| **own != TRACKING).cloned().collect();
    let metadata = map_at(&mut pod, "metadata");
    if rest.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), rest.into());
    }
    Step::Update { kind: Kind::Pod, object: pod }
}

fn index(pod: &Value) -> Option<i64> {
    annotation(pod, INDEX).parse().ok()
}

/// Parses `0-2,5`.
fn read_indexes(text: &str) -> BTreeSet<i64> {
    text.split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some(from.parse::<i64>().ok()?..=to.parse::<i64>().ok()?)
        })
        .flatten()
        .collect()
}

/// Prints runs of three and more as ranges; two neighbours as `0,1`, as upstream does.
fn print_indexes(indexes: &BTreeSet<i64>) -> String {
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for at in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *at => *last = *at,
            _ => runs.push((*at, *at)),
        }
    }
    let print = |(first, last): &(i64, i64)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(print).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    fn job(spec: Value) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "d", "uid": "job"},
            "spec": spec, "status": {"startTime": "2026-01-01T00:09:00Z"}})
    }

    fn pod(name: &str, phase: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "d", "uid": name,
            "finalizers": [TRACKING], "ownerReferences": [{"uid": "job", "controller": true}]}, "status": {"phase": phase}})
    }

    fn created(steps: &[Step]) -> usize {
        steps.iter().filter(|step| matches!(step, Step::Create { .. })).count()
    }

    fn status(steps: &[Step]) -> Value {
        let found = steps.iter().find_map(|step| match step {
            Step::Status { status, .. } => Some(status.clone()),
            _ => None,
        });
        found.expect("a status is written")
    }

    #[test]
    fn no_more_pods_work_than_are_still_needed() {
        let job = job(json!({"completions": 3, "parallelism": 2, "template": {"spec": {}}}));
        assert_eq!(created(&with_view(vec![], |view| decide(view, &job))), 2);
        let pods = vec![pod("a", "Succeeded"), pod("b", "Succeeded")];
        let steps = with_view(pods, |view| decide(view, &job));
        assert_eq!(created(&steps), 1);
        assert_eq!(status(&steps)["succeeded"], 2);
    }

    #[test]
    fn enough_successes_complete_it() {
        let job = job(json!({"completions": 1, "template": {"spec": {}}}));
        let steps = with_view(vec![pod("a", "Succeeded")], |view| decide(view, &job));
        assert_eq!(text(&status(&steps), "/conditions/1/type"), "Complete");
    }

    #[test]
    fn too_many_failures_and_too_much_time_end_it() {
        let impatient = job(json!({"completions": 1, "backoffLimit": 0, "template": {"spec": {}}}));
        let steps = with_view(vec![pod("a", "Failed")], |view| decide(view, &impatient));
        assert_eq!(text(&status(&steps), "/conditions/1/reason"), "BackoffLimitExceeded");
        let late = job(json!({"completions": 1, "activeDeadlineSeconds": 30, "template": {"spec": {}}}));
        let steps = with_view(vec![pod("a", "Running")], |view| decide(view, &late));
        assert_eq!(text(&status(&steps), "/conditions/1/reason"), "DeadlineExceeded");
        assert!(steps.iter().any(|step| matches!(step, Step::Delete { .. })));
    }

    #[test]
    fn indexes_survive_printing() {
        for (text, set) in [("0,1", vec![0, 1]), ("0-2,5", vec![0, 1, 2, 5]), ("", vec![])] {
            let set: BTreeSet<i64> = set.into_iter().collect();
            assert_eq!(print_indexes(&set), text);
            assert_eq!(read_indexes(text), set);
        }
    }
}
