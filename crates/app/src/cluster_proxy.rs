//! `clusters/<name>/proxy`: forwards a request to a member, in the caller's name.
//!
//! In: a request that the server has authorised for `clusters/proxy`. Out: the member's answer, streamed, upgrades included. The
//! request is sent with the impersonator's token and the caller's name and groups, so that the member's own rules decide what the
//! caller may do there. The `unifiedAuth` controller decides which names may be impersonated.
//!
//! [`apiserver::http::onward`] computes the target and the headers. [`member::Connection`] chooses the route to a member: its
//! address, or the tunnel of its agent.
//!
//! The cluster name `*` stands for all of them: see `every`. Then the members' answers are read here, so their size is limited.
//!
//! `karmadactl get --operation-scope members` and all other looks into members take this path.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

mod every;
mod pages;
mod room;

use std::collections::HashMap;
use std::sync::Arc;

use api::cluster::{Cluster, LocalSecretReference};
use apimachinery::gvk::GroupResource;
use apimachinery::names;
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::http::{Body, onward, pass, respond};
use apiserver::registry::Kind;
use apiserver::server::Server;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use member::{Connection, OldestTls};
use parking_lot::Mutex;
use serde::Deserialize as _;
use tunnel::Tunnels;

use self::room::Room;
use crate::fleet::own;

/// The name that stands for all clusters.
const EVERY: &str = "*";

/// As for aggregated servers.
const REDIRECTED: &str = "the backend attempted to redirect this request, which is not permitted";

/// The routes to members, with a client for each that was used.
pub(crate) struct ClusterProxy {
    tunnels: Tunnels,
    /// For answers that are forwarded, whatever their size is.
    clients: Clients,
    /// For answers that are read here, within the limits for members.
    readers: Clients,
    room: Room,
    /// The API server in front, if this one is behind another.
    host: Option<Client>,
    oldest_tls: OldestTls,
}

impl std::fmt::Debug for ClusterProxy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ClusterProxy").field("clients", &self.clients.0.lock().len()).finish()
    }
}

impl ClusterProxy {
    pub(crate) fn new(tunnels: Tunnels, oldest_tls: OldestTls) -> Self {
        let (clients, readers) = (Clients::default(), Clients::default());
        Self { tunnels, clients, readers, room: Room::default(), host: None, oldest_tls }
    }

    /// Returns the same for a server behind another one, which has the Secrets and everything that is not served here.
    pub(crate) fn before(self, host: Client) -> Self {
        Self { host: Some(host), ..self }
    }

    /// Sends a request to the control plane itself, as the caller.
    pub(crate) async fn own(
        &self,
        server: &Arc<Server>,
        context: &Context,
        target: &str,
        body: Bytes,
    ) -> Result<Response<Body>, Status> {
        let Some(host) = &self.host else { return Ok(own::ask(server, context, target, body).await) };
        pass_on(server, context, host, target, body)
            .await?
            .map_err(|error| bare(format!("the API server in front does not answer: {error}")))
    }

    /// Answers a request to `clusters/<name>/proxy/…`.
    pub(crate) async fn answer(
        &self,
        server: &Arc<Server>,
        context: &Context,
        kind: &Kind,
        body: Bytes,
    ) -> Result<Response<Body>, Status> {
        let target = onward::target(&context.info, context.query.raw())?;
        if context.info.name == EVERY {
            return self.every(server, context, kind, &target, body).await;
        }
        self.forward(server, context, kind, &context.info.name, &target, body).await
    }

    /// Forwards a request to a member, in the caller's name. `kind` is that of clusters.
    pub(crate) async fn forward(
        &self,
        server: &Arc<Server>,
        context: &Context,
        kind: &Kind,
        name: &str,
        target: &str,
        body: Bytes,
    ) -> Result<Response<Body>, Status> {
        let client = self.client(server, kind, name).await?;
        let answer = pass_on(server, context, &client, target, body).await?;
        answer.map_err(|error| unreachable(name, &error))
    }

    /// Returns the client for a member whose answers are forwarded unread.
    pub(crate) async fn client(
        &self,
        server: &Arc<Server>,
        kind: &Kind,
        name: &str,
    ) -> Result<Client, Status> {
        let connection = self.way(server, kind, name).await?;
        if let Some(client) = self.clients.get(name, &connection) {
            return Ok(client);
        }
        let client = connection.client().await.map_err(bare)?;
        self.clients.keep(name, connection, &client);
        Ok(client)
    }

    /// Returns the client for a member whose answers are read here.
    async fn reader(&self, server: &Arc<Server>, kind: &Kind, name: &str) -> Result<Client, Status> {
        let connection = self.way(server, kind, name).await?;
        if let Some(client) = self.readers.get(name, &connection) {
            return Ok(client);
        }
        let client = connection.limited_client().await.map_err(bare)?;
        self.readers.keep(name, connection, &client);
        Ok(client)
    }

    /// Returns the current route to a member.
    async fn way(&self, server: &Arc<Server>, kind: &Kind, name: &str) -> Result<Connection, Status> {
        let Some(object) = server.stored(kind, "", name) else {
            self.clients.forget(name);
            self.readers.forget(name);
            return Err(Status::not_found(&kind.resource, name));
        };
        let cluster = Cluster::deserialize(object).map_err(bare)?;
        match &self.host {
            None => self.connection(&cluster, |reference| {
                secret(server, &reference.namespace, &reference.name).map_err(Failure::Status)
            }),
            Some(host) => {
                let secrets = secrets_of(host, &cluster).await?;
                self.connection(&cluster, |reference| {
                    let missing = || Status::not_found(&GroupResource::new("", "secrets"), &reference.name);
                    let found = secrets.iter().find(|(known, _)| known == reference);
                    found.map(|(_, secret)| secret.clone()).ok_or_else(|| Failure::Status(missing()))
                })
            }
        }
    }

    fn connection(
        &self,
        cluster: &Cluster,
        secret: impl Fn(&LocalSecretReference) -> Result<Secret, Failure>,
    ) -> Result<Connection, Status> {
        let connection = Connection::of_caller(cluster, &self.tunnels, secret);
        connection.map(|way| way.with_oldest_tls(self.oldest_tls)).map_err(|failure| match failure {
            Failure::Status(status) => status,
            // In upstream's words.
            Failure::Member(member::Error::NoEndpoint { cluster }) => {
                bare(format!("API endpoint of cluster {cluster} should not be empty"))
            }
            Failure::Member(error) => bare(error),
        })
    }
}

/// Clients by cluster, each with its route; a client is replaced when the route has changed.
#[derive(Default)]
struct Clients(Mutex<HashMap<String, (Connection, Client)>>);

impl Clients {
    fn get(&self, cluster: &str, way: &Connection) -> Option<Client> {
        let clients = self.0.lock();
        clients.get(cluster).filter(|(known, _)| known == way).map(|(_, client)| client.clone())
    }

    fn keep(&self, cluster: &str, way: Connection, client: &Client) {
        self.0.lock().insert(cluster.to_owned(), (way, client.clone()));
    }

    fn forget(&self, cluster: &str) {
        self.0.lock().remove(cluster);
    }
}

/// Reads the Secrets that a Cluster names from the API server in front.
async fn secrets_of(host: &Client, cluster: &Cluster) -> Result<Vec<(LocalSecretReference, Secret)>, Status> {
    let named = [&cluster.spec.secret_ref, &cluster.spec.impersonator_secret_ref];
    let mut found = Vec::new();
    // Users write them, and the client writes them into paths as they are. There is no Secret with such a name.
    let can_exist = |reference: &&LocalSecretReference| {
        names::is_path_segment(&reference.namespace) && names::is_path_segment(&reference.name)
    };
    for reference in named.into_iter().flatten().filter(can_exist) {
        let secrets: Api<Secret> = Api::namespaced(host.clone(), &reference.namespace);
        if let Some(secret) = secrets.get_opt(&reference.name).await.map_err(bare)? {
            found.push((reference.clone(), secret));
        }
    }
    Ok(found)
}

/// Forwards a request in the caller's name, upgrades included. The other server must not redirect the caller to another host,
/// which would get the caller's token.
async fn pass_on(
    server: &Arc<Server>,
    context: &Context,
    client: &Client,
    target: &str,
    body: Bytes,
) -> Result<kube::Result<Response<Body>>, Status> {
    let upgrade = context.take_upgrade();
    let mut request = Request::new(kube::client::Body::from(body));
    *request.method_mut() = context.method.clone();
    *request.uri_mut() =
        target.parse().map_err(|_| Status::bad_request(format!("invalid path {target:?}")))?;
    *request.headers_mut() = onward::headers(&context.headers, &context.user, upgrade.is_some())?;
    let response = match client.send(request).await {
        Ok(response) => response,
        Err(error) => return Ok(Err(error)),
    };
    if pass::redirects_elsewhere(response.status(), response.headers()) {
        return Ok(Ok(respond::text(StatusCode::BAD_GATEWAY.as_u16(), REDIRECTED)));
    }
    Ok(Ok(match upgrade {
        Some(caller) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            pass::relay(server, caller, response)
        }
        _ => pass::stream(response),
    }))
}

/// Why a member cannot be reached.
enum Failure {
    Status(Status),
    Member(member::Error),
}

impl From<member::Error> for Failure {
    fn from(error: member::Error) -> Self {
        Self::Member(error)
    }
}

fn secret(server: &Server, namespace: &str, name: &str) -> Result<Secret, Status> {
    let missing = || Status::not_found(&GroupResource::new("", "secrets"), name);
    let registry = server.registry.load();
    let kind = registry.find("", "v1", "secrets").ok_or_else(missing)?;
    let object = server.stored(kind, namespace, name).ok_or_else(missing)?;
    Secret::deserialize(object).map_err(bare)
}

/// An internal server error without a reason, as upstream answers.
fn bare(error: impl std::fmt::Display) -> Status {
    Status::bare_internal(error.to_string())
}

fn unreachable(cluster: &str, error: &kube::Error) -> Status {
    match tunnel::Error::within(error) {
        Some(busy @ tunnel::Error::Busy { .. }) => return Status::too_many_requests(busy.to_string(), 1),
        Some(other) => return Status::unavailable(other.to_string()),
        None => {}
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    bare(format!("error trying to reach cluster {cluster}: {cause}"))
}
