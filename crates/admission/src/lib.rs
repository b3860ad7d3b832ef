//! Mutation and validation of Karmada's kinds, as a pure library.
//!
//! In: a write, the object, the settings, a source of fresh UUIDs, and for two kinds the objects they are judged
//! against. Out: the object as it is to be stored, or a [`Denial`] in Karmada's words; for bindings also the quotas to
//! be [charged](charge). It does not know its caller (the API server with its plug-in, or a webhook server), nor how a refusal
//! is wrapped.
//!
//! [`HOOKS`] is the table of all rules. [`cluster`] and the ResourceRegistry have rules that Karmada compiles into the
//! API servers of those kinds.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

mod addresses;
pub mod agents;
mod autoscaling;
mod bindings;
pub mod cluster;
mod cron;
mod customizations;
mod hooks;
mod ingress;
mod interpreters;
mod metadata;
mod overrides;
mod placement;
mod propagation;
mod quotas;
mod rebalancers;
mod registries;
mod request;
mod resources;
mod rights;
pub mod schedule;
mod services;
mod taints;
pub mod usage;
mod works;

use serde_json::Value;

pub use hooks::{Act, HOOKS, Home, Hook, Scope, Wants};
pub use request::{Denial, Means, Operation, Request, Settings};
pub use rights::Reading;
pub use usage::Charge;

/// Returns the rules that see a write.
pub fn hooks_for(request: &Request<'_>) -> impl Iterator<Item = &'static Hook> {
    let (operation, group, kind) = (request.operation, request.group.to_owned(), request.kind.to_owned());
    HOOKS.iter().filter(move |hook| hook.sees(operation, &group, &kind))
}

/// Changes an object on its way in.
///
/// # Errors
/// If the object cannot be read.
pub fn mutate(request: &Request<'_>, object: &mut Value, means: &mut Means<'_>) -> Result<(), Denial> {
    for hook in hooks_for(request) {
        if let Act::Mutate(act) = hook.act {
            act(request, object, means)?;
        }
    }
    Ok(())
}

/// Checks an object after all changes. `seen` is what the rule [wants](Hook) to see.
///
/// # Errors
/// If the object breaks a rule or cannot be read.
pub fn validate(
    request: &Request<'_>,
    object: &Value,
    settings: &Settings,
    seen: &[Value],
) -> Result<(), Denial> {
    for hook in hooks_for(request) {
        if let Act::Validate(act) = hook.act {
            act(request, object, settings, seen)?;
        }
    }
    Ok(())
}

/// Says whether a write of a binding, or its removal, changes what the quotas of its namespace count.
pub fn asks_quotas(request: &Request<'_>, object: &Value, settings: &Settings) -> bool {
    bindings::asks_quotas(request, object, settings)
}

/// Says whether what these quotas say of their usage cannot be relied on, since they were not counted yet.
pub fn must_count(quotas: &[Value]) -> bool {
    bindings::must_count(quotas)
}

/// Returns the quotas of the namespace to be charged if a write of a binding, or its removal, is to happen. `stored` are the
/// bindings of the namespace; they are looked at only if the quotas [must be counted](must_count).
///
/// # Errors
/// If a quota would be exceeded, or something cannot be read.
pub fn charge(
    request: &Request<'_>,
    object: &Value,
    quotas: &[Value],
    stored: &[Value],
) -> Result<Vec<Charge>, Denial> {
    bindings::charge(request, object, quotas, stored)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use api::labels;

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
        validate(&request, &Value::Null, &Settings::default(), &[])
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
