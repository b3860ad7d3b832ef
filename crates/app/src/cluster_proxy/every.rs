//! `clusters/*/proxy`: one request to all members, in the name of the caller.
//!
//! A path with a name goes to the one cluster that has the object. A collection is listed everywhere and the items are put into one
//! list. What is not about resources, discovery above all, is answered by the control plane, as the caller and not, as Karmada does,
//! with the server's own rights. Answers are Karmada's: plain texts where something is wrong.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::http::{Body, Query, RequestInfo, onward, respond};
use apiserver::registry::Kind;
use apiserver::server::Server;
use bytes::Bytes;
use futures::future::join_all;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use serde_json::{Map, Value};

use super::ClusterProxy;

/// How long a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How much of a member's answer is read.
const ANSWER: usize = 64 << 20;

impl ClusterProxy {
    pub(super) async fn every(
        &self,
        server: &Arc<Server>,
        context: &Context,
        kind: &Kind,
        target: &str,
        body: Bytes,
    ) -> Result<Response<Body>, Status> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let info = RequestInfo::parse(&context.method, path, &Query::parse(Some(query)));
        if !info.is_resource {
            return self.own(server, context, target, body).await;
        }
        let clusters = names(server, kind);
        let is_collection = matches!(info.verb, "list" | "watch" | "deletecollection");
        if is_collection || info.name.is_empty() {
            if info.verb != "list" {
                return Ok(respond::text(405, format!("Request verb {} is not support", info.verb)));
            }
            return Ok(merged(self.ask_all(server, context, kind, &clusters, target).await));
        }
        let object = object_path(path, &info);
        let found = self.ask_all(server, context, kind, &clusters, &object).await;
        let owners: Vec<&str> = found.iter().map(|(cluster, _)| cluster.as_str()).collect();
        match owners.as_slice() {
            [] => Ok(respond::text(404, "resource not found or don't have permission to get it")),
            [one] => self.forward(server, context, kind, one, target, body).await,
            several => {
                let all = several.join(",");
                Ok(respond::text(409, format!("conflict resource, exist in more than one cluster: {all}")))
            }
        }
    }

    /// Asks all clusters as the caller; returns what was answered with 200, by cluster.
    async fn ask_all(
        &self,
        server: &Arc<Server>,
        context: &Context,
        kind: &Kind,
        clusters: &[String],
        target: &str,
    ) -> Vec<(String, Bytes)> {
        let asked = clusters.iter().map(|cluster| async move {
            let answer = self.ask(server, context, kind, cluster, target);
            let answer = tokio::time::timeout(PATIENCE, answer).await.ok().flatten();
            answer.map(|bytes| (cluster.clone(), bytes))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    async fn ask(
        &self,
        server: &Arc<Server>,
        context: &Context,
        kind: &Kind,
        cluster: &str,
        target: &str,
    ) -> Option<Bytes> {
        let client = self.client(server, kind, cluster).await.ok()?;
        let mut request = Request::new(kube::client::Body::empty());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = target.parse().ok()?;
        let mut headers = onward::headers(&context.headers, &context.user, false).ok()?;
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.remove(ACCEPT_ENCODING);
        headers.remove("content-type");
        *request.headers_mut() = headers;
        let response = client.send(request).await.ok()?;
        if response.status() != 200 {
            return None;
        }
        Some(Limited::new(response.into_body(), ANSWER).collect().await.ok()?.to_bytes())
    }
}

/// Returns the names of all clusters.
fn names(server: &Server, kind: &Kind) -> Vec<String> {
    server.store.snapshot(&kind.collection).iter().map(|entry| entry.name.to_string()).collect()
}

/// Returns the path of the object that a path is about, without what follows its name.
fn object_path(path: &str, info: &RequestInfo) -> String {
    if info.subresource.is_empty() {
        return path.to_owned();
    }
    let rest = if info.rest.is_empty() { 1 } else { info.rest.split('/').count().saturating_add(1) };
    let mut parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    parts.truncate(parts.len().saturating_sub(rest));
    parts.join("/")
}

/// Puts the items of all lists into the first one.
fn merged(answers: Vec<(String, Bytes)>) -> Response<Body> {
    let mut lists =
        answers.iter().filter_map(|(_, bytes)| serde_json::from_slice::<Map<String, Value>>(bytes).ok());
    let Some(mut first) = lists.next() else { return respond::text(404, "not found") };
    let mut items = take_items(&mut first);
    for mut list in lists {
        items.append(&mut take_items(&mut list));
    }
    first.insert("items".to_owned(), items.into());
    respond::bytes_of(200, Value::from(first).to_string(), "application/json")
}

fn take_items(list: &mut Map<String, Value>) -> Vec<Value> {
    match list.remove("items") {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_what_stands_before_its_subresource() {
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/x", "/api/v1/namespaces/a/pods/x"),
            ("/api/v1/namespaces/a/pods/x/log", "/api/v1/namespaces/a/pods/x"),
            ("/api/v1/namespaces/a/services/x/proxy/a/b", "/api/v1/namespaces/a/services/x"),
            ("/api/v1/nodes/n1/status", "/api/v1/nodes/n1"),
        ] {
            let info = RequestInfo::parse(&Method::GET, path, &Query::default());
            assert_eq!(object_path(path, &info), expected);
        }
    }

    #[tokio::test]
    async fn lists_are_put_into_the_first_one() {
        let list = |name: &str, items: &str| {
            let text =
                format!(r#"{{"kind":"PodList","metadata":{{"resourceVersion":"{name}"}},"items":{items}}}"#);
            (name.to_owned(), Bytes::from(text))
        };
        let all = vec![
            list("1", "[{\"a\":1}]"),
            ("m2".to_owned(), Bytes::from_static(b"<html>")),
            list("3", "null"),
            list("4", "[2]"),
        ];
        let response = merged(all);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let expected = r#"{"items":[{"a":1},2],"kind":"PodList","metadata":{"resourceVersion":"1"}}"#;
        assert_eq!(body, expected);
        assert_eq!(merged(Vec::new()).status(), 404);
    }
}
