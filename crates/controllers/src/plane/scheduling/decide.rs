//! Decides about a binding from the scheduler's queue. Pure. The `scheduler` crate makes the placement
//! decisions themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::work::{ClusterResourceBinding, ResourceBinding};
use jiff::Timestamp;
use scheduler::estimator::Collected;
use scheduler::outcome;
use scheduler::trigger::{self, Next, Trigger};
use scheduler::{Assumptions, Attempt, Estimator, Fleet, Groups, Scheduler, Trial, World};

use super::obstacles::Seen;

/// A binding of either scope.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    Namespaced(Arc<ResourceBinding>),
    Cluster(Arc<ClusterResourceBinding>),
}

impl Subject {
    /// Returns the binding as the scheduler crate sees it.
    pub(super) fn seen(&self) -> trigger::Binding<'_> {
        match self {
            Self::Namespaced(binding) => binding.as_ref().into(),
            Self::Cluster(binding) => binding.as_ref().into(),
        }
    }
}

/// The input of decisions besides the binding. Cheap to clone: a decision keeps the state that it started
/// with.
#[derive(Clone, Default)]
pub(crate) struct Known {
    pub(super) fleet: Arc<Fleet>,
    pub(super) groups: Arc<Groups>,
    pub(super) assumptions: Arc<Assumptions>,
}

impl Known {
    pub(super) fn world<'a>(&'a self, estimators: &'a [&'a dyn Estimator], now: Timestamp) -> World<'a> {
        World { fleet: &self.fleet, workloads: &self.groups, assumptions: &self.assumptions, estimators, now }
    }
}

/// The answers of accurate estimators, by affinity term; nothing for a term that needed no question.
pub(crate) type Answers = BTreeMap<String, Option<Collected>>;

/// What is known when a binding is taken from the queue.
pub(crate) struct View {
    pub(super) subject: Subject,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) known: Known,
    /// None where estimators are not used.
    pub(super) answers: Option<Answers>,
    /// The changes of clusters that `known` includes at least.
    pub(super) seen: Seen,
    /// When the attempt began, for metrics.
    pub(super) started: Instant,
}

impl View {
    fn step(&self, trial: &mut Trial, now: Timestamp) {
        let answer = trial.term().and_then(|term| self.answers.as_ref()?.get(term)?.as_ref());
        let estimators: Vec<&dyn Estimator> = answer.iter().map(|answer| *answer as &dyn Estimator).collect();
        let binding = self.subject.seen();
        trial.step(&self.scheduler, self.known.world(&estimators, now), binding.spec, binding.status);
    }
}

/// What to do with a binding.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// It is being deleted; an event says so.
    TellDeleting(outcome::Event),
    /// It cannot be placed until it gets a placement.
    NoPlacement(String),
    /// Its placement is as it should be, and its generation is noted.
    NoteGeneration(i64),
    /// A decision was made.
    Conclude(Box<Decided>),
}

/// A decision, and the writes that follow from it.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(super) trigger: Trigger,
    pub(super) attempt: Attempt,
    /// None leaves the previous result in place.
    pub(super) result: Option<outcome::Result>,
    pub(super) at: Timestamp,
}

pub(super) fn decide(view: &View, now: Timestamp) -> Plan {
    let binding = view.subject.seen();
    match trigger::next(binding, &view.known.fleet, view.scheduler.gates()) {
        Next::Nothing => Plan::Nothing("its placement is as it should be"),
        Next::Deleting(message) => Plan::TellDeleting(outcome::deleting(&message)),
        Next::NoPlacement(message) => Plan::NoPlacement(message),
        Next::NoteGeneration(generation) => Plan::NoteGeneration(generation),
        Next::Schedule(trigger) => {
            let mut trial = Trial::new(binding.spec, binding.status);
            while trial.term().is_some() {
                view.step(&mut trial, now);
            }
            let attempt = trial.finish();
            let result = outcome::result(binding, &attempt);
            Plan::Conclude(Box::new(Decided { trigger, attempt, result, at: now }))
        }
    }
}

/// Returns the affinity term that estimators have to be asked about before [`decide`] can try it; none if all is known.
///
/// `trial` is what earlier calls have tried, so that no term is tried again after each answer. What the fleet was then may have
/// changed since. That does no harm: [`decide`] tries all of these terms once more, and has an answer for each of them.
pub(super) fn unanswered(view: &View, trial: &mut Option<Trial>, now: Timestamp) -> Option<String> {
    let answers = view.answers.as_ref()?;
    let binding = view.subject.seen();
    let next = trigger::next(binding, &view.known.fleet, view.scheduler.gates());
    if !matches!(next, Next::Schedule(_)) {
        return None;
    }
    let trial = trial.get_or_insert_with(|| Trial::new(binding.spec, binding.status));
    loop {
        let term = trial.term()?;
        if !answers.contains_key(term) {
            return Some(term.to_owned());
        }
        // No term follows the last one, whatever its result.
        if trial.is_at_last_term() {
            return None;
        }
        view.step(trial, now);
    }
}

#[cfg(test)]
mod tests {
    use api::cluster::Cluster;
    use scheduler::estimator::Unavailable;
    use scheduler::{Cause, Gates};
    use serde_json::{Value, json};

    use super::super::obstacles::Obstacles;
    use super::super::settings::Settings;
    use super::*;
    use crate::fixtures::{self, at, deleting, merged, read};

    /// A cluster with a label that serves Deployments.
    fn cluster(name: &str, otherwise: Value) -> Arc<Cluster> {
        let base = json!({
            "metadata": { "labels": { "name": name } },
            "status": {
                "apiEnablements": [{ "groupVersion": "apps/v1", "resources": [{ "name": "deployments", "kind": "Deployment" }] }],
                "resourceSummary": { "allocatable": { "pods": "10" }, "allocated": {} },
            },
        });
        Arc::new(fixtures::cluster(name, "True", merged(base, otherwise)))
    }

    /// A binding of a Deployment of four replicas, divided among the clusters that have room.
    fn deployment(otherwise: Value) -> Value {
        let base = json!({
            "metadata": { "name": "web-deployment" },
            "spec": {
                "replicas": 4,
                "resource": { "apiVersion": "apps/v1", "kind": "Deployment" },
                "placement": { "replicaScheduling": {
                    "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated",
                } },
            },
        });
        merged(base, otherwise)
    }

    fn ordered(terms: &[(&str, &str)]) -> Value {
        let terms: Vec<Value> = terms
            .iter()
            .map(|(name, cluster)| json!({ "affinityName": name, "clusterNames": [cluster] }))
            .collect();
        json!({ "spec": { "placement": { "clusterAffinities": terms } } })
    }

    fn view(binding: Value, answers: Option<Answers>, clusters: Vec<Arc<Cluster>>) -> View {
        View {
            subject: Subject::Namespaced(Arc::new(fixtures::binding(binding))),
            scheduler: Arc::new(Settings::default().scheduler(Gates::default())),
            known: Known { fleet: Arc::new(Fleet::new(clusters)), ..Known::default() },
            answers,
            seen: Obstacles::default().seen(),
            started: Instant::now(),
        }
    }

    fn both() -> Vec<Arc<Cluster>> {
        vec![cluster("m1", json!({})), cluster("m2", json!({}))]
    }

    fn room(cluster: &str, replicas: i32) -> Option<Collected> {
        let answers = Ok([(cluster.to_owned(), replicas)].into());
        Some(Collected { name: "scheduler-estimator".to_owned(), answers })
    }

    fn words(plan: &Plan) -> String {
        match plan {
            Plan::Nothing(why) => format!("nothing: {why}"),
            Plan::TellDeleting(event) => format!("{}: {}", event.kind, event.message),
            Plan::NoPlacement(message) => message.clone(),
            Plan::NoteGeneration(generation) => format!("note {generation}"),
            Plan::Conclude(decided) => {
                let result = decided.result.as_ref().map(|result| {
                    let clusters = result.clusters.iter();
                    let clusters: Vec<String> =
                        clusters.map(|target| format!("{}:{}", target.name, target.replicas)).collect();
                    format!("{}{}", result.affinity_name.as_deref().unwrap_or(""), clusters.join(","))
                });
                let failed =
                    decided.attempt.result.as_ref().err().map(|failure| format!(" {:?}", failure.cause));
                format!(
                    "{:?} {}{}",
                    decided.trigger,
                    result.as_deref().unwrap_or("-"),
                    failed.unwrap_or_default()
                )
            }
        }
    }

    #[test]
    fn what_becomes_of_a_binding() {
        let placed = |otherwise: Value| {
            let placement: api::policy::Placement = read(deployment(json!({}))["spec"]["placement"].clone());
            let applied = json!({ "metadata": { "annotations": {
                "policy.karmada.io/applied-placement": api::go_json(&placement),
            } }, "spec": { "clusters": [{ "name": "m1", "replicas": 4 }] } });
            merged(deployment(applied), otherwise)
        };
        let noted = || json!({ "status": { "schedulerObservedGeneration": 1 } });
        let cases = [
            ("the first placement", deployment(json!({})), "PlacementChanged m1:4"),
            ("it is placed, and noted", placed(noted()), "nothing: its placement is as it should be"),
            ("it is placed, and not noted", placed(json!({})), "note 1"),
            ("more replicas", placed(json!({ "spec": { "replicas": 6 } })), "ReplicasChanged m1:6"),
            (
                "it goes",
                deployment(deleting()),
                "Warning: skip schedule deleting resourceBinding: default/web-deployment",
            ),
            (
                "it has no placement",
                deployment(json!({ "spec": { "placement": null } })),
                "failed to get placement from resourceBinding(default/web-deployment)",
            ),
            (
                "no cluster fits",
                deployment(
                    json!({ "spec": { "placement": { "clusterAffinity": { "clusterNames": ["m9"] } } } }),
                ),
                "PlacementChanged  NoClusterFit",
            ),
            (
                "no cluster has room: what was there stays",
                deployment(json!({ "spec": { "replicas": 40 } })),
                "PlacementChanged - Unschedulable",
            ),
            (
                "the first of two terms",
                deployment(ordered(&[("near", "m2"), ("far", "m1")])),
                "PlacementChanged nearm2:4",
            ),
            (
                "the second of two terms",
                deployment(ordered(&[("near", "m9"), ("far", "m1")])),
                "PlacementChanged farm1:4",
            ),
        ];
        for (name, binding, expected) in cases {
            assert_eq!(words(&decide(&view(binding, None, both()), at(100))), expected, "{name}");
        }
    }

    #[test]
    fn what_estimators_answered_counts() {
        let asked = |answers: &[(&str, Option<Collected>)], binding: Value| {
            let answers: Answers =
                answers.iter().map(|(term, answer)| ((*term).to_owned(), answer.clone())).collect();
            words(&decide(&view(binding, Some(answers), both()), at(100)))
        };
        let terms = || deployment(ordered(&[("near", "m1"), ("far", "m2")]));
        assert_eq!(asked(&[("", None)], deployment(json!({}))), "PlacementChanged m1:4", "nothing was asked");
        assert_eq!(asked(&[("near", room("m1", 9))], terms()), "PlacementChanged nearm1:4");
        assert_eq!(
            asked(&[("near", room("m1", 1)), ("far", room("m2", 9))], terms()),
            "PlacementChanged farm2:4",
            "each term has its own answer"
        );
        assert_eq!(
            asked(&[("near", room("m1", 1)), ("far", room("m2", 3))], terms()),
            "PlacementChanged - Unschedulable"
        );
        let silent = Collected {
            name: "scheduler-estimator".to_owned(),
            answers: Err(Unavailable("timeout".to_owned())),
        };
        assert_eq!(
            asked(&[("near", Some(silent)), ("far", None)], terms()),
            "PlacementChanged nearm1:4",
            "an estimator that is silent is left out"
        );
    }

    #[test]
    fn estimators_are_asked_only_about_what_will_be_tried() {
        let terms = |names: &[(&str, &str)]| deployment(ordered(names));
        let two = || terms(&[("near", "m1"), ("far", "m2")]);
        let known = |answers: &[(&str, Option<Collected>)]| -> Option<Answers> {
            Some(answers.iter().map(|(term, answer)| ((*term).to_owned(), answer.clone())).collect())
        };
        let placed = deployment(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
        let cases = [
            ("estimators are not used", deployment(json!({})), None, None),
            ("nothing will be decided", placed, known(&[]), None),
            ("a placement without terms has one without a name", deployment(json!({})), known(&[]), Some("")),
            ("it was asked about", deployment(json!({})), known(&[("", room("m1", 0))]), None),
            ("the first term", two(), known(&[]), Some("near")),
            ("the first has room", two(), known(&[("near", room("m1", 4))]), None),
            ("the first has no room", two(), known(&[("near", room("m1", 3))]), Some("far")),
            ("both were asked about", two(), known(&[("near", room("m1", 3)), ("far", room("m2", 0))]), None),
            ("there was nothing to ask about the first", two(), known(&[("near", None)]), None),
            (
                "the first fits nowhere",
                terms(&[("near", "m9"), ("far", "m2")]),
                known(&[("near", None)]),
                Some("far"),
            ),
        ];
        for (name, binding, answers, expected) in cases {
            let found = unanswered(&view(binding, answers, both()), &mut None, at(100));
            assert_eq!(found.as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn a_decision_keeps_its_reasons() {
        let plan =
            decide(&view(deployment(ordered(&[("near", "m9"), ("far", "m1")])), None, both()), at(100));
        let Plan::Conclude(decided) = plan else { panic!("{plan:?}") };
        let failed: Vec<_> =
            decided.attempt.failed_terms.iter().map(|term| (term.index, term.cause)).collect();
        assert_eq!(failed, [(0, Cause::NoClusterFit)]);
        assert_eq!(decided.at, at(100));
        let result = decided.result.expect("a result");
        assert!(result.applied_placement.contains("clusterAffinities"), "{}", result.applied_placement);
    }

    #[test]
    fn a_binding_without_namespace_is_decided_about_in_the_same_way() {
        let binding = json!({ "metadata": { "name": "role", "generation": 2 }, "spec": {
            "placement": {}, "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "role" },
        } });
        let subject = Subject::Cluster(Arc::new(read(binding)));
        assert_eq!(subject.seen().key(), "role");
        let plan = decide(&View { subject, ..view(json!({}), None, both()) }, at(1));
        assert_eq!(words(&plan), "PlacementChanged m1:0,m2:0");
    }
}
