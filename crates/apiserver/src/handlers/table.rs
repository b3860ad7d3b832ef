//! Tables for `kubectl get`, and objects reduced to their metadata.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::context::Context;
use super::decode;
use crate::object::Entry;
use crate::registry::{Kind, Source, hide_in_metadata};
use crate::server::Server;

/// How much of the object each row contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    pub fn parse(context: &Context) -> Result<Self, Status> {
        match context.query.text("includeObject") {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be \
                 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

/// Returns the version of what stands for objects.
pub fn version(beta: bool) -> &'static str {
    if beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
}

fn document(metadata: Value, columns: Vec<Value>, rows: Vec<Value>, beta: bool) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": version(beta),
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// Returns the table of a list.
pub fn list(
    server: &Server,
    kind: &Kind,
    entries: &[Arc<Entry>],
    metadata: Value,
    include: Include,
    beta: bool,
) -> Result<Value, Status> {
    let now = Timestamp::now();
    let rows =
        entries.iter().map(|entry| Ok(row(server, kind, server.read(kind, entry)?, include, now, beta)));
    Ok(document(metadata, columns(kind), rows.collect::<Result<_, Status>>()?, beta))
}

/// Returns the table of objects that have already been read, with the metadata of their list.
pub fn of_objects(
    server: &Server,
    kind: &Kind,
    objects: Vec<Value>,
    metadata: Value,
    include: Include,
    beta: bool,
) -> Value {
    let now = Timestamp::now();
    let rows = objects.into_iter().map(|object| row(server, kind, object, include, now, beta)).collect();
    document(metadata, columns(kind), rows, beta)
}

/// Returns the table of one object.
pub fn single(server: &Server, kind: &Kind, object: Value, include: Include, beta: bool) -> Value {
    let metadata = json!({"resourceVersion": object.resource_version()});
    document(metadata, columns(kind), vec![row(server, kind, object, include, Timestamp::now(), beta)], beta)
}

/// Returns the table of one watch event; only the first one carries the columns.
pub fn event(
    server: &Server,
    kind: &Kind,
    object: Value,
    include: Include,
    beta: bool,
    first: bool,
) -> Value {
    let metadata = json!({"resourceVersion": object.resource_version()});
    let columns = if first { columns(kind) } else { Vec::new() };
    let mut table =
        document(metadata, columns, vec![row(server, kind, object, include, Timestamp::now(), beta)], beta);
    if !first {
        pointer::set(&mut table, "columnDefinitions", Value::Null);
    }
    table
}

fn columns(kind: &Kind) -> Vec<Value> {
    match &kind.source {
        Source::Native => native::tables::columns(&kind.gvk).iter().map(column).collect(),
        Source::Custom(custom) => custom.table_columns(&kind.gvk.version),
    }
}

fn column(column: &native::tables::Column) -> Value {
    json!({
        "name": column.name,
        "type": column.kind,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

/// Returns the table of a Scale.
pub fn scale(scale: Value, include: Include, beta: bool) -> Value {
    let metadata = json!({"resourceVersion": scale.resource_version()});
    let cells = native::tables::cells(&super::scale::gvk(), &scale, Timestamp::now());
    let row = json!({"cells": cells, "object": beside(scale, include, beta)});
    document(metadata, native::tables::scale_columns().iter().map(column).collect(), vec![row], beta)
}

fn beside(object: Value, include: Include, beta: bool) -> Value {
    match include {
        Include::None => Value::Null,
        Include::Metadata => partial(&object, beta),
        Include::Object => object,
    }
}

fn row(server: &Server, kind: &Kind, object: Value, include: Include, now: Timestamp, beta: bool) -> Value {
    let mut cells = match &kind.source {
        Source::Native => native::tables::cells(&kind.gvk, &object, now),
        Source::Custom(custom) => custom.table_cells(&kind.gvk.version, &object, now),
    };
    server.extensions.cells(kind, &object, &mut cells);
    json!({"cells": cells, "object": beside(object, include, beta)})
}

/// Returns only the metadata of an object.
pub fn partial(object: &Value, beta: bool) -> Value {
    let mut metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    hide_in_metadata(object, &mut metadata);
    json!({"kind": "PartialObjectMetadata", "apiVersion": version(beta), "metadata": metadata})
}

/// Returns only the metadata of the objects of a list.
pub fn partial_list(items: impl Iterator<Item = Value>, metadata: Value, beta: bool) -> Value {
    let items: Vec<Value> = items.map(|object| partial(&object, beta)).collect();
    // For Go, a list to which nothing was added is null.
    let items = if items.is_empty() { Value::Null } else { items.into() };
    json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": version(beta),
        "metadata": metadata,
        "items": items,
    })
}

/// The error for a request for the metadata of a list on an endpoint of one object.
pub fn not_a_list(kind: &Kind) -> Status {
    if kind.is_custom() {
        // Upstream treats any custom resource as a list until it looks for its items.
        return Status::bare_internal("content is not a list");
    }
    no_list(&format!("{}.{}", decode::go_internal_package(&kind.gvk), kind.gvk.kind))
}

/// As [`not_a_list`], by the name of the Go type.
pub fn no_list(go_type: &str) -> Status {
    Status::not_acceptable(format!(
        "you requested PartialObjectMetadataList, but the requested object is not a list (*{go_type})"
    ))
}

/// The error for a request for the metadata of an object on an endpoint of a list.
pub fn is_a_list(kind: &Kind) -> Status {
    let go_type = if kind.is_custom() {
        "unstructured.UnstructuredList".to_owned()
    } else {
        format!("{}.{}", decode::go_internal_package(&kind.gvk), kind.list_kind)
    };
    Status::not_acceptable(format!(
        "you requested PartialObjectMetadata, but the requested object is a list (*{go_type})"
    ))
}
