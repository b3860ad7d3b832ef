//! The `Status` object: how the API answers when something went wrong (or was deleted).
//!
//! Constructors are named after the situation and produce upstream's exact code, reason and message;
//! scripts and clients match on all three.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::field;
use crate::gvk::GroupResource;

/// So many errors of one object are told. A body of 3 MiB can have a million, and told they are a hundred times as large as the body.
pub const MOST_ERRORS: usize = 1_000;

/// An answer that is not the object asked for. Boxed details keep `Result<T, Status>` small.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: Option<Box<Details>>,
    /// `metadata.continue` of an expired list.
    pub continue_token: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub causes: Vec<Cause>,
    #[serde(skip_serializing_if = "is_zero", default)]
    pub retry_after_seconds: u32,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Cause {
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub field: String,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl std::fmt::Display for Status {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl Status {
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self { code, reason: reason.to_owned(), message: message.into(), details: None, continue_token: None }
    }

    fn about(mut self, resource: &GroupResource, name: &str) -> Self {
        self.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: resource.group.clone(),
            kind: resource.resource.clone(),
            ..Details::default()
        }));
        self
    }

    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{resource} \"{name}\" not found")).about(resource, name)
    }

    /// The routing 404 inside a native group.
    pub fn no_such_route() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
            .with_details(Details::default())
    }

    pub fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with_details(Details::default())
    }

    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{resource} \"{name}\" already exists")).about(resource, name)
    }

    pub fn conflict(resource: &GroupResource, name: &str, why: &str) -> Self {
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}"))
            .about(resource, name)
    }

    /// The optimistic lock lost: somebody wrote in between.
    pub fn modified(resource: &GroupResource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn forbidden(resource: &GroupResource, name: &str, why: &str) -> Self {
        let message = if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} \"{name}\" is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(406, "NotAcceptable", message)
    }

    /// A 500 that carries a bare message and no reason, as errors without a Status become upstream.
    pub fn bare_internal(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// A 500 with the words that wrap an internal error.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        let text = message.to_string();
        Self::new(500, "InternalError", format!("Internal error occurred: {text}")).with_details(Details {
            causes: vec![Cause { message: text, ..Cause::default() }],
            ..Details::default()
        })
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(429, "TooManyRequests", message)
            .with_details(Details { retry_after_seconds, ..Details::default() })
    }

    pub fn too_large_resource_version(asked: u64, current: u64) -> Self {
        Self::new(504, "Timeout", format!("Timeout: Too large resource version: {asked}, current: {current}"))
            .with_details(Details {
                causes: vec![Cause {
                    reason: "ResourceVersionTooLarge".to_owned(),
                    message: "Too large resource version".to_owned(),
                    field: String::new(),
                }],
                retry_after_seconds: 1,
                ..Details::default()
            })
    }

    /// The 422 answer to field errors. `group` and `kind` name the Kind, not the resource.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[field::Error]) -> Self {
        let errors = errors.get(..MOST_ERRORS).unwrap_or(errors);
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let message = if errors.is_empty() {
            format!("{qualified} \"{name}\" is invalid")
        } else {
            format!("{qualified} \"{name}\" is invalid: {}", field::aggregate(errors))
        };
        let causes = errors
            .iter()
            .map(|error| Cause {
                reason: error.kind.reason().to_owned(),
                message: error.body(),
                field: error.field.clone(),
            })
            .collect();
        Self::new(422, "Invalid", message).with_details(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes,
            ..Details::default()
        })
    }

    /// Returns the object as it goes over the wire.
    pub fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".to_owned(), Value::String(token.clone()));
        }
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        let Some(fields) = body.as_object_mut() else { return body };
        if !self.reason.is_empty() {
            fields.insert("reason".to_owned(), Value::String(self.reason.clone()));
        }
        if let Some(details) = &self.details {
            let details = serde_json::to_value(details).expect("details are plain data");
            fields.insert("details".to_owned(), details);
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_number_of_errors_a_thousand_are_told() {
        let path = field::Path::new("spec");
        let errors: Vec<field::Error> =
            (0..100_000).map(|index| field::Error::required(&path.index(index), "")).collect();
        let status = Status::invalid("", "Pod", "a", &errors);
        assert!(status.message.starts_with("Pod \"a\" is invalid: [spec[0]: Required value, spec[1]:"));
        assert!(status.message.len() < 100_000, "{} bytes", status.message.len());
        assert_eq!(status.details.map(|details| details.causes.len()), Some(MOST_ERRORS));
        let few = Status::invalid("", "Pod", "a", &errors[..2]);
        assert_eq!(few.message, "Pod \"a\" is invalid: [spec[0]: Required value, spec[1]: Required value]");
    }
}
