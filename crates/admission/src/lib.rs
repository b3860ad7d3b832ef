//! Mutation and validation of Karmada's kinds, as a pure library.
//!
//! In: a write, the object, the settings, a source of fresh UUIDs. Out: the object as it is to be stored, or a
//! [`Denial`] in Karmada's words. Who calls (the API server as a plug-in, a webhook server) and how a refusal is
//! wrapped is not decided here.
//!
//! Covered: the propagation and override policies, ClusterTaintPolicy, the bindings (without quotas),
//! MultiClusterService, protection against deletion; and, in [`cluster`], the rules that Karmada compiles into the
//! API server of the Cluster kind.

mod bindings;
pub mod cluster;
mod overrides;
mod placement;
mod propagation;
mod request;
mod services;
mod taints;

use serde_json::Value;

use api::labels;
use api::policy::{ClusterPropagationPolicy, PropagationPolicy};
use api::work::{ClusterResourceBinding, ResourceBinding};

pub use request::{Denial, Operation, Request, Settings};

/// Changes an object on its way in.
///
/// `fresh_id` returns a new random UUID each time it is called; permanent IDs are made of them.
///
/// # Errors
/// If the object cannot be read.
pub fn mutate(
    request: &Request<'_>,
    object: &mut Value,
    fresh_id: &mut dyn FnMut() -> String,
) -> Result<(), Denial> {
    if request.operation == Operation::Delete {
        return Ok(());
    }
    match (request.group, request.kind) {
        (api::policy::GROUP, "PropagationPolicy") => {
            propagation::mutate::<PropagationPolicy>(request, object, fresh_id)
        }
        (api::policy::GROUP, "ClusterPropagationPolicy") => {
            propagation::mutate::<ClusterPropagationPolicy>(request, object, fresh_id)
        }
        (api::policy::GROUP, "OverridePolicy") => overrides::mutate(request, object),
        (api::work::GROUP, "ResourceBinding") => {
            bindings::mutate::<ResourceBinding>(request, object, fresh_id)
        }
        (api::work::GROUP, "ClusterResourceBinding") => {
            bindings::mutate::<ClusterResourceBinding>(request, object, fresh_id)
        }
        (api::networking::GROUP, "MultiClusterService") => services::mutate(object, fresh_id),
        _ => Ok(()),
    }
}

/// Checks an object after all changes.
///
/// # Errors
/// If the object breaks a rule or cannot be read.
pub fn validate(request: &Request<'_>, object: &Value, settings: &Settings) -> Result<(), Denial> {
    if request.operation == Operation::Delete {
        return protect(request);
    }
    match (request.group, request.kind) {
        (api::policy::GROUP, "PropagationPolicy") => {
            propagation::validate::<PropagationPolicy>(request, object)
        }
        (api::policy::GROUP, "ClusterPropagationPolicy") => {
            propagation::validate::<ClusterPropagationPolicy>(request, object)
        }
        (api::policy::GROUP, "OverridePolicy" | "ClusterOverridePolicy") => {
            overrides::validate(request, object)
        }
        (api::policy::GROUP, "ClusterTaintPolicy") => taints::validate(object, settings),
        (api::work::GROUP, "ResourceBinding") => bindings::validate(object, settings),
        (api::networking::GROUP, "MultiClusterService") => services::validate(request, object),
        _ => Ok(()),
    }
}

/// Refuses the deletion of an object whose label says so. What counts is the stored object.
fn protect(request: &Request<'_>) -> Result<(), Denial> {
    let stored = request.old.and_then(|old| request::label(old, labels::DELETION_PROTECTED));
    if stored == Some(labels::DELETION_PROTECTION_ALWAYS) {
        return Err(Denial::forbidden(format!(
            "This resource is protected, please make sure to remove the label: {}",
            labels::DELETION_PROTECTED
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn delete(label: &str) -> Result<(), Denial> {
        let old = json!({ "metadata": { "labels": { labels::DELETION_PROTECTED: label } } });
        let request = Request {
            operation: Operation::Delete,
            group: "apps",
            version: "v1",
            kind: "Deployment",
            namespace: "default",
            old: Some(&old),
        };
        validate(&request, &Value::Null, &Settings::default())
    }

    #[test]
    fn only_the_value_always_protects_against_deletion() {
        let denial = delete("Always").unwrap_err();
        assert_eq!((denial.code, denial.reason), (403, Some("Forbidden")));
        assert!(denial.message.ends_with("resourcetemplate.karmada.io/deletion-protected"));
        for value in ["always", "", "true"] {
            assert_eq!(delete(value), Ok(()), "{value}");
        }
    }
}
