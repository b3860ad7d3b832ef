//! Has workloads placed afresh on request, and deletes the request after its TTL.
//!
//! Watches: WorkloadRebalancers (created, or with a changed spec), both kinds of bindings.
//! Writes:  `spec.rescheduleTriggeredAt` of bindings; the status of WorkloadRebalancers; deletes those whose time is over.

#[cfg(test)]
mod on_server;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::apps::{
    ObjectReference, ObservedWorkload, REFERENCED_BINDING_NOT_FOUND, RebalanceResult, WorkloadRebalancer,
    WorkloadRebalancerStatus,
};
use api::work::{ClusterResourceBinding, ResourceBinding};
use apimachinery::names;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use propagation::status::whole_seconds;
use runtime::{Change, Error, Guard, Key, Outcome, Queue, Reconcile, controller};

use crate::plane::{Plane, StoredBinding};
use crate::table::Start;

const COMPONENT: &str = "workload-rebalancer";
const WORKERS: usize = 5;
/// So many results are kept. More do not fit into an object, and an edited request would gather them without end; admission lets one
/// request name as many.
const RESULTS: usize = 5_000;

struct Controller {
    plane: Arc<Plane>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<String>>) {
    let queue: Arc<Queue<String>> = Queue::new(COMPONENT);
    plane.tell_panics_by_name(&queue, COMPONENT, &plane.mirrors.rebalancers);
    let pushed = queue.clone();
    plane.mirrors.rebalancers.subscribe(move |change| {
        if is_news(change) {
            pushed.push(change.key.name.clone());
        }
    });
    (Arc::new(Controller { plane: plane.clone() }), queue)
}

fn is_news(change: &Change<'_, WorkloadRebalancer>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.spec != new.spec,
        (None, Some(_)) => true,
        _ => false,
    }
}

/// A request and the bindings of the workloads that it names.
pub(crate) struct View {
    rebalancer: Arc<WorkloadRebalancer>,
    found: Vec<Found>,
}

/// The binding of a workload.
struct Found {
    workload: ObjectReference,
    /// When it was last asked to be placed afresh; nothing if there is no binding.
    triggered: Option<Option<Timestamp>>,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    /// Workloads whose bindings are to be placed afresh.
    trigger: Vec<ObjectReference>,
    /// The status if all of them can be asked.
    status: WorkloadRebalancerStatus,
    /// The time of the request is over after this time; now, if it is zero.
    delete_after: Option<Duration>,
}

/// By which the results are sorted.
fn rank(workload: &ObjectReference) -> String {
    let ObjectReference { api_version, kind, namespace, name } = workload;
    format!("{api_version} {kind} {namespace} {name}")
}

/// By which workloads are looked up.
fn key(workload: &ObjectReference) -> (&str, &str, &str, &str) {
    let ObjectReference { api_version, kind, namespace, name } = workload;
    (api_version, kind, namespace, name)
}

fn decide(view: &View, now: Timestamp) -> Plan {
    let (spec, old) = (&view.rebalancer.spec, &view.rebalancer.status);
    let created = view.rebalancer.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let named: HashSet<_> = spec.workloads.iter().map(key).collect();
    // Finished workloads stay in the list, even if the spec no longer names them, as long as there is room.
    let mut room = RESULTS.saturating_sub(named.len());
    let kept = old.observed_workloads.iter().filter(|one| {
        if named.contains(&key(&one.workload)) {
            return true;
        }
        let stays = one.result == Some(RebalanceResult::Successful) && room > 0;
        room -= usize::from(stays);
        stays
    });
    let mut observed: Vec<ObservedWorkload> = kept.cloned().collect();
    let mut listed: HashSet<_> = old.observed_workloads.iter().map(|one| key(&one.workload)).collect();
    for workload in &spec.workloads {
        if listed.insert(key(workload)) {
            observed.push(ObservedWorkload { workload: workload.clone(), ..ObservedWorkload::default() });
        }
    }
    observed.sort_by_cached_key(|one| rank(&one.workload));
    let mut found: HashMap<_, Option<Timestamp>> = HashMap::new();
    for one in &view.found {
        if let Some(triggered) = one.triggered {
            found.entry(key(&one.workload)).or_insert(triggered);
        }
    }
    let mut trigger = Vec::new();
    for one in observed.iter_mut().filter(|one| one.result.is_none()) {
        match found.get(&key(&one.workload)).copied() {
            None => {
                one.result = Some(RebalanceResult::Failed);
                one.reason = REFERENCED_BINDING_NOT_FOUND.to_owned();
            }
            Some(triggered) => {
                one.result = Some(RebalanceResult::Successful);
                if triggered < created {
                    trigger.push(one.workload.clone());
                }
            }
        }
    }
    let mut status = WorkloadRebalancerStatus {
        observed_workloads: observed,
        observed_generation: view.rebalancer.metadata.generation.unwrap_or_default(),
        finish_time: old.finish_time.clone(),
    };
    if status != *old || status.finish_time.is_none() {
        status.finish_time = Some(Time(whole_seconds(now)));
    }
    let ends = spec.ttl_seconds_after_finished.zip(status.finish_time.as_ref()).map(|(ttl, finished)| {
        let left = SignedDuration::from_secs(ttl.into()).saturating_sub(now.duration_since(finished.0));
        left.max(SignedDuration::ZERO).unsigned_abs()
    });
    Plan { trigger, status, delete_after: ends }
}

/// Returns the status if these workloads could not be asked: they are still pending, so the request is not finished.
fn without(
    mut status: WorkloadRebalancerStatus,
    open: &HashSet<(&str, &str, &str, &str)>,
    before: &WorkloadRebalancerStatus,
) -> WorkloadRebalancerStatus {
    if !open.is_empty() {
        let pending = status.observed_workloads.iter_mut().filter(|one| open.contains(&key(&one.workload)));
        pending.for_each(|one| one.result = None);
        status.finish_time.clone_from(&before.finish_time);
    }
    status
}

impl Reconcile for Controller {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let Some(rebalancer) = self.plane.mirrors.rebalancers.get("", name) else { return Ok(None) };
        if rebalancer.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let mut found = Vec::new();
        for workload in &rebalancer.spec.workloads {
            let triggered = if workload.namespace.is_empty() {
                self.triggered::<ClusterResourceBinding>(workload).await?
            } else {
                self.triggered::<ResourceBinding>(workload).await?
            };
            found.push(Found { workload: workload.clone(), triggered });
        }
        Ok(Some(View { rebalancer, found }))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide(view, now)
    }

    async fn apply(&self, _: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        let (plane, rebalancer) = (&self.plane, view.rebalancer.as_ref());
        let mut errors = Vec::new();
        let mut open = HashSet::new();
        for workload in &plan.trigger {
            let asked = if workload.namespace.is_empty() {
                self.trigger::<ClusterResourceBinding>(workload, rebalancer).await
            } else {
                self.trigger::<ResourceBinding>(workload, rebalancer).await
            };
            if let Err(error) = asked {
                errors.push(error);
                open.insert(key(workload));
            }
        }
        let status = without(plan.status, &open, &rebalancer.status);
        let mut written = None;
        if status != rebalancer.status {
            let mut noted = rebalancer.clone();
            noted.status = status;
            written = plane.writer.update_status(rebalancer, &noted, Guard::Version).await?;
            if let Some(written) = &written {
                plane.mirrors.rebalancers.note(written.clone());
            }
        }
        Error::join(errors)?;
        match plan.delete_after {
            None => Ok(Outcome::Done),
            Some(left) if !left.is_zero() => Ok(Outcome::After(left)),
            // If somebody has changed it meanwhile, it may ask for something else by now.
            Some(_) => {
                plane.writer.delete_unchanged(written.as_ref().unwrap_or(rebalancer)).await?;
                Ok(Outcome::Done)
            }
        }
    }
}

impl Controller {
    /// Returns the binding of a workload. A binding that is not in the mirror may still exist, and "not
    /// found" is final, so the server is asked.
    async fn binding<B: StoredBinding>(&self, workload: &ObjectReference) -> Result<Option<Arc<B>>, Error> {
        let name = api::names::binding(&workload.kind, &workload.name);
        let key = Key::new(workload.namespace.clone(), name);
        // Users name workloads, and the client writes their names into paths as they are.
        if !names::is_path_segment(&key.namespace) || !names::is_path_segment(&key.name) {
            return Ok(None);
        }
        if let Some(known) = B::mirror(&self.plane.mirrors).find(&key) {
            return Ok(Some(known));
        }
        Ok(self.plane.writer.api::<B>(&key.namespace).get_opt(&key.name).await?.map(Arc::new))
    }

    async fn triggered<B: StoredBinding>(
        &self,
        workload: &ObjectReference,
    ) -> Result<Option<Option<Timestamp>>, Error> {
        let found = self.binding::<B>(workload).await?;
        Ok(found.map(|binding| binding.spec().reschedule_triggered_at.as_ref().map(|time| time.0)))
    }

    async fn trigger<B: StoredBinding>(
        &self,
        workload: &ObjectReference,
        rebalancer: &WorkloadRebalancer,
    ) -> Result<(), Error> {
        let Some(binding) = self.binding::<B>(workload).await? else { return Ok(()) };
        let mut asked = binding.as_ref().clone();
        asked.spec_mut().reschedule_triggered_at.clone_from(&rebalancer.metadata.creation_timestamp);
        let mirror = B::mirror(&self.plane.mirrors);
        self.plane.writer.update_mirrored(mirror, &binding, &asked, Guard::Version).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{at, half_past, merged, read};

    fn reference(kind: &str, namespace: &str, name: &str) -> Value {
        json!({ "apiVersion": "apps/v1", "kind": kind, "namespace": namespace, "name": name })
    }

    /// A request of second 100 for a Deployment, one that is missing, and a ClusterRole.
    fn rebalancer(otherwise: Value) -> Arc<WorkloadRebalancer> {
        let base = json!({
            "metadata": { "name": "r", "generation": 1, "creationTimestamp": "1970-01-01T00:01:40Z" },
            "spec": { "workloads": [
                reference("Deployment", "default", "web"),
                reference("Deployment", "default", "gone"),
                reference("ClusterRole", "", "reader"),
            ] },
        });
        Arc::new(read(merged(base, otherwise)))
    }

    fn view(otherwise: Value, triggered: Option<i64>) -> View {
        let rebalancer = rebalancer(otherwise);
        let found = rebalancer.spec.workloads.iter().map(|workload| Found {
            workload: workload.clone(),
            triggered: (workload.name != "gone").then(|| triggered.map(at)),
        });
        View { found: found.collect(), rebalancer }
    }

    fn results(plan: &Plan) -> Vec<String> {
        let one = |one: &ObservedWorkload| {
            let result = one.result.as_ref().map_or("", |result| result.as_str());
            format!("{} {result} {}", one.workload.name, one.reason).trim_end().to_owned()
        };
        plan.status.observed_workloads.iter().map(one).collect()
    }

    fn triggered(plan: &Plan) -> Vec<&str> {
        plan.trigger.iter().map(|workload| workload.name.as_str()).collect()
    }

    #[test]
    fn workloads_are_placed_afresh_once() {
        let all = ["reader Successful", "gone Failed ReferencedBindingNotFound", "web Successful"];
        let cases = [
            ("never asked", None, vec!["reader", "web"]),
            ("asked before", Some(99), vec!["reader", "web"]),
            ("asked already", Some(100), vec![]),
            ("asked by a later request", Some(101), vec![]),
        ];
        for (name, before, expected) in cases {
            let plan = decide(&view(json!({}), before), at(200));
            assert_eq!(
                (triggered(&plan), results(&plan)),
                (expected, all.map(str::to_owned).to_vec()),
                "{name}"
            );
            assert_eq!(plan.status.finish_time, Some(Time(at(200))), "{name}");
            assert_eq!((plan.status.observed_generation, plan.delete_after), (1, None), "{name}");
        }
    }

    #[test]
    fn what_was_done_is_not_done_again() {
        let done = decide(&view(json!({}), None), at(200)).status;
        let status = json!({ "status": serde_json::to_value(&done).expect("a status") });
        let again = decide(&view(status.clone(), None), at(300));
        assert_eq!((again.trigger.len(), &again.status), (0, &done));
        // An edited list keeps what was done, and forgets what failed.
        let edited = merged(
            status,
            json!({ "metadata": { "generation": 2 }, "spec": { "workloads": [reference("Deployment", "default", "new")] } }),
        );
        let plan = decide(&view(edited, None), at(400));
        assert_eq!(triggered(&plan), ["new"]);
        assert_eq!(results(&plan), ["reader Successful", "new Successful", "web Successful"]);
        assert_eq!(plan.status.finish_time, Some(Time(at(400))));
    }

    #[test]
    fn workloads_that_are_still_open_are_tried_again_while_the_list_names_them() {
        let open = |name: &str| json!({ "workload": reference("Deployment", "default", name) });
        let pending = json!({ "status": {
            "observedWorkloads": [open("dropped"), open("web")], "observedGeneration": 1,
        } });
        let plan = decide(&view(pending, None), at(200));
        assert_eq!(triggered(&plan), ["reader", "web"]);
        let expected = ["reader Successful", "gone Failed ReferencedBindingNotFound", "web Successful"];
        assert_eq!(results(&plan), expected, "what the list no longer names is forgotten");
        assert_eq!(plan.status.finish_time, Some(Time(at(200))));
    }

    #[test]
    fn a_workload_that_failed_is_not_tried_again_though_its_binding_has_come() {
        let failed = json!({
            "workload": reference("Deployment", "default", "web"), "result": "Failed",
            "reason": REFERENCED_BINDING_NOT_FOUND,
        });
        let status = json!({ "status": { "observedWorkloads": [failed], "observedGeneration": 1 } });
        let plan = decide(&view(status, None), at(200));
        assert_eq!(triggered(&plan), ["reader"]);
        assert_eq!(results(&plan)[2], "web Failed ReferencedBindingNotFound", "as upstream");
    }

    #[test]
    fn a_request_is_finished_when_all_were_asked() {
        let plan = decide(&view(json!({}), None), at(200));
        let before = WorkloadRebalancerStatus::default();
        let none = HashSet::new();
        assert_eq!(without(plan.status.clone(), &none, &before), plan.status);
        let web = &plan.status.observed_workloads[2].workload;
        let status = without(plan.status.clone(), &[key(web)].into(), &before);
        let pending: Vec<bool> = status.observed_workloads.iter().map(|one| one.result.is_none()).collect();
        assert_eq!((pending, status.finish_time), (vec![false, false, true], None));
        let ended = WorkloadRebalancerStatus { finish_time: Some(Time(at(150))), ..before };
        let status = without(plan.status.clone(), &[key(web)].into(), &ended);
        assert_eq!(status.finish_time, Some(Time(at(150))), "that of what was done before");
    }

    #[test]
    fn a_request_whose_results_are_known_gets_the_time_of_its_end() {
        let mut done = decide(&view(json!({}), None), at(200)).status;
        done.finish_time = None;
        let status = json!({ "status": serde_json::to_value(&done).expect("a status") });
        let plan = decide(&view(status, None), half_past(300));
        assert_eq!(plan.status.finish_time, Some(Time(at(300))), "in whole seconds");
    }

    #[test]
    fn a_workload_that_is_named_twice_is_asked_once() {
        let web = || reference("Deployment", "default", "web");
        let plan = decide(&view(json!({ "spec": { "workloads": [web(), web()] } }), None), at(200));
        assert_eq!((triggered(&plan), results(&plan)), (vec!["web"], vec!["web Successful".to_owned()]));
    }

    #[test]
    fn a_request_without_news_keeps_its_end() {
        let done = decide(&view(json!({}), None), at(200)).status;
        let status = |generation: i64| {
            let status = json!({ "status": serde_json::to_value(&done).expect("a status") });
            merged(status, json!({ "metadata": { "generation": generation } }))
        };
        let end = |generation: i64| decide(&view(status(generation), None), at(900)).status.finish_time;
        assert_eq!(end(1), Some(Time(at(200))));
        assert_eq!(end(2), Some(Time(at(900))), "it was edited, so its time to live begins anew");
    }

    #[test]
    fn finding_25_any_number_of_workloads_is_looked_at_in_linear_time() {
        let workloads: Vec<Value> =
            (0..50_000).map(|index| reference("Deployment", "default", &format!("w{index}"))).collect();
        let named = json!({ "spec": { "workloads": workloads } });
        let first = decide(&view(named.clone(), None), at(200));
        assert_eq!((first.trigger.len(), first.status.observed_workloads.len()), (50_000, 50_000));
        let status = json!({ "status": serde_json::to_value(&first.status).expect("a status") });
        assert_eq!(decide(&view(merged(named, status), None), at(300)).trigger.len(), 0);
    }

    #[test]
    fn finding_25_results_of_what_is_no_longer_named_do_not_add_up_without_end() {
        let done: Vec<Value> = (0..RESULTS)
            .map(|index| json!({ "workload": reference("Deployment", "default", &format!("w{index}")), "result": "Successful" }))
            .collect();
        let plan = decide(&view(json!({ "status": { "observedWorkloads": done } }), None), at(200));
        assert_eq!(plan.status.observed_workloads.len(), RESULTS, "the three that are named are among them");
        assert_eq!(plan.trigger.len(), 2);
    }

    #[test]
    fn a_request_goes_when_its_time_is_over() {
        let done = decide(&view(json!({}), None), at(200)).status;
        let finished = json!({ "status": serde_json::to_value(&done).expect("a status") });
        let ttl = |seconds: i32| json!({ "spec": { "ttlSecondsAfterFinished": seconds } });
        let left = |otherwise: Value, second: i64| decide(&view(otherwise, None), at(second)).delete_after;
        assert_eq!(left(merged(finished.clone(), ttl(5)), 202), Some(Duration::from_secs(3)));
        assert_eq!(left(merged(finished.clone(), ttl(5)), 205), Some(Duration::ZERO));
        assert_eq!(left(merged(finished.clone(), ttl(5)), 900), Some(Duration::ZERO));
        assert_eq!(left(finished, 900), None);
        assert_eq!(left(ttl(5), 200), Some(Duration::from_secs(5)), "it is finished now");
    }

    #[test]
    fn which_changes_count() {
        let key = Key::new("", "r");
        let ttl = || json!({ "spec": { "ttlSecondsAfterFinished": 5 } });
        let status = || json!({ "status": { "observedGeneration": 1 } });
        let cases = [
            ("it is new", None, Some(json!({})), true),
            ("it asks for something else", Some(json!({})), Some(ttl()), true),
            ("its status changed", Some(json!({})), Some(status()), false),
            ("it is gone", Some(json!({})), None, false),
        ];
        for (name, old, new, expected) in cases {
            let change = Change {
                key: &key,
                old: old.map(rebalancer),
                new: new.map(rebalancer),
                ours: false,
                initial: false,
            };
            assert_eq!(is_news(&change), expected, "{name}");
        }
    }
}
