//! Karmada's additions to the API server: the proxy to members and the tunnels of their agents, the endpoints of the fleet, the
//! metrics of all members, the computed columns of kinds that upstream serves from separate servers, the reasons of the
//! scheduler's last decision as `diagnosis` of a binding, and the controllers' metrics.

use std::sync::Arc;

use api::cluster::{Cluster, table_cells};
use apimachinery::gvk::Gvk;
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::http::{Body, respond};
use apiserver::registry::{Kind, Subresource};
use apiserver::server::{Check, Extension, Server};
use bytes::Bytes;
use controllers::plane::scheduling::Diagnoses;
use futures::future::BoxFuture;
use http::Response;
use http::header::ACCEPT;
use member::OldestTls;
use serde::Deserialize as _;
use serde_json::Value;
use tunnel::Tunnels;

use crate::cluster_proxy::ClusterProxy;
use crate::controllers::Tasks;
use crate::fleet::Endpoints;
use crate::fleet_metrics::{self, Metrics};
use crate::tunnels;

impl Karmada {
    pub(crate) fn new(
        diagnoses: Diagnoses,
        tasks: Tasks,
        endpoints: Endpoints,
        tunnels: Tunnels,
        oldest_tls: OldestTls,
    ) -> Self {
        let metrics = Metrics::new(tasks.clone(), tunnels.clone());
        let proxy = ClusterProxy::new(tunnels.clone(), oldest_tls);
        Self { proxy, metrics, tunnels, diagnoses, tasks, endpoints }
    }

    /// Returns the same for a server behind another one, which has the Secrets and everything that is not served here.
    pub(crate) fn before(mut self, host: kube::Client) -> Self {
        self.proxy = self.proxy.before(host);
        self
    }

    /// Explains the placement of a binding: as JSON, or as text for clients that prefer it.
    fn diagnosis(&self, context: &Context, kind: &Kind, namespace: &str) -> Result<Response<Body>, Status> {
        if context.info.verb != "get" {
            return Err(Status::method_not_allowed());
        }
        let name = &context.info.name;
        let explanation = self.diagnoses.explain(namespace, name).ok_or_else(|| {
            let mut status = Status::not_found(&kind.resource, name);
            status.message =
                format!("the scheduler of this process has not decided about {name:?} since it started");
            status
        })?;
        let wants = context.header(ACCEPT).unwrap_or_default();
        if wants.starts_with("text/plain") {
            return Ok(respond::bytes_of(200, explanation.to_string(), "text/plain; charset=utf-8"));
        }
        let json =
            serde_json::to_string(&explanation).map_err(|error| Status::internal(error.to_string()))?;
        Ok(respond::bytes_of(200, json, "application/json"))
    }
}

/// The column of the age in a cluster's row.
const AGE: usize = 4;

pub(crate) struct Karmada {
    proxy: ClusterProxy,
    metrics: Metrics,
    /// The tunnels that agents open.
    tunnels: Tunnels,
    /// The last decisions of the scheduler in this process.
    diagnoses: Diagnoses,
    /// The tasks of the controllers in this process.
    tasks: Tasks,
    /// The endpoints of the fleet.
    endpoints: Endpoints,
}

impl Extension for Karmada {
    fn subresource<'a>(
        &'a self,
        server: &'a Arc<Server>,
        context: &'a Context,
        kind: &'a Kind,
        namespace: &'a str,
        body: Bytes,
    ) -> BoxFuture<'a, Option<Result<Response<Body>, Status>>> {
        Box::pin(async move {
            match (kind.gvk.group.as_str(), kind.gvk.kind.as_str(), context.info.subresource.as_str()) {
                (api::cluster::GROUP, "Cluster", "proxy") => {
                    Some(self.proxy.answer(server, context, kind, body).await)
                }
                (api::cluster::GROUP, "Cluster", "tunnel") => {
                    Some(tunnels::open(&self.tunnels, server, context, kind))
                }
                (api::work::GROUP, "ResourceBinding" | "ClusterResourceBinding", "diagnosis") => {
                    Some(self.diagnosis(context, kind, namespace))
                }
                _ => None,
            }
        })
    }

    fn connect<'a>(
        &'a self,
        server: &'a Arc<Server>,
        context: &'a Context,
        kind: &'a Kind,
        body: &'a Bytes,
    ) -> BoxFuture<'a, Option<Result<Response<Body>, Status>>> {
        Box::pin(self.endpoints.answer(server, context, kind, &self.proxy, body))
    }

    fn computed<'a>(
        &'a self,
        server: &'a Arc<Server>,
        context: &'a Context,
        kind: &'a Kind,
        _: &'a str,
        _: &'a Bytes,
    ) -> BoxFuture<'a, Option<Result<Response<Body>, Status>>> {
        Box::pin(async move {
            if !fleet_metrics::serves(&kind.gvk.group) {
                return None;
            }
            Some(self.metrics.answer(server, context, kind).await)
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
            // The time itself, not the age: upstream has no printer for this kind.
            (api::search::GROUP, "ResourceRegistry") => {
                if let Some(created) = cells.get_mut(1) {
                    *created = object["metadata"]["creationTimestamp"].clone();
                }
            }
            _ => {}
        }
    }

    fn checks(&self) -> Vec<Check> {
        self.tasks.checks()
    }

    fn metrics(&self) -> String {
        runtime::metrics::render()
    }
}
