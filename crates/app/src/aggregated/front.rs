//! The entry of an aggregated server: the API server in front says who the caller is and is asked whether the caller may do this.
//! Only the registered groups are served.

use std::collections::BTreeSet;
use std::sync::Arc;

use apimachinery::status::Status;
use apiserver::auth::User;
use apiserver::auth::rbac::Attributes;
use apiserver::http::listener::{Guest, Host};
use apiserver::http::{Body, Query, RequestInfo, respond};
use apiserver::server::Server;
use apiserver::{Peer, serve};
use bytes::Bytes;
use cli::registration::{self, Groups};
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderValue};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use parking_lot::RwLock;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

use super::GROUPS;
use super::trust::{Delegate, Trust};

pub(super) struct Front {
    pub(super) server: Arc<Server>,
    pub(super) trust: RwLock<Arc<Trust>>,
    pub(super) delegate: Delegate,
}

impl Host for Front {
    /// The certificates that the peer presented.
    type Peer = Arc<[CertificateDer<'static>]>;
    type Body = Body;

    fn meet(&self, tls: Option<&rustls::ServerConnection>, _: &Arc<Guest>) -> Self::Peer {
        let chain = tls.and_then(|session| session.peer_certificates());
        chain.unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect()
    }

    async fn answer(&self, chain: Self::Peer, request: Request<Incoming>) -> Response<Body> {
        match self.admitted(&chain, request).await {
            Ok(response) => response,
            Err(status) => respond::error(&status),
        }
    }
}

/// What this server does with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Open to all callers.
    Health,
    Whole,
    /// A document about all groups, of which our part is returned.
    Part(Document),
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Document {
    Groups,
    OpenApi2,
    OpenApi3,
}

fn shown(path: &str) -> Shown {
    let mut segments = path.trim_matches('/').split('/');
    match (segments.next().unwrap_or_default(), segments.next(), segments.next(), segments.next()) {
        ("healthz" | "livez" | "readyz", ..) => Shown::Health,
        ("version" | "metrics", None, ..) => Shown::Whole,
        ("apis", None, ..) => Shown::Part(Document::Groups),
        ("apis", Some(group), ..) if GROUPS.contains(&group) => Shown::Whole,
        ("openapi", Some("v2"), None, _) => Shown::Part(Document::OpenApi2),
        ("openapi", Some("v3"), None, _) => Shown::Part(Document::OpenApi3),
        ("openapi", Some("v3"), Some("apis"), Some(group)) if GROUPS.contains(&group) => Shown::Whole,
        _ => Shown::Nothing,
    }
}

impl Front {
    async fn admitted(
        &self,
        chain: &[CertificateDer<'_>],
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Status> {
        let shown = shown(request.uri().path());
        if shown == Shown::Health {
            let anybody = Peer::Vouched(Arc::new(User::anonymous()));
            return Ok(serve(self.server.clone(), request, anybody).await);
        }
        let user = self.caller(chain, request.headers()).await?;
        let query = Query::parse(request.uri().query());
        let info = RequestInfo::parse(request.method(), request.uri().path(), &query);
        let impersonates = |name: &http::HeaderName| name.as_str().starts_with("impersonate-");
        if request.headers().keys().any(impersonates) {
            let hint =
                "nobody takes on other names here; ask the API server in front, which hands the request on";
            return Err(Status::bad_request(hint));
        }
        let wanted = Attributes::of(&info);
        self.delegate.authorize(&user, &wanted).await?;
        if self.would_create(&info) {
            self.delegate.authorize(&user, &Attributes { verb: "create", ..wanted }).await?;
        }
        let peer = Peer::Vouched(Arc::new(user));
        match shown {
            Shown::Nothing => Ok(respond::text(404, "404 page not found\n")),
            Shown::Part(document) => self.part(document, request, peer).await,
            Shown::Health | Shown::Whole => Ok(serve(self.server.clone(), request, peer).await),
        }
    }

    async fn caller(&self, chain: &[CertificateDer<'_>], headers: &HeaderMap) -> Result<User, Status> {
        let trust = self.trust.read().clone();
        if let Some(user) = trust.identify(chain, headers)? {
            return Ok(user);
        }
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = given.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
        });
        match token {
            Some(token) => self.delegate.token(token).await,
            None => Ok(User::anonymous()),
        }
    }

    /// An update of a missing object creates it, where the kind allows that, and needs that right as well.
    fn would_create(&self, info: &RequestInfo) -> bool {
        if !matches!(info.verb, "update" | "patch") || !info.subresource.is_empty() {
            return false;
        }
        let registry = self.server.registry.load();
        let kind = registry.find(&info.group, &info.version, &info.resource);
        kind.is_some_and(|kind| self.server.stored(kind, &info.namespace, &info.name).is_none())
    }

    /// Answers with our part of a document about all groups.
    async fn part(
        &self,
        document: Document,
        request: Request<Incoming>,
        peer: Peer,
    ) -> Result<Response<Body>, Status> {
        let mut asked = Request::new(Full::new(Bytes::new()));
        *asked.uri_mut() = request.uri().clone();
        asked.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        asked.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let answer = serve(self.server.clone(), asked, peer).await;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|error| Status::internal(error.to_string()))?;
        let body = body.to_bytes();
        let whole: Value =
            serde_json::from_slice(&body).map_err(|error| Status::internal(error.to_string()))?;
        let part = match document {
            Document::Groups => groups(whole),
            Document::OpenApi2 => openapi2(whole),
            Document::OpenApi3 => openapi3(whole),
        };
        Ok(respond::bytes_of(code, part.to_string(), "application/json"))
    }
}

fn groups(mut whole: Value) -> Value {
    if let Some(Value::Array(groups)) = whole.get_mut("groups") {
        groups.retain(|group| group["name"].as_str().is_some_and(|name| GROUPS.contains(&name)));
    }
    whole
}

fn is_ours(path: &str) -> bool {
    let mut segments = path.trim_matches('/').split('/');
    segments.next() == Some("apis") && segments.next().is_some_and(|group| GROUPS.contains(&group))
}

fn openapi3(mut whole: Value) -> Value {
    if let Some(Value::Object(paths)) = whole.get_mut("paths") {
        paths.retain(|path, _| is_ours(path));
    }
    whole
}

/// Keeps our paths and the definitions that they refer to.
fn openapi2(mut whole: Value) -> Value {
    if let Some(Value::Object(paths)) = whole.get_mut("paths") {
        paths.retain(|path, _| is_ours(path));
    }
    let mut needed = BTreeSet::new();
    let mut open: Vec<Value> = whole.get("paths").cloned().into_iter().collect();
    while let Some(value) = open.pop() {
        let mut names = Vec::new();
        references(&value, &mut names);
        for name in names {
            if needed.insert(name.clone()) {
                let definition = whole.get("definitions").and_then(|all| all.get(&name));
                open.extend(definition.cloned());
            }
        }
    }
    if let Some(Value::Object(definitions)) = whole.get_mut("definitions") {
        definitions.retain(|name, _| needed.contains(name));
    }
    whole
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().and_then(|text| text.strip_prefix("#/definitions/")) {
                    Some(target) if name == "$ref" => found.push(target.to_owned()),
                    _ => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// Returns the objects that register this server with an API server: a Service and an APIService for each group version.
pub(super) fn registration(address: &str, port: u16, namespace: &str, authority: &str) -> Vec<Value> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": super::SERVICE, "namespace": namespace },
        "spec": { "type": "ExternalName", "externalName": address, "ports": [{ "port": port, "protocol": "TCP" }] },
    });
    let services = registration::api_services(Groups::AndMetrics, namespace, super::SERVICE, port, authority);
    std::iter::once(service).chain(services).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_registered_is_shown() {
        for path in
            ["/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api", "/apis/search.karmada.io", "/version"]
        {
            assert_eq!(shown(path), Shown::Whole, "{path}");
        }
        for path in ["/api", "/api/v1/secrets", "/apis/apps/v1", "/", "/openapi/v3/apis/apps/v1", "/debug/x"]
        {
            assert_eq!(shown(path), Shown::Nothing, "{path}");
        }
        assert_eq!(shown("/readyz/ping"), Shown::Health);
        assert_eq!(shown("/apis"), Shown::Part(Document::Groups));
    }

    #[test]
    fn a_document_keeps_what_our_paths_lead_to() {
        let whole = json!({
            "paths": {
                "/apis/cluster.karmada.io/v1alpha1/clusters": { "schema": { "$ref": "#/definitions/a" } },
                "/api/v1/pods": { "schema": { "$ref": "#/definitions/pod" } },
            },
            "definitions": { "a": { "items": { "$ref": "#/definitions/b" } }, "b": { "$ref": "#/definitions/a" }, "pod": {} },
        });
        let part = openapi2(whole);
        let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&part["definitions"]), ["a", "b"]);
        assert_eq!(names(&part["paths"]), ["/apis/cluster.karmada.io/v1alpha1/clusters"]);
    }
}
