//! A `kube::Client` that reaches the server without a socket, with an identity and rights like any other client.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body as ClientBody;
use tokio_util::task::AbortOnDropHandle;

use crate::auth::User;
use crate::http::Body;
use crate::serve::{Peer, serve};
use crate::server::Server;

/// The guarantees that a component of this process requests.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// A write that can be repeated from other stored objects need not wait for the disk: it is acknowledged as soon as it is
    /// visible, and reaches the disk shortly after, together with others.
    pub durability: store::Durability,
    /// Whether answers to writes include managed fields, which are often half of an object.
    pub ownership: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self { durability: store::Durability::Durable, ownership: true }
    }
}

/// Returns a client that acts as `user`. It may be used while another request is being served: its requests run as separate
/// tasks, so that their stack is not on top of the other's.
pub fn client(server: &Arc<Server>, user: User) -> kube::Client {
    make(server, user, Terms::default(), true)
}

/// As [`client`], with its own terms for all its requests, and not for use inside a request.
pub fn client_on(server: &Arc<Server>, user: User, terms: Terms) -> kube::Client {
    make(server, user, terms, false)
}

fn make(server: &Arc<Server>, user: User, terms: Terms, as_task: bool) -> kube::Client {
    let service = InProcess { server: server.clone(), user: Arc::new(user), terms, as_task };
    kube::Client::new(service, "default")
}

/// The server as a tower service.
#[derive(Clone, Debug)]
struct InProcess {
    server: Arc<Server>,
    user: Arc<User>,
    terms: Terms,
    /// Whether each request is a separate task.
    as_task: bool,
}

impl tower::Service<Request<ClientBody>> for InProcess {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<ClientBody>) -> Self::Future {
        request.extensions_mut().insert(self.terms);
        let (server, user) = (self.server.clone(), self.user.clone());
        let answer = serve(server, request, Peer::Local(user));
        if !self.as_task {
            return Box::pin(answer.map(Ok));
        }
        let task = AbortOnDropHandle::new(tokio::spawn(answer));
        Box::pin(async move {
            match task.await {
                Ok(answer) => Ok(answer),
                Err(ended) => match ended.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The process ends, and so does the caller that waits here.
                    Err(_) => std::future::pending().await,
                },
            }
        })
    }
}
