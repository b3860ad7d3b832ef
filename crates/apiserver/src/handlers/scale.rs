//! The `scale` subresource: one number of an object, seen as an `autoscaling/v1 Scale`.

use std::collections::BTreeMap;

use apimachinery::field::{self, Path};
use apimachinery::go;
use apimachinery::gvk::{GroupResource, Gvk};
use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::selector::LabelSelector;
use apimachinery::server_side_apply::{self, PathElement};
use apimachinery::status::Status;
use apimachinery::yaml::Document;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::decode;
use super::update::{Patch, PatchType, check_names};
use super::write::{Change, Outcome, Target, second};
use crate::registry::{Kind, Source};

pub fn gvk() -> Gvk {
    Gvk::new("autoscaling", "v1", "Scale")
}

/// Where the numbers of a scalable object are.
#[derive(Debug, Clone)]
pub struct Paths {
    pub spec: String,
    pub status: String,
    pub selector: Option<String>,
}

fn paths(kind: &Kind) -> Paths {
    match &kind.source {
        Source::Custom(custom) => custom.scale_paths(&kind.gvk.version).unwrap_or_else(default_paths),
        Source::Native => default_paths(),
    }
}

fn default_paths() -> Paths {
    Paths { spec: ".spec.replicas".to_owned(), status: ".status.replicas".to_owned(), selector: None }
}

fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    object.pointer(&path.replace('.', "/"))
}

/// Checks the requested number of replicas of a custom resource.
pub fn check_spec(paths: &Paths, object: &Value) -> field::Errors {
    check_count(&paths.spec, object).into_iter().collect()
}

/// Checks the number of replicas and the selector in the status of a custom resource.
pub fn check_status(paths: &Paths, object: &Value) -> field::Errors {
    let mut errors: field::Errors = check_count(&paths.status, object).into_iter().collect();
    if let Some(selector) = &paths.selector
        && let Some(complaint) = mistyped(object, selector, "string", Value::is_string)
    {
        errors.push(field::Error::invalid(&Path::new(selector), "", complaint));
    }
    errors
}

fn check_count(path: &str, object: &Value) -> Option<field::Error> {
    let error = |count: i64, detail: String| Some(field::Error::invalid(&Path::new(path), count, detail));
    if let Some(complaint) = mistyped(object, path, "int64", Value::is_i64) {
        return error(0, complaint);
    }
    match at(object, path).and_then(Value::as_i64).unwrap_or(0) {
        count if count < 0 => error(count, "should be a non-negative integer".to_owned()),
        count if count > i64::from(i32::MAX) => {
            error(count, format!("should be less than or equal to {}", i32::MAX))
        }
        _ => None,
    }
}

/// Returns, in upstream's words, what is wrong with the type of a value or of an object on the path to it.
fn mistyped(object: &Value, path: &str, wanted: &str, is_wanted: fn(&Value) -> bool) -> Option<String> {
    let parts: Vec<&str> = path.trim_start_matches('.').split('.').collect();
    let complain = |parts: &[&str], value: &Value, wanted: &str| {
        let (shown, found) = (go::verbose(value), go::type_name(value));
        Some(format!(
            ".{} accessor error: {shown} is of the type {found}, expected {wanted}",
            parts.join(".")
        ))
    };
    let mut here = object;
    for (index, part) in parts.iter().enumerate() {
        match here {
            Value::Null => return None,
            Value::Object(fields) => here = fields.get(*part)?,
            other => {
                return complain(parts.get(..=index).unwrap_or_default(), other, "map[string]interface{}");
            }
        }
    }
    if is_wanted(here) { None } else { complain(&parts, here, wanted) }
}

/// Sets a value. Missing objects on the path are created.
fn set(object: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let parts: Vec<&str> = path.trim_start_matches('.').split('.').collect();
    let mut here = object;
    for (index, part) in parts.iter().enumerate() {
        let Value::Object(fields) = here else {
            let way = parts.get(..index).unwrap_or_default().join(".");
            return Err(format!("value cannot be set because .{way} is not a map[string]interface{{}}"));
        };
        let is_last = index.saturating_add(1) == parts.len();
        here = fields.entry(*part).or_insert_with(|| if is_last { Value::Null } else { json!({}) });
    }
    *here = value;
    Ok(())
}

/// Sets the number of replicas of an object to that of a Scale.
pub fn set_replicas(kind: &Kind, object: &mut Value, scale: &Value) -> Result<(), Status> {
    let path = paths(kind).spec;
    let wanted = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    if at(object, &path).and_then(Value::as_i64) != Some(wanted) {
        set(object, &path, json!(wanted)).map_err(Status::bare_internal)?;
    }
    Ok(())
}

/// The value in the Scale of a custom resource without a number of replicas while it is being changed: the smallest 32-bit
/// number, as upstream. A change must replace it.
const UNSET: i64 = i32::MIN as i64;

/// Returns the Scale of an object for a GET: a custom resource must have a number of replicas.
pub fn shown(kind: &Kind, object: &Value) -> Result<Value, Status> {
    let paths = paths(kind);
    let scale = of(kind, object)?;
    if kind.is_custom() && at(object, &paths.spec).is_none() {
        return Err(Status::internal(format!("the spec replicas field {:?} does not exist", paths.spec)));
    }
    Ok(scale)
}

/// Returns the Scale of an object; a missing number counts as zero.
pub fn of(kind: &Kind, object: &Value) -> Result<Value, Status> {
    let paths = paths(kind);
    if kind.is_custom() {
        // In upstream's order, and in its words.
        let counts = [&paths.spec, &paths.status];
        let counts = counts.into_iter().filter_map(|path| mistyped(object, path, "int64", Value::is_i64));
        let selector =
            paths.selector.as_ref().and_then(|path| mistyped(object, path, "string", Value::is_string));
        if let Some(complaint) = counts.chain(selector).next() {
            return Err(Status::bare_internal(complaint));
        }
    }
    let replicas = at(object, &paths.spec).and_then(Value::as_i64).unwrap_or(0);
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {},
        "spec": {},
        "status": {"replicas": at(object, &paths.status).and_then(Value::as_i64).unwrap_or(0)},
    });
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        let value = object.meta(field);
        if !value.is_empty() {
            pointer::set(pointer::object_at(&mut scale, "metadata"), field, json!(value));
        }
    }
    if replicas != 0 {
        pointer::set(pointer::object_at(&mut scale, "spec"), "replicas", json!(replicas));
    }
    let selector = match &paths.selector {
        Some(path) => at(object, path).and_then(Value::as_str).unwrap_or("").to_owned(),
        None if kind.is_custom() => String::new(),
        None => selector_text(kind, object),
    };
    if !selector.is_empty() {
        pointer::set(pointer::object_at(&mut scale, "status"), "selector", json!(selector));
    }
    Ok(scale)
}

fn selector_text(kind: &Kind, object: &Value) -> String {
    let Some(selector) = object.pointer("/spec/selector") else { return String::new() };
    if kind.selects_by_map() {
        let labels = selector.as_object().into_iter().flatten();
        return LabelSelector::from_labels(
            labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or(""))),
        )
        .to_string();
    }
    LabelSelector::from_object(Some(selector)).map(|selector| selector.to_string()).unwrap_or_default()
}

/// Returns the Scale of an object that is being changed, with the managers that own the number of replicas.
pub fn owned(kind: &Kind, object: &Value) -> Result<Value, Status> {
    let mut scale = of(kind, object)?;
    if kind.is_custom() && at(object, &paths(kind).spec).is_none() {
        pointer::set(pointer::object_at(&mut scale, "spec"), "replicas", json!(UNSET));
    }
    let managed =
        server_side_apply::to_scale(object.pointer("/metadata/managedFields"), &replica_paths(kind));
    managed.map_err(Status::bare_internal)?.store(&mut scale);
    Ok(scale)
}

/// Returns the path of the number of replicas, by API version.
fn replica_paths(kind: &Kind) -> BTreeMap<String, server_side_apply::Path> {
    let path = |spec: &str| -> server_side_apply::Path {
        spec.trim_start_matches('.').split('.').map(PathElement::field).collect()
    };
    match &kind.source {
        Source::Native => BTreeMap::from([(kind.api_version.clone(), path(".spec.replicas"))]),
        Source::Custom(custom) => {
            let versions = custom.versions.iter().map(|version| {
                let at = version.scale.as_ref().map(|paths| path(&paths.spec)).unwrap_or_default();
                (format!("{}/{}", custom.group, version.name), at)
            });
            versions.collect()
        }
    }
}

/// A change of an object's Scale: replaced, patched or applied.
struct Rescale<'a> {
    target: &'a Target<'a>,
    new: ScaleChange<'a>,
}

enum ScaleChange<'a> {
    Replace(Value),
    Patch(Patch<'a>),
    Apply(Document),
}

impl Rescale<'_> {
    /// Returns the new Scale, with the managers of its fields.
    fn scale(&self, old: &Value) -> Result<Value, Status> {
        let (kind, options) = (self.target.kind, self.target.options);
        let live = owned(kind, old)?;
        let (gvk, reset) = (gvk(), BTreeMap::new());
        let types = native::merge::Versions { gvk: gvk.clone() };
        let fields =
            server_side_apply::FieldManager { types: &types, gvk: &gvk, subresource: "scale", reset: &reset };
        let (manager, now) = (options.field_manager.as_str(), second(Timestamp::now()));
        let sent = match &self.new {
            ScaleChange::Replace(scale) => scale.clone(),
            ScaleChange::Patch(patch) => patch.patch(&live)?,
            ScaleChange::Apply(_) if kind.is_custom() => return Err(unconvertible(&live)),
            ScaleChange::Apply(document) => {
                let force = options.force.unwrap_or(false);
                let merged = fields.apply(&live, &document.value, manager, force, &now);
                let mut merged = merged.map_err(|error| error.to_status())?;
                crate::field_ownership::report_repeated(self.target, document)?;
                let managed = merged.pointer("/metadata/managedFields").cloned();
                decode::canonicalise(kind, &gvk, &mut merged)
                    .map_err(|error| decode::cannot_handle(&gvk, &gvk, &error))?;
                if let Some(managed) = managed {
                    merged.metadata_mut().insert("managedFields".to_owned(), managed);
                }
                return Ok(merged);
            }
        };
        Ok(fields.update(&live, sent, manager, &now))
    }
}

/// The answer to an apply for the Scale of a custom resource, which upstream does not support either.
fn unconvertible(live: &Value) -> Status {
    let reason = "request to convert CR to an invalid group/version: autoscaling/v1";
    let name = |field: &str| live.meta(field);
    let (what, prefix) = if live.pointer("/metadata/managedFields").is_some() {
        (format!("{}/{}", name("namespace"), name("name")), "")
    } else {
        ("/".to_owned(), "failed to create manager for existing fields: ")
    };
    Status::bare_internal(format!(
        "{prefix}failed to convert live object ({what}; autoscaling/v1, Kind=Scale) to proper version: {reason}"
    ))
}

impl Change for Rescale<'_> {
    fn new_object(&self, old: &Value) -> Result<Option<Value>, Status> {
        let (kind, name) = (self.target.kind, self.target.name);
        let scale = self.scale(old)?;
        let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
        let spec_path = paths(kind).spec;
        if kind.is_custom() && replicas == UNSET {
            let why = format!("the spec replicas field {spec_path:?} cannot be empty");
            return Err(Status::bad_request(why));
        }
        // A custom resource is validated by its own rules.
        if replicas < 0 && !kind.is_custom() {
            let path = Path::new("spec").child("replicas");
            let error = field::Error::invalid(&path, replicas, "must be greater than or equal to 0");
            return Err(Status::invalid("autoscaling", "Scale", name, &[error]));
        }
        let (uid, current) = (scale.uid(), old.uid());
        if !uid.is_empty() && uid != current {
            let resource =
                GroupResource::new(&kind.resource.group, format!("{}/scale", kind.resource.resource));
            let why =
                format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {current}");
            return Err(Status::conflict(&resource, name, &why));
        }
        let mut new = old.clone();
        set(&mut new, &spec_path, json!(replicas)).map_err(Status::bare_internal)?;
        let managed = server_side_apply::scale_to_parent(
            old.pointer("/metadata/managedFields"),
            scale.pointer("/metadata/managedFields"),
            &replica_paths(kind),
            &kind.api_version,
        );
        managed.map_err(Status::bare_internal)?.store(&mut new);
        let sent = scale.resource_version().to_owned();
        new.metadata_mut().insert("resourceVersion".to_owned(), sent.into());
        Ok(Some(new))
    }

    fn is_patch(&self) -> bool {
        // A Scale need not have a revision.
        true
    }

    fn manages_fields(&self) -> bool {
        true
    }
}

/// Runs a PUT or PATCH of the scale; answers with the new Scale.
pub async fn write(target: &Target<'_>, body: &Bytes, is_patch: bool) -> Result<Outcome, Status> {
    let new = if is_patch {
        match PatchType::parse(target.context, target.kind)? {
            PatchType::Apply => ScaleChange::Apply(crate::field_ownership::configuration(target, body)?),
            patch => {
                let (context, options) = (target.context, target.options);
                ScaleChange::Patch(Patch::decode(context, target.kind, gvk(), patch, body, options)?)
            }
        }
    } else {
        let mut scale =
            decode::object(target.context, target.kind, &gvk(), body, target.options.field_validation)?;
        check_names(target, &mut scale)?;
        ScaleChange::Replace(scale)
    };
    let change = Rescale { target, new };
    // The object's own rules apply to the change, including the generation.
    let whole = Target { subresource: "", scale: true, ..*target };
    let outcome = whole.update(&change).await?;
    let scale = of(target.kind, &outcome.object).map_err(|status| Status::bad_request(status.message))?;
    Ok(Outcome { object: scale, created: false })
}
