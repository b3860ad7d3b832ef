//! One scheduling attempt: the ordered affinity terms of a placement, tried one after the other.
//!
//! In: a binding. Out: the decision of the first term that works, or the failure of the first term that was tried.
//!
//! Trying starts at the term in use, never before it: a workload that has moved on to a later term stays there until a
//! rebalance is asked for. Later terms are tried after any kind of failure.

use api::policy::Placement;
use api::work::{ResourceBindingSpec, ResourceBindingStatus};

use crate::decision::{Cause, Decision, Failure, Scheduler, Term, World, is_reschedule_required};

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

/// An attempt under way, one affinity term after the other, for whoever has to ask somebody before each of them.
#[derive(Debug)]
pub struct Trial {
    /// The terms that are left, the next one last; a placement without terms has one without a place.
    left: Vec<(Option<usize>, String)>,
    decision: Option<(Decision, Option<String>)>,
    failed_terms: Vec<FailedTerm>,
    first: Option<Failure>,
}

impl Trial {
    pub fn new(spec: &ResourceBindingSpec, status: &ResourceBindingStatus) -> Self {
        let mut left = match &spec.placement {
            Some(placement) if !placement.cluster_affinities.is_empty() => {
                let name = |index: usize| placement.cluster_affinities[index].affinity_name.clone();
                terms_to_try(placement, spec, status).map(|index| (Some(index), name(index))).collect()
            }
            _ => vec![(None, status.scheduler_observed_affinity_name.clone())],
        };
        left.reverse();
        Self { left, decision: None, failed_terms: Vec::new(), first: None }
    }

    /// Returns the name of the term that is tried next; none when the attempt is over.
    pub fn term(&self) -> Option<&str> {
        let next = self.left.last().filter(|_| self.decision.is_none());
        next.map(|(_, name)| name.as_str())
    }

    /// Returns whether the next term is the last one: whatever becomes of it, no other is tried.
    pub fn is_at_last_term(&self) -> bool {
        self.left.len() <= 1
    }

    /// Tries the next term.
    pub fn step(
        &mut self,
        scheduler: &Scheduler,
        world: World<'_>,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
    ) {
        let Some((index, name)) = self.left.pop() else { return };
        let terms = spec.placement.as_ref().map_or(&[][..], |placement| &placement.cluster_affinities);
        let term = index.and_then(|index| terms.get(index));
        match scheduler.decide_term(world, spec, status, Term { name: &name, found: term }) {
            Ok(decision) => self.decision = Some((decision, index.map(|_| name))),
            Err(failure) => {
                if let Some(index) = index {
                    let message = failure.message.clone();
                    self.failed_terms.push(FailedTerm { index, cause: failure.cause, message });
                }
                self.first.get_or_insert(failure);
            }
        }
    }

    /// Returns what came of it. Assumes that a term was tried.
    pub fn finish(self) -> Attempt {
        let Self { decision, failed_terms, first, .. } = self;
        match (decision, first) {
            (Some((decision, affinity_name)), _) => {
                Attempt { result: Ok(decision), affinity_name, failed_terms }
            }
            (None, first) => {
                let failure = first.expect("there is at least one term, and all of them failed");
                Attempt { result: Err(failure), affinity_name: None, failed_terms }
            }
        }
    }
}

impl Scheduler {
    /// Decides where a binding goes, falling back along the ordered affinity terms.
    pub fn schedule(
        &self,
        world: World<'_>,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
    ) -> Attempt {
        let mut trial = Trial::new(spec, status);
        while trial.term().is_some() {
            trial.step(self, world, spec, status);
        }
        trial.finish()
    }
}
