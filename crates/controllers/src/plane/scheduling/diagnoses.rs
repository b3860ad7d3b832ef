//! The last decision about each binding, with its reasons, for users who ask why.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use scheduler::explanation::FailedTerm;
use scheduler::outcome::{Conclusion, Condition};
use scheduler::trigger::Trigger;
use scheduler::{Attempt, Diagnosis, Explanation};

/// The last decision about each binding; cheap to clone, all clones show the same.
#[derive(Clone, Default)]
pub struct Diagnoses(Arc<RwLock<HashMap<String, Arc<Entry>>>>);

/// One decision, in the compact form in which it was made.
struct Entry {
    at: Timestamp,
    trigger: Trigger,
    confirmed: Option<Timestamp>,
    condition: Condition,
    failed_terms: Vec<FailedTerm>,
    diagnosis: Diagnosis,
}

impl Diagnoses {
    /// Returns the last decision about a binding; the namespace of a ClusterResourceBinding is empty.
    ///
    /// Only decisions since the start of the process are known.
    pub fn explain(&self, namespace: &str, name: &str) -> Option<Explanation> {
        let key = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        let entry = self.0.read().get(&key).map(Arc::clone)?;
        let Condition { status, reason, message } = entry.condition.clone();
        Some(Explanation {
            at: entry.at,
            trigger: entry.trigger,
            confirmed: entry.confirmed,
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            failed_terms: entry.failed_terms.clone(),
            report: entry.diagnosis.report(),
        })
    }

    /// Records a decision. One that changed nothing only confirms the previous one: the time, trigger and
    /// failures of the previous one still explain the present state.
    pub(super) fn note(
        &self,
        key: String,
        at: Timestamp,
        trigger: Trigger,
        attempt: Attempt,
        conclusion: &Conclusion,
        changed: bool,
    ) {
        let terms = attempt.failed_terms.into_iter();
        let mut entry = Entry {
            at,
            trigger,
            confirmed: None,
            condition: conclusion.condition.clone(),
            failed_terms: terms.map(|term| FailedTerm { index: term.index, message: term.message }).collect(),
            diagnosis: match attempt.result {
                Ok(decision) => decision.diagnosis,
                Err(failure) => *failure.diagnosis,
            },
        };
        let mut all = self.0.write();
        if !changed && let Some(before) = all.get(&key) {
            entry = Entry {
                at: before.at,
                trigger: before.trigger,
                confirmed: Some(at),
                failed_terms: if entry.failed_terms.is_empty() {
                    before.failed_terms.clone()
                } else {
                    entry.failed_terms
                },
                ..entry
            };
        }
        all.insert(key, Arc::new(entry));
    }

    pub(super) fn forget(&self, key: &str) {
        self.0.write().remove(key);
    }
}
