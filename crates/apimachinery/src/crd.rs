//! CustomResourceDefinitions: defaulting, validation, names, stored versions. Pure functions on the object.
//!
//! Error paths are those of upstream's internal form: what all versions share is reported at the top
//! (`spec.validation.openAPIV3Schema…`, `spec.subresources…`), the rest under `spec.versions[i]…`.
//! The rules of `x-kubernetes-validations` are checked for shape here and for meaning elsewhere.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::conditions::is_true;
use crate::field::{Complaints, Error, Errors, Path, Trail};
use crate::names;
use crate::structural::{self, Schema};
use crate::webhook;

mod approval;
mod naming;
mod rule_path;
mod schema;

pub use approval::approval_condition;
pub use naming::{Condition, Naming, Space, accepted_names, decide_names, established};
pub use rule_path::rule_path;

/// More selectable fields than this per version are refused.
const MAX_SELECTABLE_FIELDS: usize = 8;

/// How many errors show one whole list. Without an end, a body of 3 MiB would become hundreds of gigabytes.
const MOST_SHOWING_A_LIST: usize = 10;

/// Fills in what upstream fills in: names derived from the kind, no conversion, the webhook's port.
pub fn default(crd: &mut Value) {
    let Some(Value::Object(spec)) = crd.get_mut("spec") else { return };
    if let Some(Value::Object(names)) = spec.get_mut("names") {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let missing = |names: &Map<String, Value>, name: &str| {
            names.get(name).and_then(Value::as_str).unwrap_or_default().is_empty()
        };
        if missing(names, "singular") {
            names.insert("singular".to_owned(), json!(kind.to_lowercase()));
        }
        if missing(names, "listKind") && !kind.is_empty() {
            names.insert("listKind".to_owned(), json!(format!("{kind}List")));
        }
    }
    let conversion = spec.entry("conversion").or_insert(Value::Null);
    if conversion.is_null() {
        *conversion = json!({"strategy": "None"});
    }
    if let Some(Value::Object(service)) = conversion.pointer_mut("/webhook/clientConfig/service") {
        service.entry("port").or_insert(json!(443));
    }
}

/// Sets the status that a new definition starts with.
pub fn prepare_create(crd: &mut Value) {
    let stored: Vec<Value> = storage_version(crd).map(|name| json!(name)).into_iter().collect();
    if let Value::Object(crd) = crd {
        crd.insert(
            "status".to_owned(),
            json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored}),
        );
    }
}

/// Adds the storage version to `status.storedVersions` if it is new there.
pub fn record_storage_version(crd: &mut Value) {
    let Some(name) = storage_version(crd).map(str::to_owned) else { return };
    if !crd.get("status").is_some_and(Value::is_object) {
        crd["status"] = json!({});
    }
    let Some(status) = crd["status"].as_object_mut() else { return };
    match status.entry("storedVersions").or_insert(Value::Null) {
        Value::Array(versions) => {
            if !versions.contains(&json!(name)) {
                versions.push(json!(name));
            }
        }
        other => *other = json!([name]),
    }
}

/// Returns the name of the version that objects are stored in.
pub fn storage_version(crd: &Value) -> Option<&str> {
    let storage = versions(crd).iter().find(|version| flag(version, "storage"))?;
    Some(text(storage, "name"))
}

/// Checks a new definition.
pub fn validate(crd: &Value) -> Errors {
    let mut errors = Complaints::default();
    let spec = crd.get("spec").unwrap_or(&Value::Null);
    let name = crd.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let names = spec.get("names").unwrap_or(&Value::Null);
    let wanted = format!("{}.{}", text(names, "plural"), text(spec, "group"));
    if !name.is_empty() {
        let path = Path::new("metadata").child("name");
        if name != wanted {
            errors.push(Error::invalid(&path, name, r#"must be spec.names.plural+"."+spec.group"#));
        }
    }
    validate_common(crd, &mut errors);
    errors.extend(approval(crd, None));
    if flag(spec, "preserveUnknownFields") {
        errors.push(preserve_unknown_error());
    }
    errors.errors
}

/// Checks a changed definition against the stored one.
pub fn validate_update(crd: &Value, old: &Value) -> Errors {
    let mut errors = Complaints::default();
    validate_common(crd, &mut errors);
    let mut immutable = |pointer: &str, path: Path| {
        let (new, before) = (crd.pointer(pointer), old.pointer(pointer));
        if new != before {
            errors.push(Error::invalid(&path, new.cloned().unwrap_or(Value::Null), "field is immutable"));
        }
    };
    let spec = Path::new("spec");
    if is_true(old, "Established") {
        immutable("/spec/scope", spec.child("scope"));
        immutable("/spec/names/kind", spec.child("names").child("kind"));
    }
    immutable("/spec/group", spec.child("group"));
    immutable("/spec/names/plural", spec.child("names").child("plural"));
    errors.extend(approval(crd, Some(old)));
    let preserves = |crd: &Value| crd.get("spec").is_some_and(|spec| flag(spec, "preserveUnknownFields"));
    if preserves(crd) && !preserves(old) {
        errors.push(preserve_unknown_error());
    }
    errors.errors
}

fn preserve_unknown_error() -> Error {
    Error::invalid(
        &Path::new("spec").child("preserveUnknownFields"),
        true,
        "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
    )
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn versions(crd: &Value) -> &[Value] {
    crd.get("spec").map(|spec| list(spec, "versions")).unwrap_or_default()
}

fn validate_common(crd: &Value, errors: &mut Complaints) {
    let null = Value::Null;
    let spec = crd.get("spec").unwrap_or(&null);
    let path = Path::new("spec");
    let group = text(spec, "group");
    if group.is_empty() {
        errors.push(Error::required(&path.child("group"), ""));
    } else {
        let complaints = names::dns1123_subdomain(group);
        if !complaints.is_empty() {
            errors.push(Error::invalid(&path.child("group"), group, complaints.join(",")));
        } else if !group.contains('.') {
            errors.push(Error::invalid(
                &path.child("group"),
                group,
                "should be a domain with at least one dot",
            ));
        }
    }
    one_of(&path.child("scope"), text(spec, "scope"), &["Cluster", "Namespaced"], errors);
    validate_versions(spec, &path, errors);
    let names = spec.get("names").unwrap_or(&null);
    for name in ["plural", "singular", "kind", "listKind"] {
        if text(names, name).is_empty() {
            errors.push(Error::required(&path.child("names").child(name), ""));
        }
    }
    naming::check(names, &path.child("names"), errors);
    conversion(spec.get("conversion").unwrap_or(&null), &path.child("conversion"), errors);
    let status = crd.get("status").unwrap_or(&null);
    if let Some(accepted) = status.get("acceptedNames") {
        naming::check(accepted, &Path::new("status").child("acceptedNames"), errors);
    }
    stored_versions(status, list(spec, "versions"), errors);
}

fn one_of(path: &Path, value: &str, accepted: &[&str], errors: &mut Complaints) {
    if value.is_empty() {
        errors.push(Error::required(path, ""));
    } else if !accepted.contains(&value) {
        errors.push(Error::not_supported(path, value, accepted));
    }
}

/// Where a part of a version is reported: at the top if all versions share it.
fn shared<'a>(versions: &'a [Value], name: &str) -> Option<&'a Value> {
    let first = versions.first()?.get(name)?;
    versions.iter().all(|version| version.get(name) == Some(first)).then_some(first)
}

fn validate_versions(spec: &Value, path: &Path, errors: &mut Complaints) {
    let versions = list(spec, "versions");
    let shown = || Value::Array(versions.to_vec());
    let mut seen = HashSet::new();
    let mut unique = true;
    for (index, version) in versions.iter().enumerate() {
        let path = path.child("versions").index(index);
        let name = text(version, "name");
        unique &= seen.insert(name);
        if version.pointer("/schema/openAPIV3Schema").is_none_or(Value::is_null) {
            errors.push(Error::required(&path.child("schema").child("openAPIV3Schema"), ""));
        }
        let complaints = names::dns1035_label(name);
        if !complaints.is_empty() {
            errors.push(Error::invalid(&path.child("name"), name, complaints.join(",")));
        }
        deprecation(version, &path, errors);
    }
    let status_enabled =
        |version: &Value| version.pointer("/subresources/status").is_some_and(|status| !status.is_null());
    let any_status = versions.iter().any(status_enabled);
    match shared(versions, "schema") {
        Some(part) => {
            let path = path.child("validation");
            schema::check_part(part, any_status, &Trail::Root.child(path.as_str()), errors);
        }
        None => {
            for (index, version) in versions.iter().enumerate() {
                if let Some(part) = version.get("schema") {
                    let path = path.child("versions").index(index).child("schema");
                    let path = Trail::Root.child(path.as_str());
                    schema::check_part(part, status_enabled(version), &path, errors);
                }
            }
        }
    }
    each_part(versions, "subresources", path, errors, subresources);
    each_part(versions, "additionalPrinterColumns", path, errors, |part, path, errors| {
        for (index, column) in part.as_array().map(Vec::as_slice).unwrap_or_default().iter().enumerate() {
            printer_column(column, &path.index(index), errors);
        }
    });
    for (index, version) in versions.iter().enumerate() {
        let fields = list(version, "selectableFields");
        if fields.is_empty() {
            continue;
        }
        let path = if versions.len() == 1 {
            path.child("selectableFields")
        } else {
            path.child("versions").index(index).child("selectableFields")
        };
        selectable_fields(fields, version.pointer("/schema/openAPIV3Schema"), &path, errors);
    }
    if !unique {
        errors.push(Error::invalid(&path.child("versions"), shown(), "must contain unique version names"));
    }
    if versions.iter().filter(|version| flag(version, "storage")).count() != 1 {
        let message = "must have exactly one version marked as storage version";
        errors.push(Error::invalid(&path.child("versions"), shown(), message));
    }
}

fn each_part(
    versions: &[Value],
    name: &str,
    path: &Path,
    errors: &mut Complaints,
    check: impl Fn(&Value, &Path, &mut Complaints),
) {
    if let Some(part) = shared(versions, name) {
        check(part, &path.child(name), errors);
        return;
    }
    for (index, version) in versions.iter().enumerate() {
        if let Some(part) = version.get(name) {
            check(part, &path.child("versions").index(index).child(name), errors);
        }
    }
}

fn deprecation(version: &Value, path: &Path, errors: &mut Complaints) {
    let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) else { return };
    let path = path.child("deprecationWarning");
    let mut complain = |message: &str| errors.push(Error::invalid(&path, warning, message));
    if !flag(version, "deprecated") {
        complain("can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        complain("must be <= 256 characters long");
    }
    if warning.is_empty() {
        complain("must not be an empty string");
    }
    if let Some((index, _)) = warning.char_indices().find(|(_, character)| character.is_control()) {
        complain(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {index}"
        ));
    }
}

fn simple_path(value: &str, path: &Path, errors: &mut Complaints) -> bool {
    if value.starts_with('.') {
        return true;
    }
    errors.push(Error::invalid(path, value, "must be a simple json path starting with ."));
    false
}

fn subresources(part: &Value, path: &Path, errors: &mut Complaints) {
    let Some(scale) = part.get("scale").filter(|scale| !scale.is_null()) else { return };
    for (name, root) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let path = path.child(&format!("scale.{name}"));
        let value = text(scale, name);
        if value.is_empty() {
            errors.push(Error::required(&path, ""));
        } else if simple_path(value, &path, errors) && !value.starts_with(root) {
            let message = format!("should be a json path under {}", root.trim_end_matches('.'));
            errors.push(Error::invalid(&path, value, message));
        }
    }
    let selector = text(scale, "labelSelectorPath");
    let path = path.child("scale.labelSelectorPath");
    if !selector.is_empty()
        && simple_path(selector, &path, errors)
        && !selector.starts_with(".spec.")
        && !selector.starts_with(".status.")
    {
        errors.push(Error::invalid(&path, selector, "should be a json path under either .spec or .status"));
    }
}

fn printer_column(column: &Value, path: &Path, errors: &mut Complaints) {
    const TYPES: &str = "must be one of boolean,date,integer,number,string";
    const FORMATS: [&str; 8] = ["int32", "int64", "float", "double", "byte", "date", "date-time", "password"];
    if text(column, "name").is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    }
    match text(column, "type") {
        "" => errors.push(Error::required(&path.child("type"), TYPES)),
        "boolean" | "date" | "integer" | "number" | "string" => {}
        other => errors.push(Error::invalid(&path.child("type"), other, TYPES)),
    }
    let format = text(column, "format");
    if !format.is_empty() && !FORMATS.contains(&format) {
        let message = "must be one of byte,date,date-time,double,float,int32,int64,password";
        errors.push(Error::invalid(&path.child("format"), format, message));
    }
    let json_path = text(column, "jsonPath");
    if json_path.is_empty() {
        errors.push(Error::required(&path.child("JSONPath"), ""));
    } else {
        simple_path(json_path, &path.child("JSONPath"), errors);
    }
}

fn selectable_fields(fields: &[Value], schema: Option<&Value>, path: &Path, errors: &mut Complaints) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        let path = path.index(index).child("jsonPath");
        let json_path = text(field, "jsonPath");
        if json_path.is_empty() {
            errors.push(Error::required(&path, ""));
            continue;
        }
        let steps: Vec<&str> = json_path.trim_start_matches('.').split('.').collect();
        let target = steps.iter().try_fold(schema.unwrap_or(&Value::Null), |schema, step| {
            schema.get("properties").and_then(|properties| properties.get(*step))
        });
        let implied = matches!(steps.as_slice(), ["metadata", ..]);
        if !json_path.starts_with('.') || (target.is_none() && !implied) {
            let message = format!("is an invalid path: does not refer to a valid field: {json_path}");
            errors.push(Error::invalid(&path, json_path, message));
            continue;
        }
        if implied {
            errors.push(Error::invalid(&path, json_path, "must not point to fields in metadata"));
        }
        if !target.is_some_and(|target| matches!(text(target, "type"), "string" | "boolean" | "integer")) {
            errors.push(Error::invalid(
                &path,
                json_path,
                "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            ));
        }
        if !seen.insert(json_path) {
            errors.push(Error::duplicate(&path, json_path));
        }
    }
    if seen.len() > MAX_SELECTABLE_FIELDS {
        errors.push(Error::too_many(path, seen.len(), MAX_SELECTABLE_FIELDS));
    }
}

fn conversion(conversion: &Value, path: &Path, errors: &mut Complaints) {
    if conversion.is_null() {
        return;
    }
    let strategy = text(conversion, "strategy");
    one_of(&path.child("strategy"), strategy, &["None", "Webhook"], errors);
    let webhook = conversion.get("webhook").filter(|webhook| !webhook.is_null());
    let client = webhook.and_then(|webhook| webhook.get("clientConfig")).filter(|client| !client.is_null());
    let reviews = webhook.map(|webhook| list(webhook, "conversionReviewVersions")).unwrap_or_default();
    let (client_path, reviews_path) =
        (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    if strategy != "Webhook" {
        let message = "should not be set when strategy is not set to Webhook";
        if client.is_some() {
            errors.push(Error::forbidden(&client_path, message));
        }
        if !reviews.is_empty() {
            errors.push(Error::forbidden(&reviews_path, message));
        }
        return;
    }
    match client {
        None => errors.push(Error::required(&client_path, "required when strategy is set to Webhook")),
        Some(client) => {
            let given = |name: &str| client.get(name).is_some_and(|value| !value.is_null());
            if given("url") == given("service") {
                errors.push(Error::required(&client_path, "exactly one of url or service is required"));
            } else if given("service") {
                let service = &client["service"];
                // Upstream mixes up the two names here, and asks for the other one.
                webhook::service(
                    &client_path.child("service"),
                    &webhook::Service {
                        namespace: text(service, "name"),
                        name: text(service, "namespace"),
                        path: service.get("path").and_then(Value::as_str),
                        port: service.get("port").and_then(Value::as_i64).unwrap_or(0),
                    },
                    &mut errors.errors,
                );
            } else {
                webhook::url(&client_path.child("url"), text(client, "url"), &mut errors.errors);
            }
        }
    }
    if reviews.is_empty() {
        errors.push(Error::required(&reviews_path, ""));
        return;
    }
    let mut seen = HashSet::new();
    for (index, version) in reviews.iter().enumerate() {
        let name = version.as_str().unwrap_or_default();
        if !seen.insert(version) {
            errors.push(Error::invalid(&reviews_path.index(index), name, "duplicate version"));
            continue;
        }
        for complaint in names::dns1035_label(name) {
            errors.push(Error::invalid(&reviews_path.index(index), name, complaint));
        }
    }
    if !reviews.iter().any(|version| matches!(version.as_str(), Some("v1" | "v1beta1"))) {
        let message = "must include at least one of v1, v1beta1";
        errors.push(Error::invalid(&reviews_path, Value::Array(reviews.to_vec()), message));
    }
}

fn stored_versions(status: &Value, versions: &[Value], errors: &mut Complaints) {
    let stored = list(status, "storedVersions");
    let path = Path::new("status").child("storedVersions");
    let shown = || Value::Array(stored.to_vec());
    if stored.is_empty() {
        errors.push(Error::invalid(&path, shown(), "must have at least one stored version"));
        return;
    }
    let recorded: HashSet<&str> = stored.iter().filter_map(Value::as_str).collect();
    let storage = versions.iter().filter(|version| flag(version, "storage"));
    let missing = storage.map(|version| text(version, "name")).filter(|name| !recorded.contains(name));
    // Each shows the whole list, and there should be one at most.
    for name in missing.take(MOST_SHOWING_A_LIST) {
        errors.push(Error::invalid(&path, shown(), format!("must have the storage version {name}")));
    }
    let known: HashSet<&str> = versions.iter().map(|version| text(version, "name")).collect();
    for (index, name) in stored.iter().filter_map(Value::as_str).enumerate() {
        if !known.contains(name) {
            errors.push(Error::invalid(
                &path.index(index),
                name,
                format!(
                    "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
                ),
            ));
        }
    }
}

/// Groups of the Kubernetes project need a note that their API was reviewed.
fn approval(crd: &Value, old: Option<&Value>) -> Option<Error> {
    const ANNOTATION: &str = "api-approved.kubernetes.io";
    const HINT: &str = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
    let group = crd.get("spec").map(|spec| text(spec, "group")).unwrap_or_default();
    let protected = group == "k8s.io"
        || group == "kubernetes.io"
        || group.ends_with(".k8s.io")
        || group.ends_with(".kubernetes.io");
    if !protected {
        return None;
    }
    let note = |crd: &Value| {
        let annotations = crd.get("metadata")?.get("annotations")?;
        Some(text(annotations, ANNOTATION).to_owned())
    };
    let state = |note: Option<String>| match note {
        Some(note) if note.starts_with("unapproved") => 0,
        Some(note) if note.starts_with("http://") || note.starts_with("https://") => 1,
        Some(note) if !note.is_empty() => 2,
        _ => 3,
    };
    let now = state(note(crd));
    if old.is_some_and(|old| state(note(old)) == now) {
        return None;
    }
    let path = Path::new("metadata").child("annotations").key(ANNOTATION);
    match now {
        2 => {
            let value = note(crd).unwrap_or_default();
            let message = format!(
                "protected groups must have approval annotation \"{ANNOTATION}\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
            );
            Some(Error::invalid(&path, value, message))
        }
        3 => Some(Error::required(&path, HINT)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
