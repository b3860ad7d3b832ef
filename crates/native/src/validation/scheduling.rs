//! Where a pod may run: affinities, tolerations, spreading, gates.

use std::collections::{HashMap, HashSet};

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::{self, complaints};
use super::node::Node;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(errors: &mut Errors, affinity: Node<'_>, path: &Path) {
    let (node, at) = (affinity.at("nodeAffinity"), path.child("nodeAffinity"));
    if node.at(REQUIRED).exists() {
        node_selector(errors, node.at(REQUIRED), &at.child(REQUIRED));
    }
    for (index, term) in node.at(PREFERRED).items().enumerate() {
        let at = at.child(PREFERRED).index(index);
        weight(errors, term, &at);
        node_term(errors, term.at("preference"), &at.child("preference"));
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let (pods, at) = (affinity.at(kind), path.child(kind));
        for (index, term) in pods.at(REQUIRED).items().enumerate() {
            pod_term(errors, term, &at.child(REQUIRED).index(index));
        }
        for (index, term) in pods.at(PREFERRED).items().enumerate() {
            let at = at.child(PREFERRED).index(index);
            weight(errors, term, &at);
            pod_term(errors, term.at("podAffinityTerm"), &at.child("podAffinityTerm"));
        }
    }
}

fn weight(errors: &mut Errors, term: Node<'_>, path: &Path) {
    let weight = term.at("weight").int();
    if !(1..=100).contains(&weight) {
        errors.push(Error::invalid(&path.child("weight"), weight, "must be in the range 1-100"));
    }
}

pub(super) fn node_selector(errors: &mut Errors, selector: Node<'_>, path: &Path) {
    let path = path.child("nodeSelectorTerms");
    if selector.at("nodeSelectorTerms").is_empty() {
        errors.push(Error::required(&path, "must have at least one node selector term"));
    }
    for (index, term) in selector.at("nodeSelectorTerms").items().enumerate() {
        node_term(errors, term, &path.index(index));
    }
}

fn node_term(errors: &mut Errors, term: Node<'_>, path: &Path) {
    for (index, requirement) in term.at("matchExpressions").items().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let operator = requirement.at("operator").text();
        let values = requirement.at("values");
        let at = path.child("values");
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let text = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(Error::required(&at, text));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(Error::forbidden(&at, text));
            }
            "Gt" | "Lt" if values.len() != 1 => {
                let text = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(Error::required(&at, text));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            _ => errors.push(Error::invalid(
                &path.child("operator"),
                operator,
                "not a valid selector operator",
            )),
        }
        let key = requirement.at("key").text();
        complaints(errors, &path.child("key"), key, names::qualified_name(key));
        for (index, value) in values.texts().into_iter().enumerate() {
            complaints(errors, &at.index(index), value, names::label_value(value));
        }
    }
    for (index, requirement) in term.at("matchFields").items().enumerate() {
        let path = path.child("matchFields").index(index);
        let (operator, key) = (requirement.at("operator").text(), requirement.at("key").text());
        match operator {
            "In" | "NotIn" if requirement.at("values").len() != 1 => {
                let text =
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.push(Error::required(&path.child("values"), text));
            }
            "In" | "NotIn" => {}
            _ => errors.push(Error::invalid(
                &path.child("operator"),
                operator,
                "not a valid selector operator",
            )),
        }
        if key != "metadata.name" {
            errors.push(Error::invalid(&path.child("key"), key, "not a valid field selector key"));
        }
    }
}

fn pod_term(errors: &mut Errors, term: Node<'_>, path: &Path) {
    for selector in ["labelSelector", "namespaceSelector"] {
        check::selector(errors, &path.child(selector), term.at(selector));
    }
    for namespace in term.at("namespaces").texts() {
        complaints(errors, &path.child("namespace"), namespace, names::dns1123_label(namespace));
    }
    let key = term.at("topologyKey").text();
    let at = path.child("topologyKey");
    if key.is_empty() {
        errors.push(Error::required(&at, "can not be empty"));
    }
    complaints(errors, &at, key, names::qualified_name(key));
}

pub(super) fn tolerations(errors: &mut Errors, tolerations: Node<'_>, path: &Path) {
    for (index, toleration) in tolerations.items().enumerate() {
        let path = path.index(index);
        let text = |field: &str| toleration.at(field).text();
        let (key, operator, value, effect) = (text("key"), text("operator"), text("value"), text("effect"));
        let at = path.child("operator");
        if key.is_empty() {
            if operator != "Exists" {
                let text = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
                errors.push(Error::invalid(&at, operator, text));
            }
        } else {
            complaints(errors, &path.child("key"), key, names::qualified_name(key));
        }
        if toleration.at("tolerationSeconds").exists() && effect != "NoExecute" {
            let text = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(Error::invalid(&path.child("effect"), effect, text));
        }
        match operator {
            "" | "Equal" => {
                let wrong = names::label_value(value);
                if !wrong.is_empty() {
                    errors.push(Error::invalid(&at, value, wrong.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let text = "value must be empty when `operator` is 'Exists'";
                errors.push(Error::invalid(&at, value, text));
            }
            "Exists" => {}
            "Lt" | "Gt" => {
                errors.push(Error::not_supported(&at, operator, &["Equal", "Exists", "Lt", "Gt"]));
            }
            _ => errors.push(Error::not_supported(&at, operator, &["Equal", "Exists"])),
        }
        check::optional_enum(
            errors,
            &path.child("effect"),
            toleration.at("effect"),
            &["NoSchedule", "PreferNoSchedule", "NoExecute"],
        );
    }
}

pub(super) fn spread(errors: &mut Errors, constraints: Node<'_>, path: &Path) {
    fn pair(constraint: Node<'_>) -> (&str, &str) {
        (constraint.at("topologyKey").text(), constraint.at("whenUnsatisfiable").text())
    }
    // How many of each are still to come.
    let mut left: HashMap<(&str, &str), usize> = HashMap::new();
    for constraint in constraints.items() {
        let count = left.entry(pair(constraint)).or_default();
        *count = count.saturating_add(1);
    }
    for (index, constraint) in constraints.items().enumerate() {
        let path = path.index(index);
        let skew = constraint.at("maxSkew").int();
        if skew <= 0 {
            errors.push(Error::invalid(&path.child("maxSkew"), skew, "must be greater than zero"));
        }
        if constraint.at("topologyKey").is_empty() {
            errors.push(Error::required(&path.child("topologyKey"), "can not be empty"));
        }
        let action = constraint.at("whenUnsatisfiable").text();
        let supported = ["DoNotSchedule", "ScheduleAnyway"];
        if !supported.contains(&action) {
            errors.push(Error::not_supported(&path.child("whenUnsatisfiable"), action, &supported));
        }
        let (key, action) = pair(constraint);
        let others = left.entry((key, action)).or_default();
        *others = others.saturating_sub(1);
        if *others > 0 {
            let at = path.child("{topologyKey, whenUnsatisfiable}");
            errors.push(Error::duplicate(&at, format!("{{{key}, {action}}}")));
        }
        if let Some(domains) = constraint.at("minDomains").opt_int() {
            let at = path.child("minDomains");
            if domains <= 0 {
                errors.push(Error::invalid(&at, domains, "must be greater than zero"));
            }
            if action != "DoNotSchedule" {
                let text =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.push(Error::invalid(&at, domains, text));
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            check::optional_enum(errors, &path.child(field), constraint.at(field), &["Honor", "Ignore"]);
        }
        check::selector(errors, &path.child("labelSelector"), constraint.at("labelSelector"));
    }
}

pub(super) fn gates(errors: &mut Errors, gates: Node<'_>, path: &Path) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, gate) in gates.items().enumerate() {
        let (path, name) = (path.index(index), gate.at("name").text());
        complaints(errors, &path, name, names::qualified_name(name));
        if seen.contains(&name) {
            errors.push(Error::duplicate(&path, name));
        }
        seen.insert(name);
    }
}
