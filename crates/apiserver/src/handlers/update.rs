//! PUT and PATCH: from what the client sent to the new state of the object.

use apimachinery::field::{self, Path};
use apimachinery::gvk::Gvk;
use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use bytes::Bytes;
use serde_json::Value;

use super::context::{Context, FieldValidation, WriteOptions};
use super::decode;
use super::write::{Change, Outcome, Target};
use crate::registry::Kind;

/// A complete replacement.
#[derive(Debug)]
pub struct Replace {
    object: Value,
}

impl Replace {
    /// Decodes the body and checks that it names the object in the path.
    pub fn decode(target: &Target<'_>, body: &Bytes) -> Result<Self, Status> {
        let mut object = decode::object(
            target.context,
            target.kind,
            &target.kind.gvk,
            body,
            target.options.field_validation,
        )?;
        check_names(target, &mut object)?;
        Ok(Self { object })
    }

    pub fn new(object: Value) -> Self {
        Self { object }
    }
}

/// Checks the names in a body against those in the path, and fills them in.
pub fn check_names(target: &Target<'_>, object: &mut Value) -> Result<(), Status> {
    let namespace = object.namespace().to_owned();
    if target.kind.namespaced && !namespace.is_empty() && namespace != target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if target.kind.namespaced {
        object.metadata_mut().insert("namespace".to_owned(), target.namespace.into());
    } else {
        object.metadata_mut().remove("namespace");
    }
    check_name(target, object)
}

/// Checks that a body has the name in the path.
pub fn check_name(target: &Target<'_>, object: &Value) -> Result<(), Status> {
    match object.name() {
        "" => Err(Status::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            target.name
        ))),
        name if name != target.name => Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        ))),
        _ => Ok(()),
    }
}

impl Change for Replace {
    fn new_object(&self, _old: &Value) -> Result<Option<Value>, Status> {
        Ok(Some(self.object.clone()))
    }

    fn is_patch(&self) -> bool {
        false
    }

    fn create(&self) -> Option<Result<Value, Status>> {
        Some(Ok(self.object.clone()))
    }
}

/// The kinds of patches, by media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    /// Returns the type of a patch, or the 415 for a kind that does not support it.
    pub fn parse(context: &Context, kind: &Kind) -> Result<Self, Status> {
        let patch = match context.content_type().as_str() {
            "application/json-patch+json" => Self::Json,
            "application/merge-patch+json" => Self::Merge,
            "application/strategic-merge-patch+json" if !kind.is_custom() => Self::Strategic,
            "application/apply-patch+yaml" => Self::Apply,
            _ if kind.is_custom() => {
                return Err(Status::unsupported_media_type(
                    "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                ));
            }
            _ => {
                let status = Status::unsupported_media_type("415: Unsupported Media Type");
                return Err(status.with_details(Default::default()));
            }
        };
        Ok(patch)
    }
}

/// A JSON, merge or strategic merge patch.
#[derive(Debug)]
pub struct Patch<'a> {
    context: &'a Context,
    kind: &'a Kind,
    /// What the patched document is: the kind itself, or a Scale.
    gvk: Gvk,
    patch: PatchType,
    document: Value,
    /// Tolerable faults of the patch itself.
    problems: Vec<String>,
    validation: FieldValidation,
}

impl<'a> Patch<'a> {
    pub fn decode(
        context: &'a Context,
        kind: &'a Kind,
        gvk: Gvk,
        patch: PatchType,
        body: &Bytes,
        options: &WriteOptions,
    ) -> Result<Self, Status> {
        if body.len() > super::MAX_BODY {
            return Err(Status::too_large(format!("Request entity too large: limit is {}", super::MAX_BODY)));
        }
        // Upstream decodes a strategic patch elsewhere, where these words are not added.
        let prefix = if matches!(patch, PatchType::Strategic) { "" } else { "error decoding patch: " };
        let parsed = apimachinery::json::read(body)
            .map_err(|error| Status::bad_request(format!("{prefix}{error}")))?;
        let mut problems = parsed.complaints();
        match patch {
            // For Go, null is a list to which nothing was written.
            PatchType::Json if parsed.value.is_null() => {}
            PatchType::Json => {
                let Some(operations) = parsed.value.as_array() else {
                    let what = match &parsed.value {
                        Value::Object(_) => "object",
                        Value::String(_) => "string",
                        Value::Number(_) => "number",
                        Value::Bool(_) => "bool",
                        _ => "value",
                    };
                    return Err(Status::bad_request(format!(
                        "error decoding patch: json: cannot unmarshal {what} into Go value of type []handlers.jsonPatchOp"
                    )));
                };
                if operations.len() > apimachinery::patch::json::MAX_OPERATIONS {
                    return Err(Status::too_large(format!(
                        "Request entity too large: The allowed maximum operations in a JSON patch is {}, got {}",
                        apimachinery::patch::json::MAX_OPERATIONS,
                        operations.len()
                    )));
                }
                problems.extend(unknown_in_operations(operations));
                apimachinery::json::sort_complaints(body, &mut problems);
                problems.iter_mut().for_each(|problem| problem.insert_str(0, "json patch "));
            }
            PatchType::Merge if parsed.value.is_null() => {
                return Err(Status::bad_request("Invalid JSON Patch"));
            }
            PatchType::Merge | PatchType::Strategic
                if !parsed.value.is_object() && !parsed.value.is_null() =>
            {
                let what = match &parsed.value {
                    Value::String(_) => "string",
                    Value::Number(_) => "number",
                    Value::Bool(_) => "bool",
                    _ => "array",
                };
                return Err(Status::bad_request(format!(
                    "{prefix}json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
                )));
            }
            _ => {}
        }
        let validation = options.field_validation;
        Ok(Self { context, kind, gvk, patch, document: parsed.value, problems, validation })
    }
}

impl Patch<'_> {
    /// Patches a document and brings the result into canonical form.
    pub fn patch(&self, old: &Value) -> Result<Value, Status> {
        let mut new = match self.patch {
            PatchType::Json => {
                apimachinery::patch::json::apply(old, &self.document).map_err(|error| match error {
                    apimachinery::patch::json::Error::TooMany(_) => {
                        Status::too_large(format!("Request entity too large: {error}"))
                    }
                    apimachinery::patch::json::Error::Decode(_) => Status::bad_request(error.to_string()),
                    apimachinery::patch::json::Error::Rejected(_) => rejected(),
                    apimachinery::patch::json::Error::TooDeep(_) => patch_invalid("", &error.to_string()),
                })?
            }
            PatchType::Merge => {
                let mut new = old.clone();
                apimachinery::patch::merge::apply(&mut new, self.document.clone());
                new
            }
            PatchType::Strategic => {
                let schema = native::merge::schema(&self.gvk)
                    .ok_or_else(|| Status::internal(format!("{} has no schema to merge by", self.gvk)))?;
                let empty = serde_json::Map::new();
                let (from, patch) =
                    (old.as_object().unwrap_or(&empty), self.document.as_object().unwrap_or(&empty));
                let merged = apimachinery::patch::strategic::apply(from, patch, &schema);
                merged.map(Value::Object).map_err(|error| match error.code() {
                    400 => Status::bad_request(error.to_string()),
                    422 => rejected(),
                    _ => Status::bare_internal(error.to_string()),
                })?
            }
            PatchType::Apply => return Err(Status::internal("apply is not a patch of documents")),
        };
        let shown = new.to_string();
        let expected = (self.gvk.api_version(), self.gvk.kind.clone());
        let custom = self.kind.is_custom() && self.gvk == self.kind.gvk;
        let mut given = (pointer::owned(&new, "/apiVersion"), pointer::owned(&new, "/kind"));
        if !custom && (self.patch == PatchType::Strategic || given.1.is_empty()) {
            // If the type is known, the patch need not name it; upstream does not even check a strategic patch.
            for (field, value) in [("apiVersion", &expected.0), ("kind", &expected.1)] {
                pointer::set(&mut new, field, value.clone().into());
            }
            given = expected.clone();
        }
        if !custom && given.0.is_empty() {
            // For a kind without a version nothing is known, not even that it has a name.
            let unknown = new.as_object().into_iter().flat_map(|fields| fields.keys().cloned());
            self.report(unknown.filter(|field| field != "kind").collect(), &shown)?;
            return Err(self.nameless());
        }
        if given != expected {
            if custom && !given.0.is_empty() && !given.1.is_empty() {
                // Its kind is checked by the validation.
                let given = Gvk::from_api_version(&given.0, &given.1);
                let unknown = decode::unknown_in(self.kind, &given, &mut new)
                    .map_err(|error| patch_invalid(&shown, &error))?;
                self.report(unknown, &shown)?;
                self.check_unmoved(old, &new)?;
                return Ok(new);
            }
            let detail = if given.1.is_empty() {
                format!("Object 'Kind' is missing in '{shown}'")
            } else if custom {
                return Err(Status::internal(
                    "Object 'apiVersion' is missing in 'object has no apiVersion field'",
                ));
            } else {
                format!(
                    "no kind \"{}\" is registered for version \"{}\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
                    given.1, given.0
                )
            };
            return Err(patch_invalid(&shown, &detail));
        }
        let unknown =
            decode::accept(self.kind, &self.gvk, &mut new).map_err(|error| match restored(&error) {
                Some(words) if self.patch == PatchType::Strategic => {
                    patch_invalid(&apimachinery::go::verbose(&self.document), &words)
                }
                _ => patch_invalid(&shown, &error),
            })?;
        self.report(unknown, &shown)?;
        self.check_unmoved(old, &new)?;
        Ok(new)
    }

    /// The answer to a patch that removes the name.
    fn nameless(&self) -> Status {
        Status::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            self.context.info.name
        ))
    }

    /// Refuses a patch that changes the identity of the object.
    fn check_unmoved(&self, old: &Value, new: &Value) -> Result<(), Status> {
        let (before, after) = (old.name(), new.name());
        if after.is_empty() {
            return Err(self.nameless());
        }
        if before != after {
            return Err(Status::bad_request(format!(
                "the name of the object ({after}) does not match the name on the URL ({before})"
            )));
        }
        let namespace = new.namespace();
        if !namespace.is_empty() && old.namespace() != namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Ok(())
    }

    /// Refuses or warns about tolerable faults in the patch and in its result, which the error shows.
    fn report(&self, unknown: Vec<String>, shown: &str) -> Result<(), Status> {
        let mut unknown: Vec<String> =
            unknown.into_iter().map(|path| format!("unknown field \"{path}\"")).collect();
        if !self.kind.is_custom() {
            apimachinery::json::sort_complaints(shown.as_bytes(), &mut unknown);
        }
        let problems: Vec<String> = self.problems.iter().cloned().chain(unknown).collect();
        match self.validation {
            FieldValidation::Strict if !problems.is_empty() => {
                Err(patch_invalid(shown, &format!("strict decoding error: {}", problems.join(", "))))
            }
            FieldValidation::Warn => {
                problems.into_iter().for_each(|problem| self.context.warn(problem));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Change for Patch<'_> {
    fn new_object(&self, old: &Value) -> Result<Option<Value>, Status> {
        self.patch(old).map(Some)
    }

    fn is_patch(&self) -> bool {
        true
    }
}

/// Returns the unknown members of a JSON patch's operations, as `unknown field "[0].foo"`.
fn unknown_in_operations(operations: &[Value]) -> Vec<String> {
    let members = |(index, operation): (usize, &Value)| -> Vec<String> {
        let keys = operation.as_object().into_iter().flat_map(|fields| fields.keys());
        keys.filter(|key| !["op", "path", "from", "value"].contains(&key.as_str()))
            .map(|key| format!("unknown field \"[{index}].{key}\""))
            .collect()
    };
    operations.iter().enumerate().flat_map(members).collect()
}

/// Returns Go's words for a value of the wrong type where no JSON is read: upstream converts a strategic patch from map to
/// struct.
fn restored(error: &str) -> Option<String> {
    let rest = error.strip_prefix("json: cannot unmarshal ")?;
    let (what, rest) = rest.split_once(' ')?;
    let (_, wanted) = rest.rsplit_once(" of type ")?;
    let (sort, found) = match what {
        "object" => ("map", "map[string]interface {}"),
        "array" => ("slice", "[]interface {}"),
        "number" => ("int64", "int64"),
        other => (other, other),
    };
    match wanted {
        _ if wanted.starts_with("[]") => Some(format!("cannot restore slice from {sort}")),
        _ if wanted.starts_with("map[") => Some(format!("cannot restore map from {sort}")),
        "string" | "bool" | "int32" | "int64" | "float64" => {
            Some(format!("cannot convert {found} to {wanted}"))
        }
        _ => None,
    }
}

/// The answer to a JSON patch that does not apply. It does not give the reason.
fn rejected() -> Status {
    Status::new(422, "Invalid", "the server rejected our request due to an error in our request")
        .with_details(Default::default())
}

/// The answer to a patch whose result is not a valid object.
fn patch_invalid(shown: &str, detail: &str) -> Status {
    Status::invalid("", "", "", &[field::Error::invalid(&Path::new("patch"), shown, detail)])
}

/// Applies a PATCH of any type to an object or its status.
pub async fn patch(target: &Target<'_>, body: &Bytes) -> Result<Outcome, Status> {
    let patch = PatchType::parse(target.context, target.kind)?;
    if patch == PatchType::Apply {
        return crate::field_ownership::server_side_apply(target, body).await;
    }
    let change =
        Patch::decode(target.context, target.kind, target.kind.gvk.clone(), patch, body, target.options)?;
    target.update(&change).await
}
