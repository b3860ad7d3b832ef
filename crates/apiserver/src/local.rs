//! A `kube::Client` that reaches the server without a socket, with an identity and rights like any other client.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body as ClientBody;

use crate::auth::User;
use crate::http::Body;
use crate::serve::{Peer, serve};
use crate::server::Server;

/// Returns a client that acts as `user`.
pub fn client(server: &Arc<Server>, user: User) -> kube::Client {
    let service = InProcess { server: server.clone(), user: Arc::new(user) };
    kube::Client::new(service, "default")
}

/// The server as a tower service.
#[derive(Clone, Debug)]
struct InProcess {
    server: Arc<Server>,
    user: Arc<User>,
}

impl tower::Service<Request<ClientBody>> for InProcess {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let (server, user) = (self.server.clone(), self.user.clone());
        Box::pin(async move { Ok(serve(server, request, Peer::Local(user)).await) })
    }
}
