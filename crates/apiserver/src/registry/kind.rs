//! One served resource: its names, where it is stored, and which rules apply to it.
//!
//! Native kinds get their facts from the tables in `native`, custom ones from their definition. Every handler works on this one
//! type.

use std::sync::Arc;

use apimachinery::field;
use apimachinery::gvk::{GroupResource, Gvk};
use serde_json::Value;

use super::custom::Custom;
use crate::object::Entry;

/// A resource in one served version.
#[derive(Debug)]
pub struct Kind {
    pub gvk: Gvk,
    pub api_version: String,
    pub list_kind: String,
    pub resource: GroupResource,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub subresources: Vec<Subresource>,
    /// Where the objects are stored: all versions of a kind share one collection.
    pub collection: Arc<str>,
    pub source: Source,
    pub rules: Rules,
    /// The storage version, as an `apiVersion`, and the kind in that version.
    pub storage: Gvk,
}

#[derive(Debug, Clone)]
pub struct Subresource {
    pub name: String,
    pub gvk: Gvk,
    pub verbs: Vec<String>,
}

/// The resource of a computed kind that stands for every resource of its group version without a kind of its own: metrics are
/// resources whose names are not known in advance. It is not in discovery.
pub const ANY: &str = "*";

#[derive(Debug, Clone)]
pub enum Source {
    Native,
    Custom(Arc<Custom>),
}

/// How writes of a kind behave.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    pub generation: bool,
    pub unconditional_update: bool,
    pub create_on_update: bool,
    pub status: bool,
    /// Answers that are computed, not stored (reviews).
    pub computed: bool,
    /// A deletion without finalizers answers with the object instead of a Status.
    pub delete_returns_object: bool,
    /// Acknowledged before they are on disk: Events and Leases, which are many and short-lived.
    pub buffered: bool,
}

impl Kind {
    pub fn is_custom(&self) -> bool {
        matches!(self.source, Source::Custom(_))
    }

    pub fn custom(&self) -> Option<&Arc<Custom>> {
        match &self.source {
            Source::Custom(custom) => Some(custom),
            Source::Native => None,
        }
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|allowed| allowed == verb)
    }

    /// Returns whether a webhook converts between the versions of this kind.
    pub fn is_converted(&self) -> bool {
        self.custom().is_some_and(|custom| custom.conversion.is_some())
    }

    /// Returns whether the stored bytes of an object can be served unchanged in this version.
    pub fn serves_as_stored(&self, entry: &Entry) -> bool {
        match &self.source {
            Source::Native => self.storage == self.gvk,
            Source::Custom(custom) => custom.serves_as_stored(&self.gvk.version, entry.head.schema),
        }
    }

    /// Distinguishes this version's schema from others, within this process; 0 for native kinds.
    pub fn fingerprint(&self) -> u32 {
        self.custom().map_or(0, |custom| custom.fingerprint(&self.gvk.version))
    }

    /// Converts an object from its stored form to this version.
    pub fn present(&self, entry: &Entry, object: &mut Value) {
        match &self.source {
            Source::Native => self.from_storage(object),
            Source::Custom(custom) => {
                custom.present(custom.stored_version(entry), &self.gvk.version, object);
            }
        }
    }

    /// Converts an object of a native kind from the storage version to this one.
    pub fn from_storage(&self, object: &mut Value) {
        if let Source::Native = self.source
            && self.storage != self.gvk
        {
            convert(object, &self.storage, &self.gvk);
        }
    }

    /// Converts an object from this version to its stored form.
    pub fn to_storage(&self, object: &mut Value) {
        if let Source::Native = self.source
            && self.storage != self.gvk
        {
            convert(object, &self.gvk, &self.storage);
        }
    }

    /// Checks a new object.
    pub fn validate_create(&self, object: &Value) -> field::Errors {
        match &self.source {
            Source::Native => {
                let mut errors = native::validation::create(&self.gvk, object);
                if self.asks_for_a_certificate()
                    && let Some(error) = crate::auth::signing_request::check_object(object)
                {
                    // The position of the errors about its envelope: after those about the metadata.
                    let place = errors.iter().take_while(|error| error.field.starts_with("metadata")).count();
                    errors.insert(place, error);
                }
                errors.extend(crate::admission::policy_check::check(&self.gvk, object, None));
                if self.is_definition() {
                    errors.extend(apimachinery::crd::validate(object));
                    if !errors.iter().any(about_schema) {
                        errors.extend(super::rule_check::check_definition(object, None));
                    }
                }
                errors
            }
            Source::Custom(custom) => custom.validate_create(&self.gvk, self.namespaced, object),
        }
    }

    /// Checks a changed object against the old one. Existing faults become warnings.
    pub fn validate_update(
        &self,
        subresource: &str,
        object: &Value,
        old: &Value,
        warn: &dyn Fn(String),
    ) -> field::Errors {
        match &self.source {
            Source::Native => {
                let mut errors = native::validation::update(&self.gvk, object, old);
                errors.extend(crate::admission::policy_check::check(&self.gvk, object, Some(old)));
                if self.is_definition() {
                    errors.extend(apimachinery::crd::validate_update(object, old));
                    if !errors.iter().any(about_schema) {
                        errors.extend(super::rule_check::check_definition(object, Some(old)));
                    }
                }
                errors
            }
            Source::Custom(custom) => custom.validate_update(&self.gvk, subresource, object, old, warn),
        }
    }
}

/// Rules are checked only if their schemas are valid.
fn about_schema(error: &field::Error) -> bool {
    error.field.contains("openAPIV3Schema")
}

/// Converts between versions of a native kind. An object that cannot be converted stays unchanged; this happens only to objects
/// that were not written through this server.
fn convert(object: &mut Value, from: &Gvk, to: &Gvk) {
    match native::convert::convert(object.clone(), from, to) {
        Ok(converted) => *object = converted,
        Err(error) => tracing::error!(%error, "cannot convert a stored object"),
    }
}
