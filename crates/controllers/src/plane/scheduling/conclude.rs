//! Writes what came of an attempt: the result, the condition, events; and remembers it for later decisions.

use api::conditions::binding as conditions;
use api::labels::annotations::APPLIED_PLACEMENT;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use propagation::Binding;
use propagation::status::{condition, set_condition};
use scheduler::Attempt;
use scheduler::outcome::{self, Conclusion, Retry, WriteError};
use scheduler::trigger::Trigger;

use runtime::{Error, Guard};

use super::obstacles::Seen;
use super::{Controller, Scheduled};
use runtime::events::about;

impl Controller {
    /// Writes what came of an attempt; returns the binding as it now is, if anything was written, and how to go on.
    pub(super) async fn conclude<B: Scheduled>(
        &self,
        binding: &B,
        trigger: Trigger,
        (attempt, seen): (Attempt, Seen),
        now: Timestamp,
    ) -> (Option<B>, Result<Retry, Error>) {
        let result = outcome::result(binding.seen(), &attempt);
        let mut placed = None;
        let mut write_errors = Vec::new();
        if let Some(result) = &result {
            match self
                .plane
                .writer
                .derived()
                .update(binding, &with_result(binding, result), Guard::Version)
                .await
            {
                Ok(written) => placed = written,
                Err(error) if error.is_conflict() => return (None, Err(error)),
                Err(Error::Api(error)) => write_errors.push(refusal(&error)),
                Err(error) => return (None, Err(error)),
            }
            if let Some(written) = &placed {
                self.remember(binding, written, result);
            }
        }
        let conclusion = outcome::conclude(binding.seen(), &attempt, &write_errors);
        let affinity = result.as_ref().and_then(|result| result.affinity_name.clone());
        let moved = placed.is_some();
        let current = placed.as_ref().unwrap_or(binding);
        let observed = observe(current, &conclusion, affinity.as_deref(), trigger, moved, now);
        let noted = observed.status() != current.status();
        let key = binding.seen().key();
        let failure = attempt.result.as_ref().err().map(|failure| failure.cause);
        // Before the condition is written: whoever sees that and asks why finds the answer.
        self.settings.diagnoses.note(key.clone(), now, trigger, attempt, &conclusion, moved || noted);
        if noted {
            let written = self.plane.writer.change_status(current, |current| {
                apply_status(current.status_mut(), &observed, &conclusion, now);
                Ok(())
            });
            match written.await {
                Ok(Some(written)) => placed = Some(written),
                Ok(None) => {}
                Err(error) => return (placed, Err(error)),
            }
        }
        if placed.is_some() {
            for event in &conclusion.events {
                self.tell(binding, event);
            }
        }
        let mut turns = self.turns.lock();
        if turns.obstacles.note(key.clone(), failure, seen) {
            turns.queue.push(&key, self.priority(binding), now);
        }
        drop(turns);
        (placed, Ok(conclusion.retry))
    }

    /// Keeps what decisions about other bindings have to know before the watch tells it.
    fn remember<B: Scheduled>(&self, old: &B, written: &B, result: &outcome::Result) {
        let (gates, Some(binding)) = (self.scheduler.gates(), written.namespaced()) else { return };
        if gates.workload_affinity {
            self.known.write().groups.assign(binding);
        }
        if gates.overcommit_protection {
            let (key, now) = (written.seen().key(), Timestamp::now());
            let mut known = self.known.write();
            known.assumptions.collect_garbage(now);
            known.assumptions.assume(&key, old.spec(), &result.clusters, now);
        }
    }

    pub(super) fn tell<B: Scheduled>(&self, binding: &B, event: &outcome::Event) {
        let events = &self.plane.events;
        events.emit(self.component, &about(binding), event.kind, event.reason, event.message.clone());
        let resource = &binding.spec().resource;
        events.emit(self.component, resource, event.kind, event.reason, event.message.clone());
    }
}

fn with_result<B: Scheduled>(binding: &B, result: &outcome::Result) -> B {
    let mut placed = binding.clone();
    placed.spec_mut().clusters = result.clusters.clone();
    let annotations = Binding::metadata_mut(&mut placed).annotations.get_or_insert_default();
    annotations.insert(APPLIED_PLACEMENT.to_owned(), result.applied_placement.clone());
    placed
}

fn refusal(error: &kube::Error) -> WriteError {
    let kube::Error::Api(status) = error else {
        return WriteError {
            message: error.to_string(),
            quota_exceeded: false,
            namespace_terminating: false,
        };
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    WriteError {
        message: status.message.clone(),
        quota_exceeded: status.code == 403 && status.reason == "QuotaExceeded",
        namespace_terminating: causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating"),
    }
}

/// Returns the binding with the status that the attempt leaves. A result that confirms what is there leaves it as it
/// is: that it was looked at once more is no news.
fn observe<B: Binding>(
    placed: &B,
    conclusion: &Conclusion,
    affinity: Option<&str>,
    trigger: Trigger,
    moved: bool,
    now: Timestamp,
) -> B {
    let mut observed = placed.clone();
    let generation = placed.metadata().generation.unwrap_or(0);
    let status = observed.status_mut();
    if let Some(affinity) = affinity {
        status.scheduler_observed_affinity_name = affinity.to_owned();
    }
    let mut changed = set_condition(&mut status.conditions, scheduled(conclusion, now));
    if conclusion.succeeded {
        changed |= status.scheduler_observed_generation != generation;
        status.scheduler_observed_generation = generation;
        if changed || moved || trigger == Trigger::RescheduleRequested || status.last_scheduled_time.is_none()
        {
            let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
            status.last_scheduled_time = Some(Time(second));
        }
    }
    observed
}

fn scheduled(
    conclusion: &Conclusion,
    now: Timestamp,
) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
    let outcome::Condition { status, reason, message } = &conclusion.condition;
    condition(conditions::SCHEDULED, status, reason, message, now)
}

/// Puts what the scheduler observed into a status that others may have changed meanwhile.
fn apply_status<B: Binding>(
    current: &mut api::work::ResourceBindingStatus,
    observed: &B,
    conclusion: &Conclusion,
    now: Timestamp,
) {
    let wanted = observed.status();
    set_condition(&mut current.conditions, scheduled(conclusion, now));
    current.scheduler_observed_affinity_name = wanted.scheduler_observed_affinity_name.clone();
    current.scheduler_observed_generation = wanted.scheduler_observed_generation;
    current.last_scheduled_time = wanted.last_scheduled_time.clone();
}
