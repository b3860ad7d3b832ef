//! Tells users which override policies were applied to a template for a cluster, and which could not be.
//!
//! Works of bindings and of namespaces are rendered with overrides; upstream's override manager reports both.

use api::events as reasons;
use propagation::overrides::Applied;
use runtime::Events;
use serde_json::Value;

const COMPONENT: &str = "override-manager";

/// Reports the policies that a new version of a Work is rendered with.
pub(super) fn applied(events: &Events, template: &Value, cluster: &str, applied: &Applied) {
    for contribution in applied.cluster.iter().chain(&applied.namespaced) {
        let message = format!("Apply {} for cluster({cluster}) succeed.", contribution.describe());
        events.normal(COMPONENT, template, reasons::APPLY_OVERRIDE_POLICY_SUCCEED, message);
    }
}

/// Reports a policy that could not be applied; it ignores other errors.
pub(super) fn failed(events: &Events, template: &Value, error: &propagation::Error) {
    if let propagation::Error::Override { .. } = error {
        events.warning(COMPONENT, template, reasons::APPLY_OVERRIDE_POLICY_FAILED, error.to_string());
    }
}
