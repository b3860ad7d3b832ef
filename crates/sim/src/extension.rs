//! The additions of a cluster's API server to the plain verbs: metrics, evictions, bindings.

use std::sync::Arc;

use apimachinery::gvk::Gvk;
use apimachinery::selector::{FieldSelector, LabelSelector};
use apimachinery::status::Status;
use apiserver::Server;
use apiserver::handlers::context::{Context, WriteOptions};
use apiserver::handlers::decode;
use apiserver::http::negotiate::{Offer, Shape};
use apiserver::http::{Body, respond};
use apiserver::registry::Kind;
use apiserver::server::Extension;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Response;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::executor::Executor;
use crate::metrics::{self, Selection};
use crate::trouble::Troubles;
use crate::{binding, eviction};

type Answer = Option<Result<Response<Body>, Status>>;

/// The extension of one member's server; it knows the loads on it.
pub(crate) struct Cluster {
    pub(crate) troubles: watch::Receiver<Troubles>,
}

impl Extension for Cluster {
    fn subresource<'a>(
        &'a self,
        server: &'a Arc<Server>,
        context: &'a Context,
        kind: &'a Kind,
        namespace: &'a str,
        body: Bytes,
    ) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            match (&*kind.collection, context.info.subresource.as_str()) {
                ("pods", "eviction") => Some(evict(server, context, kind, namespace, &body).await),
                ("pods", "binding") => {
                    Some(bind(server, context, kind, namespace, &context.info.name, &body).await)
                }
                _ => None,
            }
        })
    }

    fn computed<'a>(
        &'a self,
        server: &'a Arc<Server>,
        context: &'a Context,
        kind: &'a Kind,
        namespace: &'a str,
        body: &'a Bytes,
    ) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            match (kind.gvk.group.as_str(), kind.gvk.kind.as_str()) {
                (metrics::GROUP, _) => Some(self.metrics(server, context, kind, namespace)),
                ("", "Binding") => Some(bind(server, context, kind, namespace, "", body).await),
                _ => None,
            }
        })
    }
}

impl Cluster {
    fn metrics(
        &self,
        server: &Arc<Server>,
        context: &Context,
        kind: &Kind,
        namespace: &str,
    ) -> Result<Response<Body>, Status> {
        let accepted = context.accept(Offer {
            protobuf: false,
            yaml: true,
            table: true,
            metadata: false,
            metadata_list: false,
            native: false,
        })?;
        let refused = |error: String| Status::bad_request(error);
        let single = context.info.verb == "get";
        let query = |name: &str| if single { "" } else { context.query.text(name) };
        let selection = Selection {
            namespace,
            name: if single { &context.info.name } else { "" },
            labels: LabelSelector::parse(query("labelSelector"))
                .map_err(|error| refused(error.to_string()))?,
            fields: FieldSelector::parse(query("fieldSelector"))
                .map_err(|error| refused(error.to_string()))?,
        };
        let loads = self.troubles.borrow().loads.clone();
        let items = metrics::answer(&Executor::new(server), &loads, kind, &selection, Timestamp::now())?;
        let document = match accepted.shape {
            Shape::Table { beta } => metrics::table(&items, beta),
            _ if single => {
                let mut item = items.into_iter().next().unwrap_or_default();
                item["apiVersion"] = json!(kind.api_version);
                item["kind"] = json!(kind.gvk.kind);
                item
            }
            _ => {
                json!({"kind": kind.list_kind, "apiVersion": kind.api_version, "metadata": {}, "items": items})
            }
        };
        Ok(respond::value(200, &document, accepted))
    }
}

/// The answer of both subresources.
fn offer() -> Offer {
    Offer { protobuf: true, yaml: true, table: false, metadata: false, metadata_list: false, native: true }
}

fn done(context: &Context) -> Result<Response<Body>, Status> {
    let success =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(respond::value(201, &success, context.accept(offer())?))
}

async fn evict(
    server: &Arc<Server>,
    context: &Context,
    kind: &Kind,
    namespace: &str,
    body: &Bytes,
) -> Result<Response<Body>, Status> {
    context.accept(offer())?;
    let options = WriteOptions::parse(context, "CreateOptions")?;
    let gvk = Gvk::new("policy", "v1", "Eviction");
    let requested = decode::object(context, kind, &gvk, body, options.field_validation)?;
    let name = context.info.name.as_str();
    let named = requested.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
    if !named.is_empty() && named != name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let dry = options.dry_run
        || requested.pointer("/deleteOptions/dryRun").is_some_and(|dry| *dry == json!(["All"]));
    eviction::evict(server, namespace, name, &requested["deleteOptions"], dry).await?;
    done(context)
}

async fn bind(
    server: &Arc<Server>,
    context: &Context,
    kind: &Kind,
    namespace: &str,
    name: &str,
    body: &Bytes,
) -> Result<Response<Body>, Status> {
    context.accept(offer())?;
    let options = WriteOptions::parse(context, "CreateOptions")?;
    let gvk = Gvk::new("", "v1", "Binding");
    let requested = decode::object(context, kind, &gvk, body, options.field_validation)?;
    let named = requested.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
    if !name.is_empty() && !named.is_empty() && named != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let name = if name.is_empty() { named } else { name };
    binding::bind(server, namespace, name, &requested, options.dry_run).await?;
    done(context)
}
