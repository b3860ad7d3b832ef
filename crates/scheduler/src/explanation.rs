//! The last decision about a binding, in words: for users as text, for programs as data.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::diagnosis::Report;
use crate::trigger::Trigger;

/// A decision and why it came out as it did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// When it was made.
    pub at: Timestamp,
    /// Why the binding was looked at.
    pub trigger: Trigger,
    /// When a later look came to the same result; the report is of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<Timestamp>,
    /// The status of the condition `Scheduled` that it left.
    pub status: String,
    /// The condition's reason.
    pub reason: String,
    /// The condition's message.
    pub message: String,
    /// The affinity terms that were tried in vain, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_terms: Vec<FailedTerm>,
    /// Every cluster, how clusters were selected and replicas divided.
    pub report: Report,
}

/// An affinity term that was tried in vain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedTerm {
    /// Its place in `clusterAffinities`.
    pub index: usize,
    pub message: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, trigger, confirmed, status, reason, message, failed_terms, report } = self;
        write!(out, "decided at {at} because {trigger}")?;
        match confirmed {
            Some(confirmed) => writeln!(out, ", confirmed at {confirmed}")?,
            None => writeln!(out)?,
        }
        writeln!(out, "Scheduled is {status} ({reason}): {message}")?;
        for FailedTerm { index, message } in failed_terms {
            writeln!(out, "affinity term {index} failed: {message}")?;
        }
        write!(out, "{report}")
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::PlacementChanged => "the placement is new or changed",
            Self::ReplicasChanged => "the replicas did not add up",
            Self::RescheduleRequested => "a fresh start was asked for",
            Self::Recomputed => "what has no replicas to divide is looked at every time",
            Self::TargetDeleting => "one of its clusters is being deleted",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_when_why_and_what_failed_before() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let mut explanation = Explanation {
            at: at(0),
            trigger: Trigger::ReplicasChanged,
            confirmed: None,
            status: "True".to_owned(),
            reason: "Success".to_owned(),
            message: "Binding has been scheduled successfully.".to_owned(),
            failed_terms: vec![FailedTerm { index: 0, message: "no room".to_owned() }],
            report: Report {
                affinity_name: "second".to_owned(),
                clusters: Vec::new(),
                selection: None,
                divisions: Vec::new(),
            },
        };
        let text = "decided at 1970-01-01T00:00:00Z because the replicas did not add up\n\
                    Scheduled is True (Success): Binding has been scheduled successfully.\n\
                    affinity term 0 failed: no room\n\
                    affinity term: second\n";
        assert_eq!(explanation.to_string(), text);
        explanation.confirmed = Some(at(60));
        assert!(explanation.to_string().contains("add up, confirmed at 1970-01-01T00:01:00Z\n"));
        let data = serde_json::to_string(&explanation).expect("encodes");
        assert_eq!(serde_json::from_str::<Explanation>(&data).expect("decodes"), explanation);
    }
}
