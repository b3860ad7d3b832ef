//! The last decision about each binding, with its reasons, for whoever asks why.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use scheduler::diagnosis::Report;
use scheduler::outcome::Conclusion;
use scheduler::trigger::Trigger;
use scheduler::{Attempt, Diagnosis};
use serde::Serialize;

/// The last decision about each binding; cheap to clone, all clones show the same.
#[derive(Clone, Default)]
pub struct Diagnoses(Arc<RwLock<HashMap<String, Arc<Entry>>>>);

/// One decision, as compact as it was made.
struct Entry {
    at: Timestamp,
    trigger: Trigger,
    condition: (&'static str, &'static str, String),
    failed_terms: Vec<String>,
    diagnosis: Diagnosis,
}

/// A decision in words.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// When it was made.
    pub at: Timestamp,
    /// Why the binding was looked at.
    pub trigger: String,
    /// The condition `Scheduled` that it left: status, reason and message.
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
    /// The affinity terms that failed before, or all of them, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_terms: Vec<String>,
    /// Every cluster, how clusters were selected and replicas divided.
    pub report: Report,
}

impl Diagnoses {
    /// Returns the last decision about a binding; the namespace of a ClusterResourceBinding is empty.
    pub fn explain(&self, namespace: &str, name: &str) -> Option<Explanation> {
        let key = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        let entry = self.0.read().get(&key).map(Arc::clone)?;
        let (status, reason, message) = entry.condition.clone();
        Some(Explanation {
            at: entry.at,
            trigger: format!("{:?}", entry.trigger),
            status,
            reason,
            message,
            failed_terms: entry.failed_terms.clone(),
            report: entry.diagnosis.report(),
        })
    }

    pub(super) fn note(
        &self,
        key: String,
        at: Timestamp,
        trigger: Trigger,
        attempt: Attempt,
        conclusion: &Conclusion,
    ) {
        let condition = &conclusion.condition;
        let terms = attempt.failed_terms.iter().map(|term| format!("{}: {}", term.index, term.message));
        let entry = Entry {
            at,
            trigger,
            condition: (condition.status, condition.reason, condition.message.clone()),
            failed_terms: terms.collect(),
            diagnosis: match attempt.result {
                Ok(decision) => decision.diagnosis,
                Err(failure) => *failure.diagnosis,
            },
        };
        self.0.write().insert(key, Arc::new(entry));
    }

    pub(super) fn forget(&self, key: &str) {
        self.0.write().remove(key);
    }
}
