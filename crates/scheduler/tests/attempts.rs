//! What happens around decisions: whether to schedule, ordered affinity terms, what is written and told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::cluster::Cluster;
use api::work::ResourceBinding;
use jiff::Timestamp;
use scheduler::estimator::{Collected, Unavailable};
use scheduler::meter::{Meter, Part};
use scheduler::outcome::{self, Retry, WriteError};
use scheduler::plugins::{Context, Filter, Reason, Score};
use scheduler::trigger::{self, Binding, ChangedCluster, Next, Scope, Trigger};
use scheduler::{
    Assumptions, Attempt, Estimator, Fleet, Gates, Groups, Options, Plugin, Registry, Scheduler, World,
};
use serde_json::{Value, json};

fn cluster(name: &str, cpu: i64, more: Value) -> Arc<Cluster> {
    let mut cluster = json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name, "generation": 1},
        "spec": {"syncMode": "Push"},
        "status": {
            "apiEnablements": [{"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}],
            "resourceSummary": {"allocatable": {"cpu": cpu.to_string(), "pods": "100"}},
        },
    });
    merge(&mut cluster, &more);
    Arc::new(serde_json::from_value(cluster).unwrap())
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

fn fleet() -> Fleet {
    Fleet::new([("m1", 3), ("m2", 4), ("m3", 9)].map(|(name, cpu)| cluster(name, cpu, json!({}))))
}

const DYNAMIC: &str = r#"{"replicaSchedulingType":"Divided","replicaDivisionPreference":"Weighted","weightPreference":{"dynamicWeight":"AvailableReplicas"}}"#;

fn dynamic() -> Value {
    serde_json::from_str(DYNAMIC).unwrap()
}

fn binding(more: Value) -> ResourceBinding {
    let mut binding = json!({
        "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
        "metadata": {"name": "web-deployment", "namespace": "ns", "generation": 4},
        "spec": {
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ns", "name": "web"},
            "replicas": 5, "replicaRequirements": {"resourceRequest": {"cpu": "1"}},
            "placement": {"replicaScheduling": dynamic()},
        },
    });
    merge(&mut binding, &more);
    serde_json::from_value(binding).unwrap()
}

fn schedule_with(
    binding: &ResourceBinding,
    fleet: &Fleet,
    estimators: &[&dyn Estimator],
    options: Options,
) -> Attempt {
    let (workloads, assumptions) = (Groups::default(), Assumptions::default());
    let now = Timestamp::UNIX_EPOCH;
    let world = World { fleet, workloads: &workloads, assumptions: &assumptions, estimators, now };
    Scheduler::new(options).schedule(world, &binding.spec, &binding.status)
}

fn schedule(binding: &ResourceBinding) -> Attempt {
    schedule_with(binding, &fleet(), &[], Options::default())
}

fn placed(attempt: &Attempt) -> String {
    let clusters = &attempt.result.as_ref().expect("a decision").clusters;
    clusters.iter().map(|target| format!("{}:{}", target.name, target.replicas)).collect::<Vec<_>>().join(" ")
}

fn terms() -> Value {
    json!([
        {"affinityName": "small", "clusterNames": ["m1"]},
        {"affinityName": "medium", "clusterNames": ["m1", "m2"]},
        {"affinityName": "large", "clusterNames": ["m3"]},
    ])
}

// Ordered affinity terms.

#[test]
fn the_first_term_that_works_is_taken() {
    let attempt = schedule(&binding(json!({"spec": {"placement": {"clusterAffinities": terms()}}})));
    assert_eq!(placed(&attempt), "m1:2 m2:3");
    assert_eq!(attempt.affinity_name.as_deref(), Some("medium"));
    assert_eq!(attempt.failed_terms.len(), 1);
}

#[test]
fn trying_starts_at_the_term_in_use_and_never_goes_back() {
    let more = json!({"spec": {"placement": {"clusterAffinities": terms()}, "replicas": 2},
        "status": {"schedulerObservingAffinityName": "large"}});
    assert_eq!(placed(&schedule(&binding(more.clone()))), "m3:2");
    // 20 fit nowhere: only the last term is tried, and its failure is told.
    let mut too_many = more;
    too_many["spec"]["replicas"] = json!(20);
    let attempt = schedule(&binding(too_many));
    assert_eq!(attempt.failed_terms.iter().map(|term| term.index).collect::<Vec<_>>(), [2]);
    assert_eq!(attempt.affinity_name, None);
}

#[test]
fn a_rebalance_starts_over_at_the_first_term() {
    let more = json!({
        "spec": {"placement": {"clusterAffinities": terms()}, "replicas": 2, "rescheduleTriggeredAt": "2026-01-02T00:00:00Z"},
        "status": {"schedulerObservingAffinityName": "large", "lastScheduledTime": "2026-01-01T00:00:00Z"},
    });
    let attempt = schedule(&binding(more));
    assert_eq!((placed(&attempt).as_str(), attempt.affinity_name.as_deref()), ("m1:2", Some("small")));
}

// What is written and told.

fn conclude(
    binding: &ResourceBinding,
    errors: &[WriteError],
) -> (Option<outcome::Result>, outcome::Conclusion) {
    let attempt = schedule(binding);
    (outcome::result(binding.into(), &attempt), outcome::conclude(binding.into(), &attempt, errors))
}

fn events(conclusion: &outcome::Conclusion) -> Vec<String> {
    conclusion
        .events
        .iter()
        .map(|event| format!("{} {}: {}", event.kind, event.reason, event.message))
        .collect()
}

fn condition(conclusion: &outcome::Conclusion) -> String {
    let outcome::Condition { status, reason, message } = &conclusion.condition;
    format!("{status} {reason}: {message}")
}

#[test]
fn success_is_written_with_the_placement_it_is_for() {
    let binding = binding(json!({}));
    let (result, conclusion) = conclude(&binding, &[]);
    let result = result.unwrap();
    assert_eq!(result.clusters.len(), 3);
    assert_eq!(result.applied_placement, format!(r#"{{"replicaScheduling":{DYNAMIC}}}"#));
    assert_eq!(condition(&conclusion), "True Success: Binding has been scheduled successfully.");
    assert_eq!(
        events(&conclusion),
        [
            "Normal ScheduleBindingSucceed: Binding has been scheduled successfully. Result: {m1:1, m2:1, m3:3}"
        ]
    );
    assert_eq!((conclusion.succeeded, conclusion.retry), (true, Retry::Never));
}

#[test]
fn the_same_clusters_in_another_order_are_no_new_result() {
    let with_replicas = |replicas: [i32; 3]| {
        let clusters = ["m1", "m2", "m3"].iter().zip(replicas);
        let clusters: Vec<Value> =
            clusters.map(|(name, replicas)| json!({"name": name, "replicas": replicas})).collect();
        binding(json!({"spec": {"placement": {"replicaScheduling": null}, "clusters": clusters}}))
    };
    // Whoever has more room comes first.
    assert_eq!(placed(&schedule(&with_replicas([5, 5, 5]))), "m3:5 m2:5 m1:5");
    let names = |binding: ResourceBinding| -> Vec<String> {
        let (result, _) = conclude(&binding, &[]);
        result.unwrap().clusters.into_iter().map(|target| target.name).collect()
    };
    assert_eq!(names(with_replicas([5, 5, 5])), ["m1", "m2", "m3"]);
    assert_eq!(names(with_replicas([5, 5, 4])), ["m3", "m2", "m1"]);
}

#[test]
fn the_event_of_a_cluster_scoped_binding_lacks_the_colon() {
    let binding = binding(json!({}));
    let attempt = schedule(&binding);
    let cluster_scoped = Binding { scope: Scope::Cluster, ..Binding::from(&binding) };
    let conclusion = outcome::conclude(cluster_scoped, &attempt, &[]);
    assert_eq!(
        conclusion.events[0].message,
        "Binding has been scheduled successfully. Result {m1:1, m2:1, m3:3}"
    );
}

#[test]
fn no_cluster_clears_the_result_and_waits_for_a_change() {
    let binding = binding(json!({"spec": {"placement": {"clusterAffinity": {"clusterNames": ["none"]}}}}));
    let (result, conclusion) = conclude(&binding, &[]);
    assert!(result.unwrap().clusters.is_empty());
    let message =
        "0/3 clusters are available: 3 cluster(s) did not match the placement cluster affinity constraint.";
    assert_eq!(condition(&conclusion), format!("False NoClusterFit: {message}"));
    assert_eq!(events(&conclusion), [format!("Warning ScheduleBindingFailed: {message}")]);
    assert_eq!((conclusion.succeeded, conclusion.retry), (false, Retry::Never));
}

#[test]
fn lack_of_room_keeps_the_result() {
    let binding = binding(json!({"spec": {"replicas": 50}}));
    let (result, conclusion) = conclude(&binding, &[]);
    assert_eq!(result, None);
    let message = "failed to assign replicas: failed to scale up: Clusters available replicas 16 are not enough to schedule.";
    assert_eq!(condition(&conclusion), format!("False Unschedulable: {message}"));
    assert_eq!(conclusion.retry, Retry::Unschedulable);
}

#[test]
fn unmet_constraints_are_an_error_of_the_scheduler() {
    let spread = json!([{"spreadByField": "cluster", "minGroups": 9, "maxGroups": 9}]);
    let binding = binding(json!({"spec": {"placement": {"spreadConstraints": spread}}}));
    let (result, conclusion) = conclude(&binding, &[]);
    assert_eq!(result, None);
    assert_eq!(
        condition(&conclusion),
        "False SchedulerError: failed to select clusters: the number of feasible clusters is less than spreadConstraint.MinGroups"
    );
    assert_eq!(conclusion.retry, Retry::Backoff);
}

#[test]
fn every_failed_term_is_told_by_its_index() {
    let fallback = binding(json!({"spec": {"placement": {"clusterAffinities": terms()}}}));
    let first = "Warning ScheduleBindingFailed: failed to schedule ResourceBinding(ns/web-deployment) with clusterAffiliates \
                 index(0): failed to assign replicas: failed to scale up: Clusters available replicas 3 are not enough to schedule.";
    assert_eq!(
        events(&conclude(&fallback, &[]).1),
        [
            first,
            "Normal ScheduleBindingSucceed: Binding has been scheduled successfully. Result: {m1:2, m2:3}"
        ]
    );
    let hopeless = binding(json!({"spec": {"placement": {"clusterAffinities": [terms()[0]]}}}));
    let (result, conclusion) = conclude(&hopeless, &[]);
    assert_eq!((result, events(&conclusion)), (None, vec![first.to_owned()]));
    let nobody = json!([{"affinityName": "nobody", "clusterNames": ["none"]}]);
    let (result, conclusion) =
        conclude(&binding(json!({"spec": {"placement": {"clusterAffinities": nobody}}})), &[]);
    assert!(result.unwrap().clusters.is_empty());
    assert_eq!(conclusion.events.len(), 2);
    assert!(conclusion.events[1].message.starts_with("0/3 clusters are available"));
}

#[test]
fn a_refused_write_is_told_and_tried_again() {
    let refused = |message: &str, quota_exceeded, namespace_terminating| WriteError {
        message: message.to_owned(),
        quota_exceeded,
        namespace_terminating,
    };
    let good = binding(json!({}));
    let (_, conclusion) = conclude(&good, &[refused("conflict", false, false)]);
    assert_eq!(
        (condition(&conclusion).as_str(), conclusion.retry),
        ("False SchedulerError: conflict", Retry::Backoff)
    );
    assert_eq!(events(&conclusion), ["Warning ScheduleBindingFailed: conflict"]);
    let (_, conclusion) = conclude(&good, &[refused("a", false, false), refused("quota", true, false)]);
    assert_eq!(condition(&conclusion), "False QuotaExceeded: quota");
    assert_eq!(conclusion.events[0].message, "[a, quota]");
    let (_, conclusion) = conclude(&good, &[refused("a", false, false), refused("a", false, true)]);
    assert_eq!(
        (condition(&conclusion).as_str(), conclusion.retry),
        ("False SchedulerError: a", Retry::Never)
    );
    let nobody = binding(json!({"spec": {"placement": {"clusterAffinity": {"clusterNames": ["none"]}}}}));
    let (_, conclusion) = conclude(&nobody, &[refused("conflict", false, false)]);
    assert_eq!(
        condition(&conclusion),
        "False NoClusterFit: [0/3 clusters are available: 3 cluster(s) did not match the placement cluster affinity \
         constraint., conflict]"
    );
    assert_eq!(conclusion.retry, Retry::Backoff);
}

// Whether to schedule.

fn applied(placement: &Value) -> Value {
    json!({"metadata": {"annotations": {"policy.karmada.io/applied-placement": placement.to_string()}}})
}

/// A binding that is placed and settled, changed by `more`.
fn settled(more: Value) -> ResourceBinding {
    let mut base = applied(&json!({"replicaScheduling": dynamic()}));
    merge(
        &mut base,
        &json!({"spec": {"clusters": [{"name": "m1", "replicas": 2}, {"name": "m2", "replicas": 3}]},
        "status": {"schedulerObservedGeneration": 4, "lastScheduledTime": "2026-01-01T00:00:00Z"}}),
    );
    merge(&mut base, &more);
    binding(base)
}

fn next(binding: &ResourceBinding) -> Next {
    trigger::next(binding.into(), &fleet(), Gates::default())
}

#[test]
fn a_settled_binding_is_left_alone() {
    assert_eq!(next(&settled(json!({}))), Next::Nothing);
    assert_eq!(next(&settled(json!({"metadata": {"generation": 5}}))), Next::NoteGeneration(5));
}

#[test]
fn each_trigger_has_its_reason() {
    let check =
        |more: Value, trigger| assert_eq!(next(&settled(more.clone())), Next::Schedule(trigger), "{more}");
    check(json!({"metadata": {"annotations": null}}), Trigger::PlacementChanged);
    check(json!({"spec": {"placement": {"clusterTolerations": [{"key": "k"}]}}}), Trigger::PlacementChanged);
    check(json!({"spec": {"replicas": 6}}), Trigger::ReplicasChanged);
    check(json!({"spec": {"clusters": null}}), Trigger::ReplicasChanged);
    check(json!({"spec": {"rescheduleTriggeredAt": "2026-01-02T00:00:00Z"}}), Trigger::RescheduleRequested);
    let config = json!({"spec": {"replicas": 0, "replicaRequirements": null, "clusters": [{"name": "m1"}]}});
    check(config, Trigger::Recomputed);
    let duplicated = json!({"replicaScheduling": {"replicaSchedulingType": "Duplicated", "replicaDivisionPreference": null, "weightPreference": null}});
    let mut copies = applied(&json!({"replicaScheduling": {"replicaSchedulingType": "Duplicated"}}));
    merge(
        &mut copies,
        &json!({"spec": {"placement": duplicated, "clusters": [{"name": "m1", "replicas": 5}]}}),
    );
    check(copies.clone(), Trigger::Recomputed);
    merge(&mut copies, &json!({"spec": {"clusters": [{"name": "m1", "replicas": 4}]}}));
    check(copies, Trigger::ReplicasChanged);
    assert_eq!(Trigger::ReplicasChanged.schedule_type(), "ScaleSchedule");
    assert_eq!(Trigger::TargetDeleting.schedule_type(), "ReconcileSchedule");
}

#[test]
fn a_target_that_is_being_deleted_triggers() {
    let leaving = cluster("m1", 1, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let mut fleet = fleet();
    fleet.upsert(leaving);
    let binding = settled(json!({}));
    assert_eq!(
        trigger::next((&binding).into(), &fleet, Gates::default()),
        Next::Schedule(Trigger::TargetDeleting)
    );
}

#[test]
fn a_rebalance_older_than_the_last_success_or_before_the_first_is_ignored() {
    let older = json!({"spec": {"rescheduleTriggeredAt": "2026-01-01T00:00:00Z"}});
    assert_eq!(next(&settled(older)), Next::Nothing);
    let never = json!({"spec": {"rescheduleTriggeredAt": "2026-01-02T00:00:00Z"}, "status": {"lastScheduledTime": null}});
    assert_eq!(next(&settled(never)), Next::Nothing);
}

#[test]
fn deleting_bindings_and_missing_placements_are_told() {
    let deleting = settled(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let text = "skip schedule deleting resourceBinding: ns/web-deployment";
    assert_eq!(next(&deleting), Next::Deleting(text.to_owned()));
    assert_eq!(outcome::deleting(text).reason, "ScheduleBindingFailed");
    let homeless = settled(json!({"spec": {"placement": null}}));
    let text = "failed to get placement from resourceBinding(ns/web-deployment)";
    assert_eq!(next(&homeless), Next::NoPlacement(text.to_owned()));
    let scoped = Binding { scope: Scope::Cluster, ..Binding::from(&homeless) };
    let text = "failed to get placement from clusterResourceBinding(web-deployment)";
    assert_eq!(trigger::next(scoped, &fleet(), Gates::default()), Next::NoPlacement(text.to_owned()));
}

#[test]
fn only_the_term_in_use_counts_as_a_changed_placement() {
    let changed = |now: Value, before: &str, observed: &str| {
        trigger::placement_changed(&serde_json::from_value(now).unwrap(), before, observed)
    };
    let placement = |terms: Value| json!({"clusterAffinities": terms});
    let before = placement(terms()).to_string();
    assert!(changed(placement(terms()), "", "small"));
    assert!(!changed(placement(terms()), "no json", "small"));
    assert!(!changed(placement(terms()), &before, "small"));
    let reordered = json!([terms()[2], terms()[0], terms()[1]]);
    assert!(!changed(placement(reordered.clone()), &before, "small"));
    assert!(changed(placement(reordered), &before, ""));
    let mut edited = terms();
    edited[1]["exclude"] = json!(["m1"]);
    assert!(!changed(placement(edited.clone()), &before, "small"));
    assert!(changed(placement(edited), &before, "medium"));
    assert!(changed(placement(json!([terms()[0]])), &before, "large"));
    let mut tolerating = placement(terms());
    tolerating["clusterTolerations"] = json!([{"key": "k"}]);
    assert!(changed(tolerating, &before, "small"));
    let mut grouped = placement(terms());
    grouped["workloadAffinity"] = json!({"affinity": {"groupByLabelKey": "app"}});
    assert!(!changed(grouped.clone(), &before, "small"));
    assert!(changed(grouped, &before, ""));
}

#[test]
fn components_without_clusters_trigger_behind_their_gate() {
    let spec = settled(json!({"spec": {"replicas": 0, "replicaRequirements": null, "clusters": null,
        "components": [{"name": "a", "replicas": 1}]}}))
    .spec;
    assert!(!trigger::replicas_changed(&spec, Gates::default()));
    assert!(trigger::replicas_changed(&spec, Gates { components: true, ..Gates::default() }));
}

#[test]
fn a_binding_is_watched_when_a_policy_owns_it_and_the_scheduler_is_in_charge() {
    let watched = |more: Value| trigger::is_watched("default-scheduler", (&binding(more)).into());
    let owned = json!({"metadata": {"labels": {"propagationpolicy.karmada.io/permanent-id": "1"}}});
    assert!(watched(owned.clone()));
    assert!(!watched(json!({})));
    assert!(!watched(json!({"metadata": {"labels": {"binding.karmada.io/managed-by": ""}}})));
    let with = |more: Value| {
        let mut owned = owned.clone();
        merge(&mut owned, &more);
        watched(owned)
    };
    assert!(with(json!({"spec": {"schedulerName": "default-scheduler"}})));
    assert!(!with(json!({"spec": {"schedulerName": "other"}})));
    assert!(!with(json!({"spec": {"suspension": {"scheduling": true}}})));
    assert!(with(json!({"spec": {"suspension": {"scheduling": false}}})));
}

#[test]
fn a_changed_cluster_concerns_the_bindings_whose_affinity_means_it() {
    let old = cluster("m1", 1, json!({"metadata": {"labels": {"env": "prod"}}}));
    let relabelled = cluster("m1", 1, json!({"metadata": {"labels": {"env": "dev"}}}));
    let busy = cluster("m1", 9, json!({"metadata": {"labels": {"env": "prod"}}}));
    assert!(ChangedCluster::new(&old, &busy).is_none());
    let change = ChangedCluster::new(&old, &relabelled).unwrap();
    let concerns = |more: Value| change.concerns("default-scheduler", (&binding(more)).into());
    let by_label =
        |value: &str| json!({"clusterAffinity": {"labelSelector": {"matchLabels": {"env": value}}}});
    assert!(concerns(json!({})));
    assert!(concerns(json!({"spec": {"placement": by_label("prod")}})));
    assert!(concerns(json!({"spec": {"placement": by_label("dev")}})));
    assert!(!concerns(json!({"spec": {"placement": by_label("test")}})));
    assert!(!concerns(json!({"spec": {"placement": by_label("dev"), "schedulerName": "other"}})));
    let terms = json!({"spec": {"placement": {"clusterAffinities": terms()}}, "status": {"schedulerObservingAffinityName": "large"}});
    assert!(concerns(terms.clone()), "its generation has not been observed");
    let mut observed = terms;
    merge(&mut observed, &json!({"status": {"schedulerObservedGeneration": 4}}));
    assert!(!concerns(observed.clone()));
    merge(&mut observed, &json!({"status": {"schedulerObservingAffinityName": "unknown"}}));
    assert!(concerns(observed), "an unknown term stands for the first");
    let gone = cluster("m1", 1, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert!(ChangedCluster::new(&relabelled, &gone).is_some());
}

// Seams.

#[test]
fn the_smallest_estimate_counts_and_failing_estimators_are_left_out() {
    let collected = |answers: &[(&str, i32)]| Collected {
        name: "accurate".to_owned(),
        answers: Ok(answers
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect::<BTreeMap<_, _>>()),
    };
    let run = |estimator: &dyn Estimator| {
        placed(&schedule_with(&binding(json!({})), &fleet(), &[estimator], Options::default()))
    };
    assert_eq!(run(&collected(&[("m1", 3), ("m2", 4), ("m3", 9)])), "m1:1 m2:1 m3:3");
    assert_eq!(run(&collected(&[("m3", 0)])), "m1:2 m2:3");
    assert_eq!(run(&collected(&[("m1", 50), ("m3", -1)])), "m1:1 m2:1 m3:3");
    let failing =
        Collected { name: "accurate".to_owned(), answers: Err(Unavailable("no connection".to_owned())) };
    assert_eq!(run(&failing), "m1:1 m2:1 m3:3");
}

struct Favourite;

impl Plugin for Favourite {
    fn name(&self) -> &'static str {
        "Favourite"
    }

    fn filter<'a>(&'a self, _context: &Context<'a>) -> Option<Box<dyn Filter + 'a>> {
        Some(Box::new(Self))
    }

    fn score<'a>(&'a self, _context: &Context<'a>) -> Option<Box<dyn Score + 'a>> {
        Some(Box::new(Self))
    }
}

impl Filter for Favourite {
    fn reject(&self, _position: u32, member: &scheduler::fleet::Member) -> Option<Reason> {
        (member.name() == "m3").then(|| Reason::Texts(Arc::from(["not m3".to_owned(), "really".to_owned()])))
    }
}

impl Score for Favourite {
    fn score(&self, _position: u32, member: &scheduler::fleet::Member) -> Result<i64, String> {
        if member.name() == "broken" {
            Err("no idea".to_owned())
        } else {
            Ok(i64::from(member.name() == "m2"))
        }
    }

    fn normalize(&self, scores: &mut [i64]) {
        for score in scores {
            *score *= 100;
        }
    }
}

#[test]
fn plug_ins_of_others_filter_and_score_along() {
    let options = || {
        let mut registry = Registry::in_tree(Gates::default());
        registry.register(Arc::new(Favourite)).unwrap();
        Options { registry, ..Options::default() }
    };
    let everywhere = binding(json!({"spec": {"placement": {"replicaScheduling": null}}}));
    assert_eq!(placed(&schedule_with(&everywhere, &fleet(), &[], options())), "m2:5 m1:5");
    let only = Fleet::new([cluster("m3", 1, json!({}))]);
    let failure = schedule_with(&everywhere, &only, &[], options()).result.unwrap_err();
    assert_eq!(failure.message, "0/1 clusters are available: 1 not m3, 1 really.");
    let broken = Fleet::new([cluster("broken", 1, json!({}))]);
    let failure = schedule_with(&everywhere, &broken, &[], options()).result.unwrap_err();
    assert_eq!(failure.message, "failed to prioritize clusters: plugin \"Favourite\" failed with: no idea");
}

#[test]
fn the_diagnosis_tells_the_whole_story() {
    let mut fleet = fleet();
    fleet.upsert(cluster(
        "m4",
        5,
        json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}),
    ));
    fleet.upsert(cluster("m5", 5, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    let spread = json!([{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 2}]);
    let more = json!({"spec": {"placement": {"spreadConstraints": spread}, "replicas": 13, "clusters": [{"name": "m1", "replicas": 1}]}});
    let attempt = schedule_with(&binding(more), &fleet, &[], Options::default());
    let report = attempt.result.unwrap().diagnosis.report();
    assert_eq!(
        report.to_string(),
        "selection: the best 1 to 2 clusters\n\
         division: 12 more replicas by room: m3 9, m1 3\n\
         m1: 4 replicas (score 100, room for 3, with its own 4)\n\
         m2: not selected (score 0, room for 4, with its own 4)\n\
         m3: 9 replicas (score 0, room for 9, with its own 9)\n\
         m4: rejected by TaintToleration: cluster(s) had untolerated taint {k=v:NoSchedule}\n\
         m5: is being deleted\n"
    );
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<scheduler::Report>(&text).unwrap(), report);
}

/// A clock that moves on by one second whenever somebody looks at it, and what it was used for.
#[derive(Default)]
struct Ticking(Mutex<(u64, Vec<(Part, u64)>)>);

impl Meter for Ticking {
    fn now(&self) -> Duration {
        let mut inner = self.0.lock().unwrap();
        inner.0 += 1;
        Duration::from_secs(inner.0)
    }

    fn took(&self, part: Part, time: Duration) {
        self.0.lock().unwrap().1.push((part, time.as_secs()));
    }
}

#[test]
fn steps_are_measured_and_plug_ins_at_one_cluster() {
    let meter = Arc::new(Ticking::default());
    let mut registry = Registry::in_tree(Gates::default()).enable(&["APIEnablement", "ClusterLocality"]);
    registry.register(Arc::new(Favourite)).unwrap();
    let options = Options { registry, meter: Some(meter.clone()), ..Options::default() };
    schedule_with(&binding(json!({"spec": {"clusters": [{"name": "m1"}]}})), &fleet(), &[], options)
        .result
        .unwrap();
    let filter = |plugin: &'static str| Part::Plugin { plugin, point: "Filter", result: "Success" };
    let score = |plugin: &'static str| Part::Plugin { plugin, point: "Score", result: "Success" };
    assert_eq!(
        meter.0.lock().unwrap().1,
        [
            (filter("APIEnablement"), 1),
            (filter("Favourite"), 1),
            (Part::Point { point: "Filter", result: "Success" }, 5),
            (Part::Step("Filter"), 7),
            (score("ClusterLocality"), 1),
            (score("Favourite"), 1),
            (Part::Point { point: "Score", result: "Success" }, 5),
            (Part::Step("Score"), 7),
            (Part::Step("Select"), 1),
            (Part::Step("AssignReplicas"), 1),
        ]
    );
}
