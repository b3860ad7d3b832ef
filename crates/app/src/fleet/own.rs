//! Sends a request to this server itself, as the caller: kinds that are not in the caches belong to the control plane.
//!
//! Karmada's search uses its own rights here. Ours uses the caller's, so that the proxy opens nothing that the direct path does
//! not, and the caller's share of places and memory.

use std::sync::Arc;

use apiserver::handlers::context::Context;
use apiserver::http::{Body, onward, respond};
use apiserver::serve;
use apiserver::server::Server;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio_util::task::AbortOnDropHandle;

/// Answers the caller's request to another path.
pub(crate) async fn ask(
    server: &Arc<Server>,
    context: &Context,
    target: &str,
    body: Bytes,
) -> Response<Body> {
    let upgrade = context.take_upgrade();
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = context.method.clone();
    match target.parse() {
        Ok(uri) => *request.uri_mut() = uri,
        Err(_) => return respond::text(400, format!("invalid path {target:?}")),
    }
    // The caller is already authenticated.
    *request.headers_mut() = onward::without_credentials(&context.headers, upgrade.is_some());
    if let Some(upgrade) = upgrade {
        request.extensions_mut().insert(upgrade);
    }
    // As a separate task, so that its stack is not on top of this one.
    let answer = serve(server.clone(), request, context.client());
    match AbortOnDropHandle::new(tokio::spawn(answer)).await {
        Ok(answer) => answer,
        Err(_) => respond::text(500, "the request was given up"),
    }
}
