//! `pods/eviction`: a deletion that checks the pod's disruption budget first, in kube-apiserver's words.
//!
//! The decision is a function of pod and budgets ([`decide`]); the shell takes one disruption from the budget, which may be
//! contended, and deletes the pod.

use std::sync::Arc;

use apimachinery::gvk::GroupResource;
use apimachinery::selector::LabelSelector;
use apimachinery::status::{Cause, Details, Status};
use apiserver::Server;
use apiserver::handlers::delete::DeleteOptions;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::executor::Executor;
use crate::kinds::Kind;
use crate::objects::{Object, is_ready, list, map_at, number, phase, stamp, text};
use crate::view::Objects;

const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
/// How many evictions a budget records that its controller has not seen yet.
const MAX_DISRUPTED: usize = 2000;

/// The decision about a pod that should be evicted.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// No budget applies.
    Delete,
    /// The budget gets this status first.
    Take(Value),
    Refuse(Box<Status>),
}

/// Evicts a pod, or says why not.
pub(crate) async fn evict(
    server: &Arc<Server>,
    space: &str,
    pod_name: &str,
    options: &Value,
    dry: bool,
) -> Result<(), Status> {
    let executor = Executor::new(server);
    let Some(pod) = executor.get(Kind::Pod, space, pod_name) else {
        return Err(Status::not_found(&GroupResource::new("", "pods"), pod_name));
    };
    let budgets = budgets_of(&executor, &pod)?;
    if let Some(budget) = budgets.first() {
        let outcome = Mutex::new(Verdict::Delete);
        let change = |budget: &Value| {
            let verdict = decide(&pod, budget, Timestamp::now());
            let status = match &verdict {
                Verdict::Take(status) if !dry => Some(status.clone()),
                _ => None,
            };
            *outcome.lock() = verdict;
            status.map(|status| {
                let mut budget = budget.clone();
                budget["status"] = status;
                budget
            })
        };
        executor.write_status(Kind::DisruptionBudget, space, budget.name(), change).await?;
        if let Verdict::Refuse(status) = outcome.into_inner() {
            return Err(*status);
        }
    }
    if dry {
        return Ok(());
    }
    executor.write_status(Kind::Pod, space, pod_name, |pod| Some(targeted(pod, Timestamp::now()))).await?;
    let options = DeleteOptions::deserialize(options).unwrap_or_default();
    executor.delete_pod(space, pod_name, &options).await
}

/// Returns the pod with the condition that gives the reason for its end.
fn targeted(pod: &Value, now: Timestamp) -> Value {
    let mut pod = pod.clone();
    let mut conditions = list(&pod, "/status/conditions").to_vec();
    conditions.retain(|condition| condition["type"] != "DisruptionTarget");
    conditions.push(json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "observedGeneration": pod.generation(), "lastProbeTime": null,
        "lastTransitionTime": stamp(now)}));
    map_at(&mut pod, "status").insert("conditions".to_owned(), conditions.into());
    pod
}

/// Returns the budget that applies, if any; more than one is an error.
fn budgets_of(objects: &dyn Objects, pod: &Value) -> Result<Vec<Value>, Status> {
    // A pod that is not ready yet, or not any more, does not count.
    if matches!(phase(pod), "Succeeded" | "Failed" | "Pending") || pod.is_deleting() {
        return Ok(Vec::new());
    }
    let mut budgets = objects.list(Kind::DisruptionBudget, pod.namespace());
    budgets.retain(|budget| {
        LabelSelector::from_object(budget.pointer("/spec/selector"))
            .is_ok_and(|selector| selector.matches(pod.labels()))
    });
    if budgets.len() > 1 {
        let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(Status::bare_internal(why));
    }
    Ok(budgets)
}

fn decide(pod: &Value, budget: &Value, now: Timestamp) -> Verdict {
    let count = |field: &str| number(budget, &format!("/status/{field}")).unwrap_or(0);
    if !is_ready(pod) {
        let always = text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow";
        let (healthy, desired) = (count("currentHealthy"), count("desiredHealthy"));
        if always || (healthy >= desired && desired > 0) {
            return Verdict::Delete;
        }
    }
    if count("observedGeneration") < budget.generation() {
        let why = format!("The disruption budget {} is still being processed by the server.", budget.name());
        return too_many(why, 10);
    }
    let allowed = count("disruptionsAllowed");
    let forbidden = |why: &str| {
        let budgets = GroupResource::new("policy", "poddisruptionbudgets");
        Verdict::Refuse(Box::new(Status::forbidden(&budgets, budget.name(), why)))
    };
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object);
    if disrupted.is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        let (desired, healthy) = (count("desiredHealthy"), count("currentHealthy"));
        let why = format!(
            "The disruption budget {} needs {desired} healthy pods and has {healthy} currently",
            budget.name()
        );
        return too_many(why, 0);
    }
    let mut status = budget["status"].clone();
    status["disruptionsAllowed"] = json!(allowed - 1);
    map_at(&mut status, "disruptedPods").insert(pod.name().to_owned(), json!(stamp(now)));
    if allowed == 1
        && let Some(conditions) = status["conditions"].as_array_mut()
    {
        for condition in conditions.iter_mut().filter(|each| each["type"] == "DisruptionAllowed") {
            condition["status"] = json!("False");
            condition["reason"] = json!("InsufficientPods");
            condition["lastTransitionTime"] = json!(stamp(now));
        }
    }
    Verdict::Take(status)
}

fn too_many(why: String, retry_after_seconds: u32) -> Verdict {
    let cause = Cause { reason: "DisruptionBudget".to_owned(), message: why, ..Cause::default() };
    let details = Details { causes: vec![cause], retry_after_seconds, ..Details::default() };
    Verdict::Refuse(Box::new(Status::too_many_requests(REFUSED, retry_after_seconds).with_details(details)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::Cluster;

    fn pod(ready: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": {"app": "web"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn budget(name: &str, allowed: i64) -> Value {
        json!({"kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": "d", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2,
                "desiredHealthy": 2 - allowed, "conditions": [{"type": "DisruptionAllowed", "status": "True"}]}})
    }

    #[test]
    fn an_eviction_takes_one_disruption_from_the_budget() {
        let Verdict::Take(status) = decide(&pod("True"), &budget("b", 1), Timestamp::UNIX_EPOCH) else {
            panic!("not taken")
        };
        assert_eq!(status["disruptionsAllowed"], 0);
        assert_eq!(status["disruptedPods"], json!({"p": "1970-01-01T00:00:00Z"}));
        assert_eq!(status["conditions"][0]["status"], "False");
    }

    #[test]
    fn a_budget_that_is_used_up_refuses() {
        let Verdict::Refuse(status) = decide(&pod("True"), &budget("b", 0), Timestamp::UNIX_EPOCH) else {
            panic!("not refused")
        };
        assert_eq!((status.code, status.message.as_str()), (429, REFUSED));
        let causes = &status.details.as_ref().expect("details").causes;
        assert_eq!(causes[0].message, "The disruption budget b needs 2 healthy pods and has 2 currently");
    }

    #[test]
    fn a_pod_that_does_not_work_may_go_while_the_others_suffice() {
        assert_eq!(decide(&pod("False"), &budget("b", 0), Timestamp::UNIX_EPOCH), Verdict::Delete);
        let mut starved = budget("b", 0);
        starved["status"]["currentHealthy"] = json!(1);
        assert!(matches!(decide(&pod("False"), &starved, Timestamp::UNIX_EPOCH), Verdict::Refuse(_)));
        starved["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
        assert_eq!(decide(&pod("False"), &starved, Timestamp::UNIX_EPOCH), Verdict::Delete);
    }

    #[test]
    fn two_budgets_for_one_pod_are_an_error() {
        let cluster = Cluster(vec![budget("a", 1), budget("b", 1)]);
        assert_eq!(budgets_of(&cluster, &pod("True")).expect_err("refused").code, 500);
        let mut waiting = pod("False");
        waiting["status"]["phase"] = json!("Pending");
        assert_eq!(budgets_of(&cluster, &waiting).expect("nobody asks"), Vec::<Value>::new());
    }
}
