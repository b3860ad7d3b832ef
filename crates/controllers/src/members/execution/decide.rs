//! Decides about a Work and each of its manifests, and which conditions show it. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use api::cluster::Cluster;
use api::conditions::work as conditions;
use api::labels::finalizers;
use api::work::Work;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use propagation::delivery::{self, Decision};
use propagation::status::{condition, set_condition};
use serde_json::Value;

use crate::members::is_leaving;

const MESSAGE_DISPATCHING: &str = "Work is being dispatched to member clusters.";
const MESSAGE_SUSPENDED: &str = "Work dispatching is in a suspended state.";
const MESSAGE_APPLIED: &str = "Manifest has been successfully applied";

/// What is known of a Work and its cluster.
pub(crate) struct View {
    pub(super) work: Arc<Work>,
    pub(super) cluster: Arc<Cluster>,
    /// There is a connection to the member.
    pub(super) connected: bool,
}

/// What happens to a Work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Its objects are deleted from the member, or stay there without our labels, and then the Work's
    /// finalizer is removed.
    Withdraw { preserve: bool },
    /// The Work's finalizer is removed; its objects stay where they are.
    LetGo,
    /// Only its conditions are written.
    Tell { suspended: bool },
    /// Its manifests are applied.
    CarryOut,
}

pub(super) fn decide(view: &View) -> Plan {
    let View { work, cluster, connected } = view;
    if work.metadata.deletion_timestamp.is_some() {
        let preserve = work.spec.preserve_resources_on_deletion == Some(true);
        return if !is_held(work) {
            Plan::Nothing("it goes and waits for others")
        } else if cluster.status.is_ready() || preserve {
            // When a missing connection is made, all Works of its cluster are enqueued.
            if *connected { Plan::Withdraw { preserve } } else { Plan::Nothing("it waits for a connection") }
        } else if is_leaving(cluster) {
            // The cluster cannot be reached and is being removed.
            Plan::LetGo
        } else {
            Plan::Nothing("it waits for the cluster to be ready")
        };
    }
    let suspended = work.spec.suspend_dispatching == Some(true);
    if suspended || !cluster.status.is_ready() || !connected {
        Plan::Tell { suspended }
    } else {
        Plan::CarryOut
    }
}

/// Returns whether the Work is held until its objects are withdrawn.
pub(super) fn is_held(work: &Work) -> bool {
    work.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == finalizers::EXECUTION)
}

/// A wanted condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// See [`is_confirmed`].
    pub(super) generation: Option<i64>,
}

impl Wanted {
    fn new(
        kind: &'static str,
        status: &'static str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, status, reason, message: message.into(), generation: None }
    }

    /// Says whether the Work is on its way to the member.
    pub(super) fn dispatching(suspended: bool) -> Self {
        if suspended {
            Self::new(conditions::DISPATCHING, "False", conditions::REASON_SUSPENDED, MESSAGE_SUSPENDED)
        } else {
            Self::new(conditions::DISPATCHING, "True", conditions::REASON_DISPATCHING, MESSAGE_DISPATCHING)
        }
    }

    /// Returns the condition for the results of the manifests; `added_to` if the member has added fields to
    /// one.
    pub(super) fn applied(work: &Work, errors: &[String], added_to: bool) -> Self {
        if errors.is_empty() {
            let applied = Self::new(conditions::APPLIED, "True", conditions::REASON_APPLIED, MESSAGE_APPLIED);
            return Self { generation: work.metadata.generation.filter(|_| added_to), ..applied };
        }
        let total = work.spec.workload.manifests.len();
        let (done, text) = (total.saturating_sub(errors.len()), join(errors));
        let message = format!("Failed to apply all manifests ({done}/{total}): {text}");
        Self::new(conditions::APPLIED, "False", conditions::REASON_NOT_APPLIED, message)
    }

    /// Returns whether this differs from what the Work says about dispatching.
    pub(super) fn changes_dispatching(&self, work: &Work) -> bool {
        let known = |known: &Condition| known.type_ == self.kind && known.status == self.status;
        self.kind == conditions::DISPATCHING && !work.status.conditions.iter().any(known)
    }
}

/// Returns the conditions of a Work with the wanted ones in them, or `None` if they are there already.
pub(super) fn merged(work: &Work, wanted: &[Wanted], now: Timestamp) -> Option<Vec<Condition>> {
    let mut conditions = work.status.conditions.clone();
    let mut changed = false;
    for wanted in wanted {
        let new = condition(wanted.kind, wanted.status, wanted.reason, &wanted.message, now);
        let new = Condition { observed_generation: wanted.generation, ..new };
        changed |= set_condition(&mut conditions, new);
    }
    changed.then_some(conditions)
}

/// As Go joins errors: one stands alone, several in brackets, none twice.
pub(super) fn join(errors: &[String]) -> String {
    let mut seen = HashSet::new();
    let distinct: Vec<&str> = errors.iter().map(String::as_str).filter(|error| seen.insert(*error)).collect();
    if let [one] = distinct[..] { one.to_owned() } else { format!("[{}]", distinct.join(", ")) }
}

/// Returns whether the member once accepted this very Work and added fields to it.
///
/// Some objects never look like their manifest, since the member adds to them (tolerations of a pod, for example). For
/// those the Applied condition carries the Work's generation, so that a restart, which has forgotten what was written,
/// need not write it again.
pub(super) fn is_confirmed(work: &Work) -> bool {
    work.metadata.generation.is_some()
        && work.status.conditions.iter().any(|known| {
            known.type_ == conditions::APPLIED
                && known.status == "True"
                && known.observed_generation == work.metadata.generation
        })
}

/// What happens to an object that exists in the member.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// It stays as it is; `added_to` if the member has added to it.
    Keep {
        added_to: bool,
    },
    /// As `Keep`, and records that the manifest led to this version of it.
    Confirm,
    Update(Value),
    /// We must not touch it.
    Refuse,
}

/// Judges an object that exists. `written`: this very manifest led to this very version of it, as far as this
/// process knows. `confirmed`: the Work's condition says so.
pub(super) fn judge(
    observed: &Value,
    decision: propagation::Result<Decision>,
    written: bool,
    confirmed: bool,
) -> propagation::Result<Step> {
    if written && delivery::is_managed(observed) {
        return Ok(Step::Keep { added_to: !matches!(decision, Ok(Decision::Keep)) });
    }
    Ok(match decision? {
        Decision::Keep => Step::Keep { added_to: false },
        Decision::Update(update) if confirmed && delivery::covers(observed, &update) => Step::Confirm,
        Decision::Update(update) => Step::Update(update),
        Decision::Foreign => Step::Refuse,
    })
}

/// Returns what a kind is, by the answers of control plane and member; nothing if neither has it: then its objects are gone with it. Any
/// other error does not tell whether an object exists.
pub(super) fn if_served<T>(resolved: member::Result<T>) -> member::Result<Option<T>> {
    match resolved {
        Ok(kind) => Ok(Some(kind)),
        Err(member::Error::UnknownKind { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use api::work::WorkStatus;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, at, deleting, merged as with};

    #[test]
    fn what_happens_to_a_work() {
        let preserved = || with(deleting(), json!({ "spec": { "preserveResourcesOnDeletion": true } }));
        let suspended = json!({ "spec": { "suspendDispatching": true } });
        let released = with(deleting(), json!({ "metadata": { "finalizers": ["other"] } }));
        let waits = Plan::Nothing("it waits for the cluster to be ready");
        let tell = Plan::Tell { suspended: false };
        // Work, the cluster's readiness, whether it leaves, whether there is a connection.
        let cases = [
            ("it is wanted", json!({}), "True", false, true, Plan::CarryOut),
            ("the cluster leaves and is still there", json!({}), "True", true, true, Plan::CarryOut),
            ("the cluster is not ready", json!({}), "False", false, true, tell),
            ("the cluster has never reported", json!({}), "", false, true, tell),
            ("the cluster is silent", json!({}), "Unknown", false, true, tell),
            ("there is no connection", json!({}), "True", false, false, tell),
            ("it is suspended", suspended.clone(), "True", false, true, Plan::Tell { suspended: true }),
            (
                "it is suspended, and the cluster away",
                suspended,
                "False",
                false,
                false,
                Plan::Tell { suspended: true },
            ),
            ("it goes", deleting(), "True", false, true, Plan::Withdraw { preserve: false }),
            (
                "it goes, and its objects stay",
                preserved(),
                "True",
                false,
                true,
                Plan::Withdraw { preserve: true },
            ),
            (
                "its objects stay, reachable or not",
                preserved(),
                "False",
                false,
                true,
                Plan::Withdraw { preserve: true },
            ),
            (
                "it goes, without a connection",
                deleting(),
                "True",
                false,
                false,
                Plan::Nothing("it waits for a connection"),
            ),
            ("it goes, the cluster is away", deleting(), "False", false, true, waits),
            ("it goes, the cluster is silent", deleting(), "Unknown", false, true, waits),
            ("it goes with a cluster that cannot be reached", deleting(), "False", true, true, Plan::LetGo),
            (
                "it goes with a cluster that can be reached",
                deleting(),
                "True",
                true,
                true,
                Plan::Withdraw { preserve: false },
            ),
            (
                "it is held by others",
                released,
                "True",
                false,
                true,
                Plan::Nothing("it goes and waits for others"),
            ),
        ];
        for (name, otherwise, ready, leaves, connected, expected) in cases {
            let cluster = fixtures::cluster("m1", ready, if leaves { deleting() } else { json!({}) });
            let view = View { work: fixtures::work("m1", otherwise), cluster: Arc::new(cluster), connected };
            assert_eq!(decide(&view), expected, "{name}");
        }
    }

    fn object(managed: &str, data: &str) -> Value {
        json!({ "metadata": { "labels": { "karmada.io/managed": managed } }, "data": { "k": data } })
    }

    #[test]
    fn what_happens_to_an_object() {
        let (ours, foreign) = (object("true", "a"), object("false", "a"));
        let update = || Ok(Decision::Update(object("true", "b")));
        let covered = || Ok(Decision::Update(json!({ "data": { "k": "a" } })));
        let cases = [
            ("as wanted", &ours, Ok(Decision::Keep), false, false, Step::Keep { added_to: false }),
            ("it differs", &ours, update(), false, false, Step::Update(object("true", "b"))),
            (
                "confirmed, and it differs all the same",
                &ours,
                update(),
                false,
                true,
                Step::Update(object("true", "b")),
            ),
            ("confirmed, and the member added to it", &ours, covered(), false, true, Step::Confirm),
            (
                "not confirmed, so it is written once",
                &ours,
                covered(),
                false,
                false,
                Step::Update(json!({ "data": { "k": "a" } })),
            ),
            (
                "we wrote it, and it looks otherwise",
                &ours,
                update(),
                true,
                false,
                Step::Keep { added_to: true },
            ),
            (
                "we wrote it, and it looks the same",
                &ours,
                Ok(Decision::Keep),
                true,
                false,
                Step::Keep { added_to: false },
            ),
            (
                "we wrote it, and our mark was taken off",
                &foreign,
                Ok(Decision::Foreign),
                true,
                false,
                Step::Refuse,
            ),
            ("somebody else's", &foreign, Ok(Decision::Foreign), false, false, Step::Refuse),
        ];
        for (name, observed, decision, written, confirmed, expected) in cases {
            let step = judge(observed, decision, written, confirmed);
            assert!(matches!(&step, Ok(step) if *step == expected), "{name}: {step:?}");
        }
        let unreadable = || Err(propagation::Error::EmptyDependency);
        assert!(judge(&ours, unreadable(), false, false).is_err());
        assert_eq!(
            judge(&ours, unreadable(), true, false).ok(),
            Some(Step::Keep { added_to: true }),
            "it was written before"
        );
    }

    #[test]
    fn only_the_objects_of_a_kind_that_nobody_has_are_gone_for_certain() {
        use member::Error;
        let refused = |code: u16| Error::Refused { code, reason: "r".to_owned(), message: "no".to_owned() };
        let cluster = || "m1".to_owned();
        let source = || Box::new(kube::Error::LinesCodecMaxLineLengthExceeded);
        let unknown = Error::UnknownKind { kind: "App".to_owned(), version: "gone.example/v1".to_owned() };
        assert_eq!(if_served(Ok(7)).ok(), Some(Some(7)), "it is served");
        assert_eq!(if_served::<u8>(Err(unknown)).ok(), Some(None), "neither side has it");
        for error in [
            refused(500),
            refused(403),
            refused(404),
            Error::Transport { cluster: cluster(), source: source() },
            Error::Timeout { cluster: cluster(), after: std::time::Duration::from_secs(1) },
            Error::NoSecret { cluster: cluster() },
        ] {
            let text = error.to_string();
            assert_eq!(if_served::<u8>(Err(error)).map_err(|error| error.to_string()), Err(text));
        }
    }

    #[test]
    fn what_is_told_of_manifests() {
        let work = fixtures::work(
            "m1",
            json!({ "metadata": { "generation": 3 }, "spec": { "workload": { "manifests": [
            { "kind": "A" }, { "kind": "B" }, { "kind": "C" },
        ] } } }),
        );
        let told = |errors: &[&str], added_to: bool| {
            let errors: Vec<String> = errors.iter().map(|error| (*error).to_owned()).collect();
            let wanted = Wanted::applied(&work, &errors, added_to);
            (wanted.status, wanted.reason, wanted.message, wanted.generation)
        };
        let done = MESSAGE_APPLIED.to_owned();
        let failed = |text: &str| ("False", "AppliedFailed", text.to_owned(), None);
        assert_eq!(told(&[], false), ("True", "AppliedSuccessful", done.clone(), None));
        assert_eq!(told(&[], true), ("True", "AppliedSuccessful", done, Some(3)));
        assert_eq!(told(&["x"], true), failed("Failed to apply all manifests (2/3): x"));
        assert_eq!(told(&["x", "y"], false), failed("Failed to apply all manifests (1/3): [x, y]"));
        assert_eq!(told(&["x", "x", "x"], false), failed("Failed to apply all manifests (0/3): x"));
    }

    #[test]
    fn errors_are_joined_as_go_joins_them() {
        let joined =
            |errors: &[&str]| join(&errors.iter().map(|error| (*error).to_owned()).collect::<Vec<_>>());
        assert_eq!(joined(&["a"]), "a");
        assert_eq!(joined(&["a", "b", "a"]), "[a, b]");
    }

    #[test]
    fn conditions_that_are_there_are_not_written_again() {
        let mut work = Work::default();
        let wanted = [Wanted::dispatching(false), Wanted::applied(&work, &[], false)];
        work.status.conditions = merged(&work, &wanted, at(0)).unwrap();
        assert_eq!(work.status.conditions.len(), 2);
        assert_eq!(merged(&work, &wanted, at(100)), None);
        assert!(Wanted::dispatching(true).changes_dispatching(&work));
        assert!(!Wanted::dispatching(false).changes_dispatching(&work));
        assert!(!Wanted::applied(&Work::default(), &["x".to_owned()], false).changes_dispatching(&work));
        let elsewhere = Work {
            status: WorkStatus {
                conditions: vec![condition("Other", "False", "r", "", at(0))],
                ..WorkStatus::default()
            },
            ..Work::default()
        };
        assert!(Wanted::dispatching(true).changes_dispatching(&elsewhere), "that is said of something else");
        let told = ["Dispatching", "True", "Dispatching", "Work is being dispatched to member clusters."];
        let Condition { type_, status, reason, message, .. } = &work.status.conditions[0];
        assert_eq!([type_, status, reason, message], told);
        let suspended = merged(&work, &[Wanted::dispatching(true)], at(100)).unwrap();
        assert_eq!(
            (suspended[0].status.as_str(), suspended[0].reason.as_str()),
            ("False", "SuspendDispatching")
        );
        assert_eq!(suspended[0].message, "Work dispatching is in a suspended state.");
    }

    #[test]
    fn a_work_is_confirmed_for_the_generation_that_was_applied_alone() {
        let mut work = Work::default();
        work.metadata.generation = Some(3);
        assert!(!is_confirmed(&work));
        let applied = |work: &Work, errors: &[String]| {
            merged(work, &[Wanted::applied(work, errors, true)], at(0)).unwrap()
        };
        work.status.conditions = applied(&work, &[]);
        assert!(is_confirmed(&work));
        work.metadata.generation = Some(4);
        assert!(!is_confirmed(&work));
        work.status.conditions = applied(&work, &["x".to_owned()]);
        assert!(!is_confirmed(&work), "it failed");
        let failed =
            Condition { observed_generation: Some(4), ..condition("Applied", "False", "r", "", at(0)) };
        let other = Condition { type_: "Other".to_owned(), status: "True".to_owned(), ..failed.clone() };
        work.status.conditions = vec![failed, other];
        assert!(!is_confirmed(&work), "it failed at this generation, and something else did not");
        let mut unnumbered = Work::default();
        unnumbered.status.conditions = applied(&unnumbered, &[]);
        assert!(!is_confirmed(&unnumbered), "without a generation nothing is known");
    }
}
