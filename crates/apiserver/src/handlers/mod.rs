//! Requests for resources: routing to the verbs, and code that all verbs share.

mod access_review;
pub mod adopt;
pub mod context;
pub mod decode;
pub mod delete;
pub mod list;
pub mod reviews;
pub mod scale;
pub mod table;
pub mod together;
pub mod token;
pub mod update;
pub mod watch;
pub mod write;

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use bytes::Bytes;
use http::{HeaderValue, Method, Response, header};

use self::context::{Context, WriteOptions};
use self::delete::DeleteOptions;
use self::write::Target;
use crate::http::body::Body;
use crate::http::negotiate::{Accepted, Offer, Shape};
use crate::http::respond;
use crate::registry::{ANY, Kind};
use crate::server::Server;

/// The largest accepted request body.
pub const MAX_BODY: usize = 3 * 1024 * 1024;
/// Answers of at least this size are compressed for clients that accept it.
pub const GZIP_FROM: usize = 128 * 1024;

/// Answers a request for a resource.
pub async fn resource(server: &Arc<Server>, context: &Context, body: Bytes) -> Response<Body> {
    match route(server, context, body).await {
        Ok(response) => response,
        Err(Failure::Status(status)) => {
            let offer = Offer {
                protobuf: true,
                yaml: true,
                table: false,
                metadata: false,
                metadata_list: false,
                native: false,
            };
            let accepted = context.accept(offer).unwrap_or(Accepted::JSON);
            respond::error_as(&status, accepted)
        }
        Err(Failure::PageNotFound) => respond::text(404, "404 page not found\n"),
    }
}

/// Why a request has no ordinary answer.
pub enum Failure {
    Status(Box<Status>),
    /// The plain-text 404 of paths that no group claims.
    PageNotFound,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// Answers for a resource without a kind of its own, if one kind stands for all resources of its group version.
async fn anything(
    server: &Arc<Server>,
    context: &Context,
    body: &Bytes,
) -> Result<Option<Response<Body>>, Failure> {
    let info = &context.info;
    let Some(kind) = server.registry.load().find(&info.group, &info.version, ANY).cloned() else {
        return Ok(None);
    };
    if !kind.allows(info.verb) || context.method != Method::GET {
        return Err(Status::method_not_allowed().into());
    }
    Ok(server.extensions.computed(server, context, &kind, &info.namespace, body).await.transpose()?)
}

async fn route(server: &Arc<Server>, context: &Context, body: Bytes) -> Result<Response<Body>, Failure> {
    let info = &context.info;
    let registry = server.registry.load_full();
    let group = registry.group(&info.group).ok_or(Failure::PageNotFound)?;
    if info.prefix == "api" && !info.group.is_empty() || info.prefix == "apis" && info.group.is_empty() {
        return Err(Failure::PageNotFound);
    }
    let lost = || if group.native { Failure::from(Status::no_such_route()) } else { Failure::PageNotFound };
    let Some(kind) = registry.find(&info.group, &info.version, &info.resource).cloned() else {
        return anything(server, context, &body).await?.ok_or_else(lost);
    };
    let is_namespace = kind.is_namespace();
    let namespace = if is_namespace || !kind.namespaced { "" } else { info.namespace.as_str() };
    if !kind.namespaced && !is_namespace && !info.namespace.is_empty() {
        return Err(lost());
    }
    let path_name =
        if matches!(info.verb, "list" | "watch" | "deletecollection") { "" } else { info.name.as_str() };
    if kind.namespaced && namespace.is_empty() && !path_name.is_empty() {
        return Err(lost());
    }
    if kind.is_custom() && kind.namespaced && namespace.is_empty() && !matches!(info.verb, "list" | "watch") {
        return Err(lost());
    }
    if let Some(custom) = kind.custom()
        && custom.connects.iter().any(|connect| connect.name == info.subresource)
        && let Some(result) =
            server.extensions.subresource(server, context, &kind, namespace, body.clone()).await
    {
        return Ok(result?);
    }
    if kind.rules.computed
        && let Some(answer) = server.extensions.connect(server, context, &kind, &body).await
    {
        return Ok(answer?);
    }
    let watches_without_get = info.verb == "watch" && context.method != Method::GET;
    if context.method == Method::HEAD || context.method == Method::OPTIONS || watches_without_get {
        return Err(Status::method_not_allowed().into());
    }
    if let Some(custom) = kind.custom()
        && let Some(warning) = custom.deprecation(&kind.gvk)
    {
        context.warn(warning);
    }
    if !kind.is_custom()
        && match info.subresource.as_str() {
            "" => kind.allows(info.verb),
            name => kind.subresource(name).is_some(),
        }
        && let Some(warning) = native::prepare::warnings::deprecation(&kind.gvk)
    {
        context.warn(warning);
    }
    if !info.subresource.is_empty() {
        return subresource(server, context, &kind, namespace, body).await;
    }
    if kind.rules.computed {
        if kind.allows(info.verb)
            && let Some(answer) = server.extensions.computed(server, context, &kind, namespace, &body).await
        {
            return Ok(answer?);
        }
        // Reviews have no names; components do.
        if !info.name.is_empty() && !kind.allows("get") {
            return Err(lost());
        }
        return reviews::answer(server, context, &kind, namespace, &body).await;
    }
    if !kind.allows(info.verb) {
        return Err(Status::method_not_allowed().into());
    }
    let all_namespaces = kind.namespaced && namespace.is_empty();
    if all_namespaces && matches!(info.verb, "create" | "deletecollection") {
        return Err(Status::method_not_allowed().into());
    }
    let response = match info.verb {
        "get" => list::get(server, context, &kind, namespace, &info.name).await?,
        "list" => list::list(server, context, &kind, namespace).await?,
        "watch" => watch::watch(server, context, &kind, namespace).await?,
        "create" => {
            if !info.name.is_empty() {
                return Err(Status::method_not_allowed().into());
            }
            create(server, context, &kind, namespace, &body).await?
        }
        "update" | "patch" if info.name.is_empty() => {
            if kind.is_custom() {
                return Err(Status::bad_request("name must be provided").into());
            }
            return Err(Status::method_not_allowed().into());
        }
        "update" | "patch" => change(server, context, &kind, namespace, "", &body).await?,
        "delete" => {
            let accepted = context.accept(list::object_offer(&kind))?;
            let options = DeleteOptions::parse(context, &kind, &body)?;
            let write = options.for_write();
            let target = Target {
                server,
                context,
                kind: &kind,
                namespace,
                name: &info.name,
                subresource: "",
                scale: false,
                options: &write,
            };
            let deleted = delete::delete(&target, &options).await?;
            // Other combinations of delete options answer 200, for old clients.
            let accepted_only = deleted.is_pending() && options.orphan_dependents == Some(false);
            let code = if accepted_only { 202 } else { 200 };
            list::answer(server, context, &kind, code, deleted.answer(&kind), accepted)?
        }
        "deletecollection" => {
            let accepted = context.accept(list::object_offer(&kind))?;
            let options = DeleteOptions::parse(context, &kind, &body)?;
            let page = delete::delete_collection(server, context, &kind, namespace, &options).await?;
            list::send(server, context, &kind, page, accepted).await?
        }
        _ => return Err(Status::method_not_allowed().into()),
    };
    Ok(response)
}

async fn create(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    namespace: &str,
    body: &Bytes,
) -> Result<Response<Body>, Status> {
    let accepted = context.accept(list::object_offer(kind))?;
    let options = WriteOptions::parse(context, "CreateOptions")?;
    let object = decode::object(context, kind, &kind.gvk, body, options.field_validation)?;
    let target = Target {
        server,
        context,
        kind,
        namespace,
        name: "",
        subresource: "",
        scale: false,
        options: &options,
    };
    let outcome = target.create(object).await?;
    list::answer(server, context, kind, 201, shown(context, outcome.object), accepted)
}

/// Returns the object as the answer to a write contains it.
fn shown(context: &Context, mut object: serde_json::Value) -> serde_json::Value {
    if !context.terms.ownership {
        object.metadata_mut().remove("managedFields");
    }
    object
}

/// PUT or PATCH of an object or of its status.
async fn change(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    namespace: &str,
    subresource: &str,
    body: &Bytes,
) -> Result<Response<Body>, Status> {
    let accepted = context.accept(list::object_offer(kind))?;
    let is_patch = context.info.verb == "patch";
    let options = WriteOptions::parse(context, if is_patch { "PatchOptions" } else { "UpdateOptions" })?;
    let name = context.info.name.as_str();
    let target =
        Target { server, context, kind, namespace, name, subresource, scale: false, options: &options };
    let outcome = if is_patch {
        update::patch(&target, body).await?
    } else {
        target.update(&update::Replace::decode(&target, body)?).await?
    };
    let code = if outcome.created { 201 } else { 200 };
    list::answer(server, context, kind, code, shown(context, outcome.object), accepted)
}

async fn subresource(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    namespace: &str,
    body: Bytes,
) -> Result<Response<Body>, Failure> {
    let info = &context.info;
    let Some(subresource) = kind.subresource(&info.subresource) else {
        if !kind.is_custom() {
            return Err(Status::no_such_route().into());
        }
        // Another component may serve what a definition cannot declare.
        let served = server.extensions.subresource(server, context, kind, namespace, body).await;
        return Ok(served.unwrap_or_else(|| Err(Status::not_found(&kind.resource, &info.name)))?);
    };
    if !subresource.verbs.iter().any(|verb| verb == info.verb) {
        return Err(Status::method_not_allowed().into());
    }
    if kind.opens_connection(&info.subresource) {
        server.authorize_also(context, "create")?;
    }
    match (info.subresource.as_str(), info.verb) {
        ("status" | "approval", "get") => Ok(list::get(server, context, kind, namespace, &info.name).await?),
        ("status" | "approval" | "finalize", "update" | "patch") => {
            Ok(change(server, context, kind, namespace, &info.subresource, &body).await?)
        }
        ("scale", verb) => {
            let accepted = context.accept(list::object_offer(kind))?;
            if verb == "get" {
                let key = crate::object::join_key(namespace, &info.name);
                let entry = server
                    .store
                    .get(&kind.collection, &key)
                    .ok_or_else(|| Status::not_found(&kind.resource, &info.name))?;
                let entry = crate::conversion::entry(server, kind, entry).await?;
                let scale = scale::shown(kind, &server.read(kind, &entry)?)?;
                return Ok(respond::value(200, &shown_scale(context, kind, scale, accepted)?, accepted));
            }
            let options =
                WriteOptions::parse(context, if verb == "patch" { "PatchOptions" } else { "UpdateOptions" })?;
            let target = Target {
                server,
                context,
                kind,
                namespace,
                name: &info.name,
                subresource: "scale",
                scale: true,
                options: &options,
            };
            let outcome = scale::write(&target, &body, verb == "patch").await?;
            Ok(respond::value(200, &shown_scale(context, kind, outcome.object, accepted)?, accepted))
        }
        ("token", "create") => Ok(token::request(server, context, kind, namespace, &body).await?),
        _ => match server.extensions.subresource(server, context, kind, namespace, body).await {
            Some(result) => Ok(result?),
            None => Err(without_pods(server, context, kind, namespace).into()),
        },
    }
}

/// Returns a Scale in the representation that the client wants.
fn shown_scale(
    context: &Context,
    kind: &Kind,
    scale: serde_json::Value,
    accepted: Accepted,
) -> Result<serde_json::Value, Status> {
    Ok(match accepted.shape {
        Shape::Object => scale,
        Shape::Table { beta } => table::scale(scale, table::Include::parse(context)?, beta),
        Shape::Metadata { beta } => table::partial(&scale, beta),
        Shape::MetadataList { .. } => {
            let package = if kind.is_custom() { "v1" } else { "autoscaling" };
            return Err(table::no_list(&format!("{package}.Scale")));
        }
    })
}

/// Returned for exec, attach, port-forward and proxies: there are no containers here.
fn without_pods(server: &Server, context: &Context, kind: &Kind, namespace: &str) -> Status {
    let info = &context.info;
    let key = crate::object::join_key(namespace, &info.name);
    let Some(entry) = server.store.get(&kind.collection, &key) else {
        return Status::not_found(&kind.resource, &info.name);
    };
    let (resource, subresource) = (&info.resource, &info.subresource);
    let is_unplaced = || {
        let pod = server.read_or_warn(kind, &entry);
        pod.is_some_and(|pod| pod.pointer("/spec/nodeName").is_none())
    };
    if kind.opens_connection(subresource) && is_unplaced() {
        return Status::bad_request(format!("pod {} does not have a host assigned", info.name));
    }
    if kind.holds_addresses()
        && subresource == "proxy"
        && server.store.get("services/endpoints", &key).is_none()
    {
        return Status::unavailable(format!("no endpoints available for service {:?}", info.name));
    }
    let message = format!("{resource}/{subresource} is not served here: this control plane runs no pods");
    Status::new(501, "NotImplemented", message)
}

/// Returns whether the client accepts compressed answers.
pub fn wants_gzip(context: &Context) -> bool {
    context
        .header(header::ACCEPT_ENCODING)
        .is_some_and(|value| value.split(',').any(|part| part.trim().starts_with("gzip")))
}

/// Marks an answer as compressed.
pub fn mark_gzip(response: &mut Response<Body>) {
    response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
}
