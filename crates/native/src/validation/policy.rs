//! Budgets, quotas, limits, priorities, namespaces, leases, events.

use std::collections::{BTreeSet, HashSet};

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::{self, complaints};
use super::meta;
use super::node::{Node, same};

pub(super) fn disruption_budget(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let fields = ["minAvailable", "maxUnavailable"];
    if fields.iter().all(|field| spec.at(field).exists()) {
        let text = "minAvailable and maxUnavailable cannot be both set";
        errors.push(Error::invalid(&path, spec.value(), text));
    }
    for field in fields.into_iter().filter(|field| spec.at(field).exists()) {
        check::int_or_percent(errors, &path.child(field), spec.at(field));
        check::at_most_100_percent(errors, &path.child(field), spec.at(field));
    }
    check::selector(errors, &path.child("selector"), spec.at("selector"));
    check::optional_enum(
        errors,
        &path.child("unhealthyPodEvictionPolicy"),
        spec.at("unhealthyPodEvictionPolicy"),
        &["AlwaysAllow", "IfHealthyBudget"],
    );
}

/// What a quota of a namespace may count, besides huge pages.
pub const QUOTA_NAMES: [&str; 19] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

fn quota_name(errors: &mut Errors, path: &Path, name: &str) {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        complaints(errors, path, name, wrong);
        return;
    }
    let known = QUOTA_NAMES.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-");
    if !name.contains('/') && !known {
        errors.push(Error::invalid(path, name, "must be a standard resource type or fully qualified"));
        errors.push(Error::invalid(path, name, "must be a standard resource for quota"));
    }
}

/// About so many errors of the scopes are told.
const MOST_SCOPE_ERRORS: usize = 10;

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

pub(super) fn resource_quota(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    for (name, amount) in spec.at("hard").entries() {
        let at = path.child("hard").key(name);
        quota_name(errors, &at, name);
        check::resource_amount(errors, &at, name, amount);
    }
    let (scopes, at) = (spec.at("scopes"), path.child("scopes"));
    let before = errors.len();
    for scope in scopes.texts() {
        // Each shows the whole list, and they say the same.
        if errors.len() >= before.saturating_add(MOST_SCOPE_ERRORS) {
            break;
        }
        if !SCOPES.contains(&scope) {
            errors.push(Error::invalid(&at, scopes.value(), "unsupported scope"));
        }
        for (name, _) in spec.at("hard").entries() {
            if QUOTA_NAMES.contains(&name) && !scope_fits(scope, name) {
                errors.push(Error::invalid(&at, scopes.value(), "unsupported scope applied to resource"));
            }
        }
    }
    let given: BTreeSet<&str> = scopes.texts().into_iter().collect();
    for pair in [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]] {
        if pair.iter().all(|scope| given.contains(scope)) {
            errors.push(Error::invalid(&at, scopes.value(), "conflicting scopes"));
        }
    }
}

/// Scopes select pods, so they only make sense for what pods use.
fn scope_fits(scope: &str, resource: &str) -> bool {
    let of_pods = matches!(
        resource,
        "pods"
            | "cpu"
            | "memory"
            | "requests.cpu"
            | "requests.memory"
            | "limits.cpu"
            | "limits.memory"
            | "ephemeral-storage"
            | "requests.ephemeral-storage"
            | "limits.ephemeral-storage"
    );
    match scope {
        "BestEffort" => resource == "pods",
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => of_pods,
        _ => true,
    }
}

pub(super) fn resource_quota_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    let scopes = |root: Node<'_>| -> BTreeSet<String> {
        root.dig(&["spec", "scopes"]).texts().into_iter().map(str::to_owned).collect()
    };
    if scopes(new) != scopes(old) {
        let at = Path::new("spec").child("scopes");
        errors.push(Error::invalid(&at, new.dig(&["spec", "scopes"]).value(), check::IMMUTABLE));
    }
}

pub(super) fn limit_range(errors: &mut Errors, root: Node<'_>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, item) in root.dig(&["spec", "limits"]).items().enumerate() {
        let path = Path::new("spec").child("limits").index(index);
        let (kind, at) = (item.at("type").text(), path.child("type"));
        complaints(errors, &at, kind, names::qualified_name(kind));
        if !kind.contains('/') && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") {
            errors.push(Error::invalid(&at, kind, "must be a standard limit type or fully qualified"));
        }
        if seen.contains(&kind) {
            errors.push(Error::duplicate(&at, kind));
        }
        seen.insert(kind);
        if kind == "Pod" {
            for field in ["default", "defaultRequest"] {
                if !item.at(field).is_empty() {
                    let text = "may not be specified when `type` is 'Pod'";
                    errors.push(Error::forbidden(&path.child(field), text));
                }
            }
        }
        let has_storage = ["min", "max"].iter().any(|field| item.at(field).at("storage").exists());
        if kind == "PersistentVolumeClaim" && !has_storage {
            let text = "either minimum or maximum storage value is required, but neither was provided";
            errors.push(Error::required(&path.child("limits"), text));
        }
        let lists = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
        let resources: BTreeSet<&str> =
            lists.iter().flat_map(|list| item.at(list).entries().map(|(name, _)| name)).collect();
        for resource in resources {
            limit_order(errors, item, resource, kind, &path);
        }
    }
}

/// min ≤ defaultRequest ≤ default ≤ max, as far as they are given.
fn limit_order(errors: &mut Errors, item: Node<'_>, resource: &str, kind: &str, path: &Path) {
    let defaults_count = kind != "Pod";
    let amount = |list: &str| {
        Some(item.at(list).at(resource))
            .filter(|node| node.exists() && (defaults_count || !matches!(list, "default" | "defaultRequest")))
    };
    // First is shown as greater than second; the error is at `at` and shows `shown`.
    for (first, first_words, second, second_words, at, shown) in [
        ("min", "min", "max", "max", "min", "min"),
        ("min", "min", "defaultRequest", "default request", "defaultRequest", "defaultRequest"),
        ("defaultRequest", "default request", "max", "max", "defaultRequest", "defaultRequest"),
        ("defaultRequest", "default request", "default", "default limit", "defaultRequest", "defaultRequest"),
        ("min", "min", "default", "default", "default", "min"),
        ("default", "default", "max", "max", "default", "max"),
    ] {
        if let (Some(low), Some(high)) = (amount(first), amount(second))
            && check::quantity(low) > check::quantity(high)
        {
            let text = format!(
                "{first_words} value {} is greater than {second_words} value {}",
                low.text(),
                high.text()
            );
            let value = amount(shown).map_or("", Node::text);
            errors.push(Error::invalid(&path.child(at).key(resource), value, text));
        }
    }
    if let Some(ratio) = amount("maxLimitRequestRatio")
        && check::quantity(ratio).milli_value() < 1000
    {
        let text = format!("ratio {} is less than 1", ratio.text());
        errors.push(Error::invalid(&path.child("maxLimitRequestRatio").key(resource), ratio.text(), text));
    }
}

const MAX_USER_PRIORITY: i64 = 1_000_000_000;

pub(super) fn priority_class(errors: &mut Errors, root: Node<'_>) {
    let (name, value) = (root.dig(&["metadata", "name"]).text(), root.at("value").int());
    let system = [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
    if name.starts_with("system-") {
        let why = match system.iter().find(|(known, _)| *known == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, known)) if *known != value => {
                Some(format!("value of {name} PriorityClass must be {known}"))
            }
            Some(_) if root.at("globalDefault").flag() => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            let text = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
            );
            errors.push(Error::forbidden(&Path::new("metadata").child("name"), text));
        }
    } else if value > MAX_USER_PRIORITY {
        let text = format!("maximum allowed value of a user defined priority is {MAX_USER_PRIORITY}");
        errors.push(Error::forbidden(&Path::new("value"), text));
    }
    check::optional_enum(
        errors,
        &Path::new("preemptionPolicy"),
        root.at("preemptionPolicy"),
        &["PreemptLowerPriority", "Never"],
    );
}

pub(super) fn priority_class_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    if !same(new.at("value"), old.at("value")) {
        errors.push(Error::forbidden(&Path::new("value"), "may not be changed in an update."));
    }
    check::immutable(
        errors,
        &Path::new("preemptionPolicy"),
        new.at("preemptionPolicy"),
        old.at("preemptionPolicy"),
    );
}

pub(super) fn namespace(errors: &mut Errors, root: Node<'_>) {
    for finalizer in root.dig(&["spec", "finalizers"]).texts() {
        errors.extend(meta::standard_finalizer(finalizer, &Path::new("spec").child("finalizers")));
    }
}

pub(super) fn namespace_status(errors: &mut Errors, root: Node<'_>) {
    let phase = root.dig(&["status", "phase"]).text();
    let at = Path::new("status").child("Phase");
    let deleting = root.dig(&["metadata", "deletionTimestamp"]).exists();
    if !deleting && phase != "Active" {
        errors.push(Error::invalid(&at, phase, "may only be 'Active' if `deletionTimestamp` is empty"));
    } else if deleting && phase != "Terminating" {
        errors.push(Error::invalid(
            &at,
            phase,
            "may only be 'Terminating' if `deletionTimestamp` is not empty",
        ));
    }
}

pub(super) fn lease(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    if let Some(seconds @ ..=0) = spec.at("leaseDurationSeconds").opt_int() {
        errors.push(Error::invalid(&path.child("leaseDurationSeconds"), seconds, check::POSITIVE));
    }
    check::not_negative(errors, &path.child("leaseTransitions"), spec.at("leaseTransitions"));
    if !spec.at("preferredHolder").is_empty() && spec.at("strategy").is_empty() {
        let text = "may only be specified if `strategy` is defined";
        errors.push(Error::forbidden(&path.child("preferredHolder"), text));
    }
}

pub(super) fn runtime_class(errors: &mut Errors, root: Node<'_>) {
    let path = Path::new("handler");
    match root.at("handler").text() {
        "" => errors.push(Error::required(&path, "")),
        handler => complaints(errors, &path, handler, names::dns1123_label(handler)),
    }
}
