//! Reviews of rights: SubjectAccessReview, its local form and the one about oneself.
//!
//! In: the question as the client wrote it. Out: its errors, or the status that answers it. Selectors are validated, but do not
//! influence the answer, since roles say nothing about them.

use apimachinery::field::{self, Path};
use apimachinery::names;
use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::selector::{FieldSelector, LabelSelector};
use apimachinery::status::Status;
use serde_json::{Value, json};

use super::context::Context;
use crate::auth::User;
use crate::auth::rbac::Attributes;
use crate::object;
use crate::registry::Kind;
use crate::server::Server;

/// Returns the 422 for a question that cannot be answered.
pub(super) fn validate(kind: &Kind, review: &Value) -> Result<(), Status> {
    let errors = check(kind, review);
    if errors.is_empty() {
        return Ok(());
    }
    // The kind is missing in upstream's message, too.
    Err(Status::invalid(&kind.gvk.group, "", "", &errors))
}

fn check(kind: &Kind, review: &Value) -> field::Errors {
    let spec = Path::new("spec");
    let (resource, path) =
        (review.pointer("/spec/resourceAttributes"), review.pointer("/spec/nonResourceAttributes"));
    let invalid_path = |detail: &str| {
        let field = |name: &str| path.and_then(|path| path.get(name)).cloned().unwrap_or_else(|| json!(""));
        let shown = format!("{{\"Path\":{},\"Verb\":{}}}", field("path"), field("verb"));
        field::Error::invalid(&spec.child("nonResourceAttributes"), Value::Null, detail).showing(shown)
    };
    let mut errors = Vec::new();
    match (resource, path) {
        (Some(_), Some(_)) => {
            errors.push(invalid_path("cannot be specified in combination with resourceAttributes"));
        }
        (None, None) => errors.push(field::Error::invalid(
            &spec.child("resourceAttributes"),
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => {}
    }
    let about_oneself = kind.gvk.kind == "SelfSubjectAccessReview";
    if !about_oneself
        && pointer::owned(review, "/spec/user").is_empty()
        && pointer::texts(review, "/spec/groups").is_empty()
    {
        let detail = "at least one of user or group must be specified";
        errors.push(field::Error::invalid(&spec.child("user"), "", detail));
    }
    if let Some(resource) = resource {
        let at = spec.child("resourceAttributes");
        check_selector(resource.get("fieldSelector"), &at.child("fieldSelector"), false, &mut errors);
        check_selector(resource.get("labelSelector"), &at.child("labelSelector"), true, &mut errors);
    }
    let metadata = review["metadata"].as_object();
    let local = kind.gvk.kind == "LocalSubjectAccessReview";
    let may_say = |name: &str| name == "managedFields" || local && name == "namespace";
    if metadata.is_some_and(|metadata| metadata.keys().any(|name| !may_say(name))) {
        let detail = if local { "must be empty except for namespace" } else { "must be empty" };
        let shown = object::metadata_in_order(&review["metadata"]);
        errors.push(field::Error::invalid(&Path::new("metadata"), Value::Null, detail).showing(shown));
    }
    if local {
        let asked = pointer::owned(review, "/spec/resourceAttributes/namespace");
        if resource.is_some() && asked != review.namespace() {
            let at = spec.child("resourceAttributes").child("namespace");
            errors.push(field::Error::invalid(&at, asked, "must match metadata.namespace"));
        }
        if path.is_some() {
            errors.push(invalid_path("disallowed on this kind of request"));
        }
    }
    errors
}

fn check_selector(selector: Option<&Value>, at: &Path, of_labels: bool, errors: &mut field::Errors) {
    let Some(selector) = selector else { return };
    let raw = pointer::owned(selector, "/rawSelector");
    let requirements = selector["requirements"].as_array().cloned().unwrap_or_default();
    if !raw.is_empty() && !requirements.is_empty() {
        let detail = "may not specified at the same time as requirements";
        errors.push(field::Error::invalid(&at.child("rawSelector"), raw, detail));
    } else if raw.is_empty() && requirements.is_empty() {
        let detail = format!("when {at} is specified, requirements or rawSelector is required");
        errors.push(field::Error::required(&at.child("requirements"), detail));
    }
    for (index, requirement) in requirements.iter().enumerate() {
        let at = at.child("requirements").index(index);
        let (key, values) = (pointer::owned(requirement, "/key"), pointer::texts(requirement, "/values"));
        if !of_labels && key.is_empty() {
            errors.push(field::Error::required(&at.child("key"), "must be specified"));
        }
        match pointer::owned(requirement, "/operator").as_str() {
            "In" | "NotIn" if values.is_empty() => errors.push(field::Error::required(
                &at.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(field::Error::forbidden(
                &at.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            // Unknown operators of future versions are skipped.
            _ => {}
        }
        if of_labels {
            for problem in names::qualified_name(&key) {
                errors.push(field::Error::invalid(&at.child("key"), key.clone(), problem));
            }
            for (place, value) in values.iter().enumerate() {
                for problem in names::label_value(value) {
                    let at = at.child("values").index(place);
                    errors.push(field::Error::invalid(&at, value.clone(), problem));
                }
            }
        }
    }
}

/// Returns the status of a valid review.
pub(super) fn decide(server: &Server, context: &Context, kind: &Kind, review: &Value) -> Value {
    let asked;
    let user = if kind.gvk.kind == "SelfSubjectAccessReview" {
        &*context.user
    } else {
        let extra =
            review.pointer("/spec/extra").and_then(|extra| serde_json::from_value(extra.clone()).ok());
        asked = User {
            name: pointer::owned(review, "/spec/user"),
            uid: pointer::owned(review, "/spec/uid"),
            groups: pointer::texts(review, "/spec/groups"),
            extra: extra.unwrap_or_default(),
        };
        &asked
    };
    let get = |name: &str| pointer::owned(review, &format!("/spec/resourceAttributes/{name}"));
    let (verb, group, version, name) = (get("verb"), get("group"), get("version"), get("name"));
    let (resource, subresource, namespace) = (get("resource"), get("subresource"), get("namespace"));
    let path = pointer::owned(review, "/spec/nonResourceAttributes/path");
    let path_verb = pointer::owned(review, "/spec/nonResourceAttributes/verb");
    let attributes = if review.pointer("/spec/resourceAttributes").is_some() {
        Attributes {
            verb: &verb,
            group: &group,
            version: &version,
            resource: &resource,
            subresource: &subresource,
            namespace: &namespace,
            name: &name,
            path: None,
        }
    } else {
        Attributes { verb: &path_verb, path: Some(&path), ..Attributes::default() }
    };
    let allowed = server.rbac.check(&server.store, user, &attributes).is_ok();
    let mut status = json!({"allowed": allowed});
    let reason = if allowed { server.rbac.reason(user, &attributes) } else { String::new() };
    if !reason.is_empty() {
        pointer::set(&mut status, "reason", json!(reason));
    }
    let ignored: Vec<String> = ["fieldSelector", "labelSelector"]
        .into_iter()
        .filter_map(|which| {
            let selector = review.pointer(&format!("/spec/resourceAttributes/{which}"))?;
            let partially = match understood(selector, which == "labelSelector") {
                Understood::All => return None,
                Understood::Some => "partially ",
                Understood::None => "",
            };
            Some(format!("spec.resourceAttributes.{which} {partially}ignored due to parse error"))
        })
        .collect();
    if !ignored.is_empty() {
        pointer::set(&mut status, "evaluationError", json!(ignored.join("; ")));
    }
    status
}

/// How much of a selector is valid.
enum Understood {
    All,
    Some,
    None,
}

fn understood(selector: &Value, of_labels: bool) -> Understood {
    let raw = pointer::owned(selector, "/rawSelector");
    let requirements = selector["requirements"].as_array().map(Vec::as_slice).unwrap_or_default();
    if requirements.is_empty() {
        let good =
            if of_labels { LabelSelector::parse(&raw).is_ok() } else { FieldSelector::parse(&raw).is_ok() };
        return if good { Understood::All } else { Understood::None };
    }
    let makes_sense = |requirement: &Value| {
        let values = pointer::texts(requirement, "/values").len();
        match pointer::owned(requirement, "/operator").as_str() {
            "In" | "NotIn" => of_labels || values == 1,
            "Exists" | "DoesNotExist" => of_labels,
            _ => false,
        }
    };
    let good = requirements.iter().filter(|requirement| makes_sense(requirement)).count();
    if good == requirements.len() {
        Understood::All
    } else if good > 0 {
        Understood::Some
    } else {
        Understood::None
    }
}
