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
use std::time::Duration;

use api::cluster::{Cluster, LocalSecretReference};
use apimachinery::gvk::GroupResource;
use apimachinery::names;
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::http::{Body, Query, RequestInfo, body, onward, pass, respond};
use apiserver::registry::Kind;
use apiserver::server::Server;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
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

/// How long another server may take until its answer begins.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// For requests that do not stay open; members that are alive answer these within their own deadline, which is the same. Once it
    /// has begun, the answer has as long again to come to its end. What stays open may be read for as long as it lasts.
    usual: Duration,
    /// For watches, and for a change of protocols. A member says at once that it begins; an aggregated server of its own may first fill
    /// a cache.
    open: Duration,
    /// For logs, and for what is behind a proxy in the member. A kubelet sends nothing at all before the first line of a log, so a
    /// client that follows one waits for hours: as long as kubelets keep streams open in which nothing happens.
    quiet: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(count.saturating_mul(60));
        Self { usual: minutes(1), open: minutes(5), quiet: minutes(240) }
    }
}

impl Patience {
    /// Returns the limits for the answer to a request.
    fn of(self, method: &Method, target: &str) -> Within {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let info = RequestInfo::parse(method, path, &Query::parse(Some(query)));
        match info.subresource.as_str() {
            "log" | "proxy" => Within { begin: self.quiet, rest: None },
            _ if info.is_long_running() => Within { begin: self.open, rest: None },
            _ => Within { begin: self.usual, rest: Some(self.usual) },
        }
    }
}

/// How long an answer may take to begin, and then to come to its end; `None` if it may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Within {
    begin: Duration,
    rest: Option<Duration>,
}

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
    patience: Patience,
}

impl std::fmt::Debug for ClusterProxy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ClusterProxy").field("clients", &self.clients.0.lock().len()).finish()
    }
}

impl ClusterProxy {
    pub(crate) fn new(tunnels: Tunnels, oldest_tls: OldestTls) -> Self {
        let (clients, readers) = (Clients::default(), Clients::default());
        let patience = Patience::default();
        Self { tunnels, clients, readers, room: Room::default(), host: None, oldest_tls, patience }
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
        pass_on(server, context, host, target, body, self.patience)
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
        let answer = pass_on(server, context, &client, target, body, self.patience).await?;
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
        self.clients
            .keep(name, connection, &client, |name| server.store.get(&kind.collection, name).is_some());
        Ok(client)
    }

    /// Returns the client for a member whose answers are read here.
    async fn reader(&self, server: &Arc<Server>, kind: &Kind, name: &str) -> Result<Client, Status> {
        let connection = self.way(server, kind, name).await?;
        if let Some(client) = self.readers.get(name, &connection) {
            return Ok(client);
        }
        let client = connection.limited_client().await.map_err(bare)?;
        self.readers
            .keep(name, connection, &client, |name| server.store.get(&kind.collection, name).is_some());
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

/// Clients by cluster, each with its route and the token that it shows; a client is replaced when the route has changed.
struct Clients<W = Connection>(Mutex<HashMap<String, (W, Client)>>);

impl<W> Default for Clients<W> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<W: PartialEq> Clients<W> {
    fn get(&self, cluster: &str, way: &W) -> Option<Client> {
        let clients = self.0.lock();
        clients.get(cluster).filter(|(known, _)| known == way).map(|(_, client)| client.clone())
    }

    /// Keeps a client. Those of clusters that are gone go as well: nobody asks for such a cluster again.
    fn keep(&self, cluster: &str, way: W, client: &Client, exists: impl Fn(&str) -> bool) {
        let mut clients = self.0.lock();
        clients.retain(|known, _| exists(known));
        clients.insert(cluster.to_owned(), (way, client.clone()));
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
/// which would get the caller's token. A server that does not begin to answer, or stops in the middle, is given up, as kube-apiserver
/// gives up a request of its own: otherwise one that is silent would hold the requests, and so the places and connections, of all who
/// ask it.
async fn pass_on(
    server: &Arc<Server>,
    context: &Context,
    client: &Client,
    target: &str,
    body: Bytes,
    patience: Patience,
) -> Result<kube::Result<Response<Body>>, Status> {
    let upgrade = context.take_upgrade();
    let mut request = Request::new(kube::client::Body::from(body));
    *request.method_mut() = context.method.clone();
    *request.uri_mut() =
        target.parse().map_err(|_| Status::bad_request(format!("invalid path {target:?}")))?;
    *request.headers_mut() = onward::headers(&context.headers, &context.user, upgrade.is_some())?;
    let within = patience.of(&context.method, target);
    let response = match tokio::time::timeout(within.begin, client.send(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Ok(Err(error)),
        Err(_) => return Ok(Ok(apiserver::timed_out())),
    };
    if pass::redirects_elsewhere(response.status(), response.headers()) {
        return Ok(Ok(respond::text(StatusCode::BAD_GATEWAY.as_u16(), REDIRECTED)));
    }
    Ok(Ok(match upgrade {
        Some(caller) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            pass::relay(server, caller, response)
        }
        _ => match within.rest.and_then(|rest| tokio::time::Instant::now().checked_add(rest)) {
            Some(deadline) => pass::stream(response).map(|body| body::until(body, deadline)),
            None => pass::stream(response),
        },
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

#[cfg(test)]
mod tests {
    use apiserver::auth::User;
    use apiserver::{Options, Profile};
    use http::HeaderMap;
    use http::header::CONTENT_TYPE;
    use http_body_util::{BodyExt, StreamBody};
    use hyper::body::Frame;

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn followed_logs_may_be_quiet_and_lists_may_not() {
        let patience = Patience::default();
        let check = |method: Method, target: &str, expected: Duration| {
            let within = patience.of(&method, target);
            assert_eq!(within.begin, expected, "{method} {target}");
            let rest = Some(expected).filter(|expected| *expected == patience.usual);
            assert_eq!(within.rest, rest, "{method} {target}: what stays open is not cut off");
        };
        let pod = "/api/v1/namespaces/n/pods/p";
        for path in ["/", "/version", "/api/v1/pods", "/api/v1/pods?watch=false", "/api/v1/namespaces/log"] {
            check(Method::GET, path, patience.usual);
        }
        check(Method::DELETE, pod, patience.usual);
        check(Method::POST, "/api/v1/namespaces/n/pods", patience.usual);
        check(Method::GET, &format!("{pod}/status"), patience.usual);
        check(Method::GET, "/api/v1/pods?watch=true", patience.open);
        check(Method::GET, "/api/v1/watch/pods", patience.open);
        for part in ["exec?command=sh", "attach", "portforward"] {
            check(Method::POST, &format!("{pod}/{part}"), patience.open);
        }
        for part in ["log?follow=true", "log", "proxy/", "proxy/events"] {
            check(Method::GET, &format!("{pod}/{part}"), patience.quiet);
        }
    }

    fn asked(target: &str) -> Context {
        let path = format!("/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy{target}");
        let query = Query::parse(None);
        let info = RequestInfo::parse(&Method::GET, &path, &query);
        let user = User { name: "jane".to_owned(), ..User::default() };
        Context::new(Method::GET, info, query, HeaderMap::new(), Arc::new(user))
    }

    /// A head, half of an answer, and the other half when `go` is told.
    #[tokio::test]
    async fn finding_16_a_member_that_stops_in_the_middle_holds_no_request_for_ever() {
        const BRIEF: Duration = Duration::from_secs(1);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = Options { profile: Profile::Karmada, ..Options::default() };
        let handle = apiserver::start(options).await.expect("the server starts");
        let go = Arc::new(tokio::sync::Notify::new());
        let told = go.clone();
        let halting = tower::service_fn(move |_: Request<kube::client::Body>| {
            let told = told.clone();
            let first = futures::stream::once(async { Ok::<_, String>(Frame::data(Bytes::from("half"))) });
            let second = futures::stream::once(async move {
                told.notified().await;
                Ok(Frame::data(Bytes::from(" and half")))
            });
            let body = StreamBody::new(futures::StreamExt::chain(first, second));
            async { Ok::<_, String>(Response::new(body)) }
        });
        let client = Client::new(halting, "default");
        // Whatever stays open would end, too, if it had no more time than the rest.
        let patience = Patience { usual: BRIEF, open: LONG, quiet: LONG };
        let pass = async |target: &str| {
            let answer =
                pass_on(&handle.server, &asked(target), &client, target, Bytes::new(), patience).await;
            answer.expect("it may be sent").expect("no trouble on the way").into_body()
        };
        let broken = pass("/api/v1/pods").await.collect().await.expect_err("it has no end");
        assert_eq!(broken.to_string(), "the answer did not come to its end in time");
        let pod = "/api/v1/namespaces/n/pods/p";
        for target in ["/api/v1/pods?watch=true", &format!("{pod}/log?follow=true"), &format!("{pod}/proxy/")]
        {
            let mut body = pass(target).await;
            body.frame().await.expect("half").expect("of an answer");
            tokio::time::sleep(2 * BRIEF).await;
            go.notify_one();
            let rest = body.collect().await.expect("it is not cut off").to_bytes();
            assert_eq!(rest, " and half", "{target}");
        }
        handle.stop().await;
    }

    #[test]
    fn finding_24_clients_of_clusters_that_are_gone_are_not_kept() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let _inside = runtime.enter();
        let nobody = tower::service_fn(|_: Request<kube::client::Body>| async {
            Err::<Response<kube::client::Body>, _>("nobody answers")
        });
        let (clients, client) = (Clients::<u32>::default(), Client::new(nobody, "default"));
        for cluster in ["m1", "m2", "m3"] {
            clients.keep(cluster, 1, &client, |_| true);
        }
        clients.keep("m4", 1, &client, |cluster| cluster != "m2");
        let kept = |cluster: &str| clients.get(cluster, &1).is_some();
        assert!(!kept("m2") && ["m1", "m3", "m4"].into_iter().all(kept));
        assert!(clients.get("m1", &2).is_none(), "the way to it has changed");
    }

    #[tokio::test]
    async fn finding_16_a_member_that_never_answers_holds_no_request_for_ever() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = Options { profile: Profile::Karmada, ..Options::default() };
        let handle = apiserver::start(options).await.expect("the server starts");
        let silent = tower::service_fn(|_: Request<kube::client::Body>| {
            std::future::pending::<Result<Response<kube::client::Body>, String>>()
        });
        let client = Client::new(silent, "default");
        let pod = "/api/v1/namespaces/n/pods/p";
        let cases = [
            ("/api/v1/pods".to_owned(), Patience { usual: SHORT, open: LONG, quiet: LONG }),
            ("/api/v1/pods?watch=true".to_owned(), Patience { usual: LONG, open: SHORT, quiet: LONG }),
            (format!("{pod}/log?follow=true"), Patience { usual: LONG, open: LONG, quiet: SHORT }),
        ];
        for (target, patience) in cases {
            let context = asked(&target);
            let answer = pass_on(&handle.server, &context, &client, &target, Bytes::new(), patience).await;
            let answer = answer.expect("it may be sent").expect("no trouble on the way");
            assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT, "{target}");
            assert_eq!(answer.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
            let text = answer.into_body().collect().await.expect("a body").to_bytes();
            let status: serde_json::Value = serde_json::from_slice(&text).expect("a Status");
            assert_eq!(status["code"], 504);
            assert_eq!(status["reason"], "Timeout");
            assert_eq!(status["message"], "request did not complete within the allotted timeout");
        }
        handle.stop().await;
    }
}
