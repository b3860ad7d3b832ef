//! Stabilises the Ready condition of a cluster: a change has to last before it is believed.
//!
//! In: the current condition, what was just observed, for how long this process has been looking. Out: the
//! condition to write. So a short disturbance of a member moves no workload, nor does a restart or a jump of
//! the system clock.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// How long a change has to last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Thresholds {
    pub(super) success: Duration,
    pub(super) failure: Duration,
}

/// What was observed last, and since when, counted from the first look.
#[derive(Debug, Clone, Default)]
pub(super) struct Readiness {
    last: Option<(String, Duration)>,
}

impl Readiness {
    /// Returns the condition to write. The very first observation is believed at once, unless it contradicts
    /// a Ready condition of True, which an earlier process wrote. A change from Unknown to False is also
    /// believed at once, since the two mean the same for workloads.
    pub(super) fn adjust(
        &mut self,
        current: Option<&Condition>,
        observed: Condition,
        at: Duration,
        thresholds: Thresholds,
    ) -> Condition {
        let first = self.last.is_none();
        let (status, since) = self.last.get_or_insert_with(|| (observed.status.clone(), at));
        if *status != observed.status {
            *status = observed.status.clone();
            *since = at;
        }
        let was_ready = current.is_some_and(|current| current.status == "True");
        if first && !was_ready {
            return observed;
        }
        let Some(current) = current else { return observed };
        let threshold = if observed.status == "True" { thresholds.success } else { thresholds.failure };
        let lasted = at.saturating_sub(*since);
        if (observed.status == "True") != (current.status == "True") && lasted < threshold {
            return current.clone();
        }
        observed
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use propagation::status::condition;

    use super::*;

    const THRESHOLDS: Thresholds =
        Thresholds { success: Duration::from_secs(30), failure: Duration::from_secs(30) };

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    /// Feeds observations (second, status) and compares what is written after each.
    #[track_caller]
    fn check(current: Option<&str>, steps: &[(u64, &str, &str)]) {
        let ready = |status: &str| condition("Ready", status, "r", "", Timestamp::UNIX_EPOCH);
        let mut readiness = Readiness::default();
        let mut current = current.map(ready);
        for (second, observed, written) in steps {
            let adjusted = readiness.adjust(current.as_ref(), ready(observed), at(*second), THRESHOLDS);
            assert_eq!(adjusted.status, *written, "at second {second}");
            current = Some(adjusted);
        }
    }

    #[test]
    fn the_first_observation_is_believed_at_once_unless_it_takes_readiness_away() {
        check(None, &[(0, "True", "True")]);
        check(None, &[(0, "False", "False")]);
        check(Some("False"), &[(0, "True", "True")]);
        check(Some("True"), &[(0, "False", "True"), (29, "False", "True"), (30, "False", "False")]);
    }

    #[test]
    fn a_hiccup_goes_unnoticed_and_an_outage_does_not() {
        check(
            None,
            &[(0, "True", "True"), (10, "False", "True"), (20, "True", "True"), (30, "False", "True")],
        );
        check(
            None,
            &[(0, "True", "True"), (10, "False", "True"), (30, "False", "True"), (40, "False", "False")],
        );
    }

    #[test]
    fn recovery_has_to_last_too() {
        check(
            None,
            &[(0, "False", "False"), (10, "True", "False"), (39, "True", "False"), (40, "True", "True")],
        );
    }

    #[test]
    fn recovery_and_outage_have_thresholds_of_their_own() {
        let ready = |status: &str| condition("Ready", status, "r", "", Timestamp::UNIX_EPOCH);
        let slow_to_believe =
            Thresholds { success: Duration::from_secs(60), failure: Duration::from_secs(10) };
        let mut readiness = Readiness::default();
        readiness.adjust(None, ready("True"), at(0), slow_to_believe);
        let step = |readiness: &mut Readiness, current: &str, observed: &str, second: u64| {
            readiness.adjust(Some(&ready(current)), ready(observed), at(second), slow_to_believe).status
        };
        assert_eq!(step(&mut readiness, "True", "False", 5), "True");
        assert_eq!(step(&mut readiness, "True", "False", 15), "False", "an outage of ten seconds counts");
        assert_eq!(step(&mut readiness, "False", "True", 20), "False");
        assert_eq!(step(&mut readiness, "False", "True", 79), "False");
        assert_eq!(step(&mut readiness, "False", "True", 80), "True", "a recovery of sixty does");
    }

    #[test]
    fn unknown_becomes_false_at_once() {
        let mut readiness = Readiness::default();
        let ready = |status: &str| condition("Ready", status, "r", "", Timestamp::UNIX_EPOCH);
        readiness.adjust(None, ready("True"), at(0), THRESHOLDS);
        let adjusted = readiness.adjust(Some(&ready("Unknown")), ready("False"), at(1), THRESHOLDS);
        assert_eq!(adjusted.status, "False");
    }
}
