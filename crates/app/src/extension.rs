//! What Karmada's kinds add to the API server: the computed columns of clusters.

use std::sync::Arc;

use api::cluster::{Cluster, table_cells};
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::http::Body;
use apiserver::registry::Kind;
use apiserver::server::{Extension, Server};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Response;
use serde::Deserialize as _;
use serde_json::Value;

/// The place of the age in a cluster's row.
const AGE: usize = 4;

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Karmada;

impl Extension for Karmada {
    fn subresource<'a>(
        &'a self,
        _: &'a Arc<Server>,
        _: &'a Context,
        _: &'a Kind,
        _: &'a str,
        _: Bytes,
    ) -> BoxFuture<'a, Option<Result<Response<Body>, Status>>> {
        Box::pin(std::future::ready(None))
    }

    fn cells(&self, kind: &Kind, object: &Value, cells: &mut Vec<Value>) {
        if kind.gvk.group != api::cluster::GROUP || kind.gvk.kind != "Cluster" {
            return;
        }
        let age = cells.get(AGE).and_then(Value::as_str).unwrap_or("<unknown>").to_owned();
        if let Ok(cluster) = Cluster::deserialize(object) {
            *cells = table_cells(&cluster, &age).map(Value::from).to_vec();
        }
    }
}
