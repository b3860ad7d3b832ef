//! Field ownership: who set what, on every write, and server-side apply.
//!
//! `apimachinery::server_side_apply` has the mechanics. This file finds the types of a kind and puts the result into the common
//! write path.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::gvk::Gvk;
use apimachinery::object::Object;
use apimachinery::server_side_apply::managed::Managed;
use apimachinery::server_side_apply::{FieldManager, Set, Types};
use apimachinery::status::Status;
use apimachinery::structural::SchemaType;
use apimachinery::yaml::Document;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::handlers::context::{Context, FieldValidation};
use crate::handlers::decode;
use crate::handlers::update::check_name;
use crate::handlers::write::{Change, Outcome, Target, second};
use crate::registry::{Custom, Kind, Source};
use crate::server::Server;

/// Records what a write other than an apply changed, and who changed it.
pub(crate) fn track(target: &Target<'_>, old: Option<&Value>, new: &mut Value) {
    let now = second(Timestamp::now());
    let fresh = old.is_none().then(|| zero(target.kind));
    let live = old.or(fresh.as_ref()).expect("one of the two is there");
    let manager = target.options.field_manager.as_str();
    let written = new.take();
    *new = match &target.kind.source {
        Source::Native => {
            let types = native::merge::Versions { gvk: target.kind.gvk.clone() };
            let mut tracked = manage(target, &types, |fields| fields.update(live, written, manager, &now));
            native::shape::hide_empty(&target.kind.gvk, &mut tracked);
            tracked
        }
        Source::Custom(custom) => {
            let types = CustomTypes { server: target.server, custom };
            manage(target, &types, |fields| fields.update(live, written, manager, &now))
        }
    };
}

/// Records the manager of an object that is answered but never stored.
pub(crate) fn track_answered(gvk: &Gvk, subresource: &str, manager: &str, object: &mut Value) {
    let types = native::merge::Versions { gvk: gvk.clone() };
    let reset = BTreeMap::new();
    let fields = FieldManager { types: &types, gvk, subresource, reset: &reset };
    let sent = object.take();
    *object = fields.update(&types.empty(gvk), sent, manager, &second(Timestamp::now()));
}

/// Restores the ownership record, with a warning, if admission made it unreadable.
pub(crate) fn keep_readable(context: &Context, before: &Value, after: &mut Value) {
    let recorded = after.pointer("/metadata/managedFields");
    let Err(why) = Managed::decode(recorded) else { return };
    context.warn(format!(
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {why}"
    ));
    let metadata = after.metadata_mut();
    match before.pointer("/metadata/managedFields") {
        Some(fields) => metadata.insert("managedFields".to_owned(), fields.clone()),
        None => metadata.remove("managedFields"),
    };
}

fn manage<T: Types, R>(target: &Target<'_>, types: &T, run: impl FnOnce(&FieldManager<'_, T>) -> R) -> R {
    let kind = target.kind;
    let paths: &[&[&str]] = match (&kind.source, target.subresource) {
        (Source::Native, subresource) => native::prepare::reset_fields(&kind.gvk, subresource),
        (Source::Custom(_), "status") => &[&["metadata"], &["spec"]],
        (Source::Custom(_), "") if kind.rules.status => &[&["status"]],
        (Source::Custom(_), _) => &[],
    };
    // The stored object may have been written in another version.
    let mut versions = vec![kind.api_version.clone()];
    if let Source::Native = kind.source {
        versions.push(kind.storage.api_version());
        versions.extend(kind.another_applied_version().map(str::to_owned));
    }
    let reset: BTreeMap<String, Set> = match paths {
        [] => BTreeMap::new(),
        paths => {
            let set = Set::of_fields(paths.iter().copied());
            versions.into_iter().map(|version| (version, set.clone())).collect()
        }
    };
    let subresource = if target.scale { "scale" } else { target.subresource };
    run(&FieldManager { types, gvk: &kind.gvk, subresource, reset: &reset })
}

/// The empty object: what Go prints for a zero value.
fn zero(kind: &Kind) -> Value {
    let mut object = json!({"apiVersion": kind.api_version, "kind": kind.gvk.kind, "metadata": {}});
    if !kind.is_custom() {
        // A kind that is served has a table.
        let _ = native::shape::canonicalise(&kind.gvk, &mut object);
    }
    object
}

/// The versions of a custom kind.
struct CustomTypes<'a> {
    server: &'a Arc<Server>,
    custom: &'a Arc<Custom>,
}

impl Types for CustomTypes<'_> {
    type Type = SchemaType;

    fn type_of(&self, api_version: &str) -> Option<SchemaType> {
        let gvk = Gvk::from_api_version(api_version, &self.custom.names.kind);
        let version = self.custom.versions.iter().find(|version| version.name == gvk.version)?;
        (gvk.group == self.custom.group && version.served).then(|| SchemaType::root(version.schema.clone()))
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Value, String> {
        crate::conversion::waiting(self.server, self.custom, object, api_version)
    }
}

/// An applied configuration.
struct Apply<'a> {
    target: &'a Target<'a>,
    document: Document,
    force: bool,
}

impl Apply<'_> {
    fn merge(&self, live: &Value) -> Result<Value, Status> {
        let target = self.target;
        let now = second(Timestamp::now());
        let manager = target.options.field_manager.as_str();
        let applied = &self.document.value;
        let merged = match &target.kind.source {
            Source::Native => {
                let types = native::merge::Versions { gvk: target.kind.gvk.clone() };
                manage(target, &types, |fields| fields.apply(live, applied, manager, self.force, &now))
            }
            Source::Custom(custom) => {
                let types = CustomTypes { server: target.server, custom };
                manage(target, &types, |fields| fields.apply(live, applied, manager, self.force, &now))
            }
        };
        let mut merged = merged.map_err(|error| error.to_status())?;
        report_repeated(target, &self.document)?;
        let managed = merged.pointer("/metadata/managedFields").cloned();
        // An applied null is intended: it is not dropped, and it is an error where null is not allowed.
        let unknown = decode::canonicalise(target.kind, &target.kind.gvk, &mut merged)
            .map_err(|error| decode::cannot_handle(&target.kind.gvk, &target.kind.gvk, &error))?;
        if let Some(managed) = managed {
            merged.metadata_mut().insert("managedFields".to_owned(), managed);
        }
        let problems = unknown.into_iter().map(|path| format!("unknown field \"{path}\"")).collect();
        decode::report(target.context, target.options.field_validation, problems)?;
        Ok(merged)
    }
}

impl Change for Apply<'_> {
    fn new_object(&self, old: &Value) -> Result<Option<Value>, Status> {
        self.merge(old).map(Some)
    }

    fn is_patch(&self) -> bool {
        true
    }

    fn create(&self) -> Option<Result<Value, Status>> {
        let object = self.merge(&zero(self.target.kind));
        Some(object.and_then(|object| {
            check_name(self.target, &object)?;
            let uid = object.uid();
            if !uid.is_empty() {
                return Err(Status::conflict(
                    &self.target.kind.resource,
                    self.target.name,
                    &format!(
                        "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                    ),
                ));
            }
            Ok(object)
        }))
    }

    fn manages_fields(&self) -> bool {
        true
    }
}

/// Reads an applied configuration and checks which object it names.
pub(crate) fn configuration(target: &Target<'_>, body: &Bytes) -> Result<Document, Status> {
    let bad = |error: String| Status::bad_request(format!("error decoding YAML: {error}"));
    let document = crate::yaml::read(body).map_err(bad)?;
    let applied = &document.value;
    let what = match applied {
        Value::Object(_) => None,
        Value::Null => return Err(Status::bad_request("invalid object type: /, Kind=")),
        Value::Array(_) => Some("array"),
        Value::String(_) => Some("string"),
        Value::Number(_) => Some("number"),
        Value::Bool(_) => Some("bool"),
    };
    if let Some(what) = what {
        return Err(bad(format!(
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
        )));
    }
    let name = applied.name().to_owned();
    if !name.is_empty() && name != target.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        )));
    }
    let namespace = applied.namespace().to_owned();
    if target.kind.namespaced && !namespace.is_empty() && namespace != target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(document)
}

/// Refuses or warns about repeated keys in an applied configuration. Other errors of the apply come first.
pub(crate) fn report_repeated(target: &Target<'_>, document: &Document) -> Result<(), Status> {
    match (target.options.field_validation, document.strict_error()) {
        (FieldValidation::Strict, Some(error)) => Err(Status::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: {error}"
        ))),
        (FieldValidation::Warn, Some(_)) => {
            document.duplicates.iter().for_each(|problem| target.context.warn(problem.clone()));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Handles a server-side apply.
pub(crate) async fn server_side_apply(target: &Target<'_>, body: &Bytes) -> Result<Outcome, Status> {
    let document = configuration(target, body)?;
    let change = Apply { target, document, force: target.options.force.unwrap_or(false) };
    target.update(&change).await
}
