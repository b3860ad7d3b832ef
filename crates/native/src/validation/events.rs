//! Events of both groups, which are one kind inside.
//!
//! Whoever records through the older group is checked little, so that old recorders go on; the newer group asks for more and
//! lets nothing but the series of an event change.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::{self, complaints};
use super::node::Node;

/// What holds for every event, new or changed.
pub(super) fn event(errors: &mut Errors, root: Node<'_>, is_core: bool) {
    let [object, reporter, note] = if is_core {
        ["involvedObject", "reportingComponent", "message"]
    } else {
        ["regarding", "reportingController", "note"]
    };
    let namespace = root.dig(&["metadata", "namespace"]).text();
    let of_object = root.at(object).at("namespace").text();
    let at = Path::new("involvedObject").child("namespace");
    let is_new = root.at("eventTime").exists();
    let mismatch = match (is_new, of_object) {
        (false, "") => !matches!(namespace, "" | "default"),
        (false, of_object) => namespace != of_object,
        (true, "") => !matches!(namespace, "default" | "kube-system"),
        (true, _) => false,
    };
    if mismatch {
        errors.push(Error::invalid(&at, of_object, "does not match event.namespace"));
    }
    if is_new {
        let controller = root.at(reporter).text();
        let at = Path::new(reporter);
        check::required(errors, &at, root.at(reporter));
        complaints(errors, &at, controller, names::qualified_name(controller));
        for field in ["reportingInstance", "action", "reason"] {
            check::required(errors, &Path::new(field), root.at(field));
            if root.at(field).len() > 128 {
                errors.push(Error::invalid(&Path::new(field), "", "can have at most 128 characters"));
            }
        }
        if root.at(note).len() > 1024 {
            errors.push(Error::invalid(&Path::new("message"), "", "can have at most 1024 characters"));
        }
    }
}

/// What the newer group asks for beyond that of a new event.
pub(super) fn strict(errors: &mut Errors, root: Node<'_>) {
    let is_new = root.at("eventTime").exists();
    series(errors, root);
    if !is_new {
        errors.push(Error::required(&Path::new("eventTime"), ""));
    }
    let kind = root.at("type").text();
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(Error::invalid(&Path::new("type"), "", format!("has invalid value: {kind}")));
    }
    for (field, shown) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
    ] {
        if root.at(field).exists() && root.at(field).value() != 0 {
            errors.push(Error::invalid(&Path::new(shown), "", "needs to be unset"));
        }
    }
    if !root.at("deprecatedSource").is_empty() {
        errors.push(Error::invalid(&Path::new("source"), "", "needs to be unset"));
    }
}

fn series(errors: &mut Errors, root: Node<'_>) {
    let series = root.at("series");
    if !series.exists() {
        return;
    }
    if series.at("count").int() < 2 {
        errors.push(Error::invalid(&Path::new("series.count"), "", "should be at least 2"));
    }
    if !series.at("lastObservedTime").exists() {
        errors.push(Error::required(&Path::new("series.lastObservedTime"), ""));
    }
}

/// What must not change through the newer group; upstream looks at the reason twice.
pub(super) fn strict_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    if !super::node::same(new.at("series"), old.at("series")) {
        series(errors, new);
    }
    for (field, shown) in [
        ("regarding", "involvedObject"),
        ("reason", "reason"),
        ("note", "message"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        check::immutable(errors, &Path::new(shown), new.at(field), old.at(field));
    }
}
