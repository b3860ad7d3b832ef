//! GET of objects and lists of the fleet, from the caches.
//!
//! JSON is assembled from the bytes in the cache, in pieces. Tables, metadata, YAML and protobuf are built from parsed objects,
//! as for the server's own objects; tables have an additional column with the cluster. Without a resource version, one object is
//! read from its member, so that a client sees its own writes; if the member does not answer, the cache does. The pages of a list
//! show the state at the version of the first one, so that no object is left out or repeated, and a client that watches after the
//! last page misses nothing. A version that is too old is answered with 410, as everywhere.

use std::time::Duration;

use ::fleet::cache::Found;
use ::fleet::entry::{STALE_SINCE, Shown, key};
use ::fleet::version::Continue;
use ::fleet::{Entry, Kind as FleetKind, Place, Versions, watch};
use api::labels::annotations::CACHED_FROM_CLUSTER;
use apimachinery::pointer;
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::handlers::list::{self, Selection, check_options, object_offer};
use apiserver::handlers::{self, table};
use apiserver::http::negotiate::{Accepted, Media, Offer, Shape};
use apiserver::http::{Body, body, respond};
use apiserver::registry::Kind;
use bytes::Bytes;
use http::{Request, Response};
use serde_json::{Value, json};

use super::page::Wanted;
use super::{Asked, Endpoints};

/// Lists are sent in pieces of about this size.
const PIECE: usize = 64 * 1024;
/// From this size on, a list that must be built as a whole is built where it delays no other request.
const LARGE: usize = 512 * 1024;
/// How long a member may take to return one object before the cache answers.
const PATIENCE: Duration = Duration::from_secs(5);

impl Endpoints {
    pub(super) async fn get(&self, asked: &Asked<'_>) -> Result<Response<Body>, Status> {
        let accepted = asked.inner.accept(object_offer(&asked.kind))?;
        let (info, kind) = (&asked.inner.info, &asked.kind);
        asked.cache.ready().await;
        let version = asked.inner.query.text("resourceVersion");
        if !version.is_empty() && version != "0" {
            not_older(asked, version).await?;
        }
        let seen = self.seen(asked, "get").await;
        if seen.is_refused() {
            return Err(asked.forbidden("get"));
        }
        let mut found = asked.cache.get(&key(&asked.namespace, &info.name));
        found.retain(|found| seen.has(&found.place.cluster));
        let found = match found.as_slice() {
            [] => return Err(Status::not_found(&kind.resource, &info.name)),
            [one] => one,
            several => return Err(ambiguous(kind, &info.name, several)),
        };
        let object = if version.is_empty() { self.live(asked, found).await? } else { None };
        let object = object.unwrap_or_else(|| {
            let version = Versions::of(&found.place, found.entry.revision).to_string();
            value(&asked.cache.kind, found, &version)
        });
        let document = match accepted.shape {
            Shape::Object => object,
            Shape::Table { beta } => {
                let include = table::Include::parse(&asked.inner)?;
                let mut table = table::single(asked.server, kind, object, include, beta);
                add_clusters(&mut table, [&*found.place.cluster]);
                table
            }
            Shape::Metadata { beta } => table::partial(&object, beta),
            Shape::MetadataList { .. } => return Err(table::not_a_list(kind)),
        };
        Ok(respond::value(200, &document, accepted))
    }

    /// Reads an object from its member. Returns `None` if the member does not answer.
    async fn live(&self, asked: &Asked<'_>, found: &Found) -> Result<Option<Value>, Status> {
        let cluster = &found.place.cluster;
        let Some(client) = self.fleet.client(cluster) else { return Ok(None) };
        let path = asked.inner.info.path.clone();
        let Ok(request) = Request::get(path).body(Vec::new()) else { return Ok(None) };
        match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
            Ok(Ok(object)) => {
                let Ok(entry) = Entry::new(&asked.cache.kind, object) else { return Ok(None) };
                let version = Versions::of(&found.place, entry.revision).to_string();
                let shown = Shown { cluster, version: &version, stale: None };
                Ok(Some(entry.to_value(&asked.cache.kind, &shown)))
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                Err(Status::not_found(&asked.kind.resource, &asked.inner.info.name))
            }
            _ => Ok(None),
        }
    }

    pub(super) async fn list(&self, asked: &Asked<'_>) -> Result<Response<Body>, Status> {
        let kind = &asked.kind;
        let accepted = asked.inner.accept(Offer { metadata_list: true, ..object_offer(kind) })?;
        let include = match accepted.shape {
            Shape::Table { .. } => table::Include::parse(&asked.inner)?,
            Shape::Metadata { .. } => return Err(table::is_a_list(kind)),
            _ => table::Include::None,
        };
        let page = self.page(asked).await?;
        let list = asked.cache.kind.clone();
        if accepted.media == Media::Json && accepted.shape == Shape::Object && !accepted.pretty {
            let held = asked.outer.hold(page.found.len().saturating_mul(size_of::<Found>()))?;
            let answer = stream(list, kind.list_kind.clone(), page, handlers::wants_gzip(&asked.inner));
            return Ok(answer.map(|body| body::holding(body, held)));
        }
        let size: usize = page.found.iter().map(|found| found.entry.size()).sum();
        let (server, kind) = (asked.server.clone(), kind.clone());
        let whole = move || {
            let document = document(&server, &kind, &list, page, include, accepted);
            respond::value(200, &document, accepted)
        };
        if size < LARGE {
            return Ok(whole());
        }
        list::whole(asked.server, asked.outer, size, move || Ok(whole())).await
    }

    async fn page(&self, asked: &Asked<'_>) -> Result<Page, Status> {
        let (context, kind) = (&asked.inner, &asked.kind);
        check_options(context, false)?;
        let selection = Selection::parse(context, kind, &asked.namespace)?;
        let limit = limit(context)?;
        let token = context.query.text("continue");
        let version = context.query.text("resourceVersion");
        let token = match token {
            "" => None,
            _ if !version.is_empty() && version != "0" => {
                let why = "specifying resource version is not allowed when using continue";
                return Err(Status::bad_request(why));
            }
            text => {
                let token = Continue::parse(text);
                Some(token.ok_or_else(|| {
                    Status::bad_request("continue key is not valid: it is not one of the fleet's")
                })?)
            }
        };
        asked.cache.ready().await;
        if !version.is_empty() && version != "0" {
            not_older(asked, version).await?;
        }
        let seen = self.seen(asked, "list").await;
        if seen.is_refused() {
            return Err(asked.forbidden("list"));
        }
        asked.warn(&seen);
        let exactly = match &token {
            Some(token) => Some(token.rv.as_str()),
            None => is_exact(context, limit).then_some(version),
        };
        let wanted = Wanted {
            cache: asked.cache.clone(),
            kind: kind.clone(),
            namespace: asked.namespace.clone(),
            selection,
            seen,
            limit,
            after: token.as_ref().map(|token| (Place::parse(&token.cluster), token.after.clone())),
            at: exactly.map(Versions::parse).filter(|versions| !versions.is_empty()),
        };
        let listed = if wanted.is_costly() {
            list::off_the_workers(asked.server, asked.outer, move || wanted.read()).await?
        } else {
            wanted.read()
        };
        let listed = listed.map_err(|_| expired(token.as_ref()))?;
        let versions = listed.versions.to_string();
        let next = listed.found.last().filter(|_| listed.rest).map(|last| {
            let (cluster, after) = (last.place.to_string(), last.entry.key().to_owned());
            // Pages that do not fit together say so up to the last one.
            let rv = if token.as_ref().is_some_and(|token| token.rv.is_empty()) { "" } else { &versions };
            Continue { rv: rv.to_owned(), cluster, after }.to_string()
        });
        let mut metadata = json!({"resourceVersion": versions});
        if let Some(next) = next {
            pointer::set(&mut metadata, "continue", json!(next));
        }
        Ok(Page { metadata, found: listed.found })
    }
}

struct Page {
    metadata: Value,
    found: Vec<Found>,
}

/// Returns whether an object is selected by labels and fields.
pub(super) fn is_selected(
    kind: &Kind,
    fleet_kind: &FleetKind,
    selection: &Selection,
    cluster: &str,
    entry: &Entry,
) -> bool {
    has_labels(selection, entry) && has_fields(kind, fleet_kind, selection, cluster, entry)
}

/// Returns whether an object is selected by its namespace and labels, without parsing it.
pub(super) fn has_labels(selection: &Selection, entry: &Entry) -> bool {
    (selection.namespace.is_empty() || selection.namespace == entry.namespace())
        && (selection.labels.is_everything() || selection.labels.matches(entry))
}

pub(super) fn has_fields(
    kind: &Kind,
    fleet_kind: &FleetKind,
    selection: &Selection,
    cluster: &str,
    entry: &Entry,
) -> bool {
    selection.fields.is_empty()
        || selection.matches_fields(kind, entry.names(), || {
            entry.to_value(fleet_kind, &Shown { cluster, version: "0", stale: None })
        })
}

async fn not_older(asked: &Asked<'_>, version: &str) -> Result<(), Status> {
    let versions = Versions::parse(version);
    let waited = watch::not_older(&asked.cache, &versions).await;
    waited.map_err(|error| Status::new(504, "Timeout", format!("Too large resource version: {error}")))
}

/// Returns whether a list is requested as it was at its version, as for the server's own objects.
fn is_exact(context: &Context, limit: usize) -> bool {
    let version = context.query.text("resourceVersion");
    let matching = context.query.text("resourceVersionMatch");
    !matches!(version, "" | "0") && (matching == "Exact" || matching.is_empty() && limit > 0)
}

/// The version of a list is too old. A client that reads pages may continue with the present state.
fn expired(token: Option<&Continue>) -> Status {
    let Some(token) = token else { return list::expired() };
    list::expired_page(Continue { rv: String::new(), ..token.clone() }.to_string())
}

pub(super) fn ambiguous(kind: &Kind, name: &str, found: &[Found]) -> Status {
    let clusters: Vec<&str> = found.iter().map(|found| &*found.place.cluster).collect();
    let why = format!("ambiguous objects in clusters [{}]", clusters.join(", "));
    Status::conflict(&kind.resource, name, &why)
}

fn limit(context: &Context) -> Result<usize, Status> {
    match context.query.text("limit") {
        "" => Ok(0),
        text => {
            let bad = |_| Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
            let number: i64 = text.parse().map_err(bad)?;
            Ok(usize::try_from(number).unwrap_or(0))
        }
    }
}

/// Returns an object as clients see it.
pub(super) fn value(kind: &FleetKind, found: &Found, version: &str) -> Value {
    found
        .entry
        .to_value(kind, &Shown { cluster: &found.place.cluster, version, stale: found.stale.as_deref() })
}

fn document(
    server: &apiserver::Server,
    kind: &Kind,
    fleet_kind: &FleetKind,
    page: Page,
    include: table::Include,
    accepted: Accepted,
) -> Value {
    let objects: Vec<Value> =
        page.found.iter().map(|found| value(fleet_kind, found, &found.entry.revision.to_string())).collect();
    match accepted.shape {
        Shape::Table { beta } => {
            let mut table = table::of_objects(server, kind, objects, page.metadata, include, beta);
            add_clusters(&mut table, page.found.iter().map(|found| &*found.place.cluster));
            table
        }
        Shape::Metadata { beta } | Shape::MetadataList { beta } => {
            table::partial_list(objects.into_iter(), page.metadata, beta)
        }
        Shape::Object => {
            json!({"kind": kind.list_kind, "apiVersion": kind.api_version, "metadata": page.metadata, "items": objects})
        }
    }
}

/// Adds a column with the cluster of each row to a table, right after the name.
pub(super) fn add_clusters<'a>(table: &mut Value, clusters: impl IntoIterator<Item = &'a str>) {
    if let Some(columns) = table.get_mut("columnDefinitions").and_then(Value::as_array_mut) {
        let column = json!({"name": "Cluster", "type": "string", "format": "", "priority": 0,
            "description": "The cluster that the object is in."});
        columns.insert(1.min(columns.len()), column);
    }
    let rows = table.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten();
    for (row, cluster) in rows.zip(clusters) {
        if let Some(cells) = row.get_mut("cells").and_then(Value::as_array_mut) {
            cells.insert(1.min(cells.len()), json!(cluster));
        }
    }
}

/// Sends a list in pieces; the items are the bytes of the cache.
fn stream(kind: FleetKind, list_kind: String, page: Page, gzip: bool) -> Response<Body> {
    let head = format!(
        "{{\"kind\":\"{list_kind}\",\"apiVersion\":\"{}\",\"metadata\":{},\"items\":[",
        kind.api_version, page.metadata
    );
    let size: usize = page.found.iter().map(|found| found.entry.size().saturating_add(128)).sum();
    let mut pieces = Pieces { kind, found: page.found.into_iter(), first: true, head: Some(head) };
    if gzip && size > handlers::GZIP_FROM && size < LARGE.saturating_mul(16) {
        use std::io::Write;
        let mut encoder =
            flate2::write::GzEncoder::new(Vec::with_capacity(size / 4), flate2::Compression::fast());
        for piece in &mut pieces {
            encoder.write_all(&piece).expect("memory takes what is written");
        }
        let bytes = encoder.finish().expect("memory takes what is written");
        let mut response = respond::bytes_of(200, bytes, "application/json");
        handlers::mark_gzip(&mut response);
        return response;
    }
    if size <= PIECE {
        let all: Vec<u8> = pieces.flat_map(|piece| piece.to_vec()).collect();
        return respond::bytes_of(200, all, "application/json");
    }
    respond::stream(200, body::pieces(pieces), "application/json")
}

struct Pieces {
    kind: FleetKind,
    found: std::vec::IntoIter<Found>,
    first: bool,
    /// The beginning of the document until it is sent; `None` after the end.
    head: Option<String>,
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let head = self.head.take()?;
        let mut out = Vec::with_capacity(PIECE.saturating_add(8192));
        out.extend_from_slice(head.as_bytes());
        for found in self.found.by_ref() {
            if !std::mem::take(&mut self.first) {
                out.push(b',');
            }
            let version = found.entry.revision.to_string();
            let shown =
                Shown { cluster: &found.place.cluster, version: &version, stale: found.stale.as_deref() };
            found.entry.write(&mut out, &self.kind, &shown);
            if out.len() >= PIECE {
                self.head = Some(String::new());
                return Some(out.into());
            }
        }
        out.extend_from_slice(b"]}\n");
        Some(out.into())
    }
}

/// Removes the fleet's additions from an object before a member gets it.
pub(super) fn without_marks(object: &mut Value) {
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return;
    };
    annotations.remove(CACHED_FROM_CLUSTER);
    annotations.remove(STALE_SINCE);
    if annotations.is_empty()
        && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.remove("annotations");
    }
}
