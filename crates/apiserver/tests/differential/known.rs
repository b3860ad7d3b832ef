//! The differences we know of, each with its reason.

use serde::Deserialize;

use crate::suite::Difference;

/// The list in `known.yaml`.
pub(crate) struct Known {
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// The name of a case; `*` stands for any text.
    pub(crate) case: String,
    pub(crate) reason: String,
    /// Set where it is a matter of time or chance whether the difference shows: another part of a server acts on its
    /// own, or kube-apiserver walks over a Go map.
    #[serde(default)]
    pub(crate) timing: bool,
}

impl Known {
    pub(crate) fn read() -> Self {
        let text = crate::testdata("known.yaml");
        Self { entries: serde_saphyr::from_str(&text).expect("known.yaml is a list of cases and reasons") }
    }

    /// Returns the differences that no entry covers.
    pub(crate) fn unlisted<'a>(&self, differences: &'a [Difference]) -> Vec<&'a Difference> {
        let covered = |case: &str| self.entries.iter().any(|entry| matches(&entry.case, case));
        differences.iter().filter(|difference| !covered(&difference.case)).collect()
    }

    /// Returns the entries that cover nothing.
    pub(crate) fn stale(&self, differences: &[Difference]) -> Vec<&str> {
        let shows = |glob: &str| differences.iter().any(|difference| matches(glob, &difference.case));
        let steady = self.entries.iter().filter(|entry| !entry.timing);
        steady.map(|entry| entry.case.as_str()).filter(|case| !shows(case)).collect()
    }
}

fn matches(glob: &str, text: &str) -> bool {
    match glob.split_once('*') {
        None => glob == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches(after, &rest[at..]))
        }),
    }
}

#[test]
fn a_star_stands_for_any_text() {
    assert!(matches("pods *", "pods create"));
    assert!(matches("* status *", "jobs status get"));
    assert!(matches("pods create", "pods create"));
    assert!(!matches("pods create", "pods create again"));
    assert!(!matches("* status", "jobs status get"));
}
