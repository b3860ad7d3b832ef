//! Makes the Ready condition of a cluster calm: a change has to last before it is believed.
//!
//! In: the current condition, what was just observed, the time. Out: the condition to write. A short hiccup of a
//! member thus moves no workload.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// How long a change has to last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Thresholds {
    pub(super) success: Duration,
    pub(super) failure: Duration,
}

/// What was observed last, and since when.
#[derive(Debug, Clone, Default)]
pub(super) struct Readiness {
    last: Option<(String, Timestamp)>,
}

impl Readiness {
    /// Returns the condition to write. The very first observation is believed at once, and so is a change from
    /// Unknown to False, which are the same to the workloads.
    pub(super) fn adjust(
        &mut self,
        current: Option<&Condition>,
        observed: Condition,
        now: Timestamp,
        thresholds: Thresholds,
    ) -> Condition {
        let Some((status, since)) = &mut self.last else {
            self.last = Some((observed.status.clone(), now));
            return observed;
        };
        if *status != observed.status {
            *status = observed.status.clone();
            *since = now;
        }
        let Some(current) = current else { return observed };
        let threshold = if observed.status == "True" { thresholds.success } else { thresholds.failure };
        let lasted = now.duration_since(*since).unsigned_abs();
        if (observed.status == "True") != (current.status == "True") && lasted < threshold {
            return current.clone();
        }
        observed
    }
}

#[cfg(test)]
mod tests {
    use propagation::status::condition;

    use super::*;

    const THRESHOLDS: Thresholds =
        Thresholds { success: Duration::from_secs(30), failure: Duration::from_secs(30) };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Feeds observations (second, status) and compares what is written after each.
    #[track_caller]
    fn check(current: Option<&str>, steps: &[(i64, &str, &str)]) {
        let ready = |status: &str| condition("Ready", status, "r", "", at(0));
        let mut readiness = Readiness::default();
        let mut current = current.map(ready);
        for (second, observed, written) in steps {
            let adjusted = readiness.adjust(current.as_ref(), ready(observed), at(*second), THRESHOLDS);
            assert_eq!(adjusted.status, *written, "at second {second}");
            current = Some(adjusted);
        }
    }

    #[test]
    fn the_first_observation_is_believed_at_once() {
        check(None, &[(0, "True", "True")]);
        check(Some("True"), &[(0, "False", "False")]);
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
        let ready = |status: &str| condition("Ready", status, "r", "", at(0));
        let slow_to_believe =
            Thresholds { success: Duration::from_secs(60), failure: Duration::from_secs(10) };
        let mut readiness = Readiness::default();
        readiness.adjust(None, ready("True"), at(0), slow_to_believe);
        let step = |readiness: &mut Readiness, current: &str, observed: &str, second: i64| {
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
        let ready = |status: &str| condition("Ready", status, "r", "", at(0));
        readiness.adjust(None, ready("True"), at(0), THRESHOLDS);
        let adjusted = readiness.adjust(Some(&ready("Unknown")), ready("False"), at(1), THRESHOLDS);
        assert_eq!(adjusted.status, "False");
    }
}
