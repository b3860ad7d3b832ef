//! The differences we know of, each with its reason.

use std::collections::BTreeSet;

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
    /// What may differ, as the suite prints it: `code`, `content-type`, `warnings`, `body`, or a JSON pointer with `*` for
    /// any index and `/**` at the end for anything below.
    fields: Vec<String>,
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

    /// Returns the differences with a field that no entry covers.
    pub(crate) fn unlisted<'a>(&self, differences: &'a [Difference]) -> Vec<&'a Difference> {
        differences.iter().filter(|difference| !self.covers(&difference.case, &difference.fields())).collect()
    }

    fn covers(&self, case: &str, fields: &BTreeSet<String>) -> bool {
        let entries: Vec<&Entry> = self.entries.iter().filter(|entry| matches(&entry.case, case)).collect();
        fields.iter().all(|field| {
            entries.iter().any(|entry| entry.fields.iter().any(|known| matches_field(known, field)))
        })
    }

    /// Returns what is listed and no longer differs: entries with the fields that show in none of their cases.
    pub(crate) fn stale(&self, differences: &[Difference]) -> Vec<String> {
        let shown: Vec<(&str, BTreeSet<String>)> =
            differences.iter().map(|difference| (difference.case.as_str(), difference.fields())).collect();
        self.stale_among(&shown)
    }

    fn stale_among(&self, shown: &[(&str, BTreeSet<String>)]) -> Vec<String> {
        let mut stale = Vec::new();
        for entry in self.entries.iter().filter(|entry| !entry.timing) {
            let shows = |known: &str| {
                shown.iter().any(|(case, fields)| {
                    matches(&entry.case, case) && fields.iter().any(|field| matches_field(known, field))
                })
            };
            let gone = entry.fields.iter().filter(|known| !shows(known));
            stale.extend(gone.map(|known| format!("{} {known}", entry.case)));
        }
        stale
    }
}

/// A `**` at the end of a field stands for anything below it.
fn matches_field(known: &str, field: &str) -> bool {
    match known.strip_suffix("/**") {
        Some(start) => field == start || field.strip_prefix(start).is_some_and(|rest| rest.starts_with('/')),
        None => known == field,
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

#[cfg(test)]
fn set(fields: &[&str]) -> BTreeSet<String> {
    fields.iter().map(ToString::to_string).collect()
}

#[test]
fn a_known_difference_covers_its_fields_and_no_others() {
    let text = r#"[{case: "pods *", fields: [/message, "/details/**"], reason: words}]"#;
    let known = Known { entries: serde_saphyr::from_str(text).expect("entries") };
    assert!(known.covers("pods create", &set(&["/message", "/details/causes/*/message"])));
    assert!(!known.covers("pods create", &set(&["/message", "code"])));
    assert!(!known.covers("jobs create", &set(&["/message"])));
}

#[test]
fn a_field_that_no_longer_differs_is_stale_even_if_its_case_still_does() {
    let text = r#"[{case: "pods *", fields: [/message, code], reason: words},
        {case: "jobs", fields: [code], reason: chance, timing: true}]"#;
    let known = Known { entries: serde_saphyr::from_str(text).expect("entries") };
    assert_eq!(known.stale_among(&[("pods create", set(&["/message"]))]), ["pods * code"]);
    assert!(
        known.stale_among(&[("pods create", set(&["/message"])), ("pods get", set(&["code"]))]).is_empty()
    );
}
