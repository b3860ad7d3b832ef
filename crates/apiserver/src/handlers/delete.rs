//! DELETE of one object and of collections: preconditions, propagation, finalizers, grace.

use std::sync::Arc;

use apimachinery::field::{self, Path};
use apimachinery::gvk::Gvk;
use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::{Details, Status};
use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::context::{Context, FieldValidation, WriteOptions};
use super::list::Page;
use super::together::{Commit, Done, Put};
use super::write::{Target, second};
use crate::admission::{Operation, namespace};
use crate::clock;
use crate::controllers::definitions;
use crate::conversion;
use crate::object::{self, Entry};
use crate::registry::Kind;
use crate::server::Server;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// `DeleteOptions`, from the body or the query.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Option<Preconditions>,
    pub propagation_policy: Option<String>,
    pub orphan_dependents: Option<bool>,
    pub dry_run: Option<Vec<String>>,
    #[serde(rename = "ignoreStoreReadErrorWithClusterBreakingPotential")]
    pub ignore_read_error: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads the options; a body wins over the query.
    pub fn parse(context: &Context, kind: &Kind, body: &Bytes) -> Result<Self, Status> {
        let options = if body.is_empty() {
            Self::from_query(&context.query)?
        } else {
            Self::from_body(context, kind, body)?
        };
        let mut errors = Vec::new();
        let policy = options.propagation_policy.as_deref().unwrap_or("");
        let path = Path::new("propagationPolicy");
        if options.propagation_policy.is_some() && options.orphan_dependents.is_some() {
            errors.push(field::Error::invalid(
                &path,
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        if options.propagation_policy.is_some() && !matches!(policy, "Foreground" | "Background" | "Orphan") {
            let wanted = ["Foreground", "Background", "Orphan", "nil"];
            errors.push(field::Error::not_supported(&path, policy, &wanted));
        }
        let dry = options.dry_run.clone().unwrap_or_default();
        if dry.iter().any(|value| value != "All") {
            errors.push(field::Error::not_supported(&Path::new("dryRun"), json!(dry), &["All"]));
        }
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &errors));
        }
        Ok(options)
    }

    fn from_query(query: &crate::http::Query) -> Result<Self, Status> {
        let number = |key: &str| match query.get(key) {
            None | Some("") => Ok(None),
            Some(value) => value.parse().map(Some).map_err(|_| {
                Status::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))
            }),
        };
        let dry: Vec<String> = query.all("dryRun").filter(|v| !v.is_empty()).map(str::to_owned).collect();
        Ok(Self {
            grace_period_seconds: number("gracePeriodSeconds")?,
            preconditions: None,
            propagation_policy: query.get("propagationPolicy").filter(|v| !v.is_empty()).map(str::to_owned),
            orphan_dependents: query.get("orphanDependents").map(|value| value != "false" && value != "0"),
            dry_run: (!dry.is_empty()).then_some(dry),
            ignore_read_error: None,
        })
    }

    fn from_body(context: &Context, kind: &Kind, body: &Bytes) -> Result<Self, Status> {
        let protobuf = context.content_type() == "application/vnd.kubernetes.protobuf";
        let mut value = if protobuf {
            decode_protobuf(body)?
        } else if matches!(context.content_type().as_str(), "application/yaml" | "text/yaml") {
            crate::yaml::read(body).map_err(Status::bad_request)?.value
        } else {
            apimachinery::json::read(body)
                .map_err(|error| {
                    Status::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
                })?
                .value
        };
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
        let (api_version, name) = (text("apiVersion"), text("kind"));
        if !name.is_empty() && name != "DeleteOptions" {
            let version = if api_version.is_empty() { "meta.k8s.io/v1" } else { &api_version };
            return Err(Status::bad_request(format!(
                "no kind {name:?} is registered for version {version:?} in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:35\""
            )));
        }
        if let Some(fields) = value.as_object_mut() {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
        let _ = kind;
        let gvk = Gvk::new("meta.k8s.io", "v1", "DeleteOptions");
        native::shape::canonicalise(&gvk, &mut value)
            .map_err(|error| Status::bad_request(error.to_string()))?;
        serde_json::from_value(value).map_err(|error| {
            Status::bad_request(format!(
                "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {error}"
            ))
        })
    }

    /// Returns the options as admission sees them.
    fn to_value(&self) -> Value {
        let mut value = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
        let mut set = |field: &str, given: Option<Value>| {
            if let Some(given) = given {
                pointer::set(&mut value, field, given);
            }
        };
        set("gracePeriodSeconds", self.grace_period_seconds.map(Value::from));
        set("propagationPolicy", self.propagation_policy.clone().map(Value::from));
        set("orphanDependents", self.orphan_dependents.map(Value::from));
        set("dryRun", self.dry_run.clone().map(Value::from));
        if let Some(preconditions) = &self.preconditions {
            let mut given = json!({});
            if let Some(uid) = &preconditions.uid {
                pointer::set(&mut given, "uid", json!(uid));
            }
            if let Some(revision) = &preconditions.resource_version {
                pointer::set(&mut given, "resourceVersion", json!(revision));
            }
            set("preconditions", Some(given));
        }
        value
    }

    fn is_dry_run(&self) -> bool {
        self.dry_run.as_ref().is_some_and(|values| !values.is_empty())
    }

    /// Returns the parameters for the common path of writes.
    pub fn for_write(&self) -> WriteOptions {
        WriteOptions {
            dry_run: self.is_dry_run(),
            field_validation: FieldValidation::Ignore,
            field_manager: String::new(),
            force: None,
            document: Value::Null,
        }
    }
}

/// Reads options in an envelope, whatever API version it names.
fn decode_protobuf(body: &Bytes) -> Result<Value, Status> {
    let default = Gvk::new("meta.k8s.io", "v1", "DeleteOptions");
    native::proto::decode_as(body, Some(&default))
        .map(|(_, value)| value)
        .map_err(|error| Status::bad_request(error.to_string()))
}

/// The state after a deletion.
#[derive(Debug)]
pub enum Deleted {
    /// It was removed at once; the last state has the revision of the deletion.
    Gone(Value),
    /// It was marked; finalizers or a grace period delay its removal.
    Pending(Value),
}

impl Deleted {
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::Pending(_))
    }

    pub fn object(&self) -> &Value {
        match self {
            Self::Gone(object) | Self::Pending(object) => object,
        }
    }

    /// Returns the answer for the client: the object or a Status.
    pub fn answer(self, kind: &Kind) -> Value {
        match self {
            Self::Pending(object) => object,
            Self::Gone(object) if kind.rules.delete_returns_object => object,
            Self::Gone(object) => success(kind, &object),
        }
    }
}

fn success(kind: &Kind, object: &Value) -> Value {
    let details = Details {
        name: object.name().to_owned(),
        group: kind.resource.group.clone(),
        kind: kind.resource.resource.clone(),
        uid: object.uid().to_owned(),
        ..Details::default()
    };
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}

/// Deletes one object.
pub async fn delete(target: &Target<'_>, options: &DeleteOptions) -> Result<Deleted, Status> {
    let (server, kind) = (target.server, target.kind);
    let key = object::join_key(target.namespace, target.name);
    namespace::check_delete(kind, target.name)?;
    if options.orphan_dependents.is_none()
        && options.propagation_policy.is_none()
        && let Some(warning) = kind.orphan_warning()
    {
        target.context.warn(warning);
    }
    loop {
        let Some(entry) = server.store.get(&kind.collection, &key) else {
            return Err(Status::not_found(&kind.resource, target.name));
        };
        check_preconditions(kind, target.name, options, &entry)?;
        if options.ignore_read_error == Some(true) && !object::is_readable(&entry) {
            match remove_undecodable(target, &entry, options.is_dry_run()).await? {
                Some(gone) => return Ok(gone),
                None => continue,
            }
        }
        let shown = conversion::entry(server, kind, entry.clone()).await?;
        let old = server.read(kind, &shown)?;
        target.admit_delete(&old, &options.to_value()).await?;
        let plan = plan(server, kind, &old, options, Timestamp::now());
        let dry_run = target.options.dry_run || options.is_dry_run();
        match plan {
            Plan::Nothing => {
                if !target.unchanged(&entry).await? {
                    continue;
                }
                return Ok(Deleted::Pending(old));
            }
            Plan::Mark(mut new) => {
                if dry_run {
                    return Ok(Deleted::Pending(new));
                }
                let encoded = conversion::encode(server, kind, &new).await?;
                let expected = store::Expect::Revision(entry.modified);
                let committed = target.commit(Commit {
                    // The object remains for now, so plug-ins that count it, such as quotas, still count it.
                    operation: Operation::Update,
                    name: target.name,
                    object: Some(&mut new),
                    old: Some(&old),
                    expect: expected,
                    change: Put::Encoded { value: encoded.body, schema: encoded.schema },
                    held: None,
                });
                match committed.await? {
                    Done::Written(revision) => {
                        object::stamp(&mut new, &kind.api_version, &kind.gvk.kind, revision);
                        return Ok(Deleted::Pending(new));
                    }
                    Done::Lost | Done::Taken => continue,
                }
            }
            Plan::Remove => {
                if dry_run {
                    let mut last = old;
                    if kind.is_marked_before_removal() {
                        mark(&mut last, Timestamp::now());
                    }
                    return Ok(Deleted::Gone(last));
                }
                match remove(target, &entry, Some(&old)).await? {
                    Some(revision) => {
                        let mut last = old;
                        if kind.is_marked_before_removal() {
                            // A pod is always marked before it is removed, however short its grace period is.
                            mark(&mut last, Timestamp::now());
                        }
                        object::stamp(&mut last, &kind.api_version, &kind.gvk.kind, Some(revision));
                        return Ok(Deleted::Gone(last));
                    }
                    None => continue,
                }
            }
        }
    }
}

/// Deletes an object that cannot be read: admission cannot check it, and its finalizers are unknown. This requires a separate
/// right.
async fn remove_undecodable(
    target: &Target<'_>,
    entry: &Arc<Entry>,
    dry_run: bool,
) -> Result<Option<Deleted>, Status> {
    target.server.authorize_also(target.context, "unsafe-delete-ignore-read-errors")?;
    let metadata = json!({"name": target.name, "namespace": target.namespace, "uid": &*entry.head.uid});
    let mut last = json!({"metadata": metadata});
    if target.options.dry_run || dry_run {
        return Ok(Some(Deleted::Gone(last)));
    }
    let Some(revision) = remove(target, entry, None).await? else { return Ok(None) };
    object::stamp(&mut last, &target.kind.api_version, &target.kind.gvk.kind, Some(revision));
    Ok(Some(Deleted::Gone(last)))
}

/// Marks an object as deleted, without a grace period.
fn mark(object: &mut Value, now: Timestamp) {
    let metadata = object.metadata_mut();
    if !metadata.contains_key("deletionTimestamp") {
        metadata.insert("deletionTimestamp".to_owned(), second(now).into());
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|g| *g > 0) {
            metadata.insert("generation".to_owned(), generation.saturating_add(1).into());
        }
    }
    metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
}

async fn remove(target: &Target<'_>, entry: &Entry, old: Option<&Value>) -> Result<Option<u64>, Status> {
    let committed = target.commit(Commit {
        operation: Operation::Delete,
        name: target.name,
        object: None,
        old,
        expect: store::Expect::Revision(entry.modified),
        change: Put::Nothing,
        held: None,
    });
    match committed.await? {
        Done::Written(revision) => Ok(revision),
        Done::Lost | Done::Taken => Ok(None),
    }
}

fn check_preconditions(
    kind: &Kind,
    name: &str,
    options: &DeleteOptions,
    entry: &Entry,
) -> Result<(), Status> {
    let Some(preconditions) = &options.preconditions else { return Ok(()) };
    let conflict = |what: &str, wanted: &str, found: &str| {
        let mut status = Status::conflict(
            &kind.resource,
            name,
            &format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might have been deleted and then recreated"
            ),
        );
        let group = kind.group_in_errors();
        if let Some(details) = &mut status.details {
            details.kind = kind.gvk.kind.clone();
            details.group = group.to_owned();
        }
        let named = apimachinery::gvk::GroupResource::new(group, &kind.gvk.kind).to_string();
        status.message = status.message.replacen(&kind.resource.to_string(), &named, 1);
        status
    };
    if let Some(uid) = &preconditions.uid
        && **uid != *entry.head.uid
    {
        // Upstream deletes namespaces in a special way, which shows in the message.
        return Err(if kind.is_namespace() {
            Status::conflict(
                &kind.resource,
                name,
                &format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    entry.head.uid
                ),
            )
        } else {
            conflict("UID", uid, &entry.head.uid)
        });
    }
    let found = entry.modified.to_string();
    if let Some(revision) = &preconditions.resource_version
        && *revision != found
    {
        let mut status = conflict("ResourceVersion", revision, &found);
        status.message = status.message.replace(
            "The object might have been deleted and then recreated",
            "The object might have been modified",
        );
        return Err(status);
    }
    Ok(())
}

/// What a deletion must do to an object now.
#[derive(Debug, PartialEq)]
enum Plan {
    /// It is already marked, and nothing changes.
    Nothing,
    Mark(Value),
    Remove,
}

fn plan(server: &Server, kind: &Kind, old: &Value, options: &DeleteOptions, now: Timestamp) -> Plan {
    let mut new = old.clone();
    new.set_finalizers(wanted_finalizers(kind, old, options));
    let deleting = old.is_deleting();
    if !deleting && kind.is_definition() {
        definitions::begin_deletion(&mut new, now);
    }
    let finalizers = new.finalizers();
    let is_namespace = kind.is_namespace();
    let grace = if is_namespace { 0 } else { server.grace_period(kind, old, options.grace_period_seconds) };
    let held_by_spec = is_namespace
        && old.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if finalizers.is_empty() && !held_by_spec && grace == 0 {
        return Plan::Remove;
    }
    let metadata = new.metadata_mut();
    if deleting {
        // A later deletion may only shorten the grace period.
        let current =
            old.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        if grace < current {
            let shorter = clock::after(now, grace);
            metadata.insert("deletionTimestamp".to_owned(), second(shorter).into());
            metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
        }
    } else {
        let when = clock::after(now, grace);
        metadata.insert("deletionTimestamp".to_owned(), second(when).into());
        if is_namespace {
            pointer::set(pointer::object_at(&mut new, "status"), "phase", json!("Terminating"));
        } else {
            metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
        }
        let metadata = new.metadata_mut();
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|g| *g > 0) {
            metadata.insert("generation".to_owned(), generation.saturating_add(1).into());
        }
    }
    if new == *old { Plan::Nothing } else { Plan::Mark(new) }
}

/// Adds or removes the finalizers that represent a propagation policy.
fn wanted_finalizers(kind: &Kind, old: &Value, options: &DeleteOptions) -> Vec<String> {
    let mut finalizers = old.finalizers();
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if !kind.has_dependents() {
        return finalizers;
    }
    let policy = match (options.propagation_policy.as_deref(), options.orphan_dependents) {
        (Some(policy), _) => policy,
        (None, Some(true)) => "Orphan",
        (None, Some(false)) => "Background",
        (None, None) if has(ORPHAN) => "Orphan",
        (None, None) if has(FOREGROUND) => "Foreground",
        (None, None) => kind.default_propagation(),
    };
    let wanted = match policy {
        "Orphan" => Some(ORPHAN),
        "Foreground" => Some(FOREGROUND),
        _ => None,
    };
    finalizers.retain(|finalizer| {
        (finalizer != ORPHAN && finalizer != FOREGROUND) || Some(finalizer.as_str()) == wanted
    });
    if let Some(wanted) = wanted
        && !finalizers.iter().any(|finalizer| finalizer == wanted)
    {
        finalizers.push(wanted.to_owned());
    }
    finalizers
}

/// Deletes every object that a list with the same options would contain; returns that list. Only the stored bytes of the objects
/// are kept, which the history of the store also holds.
pub async fn delete_collection(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    namespace: &str,
    options: &DeleteOptions,
) -> Result<Page, Status> {
    let mut page = super::list::page(server, context, kind, namespace, false).await?;
    // A user with too many unread answers gets an error before anything is deleted. The answer is charged when it is created.
    drop(context.hold(0)?);
    let write = options.for_write();
    for entry in &page.entries {
        let (namespace, name) = object::split_key(&entry.name);
        let target =
            Target { server, context, kind, namespace, name, subresource: "", scale: false, options: &write };
        match delete(&target, options).await {
            Ok(_) => {}
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
        // A dry run does not wait for anything, so it yields to other tasks here.
        tokio::task::yield_now().await;
    }
    if options.ignore_read_error == Some(true) {
        page.entries.retain(|entry| object::is_readable(entry));
    }
    Ok(page)
}
