//! One served resource: what it is called, where it is stored, which rules it follows.
//!
//! Native kinds take their facts from the tables in `native`, custom ones from their definition; every handler
//! works on this one type.

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
    /// The version objects are stored in, as an `apiVersion`, and the kind it has there.
    pub storage: Gvk,
}

#[derive(Debug, Clone)]
pub struct Subresource {
    pub name: String,
    pub gvk: Gvk,
    pub verbs: Vec<String>,
}

/// The resource of a computed kind that stands for every resource of its group version that has no kind of its own: metrics are
/// resources, and nobody knows their names in advance. It is not in discovery.
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
    /// Acknowledged before they are on disk: events and leases, which are many and short-lived.
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

    /// Says whether a webhook converts between the versions of this kind.
    pub fn is_converted(&self) -> bool {
        self.custom().is_some_and(|custom| custom.conversion.is_some())
    }

    /// Says whether the stored bytes of an object can be served as they are in this version.
    pub fn serves_as_stored(&self, entry: &Entry) -> bool {
        match &self.source {
            Source::Native => self.storage == self.gvk,
            Source::Custom(custom) => custom.serves_as_stored(&self.gvk.version, entry.head.schema),
        }
    }

    /// Tells this version's schema from others, within this process; 0 for native kinds.
    pub fn fingerprint(&self) -> u32 {
        self.custom().map_or(0, |custom| custom.fingerprint(&self.gvk.version))
    }

    /// Turns an object as stored into what this version shows.
    pub fn present(&self, entry: &Entry, object: &mut Value) {
        match &self.source {
            Source::Native => self.from_storage(object),
            Source::Custom(custom) => {
                custom.present(custom.stored_version(entry), &self.gvk.version, object);
            }
        }
    }

    /// Turns an object of the stored version of a native kind into one of this version.
    pub fn from_storage(&self, object: &mut Value) {
        if let Source::Native = self.source
            && self.storage != self.gvk
        {
            convert(object, &self.storage, &self.gvk);
        }
    }

    /// Turns an object of this version into what is stored.
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
                    // Where the check of its envelope stands: behind the metadata.
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

    /// Checks a changed object against the one it replaces. Warns of what is wrong but was so before.
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

/// Rules are judged only where the schemas they stand in make sense.
fn about_schema(error: &field::Error) -> bool {
    error.field.contains("openAPIV3Schema")
}

/// Converts between versions of a native kind; an object that cannot be converted stays as it is, which happens
/// only to what somebody wrote past this server.
fn convert(object: &mut Value, from: &Gvk, to: &Gvk) {
    match native::convert::convert(object.clone(), from, to) {
        Ok(converted) => *object = converted,
        Err(error) => tracing::error!(%error, "cannot convert a stored object"),
    }
}
