//! Checks on metadata that upstream repeats in its own words' order after the API server has made them.
//!
//! Nearly all of them can only fail for callers that skip the server's own checks; the rules stay complete so that
//! the library judges an object alone.

use apimachinery::field::Errors;
use native::validation::NameRule;
use native::validation::meta::{self, Finalizers};
use serde_json::Value;

/// Returns what is wrong with the metadata of a namespaced object whose name is a DNS subdomain.
pub(crate) fn namespaced(object: &Value) -> Errors {
    meta::create(object, true, NameRule::Subdomain, Finalizers::Qualified)
}

/// Returns what an update must not have changed.
pub(crate) fn updated(object: &Value, old: &Value) -> Errors {
    meta::update(object, old, Finalizers::Qualified)
}
