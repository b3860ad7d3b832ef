//! Tables for `kubectl get`, and objects reduced to their metadata.

use std::sync::Arc;

use apimachinery::status::Status;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::context::Context;
use crate::object::{self, Entry};
use crate::registry::{Kind, Source};
use crate::server::Server;

/// How much of the object stands beside each row.
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
) -> Value {
    let now = Timestamp::now();
    let rows =
        entries.iter().map(|entry| row(server, kind, server.read(kind, entry), include, now, beta)).collect();
    document(metadata, columns(kind), rows, beta)
}

/// Returns the table of objects that are not stored, and have no version.
pub fn of_objects(server: &Server, kind: &Kind, objects: Vec<Value>, include: Include, beta: bool) -> Value {
    let now = Timestamp::now();
    let rows = objects.into_iter().map(|object| row(server, kind, object, include, now, beta)).collect();
    document(json!({}), columns(kind), rows, beta)
}

/// Returns the table of one object.
pub fn single(server: &Server, kind: &Kind, object: Value, include: Include, beta: bool) -> Value {
    let metadata = json!({"resourceVersion": object::meta_str(&object, "resourceVersion")});
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
    let metadata = json!({"resourceVersion": object::meta_str(&object, "resourceVersion")});
    let columns = if first { columns(kind) } else { Vec::new() };
    let mut table =
        document(metadata, columns, vec![row(server, kind, object, include, Timestamp::now(), beta)], beta);
    if !first {
        table["columnDefinitions"] = Value::Null;
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
    let metadata = json!({"resourceVersion": object::meta_str(&scale, "resourceVersion")});
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

/// Returns the metadata of an object alone.
pub fn partial(object: &Value, beta: bool) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": version(beta),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}
