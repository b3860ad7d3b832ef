//! `clusters/*/proxy`: one request to all members, in the caller's name.
//!
//! A path with a name goes to the one cluster that has the object. A collection is listed everywhere and the items are merged
//! into one list. Requests that are not about resources, mainly discovery, are answered by the control plane, as the caller and
//! not, as in Karmada, with the server's own rights. Answers are Karmada's: errors are plain text.
//!
//! A member without an answer is left out, as in Karmada. The amount of data is limited (`room`); a member that sends more is
//! left out, too, and the caller gets a warning.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use apiserver::Held;
use apiserver::handlers::context::Context;
use apiserver::handlers::list;
use apiserver::http::{Body, Query, RequestInfo, body, onward, respond};
use apiserver::registry::Kind;
use apiserver::server::Server;
use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use member::limit::TooLarge;

use super::ClusterProxy;
use super::pages::{Page, Wanted, merged};
use super::room::{Member, Reading, Stop};

/// How long a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Reading a page of this size takes a while.
const LARGE: usize = 512 * 1024;

/// One request to all members.
struct Asked<'a> {
    server: &'a Arc<Server>,
    context: &'a Context,
    /// The kind of clusters.
    kind: &'a Kind,
}

/// One member's part of a list, charged to the caller.
struct Listed {
    pages: Vec<Page>,
    held: Option<Held>,
}

/// Why a member is not in the answer.
enum Omission {
    /// It does not answer, lacks the kind, or does not let the caller see it.
    NoAnswer,
    /// Its answer was larger than the limit, which the text gives.
    TooLarge(String),
    /// The caller should try again.
    NoRoom(Status),
}

impl From<Stop> for Omission {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::TooLarge(why) => Self::TooLarge(why),
            Stop::NoRoom => {
                Self::NoRoom(Status::too_many_requests("Too many requests, please try again later.", 1))
            }
        }
    }
}

impl From<kube::Error> for Omission {
    fn from(error: kube::Error) -> Self {
        TooLarge::within(&error).map_or(Self::NoAnswer, |large| Self::TooLarge(large.to_string()))
    }
}

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
        let asked = Asked { server, context, kind };
        let clusters = names(server, kind);
        let is_collection = matches!(info.verb, "list" | "watch" | "deletecollection");
        if is_collection || info.name.is_empty() {
            if info.verb != "list" {
                return Ok(respond::text(405, format!("Request verb {} is not support", info.verb)));
            }
            return self.list(&asked, &clusters, &Wanted::new(target)).await;
        }
        let owners = self.owners(&asked, &clusters, &object_path(path, &info)).await?;
        match owners.as_slice() {
            [] => Ok(respond::text(404, "resource not found or don't have permission to get it")),
            [one] => self.forward(server, context, kind, one, target, body).await,
            several => {
                let all = several.join(",");
                Ok(respond::text(409, format!("conflict resource, exist in more than one cluster: {all}")))
            }
        }
    }

    /// Returns the clusters that have an object, if the caller may see it there.
    async fn owners(
        &self,
        asked: &Asked<'_>,
        clusters: &[String],
        object: &str,
    ) -> Result<Vec<String>, Status> {
        let _reading = self.room.enter(&asked.context.user)?;
        let each = clusters.iter().map(|cluster| async move {
            let found = async {
                let client = self.reader(asked.server, asked.kind, cluster).await.ok()?;
                // Other contents are not needed here.
                asked.send(&client, object).await.ok()
            };
            let found = tokio::time::timeout(PATIENCE, found).await.ok().flatten();
            found.map(|_| cluster.clone())
        });
        Ok(join_all(each).await.into_iter().flatten().collect())
    }

    /// Lists in all clusters.
    async fn list(
        &self,
        asked: &Asked<'_>,
        clusters: &[String],
        wanted: &Wanted,
    ) -> Result<Response<Body>, Status> {
        let reading = self.room.enter(&asked.context.user)?;
        let each = clusters.iter().map(|cluster| {
            let listed = self.listed(asked, &reading, cluster, wanted);
            async move { tokio::time::timeout(PATIENCE, listed).await.unwrap_or(Err(Omission::NoAnswer)) }
        });
        let (mut lists, mut held) = (Vec::new(), Vec::new());
        for answer in join_all(each).await {
            match answer {
                Ok(listed) => {
                    lists.push(listed.pages);
                    held.push(listed.held);
                }
                Err(Omission::NoAnswer) => {}
                Err(Omission::TooLarge(why)) => asked.context.warn(format!("left out: {why}")),
                Err(Omission::NoRoom(status)) => return Err(status),
            }
        }
        let Some(content) = merged(&lists) else { return Ok(respond::text(404, "not found")) };
        let content = body::holding(content, (reading, held));
        // A caller that does not read the answer holds room that others need.
        Ok(respond::brief(respond::stream(200, content, "application/json")))
    }

    /// Lists in one cluster, page by page.
    async fn listed(
        &self,
        asked: &Asked<'_>,
        reading: &Reading,
        cluster: &str,
        wanted: &Wanted,
    ) -> Result<Listed, Omission> {
        let client = self.reader(asked.server, asked.kind, cluster).await.map_err(|_| Omission::NoAnswer)?;
        let mut member = reading.of(cluster);
        let mut pages = Vec::new();
        let mut next = Some(wanted.first());
        while let Some(target) = next {
            let page = asked.page(&client, &target, &mut member).await?;
            next = wanted.after(&page);
            pages.push(page);
        }
        let held = asked.context.hold(member.keep()).map_err(Omission::NoRoom)?;
        Ok(Listed { pages, held })
    }
}

impl Asked<'_> {
    /// Sends a request to a member as the caller; returns the body of an answer with code 200.
    async fn send(&self, client: &Client, target: &str) -> Result<kube::client::Body, Omission> {
        let mut request = Request::new(kube::client::Body::empty());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = target.parse().map_err(|_| Omission::NoAnswer)?;
        let headers = onward::headers(&self.context.headers, &self.context.user, false);
        let mut headers = headers.map_err(|_| Omission::NoAnswer)?;
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.remove(ACCEPT_ENCODING);
        headers.remove("content-type");
        *request.headers_mut() = headers;
        let response = client.send(request).await?;
        if response.status() != 200 {
            return Err(Omission::NoAnswer);
        }
        Ok(response.into_body())
    }

    async fn page(&self, client: &Client, target: &str, member: &mut Member<'_>) -> Result<Page, Omission> {
        let mut body = self.send(client, target).await?;
        let mut text = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                member.add(data.len())?;
                text.extend_from_slice(&data);
            }
        }
        let text = text.freeze();
        let page = if text.len() < LARGE {
            Page::read(&text)
        } else {
            let read = list::off_the_workers(self.server, self.context, move || Page::read(&text));
            read.await.map_err(Omission::NoRoom)?
        };
        page.ok_or(Omission::NoAnswer)
    }
}

/// Returns the names of all clusters.
fn names(server: &Server, kind: &Kind) -> Vec<String> {
    server.store.snapshot(&kind.collection).iter().map(|entry| entry.name.to_string()).collect()
}

/// Returns the path of the object in a path, without what follows its name.
fn object_path(path: &str, info: &RequestInfo) -> String {
    if info.subresource.is_empty() {
        return path.to_owned();
    }
    let rest = if info.rest.is_empty() { 1 } else { info.rest.split('/').count().saturating_add(1) };
    let mut parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    parts.truncate(parts.len().saturating_sub(rest));
    parts.join("/")
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
}
