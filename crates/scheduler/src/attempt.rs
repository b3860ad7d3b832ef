//! One scheduling attempt: the ordered affinity terms of a placement, tried one after the other.
//!
//! In: a binding. Out: the decision of the first term that works, or the failure of the first term that was tried.
//!
//! Trying starts at the term in use, never before it: a workload that has moved on to a later term stays there until a
//! rebalance is asked for. Later terms are tried after any kind of failure.

use api::policy::Placement;
use api::work::{ResourceBindingSpec, ResourceBindingStatus};

use crate::decision::{Cause, Decision, Failure, Scheduler, World, is_reschedule_required};

/// What came of an attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The decision, or the first failure.
    pub result: Result<Decision, Failure>,
    /// The affinity term of the decision; none without `clusterAffinities` or when all terms failed.
    pub affinity_name: Option<String>,
    /// The terms that failed, in the order in which they were tried; empty without `clusterAffinities`.
    pub failed_terms: Vec<FailedTerm>,
}

/// An affinity term that did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedTerm {
    /// Its place in `clusterAffinities`.
    pub index: usize,
    pub cause: Cause,
    pub message: String,
}

/// Returns the terms to try, as places in `clusterAffinities`.
pub fn terms_to_try(
    placement: &Placement,
    spec: &ResourceBindingSpec,
    status: &ResourceBindingStatus,
) -> std::ops::Range<usize> {
    let terms = &placement.cluster_affinities;
    let observed = &status.scheduler_observed_affinity_name;
    let start = if observed.is_empty() || is_reschedule_required(spec, status) {
        0
    } else {
        terms.iter().position(|term| term.affinity_name == *observed).unwrap_or(0)
    };
    start..terms.len()
}

impl Scheduler {
    /// Decides where a binding goes, falling back along the ordered affinity terms.
    pub fn schedule(
        &self,
        world: World<'_>,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
    ) -> Attempt {
        let observed = &status.scheduler_observed_affinity_name;
        let placement = match &spec.placement {
            Some(placement) if !placement.cluster_affinities.is_empty() => placement,
            _ => {
                let result = self.decide(world, spec, status, observed);
                return Attempt { result, affinity_name: None, failed_terms: Vec::new() };
            }
        };
        let mut failed_terms = Vec::new();
        let mut first = None;
        for index in terms_to_try(placement, spec, status) {
            let name = &placement.cluster_affinities[index].affinity_name;
            match self.decide(world, spec, status, name) {
                Ok(decision) => {
                    return Attempt { result: Ok(decision), affinity_name: Some(name.clone()), failed_terms };
                }
                Err(failure) => {
                    failed_terms.push(FailedTerm {
                        index,
                        cause: failure.cause,
                        message: failure.message.clone(),
                    });
                    first.get_or_insert(failure);
                }
            }
        }
        let failure = first.expect("there is at least one term, and all of them failed");
        Attempt { result: Err(failure), affinity_name: None, failed_terms }
    }
}
