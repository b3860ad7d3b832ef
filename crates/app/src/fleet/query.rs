//! `query?q=…`: answers a query over all cached objects.
//!
//! The objects of a cluster are searched if the cluster allows the caller to list them: in the namespace that the query names, or
//! in all.

use std::collections::HashMap;
use std::sync::Arc;

use ::fleet::Cache;
use ::fleet::entry::Shown;
use ::fleet::query::{Answer, Order, Page, Query, Row, run};
use apimachinery::pointer;
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::handlers::list;
use apiserver::http::{Body, body, respond};
use apiserver::server::Server;
use bytes::Bytes;
use http::{Method, Response};
use jiff::Timestamp;
use serde_json::json;

use super::Endpoints;
use super::rights::{Access, Seen};

/// Answers are sent in pieces of about this size.
const PIECE: usize = 64 * 1024;
/// The default number of objects in a page, and the maximum.
const PAGE: usize = 500;
const LONGEST: usize = 10_000;

impl Endpoints {
    pub(super) async fn query(
        &self,
        server: &Arc<Server>,
        context: &Context,
    ) -> Result<Response<Body>, Status> {
        if context.method != Method::GET || !context.info.name.is_empty() {
            return Err(Status::method_not_allowed());
        }
        let wrong = |why: String| Status::bad_request(why);
        let query = Query::parse(context.query.text("q")).map_err(|error| wrong(error.to_string()))?;
        let order = context.query.text("sort");
        let order = Order::parse(order).ok_or_else(|| {
            wrong(format!("cannot sort by {order:?}; name, age, -age and status can be sorted by"))
        })?;
        let limit = match context.query.text("limit") {
            "" => PAGE,
            text => {
                let number = text.parse::<usize>().ok().filter(|number| (1..=LONGEST).contains(number));
                number.ok_or_else(|| {
                    wrong(format!("limit is {text:?} and must be a number from 1 to {LONGEST}"))
                })?
            }
        };
        let page = Page { order, limit, after: context.query.text("continue").to_owned() };
        self.fleet.planned().await;
        let caches = self.wanted(server, &query);
        let mut seen: HashMap<String, Seen> = HashMap::new();
        for cache in &caches {
            cache.ready().await;
            let kind = &cache.kind;
            let namespace = if kind.namespaced { query.namespace().unwrap_or("") } else { "" };
            let access = Access {
                verb: "list".to_owned(),
                group: kind.group.clone(),
                version: kind.version.clone(),
                resource: kind.plural.clone(),
                subresource: String::new(),
                namespace: namespace.to_owned(),
                name: String::new(),
            };
            let clusters = cache.clusters();
            seen.insert(key(cache), self.rights.seen(&self.fleet, &context.user, &clusters, &access).await);
        }
        // A full search takes a while: each user gets only a limited share.
        let found = list::off_the_workers(server, context, move || {
            let may =
                |cache: &Cache, cluster: &str| seen.get(&key(cache)).is_some_and(|seen| seen.has(cluster));
            run(&query, &caches, may, Timestamp::now(), &page)
        });
        let answer = found.await?.map_err(wrong)?;
        Ok(stream(answer, context.query.flag("objects")))
    }

    /// Returns the caches of the kinds in a query.
    fn wanted(&self, server: &Server, query: &Query) -> Vec<Arc<Cache>> {
        let registry = server.registry.load();
        let mut caches = self.fleet.caches();
        caches.retain(|cache| {
            let kind = &cache.kind;
            let served = registry.find(&kind.group, &kind.version, &kind.plural);
            let names = served.map(|served| served.short_names.clone()).unwrap_or_default();
            query.wants_kind(kind, &names)
        });
        caches
    }
}

fn key(cache: &Cache) -> String {
    format!("{}/{}", cache.kind.api_version, cache.kind.plural)
}

fn stream(answer: Answer, objects: bool) -> Response<Body> {
    let mut metadata = json!({});
    if let Some(next) = answer.next {
        pointer::set(&mut metadata, "continue", json!(next));
    }
    let head = format!(
        "{{\"kind\":\"QueryResult\",\"apiVersion\":\"search.karmada.io/v1alpha1\",\"metadata\":{metadata},\"items\":["
    );
    let (mut rows, mut state, mut first) = (answer.rows.into_iter(), Some(head), true);
    let pieces = std::iter::from_fn(move || {
        let mut out = state.take()?.into_bytes();
        for row in rows.by_ref() {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            write(&mut out, &row, objects);
            if out.len() >= PIECE {
                state = Some(String::new());
                return Some(Bytes::from(out));
            }
        }
        out.extend_from_slice(b"]}\n");
        Some(out.into())
    });
    respond::stream(200, body::pieces(pieces), "application/json")
}

/// Writes the results: in short form, or, if requested, the whole objects.
fn write(out: &mut Vec<u8>, row: &Row, objects: bool) {
    let (kind, found) = (&row.cache.kind, &row.found);
    if objects {
        let version = found.entry.revision.to_string();
        let shown = Shown { cluster: &found.place.cluster, version: &version, stale: found.stale.as_deref() };
        found.entry.write(out, kind, &shown);
        return;
    }
    let (namespace, name) = found.entry.names();
    let facts = &found.entry.facts;
    let created = Timestamp::from_second(facts.created).unwrap_or_default();
    let mut shown = json!({
        "cluster": &*found.place.cluster,
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "namespace": namespace,
        "name": name,
        "status": &*facts.status,
        "created": created.to_string(),
        "node": &*facts.node,
        "images": facts.images.iter().map(|image| &**image).collect::<Vec<_>>(),
    });
    if let Some(since) = &found.stale {
        pointer::set(&mut shown, "staleSince", json!(&**since));
    }
    out.extend_from_slice(shown.to_string().as_bytes());
}
