//! Tells users which override policies were applied to a template for a cluster, and which could not be.
//!
//! Works of bindings and of namespaces are made with overrides; upstream's override manager tells of both.

use api::events as reasons;
use propagation::overrides::Applied;
use runtime::Events;
use serde_json::Value;

const COMPONENT: &str = "override-manager";

/// Tells of the policies that a new version of a Work is made with.
pub(super) fn applied(events: &Events, template: &Value, cluster: &str, applied: &Applied) {
    for contribution in applied.cluster.iter().chain(&applied.namespaced) {
        let message = format!("Apply {} for cluster({cluster}) succeed.", contribution.describe());
        events.normal(COMPONENT, template, reasons::APPLY_OVERRIDE_POLICY_SUCCEED, message);
    }
}

/// Tells of a policy that could not be applied; other errors are not its matter.
pub(super) fn failed(events: &Events, template: &Value, error: &propagation::Error) {
    if let propagation::Error::Override { .. } = error {
        events.warning(COMPONENT, template, reasons::APPLY_OVERRIDE_POLICY_FAILED, error.to_string());
    }
}
