//! Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets, ControllerRevisions.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use apimachinery::selector::label::Selector;
use serde_json::{Value, json};

use super::check::{self, complaints};
use super::node::{Node, same};
use super::{pod, storage};

const NO_MATCH: &str = "`selector` does not match template `labels`";

/// Checks the selector itself, and returns it where it can be used.
fn selector(
    errors: &mut Errors,
    spec: Node<'_>,
    path: &Path,
    kind: &str,
    unusable: &str,
) -> Option<Selector> {
    let (node, at) = (spec.at("selector"), path.child("selector"));
    if node.exists() {
        check::selector(errors, &at, node);
        if check::selector_is_empty(node) {
            let text = format!("empty selector is invalid for {kind}");
            errors.push(Error::invalid(&at, node.value(), text));
        }
    } else {
        errors.push(Error::required(&at, ""));
    }
    let selector = Selector::from_object(node.0);
    if selector.is_err() {
        errors.push(Error::invalid(&at, node.value(), unusable));
    }
    selector.ok()
}

fn matches_template(errors: &mut Errors, selector: &Selector, spec: Node<'_>, path: &Path) {
    let labels = spec.dig(&["template", "metadata", "labels"]);
    let matched = match labels.0 {
        Some(labels) => selector.matches(labels),
        None => selector.matches(&json!({})),
    };
    if !selector.is_everything() && !matched {
        let at = path.child("template").child("metadata").child("labels");
        errors.push(Error::invalid(&at, labels.value(), NO_MATCH));
    }
}

/// Pods that a controller keeps running restart always and never time out.
fn keeps_running(errors: &mut Errors, spec: Node<'_>, path: &Path, kind: &str) {
    let (pod, path) = (spec.dig(&["template", "spec"]), path.child("template").child("spec"));
    let policy = pod.at("restartPolicy").text();
    if policy != "Always" {
        errors.push(Error::not_supported(&path.child("restartPolicy"), policy, &["Always"]));
    }
    if pod.at("activeDeadlineSeconds").exists() {
        let text = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(Error::forbidden(&path.child("activeDeadlineSeconds"), text));
    }
}

fn replica_template(errors: &mut Errors, selector: Option<Selector>, spec: Node<'_>, path: &Path) {
    if let Some(selector) = selector {
        matches_template(errors, &selector, spec, path);
        pod::template(errors, spec.at("template"), &path.child("template"));
        keeps_running(errors, spec, path, "ReplicaSet");
    }
}

pub(super) fn deployment(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    check::not_negative(errors, &path.child("replicas"), spec.at("replicas"));
    let selector = selector(errors, spec, &path, "deployment", "invalid label selector");
    replica_template(errors, selector, spec, &path);
    deployment_strategy(errors, spec.at("strategy"), &path.child("strategy"));
    check::none_negative(
        errors,
        &path,
        spec,
        &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"],
    );
    if let Some(deadline) = spec.at("progressDeadlineSeconds").opt_int()
        && deadline <= spec.at("minReadySeconds").int()
    {
        let at = path.child("progressDeadlineSeconds");
        errors.push(Error::invalid(&at, deadline, "must be greater than minReadySeconds"));
    }
}

fn deployment_strategy(errors: &mut Errors, strategy: Node<'_>, path: &Path) {
    let (rolling, at) = (strategy.at("rollingUpdate"), path.child("rollingUpdate"));
    match strategy.at("type").text() {
        "Recreate" if rolling.exists() => {
            errors.push(Error::forbidden(&at, "may not be specified when strategy `type` is 'Recreate'"));
        }
        "Recreate" => {}
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.at("maxUnavailable"), rolling.at("maxSurge"));
            check::int_or_percent(errors, &at.child("maxUnavailable"), unavailable);
            check::int_or_percent(errors, &at.child("maxSurge"), surge);
            if check::int_or_percent_value(unavailable) == 0 && check::int_or_percent_value(surge) == 0 {
                let text = "may not be 0 when `maxSurge` is 0";
                errors.push(Error::invalid(&at.child("maxUnavailable"), unavailable.value(), text));
            }
            check::at_most_100_percent(errors, &at.child("maxUnavailable"), unavailable);
        }
        _ => errors.push(Error::not_supported(path, strategy.value(), &["Recreate", "RollingUpdate"])),
    }
}

pub(super) fn replica_set(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    check::none_negative(errors, &path, spec, &["replicas", "minReadySeconds"]);
    // The text says deployment for ReplicaSets too, as upstream's does.
    let selector = selector(errors, spec, &path, "deployment", "invalid label selector");
    replica_template(errors, selector, spec, &path);
}

pub(super) fn replication_controller(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    check::not_negative(errors, &path.child("minReadySeconds"), spec.at("minReadySeconds"));
    if spec.at("selector").is_empty() {
        errors.push(Error::required(&path.child("selector"), ""));
    }
    check::not_negative(errors, &path.child("replicas"), spec.at("replicas"));
    if !spec.at("template").exists() {
        errors.push(Error::required(&path.child("template"), ""));
        return;
    }
    let labels = spec.dig(&["template", "metadata", "labels"]);
    let matches = spec.at("selector").entries().all(|(key, value)| labels.at(key).text() == value.text());
    if !matches {
        let at = path.child("template").child("metadata").child("labels");
        errors.push(Error::invalid(&at, labels.value(), NO_MATCH));
    }
    pod::template(errors, spec.at("template"), &path.child("template"));
    keeps_running(errors, spec, &path, "ReplicationController");
}

pub(super) fn stateful_set(errors: &mut Errors, root: Node<'_>, is_update: bool) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let policy = spec.at("podManagementPolicy").text();
    let at = path.child("podManagementPolicy");
    match policy {
        "" => errors.push(Error::required(&at, "")),
        "OrderedReady" | "Parallel" => {}
        _ => errors.push(Error::invalid(&at, policy, "must be 'OrderedReady' or 'Parallel'")),
    }
    stateful_strategy(errors, spec.at("updateStrategy"), &path.child("updateStrategy"));
    let retention = spec.at("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"] {
        let at = path.child("persistentVolumeClaimRetentionPolicy").child(field);
        check::optional_enum(errors, &at, retention.at(field), &["Retain", "Delete"]);
    }
    if !is_update {
        for (index, claim) in spec.at("volumeClaimTemplates").items().enumerate() {
            let at = path.child("volumeClaimTemplates").index(index);
            storage::claim_spec(errors, claim.at("spec"), &at.child("spec"));
        }
    }
    check::none_negative(errors, &path, spec, &["replicas", "minReadySeconds"]);
    check::not_negative(errors, &path.child("ordinals.start"), spec.dig(&["ordinals", "start"]));
    let service = spec.at("serviceName").text();
    if !is_update && !service.is_empty() {
        complaints(errors, &path.child("serviceName"), service, names::dns1123_label(service));
    }
    if let Some(selector) = selector(errors, spec, &path, "statefulset", "") {
        matches_template(errors, &selector, spec, &path);
        let template = with_claimed_volumes(spec);
        pod::template(errors, Node::from(&template), &path.child("template"));
    }
    keeps_running(errors, spec, &path, "StatefulSet");
}

/// The claims of a StatefulSet appear as volumes of its pods, before the template's own.
fn with_claimed_volumes(spec: Node<'_>) -> Value {
    let mut template = spec.at("template").value();
    let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) else { return template };
    pod.remove("subdomain");
    pod.remove("hostname");
    let names: Vec<&str> = spec
        .at("volumeClaimTemplates")
        .items()
        .map(|claim| claim.dig(&["metadata", "name"]).text())
        .collect();
    if !names.is_empty() {
        let claimed =
            names.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        let own = pod.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default();
        let taken: HashSet<&str> = names.iter().copied().collect();
        let own = own.into_iter().filter(|volume| !taken.contains(Node::from(volume).at("name").text()));
        let volumes: Vec<Value> = claimed.chain(own).collect();
        pod.insert("volumes".to_owned(), volumes.into());
    }
    template
}

fn stateful_strategy(errors: &mut Errors, strategy: Node<'_>, path: &Path) {
    let rolling = strategy.at("rollingUpdate");
    match strategy.at("type").text() {
        "" => errors.push(Error::required(path, "")),
        "OnDelete" if rolling.exists() => {
            let text = "only allowed for updateStrategy 'RollingUpdate'";
            errors.push(Error::invalid(&path.child("rollingUpdate"), rolling.value(), text));
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            let at = path.child("rollingUpdate").child("partition");
            check::not_negative(errors, &at, rolling.at("partition"));
        }
        _ => errors.push(Error::invalid(path, strategy.value(), "must be 'RollingUpdate' or 'OnDelete'")),
    }
}

pub(super) fn stateful_set_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    let mutable = [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ];
    let (new, old) = (new.at("spec"), old.at("spec"));
    let changed = new
        .entries()
        .chain(old.entries())
        .any(|(field, _)| !mutable.contains(&field) && !same(new.at(field), old.at(field)));
    if changed {
        let text = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.push(Error::forbidden(&Path::new("spec"), text));
    }
}

pub(super) fn daemon_set(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    check::selector(errors, &path.child("selector"), spec.at("selector"));
    if let Ok(selector) = Selector::from_object(spec.at("selector").0) {
        matches_template(errors, &selector, spec, &path);
    }
    if spec.at("selector").exists() && check::selector_is_empty(spec.at("selector")) {
        let text = "empty selector is invalid for daemonset";
        errors.push(Error::invalid(&path.child("selector"), spec.at("selector").value(), text));
    }
    pod::template(errors, spec.at("template"), &path.child("template"));
    keeps_running(errors, spec, &path, "DaemonSet");
    check::not_negative(errors, &path.child("minReadySeconds"), spec.at("minReadySeconds"));
    daemon_strategy(errors, spec.at("updateStrategy"), &path.child("updateStrategy"));
    check::not_negative(errors, &path.child("revisionHistoryLimit"), spec.at("revisionHistoryLimit"));
}

fn daemon_strategy(errors: &mut Errors, strategy: Node<'_>, path: &Path) {
    match strategy.at("type").text() {
        "OnDelete" => {}
        "RollingUpdate" => {
            let (rolling, at) = (strategy.at("rollingUpdate"), path.child("rollingUpdate"));
            for field in ["maxUnavailable", "maxSurge"] {
                check::int_or_percent(errors, &at.child(field), rolling.at(field));
            }
            for field in ["maxUnavailable", "maxSurge"] {
                check::at_most_100_percent(errors, &at.child(field), rolling.at(field));
            }
            let nonzero = |field: &str| check::int_or_percent_value(rolling.at(field)) != 0;
            match (nonzero("maxUnavailable"), nonzero("maxSurge")) {
                (true, true) => {
                    let text = "may not be set when maxUnavailable is non-zero";
                    errors.push(Error::invalid(&at.child("maxSurge"), rolling.at("maxSurge").value(), text));
                }
                (false, false) => {
                    let text = "cannot be 0 when maxSurge is 0";
                    errors.push(Error::required(&at.child("maxUnavailable"), text));
                }
                _ => {}
            }
        }
        _ => errors.push(Error::not_supported(path, strategy.value(), &["RollingUpdate", "OnDelete"])),
    }
}

pub(super) fn controller_revision(errors: &mut Errors, root: Node<'_>) {
    if !root.at("data").exists() {
        errors.push(Error::required(&Path::new("data"), "data is mandatory"));
    }
    check::not_negative(errors, &Path::new("revision"), root.at("revision"));
}
