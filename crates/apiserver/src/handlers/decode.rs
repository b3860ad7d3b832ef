//! From the bytes of a request to an object in canonical form.
//!
//! The result has kind and version, no unknown field, and every default. Tolerable faults are reported as warnings or refused, as
//! the client asked.

use apimachinery::field::{self, Path};
use apimachinery::gvk::Gvk;
use apimachinery::object::Object;
use apimachinery::status::Status;
use bytes::Bytes;
use serde_json::Value;

use super::context::{Context, FieldValidation};
use crate::registry::{Kind, Source};

/// The envelope with which protobuf bodies start.
const PROTOBUF_MAGIC: &[u8] = b"k8s\0";

/// Decodes a request body with an object of `expected`, or of the kind of a subresource.
pub fn object(
    context: &Context,
    kind: &Kind,
    expected: &Gvk,
    body: &Bytes,
    validation: FieldValidation,
) -> Result<Value, Status> {
    let content_type = context.content_type();
    let (mut value, mut problems) = match content_type.as_str() {
        ""
        | "application/json"
        | "application/octet-stream"
        | "*/*"
        | "application/x-www-form-urlencoded" => parse_json(kind, expected, body)?,
        "application/yaml" | "text/yaml" => parse_yaml(kind, expected, body)?,
        "application/vnd.kubernetes.protobuf" if !kind.is_custom() => {
            (parse_protobuf(expected, body)?, Vec::new())
        }
        _ => return Err(unsupported_type(kind)),
    };
    if let Some(given) = check_type(kind, expected, &mut value, body)? {
        let unknown = unknown_in(kind, &given, &mut value)
            .map_err(|error| cannot_handle(&given, &given, &error))?
            .into_iter()
            .map(|path| format!("unknown field \"{path}\""));
        problems.extend(unknown);
        report(context, validation, problems)
            .map_err(|status| cannot_handle(&given, &given, &status.message))?;
        if given.api_version() != expected.api_version() {
            return Err(other_version(&given, expected));
        }
        return Ok(value);
    }
    let (typed, yaml) = (!kind.is_custom() || *expected != kind.gvk, content_type.ends_with("yaml"));
    // YAML is converted to JSON first, whose keys are sorted.
    let document = if typed && yaml { Bytes::from(value.to_string()) } else { body.clone() };
    let unknown =
        accept(kind, expected, &mut value).map_err(|error| cannot_handle(expected, expected, &error))?;
    if typed && !yaml {
        // The content of an unknown field is not read, so it is not reported either.
        problems.retain(|problem| !unknown.iter().any(|path| repeats_within(problem, path)));
    }
    let repeated = problems.len();
    problems.extend(unknown.into_iter().map(|path| format!("unknown field \"{path}\"")));
    // Typed objects are checked while they are read; repeated keys in YAML are found before that.
    if typed {
        let from = if yaml { repeated } else { 0 };
        apimachinery::json::sort_complaints(&document, problems.get_mut(from..).unwrap_or_default());
    }
    if yaml && repeated > 0 && validation == FieldValidation::Strict {
        let repetitions = problems.get(..repeated).unwrap_or_default().join("\n  ");
        let together = format!("yaml: unmarshal errors:\n  {repetitions}");
        problems.splice(..repeated, [together]);
    }
    report(context, validation, problems)
        .map_err(|status| cannot_handle(expected, expected, &status.message))?;
    Ok(value)
}

/// Returns whether a complaint (`duplicate field "a.b"`) concerns a field or something inside it.
fn repeats_within(problem: &str, path: &str) -> bool {
    let rest = problem.strip_prefix("duplicate field \"").and_then(|rest| rest.strip_prefix(path));
    rest.is_some_and(|rest| rest.starts_with(['"', '.', '[']))
}

/// Refuses or warns about tolerable problems.
pub fn report(context: &Context, validation: FieldValidation, problems: Vec<String>) -> Result<(), Status> {
    match validation {
        FieldValidation::Strict if !problems.is_empty() => {
            Err(Status::bad_request(format!("strict decoding error: {}", problems.join(", "))))
        }
        FieldValidation::Warn => {
            problems.into_iter().for_each(|problem| context.warn(problem));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// As [`canonicalise`], for objects from clients: meaningless nulls are dropped from custom resources. Objects from admission
/// keep them, as upstream, where they are an error. Empty lists are kept if they have an owner.
pub fn accept(kind: &Kind, gvk: &Gvk, value: &mut Value) -> Result<Vec<String>, String> {
    if let Source::Custom(custom) = &kind.source
        && *gvk == kind.gvk
    {
        custom.drop_nulls(gvk, value);
    }
    let empty = native::shape::empty_lists(gvk, value);
    let unknown = canonicalise(kind, gvk, value)?;
    native::shape::show_empty(value, &empty);
    Ok(unknown)
}

/// Brings an object into canonical form and applies the defaults. Returns the unknown fields that were dropped.
pub fn canonicalise(kind: &Kind, gvk: &Gvk, value: &mut Value) -> Result<Vec<String>, String> {
    match &kind.source {
        Source::Custom(custom) if *gvk == kind.gvk => custom.canonicalise(gvk, value),
        _ => {
            // An empty list ends the tracking of fields; otherwise it is equivalent to no list.
            let untracked = value
                .pointer("/metadata/managedFields")
                .is_some_and(|list| list == &Value::Array(Vec::new()));
            let unknown = native::shape::canonicalise(gvk, value).map_err(|error| error.to_string())?;
            if untracked {
                value.metadata_mut().insert("managedFields".to_owned(), Value::Array(Vec::new()));
            }
            native::defaults::apply(gvk, value);
            Kind::complete(gvk, value);
            if *gvk == kind.gvk && kind.storage != kind.gvk {
                // Some defaults exist only in the storage version.
                kind.to_storage(value);
                native::defaults::apply(&kind.storage, value);
                kind.from_storage(value);
            }
            Ok(unknown)
        }
    }
}

fn parse_json(kind: &Kind, expected: &Gvk, body: &Bytes) -> Result<(Value, Vec<String>), Status> {
    match apimachinery::json::read(body) {
        Ok(parsed) => {
            let problems = parsed.complaints();
            // For Go, null is an object to which nothing was written.
            let value = if parsed.value.is_null() && !kind.is_custom() {
                Value::Object(Default::default())
            } else {
                parsed.value
            };
            Ok((value, problems))
        }
        Err(error) => Err(unrecognised(kind, expected, body, &format!("json parse error: {error}"))),
    }
}

fn parse_yaml(kind: &Kind, expected: &Gvk, body: &Bytes) -> Result<(Value, Vec<String>), Status> {
    match crate::yaml::read(body) {
        Ok(parsed) => Ok((parsed.value, parsed.duplicates)),
        Err(error) => Err(unrecognised(kind, expected, body, &error)),
    }
}

fn parse_protobuf(expected: &Gvk, body: &Bytes) -> Result<Value, Status> {
    if !body.starts_with(PROTOBUF_MAGIC) {
        let shown = body.get(..4).unwrap_or(body);
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): provided data does not appear to be a protobuf message, expected prefix {PROTOBUF_MAGIC:?}, got {shown:?} ({})",
            expected.kind,
            summary(body)
        )));
    }
    let (gvk, mut value) = native::proto::decode_as(body, Some(expected)).map_err(|error| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({})",
            expected.kind,
            summary(body)
        ))
    })?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".to_owned(), gvk.api_version().into());
        fields.insert("kind".to_owned(), gvk.kind.into());
    }
    Ok(value)
}

/// Checks that the body has the kind of the endpoint; a native body may leave it out. Returns the kind that a custom resource
/// claims, if it differs.
fn check_type(kind: &Kind, expected: &Gvk, value: &mut Value, body: &Bytes) -> Result<Option<Gvk>, Status> {
    let Some(fields) = value.as_object_mut() else {
        let what = json_kind(value);
        return Err(unrecognised(
            kind,
            expected,
            body,
            &format!(
                "json parse error: json: cannot unmarshal {what} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
            ),
        ));
    };
    for field in ["apiVersion", "kind"] {
        match fields.get(field) {
            None | Some(Value::String(_)) => {}
            Some(Value::Null) => {
                fields.remove(field);
            }
            Some(other) => {
                let what = json_kind(other);
                let go = if field == "kind" { "kind" } else { "apiVersion" };
                return Err(unrecognised(
                    kind,
                    expected,
                    body,
                    &format!(
                        "json parse error: json: cannot unmarshal {what} into Go struct field .{go} of type string"
                    ),
                ));
            }
        }
    }
    let text = |field: &str| fields.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
    let (api_version, name) = (text("apiVersion"), text("kind"));
    if kind.is_custom() && *expected == kind.gvk {
        if name.is_empty() {
            let shown = String::from_utf8_lossy(body).trim_end().to_owned();
            return Err(unrecognised_custom(
                expected,
                &format!("Object 'Kind' is missing in '{shown}'"),
                body,
            ));
        }
        if api_version.is_empty() {
            let shown = String::from_utf8_lossy(body).trim_end().to_owned();
            return Err(unrecognised_custom(
                expected,
                &format!("Object 'apiVersion' is missing in '{shown}'"),
                body,
            ));
        }
    }
    let given = if api_version.is_empty() {
        Gvk::new(&expected.group, &expected.version, if name.is_empty() { &expected.kind } else { &name })
    } else {
        Gvk::from_api_version(&api_version, if name.is_empty() { &expected.kind } else { &name })
    };
    if kind.is_custom() && *expected == kind.gvk {
        return Ok((given != *expected).then_some(given));
    }
    let is_same_version = given.group == expected.group && given.version == expected.version;
    if given.kind != expected.kind {
        if kind.is_custom() {
            return Err(Status::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: invalid object kind {}, expected {}",
                given.kind, given.version, expected.kind, given.kind, expected.kind
            )));
        }
        let error = if native::types::for_kind(&given.group, &given.version, &given.kind).is_some() {
            format!(
                "converting ({}.{}) to ({}.{}): unknown conversion",
                go_package(&given),
                given.kind,
                go_internal_package(expected),
                expected.kind
            )
        } else {
            no_kind(&given)
        };
        return Err(cannot_handle(&given, expected, &error));
    }
    if !is_same_version {
        if !kind.is_custom() && native::types::for_kind(&given.group, &given.version, &given.kind).is_none() {
            return Err(cannot_handle(&given, expected, &no_kind(&given)));
        }
        return Err(other_version(&given, expected));
    }
    fields.insert("apiVersion".to_owned(), expected.api_version().into());
    fields.insert("kind".to_owned(), expected.kind.clone().into());
    Ok(None)
}

fn other_version(given: &Gvk, expected: &Gvk) -> Status {
    Status::bad_request(format!(
        "the API version in the data ({}) does not match the expected API version ({})",
        given.api_version(),
        expected.api_version()
    ))
}

/// Returns the unknown fields of a custom resource of another kind or version.
pub fn unknown_in(kind: &Kind, given: &Gvk, object: &mut Value) -> Result<Vec<String>, String> {
    match &kind.source {
        Source::Custom(custom) => custom.unknown_in(given, object),
        Source::Native => Ok(Vec::new()),
    }
}

/// Refuses a custom resource of another kind or version: upstream accepts any kind until validation.
pub fn validate_type(kind: &Kind, object: &Value) -> Result<(), Status> {
    if !kind.is_custom() {
        return Ok(());
    }
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or("");
    let mut errors = field::Errors::new();
    for (field, wanted) in [("kind", &kind.gvk.kind), ("apiVersion", &kind.api_version)] {
        if text(field) != wanted {
            errors.push(field::Error::invalid(&Path::new(field), text(field), format!("must be {wanted}")));
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    let given = Gvk::from_api_version(text("apiVersion"), text("kind"));
    Err(Status::invalid(&given.group, &given.kind, object.name(), &errors))
}

fn no_kind(gvk: &Gvk) -> String {
    format!(
        "no kind \"{}\" is registered for version \"{}\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
        gvk.kind,
        gvk.api_version()
    )
}

fn go_package(gvk: &Gvk) -> &str {
    &gvk.version
}

/// Returns the name of the Go package of a native kind inside kube-apiserver, which appears in some messages.
pub fn go_internal_package(gvk: &Gvk) -> &str {
    match gvk.group.as_str() {
        "" | "events.k8s.io" => "core",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        group => group.split('.').next().unwrap_or(""),
    }
}

/// `<Kind> in version "<v>" cannot be handled as a <Kind>: …`
pub fn cannot_handle(given: &Gvk, expected: &Gvk, error: &str) -> Status {
    Status::bad_request(format!(
        "{} in version \"{}\" cannot be handled as a {}: {error}",
        given.kind, given.version, expected.kind
    ))
}

fn unrecognised(kind: &Kind, expected: &Gvk, body: &Bytes, error: &str) -> Status {
    if kind.is_custom() && *expected == kind.gvk {
        return unrecognised_custom(
            expected,
            error.strip_prefix("json parse error: ").unwrap_or(error),
            body,
        );
    }
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): couldn't get version/kind; {error} ({})",
        expected.kind,
        summary(body)
    ))
}

fn unrecognised_custom(expected: &Gvk, error: &str, body: &Bytes) -> Status {
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {error} ({})",
        expected.kind,
        summary(body)
    ))
}

/// Formats the start of a body: as text if it looks like JSON, otherwise in hex.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let more = if body.len() > SHOWN { " ..." } else { "" };
    let start = body.get(..SHOWN).unwrap_or(body);
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(start)),
        Some(_) => format!("{}{more}", hex::encode(start)),
    }
}

fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn unsupported_type(kind: &Kind) -> Status {
    let list = if kind.is_custom() {
        "application/json, application/yaml"
    } else {
        "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    };
    Status::unsupported_media_type(format!(
        "the body of the request was in an unknown format - accepted media types include: {list}"
    ))
}
