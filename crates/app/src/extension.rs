//! What Karmada adds to the API server: the proxy to members, the computed columns of kinds that upstream serves by servers
//! of their own, and the controllers' figures.

use std::sync::Arc;

use api::cluster::{Cluster, table_cells};
use apimachinery::gvk::Gvk;
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::http::Body;
use apiserver::registry::{Kind, Subresource};
use apiserver::server::{Extension, Server};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Response;
use serde::Deserialize as _;
use serde_json::Value;

use crate::cluster_proxy::ClusterProxy;

/// The place of the age in a cluster's row.
const AGE: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Karmada {
    proxy: ClusterProxy,
}

impl Extension for Karmada {
    fn subresource<'a>(
        &'a self,
        server: &'a Arc<Server>,
        context: &'a Context,
        kind: &'a Kind,
        _: &'a str,
        body: Bytes,
    ) -> BoxFuture<'a, Option<Result<Response<Body>, Status>>> {
        Box::pin(async move {
            match (kind.gvk.group.as_str(), kind.gvk.kind.as_str(), context.info.subresource.as_str()) {
                (api::cluster::GROUP, "Cluster", "proxy") => {
                    Some(self.proxy.answer(server, context, kind, body).await)
                }
                _ => None,
            }
        })
    }

    fn connects(&self, definition: &str) -> Vec<Subresource> {
        if definition != "clusters.cluster.karmada.io" {
            return Vec::new();
        }
        let verbs = ["create", "delete", "get", "patch", "update"];
        vec![Subresource {
            name: "proxy".to_owned(),
            gvk: Gvk::new(api::cluster::GROUP, "v1alpha1", "ClusterProxyOptions"),
            verbs: verbs.map(str::to_owned).to_vec(),
        }]
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
