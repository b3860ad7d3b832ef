//! `clusters/<name>/proxy`: hands a request on to a member, in the name of the caller.
//!
//! In: a request that the server has authorised for `clusters/proxy`. Out: the member's answer, streamed, upgrades included.
//! The member is asked with the impersonator's token and the caller's name and groups, so that the member's own rules
//! decide what the caller may do there. Which names may be taken on is the business of the `unifiedAuth` controller.
//!
//! `karmadactl get --operation-scope members` and everything else that looks into members goes this way.

use std::collections::HashMap;
use std::sync::Arc;

use api::cluster::Cluster;
use apimachinery::gvk::GroupResource;
use apimachinery::status::Status;
use apiserver::auth::User;
use apiserver::handlers::context::Context;
use apiserver::http::{Body, pass};
use apiserver::registry::Kind;
use apiserver::server::Server;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use member::Connection;
use parking_lot::Mutex;
use serde::Deserialize as _;

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");
/// Groups that every member gives by itself.
const EVERYBODY: [&str; 2] = ["system:authenticated", "system:unauthenticated"];

/// The way to members, with a client for each that was asked for.
#[derive(Default)]
pub(crate) struct ClusterProxy {
    clients: Mutex<HashMap<String, (Connection, Client)>>,
}

impl std::fmt::Debug for ClusterProxy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ClusterProxy").field("clients", &self.clients.lock().len()).finish()
    }
}

impl ClusterProxy {
    /// Answers a request to `clusters/<name>/proxy/…`.
    pub(crate) async fn answer(
        &self,
        server: &Arc<Server>,
        context: &Context,
        kind: &Kind,
        body: Bytes,
    ) -> Result<Response<Body>, Status> {
        let name = &context.info.name;
        let client = self.client(server, kind, name).await?;
        let upgrade = context.take_upgrade();
        let mut request = Request::new(kube::client::Body::from(body));
        *request.method_mut() = context.method.clone();
        let target = target(&context.info.path, context.query.raw())?;
        *request.uri_mut() =
            target.parse().map_err(|_| Status::bad_request(format!("invalid path {target:?}")))?;
        *request.headers_mut() = headers(&context.headers, &context.user, upgrade.is_some())?;
        let response = client.send(request).await.map_err(|error| unreachable(name, &error))?;
        match upgrade {
            Some(caller) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Ok(pass::relay(server, caller, response))
            }
            _ => Ok(pass::stream(response)),
        }
    }

    /// Returns the client for a member, made anew when the way to it has changed.
    async fn client(&self, server: &Arc<Server>, kind: &Kind, name: &str) -> Result<Client, Status> {
        let Some(object) = server.stored(kind, "", name) else {
            self.clients.lock().remove(name);
            return Err(Status::not_found(&kind.resource, name));
        };
        let cluster = Cluster::deserialize(object).map_err(bare)?;
        let connection = connection(server, &cluster, name)?;
        if let Some((known, client)) = self.clients.lock().get(name)
            && *known == connection
        {
            return Ok(client.clone());
        }
        let client = connection.client().await.map_err(bare)?;
        self.clients.lock().insert(name.to_owned(), (connection, client.clone()));
        Ok(client)
    }
}

fn connection(server: &Server, cluster: &Cluster, name: &str) -> Result<Connection, Status> {
    if cluster.spec.api_endpoint.is_empty() {
        return Err(bare(format!("API endpoint of cluster {name} should not be empty")));
    }
    let Some(reference) = &cluster.spec.impersonator_secret_ref else {
        return Err(bare(format!("the impersonatorSecretRef of cluster {name} is nil")));
    };
    let own = match &cluster.spec.secret_ref {
        Some(reference) => Some(secret(server, &reference.namespace, &reference.name)?),
        None => None,
    };
    let impersonator = secret(server, &reference.namespace, &reference.name)?;
    Connection::impersonator(cluster, own.as_ref(), &impersonator).map_err(bare)
}

fn secret(server: &Server, namespace: &str, name: &str) -> Result<Secret, Status> {
    let missing = || Status::not_found(&GroupResource::new("", "secrets"), name);
    let registry = server.registry.load();
    let kind = registry.find("", "v1", "secrets").ok_or_else(missing)?;
    let object = server.stored(kind, namespace, name).ok_or_else(missing)?;
    Secret::deserialize(object).map_err(bare)
}

/// An error of the server without a name of its own, as upstream answers.
fn bare(error: impl std::fmt::Display) -> Status {
    Status::bare_internal(error.to_string())
}

fn unreachable(cluster: &str, error: &kube::Error) -> Status {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    bare(format!("error trying to reach cluster {cluster}: {cause}"))
}

/// Returns what the member is asked for: what follows `clusters/<name>/proxy`, and the query.
fn target(path: &str, query: &str) -> Result<String, Status> {
    // /apis/cluster.karmada.io/v1alpha1/clusters/<name>/proxy/<rest>
    let rest = path.trim_start_matches('/').splitn(7, '/').nth(6).unwrap_or("");
    pass::check_path(rest)?;
    Ok(match query {
        "" => format!("/{rest}"),
        query => format!("/{rest}?{query}"),
    })
}

/// Returns the caller's headers with the caller's name instead of credentials. A name or group that no header can carry is
/// an error: without it, the member would take the caller for somebody else, or for the impersonator.
fn headers(given: &HeaderMap, user: &User, upgrading: bool) -> Result<HeaderMap, Status> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let text = name.as_str();
        let credential = name == AUTHORIZATION
            || name == HOST
            || text.starts_with("x-remote-")
            || text.starts_with("impersonate-");
        // The client library gives the body its length.
        if !credential && !pass::is_hop_by_hop(text) && text != "content-length" {
            headers.append(name.clone(), value.clone());
        }
    }
    if upgrading && let Some(protocol) = given.get(UPGRADE) {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
    headers.insert(IMPERSONATE_USER, pass::identity("user name", &user.name)?);
    for group in user.groups.iter().filter(|group| !EVERYBODY.contains(&group.as_str())) {
        headers.append(IMPERSONATE_GROUP, pass::identity("group", group)?);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_proxy_is_asked_of_the_member_as_it_was_written() {
        let base = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy";
        let asked = |rest: &str, query: &str| target(&format!("{base}{rest}"), query).unwrap();
        assert_eq!(asked("", ""), "/");
        assert_eq!(asked("/api/v1/pods", "watch=true&limit=5"), "/api/v1/pods?watch=true&limit=5");
        assert_eq!(asked("/api/v1/a%2Fb/", ""), "/api/v1/a%2Fb/");
        for rest in ["/..", "/api/v1/../../metrics", "/api/%2e%2e/metrics", "/api%2f..%2fmetrics"] {
            assert_eq!(target(&format!("{base}{rest}"), "").unwrap_err().code, 400, "{rest}");
        }
    }

    #[test]
    fn no_part_of_an_identity_is_dropped() {
        let user = User { name: "jörg".to_owned(), groups: vec!["bücher".to_owned()], ..User::default() };
        let sent = headers(&HeaderMap::new(), &user, false).unwrap();
        assert_eq!(sent["impersonate-user"].as_bytes(), "jörg".as_bytes());
        assert_eq!(sent["impersonate-group"].as_bytes(), "bücher".as_bytes());
        for odd in ["", "two\nlines", "admin "] {
            let name = User { name: odd.to_owned(), ..User::default() };
            let group = User { groups: vec![odd.to_owned()], ..user.clone() };
            for user in [name, group] {
                assert_eq!(headers(&HeaderMap::new(), &user, false).unwrap_err().code, 400, "{user:?}");
            }
        }
    }

    #[test]
    fn the_member_sees_the_caller_and_none_of_the_credentials() {
        let mut given = HeaderMap::new();
        given.insert("authorization", HeaderValue::from_static("Bearer secret"));
        given.insert("impersonate-user", HeaderValue::from_static("admin"));
        given.insert("accept", HeaderValue::from_static("application/json"));
        given.insert("upgrade", HeaderValue::from_static("websocket"));
        let groups = vec!["dev".to_owned(), "system:authenticated".to_owned()];
        let user = User { name: "jane".to_owned(), groups, ..User::default() };
        let sent = headers(&given, &user, false).unwrap();
        assert!(!sent.contains_key("authorization") && !sent.contains_key("upgrade"));
        assert_eq!(sent.get_all("impersonate-user").iter().collect::<Vec<_>>(), ["jane"]);
        assert_eq!(sent.get_all("impersonate-group").iter().collect::<Vec<_>>(), ["dev"]);
        assert_eq!(sent["accept"], "application/json");
        let switching = headers(&given, &user, true).unwrap();
        assert_eq!(
            (switching["connection"].as_bytes(), switching["upgrade"].as_bytes()),
            (&b"Upgrade"[..], &b"websocket"[..])
        );
    }
}
