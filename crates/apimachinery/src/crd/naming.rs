//! Names of custom resources: their syntax, and who gets them when two definitions want the same.

use std::collections::HashSet;

use serde_json::Value;

use super::{list, text};
use crate::conditions::is_true;
use crate::field::{Complaints, Error, Path};
use crate::{go, names};

/// What the naming step decides for a definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Naming {
    /// `status.acceptedNames`
    pub accepted: Value,
    /// The conditions `NamesAccepted` and `Established`, without times.
    pub conditions: [Condition; 2],
}

/// A condition to set; the caller keeps the transition time where the status did not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub status: &'static str,
    pub reason: String,
    pub message: String,
}

/// Checks the syntax of a set of names.
pub(super) fn check(wanted: &Value, path: &Path, errors: &mut Complaints) {
    let mut label = |path: Path, value: &str, prefix: &str, checked: &str| {
        let complaints = names::dns1035_label(checked);
        if !value.is_empty() && !complaints.is_empty() {
            errors.push(Error::invalid(&path, value, format!("{prefix}{}", complaints.join(","))));
        }
    };
    for name in ["plural", "singular"] {
        label(path.child(name), text(wanted, name), "", text(wanted, name));
    }
    for name in ["kind", "listKind"] {
        let value = text(wanted, name);
        label(
            path.child(name),
            value,
            "may have mixed case, but should otherwise match: ",
            &value.to_lowercase(),
        );
    }
    for name in ["shortNames", "categories"] {
        for (index, value) in list(wanted, name).iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            label(path.child(name).index(index), value, "", value);
        }
    }
    let kind = text(wanted, "kind");
    if !kind.is_empty() && kind == text(wanted, "listKind") {
        errors.push(Error::invalid(&path.child("listKind"), kind, "kind and listKind may not be the same"));
    }
}

/// Where names must differ from each other, within a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Plurals, singulars and short names.
    Resources,
    /// Kinds and kinds of lists.
    Kinds,
}

/// Returns the names that a definition has been given.
pub fn accepted_names(crd: &Value) -> Vec<(Space, &str)> {
    let Some(names) = crd.pointer("/status/acceptedNames") else { return Vec::new() };
    let short = list(names, "shortNames").iter().filter_map(Value::as_str);
    let resources = [text(names, "plural"), text(names, "singular")].into_iter().chain(short);
    let kinds = [text(names, "kind"), text(names, "listKind")];
    let all = resources.map(|name| (Space::Resources, name)).chain(kinds.map(|name| (Space::Kinds, name)));
    all.filter(|(_, name)| !name.is_empty()).collect()
}

/// Decides which of the wanted names a definition gets. `is_used` says whether a name has been given to another
/// definition of the same group.
pub fn decide_names(crd: &Value, is_used: impl Fn(Space, &str) -> bool) -> Naming {
    let null = Value::Null;
    let wanted = crd.pointer("/spec/names").unwrap_or(&null);
    let before = crd.pointer("/status/acceptedNames").unwrap_or(&null);
    let mut accepted = before.as_object().cloned().unwrap_or_default();
    let mut conflict: Option<(&str, String)> = None;
    let in_use = |name: &str| format!("{} is already in use", go::quote(name));
    for (name, space, reason) in [
        ("plural", Space::Resources, "PluralConflict"),
        ("singular", Space::Resources, "SingularConflict"),
        ("shortNames", Space::Resources, "ShortNamesConflict"),
        ("kind", Space::Kinds, "KindConflict"),
        ("listKind", Space::Kinds, "ListKindConflict"),
    ] {
        let taken: Vec<String> = if name == "shortNames" {
            let owned: HashSet<&Value> = list(before, name).iter().collect();
            let fresh = list(wanted, name).iter().filter(|short| !owned.contains(short));
            fresh.filter_map(Value::as_str).filter(|short| is_used(space, short)).map(in_use).collect()
        } else {
            let value = text(wanted, name);
            let free = value == text(before, name) || value.is_empty() || !is_used(space, value);
            if free { Vec::new() } else { vec![in_use(value)] }
        };
        match taken.as_slice() {
            [] => {
                match wanted.get(name) {
                    Some(value) => accepted.insert(name.to_owned(), value.clone()),
                    None => accepted.remove(name),
                };
            }
            // The last conflict found is the one shown.
            [one] => conflict = Some((reason, one.clone())),
            many => conflict = Some((reason, format!("[{}]", many.join(", ")))),
        }
    }
    match wanted.get("categories") {
        Some(categories) => accepted.insert("categories".to_owned(), categories.clone()),
        None => accepted.remove("categories"),
    };
    let names_accepted = match conflict {
        Some((reason, message)) => {
            Condition { kind: "NamesAccepted", status: "False", reason: reason.to_owned(), message }
        }
        None => Condition {
            kind: "NamesAccepted",
            status: "True",
            reason: "NoConflicts".to_owned(),
            message: "no conflicts found".to_owned(),
        },
    };
    let established_condition = if is_true(crd, "Established") {
        established()
    } else if names_accepted.status == "True" {
        Condition {
            kind: "Established",
            status: "False",
            reason: "Installing".to_owned(),
            message: "the initial names have been accepted".to_owned(),
        }
    } else {
        Condition {
            kind: "Established",
            status: "False",
            reason: "NotAccepted".to_owned(),
            message: "not all names are accepted".to_owned(),
        }
    };
    Naming { accepted: Value::Object(accepted), conditions: [names_accepted, established_condition] }
}

/// Returns the condition of a definition whose resources are served.
pub fn established() -> Condition {
    Condition {
        kind: "Established",
        status: "True",
        reason: "InitialNamesAccepted".to_owned(),
        message: "the initial names have been accepted".to_owned(),
    }
}
