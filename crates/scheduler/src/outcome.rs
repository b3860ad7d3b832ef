//! What an attempt means for the binding: what is written, which condition and events it gets, whether to try again.
//!
//! In: the binding, the attempt, and whether writing its result failed. Out: data; the controller writes it. Reasons and
//! messages are upstream's, word for word, its misspellings included.

use std::collections::BTreeSet;

use api::conditions::binding as reasons;
use api::events;
use api::work::TargetCluster;

use crate::attempt::Attempt;
use crate::decision::Cause;
use crate::trigger::{Binding, Scope};

/// The message of a successful attempt, in the condition and at the start of the event.
const SUCCESS: &str = "Binding has been scheduled successfully.";

/// What is written to the binding before its condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Result {
    /// The new `spec.clusters`; empty clears the previous result.
    pub clusters: Vec<TargetCluster>,
    /// The annotation that records which placement this is the result of.
    pub applied_placement: String,
    /// The new `status.schedulerObservingAffinityName`, if it is to be set.
    pub affinity_name: Option<String>,
}

/// Returns what an attempt writes; none when it failed in a way that leaves the previous result in place.
///
/// That no cluster fits clears the result, everything else keeps it. The order of the clusters says which had more room at
/// the time of the decision and means nothing to readers: the same clusters in another order are not a new result.
pub fn result(binding: Binding<'_>, attempt: &Attempt) -> Option<Result> {
    let clusters = match &attempt.result {
        Ok(decision) if same_in_any_order(&decision.clusters, &binding.spec.clusters) => {
            binding.spec.clusters.clone()
        }
        Ok(decision) => decision.clusters.clone(),
        Err(failure) if failure.cause == Cause::NoClusterFit => Vec::new(),
        Err(_) => return None,
    };
    // As upstream writes it, so that either scheduler takes up what the other has left.
    let applied_placement = api::go_json(binding.spec.placement.as_ref()?);
    Some(Result { clusters, applied_placement, affinity_name: attempt.affinity_name.clone() })
}

fn same_in_any_order(one: &[TargetCluster], other: &[TargetCluster]) -> bool {
    let by_name = |all: &[TargetCluster]| {
        let mut all = all.to_vec();
        all.sort_by(|left, right| left.name.cmp(&right.name));
        all
    };
    one.len() == other.len() && by_name(one) == by_name(other)
}

/// Why the API refused a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteError {
    pub message: String,
    /// The status code is 403 and the reason `QuotaExceeded`.
    pub quota_exceeded: bool,
    /// The cause is `NamespaceTerminating`.
    pub namespace_terminating: bool,
}

/// How an attempt ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    pub condition: Condition,
    /// Whether `schedulerObservedGeneration` and `lastScheduledTime` move.
    pub succeeded: bool,
    pub events: Vec<Event>,
    pub retry: Retry,
}

/// The `Scheduled` condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `True` or `False`.
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

/// An event, emitted on the binding and on the resource it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `Normal` or `Warning`.
    pub kind: &'static str,
    pub reason: &'static str,
    pub message: String,
}

/// Whether and when to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Not before something changes.
    Never,
    /// When room may have become free.
    Unschedulable,
    /// After a delay that grows with every attempt.
    Backoff,
}

/// Concludes an attempt whose result was written, or failed to be with these errors.
pub fn conclude(binding: Binding<'_>, attempt: &Attempt, write_errors: &[WriteError]) -> Conclusion {
    let mut events: Vec<Event> = attempt
        .failed_terms
        .iter()
        .map(|term| {
            warning(format!(
                "failed to schedule {}({}) with clusterAffiliates index({}): {}",
                binding.kind(),
                binding.key(),
                term.index,
                term.message
            ))
        })
        .collect();

    let failure = attempt.result.as_ref().err();
    let error = error_text(failure.map(|failure| failure.message.as_str()), write_errors);
    let (condition, retry) = match failure.map(|failure| failure.cause) {
        None | Some(Cause::NoClusterFit) if !write_errors.is_empty() => {
            not_written(failure.is_some(), &error, write_errors)
        }
        None => (
            Condition { status: "True", reason: reasons::REASON_SUCCESS, message: SUCCESS.to_owned() },
            Retry::Never,
        ),
        Some(Cause::NoClusterFit) => (failed(reasons::REASON_NO_CLUSTER_FIT, &error), Retry::Never),
        Some(Cause::Unschedulable) => (failed(reasons::REASON_UNSCHEDULABLE, &error), Retry::Unschedulable),
        Some(Cause::Other) => (failed(reasons::REASON_SCHEDULER_ERROR, &error), Retry::Backoff),
    };
    // With ordered affinities, a failure that leaves the result in place has been told term by term already.
    let told = !attempt.failed_terms.is_empty()
        && failure.is_some_and(|failure| failure.cause != Cause::NoClusterFit);
    if !told {
        events.push(match (&attempt.result, write_errors) {
            (Ok(decision), []) => success(binding, &decision.clusters),
            _ => warning(error),
        });
    }
    Conclusion { succeeded: condition.status == "True", condition, events, retry }
}

/// Judges a result that could not be written.
fn not_written(no_cluster_fits: bool, error: &str, write_errors: &[WriteError]) -> (Condition, Retry) {
    let retry = if write_errors.iter().any(|error| error.namespace_terminating) {
        Retry::Never
    } else {
        Retry::Backoff
    };
    let quota = write_errors.iter().find(|error| error.quota_exceeded);
    let condition = if no_cluster_fits {
        failed(reasons::REASON_NO_CLUSTER_FIT, error)
    } else if let Some(quota) = quota {
        failed(reasons::REASON_QUOTA_EXCEEDED, &quota.message)
    } else {
        failed(reasons::REASON_SCHEDULER_ERROR, error)
    };
    (condition, retry)
}

/// Prints errors as upstream's aggregate does: one plainly, several distinct ones in brackets.
fn error_text(first: Option<&str>, write_errors: &[WriteError]) -> String {
    let mut seen = BTreeSet::new();
    let messages = first.into_iter().chain(write_errors.iter().map(|error| error.message.as_str()));
    let distinct: Vec<&str> = messages.filter(|message| seen.insert(*message)).collect();
    match distinct.as_slice() {
        [only] => (*only).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

fn failed(reason: &'static str, message: &str) -> Condition {
    Condition { status: "False", reason, message: message.to_owned() }
}

fn warning(message: String) -> Event {
    Event { kind: "Warning", reason: events::SCHEDULE_BINDING_FAILED, message }
}

fn success(binding: Binding<'_>, clusters: &[TargetCluster]) -> Event {
    let list: Vec<String> =
        clusters.iter().map(|target| format!("{}:{}", target.name, target.replicas)).collect();
    // The colon is missing for cluster scope upstream, too.
    let colon = if binding.scope == Scope::Namespaced { ":" } else { "" };
    let message = format!("{SUCCESS} Result{colon} {{{}}}", list.join(", "));
    Event { kind: "Normal", reason: events::SCHEDULE_BINDING_SUCCEED, message }
}

/// Returns the event for a binding that is being deleted, as [`crate::trigger::Next::Deleting`] words it.
pub fn deleting(message: &str) -> Event {
    warning(message.to_owned())
}
