//! Carries out plans: writes the result, the condition and events, and records the result for later
//! decisions.

use std::sync::Arc;
use std::time::Instant;

use api::conditions::binding as conditions;
use api::labels::annotations::APPLIED_PLACEMENT;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use propagation::Binding;
use propagation::status::{condition, set_condition, whole_seconds};
use runtime::events::about;
use runtime::{Error, Guard, Mirror, Outcome};
use scheduler::outcome::{self, Conclusion, Retry, WriteError};
use scheduler::trigger::Trigger;

use super::decide::{Decided, Plan};
use super::obstacles::Seen;
use super::{Controller, Scheduled, metrics, turns};

/// What was decided about a binding, and what it was decided from.
pub(super) struct Made {
    pub(super) plan: Plan,
    /// The changes of clusters that it could have seen.
    pub(super) seen: Seen,
    pub(super) started: Instant,
}

impl Controller {
    pub(super) async fn carry_out<B: Scheduled>(
        &self,
        mirror: &Mirror<B>,
        binding: &B,
        made: Made,
    ) -> Result<Outcome, Error> {
        match made.plan {
            Plan::Nothing(why) => {
                tracing::trace!(why, "nothing to schedule");
                Ok(Outcome::Done)
            }
            Plan::TellDeleting(event) => {
                self.tell(binding, &event);
                Ok(Outcome::Done)
            }
            Plan::NoPlacement(message) => {
                tracing::warn!(controller = "scheduler", message);
                Ok(Outcome::Retry)
            }
            Plan::NoteGeneration(generation) => {
                let mut noted = binding.clone();
                noted.status_mut().scheduler_observed_generation = generation;
                let written = self.plane.writer.update_status(binding, &noted, Guard::Fields).await?;
                written.into_iter().for_each(|written| mirror.note(written));
                Ok(Outcome::Done)
            }
            Plan::Conclude(decided) => {
                let trigger = decided.trigger;
                let (written, result) = self.conclude(binding, *decided, made.seen).await;
                // A conflict is not a failure: the decision is made again at once.
                if !result.as_ref().is_err_and(Error::is_conflict) {
                    let failed = !matches!(result, Ok(Retry::Never));
                    metrics::attempted(trigger, made.started.elapsed(), failed);
                }
                // The mirror is updated now, so that the next reader, usually ourselves, need not wait for
                // the watch.
                written.into_iter().for_each(|written| mirror.note(written));
                result.map(turns::outcome)
            }
        }
    }

    /// Writes what came of an attempt; returns the binding as it now is, if anything was written, and how to go on.
    async fn conclude<B: Scheduled>(
        &self,
        binding: &B,
        decided: Decided,
        seen: Seen,
    ) -> (Option<B>, Result<Retry, Error>) {
        let Decided { trigger, attempt, result, at: now } = decided;
        let (mut placed, refusals) = match self.write_result(binding, result.as_ref()).await {
            Ok(written) => written,
            Err(error) => return (None, Err(error)),
        };
        let (moved, current) = (placed.is_some(), placed.as_ref().unwrap_or(binding));
        let conclusion = outcome::conclude(binding.seen(), &attempt, &refusals);
        let affinity = result.as_ref().and_then(|result| result.affinity_name.as_deref());
        let observed = observe(current, &conclusion, affinity, trigger, moved, now);
        let noted = observed.status() != current.status();
        let key = binding.seen().key();
        let failure = attempt.result.as_ref().err().map(|failure| failure.cause);
        // This happens before the condition is written, so that a user who sees the condition also finds its
        // reasons.
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
            turns.push(&key, self.priority(binding));
        }
        drop(turns);
        (placed, Ok(conclusion.retry))
    }

    /// Writes the clusters; returns the binding as it now is, if that was written, and what the API said if it was refused.
    async fn write_result<B: Scheduled>(
        &self,
        binding: &B,
        result: Option<&outcome::Result>,
    ) -> Result<(Option<B>, Vec<WriteError>), Error> {
        let Some(result) = result else { return Ok((None, Vec::new())) };
        let writer = self.plane.writer.derived();
        match writer.update(binding, &with_result(binding, result), Guard::Version).await {
            Ok(written) => {
                written.iter().for_each(|written| self.remember(binding, written, result));
                Ok((written, Vec::new()))
            }
            Err(error) if error.is_conflict() => Err(error),
            Err(Error::Api(error)) => Ok((None, vec![refusal(&error)])),
            Err(error) => Err(error),
        }
    }

    /// Records what decisions about other bindings have to know before the watch reports it.
    fn remember<B: Scheduled>(&self, old: &B, written: &B, result: &outcome::Result) {
        let (gates, Some(binding)) = (self.scheduler.gates(), written.namespaced()) else { return };
        if gates.workload_affinity {
            Arc::make_mut(&mut self.known.write().groups).assign(binding);
        }
        if gates.overcommit_protection {
            let (key, now) = (written.seen().key(), Timestamp::now());
            let mut known = self.known.write();
            let assumptions = Arc::make_mut(&mut known.assumptions);
            assumptions.collect_garbage(now);
            assumptions.assume(&key, old.spec(), &result.clusters, now);
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

/// Returns the binding with the status that the attempt leaves. A result that confirms the current one leaves
/// the status as it is.
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
            status.last_scheduled_time = Some(Time(whole_seconds(now)));
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{at, binding, half_past, merged};

    fn conclusion(succeeded: bool) -> Conclusion {
        let (status, reason) = if succeeded { ("True", "Success") } else { ("False", "NoClusterFit") };
        Conclusion {
            condition: outcome::Condition { status, reason, message: "m".to_owned() },
            succeeded,
            events: Vec::new(),
            retry: if succeeded { Retry::Never } else { Retry::Backoff },
        }
    }

    fn scheduled_before() -> Value {
        json!({ "status": {
            "schedulerObservedGeneration": 1, "lastScheduledTime": "1970-01-01T00:00:05Z",
            "conditions": [{ "type": "Scheduled", "status": "True", "reason": "Success", "message": "m", "lastTransitionTime": "1970-01-01T00:00:05Z" }],
        } })
    }

    #[test]
    fn what_an_attempt_leaves_in_the_status() {
        let changed = || merged(scheduled_before(), json!({ "metadata": { "generation": 2 } }));
        let undated = merged(scheduled_before(), json!({ "status": { "lastScheduledTime": null } }));
        let trigger = Trigger::PlacementChanged;
        // Binding, succeeded, moved, trigger; then: observed generation, last scheduled at, condition.
        let cases = [
            ("the first success", json!({}), true, true, trigger, (1, Some(100), "True")),
            ("the first failure", json!({}), false, false, trigger, (0, None, "False")),
            (
                "a result that confirms what is there",
                scheduled_before(),
                true,
                false,
                trigger,
                (1, Some(5), "True"),
            ),
            ("it moved", scheduled_before(), true, true, trigger, (1, Some(100), "True")),
            ("the binding says something else now", changed(), true, false, trigger, (2, Some(100), "True")),
            (
                "it was asked for",
                scheduled_before(),
                true,
                false,
                Trigger::RescheduleRequested,
                (1, Some(100), "True"),
            ),
            ("a failure leaves what was observed", changed(), false, false, trigger, (1, Some(5), "False")),
            ("nothing says when it was scheduled", undated, true, false, trigger, (1, Some(100), "True")),
        ];
        for (name, otherwise, succeeded, moved, trigger, (generation, time, status)) in cases {
            let observed =
                observe(&binding(otherwise), &conclusion(succeeded), None, trigger, moved, half_past(100));
            let found = observed.status();
            assert_eq!(found.scheduler_observed_generation, generation, "{name}");
            assert_eq!(found.last_scheduled_time.as_ref().map(|time| time.0), time.map(at), "{name}");
            assert_eq!(found.conditions[0].status, status, "{name}");
        }
    }

    #[test]
    fn a_second_look_changes_nothing() {
        let before = binding(scheduled_before());
        let again = observe(&before, &conclusion(true), None, Trigger::PlacementChanged, false, at(100));
        assert_eq!(again.status(), before.status());
    }

    #[test]
    fn the_affinity_that_was_used_is_noted() {
        let observed = observe(
            &binding(json!({})),
            &conclusion(true),
            Some("near"),
            Trigger::PlacementChanged,
            true,
            at(1),
        );
        assert_eq!(observed.status().scheduler_observed_affinity_name, "near");
    }

    #[test]
    fn what_others_wrote_meanwhile_stays() {
        let observed = observe(
            &binding(json!({})),
            &conclusion(true),
            Some("near"),
            Trigger::PlacementChanged,
            true,
            at(1),
        );
        let mut current = binding(
            json!({ "status": { "aggregatedStatus": [{ "clusterName": "m1" }], "conditions": [
            { "type": "FullyApplied", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "1970-01-01T00:00:05Z" },
        ] } }),
        );
        apply_status(current.status_mut(), &observed, &conclusion(true), at(1));
        assert_eq!((current.status.aggregated_status.len(), current.status.conditions.len()), (1, 2));
        assert_eq!(current.status.scheduler_observed_generation, 1);
        assert_eq!(current.status.last_scheduled_time, Some(Time(at(1))));
        assert_eq!(current.status.scheduler_observed_affinity_name, "near");
    }

    #[test]
    fn a_result_is_the_clusters_and_the_placement_they_follow_from() {
        let result = outcome::Result {
            clusters: vec![api::work::TargetCluster {
                name: "m1".to_owned(),
                replicas: 2,
                ..Default::default()
            }],
            applied_placement: "{}".to_owned(),
            affinity_name: None,
        };
        let placed = with_result(&binding(json!({})), &result);
        assert_eq!(
            (placed.spec.clusters, placed.metadata.annotations.unwrap()[APPLIED_PLACEMENT].as_str()),
            (result.clusters, "{}")
        );
    }

    #[test]
    fn refusals_are_told_apart() {
        let refused = |code: u16, reason: &str, cause: &str| {
            let status = json!({ "status": "Failure", "code": code, "reason": reason, "message": "m",
                "details": { "causes": [{ "reason": cause, "message": "", "field": "" }] } });
            let error =
                refusal(&kube::Error::Api(Box::new(serde_json::from_value(status).expect("a status"))));
            (error.quota_exceeded, error.namespace_terminating)
        };
        assert_eq!(refused(403, "QuotaExceeded", ""), (true, false));
        assert_eq!(refused(403, "Forbidden", ""), (false, false));
        assert_eq!(refused(403, "Forbidden", "NamespaceTerminating"), (false, true));
        assert_eq!(refused(500, "QuotaExceeded", ""), (false, false));
        let lost = refusal(&kube::Error::LinesCodecMaxLineLengthExceeded);
        assert!(!lost.quota_exceeded && !lost.namespace_terminating, "{lost:?}");
    }
}
