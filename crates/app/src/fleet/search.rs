//! `search/cache/<path>`: the cached objects, as one list, in Karmada's form.
//!
//! GET only; a name is answered with a list, too; only the label selector is used; errors are `{"error":"…"}`. A kind that no
//! registry names is answered with an empty list.

use std::sync::Arc;

use ::fleet::cache::{Found, Take};
use ::fleet::entry::Shown;
use apimachinery::selector::LabelSelector;
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::http::request::percent_decode;
use apiserver::http::{Body, RequestInfo, body, pass, respond};
use apiserver::server::Server;
use bytes::Bytes;
use http::{Method, Response};
use serde_json::json;

use super::Endpoints;

/// Lists are sent in pieces of about this size.
const PIECE: usize = 64 * 1024;

impl Endpoints {
    pub(super) async fn search(
        &self,
        server: &Arc<Server>,
        context: &Context,
    ) -> Result<Response<Body>, Status> {
        if !matches!(context.method, Method::GET) {
            return Err(Status::method_not_allowed());
        }
        let category = context.info.name.as_str();
        let path = native_path(&context.info)?;
        let info = RequestInfo::parse(&Method::GET, &path, &context.query);
        if !info.is_resource || info.resource.is_empty() {
            let shown = path.trim_start_matches('/');
            return Err(Status::bare_internal(format!(
                "k8s native Request URL({shown}) is not a resource request"
            )));
        }
        if !info.subresource.is_empty() {
            let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
            let shown = format!("[{}]", parts.join(" "));
            return Err(Status::bare_internal(format!(
                "invalid request parts({shown}) for k8s native request URL"
            )));
        }
        match category {
            "cache" => self.cached(server, context, &path, &info).await,
            // As in Karmada: nothing is stored here, users query OpenSearch themselves.
            "opensearch" => Ok(respond::bytes_of(200, Bytes::new(), "application/json")),
            other => Err(Status::bare_internal(format!("connect with unrecognized search category {other}"))),
        }
    }

    async fn cached(
        &self,
        server: &Arc<Server>,
        context: &Context,
        path: &str,
        info: &RequestInfo,
    ) -> Result<Response<Body>, Status> {
        let labels = match LabelSelector::parse(context.query.text("labelSelector")) {
            Ok(labels) => labels,
            Err(error) => return Ok(wrong(400, &error.to_string())),
        };
        if let Some(odd) = ["limit", "timeoutSeconds"].into_iter().find(|name| {
            let text = context.query.text(name);
            !text.is_empty() && text.parse::<i64>().is_err()
        }) {
            let text = context.query.text(odd);
            return Ok(wrong(400, &format!("strconv.ParseInt: parsing {text:?}: invalid syntax")));
        }
        self.fleet.planned().await;
        let registry = server.registry.load_full();
        let Some(kind) = registry.find(&info.group, &info.version, &info.resource) else {
            let group_version = if info.group.is_empty() {
                format!("/{}", info.version)
            } else {
                format!("{}/{}", info.group, info.version)
            };
            return Ok(wrong(500, &format!("no matches for {group_version}, Resource={}", info.resource)));
        };
        let head = format!(
            "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{{}},\"items\":[",
            kind.gvk.kind, kind.api_version
        );
        let Some(asked) = self.asked(server, context, path) else {
            return Ok(respond::bytes_of(200, format!("{head}]}}\n"), "application/json"));
        };
        asked.cache.ready().await;
        let verb = if info.name.is_empty() { "list" } else { "get" };
        let seen = self.seen(&asked, verb).await;
        asked.warn(&seen);
        let name = single(&info.name);
        let listed = asked.cache.list(&asked.namespace, None, |place, entry| {
            let named = name.is_none_or(|name| entry.names().1 == name);
            if named && seen.has(&place.cluster) && labels.matches(&**entry) { Take::Yes } else { Take::No }
        });
        let held = context.hold(listed.found.len().saturating_mul(size_of::<Found>()))?;
        let kind = asked.cache.kind.clone();
        let mut found = listed.found.into_iter();
        let mut state = Some(head);
        let mut first = true;
        let pieces = std::iter::from_fn(move || {
            let mut out = state.take()?.into_bytes();
            for found in found.by_ref() {
                if !std::mem::take(&mut first) {
                    out.push(b',');
                }
                let version = found.entry.revision.to_string();
                let shown =
                    Shown { cluster: &found.place.cluster, version: &version, stale: found.stale.as_deref() };
                found.entry.write(&mut out, &kind, &shown);
                if out.len() >= PIECE {
                    state = Some(String::new());
                    return Some(Bytes::from(out));
                }
            }
            out.extend_from_slice(b"]}\n");
            Some(out.into())
        });
        let body = body::holding(body::pieces(pieces), held);
        Ok(respond::stream(200, body, "application/json"))
    }
}

fn single(name: &str) -> Option<&str> {
    (!name.is_empty()).then_some(name)
}

/// Returns the path after `search/<category>`.
fn native_path(info: &RequestInfo) -> Result<String, Status> {
    let mut parts = info.path.trim_start_matches('/').splitn(6, '/');
    let there = parts.by_ref().skip(3).take(2).map(|part| percent_decode(part, false).into_owned());
    if !there.eq([info.resource.clone(), info.name.clone()]) {
        return Err(Status::no_such_route());
    }
    let rest = parts.next().unwrap_or("");
    pass::check_path(rest)?;
    Ok(format!("/{rest}"))
}

fn wrong(code: u16, error: &str) -> Response<Body> {
    respond::bytes_of(code, format!("{}\n", json!({"error": error})), "application/json")
}
