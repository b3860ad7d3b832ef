//! Events: the two groups name the same fields differently.

use serde_json::Value;

/// Core name, name in events.k8s.io.
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

pub(super) fn to_events_group(event: &mut Value) {
    NAMES.iter().for_each(|(core, events)| rename(event, core, events));
}

pub(super) fn to_core(event: &mut Value) {
    NAMES.iter().for_each(|(core, events)| rename(event, events, core));
}

fn rename(event: &mut Value, from: &str, to: &str) {
    if let Some(fields) = event.as_object_mut()
        && let Some(value) = fields.remove(from)
    {
        fields.insert(to.to_owned(), value);
    }
}
