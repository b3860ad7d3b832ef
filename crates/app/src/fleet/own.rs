//! Asks this very server, as the caller: what is not in the caches belongs to the control plane.
//!
//! Karmada's search asks with its own rights here. Ours asks with the caller's, so that the way through the proxy opens nothing
//! that the direct way does not.

use std::sync::Arc;

use apiserver::handlers::context::Context;
use apiserver::http::{Body, onward, respond};
use apiserver::server::Server;
use apiserver::{Peer, serve};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio_util::task::AbortOnDropHandle;

/// Answers a request of the caller to another path.
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
    // The caller is known.
    *request.headers_mut() = onward::without_credentials(&context.headers, upgrade.is_some());
    if let Some(upgrade) = upgrade {
        request.extensions_mut().insert(upgrade);
    }
    // As a task of its own, so that its stack does not lie on top of this one.
    let answer = serve(server.clone(), request, Peer::Local(context.user.clone()));
    match AbortOnDropHandle::new(tokio::spawn(answer)).await {
        Ok(answer) => answer,
        Err(_) => respond::text(500, "the request was given up"),
    }
}
