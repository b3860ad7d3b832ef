//! When rules act, and what is remembered of it.

use serde_json::{Value, json};

use std::cell::Cell;

use super::*;
use crate::fixtures::{at, half_past, merged, read};

thread_local! {
    /// How often a moment was looked for on this thread.
    pub(super) static SEARCHES: Cell<usize> = const { Cell::new(0) };
}

/// 2026-01-01, eight hours after midnight in London and Berlin's nine.
const MORNING: i64 = 1_767_254_400;

fn scaler(rules: Value) -> Arc<CronFederatedHPA> {
    Arc::new(read(json!({
        "metadata": { "name": "c", "namespace": "default" },
        "spec": { "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" }, "rules": rules },
    })))
}

fn rule(otherwise: Value) -> Value {
    merged(
        json!({ "name": "r", "schedule": "*/5 * * * *", "targetReplicas": 4, "timeZone": "UTC" }),
        otherwise,
    )
}

/// Decides at one time what another decision left.
fn after(rules: &[Value], times: &[i64]) -> Plan {
    let mut plan = Plan::default();
    for (index, second) in times.iter().enumerate() {
        let scaler = scaler(rules[index.min(rules.len() - 1)].clone());
        plan = decide(&View::new(scaler, plan.known), at(*second));
    }
    plan
}

fn due(plan: &Plan) -> Vec<i64> {
    plan.due.iter().map(|due| due.planned.as_second() - MORNING).collect()
}

fn next_of(plan: &Plan) -> Option<i64> {
    plan.known.jobs.get("r").map(|job| job.next.as_second() - MORNING)
}

#[test]
fn a_rule_acts_at_its_time_and_not_before() {
    let rules = || [json!([rule(json!({}))])];
    for (name, times, acts, next) in [
        ("it was just created", &[10][..], vec![], 300),
        ("not yet", &[10, 299], vec![], 300),
        ("now", &[10, 300], vec![300], 600),
        ("a moment late", &[10, 302], vec![300], 600),
        ("once only", &[10, 300, 301], vec![], 600),
        ("again", &[10, 300, 600], vec![600], 900),
        ("created at the moment itself", &[300], vec![], 600),
        ("the clock jumps ahead over three moments", &[10, 1000], vec![300], 1200),
        ("the clock is set back by an hour", &[10, -3600], vec![], -3300),
        ("the clock is put right by a second", &[10, 300, 299], vec![], 600),
    ] {
        let times: Vec<i64> = times.iter().map(|second| MORNING + second).collect();
        let plan = after(&rules(), &times);
        assert_eq!((due(&plan), next_of(&plan)), (acts, Some(next)), "{name}");
    }
}

#[test]
fn of_several_rules_that_were_missed_the_last_one_has_the_last_word() {
    let day = || rule(json!({ "name": "day", "schedule": "0 8 * * *" }));
    let night = || rule(json!({ "name": "night", "schedule": "0 20 * * *" }));
    let busy = || rule(json!({ "name": "busy", "schedule": "* 9 * * *" }));
    let hour = 3600;
    for (name, rules, seen, now, acts) in [
        ("a night passed", json!([day(), night()]), 10, 25 * hour, &["night", "day"][..]),
        ("two days and an evening", json!([night(), day()]), 10, 61 * hour, &["day", "night"]),
        ("it is day", json!([day(), night()]), 10, 73 * hour, &["night", "day"]),
        ("the clock began in 1970", json!([busy(), day(), night()]), -MORNING, 0, &["busy", "night", "day"]),
        (
            "two at one moment",
            json!([rule(json!({ "name": "other" })), rule(json!({}))]),
            10,
            300,
            &["other", "r"],
        ),
    ] {
        let plan = after(&[rules], &[MORNING + seen, MORNING + now]);
        let names: Vec<&str> = plan.due.iter().map(|due| due.rule.name.as_str()).collect();
        assert_eq!(names, acts, "{name}");
    }
}

#[test]
fn a_rule_that_changes_begins_anew() {
    let plain = || json!([rule(json!({}))]);
    for (name, changed, acts, next) in [
        ("it stays", plain(), vec![300], Some(600)),
        ("suspended", json!([rule(json!({ "suspend": true }))]), vec![], None),
        ("another number", json!([rule(json!({ "targetReplicas": 5 }))]), vec![], Some(600)),
        ("another schedule", json!([rule(json!({ "schedule": "0 * * * *" }))]), vec![], Some(3600)),
        ("it is gone", json!([]), vec![], None),
    ] {
        let plan = after(&[plain(), changed], &[MORNING + 10, MORNING + 300]);
        assert_eq!((due(&plan), next_of(&plan)), (acts, next), "{name}");
    }
    let mut other = CronFederatedHPA::clone(&scaler(plain()));
    other.spec.scale_target_ref.name = "other".to_owned();
    let view = View::new(Arc::new(other), after(&[plain()], &[MORNING + 10]).known);
    assert_eq!(due(&decide(&view, at(MORNING + 300))), Vec::<i64>::new(), "another target");
}

#[test]
fn zones_count_and_faults_are_told() {
    let daily = |zone: &str| json!([rule(json!({ "schedule": "0 18 * * *", "timeZone": zone }))]);
    assert_eq!(next_of(&after(&[daily("UTC")], &[MORNING])), Some(10 * 3600));
    assert_eq!(next_of(&after(&[daily("Europe/Berlin")], &[MORNING])), Some(9 * 3600));
    for (odd, fault) in [
        (json!({ "timeZone": "Mars/Olympus" }), "rule r: unknown time zone Mars/Olympus"),
        (json!({ "schedule": "0 0 L * *" }), "rule r: \"L\""),
        (json!({ "schedule": "0 0 31 2 *" }), "rule r: the schedule \"0 0 31 2 *\" never comes"),
    ] {
        let plan = after(&[json!([rule(odd), rule(json!({ "name": "good" }))])], &[MORNING]);
        assert!(plan.faults.len() == 1 && plan.faults[0].starts_with(fault), "{:?}", plan.faults);
        assert!(plan.known.jobs.contains_key("good"), "the others run");
    }
}

#[test]
fn a_rule_that_cannot_run_is_told_once_and_delays_no_other() {
    let odd = |otherwise: Value| rule(merged(json!({ "name": "odd", "schedule": "x" }), otherwise));
    let both = || json!([odd(json!({})), rule(json!({}))]);
    let first = after(&[both()], &[MORNING + 10]);
    assert_eq!((first.faults.len(), first.again), (1, Some(GLANCE)));
    let second = after(&[both()], &[MORNING + 10, MORNING + 290]);
    assert_eq!((second.faults.len(), second.again), (0, Some(Duration::from_secs(10))));
    assert_eq!(due(&after(&[both()], &[MORNING + 10, MORNING + 300])), [300]);
    let changed = json!([odd(json!({ "targetReplicas": 5 }))]);
    let changed = after(&[both(), changed], &[MORNING + 10, MORNING + 20]);
    assert_eq!((changed.faults.len(), changed.again), (1, Some(GLANCE)), "it is looked at again");
    let mended = json!([odd(json!({ "schedule": "* * * * *" }))]);
    let mended = after(&[both(), mended, both()], &[MORNING + 10, MORNING + 20, MORNING + 30]);
    assert_eq!(mended.faults.len(), 1, "it was right in between");
}

#[test]
fn finding_25_a_moment_is_looked_for_when_it_is_due_and_not_at_every_glance() {
    let named = |name: &str, schedule: &str| rule(json!({ "name": name, "schedule": schedule }));
    let rules =
        json!([named("rare", "0 0 29 2 *"), named("often", "*/5 * * * *"), named("never", "0 0 31 2 *")]);
    let mut view = View::new(scaler(rules), Known::default());
    let mut searches = |second: i64| {
        SEARCHES.set(0);
        let plan = decide(&view, at(MORNING + second));
        view.known = plan.known;
        SEARCHES.get()
    };
    assert_eq!(searches(10), 3, "all are new");
    assert_eq!(searches(40), 0);
    assert_eq!(searches(70), 0);
    assert!(searches(300) >= 1, "one of them acts");
    assert_eq!(searches(330), 0);
    assert!(searches(609) >= 1, "the other one acts");
    assert_eq!(searches(610), 1, "what cannot run is looked at again after a while");
    assert_eq!(searches(-3600), 3, "the clock was set back");
    assert_eq!(searches(-3570), 0);
}

#[test]
fn finding_25_any_number_of_rules_is_looked_at_in_linear_time() {
    let rules: Vec<Value> = (0..50_000)
        .map(|index| rule(json!({ "name": format!("r{index}"), "schedule": if index % 2 == 0 { "x" } else { "* * * * *" } })))
        .collect();
    let mut view = View::new(scaler(json!(rules)), Known::default());
    view.known = decide(&view, at(MORNING)).known;
    let plan = decide(&view, at(MORNING + 60));
    assert_eq!((plan.due.len(), plan.known.idle.len()), (25_000, 25_000));
    let done: Vec<Done> = plan
        .due
        .iter()
        .map(|due| Done { rule: due.rule.clone(), planned: due.planned, at: due.planned, error: None })
        .collect();
    let rules = &view.scaler.spec.rules;
    let first = status(&CronFederatedHPAStatus::default(), rules, &plan.known.jobs, &done);
    let second = status(&first, rules, &plan.known.jobs, &done);
    assert_eq!(second.execution_histories.len(), 25_000);
    assert!(second.execution_histories.iter().all(|history| history.successful_executions.len() == 2));
}

#[test]
fn the_clock_is_looked_at_often_enough() {
    let again = |seconds: i64| after(&[json!([rule(json!({}))])], &[MORNING + 10, MORNING + seconds]).again;
    assert_eq!(again(20), Some(Duration::from_secs(30)));
    assert_eq!(again(290), Some(Duration::from_secs(10)));
    assert_eq!(after(&[json!([rule(json!({ "suspend": true }))])], &[MORNING]).again, None);
}

fn done(second: i64, error: Option<&str>, otherwise: Value) -> Done {
    let error = error.map(str::to_owned);
    Done { rule: read(rule(otherwise)), planned: at(second), at: at(second + 1), error }
}

#[test]
fn executions_are_remembered_newest_first() {
    let scaler = scaler(json!([rule(json!({ "failedHistoryLimit": 1, "successfulHistoryLimit": 2 }))]));
    let limits = json!({ "failedHistoryLimit": 1, "successfulHistoryLimit": 2 });
    let jobs = after(&[json!([rule(limits.clone())])], &[MORNING]).known.jobs;
    let mut found = CronFederatedHPAStatus::default();
    for (second, error) in [(1, None), (2, Some("a")), (3, None), (4, Some("b")), (5, None)] {
        found = status(&found, &scaler.spec.rules, &jobs, &[done(second, error, limits.clone())]);
    }
    let history = &found.execution_histories[0];
    let times = |times: Vec<Option<Time>>| {
        times.iter().map(|time| time.as_ref().unwrap().0.as_second()).collect::<Vec<_>>()
    };
    assert_eq!(
        times(history.successful_executions.iter().map(|it| it.schedule_time.clone()).collect()),
        [5, 3]
    );
    assert_eq!(times(history.failed_executions.iter().map(|it| it.execution_time.clone()).collect()), [5]);
    assert_eq!(history.failed_executions[0].message, "b");
    assert_eq!(history.successful_executions[0].applied_replicas, Some(4));
    assert_eq!(history.next_execution_time, Some(Time(at(MORNING + 300))));
    for none in [0, -1] {
        let limit = json!({ "failedHistoryLimit": none });
        let found = status(&found, &scaler.spec.rules, &jobs, &[done(6, Some("c"), limit)]);
        assert!(
            found.execution_histories[0].failed_executions.is_empty(),
            "none is remembered if none is wanted: {none}"
        );
    }
}

#[test]
fn three_executions_of_each_kind_are_remembered_unless_a_rule_says_otherwise() {
    let rules = scaler(json!([rule(json!({}))])).spec.rules.clone();
    let done: Vec<Done> = (1..=8)
        .map(|second| {
            let at = half_past(second);
            Done { planned: at, at, ..done(second, (second % 2 == 0).then_some("no"), json!({})) }
        })
        .collect();
    let found = status(&CronFederatedHPAStatus::default(), &rules, &Jobs::new(), &done);
    assert_eq!(found.execution_histories, [], "it cannot run");
    let jobs = after(&[json!([rule(json!({}))])], &[MORNING]).known.jobs;
    let found = status(&CronFederatedHPAStatus::default(), &rules, &jobs, &done);
    let ExecutionHistory { successful_executions, failed_executions, .. } = &found.execution_histories[0];
    let succeeded: Vec<_> = successful_executions
        .iter()
        .map(|it| (it.schedule_time.clone(), it.execution_time.clone()))
        .collect();
    let failed: Vec<_> =
        failed_executions.iter().map(|it| (it.schedule_time.clone(), it.execution_time.clone())).collect();
    let whole = |second: i64| (Some(Time(at(second))), Some(Time(at(second))));
    assert_eq!(succeeded, [7, 5, 3].map(whole), "in whole seconds");
    assert_eq!(failed, [8, 6, 4].map(whole));
}

#[test]
fn histories_are_those_of_the_rules() {
    let named = |name: &str, suspend: bool| rule(json!({ "name": name, "suspend": suspend }));
    let old = status(
        &CronFederatedHPAStatus::default(),
        &scaler(json!([named("a", false), named("gone", false)])).spec.rules,
        &after(&[json!([named("a", false), named("gone", false)])], &[MORNING]).known.jobs,
        &[],
    );
    let now = scaler(json!([
        named("a", true),
        named("idle", true),
        named("new", false),
        rule(json!({ "name": "odd", "schedule": "x" }))
    ]));
    let jobs = decide(&View::new(now.clone(), Known::default()), at(MORNING)).known.jobs;
    let found = status(&old, &now.spec.rules, &jobs, &[]);
    let names: Vec<(&str, bool)> = found
        .execution_histories
        .iter()
        .map(|history| (history.rule_name.as_str(), history.next_execution_time.is_some()))
        .collect();
    assert_eq!(
        names,
        [("a", false), ("idle", false), ("new", true)],
        "suspended rules have no next time, odd ones no history"
    );
}

#[test]
fn a_rule_that_cannot_run_any_more_has_its_history_but_no_next_time() {
    let good = scaler(json!([rule(json!({}))]));
    let jobs = after(&[json!([rule(json!({}))])], &[MORNING]).known.jobs;
    let ran = [done(MORNING, None, json!({}))];
    let old = status(&CronFederatedHPAStatus::default(), &good.spec.rules, &jobs, &ran);
    assert!(old.execution_histories[0].next_execution_time.is_some());
    let odd = scaler(json!([rule(json!({ "schedule": "0 0 L * *" }))]));
    let found = status(&old, &odd.spec.rules, &Jobs::new(), &[]);
    let history = &found.execution_histories[0];
    assert_eq!((history.successful_executions.len(), history.next_execution_time.clone()), (1, None));
}

#[test]
fn which_changes_count() {
    let key = Key::new("default", "c");
    let (one, other) = (scaler(json!([rule(json!({}))])), scaler(json!([])));
    let mut told = one.as_ref().clone();
    told.status.execution_histories.push(ExecutionHistory::default());
    let told = Arc::new(told);
    let mut going = one.as_ref().clone();
    going.metadata.deletion_timestamp = Some(Time(at(MORNING)));
    let going = Arc::new(going);
    for (name, old, new, expected) in [
        ("it is new", None, Some(&one), true),
        ("its rules changed", Some(&one), Some(&other), true),
        ("its status changed", Some(&one), Some(&told), false),
        ("it goes", Some(&one), Some(&going), true),
        ("it is gone", Some(&one), None, true),
    ] {
        let change = Change { key: &key, old: old.cloned(), new: new.cloned(), ours: false, initial: false };
        assert_eq!(is_news(&change), expected, "{name}");
    }
}

#[test]
fn an_execution_says_what_it_has_applied() {
    let limits = json!({ "targetReplicas": null, "targetMinReplicas": 2, "targetMaxReplicas": 9 });
    let jobs = after(&[json!([rule(limits.clone())])], &[MORNING]).known.jobs;
    let rules = scaler(json!([rule(limits.clone())])).spec.rules.clone();
    let found = status(&CronFederatedHPAStatus::default(), &rules, &jobs, &[done(1, None, limits)]);
    let execution = &found.execution_histories[0].successful_executions[0];
    let SuccessfulExecution { applied_replicas, applied_min_replicas, applied_max_replicas, .. } = execution;
    assert_eq!([applied_replicas, applied_min_replicas, applied_max_replicas], [&None, &Some(2), &Some(9)]);
}

#[test]
fn a_rule_without_a_zone_acts_by_the_clock_of_the_machine() {
    let plan = after(&[json!([rule(json!({ "timeZone": null }))])], &[MORNING]);
    assert_eq!((plan.faults, next_of(&Plan { faults: vec![], ..plan })), (vec![], Some(300)));
}

#[test]
fn a_clock_that_is_put_right_by_a_minute_was_not_set_back() {
    assert_eq!([59, 60, 61].map(|seconds| goes_on(at(1_000), at(1_000 - seconds))), [true, true, false]);
}

#[test]
fn which_limits_a_rule_moves() {
    let found: FederatedHPA = read(json!({
        "metadata": { "name": "f", "namespace": "default" },
        "spec": {
            "minReplicas": 2, "maxReplicas": 8,
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
        },
    }));
    for (name, otherwise, expected) in [
        ("both", json!({ "targetMinReplicas": 3, "targetMaxReplicas": 9 }), (Some(3), 9)),
        ("the lower one", json!({ "targetMinReplicas": 3 }), (Some(3), 8)),
        ("the upper one", json!({ "targetMaxReplicas": 9 }), (Some(2), 9)),
        ("none: its replicas are for workloads", json!({}), (Some(2), 8)),
        ("those that it has", json!({ "targetMinReplicas": 2, "targetMaxReplicas": 8 }), (Some(2), 8)),
    ] {
        let moved = with_limits(&found, &read(rule(otherwise)));
        assert_eq!((moved.spec.min_replicas, moved.spec.max_replicas), expected, "{name}");
        assert_eq!(moved.metadata, found.metadata, "{name}");
    }
}

#[test]
fn what_a_rule_does_depends_on_its_target() {
    let karmada = "autoscaling.karmada.io/v1alpha1";
    let unsupported = "CronFederatedHPA(default/c) do not support scale target autoscaling.karmada.io/v1alpha1/CronFederatedHPA";
    let without = "rule r has no targetReplicas to scale Deployment to";
    let (some, none) = (json!({}), json!({ "targetReplicas": null }));
    for (name, version, kind, otherwise, expected) in [
        ("an autoscaler", karmada, "FederatedHPA", &some, Act::Limits),
        ("an autoscaler, and no replicas", karmada, "FederatedHPA", &none, Act::Limits),
        (
            "another kind of its group",
            karmada,
            "CronFederatedHPA",
            &some,
            Act::Refuse(unsupported.to_owned()),
        ),
        ("a workload", "apps/v1", "Deployment", &some, Act::Scale(4)),
        ("a workload, and no replicas", "apps/v1", "Deployment", &none, Act::Refuse(without.to_owned())),
        ("a kind of the same name", "example.com/v1", "FederatedHPA", &some, Act::Scale(4)),
        ("another version", "autoscaling.karmada.io/v1", "FederatedHPA", &some, Act::Scale(4)),
    ] {
        let mut scaler = scaler(json!([rule(otherwise.clone())])).as_ref().clone();
        scaler.spec.scale_target_ref.api_version = version.to_owned();
        scaler.spec.scale_target_ref.kind = kind.to_owned();
        let view = View::new(Arc::new(scaler), Known::default());
        let known = decide(&view, at(MORNING)).known;
        let mut plan = decide(&View { known, ..view }, at(MORNING + 300));
        assert_eq!(plan.due.pop().map(|due| due.act), Some(expected), "{name}");
    }
}

#[test]
fn how_many_replicas_a_rule_asks_for_and_when_they_are_written() {
    let target = scaler(json!([])).spec.scale_target_ref.clone();
    let asked = |otherwise: Value| replicas(&read(rule(otherwise)), &target);
    assert_eq!(asked(json!({})), Ok(4));
    assert_eq!(asked(json!({ "targetReplicas": 0 })), Ok(0));
    let fault = "rule r has no targetReplicas to scale Deployment to".to_owned();
    assert_eq!(asked(json!({ "targetReplicas": null })), Err(fault));
    for (name, scale, expected) in [
        ("it says so", json!({ "spec": { "replicas": 4 } }), None),
        ("it says something else", json!({ "spec": { "replicas": 3 } }), Some(4)),
        ("it says nothing", json!({}), Some(4)),
        ("it runs as many, and says nothing", json!({ "status": { "replicas": 4 } }), Some(4)),
        (
            "it says so, and runs fewer",
            json!({ "spec": { "replicas": 4 }, "status": { "replicas": 1 } }),
            None,
        ),
    ] {
        assert_eq!(to_set(&Scale::read(scale), 4), expected, "{name}");
    }
}
