//! What Karmada adds to the API server: the computed columns of kinds that upstream serves by servers of their own, and
//! the controllers' figures.

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
        match (kind.gvk.group.as_str(), kind.gvk.kind.as_str()) {
            (api::cluster::GROUP, "Cluster") => {
                let age = cells.get(AGE).and_then(Value::as_str).unwrap_or("<unknown>").to_owned();
                if let Ok(cluster) = Cluster::deserialize(object) {
                    *cells = table_cells(&cluster, &age).map(Value::from).to_vec();
                }
            }
            // Not the age but the time itself: upstream has no printer for this kind.
            (api::search::GROUP, "ResourceRegistry") => {
                if let Some(created) = cells.get_mut(1) {
                    *created = object["metadata"]["creationTimestamp"].clone();
                }
            }
            _ => {}
        }
    }

    fn metrics(&self) -> String {
        controllers::metrics::render()
    }
}
