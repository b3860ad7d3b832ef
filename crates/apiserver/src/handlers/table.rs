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

fn document(metadata: Value, columns: Vec<Value>, rows: Vec<Value>, beta: bool) -> Value {
    let version = if beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" };
    json!({
        "kind": "Table",
        "apiVersion": version,
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
        Source::Native => native::tables::columns(&kind.gvk)
            .iter()
            .map(|column| {
                json!({
                    "name": column.name,
                    "type": column.kind,
                    "format": column.format,
                    "description": column.description,
                    "priority": column.priority,
                })
            })
            .collect(),
        Source::Custom(custom) => custom.table_columns(&kind.gvk.version),
    }
}

fn row(server: &Server, kind: &Kind, object: Value, include: Include, now: Timestamp, beta: bool) -> Value {
    let mut cells = match &kind.source {
        Source::Native => native::tables::cells(&kind.gvk, &object, now),
        Source::Custom(custom) => custom.table_cells(&kind.gvk.version, &object, now),
    };
    server.extensions.cells(kind, &object, &mut cells);
    let beside = match include {
        Include::None => Value::Null,
        Include::Metadata => {
            let mut partial = partial(&object);
            if beta {
                partial["apiVersion"] = json!("meta.k8s.io/v1beta1");
            }
            partial
        }
        Include::Object => object,
    };
    json!({"cells": cells, "object": beside})
}

/// Returns the metadata of an object alone.
pub fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}
